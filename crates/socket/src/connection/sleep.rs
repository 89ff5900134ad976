//! Sleeping in the functions of libc, as the program's own calls do.

use crate::Answer;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use sidestep_device::confinement;
use sidestep_device::sys::{self, Errno, SignalMask};
use std::sync::OnceLock;

/// The functions of libc in which threads sleep on the program's descriptors. They
/// are cancellation points: `pthread_cancel` ends them by unwinding the stack, and
/// what a sleeper holds is therefore held by guards. Or they fail with `ECANCELED`, and the sleeper returns with it.
#[derive(Clone, Copy)]
pub struct Sleeps {
    /// `recv`.
    pub recv: fn(i32, &mut [u8], i32) -> isize,
    /// `ppoll`.
    pub ppoll: fn(&mut [libc::pollfd], Option<&libc::timespec>, SignalMask) -> i32,
    /// `epoll_pwait2`, or what is nearest to it in this libc.
    pub epoll_wait: fn(i32, &mut [libc::epoll_event], Option<&libc::timespec>, SignalMask) -> i32,
    /// `pthread_testcancel`, for sleeps that libc does not know.
    pub look_for_cancel: fn() -> Answer<()>,
}

static SLEEPS: OnceLock<Sleeps> = OnceLock::new();

/// Says where to sleep, once, before the first call. Without it, sleeps are plain
/// system calls.
pub fn sleep_in(sleeps: Sleeps) {
    let _ = SLEEPS.set(sleeps);
}

/// `recv` of one byte, `None` at the end; the program's `errno` stays as it was.
pub(super) fn recv_byte(fd: i32, flags: i32) -> sys::Result<Option<u8>> {
    let mut byte = [0u8];
    let received = match SLEEPS.get().filter(|_| !confinement::is_strict()) {
        Some(sleeps) => {
            let before = sys::libc_errno();
            let n = (sleeps.recv)(fd, &mut byte, flags);
            usize::try_from(n).map_err(|_| Errno(sys::replace_libc_errno(before)))
        }
        None => sys::recv_into(fd, &mut byte, flags),
    };
    received.map(|n| (n > 0).then_some(byte[0]))
}

/// `ppoll` with no more than the rest of `timeout`; the program's `errno` stays as it
/// was.
pub(crate) fn ppoll(
    entries: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: SignalMask,
) -> sys::Result {
    let by_poll = sigmask.is_none() && confinement::is_confined();
    let Some(sleeps) = SLEEPS.get().filter(|_| !by_poll) else {
        return sys::ppoll(entries, timeout, sigmask);
    };
    let time = timeout.map(sys::timespec);
    let before = sys::libc_errno();
    let n = (sleeps.ppoll)(entries, time.as_ref(), sigmask);
    usize::try_from(n).map_err(|_| Errno(sys::replace_libc_errno(before)))
}

/// `epoll_pwait2` with no more than the rest of `timeout`; the program's `errno` stays as it was. A thread
/// that is cancelled in a libc without that call ends when the time is up.
pub(crate) fn epoll_wait(
    epfd: i32,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    sigmask: SignalMask,
) -> sys::Result {
    let by_kernel = confinement::is_confined() || timeout.is_some() && !sys::has_epoll_pwait2();
    let count = match SLEEPS.get().filter(|_| !by_kernel) {
        Some(sleeps) => {
            let time = timeout.map(sys::timespec);
            let before = sys::libc_errno();
            let n = (sleeps.epoll_wait)(epfd, events, time.as_ref(), sigmask);
            usize::try_from(n).map_err(|_| Errno(sys::replace_libc_errno(before)))
        }
        None => Err(Errno(libc::ENOSYS)),
    };
    let count = match count {
        Err(Errno(libc::ENOSYS)) => sys::epoll_wait(epfd, events, timeout, sigmask)?,
        count => count?,
    };
    if count == 0 {
        look_for_cancel().map_err(Errno)?;
    }
    Ok(count)
}

/// A cancellation point, behind a sleep that libc does not know.
///
/// # Errors
/// `ECANCELED`, where cancelling does not unwind.
pub(super) fn look_for_cancel() -> Answer<()> {
    SLEEPS.get().map_or(Ok(()), |sleeps| (sleeps.look_for_cancel)())
}

/// Sleeps on a futex as Linux does in a socket call without a time-out: a handler with
/// `SA_RESTART` lets it sleep on, any other ends it with `EINTR`.
pub(super) fn restarting_nap(word: &AtomicU32, value: u32, nap: Duration) -> sys::Result {
    match sys::futex_wait_restarting(word, value, nap) {
        // Before Linux 5.16, or under a filter of system calls that does not know it.
        Err(Errno(libc::ENOSYS | libc::EPERM)) => match sys::futex_wait(word, value, Some(nap)) {
            Err(Errno(libc::EINTR)) if handlers_restart() => Ok(0),
            other => other,
        },
        other => other,
    }
}

/// Would Linux restart an interrupted call? It would if the handler that ran has
/// `SA_RESTART`; which one ran is not known where a sleep ends with `EINTR` in any case,
/// so: if all handlers of the process have it.
pub(crate) fn handlers_restart() -> bool {
    // To ask about each is no ordinary call.
    if confinement::is_confined() {
        return true;
    }
    const FAULTS: [i32; 5] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    let mut signals = (1..=64).filter(|signal| !FAULTS.contains(signal));
    !signals.any(sys::interrupts_for_good)
}
