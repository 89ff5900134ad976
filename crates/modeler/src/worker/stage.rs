//! A stage: a part of a run, the same for all threads.
//!
//! It ends with a moment or with a number of transactions, and knows what the process has used in
//! the measured time.

use std::sync::OnceLock;

use super::resources;
use crate::control::Usage;

/// A part of a run, the same for all threads.
#[derive(Debug)]
pub(crate) struct Stage {
    /// When clients begin.
    pub(crate) begin_ns: u64,
    /// Transactions count that end from here on.
    pub(crate) measured_from_ns: u64,
    /// They count if they end before, and none starts after; `u64::MAX` in a stage
    /// that ends with a number.
    pub(crate) end_ns: u64,
    /// Transactions of each client; `u64::MAX` in a stage that ends with a moment.
    pub(crate) count: u64,
    /// What the process had used when the measured time began.
    used_before: OnceLock<Usage>,
    /// And when it was over.
    used_after: OnceLock<Usage>,
}

impl Stage {
    /// Warm-up and measured time, in nanoseconds.
    pub(crate) fn timed(begin_ns: u64, warmup_ns: u64, measured_ns: u64) -> Self {
        let measured_from_ns = begin_ns.saturating_add(warmup_ns);
        let end_ns = measured_from_ns.saturating_add(measured_ns).min(u64::MAX - 1);
        Self::new(begin_ns, measured_from_ns, end_ns, u64::MAX)
    }

    /// So many transactions of each client, all of them measured.
    pub(crate) fn counted(begin_ns: u64, count: u64) -> Self {
        Self::new(begin_ns, begin_ns, u64::MAX, count)
    }

    fn new(begin_ns: u64, measured_from_ns: u64, end_ns: u64, count: u64) -> Self {
        let (used_before, used_after) = Default::default();
        Self { begin_ns, measured_from_ns, end_ns, count, used_before, used_after }
    }

    /// When clients have to call [`Stage::mark`] first: never in a stage that ends with
    /// a number, before and after which nothing runs.
    pub(crate) fn first_mark_ns(&self) -> u64 {
        if self.count == u64::MAX { self.measured_from_ns } else { u64::MAX }
    }

    /// Notes what the process has used, when that is due and no thread has done it yet.
    /// Returns when it will be due again.
    ///
    /// The thread that sees first that the moment has come does it: a thread that sleeps until
    /// then is late when thousands of others want to run, just as many as make the
    /// difference.
    #[cold]
    pub(crate) fn mark(&self, now_ns: u64) -> u64 {
        if now_ns < self.measured_from_ns {
            return self.measured_from_ns;
        }
        self.used_before.get_or_init(resources::usage);
        if now_ns < self.end_ns {
            return self.end_ns;
        }
        self.used_after.get_or_init(resources::usage);
        u64::MAX
    }

    /// What the process has used in the measured time, when that is over.
    pub(crate) fn usage(&self) -> Usage {
        let after = *self.used_after.get_or_init(resources::usage);
        self.used_before.get().map_or(Usage::default(), |before| after - *before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_asks_for_what_was_used_at_its_two_moments_and_keeps_the_first_answer() {
        let stage = Stage::timed(10, 20, 30);
        assert_eq!(stage.first_mark_ns(), 30);
        assert_eq!(stage.mark(29), 30);
        assert_eq!(stage.used_before.get(), None);
        assert_eq!(stage.mark(30), 60);
        let before = *stage.used_before.get().expect("it was due");
        assert_eq!(stage.mark(59), 60);
        assert_eq!(stage.used_after.get(), None);
        assert_eq!(stage.mark(60), u64::MAX);
        let after = *stage.used_after.get().expect("it was due");
        assert_eq!(stage.mark(61), u64::MAX);
        assert_eq!(stage.usage(), after - before);
        assert_eq!(*stage.used_before.get().expect("kept"), before);
        assert_eq!(Stage::counted(0, 1).first_mark_ns(), u64::MAX);
    }
}
