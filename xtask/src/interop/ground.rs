//! What `xtask interop` stands on: two guests that speak SMC-R with each other, and TCP with the host.
//!
//! Linux against Linux proves nothing about Sidestep. It proves that a failure of Sidestep against
//! Linux is not one of the machines, the network or the tests.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sidestep_guest::{Account, Impairment, Mode, Play, Report, Role, SmcSocket, SocketKind};

use super::Scene;
use super::guest::{Failed, Guest};
use super::lan::Member;
use super::talk::{PATIENCE, Place};
use crate::bench::launch;
use crate::bench::place::find_command;
use crate::capture::dissect;

/// A case: its name, and what it does.
pub(super) type Case = (&'static str, fn(&mut Scene) -> Result<String>);

pub(super) const CASES: [Case; 11] = [
    ("ping", ping),
    ("echo", echo),
    ("ipproto-smc", ipproto_smc),
    ("stream", stream),
    ("ends", ends),
    ("eight", eight_connections),
    ("captured", captured),
    ("loss", loss),
    ("killed", killed),
    ("declined", declined),
    ("host", host),
];

/// How often a guest is asked for what is to come.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One byte, a CDC's length, and more than a packet holds.
const SIZES: [u32; 6] = [1, 44, 100, 1_000, 2_048, 8_000];

/// Packets of full length reach the host, by both versions of IP.
fn ping(scene: &mut Scene) -> Result<String> {
    // Behind the heads of IP and of ICMP.
    let mtu = scene.lan.mtu();
    for (version, len, to) in
        [("-4", mtu - 28, Member::HOST.v4()), ("-6", mtu - 48, Member::HOST.v6())]
    {
        let (len, to) = (len.to_string(), to.to_string());
        for guest in &mut scene.guests {
            guest.run(&["ping", version, "-c", "1", "-s", &len, &to])?;
        }
    }
    Ok(format!("{mtu} bytes"))
}

pub(super) fn echo_of(sizes: &[u32]) -> Play {
    Play::Echo { sizes: sizes.to_vec(), pause_ms: 0 }
}

fn echo(scene: &mut Scene) -> Result<String> {
    let [server, client] = scene.between_guests(SocketKind::AfSmc, 1, echo_of(&SIZES))?;
    let buffer = must_be_smc_r(&server)?;
    must_be_smc_r(&client)?;
    Ok(format!("SMC-R, receive buffers of {buffer} bytes"))
}

fn ipproto_smc(scene: &mut Scene) -> Result<String> {
    let [server, client] = scene.between_guests(SocketKind::IpprotoSmc, 1, echo_of(&SIZES))?;
    must_be_smc_r(&server)?;
    must_be_smc_r(&client)?;
    Ok("SMC-R".to_owned())
}

fn stream(scene: &mut Scene) -> Result<String> {
    const BYTES: u64 = 10_000_000;
    let mut rates = Vec::new();
    for sender in [Role::Server, Role::Client] {
        let reports =
            scene.between_guests(SocketKind::AfSmc, 1, Play::Stream { sender, bytes: BYTES })?;
        reports.iter().try_for_each(|it| must_be_smc_r(it).map(drop))?;
        let took_s = Duration::from_millis(reports[1].took_ms.max(1)).as_secs_f64();
        rates.push(format!("{:.1} MB/s", BYTES as f64 / took_s / 1e6));
    }
    Ok(format!("10 MB each way, SHA-256 equal, {}", rates.join(" and ")))
}

/// How connections end. The side that did not end them sees the end of a file each time, also where TCP
/// would say `ECONNRESET`: a linger time of 0 makes Linux's SMC close in order, without waiting, and
/// behind unread bytes it does announce an abort, but to `recv` that is no error.
fn ends(scene: &mut Scene) -> Result<String> {
    let plays = [
        Play::HalfClose { asked: 5_000, answered: 1_000 },
        Play::Urgent,
        Play::Abort { bytes: 100 },
        Play::CloseUnread { bytes: 5_000 },
    ];
    for play in plays {
        let talked = scene.between_guests(SocketKind::AfSmc, 1, play.clone());
        must_have_ended(&play, talked).with_context(|| format!("{play:?}"))?;
    }
    Ok("half close, urgent byte, linger time 0, close with unread bytes".to_owned())
}

fn must_have_ended(play: &Play, talked: Result<[Report; 2]>) -> Result<()> {
    let [server, client] = talked?;
    must_be_smc_r(&server)?;
    must_be_smc_r(&client)?;
    let account = &server.connections[0];
    ensure!(account.end.as_deref() == Some("end of file"), "{account:?}");
    let is_urgent = matches!(play, Play::Urgent);
    ensure!(account.urgent.is_some() == is_urgent, "{account:?}");
    Ok(())
}

fn eight_connections(scene: &mut Scene) -> Result<String> {
    let [server, client] = scene.between_guests(SocketKind::AfSmc, 8, echo_of(&SIZES))?;
    must_be_smc_r(&server)?;
    must_be_smc_r(&client)?;
    for (guest, role) in scene.guests.iter_mut().zip([Role::Server, Role::Client]) {
        let groups = guest.link_groups()?;
        let [group] = &groups[..] else { bail!("{guest}: {} link groups", groups.len()) };
        ensure!(group.role == role && group.version == 2, "{guest}: {group:?}");
        ensure!(group.eid == super::UEID && group.pnet_id == super::PNET_ID, "{guest}: {group:?}");
        ensure!(!group.links.is_empty(), "{guest}: no link");
    }
    Ok("in one link group".to_owned())
}

/// Other people's eyes, and ours, on what went over the cable of a first contact.
fn captured(scene: &mut Scene) -> Result<String> {
    // A server that has not met this client: the other guest.
    scene.guests.swap(0, 1);
    let talked = scene.captured("first-contact", |scene| {
        scene.between_guests(SocketKind::AfSmc, 1, echo_of(&SIZES))
    });
    scene.guests.swap(0, 1);
    let (capture, [server, client]) = talked?;
    must_be_smc_r(&server).and(must_be_smc_r(&client))?;
    decoded_must_show(&["Proposal", "Accept", "Confirm"], &capture.packets(), scene)?;
    let dissected = dissected(&capture.packets(), 2 * SIZES.len())?;
    capture.forget()?;
    Ok(format!("sidestep decode shows the handshake; {dissected}"))
}

/// **Errors**: `sidestep decode` does not show all of these messages of the handshake.
pub(super) fn decoded_must_show(messages: &[&str], capture: &Path, scene: &Scene) -> Result<()> {
    let sidestep = scene.launcher.observer().context("there is no `sidestep` command")?;
    let mut command = Command::new(sidestep);
    command.arg("decode").arg(capture);
    let text = launch::run(command, PATIENCE).context("sidestep decode")?;
    let missing = messages.iter().find(|it| !text.contains(**it));
    ensure!(missing.is_none(), "sidestep decode shows no {}:\n{text}", missing.unwrap_or(&""));
    Ok(())
}

/// What Wireshark makes of it: at least so many packets of RDMA.
pub(super) fn dissected(capture: &Path, packets: usize) -> Result<String> {
    if find_command("tshark").is_none() {
        return Ok("tshark is not installed".to_owned());
    }
    let count =
        |filter: &str| Ok::<_, anyhow::Error>(dissect(capture, filter, &[])?.lines().count());
    let (clc, roce) = (count("smc && tcp")?, count("infiniband")?);
    ensure!(clc >= 3, "tshark sees {clc} CLC messages");
    ensure!(roce >= packets, "tshark sees {roce} RoCEv2 packets");
    Ok(format!("tshark: {clc} CLC, {roce} RoCEv2"))
}

/// What the guests lose, RDMA has to send again; what they delay takes its time.
fn loss(scene: &mut Scene) -> Result<String> {
    const DELAY: Duration = Duration::from_millis(50);
    let delay_us = u32::try_from(DELAY.as_micros())?;
    let late = Impairment { delay_us, ..Impairment::default() };
    let [_, client] = impaired(scene, late, echo_of(&[100, 100]))?;
    let took = Duration::from_millis(client.took_ms);
    // Two exchanges, each with a way there and a way back.
    ensure!(took >= 4 * DELAY, "two exchanges took {took:?}");

    let lossy = Impairment { loss_permille: 20, duplicate_permille: 10, ..Impairment::default() };
    let play = Play::Stream { sender: Role::Server, bytes: 500_000 };
    let [_, client] = impaired(scene, lossy, play)?;
    Ok(format!("500 kB with 2 % loss in {} ms", client.took_ms))
}

/// Lets the guests talk while what both send suffers.
fn impaired(scene: &mut Scene, impairment: Impairment, play: Play) -> Result<[Report; 2]> {
    for guest in &mut scene.guests {
        guest.impair(Some(impairment))?;
    }
    let talked = scene.between_guests(SocketKind::AfSmc, 1, play);
    for guest in &mut scene.guests {
        guest.impair(None)?;
    }
    let [server, client] = talked?;
    must_be_smc_r(&server).and(must_be_smc_r(&client))?;
    Ok([server, client])
}

/// A peer whose process dies.
fn killed(scene: &mut Scene) -> Result<String> {
    let play = Play::Echo { sizes: vec![100; 100], pause_ms: 50 };
    let [server, client] = scene.talks(SocketKind::AfSmc, 1, play);
    let server = scene.guests[0].begin(server)?;
    let client = scene.guests[1].begin(client)?;
    for guest in &mut scene.guests {
        await_connection(guest)?;
    }
    let [first, second] = &mut scene.guests[..] else { bail!("it takes two guests") };
    second.kill(client)?;
    ensure!(second.report(client, PATIENCE).is_err(), "the client was not killed");
    let Err(noticed) = first.report(server, PATIENCE) else { bail!("the server had an answer") };
    ensure!(noticed.is::<Failed>(), "{noticed:#}");
    // Whatever it was told, by reading or by writing; not that it has waited in vain.
    let noticed = noticed.to_string();
    ensure!(!noticed.contains("os error 11)"), "{noticed}");
    Ok(noticed)
}

/// Waits until a guest has a connection over RDMA that has been agreed upon.
pub(super) fn await_connection(guest: &mut Guest) -> Result<()> {
    await_connections(guest, 1)
}

/// The same for some connections.
pub(super) fn await_connections(guest: &mut Guest, count: usize) -> Result<()> {
    /// `SMC_ACTIVE`
    const ACTIVE: u8 = 1;
    let is_it = |it: &SmcSocket| it.state == ACTIVE && matches!(it.mode, Mode::SmcR(Some(_)));
    let deadline = Instant::now() + PATIENCE;
    while guest.sockets()?.into_iter().filter(is_it).count() < count {
        ensure!(Instant::now() < deadline, "{guest} has not met the other");
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Guests without a UEID in common decline, and speak TCP.
fn declined(scene: &mut Scene) -> Result<String> {
    const OTHER: &str = "ANOTHER-NETWORK";
    scene.guests[1].change_ueid(super::UEID, OTHER)?;
    let talked = scene
        .captured("decline", |scene| scene.between_guests(SocketKind::AfSmc, 1, echo_of(&SIZES)));
    scene.guests[1].change_ueid(OTHER, super::UEID)?;
    let (capture, [server, client]) = talked?;
    let (_, said) = fallback(&client.connections[0])?;
    let (reason, _) = fallback(&server.connections[0])?;
    ensure!(
        reason == said && reason != 0,
        "server's reason {reason:#x}, client was told {said:#x}"
    );
    decoded_must_show(&["Proposal", "Decline"], &capture.packets(), scene)?;
    capture.forget()?;
    Ok(format!("TCP, Decline {reason:#010x}"))
}

/// Guests and ordinary programs of the host, which know nothing of SMC.
fn host(scene: &mut Scene) -> Result<String> {
    must_be_tcp_with(Place::Host, scene)
}

pub(super) fn must_be_tcp_with(place: Place, scene: &mut Scene) -> Result<String> {
    /// The peer has not sent the TCP option (`SMC_CLC_DECL_PEERNOSMC`).
    const PEER_NO_SMC: u32 = 0x0301_0000;
    for (server, client) in [(Place::Guest(0), place), (place, Place::Guest(0))] {
        let [server, client] =
            scene.between(server, client, SocketKind::AfSmc, 1, echo_of(&SIZES))?;
        let accounts = [&server.connections[0], &client.connections[0]];
        let of_guest = accounts.into_iter().find(|it| it.smc.is_some());
        let (reason, _) = fallback(of_guest.context("no socket of SMC")?)?;
        ensure!(reason == PEER_NO_SMC, "reason {reason:#x}");
    }
    Ok("TCP both ways".to_owned())
}

/// **Errors**: a connection was not over RDMA. The receive buffer of the first one, in bytes.
pub(super) fn must_be_smc_r(report: &Report) -> Result<u32> {
    for account in &report.connections {
        match account.smc.as_ref().map(|it| &it.mode) {
            Some(Mode::SmcR(Some(_))) => {}
            other => bail!("not SMC-R: {other:?}"),
        }
    }
    match report.connections.first().and_then(|it| it.smc.as_ref()).map(|it| &it.mode) {
        Some(Mode::SmcR(Some(over))) => Ok(over.rmbe_len),
        _ => bail!("no connections"),
    }
}

/// Why a connection was TCP after all, and what the peer said of it.
pub(super) fn fallback(account: &Account) -> Result<(u32, u32)> {
    match account.smc.as_ref().map(|it| &it.mode) {
        Some(Mode::Fallback { reason, peer_diagnosis }) => Ok((*reason, *peer_diagnosis)),
        other => bail!("no fallback: {other:?}"),
    }
}
