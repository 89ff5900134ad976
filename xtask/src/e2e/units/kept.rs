//! `systemctl reload` and `systemctl restart` of the gateway: connections to another host go on, and by `systemctl stop` they
//! are reset.

use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::super::distant::AS_NOBODY;
use super::super::stage::Stage;
use super::machine::{GATEWAY, Machine, PORT, SCRIPTS};
use crate::bench::launch::{Dialogue, Program};
use crate::enclosure::Namespace;
use crate::hosts::Host;
use crate::suite::{HANG, Lacking};

/// Both ends of the cable to the other host, the machine's first.
const ENDS: [&str; 2] = ["10.89.5.1", "10.89.5.2"];
const CABLE: &str = "cable";
/// What `steady_talk.py` has.
const CONNECTIONS: usize = 7;
/// That each stream is to get further by: some times what may be on its way.
const FURTHER: usize = 1 << 20;

/// Connections of a program of the gateway's user, whose bytes go through shared memory, and of another user's.
pub(crate) fn kept(stage: &Stage<'_>) -> Result<String> {
    let machine = Machine::boot_with_store(stage, CABLE)?;
    let (far, _server) = other_host(stage, &machine)?;
    machine.start_both()?;
    let mut talks = [talk(&machine, &[])?, talk(&machine, &AS_NOBODY)?];
    go_on(&mut talks, "begun")?;
    must_be_smc_r(&machine)?;
    let mut longest_ms = 0;
    for how in ["reload", "restart", "restart", "reload", "restart"] {
        let (before, begun) = (machine.unit(GATEWAY)?, Instant::now());
        machine.run(&["systemctl", how, GATEWAY])?;
        machine.await_unit(GATEWAY, |now| now.is_active() && now.main_pid != before.main_pid)?;
        longest_ms = longest_ms.max(begun.elapsed().as_millis());
        go_on(&mut talks, how).with_context(|| machine.said(GATEWAY).unwrap_or_default())?;
        must_be_smc_r(&machine)?;
        let said =
            machine.run(&["systemctl", "show", GATEWAY, "--property=NFileDescriptorStore"])?;
        ensure!(said.trim() == "NFileDescriptorStore=0", "after {how} systemd keeps: {said}");
    }
    ensure!(far.ask("links")?.as_array().is_some_and(|it| it.len() == 1), "more than one link");
    let resets = stop(&machine, talks)?;
    Ok(format!(
        "{} connections, byte for byte: 2 reloads, 3 restarts, the longest in {longest_ms} ms; {resets} programs were \
         told of the stop",
        2 * CONNECTIONS
    ))
}

/// Another host at the end of a cable, with an echo server. It has nothing of the machine.
fn other_host(stage: &Stage<'_>, machine: &Machine) -> Result<(Host, Program)> {
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` for the other host".to_owned()));
    };
    let namespace = Rc::new(Namespace::make("units-far")?);
    namespace.join(CABLE, &machine.leader().to_string())?;
    namespace.settle(CABLE, &[ENDS[1]])?;
    machine.run(&["ip", "address", "add", &format!("{}/24", ENDS[0]), "dev", CABLE])?;
    machine.run(&["ip", "link", "set", CABLE, "up"])?;
    let directory = stage.house.scratch.join("units-far");
    let host = Host::settle(sidestep, &namespace, directory, "SIDESTEP", &[ENDS[1]])?;
    let script = stage.house.script("distant.py");
    let words = ["python3", &script, "server", ENDS[1], PORT];
    let server = host.serve(PORT.parse()?, host.program(&words))?;
    Ok((host, server))
}

fn talk(machine: &Machine, user: &[&str]) -> Result<Dialogue> {
    let (script, seed) = (format!("{SCRIPTS}/steady_talk.py"), machine.seed());
    let words = ["sidestep", "run", "--", "python3", &script, PORT, seed, ENDS[1]];
    let mut talk = machine.start_program(&[user, &words].concat())?;
    talk.await_line("talking", HANG)?;
    Ok(talk)
}

fn go_on(talks: &mut [Dialogue], how: &str) -> Result<()> {
    for talk in talks {
        talk.say(&FURTHER.to_string())?;
        talk.await_line("went on", HANG).with_context(|| how.to_owned())?;
    }
    Ok(())
}

fn must_be_smc_r(machine: &Machine) -> Result<()> {
    let shown: Value = serde_json::from_str(&machine.run(&["sidestep", "ss", "--json"])?)?;
    let by_smc_r = shown.as_array().into_iter().flatten().filter(|row| row["mode"] == "SMC-R");
    let count = by_smc_r.count();
    ensure!(count == 2 * CONNECTIONS, "{count} connections by SMC-R");
    Ok(())
}

/// Stops the gateway, and returns how many of the programs have ended with an error therefore.
fn stop(machine: &Machine, talks: [Dialogue; 2]) -> Result<usize> {
    machine.run(&["systemctl", "stop", GATEWAY])?;
    let ended = talks.map(|talk| talk.finish(HANG));
    let resets = ended.iter().filter(|ended| {
        ended.as_ref().is_err_and(|error| format!("{error:#}").contains("ConnectionResetError"))
    });
    let resets = resets.count();
    ensure!(resets == 2, "what programs were told of the stop: {ended:?}");
    Ok(resets)
}
