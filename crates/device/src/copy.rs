//! How bytes are copied into a ring, and which manner of it is the cheaper.
//!
//! The lines of a ring are in the cache of its reader. An ordinary store has to own its
//! line first, so a writer on another CPU waits for one line after the other to be
//! given back; how long, is a matter of which cores the two are. Stores that pass the
//! cache (non-temporal) write whole lines without fetching them, and the reader gets
//! them from memory. On one AMD Zen 4, in GB/s of each side's own copying:
//!
//! ```text
//!                                      cached             streaming
//!                                  writer  reader      writer  reader
//!   message still in the writer's
//!   cache, cores that share one       11      40          24      15
//!   out of 20 MB, the same cores       8      23          17      15
//!   cores that share no cache          2      12          24      15
//! ```
//!
//! So neither is right, and a hypervisor moves its CPUs from one line of this table to
//! another within seconds. Each connection therefore learns ([`Choice`]): now and then
//! it tries the other manner, and keeps the one in which its bytes get away faster.
//! Short messages are another matter (they are read at once, and what counts is the
//! first line), and so are two ends on one CPU, where the lines are at hand: both are
//! always copied by `memcpy`.
//!
//! Other processors than x86-64 copy with `memcpy`.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use sidestep_derive::{Renew, Zeroable};

/// How the copied bytes are left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// In this CPU's cache.
    Cached,
    /// In memory, for a reader on another CPU.
    Streaming,
}

/// From here on there is a choice of manners, in bytes.
pub const LONG_MIN: usize = 8 << 10;

/// What a connection has learned about its long copies to a reader on another CPU.
///
/// It goes by the pace of the whole: how long it takes until so many bytes are sent,
/// pauses left out. The copies alone do not tell, because each manner leaves the other
/// side something else to wait for. Only the holder of the connection's send lock uses
/// a choice, so relaxed loads and stores do.
#[derive(Debug, Renew, Zeroable)]
pub struct Choice {
    streaming: AtomicBool,
    /// Turns for which the present manner, the better one, is still kept; 0: it is on
    /// trial.
    settled: AtomicU32,
    /// Bytes until the present manner has had its turn.
    left: AtomicU32,
    /// When the last copy had been made, in ticks.
    last: AtomicU64,
    /// Ticks of this turn.
    spent: AtomicU64,
    /// Ticks for 1024 bytes in the last trial of each manner, cached and streaming; 0:
    /// not known yet.
    costs: [AtomicU64; 2],
}

/// Bytes of a turn: long enough to fill the ring many times. A trial is one turn.
const TURN_LEN: u32 = 2 << 20;

/// Turns for which the better manner is kept. The other one costs little when it is so
/// rare.
const SETTLED_TURNS: u32 = 128;

/// A settled manner is given up early when it has become so many times as slow as it was
/// when it was chosen: the CPUs have moved.
const DECLINE: u64 = 2;

/// A pause between two copies counts no more than this, in ticks: some 50 µs.
const PAUSE_MAX: u64 = 1 << 17;

impl Choice {
    /// Nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            streaming: AtomicBool::new(false),
            settled: AtomicU32::new(0),
            left: AtomicU32::new(TURN_LEN),
            last: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            costs: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// The manner for the next long copy.
    #[must_use]
    pub fn manner(&self) -> Manner {
        if self.streaming.load(Relaxed) { Manner::Streaming } else { Manner::Cached }
    }

    /// A long copy of `len` bytes has been made and published, now, in [`ticks`].
    pub fn note(&self, len: usize, now: u64) {
        let pause = now.saturating_sub(self.last.load(Relaxed)).min(PAUSE_MAX);
        self.last.store(now, Relaxed);
        self.spent.store(self.spent.load(Relaxed) + pause, Relaxed);
        let left = self.left.load(Relaxed);
        match u32::try_from(len).ok().and_then(|len| left.checked_sub(len)) {
            Some(left) => self.left.store(left, Relaxed),
            None => self.end_turn(),
        }
    }

    fn end_turn(&self) {
        let cost = (self.spent.load(Relaxed) / u64::from(TURN_LEN >> 10)).max(1);
        self.spent.store(0, Relaxed);
        self.left.store(TURN_LEN, Relaxed);
        let now = usize::from(self.streaming.load(Relaxed));
        let settled = self.settled.load(Relaxed);
        if settled > 1 && cost <= DECLINE * self.costs[now].load(Relaxed) {
            self.settled.store(settled - 1, Relaxed);
            return;
        }
        self.costs[now].store(cost, Relaxed);
        let other = self.costs[1 - now].load(Relaxed);
        let tries_other = settled > 0 || other == 0;
        if tries_other || other < cost {
            self.streaming.store(now == 0, Relaxed);
        }
        self.settled.store(if tries_other { 0 } else { SETTLED_TURNS }, Relaxed);
    }
}

