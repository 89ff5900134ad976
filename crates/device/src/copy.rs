//! How bytes are copied into a ring and out of it.
//!
//! `memcpy` is right for short messages. For long ones it is not, twice over:
//!
//! * **The string instruction.** From 2 KiB on, glibc copies with `rep movsb`. On AMD's
//!   Zen 3 and 4 that runs at a quarter of its speed when the destination lies a little
//!   above the source modulo the page (glibc bug 30994). Within one ring the two move
//!   in step, so an unlucky connection would stay unlucky: streams were seen at 1.8
//!   instead of 8 GB/s, run by run. A loop of vector moves has no bad alignment.
//! * **Whose cache.** A store has to own its cache line first, and the lines of a ring
//!   are in the cache of the reader, on another CPU: the writer waits for one line
//!   after the other to come back. Stores that pass the cache (non-temporal) write
//!   whole lines without fetching them, and the reader's prefetcher gets them in
//!   order. One stream gains half as much again. With both ends on one CPU it is the
//!   other way round: there the lines are at hand, and passing the cache loses them.
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
/// Shorter messages are read at once and hardly leave the cache on their way.
pub const STREAMING_MIN: usize = 8 << 10;

/// Up to here `memcpy` copies with vector moves by itself, in bytes.
const MEMCPY_MAX: usize = 2047;

/// Copies `len` bytes. All of them are written before whatever the caller stores
/// next with release ordering, in either manner.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes; they do not overlap.
/// Another process may change the bytes at `from` meanwhile: what arrives is then
/// any mixture.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize, manner: Manner) {
    if len <= MEMCPY_MAX {
        // SAFETY: by the caller's promise.
        return unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
    }
    // SAFETY: by the caller's promise.
    unsafe { copy_long(to, from, len, manner) }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_long(to: *mut u8, from: *const u8, len: usize, _manner: Manner) {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
}

/// Whole cache lines of the destination by vector moves, what is before and behind
/// them by `memcpy`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_long(to: *mut u8, from: *const u8, len: usize, manner: Manner) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail follow each other within `len`; the lines begin
    // at a multiple of LINE.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, head);
        match manner {
            Manner::Cached => lines_cached(to.add(head), from.add(head), lines),
            Manner::Streaming => lines_streaming(to.add(head), from.add(head), lines),
        }
        core::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
}

/// Bytes in a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// # Safety
/// As [`copy`], for `lines` lines; `to` is a multiple of LINE.
#[cfg(target_arch = "x86_64")]
unsafe fn lines_cached(to: *mut u8, from: *const u8, lines: usize) {
    use core::arch::x86_64::_mm_store_si128;
    for at in (0..lines).map(|line| line * LINE) {
        // SAFETY: within the lines, by the caller's promise.
        unsafe {
            let words = load_line(from.add(at));
            for (index, word) in words.into_iter().enumerate() {
                _mm_store_si128(to.add(at).cast::<Word>().add(index), word);
            }
        }
    }
}

/// # Safety
/// As [`copy`], for `lines` lines; `to` is a multiple of LINE.
#[cfg(target_arch = "x86_64")]
unsafe fn lines_streaming(to: *mut u8, from: *const u8, lines: usize) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm_stream_si128};
    for at in (0..lines).map(|line| line * LINE) {
        // SAFETY: within the lines, by the caller's promise; a prefetch may name any
        // address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + PREFETCH).cast());
            let words = load_line(from.add(at));
            for (index, word) in words.into_iter().enumerate() {
                _mm_stream_si128(to.add(at).cast::<Word>().add(index), word);
            }
        }
    }
    // Such stores are not ordered by a release store: without this the reader could
    // see the cursor before the bytes.
    // SAFETY: the instruction has no conditions.
    unsafe { _mm_sfence() };
}

/// How far ahead of the copy the source is fetched, in bytes.
#[cfg(target_arch = "x86_64")]
const PREFETCH: usize = 16 * LINE;

#[cfg(target_arch = "x86_64")]
type Word = core::arch::x86_64::__m128i;

/// # Safety
/// `from` is valid for reads of a line.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn load_line(from: *const u8) -> [Word; LINE / size_of::<Word>()] {
    use core::arch::x86_64::_mm_loadu_si128;
    // SAFETY: within the line, by the caller's promise; any alignment will do.
    [0, 1, 2, 3].map(|index| unsafe { _mm_loadu_si128(from.cast::<Word>().add(index)) })
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
