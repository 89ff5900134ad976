//! A channel: the ready bitmap and sleeping word of one event loop.
//!
//! Thousands of connections share one channel. A peer that has news for slot `s`
//! sets bit `s`; the loop finds all news at once by following the summary:
//!
//! ```text
//!   summary   256 bits    bit i: word i of `bits` may be non-zero
//!   bits      16 384 bits bit s: slot s has news
//!   sleeping  0 | 1       1: ring the eventfd after setting a bit
//!   turns     a counter   how many bits have been set
//!   turn_of   16 384      which of them was slot s
//! ```
//!
//! The turns are there because Linux reports connections in the order in which they
//! became ready: a program that sends on one and then on another may rely on the
//! first being served first. Bits alone would be found by their numbers.
//!
//! Order on both sides, with the argument of [`crate::arm`]:
//!
//! ```text
//!   peer                                  loop
//!   set bit, set summary                  sleeping := 1
//!   fence                                 fence
//!   sleeping == 1?  swap 0, ring          summary empty?  sleep
//! ```
//!
//! A loop takes the summary bit before the word below it, a peer sets the word
//! before the summary bit: a bit set meanwhile raises its summary bit again.
//!
//! Peers may write this memory, so nothing here is believed: a forged bit costs
//! the loop one look at a cursor, a forged turn an order, a forged `sleeping` costs
//! the forger a system call, and a cleared one is the peer's own lost wake-up.

use core::cmp::Reverse;
use sidestep_derive::Shared;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Connection slots of a process, and bits of a channel.
pub const SLOTS: usize = 16_384;
const WORDS: usize = SLOTS / 64;
const SUMMARY: usize = WORDS / 64;
/// Slots with a turn of their own: all, and few where loom follows each word.
const TURNS: usize = if cfg!(loom) { 64 } else { SLOTS };
/// News that are put in order together.
const BATCH: usize = 64;

/// See the [module](self).
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Channel {
    sleeping: AtomicU32,
    /// CPU of the last peer that marked a bit, plus one: a hint for spinning.
    cpu: AtomicU32,
    summary: [AtomicU64; SUMMARY],
    turns: AtomicU32,
    bits: [AtomicU64; WORDS],
    turn_of: [AtomicU32; TURNS],
}

impl Default for Channel {
    fn default() -> Self {
        Self::new()
    }
}

