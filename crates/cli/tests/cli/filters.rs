//! Programs under a filter of system calls (seccomp) that was there when they began.

use std::process::Command;

use serde_json::Value;

use crate::support::outcome;
use crate::talk::{Running, Talk, eventually, free_port, outcome_of};

/// The same command, begun under a filter that lets all pass.
fn under_a_filter(talk: &Talk, command: &Command) -> Command {
    let mut under = Command::new(talk.talker());
    under.arg("under").arg(command.get_program()).args(command.get_args()).env_clear();
    under.current_dir(talk.place.path());
    under.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    under
}

#[test]
fn a_program_that_begins_under_a_filter_stays_on_tcp_and_why_says_so() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = talk.moved(&[], &["serve", &port]);
    let server = Running::start(under_a_filter(&talk, &server));
    let client = Running::start(talk.moved(&[], &["call", &port, "1", "50", "100"]));
    let (mode, words) = outcome_of(&talk, &format!("pid:{}", client.pid()), "client");
    assert_eq!(mode, "TCP", "{words}");
    let listener = eventually("the server is not listed", || {
        let why = outcome(talk.sidestep().args(["why", "--json", &format!(":{port}")])).1;
        let explanation: Value = serde_json::from_str(&why).ok()?;
        explanation["listeners"].as_array()?.first().cloned()
    });
    assert_eq!(listener["pid"], server.pid(), "{listener:#}");
    assert!(listener["state"].as_str().unwrap().contains("seccomp"), "{listener:#}");
    assert!(listener["change"].as_str().unwrap().contains("policy.trust_filters"), "{listener:#}");
    client.finish();
}

#[test]
fn a_filter_that_the_operator_trusts_is_in_nobodys_way() {
    let Some(talk) = Talk::prepare() else { return };
    talk.place.file(".config/sidestep/sidestep.toml", "[policy]\ntrust_filters = true\n");
    let port = free_port();
    let server = talk.moved(&[], &["serve", &port]);
    let _server = Running::start(under_a_filter(&talk, &server));
    let client = talk.moved(&[], &["call", &port, "1", "50", "100"]);
    let client = Running::start(under_a_filter(&talk, &client));
    assert_eq!(outcome_of(&talk, &format!("pid:{}", client.pid()), "client").0, "SMC-D");
    client.finish();
}
