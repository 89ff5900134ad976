//! Which network interface an address of this host is on.
//!
//! The kernel knows that as a route: an address of an interface is a destination that is
//! *local*, by way of this interface, and so may be a whole subnet, as 127.0.0.0/8 is by way of
//! `lo`. One question tells it, however many addresses there are, and it waits for no process that
//! is changing an interface, as the list of all addresses does on older kernels.
//!
//! ```text
//!   question   nlmsghdr | rtmsg | RTA_DST: the address, 4 or 16 bytes
//!   answer     nlmsghdr | rtmsg | attributes, among them RTA_OIF: the number of the interface
//! ```
//!
//! *Source*: `netlink(7)`, `rtnetlink(7)`, `linux/rtnetlink.h`.

use crate::sys;
use core::iter;
use core::net::IpAddr;
use core::ops::Range;

/// A socket that asks the kernel about the network namespace of the thread that opened it.
pub struct Rtnetlink(i32);

impl Rtnetlink {
    /// Opens it.
    ///
    /// # Errors
    /// No descriptor is free, or a sandbox forbids it.
    pub fn open() -> sys::Result<Self> {
        sys::rtnetlink().map(Self)
    }

    /// Its descriptor.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.0
    }

    /// The name of the interface that an address is on: of several the one that the kernel
    /// would take. `None`: it is on none, or that cannot be told. Three system calls.
    #[must_use]
    pub fn interface(&self, address: IpAddr) -> Option<sys::InterfaceName> {
        sys::interface_name(self.0, self.interface_number(address)?).ok()
    }

    /// The same, its number. Two system calls.
    #[must_use]
    pub fn interface_number(&self, address: IpAddr) -> Option<u32> {
        let (question, len) = question(address);
        sys::send(self.0, &question[..len], 0).ok()?;
        let mut answer = [0; ANSWER_LEN];
        // The kernel answers before `send` returns.
        // SAFETY: the slice is writable.
        let received = sys::recv_into(self.0, &mut answer, libc::MSG_DONTWAIT);
        local_interface(&answer[..received.ok()?])
    }
}

impl Drop for Rtnetlink {
    fn drop(&mut self) {
        sys::close_number(self.0);
    }
}

/// Where the fields are of a message about routes.
mod field {
    use super::Range;

    // struct nlmsghdr
    pub(super) const LEN: Range<usize> = 0..4;
    pub(super) const KIND: Range<usize> = 4..6;
    pub(super) const FLAGS: Range<usize> = 6..8;
    // struct rtmsg
    pub(super) const FAMILY: usize = 16;
    pub(super) const DESTINATION_BITS: usize = 17;
    pub(super) const ROUTE_KIND: usize = 23;
    pub(super) const ROUTE_FLAGS: Range<usize> = 24..28;
    /// Each a length, a kind, and a value that is filled up to a multiple of
    /// [`ALIGNMENT`](super::ALIGNMENT).
    pub(super) const ATTRIBUTES: usize = 28;
}

/// Bytes before the value of an attribute.
const ATTRIBUTE_HEADER_LEN: usize = 4;
const ALIGNMENT: usize = 4;
const QUESTION_LEN_MAX: usize = field::ATTRIBUTES + ATTRIBUTE_HEADER_LEN + 16;
/// Four times what Linux 6.18 says. On the stack of any thread of the program.
const ANSWER_LEN: usize = 512;

/// By which route an address is reached, and how long that is. The entry of the table is asked
/// for: what a packet would take is always `lo`.
fn question(address: IpAddr) -> ([u8; QUESTION_LEN_MAX], usize) {
    let mut bytes = [0; QUESTION_LEN_MAX];
    let value = field::ATTRIBUTES + ATTRIBUTE_HEADER_LEN;
    let (family, address_len) = match address {
        IpAddr::V4(v4) => {
            bytes[value..value + 4].copy_from_slice(&v4.octets());
            (libc::AF_INET, 4)
        }
        IpAddr::V6(v6) => {
            bytes[value..value + 16].copy_from_slice(&v6.octets());
            (libc::AF_INET6, 16)
        }
    };
    let len = value + address_len;
    bytes[field::LEN].copy_from_slice(&(len as u32).to_ne_bytes());
    bytes[field::KIND].copy_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    bytes[field::FLAGS].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes[field::FAMILY] = family as u8;
    bytes[field::DESTINATION_BITS] = 8 * address_len as u8;
    bytes[field::ROUTE_FLAGS].copy_from_slice(&libc::RTM_F_FIB_MATCH.to_ne_bytes());
    let attribute = &mut bytes[field::ATTRIBUTES..value];
    attribute[..2].copy_from_slice(&((len - field::ATTRIBUTES) as u16).to_ne_bytes());
    attribute[2..].copy_from_slice(&libc::RTA_DST.to_ne_bytes());
    (bytes, len)
}

