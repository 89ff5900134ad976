//! Urgent data: one byte that the peer has marked, as Linux does it (`tcp(7)`).
//!
//! The sender stores the mark (1 + the ring position of the byte) before it
//! publishes the byte, so that no reader passes the byte unmarked, and rings an
//! urgent bell, by which the kernel raises SIGURG. A new mark replaces the old one.
//!
//! ```text
//!   consumer          mark                 producer
//!      | bytes before  | ! | bytes behind     |
//!      a read stops ──>|   a read from here leaves the byte out
//! ```
//!
//! The receiver notes which mark it has seen last ([`Slot::urgent_seen`]) and whether
//! its byte was taken out of band.
//!
//! Before the switch urgent bytes travel by TCP. The kernel is told to keep them in
//! line then, whatever the program wishes, because its counters, by which the ledger
//! reads, leave out what lies behind a mark otherwise.

use crate::connection::ledger;
use crate::table::conn::Conn;
use crate::table::end::End;
use crate::table::file::File;
use core::sync::atomic::Ordering;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_proto::readiness::mask;

/// `SIOCATMARK` of `asm-generic/sockios.h`.
const SIOCATMARK: u64 = 0x8905;

/// Whether the program reads urgent bytes in line.
pub(crate) fn is_in_line(slot: &Slot) -> bool {
    slot.flags.load(Ordering::Relaxed) & flag::OOB_INLINE != 0
}

/// The position of the marked byte, if it was not passed: a claim of the peer, at or
/// behind `consumer` and perhaps not there yet.
pub(crate) fn mark(conn: &Conn, consumer: u64) -> Option<u64> {
    // Acquire: pairs with the sender's store before it published the byte.
    let at = conn.theirs.sending.urgent.load(Ordering::Acquire).checked_sub(1)?;
    (at >= consumer).then_some(at)
}

/// How a read from `consumer` goes around the mark: (bytes to skip, bytes to read of
/// the `readable`).
#[cold]
pub(crate) fn cut(conn: &Conn, consumer: u64, readable: usize) -> (u64, usize) {
    let urgent = conn.theirs.sending.urgent.load(Ordering::Acquire);
    let in_line = is_in_line(conn.slot);
    if is_replaced(conn.slot, urgent, consumer) && readable > 0 {
        let (skip, rest) = around(urgent, consumer + 1, readable - 1, in_line);
        return (1 + skip, rest);
    }
    around(urgent, consumer, readable, in_line)
}

/// The same for `splice`, which takes no marked byte, whether it was received or is read in line
/// (`tcp_read_sock`): (bytes to skip, bytes to move).
pub(crate) fn cut_for_splice(conn: &Conn, consumer: u64, readable: usize) -> (u64, usize) {
    let urgent = conn.theirs.sending.urgent.load(Ordering::Acquire);
    let skip = u64::from(is_replaced(conn.slot, urgent, consumer) && readable > 0);
    let (from, readable) = (consumer + skip, readable - skip as usize);
    let before = urgent.checked_sub(1).and_then(|at| at.checked_sub(from));
    (skip, before.map_or(readable, |before| readable.min(before as usize)))
}

/// A new mark makes the old byte an ordinary one, except for a reader that has stopped
/// right before it: Linux takes the byte away (`tcp_check_urg`).
fn is_replaced(slot: &Slot, urgent: u64, consumer: u64) -> bool {
    let seen = slot.urgent_seen.load(Ordering::Relaxed);
    urgent != seen && seen == consumer + 1 && !is_in_line(slot)
}

/// A read has come to know the mark. Under the receive lock.
#[cold]
pub(crate) fn note_seen(conn: &Conn) {
    let urgent = conn.theirs.sending.urgent.load(Ordering::Acquire);
    if conn.slot.urgent_seen.swap(urgent, Ordering::Relaxed) != urgent {
        conn.slot.flags.fetch_and(!flag::URGENT_TAKEN, Ordering::Relaxed);
    }
}

fn around(urgent: u64, consumer: u64, readable: usize, in_line: bool) -> (u64, usize) {
    match urgent.wrapping_sub(1).checked_sub(consumer) {
        Some(0) if !in_line && readable > 0 => (1, readable - 1),
        Some(before @ 1..) if before < readable as u64 => (0, before as usize),
        _ => (0, readable),
    }
}

/// Whether `poll` shows an urgent byte, which may still be in the TCP queue.
pub(super) fn is_waiting(end: &End<'_>) -> bool {
    if end.is_marked() || comes_by_ring_alone(end) {
        return waiting(end).is_some();
    }
    ledger::queued(end.file()) > 0
        && end.file().poll_now(libc::POLLPRI).is_ok_and(|said| said & mask::PRI != 0)
}

/// Whether no byte of the program comes by TCP: an urgent one may be there before the turn that leads to it was
/// followed.
pub(super) fn comes_by_ring_alone(conn: &Conn) -> bool {
    conn.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0
}

/// The position of the urgent byte in the ring that was neither taken nor passed.
pub(crate) fn waiting(conn: &Conn) -> Option<u64> {
    let at = mark(conn, conn.mine.receiving.consumer.position())?;
    let arrived = conn.theirs.sending.producer.claim() > at;
    let taken = conn.slot.urgent_seen.load(Ordering::Relaxed) == at + 1
        && conn.slot.flags.load(Ordering::Relaxed) & flag::URGENT_TAKEN != 0;
    (arrived && !taken).then_some(at)
}

