//! How untracked connections begin: see [`untracked`](crate::table::untracked).

use crate::process::options::{self, Promotion};
use crate::process::{home, loan, unseen};
use crate::program::{life, protection, tracking};
use crate::rendezvous::{listeners, tcp_option};
use crate::table::sock::Sock;
use crate::table::{descriptors, places};
use sidestep_device::untracked::{About, Stage};

/// A socket was made that is not connected. Not by the child of a `vfork`, whose number may be
/// another socket's in this table.
pub fn note_fresh(fd: i32) {
    if loan::is_borrowed_memory() {
        return;
    }
    // The first connection of a process makes its state; what comes before has an object.
    match places::place(fd) {
        Some(place) => {
            place.begin_fresh();
            descriptors::forget_entry(descriptors::insert_untracked(fd, &tracking::TRACKING), -1);
        }
        None => _ = life::register(fd, false, false),
    }
}

/// Whether a socket may connect without an object: it has none, and no agent and
/// no rule of TLS wants to know of it before.
#[must_use]
pub fn may_connect(fd: i32) -> bool {
    // A rule of TLS that is new is for this one, too.
    listeners::follow_settings();
    is_fresh(fd) && tcp_option::is_absent() && !protection::concerns_clients()
}

pub(crate) fn is_fresh(fd: i32) -> bool {
    descriptors::is_untracked(fd) && places::stage(fd) == Some(Stage::Fresh)
}

/// A socket was connected to a server at this port. False: it has, or needs, an object.
#[must_use]
pub fn begin_client(fd: i32, server_port: u16) -> bool {
    is_fresh(fd) && begin(fd, About { is_server: false, server_port })
}

/// A connection was accepted from a listener of ours, under this number if that still leads to it. False: it needs an object.
#[must_use]
pub fn begin_server(fd: i32, known: Option<&Sock>, listener: i32) -> bool {
    listeners::follow_settings();
    let Some(known) = known.filter(|_| !protection::concerns_servers()) else { return false };
    let port = known.port_without_wishes();
    let is_settled = known.is_marked() && descriptors::leads_to(listener, known);
    port.filter(|_| is_settled)
        .is_some_and(|server_port| begin(fd, About { is_server: true, server_port }))
}

pub(crate) fn begin(fd: i32, about: About) -> bool {
    listeners::follow_settings();
    let Some(process) = home::current().filter(|_| may_be_untracked()) else { return false };
    if !process.state.untracked(fd).is_some_and(|place| place.open(about)) {
        return false;
    }
    process.note_untracked(fd);
    descriptors::forget_entry(descriptors::insert_untracked(fd, &tracking::TRACKING), -1);
    true
}

fn may_be_untracked() -> bool {
    let options = options::current();
    options.smc
        && options.promotion == Promotion::Lazy
        && options.policy.is_empty()
        && unseen::unseen_use().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home;
    use crate::process::home::tests::alone;
    use crate::program::life;
    use crate::table::descriptors;
    use crate::table::untracked::{count, enter, receive, send};

    use crate::table::sock::{Phase, Sock};
    use core::sync::atomic::Ordering;
    use sidestep_device::untracked::{Direction, Stage};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// A connection that is untracked.
    fn connect() -> (TcpStream, i32) {
        assert!(home::current().is_some(), "an earlier connection has made it");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let stream = TcpStream::connect(server).unwrap();
        let fd = stream.as_raw_fd();
        note_fresh(fd);
        assert!(begin_client(fd, server.port()) && places::stage(fd) == Some(Stage::Untracked));
        (stream, fd)
    }

    fn close(stream: TcpStream) {
        drop(life::before_close(stream.as_raw_fd()));
        drop(stream);
    }

    fn carried(sock: &Sock) -> [u64; 4] {
        let counters = &sock.slot().unwrap().counters;
        [
            &counters.messages_sent,
            &counters.bytes_sent,
            &counters.messages_received,
            &counters.bytes_received,
        ]
        .map(|counter| counter.load(Ordering::Relaxed))
    }

    #[test]
    fn a_connection_of_fifteen_messages_never_has_an_object() {
        let _alone = alone();
        let (stream, fd) = connect();
        for _ in 0..15 {
            assert_eq!(send(fd, || 1), Some(1));
        }
        assert_eq!(receive(fd, libc::MSG_PEEK, || 9), Some(9), "does not count");
        assert_eq!(receive(fd, 0, || -1), Some(-1), "does not either");
        let untracked = places::place(fd).unwrap();
        assert_eq!(untracked.traffic().sent.messages, 15);
        assert!(descriptors::object(fd).is_none());
        close(stream);
        assert!(places::stage(fd).is_none() && !descriptors::is_ours(fd));
        assert!(untracked.look().1.is_some_and(|ended| ended.traffic.sent.messages == 15));
    }

    #[test]
    fn the_sixteenth_message_makes_one_that_goes_on_with_the_counts() {
        let _alone = alone();
        let (stream, fd) = connect();
        for _ in 0..15 {
            assert_eq!(receive(fd, 0, || 10), Some(10));
        }
        assert_eq!(send(fd, || 100), Some(100));
        assert_eq!(send(fd, || 100), None, "it has an object");
        let sock = descriptors::object(fd).unwrap();
        assert_eq!(carried(&sock), [1, 100, 15, 150]);
        assert!(sock.phase() == Phase::Candidate && sock.is_worth_moving());
        drop(sock);
        close(stream);
    }

    #[test]
    fn a_call_that_has_not_returned_keeps_it_where_it_is() {
        let _alone = alone();
        let (stream, fd) = connect();
        let (inside, _noted) = enter(fd).unwrap();
        let sock = descriptors::sock(fd).expect("grown up");
        assert!(sock.has_untracked_calls());
        count(fd, inside, Direction::Received, 7);
        assert!(!sock.has_untracked_calls());
        assert_eq!(carried(&sock), [0, 0, 1, 7]);
        drop(sock);
        close(stream);
    }

    #[test]
    fn what_is_asked_about_an_unconnected_socket_makes_an_object() {
        let _alone = alone();
        assert!(home::current().is_some());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        note_fresh(fd);
        assert!(descriptors::object(fd).is_none());
        assert!(descriptors::sock(fd).is_some_and(|sock| sock.phase() == Phase::Fresh));
        drop(life::before_close(fd));
    }
}
