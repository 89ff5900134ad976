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
//!
//! **Handlers.** A direction's lock keeps other threads away from its ring, but no signal handler that has interrupted its own
//! thread in the middle of a copy. It can neither wait for that thread, which is below it on the stack, nor put its
//! bytes where the copy goes on behind it. So a copy is written down before it begins ([`Deposits`]), and a handler *finishes*
//! it first: copies the same bytes to the same place and publishes them. What its thread then copies is there already. That does no
//! harm while the place means these bytes. So as long as a copy goes on, its ring is filled for one lap from its start on,
//! whatever the peer has read.
//!
//! A handler that leaves by `siglongjmp` leaves its thread's copy for ever, and these bytes are not sent. That a copy was left is seen
//! by its place on the stack: between one that goes on and its handler lies what the kernel has put there for the signal.

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

#[cfg(not(loom))]
pub use deposits::{Deposits, bounded};

/// Copies into rings that handlers finish: see the module text.
#[cfg(not(loom))]
mod deposits {
    use super::Ring;
    use crate::copy::Manner;
    use crate::cursor::Cursor;
    use crate::program::{Buffers, Sent};
    use crate::sys;
    use core::cell::Cell;
    use core::sync::atomic::{Ordering, compiler_fence};

    /// What the kernel puts on the stack for a signal is longer: registers, those of vectors, and the signal.
    const SIGNAL_FRAME: usize = 1024;

    /// The copies that a thread is in the middle of: one of its own, and those of its handlers.
    pub struct Deposits {
        last: Cell<*const Deposit<'static>>,
    }

