//! Slots that a process has let go of, and that somebody else still needs.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::valid::Zeroable;

/// Slots that this process has let go of and somebody else still needs. Changed under the process's
/// lock.
#[derive(Zeroable)]
pub(crate) struct Lingering {
    /// A bit for each.
    slots: [AtomicU64; SLOTS / 64],
    /// Where they are looked at next.
    sweep_at: AtomicUsize,
}

impl Lingering {
    pub(super) fn add(&self, index: usize) {
        self.slots[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
    }

    /// False: it was not one of them.
    pub(super) fn remove(&self, index: usize) -> bool {
        let bit = 1 << (index % 64);
        self.slots[index / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// The next of them, around and around.
    pub(super) fn next(&self) -> Option<usize> {
        let words = self.slots.len();
        let sweep_at = self.sweep_at.load(Ordering::Relaxed);
        let (word, bit) = (sweep_at / 64 % words, sweep_at % 64);
        let in_word = |at: usize, mask: u64| {
            let bits = self.slots[at].load(Ordering::Relaxed) & mask;
            (bits != 0).then(|| at * 64 + bits.trailing_zeros() as usize)
        };
        let found = in_word(word, u64::MAX << bit).or_else(|| {
            let mut others = (1..=words).map(|step| (word + step) % words);
            others.find_map(|at| in_word(at, u64::MAX))
        })?;
        self.sweep_at.store(found + 1, Ordering::Relaxed);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_device::map;

    #[test]
    fn what_lingers_is_looked_at_in_turn() {
        let lingering = map::zeroed::<Lingering>().unwrap();
        assert_eq!(lingering.next(), None);
        for index in [SLOTS - 1, 3, 64] {
            lingering.add(index);
        }
        let round = [(); 4].map(|()| lingering.next());
        assert_eq!(round, [Some(3), Some(64), Some(SLOTS - 1), Some(3)]);
        assert!(lingering.remove(64) && !lingering.remove(64));
        assert_eq!(lingering.next(), Some(SLOTS - 1));
    }
}
