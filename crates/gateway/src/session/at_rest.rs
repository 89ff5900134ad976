//! A session at rest: as plain values, for another gateway to go on with.

use std::net::SocketAddr;
use std::time::Duration;

use sidestep_wire::{AlertToken, RmbeSize};

/// A session whose bytes go by SMC-R, between two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionAtRest {
    /// The host's connection.
    pub(crate) token: AlertToken,
    /// Whose it is.
    pub(crate) uid: u32,
    /// Whether the program has connected.
    pub(crate) is_client: bool,
    /// Of N: the program's and the peer's, if they are known.
    pub(crate) ends: [Option<SocketAddr>; 2],
    /// What its buffers count for: RMBE and send buffer.
    pub(crate) sizes: [RmbeSize; 2],
    /// How long it has been going by SMC-R.
    pub(crate) age: Duration,
    /// The program sends no more.
    pub(crate) has_ended: bool,
    /// The peer sends no more …
    pub(crate) peer_has_ended: bool,
    /// … and the program knows that.
    pub(crate) is_told: bool,
    /// The peer has left N.
    pub(crate) leave: Option<LeaveAtRest>,
}

/// How the peer has left N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaveAtRest {
    /// How much longer it is waited for.
    pub(crate) left: Duration,
    /// By a reset.
    pub(crate) is_reset: bool,
    /// It has sent something since.
    pub(crate) was_heard: bool,
}
