//! What `poll` would say about a connection in shared memory.

use crate::connection::{ends, switch, turns, urgent, wait};
use crate::table::conn::Conn;
use crate::table::end::End;
use core::sync::atomic::Ordering;
use sidestep_device::slab::flag as said;
use sidestep_device::state::flag;
use sidestep_proto::cursor;
use sidestep_proto::readiness::{State, mask};

const INPUT: u32 = mask::IN | mask::RDNORM;
const ROOM: u32 = mask::OUT | mask::WRNORM;

/// Bytes a receive would find now.
pub(crate) fn readable(end: &End<'_>) -> usize {
    let in_ring = in_ring(end);
    if end.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        return in_ring - skipped(end, in_ring);
    }
    let in_tcp = switch::data_queued(end);
    let left_out =
        |is_next: bool| usize::from(is_next && in_tcp > 0 && urgent::is_next_left_out(end));
    if turns::comes_by_ring(end.slot) {
        return in_ring - skipped(end, in_ring) + in_tcp - left_out(in_ring == 0);
    }
    let left_out = left_out(true);
    let behind = match switch::peer_turn(end) {
        Some(_) if in_tcp == left_out => in_ring - skipped(end, in_ring),
        Some(_) => in_ring,
        None => 0,
    };
    in_tcp - left_out + behind
}

/// Bytes that `FIONREAD` counts: up to an urgent mark, if one lies ahead.
pub(crate) fn countable(end: &End<'_>) -> usize {
    let in_ring = urgent::before_mark(end, in_ring(end));
    if end.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        return in_ring;
    }
    let in_queue = urgent::before_mark_in_tcp(end);
    let in_tcp = switch::parts_of_queue(end, in_queue).data as usize;
    let is_all = in_tcp == switch::data_queued(end);
    // At a mark nothing is counted; this one was a mark before there was another.
    let in_tcp = in_tcp - usize::from(in_tcp > 0 && urgent::is_next_left_out(end));
    match switch::peer_turn(end) {
        _ if turns::comes_by_ring(end.slot) => in_ring + in_tcp,
        Some(_) if is_all => in_tcp + in_ring,
        _ => in_tcp,
    }
}

/// Bytes that have ever arrived: what an edge-triggered loop is told of is a change
/// of this number.
pub(crate) fn arrived(end: &End<'_>) -> u64 {
    let in_ring = end.theirs.sending.producer.claim();
    let bells = end.slot.tcp_bells.load(Ordering::Relaxed);
    let taken = end.slot.tcp_consumed.load(Ordering::Relaxed).saturating_sub(bells);
    if end.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        // The claim is only a number that changes.
        return in_ring.wrapping_add(taken);
    }
    in_ring.wrapping_add(taken).wrapping_add(switch::data_queued(end) as u64)
}

/// Whether the next byte of the program is an urgent one in TCP, in line or not.
pub(crate) fn is_at_mark_in_tcp(end: &End<'_>) -> bool {
    switch::data_queued(end) > 0 && urgent::is_any_mark_in_tcp(end)
}

/// The same where what comes by TCP is followed by the ring: only a byte that was marked before may be left.
pub(crate) fn is_at_mark_from_tcp(end: &End<'_>) -> bool {
    let goes_on_in_ring = switch::data_queued(end) == 1 && switch::peer_turn(end).is_some();
    is_at_mark_in_tcp(end)
        || goes_on_in_ring && urgent::is_next_left_out(end) && urgent::is_at_mark(end)
}

/// Bytes in the ring that were not read.
pub(crate) fn in_ring(conn: &Conn) -> usize {
    let consumer = conn.mine.receiving.consumer.position();
    let claim = conn.theirs.sending.producer.claim();
    cursor::readable(consumer, claim, conn.incoming.len()).unwrap_or(1)
}

/// Bytes at the front of the ring that are not for the stream: a passed urgent byte.
fn skipped(conn: &Conn, in_ring: usize) -> usize {
    if !conn.is_marked() {
        return 0;
    }
    let consumer = conn.mine.receiving.consumer.position();
    urgent::cut(conn, consumer, in_ring).0 as usize
}

/// Whether a receive is worth trying: there are bytes, or the end is near.
pub(crate) fn has_input(end: &End<'_>) -> bool {
    if may_have_ended(end) {
        return true;
    }
    let consumer = end.mine.receiving.consumer.position();
    let is_in_ring = || end.theirs.sending.producer.position() != consumer;
    if end.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0 {
        return is_in_ring();
    }
    match switch::peer_turn(end) {
        // It has to be followed before there is more.
        Some(_) if turns::comes_by_ring(end.slot) => true,
        Some(at) if end.slot.tcp_consumed.load(Ordering::Relaxed) >= at => true,
        None if turns::comes_by_ring(end.slot) => is_in_ring(),
        _ => switch::data_queued(end) > 0,
    }
}

/// Whether input has ended or may have: a receive finds out.
#[inline]
pub(crate) fn may_have_ended(conn: &Conn) -> bool {
    const OVER: u32 = flag::PEER_GONE | flag::RESET | flag::READ_SHUT | flag::TCP_ENDED;
    let theirs = &conn.theirs.sending;
    conn.slot.flags.load(Ordering::Relaxed) & OVER != 0
        || theirs.closes.load(Ordering::Relaxed) != conn.slot.closes_seen.load(Ordering::Relaxed)
        || theirs.flags.load(Ordering::Relaxed) & (said::DONE | said::ABORT) != 0
}

/// The mask, right in the bits of `interest` and in those of an end. What is not asked
/// for is not found out: before a direction has switched that takes a system call.
pub(crate) fn mask_of(end: &End<'_>, interest: u32) -> u32 {
    wait::follow_hint(end);
    let over = ends::poll(end);
    let flags = end.slot.flags.load(Ordering::Acquire);
    let len = end.outgoing.len();
    let state = State {
        readable: if interest & INPUT != 0 { readable(end) } else { 0 },
        low_water: low_water(end),
        window: if interest & ROOM != 0 { window(end) } else { 0 },
        window_threshold: cursor::writable_threshold(len),
        peer_done: over.peer_done,
        read_shut: flags & flag::READ_SHUT != 0,
        write_shut: flags & flag::WRITE_SHUT != 0,
        reset: over.reset,
        error_pending: over.error_pending,
        urgent: interest & mask::PRI != 0 && urgent::is_waiting(end),
    };
    state.mask()
}

/// `SO_RCVLOWAT`, but not more than a writer that waits for `POLLOUT` ever puts into
/// the ring: neither side would wake the other. (TCP reports a socket readable, too,
/// when its window is exhausted.)
pub(crate) fn low_water(conn: &Conn) -> usize {
    let len = conn.incoming.len();
    let wished = conn.slot.low_water.load(Ordering::Relaxed) as usize;
    wished.min(len - cursor::writable_threshold(len))
}

/// Room for sending; before the switch, as the kernel says.
fn window(end: &End<'_>) -> usize {
    let len = end.outgoing.len();
    if end.slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED == 0 {
        let writable = end.file().poll_now(libc::POLLOUT).unwrap_or(mask::OUT) & mask::OUT != 0;
        return if writable { len } else { 0 };
    }
    let producer = end.mine.sending.producer.position();
    let claim = end.theirs.receiving.consumer.claim();
    cursor::window(producer, claim, len).unwrap_or(len)
}
