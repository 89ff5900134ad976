//! What it costs to wake a sleeping thread: the price of a message to a thread that
//! waits, whichever way the message takes.
//!
//! Two threads throw a ball. Who has it notes the time and wakes the other, who notes
//! the time when it runs; then the other way round. A futex tells the waker whether
//! a thread was asleep, so a throw to one that was not there yet is repeated and not
//! counted:
//!
//! ```text
//!   left    ──note──wake(right)──────sleep……………………………………run──note
//!   right   ……………………………………run──note──note──wake(left)──sleep………
//! ```

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::affinity;

/// From the moment before the call that wakes a sleeping thread to its running:
/// medians, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WakeupCost {
    /// Both on one CPU.
    pub same_cpu_us: f64,
    /// The sleeper on another CPU; 0 when there is only one.
    pub other_cpu_us: f64,
}

/// Measures it on the first CPUs that this thread may use, in some tenths of a second.
///
/// # Errors
/// The threads cannot be started or bound to their CPUs.
pub fn measure() -> io::Result<WakeupCost> {
    let cpus = affinity::allowed()?;
    let same_cpu_us = cpus.first().map_or(Ok(0.0), |first| throw(*first, *first))?;
    let other_cpu_us = match cpus[..] {
        [first, second, ..] => throw(first, second)?,
        _ => 0.0,
    };
    Ok(WakeupCost { same_cpu_us, other_cpu_us })
}

/// The median of many throws between threads on two CPUs.
fn throw(left: usize, right: usize) -> io::Result<f64> {
    let game = Game::new();
    thread::scope(|scope| {
        let right = thread::Builder::new().spawn_scoped(scope, || game.play_right(right))?;
        let left = thread::Builder::new().spawn_scoped(scope, || game.play_left(left));
        let caught = match left {
            Ok(left) => left.join(),
            Err(error) => {
                game.end();
                return Err(error);
            }
        };
        let both = [caught, right.join()];
        let mut caught = Vec::new();
        for side in both {
            caught.extend(side.map_err(|_| io::Error::other("a thread has panicked"))??);
        }
        Ok(median_us(&mut caught))
    })
}

fn median_us(ns: &mut [u64]) -> f64 {
    let middle = ns.len() / 2;
    if ns.is_empty() {
        return 0.0;
    }
    let (_, median, _) = ns.select_nth_unstable(middle);
    *median as f64 / 1000.0
}

struct Game {
    began: Instant,
    /// When the ball was thrown, in nanoseconds since `began`.
    thrown: AtomicU64,
    over: AtomicBool,
    left: Place,
    right: Place,
}

impl Game {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            thrown: AtomicU64::new(0),
            over: AtomicBool::new(false),
            left: Place::default(),
            right: Place::default(),
        }
    }

    /// Begins, and ends the game. Returns what each catch took, in nanoseconds.
    fn play_left(&self, cpu: usize) -> io::Result<Vec<u64>> {
        let pinned = affinity::pin_to(&[cpu]);
        let mut caught = Vec::with_capacity(THROWS);
        while pinned.is_ok() && caught.len() < THROWS && self.began.elapsed() < TIME_MAX {
            if !self.throw_to(&self.right) {
                break;
            }
            self.left.sleep();
            caught.push(self.now() - self.thrown.load(Ordering::Acquire));
        }
        self.end();
        pinned.map(|()| caught)
    }

    fn play_right(&self, cpu: usize) -> io::Result<Vec<u64>> {
        let pinned = affinity::pin_to(&[cpu]);
        if pinned.is_err() {
            // No thread will catch.
            self.over.store(true, Ordering::Release);
        }
        let mut caught = Vec::with_capacity(THROWS);
        while !self.over.load(Ordering::Acquire) {
            self.right.sleep();
            if self.over.load(Ordering::Acquire) {
                break;
            }
            caught.push(self.now() - self.thrown.load(Ordering::Acquire));
            self.throw_to(&self.left);
        }
        self.right.gone.store(true, Ordering::Release);
        pinned.map(|()| caught)
    }

    /// Wakes the one at `place` as soon as he is asleep; false if he is gone.
    fn throw_to(&self, place: &Place) -> bool {
        while !place.gone.load(Ordering::Acquire) {
            self.thrown.store(self.now(), Ordering::Release);
            if place.wake() {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    /// Sends the right one home.
    fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.throw_to(&self.right);
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// Where a thread sleeps until it is woken, by nothing else.
#[derive(Default)]
struct Place {
    /// Always 0: only the queue behind it is used.
    futex: AtomicU32,
    gone: AtomicBool,
}

impl Place {
    fn sleep(&self) {
        let forever = ptr::null::<libc::timespec>();
        // Anything but 0 is a signal: not the ball.
        while self.call(libc::FUTEX_WAIT, 0, forever) != 0 {}
    }

    /// False if no thread sleeps here.
    fn wake(&self) -> bool {
        self.call(libc::FUTEX_WAKE, 1, ptr::null()) == 1
    }

    fn call(&self, operation: i32, value: u32, timeout: *const libc::timespec) -> i64 {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the futex outlives the call, and there is no timeout to read.
        unsafe { libc::syscall(libc::SYS_futex, self.futex.as_ptr(), operation, value, timeout) }
    }
}

/// Throws of each side.
const THROWS: usize = 2000;
/// A machine on which waking takes long gets fewer.
const TIME_MAX: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waking_takes_time() {
        let before = affinity::allowed().unwrap();
        let cost = measure().unwrap();
        assert!(cost.same_cpu_us > 0.0);
        assert_eq!(cost.other_cpu_us > 0.0, before.len() > 1);
        assert_eq!(affinity::allowed().unwrap(), before, "the caller stays where it was");
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error_and_no_hang() {
        let cpu = affinity::allowed().unwrap()[0];
        let absent = libc::CPU_SETSIZE as usize - 1;
        for (left, right) in [(absent, cpu), (cpu, absent), (absent, absent)] {
            let error = throw(left, right).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
    }

    #[test]
    fn the_median_is_in_microseconds() {
        assert_eq!(median_us(&mut []), 0.0);
        assert_eq!(median_us(&mut [9000, 1000, 2500]), 2.5);
    }
}
