//! Bytes that go into a ring, also where a signal handler interrupts their thread and puts bytes into the same ring.
//!
//! A direction's lock keeps other threads away, but no handler that has interrupted its own thread in the middle of a copy.
//! It can neither wait for that thread, which is below it on the stack, nor put its bytes where the copy goes on
//! behind it. So a copy is written down before it begins, and a handler *finishes* it first: copies the same bytes to the same
//! place and publishes them. What its thread then copies is there already.
//!
//! That does no harm while the place means these bytes. So as long as a copy goes on, its ring is filled for one lap from its start
//! on, whatever the peer has read ([`Deposits::room`]).
//!
//! A handler that leaves by `siglongjmp` leaves its thread's copy for ever, and these bytes are not sent. That a copy was left is seen
//! by its place on the stack: between one that goes on and its handler lies what the kernel has put there for the signal.

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

use crate::copy::Manner;
use crate::cursor::Cursor;
use crate::program::{Buffers, Sent};
use crate::ring::Ring;
use crate::sys;

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
    fn put_many(&self, place: (&Cursor, &Ring), bytes: Bytes<'_>, at: u64, manner: Manner) -> bool {
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
            let is_above = core::ptr::from_ref(deposit).addr() > depth.saturating_add(SIGNAL_FRAME);
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
mod tests {
    use super::*;
    use core::mem::MaybeUninit;
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    const LEN: usize = 8;

    /// A ring that nothing else has, its producer, and what was published.
    fn ring() -> (Ring, Cursor) {
        let memory: &'static [Cell<u64>; 16] = Box::leak(Box::new([const { Cell::new(0) }; 16]));
        // SAFETY: the memory outlives the ring, and is longer than its laps.
        let ring = unsafe { Ring::new(memory.as_ptr().cast_mut().cast(), LEN) };
        (ring, Cursor::default())
    }

    fn published(ring: &Ring, producer: &Cursor) -> Vec<u8> {
        let mut room = vec![MaybeUninit::new(0); producer.position() as usize];
        ring.read(0, &mut room);
        // SAFETY: initialised above.
        room.into_iter().map(|byte| unsafe { byte.assume_init() }).collect()
    }

    fn with<T>(bytes: &[u8], act: impl FnOnce(&Buffers<'_, Sent>) -> T) -> T {
        let list =
            [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        // SAFETY: one piece, which is readable as long as the list is.
        act(&unsafe { Buffers::new(list.as_ptr(), 1) }.unwrap())
    }

    /// As far up the stack as a signal handler is.
    #[inline(never)]
    fn handler(act: &mut dyn FnMut()) {
        let frame = core::hint::black_box([0u8; 2 * SIGNAL_FRAME]);
        act();
        core::hint::black_box(frame);
    }

    fn begin_to_copy(deposit: &Deposit<'_>) {
        copy(&deposit.ring, deposit.bytes, deposit.at, Manner::Cached);
    }

    /// What is published if a handler sends `bytes` when the copy of `abc` was written down, and after what its thread has `done`.
    fn interrupted(bytes: &[u8], done: fn(&Deposit<'_>)) -> Vec<u8> {
        let ((ring, producer), deposits) = (ring(), Deposits::new());
        with(b"abc", |buffers| {
            let below =
                Deposit::new((&producer, &ring), Bytes::Many { buffers, skip: 0, len: 3 }, 0);
            deposits.begin(&below);
            done(&below);
            handler(&mut || {
                with(bytes, |buffers| {
                    let room = deposits.room(&producer, &ring);
                    let at = producer.position();
                    let len = bounded(bytes.len(), at, room).unwrap();
                    assert!(deposits.put(
                        (&producer, &ring),
                        buffers,
                        (0, len),
                        at,
                        Manner::Cached
                    ));
                });
            });
            // Its thread has looked already whether the producer is where it was.
            begin_to_copy(&below);
            assert!(!producer.publish(0, 3) && below.is_finished.get());
            deposits.end(&below);
        });
        assert_eq!(deposits.room(&producer, &ring), None);
        published(&ring, &producer)
    }

    #[test]
    fn a_handler_finishes_the_copy_that_it_interrupts() {
        assert_eq!(interrupted(b"xy", |_| ()), b"abcxy");
        assert_eq!(interrupted(b"xy", begin_to_copy), b"abcxy");
    }

    #[test]
    fn it_does_not_come_round_to_what_goes_on_behind_it() {
        assert_eq!(interrupted(b"uvwxyz", |_| ()), b"abcuvwxy");
        assert_eq!(bounded(4, 8, Some(8)), Err(libc::EAGAIN));
        assert_eq!(bounded(0, 8, Some(8)), Ok(0), "the reader has not read");
    }

    #[test]
    fn a_copy_whose_place_is_taken_is_not_made() {
        let ((ring, producer), deposits) = (ring(), Deposits::new());
        let put = |bytes: &[u8]| {
            let len = bytes.len();
            with(bytes, |it| deposits.put((&producer, &ring), it, (0, len), 0, Manner::Cached))
        };
        assert!(put(b"x") && !put(b"abc"));
        assert_eq!(published(&ring, &producer), b"x");
    }

    #[test]
    fn another_ring_is_another_matter() {
        let ((ring, producer), (other_ring, other)) = (ring(), ring());
        let deposits = Deposits::new();
        with(b"abc", |buffers| {
            let below =
                Deposit::new((&producer, &ring), Bytes::Many { buffers, skip: 0, len: 3 }, 0);
            deposits.begin(&below);
            handler(&mut || assert_eq!(deposits.room(&other, &other_ring), None));
            assert_eq!(producer.position(), 0);
        });
    }

    #[test]
    fn a_copy_that_was_left_is_forgotten() {
        let ((ring, producer), deposits) = (ring(), Deposits::new());
        with(b"abc", |buffers| {
            let below =
                Deposit::new((&producer, &ring), Bytes::Many { buffers, skip: 0, len: 3 }, 0);
            deposits.begin(&below);
            assert_eq!(deposits.room(&producer, &ring), None);
            assert!(deposits.last.get().is_null() && producer.position() == 0);
            // The next one may lie in the same place.
            deposits.begin(&below);
            deposits.begin(&below);
            deposits.end(&below);
            assert!(deposits.last.get().is_null());
        });
    }

    #[test]
    fn a_frame_that_was_left_is_not_believed() {
        let ((ring, producer), deposits) = (ring(), Deposits::new());
        let left: MaybeUninit<[usize; 16]> = MaybeUninit::zeroed();
        deposits.last.set(left.as_ptr().cast());
        assert_eq!(deposits.room(&producer, &ring), None);
    }
}