impl Channel {
    /// An empty channel, awake. Zeroed memory is the same.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sleeping: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            summary: core::array::from_fn(|_| AtomicU64::new(0)),
            turns: AtomicU32::new(0),
            bits: core::array::from_fn(|_| AtomicU64::new(0)),
            turn_of: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Peer: there is news for `slot`. True: the loop sleeps, ring its eventfd.
    #[inline]
    pub fn mark(&self, slot: usize, cpu: u32) -> bool {
        let (word, bit) = (slot / 64 % WORDS, 1u64 << (slot % 64));
        let (top, top_bit) = (word / 64, 1u64 << (word % 64));
        // A bit that is still set was not collected yet, and the loop that collects it
        // will see what was published before this load (SeqCst fence below).
        fence(Ordering::SeqCst);
        if self.bits[word].load(Ordering::Relaxed) & bit == 0 {
            let turn = self.turns.fetch_add(1, Ordering::Relaxed);
            self.turn_of[slot % TURNS].store(turn, Ordering::Relaxed);
            // Release: pairs with the Acquire in `collect`; the cursor published
            // before is seen by the loop that sees the bit, and so is the turn.
            self.bits[word].fetch_or(bit, Ordering::Release);
        }
        if self.summary[top].load(Ordering::Relaxed) & top_bit == 0 {
            self.summary[top].fetch_or(top_bit, Ordering::Release);
        }
        if self.cpu.load(Ordering::Relaxed) != cpu + 1 {
            self.cpu.store(cpu + 1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) != 0 && self.sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// Loop: is any bit set? Two nanoseconds when not.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.summary.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Loop: takes all set bits and calls `found` with each slot, in the order in
    /// which they were set (of more than [`BATCH`], batch by batch).
    pub fn collect(&self, mut found: impl FnMut(usize)) {
        if !self.is_marked() {
            return fence(Ordering::SeqCst);
        }
        let mut batch = [(0, 0); BATCH];
        let mut len = 0;
        self.take(|slot| {
            if len == BATCH {
                self.in_order(&mut batch, &mut found);
                len = 0;
            }
            batch[len] = (self.turn_of[slot % TURNS].load(Ordering::Relaxed), slot);
            len += 1;
        });
        self.in_order(&mut batch[..len], &mut found);
        // What the peers published before they marked is read after this.
        fence(Ordering::SeqCst);
    }

    /// Calls `found` with the slots of `batch`, the one whose turn is longest ago first.
    fn in_order(&self, batch: &mut [(u32, usize)], found: &mut impl FnMut(usize)) {
        if batch.len() > 1 {
            // Read after the turns in the batch, so that none is in the future. The
            // counter wraps; an age does not.
            let now = self.turns.load(Ordering::Relaxed);
            batch.sort_unstable_by_key(|&(turn, _)| Reverse(now.wrapping_sub(turn)));
        }
        batch.iter().for_each(|&(_, slot)| found(slot));
    }

    fn take(&self, mut found: impl FnMut(usize)) {
        for top in 0..SUMMARY {
            if self.summary[top].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut words = self.summary[top].swap(0, Ordering::SeqCst);
            while words != 0 {
                let word = top * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.bits[word].swap(0, Ordering::SeqCst);
                while bits != 0 {
                    found(word * 64 + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
        }
    }

    /// Loop: about to sleep. Look at [`Self::is_marked`] again afterwards.
    #[inline]
    pub fn fall_asleep(&self) {
        self.sleeping.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Loop: awake again, whatever woke it.
    #[inline]
    pub fn wake_up(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    /// Loop: the CPU from which a peer marked last.
    #[inline]
    pub fn last_cpu(&self) -> Option<u32> {
        self.cpu.load(Ordering::Relaxed).checked_sub(1)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A channel of one word, so that the model stays small, with the same steps.
    #[test]
    fn a_loop_that_sleeps_is_rung_or_has_seen_the_bit() {
        loom::model(|| {
            let channel = Arc::new(Channel::new());
            let cursor = Arc::new(AtomicU64::new(0));
            let peer = {
                let (channel, cursor) = (channel.clone(), cursor.clone());
                thread::spawn(move || {
                    cursor.store(1, Ordering::Release);
                    channel.mark(5, 0)
                })
            };
            let mut news = false;
            channel.collect(|slot| news |= slot == 5);
            let mut seen = news && cursor.load(Ordering::Acquire) == 1;
            channel.fall_asleep();
            let stays_awake = channel.is_marked();
            let rung = peer.join().unwrap();
            if stays_awake || rung {
                channel.collect(|slot| seen |= slot == 5);
            }
            assert!(seen, "slept through the news");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn collects_every_marked_slot_once() {
        let channel = Channel::new();
        let marked = [4_096, 1, 16_383, 63, 64, 0, 4_095];
        for slot in marked {
            assert!(!channel.mark(slot, 3), "nobody sleeps");
            assert!(!channel.mark(slot, 3));
        }
        assert!(channel.is_marked());
        assert_eq!(channel.last_cpu(), Some(3));
        let mut found = Vec::new();
        channel.collect(|slot| found.push(slot));
        assert_eq!(found, marked, "in the order in which they were marked");
        assert!(!channel.is_marked());
    }

    #[test]
    fn the_order_survives_the_end_of_the_counter() {
        let channel = Channel::new();
        channel.turns.store(u32::MAX, Ordering::Relaxed);
        let marked = [9, 8, 7];
        for slot in marked {
            assert!(!channel.mark(slot, 0));
        }
        let mut found = Vec::new();
        channel.collect(|slot| found.push(slot));
        assert_eq!(found, marked);
    }

    #[test]
    fn more_than_a_batch_is_found_whole() {
        let channel = Channel::new();
        (0..3 * BATCH).rev().for_each(|slot| {
            channel.mark(slot, 0);
        });
        let mut found = Vec::new();
        channel.collect(|slot| found.push(slot));
        found.sort_unstable();
        assert!(found.into_iter().eq(0..3 * BATCH));
    }

    #[test]
    fn only_the_first_mark_rings_a_sleeper() {
        let channel = Channel::new();
        channel.fall_asleep();
        assert!(channel.mark(9, 0));
        assert!(!channel.mark(10, 0));
    }
}
