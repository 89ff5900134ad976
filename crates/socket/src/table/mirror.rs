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
