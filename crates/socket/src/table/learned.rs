//! What a waiter has learned, from one wait to the next.

use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::valid::{Renew, Zeroable};
use sidestep_proto::governor::Governor;

/// What a waiter has learned, in two words that any thread may replace.
#[derive(Renew, Zeroable)]
pub struct Learned([AtomicU64; 2]);

impl Learned {
    /// The object is new: nothing is learned.
    pub(crate) fn begin(&self) {
        self.keep(Governor::new());
    }

    pub(crate) fn recall(&self) -> Governor {
        let words = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let [[a, b], [c, d]] = words.map(|word| [word as u32, (word >> 32) as u32]);
        Governor::from_words([a, b, c, d])
    }

    pub(crate) fn keep(&self, governor: Governor) {
        let [a, b, c, d] = governor.to_words().map(u64::from);
        for (word, halves) in self.0.iter().zip([a | b << 32, c | d << 32]) {
            word.store(halves, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_recalled_to_the_last_bit() {
        let learned = Learned([const { AtomicU64::new(0) }; 2]);
        learned.begin();
        assert_eq!(learned.recall().to_words(), Governor::new().to_words());
        for words in [[0; 4], [u32::MAX; 4], [1, 2, 3, 4], [u32::MAX, 0, 0, 1 << 31]] {
            let governor = Governor::from_words(words);
            learned.keep(governor);
            assert_eq!(learned.recall().to_words(), Governor::from_words(words).to_words());
        }
    }
}
