//! Where a connection of a program is: what the kernel has said of N when it was handed over.

use std::net::{SocketAddr, TcpStream};

use nix::sys::socket::GetSockOpt;
use sidestep_bpf::NetnsCookie;

/// Whose connection it is, and where its ends are. Its addresses go with it, and what is told of it needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    user: u32,
    /// The number of the network namespace, if the kernel tells.
    namespace: Option<u64>,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
}

impl Ends {
    /// What the kernel says of N, which this user has handed over.
    pub(crate) fn of(n: &TcpStream, user: u32) -> Self {
        let (local, remote) = (n.local_addr().ok(), n.peer_addr().ok());
        Self { user, namespace: NetnsCookie.get(n).ok(), local, remote }
    }

    /// Those of a connection that another gateway has known.
    pub(crate) const fn told(user: u32, [local, remote]: [Option<SocketAddr>; 2]) -> Self {
        Self { user, namespace: None, local, remote }
    }

    pub(crate) const fn user(&self) -> u32 {
        self.user
    }

    /// The program's.
    pub(crate) const fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The peer's.
    pub(crate) const fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Both; `None`: it has ended before they were known.
    pub(crate) fn both(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.local.zip(self.remote)
    }

    /// Whether the two are one connection, seen from its two ends: a network namespace has no other socket with these
    /// addresses. In another one, of which any user can make one, there may be such a socket.
    pub(crate) fn is_other_side_of(&self, other: &Self) -> bool {
        let is_known = self.local.is_some() && self.remote.is_some() && self.namespace.is_some();
        is_known
            && self.namespace == other.namespace
            && self.canonical() == (other.remote.map(canonical), other.local.map(canonical))
    }

    /// As addresses of IPv4 where they are such.
    pub(crate) fn canonical(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (self.local.map(canonical), self.remote.map(canonical))
    }
}

/// An IPv4 address that a socket of IPv6 tells as one of its own is that address.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
