//! Sidestep in one guest, over verbs, and Linux's SMC in another: both have the same RDMA device,
//! `rdma_rxe`, one by libibverbs and one in the kernel.
//!
//! ```text
//!   guest 2                              guest 3
//!   program ── AF_SMC ── rxe0 ─ RoCEv2 ─ rxe0 ── libibverbs ── gateway ── program under Sidestep
//! ```
//!
//! What Linux says of its end is the proof that the bytes went by SMC-R, and the digests of both
//! programs, that they came.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sidestep_guest::{Answer, Event, Mode, Play, Report, Role, SocketKind, Talk};

use super::ground::{Case, decoded_must_show, dissected, echo_of, must_be_smc_r};
use super::guest::Guest;
use super::kit::{self, Kit};
use super::{PNET_ID, PORT, Scene, UEID, talk};
use crate::suite::HANG;

pub(super) const CASES: [Case; 1] = [("verbs-sidestep", verbs_sidestep)];

/// The guests, by what they speak SMC-R with.
const LINUX: usize = 0;
const SIDESTEP: usize = 1;

/// Where Sidestep is in its guest, and the name of its archive.
const DIRECTORY: &str = "sidestep";

/// A look into a guest starts two processes there.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

fn verbs_sidestep(scene: &mut Scene) -> Result<String> {
    bring(scene)?;
    let played = equip(&mut scene.guests[SIDESTEP]).and_then(|()| plays(scene));
    let guest = &mut scene.guests[SIDESTEP];
    let played = played.map_err(|error| {
        let log = text(guest, "gateway.log").unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        error.context(format!("the gateway's last words:\n{tail}"))
    });
    let ended = end(guest);
    played.and_then(|remark| ended.map(|()| remark))
}

fn plays(scene: &mut Scene) -> Result<String> {
    const SIZES: [u32; 6] = [1, 44, 1_024, 2_048, 65_536, 200_001];
    const BYTES: u64 = 5_000_000;
    const COUNT: u16 = 20;
    let mut seen = Vec::new();
    for server in [LINUX, SIDESTEP] {
        let name = format!("verbs-sidestep-{server}");
        let (capture, _) =
            scene.captured(&name, |scene| talk_by_rdma(scene, server, 1, echo_of(&SIZES)))?;
        decoded_must_show(&["Proposal", "Accept", "Confirm"], &capture.packets(), scene)?;
        seen.push(dissected(&capture.packets(), 2 * SIZES.len())?);
        capture.forget()?;
        for sender in [Role::Server, Role::Client] {
            talk_by_rdma(scene, server, 1, Play::Stream { sender, bytes: BYTES })?;
        }
        talk_by_rdma(scene, server, 1, Play::HalfClose { asked: 5_000, answered: 1_000 })?;
        talk_by_rdma(scene, server, 1, Play::Abort { bytes: 100 })?;
        talk_by_rdma(scene, server, COUNT, echo_of(&[100, 3_000]))?;
    }
    shown(&mut scene.guests[SIDESTEP])?;
    changes(scene)?;
    Ok(format!(
        "both ways: 1 B to 200 kB, streams of {} MB, {COUNT} connections; the port and the address \
         went and came back; {}",
        BYTES / 1_000_000,
        seen.join("; ")
    ))
}

/// What the displays say of the adapter and of the link group with Linux.
fn shown(guest: &mut Guest) -> Result<()> {
    for (display, words) in [("devices", ["up", "rxe0/1"]), ("links", ["Active", "rxe0/1"])] {
        let said = script(guest, &format!("./sidestep {display}"))?;
        let is_shown = words.iter().all(|word| said.contains(word));
        ensure!(is_shown, "sidestep {display} does not show {words:?}:\n{said}");
    }
    Ok(())
}

