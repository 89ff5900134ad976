//! What lets clients under Sidestep meet the targets of a VIP.
//!
//! A client looks for the marker of the port that it has connected to, and with an agent its SYN has the
//! TCP option if a listener was announced at that address and port. Targets have markers, and are announced,
//! where they listen. So as long as one that takes connections has a marker, its VIP has one too, and is
//! announced.
//!
//! Only a socket that listens can be announced, so there is one at the VIP. It gets no connections: the
//! kernel asks the program for a VIP first, and that refuses them if no target is there. It has another
//! use: while it is there no other program can listen at the VIP.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt,
};
use sidestep_wire::host_control::listener_name;
use sidestep_wire::tcp_option::question;

/// Markers of one port that a client looks for.
const MARKERS: u8 = 2;

/// The socket and the marker of one VIP.
pub(super) struct Presence {
    address: SocketAddr,
    /// `None`: another one has the address, for now.
    socket: Option<rustix::fd::OwnedFd>,
    is_announced: bool,
    marker: Option<UnixDatagram>,
}

impl Presence {
    /// Listens at the address of a VIP, whose program is in place.
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, socket: listener(address, false).ok(), is_announced: false, marker: None }
    }

    /// Whether clients can be told to meet the targets, by marker and option.
    pub(super) fn is_marked(&self) -> bool {
        self.marker.is_some()
    }

    /// The same, by an agent.
    pub(super) fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// Follows what is wanted, and an agent that comes or goes. To be called each second or so.
    pub(super) fn follow(&mut self, is_wanted: bool) {
        match (is_wanted, &self.marker) {
            (true, None) => self.marker = leave_marker(self.address.port()),
            (false, Some(_)) => self.marker = None,
            _ => {}
        }
        let is_announced = is_wanted && self.say(question::ANNOUNCE);
        if is_announced {
            self.is_announced = true;
            return;
        }
        // Without an agent the name needs no announcement.
        let is_to_change = if is_wanted { self.say(question::MARK) } else { self.is_announced };
        if is_to_change || self.socket.is_none() {
            self.listen_anew(is_wanted);
        } else {
            self.is_announced = false;
        }
    }

    /// Whether a program of an agent has taken it.
    fn say(&self, what: i32) -> bool {
        self.socket.as_ref().is_some_and(|socket| say(socket, what))
    }

    /// An announcement is about one `listen`, and ends with it.
    fn listen_anew(&mut self, is_wanted: bool) {
        self.socket = None;
        self.socket = listener(self.address, is_wanted).ok();
        self.is_announced = is_wanted && self.say(question::ANNOUNCE);
    }
}

/// Whether a process that listens on this port has left a marker.
pub(super) fn has_marker(port: u16) -> bool {
    let answers = |index| {
        let name = UnixAddr::from_abstract_name(listener_name(port, index));
        let socket = UnixDatagram::unbound();
        socket.and_then(|socket| socket.connect_addr(&name?)).is_ok()
    };
    (0..MARKERS).any(answers)
}

fn leave_marker(port: u16) -> Option<UnixDatagram> {
    (0..MARKERS).find_map(|index| {
        let name = UnixAddr::from_abstract_name(listener_name(port, index)).ok()?;
        UnixDatagram::bind_addr(&name).ok()
    })
}

/// Whether this host has the address.
///
/// # Errors
/// It has not, or does not say.
pub(super) fn check_address(address: SocketAddr) -> io::Result<()> {
    let socket = socket(address)?;
    bind(&socket, &SocketAddr::new(address.ip(), 0))?;
    Ok(())
}

fn listener(address: SocketAddr, is_marked: bool) -> io::Result<rustix::fd::OwnedFd> {
    let socket = socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    if is_marked {
        // Without an agent the kernel knows no such option.
        _ = say(&socket, question::MARK);
    }
    listen(&socket, 0)?;
    Ok(socket)
}

fn socket(address: SocketAddr) -> io::Result<rustix::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    Ok(socket)
}

fn say(socket: &impl AsRawFd, what: c_int) -> bool {
    let nothing: c_int = 0;
    let len = size_of_val(&nothing) as libc::socklen_t;
    // SAFETY: an open descriptor, and an integer and its length.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            question::LEVEL,
            what,
            (&raw const nothing).cast(),
            len,
        )
    };
    answer == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn free_address() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[test]
    fn a_marker_is_there_as_long_as_it_is_wanted() {
        let mut presence = Presence::new(free_address());
        let port = presence.address.port();
        assert!(!has_marker(port));
        presence.follow(true);
        assert!(presence.is_marked() && has_marker(port));
        presence.follow(true);
        presence.follow(false);
        assert!(!presence.is_marked() && !has_marker(port) && !presence.is_announced());
    }

    #[test]
    fn while_it_is_there_nobody_else_listens_at_the_address() {
        let presence = Presence::new(free_address());
        let taken = TcpListener::bind(presence.address).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn addresses_of_other_hosts_are_told_apart() {
        assert!(check_address("127.0.0.77:80".parse().unwrap()).is_ok());
        let error = check_address("192.0.2.1:80".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
