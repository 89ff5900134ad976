//! Whose memory this is: the process's own, or lent to the child of a `vfork`.
//!
//! A child of `fork` has memory of its own, and says so ([`note_owner`]). The child of a `vfork` runs in
//! its parent's, and must leave the tables there alone ([`is_borrowed_memory`]).

use crate::process::filter;
use core::sync::atomic::{AtomicU32, Ordering};
use sidestep_device::state::Slot;
use sidestep_device::sys;

/// The process whose memory this is, as it knows itself. Not set until the library has
/// started.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Remembers whose memory this is.
pub fn note_owner() {
    BORROWERS.store(0, Ordering::Relaxed);
    OWNER.store(sys::pid(), Ordering::Relaxed);
}

/// Forks between the program's begin and this process: tells what a process has made from
/// what it has inherited. (Its number does not: a child in a PID namespace of its own can have
/// its parent's.)
pub(super) static FORKS: AtomicU32 = AtomicU32::new(0);

/// See [`FORKS`].
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Says in a slot which process uses the connection, if that has changed: a child
/// goes on with what its parent began.
pub(crate) fn note_user(slot: &Slot) {
    let me = OWNER.load(Ordering::Relaxed);
    if slot.user_pid.load(Ordering::Relaxed) != me {
        slot.user_pid.store(me, Ordering::Relaxed);
    }
}

/// Processes that may run in our memory beside ourselves.
static BORROWERS: AtomicU32 = AtomicU32::new(0);

/// What [`sys::number_in_proc`] was when memory was lent last. A borrower in a PID namespace of
/// its own can have our [`OWNER`], and has not this one.
static OWNER_IN_PROC: AtomicU32 = AtomicU32::new(0);

/// Our memory is lent.
pub(crate) fn begin() {
    OWNER_IN_PROC.store(sys::number_in_proc(), Ordering::Relaxed);
    BORROWERS.fetch_add(1, Ordering::Relaxed);
}

/// The child of a `vfork` has called `exec` or ended.
pub fn end_loan() {
    BORROWERS.fetch_sub(1, Ordering::Relaxed);
    filter::end_loan();
}

/// Whether the calling process runs in the memory of another: the child of a
/// `vfork`, which may close and duplicate descriptors (its own!) before it calls
/// `exec`, and must leave its parent's tables alone. A borrower sees that the memory was
/// lent, because the thread that it continues has said so before.
#[must_use]
pub fn is_borrowed_memory() -> bool {
    let is_owner = || {
        OWNER.load(Ordering::Relaxed) == sys::pid()
            && OWNER_IN_PROC.load(Ordering::Relaxed) == sys::number_in_proc()
    };
    BORROWERS.load(Ordering::Relaxed) != 0 && !is_owner()
}