/// A cable that is pulled, and an address that is taken away, for which the adapter has to be opened
/// anew: each time SMC-R goes on afterwards.
fn changes(scene: &mut Scene) -> Result<()> {
    let own = scene.guests[SIDESTEP].member().v4();
    let cable = ["busybox ip link set eth0 down", "busybox ip link set eth0 up"];
    let address = ["del", "add"].map(|what| format!("busybox ip address {what} {own}/24 dev eth0"));
    let address = address.each_ref().map(String::as_str);
    for (nth, [away, back]) in [cable, address].into_iter().enumerate() {
        for (change, state) in [(away, "down"), (back, "up")] {
            let guest = &mut scene.guests[SIDESTEP];
            script(guest, change)?;
            let said = format!("the adapter at {own} is {state}");
            await_text(guest, "gateway.log", &said, nth + 1).context(change.to_owned())?;
        }
        talk_by_rdma(scene, SIDESTEP, 1, echo_of(&[1_000]))
            .with_context(|| format!("after: {back}"))?;
    }
    Ok(())
}

// ---- a talk -------------------------------------------------------------------------------------

/// Lets the two guests talk, and looks at what Linux says of its end: the server's report first.
fn talk_by_rdma(
    scene: &mut Scene,
    server: usize,
    connections: u16,
    play: Play,
) -> Result<[Report; 2]> {
    let context = format!("{play:?}, guest {server} is the server");
    let peer_gid = scene.guests[SIDESTEP].member().gid();
    let address = (scene.guests[server].member().v4(), PORT).into();
    let sockets = [server, 1 - server].map(|guest| match guest {
        LINUX => SocketKind::AfSmc,
        _ => SocketKind::Tcp,
    });
    let [servers, clients] = talk::both_ends(address, connections, &play, sockets);
    let [linux, own] = &mut scene.guests[..] else { bail!("two guests are needed") };
    let talked = match server {
        LINUX => {
            let job = linux.begin(servers)?;
            begin(own, &clients)
                .and_then(|()| report(own))
                .and_then(|client| Ok([linux.report(job, talk::PATIENCE)?, client]))
        }
        _ => {
            begin(own, &servers)?;
            let job = linux.begin(clients)?;
            let client = linux.report(job, talk::PATIENCE);
            client.and_then(|client| Ok([report(own)?, client]))
        }
    };
    let reports = talked.with_context(|| context.clone())?;
    talk::must_agree(&reports[0], &reports[1]).with_context(|| context.clone())?;
    let of_linux = &reports[usize::from(server != LINUX)];
    must_be_smc_r(of_linux).with_context(|| context.clone())?;
    for account in &of_linux.connections {
        match account.smc.as_ref().map(|it| &it.mode) {
            Some(Mode::SmcR(Some(over))) if over.peer_gid == peer_gid => {}
            other => bail!("{context}: the peer's GID is not {peer_gid}: {other:?}"),
        }
    }
    Ok(reports)
}

/// Begins an end of a talk under Sidestep. A server listens when this returns.
fn begin(guest: &mut Guest, talk: &Talk) -> Result<()> {
    let json = serde_json::to_string(talk)?;
    let start = format!(
        "enter; ./sidestep run --promotion early -- ./sidestep-guest talk '{json}' \
         > talk.out 2> talk.err & echo $! > talk.pid"
    );
    script(guest, &start)?;
    if talk.role == Role::Server {
        await_event(guest, |event| matches!(event, Event::Listening))?;
    }
    Ok(())
}

/// Waits for its end.
fn report(guest: &mut Guest) -> Result<Report> {
    match await_event(guest, |event| matches!(event, Event::Done(_)))? {
        Event::Done(Answer::Talk(report)) => Ok(report),
        other => bail!("{other:?} instead of a report"),
    }
}

