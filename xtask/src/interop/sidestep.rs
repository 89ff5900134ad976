//! Programs under Sidestep on the host, and Linux's SMC in a guest: each case once with Linux as the
//! server, and once with Sidestep.
//!
//! What Linux says of its end is the proof that the bytes went by SMC-R; what both programs say of theirs,
//! that they came.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sidestep_guest::{Account, Impairment, LinkGroup, Play, Report, Role, SocketKind, Talk};

use super::ground::{
    Case, await_connection, decoded_must_show, dissected, echo_of, fallback, must_be_smc_r,
};
use super::talk::{self, PATIENCE, Place};
use super::{PORT, Scene};

pub(super) const CASES: [Case; 16] = [
    ("sidestep-first-contact", first_contact),
    ("sidestep-echo", echo),
    ("sidestep-stream", stream),
    ("sidestep-half-close", half_close),
    ("sidestep-urgent", urgent),
    ("sidestep-abort", abort),
    ("sidestep-close-unread", close_unread),
    ("sidestep-hundred", hundred_connections),
    ("sidestep-idle", idle),
    ("sidestep-server-restarts", server_restarts),
    ("sidestep-gateway-restarts", gateway_restarts),
    ("sidestep-killed", killed),
    ("sidestep-declined", declined),
    ("sidestep-loss", loss),
    ("sidestep-kernel-log", kernel_log),
    ("sidestep-guest-dies", guest_dies),
];

/// One byte, a CDC's length, what fills a packet and what does not, and more than any buffer holds.
const SIZES: [u32; 9] = [1, 44, 100, 1_024, 2_048, 8_000, 65_536, 200_001, 1_000_000];

/// Who is the server, and who is the client.
const WAYS: [[Place; 2]; 2] =
    [[Place::Guest(0), Place::Sidestep], [Place::Sidestep, Place::Guest(0)]];

/// Each way a link group begins; other people's eyes on what went over the cable. Either server proposes a
/// second link, which the client, with one adapter, declines.
fn first_contact(scene: &mut Scene) -> Result<String> {
    let mut seen = Vec::new();
    for (nth, way) in WAYS.into_iter().enumerate() {
        scene.forget_link_groups()?;
        let name = format!("sidestep-first-contact-{nth}");
        let (capture, _) =
            scene.captured(&name, |scene| talk_by_rdma(scene, way, 1, echo_of(&[100, 9_000])))?;
        let shown = ["Proposal", "Accept", "Confirm", "CONFIRM LINK response", "ADD LINK negative"];
        decoded_must_show(&shown, &capture.packets(), scene)?;
        seen.push(dissected(&capture.packets(), 4)?);
        capture.forget()?;
    }
    Ok(seen.join("; "))
}

fn echo(scene: &mut Scene) -> Result<String> {
    for way in WAYS {
        talk_by_rdma(scene, way, 1, echo_of(&SIZES))?;
    }
    Ok("1 B to 1 MB".to_owned())
}

fn stream(scene: &mut Scene) -> Result<String> {
    const BYTES: u64 = 10_000_000;
    let mut rates = Vec::new();
    for way in WAYS {
        for sender in [Role::Server, Role::Client] {
            let [_, client] = talk_by_rdma(scene, way, 1, Play::Stream { sender, bytes: BYTES })?;
            let took_s = Duration::from_millis(client.took_ms.max(1)).as_secs_f64();
            rates.push(format!("{:.1}", BYTES as f64 / took_s / 1e6));
        }
    }
    Ok(format!("10 MB, SHA-256 equal; MB/s: {}", rates.join(", ")))
}

/// The end of a file, to the side that did not end the connection.
const END: &str = "end of file";

fn half_close(scene: &mut Scene) -> Result<String> {
    let play = Play::HalfClose { asked: 5_000, answered: 1_000 };
    for way in WAYS {
        let account = ends(scene, way, &play)?;
        ensure!(account.end.as_deref() == Some(END), "{way:?}: {account:?}");
    }
    Ok("5000 bytes, the end, 1000 bytes back".to_owned())
}

fn urgent(scene: &mut Scene) -> Result<String> {
    for way in WAYS {
        let account = ends(scene, way, &Play::Urgent)?;
        ensure!(account.urgent.is_some(), "{way:?}: {account:?}");
    }
    Ok("one byte".to_owned())
}

/// A linger time of 0 makes Linux close in order, and says nothing to Linux's programs either: to them
/// every end is the end of a file.
fn abort(scene: &mut Scene) -> Result<String> {
    for way in WAYS {
        let account = ends(scene, way, &Play::Abort { bytes: 100 })?;
        ensure!(account.end.as_deref() == Some(END), "{way:?}: {account:?}");
    }
    Ok("linger time 0".to_owned())
}

