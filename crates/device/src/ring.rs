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

use crate::copy::{Manner, copy};
#[cfg(not(loom))]
use crate::sys;
use core::mem::MaybeUninit;
use core::ops::Range;

/// How many times a ring goes into its memory: see the module text.
pub const LAPS: usize = 2;

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

    /// Whether this is [`Self::NONE`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `from` into the span of the same length.
    #[inline]
    pub fn write(&self, span: Range<usize>, from: &[u8], manner: Manner) {
        assert!(
            span.start <= span.end && span.end <= self.memory_len() && span.len() == from.len()
        );
        // SAFETY: in bounds as just checked; the program's buffer and ring memory
        // are different mappings.
        unsafe { copy(self.base.add(span.start), from.as_ptr(), from.len(), manner) }
    }

    /// Copies the span out to room of the same length.
    #[inline]
    pub fn read(&self, span: Range<usize>, to: &mut [MaybeUninit<u8>]) {
        assert!(span.start <= span.end && span.end <= self.memory_len() && span.len() == to.len());
        // SAFETY: in bounds as just checked; the program's buffer and ring memory are different
        // mappings. The peer may change these bytes meanwhile: see the module text.
        unsafe {
            let from = self.base.add(span.start);
            core::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), span.len());
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
