//! Whether strangers want the CPUs of this process.
//!
//! Threads that wait for each other and share few CPUs serve each other best by yielding:
//! a yield costs 0.3 µs when no other thread can run, and some microseconds for each that can
//! and soon waits in turn. Beside a *stranger*, a thread that computes, every third yield costs
//! a slice of the scheduler: 4 to 12 ms, a thousand transactions. The scheduler tells neither
//! beforehand. A thread that sleeps learns nothing of strangers at all: its wake-up
//! preempts a thread that computes. So the process learns from the price that one thread has paid:
//!
//! ```text
//!            dear yields have lost LOST_MAX_NS
//!   Alone ─────────────────────────────────────▶ Strangers: no thread yields
//!     ▲                                            │    ▲
//!     │ no dear yield         the pause is over,   │    │ a dear yield, begun after SETTLE_NS:
//!     │ in JUDGE_NS     or no gap for QUIET_NS     ▼    │ the next pause is twice as long
//!     └───────────────────────────────────────── Trial: all threads yield
//! ```
//!
//! * A yield is *dear* if it takes longer than [`DEAR_NS`]. One says little: most strangers stay for
//!   a moment, and a pause would cost more than they do. What is lost to them is summed up, and
//!   forgiven at a quarter of the time that passes.
//! * One thread cannot try alone. It pays for its yield with a slice, and where its own kind
//!   sleeps and wakes, they use that as a stranger does: ten threads that share a CPU found
//!   each such probe dear. When all yield, all have paid after [`SETTLE_NS`], and a round
//!   is short again if no stranger takes part.
//! * *Friends*, the pairs of the process whose ends both have a CPU, keep it as long as a stranger
//!   would, and each of their messages begins a spin. A late thread that finds more than one
//!   spin of its process begun for each [`FRIENDS_TURN_NS`] has met friends.
//! * A trial is dear where many threads wait: each pays with a slice, and strangers use them up, so fifty threads are
//!   late by 20 to 100 ms. That doubled their p99 when there was a trial every 400 ms. So there are few of them while strangers show
//!   themselves. A thread that sleeps does not see who has its CPU, but all threads of the process see together whether one of
//!   them ran there: a *gap* of more than [`DEAR_NS`] between two waits that begin on one CPU is the turn of a stranger, or
//!   the process had no work. Both are no reason for a trial.
//! * So the pause begins at [`PAUSE_FIRST_NS`] and doubles up to [`PAUSE_MAX_NS`], also with a
//!   stranger that is met soon after a trial; and it ends early when no thread has seen a gap for [`QUIET_NS`]. A process
//!   that is never alone gives 20 ms of each 6.4 s to trials, and one whose strangers have gone learns that within
//!   [`QUIET_NS`] and the trial. One that has been alone for [`FORGOTTEN_AFTER`] pauses, which count for [`QUIET_NS`] at
//!   most, begins anew.

/// A yield that takes longer than this many nanoseconds has served a stranger: one that
/// computes keeps the CPU for a slice of the scheduler, more than a millisecond. A dozen waiters
/// and a gateway that share a CPU take 150 µs and more for one round, forty waiters 400 µs.
pub const DEAR_NS: u64 = 1_000_000;
/// Nanoseconds lost to strangers, less a quarter of those that have passed, from which on no thread
/// yields: two slices, or three.
pub const LOST_MAX_NS: u64 = 6_000_000;
/// So many nanoseconds for each spin that threads of the process have begun meanwhile, and friends
/// had the CPU: they begin one for each message, every few microseconds.
pub const FRIENDS_TURN_NS: u64 = 40_000;
/// First pause in nanoseconds.
pub const PAUSE_FIRST_NS: u64 = 25_000_000;
/// Longest pause in nanoseconds.
pub const PAUSE_MAX_NS: u64 = pause_ns(FAILED_MAX);
/// A pause ends when no gap was seen for so many nanoseconds: strangers who stay have a slice now and then, also those of little weight.
pub const QUIET_NS: u64 = 400_000_000;
/// For so many nanoseconds of a trial, threads repay each other what they have slept: for as long as one naps at most
/// ([`governor::NAP_NS`](crate::governor::NAP_NS)). With 8 ms a ninth of the trials failed without a stranger.
pub const SETTLE_NS: u64 = 12_000_000;
/// For so many nanoseconds after that, a dear yield has met a stranger.
pub const JUDGE_NS: u64 = 8_000_000;
/// So many pauses without a stranger, and the next one is the first.
pub const FORGOTTEN_AFTER: u64 = 8;

