//! Programs of several users: with whom memory is shared.

use std::process::Command;

use crate::talk::{Running, Talk, USERS, as_user, free_port, outcome_of};

/// The same command in a PID namespace of its own, as a container's root runs it.
fn in_a_container(command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    inside.arg(command.get_program()).args(command.get_args()).env_clear();
    inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    inside
}

fn has_containers() -> bool {
    let has = in_a_container(&Command::new("true")).status().is_ok_and(|status| status.success());
    if !has {
        println!("skipped: PID namespaces need root and unshare");
    }
    has
}

/// How the connection of a container's client to a server outside travels, or the other way round.
fn across_the_border(talk: &Talk, is_server_inside: bool) -> (String, String) {
    let port = free_port();
    let begin = |words: &[&str], is_inside| {
        let command = talk.moved(&[], words);
        Running::start(if is_inside { in_a_container(&command) } else { command })
    };
    let _server = begin(&["serve", &port], is_server_inside);
    let client = begin(&["call", &port, "1", "50", "100"], !is_server_inside);
    let outcome = outcome_of(talk, &format!(":{port}"), "client");
    client.finish();
    outcome
}

#[test]
fn root_of_another_pid_namespace_is_another_user() {
    let Some(talk) = Talk::prepare() else { return };
    if !has_containers() {
        return;
    }
    for is_server_inside in [true, false] {
        let (mode, words) = across_the_border(&talk, is_server_inside);
        assert!(mode == "TCP" && words.contains("root elsewhere"), "{mode}: {words}");
    }
    let rules = "[policy]\nshare_with_users = [\"root\"]\n";
    talk.place.file(".config/sidestep/sidestep.toml", rules);
    for is_server_inside in [true, false] {
        let (mode, words) = across_the_border(&talk, is_server_inside);
        assert_eq!(mode, "SMC-D", "{words}");
    }
}

/// A server that is root until it has begun to work, and then nobody much.
#[test]
fn a_program_is_judged_by_who_it_has_become() {
    let Some(talk) = Talk::prepare() else { return };
    if talk.has_other_users().is_none() {
        return;
    }
    let (port, user) = (free_port(), USERS[0].to_string());
    let _server = Running::start(talk.moved(&[], &["turn", &user, &port]));
    let call = || talk.moved(&[], &["call", &port, "1", "50", "100"]);
    let friend = Running::start(as_user(USERS[0], call()));
    assert_eq!(outcome_of(&talk, &format!("pid:{}", friend.pid()), "client").0, "SMC-D");
    friend.finish();
    let root = Running::start(call());
    let (mode, words) = outcome_of(&talk, &format!("pid:{}", root.pid()), "client");
    assert!(mode == "TCP" && words.contains("another user"), "{mode}: {words}");
    root.finish();
}
