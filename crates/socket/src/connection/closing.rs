//! How this end ends a connection: `shutdown`, and the close of its last descriptor.

use crate::Answer;
use crate::connection::ends;
use crate::connection::words::{self, OwnWords};
use crate::connection::{switch, turns, wait};
use crate::process::owner::Held;
use crate::table::descriptors::Use;
use crate::table::end::End;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use sidestep_device::state::flag;
use sidestep_device::sys;
use sidestep_proto::ends::{Closing, Output, Shutting, What};

/// The socket, for a program that ends a direction.
pub(crate) struct Program<'a> {
    end: &'a End<'a>,
    /// The send lock, while it is held.
    sending: Cell<Option<Held<'a>>>,
}

impl<'a> Program<'a> {
    const fn new(end: &'a End<'a>) -> Self {
        Self { end, sending: Cell::new(None) }
    }

    fn kernel_shutdown(&self, how: i32) {
        let _ = self.end.file().call(|fd| sys::shutdown(fd, how));
    }
}

impl Output for Program<'_> {
    fn lock(&self) -> bool {
        let sending = Held::enter(&self.end.slot.send_lock);
        let switched = self.end.slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0;
        let is_in_ring = switched || switch::send_into_ring(self.end);
        self.sending.set(Some(sending));
        is_in_ring
    }

    fn unlock(&self) {
        self.sending.set(None);
    }

    fn send_fin(&self, what: What) {
        let how = if what == What::Both { libc::SHUT_RDWR } else { libc::SHUT_WR };
        self.kernel_shutdown(how);
    }

    fn stop_reading(&self) {
        // Wakes every thread that sleeps in `recv`, `poll` or `epoll_wait` on it.
        self.kernel_shutdown(libc::SHUT_RD);
        sys::futex_wake(&self.end.slot.turn, i32::MAX);
    }

    fn drain_bells(&self) {
        wait::drain_bells(self.end);
    }
}

/// Whether the connection has ended and `getpeername` says `ENOTCONN`.
pub fn has_no_peer(sock: &Use, fd: i32) -> bool {
    let Some(end) = End::of(sock, fd) else { return false };
    wait::ask_kernel(&end);
    ends::state(&end).is_closed()
}

/// `shutdown`. `None`: let the kernel do it alone.
pub fn shutdown(sock: &Use, fd: i32, how: i32) -> Option<Answer> {
    let slot = sock.slot()?;
    let Some(end) = End::of(sock, fd) else {
        // Should the connection move, the 0 of the kernel is not the peer's end.
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            slot.flags.fetch_or(flag::READ_SHUT, Ordering::SeqCst);
        }
        return None;
    };
    let what = match how {
        libc::SHUT_RD => What::Input,
        libc::SHUT_WR => What::Output,
        libc::SHUT_RDWR => What::Both,
        _ => return Some(Err(libc::EINVAL)),
    };
    wait::ask_kernel(&end);
    ends::poll(&end);
    let (words, program) = (OwnWords::new(&end), Program::new(&end));
    let mut shutting = Shutting::begin(what);
    loop {
        match shutting {
            Shutting::Refused => return Some(Err(libc::ENOTCONN)),
            Shutting::Shut => break,
            _ => shutting = shutting.step(&words, &end, &program),
        }
    }
    Some(Ok(0))
}

/// The last descriptor of this process goes, and no call is under way. What TCP would do with unread bytes,
/// the record says; stale bells are taken so that the kernel can send FIN.
pub(crate) fn before_last_close(end: &End<'_>) {
    if end.slot.holders.load(Ordering::Acquire) > 1 {
        return;
    }
    let sock = end.sock;
    if sock.home().is_some_and(|home| home.is_under_way(sock.slot_index())) {
        return end.file().call(|fd| words::end_by_reset_unless_received(end, fd));
    }
    let by_ring = turns::comes_by_ring(end.slot);
    let blind = end.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    let leaves_unread =
        (by_ring && words::has_unread(end, 0)) || (!blind && switch::data_queued(end) > 0);
    let (words, program) = (OwnWords::new(end), Program::new(end));
    let mut next = Some(Closing::begin(leaves_unread));
    while let Some(closing) = next {
        next = closing.step(&words, &program);
    }
}
