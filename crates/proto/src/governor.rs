//! Spin, yield or sleep: the decision that wins or loses the product.
//!
//! A waiter can learn of new data in three ways, and each is right somewhere:
//!
//! * **Spin** on the peer's cursor: 0.1 µs a trip while the peer runs on another
//!   CPU. Hundreds of times slower than TCP when it spins on the CPU that the
//!   peer needs.
//! * **Yield** the CPU a few times: the best there is when the peer shares the
//!   CPU, or when many threads share few CPUs. With a stranger computing on the
//!   same CPU, one yield can cost milliseconds.
//! * **Park** in the kernel: costs two context switches and, on a virtual
//!   machine, 20 to 35 µs to wake an idle CPU. Always correct. Of two ways to park a
//!   *nap* on the cursor itself is half as dear for both sides, but sees nothing
//!   else that may happen, so it is short.
//!
//! The rules, in the order in which [`Wait::next_step`] gives them:
//!
//! 1. Spin only while the peer was last seen on a CPU other than ours, a CPU is left
//!    beside those of spinners, and at most [`CROWD`] threads of the process that have
//!    yielded wait for these two: a pair of threads that find each other by spinning
//!    keep their CPUs for a whole slice. At most for the learned budget. A fruitful spin
//!    doubles the budget up to [`SPIN_BUDGET_NS_MAX`], about what a wake-up costs; a
//!    fruitless one halves it down to [`SPIN_BUDGET_NS_MIN`]. Beside strangers at most
//!    [`SPIN_BESIDE_STRANGERS_NS`]: a peer that runs answers by then, and one that
//!    waits for its CPU does not for milliseconds.
//! 2. The budget never reaches zero, and every [`PROBE_EVERY`]-th wait gets the
//!    full one: two sides that fell asleep in step would otherwise never find
//!    out that they need not.
//! 3. Yield at most [`YIELDS_MAX`] times; beside strangers never ([`crate::contention`]).
//! 4. Nap at most [`NAP_NS`]. A nap that nothing ended bars naps for a while: a connection
//!    that rests is not woken to fall asleep again.
//! 5. Park.
//!
//! A waker has one choice: which bell wakes a loop that sleeps ([`Governor::pulls`]).

use crate::contention::Company;

/// Full spin budget in nanoseconds: one wake-up on a virtual machine.
pub const SPIN_BUDGET_NS_MAX: u32 = 40_000;
/// Smallest spin budget in nanoseconds: a handful of looks at the cursor.
pub const SPIN_BUDGET_NS_MIN: u32 = 1_000;
/// So many waits in succession that a yield has ended, and the next one sleeps: a thread that is
/// woken gets a CPU that is idle, and one that yields stays where it is, though all threads of two
/// processes may have met on one CPU of many.
pub const YIELDED_MAX: u32 = 256;
/// Every how many waits the full budget is tried again.
pub const PROBE_EVERY: u32 = 128;
/// Yields in one wait.
pub const YIELDS_MAX: u32 = 12;
/// Threads of the process that have yielded and wait for the two CPUs on which a pair finds each other by spinning. In a
/// slice a pair has a thousand answers and more, and each of those that wait has one late: so many are one of a hundred.
pub const CROWD: u32 = 10;
/// Longest spin in nanoseconds beside strangers.
pub const SPIN_BESIDE_STRANGERS_NS: u32 = 5_000;
/// Longest nap in nanoseconds: so much later a waiter may learn that its peer was killed. It is longer than a tick of the
/// scheduler (4 ms at `CONFIG_HZ=250`, 10 ms at 100) and a short wait together. A timer that would expire before the next
/// tick is the next one of its CPU, and to cancel it sets the CPU's clock anew: 8 µs on a virtual machine, where a hundred
/// sleepers paid that after each tick.
pub const NAP_NS: u64 = 12_000_000;
/// Longest time that a [`Bar`] is up, in waits.
const BARRED_MAX: u8 = 64;

/// When waiters may spin (`spin` in the configuration).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinPolicy {
    /// By the rules of this module.
    #[default]
    Auto,
    /// Park at once.
    Never,
    /// Spin the full budget whatever was learned: dedicated CPUs.
    Always,
}

/// What a waiter does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look at the cursor until `budget_ns` have passed or the peer turns up on
    /// our CPU.
    Spin {
        /// Upper bound in nanoseconds.
        budget_ns: u32,
    },
    /// Give the CPU away once, then look.
    Yield,
    /// Sleep in the kernel.
    Park,
}

/// What is known about the peer and this machine when a wait begins.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// The peer was last seen on another CPU.
    pub peer_elsewhere: bool,
    /// CPUs that the process may run on.
    pub cpus: u32,
    /// Threads of the process that spin now.
    pub spinning: u32,
    /// Threads of the process that have yielded on this CPU or on the peer's, and do not run again yet.
    pub yielding: u32,
    /// The thread that takes what is given away.
    pub company: Company,
    /// The operator's word.
    pub policy: SpinPolicy,
}

