//! A lock that lives in shared memory and names its owner.
//!
//! Two processes that inherited one connection share its direction locks, and a
//! signal handler may interrupt a thread that holds one and use the same socket.
//! So the word names its owner, a thread and its process:
//!
//! ```text
//!   bits  63 ......... 32   31          30 ...... 22   21 ........ 0
//!         holder, upper     CONTENDED   holder, lower  thread           held
//!         0                 0           0              0                free
//! ```
//!
//! * A thread's number alone would not do: the processes may be in two PID
//!   namespaces, where the same number is two threads. A process has a number
//!   of its own beside it ([`Holder`]).
//! * The same thread (a signal handler) gets [`Entry::Reentered`] instead of a
//!   deadlock; it must not unlock.
//! * A waiter that slept [`PATIENCE_MS`] asks whether the owner still lives and
//!   takes over from a dead one. Cursors are published as the last step of every
//!   operation, so what a dead owner leaves behind is consistent.
//! * A waiter sleeps on the lower half of the word, which is what a futex has
//!   room for. Of two owners that look alike there the second is waited for
//!   until the patience is over, and no wake-up is missed: the first one's
//!   `leave` wakes.

use crate::sync::{AtomicU64, Ordering};
use sidestep_derive::{Renew, Shared};

/// Set in the word while a thread may be sleeping for it.
const CONTENDED: u64 = 1 << 31;
/// Bits of a thread's number: Linux keeps them below 2^22 (`PID_MAX_LIMIT`).
const TID_BITS: u32 = 22;
/// Bits of a holder's number in the lower half of the word, and in the upper.
const HOLDER_BITS: [u32; 2] = [31 - TID_BITS, 32];
/// How long a waiter sleeps before it asks whether the owner is alive.
pub const PATIENCE_MS: u64 = 10;
/// Looks at the word before sleeping: the critical section is a copy.
const LOOKS: u32 = 100;

/// The word.
#[derive(Renew, Shared)]
#[repr(transparent)]
pub struct Lock(AtomicU64);

/// One of the processes that share a lock, until it runs another program. Numbers are
/// drawn at random (`holders`), so they mean the same in every namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u64);

impl Holder {
    /// The largest number.
    pub const MAX: Self = Self((1 << (HOLDER_BITS[0] + HOLDER_BITS[1])) - 1);

    /// The holder of a number; 0 and what is too large belong to none.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        if number == 0 || number > Self::MAX.0 { None } else { Some(Self(number)) }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// What takes a lock: a thread of a process. One word, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Owner(u64);

impl Owner {
    /// The thread of this number, as its own process knows it.
    #[must_use]
    pub const fn new(Holder(holder): Holder, tid: u32) -> Self {
        let lower = (holder & ((1 << HOLDER_BITS[0]) - 1)) << TID_BITS;
        let upper = holder >> HOLDER_BITS[0] << 32;
        Self(upper | lower | (tid as u64 & ((1 << TID_BITS) - 1)))
    }

    /// The owner in a word; 0: the lock is free.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        match word & !CONTENDED {
            0 => None,
            word => Some(Self(word)),
        }
    }

    /// As a word.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Its process.
    #[must_use]
    pub const fn holder(self) -> Holder {
        let lower = self.0 as u32 >> TID_BITS;
        Holder((self.0 >> 32) << HOLDER_BITS[0] | lower as u64)
    }

    /// Its thread.
    #[must_use]
    pub const fn tid(self) -> u32 {
        self.0 as u32 & ((1 << TID_BITS) - 1)
    }
}

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
    /// Sleeps until the lower half of `word` is no longer that of `value`, a wake-up, or
    /// [`PATIENCE_MS`].
    fn sleep(&self, word: &AtomicWord, value: u64);
    /// Wakes one sleeper.
    fn wake_one(&self, word: &AtomicWord);
    /// Whether the owner of the lock `word` still exists.
    fn is_alive(&self, word: &AtomicWord, owner: Owner) -> bool;
    /// Passes a moment.
    fn pause(&self);
}

/// How the threads of a process take locks.
pub trait Thread: Patience + Default {
    /// The thread that calls.
    fn me() -> Owner;
}

/// A lock held by this thread until it is dropped.
pub struct Held<'a, T: Thread> {
    lock: &'a Lock,
    is_owned: bool,
    thread: T,
}

