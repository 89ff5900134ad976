//! Programs of different PID namespaces, as of two containers that share the host's network.
//!
//! Each is number 1 in its own. Between them nothing has to be known of that; who displays them sees
//! them by the numbers of its own namespace.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::suite::HANG;
use crate::suite::Lacking;
use crate::user;
use crate::witness::Claim;

const CONNECTIONS: usize = 5;

/// Two programs agree, and one hands its connections on to a third namespace.
pub(crate) fn two(stage: &Stage<'_>) -> Result<String> {
    if !user::is_root() {
        bail!(Lacking("PID namespaces need root".to_owned()));
    }
    let port = launch::free_port()?;
    let text = port.to_string();
    // Root of another PID namespace is another user.
    let rules = stage.house.scratch.join("pid-namespaces.toml");
    fs::write(&rules, "[policy]\nshare_with_users = [\"root\"]\n")?;
    // With a /proc of its own, and with the host's.
    let mut server = Program::start(
        inside(stage, &rules, &["--mount-proc"], &["server", "127.0.0.1", &text]),
        &stage.house.scratch,
    )?;
    server.await_listener(port)?;
    let seed = stage.house.seed.to_string();
    let command = inside(stage, &rules, &[], &["client", "127.0.0.1", &text, &seed]);
    let mut client = Dialogue::start(command)?;
    for turn in [format!("{CONNECTIONS} 40"), "give".to_owned(), "0 40".to_owned()] {
        client.say(&turn)?;
        client.await_line("verified", HANG)?;
        // What it says stands there at once, what it is shows a look.
        must_be_seen(stage, &server, &mut client).with_context(|| turn)?;
    }
    told_by_why(stage, port, &server)?;
    client.finish(HANG)?;
    server.must_be_alive()?;
    Ok(format!("{CONNECTIONS} connections between two namespaces, seen from the host's"))
}

/// A program under Sidestep that is number 1 of a PID namespace.
fn inside(stage: &Stage<'_>, rules: &Path, options: &[&str], words: &[&str]) -> Command {
    let unshare = [&["unshare", "--pid", "--fork", "--kill-child"], options].concat();
    let script = stage.house.script("distant.py");
    let program = [&["python3", &script], words].concat();
    let program = stage.command(Transport::Smc, &program);
    let mut command = Command::new(unshare[0]);
    command.args(&unshare[1..]).arg("--").arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("SIDESTEP_CONFIG", rules);
    command
}

/// Both ends of all connections are in shared memory, of processes as the host numbers them.
fn must_be_seen(stage: &Stage<'_>, server: &Program, client: &mut Dialogue) -> Result<()> {
    if !stage.house.witness.sees() {
        return Ok(());
    }
    let pids = [server.family(), client.program().family()].concat();
    let seen = stage.house.witness.look(&pids)?;
    stage.house.witness.judge(Claim::Smc, &seen)?;
    seen.must_all_be_smc(2 * CONNECTIONS)
}

/// `sidestep why` knows the listener, and of each connection both ends.
fn told_by_why(stage: &Stage<'_>, port: u16, server: &Program) -> Result<()> {
    let Some(sidestep) = stage.house.launcher.observer() else { return Ok(()) };
    let mut command = Command::new(sidestep);
    command.args(["why", "--json", &format!(":{port}")]);
    let told: Value = serde_json::from_str(&launch::run(command, HANG)?)?;
    let is_known = |pid: &Value| server.family().iter().any(|known| *pid == *known);
    let listener = &told["listeners"][0];
    ensure!(is_known(&listener["pid"]) && listener["under_sidestep"] == true, "{told:#}");
    let findings = told["findings"].as_array().context("no findings")?;
    let by_server = findings.iter().find(|finding| finding["role"] == "server");
    let by_server = by_server.context("nothing of the server")?;
    ensure!(by_server["mode"] == "SMC-D" && is_known(&by_server["pid"]), "{told:#}");
    Ok(())
}