/// Trials that have failed in succession; more make no pause longer.
const FAILED_MAX: u32 = 8;

/// That after so many failed trials.
const fn pause_ns(failed: u32) -> u64 {
    PAUSE_FIRST_NS << failed
}

/// What a wait may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// No stranger is known.
    Alone,
    /// A stranger takes what is given away.
    Strangers,
}

/// What a process has learned. One word, which all its threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contention {
    phase: Phase,
    /// Trials that have failed in succession.
    failed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// When the last dear yield, or the trial, ended; what has been lost by then.
    Alone {
        last_ns: u64,
        lost_ns: u64,
    },
    /// The end of the pause, and when the last gap was seen.
    Strangers {
        until_ns: u64,
        seen_ns: u64,
    },
    Trial {
        since_ns: u64,
    },
}

/// Bits of the word: the phase, above it the failed trials, a span, a time.
const PHASE_BITS: u32 = 2;
const FAILED_BITS: u32 = 4;
const SPAN_BITS: u32 = 8;
/// Two to this power are the nanoseconds of one step of the word: of what was lost, ...
const LOST_SHIFT: u32 = 15;
/// ... of the time from the last gap to the end of the pause, ...
const SEEN_SHIFT: u32 = 25;
const _: () = assert!(PAUSE_MAX_NS >> SEEN_SHIFT < 1 << SPAN_BITS);
/// ... and of a time.
const TIME_SHIFT: u32 = 10;

impl Default for Contention {
    fn default() -> Self {
        Self::new()
    }
}

impl Contention {
    /// No stranger has been met.
    #[must_use]
    pub const fn new() -> Self {
        Self { phase: Phase::Alone { last_ns: 0, lost_ns: 0 }, failed: 0 }
    }

