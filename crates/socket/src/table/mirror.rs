//! A time-out of the kernel's, remembered.

use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::valid::{Renew, Zeroable};

/// A time-out of the kernel's, remembered for those who ask again and again. Another process
/// that shares the socket may have set another one since: enough for a short sleep.
#[derive(Renew, Zeroable)]
pub(crate) struct Mirror(AtomicU64);

impl Mirror {
    /// No time-out is that long.
    const UNKNOWN: u64 = u64::MAX;

    /// It is not known: the object is new, or this process has set the option.
    pub(crate) fn forget(&self) {
        self.0.store(Self::UNKNOWN, Ordering::Relaxed);
    }

    /// The option in nanoseconds; `ask` asks the kernel if it is not known.
    pub(crate) fn get(&self, ask: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let known = match self.0.load(Ordering::Relaxed) {
            Self::UNKNOWN => {
                let now = ask().unwrap_or(0);
                self.0.store(now, Ordering::Relaxed);
                now
            }
            known => known,
        };
        (known != 0).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn the_kernel_is_asked_once_until_it_is_forgotten() {
        let (mirror, asked) = (Mirror(AtomicU64::new(Mirror::UNKNOWN)), Cell::new(0));
        let get = |answer| {
            mirror.get(|| {
                asked.set(asked.get() + 1);
                answer
            })
        };
        assert_eq!([get(Some(5)), get(Some(6))], [Some(5); 2]);
        mirror.forget();
        assert_eq!([get(Some(7)), get(None)], [Some(7); 2]);
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn none_and_no_time_are_the_same_and_remembered() {
        for none in [None, Some(0)] {
            let mirror = Mirror(AtomicU64::new(Mirror::UNKNOWN));
            assert_eq!(mirror.get(|| none), None);
            assert_eq!(mirror.get(|| Some(9)), None, "it is known");
        }
    }
}
