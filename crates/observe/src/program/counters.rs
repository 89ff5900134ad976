//! What a program counts, as plain numbers: of a connection, of lengths of messages, of attempts
//! to move, of rings.
//!
//! A number may be anything, so sums end at the largest.

use core::ops::AddAssign;
use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::sizes::{self, CLASSES};
use sidestep_device::state::{self, RING_SIZES};
use sidestep_device::untracked::{Carried, Traffic};
use sidestep_wire::RmbeSize;

/// Counters of a connection since its start; see [`state::Counters`] for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained where they are counted")]
pub struct Counters {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub ring_bytes_sent: u64,
    pub ring_bytes_received: u64,
    pub waits: u64,
    pub waits_beside_strangers: u64,
    pub spins: u64,
    pub spins_in_vain: u64,
    pub spin_ns: u64,
    pub yields: u64,
    pub strangers: u64,
    pub strangers_ns: u64,
    pub parks: u64,
    pub wakeups: u64,
}

/// Numbers of messages by their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes(pub [u64; CLASSES]);

/// See [`state::Handshakes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained where they are counted")]
pub struct Handshakes {
    pub attempted: u64,
    pub agreed: u64,
    pub failed: u64,
}

/// See [`state::Rings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained where they are counted")]
pub struct Rings {
    pub fresh: u64,
    pub reused: u64,
    pub incoming: u64,
}

impl Counters {
    pub(crate) fn of_untracked(traffic: Traffic) -> Self {
        Self {
            bytes_sent: traffic.sent.bytes,
            bytes_received: traffic.received.bytes,
            messages_sent: traffic.sent.messages,
            messages_received: traffic.received.messages,
            ..Self::default()
        }
    }

    pub(crate) fn read(from: &state::Counters) -> Self {
        Self {
            bytes_sent: load(&from.bytes_sent),
            bytes_received: load(&from.bytes_received),
            messages_sent: load(&from.messages_sent),
            messages_received: load(&from.messages_received),
            ring_bytes_sent: load(&from.ring_bytes_sent),
            ring_bytes_received: load(&from.ring_bytes_received),
            waits: load(&from.waits),
            waits_beside_strangers: load(&from.waits_beside_strangers),
            spins: load(&from.spins),
            spins_in_vain: load(&from.spins_in_vain),
            spin_ns: load(&from.spin_ns),
            yields: load(&from.yields),
            strangers: load(&from.strangers),
            strangers_ns: load(&from.strangers_ns),
            parks: load(&from.parks),
            wakeups: load(&from.wakeups),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let sum = u64::saturating_add;
        *self = Self {
            bytes_sent: sum(self.bytes_sent, other.bytes_sent),
            bytes_received: sum(self.bytes_received, other.bytes_received),
            messages_sent: sum(self.messages_sent, other.messages_sent),
            messages_received: sum(self.messages_received, other.messages_received),
            ring_bytes_sent: sum(self.ring_bytes_sent, other.ring_bytes_sent),
            ring_bytes_received: sum(self.ring_bytes_received, other.ring_bytes_received),
            waits: sum(self.waits, other.waits),
            waits_beside_strangers: sum(self.waits_beside_strangers, other.waits_beside_strangers),
            spins: sum(self.spins, other.spins),
            spins_in_vain: sum(self.spins_in_vain, other.spins_in_vain),
            spin_ns: sum(self.spin_ns, other.spin_ns),
            yields: sum(self.yields, other.yields),
            strangers: sum(self.strangers, other.strangers),
            strangers_ns: sum(self.strangers_ns, other.strangers_ns),
            parks: sum(self.parks, other.parks),
            wakeups: sum(self.wakeups, other.wakeups),
        };
    }
}

impl Sizes {
    pub(crate) fn read(from: &sizes::Sizes) -> Self {
        Self(from.0.each_ref().map(load))
    }

    pub(crate) fn of_untracked(carried: Carried) -> Self {
        let mut sizes = Self::default();
        carried.each_class(|class, n| sizes.0[class] = n);
        sizes
    }

    /// The longest message of each class (`None`: there is none), and their number.
    pub fn classes(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.0.iter().enumerate().map(|(class, n)| (sizes::longest_of(class), *n))
    }
}

impl AddAssign for Sizes {
    fn add_assign(&mut self, other: Self) {
        for (sum, n) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(n);
        }
    }
}

impl Handshakes {
    pub(crate) fn read(from: &state::Handshakes) -> Self {
        Self {
            attempted: load(&from.attempted),
            agreed: load(&from.agreed),
            failed: load(&from.failed),
        }
    }
}

impl AddAssign for Handshakes {
    fn add_assign(&mut self, other: Self) {
        self.attempted = self.attempted.saturating_add(other.attempted);
        self.agreed = self.agreed.saturating_add(other.agreed);
        self.failed = self.failed.saturating_add(other.failed);
    }
}

impl Rings {
    pub(crate) fn read(from: &[state::Rings; RING_SIZES]) -> [Self; RING_SIZES] {
        from.each_ref().map(|rings| Self {
            fresh: load(&rings.fresh),
            reused: load(&rings.reused),
            incoming: load(&rings.incoming),
        })
    }

    /// Whether there were any.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The length of the rings at this place of [`Totals::rings`](crate::Totals::rings).
    #[must_use]
    pub fn len_at(index: usize) -> usize {
        let size = u8::try_from(index).ok().and_then(RmbeSize::from_code);
        size.map_or(0, RmbeSize::bytes)
    }
}

impl AddAssign for Rings {
    fn add_assign(&mut self, other: Self) {
        self.fresh = self.fresh.saturating_add(other.fresh);
        self.reused = self.reused.saturating_add(other.reused);
        self.incoming = self.incoming.saturating_add(other.incoming);
    }
}

/// A counter of a state, by itself: what belongs together is read several times
/// ([`mirror`](sidestep_device::mirror)).
pub(crate) fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_end_at_the_largest_number() {
        let most = Counters { wakeups: u64::MAX, bytes_sent: 1, ..Counters::default() };
        let mut sum = most;
        sum.add(&most);
        assert_eq!((sum.wakeups, sum.bytes_sent), (u64::MAX, 2));
        let mut sizes = Sizes([u64::MAX - 1; CLASSES]);
        sizes += Sizes([2; CLASSES]);
        assert_eq!(sizes, Sizes([u64::MAX; CLASSES]));
        let mut rings = Rings { fresh: u64::MAX, reused: 1, incoming: 2 };
        rings += rings;
        assert_eq!(rings, Rings { fresh: u64::MAX, reused: 2, incoming: 4 });
        let mut handshakes = Handshakes { attempted: u64::MAX, agreed: 3, failed: 4 };
        handshakes += handshakes;
        assert_eq!(handshakes, Handshakes { attempted: u64::MAX, agreed: 6, failed: 8 });
    }

    #[test]
    fn rings_have_the_lengths_of_their_codes() {
        let lens: Vec<usize> = (0..RING_SIZES + 1).map(Rings::len_at).collect();
        let doubled = lens.windows(2).take(RING_SIZES - 1).all(|two| two[1] == 2 * two[0]);
        assert!(lens[0] > 0 && doubled, "{lens:?}");
    }
}
