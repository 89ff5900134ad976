//! What programs have had together, and the figures of which `--watch` shows the growth.

use sidestep_observe::{Program, Totals};

/// Sums that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) smc: u64,
    pub(super) handed_over: u64,
    pub(super) tcp: u64,
    pub(super) messages: u64,
    pub(super) ring_bytes: u64,
    pub(super) tcp_bytes: u64,
    pub(super) spins: u64,
    pub(super) parks: u64,
    pub(super) wakeups: u64,
    pub(super) spin_ns: u64,
    pub(super) waits: u64,
    pub(super) waits_beside_strangers: u64,
    pub(super) spins_in_vain: u64,
    pub(super) strangers: u64,
    pub(super) strangers_ns: u64,
    /// It falls when a thread ends.
    pub(super) run_queue_delay_ns: Option<u64>,
}

impl Figures {
    pub(super) fn of(totals: &Totals) -> Self {
        let counters = &totals.counters;
        let ring_bytes = counters.ring_bytes_sent.saturating_add(counters.ring_bytes_received);
        let bytes = counters.bytes_sent.saturating_add(counters.bytes_received);
        Self {
            smc: totals.smc,
            handed_over: totals.handed_over,
            tcp: totals.tcp(),
            messages: counters.messages_sent.saturating_add(counters.messages_received),
            ring_bytes,
            tcp_bytes: bytes.saturating_sub(ring_bytes),
            spins: counters.spins,
            parks: counters.parks,
            wakeups: counters.wakeups,
            spin_ns: counters.spin_ns,
            waits: counters.waits,
            waits_beside_strangers: counters.waits_beside_strangers,
            spins_in_vain: counters.spins_in_vain,
            strangers: counters.strangers,
            strangers_ns: counters.strangers_ns,
            run_queue_delay_ns: totals.run_queue_delay_ns,
        }
    }

    /// What has been added to `before`. A connection is TCP until its first byte goes through
    /// shared memory, so a sum may also fall: that counts as nothing.
    pub(super) fn since(&self, before: &Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn with(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let is_known = self.run_queue_delay_ns.or(other.run_queue_delay_ns).is_some();
        let ns = |figures: &Self| figures.run_queue_delay_ns.unwrap_or_default();
        Self {
            smc: f(self.smc, other.smc),
            handed_over: f(self.handed_over, other.handed_over),
            tcp: f(self.tcp, other.tcp),
            messages: f(self.messages, other.messages),
            ring_bytes: f(self.ring_bytes, other.ring_bytes),
            tcp_bytes: f(self.tcp_bytes, other.tcp_bytes),
            spins: f(self.spins, other.spins),
            parks: f(self.parks, other.parks),
            wakeups: f(self.wakeups, other.wakeups),
            spin_ns: f(self.spin_ns, other.spin_ns),
            waits: f(self.waits, other.waits),
            waits_beside_strangers: f(self.waits_beside_strangers, other.waits_beside_strangers),
            spins_in_vain: f(self.spins_in_vain, other.spins_in_vain),
            strangers: f(self.strangers, other.strangers),
            strangers_ns: f(self.strangers_ns, other.strangers_ns),
            run_queue_delay_ns: is_known.then(|| f(ns(self), ns(other))),
        }
    }
}

/// All of these programs together.
pub(super) fn sum(programs: &[Program]) -> Totals {
    let mut sum = Totals::default();
    programs.iter().for_each(|program| sum.add(&program.totals));
    sum
}

/// What has come since the last look. Of a program that was not there then, everything; one
/// that has ended meanwhile has none.
pub(super) fn growth(now: &[Program], before: &[Program]) -> Figures {
    let of = |program: &Program| {
        let known = before.iter().find(|known| known.pids[0] == program.pids[0]);
        let old = known.map_or_else(Figures::default, |known| Figures::of(&known.totals));
        Figures::of(&program.totals).since(&old)
    };
    now.iter().map(of).fold(Figures::default(), |sum, more| sum.plus(&more))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pid: u32, smc: u64) -> Program {
        let totals = Totals { smc, ..Totals::default() };
        Program { pids: vec![pid], program: "a".into(), totals, ..Program::default() }
    }

    #[test]
    fn programs_come_and_go_between_two_looks() {
        let before = [program(1, 10), program(2, 100)];
        let now = [program(1, 13), program(3, 5)];
        assert_eq!(growth(&now, &before).smc, 3 + 5);
        assert_eq!(sum(&now).smc, 18);
    }
}
