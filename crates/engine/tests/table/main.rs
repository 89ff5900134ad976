//! Two hosts on a table: a virtual clock, a bad network between their adapters, and programs that
//! talk. What happens is drawn from a seed, and checked from outside: what each program receives is
//! what the other has sent, every program comes to an end, and at the end nothing is left.
//!
//! `SIDESTEP_TABLE_SEEDS=first..last` plays other seeds than the usual ones.

mod program;
mod table;

use std::time::Duration;

use program::{Fate, Plan};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_rdma::faults;
use table::{CLIENT, SERVER, Table};

/// What befalls the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// Nothing but a bad network.
    Calm,
    /// One adapter is cut off in mid-traffic; another is left.
    CutOne,
    /// The links over one adapter are taken out of use in order.
    Relief,
    /// All of them are cut off.
    CutAll,
    /// One host is there no more.
    Death,
}

/// A world by its seed.
struct World {
    seed: u64,
    story: Story,
    adapters: [u8; 2],
    network: faults::Plan,
    connections: usize,
    random: StdRng,
}

impl World {
    fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let story = match seed % 8 {
            0..4 => Story::Calm,
            4 => Story::CutOne,
            5 => Story::Relief,
            6 => Story::CutAll,
            _ => Story::Death,
        };
        let adapters = match story {
            Story::CutOne | Story::Relief => [2, 2],
            _ => [random.random_range(1..=2), random.random_range(1..=2)],
        };
        let is_bad = random.random_bool(0.5);
        let network = faults::Plan {
            seed,
            loss: if is_bad { random.random_range(0.0..0.04) } else { 0.0 },
            duplication: if is_bad { random.random_range(0.0..0.05) } else { 0.0 },
            delay: Duration::from_micros(random.random_range(10..3000)),
            jitter: Duration::from_micros(if is_bad { random.random_range(0..1000) } else { 0 }),
            bandwidth: None,
        };
        let connections = random.random_range(1..=20);
        Self { seed, story, adapters, network, connections, random }
    }

    fn plan(&mut self) -> Plan {
        let mut side = || {
            let random = &mut self.random;
            let len = match random.random_range(0..4) {
                0 => 0,
                1 => random.random_range(0..100),
                _ => random.random_range(0..40_000),
            };
            let aborts = random.random_bool(0.1);
            let aborts_at = aborts.then(|| random.random_range(0..30_000));
            (len, aborts_at)
        };
        Plan { sides: [side(), side()] }
    }

    fn play(mut self) {
        let mut table = Table::lay(self.adapters, self.network, self.seed);
        let plan = self.plan();
        table.begin_talk(plan);
        table.run(Duration::from_secs(3));
        for _ in 1..self.connections {
            let plan = self.plan();
            table.begin_talk(plan);
            let pause = Duration::from_micros(self.random.random_range(0..5000));
            table.run(pause);
        }
        if self.story != Story::Calm {
            table.run_until_settled();
            let while_they_talk = Duration::from_micros(self.random.random_range(0..20_000));
            table.run(while_they_talk);
        }
        let adapter = self.random.random_range(1..=2);
        match self.story {
            Story::Calm => {}
            Story::CutOne if table.is_redundant() => table.cut(CLIENT, adapter),
            Story::CutOne => {}
            Story::Relief => table.relieve(SERVER, adapter),
            Story::CutAll => (1..=2).for_each(|adapter| table.cut(SERVER, adapter)),
            Story::Death => table.kill(self.random.random_range(SERVER..=CLIENT)),
        }
        table.run(Duration::from_secs(200));
        let is_fatal = matches!(self.story, Story::CutAll | Story::Death);
        table.check_programs(if is_fatal { Fate::MayBeReset } else { Fate::MustFinish });
        table.run(Duration::from_secs(1500));
        table.check_nothing_is_left();
    }
}

fn play(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let told = std::panic::catch_unwind(|| World::of(seed).play());
        if let Err(why) = told {
            let World { story, adapters, connections, network, .. } = World::of(seed);
            eprintln!("seed {seed}: {story:?}, {adapters:?}, {connections} talks, {network:?}");
            std::panic::resume_unwind(why);
        }
    }
}

#[test]
fn worlds_by_seed() {
    let asked = std::env::var("SIDESTEP_TABLE_SEEDS").ok();
    let range = asked.as_deref().and_then(|it| it.split_once(".."));
    let range = range.map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()));
    let (first, last) = range.unwrap_or((0, 200));
    play(first..last);
}
