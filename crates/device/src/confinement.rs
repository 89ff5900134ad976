//! Filters of system calls (seccomp), and which calls the library makes under one.
//!
//! A filter lets pass what its author has seen the program call. The library calls more, and many a
//! filter kills for that. What a filter says cannot be asked, so under one the library makes the calls
//! of an ordinary TCP program, and no other:
//!
//! | Confinement | Calls |
//! |---|---|
//! | none | all |
//! | a filter that the operator trusts ([`trust`]) | all but those that a filter's author may not have heard of ([`is_recent`]) |
//! | a filter (`SECCOMP_MODE_FILTER`) | [`is_ordinary`], and what the program has asked for itself ([`admit`]) |
//! | strict (`SECCOMP_MODE_STRICT`) | `read` and `write` |
//!
//! A strict one forbids the processor's clock as well (`PR_SET_TSC`), so time is that of the last tick.
//!
//! Whatever else it would call fails with `ENOSYS`, as on a kernel that does not know the call, and is
//! not made. So nothing new moves, and what has moved goes on with these. There is one place where that
//! is decided, at the door to the kernel ([`permits`]), and it costs a load for each system call.
//!
//! *Source*: seccomp(2); Linux `kernel/seccomp.c`.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use syscalls::Sysno;

/// How far the program is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Confinement {
    /// No filter is known.
    None = 0,
    /// By a filter.
    Filtered = 1,
    /// To `read`, `write`, `_exit` and `sigreturn`.
    Strict = 2,
}

static NOW: AtomicU8 = AtomicU8::new(Confinement::None as u8);

/// How far the program is confined now.
#[must_use]
pub fn now() -> Confinement {
    // Relaxed: a thread that confines itself has written it before, and others follow when they see it;
    // what a filter for all threads forbids is written before that is installed.
    match NOW.load(Ordering::Relaxed) {
        0 => Confinement::None,
        1 => Confinement::Filtered,
        _ => Confinement::Strict,
    }
}

/// Whether it is at all.
#[inline]
#[must_use]
pub fn is_confined() -> bool {
    NOW.load(Ordering::Relaxed) != Confinement::None as u8
}

/// Whether it may read and write, and nothing else.
#[must_use]
pub fn is_strict() -> bool {
    now() == Confinement::Strict
}

/// From now on it is confined so far.
pub fn set(confinement: Confinement) {
    // SeqCst: threads that this is for see it before the filter is there.
    NOW.store(confinement as u8, Ordering::SeqCst);
}

static IS_TRUSTED: AtomicBool = AtomicBool::new(false);

/// A filter is there, and lets the library's calls pass.
pub fn trust() {
    IS_TRUSTED.store(true, Ordering::Relaxed);
}

/// Whether the library makes this call.
#[inline]
pub(crate) fn permits(number: Sysno) -> bool {
    (!is_confined() || is_permitted(number))
        && !(is_recent(number) && IS_TRUSTED.load(Ordering::Relaxed))
}

/// Whether an older call does as well: systemd's `@system-service` kills for each that is younger than systemd.
const fn is_recent(number: Sysno) -> bool {
    matches!(number, Sysno::futex_wait)
}

#[cold]
fn is_permitted(number: Sysno) -> bool {
    match now() {
        Confinement::None => true,
        Confinement::Filtered => is_ordinary(number) || is_admitted(number),
        Confinement::Strict => matches!(number, Sysno::read | Sysno::write),
    }
}

/// Calls that the program makes on its sockets now and then, and that ours serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "their names")]
pub enum Call {
    Shutdown = 1 << 0,
    GetOption = 1 << 1,
    SetOption = 1 << 2,
    Fcntl = 1 << 3,
    Ioctl = 1 << 4,
}

static ADMITTED: AtomicU8 = AtomicU8::new(0);

/// The program makes this call itself: if its filter did not let it pass, it would end anyway.
#[inline]
pub fn admit(call: Call) {
    if is_confined() {
        ADMITTED.fetch_or(call as u8, Ordering::Relaxed);
    }
}

fn is_admitted(number: Sysno) -> bool {
    let call = match number {
        Sysno::shutdown => Call::Shutdown,
        Sysno::getsockopt => Call::GetOption,
        Sysno::setsockopt => Call::SetOption,
        Sysno::fcntl => Call::Fcntl,
        Sysno::ioctl => Call::Ioctl,
        _ => return false,
    };
    ADMITTED.load(Ordering::Relaxed) & call as u8 != 0
}

/// What a program with TCP connections calls itself, or libc for it: to transfer, to wait, to lock and
/// to close, memory for that, and its own numbers (of a new thread or a child).
#[must_use]
pub const fn is_ordinary(number: Sysno) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(number, Sysno::poll | Sysno::epoll_wait) {
        return true;
    }
    #[cfg(not(target_arch = "x86_64"))]
    if matches!(number, Sysno::ppoll) {
        return true;
    }
    matches!(
        number,
        Sysno::read
            | Sysno::write
            | Sysno::recvfrom
            | Sysno::sendto
            | Sysno::epoll_pwait
            | Sysno::epoll_ctl
            | Sysno::futex
            | Sysno::close
            | Sysno::mmap
            | Sysno::munmap
            | Sysno::getpid
            | Sysno::gettid
    )
}

/// The mode of seccomp in `/proc/PID/status`, which may be cut. A kernel without seccomp has no line
/// for it.
pub(crate) fn mode_in(status: &[u8], is_cut: bool) -> Confinement {
    const LINE: &[u8] = b"\nSeccomp:\t";
    let at = status.windows(LINE.len()).position(|window| window == LINE);
    match at.and_then(|at| status.get(at + LINE.len())) {
        Some(b'0') => Confinement::None,
        None if !is_cut => Confinement::None,
        _ => Confinement::Filtered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_read_from_the_status() {
        let mode = |text: &str| mode_in(text.as_bytes(), false);
        assert_eq!(mode("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"), Confinement::None);
        assert_eq!(mode("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"), Confinement::Filtered);
        assert_eq!(mode("Name:\tx\nSeccomp_filters:\t1\n"), Confinement::None);
        // A program can call itself what it likes; a name has no line break in there.
        assert_eq!(mode("Name:\tSeccomp:\\n2\nSeccomp:\t0\n"), Confinement::None);
        assert_eq!(mode_in(b"Name:\tx\nGroups:\t1 2 3", true), Confinement::Filtered);
    }

    #[test]
    fn what_a_tcp_program_calls_is_ordinary_and_what_moves_connections_is_not() {
        for number in [Sysno::recvfrom, Sysno::sendto, Sysno::futex, Sysno::close] {
            assert!(is_ordinary(number), "{number}");
        }
        for number in [
            Sysno::socket,
            Sysno::memfd_create,
            Sysno::sendmsg,
            Sysno::getsockopt,
            Sysno::fcntl,
            Sysno::kill,
            Sysno::sched_yield,
            Sysno::eventfd2,
        ] {
            assert!(!is_ordinary(number), "{number}");
        }
    }
}
