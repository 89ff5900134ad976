//! The first part of a wait: to spin and to yield, by the governor's rules.

use crate::process::options;
use crate::table::learned::Learned;
use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::counts::count;
use sidestep_device::state::{Counters, Slot};
use sidestep_device::sys;
use sidestep_proto::contention::{Company, Contention, DEAR_NS};
use sidestep_proto::governor::{Circumstances, SpinPolicy, Step};
use std::sync::OnceLock;

/// Looks at the cursor between two looks at clock and CPU.
const LOOKS: u32 = 32;

/// Threads of this process that spin now, above them (16 bits each) those that have yielded and do not run again yet, and
/// above these (32 bits) the spins that were ever begun.
struct Waits(AtomicU64);

static WAITS: Waits = Waits(AtomicU64::new(0));

const SPIN: u64 = 1;
const YIELD: u64 = 1 << 16;
const SPIN_BEGUN: u64 = 1 << 32;

impl Waits {
    fn enter(&self, what: u64) {
        self.0.fetch_add(what, Ordering::Relaxed);
    }

    fn leave(&self, what: u64) {
        self.0.fetch_sub(what, Ordering::Relaxed);
    }

    /// A count may be one too low: in the child of a fork by a signal handler, what the handler has interrupted is forgotten
    /// before it ends.
    fn spinning_and_yielding(&self) -> [u32; 2] {
        let waits = self.0.load(Ordering::Relaxed).cast_signed();
        let spinning = waits as i16;
        let yielding = ((waits - i64::from(spinning)) >> 16) as i16;
        [spinning, yielding].map(|it| u32::from(it.max(0).cast_unsigned()))
    }

    /// What was begun between two answers is their difference.
    fn spins_begun(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) >> 32) as u32
    }
}

/// In the child of a fork: the parent's other threads are not there.
pub(crate) fn after_fork_in_child() {
    WAITS.0.store(0, Ordering::Relaxed);
}

/// What the process has learned of strangers that want its CPUs.
pub(crate) struct Neighbours(AtomicU64);

static NEIGHBOURS: Neighbours = Neighbours(AtomicU64::new(Contention::new().to_word()));

impl Neighbours {
    /// Hardly ever news: no write to a line that others read. One of two threads that learn
    /// something at the same time is enough.
    fn change<T>(&self, by: impl FnOnce(&mut Contention) -> T) -> T {
        let word = self.0.load(Ordering::Relaxed);
        let mut contention = Contention::from_word(word);
        let answer = by(&mut contention);
        let new = contention.to_word();
        if new != word {
            let _ = self.0.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        answer
    }

    /// Which thread takes what a wait that begins now gives away.
    #[inline]
    fn company(&self) -> Company {
        if Contention::from_word(self.0.load(Ordering::Relaxed)).is_settled() {
            return Company::Alone;
        }
        self.change(|contention| contention.company(sys::now_ns()))
    }

    /// A thread runs again `late_ns` after it has yielded, when so many spins had been begun. True:
    /// it has met a stranger.
    #[inline]
    fn resumed(&self, now_ns: u64, late_ns: u64, begun_before: u32) -> bool {
        let spins = || WAITS.spins_begun().wrapping_sub(begun_before);
        late_ns > DEAR_NS && self.change(|contention| contention.resumed(now_ns, late_ns, spins()))
    }
}

/// What a wait cost, for the counters of a connection.
#[derive(Default)]
pub struct Cost {
    /// It began when strangers were known.
    pub beside_strangers: bool,
    /// It began with spinning.
    pub spun: bool,
    /// And that was in vain.
    pub spun_in_vain: bool,
    /// Nanoseconds spent spinning.
    pub spin_ns: u64,
    /// Yields.
    pub yields: u64,
    /// Yields that have met a stranger.
    pub strangers: u64,
    /// Nanoseconds for which strangers had the CPU.
    pub strangers_ns: u64,
}

impl Cost {
    /// Adds it to a connection's counters.
    pub fn charge(&self, slot: &Slot) {
        for (counter, n) in self.parts(&slot.counters).into_iter().filter(|(_, n)| *n > 0) {
            count(counter, n);
        }
    }

