//! Whether a loop that polls again and again asks the kernel this time, too.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidestep_device::sys;
use sidestep_device::valid::{Renew, Zeroable};

/// Times in succession that a loop has polled, and only the rings had something for it.
///
/// A program that polls now and then wants to know of all its descriptors, and the
/// kernel is asked each time. A loop that comes back at once, again and again, for the
/// same busy connection would pay a system call each time to hear of nothing else; so
/// after a while the kernel is asked now and then only. The loop serves what it is
/// told and asks again, so it hears of the others a little later.
#[derive(Debug, Renew, Zeroable)]
pub struct Streak {
    /// Asked in succession with nothing found but ours.
    len: AtomicU32,
    /// When the last poll was, by [`sys::now_ns`].
    last_ns: AtomicU64,
    /// When the kernel was asked last.
    asked_ns: AtomicU64,
}

/// From so many on, not each poll asks the kernel.
const STREAK_MIN: u32 = 32;

/// Longest pause between two polls of a streak, in nanoseconds.
const STREAK_PAUSE_NS: u64 = 100_000;

/// Longest time in nanoseconds for which the rings alone keep a loop busy.
pub(crate) const KERNEL_LOOK_NS: u64 = 20_000;

impl Streak {
    /// Whether this poll asks the kernel.
    pub(crate) fn is_look_due(&self) -> bool {
        let now = sys::now_ns();
        let pause = now.saturating_sub(self.last_ns.swap(now, Ordering::Relaxed));
        if pause > STREAK_PAUSE_NS {
            self.len.store(0, Ordering::Relaxed);
        }
        let past = now.saturating_sub(self.asked_ns.load(Ordering::Relaxed));
        if self.len.load(Ordering::Relaxed) >= STREAK_MIN && past < KERNEL_LOOK_NS {
            return false;
        }
        self.asked_ns.store(now, Ordering::Relaxed);
        true
    }

    /// The kernel was asked, and had something of its own to tell or had not.
    pub(crate) fn note(&self, found_others: bool) {
        let len = if found_others { 0 } else { self.len.load(Ordering::Relaxed).saturating_add(1) };
        self.len.store(len, Ordering::Relaxed);
    }
}