impl Default for Choice {
    fn default() -> Self {
        Self::new()
    }
}

/// The processor's clock, for differences.
#[cfg(target_arch = "x86_64")]
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: reads a counter; the instruction has no conditions.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// There is no choice here, so nothing has to be timed.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn ticks() -> u64 {
    0
}

/// As on x86-64, but there is no other manner here.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes; they do not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_past_cache(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies `len` bytes past the cache: whole cache lines of the destination, and what is before and behind them by
/// `memcpy`. All of them are written before whatever the caller stores next with release ordering.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes; they do not overlap.
/// Another process may change the bytes at `from` meanwhile: what arrives is then
/// any mixture.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy_past_cache(to: *mut u8, from: *const u8, len: usize) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail follow each other within `len`; the lines begin
    // at a multiple of LINE.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, head);
        stream_lines(to.add(head), from.add(head), lines);
        core::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
}

/// Bytes in a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// # Safety
/// As [`copy_past_cache`], for `lines` lines; `to` is a multiple of LINE.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(to: *mut u8, from: *const u8, lines: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WORDS: [usize; LINE / size_of::<__m128i>()] = [0, 1, 2, 3];
    for at in (0..lines).map(|line| line * LINE) {
        // SAFETY: within the lines, by the caller's promise; loads take any alignment,
        // and stores have theirs.
        unsafe {
            let (to, from) = (to.add(at).cast::<__m128i>(), from.add(at).cast::<__m128i>());
            let line = WORDS.map(|word| _mm_loadu_si128(from.add(word)));
            for word in WORDS {
                _mm_stream_si128(to.add(word), line[word]);
            }
        }
    }
    // Such stores are not ordered by a release store: without this the reader could
    // see the cursor before the bytes.
    // SAFETY: the instruction has no conditions.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const LEN: usize = 32 << 10;

    /// Sends so many messages, each of which takes so many ticks in either manner;
    /// returns how many went in each, cached and streaming.
    fn send(choice: &Choice, messages: u32, ticks: impl Fn(Manner) -> u64) -> [u32; 2] {
        let mut now = choice.last.load(Relaxed);
        let mut sent = [0; 2];
        for _ in 0..messages {
            let manner = choice.manner();
            sent[usize::from(manner == Manner::Streaming)] += 1;
            now += ticks(manner);
            choice.note(LEN, now);
        }
        sent
    }

    #[test]
    fn the_faster_manner_carries_nearly_all() {
        for fast in [Manner::Cached, Manner::Streaming] {
            let sent = send(&Choice::new(), 40_000, |it| if it == fast { 10_000 } else { 30_000 });
            let slow = sent[usize::from(fast == Manner::Cached)];
            assert!(slow * 50 < 40_000, "{fast:?}: {sent:?}");
        }
    }

    #[test]
    fn a_choice_follows_when_the_cores_change() {
        let choice = Choice::new();
        let near = |manner| if manner == Manner::Cached { 9_000 } else { 12_000 };
        let far = |manner| if manner == Manner::Cached { 45_000 } else { 12_000 };
        for _ in 0..3 {
            // What has not become slower shows only by the next trial that it is the
            // slower one now.
            send(&choice, 20_000, near);
            assert_eq!(choice.manner(), Manner::Cached);
            // Four turns: to notice, and to try.
            send(&choice, 4 * TURN_LEN / LEN as u32, far);
            assert_eq!(choice.manner(), Manner::Streaming);
        }
    }

    #[test]
    fn a_pause_says_nothing_about_a_manner() {
        let choice = Choice::new();
        send(&choice, 20_000, |manner| if manner == Manner::Cached { 9_000 } else { 20_000 });
        choice.note(LEN, choice.last.load(Relaxed) + (1 << 40));
        send(&choice, 20_000, |manner| if manner == Manner::Cached { 9_000 } else { 20_000 });
        assert_eq!(choice.manner(), Manner::Cached);
    }

    /// Something else in every byte, with no period that an alignment could hide.
    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    proptest! {
        #[test]
        fn every_byte_arrives_and_no_other_changes(
            len in 0usize..20_000,
            from_at in 0usize..130,
            to_at in 0usize..130,
        ) {
            let from = pattern(from_at + len);
            let mut to = vec![0xA5; to_at + len + 130];
            // SAFETY: both are in bounds and different memory.
            unsafe { copy_past_cache(to.as_mut_ptr().add(to_at), from.as_ptr().add(from_at), len) };
            prop_assert_eq!(&to[to_at..to_at + len], &from[from_at..]);
            let around = to[..to_at].iter().chain(&to[to_at + len..]);
            prop_assert!(around.copied().all(|byte| byte == 0xA5));
        }
    }
}
