//! What `poll` would say about a connection in shared memory.

use crate::connection::{ends, switch, turns, urgent, wait};
use crate::table::conn::Conn;
use crate::table::file::File;
use core::sync::atomic::Ordering;
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag};
use sidestep_proto::cursor;
use sidestep_proto::readiness::{State, mask};

const INPUT: u32 = mask::IN | mask::RDNORM;
const ROOM: u32 = mask::OUT | mask::WRNORM;

/// Bytes a receive would find now.
pub(crate) fn readable(slot: &Slot, conn: &Conn, file: File<'_>) -> usize {
    let in_ring = in_ring(conn);
    if slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        return in_ring - skipped(slot, conn, in_ring);
    }
    let in_tcp = switch::data_queued(slot, conn, file);
    if turns::comes_by_ring(slot) {
        return in_ring - skipped(slot, conn, in_ring) + in_tcp;
    }
    let left_out = usize::from(in_tcp > 0 && urgent::is_next_left_out(slot, file));
    let behind = if switch::peer_turn(slot, conn).is_some() { in_ring } else { 0 };
    in_tcp - left_out + behind
}

/// Bytes that `FIONREAD` counts: up to an urgent mark, if one lies ahead.
pub(crate) fn countable(slot: &Slot, conn: &Conn, file: File<'_>) -> usize {
    let in_ring = urgent::before_mark(slot, conn, in_ring(conn));
    if slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        return in_ring;
    }
    let in_queue = urgent::before_mark_in_tcp(slot, file);
    let in_tcp = switch::parts_of_queue(slot, conn, in_queue).data as usize;
    let is_all = in_tcp == switch::data_queued(slot, conn, file);
    match switch::peer_turn(slot, conn) {
        _ if turns::comes_by_ring(slot) => in_ring + in_tcp,
        Some(_) if is_all => in_tcp + in_ring,
        _ => in_tcp,
    }
}

/// Bytes that have ever arrived: what an edge-triggered loop is told of is a change
/// of this number.
pub(crate) fn arrived(slot: &Slot, conn: &Conn, file: File<'_>) -> u64 {
    let in_ring = conn.theirs.sending.producer.claim();
    let bells = slot.tcp_bells.load(Ordering::Relaxed);
    let taken = slot.tcp_consumed.load(Ordering::Relaxed).saturating_sub(bells);
    if slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        return in_ring + taken;
    }
    in_ring + taken + switch::data_queued(slot, conn, file) as u64
}

/// Bytes in the ring that were not read.
pub(super) fn in_ring(conn: &Conn) -> usize {
    let consumer = conn.mine.receiving.consumer.position();
    let claim = conn.theirs.sending.producer.claim();
    cursor::readable(consumer, claim, conn.incoming.len()).unwrap_or(1)
}

/// Bytes at the front of the ring that are not for the stream: a passed urgent byte.
fn skipped(slot: &Slot, conn: &Conn, in_ring: usize) -> usize {
    if !urgent::is_marked(conn) {
        return 0;
    }
    let consumer = conn.mine.receiving.consumer.position();
    urgent::cut(slot, conn, consumer, in_ring).0 as usize
}

/// Whether a receive is worth trying: there are bytes, or the end is near.
pub(crate) fn has_input(slot: &Slot, conn: &Conn, file: File<'_>) -> bool {
    if may_have_ended(slot, conn) {
        return true;
    }
    let consumer = conn.mine.receiving.consumer.position();
    let is_in_ring = || conn.theirs.sending.producer.position() != consumer;
    if slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0 {
        return is_in_ring();
    }
    match switch::peer_turn(slot, conn) {
        // It has to be followed before there is more.
        Some(_) if turns::comes_by_ring(slot) => true,
        Some(at) if slot.tcp_consumed.load(Ordering::Relaxed) >= at => true,
        None if turns::comes_by_ring(slot) => is_in_ring(),
        _ => switch::data_queued(slot, conn, file) > 0,
    }
}

/// Whether input has ended or may have: a receive finds out.
#[inline]
pub(super) fn may_have_ended(slot: &Slot, conn: &Conn) -> bool {
    const OVER: u32 = flag::PEER_GONE | flag::RESET | flag::READ_SHUT | flag::TCP_ENDED;
    let theirs = &conn.theirs.sending;
    slot.flags.load(Ordering::Relaxed) & OVER != 0
        || theirs.closes.load(Ordering::Relaxed) != slot.closes_seen.load(Ordering::Relaxed)
        || theirs.flags.load(Ordering::Relaxed) & (said::DONE | said::ABORT) != 0
}

/// The mask, right in the bits of `interest` and in those of an end. What nobody asks
/// for is not found out: before a direction has switched that takes a system call.
pub(crate) fn mask_of(slot: &Slot, conn: &Conn, file: File<'_>, interest: u32) -> u32 {
    wait::follow_hint(slot, conn, file);
    let end = ends::poll(slot, conn, file);
    let flags = slot.flags.load(Ordering::Acquire);
    let len = conn.outgoing.len();
    let state = State {
        readable: if interest & INPUT != 0 { readable(slot, conn, file) } else { 0 },
        low_water: low_water(slot, conn),
        window: if interest & ROOM != 0 { window(slot, conn, file) } else { 0 },
        window_threshold: cursor::writable_threshold(len),
        peer_done: end.peer_done,
        read_shut: flags & flag::READ_SHUT != 0,
        write_shut: flags & flag::WRITE_SHUT != 0,
        reset: end.reset,
        error_pending: end.error_pending,
        urgent: interest & mask::PRI != 0 && urgent::is_waiting(slot, conn, file),
    };
    state.mask()
}

/// `SO_RCVLOWAT`, but not more than a writer that waits for `POLLOUT` ever puts into
/// the ring: neither side would wake the other. (TCP reports a socket readable, too,
/// when its window is exhausted.)
pub(crate) fn low_water(slot: &Slot, conn: &Conn) -> usize {
    let len = conn.incoming.len();
    let wished = slot.low_water.load(Ordering::Relaxed) as usize;
    wished.min(len - cursor::writable_threshold(len))
}

/// Room for sending; before the switch, as the kernel says.
fn window(slot: &Slot, conn: &Conn, file: File<'_>) -> usize {
    let len = conn.outgoing.len();
    if slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED == 0 {
        let writable = file.poll_now(libc::POLLOUT).unwrap_or(mask::OUT) & mask::OUT != 0;
        return if writable { len } else { 0 };
    }
    let producer = conn.mine.sending.producer.position();
    let claim = conn.theirs.receiving.consumer.claim();
    cursor::window(producer, claim, len).unwrap_or(len)
}
