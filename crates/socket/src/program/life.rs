//! The life of a socket, from the call that makes it to the one that closes its last descriptor.

use crate::Answer;
use crate::connection::{closing, kept_options};
use crate::polling::epoll;
use crate::process::home::Home;
use crate::process::{loan, tcp};
use crate::program::{object, tracking};
use crate::rendezvous::listeners;
use crate::table::account;
use crate::table::conn::Conn;
use crate::table::descriptors::{self, Entry, Use};
use crate::table::end::End;
use crate::table::file;
use crate::table::session::Session;
use crate::table::set::Handle;
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use sidestep_device::state::flag;
use sidestep_device::sys;

/// Makes a socket object for a TCP socket that was not seen being made: it was inherited or
/// received. `None`: it is something else, or there is no memory.
pub fn register_unseen(fd: i32) -> Option<&'static Sock> {
    let option = |name| sys::socket_option::<i32>(fd, libc::SOL_SOCKET, name).ok();
    let is_one =
        tcp::is_tcp(option(libc::SO_DOMAIN)?, option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?);
    let flags = Some(fd).filter(|_| is_one).and_then(|fd| sys::fcntl(fd, libc::F_GETFL, 0).ok())?;
    register(fd, flags as i32 & libc::O_NONBLOCK != 0, false)
}

/// Makes a socket object for a new descriptor of the program.
pub fn register(fd: i32, nonblocking: bool, is_server: bool) -> Option<&'static Sock> {
    let has_place = descriptors::has_place(fd);
    let sock =
        Some(()).filter(|()| has_place).and_then(|()| object::new(nonblocking, is_server))?;
    enter_descriptor(fd, sock);
    Some(sock)
}

/// libc has handed out a number: whatever the table says about it is out of date.
pub fn forget_number(fd: i32) {
    if !loan::is_borrowed_memory() {
        // The number is another file's now: -1 keeps our hands off it.
        descriptors::forget_entry(descriptors::remove(fd), -1);
    }
}

/// Before the real `close` (or `dup2` over it): takes the descriptor out of the
/// table. The returned guard finishes after the real call.
pub fn before_close(fd: i32) -> Option<Closing> {
    if !descriptors::is_ours(fd) || loan::is_borrowed_memory() {
        return None;
    }
    // The word of an untracked one stays.
    if descriptors::is_untracked(fd) && !tracking::end(fd) {
        return None;
    }
    let before = descriptors::note_closed_here(fd);
    match descriptors::begin_closing(fd) {
        // While it has descriptors it can be entered.
        Entry::Sock(sock) if sock.enter() => {
            let closing = Closing { what: Closed::Sock(sock), fd, before };
            file::before_number_goes(sock, fd);
            sock.drop_descriptor(fd);
            return Some(closing);
        }
        Entry::Set(set) => {
            let closing = Closing { what: Closed::Set(set), fd, before };
            file::before_number_of_set_goes(set, fd);
            return Some(closing);
        }
        Entry::Nothing | Entry::Untracked(_) | Entry::Sock(_) => {}
    }
    let _ = descriptors::note_closed_here(before);
    None
}

/// Before the real `dup2` puts `old` over `new`: the same, and calls that begin now with `new` begin
/// afterwards, whatever it means now, when it is to mean a socket of ours.
pub fn before_put_over(old: i32, new: i32) -> Option<Closing> {
    if !descriptors::is_ours(old) || loan::is_borrowed_memory() {
        return before_close(new);
    }
    // Another thread that closes it comes first, and leaves nothing of ours.
    const TRIES: usize = 2;
    (0..TRIES).find_map(|_| hold(new).or_else(|| before_close(new)))
}

/// Keeps calls from beginning with a number that leads to no object.
pub(crate) fn hold(fd: i32) -> Option<Closing> {
    let before = descriptors::note_closed_here(fd);
    let Some(was_untracked) = descriptors::hold(fd) else {
        let _ = descriptors::note_closed_here(before);
        return None;
    };
    if was_untracked {
        // An object that is being made finds no place in the table.
        tracking::end(fd);
    }
    Some(Closing { what: Closed::Nothing, fd, before })
}

/// Keeps a socket or an epoll set, and its number in the table as one that is being closed, until
/// the kernel has closed its descriptor.
pub struct Closing {
    what: Closed,
    fd: i32,
    /// Which descriptor this thread was closing before: a handler has interrupted it.
    before: i32,
}

