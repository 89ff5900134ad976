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
//! A handler that leaves by `siglongjmp` leaves its thread's copy for ever. The next send of the thread on that ring finishes it,
//! as the kernel has sent what a handler of `send` interrupts; if its buffers lie on the stack, with what is there now.

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

use crate::copy::Manner;
use crate::cursor::Cursor;
use crate::program::{Buffers, Sent};
use crate::ring::Ring;

/// The copies that a thread is in the middle of: one of its own, and those of its handlers.
pub struct Deposits {
    last: Cell<*const Deposit<'static>>,
}

/// A copy into a ring from a position on.
struct Deposit<'a> {
    producer: &'a Cursor,
    ring: &'a Ring,
    buffers: &'a Buffers<'a, Sent>,
    /// These bytes of the buffers come first, and are none of it.
    skip: usize,
    len: usize,
    at: u64,
    /// A handler has published it.
    is_finished: Cell<bool>,
    /// The one that its thread was in the middle of already.
    before: *const Deposit<'static>,
    /// Its own address: else the stack has other things there by now.
    here: Cell<*const Deposit<'static>>,
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
        (producer, ring): (&Cursor, &Ring),
        buffers: &Buffers<'_, Sent>,
        (skip, len): (usize, usize),
        at: u64,
        manner: Manner,
    ) -> bool {
        let (before, is_finished) = (self.last.get(), Cell::new(false));
        let here = Cell::new(core::ptr::null());
        let deposit = Deposit { producer, ring, buffers, skip, len, at, is_finished, before, here };
        self.begin(&deposit);
        // From here on a handler finishes it. One that came before has moved the producer.
        let is_published = producer.position() == at && {
            deposit.copy(manner);
            producer.publish(at, deposit.end())
        };
        self.end(&deposit);
        is_published || deposit.is_finished.get()
    }

    #[inline]
    fn begin(&self, deposit: &Deposit<'_>) {
        let here = core::ptr::from_ref(deposit).cast();
        deposit.here.set(here);
        self.last.set(here);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn end(&self, deposit: &Deposit<'_>) {
        compiler_fence(Ordering::SeqCst);
        self.last.set(deposit.before);
    }

    /// To be called before bytes are put into a ring, under the direction's lock: finishes the copy into it that this thread is in
    /// the middle of. The bytes have to end before the position that it says; `None`: the thread is in no copy.
    #[inline]
    pub fn room(&self, producer: &Cursor, ring: &Ring) -> Option<u64> {
        if self.last.get().is_null() { None } else { self.room_beside(producer, ring) }
    }

    #[cold]
    fn room_beside(&self, producer: &Cursor, ring: &Ring) -> Option<u64> {
        let (mut room, mut next) = (None, self.last.get());
        // SAFETY: what is written down lies in a frame below ours, whose thread goes on when we are done; the
        // connection it is about outlives its call. A frame that was left by `siglongjmp` is memory of our stack, too: if
        // another has it now, the address in it is wrong.
        while let Some(deposit) = unsafe { next.as_ref() }
            && deposit.here.get() == next
        {
            if core::ptr::eq(deposit.producer, producer) {
                deposit.finish();
                // The first one of them is the last in the list.
                room = Some(deposit.at.wrapping_add(ring.len() as u64));
            }
            next = deposit.before;
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

impl Deposit<'_> {
    fn end(&self) -> u64 {
        self.at.wrapping_add(self.len as u64)
    }

    #[inline]
    fn copy(&self, manner: Manner) {
        let mut position = self.at;
        self.buffers.each_sent(self.skip, self.len, |bytes| {
            self.ring.write(position, bytes, manner);
            position = position.wrapping_add(bytes.len() as u64);
        });
    }

    /// By a handler. Another one may interrupt it, and finish it, too.
    fn finish(&self) {
        if !self.is_finished.get() && self.producer.position() == self.at {
            self.copy(Manner::Cached);
            // Else the other one has published it.
            self.producer.publish(self.at, self.end());
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

    fn deposit<'a>(
        (ring, producer): (&'a Ring, &'a Cursor),
        buffers: &'a Buffers<'a, Sent>,
        len: usize,
    ) -> Deposit<'a> {
        let (is_finished, here) = (Cell::new(false), Cell::new(core::ptr::null()));
        let before = core::ptr::null();
        Deposit { producer, ring, buffers, skip: 0, len, at: 0, is_finished, before, here }
    }

    /// What is published if a handler sends `bytes` when the copy of `abc` was written down, and after what its thread has `done`.
    fn interrupted(bytes: &[u8], done: fn(&Deposit<'_>)) -> Vec<u8> {
        let ((ring, producer), deposits) = (ring(), Deposits::new());
        with(b"abc", |buffers| {
            let below = deposit((&ring, &producer), buffers, 3);
            deposits.begin(&below);
            done(&below);
            with(bytes, |buffers| {
                let room = deposits.room(&producer, &ring);
                let at = producer.position();
                let len = bounded(bytes.len(), at, room).unwrap();
                assert!(deposits.put((&producer, &ring), buffers, (0, len), at, Manner::Cached));
            });
            // Its thread has looked already whether the producer is where it was.
            below.copy(Manner::Cached);
            assert!(!producer.publish(below.at, below.end()) && below.is_finished.get());
            deposits.end(&below);
        });
        assert_eq!(deposits.room(&producer, &ring), None);
        published(&ring, &producer)
    }

    #[test]
    fn a_handler_finishes_the_copy_that_it_interrupts() {
        assert_eq!(interrupted(b"xy", |_| ()), b"abcxy");
        assert_eq!(interrupted(b"xy", |below| below.copy(Manner::Cached)), b"abcxy");
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
            let below = deposit((&ring, &producer), buffers, 3);
            deposits.begin(&below);
            assert_eq!(deposits.room(&other, &other_ring), None);
            assert_eq!(producer.position(), 0);
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
