//! Markers: "who listens on this port runs Sidestep".
//!
//! A marker is an abstract name in the listener's network namespace. It saves the client of a plain server a
//! socket; a stale one costs that socket and nothing more.

use crate::process::home::Home;
use crate::process::{options, tcp, unseen};
use crate::table::sock::Sock;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use sidestep_device::sys::{self, Errno, UnixName};
use sidestep_wire::host_control::listener_name;

/// Markers of one port that a client looks for: the second is there while an old
/// listener is being replaced.
const MARKERS: u8 = 2;

/// Client: whether a process that listens on this port has left a marker.
pub(super) fn is_there(process: &Home, port: u16) -> bool {
    let is_marked = |index| {
        let name = UnixName::new(&listener_name(port, index));
        sys::connect_unix(process.probe, &name) != Err(Errno(libc::ECONNREFUSED))
    };
    (0..MARKERS).any(is_marked)
}

/// Leaves the marker of a listener, if its connections may move. Of many listeners on a port two leave
/// markers.
pub(super) fn leave(sock: &Sock, fd: i32) {
    if !options::current().moves_connections() || unseen::unseen_use().is_some() {
        return;
    }
    clear_retired(sys::now_ns());
    let Ok((local, _)) = sys::socket_name(fd, false) else { return };
    let Some(port) = tcp::address(&local).map(|local| local.port()) else { return };
    sock.server_port.store(port, Ordering::Relaxed);
    if options::current().policy.objection_to_port(port).is_some() {
        return;
    }
    let Ok(marker) = sys::unix_datagram().map(sys::move_up) else { return };
    let free = |index| sys::bind_unix(marker, &UnixName::new(&listener_name(port, index))).is_ok();
    let placed = (0..MARKERS).any(free)
        && sock.marker.compare_exchange(-1, marker, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if !placed {
        sys::close(marker);
    }
}

/// Markers of listeners that were closed, + 1, and when they may go, by
/// [`sys::now_ns`]. Many a server closes its listener once it has the connection it
/// waited for, and the client of that connection still has to find the marker.
static RETIRED: [(AtomicI32, AtomicU64); RETIRED_MAX] =
    [const { (AtomicI32::new(0), AtomicU64::new(0)) }; RETIRED_MAX];
/// Closed listeners whose markers are kept.
const RETIRED_MAX: usize = 8;
/// For how long: more than a client takes to its first call.
const RETIRED_NS: u64 = 2_000_000_000;

/// A listener is closed: its marker stays for a moment. If too many do, the one that
/// has stayed longest gives way: its client is the likeliest to have looked.
pub(crate) fn retire_marker(marker: i32) {
    let now = sys::now_ns();
    clear_retired(now);
    // A free place is due since the beginning of time.
    let oldest = RETIRED.iter().min_by_key(|(_, until)| until.load(Ordering::Relaxed));
    let Some((place, until)) = oldest else { return sys::close(marker) };
    until.store(now + RETIRED_NS, Ordering::Relaxed);
    let before = place.swap(marker + 1, Ordering::Relaxed);
    if before != 0 {
        sys::close(before - 1);
    }
}

fn clear_retired(now: u64) {
    for (marker, until) in &RETIRED {
        let due = until.load(Ordering::Relaxed);
        if due != 0 && due <= now && until.swap(0, Ordering::Relaxed) == due {
            sys::close(marker.swap(0, Ordering::Relaxed) - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::{self, tests::alone};
    use crate::program::life;
    use crate::table::sock::Phase;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    fn listen() -> (TcpListener, &'static Sock, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let sock = life::register(listener.as_raw_fd(), false, false).unwrap();
        sock.set_phase(Phase::Listener);
        (listener, sock, port)
    }

    fn close(listener: TcpListener) {
        let closing = life::before_close(listener.as_raw_fd());
        drop(listener);
        drop(closing);
    }

    #[test]
    fn a_client_finds_the_marker_of_a_listener_and_for_a_moment_that_of_a_closed_one() {
        let _alone = alone();
        let process = home::current().unwrap();
        let (listener, sock, port) = listen();
        assert!(!is_there(process, port), "nobody has left one");
        leave(sock, listener.as_raw_fd());
        assert!(sock.is_marked() && is_there(process, port));
        assert_eq!(sock.server_port.load(Ordering::Relaxed), port);
        close(listener);
        assert!(is_there(process, port), "a client may have connected to it");
        clear_retired(sys::now_ns());
        assert!(is_there(process, port), "its time has not come");
        clear_retired(sys::now_ns() + RETIRED_NS);
        assert!(!is_there(process, port));
    }

    #[test]
    fn of_many_closed_listeners_the_oldest_markers_give_way() {
        let _alone = alone();
        let process = home::current().unwrap();
        clear_retired(u64::MAX);
        let ports: Vec<u16> = (0..RETIRED_MAX + 2)
            .map(|_| {
                let (listener, sock, port) = listen();
                leave(sock, listener.as_raw_fd());
                close(listener);
                port
            })
            .collect();
        let found: Vec<bool> = ports.iter().map(|port| is_there(process, *port)).collect();
        assert_eq!(found[..2], [false; 2]);
        assert_eq!(found[2..], [true; RETIRED_MAX]);
        clear_retired(u64::MAX);
        assert!(!ports.iter().any(|port| is_there(process, *port)));
    }

    /// Names of a port are taken, by an old listener or by a stranger.
    #[test]
    fn a_listener_without_a_free_name_has_no_marker() {
        let _alone = alone();
        let (listener, sock, port) = listen();
        let taken: Vec<i32> = (0..MARKERS)
            .map(|index| {
                let other = sys::unix_datagram().unwrap();
                sys::bind_unix(other, &UnixName::new(&listener_name(port, index))).unwrap();
                other
            })
            .collect();
        leave(sock, listener.as_raw_fd());
        assert!(!sock.is_marked());
        sys::close_number(taken[1]);
        leave(sock, listener.as_raw_fd());
        assert!(sock.is_marked(), "one is free");
        sys::close_number(taken[0]);
        close(listener);
        clear_retired(u64::MAX);
    }
}
