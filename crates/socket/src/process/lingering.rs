//! Slots that a process has let go of, and that another process still needs.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::valid::Zeroable;

const WORDS: usize = SLOTS / 64;

/// Slots that this process has let go of and another process still needs. Changed under the process's
/// lock.
#[derive(Zeroable)]
pub(crate) struct Lingering {
    /// A bit for each.
    slots: [AtomicU64; WORDS],
    /// A bit for each word of them that is not zero.
    words: [AtomicU64; WORDS / 64],
    /// Where they are looked at next.
    sweep_at: AtomicUsize,
}

impl Lingering {
    pub(super) fn add(&self, index: usize) {
        let word = index / 64;
        self.slots[word].fetch_or(1 << (index % 64), Ordering::Relaxed);
        self.words[word / 64].fetch_or(1 << (word % 64), Ordering::Relaxed);
    }

    /// False: it was not one of them.
    pub(super) fn remove(&self, index: usize) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        let before = self.slots[word].fetch_and(!bit, Ordering::Relaxed);
        if before == bit {
            self.words[word / 64].fetch_and(!(1 << (word % 64)), Ordering::Relaxed);
        }
        before & bit != 0
    }

    /// The next of them, around and around.
    pub(super) fn next(&self) -> Option<usize> {
        let sweep_at = self.sweep_at.load(Ordering::Relaxed) % SLOTS;
        let found = self.first_from(sweep_at).or_else(|| self.first_from(0))?;
        self.sweep_at.store(found + 1, Ordering::Relaxed);
        Some(found)
    }

    fn first_from(&self, index: usize) -> Option<usize> {
        let word = index / 64;
        first_bit(&self.slots[..=word], index).or_else(|| {
            let word = first_bit(&self.words, word + 1)?;
            first_bit(&self.slots[..=word], word * 64)
        })
    }
}

/// The first bit from this one on, of those in the words.
fn first_bit(words: &[AtomicU64], from: usize) -> Option<usize> {
    let mut mask = u64::MAX << (from % 64);
    words.iter().enumerate().skip(from / 64).find_map(|(at, word)| {
        let bits = word.load(Ordering::Relaxed) & core::mem::replace(&mut mask, u64::MAX);
        (bits != 0).then(|| at * 64 + bits.trailing_zeros() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use sidestep_device::map;
    use std::collections::BTreeSet;

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

        // One that is added twice is there once.
        lingering.add(3);
        assert!(lingering.remove(3) && !lingering.remove(3) && lingering.remove(SLOTS - 1));
        assert_eq!(lingering.next(), None);
    }

    /// Few words at both ends of the set, so that slots are met again.
    fn slot() -> impl Strategy<Value = usize> {
        prop_oneof![0..130_usize, SLOTS - 70..SLOTS]
    }

    proptest! {
        /// A plain set goes around in the same order.
        #[test]
        fn a_sweep_passes_each_slot_once(changes in vec((slot(), 0..3), 0..200)) {
            let lingering = map::zeroed::<Lingering>().unwrap();
            let mut model = BTreeSet::new();
            for (index, change) in changes {
                match change {
                    0 => prop_assert_eq!(lingering.remove(index), model.remove(&index)),
                    _ => {
                        lingering.add(index);
                        model.insert(index);
                    }
                }
            }
            let swept: Vec<_> = model.iter().filter_map(|_| lingering.next()).collect();
            prop_assert_eq!(swept, model.into_iter().collect::<Vec<_>>());
        }
    }
}
