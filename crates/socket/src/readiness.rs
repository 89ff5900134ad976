//! What `poll` would say about a connection in shared memory.

use crate::sock::Conn;
use crate::{control, switch, wait};
use core::sync::atomic::Ordering;
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_proto::cursor;
use sidestep_proto::readiness::{State, mask};

/// Bytes a receive would find now.
pub(crate) fn readable(slot: &Slot, conn: &Conn, fd: i32) -> usize {
    let consumer = conn.mine.receiving.consumer.load(Ordering::Relaxed);
    let claim = conn.theirs.sending.producer.load(Ordering::Acquire);
    let in_ring = cursor::readable(consumer, claim, conn.incoming.len()).unwrap_or(1);
    if slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        return in_ring;
    }
    let consumed = slot.tcp_consumed.load(Ordering::Relaxed);
    match switch::peer_switch(conn) {
        None => switch::queued(fd),
        Some(at) => switch::queued(fd).min(at.saturating_sub(consumed) as usize) + in_ring,
    }
}

/// Bytes that have ever arrived: what an edge-triggered loop is told of is a change
/// of this number.
pub(crate) fn arrived(slot: &Slot, conn: &Conn, fd: i32) -> u64 {
    let in_ring = conn.theirs.sending.producer.load(Ordering::Acquire);
    if slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        return in_ring + slot.tcp_consumed.load(Ordering::Relaxed);
    }
    let by_tcp = slot.tcp_consumed.load(Ordering::Relaxed) + switch::queued(fd) as u64;
    in_ring + by_tcp.min(switch::peer_switch(conn).unwrap_or(u64::MAX))
}

/// Whether a receive is worth trying: there are bytes, or the end is near.
pub(crate) fn has_input(slot: &Slot, conn: &Conn, fd: i32) -> bool {
    if may_have_ended(slot, conn) {
        return true;
    }
    if slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED == 0 {
        return match switch::peer_switch(conn) {
            Some(at) if slot.tcp_consumed.load(Ordering::Relaxed) >= at => true,
            _ => switch::queued(fd) > 0,
        };
    }
    let consumer = conn.mine.receiving.consumer.load(Ordering::Relaxed);
    conn.theirs.sending.producer.load(Ordering::Relaxed) != consumer
}

/// Whether input has ended or may have: a receive finds out.
#[inline]
pub(crate) fn may_have_ended(slot: &Slot, conn: &Conn) -> bool {
    const OVER: u32 = flag::PEER_GONE | flag::RESET | flag::READ_SHUT | flag::TCP_ENDED;
    let theirs = &conn.theirs.sending;
    slot.flags.load(Ordering::Relaxed) & OVER != 0
        || theirs.closes.load(Ordering::Relaxed) != slot.closes_seen.load(Ordering::Relaxed)
        || theirs.flags.load(Ordering::Relaxed) & (said::DONE | said::ABORT) != 0
}

/// The connection was reset, whether or not the program knows.
pub(crate) fn is_reset(slot: &Slot, conn: &Conn) -> bool {
    slot.flags.load(Ordering::Acquire) & flag::RESET != 0 || control::ended_by_reset(slot, conn)
}

/// The mask for all interests.
pub(crate) fn mask_of(slot: &Slot, conn: &Conn, fd: i32) -> u32 {
    wait::follow_hint(slot, conn, fd);
    let flags = slot.flags.load(Ordering::Acquire);
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    let reset = is_reset(slot, conn);
    let known_reset = flags & flag::RESET != 0;
    let error = slot.error.load(Ordering::Relaxed) != 0 || (reset && !known_reset);
    let ended = flags & (flag::PEER_GONE | flag::TCP_ENDED) != 0 || peer & said::DONE != 0;
    let len = conn.outgoing.len();
    let state = State {
        readable: readable(slot, conn, fd),
        low_water: low_water(slot, conn),
        window: window(slot, conn, fd),
        window_threshold: cursor::writable_threshold(len),
        peer_done: ended,
        read_shut: flags & flag::READ_SHUT != 0,
        write_shut: flags & flag::WRITE_SHUT != 0,
        reset,
        error_pending: error,
        urgent: control::has_urgent(slot, conn),
    };
    state.mask()
}

/// `SO_RCVLOWAT`, but not more than a writer that waits for `POLLOUT` ever puts into
/// the ring: neither side would wake the other. (TCP reports a socket readable, too,
/// when its window is exhausted.)
fn low_water(slot: &Slot, conn: &Conn) -> usize {
    let len = conn.incoming.len();
    let wished = slot.low_water.load(Ordering::Relaxed) as usize;
    wished.min(len - cursor::writable_threshold(len))
}

/// Room for sending; before the switch, as the kernel says.
fn window(slot: &Slot, conn: &Conn, fd: i32) -> usize {
    let len = conn.outgoing.len();
    if slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED == 0 {
        let writable = sys::poll_now(fd, libc::POLLOUT).unwrap_or(mask::OUT) & mask::OUT != 0;
        return if writable { len } else { 0 };
    }
    let producer = conn.mine.sending.producer.load(Ordering::Relaxed);
    let claim = conn.theirs.receiving.consumer.load(Ordering::Acquire);
    cursor::window(producer, claim, len).unwrap_or(len)
}
