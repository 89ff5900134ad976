//! A lock that lives in shared memory and tells who holds it.
//!
//! Two processes that inherited one connection share its direction locks, and a
//! signal handler may interrupt a thread that holds one and use the same socket.
//! So the word names its owner:
//!
//! ```text
//!   0                  free
//!   tid                held
//!   tid | CONTENDED    held, and somebody sleeps for it
//! ```
//!
//! * The same thread (a signal handler) gets [`Entry::Reentered`] instead of a
//!   deadlock; it must not unlock.
//! * A waiter that slept [`PATIENCE_MS`] asks whether the owner still lives and
//!   takes over from a dead one. Cursors are published as the last step of every
//!   operation, so what a dead owner leaves behind is consistent.

use crate::sync::{AtomicU32, Ordering};

/// Set in the word while somebody may be sleeping for it. Linux thread ids are
/// below 2^22, so the bit is free.
const CONTENDED: u32 = 1 << 31;
/// How long a waiter sleeps before it asks whether the owner is alive.
pub const PATIENCE_MS: u64 = 10;
/// Looks at the word before sleeping: the critical section is a copy.
const LOOKS: u32 = 100;

/// The word.
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// How a lock was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The caller owns it and unlocks it.
    Owned,
    /// The calling thread owned it already, further up its stack.
    Reentered,
}

/// What a lock needs from the system.
pub trait Patience {
    /// Sleeps until `word` is no longer `value`, a wake-up, or [`PATIENCE_MS`].
    fn sleep(&self, word: &AtomicWord, value: u32);
    /// Wakes one sleeper.
    fn wake_one(&self, word: &AtomicWord);
    /// Whether thread `tid` still exists.
    fn is_alive(&self, tid: u32) -> bool;
    /// Passes a moment.
    fn pause(&self);
}

/// The atomic behind a lock, as [`Patience`] sees it.
pub type AtomicWord = AtomicU32;

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

impl Lock {
    /// A free lock.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock for thread `tid`, waiting as long as it takes.
    #[inline]
    pub fn enter(&self, tid: u32, patience: &impl Patience) -> Entry {
        // Acquire: pairs with the Release in `leave`.
        if self.0.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Entry::Owned;
        }
        self.enter_slowly(tid, patience)
    }

    /// Takes the lock if it is free.
    pub fn try_enter(&self, tid: u32) -> bool {
        self.0.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn enter_slowly(&self, tid: u32, patience: &impl Patience) -> Entry {
        let mut looks = 0;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            let owner = word & !CONTENDED;
            if owner == tid {
                return Entry::Reentered;
            }
            if owner == 0 || (looks > LOOKS && !patience.is_alive(owner)) {
                // Whoever slept for the lock leaves the mark, so that others who
                // sleep are not forgotten.
                let mine = if looks > LOOKS { tid | CONTENDED } else { tid };
                if self.swap_from(word, mine) {
                    return Entry::Owned;
                }
            } else if looks <= LOOKS {
                looks += 1;
                patience.pause();
            } else if word & CONTENDED != 0 || self.swap_from(word, word | CONTENDED) {
                patience.sleep(&self.0, owner | CONTENDED);
            }
        }
    }

    fn swap_from(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives the lock back. Only after [`Entry::Owned`].
    #[inline]
    pub fn leave(&self, patience: &impl Patience) {
        // Release: pairs with the Acquire in `enter`.
        if self.0.swap(0, Ordering::Release) & CONTENDED != 0 {
            patience.wake_one(&self.0);
        }
    }

    /// Frees the lock if a thread of this number holds it: for the image of a program
    /// that begins with `exec`, whose first thread has the number of one that is no more.
    pub fn forget(&self, tid: u32) {
        let word = self.0.load(Ordering::Relaxed);
        if word & !CONTENDED == tid {
            self.swap_from(word, 0);
        }
    }

    /// Frees the lock whoever holds it: for a child process, where the other
    /// threads of its parent do not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Model;

    impl Patience for Model {
        fn sleep(&self, _: &AtomicWord, _: u32) {
            thread::yield_now();
        }
        fn wake_one(&self, _: &AtomicWord) {}
        fn is_alive(&self, _: u32) -> bool {
            true
        }
        fn pause(&self) {
            thread::yield_now();
        }
    }

    #[test]
    fn excludes_and_publishes() {
        loom::model(|| {
            let shared = Arc::new((Lock::new(), UnsafeCell::new(0u32)));
            let add = |shared: &(Lock, UnsafeCell<u32>), tid| {
                assert_eq!(shared.0.enter(tid, &Model), Entry::Owned);
                // SAFETY: the lock excludes the other thread; loom checks it.
                shared.1.with_mut(|n| unsafe { *n += 1 });
                shared.0.leave(&Model);
            };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || add(&shared, 1))
            };
            add(&shared, 2);
            other.join().unwrap();
            // SAFETY: both threads have ended.
            shared.1.with(|n| assert_eq!(unsafe { *n }, 2));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    struct DeadOwner(AtomicBool);

    impl Patience for DeadOwner {
        fn sleep(&self, _: &AtomicWord, _: u32) {
            self.0.store(true, Ordering::Relaxed);
        }
        fn wake_one(&self, _: &AtomicWord) {}
        fn is_alive(&self, _: u32) -> bool {
            !self.0.load(Ordering::Relaxed)
        }
        fn pause(&self) {}
    }

    #[test]
    fn a_handler_of_the_owning_thread_is_let_in() {
        let system = DeadOwner(AtomicBool::new(false));
        let lock = Lock::new();
        assert_eq!(lock.enter(7, &system), Entry::Owned);
        assert_eq!(lock.enter(7, &system), Entry::Reentered);
        lock.leave(&system);
        assert!(lock.try_enter(8));
    }

    #[test]
    fn only_the_lock_of_a_forgotten_thread_is_freed() {
        let lock = Lock::new();
        assert!(lock.try_enter(7));
        lock.forget(8);
        assert!(!lock.try_enter(8));
        lock.forget(7);
        assert!(lock.try_enter(8));
    }

    #[test]
    fn a_dead_owner_is_inherited_from() {
        let system = DeadOwner(AtomicBool::new(false));
        let lock = Lock::new();
        assert!(lock.try_enter(7));
        assert_eq!(lock.enter(8, &system), Entry::Owned);
    }
}
