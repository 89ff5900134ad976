//! A turn of a session: what it may use, and how it goes on afterwards.
//!
//! It has two parts. First the session is alone with its sockets ([`Apart`]): its program may keep N locked, so this thread may
//! sleep there as long as the program likes, and the loop goes on without it ([`seat`](crate::seat)). Then it is
//! back, and tells what has come of it to what all sessions share ([`World`]).

use std::collections::HashMap;
use std::net::TcpStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use sidestep_engine::{Event as EngineEvent, Host};
use sidestep_rdma::memory::Stretch;
use sidestep_wire::AlertToken;

use crate::handshakes::Done;
use crate::lessons::Lessons;
use crate::nic::Nic;
use crate::output;
use crate::protection::{Protection, Report};
use crate::rivalry::Rivalry;
use crate::status::Totals;

/// What a session may use apart from the loop.
pub(crate) struct Apart<'a> {
    /// For bytes that are read from a socket.
    pub(crate) chunk: &'a mut [u8],
    /// Of TLS.
    pub(crate) reports: &'a mut Vec<Report>,
    pub(crate) now: Duration,
}

/// What a session is told.
#[derive(Debug)]
pub(crate) enum Word {
    /// Something has happened on H.
    Program,
    /// The same on N.
    Network,
    /// The host tells something of its connection.
    Host(EngineEvent),
    /// A thread has worked on its handshake.
    Handshake(Done),
    /// The IP filter has other rules; N is at this interface now, or still where it was.
    Judge(Option<u32>),
    /// The IP filter denies it, or has not answered in time.
    Denied,
}

impl Word {
    /// Whether it adds nothing to what was said before: what only says that something may be done.
    pub(crate) fn says_no_more_than(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Program, Self::Program) | (Self::Network, Self::Network) => true,
            (Self::Host(one), Self::Host(other)) => one == other,
            _ => false,
        }
    }
}

/// What has come of the first part of a turn.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(super) fate: Fate,
    pub(super) reports: Vec<Report>,
    /// What the IP filter has said, if it was asked because of other rules.
    pub(crate) is_denied: Option<bool>,
}

/// What sessions share.
pub(crate) struct World<'a> {
    pub(crate) host: &'a mut Host<Nic>,
    /// Which session has which of the host's connections.
    pub(crate) owners: &'a mut HashMap<AlertToken, u64>,
    pub(crate) lessons: &'a Lessons,
    /// What connections to servers have carried by SMC-R, and by TCP.
    pub(crate) rivalry: &'a mut Rivalry,
    /// What has become of them all.
    pub(crate) totals: &'a mut Totals,
    /// TLS of this host.
    pub(crate) protection: &'a mut Protection,
    /// For bytes that are read from a socket.
    pub(crate) chunk: &'a mut [u8],
    pub(crate) now: Duration,
}

/// How it goes on with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// When something happens.
    Waits,
    /// At once, when others have had their turn.
    HasMore,
    /// Not at all.
    Over(End),
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// H is closed when all on it has been read.
    InOrder,
    /// H is reset.
    Reset,
    /// N is, too: it has lost bytes.
    ResetBoth,
}

/// What may be done with a socket, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Ready {
    pub(super) const ALL: Self = Self { read: true, write: true };
}

/// The connection cannot go on.
pub(super) struct Cut;

/// Returns how many bytes a socket takes; if it is not all, it wants no more for now.
pub(super) fn pass_on(
    to: &TcpStream,
    to_is: &mut Ready,
    stretches: [Stretch<'_>; 2],
    is_urgent: bool,
) -> Result<usize, Cut> {
    let flags = if is_urgent { SendFlags::OOB } else { SendFlags::empty() };
    match output::send(to, stretches, flags) {
        Err(Errno::AGAIN) => {
            to_is.write = false;
            Ok(0)
        }
        sent => sent.map_err(|_| Cut),
    }
}