impl<'a, T: Thread> Held<'a, T> {
    /// Waits for the lock.
    #[inline]
    pub fn enter(lock: &'a Lock) -> Self {
        let thread = T::default();
        Self { lock, is_owned: lock.enter(T::me(), &thread) == Entry::Owned, thread }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_enter(lock: &'a Lock) -> Option<Self> {
        // Not `then_some`: a guard that is made and not returned would unlock.
        lock.try_enter(T::me()).then(|| Self { lock, is_owned: true, thread: T::default() })
    }

    /// Whether this thread did not hold the lock before: nothing under it was interrupted.
    pub fn is_outermost(&self) -> bool {
        self.is_owned
    }
}

impl<T: Thread> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.is_owned {
            self.lock.leave(&self.thread);
        }
    }
}

/// The atomic behind a lock, as [`Patience`] sees it.
pub type AtomicWord = AtomicU64;

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

impl Lock {
    /// A free lock.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A free lock.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes the lock for a thread, waiting as long as it takes.
    #[inline]
    pub fn enter(&self, me: Owner, patience: &impl Patience) -> Entry {
        if self.try_enter(me) { Entry::Owned } else { self.enter_slowly(me, patience) }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_enter(&self, me: Owner) -> bool {
        // Acquire: pairs with the Release in `leave`.
        self.0.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn enter_slowly(&self, me: Owner, patience: &impl Patience) -> Entry {
        let mut looks = 0;
        loop {
            // Relaxed: what is done with it, an exchange does that acquires.
            let word = self.0.load(Ordering::Relaxed);
            let owner = Owner::from_word(word);
            if owner == Some(me) {
                return Entry::Reentered;
            }
            let is_left = |owner| looks > LOOKS && !patience.is_alive(&self.0, owner);
            if owner.is_none_or(is_left) {
                // A thread that slept for the lock leaves the mark, so that others that
                // sleep are not forgotten.
                let mine = if looks > LOOKS { me.0 | CONTENDED } else { me.0 };
                if self.swap_from(word, mine) {
                    return Entry::Owned;
                }
            } else if looks <= LOOKS {
                looks += 1;
                patience.pause();
            } else if word & CONTENDED != 0 || self.swap_from(word, word | CONTENDED) {
                patience.sleep(&self.0, word | CONTENDED);
            }
        }
    }

    fn swap_from(&self, old: u64, new: u64) -> bool {
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

    /// Frees the lock of any owner: for a child process, where the other
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
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// `lives`: what is known of owners.
    struct Model<F: Fn(Owner) -> bool> {
        lives: F,
    }

    impl<F: Fn(Owner) -> bool> Patience for Model<F> {
        fn sleep(&self, _: &AtomicWord, _: u64) {
            thread::yield_now();
        }
        fn wake_one(&self, _: &AtomicWord) {}
        fn is_alive(&self, _: &AtomicWord, owner: Owner) -> bool {
            (self.lives)(owner)
        }
        fn pause(&self) {
            thread::yield_now();
        }
    }

    const ALL_LIVE: Model<fn(Owner) -> bool> = Model { lives: |_| true };

    fn owner(holder: u64, tid: u32) -> Owner {
        Owner::new(Holder::from_number(holder).unwrap(), tid)
    }

    fn add(shared: &(Lock, UnsafeCell<u32>), me: Owner, patience: &impl Patience) {
        assert_eq!(shared.0.enter(me, patience), Entry::Owned);
        // SAFETY: the lock excludes the other thread; loom checks it.
        shared.1.with_mut(|n| unsafe { *n += 1 });
        shared.0.leave(patience);
    }

    #[test]
    fn excludes_and_publishes() {
        loom::model(|| {
            let shared = Arc::new((Lock::new(), UnsafeCell::new(0u32)));
            // The same number in two PID namespaces.
            let other = {
                let shared = shared.clone();
                thread::spawn(move || add(&shared, owner(1, 7), &ALL_LIVE))
            };
            add(&shared, owner(2, 7), &ALL_LIVE);
            other.join().unwrap();
            // SAFETY: both threads have ended.
            shared.1.with(|n| assert_eq!(unsafe { *n }, 2));
        });
    }

    /// A third process was killed with the lock in its hand, and two wait: one inherits, the
    /// other waits for that one.
    #[test]
    fn one_of_two_inherits_from_the_dead() {
        loom::model(|| {
            let shared = Arc::new((Lock::new(), UnsafeCell::new(0u32)));
            let dead = owner(3, 7);
            assert!(shared.0.try_enter(dead));
            let others_live = move || Model { lives: move |owner| owner != dead };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || add(&shared, owner(1, 7), &others_live()))
            };
            add(&shared, owner(2, 7), &others_live());
            other.join().unwrap();
            // SAFETY: both threads have ended.
            shared.1.with(|n| assert_eq!(unsafe { *n }, 2));
        });
    }

    /// The owner dies while another thread waits: what it had written before is there.
    #[test]
    fn what_the_dead_have_done_is_seen() {
        loom::model(|| {
            let shared = Arc::new((Lock::new(), UnsafeCell::new(0u32), AtomicBool::new(true)));
            let dying = owner(1, 7);
            assert!(shared.0.try_enter(dying));
            let other = {
                let shared = shared.clone();
                thread::spawn(move || {
                    // SAFETY: the lock excludes the other thread; loom checks it.
                    shared.1.with_mut(|n| unsafe { *n += 1 });
                    // Release, as the kernel gives back what it has locked.
                    shared.2.store(false, Ordering::Release);
                })
            };
            let lives = |owner| owner != dying || shared.2.load(Ordering::Acquire);
            assert_eq!(shared.0.enter(owner(2, 7), &Model { lives }), Entry::Owned);
            // SAFETY: the lock excludes the other thread; loom checks it.
            shared.1.with(|n| assert_eq!(unsafe { *n }, 1));
            shared.0.leave(&ALL_LIVE);
            other.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    struct DeadOwner(AtomicBool);

    impl Patience for DeadOwner {
        fn sleep(&self, _: &AtomicWord, _: u64) {
            self.0.store(true, Ordering::Relaxed);
        }
        fn wake_one(&self, _: &AtomicWord) {}
        fn is_alive(&self, _: &AtomicWord, _: Owner) -> bool {
            !self.0.load(Ordering::Relaxed)
        }
        fn pause(&self) {}
    }

    fn owner(holder: u64, tid: u32) -> Owner {
        Owner::new(Holder::from_number(holder).unwrap(), tid)
    }

    #[test]
    fn a_handler_of_the_owning_thread_is_let_in() {
        let system = DeadOwner(AtomicBool::new(false));
        let lock = Lock::new();
        assert_eq!(lock.enter(owner(1, 7), &system), Entry::Owned);
        assert_eq!(lock.enter(owner(1, 7), &system), Entry::Reentered);
        lock.leave(&system);
        assert!(lock.try_enter(owner(1, 8)));
    }

    /// Two PID namespaces have the same numbers.
    #[test]
    fn a_thread_of_the_same_number_in_another_process_is_not_let_in() {
        let lock = Lock::new();
        assert!(lock.try_enter(owner(1, 7)));
        assert!(!lock.try_enter(owner(2, 7)));
        let system = DeadOwner(AtomicBool::new(false));
        assert_eq!(lock.enter(owner(2, 7), &system), Entry::Owned);
        assert!(system.0.into_inner(), "only because the first was found dead, after a sleep");
    }

    #[test]
    fn a_dead_owner_is_inherited_from() {
        let system = DeadOwner(AtomicBool::new(false));
        let lock = Lock::new();
        assert!(lock.try_enter(owner(1, 7)));
        assert_eq!(lock.enter(owner(1, 8), &system), Entry::Owned);
    }

    #[test]
    fn an_owner_is_one_word() {
        for holder in [1, 511, 512, 0x123_4567_89ab, Holder::MAX.number()] {
            for tid in [1, (1 << TID_BITS) - 1] {
                let owner = owner(holder, tid);
                assert_eq!((owner.holder().number(), owner.tid()), (holder, tid));
                assert_eq!(owner.word() & CONTENDED, 0);
                assert_eq!(Owner::from_word(owner.word() | CONTENDED), Some(owner));
            }
        }
        assert_eq!(Owner::from_word(CONTENDED), None);
        assert_eq!(Holder::from_number(0), None);
        assert_eq!(Holder::from_number(Holder::MAX.number() + 1), None);
    }
}
