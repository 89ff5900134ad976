//! Whether strangers want the CPUs of this process.
//!
//! Threads that wait for each other and share few CPUs serve each other best by yielding:
//! a yield costs 0.3 µs when no other thread can run, and some microseconds for each that can
//! and soon waits in turn. Beside a *stranger*, a thread that computes, every third yield costs
//! a slice of the scheduler: 4 to 12 ms, a thousand transactions. The scheduler tells neither
//! beforehand. A thread that sleeps learns nothing of strangers at all: its wake-up
//! preempts a thread that computes. So the process learns from the price that one thread has paid:
//!
//! * A yield that takes longer than [`DEAR_NS`] has met a stranger, and so has a spin between two
//!   of whose looks that much time has passed. Then no thread of the process yields until the
//!   loss is repaid: for [`REPAID`] times as long, at most [`PAUSE_MAX_NS`].
//! * After that threads *probe*: one at a time yields once, [`PROBE_GAP_NS`] after the last one.
//!   [`PROBES`] cheap probes in succession, and the strangers have gone: all may yield again. A
//!   dear one begins the next pause.
//!
//! So a process that is never alone loses 3 % of its time, and one whose strangers have gone
//! yields again a pause and 8 ms later.

/// What takes a thread longer than this many nanoseconds has served a stranger: one who
/// computes keeps the CPU for a slice of the scheduler, a millisecond or more. A dozen waiters
/// and a gateway that share a CPU take 150 µs and more for one round.
pub const DEAR_NS: u64 = 500_000;
/// For how many times the loss no thread yields.
pub const REPAID: u64 = 32;
/// Longest pause in nanoseconds.
pub const PAUSE_MAX_NS: u64 = 400_000_000;
/// Cheap probes in succession by which strangers have gone.
pub const PROBES: u64 = 8;
/// From one probe to the next, in nanoseconds.
pub const PROBE_GAP_NS: u64 = 1_000_000;

/// What a wait may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// No stranger is known.
    Alone,
    /// It is time for a probe, and this wait makes it.
    Unknown,
    /// A stranger takes what is given away.
    Strangers,
}

/// What a process has learned. Two words that all its threads share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// When the next probe is due; 0: no stranger is known.
    probe_at_ns: u64,
    /// How many probes since the last pause were cheap.
    cheap_probes: u64,
}

impl Contention {
    /// No stranger has been met.
    #[must_use]
    pub const fn new() -> Self {
        Self { probe_at_ns: 0, cheap_probes: 0 }
    }

