//! Untracked connections: nothing is decided about them, and nothing is kept but a few words.
//!
//! A program that opens a connection for each request is to pay no more for us than a few
//! instructions, and neither a slot nor a socket object fills its caches. So all that is known
//! is in the place of the descriptor, a cache line of the state ([`sidestep_device::untracked`]),
//! where the end is counted as well.
//!
//! ```text
//!   socket     fresh ──┐
//!   connect, accept    ├──> untracked ── close: counted, forgotten
//!                      │      │
//!                      └──────┴── 16 messages, 64 KiB, or a call that needs more than
//!                                 send, receive and close: an object and a slot
//! ```
//!
//! Only connections that would be left alone at first anyway begin so: with promotion `lazy`,
//! without rules that would have to be asked, without an agent that wants to know of them. An
//! event loop may wait for one as well: the kernel reports it, as the program has asked, and
//! what it has asked is kept for the object ([`crate::polling::epoll`]).

use crate::process::pool::SharedLock;
use crate::table::plain::Noted;
use crate::table::{candidate, descriptors, places};
use sidestep_device::lock::Lock;
use sidestep_device::untracked::{Direction, Inside};
use sidestep_proto::autosmc;

const _: () = assert!(sidestep_device::untracked::MESSAGES == autosmc::MESSAGES);

const _: () = assert!(sidestep_device::untracked::BYTES == autosmc::BYTES);

/// Makes the program's own call on an untracked connection, if the place of the descriptor says that it is
/// one. `None`: it is none, or not any more.
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
pub(crate) fn enter(fd: i32) -> Option<(Inside<'static>, Noted)> {
    let place = places::place(fd)?;
    let noted = Noted::before_entering(fd);
    Some((place.enter()?, noted))
}

#[inline]
pub(crate) fn count(fd: i32, inside: Inside<'_>, direction: Direction, moved: isize) {
    if moved > 0 && !inside.count(direction, moved as u64) {
        count_grown(fd, direction, moved);
    }
}

/// One message too many: from now on the connection has an object.
#[cold]
fn count_grown(fd: i32, direction: Direction, moved: isize) {
    if let Some(sock) = descriptors::sock(fd) {
        candidate::count_plain(&sock, direction == Direction::Sent, moved);
    }
}

/// Taken by a thread that makes an object, each for some of the descriptors.
static GROWING: [Growing; 16] = [const { Growing(SharedLock::new()) }; 16];

/// Neighbours share no cache line.
#[repr(align(64))]
struct Growing(SharedLock);

/// What is done to a socket without an object under it happens before it gets one, or not.
pub(crate) fn growing(fd: i32) -> &'static Lock {
    GROWING[fd as usize % GROWING.len()].0.get()
}

/// In the child of a fork: the locks were those of the parent's threads. What they began while
/// it forked is in the parent's places.
pub(crate) fn reset_locks() {
    GROWING.iter().for_each(|growing| growing.0.get().reset());
}