/// The byte at the mark was read out of band. Under the receive lock.
pub(super) fn note_taken(conn: &Conn, at: u64) {
    let consumer = &conn.mine.receiving.consumer;
    let position = consumer.position();
    if is_replaced(conn.slot, at + 1, position) {
        consumer.publish(position, position + 1);
    }
    conn.slot.urgent_seen.store(at + 1, Ordering::Relaxed);
    conn.slot.flags.fetch_or(flag::URGENT_TAKEN, Ordering::Relaxed);
}

/// The next byte to read is the marked one.
pub(crate) fn is_at_mark(conn: &Conn) -> bool {
    let next = next(conn);
    mark(conn, next) == Some(next)
}

/// Where the reader stands: behind a byte that a new mark has made one of no stream.
fn next(conn: &Conn) -> u64 {
    let consumer = conn.mine.receiving.consumer.position();
    let urgent = conn.theirs.sending.urgent.load(Ordering::Acquire);
    consumer + u64::from(is_replaced(conn.slot, urgent, consumer))
}

/// How many of `readable` bytes of the ring `FIONREAD` counts: those before the mark.
pub(super) fn before_mark(conn: &Conn, readable: usize) -> usize {
    let next = next(conn);
    let passed = next.saturating_sub(conn.mine.receiving.consumer.position()) as usize;
    let readable = readable.saturating_sub(passed);
    match mark(conn, next) {
        Some(at) if !is_in_line(conn.slot) => readable.min((at - next) as usize),
        _ => readable,
    }
}

/// The same for the TCP queue, where a peek stops at the mark.
pub(super) fn before_mark_in_tcp(end: &End<'_>) -> usize {
    let queued = ledger::queued(end.file());
    if is_in_line(end.slot) {
        return queued;
    }
    // A look into an empty queue would take the error of a connection that has ended.
    if queued == 0 || is_at_mark_in_tcp(end) {
        return 0;
    }
    end.file().call(|fd| Ok::<_, sys::Errno>(sys::count_queued(fd))).unwrap_or(0)
}

/// The next byte in TCP is an urgent one that is not for the stream.
pub(super) fn is_at_mark_in_tcp(end: &End<'_>) -> bool {
    !is_in_line(end.slot) && is_any_mark_in_tcp(end)
}

/// The same, also where the program reads urgent bytes in line. What the kernel calls urgent may be a bell.
pub(super) fn is_any_mark_in_tcp(end: &End<'_>) -> bool {
    end.file().call(|fd| sys::ioctl_int(fd, SIOCATMARK)) == Ok(1)
}

/// A read has stopped here: notes whether it was before an urgent byte in TCP. Under
/// the receive lock.
pub(crate) fn note_stop_in_tcp(end: &End<'_>) {
    if is_at_mark_in_tcp(end) {
        let consumed = end.slot.tcp_consumed.load(Ordering::Relaxed);
        end.slot.tcp_mark.store(consumed + 1, Ordering::Relaxed);
    }
}

/// The next byte in TCP is an urgent one, or was before a new mark came: see [`cut`].
pub(crate) fn is_next_left_out(end: &End<'_>) -> bool {
    let consumed = end.slot.tcp_consumed.load(Ordering::Relaxed);
    let was_marked = end.slot.tcp_mark.load(Ordering::Relaxed) == consumed + 1;
    (was_marked && !is_in_line(end.slot)) || is_at_mark_in_tcp(end)
}

/// Tells the kernel to keep urgent bytes in line while we read by the ledger.
pub(super) fn begin_in_line(end: &End<'_>) {
    let wish = end.file().option(libc::SOL_SOCKET, libc::SO_OOBINLINE).unwrap_or(0);
    note_wish(end.slot, wish);
    keep_in_line(end.file(), true);
}

/// Gives the option back its value.
pub(super) fn end_in_line(end: &End<'_>) {
    keep_in_line(end.file(), is_in_line(end.slot));
}

/// What the program wishes.
pub(crate) fn note_wish(slot: &Slot, in_line: i32) {
    if in_line != 0 {
        slot.flags.fetch_or(flag::OOB_INLINE, Ordering::Relaxed);
    } else {
        slot.flags.fetch_and(!flag::OOB_INLINE, Ordering::Relaxed);
    }
}

pub(crate) fn keep_in_line(file: File<'_>, on: bool) {
    let _ = file.set_option(libc::SOL_SOCKET, libc::SO_OOBINLINE, i32::from(on));
}

/// Reads an urgent byte that is still in the TCP queue, without taking it out of the
/// queue: reading passes it. Under the receive lock.
pub(super) fn take_from_tcp(file: File<'_>, peek: bool) -> Result<u8, sys::Errno> {
    let mut byte = [0u8];
    let peek = if peek { libc::MSG_PEEK } else { 0 };
    recv_out_of_line(file, &mut byte, libc::MSG_OOB | peek).map(|_| byte[0])
}

/// Peeks at what lies behind an urgent byte that is next in the TCP queue; 0: the end. The kernel looks past the byte
/// while it keeps it out of the stream. Under the receive lock.
pub(super) fn peek_behind_in_tcp(file: File<'_>) -> Result<usize, sys::Errno> {
    recv_out_of_line(file, &mut [0u8], libc::MSG_PEEK)
}

/// Receives at once, while the kernel keeps urgent bytes out of the stream.
fn recv_out_of_line(file: File<'_>, byte: &mut [u8], flags: i32) -> sys::Result {
    keep_in_line(file, false);
    let received = file.recv(byte, flags | libc::MSG_DONTWAIT);
    keep_in_line(file, true);
    received
}
