//! Which connections IPsec would protect: those keep their bytes in TCP, where the kernel protects them.
//!
//! RDMA passes by the kernel, and so by its policies. The standard has a reason for a Decline of its own for
//! that (RFC 7609 §3.6 leaves it to the host; Linux says 0x03020000). The kernel has no question "would this
//! flow be protected?" for programs, so its list of policies is read, and the first one that matches decides,
//! as in the kernel:
//!
//! ```text
//!   policies in order of their priority ── first that matches the addresses and ports ──> protects: Decline
//!      (out: ours to the peer; in: the peer to us)                                  └──> does not: SMC-R
//! ```
//!
//! The list is read once, and again after the kernel has told of a change. It tells before the system call
//! returns that has changed it, so a connection that comes after that call meets the new list.
//!
//! Where doubt is left it is told as protection: of policies with the same priority, for a mark or for one
//! interface, those that protect count.
//!
//! *Source*: Linux `include/uapi/linux/xfrm.h`, `net/xfrm/xfrm_policy.c`.

use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::protocols::NETLINK_XFRM;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use crate::netlink::{ask_all, drain};

/// The multicast group in which changes of policies are told.
const GROUP: u32 = 1 << 3;
/// `XFRM_MSG_NEWPOLICY`: a policy, as it is listed.
const NEW_POLICY: u16 = 0x13;
/// `XFRM_MSG_GETPOLICY`.
const GET_POLICY: u16 = 0x15;
/// What the question for one policy has, all zero where it is for all: `struct xfrm_userpolicy_id`.
const QUESTION_LEN: usize = 64;

/// What is known of the policies of this network namespace.
#[derive(Debug)]
pub(crate) struct Policies {
    /// Tells of changes; `None`: the kernel does not.
    changes: Option<Socket>,
    /// As they were read last; `None`: they have changed since.
    list: Option<Vec<Policy>>,
}

/// Why policies cannot be seen.
#[derive(Debug)]
pub(crate) enum Blind {
    /// The kernel has no IPsec, so there are none.
    None,
    /// It tells only who may change the network.
    NotAllowed,
    /// Something else.
    Kernel(io::Error),
}

impl Policies {
    /// Listens for changes.
    pub(crate) fn listen() -> (Self, Option<Blind>) {
        let listen = || {
            let mut socket = Socket::new(NETLINK_XFRM)?;
            socket.bind(&NetlinkAddr::new(0, GROUP))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        match listen() {
            Ok(socket) => (Self { changes: Some(socket), list: None }, None),
            Err(error) => (Self { changes: None, list: Some(Vec::new()) }, Some(Blind::of(error))),
        }
    }

    /// For the poller.
    pub(crate) fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    /// The kernel has told of a change.
    pub(crate) fn note_change(&mut self) {
        if self.changes.as_ref().is_some_and(drain) {
            self.list = None;
        }
    }

    /// Whether a policy would protect the bytes of the connection between these, either way.
    pub(crate) fn protect(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.note_change();
        let list = match &self.list {
            Some(list) => list,
            None => match read() {
                Ok(list) => self.list.insert(list),
                Err(error) => {
                    log::warn!(
                        "the policies of IPsec cannot be read: {error}; connections stay TCP"
                    );
                    return true;
                }
            },
        };
        let [local, remote] = [local, remote].map(canonical);
        decides(list, Direction::Out, local, remote) || decides(list, Direction::In, remote, local)
    }
}

impl Blind {
    fn of(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPROTONOSUPPORT) => Self::None,
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed,
            _ => Self::Kernel(error),
        }
    }
}

impl fmt::Display for Blind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "the kernel has no IPsec"),
            Self::NotAllowed => write!(
                f,
                "the policies of IPsec cannot be seen, so connections that they protect would go by RDMA \
                 all the same: give the gateway CAP_NET_ADMIN, as its unit does, or exclude such peers \
                 (policy.exclude_peers)"
            ),
            Self::Kernel(error) => write!(f, "the policies of IPsec cannot be seen: {error}"),
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether the policies of a direction protect what goes from one address to another.
fn decides(list: &[Policy], direction: Direction, from: SocketAddr, to: SocketAddr) -> bool {
    let first = list.iter().find(|it| it.direction == direction && it.matches(from, to));
    first.is_some_and(|policy| policy.protects)
}

