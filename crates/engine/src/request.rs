//! A connection that a host is asked for: by a program, or by a client's Proposal.

use std::net::IpAddr;
use std::time::Duration;

use sidestep_proto::rendezvous::hosts::{Proposer, Terms};
use sidestep_wire::{AlertToken, RmbeSize};

/// How long the buffers of a connection are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// What the peer writes into.
    pub rmbe: RmbeSize,
    /// What the program sends into.
    pub send_buffer: RmbeSize,
}

/// Whose connection it is. The kernel tells all of it, and the peer none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user of the program on this host.
    pub uid: u32,
    /// This host's address of the TCP connection.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}

impl Caller {
    /// A program of the user `uid`, at one end of the TCP connection between these addresses. An
    /// IPv4-mapped address is the IPv4 address.
    #[must_use]
    pub const fn new(uid: u32, local: IpAddr, remote: IpAddr) -> Self {
        Self { uid, local: local.to_canonical(), remote: remote.to_canonical() }
    }
}

/// A connection that a host is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whose it is.
    pub caller: Caller,
    /// On these terms.
    pub terms: Terms,
    /// With buffers of these lengths.
    pub sizes: Sizes,
    /// It ends with this process, so it has no place in a link group that may [leave](crate::Host::emigrate): what a server
    /// takes it in has such connections alone. A client's is where its server has put it.
    pub stays: bool,
}

/// A client's Proposal, and what we call its connection.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) token: AlertToken,
    pub(crate) proposer: Proposer,
    pub(crate) request: Request,
}

/// A Proposal that waits until the first contact with its client is over.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) proposal: Proposal,
    pub(crate) until: Duration,
}
