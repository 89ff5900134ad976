//! The TCP sockets of this network namespace, asked of the kernel by `sock_diag(7)`: who listens, and who
//! is connected to a VIP, with the number that its target's socket has given it.
//!
//! ```text
//!   struct nlmsghdr 16 │ struct inet_diag_req_v2 56 │ attribute: which map of numbers
//!   struct nlmsghdr 16 │ struct inet_diag_msg    72 │ attributes
//! ```
//!
//! *Source*: `linux/inet_diag.h`, `linux/sock_diag.h`, `linux/netlink.h`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

/// What the kernel tells of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Of IPv6, and serves no client of IPv4.
    pub(super) is_ipv6_only: bool,
    pub(super) inode: u32,
    pub(super) cookie: u64,
    /// Of a listener: connections that wait to be accepted, and how many may.
    pub(super) queue: (u32, u32),
    /// The number that its listener's owner has.
    pub(super) owner: Option<u64>,
}

/// All that listen.
pub(super) fn listeners() -> io::Result<Vec<Seen>> {
    dump(1 << state::LISTEN, Ports::default(), None)
}

/// The connections to a local port whose server has not closed them, and which numbers they have in a map
/// of the kernel.
pub(super) fn connections(port: u16, owners: BorrowedFd<'_>) -> io::Result<Vec<Seen>> {
    dump(state::CONNECTED, Ports { local: port, peer: 0 }, Some(owners))
}

/// The connections from here to a port whose client has not closed them, and which numbers they have in a map of the kernel.
pub(super) fn connections_to(port: u16, owners: BorrowedFd<'_>) -> io::Result<Vec<Seen>> {
    dump(state::CONNECTED, Ports { local: 0, peer: port }, Some(owners))
}

/// Which ports are meant; 0: any.
#[derive(Clone, Copy, Default)]
struct Ports {
    local: u16,
    peer: u16,
}

/// `enum` of `net/tcp_states.h`.
mod state {
    const ESTABLISHED: u32 = 1;
    const CLOSE_WAIT: u32 = 8;
    pub(super) const LISTEN: u32 = 10;
    /// A bit for each state in which this end has not closed.
    pub(super) const CONNECTED: u32 = 1 << ESTABLISHED | 1 << CLOSE_WAIT;
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Bytes of a header of netlink, and of the two structs behind it.
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = 56;
const ANSWER_LEN: usize = 72;
/// Kinds of messages: an error, the end of all, a socket.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

fn dump(states: u32, ports: Ports, owners: Option<BorrowedFd<'_>>) -> io::Result<Vec<Seen>> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.send(&request(family, states, ports, owners), 0)?;
        while !read_piece(&socket.recv_from_full()?.0, &mut found)? {}
    }
    Ok(found)
}

