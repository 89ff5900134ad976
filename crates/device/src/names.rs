//! Which system calls name a descriptor's number now: so that the side that takes the number away
//! knows when none can still mean it.
//!
//! ```text
//!   a system call                          closing side
//!   in_use + 1                             the number leads nowhere
//!   ------- fence -------                  ------- fence -------
//!   does the number lead to the file?      is in_use 0?
//! ```
//!
//! Each side writes before its fence and reads behind it, and one of the two fences comes first. If
//! the caller's does, the closing side sees the count; else the caller sees that the number leads
//! nowhere. So they never miss each other.

use crate::sync::{AtomicU32, Ordering, fence};
use sidestep_derive::{Renew, Zeroable};

/// System calls on one file that name a number of it, or are about to.
#[derive(Renew, Zeroable)]
pub struct Names {
    in_use: AtomicU32,
    /// Number of the thread that sleeps in one, or is about to; 0 = none.
    sleeper: AtomicU32,
}

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

impl Names {
    /// None.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { in_use: AtomicU32::new(0), sleeper: AtomicU32::new(0) }
    }

    /// None.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { in_use: AtomicU32::new(0), sleeper: AtomicU32::new(0) }
    }

    /// A system call that does not wait is about to be made. Whether the number still leads to the
    /// file is to be asked afterwards.
    #[inline]
    pub fn begin(&self) {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        // See the module: the count is seen, or the table's change is.
        fence(Ordering::SeqCst);
    }

    /// It has been made.
    #[inline]
    pub fn end(&self) {
        // Release: pairs with `are_quiet`; the system call comes before.
        self.in_use.fetch_sub(1, Ordering::Release);
    }

    /// The same for a system call that sleeps, of thread `tid`. Returns the thread that was in one
    /// before: a signal handler may sleep in the middle of its own thread's sleep.
    pub fn begin_sleep(&self, tid: u32) -> u32 {
        let before = self.sleeper.swap(tid, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A thread that has left its sleep by `siglongjmp` leaves its number.
        if before == tid { before } else { 0 }
    }

    /// The same where other threads may sleep, too, of which only one is noted. False: it is
    /// another.
    #[must_use]
    pub fn begin_only_sleep(&self, tid: u32) -> bool {
        let noted =
            self.sleeper.compare_exchange(0, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        fence(Ordering::SeqCst);
        noted
    }

    /// It sleeps no more.
    pub fn end_sleep(&self, before: u32) {
        // Release: pairs with `sleeper`.
        self.sleeper.store(before, Ordering::Release);
    }

    /// After the number was taken out of the table: whether no system call can still mean it, but
    /// that of the [sleeper](Self::sleeper).
    #[must_use]
    pub fn are_quiet(&self) -> bool {
        fence(Ordering::SeqCst);
        self.in_use.load(Ordering::Acquire) == 0
    }

    /// The thread that sleeps by number, or is about to; 0 = none.
    #[must_use]
    pub fn sleeper(&self) -> u32 {
        fence(Ordering::SeqCst);
        self.sleeper.load(Ordering::Acquire)
    }

    /// For a child process, in which the threads of its parent do not exist.
    pub fn reset(&self) {
        self.in_use.store(0, Ordering::Relaxed);
        self.sleeper.store(0, Ordering::Relaxed);
    }
}

/// The program's own call of one thread, which names a number and may wait: so it is no count but
/// the number, and the closing side of that number asks the kernel whether the thread is in it yet.
pub struct Caller {
    /// The number + 1; 0 = none.
    number: AtomicU32,
}

impl Default for Caller {
    fn default() -> Self {
        Self::new()
    }
}

impl Caller {
    /// In no call.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { number: AtomicU32::new(0) }
    }

    /// In no call.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { number: AtomicU32::new(0) }
    }

    /// This thread is about to make a call by number. Whether the number still leads to the file is to
    /// be asked afterwards. Returns what [`end`](Self::end) takes: a signal handler may make a call in
    /// the middle of its own thread's.
    #[inline]
    pub fn begin(&self, number: u32) -> u32 {
        let before = self.begin_unordered(number);
        // See the module: the number is seen, or the table's change is.
        fence(Ordering::SeqCst);
        before
    }

    /// The same, where a read-modify-write with Release on a word that the closing side changes comes
    /// next, and is the question.
    #[inline]
    pub fn begin_unordered(&self, number: u32) -> u32 {
        let before = self.number.load(Ordering::Relaxed);
        self.number.store(number + 1, Ordering::Relaxed);
        before
    }

    /// The call has returned.
    #[inline]
    pub fn end(&self, before: u32) {
        // Release: pairs with `is_in`; the system call comes before.
        self.number.store(before, Ordering::Release);
    }

    /// After the number was taken out of the table: whether the thread's call can still mean it.
    #[must_use]
    pub fn is_in(&self, number: u32) -> bool {
        fence(Ordering::SeqCst);
        self.number.load(Ordering::Acquire) == number + 1
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// What a number leads to.
    const FILE: u32 = 1;
    const NOTHING: u32 = 0;
    const STRANGER: u32 = 2;

    /// The number.
    const NUMBER: u32 = 3;

    struct World {
        names: Names,
        caller: Caller,
        table: AtomicU32,
        kernel: AtomicU32,
    }

    impl World {
        fn new() -> Arc<Self> {
            let [table, kernel] = [FILE; 2].map(AtomicU32::new);
            Arc::new(Self { names: Names::new(), caller: Caller::new(), table, kernel })
        }

        fn close(&self, is_quiet: impl Fn(&Self) -> bool) {
            self.table.store(NOTHING, Ordering::Relaxed);
            while !is_quiet(self) {
                thread::yield_now();
            }
            self.kernel.store(STRANGER, Ordering::Relaxed);
        }

        /// The system call by number, if the table leads to the file.
        fn call(&self) {
            if self.table.load(Ordering::Relaxed) == FILE {
                assert_eq!(self.kernel.load(Ordering::Relaxed), FILE);
            }
        }
    }

    #[test]
    fn a_call_by_number_reaches_no_stranger() {
        loom::model(|| {
            let world = World::new();
            let caller = world.clone();
            let caller = thread::spawn(move || {
                for _ in 0..2 {
                    caller.names.begin();
                    caller.call();
                    caller.names.end();
                }
            });
            world.close(|world| world.names.are_quiet());
            caller.join().unwrap();
        });
    }

    #[test]
    fn a_sleep_by_number_reaches_no_stranger() {
        loom::model(|| {
            let world = World::new();
            let sleeper = world.clone();
            let sleeper = thread::spawn(move || {
                let before = sleeper.names.begin_sleep(7);
                sleeper.call();
                sleeper.names.end_sleep(before);
            });
            world.close(|world| world.names.sleeper() == 0);
            sleeper.join().unwrap();
        });
    }

    #[test]
    fn a_call_of_the_program_reaches_no_stranger() {
        loom::model(|| {
            let world = World::new();
            let caller = world.clone();
            let caller = thread::spawn(move || {
                for _ in 0..2 {
                    let before = caller.caller.begin(NUMBER);
                    caller.call();
                    caller.caller.end(before);
                }
            });
            world.close(|world| !world.caller.is_in(NUMBER));
            caller.join().unwrap();
        });
    }

    /// As an untracked connection is asked: one word says whether it is open and how many calls are inside.
    #[test]
    fn a_call_of_the_program_that_asks_by_changing_a_word_reaches_no_stranger() {
        const OPEN: u32 = 1 << 31;
        loom::model(|| {
            let world = World::new();
            world.table.store(OPEN, Ordering::Relaxed);
            let caller = world.clone();
            let caller = thread::spawn(move || {
                let before = caller.caller.begin_unordered(NUMBER);
                if caller.table.fetch_add(1, Ordering::AcqRel) & OPEN != 0 {
                    assert_eq!(caller.kernel.load(Ordering::Relaxed), FILE);
                }
                caller.table.fetch_sub(1, Ordering::Release);
                caller.caller.end(before);
            });
            world.table.fetch_and(!OPEN, Ordering::Acquire);
            while world.caller.is_in(NUMBER) {
                thread::yield_now();
            }
            world.kernel.store(STRANGER, Ordering::Relaxed);
            caller.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_in_a_sleep_leaves_the_outer_one() {
        let names = Names::new();
        let outer = names.begin_sleep(7);
        let inner = names.begin_sleep(7);
        names.end_sleep(inner);
        assert_eq!(names.sleeper(), 7);
        names.end_sleep(outer);
        assert_eq!(names.sleeper(), 0);
    }

    #[test]
    fn a_call_in_a_call_leaves_the_outer_one() {
        let caller = Caller::new();
        let outer = caller.begin(0);
        let inner = caller.begin(7);
        assert!(caller.is_in(7) && !caller.is_in(0));
        caller.end(inner);
        assert!(caller.is_in(0));
        caller.end(outer);
        assert!(!caller.is_in(0));
    }

    #[test]
    fn of_many_that_sleep_one_is_noted() {
        let names = Names::new();
        assert!(names.begin_only_sleep(7) && !names.begin_only_sleep(8));
        assert_eq!(names.sleeper(), 7);
        names.end_sleep(0);
        assert!(names.begin_only_sleep(8));
    }

    #[test]
    fn the_number_of_a_thread_that_left_its_sleep_is_forgotten() {
        let names = Names::new();
        names.begin_sleep(7);
        let before = names.begin_sleep(8);
        names.end_sleep(before);
        assert_eq!(names.sleeper(), 0);
    }
}
