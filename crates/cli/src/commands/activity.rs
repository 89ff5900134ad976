//! What programs have had in a time: what a record keeps and a report tells.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sidestep_observe::{Rings, Sizes, Totals};

/// Sums of the programs of one name. The names are part of the form of records: a reader takes what is
/// absent for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Activity {
    pub(super) smc_connections: u64,
    pub(super) gateway_connections: u64,
    pub(super) tcp_connections: u64,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) ring_bytes_sent: u64,
    pub(super) ring_bytes_received: u64,
    pub(super) messages_sent: u64,
    pub(super) messages_received: u64,
    pub(super) waits: u64,
    pub(super) spins: u64,
    pub(super) parks: u64,
    pub(super) wakeups: u64,
    pub(super) spin_ns: u64,
    /// The longest ring that they were given to send through, in bytes; 0: none. It is no sum.
    pub(super) rmbe: u64,
    /// Messages that they sent and that are longer than this ring.
    pub(super) messages_beyond_rmbe: u64,
    /// Connections on TCP, by the standard's code and the reason.
    pub(super) reasons: BTreeMap<String, u64>,
}

impl Activity {
    /// All that a program has had.
    pub(super) fn of(totals: &Totals) -> Self {
        let counters = &totals.counters;
        let rmbe = longest_ring(&totals.rings);
        let mut reasons = BTreeMap::new();
        for (fallback, connections) in &totals.fallbacks {
            // Two reasons may have the same words.
            let sum: &mut u64 = reasons.entry(fallback.to_string()).or_default();
            *sum = sum.saturating_add(*connections);
        }
        Self {
            smc_connections: totals.smc,
            gateway_connections: totals.handed_over,
            tcp_connections: totals.tcp(),
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            ring_bytes_sent: counters.ring_bytes_sent,
            ring_bytes_received: counters.ring_bytes_received,
            messages_sent: counters.messages_sent,
            messages_received: counters.messages_received,
            waits: counters.waits,
            spins: counters.spins,
            parks: counters.parks,
            wakeups: counters.wakeups,
            spin_ns: counters.spin_ns,
            rmbe,
            messages_beyond_rmbe: if rmbe == 0 { 0 } else { longer_than(&totals.sent, rmbe) },
            reasons,
        }
    }

    /// What has been added to `before`. A connection is TCP until its first byte goes through shared memory,
    /// so a sum may also fall: that counts as nothing.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut grown = self.with(before, u64::saturating_sub);
        grown.reasons.retain(|_, connections| *connections > 0);
        grown
    }

    pub(super) fn add(&mut self, other: &Self) {
        *self = self.with(other, u64::saturating_add);
    }

    /// Whether nothing has happened.
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self { rmbe: self.rmbe, ..Self::default() }
    }

    /// The part of its bytes that went through shared memory, from 0 to 1; `None`: there were no bytes.
    pub(super) fn moved_part(&self) -> Option<f64> {
        let all = self.bytes_sent.saturating_add(self.bytes_received);
        let moved = self.ring_bytes_sent.saturating_add(self.ring_bytes_received);
        (all > 0).then(|| moved.min(all) as f64 / all as f64)
    }

    fn with(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let names = self.reasons.keys().chain(other.reasons.keys());
        let number = |of: &Self, name: &str| of.reasons.get(name).copied().unwrap_or_default();
        let reasons =
            names.map(|name| (name.clone(), f(number(self, name), number(other, name)))).collect();
        Self {
            smc_connections: f(self.smc_connections, other.smc_connections),
            gateway_connections: f(self.gateway_connections, other.gateway_connections),
            tcp_connections: f(self.tcp_connections, other.tcp_connections),
            bytes_sent: f(self.bytes_sent, other.bytes_sent),
            bytes_received: f(self.bytes_received, other.bytes_received),
            ring_bytes_sent: f(self.ring_bytes_sent, other.ring_bytes_sent),
            ring_bytes_received: f(self.ring_bytes_received, other.ring_bytes_received),
            messages_sent: f(self.messages_sent, other.messages_sent),
            messages_received: f(self.messages_received, other.messages_received),
            waits: f(self.waits, other.waits),
            spins: f(self.spins, other.spins),
            parks: f(self.parks, other.parks),
            wakeups: f(self.wakeups, other.wakeups),
            spin_ns: f(self.spin_ns, other.spin_ns),
            rmbe: self.rmbe.max(other.rmbe),
            messages_beyond_rmbe: f(self.messages_beyond_rmbe, other.messages_beyond_rmbe),
            reasons,
        }
    }
}

fn longest_ring(rings: &[Rings]) -> u64 {
    let given = |(_, rings): &(usize, &Rings)| rings.fresh > 0 || rings.reused > 0;
    let longest = rings.iter().enumerate().filter(given).map(|(index, _)| Rings::len_at(index));
    longest.max().unwrap_or(0) as u64
}

/// Messages of the classes that begin at `len` or beyond.
fn longer_than(sizes: &Sizes, len: u64) -> u64 {
    let mut shortest = 0;
    let mut sum = 0_u64;
    for (longest, messages) in sizes.classes() {
        if shortest >= len {
            sum = sum.saturating_add(messages);
        }
        shortest = longest.unwrap_or(u64::MAX);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_observe::{Counters, Fallback};
    use sidestep_proto::fallback::{PeerCannot, Reason};

    fn totals(smc: u64, plain_peers: u64) -> Totals {
        let fallback = Fallback { reason: Reason::Peer(PeerCannot::PeerNotSmc) };
        let counters =
            Counters { bytes_sent: 8 * smc, ring_bytes_sent: 6 * smc, ..Counters::default() };
        let mut totals =
            Totals { smc, fallbacks: vec![(fallback, plain_peers)], counters, ..Totals::default() };
        totals.rings[2].fresh = smc;
        totals.rings[5].incoming = smc;
        totals.sent.0 = [1; _];
        totals
    }

    #[test]
    fn growth_and_sums() {
        let (before, now) = (Activity::of(&totals(2, 5)), Activity::of(&totals(5, 5)));
        let grown = now.since(&before);
        assert_eq!((grown.smc_connections, grown.tcp_connections), (3, 0));
        assert_eq!(grown.reasons, BTreeMap::new(), "no more than before");
        assert_eq!(grown.moved_part(), Some(0.75));
        assert!(now.since(&now).is_nothing());
        assert_eq!(before.since(&now).smc_connections, 0, "it has fallen");
        let mut sum = grown;
        sum.add(&before);
        assert_eq!((sum.smc_connections, sum.reasons.values().sum::<u64>()), (5, 5));
        assert_eq!(Activity::default().moved_part(), None);
    }

    #[test]
    fn messages_are_longer_than_the_ring_from_its_length_on() {
        let activity = Activity::of(&totals(1, 0));
        assert_eq!(activity.rmbe, 64 << 10, "what it receives in is its peers'");
        // Classes end at 64 B, 128 B and so on up to 1 MB, and one has no end.
        assert_eq!(activity.messages_beyond_rmbe, 5);
        assert_eq!(Activity::of(&Totals::default()).messages_beyond_rmbe, 0);
    }
}
