//! Tells a link that an address is ours now: gratuitous ARP, and unsolicited advertisements of a neighbour.
//!
//! *Source*: RFC 5227 section 3, RFC 4861 section 7.2.6.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use etherparse::PacketBuilder;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::link::LinkAddress;

/// Frames for a link.
pub(super) struct Announcer {
    socket: OwnedFd,
}

impl Announcer {
    /// Takes CAP_NET_RAW.
    pub(super) fn new() -> io::Result<Self> {
        // Of no protocol: it hears nothing.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        Ok(Self { socket })
    }

    /// Has all hosts of the link know that `ip` is at `own`.
    pub(super) fn announce(&self, index: u32, own: LinkAddress, ip: IpAddr) -> io::Result<()> {
        let frame = match ip {
            IpAddr::V4(ip) => gratuitous_arp(own, ip),
            IpAddr::V6(ip) => advertisement(own, ip)?,
        };
        // SAFETY: all zeroes is a `sockaddr_ll`.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = index.cast_signed();
        let to_len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the frame and the address live until the call returns.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                to_len,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A question for one's own address: hosts that know the address take over who asks.
fn gratuitous_arp(own: LinkAddress, ip: Ipv4Addr) -> Vec<u8> {
    let head = [&[0xff; 6][..], &own, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    [&head[..], &own, &ip.octets(), &[0; 6], &ip.octets()].concat()
}

/// To all hosts, with the flag "override".
fn advertisement(own: LinkAddress, ip: Ipv6Addr) -> io::Result<Vec<u8>> {
    const ALL: LinkAddress = [0x33, 0x33, 0, 0, 0, 1];
    const ALL_HOSTS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let body = [&ip.octets()[..], &[2, 1], &own].concat();
    let packet = PacketBuilder::ethernet2(own, ALL)
        .ipv6(ip.octets(), ALL_HOSTS.octets(), 255)
        .icmpv6_raw(136, 0, [0x20, 0, 0, 0]);
    let mut frame = Vec::new();
    packet.write(&mut frame, &body).map_err(io::Error::other)?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: LinkAddress = [2, 0, 0, 0, 0, 7];

    #[test]
    fn frames_are_as_the_rfcs_have_them() {
        let arp = gratuitous_arp(OWN, Ipv4Addr::new(10, 77, 0, 100));
        assert_eq!(arp.len(), 42);
        assert_eq!(arp[28..32], arp[38..42], "sender and target are one");
        let frame = advertisement(OWN, "fd77::100".parse().unwrap()).unwrap();
        assert_eq!((frame.len(), frame[20], frame[21]), (86, 58, 255));
        assert_eq!(&frame[54..56], [136, 0]);
        assert_eq!(&frame[80..], OWN);
    }
}