fn request(family: u8, states: u32, ports: Ports, owners: Option<BorrowedFd<'_>>) -> Vec<u8> {
    /// `NLM_F_REQUEST | NLM_F_DUMP`.
    const FLAGS: u16 = 0x0301;
    const TCP: u8 = 6;
    /// `INET_DIAG_REQ_SK_BPF_STORAGES`, and in it `SK_DIAG_BPF_STORAGE_REQ_MAP_FD`.
    const STORAGES: u16 = 2;
    const MAP: u16 = 1;
    let attributes = owners.map_or_else(Vec::new, |map| {
        attribute(STORAGES, &attribute(MAP, &map.as_raw_fd().to_ne_bytes()))
    });
    let len = (HEADER_LEN + REQUEST_LEN + attributes.len()) as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(FLAGS.to_ne_bytes());
    // Number of the message and of its sender.
    bytes.extend([0; 8]);
    bytes.extend([family, TCP, 0, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend([ports.local, ports.peer].map(u16::to_be_bytes).concat());
    // No address in particular.
    bytes.resize(HEADER_LEN + REQUEST_LEN, 0);
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Takes over what one datagram of the kernel says. True: it was the last one.
fn read_piece(mut bytes: &[u8], found: &mut Vec<Seen>) -> io::Result<bool> {
    while !bytes.is_empty() {
        let cut_off = || io::Error::new(ErrorKind::InvalidData, "sock_diag has cut off a message");
        let len = u32_at(bytes, 0).ok_or_else(cut_off)? as usize;
        let message = bytes.get(..len).filter(|_| len >= HEADER_LEN).ok_or_else(cut_off)?;
        match u16_at(message, 4).ok_or_else(cut_off)? {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let error = u32_at(message, HEADER_LEN).ok_or_else(cut_off)?.cast_signed();
                return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
            }
            SOCK_DIAG_BY_FAMILY => {
                found.push(read_socket(&message[HEADER_LEN..]).ok_or_else(cut_off)?);
            }
            _ => {}
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// `struct inet_diag_msg` and the attributes behind it.
fn read_socket(bytes: &[u8]) -> Option<Seen> {
    const V6_ONLY: u16 = 11;
    /// `INET_DIAG_SK_BPF_STORAGES`, in it `SK_DIAG_BPF_STORAGE`, in it `SK_DIAG_BPF_STORAGE_MAP_VALUE`.
    const STORAGES: u16 = 20;
    const STORAGE: u16 = 1;
    const VALUE: u16 = 3;
    let (head, rest) = bytes.split_at_checked(ANSWER_LEN)?;
    let is_ipv6 = head[0] == AF_INET6;
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let local = SocketAddr::new(address(is_ipv6, &head[8..24])?, port(4));
    let peer = SocketAddr::new(address(is_ipv6, &head[24..40])?, port(6));
    let word = |at| u32_at(head, at);
    let mut seen = Seen {
        local,
        peer,
        is_ipv6_only: false,
        inode: word(68)?,
        cookie: u64::from(word(44)?) | u64::from(word(48)?) << 32,
        queue: (word(56)?, word(60)?),
        owner: None,
    };
    for (kind, value) in attributes(rest) {
        match kind {
            V6_ONLY => seen.is_ipv6_only = value.first().is_some_and(|only| *only != 0),
            STORAGES => {
                let storages = attributes(value).filter(|(kind, _)| *kind == STORAGE);
                let mut values = storages.flat_map(|(_, value)| attributes(value));
                let number = values.find(|(kind, _)| *kind == VALUE).map(|(_, value)| value);
                // Behind the number the map may have more.
                let number = number.and_then(|value| value.first_chunk().copied());
                seen.owner = number.map(u64::from_ne_bytes);
            }
            _ => {}
        }
    }
    Some(seen)
}

/// IPv4-mapped addresses are IPv4.
fn address(is_ipv6: bool, bytes: &[u8]) -> Option<IpAddr> {
    if is_ipv6 {
        let bytes: [u8; 16] = bytes.try_into().ok()?;
        return Some(IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical());
    }
    let bytes: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    Some(Ipv4Addr::from(bytes).into())
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// Bits of the kind that say how the value is laid out.
    const KIND: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & KIND;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn those_that_listen_are_seen() {
        for host in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let local = listener.local_addr().unwrap();
            let all = listeners().unwrap();
            let seen = all.iter().find(|seen| seen.local == local).unwrap();
            assert_eq!((seen.queue.0, seen.owner), (0, None));
            assert!(seen.queue.1 > 0 && seen.inode != 0 && seen.cookie != 0);
        }
    }

    #[test]
    fn a_request_names_the_ports_that_are_meant() {
        let ports = Ports { local: 0x1234, peer: 80 };
        let request = request(AF_INET, state::CONNECTED, ports, None);
        assert_eq!(request[20..24], 0x0102_u32.to_ne_bytes());
        assert_eq!(request[24..28], [0x12, 0x34, 0, 80]);
    }

    #[test]
    fn what_is_cut_off_or_refused_is_an_error() {
        let message = |kind: u16, body: &[u8]| {
            let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(body);
            bytes
        };
        let mut found = Vec::new();
        assert!(read_piece(&message(NLMSG_DONE, &[0; 4]), &mut found).unwrap());
        let refusal = message(NLMSG_ERROR, &(-1_i32).to_ne_bytes());
        assert_eq!(read_piece(&refusal, &mut found).unwrap_err().raw_os_error(), Some(1));
        for broken in [&message(SOCK_DIAG_BY_FAMILY, &[0; 71])[..], &[1], &[3, 0, 0, 0, 0, 0]] {
            let error = read_piece(broken, &mut found).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        assert!(found.is_empty());
    }

    #[test]
    fn a_number_lies_in_attributes_within_attributes() {
        let number = attribute(3, &[7_u64, 8].map(u64::to_ne_bytes).concat());
        let storages = attribute(20, &attribute(1, &[attribute(2, &[1; 4]), number].concat()));
        let mut bytes = vec![0; ANSWER_LEN];
        bytes[0] = AF_INET;
        bytes[4..12].copy_from_slice(&[0, 80, 0, 0, 127, 0, 0, 1]);
        bytes.extend([attribute(11, &[1]), storages].concat());
        let seen = read_socket(&bytes).unwrap();
        assert_eq!((seen.owner, seen.is_ipv6_only), (Some(7), true));
        assert_eq!(seen.local, "127.0.0.1:80".parse().unwrap());
    }
}