    /// What was learned, as a word to keep anywhere: times in microseconds, for 35 years.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        let (phase, ns, span) = match self.phase {
            Phase::Alone { last_ns, lost_ns } => (0, last_ns, lost_ns >> LOST_SHIFT),
            Phase::Strangers { until_ns, seen_ns } => {
                (1, until_ns, until_ns.saturating_sub(seen_ns) >> SEEN_SHIFT)
            }
            Phase::Trial { since_ns } => (2, since_ns, 0),
        };
        let rest = (ns >> TIME_SHIFT) << SPAN_BITS | span;
        (rest << FAILED_BITS | self.failed as u64) << PHASE_BITS | phase
    }

    /// The inverse of [`Self::to_word`].
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        let rest = word >> (PHASE_BITS + FAILED_BITS);
        let ns = rest >> SPAN_BITS << TIME_SHIFT;
        let span = rest & ((1 << SPAN_BITS) - 1);
        let phase = match word & ((1 << PHASE_BITS) - 1) {
            0 => Phase::Alone { last_ns: ns, lost_ns: span << LOST_SHIFT },
            1 => Phase::Strangers { until_ns: ns, seen_ns: ns.saturating_sub(span << SEEN_SHIFT) },
            _ => Phase::Trial { since_ns: ns },
        };
        Self { phase, failed: (word >> PHASE_BITS & ((1 << FAILED_BITS) - 1)) as u32 }
    }

    /// Whether no stranger is known, and no trial goes on: a wait need not look at the clock.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        matches!(self.phase, Phase::Alone { .. })
    }

    /// A wait begins at `now_ns`, `gap_ns` after the last one of the process that began on this CPU.
    pub fn company(&mut self, now_ns: u64, gap_ns: u64) -> Company {
        match self.phase {
            Phase::Strangers { until_ns, seen_ns } => {
                let seen_ns = if gap_ns > DEAR_NS { now_ns } else { seen_ns };
                if now_ns < until_ns.min(seen_ns + QUIET_NS) {
                    self.phase = Phase::Strangers { until_ns, seen_ns };
                    return Company::Strangers;
                }
                self.phase = Phase::Trial { since_ns: now_ns };
            }
            Phase::Trial { since_ns } if now_ns >= since_ns + SETTLE_NS + JUDGE_NS => {
                self.phase = Phase::Alone { last_ns: now_ns, lost_ns: 0 };
            }
            Phase::Trial { .. } | Phase::Alone { .. } => {}
        }
        Company::Alone
    }

    /// A thread runs again at `now_ns`, `late_ns` after it has yielded; threads of the process
    /// have begun `spins` meanwhile. True: it has met a stranger.
    pub fn resumed(&mut self, now_ns: u64, late_ns: u64, spins: u32) -> bool {
        if late_ns <= DEAR_NS || u64::from(spins) > late_ns / FRIENDS_TURN_NS {
            return false;
        }
        match self.phase {
            Phase::Alone { last_ns, lost_ns } => {
                let passed_ns = now_ns.saturating_sub(last_ns);
                if passed_ns > FORGOTTEN_AFTER * pause_ns(self.failed).min(QUIET_NS) {
                    self.failed = 0;
                }
                // Threads that are late together lose the same time.
                let lost_ns = lost_ns.saturating_sub(passed_ns / 4) + late_ns.min(passed_ns);
                if lost_ns < LOST_MAX_NS {
                    self.phase = Phase::Alone { last_ns: now_ns, lost_ns };
                    return true;
                }
            }
            Phase::Trial { since_ns } if now_ns.saturating_sub(late_ns) < since_ns + SETTLE_NS => {
                return false;
            }
            Phase::Trial { .. } => {}
            // Threads that are late together have met the same one.
            Phase::Strangers { .. } => return true,
        }
        let until_ns = now_ns + pause_ns(self.failed);
        self.phase = Phase::Strangers { until_ns, seen_ns: now_ns };
        self.failed = (self.failed + 1).min(FAILED_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP_NS: u64 = 2_000;
    const SLICE_NS: u64 = 4_000_000;
    /// A machine that has run for a while.
    const BEGIN_NS: u64 = 3_600_000_000_000;

    /// Dear yields, one after the other, until no thread yields any more: how many.
    fn meet_strangers(contention: &mut Contention, now_ns: &mut u64) -> u64 {
        for met in 1.. {
            *now_ns += SLICE_NS;
            assert!(contention.resumed(*now_ns, SLICE_NS, 0));
            *contention = Contention::from_word(contention.to_word());
            if contention.company(*now_ns, SLICE_NS) == Company::Strangers {
                return met;
            }
        }
        unreachable!()
    }

    /// Until the next trial begins: how long that takes.
    fn next_trial(contention: &mut Contention, now_ns: &mut u64) -> u64 {
        let begin = *now_ns;
        while contention.company(*now_ns, SLICE_NS) == Company::Strangers {
            *contention = Contention::from_word(contention.to_word());
            *now_ns += 1_000_000;
        }
        *now_ns - begin
    }

    fn beside_strangers() -> (Contention, u64) {
        let (mut contention, mut now) = (Contention::new(), BEGIN_NS);
        meet_strangers(&mut contention, &mut now);
        (contention, now)
    }

    #[test]
    fn strangers_are_met_by_their_price() {
        let mut contention = Contention::new();
        assert_eq!(contention.company(BEGIN_NS, 0), Company::Alone);
        assert!(!contention.resumed(BEGIN_NS, DEAR_NS, 0));
        assert_eq!(contention, Contention::new());
        assert!(contention.resumed(BEGIN_NS, DEAR_NS + 1, 0));
        assert!(contention.is_settled());
        assert!(contention.resumed(BEGIN_NS + LOST_MAX_NS, LOST_MAX_NS, 0));
        assert_eq!(contention.company(BEGIN_NS + LOST_MAX_NS, 0), Company::Strangers);
    }

    #[test]
    fn strangers_who_stay_are_told_by_a_few_yields_and_visitors_are_forgiven() {
        let (mut contention, mut now) = (Contention::new(), BEGIN_NS);
        assert_eq!(meet_strangers(&mut contention, &mut now), 2);
        let mut contention = Contention::new();
        for _ in 0..1000 {
            now += 4 * SLICE_NS;
            assert!(contention.resumed(now, SLICE_NS, 0));
            assert!(contention.is_settled());
        }
    }

    #[test]
    fn pauses_grow_while_strangers_stay() {
        let (mut contention, mut now) = beside_strangers();
        for factor in [1, 2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert_eq!(next_trial(&mut contention, &mut now), factor * PAUSE_FIRST_NS);
            now += SETTLE_NS + SLICE_NS;
            assert!(contention.resumed(now, SLICE_NS, 0));
        }
        assert_eq!(PAUSE_MAX_NS, 256 * PAUSE_FIRST_NS);
    }

    #[test]
    fn a_pause_ends_early_when_no_stranger_shows_itself() {
        let (mut contention, mut now) = beside_strangers();
        for _ in 0..7 {
            next_trial(&mut contention, &mut now);
            now += SETTLE_NS + SLICE_NS;
            assert!(contention.resumed(now, SLICE_NS, 0));
        }
        // For a second there are gaps, and then no more.
        let gone = now + 1_000_000_000;
        while contention.company(now, if now < gone { SLICE_NS } else { DEAR_NS })
            == Company::Strangers
        {
            contention = Contention::from_word(contention.to_word());
            now += 1_000_000;
        }
        let (least, step) = (gone + QUIET_NS, 1 << SEEN_SHIFT);
        assert!((least - 1_000_000..=least + step).contains(&now), "{now} of {least}");
    }

    #[test]
    fn threads_that_are_late_together_lose_the_same_time() {
        let (mut contention, now) = (Contention::new(), BEGIN_NS);
        for late in 1..100 {
            assert!(contention.resumed(now + late, SLICE_NS, 0));
            assert!(contention.is_settled());
        }
        let (mut contention, mut now) = beside_strangers();
        for late in 1..100 {
            assert!(contention.resumed(now + late, SLICE_NS, 0));
        }
        assert_eq!(next_trial(&mut contention, &mut now), PAUSE_FIRST_NS);
    }

    #[test]
    fn a_trial_judges_what_begins_when_threads_have_settled() {
        let (mut contention, mut now) = beside_strangers();
        next_trial(&mut contention, &mut now);
        let settled = now + SETTLE_NS;
        assert!(!contention.resumed(settled + SLICE_NS - 1, SLICE_NS, 0));
        assert_eq!(contention.company(settled + SLICE_NS, 0), Company::Alone);
        assert!(!contention.is_settled());
        assert!(contention.resumed(settled + SLICE_NS, SLICE_NS, 0));
        assert_eq!(contention.company(settled + SLICE_NS, 0), Company::Strangers);
    }

    #[test]
    fn a_trial_without_a_dear_yield_says_that_strangers_have_gone() {
        let (mut contention, mut now) = beside_strangers();
        next_trial(&mut contention, &mut now);
        assert!(!contention.resumed(now + SETTLE_NS, CHEAP_NS, 0));
        now += SETTLE_NS + JUDGE_NS;
        assert_eq!(contention.company(now, 0), Company::Alone);
        assert!(contention.is_settled());
    }

    #[test]
    fn a_stranger_soon_after_a_trial_is_the_old_one() {
        let (mut contention, mut now) = beside_strangers();
        let pass = |contention: &mut Contention, now: &mut u64| {
            let pause = next_trial(contention, now);
            *now += SETTLE_NS + JUDGE_NS;
            assert_eq!(contention.company(*now, 0), Company::Alone);
            pause
        };
        for factor in [1, 2, 4] {
            assert_eq!(pass(&mut contention, &mut now), factor * PAUSE_FIRST_NS);
            meet_strangers(&mut contention, &mut now);
        }
        pass(&mut contention, &mut now);
        now += FORGOTTEN_AFTER * QUIET_NS + SLICE_NS;
        meet_strangers(&mut contention, &mut now);
        assert_eq!(next_trial(&mut contention, &mut now), PAUSE_FIRST_NS);
    }

    #[test]
    fn friends_are_no_strangers() {
        let mut contention = Contention::new();
        let few = (SLICE_NS / FRIENDS_TURN_NS) as u32;
        assert!(!contention.resumed(BEGIN_NS, SLICE_NS, few + 1));
        assert_eq!(contention, Contention::new());
        assert!(contention.resumed(BEGIN_NS, SLICE_NS, few));
        assert_ne!(contention, Contention::new());
    }
}
