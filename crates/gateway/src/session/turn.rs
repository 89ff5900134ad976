//! A turn of a session: what it may use, and how it goes on afterwards.

use std::collections::HashMap;
use std::net::TcpStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use sidestep_engine::Host;
use sidestep_rdma::memory::Stretch;
use sidestep_wire::AlertToken;

use crate::lessons::Lessons;
use crate::nic::Nic;
use crate::output;
use crate::protection::Protection;
use crate::rivalry::Rivalry;
use crate::status::Totals;

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
