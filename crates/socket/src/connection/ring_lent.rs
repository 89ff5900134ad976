//! Receive without a copy: what lies in the ring is shown, and passed when it is done with.
//!
//! ```text
//!   ahead   readable = producer - consumer - skipped, up to the urgent mark
//!   pass    publish the consumer cursor; was the ring nearly full? wake the writer
//!   reset   say so in the words, and wake who sleeps: the consumer cursor and the slot stay
//! ```
//!
//! It is for a reader that is alone and has urgent bytes in line. All that is not as simple, the call that receives
//! sees to: bytes that come by TCP, a turn of the direction, the end.

use crate::Answer;
use crate::connection::{ends, ring_receive, urgent, wait, words};
use crate::process::owner::Held;
use crate::table::end::End;
use core::sync::atomic::Ordering;
use sidestep_device::program::Buffers;
use sidestep_device::state::flag;

/// Bytes of a ring that lie ahead of its reader.
pub(crate) struct Ahead {
    /// Of the first of them.
    pub(crate) position: u64,
    pub(crate) len: usize,
    /// It is one urgent byte.
    pub(crate) is_urgent: bool,
}

/// What lies behind the next `skip` bytes; none: the end of the stream, when nothing is left to skip. `None`: the next
/// bytes come by TCP, or not as simply.
///
/// # Errors
/// `EAGAIN`, or what has ended the connection, once.
pub(crate) fn ahead(end: &End<'_>, skip: usize) -> Option<Answer<Ahead>> {
    const ASKED: u32 = flag::RECEIVE_SWITCHED
        | flag::ASYNC
        | flag::TURN_WANTED
        | flag::PEEK_OFFSET
        | flag::OOB_INLINE;
    const SIMPLE: u32 = flag::RECEIVE_SWITCHED | flag::OOB_INLINE;
    let is_simple = || end.slot.flags.load(Ordering::Acquire) & ASKED == SIMPLE;
    let mut has_ended = false;
    while is_simple() {
        match ring_receive::in_ring(end) {
            Ok((position, 0)) if has_ended => {
                return Some(Ok(Ahead { position, len: 0, is_urgent: false }));
            }
            Ok((_, 0)) => {}
            Ok((position, readable)) if readable > skip => {
                let behind = position.wrapping_add(skip as u64);
                return Some(Ok(up_to_mark(end, behind, readable - skip)));
            }
            Ok(_) => return Some(Err(libc::EAGAIN)),
            Err(errno) => return Some(Err(errno)),
        }
        // A call without room takes nothing and says the same: 0 if something has come meanwhile, or will not.
        match ring_receive::receive(end, &Buffers::NONE, libc::MSG_DONTWAIT) {
            Ok(_) => has_ended = true,
            Err(errno) => return Some(Err(errno)),
        }
    }
    None
}

/// The urgent byte by itself, or what is before it. The mark is stored before its byte is published, so none that is
/// `readable` is passed unmarked.
fn up_to_mark(end: &End<'_>, position: u64, readable: usize) -> Ahead {
    let before = urgent::mark(end, position).map(|at| usize::try_from(at - position));
    match before {
        Some(Ok(0)) => Ahead { position, len: 1, is_urgent: true },
        Some(Ok(before)) => Ahead { position, len: readable.min(before), is_urgent: false },
        _ => Ahead { position, len: readable, is_urgent: false },
    }
}

/// The reader is done with the first `n` bytes of those [`ahead`] at `position`.
pub(crate) fn pass(end: &End<'_>, position: u64, n: usize) {
    let receiving = Held::enter(&end.slot.receive_lock);
    let is_passed = ring_receive::publish(end, (position, position.wrapping_add(n as u64)), n);
    drop(receiving);
    if is_passed && n > 0 {
        ring_receive::note_received(end, n);
        ring_receive::make_room_known(end, n);
    }
}

/// The connection ends by a reset, as by `connect` to nowhere, but for the kernel: TCP's reset comes with the close.
pub(crate) fn reset(end: &End<'_>) {
    words::disconnect(end);
    ends::wake_readers(end, end.note_cpu());
    wait::wake_writers(end);
}
