//! Handlers that come in the middle of a copy.

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
    let list = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
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
        let below = Deposit::new((&producer, &ring), Bytes::Many { buffers, skip: 0, len: 3 }, 0);
        deposits.begin(&below);
        done(&below);
        handler(&mut || {
            with(bytes, |buffers| {
                let room = deposits.room(&producer, &ring);
                let at = producer.position();
                let len = bounded(bytes.len(), at, room).unwrap();
                assert!(deposits.put((&producer, &ring), buffers, (0, len), at, Manner::Cached));
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
        let below = Deposit::new((&producer, &ring), Bytes::Many { buffers, skip: 0, len: 3 }, 0);
        deposits.begin(&below);
        handler(&mut || assert_eq!(deposits.room(&other, &other_ring), None));
        assert_eq!(producer.position(), 0);
    });
}

#[test]
fn a_copy_that_was_left_is_forgotten() {
    let ((ring, producer), deposits) = (ring(), Deposits::new());
    with(b"abc", |buffers| {
        let below = Deposit::new((&producer, &ring), Bytes::Many { buffers, skip: 0, len: 3 }, 0);
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
