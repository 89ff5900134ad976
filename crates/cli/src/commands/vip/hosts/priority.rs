//! A real-time priority for the thread that keeps the lease: on a host whose CPUs are taken it runs before all ordinary
//! threads.
//!
//! A backup that does not run for a second promises nothing, and an owner that does not run loses the VIPs, however well
//! both are. That thread needs a few thousandths of a CPU. The kernel gives the priority to whom `RLIMIT_RTPRIO` or CAP_SYS_NICE
//! lets have it.

use std::io;

/// The lowest one, above all threads without.
const PRIORITY: i32 = 1;

/// Has this thread run before all ordinary ones. Threads and processes that it starts do not.
///
/// # Errors
/// It may not.
pub(super) fn run_first() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and the parameters live until the call returns.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn policy() -> i32 {
        // SAFETY: 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn the_thread_has_the_priority_or_is_told_that_it_may_not() {
        let tried = thread::spawn(|| match run_first() {
            Ok(()) => {
                assert_eq!(policy(), libc::SCHED_RR | libc::SCHED_RESET_ON_FORK);
                thread::spawn(policy).join().unwrap()
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                policy()
            }
        });
        assert_eq!(tried.join().unwrap(), libc::SCHED_OTHER);
        assert_eq!(policy(), libc::SCHED_OTHER, "other threads are as before");
    }
}
