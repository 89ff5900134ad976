//! The rules of the IP filter have changed, and deny a connection that has moved.
//!
//! `sidestep filter` puts rules into force, asks them about each connection of every Sidestep program, and
//! writes the generation of those that are denied into their slots ([`denied`](sidestep_device::state::Slot::denied)). It tells an end that is
//! awake by the hint that it follows anyway (`closes_seen`), and wakes one that sleeps by shutting down its TCP
//! socket. Whatever brings the end here, it is a reset, as if a packet had been answered by one.
//!
//! No warm call pays for that: none looks at the word before there is a hint or TCP has ended.

use crate::connection::words;
use crate::table::conn::Conn;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use sidestep_device::state::flag;
use sidestep_proto::fallback::{OperatorSaid, Reason};

/// This process knows of a filter: the last question was answered by one, or a connection was denied. That decides
/// when a connection is asked about and what the answer costs. None moves that was not asked about.
pub(crate) static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Resets a connection that is denied, once.
pub(super) fn obey(conn: &Conn) {
    let slot = conn.slot;
    if !slot.is_denied() || slot.flags.load(Ordering::Acquire) & flag::RESET != 0 {
        return;
    }
    IS_KNOWN.store(true, Ordering::Relaxed);
    let reason = Reason::Operator(OperatorSaid::Denied);
    slot.reason.store(reason.word(), Ordering::Relaxed);
    words::reset_untold(conn, &reason);
    words::hint(conn);
}

/// The same of a connection that has just moved: it was asked about before, and the rules may have changed since.
pub(super) fn obey_when_moved(conn: &Conn) {
    // The command that denies writes the word before it reads the mode, which is written before this: one of the two
    // sees what the other has written.
    fence(Ordering::SeqCst);
    obey(conn);
}
