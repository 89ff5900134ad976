//! Sidestep on a machine that counts the memory it promises, `vm.overcommit_memory = 2`: in a guest,
//! because the setting is the whole machine's.
//!
//! A page of shared memory could be refused there by SIGBUS in the middle of a `send`. So programs stay
//! on TCP, also those that began before the setting was made, and are told why.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sidestep_guest::{Answer, Event, Play, Role, SocketKind};

use super::ground::Case;
use super::guest::Guest;
use super::kit::{self, Kit};
use super::{PORT, Scene, talk};
use crate::suite::HANG;

pub(super) const CASES: [Case; 1] = [("strict-memory", strict_memory)];

/// Where Sidestep is in the guest, and the name of its archive.
const DIRECTORY: &str = "strict";

const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// What a program says that has moved, and one that must not.
const MOVED: &str = "established";
const STAYED: &str = "vm.overcommit_memory is 2";

fn strict_memory(scene: &mut Scene) -> Result<String> {
    bring(scene)?;
    let guest = &mut scene.guests[0];
    script(guest, "busybox mkdir -p /run /tmp; busybox ip link set lo up")?;
    let moved = speak(guest)?;
    ensure!(moved.contains(MOVED), "with the default they do not move:\n{moved}");
    script(guest, "echo 2 > /proc/sys/vm/overcommit_memory")?;
    let played = stays(guest);
    script(guest, "echo 0 > /proc/sys/vm/overcommit_memory")?;
    played
}

fn stays(guest: &mut Guest) -> Result<String> {
    let said = speak(guest)?;
    ensure!(said.contains(STAYED) && !said.contains(MOVED), "with 2:\n{said}");
    // It fails, as some other check may.
    let doctor = script(guest, "./sidestep doctor 2>&1 || true")?;
    ensure!(doctor.contains(STAYED), "{doctor}");
    Ok("on TCP, and log and doctor say why".to_owned())
}

/// Lets two programs under Sidestep talk over loopback; what their libraries have said.
fn speak(guest: &mut Guest) -> Result<String> {
    let play = Play::Stream { sender: Role::Client, bytes: 3_000_000 };
    let address = ([127, 0, 0, 1], PORT).into();
    let [server, client] = talk::both_ends(address, 1, &play, [SocketKind::Tcp; 2]);
    let run = "./sidestep run --log info --promotion early -- ./sidestep-guest talk";
    let [server, client] = [server, client].map(|talk| serde_json::to_string(&talk));
    script(guest, &format!("{run} '{}' > server.out 2> server.err &", server?))?;
    await_event(guest, "server", |event| matches!(event, Event::Listening))?;
    script(guest, &format!("{run} '{}' > client.out 2> client.err &", client?))?;
    for end in ["client", "server"] {
        await_event(guest, end, |event| matches!(event, Event::Done(Answer::Talk(_))))?;
    }
    script(guest, "busybox cat server.err client.err")
}

/// Waits until an end of the talk says something.
fn await_event(guest: &mut Guest, end: &str, is_it: impl Fn(&Event) -> bool) -> Result<()> {
    let deadline = Instant::now() + HANG;
    loop {
        // The last line may not be complete yet.
        let said = script(guest, &format!("busybox cat {end}.out"))?;
        for line in said.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            match serde_json::from_str(line)? {
                Event::Failed(reason) => bail!("the {end}: {reason}"),
                event if is_it(&event) => return Ok(()),
                _ => {}
            }
        }
        if Instant::now() > deadline {
            bail!("the {end}: {said:?}; {}", script(guest, &format!("busybox cat {end}.err"))?);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Brings Sidestep into the guest.
fn bring(scene: &mut Scene) -> Result<()> {
    let sidestep = scene.launcher.observer().context("there is no `sidestep` command")?;
    let library = sidestep.with_file_name("libsidestep.so");
    let files: [PathBuf; 3] = [sidestep.to_owned(), library, scene.talker.clone()];
    let kit = Kit::bare(&scene.logs.join("strict-kit"))?;
    kit.add(DIRECTORY, &files)?;
    let _server = kit.hand_out(&scene.lan)?;
    kit::take(&mut scene.guests[0], DIRECTORY)
}

fn script(guest: &mut Guest, script: &str) -> Result<String> {
    let prelude = format!("set -e; export PATH=/bin; cd /{DIRECTORY}; ");
    guest.run(&["sh", "-c", &(prelude + script)])
}
