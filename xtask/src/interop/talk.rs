//! Talks between any two places of the network: guests, and the host with whatever it starts programs
//! with.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use sidestep_guest::{Answer, Event, Play, Report, Role, SocketKind, Talk};

use super::lan::Lan;
use crate::bench::launch::Dialogue;

/// For a talk between emulated machines, all in all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// For each call of a talk, so that the end that waits says what it was that did not come.
const CALL_PATIENCE_MS: u32 = 30_000;

/// Where a program runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// One of the guests.
    Guest(usize),
    /// The host.
    Host,
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
        patience_ms: CALL_PATIENCE_MS,
    })
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

/// An end of a talk on the host.
pub(crate) struct HostTalk(Dialogue);

impl HostTalk {
    /// Begins one with `program`, which is `sidestep-guest` or what starts it. A server listens when
    /// this returns.
    pub(crate) fn begin(lan: &Lan, mut program: Command, talk: &Talk) -> Result<Self> {
        program.arg("talk").arg(serde_json::to_string(talk)?);
        lan.enclose(&mut program);
        let mut begun = Self(Dialogue::start(program)?);
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
        Ok(serde_json::from_str(&self.0.await_line("", PATIENCE)?)?)
    }
}

/// The host's program without anything around it.
pub(crate) fn plain(program: &Path) -> Command {
    Command::new(program)
}
