//! Waiting for other threads to leave what this one takes away.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use sidestep_device::sys;

/// How long a closing side waits for system calls of others: for a thread that is starved of its
/// CPU in the middle of one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long where the kernel does not tell who is blocked: no `/proc`.
const PATIENCE_BLIND: Duration = Duration::from_millis(10);

/// A thread that has run for so long, by the clock of its own CPU time, has not been about to sleep
/// all the time: it has left its sleep by `siglongjmp`.
const RUN_MAX_NS: u64 = 5_000_000;

/// Looks at what others do between which it only yields.
const YIELDS: u32 = 32;

/// Between two looks, after those.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// Waits until the program's own call of a thread is in the kernel, or is made no more.
pub(super) fn outlast_call(tid: u32, is_in: impl Fn() -> bool) {
    outlast_thread(tid, is_in, |tid| sys::is_in_call(tid).or_else(|_| sys::is_asleep(tid)));
}

/// Waits until a thread has got as far as the kernel says it is, or is on its way no more.
pub(super) fn outlast_thread(
    tid: u32,
    is_on_its_way: impl Fn() -> bool,
    has_arrived: impl Fn(u32) -> sys::Result<bool>,
) {
    let begin = sys::thread_ns(tid);
    let has_run = || {
        let (begin, now) = (begin.ok(), sys::thread_ns(tid).ok());
        // One that has ended has no clock.
        begin.zip(now).is_none_or(|(begin, now)| now - begin > RUN_MAX_NS)
    };
    let is_on_its_way = || is_on_its_way() && !has_run();
    match has_arrived(tid) {
        Ok(_) => outlast(PATIENCE, || is_on_its_way() && has_arrived(tid) == Ok(false)),
        Err(_) => outlast(PATIENCE_BLIND, is_on_its_way),
    };
}

/// Waits until something is over. False: it takes too long.
pub(crate) fn outlast(patience: Duration, lasts: impl Fn() -> bool) -> bool {
    if !lasts() {
        return true;
    }
    let begin = sys::now_ns();
    for look in 0u32.. {
        if look < YIELDS {
            sys::yield_cpu();
        } else {
            // No thread wakes it.
            let _ = sys::futex_wait(&AtomicU32::new(0), 0, Some(LOOK_INTERVAL));
        }
        if !lasts() {
            return true;
        }
        if sys::now_ns() - begin > patience.as_nanos() as u64 {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn what_is_over_is_not_waited_for() {
        let looks = Cell::new(0);
        let lasts = |times| {
            looks.set(0);
            move |looks: &Cell<u32>| {
                looks.set(looks.get() + 1);
                looks.get() <= times
            }
        };
        for times in [0, 1, YIELDS, YIELDS + 3] {
            let lasts = lasts(times);
            assert!(outlast(PATIENCE, || lasts(&looks)));
            assert_eq!(looks.get(), times + 1, "no look more than it takes");
        }
    }

    #[test]
    fn what_lasts_is_given_up_after_the_patience_and_not_before() {
        let begin = sys::now_ns();
        assert!(!outlast(PATIENCE_BLIND, || true));
        assert!(sys::now_ns() - begin >= PATIENCE_BLIND.as_nanos() as u64);
    }

    #[test]
    fn a_thread_that_is_asleep_has_arrived_and_one_that_is_gone_is_not_waited_for() {
        let (tid, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                tid.store(sys::tid(), Ordering::Relaxed);
                while !is_over.load(Ordering::Relaxed) {
                    thread::park();
                }
            });
            while tid.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            // It is on its way for ever, by its own word.
            outlast_thread(tid.load(Ordering::Relaxed), || true, sys::is_asleep);
            is_over.store(true, Ordering::Relaxed);
            sleeper.thread().unpark();
        });
        while sys::has_thread(tid.load(Ordering::Relaxed)) {
            thread::yield_now();
        }
        let begin = sys::now_ns();
        outlast_thread(tid.load(Ordering::Relaxed), || true, sys::is_asleep);
        assert!(sys::now_ns() - begin < PATIENCE.as_nanos() as u64);
    }
}
