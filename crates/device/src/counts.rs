//! Counters of a program, and on how many lists its CPUs share them.

use core::sync::atomic::{AtomicU64, Ordering};

/// Lists of what is taken and given back on several CPUs at once: more would hold more that
/// no CPU uses.
pub const LISTS: usize = 8;

/// Adds to a counter whose readers need no order: exact with one writer at a time,
/// which the direction locks give.
#[inline]
pub fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