/// Behind unread bytes Linux announces an abort, and Sidestep too: a program of Sidestep is told so as by
/// TCP, one of Linux is not.
fn close_unread(scene: &mut Scene) -> Result<String> {
    for way in WAYS {
        let account = ends(scene, way, &Play::CloseUnread { bytes: 5_000 })?;
        let expected = if way[0] == Place::Sidestep { "ECONNRESET" } else { END };
        ensure!(account.end.as_deref() == Some(expected), "{way:?}: {account:?}");
    }
    Ok("5000 bytes".to_owned())
}

/// What the server has to say of a connection.
fn ends(scene: &mut Scene, way: [Place; 2], play: &Play) -> Result<Account> {
    let [server, _] = talk_by_rdma(scene, way, 1, play.clone())?;
    server.connections.into_iter().next().context("no connection")
}

fn hundred_connections(scene: &mut Scene) -> Result<String> {
    const COUNT: u16 = 100;
    for way in WAYS {
        scene.forget_link_groups()?;
        // Until a link group is there, each connection begins one of its own.
        talk_by_rdma(scene, way, 1, echo_of(&[100]))?;
        let [server, client] = talk_by_rdma(scene, way, COUNT, echo_of(&[100, 3_000]))?;
        let ends = [server, client].map(|report| report.connections.len());
        ensure!(ends == [usize::from(COUNT); 2], "{ends:?} connections");
        let group = only_group(scene)?;
        ensure!(group.connections == 0, "after their end: {group:?}");
    }
    Ok("in one link group; none is left".to_owned())
}

/// Both ends test the link, and nobody takes silence for death.
fn idle(scene: &mut Scene) -> Result<String> {
    /// Longer than either end leaves a link alone.
    const PAUSE: Duration = Duration::from_secs(15);
    scene.guests[0].run(&["sysctl", "-w", "net.smc.smcr_testlink_time=2"])?;
    let mut tests = Vec::new();
    for (nth, way) in WAYS.into_iter().enumerate() {
        scene.forget_link_groups()?;
        let pause_ms = u32::try_from(PAUSE.as_millis())?;
        let play = Play::Echo { sizes: vec![100, 100], pause_ms };
        let name = format!("sidestep-idle-{nth}");
        let (capture, _) = scene.captured(&name, |scene| talk_by_rdma(scene, way, 1, play))?;
        decoded_must_show(&["TEST LINK"], &capture.packets(), scene)?;
        tests.push(capture);
    }
    tests.into_iter().try_for_each(super::lan::Captured::forget)?;
    Ok(format!("{} s each way, TEST LINK", PAUSE.as_secs()))
}

/// A server that ends and another in its place, of hosts that have met: the link group remains.
fn server_restarts(scene: &mut Scene) -> Result<String> {
    for way in WAYS {
        scene.forget_link_groups()?;
        let mut groups = BTreeSet::new();
        for _ in 0..3 {
            talk_by_rdma(scene, way, 1, echo_of(&[1_000]))?;
            groups.insert(only_group(scene)?.id);
        }
        ensure!(groups.len() == 1, "link groups {groups:?}");
    }
    Ok("three servers each way, one link group".to_owned())
}

/// A gateway that ends in order takes the link group along; the next one begins another.
fn gateway_restarts(scene: &mut Scene) -> Result<String> {
    for way in WAYS {
        talk_by_rdma(scene, way, 1, echo_of(&[1_000]))?;
        scene.forget_link_groups()?;
        talk_by_rdma(scene, way, 1, echo_of(&[1_000]))?;
    }
    Ok("no link group is left behind".to_owned())
}

/// A program that dies in the middle: the other one is told.
fn killed(scene: &mut Scene) -> Result<String> {
    scene.equip_host()?;
    for way in WAYS {
        let [server, client] =
            talks(way, scene, Play::Echo { sizes: vec![100; 200], pause_ms: 50 });
        let server = scene.begin(way[0], server)?;
        let client = scene.begin(way[1], client)?;
        await_connection(&mut scene.guests[0])?;
        let (dying, other) =
            if way[0] == Place::Sidestep { (client, server) } else { (server, client) };
        scene.end(dying);
        let Err(error) = scene.report(other) else { bail!("the other end had an answer") };
        let text = format!("{error:#}");
        ensure!(!text.contains("os error 11)") && !text.contains("within"), "{text}");
    }
    Ok("noticed both ways".to_owned())
}

