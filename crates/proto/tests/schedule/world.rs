//! A world: a machine, its strangers and its pairs, by its seed.

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::Ns;
use crate::machine::{Event, FOR_EVER, Group, Machine, PERIOD_NS, Rules, Thread};
use crate::pairs::{Costs, Habits, Ledger, Manner, Pairs};
use crate::queue::{ORDINARY, Yielding};

const MS: Ns = 1_000_000;
const CPUS: usize = 2;
/// Timers that are no nap's.
const COME: u64 = u64::MAX;
const GO: u64 = u64::MAX - 1;
const END: u64 = u64::MAX - 2;
const COUNT: u64 = u64::MAX - 3;

/// Where the two ends of pairs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// All on one CPU.
    OneCpu,
    /// Both ends of a pair on one CPU.
    Together,
    /// Each end on a CPU of its own.
    Apart,
}

/// A world by its seed.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) places: Places,
    pub(crate) pairs: usize,
    pub(crate) habits: Habits,
    /// Endless loops on each CPU.
    pub(crate) loops: usize,
    /// The loops are of the pairs' group.
    pub(crate) same_group: bool,
    /// Of the pairs' group and of the loops', if that is another one.
    pub(crate) weights: [i64; 2],
    /// Of the pairs' group, in each period.
    pub(crate) quota: Option<Ns>,
    /// A CPU stands still so often, for so long.
    pub(crate) steal: Option<(Ns, Ns)>,
    /// The loops run from then to then.
    pub(crate) from: Ns,
    pub(crate) to: Ns,
    /// From when on transactions count, and until when.
    pub(crate) counts_from: Ns,
    pub(crate) length: Ns,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What befell.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Transactions in a second.
    pub(crate) rate: f64,
    pub(crate) p99: Ns,
    pub(crate) ledgers: [Ledger; 2],
    /// CPU time of the pairs for a transaction.
    pub(crate) cpu: Ns,
}

impl World {
    /// A machine with pairs, and no strangers.
    pub(crate) fn of(seed: u64) -> (Self, StdRng) {
        let mut random = StdRng::seed_from_u64(seed);
        let slices = [1_400_000, 2_800_000, 4 * MS];
        let rules = Rules {
            slice: slices[random.random_range(0..3)],
            tick: [4 * MS, 4 * MS, MS][random.random_range(0..3)],
            yielding: match random.random_bool(0.7) {
                true => Yielding::MovesRuntime,
                false => Yielding::MovesDeadline,
            },
        };
        let places = [Places::OneCpu, Places::Together, Places::Apart];
        let mut work = || match random.random_range(0..4) {
            0 => random.random_range(5_000..20_000),
            _ => random.random_range(300..3_000),
        };
        let work = [work(), work()];
        let world = Self {
            rules,
            places: places[random.random_range(0..3)],
            pairs: if random.random_bool(0.4) { 1 } else { random.random_range(2..=10) },
            habits: Habits {
                work,
                messages: if random.random_bool(0.3) {
                    random.random_range(1..50)
                } else {
                    FOR_EVER
                },
            },
            loops: 0,
            same_group: true,
            weights: [ORDINARY; 2],
            quota: None,
            steal: None,
            from: 0,
            to: FOR_EVER,
            counts_from: 0,
            length: 200 * MS,
        };
        (world, random)
    }

    /// The same with strangers all the time.
    pub(crate) fn beside(seed: u64) -> Self {
        let (mut world, mut random) = Self::of(seed);
        world.loops = random.random_range(1..=4);
        world.same_group = random.random_bool(0.6);
        if random.random_bool(0.15) {
            world.same_group = false;
            world.weights[random.random_range(0..2)] *= 20;
        }
        if random.random_bool(0.15) {
            world.same_group = false;
            world.quota = Some(PERIOD_NS / random.random_range(1..4));
        }
        if random.random_bool(0.15) {
            let every = random.random_range(30..200) * MS;
            world.steal = Some((every, random.random_range(1..8) * MS));
        }
        // Pauses have grown by then.
        (world.counts_from, world.length) = (500 * MS, 1_000 * MS);
        world
    }

    /// Plays it.
    pub(crate) fn play(&self, manner: Manner, costs: Costs) -> Outcome {
        let mut machine = Machine::new(CPUS, self.rules);
        let ours = machine.add_group(self.weights[0], self.quota);
        let theirs: Group = match self.same_group {
            true => ours,
            false => machine.add_group(self.weights[1], None),
        };
        let strangers: Vec<Thread> = (0..CPUS * self.loops)
            .map(|number| machine.add_thread(number % CPUS, theirs, ORDINARY))
            .collect();
        let ours_threads = strangers.len()..strangers.len() + 2 * self.pairs;
        let mut pairs = Pairs::new(CPUS, manner, costs, self.habits, self.counts_from);
        for pair in 0..self.pairs {
            let cpus = match self.places {
                Places::OneCpu => [0, 0],
                Places::Together => [pair % CPUS; 2],
                Places::Apart => [pair % CPUS, (pair + 1) % CPUS],
            };
            pairs.begin(&mut machine, cpus, [ours; 2]);
        }
        machine.call_after(self.from, COME);
        machine.call_after(self.to, GO);
        machine.call_after(self.counts_from, COUNT);
        machine.call_after(self.length, END);
        if let Some((every, ns)) = self.steal {
            for turn in 1..=self.length / every {
                machine.stand_still_after(turn * every, turn as usize % CPUS, ns);
            }
        }
        let mut used_before = 0;
        let used = |machine: &Machine| ours_threads.clone().map(|it| machine.used(it)).sum::<Ns>();
        loop {
            match machine.next() {
                Event::Timer(COME) => strangers.iter().for_each(|it| machine.wake(*it, None)),
                Event::Timer(GO) => strangers.iter().for_each(|it| machine.stop(*it)),
                Event::Timer(COUNT) => used_before = used(&machine),
                Event::Timer(END) => break,
                Event::Timer(nap) => pairs.ring(&mut machine, nap),
                Event::Ran(thread) => pairs.ran(&mut machine, thread),
            }
        }
        let used = used(&machine) - used_before;
        let (mut times, ledgers) = pairs.end(machine.now());
        times.sort_unstable();
        let count = times.len();
        Outcome {
            rate: count as f64 * 1e9 / (self.length - self.counts_from) as f64,
            p99: times.get(count.saturating_sub(1 + count / 100)).copied().unwrap_or(FOR_EVER),
            ledgers,
            cpu: used / (count as u64).max(1),
        }
    }
}
