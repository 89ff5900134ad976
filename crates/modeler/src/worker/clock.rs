//! The clock of all measurements: `CLOCK_MONOTONIC`, in nanoseconds.
//!
//! It is the same for all processes of a host, so a moment can be told to another
//! worker as a number.

use std::io;

/// Nothing moves for so many seconds: the run hangs.
pub(crate) const HANG_S: u64 = 10;
/// Nanoseconds in a second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// The moment.
#[inline]
pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sleeps until `at_ns`; not at all when that is over.
pub(crate) fn sleep_until(at_ns: u64) {
    let at = timespec(at_ns);
    loop {
        // SAFETY: `at` lives through the call; no remainder is asked for.
        let errno = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const at,
                std::ptr::null_mut(),
            )
        };
        if errno != libc::EINTR {
            return;
        }
    }
}

/// Asks for timers without slack in this thread and in those it will start. Linux
/// lets a sleeper sleep 50 µs longer otherwise, several round trips.
pub(crate) fn be_punctual() {
    // SAFETY: an operation on the calling thread's own attributes. It does not fail
    // with these arguments, and without it timers are merely late.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// This moment in the kernel's form.
pub(crate) fn timespec(at_ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (at_ns / SECOND_NS) as i64, tv_nsec: (at_ns % SECOND_NS) as i64 }
}

/// A system call's result: -1 says that `errno` has the reason.
pub(crate) fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. These clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * SECOND_NS + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_wake_before_the_moment() {
        let at = now_ns() + 2_000_000;
        sleep_until(at);
        assert!(now_ns() >= at);
        sleep_until(0);
    }
}