/// Without a UEID in common they decline, and speak TCP.
fn declined(scene: &mut Scene) -> Result<String> {
    const OTHER: &str = "ANOTHER-NETWORK";
    scene.forget_link_groups()?;
    scene.guests[0].change_ueid(super::UEID, OTHER)?;
    let talked = WAYS.map(|[server, client]| {
        scene.between(server, client, SocketKind::AfSmc, 1, echo_of(&SIZES))
    });
    scene.guests[0].change_ueid(OTHER, super::UEID)?;
    let mut reasons = Vec::new();
    for reports in talked {
        let reports = reports?;
        let of_guest = of_guest(&reports).context("no socket of SMC")?;
        let (reason, said) = fallback(of_guest)?;
        ensure!(reason != 0, "{of_guest:?}");
        reasons.push(format!("{reason:#010x} (peer's {said:#010x})"));
    }
    Ok(format!("TCP both ways; reasons of Linux: {}", reasons.join(", ")))
}

/// What is lost has to be sent again.
fn loss(scene: &mut Scene) -> Result<String> {
    let lossy = Impairment { loss_permille: 10, duplicate_permille: 5, ..Impairment::default() };
    scene.guests[0].impair(Some(lossy))?;
    let talked = WAYS.map(|way| {
        let play = Play::Stream { sender: Role::Server, bytes: 1_000_000 };
        let back = Play::Stream { sender: Role::Client, bytes: 1_000_000 };
        talk_by_rdma(scene, way, 1, play).and_then(|_| talk_by_rdma(scene, way, 1, back))
    });
    scene.guests[0].impair(None)?;
    for reports in talked {
        reports?;
    }
    Ok("1 MB each way with 1 % loss at the guest".to_owned())
}

/// Linux had nothing to complain of since the guest was ready.
fn kernel_log(scene: &mut Scene) -> Result<String> {
    const COMPLAINTS: [&str; 6] = ["WARNING:", "BUG:", "Call Trace", "err = ", "rror", "ail"];
    /// A server proposes a second link over its only adapter, which the client declines; so it is between
    /// two guests as well.
    const DECLINED_LINK: &str = "rxe_modify_qp: returned err = -22";
    let log = scene.guests[0].kernel_log()?;
    let begin = log.find("PF_SMC").context("the log does not tell of SMC")?;
    let complaints: Vec<&str> = log[begin..]
        .lines()
        .filter(|line| COMPLAINTS.iter().any(|word| line.contains(word)))
        .filter(|line| !line.ends_with(DECLINED_LINK))
        .collect();
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    let groups = log[begin..].matches("state changed: SINGLE").count();
    Ok(format!("{groups} link groups, no complaint"))
}

/// A guest that is turned off like a lamp: who talks to it is told in seconds.
fn guest_dies(scene: &mut Scene) -> Result<String> {
    scene.equip_host()?;
    let way = [Place::Sidestep, Place::Guest(0)];
    let [server, client] = talks(way, scene, Play::Echo { sizes: vec![100; 1_000], pause_ms: 50 });
    let server = scene.begin(way[0], server)?;
    let _client = scene.begin(way[1], client)?;
    await_connection(&mut scene.guests[0])?;
    scene.guests[0].cut_off()?;
    let start = Instant::now();
    let Err(error) = scene.report(server) else { bail!("the server had an answer") };
    let text = format!("{error:#}");
    ensure!(!text.contains("os error 11)") && !text.contains("within"), "{text}");
    Ok(format!("noticed after {:.1} s", start.elapsed().as_secs_f64()))
}

/// Both ends of a talk.
fn talks([server, client]: [Place; 2], scene: &Scene, play: Play) -> [Talk; 2] {
    let sockets = [server, client].map(|place| place.socket(SocketKind::AfSmc));
    talk::both_ends((scene.member(server).v4(), PORT).into(), 1, &play, sockets)
}

/// Lets the two talk, and looks at what Linux says of its end.
fn talk_by_rdma(
    scene: &mut Scene,
    [server, client]: [Place; 2],
    connections: u16,
    play: Play,
) -> Result<[Report; 2]> {
    scene.equip_host()?;
    let reports = scene
        .between(server, client, SocketKind::AfSmc, connections, play)
        .with_context(|| format!("{server:?} is the server"))?;
    let guests = if server == Place::Sidestep { &reports[1] } else { &reports[0] };
    must_be_smc_r(guests).with_context(|| format!("{server:?} is the server"))?;
    scene.equip_host()?.must_be_well()?;
    Ok(reports)
}

fn of_guest(reports: &[Report; 2]) -> Option<&Account> {
    reports.iter().flat_map(|it| it.connections.first()).find(|it| it.smc.is_some())
}

/// The link group that the guest has with the host, as soon as its connections have ended.
fn only_group(scene: &mut Scene) -> Result<LinkGroup> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut groups = scene.link_groups()?;
        match (groups.pop(), groups.len()) {
            (Some(group), 0) if group.connections == 0 || Instant::now() > deadline => {
                return Ok(group);
            }
            (None, _) => bail!("no link group"),
            (Some(_), 0) => thread::sleep(Duration::from_millis(20)),
            (last, _) => bail!("link groups {groups:?} and {last:?}"),
        }
    }
}
