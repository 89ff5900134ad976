//! What a packet wears on its way to a target that is not on the distributor's link: Geneve, in UDP.
//!
//! ```text
//!   outer IP 20 or 40   UDP 8   Geneve 8   option 4   key 8   the client's packet, from its header of IP on
//!   ^ from this host    ^ to port 6081
//!     to the target
//! ```
//!
//! | Off, behind UDP | Len | Field |
//! |---|---|---|
//! | 0 | 1 | version 0, and three words of options |
//! | 1 | 1 | a critical option is there |
//! | 2 | 2 | what is within: IPv4 or IPv6, as Ethernet has it |
//! | 4 | 4 | network 0 |
//! | 8 | 2 | class of the option: one for experiments |
//! | 10 | 1 | its type: critical, so that another end of Geneve drops what it does not know |
//! | 11 | 1 | two words |
//! | 12 | 8 | the key |
//!
//! The outer packet is of the family of the one within. The key is the target's: it tells it to a distributor that it knows, at that
//! one's address, so who cannot hear there cannot have a packet taken out of a tunnel.
//!
//! There is no checksum of UDP: the packet within has one, and an address that a broken header would make is not one with that key.
//!
//! *Source*: RFC 8926 sections 3.4 and 3.5, RFC 6935, RFC 6040.

use std::net::IpAddr;

/// Of UDP, to which tunnels are sent.
pub const PORT: u16 = 6081;
/// From so many ports tunnels are sent, for each family: routers and interfaces tell flows by them.
pub const SOURCE_PORTS: usize = 8;

pub(crate) const UDP_LEN: usize = 8;
/// Of Geneve with its option.
pub(crate) const GENEVE_LEN: usize = 8 + 4 + 8;
/// Where the key is, behind UDP.
pub(crate) const KEY: usize = 12;
pub(crate) const HEADERS_LEN_MAX: usize = 40 + UDP_LEN + GENEVE_LEN;
/// How many routers an outer packet may pass.
pub(crate) const HOPS: u8 = 64;

/// What stands behind UDP, up to the key.
pub(crate) const fn geneve(family: Family) -> [[u8; 4]; 3] {
    let [high, low] = family.ethernet();
    [[3, 0x40, high, low], [0; 4], [0xff, 0x53, 0x81, 2]]
}

/// A way to a host that is not on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Our address, and the target's, of one family.
    pub from: IpAddr,
    /// The target's.
    pub to: IpAddr,
    /// What the target has told this host.
    pub key: u64,
    /// The interface by which it begins.
    pub interface: u32,
    /// The longest packet that it carries, headers and all.
    pub mtu: u32,
}

impl Tunnel {
    /// By how much a packet to this address grows.
    #[must_use]
    pub fn overhead(to: IpAddr) -> u32 {
        Family::of(to).overhead() as u32
    }

    /// The headers, but for lengths, the marks of service, the checksum of IPv4 and the port of the sender.
    pub(crate) fn headers(&self) -> Vec<u8> {
        /// It is not to be cut into fragments.
        const WHOLE: [u8; 2] = [0x40, 0];
        const UDP: u8 = 17;
        let mut headers = match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let begin = [0x45, 0, 0, 0, 0, 0, WHOLE[0], WHOLE[1], HOPS, UDP, 0, 0];
                [&begin[..], &from.octets(), &to.octets()].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let begin = [0x60, 0, 0, 0, 0, 0, UDP, HOPS];
                [&begin[..], &from.octets(), &to.octets()].concat()
            }
            _ => panic!("a tunnel has ends of one family"),
        };
        headers.extend([0; UDP_LEN]);
        headers.extend(geneve(Family::of(self.to)).concat());
        headers.extend(self.key.to_be_bytes());
        headers
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// Its number among protocols of Ethernet.
    const fn ethernet(self) -> [u8; 2] {
        match self {
            Self::Ipv4 => [0x08, 0x00],
            Self::Ipv6 => [0x86, 0xdd],
        }
    }

    /// Of a header without options.
    pub(crate) const fn header_len(self) -> usize {
        match self {
            Self::Ipv4 => 20,
            Self::Ipv6 => 40,
        }
    }

    pub(crate) const fn overhead(self) -> usize {
        self.header_len() + UDP_LEN + GENEVE_LEN
    }

    /// The place of its first port among those of both.
    pub(crate) const fn first_source_port(self) -> usize {
        match self {
            Self::Ipv4 => 0,
            Self::Ipv6 => SOURCE_PORTS,
        }
    }

    /// What the kernel has to know when room is made for a header of this family.
    pub(crate) const fn room(self) -> i32 {
        match self {
            Self::Ipv4 => room::OF_IPV4,
            Self::Ipv6 => room::OF_IPV6,
        }
    }
}

/// How room is made in a packet, or taken away (`enum bpf_adj_room_mode`, `BPF_F_ADJ_ROOM_*` of `linux/bpf.h`).
pub(crate) mod room {
    pub(crate) const BEHIND_FRAME: i32 = 1;
    /// Segments stay as long as they are. Datagrams have to.
    pub(crate) const KEEP_SEGMENTS: i32 = 1;
    pub(crate) const OF_IPV4: i32 = 2;
    pub(crate) const OF_IPV6: i32 = 4;
    pub(crate) const OF_UDP: i32 = 16;
}

const _: () = assert!(SOURCE_PORTS.is_power_of_two(), "a port is chosen by bits");
