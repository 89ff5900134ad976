//! The first part of a wait: to spin and to yield, by the governor's rules.

use crate::process::options;
use crate::table::learned::Learned;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use sidestep_device::counts::count;
use sidestep_device::state::{Counters, Slot};
use sidestep_device::sys;
use sidestep_proto::contention::{Company, Contention, DEAR_NS};
use sidestep_proto::governor::{Circumstances, SpinPolicy, Step};
use std::sync::OnceLock;

/// Looks at the cursor between two looks at clock and CPU.
const LOOKS: u32 = 32;

/// Threads of this process that spin now, and above them the spins that were ever begun.
struct Spins(AtomicU64);

static SPINS: Spins = Spins(AtomicU64::new(0));

/// In that word, a spin that begins.
const SPIN_BEGUN: u64 = 1 << 32 | 1;

impl Spins {
    fn enter(&self) {
        self.0.fetch_add(SPIN_BEGUN, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// A count may be one too low: in the child of a fork by a signal handler, what the handler has interrupted is forgotten
    /// before it ends.
    fn now(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) as i32).max(0).cast_unsigned()
    }

    /// What was begun between two answers is their difference.
    fn begun(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) >> 32) as u32
    }
}

/// What threads of this process do on each CPU. Each has a cache line that hardly ever leaves it: with one line for all,
/// ten connections by threads lost a fortieth of their rate.
struct Cpus([Cpu; 128]);

#[repr(align(64))]
struct Cpu {
    /// Threads that have yielded there and do not run again yet.
    yielded: AtomicI32,
    /// When a wait last began there, by [`sys::now_ns`]; told beside strangers only.
    waited_ns: AtomicU64,
}

impl Cpu {
    const fn new() -> Self {
        Self { yielded: AtomicI32::new(0), waited_ns: AtomicU64::new(0) }
    }
}

static CPUS: Cpus = Cpus([const { Cpu::new() }; 128]);

impl Cpus {
    /// Those beyond the last share lines, and their threads are counted together.
    fn of(&self, cpu: u32) -> &Cpu {
        &self.0[cpu as usize % self.0.len()]
    }

    /// Threads that have yielded and wait for these two. See [`Spins::now`] for a count that is too low.
    fn waiting_for(&self, one: u32, other: u32) -> u32 {
        let waiting = |cpu| self.of(cpu).yielded.load(Ordering::Relaxed).max(0).cast_unsigned();
        waiting(one) + waiting(other)
    }

    /// Yields, and is counted until it runs again.
    fn yield_cpu(&self) {
        let here = &self.of(sys::cpu()).yielded;
        here.fetch_add(1, Ordering::Relaxed);
        sys::yield_cpu();
        here.fetch_sub(1, Ordering::Relaxed);
    }

    /// A wait begins on a CPU. How long ago the last one did, if one has.
    fn waits(&self, cpu: u32, now_ns: u64) -> u64 {
        match self.of(cpu).waited_ns.swap(now_ns, Ordering::Relaxed) {
            0 => 0,
            before => now_ns.saturating_sub(before),
        }
    }
}

/// In the child of a fork: the parent's other threads are not there.
pub(crate) fn after_fork_in_child() {
    SPINS.0.store(0, Ordering::Relaxed);
    // Pages that were never written stay so.
    for Cpu { yielded, .. } in &CPUS.0 {
        if yielded.load(Ordering::Relaxed) != 0 {
            yielded.store(0, Ordering::Relaxed);
        }
    }
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

    /// Whether some are known, or a trial looks for them.
    #[inline]
    fn are_known(&self) -> bool {
        !Contention::from_word(self.0.load(Ordering::Relaxed)).is_settled()
    }

    /// Which thread takes what a wait that begins now on this CPU gives away.
    #[inline]
    fn company(&self, here: u32) -> Company {
        if !self.are_known() {
            return Company::Alone;
        }
        let now = sys::now_ns();
        let gap = CPUS.waits(here, now);
        self.change(|contention| contention.company(now, gap))
    }

    /// A thread runs again `late_ns` after it has yielded, when so many spins had been begun. True:
    /// it has met a stranger.
    #[inline]
    fn resumed(&self, now_ns: u64, late_ns: u64, begun_before: u32) -> bool {
        let spins = || SPINS.begun().wrapping_sub(begun_before);
        late_ns > DEAR_NS && self.change(|contention| contention.resumed(now_ns, late_ns, spins()))
    }
}

/// Whether strangers want the CPUs of this process, as far as its last wait knows.
pub(super) fn are_strangers_known() -> bool {
    NEIGHBOURS.are_known()
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
    let here = sys::cpu();
    let elsewhere = peer_cpu().filter(|cpu| *cpu != here);
    let company = NEIGHBOURS.company(here);
    let mut cost = Cost { beside_strangers: company != Company::Alone, ..Cost::default() };
    let now = Circumstances {
        peer_elsewhere: elsewhere.is_some(),
        cpus: cpus(),
        spinning: SPINS.now(),
        yielding: elsewhere.map_or(0, |there| CPUS.waiting_for(here, there)),
        company,
        policy,
    };
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
                let (start, begun) = (sys::now_ns(), SPINS.begun());
                CPUS.yield_cpu();
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
    SPINS.enter();
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
    SPINS.leave();
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
    fn threads_that_spin_are_counted_until_a_fork_forgets_them() {
        let spins = Spins(AtomicU64::new(0));
        spins.enter();
        spins.enter();
        spins.leave();
        assert_eq!((spins.now(), spins.begun()), (1, 2));
        spins.0.store(0, Ordering::Relaxed);
        spins.leave();
        assert_eq!(spins.now(), 0);
    }

    #[test]
    fn threads_that_have_yielded_are_counted_for_their_cpu() {
        let cpus = Cpus([const { Cpu::new() }; 128]);
        cpus.of(3).yielded.store(2, Ordering::Relaxed);
        cpus.of(131).yielded.fetch_add(1, Ordering::Relaxed);
        cpus.of(4).yielded.store(-1, Ordering::Relaxed);
        assert_eq!([cpus.waiting_for(3, 4), cpus.waiting_for(4, 5)], [3, 0]);
        cpus.yield_cpu();
        assert_eq!(cpus.waiting_for(3, 3), 6);
    }

    #[test]
    fn the_last_wait_is_remembered_for_its_cpu() {
        let cpus = Cpus([const { Cpu::new() }; 128]);
        assert_eq!([cpus.waits(1, 500), cpus.waits(2, 600)], [0, 0], "none has begun there");
        assert_eq!([cpus.waits(1, 700), cpus.waits(2, 700)], [200, 100]);
        assert_eq!(cpus.waits(1, 600), 0, "a thread that has lost its CPU in between");
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