/// All policies, in the order in which they are tried.
fn read() -> io::Result<Vec<Policy>> {
    let mut list = Vec::new();
    ask_all(NETLINK_XFRM, Message::Question, |answer| {
        if let Message::Policy(Some(policy)) = answer {
            list.push(policy);
        }
    })?;
    list.sort_by_key(|it: &Policy| (it.priority, Reverse(it.protects)));
    Ok(list)
}

// ---- a policy -----------------------------------------------------------------------------------

/// Of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Ports of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    port: u16,
    /// The bits of it that count.
    mask: u16,
}

/// What a policy of the kernel says of TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    direction: Direction,
    /// The lower ones are tried first.
    priority: u32,
    from: (IpNet, Ports),
    to: (IpNet, Ports),
    /// By transformations, or by dropping all.
    protects: bool,
}

impl Policy {
    fn matches(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let fits = |(network, ports): (IpNet, Ports), end: SocketAddr| {
            network.contains(&end.ip()) && (ports.port ^ end.port()) & ports.mask == 0
        };
        fits(self.from, from) && fits(self.to, to)
    }

    /// That of a message; `None`: it says nothing of TCP connections here.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let fixed: &[u8; Self::LEN] = bytes.first_chunk()?;
        let native_u16 = |at: usize| u16::from_ne_bytes([fixed[at], fixed[at + 1]]);
        let network_u16 = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let ports = |at| Ports { port: network_u16(at), mask: network_u16(at + 2) };
        let network = |at: usize, len: usize| {
            let address = match native_u16(40) {
                2 => IpAddr::from(Ipv4Addr::from(*fixed[at..].first_chunk::<4>()?)),
                10 => IpAddr::from(Ipv6Addr::from(*fixed[at..].first_chunk::<16>()?)),
                _ => return None,
            };
            IpNet::new(address, fixed[len]).ok()
        };
        let (to, from) = ((network(0, 42)?, ports(32)), (network(16, 43)?, ports(36)));
        let direction = match fixed[160] {
            0 => Direction::In,
            1 => Direction::Out,
            _ => return None,
        };
        let is_of_tcp = [0, libc::IPPROTO_TCP as u8].contains(&fixed[44]);
        let attributes = Attributes::read(&bytes[Self::LEN..]);
        if !is_of_tcp || attributes.is_of_tunnel {
            return None;
        }
        let protects = attributes.has_templates || fixed[161] == Self::BLOCK;
        // One for an interface or a mark may not be for the connection.
        let is_special = attributes.is_marked || fixed[48..52] != [0; 4];
        let priority = u32::from_ne_bytes(*fixed[152..].first_chunk()?);
        (protects || !is_special).then_some(Self { direction, priority, from, to, protects })
    }

    /// `struct xfrm_userpolicy_info`.
    const LEN: usize = 168;
    /// `XFRM_POLICY_BLOCK`.
    const BLOCK: u8 = 1;
}

/// What the attributes of a policy say.
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    /// What is to be done to packets.
    has_templates: bool,
    /// It is for packets with a mark.
    is_marked: bool,
    /// It is for packets of an XFRM interface, which has addresses of its own.
    is_of_tunnel: bool,
}