    /// What it adds to each of these counters.
    pub(crate) fn parts<'a>(&self, to: &'a Counters) -> [(&'a AtomicU64, u64); 8] {
        [
            (&to.waits, 1),
            (&to.waits_beside_strangers, u64::from(self.beside_strangers)),
            (&to.spins, u64::from(self.spun)),
            (&to.spins_in_vain, u64::from(self.spun_in_vain)),
            (&to.spin_ns, self.spin_ns),
            (&to.yields, self.yields),
            (&to.strangers, self.strangers),
            (&to.strangers_ns, self.strangers_ns),
        ]
    }

    fn met_stranger(&mut self, late_ns: u64) {
        self.strangers += 1;
        self.strangers_ns += late_ns;
    }
}

/// Spins and yields by the governor's rules until `ready`. False: time to park.
pub fn linger(
    learned: &Learned,
    peer_cpu: impl Fn() -> Option<u32>,
    ready: impl Fn() -> bool,
) -> (bool, Cost) {
    let mut governor = learned.recall();
    let policy = options::current().spin;
    let peer_elsewhere = peer_cpu().is_some_and(|cpu| cpu != sys::cpu());
    let [spinning, yielding] = WAITS.spinning_and_yielding();
    let company = NEIGHBOURS.company();
    let mut cost = Cost { beside_strangers: company != Company::Alone, ..Cost::default() };
    let cpus = cpus();
    let now = Circumstances { peer_elsewhere, cpus, spinning, yielding, company, policy };
    let mut wait = governor.begin(now);
    let found = loop {
        match wait.next_step() {
            Step::Spin { budget_ns } => {
                let found = spin(u64::from(budget_ns), policy, &peer_cpu, &ready, &mut cost);
                governor.spun(found);
                if found {
                    break true;
                }
            }
            Step::Yield => {
                let (start, begun) = (sys::now_ns(), WAITS.spins_begun());
                WAITS.enter(YIELD);
                sys::yield_cpu();
                WAITS.leave(YIELD);
                cost.yields += 1;
                let end = sys::now_ns();
                if NEIGHBOURS.resumed(end, end - start, begun) {
                    cost.met_stranger(end - start);
                    wait.stop_yielding();
                }
                if ready() {
                    governor.served_by_yield();
                    break true;
                }
            }
            Step::Park => break ready(),
        }
    };
    learned.keep(governor);
    (found, cost)
}

pub(crate) fn spin(
    budget_ns: u64,
    policy: SpinPolicy,
    peer_cpu: &impl Fn() -> Option<u32>,
    ready: &impl Fn() -> bool,
    cost: &mut Cost,
) -> bool {
    WAITS.enter(SPIN_BEGUN + SPIN);
    let start = sys::now_ns();
    let mut passed = 0;
    let found = 'spinning: loop {
        for _ in 0..LOOKS {
            if ready() {
                break 'spinning true;
            }
            core::hint::spin_loop();
        }
        let late = sys::now_ns() - start - passed;
        passed += late;
        // Else another thread had the CPU: one of ours, or a stranger.
        if late <= DEAR_NS {
            cost.spin_ns += late;
        }
        let on_our_cpu = policy == SpinPolicy::Auto && peer_cpu() == Some(sys::cpu());
        if passed > budget_ns || on_our_cpu {
            break false;
        }
    };
    WAITS.leave(SPIN);
    cost.spun = true;
    cost.spun_in_vain = !found;
    found
}

/// Asks the kernel for them now, if no thread has before.
pub(crate) fn count_cpus() {
    cpus();
}

/// CPUs this process may run on, as of its first wait.
pub(crate) fn cpus() -> u32 {
    static CPUS: OnceLock<u32> = OnceLock::new();
    *CPUS.get_or_init(sys::allowed_cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::time::Duration;

    fn spun(ready: impl Fn() -> bool) -> Cost {
        let mut cost = Cost::default();
        spin(1, SpinPolicy::Always, &|| None, &ready, &mut cost);
        cost
    }

    #[test]
    fn threads_that_spin_and_that_yield_are_counted_until_a_fork_forgets_them() {
        let waits = Waits(AtomicU64::new(0));
        waits.enter(YIELD);
        waits.enter(SPIN_BEGUN + SPIN);
        waits.enter(YIELD);
        assert_eq!((waits.spinning_and_yielding(), waits.spins_begun()), ([1, 2], 1));
        waits.leave(SPIN);
        waits.leave(YIELD);
        assert_eq!((waits.spinning_and_yielding(), waits.spins_begun()), ([0, 1], 1));
        waits.0.store(0, Ordering::Relaxed);
        waits.leave(YIELD);
        waits.leave(SPIN);
        assert_eq!(waits.spinning_and_yielding(), [0, 0]);
    }

    #[test]
    fn a_spin_is_fruitful_or_in_vain() {
        let fruitful = spun(|| true);
        assert!(fruitful.spun && !fruitful.spun_in_vain);
        assert_eq!((fruitful.spin_ns, fruitful.strangers), (0, 0));
        let vain = spun(|| false);
        assert!(vain.spun && vain.spun_in_vain);
    }

    #[test]
    fn what_another_thread_took_is_no_spinning() {
        let looks = Cell::new(0);
        let cost = spun(|| {
            // For the spin a look that takes long is no other than one after another thread.
            if looks.replace(looks.get() + 1) == 0 {
                std::thread::sleep(Duration::from_nanos(2 * DEAR_NS));
            }
            false
        });
        assert!(cost.spun_in_vain);
        assert_eq!((cost.spin_ns, looks.get()), (0, LOOKS));
        assert_eq!(cost.strangers, 0, "it may have been one of ours");
    }

    #[test]
    fn each_wait_is_charged_with_all_that_it_cost() {
        // SAFETY: all atomics, for which zero bytes are a value.
        let slot: Box<Slot> = unsafe { Box::new_zeroed().assume_init() };
        let cost = Cost {
            beside_strangers: true,
            spun: true,
            spun_in_vain: false,
            spin_ns: 2,
            yields: 3,
            strangers: 4,
            strangers_ns: 5,
        };
        cost.charge(&slot);
        cost.charge(&slot);
        Cost::default().charge(&slot);
        let counted = slot.counters.all().map(|counter| counter.load(Ordering::Relaxed));
        assert_eq!(counted, [0, 0, 0, 0, 0, 0, 3, 2, 2, 0, 4, 6, 8, 10, 0, 0]);
    }
}
