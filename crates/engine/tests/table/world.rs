//! A world: what befalls two hosts and the programs on them, by its seed.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_engine::Sizes;
use sidestep_rdma::faults;
use sidestep_wire::RmbeSize;

use crate::liar::Liar;
use crate::program::{Fate, Plan, Side};
use crate::table::{CLIENT, SERVER, Table};

/// What befalls the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Story {
    /// Nothing but a bad network.
    Calm,
    /// One adapter is cut off in mid-traffic; another is left.
    Cut,
    /// The same, but only nothing leaves it any more.
    CutOneWay,
    /// It is cut off, and comes back some time later.
    CutForAWhile,
    /// An adapter goes, its host is told, and it comes back in mid-traffic; again and again.
    DownAndUp,
    /// An adapter is taken out, and another one put in its place.
    Replaced,
    /// The links over one adapter are taken out of use in order.
    Relief,
    /// All adapters are cut off.
    CutAll,
    /// One host is there no more.
    Death,
    /// One host dies, and begins anew.
    Rebirth,
    /// Somebody speaks CLC in the name of either host.
    Liar,
    /// Hosts do not run for seconds, one, the other, or both at once, and again before they have recovered.
    Standstill,
}

/// Of so many worlds, each so often as it stands here.
pub(crate) const STORIES: [Story; 20] = [
    Story::Calm,
    Story::Calm,
    Story::Cut,
    Story::Calm,
    Story::CutForAWhile,
    Story::Relief,
    Story::CutAll,
    Story::Death,
    Story::DownAndUp,
    Story::CutOneWay,
    Story::Rebirth,
    Story::Cut,
    Story::DownAndUp,
    Story::Replaced,
    Story::CutForAWhile,
    Story::Rebirth,
    Story::Liar,
    Story::Liar,
    Story::Standstill,
    Story::Standstill,
];

/// A world by its seed.
pub(crate) struct World {
    seed: u64,
    story: Story,
    adapters: [u8; 2],
    network: faults::Plan,
    /// The adapters of a host are on different networks.
    is_split: bool,
    /// The part of the datagrams that is very late.
    late: f64,
    connections: usize,
    random: StdRng,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { story, adapters, connections, network, late, is_split, .. } = self;
        let split = if *is_split { ", split" } else { "" };
        write!(f, "{story:?}, {adapters:?} adapters{split}, {connections} talks, ")?;
        write!(f, "{network:?}, {late} late")
    }
}