/// The number of the interface in an answer; `None` if it says that the address is not local,
/// or something else.
fn local_interface(answer: &[u8]) -> Option<u32> {
    let len = u32::from_ne_bytes(answer.get(field::LEN)?.try_into().ok()?);
    let message = answer.get(..len as usize)?;
    let is_route = number(message, field::KIND)? == libc::RTM_NEWROUTE;
    let is_local = *message.get(field::ROUTE_KIND)? == libc::RTN_LOCAL;
    if !is_route || !is_local {
        return None;
    }
    let mut attributes = attributes(message.get(field::ATTRIBUTES..)?);
    let (_, number) = attributes.find(|(kind, _)| *kind == libc::RTA_OIF)?;
    number.try_into().ok().map(u32::from_ne_bytes)
}

/// Kinds and values, as far as they are whole.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    iter::from_fn(move || {
        let len = usize::from(number(rest, 0..2)?);
        let kind = number(rest, 2..ATTRIBUTE_HEADER_LEN)?;
        let value = rest.get(ATTRIBUTE_HEADER_LEN..len)?;
        rest = rest.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn number(bytes: &[u8], at: Range<usize>) -> Option<u16> {
    bytes.get(at)?.try_into().ok().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// An answer with these attributes.
    fn answer(kind: u16, route_kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = std::vec![0; field::ATTRIBUTES];
        bytes[field::KIND].copy_from_slice(&kind.to_ne_bytes());
        bytes[field::ROUTE_KIND] = route_kind;
        for (kind, value) in attributes {
            let len = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
            bytes.extend(len.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        }
        let len = bytes.len() as u32;
        bytes[field::LEN].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    #[test]
    fn the_interface_is_found_among_other_attributes() {
        let number = 7u32.to_ne_bytes();
        let attributes: &[(u16, &[u8])] = &[(20, &[0]), (libc::RTA_OIF, &number)];
        let of = |kind, route_kind| local_interface(&answer(kind, route_kind, attributes));
        assert_eq!(of(libc::RTM_NEWROUTE, libc::RTN_LOCAL), Some(7));
        assert_eq!(of(libc::RTM_NEWROUTE, libc::RTN_UNICAST), None, "another host");
        assert_eq!(of(libc::NLMSG_ERROR as u16, libc::RTN_LOCAL), None);
        let without = answer(libc::RTM_NEWROUTE, libc::RTN_LOCAL, &attributes[..1]);
        assert_eq!(local_interface(&without), None);
    }

    #[test]
    fn loopback_addresses_are_on_the_loopback_interface() {
        let Ok(kernel) = Rtnetlink::open() else { return std::println!("skipped: a sandbox") };
        let name = |address: &str| {
            let name = kernel.interface(address.parse().unwrap());
            name.map(|name| Vec::from(name.as_bytes()))
        };
        for address in ["127.0.0.1", "127.1.2.3"] {
            assert_eq!(name(address).unwrap(), b"lo", "{address}");
        }
        assert!(name("::1").is_none_or(|name| name == b"lo"), "there may be no IPv6");
        assert_eq!(name("203.0.113.77"), None, "nobody's");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = local_interface(&bytes);
        }

        #[test]
        fn a_part_of_an_answer_is_none(
            interface: u32,
            before in prop::collection::vec((5u16..30, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
        ) {
            let number = interface.to_ne_bytes();
            let before = before.iter().map(|(kind, value)| (*kind, &value[..]));
            let attributes: Vec<_> = before.chain([(libc::RTA_OIF, &number[..])]).collect();
            let whole = answer(libc::RTM_NEWROUTE, libc::RTN_LOCAL, &attributes);
            prop_assert_eq!(local_interface(&whole), Some(interface));
            for len in 0..whole.len() {
                prop_assert_eq!(local_interface(&whole[..len]), None);
            }
        }

        #[test]
        fn changed_bytes_are_read_without_panic(
            at in 0usize..64,
            byte: u8,
        ) {
            let number = 7u32.to_ne_bytes();
            let attributes: &[(u16, &[u8])] = &[(1, &[0; 16]), (libc::RTA_OIF, &number)];
            let mut bytes = answer(libc::RTM_NEWROUTE, libc::RTN_LOCAL, attributes);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = local_interface(&bytes);
        }
    }
}
