//! What the two sockets of a port are set to, and why.
//!
//! The ICRC covers header fields that the kernel writes after the packet has left our hands, so the
//! kernel must be kept to what we have counted on:
//!
//! | Option | Of | Without it |
//! |---|---|---|
//! | `IP_MTU_DISCOVER` = `PROBE`, and no `connect` | sender | the identification is a counter that the kernel does not tell, and long packets are cut |
//! | `SO_NO_CHECK`, `UDP_NO_CHECK6_TX` | sender without runs | a box on the way that joins packets and parts them again may number them anew; it leaves those without a checksum alone |
//! | `UDP_NO_CHECK6_RX` | receiver | packets of `rdma_rxe` by IPv6, which have no checksum, do not arrive |
//! | `UDP_GRO` | receiver | runs are parted in the kernel, and each packet costs as much as a run |
//! | `SO_RCVBUFFORCE`, `SO_RCVBUF` | receiver | 92 packets of 1 KiB fill it, and a peer sends 129 at once |
//!
//! `PROBE` and not `DO`: both send identification 0 and "don't fragment", but `DO` believes ICMP
//! messages about narrow places, which any host can forge. TTL, traffic class and flow label are
//! the kernel's: the ICRC does not cover them. No other IP options are set, which receivers would
//! not expect.
//!
//! *Source*: Linux `include/net/ip.h` (`ip_select_ident`), `net/ipv4/udp.c`; measured on 6.12 and
//! 6.18.

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use crate::soft::sys;

/// Bytes of kernel memory for what has come and was not taken, as wanted: the kernel counts some
/// 2300 for a packet of 1 KiB, so it is full with the windows of 28 QPs nearby, and of 7 far away.
pub const RECEIVE_BUFFER: usize = 8 << 20;

/// Bytes for what was sent and is still in the kernel: as much as is sent in one turn.
const SEND_BUFFER: c_int = 1 << 20;

/// The family of the sockets of an address.
pub(super) const fn family(address: IpAddr) -> c_int {
    match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    }
}

pub(super) fn bind_to_device(socket: BorrowedFd<'_>, device: &str) -> io::Result<()> {
    sys::set_option_bytes(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, device.as_bytes())
}

/// The socket at port 4791.
pub(super) fn set_receiver(socket: BorrowedFd<'_>, address: IpAddr) -> io::Result<()> {
    if address.is_ipv6() {
        sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        sys::set_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    sys::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    // The kernel takes twice the number, for what it needs beside the bytes. Force needs a
    // privilege; without it the number is cut down to the system's limit, in silence.
    let half = (RECEIVE_BUFFER / 2) as c_int;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, half)
        .or_else(|_| sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, half))
}

/// What the kernel has given of [`RECEIVE_BUFFER`].
pub(super) fn receive_buffer(socket: BorrowedFd<'_>) -> io::Result<usize> {
    sys::option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF).map(|bytes| bytes as usize)
}

/// The socket that packets leave from.
pub(super) fn set_sender(socket: BorrowedFd<'_>, address: IpAddr) -> io::Result<()> {
    match address {
        IpAddr::V4(_) => {
            let probe = libc::IP_PMTUDISC_PROBE;
            sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe)?;
        }
        IpAddr::V6(_) => {
            sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            let probe = libc::IPV6_PMTUDISC_PROBE;
            sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
        }
    }
    // No peer sends to it; one that does all the same takes no memory.
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, 0)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)
}

/// Packets leave without a UDP checksum. Nothing is lost by that: the ICRC covers more.
pub(super) fn leave_checksum_out(socket: BorrowedFd<'_>, address: IpAddr) -> io::Result<()> {
    match address {
        IpAddr::V4(_) => sys::set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1),
        IpAddr::V6(_) => sys::set_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1),
    }
}