pub(crate) enum Closed {
    /// What has no object.
    Nothing,
    Sock(&'static Sock),
    Set(&'static Handle),
}

impl Drop for Closing {
    fn drop(&mut self) {
        let word = match self.what {
            Closed::Nothing => 0,
            Closed::Sock(sock) => descriptors::word_of(sock),
            Closed::Set(set) => descriptors::word_of_set(set),
        };
        descriptors::end_closing(self.fd, word);
        let _ = descriptors::note_closed_here(self.before);
        match self.what {
            Closed::Nothing => {}
            Closed::Sock(sock) => {
                if sock.descriptors.load(Ordering::Acquire) == 0 && !sock.naming.has_copy() {
                    object::tell_of_close(sock);
                }
                sock.leave();
            }
            Closed::Set(set) => set.drop_descriptor(),
        }
    }
}

/// `dup`: both descriptors mean the same socket.
pub fn duplicate(old: i32, new: i32) {
    let concerns_us = descriptors::is_ours(old) || descriptors::is_ours(new);
    if old == new || !concerns_us || loan::is_borrowed_memory() {
        return;
    }
    if let Some(sock) = descriptors::sock(old) {
        descriptors::note_highest(new);
        descriptors::forget_entry(descriptors::insert_sock(new, sock.sock()), -1);
    } else if let Some(set) = descriptors::set(old) {
        descriptors::forget_entry(descriptors::insert_set(new, set), -1);
    } else {
        descriptors::forget_entry(descriptors::remove(new), -1);
    }
}

/// Makes a socket object for a connection in shared memory that another process of our
/// end has begun, and that this one holds from now on. `None`: no memory, or the slot is
/// another connection's by now.
pub(crate) fn receive(home: &'static Home, index: usize, conn: Conn) -> Option<&'static Sock> {
    let slot = conn.slot;
    let nonblocking = slot.flags.load(Ordering::Relaxed) & flag::NONBLOCKING != 0;
    let sock = object::new(nonblocking, slot.is_server.load(Ordering::Relaxed) != 0)?;
    if home.is_current() && !home.take_back(index) {
        sock.leave();
        return None;
    }
    slot.holders.fetch_add(1, Ordering::SeqCst);
    home.note_received(index, conn.group);
    sock.take_up(home, index);
    let _ = sock.move_to(conn);
    Some(sock)
}

/// Enters a descriptor that was found to be one of this socket's.
pub(super) fn enter_descriptor(fd: i32, sock: &'static Sock) {
    descriptors::note_highest(fd);
    descriptors::forget_entry(descriptors::insert_sock(fd, sock), -1);
}

/// The kernel has made a socket new (`connect` to nowhere): its descriptors stand for
/// a new object from now on, and the old one ends as by `close`. Calls of other
/// threads that are under way finish with the old one.
pub fn start_anew(old: &Use, fd: i32) {
    let old = old.sock();
    let new = object::new(old.was_made_nonblocking(), false);
    if let Some(new) = new {
        new.inherit(old);
    }
    replace(old, new, fd);
}

/// An object for what the descriptors of another one will mean: a connection that begins now, by
/// the gateway if it has a session.
pub(super) fn renewed(old: &Sock, fd: i32, session: Option<Session>) -> Option<&'static Sock> {
    let new = object::new(tcp::is_nonblocking(fd), false)?;
    new.inherit(old);
    if let Some(session) = session {
        new.set_session(session);
    }
    Some(new)
}

/// The connection of a new object begins, and its descriptors are another one's so far.
pub(super) fn succeed(old: &'static Sock, new: Option<&'static Sock>, fd: i32) {
    replace(old, new, fd);
    if let Some(new) = new {
        new.set_phase(Phase::Candidate);
        begin(new, fd);
        if let Some(session) = new.session()
            && let (Some(local), Some(peer)) = (session.local.address(), session.peer.address())
        {
            new.note_addresses(local, peer);
            account::handed_over(new, &session);
        }
    }
}

/// `connect` or `accept` has done its work: gives the socket its slot.
pub fn begin(sock: &'static Sock, fd: i32) {
    if sock.slot().is_none() {
        listeners::follow_settings();
        sock.begin(fd);
    }
}

/// Puts an open file under all descriptors of a socket, of which this is one.
pub(super) fn put_under(sock: &Sock, fd: i32, file: i32) {
    each_number(sock, fd, |number| {
        let is_kept = sys::fcntl(number, libc::F_GETFD, 0) == Ok(0);
        let _ = sys::dup_onto(file, number, !is_kept);
    });
}

/// The descriptors of one object, and its places in epoll sets, are another's from now on.
pub(crate) fn replace(old: &'static Sock, new: Option<&'static Sock>, fd: i32) {
    if let Some(new) = new {
        epoll::hand_back(old, new);
    }
    each_number(old, fd, |number| {
        // Without memory for a new object the socket is the kernel's alone.
        let entry = match new {
            Some(new) => descriptors::insert_sock(number, new),
            None => descriptors::remove(number),
        };
        descriptors::forget_entry(entry, -1);
    });
}

/// Calls `f` with every descriptor of a socket, of which `fd` is one. It mostly has no other, and
/// the table is not searched.
fn each_number(sock: &Sock, fd: i32, mut f: impl FnMut(i32)) {
    if sock.descriptors.load(Ordering::Relaxed) == 1 && descriptors::leads_to(fd, sock) {
        return f(fd);
    }
    descriptors::for_each_sock(|number, other| {
        if core::ptr::eq(sock, other) {
            f(number);
        }
    });
}

/// A listener that this library has not seen being made (inherited, received). False: it is
/// not one of TCP.
pub fn recognise_listener(fd: i32) -> bool {
    let Some(sock) = register_unseen(fd) else { return false };
    sock.set_phase(Phase::Listener);
    listeners::mark(sock, fd);
    true
}

/// `shutdown`. `None`: let the kernel do it alone.
pub fn shutdown(sock: &Use, fd: i32, how: i32) -> Option<Answer> {
    let answer = closing::shutdown(sock, fd, how)?;
    // On a connection that is over as well (`inet_shutdown`).
    if matches!(answer, Ok(_) | Err(libc::ENOTCONN)) {
        epoll::note_edge(sock);
    }
    Some(answer)
}

/// After `connect` to nowhere (`AF_UNSPEC`): the socket is as new, with the options that the program has given it.
pub fn after_disconnect(sock: &Use, fd: i32, had_ended: bool) {
    if matches!(sock.phase(), Phase::Fresh | Phase::Listener) {
        return;
    }
    if let Some(end) = End::of(sock, fd) {
        kept_options::give_options_back(&end);
        if had_ended {
            // The kernel's connection was open still, so it reports a reset that the
            // program's was beyond.
            let _ = end.file().option::<i32>(libc::SOL_SOCKET, libc::SO_ERROR);
        }
    }
    start_anew(sock, fd);
}