    /// What was learned, as two words to keep anywhere.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        [self.probe_at_ns, self.cheap_probes]
    }

    /// The inverse of [`Self::to_words`].
    #[must_use]
    pub const fn from_words([probe_at_ns, cheap_probes]: [u64; 2]) -> Self {
        Self { probe_at_ns, cheap_probes }
    }

    /// Whether a stranger is known: else a wait need not look at the clock.
    #[must_use]
    pub const fn is_contended(self) -> bool {
        self.probe_at_ns != 0
    }

    /// A wait begins at `now_ns`. [`Company::Unknown`] is answered to one wait at a time.
    pub fn company(&mut self, now_ns: u64) -> Company {
        if !self.is_contended() {
            return Company::Alone;
        }
        if now_ns < self.probe_at_ns {
            return Company::Strangers;
        }
        self.probe_at_ns = now_ns + PROBE_GAP_NS;
        Company::Unknown
    }

    /// A thread runs again `late_ns` after it has yielded, or after the last look of its spin.
    /// True: it has met a stranger.
    pub fn resumed(&mut self, now_ns: u64, late_ns: u64) -> bool {
        let is_late = late_ns > DEAR_NS;
        // Threads that are late together have met the same one.
        if is_late && !self.is_contended() {
            self.pause(now_ns, late_ns);
        }
        is_late
    }

    /// A thread runs again `late_ns` after the yield of a probe. True: it has met a stranger.
    pub fn probed(&mut self, now_ns: u64, late_ns: u64) -> bool {
        let is_late = late_ns > DEAR_NS;
        if is_late {
            self.pause(now_ns, late_ns);
        } else {
            self.cheap_probes += 1;
            if self.cheap_probes >= PROBES {
                *self = Self::new();
            }
        }
        is_late
    }

    fn pause(&mut self, now_ns: u64, lost_ns: u64) {
        let pause_ns = lost_ns.saturating_mul(REPAID).min(PAUSE_MAX_NS);
        *self = Self { probe_at_ns: now_ns + pause_ns, cheap_probes: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP_NS: u64 = 2_000;
    const SLICE_NS: u64 = 4_000_000;
    /// A machine that has run for a while.
    const BEGIN_NS: u64 = 3_600_000_000_000;

    fn beside_strangers() -> Contention {
        let mut contention = Contention::new();
        assert!(contention.resumed(BEGIN_NS, SLICE_NS));
        contention
    }

    /// Probes as soon as that is due, and returns how long that has taken.
    fn probe(contention: &mut Contention, now_ns: &mut u64, late_ns: u64) -> u64 {
        const STEP_NS: u64 = 100_000;
        let begin = *now_ns;
        while contention.company(*now_ns) != Company::Unknown {
            *now_ns += STEP_NS;
        }
        let waited = *now_ns - begin;
        assert_eq!(contention.probed(*now_ns, late_ns), late_ns > DEAR_NS);
        *contention = Contention::from_words(contention.to_words());
        waited
    }

    #[test]
    fn a_stranger_is_met_by_its_price() {
        let mut contention = Contention::new();
        assert_eq!(contention.company(1), Company::Alone);
        assert!(!contention.resumed(2, DEAR_NS));
        assert_eq!(contention.company(3), Company::Alone);
        assert!(contention.resumed(4, DEAR_NS + 1));
        assert_eq!(contention.company(5), Company::Strangers);
    }

    #[test]
    fn one_wait_at_a_time_probes_once_the_loss_is_repaid() {
        let mut contention = beside_strangers();
        let due = BEGIN_NS + REPAID * SLICE_NS;
        assert_eq!(contention.company(due - 1), Company::Strangers);
        assert_eq!(contention.company(due), Company::Unknown);
        assert_eq!(contention.company(due), Company::Strangers);
        assert_eq!(contention.company(due + PROBE_GAP_NS), Company::Unknown);
    }

    #[test]
    fn many_cheap_probes_in_succession_say_that_strangers_have_gone() {
        let (mut contention, mut now) = (beside_strangers(), BEGIN_NS);
        for _ in 1..PROBES {
            probe(&mut contention, &mut now, CHEAP_NS);
        }
        assert!(contention.is_contended());
        probe(&mut contention, &mut now, SLICE_NS);
        for _ in 1..PROBES {
            probe(&mut contention, &mut now, CHEAP_NS);
            assert!(contention.is_contended());
        }
        probe(&mut contention, &mut now, CHEAP_NS);
        assert_eq!(contention.company(now), Company::Alone);
    }

    #[test]
    fn what_probes_lose_is_repaid() {
        let (mut contention, mut now) = (beside_strangers(), BEGIN_NS);
        for late_ns in [DEAR_NS + 1, SLICE_NS, 2 * SLICE_NS, SLICE_NS] {
            probe(&mut contention, &mut now, late_ns);
            let pause = probe(&mut contention, &mut now, CHEAP_NS);
            assert!(pause >= REPAID * late_ns, "{late_ns} {pause}");
        }
    }

    #[test]
    fn a_machine_that_stood_still_does_not_bar_yields_for_ever() {
        let (mut contention, mut now) = (beside_strangers(), BEGIN_NS);
        probe(&mut contention, &mut now, 10_000_000_000);
        assert_eq!(probe(&mut contention, &mut now, CHEAP_NS), PAUSE_MAX_NS);
        assert!(contention.probed(now, u64::MAX));
    }

    #[test]
    fn threads_that_are_late_together_have_met_one_stranger() {
        let (mut contention, mut now) = (beside_strangers(), BEGIN_NS);
        for late in 1..10 {
            assert!(contention.resumed(now + late, SLICE_NS));
        }
        assert_eq!(probe(&mut contention, &mut now, CHEAP_NS), REPAID * SLICE_NS);
    }
}
