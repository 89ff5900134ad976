//! Young connections: nothing is decided about them, and nothing is kept but a few words.
//!
//! A program that opens a connection for each request is to pay no more for us than a few
//! instructions, and neither a slot nor a socket object fills its caches. So all that is known
//! is in the place of the descriptor, a cache line of the state ([`sidestep_device::young`]),
//! where the end is counted as well.
//!
//! ```text
//!   socket     fresh ──┐
//!   connect, accept    ├──> young ── close: counted, forgotten
//!                      │      │
//!                      └──────┴── 16 messages, 64 KiB, or a call that needs more than
//!                                 send, receive and close: an object and a slot
//! ```
//!
//! Only connections that would be left alone at first anyway begin so: with promotion `lazy`,
//! without rules that would have to be asked, without an agent that wants to know of them. An
//! event loop may wait for one as well: the kernel reports it, as the program has asked, and
//! what it has asked is kept for the object ([`crate::polling::epoll`]).

use crate::polling::epoll;
use crate::process::home;
use crate::process::options::Promotion;
use crate::process::pool::{Held, SharedLock};
use crate::process::reload;
use crate::rendezvous::tcp_option;
use crate::table::descriptors;
use crate::table::file;
use crate::table::plain::Noted;
use crate::table::sock::{self, Phase, Sock};
use sidestep_device::lock::Lock;
use sidestep_device::sys;
use sidestep_device::young::{About, Direction, End, Inside, Stage, Young};
use sidestep_proto::autosmc;

const _: () = assert!(sidestep_device::young::MESSAGES == autosmc::MESSAGES);
const _: () = assert!(sidestep_device::young::BYTES == autosmc::BYTES);

/// The place of a descriptor.
#[inline]
fn place(fd: i32) -> Option<&'static Young> {
    home::existing()?.state.young(fd)
}

/// What the place of a descriptor says.
#[inline]
pub(crate) fn stage(fd: i32) -> Option<Stage> {
    place(fd)?.stage()
}

/// A socket was made that is not connected. Not by the child of a `vfork`, whose number may be
/// another socket's in this table.
pub fn note_fresh(fd: i32) {
    if home::is_borrowed_memory() {
        return;
    }
    // The first connection of a process makes its state; what comes before has an object.
    match place(fd) {
        Some(place) => {
            place.begin_fresh();
            sock::forget_entry(descriptors::insert_bare(fd), -1);
        }
        None => _ = sock::register(fd, false, false),
    }
}

/// Whether a socket may connect without an object: it has none, and no agent wants to know of
/// it before.
#[must_use]
pub fn may_connect(fd: i32) -> bool {
    is_fresh(fd) && tcp_option::is_absent()
}

fn is_fresh(fd: i32) -> bool {
    descriptors::is_bare(fd) && stage(fd) == Some(Stage::Fresh)
}

/// A socket was connected to a server at this port. False: it has, or needs, an object.
#[must_use]
pub fn begin_client(fd: i32, server_port: u16) -> bool {
    is_fresh(fd) && begin(fd, About { is_server: false, server_port })
}

/// A connection was accepted from a listener of ours, under this number if that still leads to it. False: it needs an object.
#[must_use]
pub fn begin_server(fd: i32, known: Option<&Sock>, listener: i32) -> bool {
    let Some(known) = known else { return false };
    let port = known.port_without_wishes();
    let is_settled = known.is_marked() && descriptors::leads_to(listener, known);
    port.filter(|_| is_settled)
        .is_some_and(|server_port| begin(fd, About { is_server: true, server_port }))
}

fn begin(fd: i32, about: About) -> bool {
    reload::look();
    let Some(process) = home::current().filter(|_| may_be_young()) else { return false };
    if !process.state.young(fd).is_some_and(|place| place.open(about)) {
        return false;
    }
    process.note_young(fd);
    sock::forget_entry(descriptors::insert_bare(fd), -1);
    true
}

fn may_be_young() -> bool {
    let options = home::options();
    options.smc
        && options.promotion == Promotion::Lazy
        && options.policy.is_empty()
        && sock::unseen_use().is_none()
}

/// Makes the program's own call on a young connection. `None`: it is none, or not any more.
#[inline]
pub fn send(fd: i32, plain: impl Fn() -> isize) -> Option<isize> {
    let (inside, _noted) = enter(fd)?;
    let n = plain();
    count(fd, inside, Direction::Sent, n);
    Some(n)
}

/// The same.
#[inline]
pub fn receive(fd: i32, flags: i32, plain: impl Fn() -> isize) -> Option<isize> {
    let (inside, _noted) = enter(fd)?;
    let n = plain();
    if flags & libc::MSG_PEEK == 0 {
        count(fd, inside, Direction::Received, n);
    }
    Some(n)
}

