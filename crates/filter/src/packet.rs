//! What a rule looks at.

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

use crate::protocol::{Protocol, number_has_ports};

/// A packet of a socket on this host, or one that passes through it, as far as rules look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Whether it arrives, leaves, or is forwarded.
    pub way: Way,
    /// The protocol's number.
    pub protocol: u8,
    /// Where it comes from. Both addresses are of one family.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// The ports, source first; 0 of protocols without ports, and of fragments behind the first.
    pub ports: (u16, u16),
    /// Type and code of ICMP, of either family; 0 of other protocols.
    pub icmp: (u8, u8),
    /// Index of the interface that it arrives at or leaves by, of a forwarded one that it leaves by.
    pub interface: u32,
    /// Whose the socket is; [`NO_USER`] of a forwarded one.
    pub user: u32,
    /// The innermost control group of the socket, of those that the list names, by its number in
    /// [`Groups`](crate::Groups); 0: none, as of a forwarded one.
    pub group: u32,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// It arrives at this host.
    In,
    /// It leaves.
    Out,
    /// It has come from another host and goes to another: no socket of this one has it.
    Forwarded,
}

/// The user of a packet without a socket. No user of Linux has this number.
pub const NO_USER: u32 = u32::MAX;

impl Packet {
    /// One between two sockets. `interface` and `group` are 0, and so is `user` but of a forwarded one.
    #[must_use]
    pub fn between(protocol: u8, source: SocketAddr, destination: SocketAddr, way: Way) -> Self {
        let has_ports = number_has_ports(protocol);
        let ports = if has_ports { (source.port(), destination.port()) } else { (0, 0) };
        Self {
            way,
            protocol,
            source: source.ip(),
            destination: destination.ip(),
            ports,
            icmp: (0, 0),
            interface: 0,
            user: if way == Way::Forwarded { NO_USER } else { 0 },
            group: 0,
        }
    }
}

impl Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = Protocol::Number(self.protocol);
        if protocol.has_ports() {
            let source = SocketAddr::new(self.source, self.ports.0);
            let destination = SocketAddr::new(self.destination, self.ports.1);
            write!(f, "{protocol} {source} {destination} {}", self.way)
        } else {
            write!(f, "{protocol} {} {} {}", self.source, self.destination, self.way)
        }
    }
}

impl Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Forwarded => "forwarded",
        })
    }
}
