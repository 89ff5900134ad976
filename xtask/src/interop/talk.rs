//! Talks between any two places of the network: guests, and the host with whatever it starts programs
//! with.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sidestep_guest::{Answer, Event, Play, Report, Role, SocketKind, Talk};

use super::lan::Lan;
use crate::bench::launch::Dialogue;
use crate::suite::HANG;

/// For a talk between emulated machines, all in all, without pauses and but a few bytes.
pub(crate) const PATIENCE: Duration = HANG;
/// For each call of a talk, so that the end that waits says what it was that did not come.
const CALL_PATIENCE_MS: u32 = 120_000;

/// For a talk of this kind, all in all.
pub(crate) fn patience(play: &Play) -> Duration {
    /// Bytes that come in a second, also when some are lost.
    const SLOWEST: u64 = 200_000;
    match play {
        Play::Echo { sizes, pause_ms } => {
            PATIENCE + Duration::from_millis((*pause_ms).into()) * sizes.len() as u32
        }
        Play::Stream { bytes, .. } => PATIENCE + Duration::from_secs(bytes / SLOWEST),
        _ => PATIENCE,
    }
}

/// For each call: the other end may pause in between.
fn call_patience_ms(play: &Play) -> u32 {
    match play {
        Play::Echo { pause_ms, .. } => CALL_PATIENCE_MS + pause_ms,
        _ => CALL_PATIENCE_MS,
    }
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// One of the guests.
    Guest(usize),
    /// The host, the program as it is.
    Host,
    /// The host, the program under Sidestep.
    Sidestep,
}

impl Place {
    /// What its program has for a socket, if it is `socket` in a guest.
    pub(crate) const fn socket(self, socket: SocketKind) -> SocketKind {
        match self {
            Self::Guest(_) => socket,
            Self::Host | Self::Sidestep => SocketKind::Tcp,
        }
    }
}

/// Both ends of a talk, the server's first.
pub(crate) fn both_ends(
    address: std::net::SocketAddr,
    connections: u16,
    play: &Play,
    sockets: [SocketKind; 2],
) -> [Talk; 2] {
    let [server, client] = sockets;
    [(Role::Server, server), (Role::Client, client)].map(|(role, socket)| Talk {
        role,
        socket,
        address,
        connections,
        play: play.clone(),
        patience_ms: call_patience_ms(play),
    })
}

/// What both ends have said, the server's first.
///
/// **Errors**: one or both have failed. Either may know why.
pub(crate) fn both(server: Result<Report>, client: Result<Report>) -> Result<[Report; 2]> {
    match (server.context("the server"), client.context("the client")) {
        (Ok(server), Ok(client)) => Ok([server, client]),
        (Err(server), Err(client)) => bail!("{client:#}; {server:#}"),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

/// **Errors**: the ends do not agree on what went between them.
pub(crate) fn must_agree(server: &Report, client: &Report) -> Result<()> {
    ensure!(server.connections.len() == client.connections.len(), "connections are missing");
    // Each connection of a talk carries the same bytes.
    for (one, other) in server.connections.iter().zip(&client.connections) {
        ensure!(one.sent == other.received, "server: {one:?}, client: {other:?}");
        ensure!(one.received == other.sent, "server: {one:?}, client: {other:?}");
    }
    Ok(())
}

/// An end of a talk on the host; killed when dropped.
pub(crate) struct HostTalk {
    program: Dialogue,
    patience: Duration,
}

impl HostTalk {
    /// Begins one with `program`, which is `sidestep-guest` or starts it. A server listens when this
    /// returns.
    pub(crate) fn begin(lan: &Lan, mut program: Command, talk: &Talk) -> Result<Self> {
        program.arg("talk").arg(serde_json::to_string(talk)?);
        lan.enclose(&mut program);
        let patience = patience(&talk.play);
        let mut begun = Self { program: Dialogue::start(program)?, patience };
        if talk.role == Role::Server {
            match begun.event()? {
                Event::Listening => {}
                other => bail!("the host's server: {other:?}"),
            }
        }
        Ok(begun)
    }

    /// Waits for its end.
    pub(crate) fn report(mut self) -> Result<Report> {
        match self.event()? {
            Event::Done(Answer::Talk(report)) => Ok(report),
            other => bail!("the host: {other:?}"),
        }
    }

    fn event(&mut self) -> Result<Event> {
        Ok(serde_json::from_str(&self.program.await_line("", self.patience)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_guest::{Account, Tally};

    fn report(sent: &str, received: &str) -> Report {
        let tally = |sha256: &str| Tally { bytes: 1, sha256: sha256.to_owned() };
        let account =
            Account { sent: tally(sent), received: tally(received), ..Account::default() };
        Report { connections: vec![account], took_ms: 1 }
    }

    #[test]
    fn what_one_end_has_sent_the_other_must_have_received() {
        assert!(must_agree(&report("a", "b"), &report("b", "a")).is_ok());
        assert!(must_agree(&report("a", "b"), &report("a", "b")).is_err());
        let none = Report { connections: Vec::new(), took_ms: 1 };
        assert!(must_agree(&report("a", "b"), &none).is_err());
    }

    #[test]
    fn of_ends_that_fail_each_is_heard() {
        let failed = |why: &str| Err(anyhow::anyhow!(why.to_owned()));
        assert!(both(Ok(report("a", "b")), Ok(report("b", "a"))).is_ok());
        let one = both(failed("no data"), Ok(report("b", "a"))).unwrap_err();
        assert_eq!(format!("{one:#}"), "the server: no data");
        let two = both(failed("no data"), failed("reset")).unwrap_err();
        assert_eq!(format!("{two:#}"), "the client: reset; the server: no data");
    }

    #[test]
    fn only_guests_have_sockets_of_smc_and_both_ends_the_same_play() {
        let play = Play::Echo { sizes: vec![1], pause_ms: 40_000 };
        let address = ([10, 91, 0, 2], 5_000).into();
        let [server, client] = both_ends(address, 1, &play, [SocketKind::AfSmc, SocketKind::Tcp]);
        assert_eq!((server.role, server.socket), (Role::Server, SocketKind::AfSmc));
        assert_eq!((client.role, client.socket), (Role::Client, SocketKind::Tcp));
        assert!(client.patience_ms > 40_000 && patience(&play) >= Duration::from_secs(100));
    }
}