impl World {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let story = STORIES[(seed % STORIES.len() as u64) as usize];
        let needs_two = matches!(
            story,
            Story::Cut
                | Story::CutOneWay
                | Story::CutForAWhile
                | Story::DownAndUp
                | Story::Replaced
                | Story::Relief
        );
        let adapters = match (needs_two, random.random_range(0..4)) {
            // Asymmetric: one side has one adapter for both links.
            (true, 0) => [2, 1],
            (true, 1) => [1, 2],
            (true, _) => [2, 2],
            (false, _) => [random.random_range(1..=2), random.random_range(1..=2)],
        };
        let is_bad = random.random_bool(0.5);
        let mut sometimes = |most: f64| if is_bad { random.random_range(0.0..most) } else { 0.0 };
        let (loss, duplication, late) = (sometimes(0.04), sometimes(0.05), sometimes(0.01));
        let jitter = Duration::from_micros(if is_bad { random.random_range(0..1000) } else { 0 });
        let delay = Duration::from_micros(random.random_range(10..3000));
        let network = faults::Plan { seed, loss, duplication, delay, jitter, bandwidth: None };
        let connections = random.random_range(1..=20);
        let is_split = !needs_two && adapters == [2, 2] && random.random_bool(0.5);
        Self { seed, story, adapters, network, is_split, late, connections, random }
    }

    /// What a talk is about, and which host serves it.
    fn plan(&mut self) -> Plan {
        let random = &mut self.random;
        let server = if random.random_bool(0.2) { CLIENT } else { SERVER };
        let adapters: [&[u8]; 2] = if self.is_split { [&[1], &[2]] } else { [&[1, 2], &[2, 1]] };
        let adapters = adapters[random.random_range(0..2)];
        let mut side = || {
            let most = if random.random_bool(0.05) { 400_000 } else { 40_000 };
            let len = match random.random_range(0..4) {
                0 => 0,
                1 => random.random_range(0..100),
                _ => random.random_range(0..most),
            };
            let aborts = random.random_bool(0.1);
            let aborts_at = aborts.then(|| random.random_range(0..30_000));
            // Long buffers are rare, as they are dear to make.
            let mut size = || match random.random_range(0..20) {
                0 => random.random_range(3..=6),
                _ => random.random_range(0..=2),
            };
            let mut size = || RmbeSize::from_low_bits(size());
            let sizes = Sizes { rmbe: size(), send_buffer: size() };
            Side { len, aborts_at, sizes, pause: None }
        };
        Plan { server, adapters, sides: [side(), side()] }
    }

    fn begin_talks(&mut self, table: &mut Table, count: usize) {
        for _ in 0..count {
            let plan = self.plan();
            table.begin_talk(plan);
            self.wait(table, 5000);
        }
    }

    /// Connections that are there for so long that they move to the link that comes back.
    fn begin_chatters(&mut self, table: &mut Table) {
        for _ in 0..self.random.random_range(2..6) {
            let Plan { server, adapters, .. } = self.plan();
            let pause = Duration::from_millis(self.random.random_range(5..40));
            let mut plan = Plan::chatter(server, adapters, pause, Duration::from_secs(8));
            if self.random.random_bool(0.5) {
                plan.sides.swap(SERVER, CLIENT);
            }
            table.begin_talk(plan);
            self.wait(table, 5000);
        }
    }

    /// For so many microseconds at most.
    fn wait(&mut self, table: &mut Table, most: u64) {
        table.run(Duration::from_micros(self.random.random_range(0..most)));
    }

    /// Plays it, and returns its trace.
    pub(crate) fn play(mut self) -> u64 {
        let mut table = Table::lay(self.adapters, self.network, self.late, self.seed);
        if self.is_split {
            table.split();
        }
        self.begin_talks(&mut table, 1);
        table.run(Duration::from_secs(3));
        if self.story == Story::Liar {
            table.let_in(Liar::new(self.random.random(), 100));
        }
        let more = self.connections - 1;
        self.begin_talks(&mut table, more);
        if self.story != Story::Calm {
            table.run_until_settled();
            self.wait(&mut table, 20_000);
        }
        self.befall(&mut table);
        table.run(Duration::from_secs(200));
        table.check_programs(match self.story {
            Story::CutAll | Story::Death | Story::Rebirth => Fate::MayBeReset,
            Story::Calm => Fate::MustFinish,
            // Some talks begin while a link goes.
            _ => Fate::MayStayTcp,
        });
        table.run(Duration::from_secs(1500));
        let is_calm = self.story == Story::Calm;
        let forgets =
            matches!(self.story, Story::Replaced | Story::Death | Story::Rebirth | Story::Liar);
        table.check_drops(is_calm, forgets);
        table.check_liar();
        table.check_nothing_is_left();
        table.trace()
    }

    fn befall(&mut self, table: &mut Table) {
        // Of the side that has two.
        let host = match self.adapters {
            [2, 1] => SERVER,
            [1, 2] => CLIENT,
            _ => self.random.random_range(SERVER..=CLIENT),
        };
        let adapter = self.random.random_range(1..=self.adapters[host]);
        let survives = table.survives_without(host, adapter);
        match self.story {
            Story::Calm => {}
            Story::Liar => {
                for _ in 0..10 {
                    self.wait(table, 200_000);
                    self.begin_talks(table, 2);
                }
            }
            Story::Cut if survives => table.cut(host, adapter),
            Story::CutOneWay if survives => table.silence(host, adapter),
            Story::CutForAWhile if survives => {
                table.cut(host, adapter);
                self.wait(table, 1_000_000);
                self.begin_chatters(table);
                table.mend(host, adapter);
                self.spread_again(table);
            }
            Story::DownAndUp if survives => self.go_and_come(table, host, adapter),
            Story::Replaced if survives => {
                table.take_out(host, adapter);
                self.wait(table, 3_000_000);
                self.begin_chatters(table);
                table.put_in(host, adapter);
                self.spread_again(table);
            }
            Story::Cut
            | Story::CutOneWay
            | Story::CutForAWhile
            | Story::DownAndUp
            | Story::Replaced => {}
            Story::Relief => table.relieve(SERVER, adapter),
            Story::Standstill => self.stand_still(table),
            Story::CutAll => (1..=2).for_each(|adapter| table.cut(SERVER, adapter)),
            Story::Death => table.kill(self.random.random_range(SERVER..=CLIENT)),
            Story::Rebirth => {
                let host = self.random.random_range(SERVER..=CLIENT);
                table.kill(host);
                self.wait(table, 8_000_000);
                table.bear(host);
                self.begin_talks(table, 3);
                // By then the survivor knows: it tests links that are silent.
                table.run(Duration::from_secs(60));
                self.talk_freshly(table, 3);
            }
        }
    }

    /// Longer in all than a peer is waited for, but never that long while the other one runs. In between they run for
    /// moments.
    fn stand_still(&mut self, table: &mut Table) {
        self.begin_chatters(table);
        for _ in 0..self.random.random_range(3..8) {
            let first = self.random.random_range(SERVER..=CLIENT);
            let time = Duration::from_millis(self.random.random_range(100..9000));
            match self.random.random_range(0..3) {
                0 => table.stand_still(first, time),
                1 => {
                    table.stand_still(first, time);
                    self.wait(table, 2_000_000);
                    table.stand_still(1 - first, time);
                }
                // As long as the other one stands still, and some seconds more.
                _ => {
                    let longer = Duration::from_millis(self.random.random_range(8000..20_000));
                    table.stand_still(first, time + longer);
                    self.wait(table, 1_000_000);
                    table.stand_still(1 - first, longer);
                }
            }
            if self.random.random_bool(0.3) {
                self.begin_talks(table, 1);
            }
            table.run_until_all_go_on();
            self.wait(table, 2_000_000);
        }
    }

    /// An adapter that goes and comes may do so while the last time is still being dealt with.
    fn go_and_come(&mut self, table: &mut Table, host: usize, adapter: u8) {
        for _ in 0..self.random.random_range(1..=3) {
            if self.network.delay < Duration::from_millis(1) {
                // A link that is given up between a server's Accept and the Confirm resets the connection
                // (docs/limitations.md). It takes an RDMA that is faster than TCP.
                table.run(Duration::from_millis(10));
            }
            if !table.survives_without(host, adapter) {
                break;
            }
            table.set_up(host, adapter, false);
            self.wait(table, 2_000_000);
            self.begin_talks(table, 1);
            self.begin_chatters(table);
            table.set_up(host, adapter, true);
            self.wait(table, 5_000_000);
            self.begin_talks(table, 1);
        }
        self.spread_again(table);
    }

    /// An adapter is back: sooner or later there are two links again, and the next connections use
    /// both.
    fn spread_again(&mut self, table: &mut Table) {
        // What it has led to may not be known yet.
        table.run(Duration::from_secs(3));
        table.run_until_redundant();
        self.talk_freshly(table, 4);
        if self.adapters == [2, 2] {
            table.check_spread();
        }
    }

    /// Talks of which none may fail to begin with SMC-R.
    fn talk_freshly(&mut self, table: &mut Table, count: usize) {
        let first = table.talks();
        for _ in 0..count {
            let plan = Plan { server: SERVER, ..self.plan() };
            table.begin_talk(plan);
            table.run(Duration::from_millis(20));
        }
        table.run(Duration::from_secs(5));
        table.check_established(first);
    }
}
