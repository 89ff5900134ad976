//! `sidestep top` beside many connections: what it costs itself.
//!
//! A look reads every connection, so its price is that of their number, and the connections do nothing.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::lab::{Lab, RUN_PATIENCE};
use super::launch::{self, Dialogue, Program, Transport};

/// Each has two ends, which `top` lists.
const CONNECTIONS: u64 = 5_000;
/// Its own interval is two seconds: so many of them at least.
const TIME_MIN: Duration = Duration::from_secs(12);
/// From one look at what it has shown to the next.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// CPU time in percent of one CPU, of a `top` on a terminal at its own interval; in the column of TCP there is none.
pub(super) fn cpu(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    if transport == Transport::Tcp {
        return Ok(vec![0.0]);
    }
    let sidestep = lab.launcher.observer().context("`top` is in `sidestep`")?;
    let config = lab.write("top.toml", "[smc]\npromotion = \"early\"\n")?;
    let (program, count) = (lab.own("idle"), CONNECTIONS.to_string());
    let words = [&program, "--connections", &count, "--seconds", "0.1", "--hold", "yes"];
    let mut command = lab.command(transport, &words)?;
    command.env("SIDESTEP_CONFIG", config);
    let mut idle = Dialogue::start(command)?;
    let report: Value = serde_json::from_str(&idle.await_line("{", RUN_PATIENCE)?)?;
    ensure!(report["connections"] == CONNECTIONS, "there are only {}", report["connections"]);

    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command"]);
    let shown = format!("stty rows 40 cols 120 && exec {} top --connections", sidestep.display());
    command.arg(shown).arg("/dev/null");
    command.env("TERM", "xterm-256color");
    let mut top = Program::start(command, &lab.scratch)?;
    // It begins with two looks that are close to each other.
    let deadline = Instant::now() + RUN_PATIENCE;
    while !top.printed().contains("SMC-D") {
        top.must_be_alive()?;
        ensure!(Instant::now() < deadline, "top shows no connection");
        thread::sleep(LOOK_INTERVAL);
    }
    let before_s = launch::cpu_s(&top.family());
    let time = lab.duration().max(TIME_MIN);
    thread::sleep(time);
    top.must_be_alive()?;
    let cpu_s = launch::cpu_s(&top.family()) - before_s;
    drop(top);
    idle.finish(RUN_PATIENCE)?;
    Ok(vec![100.0 * cpu_s / time.as_secs_f64()])
}