impl Attributes {
    fn read(mut bytes: &[u8]) -> Self {
        let mut this = Self::default();
        while let Some([a, b, c, d]) = bytes.first_chunk() {
            let len = usize::from(u16::from_ne_bytes([*a, *b]));
            let Some(value) = bytes.get(4..len) else { break };
            match u16::from_ne_bytes([*c, *d]) {
                Self::TEMPLATES => this.has_templates = !value.is_empty(),
                Self::MARK => this.is_marked = true,
                Self::INTERFACE => this.is_of_tunnel = value.iter().any(|byte| *byte != 0),
                _ => {}
            }
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        this
    }

    /// `XFRMA_TMPL`.
    const TEMPLATES: u16 = 5;
    /// `XFRMA_MARK`.
    const MARK: u16 = 21;
    /// `XFRMA_IF_ID`.
    const INTERFACE: u16 = 31;
}

/// What goes to and fro.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// For all policies.
    Question,
    /// One of them, if it says something of TCP connections here.
    Policy(Option<Policy>),
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        match self {
            Self::Question => GET_POLICY,
            Self::Policy(_) => NEW_POLICY,
        }
    }

    fn buffer_len(&self) -> usize {
        QUESTION_LEN
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let is_one = header.message_type == NEW_POLICY;
        Ok(Self::Policy(is_one.then(|| Policy::parse(payload)).flatten()))
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(message: Message) -> Self {
        Self::InnerMessage(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: u8 = 1;

    /// As the kernel lists one of IPv4: direction, priority, source, destination and its port, protected.
    fn policy(
        (direction, priority): (u8, u32),
        (from, to): (&str, &str),
        port: Option<u16>,
        is_protected: bool,
    ) -> Vec<u8> {
        let mut bytes = vec![0; Policy::LEN];
        for (at, len_at, network) in [(0, 42, to), (16, 43, from)] {
            let network: IpNet = network.parse().unwrap();
            let IpAddr::V4(address) = network.addr() else { panic!("of IPv4") };
            bytes[at..at + 4].copy_from_slice(&address.octets());
            bytes[len_at] = network.prefix_len();
        }
        if let Some(port) = port {
            bytes[32..34].copy_from_slice(&port.to_be_bytes());
            bytes[34..36].copy_from_slice(&[0xFF; 2]);
        }
        bytes[40..42].copy_from_slice(&2_u16.to_ne_bytes());
        bytes[152..156].copy_from_slice(&priority.to_ne_bytes());
        bytes[160] = direction;
        if is_protected {
            bytes.extend(attribute(Attributes::TEMPLATES, &[0; 64]));
        }
        bytes
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (value.len() as u16 + 4).to_ne_bytes();
        [&len[..], &kind.to_ne_bytes(), value].concat()
    }

    fn protect(all: &[Vec<u8>], remote: &str) -> bool {
        let mut list: Vec<Policy> = all.iter().filter_map(|it| Policy::parse(it)).collect();
        list.sort_by_key(|it| (it.priority, Reverse(it.protects)));
        let mut policies = Policies { changes: None, list: Some(list) };
        policies.protect("10.0.0.1:40000".parse().unwrap(), remote.parse().unwrap())
    }

    const ANY: (&str, &str) = ("0.0.0.0/0", "10.0.0.0/8");

    #[test]
    fn addresses_and_ports_decide() {
        let all = [policy((OUT, 0), ANY, Some(443), true)];
        assert!(protect(&all, "10.0.0.2:443"));
        assert!(protect(&all, "[::ffff:10.0.0.2]:443"));
        assert!(!protect(&all, "10.0.0.2:444"));
        assert!(!protect(&all, "11.0.0.2:443"));
        let inward = [policy((0, 0), ("10.0.0.2/32", "10.0.0.0/8"), None, true)];
        assert!(protect(&inward, "10.0.0.2:443") && !protect(&inward, "10.0.0.3:443"));
        let forwarded = [policy((2, 0), ANY, None, true)];
        assert!(!protect(&forwarded, "10.0.0.2:443"));
    }

    #[test]
    fn the_first_one_that_matches_decides() {
        let exception =
            |priority| policy((OUT, priority), ("0.0.0.0/0", "10.0.0.2/32"), None, false);
        let all = |priority| [policy((OUT, 5), ANY, None, true), exception(priority)];
        assert!(!protect(&all(4), "10.0.0.2:443") && protect(&all(4), "10.0.0.3:443"));
        assert!(protect(&all(6), "10.0.0.2:443"));
        assert!(protect(&all(5), "10.0.0.2:443"), "in doubt it is protected");
    }

    #[test]
    fn what_is_for_others_does_not_count() {
        let mut udp = policy((OUT, 0), ANY, None, true);
        udp[44] = libc::IPPROTO_UDP as u8;
        let tunnel =
            [policy((OUT, 0), ANY, None, true), attribute(Attributes::INTERFACE, &[7, 0, 0, 0])];
        assert!(!protect(&[udp, tunnel.concat()], "10.0.0.2:443"));
        // An exception for a mark may not be for the connection; protection for one may.
        let mark = attribute(Attributes::MARK, &[1; 8]);
        let exception = [policy((OUT, 0), ANY, None, false), mark.clone()].concat();
        let all = [exception, policy((OUT, 1), ANY, None, true)];
        assert!(protect(&all, "10.0.0.2:443"));
        assert!(protect(&[[policy((OUT, 0), ANY, None, true), mark].concat()], "10.0.0.2:443"));
        let mut block = policy((OUT, 0), ANY, None, false);
        block[161] = Policy::BLOCK;
        assert!(protect(&[block], "10.0.0.2:443"));
    }

    #[test]
    fn what_is_cut_off_is_no_policy() {
        let whole = policy((OUT, 0), ANY, None, true);
        assert!((0..Policy::LEN).all(|len| Policy::parse(&whole[..len]).is_none()));
        for len in Policy::LEN..whole.len() {
            let _ = Policy::parse(&whole[..len]);
        }
    }
}
