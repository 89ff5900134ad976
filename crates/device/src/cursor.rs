//! A cursor in shared memory: how many bytes were ever written, or read.
//!
//! ```text
//!   writer                                reader
//!   copy into the ring                    claim = producer.claim()     Acquire
//!   producer.publish(from, to)  SeqCst    copy out of the ring
//!   window from consumer.claim() Acquire  consumer.publish(from, to)   SeqCst
//! ```
//!
//! The release half of `publish` pairs with the acquire half of `claim`: a reader that
//! sees the new position sees the bytes before it (producer), or may overwrite them
//! (consumer). Its sequentially consistent half is step b of [`crate::arm`].
//!
//! Publication is a compare-and-exchange although the direction lock lets no
//! other thread move the cursor: a signal handler of the same thread may have, in the
//! middle of the copy. Then it fails, and the copy is made again behind the
//! handler's bytes.

use crate::sync::{AtomicU64, Ordering};
use sidestep_derive::Shared;

/// See the [module](self). One word, written by its owner alone.
#[derive(Shared)]
#[repr(transparent)]
pub struct Cursor(AtomicU64);

impl Default for Cursor {
    fn default() -> Self {
        Self::new()
    }
}

impl Cursor {
    /// At the start of the stream. Zeroed memory is the same.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Owner: where it stands. Peer: a look that promises nothing about the bytes.
    #[inline]
    pub fn position(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Peer: the position that the owner claims. To be checked before it is used.
    #[inline]
    pub fn claim(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Owner: moves on. False: it no longer stands at `from`; look and copy again.
    #[inline]
    pub fn publish(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The word, to sleep on.
    pub fn word(&self) -> &AtomicU64 {
        &self.0
    }

    /// Owner: back to the start, for a new connection that the peer does not see yet.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A ring of one place, filled and emptied twice: loom checks that no copy
    /// overlaps another, in every interleaving.
    #[test]
    fn bytes_are_seen_whole_and_never_overwritten_unread() {
        struct Ring {
            producer: Cursor,
            consumer: Cursor,
            place: UnsafeCell<u64>,
        }
        loom::model(|| {
            let ring = Arc::new(Ring {
                producer: Cursor::new(),
                consumer: Cursor::new(),
                place: UnsafeCell::new(0),
            });
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    for n in 0..2 {
                        while ring.consumer.claim() != n {
                            thread::yield_now();
                        }
                        // SAFETY: the window is open, so the reader is not in it.
                        ring.place.with_mut(|place| unsafe { *place = n + 1 });
                        assert!(ring.producer.publish(n, n + 1));
                    }
                })
            };
            for n in 0..2 {
                while ring.producer.claim() == n {
                    thread::yield_now();
                }
                // SAFETY: the place was published, so the writer is not in it.
                ring.place.with(|place| assert_eq!(unsafe { *place }, n + 1));
                assert!(ring.consumer.publish(n, n + 1));
            }
            writer.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_moved_on_is_noticed() {
        let cursor = Cursor::new();
        assert!(cursor.publish(0, 10));
        assert!(!cursor.publish(0, 5), "somebody was here before");
        assert_eq!(cursor.claim(), 10);
    }
}
