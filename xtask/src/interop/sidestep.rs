//! Programs under Sidestep on the host, and Linux's SMC in a guest: each case once with Linux as the
//! server, and once with Sidestep.
//!
//! What Linux says of its end is the proof that the bytes went by SMC-R; what both programs say of theirs,
//! that they came.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sidestep_guest::{Account, Impairment, LinkGroup, Play, Report, Role, SocketKind, Talk};

use super::ground::{
    Case, await_connection, await_connections, decoded_must_show, dissected, echo_of, fallback,
    must_be_smc_r, must_be_tcp_with,
};
use super::host::Network;
use super::lan::Member;
use super::talk::{self, PATIENCE, Place};
use super::{Begun, PORT, Scene, mark_of};
use crate::bench::launch;

pub(super) const CASES: [Case; 21] = [
    // Before there is a gateway.
    ("sidestep-alone", alone),
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
    ("sidestep-ipv6", ipv6),
    ("sidestep-loss-at-guest", loss_at_guest),
    ("sidestep-loss-at-host", loss_at_host),
    ("sidestep-kernel-log", kernel_log),
    ("sidestep-guest-stands-still", guest_stands_still),
    ("sidestep-host-stands-still", host_stands_still),
    ("sidestep-guest-dies", guest_dies),
];

/// One byte, a CDC's length, what fills a packet and what does not, and more than any buffer holds.
const SIZES: [u32; 9] = [1, 44, 100, 1_024, 2_048, 8_000, 65_536, 200_001, 1_000_000];

/// Who is the server, and who is the client.
pub(super) const WAYS: [[Place; 2]; 2] =
    [[Place::Guest(0), Place::Sidestep], [Place::Sidestep, Place::Guest(0)]];

/// Programs under Sidestep without a gateway: TCP, and nothing is disturbed.
fn alone(scene: &mut Scene) -> Result<String> {
    // That of other cases.
    scene.host = None;
    must_be_tcp_with(Place::Sidestep, scene)
}

/// Each way a link group begins; other people's eyes on what went over the cable. Either server proposes a
/// second link, which the client, with one adapter, declines.
fn first_contact(scene: &mut Scene) -> Result<String> {
    let mut seen = Vec::new();
    for (nth, way) in WAYS.into_iter().enumerate() {
        scene.forget_link_groups()?;
        let name = format!("sidestep-first-contact-{nth}");
        let (capture, _) =
            scene.captured(&name, |scene| talk_by_rdma(scene, way, 1, echo_of(&[100, 9_000])))?;
        decoded_must_show(&["Proposal", "Accept", "Confirm"], &capture.packets(), scene)?;
        let messages = control_messages(&capture.packets(), scene)?;
        for (role, message) in [
            (Role::Server, "CONFIRM LINK request"),
            (Role::Client, "CONFIRM LINK response"),
            (Role::Server, "ADD LINK request"),
            (Role::Client, "ADD LINK negative response"),
        ] {
            ensure!(count_of(&messages, role, message) == 1, "{role:?}, {message}: {messages:?}");
        }
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
    let bytes = if scene.is_short { 10_000_000 } else { 100_000_000 };
    let mut rates = Vec::new();
    for way in WAYS {
        for sender in [Role::Server, Role::Client] {
            let [_, client] = talk_by_rdma(scene, way, 1, Play::Stream { sender, bytes })?;
            let took_s = Duration::from_millis(client.took_ms.max(1)).as_secs_f64();
            rates.push(format!("{:.1}", bytes as f64 / took_s / 1e6));
        }
    }
    Ok(format!("{} MB, SHA-256 equal; MB/s: {}", bytes / 1_000_000, rates.join(", ")))
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
        await_own_end(scene)?;
    }
    Ok("in one link group; none is left".to_owned())
}

