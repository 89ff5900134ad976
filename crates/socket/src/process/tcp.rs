//! What the kernel says of a TCP socket: its kind, its addresses, its cookies; and how an address stands in
//! shared memory, in two words.

use crate::Errno;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use sidestep_device::sys;

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`; Linux 5.14.
pub(super) const SO_NETNS_COOKIE: i32 = 71;

/// `SO_COOKIE` of `asm-generic/socket.h`.
const SO_COOKIE: i32 = 57;

/// The kernel's cookie of a socket.
#[must_use]
pub fn socket_cookie(fd: i32) -> u64 {
    sys::socket_option(fd, libc::SOL_SOCKET, SO_COOKIE).unwrap_or(0)
}

/// The cookie of the network namespace a socket lives in; 0 when the kernel does
/// not say.
#[must_use]
pub fn netns_cookie(fd: i32) -> u64 {
    sys::socket_option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0)
}

/// Sixteen bytes as two words.
#[must_use]
pub fn halves(id: &[u8; 16]) -> [u64; 2] {
    let word = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&id[at..at + 8]);
        u64::from_be_bytes(eight)
    };
    [word(0), word(8)]
}

/// Two words as sixteen bytes.
#[must_use]
pub(crate) fn joined([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) << 64 | u128::from(second)).to_be_bytes()
}

const PORT_AT: usize = core::mem::offset_of!(libc::sockaddr_in, sin_port);
const V4_AT: usize = core::mem::offset_of!(libc::sockaddr_in, sin_addr);
const V6_AT: usize = core::mem::offset_of!(libc::sockaddr_in6, sin6_addr);
const _: () = assert!(PORT_AT == core::mem::offset_of!(libc::sockaddr_in6, sin6_port));

/// An address as the kernel has it.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; size_of::<libc::sockaddr_in6>()],
    len: usize,
}

impl Name {
    /// One of the addresses of a connected socket.
    pub(crate) fn of(fd: i32, peer: bool) -> Option<Self> {
        let (storage, len) = sys::socket_name(fd, peer).ok()?;
        let mut name = Self { bytes: [0; _], len: (len as usize).min(size_of_val(&storage)) };
        let room = name.bytes.get_mut(..name.len)?;
        room.copy_from_slice(&sys::bytes_of_address(&storage)[..name.len]);
        Some(name)
    }

    /// As a socket of IPv6, or one of IPv4, has this address.
    pub(crate) fn new(address: SocketAddr, is_ipv6: bool) -> Self {
        let mut bytes = [0; size_of::<libc::sockaddr_in6>()];
        let port = address.port().to_be_bytes();
        let (family, at, len, octets) = match (address.ip(), is_ipv6) {
            (IpAddr::V4(v4), false) => {
                (libc::AF_INET, V4_AT, size_of::<libc::sockaddr_in>(), &v4.octets()[..])
            }
            (IpAddr::V4(v4), true) => {
                (libc::AF_INET6, V6_AT, bytes.len(), &v4.to_ipv6_mapped().octets()[..])
            }
            (IpAddr::V6(v6), _) => (libc::AF_INET6, V6_AT, bytes.len(), &v6.octets()[..]),
        };
        for (at, part) in [(0, &(family as u16).to_ne_bytes()[..]), (PORT_AT, &port), (at, octets)]
        {
            bytes[at..at + part.len()].copy_from_slice(part);
        }
        Self { bytes, len }
    }

    /// The bytes of the kernel's struct.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        address_in(self.bytes())
    }
}

/// Whether sockets of this kind are ours to serve: TCP over IPv4 or IPv6.
#[must_use]
pub fn is_tcp(domain: i32, kind: i32, protocol: i32) -> bool {
    const KIND: i32 = 0xf;
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & KIND == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
}

/// `O_NONBLOCK`, as the kernel has it.
pub(crate) fn is_nonblocking(fd: i32) -> bool {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    flags as i32 & libc::O_NONBLOCK != 0
}

/// An address as it stands in the state: two words and the family, 4 or 6.
pub(crate) fn words(ip: IpAddr) -> ([u64; 2], u8) {
    match ip {
        IpAddr::V4(v4) => ([u64::from(u32::from(v4)), 0], 4),
        IpAddr::V6(v6) => (halves(&v6.octets()), 6),
    }
}

/// The address of two words and a family; the reverse of [`words`].
pub(crate) fn of_words([first, second]: [u64; 2], family: u8) -> Option<IpAddr> {
    match family {
        4 => Some(Ipv4Addr::from(first as u32).into()),
        6 => Some(Ipv6Addr::from(u128::from(first) << 64 | u128::from(second)).into()),
        _ => None,
    }
}

/// Both addresses of a connected socket.
///
/// # Errors
/// `ENOTCONN` while it is not connected.
pub fn addresses(fd: i32) -> Result<(SocketAddr, SocketAddr), Errno> {
    let (peer, _) = sys::socket_name(fd, true).map_err(|errno| errno.0)?;
    let (local, _) = sys::socket_name(fd, false).map_err(|errno| errno.0)?;
    match (address(&local), address(&peer)) {
        (Some(local), Some(peer)) => Ok((local, peer)),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// Whether an address, of which these are the first bytes of the kernel's struct, is `AF_UNSPEC`.
#[must_use]
pub fn is_nowhere(bytes: &[u8]) -> bool {
    family(bytes) == Some(libc::AF_UNSPEC)
}

pub(crate) fn family(bytes: &[u8]) -> Option<i32> {
    let family = bytes.first_chunk()?;
    Some(libc::sa_family_t::from_ne_bytes(*family).into())
}

/// An address of the kernel as Rust knows it; IPv4-mapped ones become IPv4.
#[must_use]
pub fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    address_in(sys::bytes_of_address(storage))
}

/// The same in the bytes of the kernel's struct; what is missing behind them is zero.
#[must_use]
pub fn address_in(bytes: &[u8]) -> Option<SocketAddr> {
    let mut all = [0; size_of::<libc::sockaddr_in6>()];
    let len = bytes.len().min(all.len());
    all[..len].copy_from_slice(&bytes[..len]);
    let port = u16::from_be_bytes(*all[PORT_AT..].first_chunk()?);
    let ip = match family(&all)? {
        libc::AF_INET => IpAddr::from(*all[V4_AT..].first_chunk::<4>()?),
        libc::AF_INET6 => Ipv6Addr::from(*all[V6_AT..].first_chunk::<16>()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Both ends lie on this host: a loopback address, the same address twice, or a
/// peer address that this host could bind.
pub(crate) fn is_same_host(local: SocketAddr, peer: SocketAddr) -> bool {
    if peer.ip().is_loopback() || peer.ip() == local.ip() {
        return true;
    }
    sys::is_local(peer.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    fn any_ip() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
            any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).into()),
        ]
    }

    proptest! {
        #[test]
        fn sixteen_bytes_are_two_words_and_back(id in any::<[u8; 16]>()) {
            prop_assert_eq!(joined(halves(&id)), id);
            prop_assert_eq!(&halves(&id)[0].to_be_bytes()[..], &id[..8]);
        }

        #[test]
        fn an_address_is_two_words_and_a_family_and_back(ip in any_ip()) {
            let (words, family) = words(ip);
            prop_assert_eq!(of_words(words, family), Some(ip));
            prop_assert_eq!(of_words(words, 10 - family) == Some(ip), false);
            prop_assert_eq!(of_words(words, 0), None);
        }

        #[test]
        fn an_address_is_the_kernels_struct_and_back(ip in any_ip(), port: u16, is_ipv6: bool) {
            let address = SocketAddr::new(ip, port);
            let name = Name::new(address, is_ipv6);
            prop_assert_eq!(name.address(), Some(SocketAddr::new(ip.to_canonical(), port)));
            let is_long = is_ipv6 || ip.is_ipv6();
            let len = if is_long { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
            prop_assert_eq!(name.bytes().len(), len);
        }
    }

    #[test]
    fn an_address_is_as_the_kernel_has_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        assert_eq!(addresses(client.as_raw_fd()), Ok((own, other)));
        for (is_peer, address) in [(false, own), (true, other)] {
            let name = Name::of(client.as_raw_fd(), is_peer).unwrap();
            assert_eq!(name.address(), Some(address));
            assert_eq!(name.bytes()[..V4_AT + 4], Name::new(address, false).bytes()[..V4_AT + 4]);
        }
        assert_eq!(addresses(listener.as_raw_fd()), Err(libc::ENOTCONN));
    }

    #[test]
    fn what_is_missing_of_an_address_is_zero() {
        let name = Name::new("10.1.2.3:258".parse().unwrap(), false);
        assert_eq!(address_in(&name.bytes()[..V4_AT]), "0.0.0.0:258".parse().ok());
        assert_eq!(address_in(&name.bytes()[..1]), "0.0.0.0:0".parse().ok(), "AF_INET is one byte");
        assert_eq!(address_in(&[]), None);
        assert_eq!(address_in(&[libc::AF_UNIX as u8, 0]), None);
        assert!(is_nowhere(&[0, 0, 9]) && !is_nowhere(&[0]) && !is_nowhere(name.bytes()));
    }

    #[test]
    fn only_tcp_is_served() {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        for domain in [libc::AF_INET, libc::AF_INET6] {
            assert!(is_tcp(domain, libc::SOCK_STREAM, 0));
            assert!(is_tcp(domain, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP));
            assert!(!is_tcp(domain, libc::SOCK_STREAM, libc::IPPROTO_SCTP));
            assert!(!is_tcp(domain, libc::SOCK_DGRAM | flags, 0));
        }
        assert!(!is_tcp(libc::AF_UNIX, libc::SOCK_STREAM, 0));
    }

    #[test]
    fn the_same_host_is_told_by_the_addresses() {
        let is_same =
            |local: &str, peer: &str| is_same_host(local.parse().unwrap(), peer.parse().unwrap());
        assert!(is_same("192.0.2.1:1", "127.0.0.9:2") && is_same("192.0.2.1:1", "192.0.2.1:2"));
        assert!(is_same("[::1]:1", "[::1]:2"));
        // TEST-NET-3, which no host has, unless this one was given it.
        let has_it = UdpSocket::bind("203.0.113.77:0").is_ok();
        assert_eq!(is_same("192.0.2.1:1", "203.0.113.77:2"), has_it);
    }
}