/// Waits until a talk says something.
fn await_event(guest: &mut Guest, is_it: impl Fn(&Event) -> bool) -> Result<Event> {
    let deadline = Instant::now() + talk::PATIENCE;
    loop {
        // The last line may not be complete yet.
        let said = text(guest, "talk.out")?;
        for line in said.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            match serde_json::from_str(line)? {
                Event::Failed(reason) => bail!("under Sidestep: {reason}"),
                event if is_it(&event) => return Ok(event),
                _ => {}
            }
        }
        if Instant::now() > deadline {
            bail!("under Sidestep: {said:?} in {:?}; {}", talk::PATIENCE, text(guest, "talk.err")?);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

// ---- Sidestep in its guest ----------------------------------------------------------------------

/// Brings libibverbs and Sidestep into the guest.
fn bring(scene: &mut Scene) -> Result<()> {
    let sidestep = scene.launcher.observer().context("there is no `sidestep` command")?;
    let library = sidestep.with_file_name("libsidestep.so");
    let files: [PathBuf; 3] = [sidestep.to_owned(), library, scene.talker.clone()];
    let kit = Kit::gather(&scene.logs.join("verbs-kit"))?;
    kit.add(DIRECTORY, &files)?;
    let _server = kit.hand_out(&scene.lan)?;
    [kit::LIBRARY, DIRECTORY]
        .into_iter()
        .try_for_each(|name| kit::take(&mut scene.guests[SIDESTEP], name))
}

/// Starts an agent for a control group, and a gateway in it, whose adapter is to be the guest's RDMA
/// device.
fn equip(guest: &mut Guest) -> Result<()> {
    let configuration =
        format!("[smc]\\neid = \"{UEID}\"\\n[pnet.{PNET_ID}]\\ninterfaces = [\"eth0\"]\\n");
    script(
        guest,
        &format!(
            "busybox mkdir -p /run /tmp; busybox mount -t cgroup2 none /sys/fs/cgroup; \
             busybox mkdir {GROUP}; printf '{configuration}' > sidestep.toml; \
             echo 1 > /proc/sys/net/ipv6/conf/eth0/keep_addr_on_down; \
             ./sidestep agent --cgroup {GROUP} --socket /run/agent.sock > agent.log 2>&1 & \
             echo $! > agent.pid"
        ),
    )?;
    await_text(guest, "agent.log", "sidestep agent: the TCP option", 1)?;
    let gateway = "enter; ./sidestep gateway --adapter eth0 --log debug > gateway.log 2>&1 & \
                   echo $! > gateway.pid";
    script(guest, gateway)?;
    await_text(guest, "gateway.log", "sidestep gateway: ", 1)?;
    let said = text(guest, "gateway.log")?;
    let adapter = said.lines().find(|line| line.starts_with("sidestep gateway: "));
    let is_rdma = adapter.is_some_and(|line| line.contains("rxe0/1") && line.ends_with(": up"));
    ensure!(is_rdma, "the gateway does not use the RDMA device: {said}");
    Ok(())
}

/// Ends them, in order, and what is left of a talk.
fn end(guest: &mut Guest) -> Result<()> {
    script(
        guest,
        "for of in talk gateway agent; do \
             busybox kill $(busybox cat $of.pid) 2> /dev/null || continue; \
             for n in $(busybox seq 50); do \
                 busybox kill -0 $(busybox cat $of.pid) 2> /dev/null || break; \
                 busybox sleep 0.1; \
             done; \
         done",
    )
    .map(drop)
}

/// Whose programs the agent serves.
const GROUP: &str = "/sys/fs/cgroup/sidestep";

/// Runs a script where Sidestep is. `enter` makes its programs such as the agent serves.
fn script(guest: &mut Guest, script: &str) -> Result<String> {
    let prelude = format!(
        "set -e; export PATH=/bin; cd /{DIRECTORY}; \
         enter() {{ \
             echo 0 > {GROUP}/cgroup.procs; export SIDESTEP_CONFIG=/{DIRECTORY}/sidestep.toml; \
         }}; "
    );
    guest.run(&["sh", "-c", &(prelude + script)])
}

/// What a program has written to a file.
fn text(guest: &mut Guest, file: &str) -> Result<String> {
    script(guest, &format!("busybox cat {file}"))
}

/// Waits until a file has a text so many times.
fn await_text(guest: &mut Guest, file: &str, wanted: &str, times: usize) -> Result<()> {
    let deadline = Instant::now() + HANG;
    loop {
        let said = text(guest, file)?;
        if said.matches(wanted).count() >= times {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{file} does not say {wanted:?}:\n{said}");
        thread::sleep(POLL_INTERVAL);
    }
}