/// Waits until `sidestep links` has one link, which no connection uses.
fn await_own_end(scene: &Scene) -> Result<()> {
    let sidestep = scene.launcher.observer().context("there is no `sidestep` command")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut command = Command::new(sidestep);
        command.args(["links", "--json"]);
        scene.lan.enclose(&mut command);
        let links: Vec<Value> = serde_json::from_str(&launch::run(command, PATIENCE)?)?;
        match &links[..] {
            [link] if link["connections"] == 0 => return Ok(()),
            _ => ensure!(Instant::now() < deadline, "the gateway has {links:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whoever hears nothing tests the link, is answered, and does not take silence for death: at first
/// Linux, which is told to do it before Sidestep does, and then Sidestep, before Linux does on its own.
fn idle(scene: &mut Scene) -> Result<String> {
    /// After so many seconds Linux tests a link. Sidestep's number is 5.
    const EARLY_S: u32 = 2;
    const DEFAULT_S: u32 = 30;
    let pause_ms = if scene.is_short { 8_000 } else { 60_000 };
    let mut tests = Vec::new();
    for (way, interval_s) in WAYS.into_iter().zip([EARLY_S, DEFAULT_S]) {
        let setting = format!("net.smc.smcr_testlink_time={interval_s}");
        scene.guests[0].run(&["sysctl", "-w", &setting])?;
        scene.forget_link_groups()?;
        let play = Play::Echo { sizes: vec![100, 100], pause_ms };
        let name = format!("sidestep-idle-{interval_s}");
        let (capture, _) = scene.captured(&name, |scene| talk_by_rdma(scene, way, 1, play))?;
        let messages = control_messages(&capture.packets(), scene)?;
        let [server, client] = [Role::Server, Role::Client].map(|asking| {
            let answering = if asking == Role::Server { Role::Client } else { Role::Server };
            let asked = count_of(&messages, asking, "TEST LINK request");
            let answered = count_of(&messages, answering, "TEST LINK response");
            (asked, answered)
        });
        let linux_tests = interval_s == EARLY_S;
        let linux_serves = way[0] != Place::Sidestep;
        let (tester, other) =
            if linux_tests == linux_serves { (server, client) } else { (client, server) };
        // The last one may have come to its end with the connection.
        ensure!(tester.1 > 0 && tester.0 - tester.1 <= 1, "{messages:?}");
        ensure!(other.0 == 0, "{messages:?}");
        tests.push(tester.1);
        capture.forget()?;
    }
    let pause_s = pause_ms / 1_000;
    Ok(format!("{pause_s} s each way; Linux tested {} times, Sidestep {}", tests[0], tests[1]))
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

/// A program that dies in the middle, whichever it is: the other one is told, and the next ones talk.
fn killed(scene: &mut Scene) -> Result<String> {
    scene.equip_host()?;
    for way in WAYS {
        for dies in [Role::Server, Role::Client] {
            let [server, client] = begin_long_talk(scene, way)?;
            await_connection(&mut scene.guests[0])?;
            let (dying, other) =
                if dies == Role::Server { (server, client) } else { (client, server) };
            scene.kill(dying);
            must_have_noticed(scene.report(other))
                .with_context(|| format!("{way:?}, {dies:?} died"))?;
            talk_by_rdma(scene, way, 1, echo_of(&[100]))?;
        }
    }
    Ok("noticed by servers and clients of both".to_owned())
}

/// Begins a talk that goes on for longer than anybody looks.
fn begin_long_talk(scene: &mut Scene, way: [Place; 2]) -> Result<[Begun; 2]> {
    let [server, client] = talks(way, scene, Play::Echo { sizes: vec![100; 1_000], pause_ms: 50 });
    Ok([scene.begin(way[0], server)?, scene.begin(way[1], client)?])
}

/// **Errors**: a program whose peer has died was not told so, by the end of the file or otherwise.
fn must_have_noticed(report: Result<Report>) -> Result<()> {
    let Err(error) = report else { bail!("it came to its end") };
    let text = format!("{error:#}");
    // It has waited in vain, or we have.
    let is_silent = text.contains("os error 11)") || text.contains("within");
    ensure!(!is_silent, "{text}");
    Ok(())
}

/// Without a UEID in common they decline, and speak TCP.
fn declined(scene: &mut Scene) -> Result<String> {
    const OTHER: &str = "ANOTHER-NETWORK";
    scene.forget_link_groups()?;
    scene.guests[0].change_ueid(super::UEID, OTHER)?;
    let talked = WAYS.map(|way| {
        let name = format!("sidestep-declined-{:?}", way[0]);
        scene.captured(&name, |scene| talk_by_tcp(scene, way, Member::v4))
    });
    scene.guests[0].change_ueid(OTHER, super::UEID)?;
    let mut reasons = Vec::new();
    for talked in talked {
        let (capture, reason) = talked?;
        decoded_must_show(&["Proposal", "Decline"], &capture.packets(), scene)?;
        capture.forget()?;
        reasons.push(reason);
    }
    // They would agree again.
    talk_by_rdma(scene, WAYS[0], 1, echo_of(&[100]))?;
    Ok(format!("TCP both ways; reasons of Linux: {}", reasons.join(", ")))
}

/// Linux 6.12 speaks version 2 over IPv4 alone, and version 1 not over its soft RDMA device.
fn ipv6(scene: &mut Scene) -> Result<String> {
    scene.forget_link_groups()?;
    let mut reasons = Vec::new();
    for way in WAYS {
        reasons.push(talk_by_tcp(scene, way, Member::v6)?);
    }
    Ok(format!("TCP both ways; reasons of Linux: {}", reasons.join(", ")))
}

/// Lets the two talk, by addresses of one kind; why Linux has stayed with TCP.
fn talk_by_tcp(
    scene: &mut Scene,
    [server, client]: [Place; 2],
    address: fn(Member) -> IpAddr,
) -> Result<String> {
    let address = (address(scene.member(server)), PORT).into();
    let talked = scene.between_at(address, [server, client], SocketKind::AfSmc, 1, echo_of(&SIZES));
    let reports = talked.with_context(|| format!("{server:?} is the server"))?;
    let of_guest = of_guest(&reports).context("no socket of SMC")?;
    let (reason, said) = fallback(of_guest)?;
    ensure!(reason != 0, "{of_guest:?}");
    scene.equip_host()?.must_be_well()?;
    Ok(format!("{reason:#010x} (peer's {said:#010x})"))
}

/// What the guest loses, Linux has to send again, because Sidestep asks for it.
fn loss_at_guest(scene: &mut Scene) -> Result<String> {
    let lossy = Impairment { loss_permille: 10, duplicate_permille: 5, ..Impairment::default() };
    scene.guests[0].impair(Some(lossy))?;
    let talked = lossy_streams(scene, "rcvd_seq_err", Network::default());
    scene.guests[0].impair(None)?;
    Ok(format!("1 MB each way with 1 % lost, {} times asked again by Sidestep", talked?))
}

/// What the host loses, Sidestep has to send again, because Linux asks for it.
fn loss_at_host(scene: &mut Scene) -> Result<String> {
    let lossy = Network { faults: Some("loss=1% duplication=0.5% seed=7"), ..Network::default() };
    let talked = lossy_streams(scene, "out_of_seq_request", lossy);
    let said = scene.equip_host()?.warnings().join("; ");
    scene.forget_link_groups()?;
    let talked = talked.with_context(|| format!("the gateway has said \"{said}\""));
    Ok(format!("1 MB each way with 1 % lost, {} times asked again by Linux", talked?))
}

/// Streams in both directions, with either as the server, in this network of the host's. Returns by how much a
/// counter of the guest's RDMA device has grown, which is not by nothing.
///
/// Each is a first contact. At a further one Linux registers an RMB, on the queue pair that has just carried the end of
/// the connection before; if that message is lost, or its answer, `rdma_rxe` of 6.12 sends it again, carries the
/// registration behind it out a second time, fails to, and says nothing more on that link. After five seconds
/// Linux declines (ERR_REGBUF).
fn lossy_streams(scene: &mut Scene, counter: &str, network: Network) -> Result<u64> {
    const BYTES: u64 = 1_000_000;
    let before = device_counter(scene, counter)?;
    for way in WAYS {
        for sender in [Role::Server, Role::Client] {
            scene.meet_anew(network)?;
            talk_by_rdma(scene, way, 1, Play::Stream { sender, bytes: BYTES })?;
        }
    }
    let grown = device_counter(scene, counter)? - before;
    ensure!(grown > 0, "nothing was lost: {counter}");
    Ok(grown)
}

/// One of the counters of the first guest's RDMA device.
fn device_counter(scene: &mut Scene, name: &str) -> Result<u64> {
    let file = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
    let text = scene.guests[0].run(&["cat", &file])?;
    text.trim().parse().with_context(|| format!("{name}: {text}"))
}

/// Linux had nothing to complain of since the first of these cases. (Others break links on purpose.)
fn kernel_log(scene: &mut Scene) -> Result<String> {
    const COMPLAINTS: [&str; 6] = ["WARNING:", "BUG:", "Call Trace", "err = ", "rror", "ail"];
    /// A server proposes a second link over its only adapter, which the client declines; so it is between
    /// two guests as well.
    const DECLINED_LINK: &str = "rxe_modify_qp: returned err = -22";
    let mut groups = 0;
    for guest in &mut scene.guests {
        let log = guest.kernel_log()?;
        let begin = log.find(&mark_of("sidestep-")).context("the log tells of no case")?;
        let complaints: Vec<&str> = log[begin..]
            .lines()
            .filter(|line| COMPLAINTS.iter().any(|word| line.contains(word)))
            .filter(|line| !line.ends_with(DECLINED_LINK))
            .collect();
        ensure!(complaints.is_empty(), "{guest}: {}", complaints.join("\n"));
        groups += log[begin..].matches("state changed: SINGLE").count();
    }
    Ok(format!("{groups} link groups, no complaint"))
}

/// As long as a virtual machine that moves to another host.
const STANDSTILL: Duration = Duration::from_secs(6);

/// A guest stands still in the middle of talks: Sidestep waits for it, over the only link.
fn guest_stands_still(scene: &mut Scene) -> Result<String> {
    scene.equip_host()?;
    for way in WAYS {
        let talk = begin_talk(scene, way, 200)?;
        scene.guests[0].stand_still(STANDSTILL)?;
        end_talk(scene, talk).with_context(|| format!("{:?} is the server", way[0]))?;
    }
    Ok(format!("for {STANDSTILL:?}: talks go on"))
}

/// The gateway stands still: Linux's soft RDMA device sends again for as long as it takes.
fn host_stands_still(scene: &mut Scene) -> Result<String> {
    for way in WAYS {
        let talk = begin_talk(scene, way, 200)?;
        scene.equip_host()?.stand_still(STANDSTILL)?;
        end_talk(scene, talk).with_context(|| format!("{:?} is the server", way[0]))?;
    }
    Ok(format!("for {STANDSTILL:?}: talks go on"))
}

/// Begins a talk of so many short messages, and waits until it is by SMC-R.
fn begin_talk(scene: &mut Scene, way: [Place; 2], messages: usize) -> Result<[Begun; 2]> {
    let play = Play::Echo { sizes: vec![100; messages], pause_ms: 20 };
    let [server, client] = talks(way, scene, play);
    let begun = [scene.begin(way[0], server)?, scene.begin(way[1], client)?];
    await_connections(&mut scene.guests[0], 1)?;
    Ok(begun)
}

/// **Errors**: the two do not say the same, or Linux says that it was not by SMC-R.
fn end_talk(scene: &mut Scene, [server, client]: [Begun; 2]) -> Result<()> {
    let client = scene.report(client);
    let [server, client] = talk::both(scene.report(server), client)?;
    talk::must_agree(&server, &client)?;
    let of_linux =
        [&server, &client].into_iter().find(|it| it.connections.iter().any(|it| it.smc.is_some()));
    must_be_smc_r(of_linux.context("no socket of SMC")?).map(drop)
}

/// A guest that is turned off like a lamp: a server and a client that talk to it are told, long before a
/// call of theirs gives up.
fn guest_dies(scene: &mut Scene) -> Result<String> {
    /// Half of what a call of theirs would wait.
    const SECONDS: Duration = Duration::from_secs(60);
    scene.equip_host()?;
    let mut others = Vec::new();
    for (nth, way) in WAYS.into_iter().enumerate() {
        let [server, client] = begin_long_talk(scene, way)?;
        await_connections(&mut scene.guests[0], nth + 1)?;
        others.push(if way[0] == Place::Sidestep { (server, client) } else { (client, server) });
    }
    scene.guests[0].cut_off()?;
    let start = Instant::now();
    for (on_host, _in_guest) in others {
        must_have_noticed(scene.report(on_host))?;
    }
    let took = start.elapsed();
    ensure!(took < SECONDS, "noticed only after {took:?}");
    Ok(format!("noticed by server and client after {:.1} s", took.as_secs_f64()))
}

/// Both ends of a talk.
pub(super) fn talks([server, client]: [Place; 2], scene: &Scene, play: Play) -> [Talk; 2] {
    let sockets = [server, client].map(|place| place.socket(SocketKind::AfSmc));
    talk::both_ends((scene.member(server).v4(), PORT).into(), 1, &play, sockets)
}

/// Lets the two talk, and looks at what Linux says of its end.
pub(super) fn talk_by_rdma(
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
pub(super) fn only_group(scene: &mut Scene) -> Result<LinkGroup> {
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

/// LLC messages on the links of a capture's connections in their order, by `sidestep decode`, each with
/// who sent it.
///
/// **Errors**: a message or a packet breaks a rule.
fn control_messages(capture: &Path, scene: &Scene) -> Result<Vec<(Role, String)>> {
    let sidestep = scene.launcher.observer().context("there is no `sidestep` command")?;
    let mut command = Command::new(sidestep);
    command.args(["decode", "--json"]).arg(capture);
    let decoded: Value = serde_json::from_str(&launch::run(command, PATIENCE)?)?;
    let links = decoded["links"].as_array().into_iter().flatten();
    // A link of earlier contacts may be taken down meanwhile.
    let links = links.filter(|it| it["connections"].as_array().is_some_and(|it| !it.is_empty()));
    let lines = links.flat_map(|link| link["lines"].as_array().into_iter().flatten());
    let messages = lines.filter(|line| line["kind"] == "LLC").map(|line| {
        let role = if line["from"] == "server" { Role::Server } else { Role::Client };
        (role, line["label"].as_str().unwrap_or_default().to_owned())
    });
    Ok(messages.collect())
}

/// How many of the messages are this one, from this end.
fn count_of(messages: &[(Role, String)], from: Role, label: &str) -> usize {
    messages.iter().filter(|(role, it)| *role == from && it.starts_with(label)).count()
}
