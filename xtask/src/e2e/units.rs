//! The units of `packaging` under a real systemd: in a container that has this machine's `/usr`, nothing else
//! of it, and a network and control groups of its own.
//!
//! The programs are installed as `docs/agent.md` says, and the units are those that are shipped; what a
//! drop-in changes is how long the watchdog waits, so that the tests need not wait as long.

mod debian;
mod enabled;
mod kept;
mod machine;
mod of_user;
mod standstill;

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::launch::Dialogue;
use crate::suite::HANG;
pub(crate) use debian::debian;
pub(crate) use enabled::enabled;
pub(crate) use kept::kept;
use machine::{AGENT, GATEWAY, Machine, PATIENCE, Unit, WATCHDOG};
pub(crate) use of_user::of_user;
use standstill::Standstill;

const SERVER: &str = "10.89.3.1";
const CLIENT: &str = "10.89.3.2";

/// They are well formed, systemd hears that they are ready, and their hardening lets them do what they are for.
pub(crate) fn start(stage: &Stage<'_>) -> Result<String> {
    let machine = Machine::boot(stage)?;
    machine.run(&["systemd-analyze", "verify", AGENT, GATEWAY])?;
    machine.start_both()?;
    // It has loaded BPF programs and attached them to a control group, and it has its socket.
    let said = machine.said(AGENT)?;
    for line in [
        "the TCP option of SMC is written for",
        "programs of different users and network namespaces meet at",
    ] {
        ensure!(said.contains(line), "the agent does not say '{line}':\n{said}");
    }
    // It reads states of other users' programs.
    let server = machine.serve()?;
    let mut client = machine.client("127.0.0.1")?;
    client.say("2 3")?;
    client.await_line("verified", HANG)?;
    let metrics = machine.metrics()?;
    let is_wanted = |line: &str| line.contains("program=\"python3\"") && line.contains("\"ring\"");
    ensure!(metrics.lines().any(is_wanted), "nothing of user 65534's programs:\n{metrics}");
    // It has its adapter, and answers.
    let devices: Value = serde_json::from_str(&machine.run(&["sidestep", "devices", "--json"])?)?;
    ensure!(devices[0]["is_up"] == true, "the gateway's adapters: {devices}");
    drop((client, server));

    // The service is the next process, which the watchdog hears from then on.
    let before = machine.unit(GATEWAY)?;
    machine.run(&["systemctl", "reload", GATEWAY])?;
    machine.await_unit(GATEWAY, |now| now.is_active() && now.main_pid != before.main_pid)?;
    machine.run(&["sidestep", "devices"])?;

    for unit in [AGENT, GATEWAY] {
        let before = machine.unit(unit)?;
        machine.run(&["systemctl", "restart", unit])?;
        let after = machine.unit(unit)?;
        ensure!(after.watchdog == "30s", "{unit}: its watchdog waits for {}", after.watchdog);
        ensure!(after.is_active() && after.main_pid != before.main_pid, "{unit}: {after:?}");
        machine.run(&["systemctl", "stop", unit])?;
        let stopped = machine.unit(unit)?;
        ensure!(stopped.state == "inactive" && stopped.result == "success", "{unit}: {stopped:?}");
    }
    Ok("verified, ready, at work, reloaded, restarted, stopped".to_owned())
}

/// A container that has the agent's directory bind-mounted finds each agent that comes later.
pub(crate) fn container(stage: &Stage<'_>) -> Result<String> {
    let machine = Machine::boot(stage)?;
    machine.start_both()?;
    let _server = machine.serve()?;
    let mut container = machine.container(SERVER, CLIENT)?;
    for how in ["at first", "restart", "stop and start", "kill", "restart"] {
        match how {
            "restart" => drop(machine.run(&["systemctl", "restart", AGENT])?),
            "stop and start" => {
                machine.run(&["systemctl", "stop", AGENT])?;
                machine.run(&["systemctl", "start", AGENT])?;
            }
            "kill" => {
                let before = machine.unit(AGENT)?;
                machine.run(&["systemctl", "kill", "--signal=KILL", AGENT])?;
                machine
                    .await_unit(AGENT, |now| now.is_active() && now.restarts > before.restarts)?;
            }
            _ => {}
        }
        must_move(&machine, &mut container).with_context(|| how.to_owned())?;
    }
    Ok("connections of a container, with each of five agents".to_owned())
}

/// Waits until a connection of a new program of the container moves: programs that know each other need no
/// agent. (Where a CPU is busy a connection can be over before both ends have asked.)
fn must_move(machine: &Machine, container: &mut Dialogue) -> Result<()> {
    let (before, deadline) = (machine.moved_connections_of_server()?, Instant::now() + PATIENCE);
    while machine.moved_connections_of_server()? == before {
        if Instant::now() > deadline {
            let why = machine.run(&["sidestep", "why", "--json", ":7000"])?;
            bail!("no connection moves: {why}");
        }
        container.say(&machine.talk(SERVER, "2 100"))?;
        container.await_line("verified", HANG)?;
    }
    Ok(())
}

/// A daemon of which one loop stands still is restarted. One that has nothing to do, or much, is not, and one
/// that has nothing to do is woken for the watchdog only.
pub(crate) fn watchdog(stage: &Stage<'_>) -> Result<String> {
    let machine = Machine::boot_impatient(stage)?;
    machine.start_both()?;
    for unit in [AGENT, GATEWAY] {
        must_sleep(&machine, unit)?;
    }
    let callers = machine.call_without_end()?;
    for unit in [AGENT, GATEWAY] {
        must_report(&machine, unit)?;
    }
    drop(callers);
    for (unit, thread) in [(AGENT, "sidestepd"), (AGENT, "broker"), (GATEWAY, "runner")] {
        let before = machine.unit(unit)?;
        let standstill = Standstill::of(machine.thread(&before, thread)?)?;
        machine.await_unit(unit, |now| {
            standstill.has_ended();
            now.is_active() && now.restarts > before.restarts
        })?;
        let said = machine.said(unit)?;
        ensure!(
            said.contains("result 'watchdog'"),
            "{unit} was not ended by its watchdog:\n{said}"
        );
    }
    Ok("three loops stand still, and are begun anew".to_owned())
}

/// Reports that are waited for.
const REPORTS: u32 = 3;
/// What wakes a thread besides: when it is begun, and when others need a lock or a page that it has.
const OTHER_WAKES_MAX: u64 = 5;

/// An idle daemon: each of its threads is woken once for each report, and for nothing else.
fn must_sleep(machine: &Machine, unit: &str) -> Result<()> {
    let before = machine.unit(unit)?;
    let (begun, wakes) = (Instant::now(), machine.wakes(&before)?);
    let after = must_report(machine, unit)?;
    let intervals = 1 + begun.elapsed().as_millis() as u64 * 3 / WATCHDOG.as_millis() as u64;
    for (thread, woken) in machine.wakes(&after)? {
        let woken = woken - wakes.get(&thread).copied().unwrap_or(0);
        ensure!(
            woken <= intervals + OTHER_WAKES_MAX,
            "{unit}: thread {thread} was woken {woken} times in {intervals} intervals of the watchdog"
        );
    }
    Ok(())
}

/// Waits for reports, during which the daemon is not restarted.
fn must_report(machine: &Machine, unit: &str) -> Result<Unit> {
    let before = machine.unit(unit)?;
    let mut last = before.reported.clone();
    for _ in 0..REPORTS {
        let now = machine.await_unit(unit, |now| now.reported != last)?;
        ensure!(now.main_pid == before.main_pid, "{unit} was restarted: {now:?}");
        last = now.reported;
    }
    machine.unit(unit)
}