#[inline]
fn enter(fd: i32) -> Option<(Inside<'static>, Noted)> {
    if !descriptors::is_bare(fd) {
        return None;
    }
    let place = place(fd)?;
    let noted = Noted::before_entering(fd);
    Some((place.enter()?, noted))
}

#[inline]
fn count(fd: i32, inside: Inside<'_>, direction: Direction, moved: isize) {
    if moved > 0 && !inside.count(direction, moved as u64) {
        count_grown(fd, direction, moved);
    }
}

/// One message too many: from now on the connection has an object.
#[cold]
fn count_grown(fd: i32, direction: Direction, moved: isize) {
    if let Some(sock) = descriptors::sock(fd) {
        sock::count_plain(&sock, direction == Direction::Sent, moved);
    }
}

/// Taken by whoever makes an object, each for some of the descriptors.
static GROWING: [Growing; 16] = [const { Growing(SharedLock::new()) }; 16];

/// Neighbours share no cache line.
#[repr(align(64))]
struct Growing(SharedLock);

/// What is done to a socket without an object under it happens before it gets one, or not.
pub(crate) fn growing(fd: i32) -> &'static Lock {
    GROWING[fd as usize % GROWING.len()].0.get()
}

/// Makes the object of a socket that has none. In the child of a `vfork` it has none for the
/// time being: the table is the parent's, who has had all of them made before.
pub(crate) fn grow_up(fd: i32) {
    let growing = Held::enter(growing(fd));
    // A handler has interrupted whoever makes one: its call is one by TCP.
    if !growing.is_outermost() || home::is_borrowed_memory() {
        return;
    }
    if descriptors::is_bare(fd) {
        grow(fd);
    }
}

fn grow(fd: i32) {
    let Some(place) = place(fd) else { return };
    // Nobody ends a connection from here on, or it has ended.
    let about = place.grow();
    if about.is_none() && place.stage() != Some(Stage::Fresh) {
        return;
    }
    if let Some(sock) = Sock::grown(fd, about) {
        if about.is_some() {
            sock.set_phase(Phase::Candidate);
            sock.begin_with(fd, Some(place));
        }
        epoll::take_over_watch(fd, sock);
        if !descriptors::grow_up(fd, sock) {
            epoll::forget_sock(sock);
            sock.leave();
        }
    }
    // Without a slot, or without memory for an object, nobody has asked what it has carried.
    let _ = place.take();
    place.clear();
}

/// All sockets without an object get one: this process is about to share them.
pub(crate) fn grow_all() {
    descriptors::for_each_bare(grow_up);
}

/// What the place of a descriptor says has ended. True: there is an object instead, as another
/// thread's call has just made it.
pub(crate) fn end(fd: i32) -> bool {
    let (Some(process), Some(place)) = (home::existing(), place(fd)) else { return false };
    epoll::forget_watch(fd);
    match place.end(sys::coarse_seconds()) {
        End::Nothing => false,
        End::Counts(ending) => {
            crate::log!(Info, "connection ends on TCP before it was decided");
            process.count_young(ending);
            if place.is_in_use() {
                file::before_number_of_young_goes(fd);
            }
            false
        }
        End::Grows => {
            drop(Held::enter(growing(fd)));
            !descriptors::is_bare(fd)
        }
    }
}

/// In the child of a fork: the locks were those of the parent's threads. What they began while
/// it forked is in the parent's places.
pub(crate) fn reset_locks() {
    GROWING.iter().for_each(|growing| growing.0.get().reset());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::tests::alone;
    use core::sync::atomic::Ordering;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// A connection that is young.
    fn connect() -> (TcpStream, i32) {
        assert!(home::current().is_some(), "an earlier connection has made it");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let stream = TcpStream::connect(server).unwrap();
        let fd = stream.as_raw_fd();
        note_fresh(fd);
        assert!(begin_client(fd, server.port()) && stage(fd) == Some(Stage::Young));
        (stream, fd)
    }

    fn close(stream: TcpStream) {
        drop(sock::before_close(stream.as_raw_fd()));
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
        let young = place(fd).unwrap();
        assert_eq!(young.traffic().sent.messages, 15);
        assert!(descriptors::object(fd).is_none());
        close(stream);
        assert!(stage(fd).is_none() && !descriptors::is_ours(fd));
        assert!(young.look().1.is_some_and(|ended| ended.traffic.sent.messages == 15));
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
        assert!(sock.has_young_calls());
        count(fd, inside, Direction::Received, 7);
        assert!(!sock.has_young_calls());
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
        drop(sock::before_close(fd));
    }
}