impl Circumstances {
    /// There is a CPU for this thread besides those of the spinners.
    fn has_cpu_to_spare(&self) -> bool {
        self.spinning + 1 < self.cpus
    }

    /// By spinning it would find the peer soon, and not keep a crowd from the CPU.
    fn may_spin(&self) -> bool {
        self.peer_elsewhere && self.has_cpu_to_spare() && self.yielding <= CROWD
    }
}

/// What one waiter has learned. A few words, owned by the waiter.
#[derive(Clone, Copy, Debug)]
pub struct Governor {
    spin_budget_ns: u32,
    waits: u32,
    /// Waits in succession that a yield has ended.
    yielded: u32,
    naps: Bar,
    pulls: Bar,
}

/// Bars what was in vain: for one wait, and for twice as many each time that it is in vain again,
/// up to 64. One that was fruitful lifts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bar {
    penalty: u8,
    barred_for: u8,
}

impl Bar {
    /// Not up.
    pub const LIFTED: Self = Self { penalty: 0, barred_for: 0 };

    /// Whether it may be tried in this wait; one wait less is barred afterwards.
    pub fn admits(&mut self) -> bool {
        let is_up = self.barred_for > 0;
        self.barred_for = self.barred_for.saturating_sub(1);
        !is_up
    }

    /// It was tried.
    pub fn ended(&mut self, fruitful: bool) {
        let longer = (self.penalty * 2).clamp(1, BARRED_MAX);
        self.penalty = if fruitful { 0 } else { longer };
        self.barred_for = self.penalty;
    }
}

impl Default for Governor {
    fn default() -> Self {
        Self::new()
    }
}

impl Governor {
    /// Knows nothing yet: tries the full budget.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spin_budget_ns: SPIN_BUDGET_NS_MAX,
            waits: 0,
            yielded: 0,
            naps: Bar::LIFTED,
            pulls: Bar::LIFTED,
        }
    }

    /// What was learned, as four words to keep anywhere.
    #[must_use]
    pub const fn to_words(self) -> [u32; 4] {
        let Self { spin_budget_ns, waits, yielded, naps, pulls } = self;
        let bars = [naps.penalty, naps.barred_for, pulls.penalty, pulls.barred_for];
        [spin_budget_ns, waits, yielded, u32::from_le_bytes(bars)]
    }

    /// The inverse of [`Self::to_words`].
    #[must_use]
    pub const fn from_words([spin_budget_ns, waits, yielded, bars]: [u32; 4]) -> Self {
        let [a, b, c, d] = bars.to_le_bytes();
        let naps = Bar { penalty: a, barred_for: b };
        let pulls = Bar { penalty: c, barred_for: d };
        Self { spin_budget_ns, waits, yielded, naps, pulls }
    }

    /// Begins a wait and returns its course.
    pub fn begin(&mut self, now: Circumstances) -> Wait {
        self.waits = self.waits.wrapping_add(1);
        let learned_ns = match self.waits.is_multiple_of(PROBE_EVERY) {
            true => SPIN_BUDGET_NS_MAX,
            false => self.spin_budget_ns,
        };
        let spin_ns = match (now.policy, now.company) {
            (SpinPolicy::Never, _) => 0,
            (SpinPolicy::Always, _) => SPIN_BUDGET_NS_MAX,
            (SpinPolicy::Auto, _) if !now.may_spin() => 0,
            (SpinPolicy::Auto, Company::Alone) => learned_ns,
            (SpinPolicy::Auto, _) => learned_ns.min(SPIN_BESIDE_STRANGERS_NS),
        };
        let yields = match (now.policy, now.company) {
            (SpinPolicy::Never, _) | (_, Company::Strangers) => 0,
            _ if now.has_cpu_to_spare() && self.yielded >= YIELDED_MAX => 0,
            (_, Company::Alone) => YIELDS_MAX,
        };
        // Until a yield ends this wait, too.
        if yields == 0 {
            self.yielded = 0;
        }
        Wait { spin_ns, yields }
    }

    /// A yield has ended the wait.
    pub fn served_by_yield(&mut self) {
        self.yielded = self.yielded.saturating_add(1);
    }

    /// A spin has ended. `fruitful`: the data came while spinning.
    pub fn spun(&mut self, fruitful: bool) {
        self.spin_budget_ns = if fruitful {
            self.yielded = 0;
            (self.spin_budget_ns * 2).min(SPIN_BUDGET_NS_MAX)
        } else {
            (self.spin_budget_ns / 2).max(SPIN_BUDGET_NS_MIN)
        };
    }

    /// Whether a wait that has come to its end without data may nap before it parks.
    pub fn may_nap(&mut self) -> bool {
        self.naps.admits()
    }

    /// A nap has ended. `fruitful`: something had happened on the connection.
    pub fn napped(&mut self, fruitful: bool) {
        self.naps.ended(fruitful);
    }

    /// Strangers are known, and a loop that sleeps is to be woken. Whether by a bell that pulls it to the CPU of this thread, which
    /// costs more than another bell: it ran `elsewhere`, and has not stayed there after all pulls of late.
    pub fn pulls(&mut self, elsewhere: bool) -> bool {
        let pulls = elsewhere && self.pulls.admits();
        // In vain, unless it is seen here before the next time.
        if pulls || !elsewhere {
            self.pulls.ended(!elsewhere);
        }
        pulls
    }
}

