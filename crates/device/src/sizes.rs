//! How long messages are: a histogram by powers of two.

use core::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use core::sync::atomic::Ordering;
use sidestep_derive::Shared;

/// Counts of messages by their length. [`longest_of`] has what each counts.
#[derive(Shared)]
#[repr(C)]
pub struct Sizes(pub [AtomicU64; CLASSES]);

/// Classes of lengths: up to 64 bytes, 128 bytes and so on to 1 MiB, and longer.
pub const CLASSES: usize = 16;

/// The longest message of the first class, as a power of two.
const FIRST_EXPONENT: u32 = 6;

/// The longest message that a class has; `None`: there is none.
#[must_use]
pub const fn longest_of(class: usize) -> Option<u64> {
    if class + 1 < CLASSES { Some(1 << (FIRST_EXPONENT as usize + class)) } else { None }
}

#[inline]
pub(crate) fn class_of(len: u64) -> usize {
    // The exponent of the next power of two: 64 - zeros of (len - 1).
    let exponent = u64::BITS - len.saturating_sub(1).leading_zeros();
    (exponent.saturating_sub(FIRST_EXPONENT) as usize).min(CLASSES - 1)
}

#[cfg(not(loom))]
impl Sizes {
    /// Counts a message. Exact with one writer at a time, as [`count`](crate::counts::count).
    #[inline]
    pub fn count(&self, len: u64) {
        crate::counts::count(&self.0[class_of(len)], 1);
    }

    /// Counts a message, among writers that come at once.
    #[inline]
    pub fn count_among_others(&self, len: u64) {
        self.0[class_of(len)].fetch_add(1, Ordering::Relaxed);
    }

    /// Moves here what another has counted, so many messages in all. Exact with one writer at
    /// a time, as [`count`](crate::counts::count).
    pub fn take(&self, other: &Self, messages: u64) {
        other.each(messages, |class, counter, n| {
            crate::counts::count(&self.0[class], n);
            counter.store(0, Ordering::Relaxed);
        });
    }

    /// Adds what another has counted, so many messages in all, among writers that come at
    /// once.
    pub fn add(&self, other: &Self, messages: u64) {
        other.each(messages, |class, _, n| {
            self.0[class].fetch_add(n, Ordering::Relaxed);
        });
    }

    /// The classes of a short connection are few: a look that has found all messages goes no further.
    fn each(&self, mut messages: u64, f: impl Fn(usize, &AtomicU64, u64)) {
        for (class, counter) in self.0.iter().enumerate() {
            if messages == 0 {
                return;
            }
            let n = counter.load(Ordering::Relaxed);
            if n > 0 {
                f(class, counter, n);
                messages = messages.saturating_sub(n);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_class_ends_at_its_longest() {
        for class in 0..CLASSES - 1 {
            let longest = longest_of(class).unwrap();
            assert_eq!((class_of(longest), class_of(longest + 1)), (class, class + 1));
        }
        assert_eq!(longest_of(0), Some(64));
        assert_eq!(longest_of(CLASSES - 2), Some(1 << 20));
        assert_eq!(longest_of(CLASSES - 1), None);
        assert_eq!([0, 1, 64, 65, u64::MAX].map(class_of), [0, 0, 0, 1, CLASSES - 1]);
    }

    #[test]
    fn counts_and_adds_up() {
        let sizes = || Sizes([const { AtomicU64::new(0) }; CLASSES]);
        let (sum, one) = (sizes(), sizes());
        one.count(100);
        one.count_among_others(128);
        one.count_among_others(2 << 20);
        sum.add(&one, 3);
        sum.take(&one, 3);
        assert!(one.0.iter().all(|n| n.load(Ordering::Relaxed) == 0));
        let counts = sum.0.each_ref().map(|n| n.load(Ordering::Relaxed));
        let mut expected = [0; CLASSES];
        (expected[1], expected[CLASSES - 1]) = (4, 2);
        assert_eq!(counts, expected);
    }
}