    /// A copy into a ring from a position on.
    struct Deposit<'a> {
        producer: &'a Cursor,
        ring: Ring,
        bytes: Bytes<'a>,
        at: u64,
        /// A handler has published it.
        is_finished: Cell<bool>,
        /// The one that its thread was in the middle of already.
        before: Cell<*const Deposit<'static>>,
        /// Its own address: else the stack has other things there by now.
        here: Cell<*const Deposit<'static>>,
    }

    /// What is copied. By value: what this led to would have to be in memory, where a warm send keeps it in registers.
    #[derive(Clone, Copy)]
    enum Bytes<'a> {
        One(&'a [u8]),
        Many {
            buffers: &'a Buffers<'a, Sent>,
            /// These bytes of the buffers come first, and are none of it.
            skip: usize,
            len: usize,
        },
    }

    impl Bytes<'_> {
        #[inline]
        fn len(&self) -> usize {
            match *self {
                Self::One(bytes) => bytes.len(),
                Self::Many { len, .. } => len,
            }
        }
    }

    impl Deposits {
        /// Of a thread that is in none.
        #[must_use]
        pub const fn new() -> Self {
            Self { last: Cell::new(core::ptr::null()) }
        }

        /// Copies `len` bytes of the buffers behind the first `skip` to the position `at` of a ring, and publishes them. Under the
        /// direction's lock. False: the producer stands elsewhere now, and nothing was sent.
        #[inline]
        pub fn put(
            &self,
            place: (&Cursor, &Ring),
            buffers: &Buffers<'_, Sent>,
            (skip, len): (usize, usize),
            at: u64,
            manner: Manner,
        ) -> bool {
            match buffers.stretch(skip, len) {
                Some(bytes) => self.put_bytes(place, Bytes::One(bytes), at, manner),
                None => self.put_many(place, Bytes::Many { buffers, skip, len }, at, manner),
            }
        }

        #[inline(never)]
        fn put_many(
            &self,
            place: (&Cursor, &Ring),
            bytes: Bytes<'_>,
            at: u64,
            manner: Manner,
        ) -> bool {
            self.put_bytes(place, bytes, at, manner)
        }

        #[inline]
        fn put_bytes(
            &self,
            (producer, ring): (&Cursor, &Ring),
            bytes: Bytes<'_>,
            at: u64,
            manner: Manner,
        ) -> bool {
            let deposit = Deposit::new((producer, ring), bytes, at);
            self.begin(&deposit);
            // From here on a handler finishes it. One that came before has moved the producer.
            let is_published = producer.position() == at && {
                copy(ring, bytes, at, manner);
                producer.publish(at, at.wrapping_add(bytes.len() as u64))
            };
            self.end(&deposit);
            is_published || deposit.is_finished.get()
        }

        #[inline]
        fn begin(&self, deposit: &Deposit<'_>) {
            let (here, before) = (core::ptr::from_ref(deposit).cast(), self.last.get());
            deposit.here.set(here);
            // One that was left lay in the same place.
            deposit.before.set(if before == here { core::ptr::null() } else { before });
            self.last.set(here);
            compiler_fence(Ordering::SeqCst);
        }

        #[inline]
        fn end(&self, deposit: &Deposit<'_>) {
            compiler_fence(Ordering::SeqCst);
            self.last.set(deposit.before.get());
        }

        /// To be called before bytes are put into a ring, under the direction's lock: finishes the copy into it that this thread is in
        /// the middle of. The bytes have to end before the position that it says; `None`: the thread is in no copy.
        #[inline]
        pub fn room(&self, producer: &Cursor, ring: &Ring) -> Option<u64> {
            if self.last.get().is_null() {
                return None;
            }
            let here = 0u8;
            self.room_beside(producer, ring, (&raw const here).addr())
        }

        /// For a call whose frame is about `depth`.
        #[cold]
        fn room_beside(&self, producer: &Cursor, ring: &Ring, depth: usize) -> Option<u64> {
            let (mut room, mut next) = (None, self.last.get());
            let is_left = |deposit: &Deposit<'_>| {
                let is_above =
                    core::ptr::from_ref(deposit).addr() > depth.saturating_add(SIGNAL_FRAME);
                !is_above && !sys::is_on_alternate_stack()
            };
            // SAFETY: what is written down lies in a frame below ours, whose thread goes on when we are done; the
            // connection it is about outlives its call. A frame that was left by `siglongjmp` is memory of our stack, too: if
            // another has it now, the address in it is wrong.
            while let Some(deposit) = unsafe { next.as_ref() }
                && deposit.here.get() == next
            {
                next = deposit.before.get();
                if is_left(deposit) {
                    self.last.set(next);
                } else if core::ptr::eq(deposit.producer, producer) {
                    deposit.finish();
                    // The first one of them is the last in the list.
                    room = Some(deposit.at.wrapping_add(ring.len() as u64));
                }
            }
            room
        }
    }

    impl Default for Deposits {
        fn default() -> Self {
            Self::new()
        }
    }

    /// A window at a position, as far as [`Deposits::room`] lets it.
    ///
    /// # Errors
    /// `EAGAIN`: there was a window, and there is none before the thread goes on.
    #[inline]
    pub fn bounded(window: usize, at: u64, room: Option<u64>) -> Result<usize, i32> {
        let Some(room) = room else { return Ok(window) };
        match room.wrapping_sub(at) as usize {
            0 if window > 0 => Err(libc::EAGAIN),
            most => Ok(window.min(most)),
        }
    }

    #[inline]
    fn copy(ring: &Ring, bytes: Bytes<'_>, at: u64, manner: Manner) {
        match bytes {
            Bytes::One(bytes) => ring.write(at, bytes, manner),
            Bytes::Many { buffers, skip, len } => {
                let mut position = at;
                buffers.each_sent(skip, len, |bytes| {
                    ring.write(position, bytes, manner);
                    position = position.wrapping_add(bytes.len() as u64);
                });
            }
        }
    }

    impl<'a> Deposit<'a> {
        #[inline]
        fn new((producer, ring): (&'a Cursor, &Ring), bytes: Bytes<'a>, at: u64) -> Self {
            let [before, here] = [const { Cell::new(core::ptr::null()) }; 2];
            Self { producer, ring: *ring, bytes, at, is_finished: Cell::new(false), before, here }
        }

        /// By a handler. Another one may interrupt it, and finish it, too.
        fn finish(&self) {
            if !self.is_finished.get() && self.producer.position() == self.at {
                copy(&self.ring, self.bytes, self.at, Manner::Cached);
                // Else the other one has published it.
                self.producer.publish(self.at, self.at.wrapping_add(self.bytes.len() as u64));
                self.is_finished.set(true);
            }
        }
    }

    #[cfg(test)]
    mod tests;
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
