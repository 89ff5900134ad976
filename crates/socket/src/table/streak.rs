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

#[cfg(test)]
mod tests {
    use super::*;

    fn streak() -> Streak {
        Streak { len: AtomicU32::new(0), last_ns: AtomicU64::new(0), asked_ns: AtomicU64::new(0) }
    }

    /// As if the last poll and the last question to the kernel were so long ago.
    fn back_date(streak: &Streak, poll_ns: u64, asked_ns: u64) {
        let now = sys::now_ns();
        streak.last_ns.store(now - poll_ns, Ordering::Relaxed);
        streak.asked_ns.store(now - asked_ns, Ordering::Relaxed);
    }

    #[test]
    fn a_short_streak_asks_each_time() {
        let streak = streak();
        for _ in 0..STREAK_MIN {
            assert!(streak.is_look_due());
            streak.note(false);
        }
    }

    #[test]
    fn a_long_one_asks_when_it_has_not_for_a_while_or_after_a_pause() {
        let streak = streak();
        (0..STREAK_MIN).for_each(|_| streak.note(false));
        back_date(&streak, 0, KERNEL_LOOK_NS + 1);
        assert!(streak.is_look_due(), "the kernel was not asked for a while");
        back_date(&streak, STREAK_PAUSE_NS + 1, 0);
        assert!(streak.is_look_due(), "the program has done something else");
        assert_eq!(streak.len.load(Ordering::Relaxed), 0, "and begins anew");
    }

    #[test]
    fn what_the_kernel_has_of_its_own_ends_a_streak() {
        let streak = streak();
        (0..STREAK_MIN).for_each(|_| streak.note(false));
        streak.note(true);
        back_date(&streak, 0, 0);
        assert!(streak.is_look_due());
        streak.len.store(u32::MAX, Ordering::Relaxed);
        streak.note(false);
        assert_eq!(streak.len.load(Ordering::Relaxed), u32::MAX, "it does not wrap");
    }
}
