//! The bytes of a message that is to be verified.
//!
//! Byte `k` of a message is a function of the client, the transaction, the direction
//! and `k`, so a byte that is lost, doubled, late or of another connection is found with
//! probability 255/256, and a few of them for certain in practice. Any part can be
//! computed by itself: a generator of random numbers that counts (SplitMix64, of
//! Steele, Lea and Flood), eight bytes a number.

/// The bytes of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    key: u64,
}

/// A byte that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Where it is in the message, from 0.
    pub(crate) offset: u64,
    /// What it must be.
    pub(crate) expected: u8,
    /// What it is.
    pub(crate) found: u8,
}

impl Pattern {
    /// The request of a client's transaction, or the reply to it.
    pub(crate) fn new(client: u32, transaction: u64, is_reply: bool) -> Self {
        let who = u64::from(client) << 1 | u64::from(is_reply);
        Self { key: mix(mix(who) ^ transaction) }
    }

    /// Writes the bytes from `offset` on.
    pub(crate) fn fill(&self, offset: u64, bytes: &mut [u8]) {
        let mut index = offset / WORD_LEN as u64;
        let mut skip = (offset % WORD_LEN as u64) as usize;
        let mut rest = bytes;
        while !rest.is_empty() {
            let word = self.word(index);
            let len = rest.len().min(WORD_LEN - skip);
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&word[skip..skip + len]);
            (rest, skip, index) = (later, 0, index + 1);
        }
    }

    /// The first of these bytes, which begin at `offset`, that is wrong.
    pub(crate) fn difference(&self, offset: u64, bytes: &[u8]) -> Option<Difference> {
        let mut expected = [0; BLOCK_LEN];
        let mut offset = offset;
        for block in bytes.chunks(BLOCK_LEN) {
            let expected = &mut expected[..block.len()];
            self.fill(offset, expected);
            // All at once first: the comparison that has to be fast.
            if expected != block {
                let at = (0..block.len()).find(|&i| expected[i] != block[i])?;
                return Some(Difference {
                    offset: offset + at as u64,
                    expected: expected[at],
                    found: block[at],
                });
            }
            offset += block.len() as u64;
        }
        None
    }

    fn word(&self, index: u64) -> [u8; WORD_LEN] {
        mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN))).to_le_bytes()
    }
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 2^64 divided by the golden ratio: the step of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD_LEN: usize = size_of::<u64>();
/// Bytes that are compared at a time; a few cache lines on the stack.
const BLOCK_LEN: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_parts_of_the_whole(from in 0usize..3000, len in 0usize..3000) {
            let pattern = Pattern::new(3, 5, true);
            let mut whole = vec![0; 6000];
            pattern.fill(0, &mut whole);
            let mut part = vec![0; len];
            pattern.fill(from as u64, &mut part);
            prop_assert_eq!(&whole[from..from + len], &part[..]);
            prop_assert_eq!(pattern.difference(from as u64, &part), None);
        }

        #[test]
        fn a_changed_byte_is_found_where_it_is(from in 0u64..100, at in 0usize..2000, bit in 0u8..8) {
            let pattern = Pattern::new(0, 0, false);
            let mut bytes = vec![0; 2000];
            pattern.fill(from, &mut bytes);
            let expected = bytes[at];
            bytes[at] ^= 1u8 << bit;
            let found = bytes[at];
            let offset = from + at as u64;
            prop_assert_eq!(
                pattern.difference(from, &bytes),
                Some(Difference { offset, expected, found })
            );
        }
    }

    #[test]
    fn messages_differ_by_client_transaction_and_direction() {
        let of = |client, transaction, is_reply| {
            let mut bytes = [0; 16];
            Pattern::new(client, transaction, is_reply).fill(0, &mut bytes);
            bytes
        };
        let all =
            [of(0, 0, false), of(0, 0, true), of(1, 0, false), of(0, 1, false), of(1, 1, true)];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b));
        }
    }
}