/// The course of one wait: at most one spin, then some yields, then parking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    spin_ns: u32,
    yields: u32,
}

impl Wait {
    /// The next step; ends in [`Step::Park`].
    pub fn next_step(&mut self) -> Step {
        if self.spin_ns > 0 {
            let budget_ns = core::mem::take(&mut self.spin_ns);
            return Step::Spin { budget_ns };
        }
        if self.yields > 0 {
            self.yields -= 1;
            return Step::Yield;
        }
        Step::Park
    }

    /// No more yields in this wait.
    pub fn stop_yielding(&mut self) {
        self.yields = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Circumstances = Circumstances {
        peer_elsewhere: true,
        cpus: 2,
        spinning: 0,
        yielding: 0,
        company: Company::Alone,
        policy: SpinPolicy::Auto,
    };

    fn steps(governor: &mut Governor, now: Circumstances) -> std::vec::Vec<Step> {
        let mut wait = governor.begin(now);
        let mut all = std::vec![wait.next_step()];
        while *all.last().unwrap() != Step::Park {
            all.push(wait.next_step());
        }
        all
    }

    #[test]
    fn spins_only_while_the_peer_runs_elsewhere() {
        let mut g = Governor::new();
        assert!(matches!(steps(&mut g, FREE)[0], Step::Spin { .. }));
        assert_eq!(steps(&mut g, Circumstances { peer_elsewhere: false, ..FREE })[0], Step::Yield);
        assert_eq!(steps(&mut g, Circumstances { spinning: 1, ..FREE })[0], Step::Yield);
    }

    #[test]
    fn spins_only_where_no_crowd_that_has_yielded_waits_for_the_cpu() {
        let mut g = Governor::new();
        let crowd = |yielding| Circumstances { yielding, ..FREE };
        assert_eq!(steps(&mut g, crowd(11))[0], Step::Yield);
        assert!(matches!(steps(&mut g, crowd(10))[0], Step::Spin { .. }));
    }

    #[test]
    fn pulls_in_vain_bar_pulls_for_a_growing_while() {
        let mut g = Governor::new();
        for barred in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(g.pulls(true));
            assert!((0..barred).all(|_| !g.pulls(true)));
        }
        assert!(!g.pulls(false), "it is here");
        assert!(g.pulls(true));
    }

    /// Threads that have met on one CPU of many yield to each other for ever otherwise.
    #[test]
    fn yields_end_where_a_cpu_is_idle_however_many_threads_have_yielded() {
        let mut g = Governor::new();
        for _ in 0..YIELDED_MAX {
            g.served_by_yield();
        }
        let together = Circumstances { peer_elsewhere: false, yielding: 30, ..FREE };
        assert_eq!(steps(&mut g, together), [Step::Park]);
    }

    #[test]
    fn never_means_park_at_once() {
        let mut g = Governor::new();
        let never = Circumstances { policy: SpinPolicy::Never, ..FREE };
        assert_eq!(steps(&mut g, never), [Step::Park]);
    }

    #[test]
    fn fruitless_spins_shrink_the_budget_but_it_is_probed_again() {
        let mut g = Governor::new();
        for _ in 0..20 {
            g.begin(FREE);
            g.spun(false);
        }
        assert_eq!(steps(&mut g, FREE)[0], Step::Spin { budget_ns: SPIN_BUDGET_NS_MIN });
        let full = Step::Spin { budget_ns: SPIN_BUDGET_NS_MAX };
        assert!((0..PROBE_EVERY).any(|_| steps(&mut g, FREE)[0] == full));
    }

    #[test]
    fn a_nap_that_nothing_ended_bars_naps_for_a_growing_while() {
        let mut g = Governor::new();
        for barred in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(g.may_nap());
            g.napped(false);
            g = Governor::from_words(g.to_words());
            assert_eq!((0..1000).take_while(|_| !g.may_nap()).count(), barred);
        }
        g.napped(true);
        assert!(g.may_nap() && g.may_nap());
    }

    #[test]
    fn beside_strangers_spins_are_short_and_no_cpu_is_given_away() {
        let mut g = Governor::new();
        let strangers = Circumstances { company: Company::Strangers, ..FREE };
        let short = Step::Spin { budget_ns: SPIN_BESIDE_STRANGERS_NS };
        assert_eq!(steps(&mut g, strangers), [short, Step::Park]);
    }
}
