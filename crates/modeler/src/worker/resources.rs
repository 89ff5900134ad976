//! What the process has used, and how many descriptors it may have.

use std::io;

use super::clock::checked;
use super::failure::Failure;
use super::shares::shares;
use crate::control::{Job, Usage};
use crate::plan::Model;

/// CPU time and context switches of this process so far.
pub(crate) fn usage() -> Usage {
    usage_of(libc::RUSAGE_SELF)
}

/// The same of `RUSAGE_SELF` or `RUSAGE_CHILDREN`.
pub(crate) fn usage_of(who: i32) -> Usage {
    // SAFETY: all zeros are a valid rusage.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `used` is writable; the kernel knows both values of `who`.
    unsafe { libc::getrusage(who, &raw mut used) };
    Usage {
        user_us: microseconds(used.ru_utime),
        system_us: microseconds(used.ru_stime),
        voluntary_switches: used.ru_nvcsw as u64,
        involuntary_switches: used.ru_nivcsw as u64,
    }
}

/// Sees to it that there are enough descriptors for the job.
///
/// # Errors
/// There cannot be; the text says how many are needed.
pub(crate) fn make_room(job: &Job) -> Result<(), Failure> {
    let limit = raise_limit().map_err(Failure::Limit)?;
    check_limit(job.connections, needed(job), limit)
}

/// One for each connection, two for each loop (epoll and timer), and some to spare.
fn needed(job: &Job) -> u64 {
    let loops = if job.model == Model::EventLoop { shares(job).len() } else { 0 };
    u64::from(job.connections) + 2 * loops as u64 + SPARE
}

fn check_limit(connections: u32, needed: u64, limit: u64) -> Result<(), Failure> {
    if needed > limit {
        return Err(Failure::TooFewDescriptors { connections, needed, limit });
    }
    Ok(())
}

/// Raises the soft limit to the hard one. Returns the limit.
fn raise_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` lives through the call.
        checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    Ok(limit.rlim_cur)
}

fn microseconds(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
}

/// Standard streams, the listener, connections that one side has closed and the
/// other not yet, and what a library around us opens for itself.
const SPARE: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_descriptors_are_missing() {
        check_limit(960, 1024, 1024).expect("just enough");
        let failure = check_limit(10_000, 10_064, 1024).expect_err("too few");
        assert_eq!(
            failure.to_string(),
            "10000 connections need 10064 descriptors, the limit is 1024: ulimit -n 10064"
        );
    }

    #[test]
    fn usage_grows() {
        let before = usage();
        assert!(raise_limit().expect("a limit") > 0);
        let after = usage();
        assert_eq!(before - after, Usage::default());
    }
}
