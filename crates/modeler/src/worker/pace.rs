//! When a client starts its transactions: pure arithmetic.
//!
//! In a **closed loop** a transaction starts when the last one has ended and the
//! think time is over. A server that stalls then also stops the clients, and most of
//! the stall is never seen: *coordinated omission*.
//!
//! In an **open loop** the moments are fixed before the first transaction. With `r`
//! transactions a second over `n` clients, transaction `k` of client `i` is due
//! `(i + k·n) / r` seconds after the beginning:
//!
//! ```text
//!   client 0   |        |        |         all clients together: one each 1/r s
//!   client 1      |        |        |
//!   client 2         |        |        |
//! ```
//!
//! A client that is late starts the next transaction at once, however many are
//! overdue, and its response time counts from the moment when it was due.

use super::clock::SECOND_NS;
use crate::control::Job;
use crate::plan;

/// How clients behave, all alike.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Closed loop.
    Closed {
        /// Pause between two transactions.
        think_ns: u64,
    },
    /// Open loop. It has no think time: its moments are fixed.
    Open {
        /// Clients of the whole workload.
        clients: u32,
        /// Transactions per second of all of them.
        per_second: f64,
    },
}

/// The transactions of one client in one stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pace: Pace,
    client: u32,
    begin_ns: u64,
    /// Transactions that have been started.
    started: u64,
}

impl Pace {
    pub(crate) fn of(job: &Job) -> Self {
        match job.conduct.pace {
            plan::Pace::Closed => Self::Closed {
                think_ns: u64::try_from(job.conduct.think.as_nanos()).unwrap_or(u64::MAX),
            },
            plan::Pace::Open { per_second } => {
                Self::Open { clients: job.workload.clients, per_second }
            }
        }
    }
}

impl Schedule {
    /// For this client of the workload; everything begins at `begin_ns`.
    pub(crate) fn new(pace: Pace, client: u32, begin_ns: u64) -> Self {
        Self { pace, client, begin_ns, started: 0 }
    }

    /// When the next transaction is due, when the last one ended at `ended_ns`. For the
    /// first one that is not asked.
    #[inline]
    pub(crate) fn due_ns(&self, ended_ns: u64) -> u64 {
        match self.pace {
            Pace::Closed { .. } if self.started == 0 => self.begin_ns,
            Pace::Closed { think_ns } => ended_ns.saturating_add(think_ns),
            Pace::Open { .. } => self.intended_ns(self.started),
        }
    }

    /// Starts the transaction that was due at `due_ns`. Returns from when its response
    /// time counts.
    #[inline]
    pub(crate) fn start(&mut self, due_ns: u64, now_ns: u64) -> u64 {
        self.started += 1;
        match self.pace {
            Pace::Closed { .. } => now_ns,
            Pace::Open { .. } => due_ns,
        }
    }

    /// How many transactions were due from `from_ns` on and before `to_ns` and are not
    /// among the first `ended`. In a closed loop none is ever overdue.
    pub(crate) fn unfinished(&self, from_ns: u64, to_ns: u64, ended: u64) -> u64 {
        match self.pace {
            Pace::Closed { .. } => 0,
            Pace::Open { .. } => {
                let first = self.intended_before(from_ns).max(ended);
                self.intended_before(to_ns).saturating_sub(first)
            }
        }
    }

    /// The moment of transaction `k` in an open loop, from 0. It is computed from `k`,
    /// not from the last moment, so that nothing adds up.
    fn intended_ns(&self, k: u64) -> u64 {
        let Pace::Open { clients, per_second } = self.pace else { return self.begin_ns };
        let number = k as f64 * f64::from(clients) + f64::from(self.client);
        let offset_ns = number * SECOND_NS as f64 / per_second;
        // `as` saturates: a moment beyond the clock's end never comes.
        self.begin_ns.saturating_add(offset_ns as u64)
    }

    /// How many transactions are due before `to_ns`: the least `k` whose moment is not
    /// before it. Moments never fall with `k`, so it can be searched for.
    fn intended_before(&self, to_ns: u64) -> u64 {
        let (mut low, mut high) = (0, 1);
        while high < u64::MAX / 2 && self.intended_ns(high) < to_ns {
            (low, high) = (high, high * 2);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.intended_ns(middle) < to_ns {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn open(clients: u32, per_second: f64) -> Pace {
        Pace::Open { clients, per_second }
    }

    proptest! {
        #[test]
        fn all_clients_together_are_evenly_spaced(
            clients in 1u32..50, per_second in 0.5f64..1e6, begin in 0u64..1 << 60,
        ) {
            let mut all: Vec<u64> = (0..clients)
                .flat_map(|i| {
                    let schedule = Schedule::new(open(clients, per_second), i, begin);
                    (0..20).map(move |k| schedule.intended_ns(k))
                })
                .collect();
            all.sort_unstable();
            let step = 1e9 / per_second;
            for (k, at) in all.iter().enumerate() {
                let offset = (at - begin) as f64;
                prop_assert!((offset - k as f64 * step).abs() <= 1.0, "{k}: {offset}");
            }
        }

        #[test]
        fn a_late_client_works_off_its_backlog_without_skipping(
            client in 0u32..5, responses in prop::collection::vec(0u64..3_000_000, 1..100),
        ) {
            let mut schedule = Schedule::new(open(5, 5000.0), client, 1000);
            let mut now = 1000;
            for (k, response) in responses.into_iter().enumerate() {
                let due = schedule.due_ns(now);
                // Client's period: 1 ms; its offset: 0.2 ms for each client before it.
                prop_assert_eq!(due, 1000 + k as u64 * 1_000_000 + u64::from(client) * 200_000);
                now = now.max(due);
                prop_assert_eq!(schedule.start(due, now), due);
                now += response;
            }
        }

        #[test]
        fn a_closed_loop_thinks_after_each_end(
            think_ns in 0u64..1000, responses in prop::collection::vec(0u64..1000, 1..20),
        ) {
            let mut schedule = Schedule::new(Pace::Closed { think_ns }, 3, 500);
            prop_assert_eq!(schedule.due_ns(0), 500);
            let mut now = 510;
            for response in responses {
                prop_assert_eq!(schedule.start(500, now), now);
                now += response;
                prop_assert_eq!(schedule.due_ns(now), now + think_ns);
                now += think_ns;
            }
            prop_assert_eq!(schedule.unfinished(0, u64::MAX, 0), 0);
        }

        #[test]
        fn unfinished_is_what_a_count_of_all_moments_says(
            clients in 1u32..9, per_second in 1f64..1e5, from in 0u64..1_000_000_000,
            len in 0u64..100_000_000, ended in 0u64..1000,
        ) {
            let schedule = Schedule::new(open(clients, per_second), 0, 77);
            let to = from + len;
            let counted = (ended..)
                .map(|k| schedule.intended_ns(k))
                .take_while(|at| *at < to)
                .filter(|at| *at >= from)
                .count();
            prop_assert_eq!(schedule.unfinished(from, to, ended), counted as u64);
        }
    }

    #[test]
    fn a_rate_of_almost_nothing_is_due_once() {
        let schedule = Schedule::new(open(1, 1e-300), 0, 5);
        assert_eq!(schedule.intended_ns(0), 5);
        assert_eq!(schedule.intended_ns(1), u64::MAX);
        assert_eq!(schedule.unfinished(0, 1 << 62, 0), 1);
    }
}
