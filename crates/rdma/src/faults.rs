//! A bad network, in front of an adapter: what goes out may be lost, doubled, late or slow.
//!
//! ```text
//!   push ──> lost? ──> doubled? ──> the line, so many bytes a second ──> delay + jitter ──> pop
//! ```
//!
//! All chances come from one seed: the same datagrams at the same moments have the same fate. Jitter
//! is drawn for each datagram, so it changes their order.
//!
//! A network that holds nothing up is asked for [fates](Faults::draw) alone: what has none but to go its
//! way need not enter it.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How bad the network is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Where all chances come from.
    pub seed: u64,
    /// The part of the datagrams that is lost, `0.0 <= loss <= 1.0`.
    pub loss: f64,
    /// The part of the others that comes twice, `0.0 <= duplication <= 1.0`.
    pub duplication: f64,
    /// How long each takes at least: the distance.
    pub delay: Duration,
    /// How much longer each takes at most.
    pub jitter: Duration,
    /// Bytes that the line carries in a second; `None`: any number.
    pub bandwidth: Option<u64>,
}

impl Plan {
    /// A network without faults or distance.
    pub const PERFECT: Self = Self {
        seed: 0,
        loss: 0.0,
        duplication: 0.0,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        bandwidth: None,
    };
}

/// What becomes of a datagram that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is lost.
    Lost,
    /// It goes its way.
    Once,
    /// Two of it go their ways.
    Twice,
}

/// Datagrams under way; any more are lost.
pub const UNDER_WAY_MAX: usize = 4096;

/// What is on its way through a bad network.
#[derive(Debug)]
pub struct Faults<T> {
    plan: Plan,
    random: StdRng,
    /// By arrival, and by number if two arrive at once.
    under_way: BTreeMap<(Duration, u64), T>,
    pushed: u64,
    /// When the line has carried what it was given.
    line_is_free: Duration,
}

impl<T: AsRef<[u8]> + Clone> Faults<T> {
    /// A network as planned, empty.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            random: StdRng::seed_from_u64(plan.seed),
            under_way: BTreeMap::new(),
            pushed: 0,
            line_is_free: Duration::ZERO,
        }
    }

    /// A datagram is sent.
    pub fn push(&mut self, datagram: T, now: Duration) {
        let fate = self.draw();
        self.submit(datagram, fate, now);
    }

    /// The fate of the next datagram.
    pub fn draw(&mut self) -> Fate {
        // Drawn whatever comes of it: a plan with less loss has the same fate otherwise.
        let [loss, duplication]: [f64; 2] = self.random.random();
        if loss < self.plan.loss {
            Fate::Lost
        } else if duplication < self.plan.duplication {
            Fate::Twice
        } else {
            Fate::Once
        }
    }

    /// A datagram with this fate is sent.
    pub fn submit(&mut self, datagram: T, fate: Fate, now: Duration) {
        match fate {
            Fate::Lost => {}
            Fate::Once => self.carry(datagram, now),
            Fate::Twice => {
                self.carry(datagram.clone(), now);
                self.carry(datagram, now);
            }
        }
    }

    /// What is not lost arrives at once, in order.
    #[must_use]
    pub const fn is_instant(&self) -> bool {
        let Plan { delay, jitter, bandwidth, .. } = &self.plan;
        delay.is_zero() && jitter.is_zero() && bandwidth.is_none()
    }

    fn carry(&mut self, datagram: T, now: Duration) {
        let late = match self.plan.jitter {
            Duration::ZERO => Duration::ZERO,
            jitter => jitter.mul_f64(self.random.random()),
        };
        if self.under_way.len() >= UNDER_WAY_MAX {
            return;
        }
        let len = datagram.as_ref().len() as u64;
        let on_line = self.plan.bandwidth.map_or(Duration::ZERO, |bandwidth| {
            Duration::from_nanos(len * 1_000_000_000 / bandwidth.max(1))
        });
        self.line_is_free = self.line_is_free.max(now) + on_line;
        self.pushed += 1;
        let arrival = self.line_is_free + self.plan.delay + late;
        self.under_way.insert((arrival, self.pushed), datagram);
    }

    /// The next datagram that has arrived.
    pub fn pop(&mut self, now: Duration) -> Option<T> {
        let next = self.under_way.first_entry().filter(|entry| entry.key().0 <= now);
        next.map(OccupiedEntry::remove)
    }

    /// When the next one arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.under_way.keys().next().map(|(arrival, _)| *arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: [u8; 100] = [0; 100];

    fn arrivals(plan: Plan, sent: usize) -> Vec<Duration> {
        let mut faults = Faults::new(plan);
        (0..sent).for_each(|_| faults.push(DATAGRAM, Duration::ZERO));
        let mut arrivals = Vec::new();
        while let Some(arrival) = faults.poll_timeout() {
            let before = arrival.checked_sub(Duration::from_nanos(1));
            assert!(before.is_none_or(|before| faults.pop(before).is_none()));
            assert_eq!(faults.pop(arrival), Some(DATAGRAM));
            arrivals.push(arrival);
        }
        arrivals
    }

    #[test]
    fn a_perfect_network_changes_nothing() {
        assert_eq!(arrivals(Plan::PERFECT, 10), [Duration::ZERO; 10]);
    }

    #[test]
    fn so_many_are_lost_and_doubled_as_was_planned() {
        let lossy = arrivals(Plan { loss: 0.25, ..Plan::PERFECT }, 2000).len();
        assert!((1400..1600).contains(&lossy), "{lossy}");
        let doubling = arrivals(Plan { duplication: 0.25, ..Plan::PERFECT }, 2000).len();
        assert!((2400..2600).contains(&doubling), "{doubling}");
        assert!(arrivals(Plan { loss: 1.0, ..Plan::PERFECT }, 10).is_empty());
    }

    #[test]
    fn distance_and_bandwidth_add_up() {
        let (delay, bandwidth) = (Duration::from_millis(5), Some(1_000_000));
        let plan = Plan { delay, bandwidth, ..Plan::PERFECT };
        let expected = [1, 2, 3].map(|n| delay + n * Duration::from_micros(100));
        assert_eq!(arrivals(plan, 3), expected);
    }

    #[test]
    fn the_same_seed_has_the_same_fate() {
        let plan = |seed| Plan {
            seed,
            loss: 0.3,
            duplication: 0.3,
            jitter: Duration::from_millis(1),
            ..Plan::PERFECT
        };
        assert_eq!(arrivals(plan(1), 100), arrivals(plan(1), 100));
        assert_ne!(arrivals(plan(1), 100), arrivals(plan(2), 100));
    }

    #[test]
    fn a_flood_is_cut_off() {
        assert_eq!(arrivals(Plan::PERFECT, UNDER_WAY_MAX + 10).len(), UNDER_WAY_MAX);
    }
}
