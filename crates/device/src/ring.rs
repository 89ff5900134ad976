//! The one copy: bytes into and out of ring memory.
//!
//! **Memory twice as long.** When as many bytes are in a ring as its reader allows (its
//! RMBE), one lap of its memory is full, and the writer goes on in the other. The lines
//! that it writes have then been read a lap ago instead of a moment ago. With a few busy
//! connections that is long enough for them to have left the inner cache of the reader's
//! core for the outer one that all cores share, and a store that needs its line back
//! from there waits half as long: ten connections that exchange 32 KiB do so 1.5
//! times as often. A third and fourth lap gained little more. Pages exist once they have
//! been written, so idle connections pay nothing.
//!
//! The bytes of a ring may change while they are copied out, because the peer may
//! misbehave. They are handed to the program unparsed, exactly as bytes from a
//! lying TCP sender would be; nothing here ever looks at them.

use crate::copy::{Manner, copy_past_cache};
#[cfg(not(loom))]
use crate::sys;
use core::mem::MaybeUninit;
use core::ops::Range;

/// How many times a ring goes into its memory: see the module text.
pub const LAPS: usize = 2;

/// The one or two stretches of ring memory that hold `n` bytes from a position.
///
/// The only place where a wrap of a ring in shared memory is cut, so that no caller loops over chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spans {
    /// From the position's offset towards the end of the ring.
    pub first: Range<usize>,
    /// From the start of the ring; empty when nothing wraps.
    pub second: Range<usize>,
}

impl Spans {
    /// Cuts `n` bytes at absolute `position` out of a ring of `len` bytes.
    ///
    /// `len` is a power of two and `n <= len`: the caller got `n` from
    /// the cursors.
    #[inline]
    #[must_use]
    pub fn cut(position: u64, n: usize, len: usize) -> Self {
        debug_assert!(len.is_power_of_two() && n <= len);
        let start = (position & (len as u64 - 1)) as usize;
        let first = n.min(len - start);
        Self { first: start..start + first, second: 0..n - first }
    }
}

/// A ring of a known power-of-two length, and its memory, which is [`LAPS`] times as
/// long: position `P` lies at `P` modulo the length of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    base: *mut u8,
    len: usize,
}

// SAFETY: a ring is an address range; the cursors rule who touches which part.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// No ring: length 0.
    pub const NONE: Self = Self { base: core::ptr::null_mut(), len: 0 };

    /// # Safety
    /// `base` stays mapped for [`LAPS`] times `len` bytes (writable if [`Self::write`]
    /// is to be used) as long as the ring is in use; `len` is a power of two.
    #[must_use]
    pub unsafe fn new(base: *mut u8, len: usize) -> Self {
        debug_assert!(len.is_power_of_two());
        Self { base, len }
    }

    /// Bytes that may be in the ring: the RMBE of its reader.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of its memory, over which positions are counted.
    #[inline]
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.len * LAPS
    }

    /// Where that is in this process, and how long.
    #[must_use]
    pub fn memory(&self) -> (*const u8, usize) {
        (self.base.cast_const(), self.memory_len())
    }

    /// Whether this is [`Self::NONE`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The spans of the `n` bytes from a position on.
    ///
    /// # Panics
    /// There are none, or more than there is memory.
    #[inline]
    #[must_use]
    pub fn spans(&self, position: u64, n: usize) -> Spans {
        assert!(n.wrapping_sub(1) < self.memory_len());
        Spans::cut(position, n, self.memory_len())
    }

    /// Where the `n` bytes from a position on are in this process, and how many in each stretch.
    ///
    /// # Panics
    /// As [`Self::spans`].
    #[must_use]
    pub fn stretches(&self, position: u64, n: usize) -> [(*const u8, usize); 2] {
        let Spans { first, second } = self.spans(position, n);
        [first, second].map(|span| (self.base.wrapping_add(span.start).cast_const(), span.len()))
    }

    /// Copies bytes, of which there are some, into the ring from a position on.
    ///
    /// # Panics
    /// As [`Self::spans`].
    #[inline]
    pub fn write(&self, position: u64, bytes: &[u8], manner: Manner) {
        let Spans { first, second } = self.spans(position, bytes.len());
        let (head, tail) = bytes.split_at(first.len());
        // SAFETY: as `spans` has found them, they are inside the memory of the ring and as long as their bytes; the
        // program's buffer and ring memory are different mappings.
        unsafe {
            put(self.base.add(first.start), head, manner);
            if !tail.is_empty() {
                put(self.base.add(second.start), tail, manner);
            }
        }
    }

    /// Copies bytes from a position on out to room for some.
    ///
    /// # Panics
    /// As [`Self::spans`].
    #[inline]
    pub fn read(&self, position: u64, room: &mut [MaybeUninit<u8>]) {
        let Spans { first, second } = self.spans(position, room.len());
        let (head, tail) = room.split_at_mut(first.len());
        // SAFETY: as in `write`. The peer may change these bytes meanwhile: see the module text.
        unsafe {
            let take = |from: *const u8, to: &mut [MaybeUninit<u8>]| {
                core::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), to.len());
            };
            take(self.base.add(first.start), head);
            if !tail.is_empty() {
                take(self.base.add(second.start), tail);
            }
        }
    }
}

