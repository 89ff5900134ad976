//! How bytes are copied into a ring.
//!
//! The lines of a ring are in the cache of its reader. An ordinary store has to own its
//! line first, so a writer on another CPU waits for one line after the other to be
//! given back; how long, is a matter of which cores the two are. On one AMD Zen 4 a
//! stream of 64 KiB rings runs at 8 GB/s when they share a third-level cache and at 2
//! when they do not, and a hypervisor moves them as it likes.
//!
//! Stores that pass the cache (non-temporal) write whole lines without fetching them.
//! The reader's prefetcher gets them from memory in order: 13 GB/s, wherever the two
//! are. A single message of 32 KiB between cores that share a cache is slower by a
//! tenth; between others it is twice as fast and more. Short messages are another
//! matter: they are read at once, and what counts is the first line. And with both ends on
//! one CPU the lines are at hand, and passing the cache would lose them.
//!
//! Other processors than x86-64 copy with `memcpy`.

/// How the copied bytes are left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// In this CPU's cache.
    Cached,
    /// In memory, for a reader on another CPU.
    Streaming,
}

/// From here on a reader elsewhere is served by [`Manner::Streaming`], in bytes.
pub const STREAMING_MIN: usize = 8 << 10;

/// Copies `len` bytes. All of them are written before whatever the caller stores
/// next with release ordering, in either manner.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes; they do not overlap.
/// Another process may change the bytes at `from` meanwhile: what arrives is then
/// any mixture.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize, manner: Manner) {
    // SAFETY: by the caller's promise.
    unsafe {
        match manner {
            Manner::Cached => core::ptr::copy_nonoverlapping(from, to, len),
            Manner::Streaming => stream(to, from, len),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
}

/// Whole cache lines of the destination past the cache, what is before and behind
/// them by `memcpy`.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
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
/// As [`copy`], for `lines` lines; `to` is a multiple of LINE.
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
            streaming in any::<bool>(),
        ) {
            let from = pattern(from_at + len);
            let mut to = vec![0xA5; to_at + len + 130];
            let manner = if streaming { Manner::Streaming } else { Manner::Cached };
            // SAFETY: both are in bounds and different memory.
            unsafe { copy(to.as_mut_ptr().add(to_at), from.as_ptr().add(from_at), len, manner) };
            prop_assert_eq!(&to[to_at..to_at + len], &from[from_at..]);
            let around = to[..to_at].iter().chain(&to[to_at + len..]);
            prop_assert!(around.copied().all(|byte| byte == 0xA5));
        }
    }
}
