//! How this end ends a connection: `shutdown`, and the close of its last descriptor.

use crate::Answer;
use crate::connection::ends::{self, Tcp};
use crate::connection::words::{self, OwnWords};
use crate::connection::{switch, turns, wait};
use crate::process::owner::Held;
use crate::table::conn::Conn;
use crate::table::descriptors::Use;
use crate::table::file::File;
use crate::table::sock::Sock;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_proto::ends::{Closing, Output, Shutting, What};

/// The socket, for a program that ends a direction.
pub(crate) struct Program<'a> {
    sock: &'a Sock,
    slot: &'a Slot,
    conn: &'a Conn,
    file: File<'a>,
    /// The send lock, while it is held.
    sending: Cell<Option<Held<'a>>>,
}

impl<'a> Program<'a> {
    fn new(sock: &'a Sock, slot: &'a Slot, conn: &'a Conn, file: File<'a>) -> Self {
        Self { sock, slot, conn, file, sending: Cell::new(None) }
    }

    fn kernel_shutdown(&self, how: i32) {
        let _ = self.file.call(|fd| sys::shutdown(fd, how));
    }
}

impl Output for Program<'_> {
    fn lock(&self) -> bool {
        let sending = Held::enter(&self.slot.send_lock);
        let switched = self.slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0;
        let is_in_ring = switched
            || switch::send_into_ring(self.sock, self.slot, self.file, self.conn, &sending);
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
        // Wakes everybody who sleeps in `recv`, `poll` or `epoll_wait` on it.
        self.kernel_shutdown(libc::SHUT_RD);
        sys::futex_wake(&self.slot.turn, i32::MAX);
    }

    fn drain_bells(&self) {
        wait::drain_bells(self.slot, self.conn, self.file);
    }
}

/// Whether the connection has ended and `getpeername` says `ENOTCONN`.
pub fn has_no_peer(sock: &Use, fd: i32) -> bool {
    let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else { return false };
    let file = File::of(sock, fd);
    wait::ask_kernel(slot, &conn, file);
    ends::state(slot, &conn, file).is_closed()
}

/// `shutdown`. `None`: let the kernel do it alone.
pub fn shutdown(sock: &Use, fd: i32, how: i32) -> Option<Answer> {
    let slot = sock.slot()?;
    let Some(conn) = sock.conn() else {
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
    let file = File::of(sock, fd);
    wait::ask_kernel(slot, &conn, file);
    ends::poll(slot, &conn, file);
    let (words, tcp) = (OwnWords::new(slot, &conn), Tcp { slot, conn: &conn, file });
    let program = Program::new(sock, slot, &conn, file);
    let mut shutting = Shutting::begin(what);
    loop {
        match shutting {
            Shutting::Refused => return Some(Err(libc::ENOTCONN)),
            Shutting::Shut => break,
            _ => shutting = shutting.step(&words, &tcp, &program),
        }
    }
    Some(Ok(0))
}

/// The last descriptor of this process goes, and no call is under way. What TCP would do with unread bytes,
/// the record says; stale bells are taken so that the kernel can send FIN.
pub(crate) fn before_last_close(sock: &Sock, conn: &Conn, file: File<'_>) {
    let Some(slot) = sock.slot() else { return };
    if slot.holders.load(Ordering::Acquire) > 1 {
        return;
    }
    if sock.home().is_some_and(|home| home.is_under_way(sock.slot_index())) {
        return file.call(|fd| words::end_by_reset_unless_received(slot, conn, fd));
    }
    let by_ring = turns::comes_by_ring(slot);
    let blind = slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    let leaves_unread = (by_ring && words::has_unread(conn, 0))
        || (!blind && switch::data_queued(slot, conn, file) > 0);
    let (words, program) = (OwnWords::new(slot, conn), Program::new(sock, slot, conn, file));
    let mut next = Some(Closing::begin(leaves_unread));
    while let Some(closing) = next {
        next = closing.step(&words, &program);
    }
}