/// # Safety
/// There is room for the bytes at `to`, which is not part of them.
#[inline]
unsafe fn put(to: *mut u8, bytes: &[u8], manner: Manner) {
    // SAFETY: by the caller's promise.
    unsafe {
        match manner {
            Manner::Cached => core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()),
            Manner::Streaming => copy_past_cache(to, bytes.as_ptr(), bytes.len()),
        }
    }
}

/// What the kernel moves between a ring and a file.
#[cfg(not(loom))]
impl Ring {
    /// Fills the begin of the span from a file, at `offset` or where the file stands.
    ///
    /// # Errors
    /// As `read` and `pread`.
    pub fn fill_from_file(&self, span: &Range<usize>, fd: i32, offset: Option<i64>) -> sys::Result {
        // SAFETY: a span of the ring, whose memory stays mapped.
        unsafe { sys::read(fd, self.address(span), span.len(), offset) }
    }

    /// Fills the begin of the span with what is in a pipe.
    ///
    /// # Errors
    /// `EAGAIN` when nothing is, else as `read`.
    pub fn fill_from_pipe(&self, span: &Range<usize>, pipe: i32) -> sys::Result {
        // SAFETY: as above.
        unsafe { sys::read_now(pipe, self.address(span), span.len()) }
    }

    /// Writes the begin of the span into a pipe, as much as there is room for.
    ///
    /// # Errors
    /// `EAGAIN` when there is none, else as `write`.
    pub fn drain_into_pipe(&self, span: &Range<usize>, pipe: i32) -> sys::Result {
        // SAFETY: as above.
        unsafe { sys::write_memory_now(pipe, self.address(span), span.len()) }
    }

    /// Address of the first byte of a span.
    fn address(&self, span: &Range<usize>) -> *mut u8 {
        assert!(span.start <= span.end && span.end <= self.memory_len());
        // SAFETY: in bounds as just checked.
        unsafe { self.base.add(span.start) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Where positions begin: at zero, where their lower half wraps, and where all of them would.
    const BEGINNINGS: [u64; 3] = [0, (1 << 32) - 256, u64::MAX - 255];
    /// Every ring up to this length.
    const SHIFT_MAX: u32 = 7;

    /// All lengths from each position of two laps. A cut is told by the position within its lap, which
    /// these are all of.
    #[test]
    fn every_cut_is_the_bytes_from_its_position_in_their_order() {
        for (beginning, shift) in
            BEGINNINGS.into_iter().flat_map(|at| (0..=SHIFT_MAX).map(move |n| (at, n)))
        {
            let len = 1usize << shift;
            for position in (0..2 * len as u64).map(|n| beginning.wrapping_add(n)) {
                for n in 0..=len {
                    let Spans { first, second } = Spans::cut(position, n, len);
                    let byte = |i: usize| (position.wrapping_add(i as u64) % len as u64) as usize;
                    assert!((0..n).map(byte).eq(first.chain(second)), "{position} {n} {len}");
                }
            }
        }
    }

    #[test]
    fn bytes_come_out_as_they_went_in_over_the_end_of_the_memory() {
        const LEN: usize = 8;
        let mut memory = [0u8; LAPS * LEN];
        // SAFETY: the memory outlives the ring.
        let ring = unsafe { Ring::new(memory.as_mut_ptr(), LEN) };
        for position in u64::MAX - 20..u64::MAX {
            let bytes: [u8; 5] = core::array::from_fn(|i| position as u8 ^ i as u8);
            ring.write(position, &bytes, Manner::Cached);
            let mut room = [MaybeUninit::new(0); 5];
            ring.read(position, &mut room);
            // SAFETY: initialised above.
            assert_eq!(room.map(|byte| unsafe { byte.assume_init() }), bytes);
        }
    }

    #[test]
    #[should_panic(expected = "memory_len")]
    fn nothing_is_copied_into_no_ring() {
        Ring::NONE.write(0, &[1], Manner::Cached);
    }
}
