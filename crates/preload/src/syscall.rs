//! `syscall(2)`: programs that call by number what has a name in libc.
//!
//! A number means what our function of that name does, so that such a call serves a
//! connection in shared memory as well as the others do. Numbers that concern no
//! descriptor of ours go straight on; so does everything on a descriptor that is not
//! ours, except for calls that make, pass or close descriptors.
//!
//! The function is variadic, and defined with its six arguments: on the ABIs of x86-64
//! and AArch64 Linux they are passed alike, and those that a program leaves out are
//! never looked at. The kernel's calls differ from libc's here and there (the time left
//! is written back, a signal set comes with its size), and that is kept.

use crate::errno::set_errno;
use crate::exports::argument;
use crate::{duplicate, exports, fork, real, seccomp, uring};
use core::ffi::c_void;
use core::time::Duration;
use sidestep_device::sys;
use sidestep_device::valid::Bits;
use sidestep_socket::program;
use sidestep_socket::program::seccomp::confine;
use sidestep_socket::table::descriptors;

/// The arguments of a call.
type Words = [usize; 6];

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> i64 {
    let words = [a, b, c, d, e, f];
    // SAFETY: the call that the program makes, under its name or as it is.
    unsafe {
        on_any(number, words)
            .or_else(|| on_old_number(number, words))
            .or_else(|| on_ours(number, words))
            .unwrap_or_else(|| pass_on(number, words))
    }
}

unsafe fn pass_on(number: i64, [a, b, c, d, e, f]: Words) -> i64 {
    // SAFETY: the program's own call, passed on.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

/// Calls of which the table of descriptors has to know, whatever they are about.
unsafe fn on_any(number: i64, words: Words) -> Option<i64> {
    let [a, b, c, d, e, f] = words;
    let fd = a as i32;
    // SAFETY: the same call under its name; arguments as the program gave them.
    Some(unsafe {
        match number {
            libc::SYS_close => i64::from(exports::close(fd)),
            libc::SYS_close_range => i64::from(exports::close_range(a as u32, b as u32, c as i32)),
            libc::SYS_dup => i64::from(duplicate::dup(fd)),
            libc::SYS_dup3 => i64::from(duplicate::dup3(fd, b as i32, c as i32)),
            libc::SYS_fcntl => i64::from(duplicate::fcntl(fd, b as i32, c)),
            libc::SYS_socket => i64::from(exports::socket(fd, b as i32, c as i32)),
            libc::SYS_accept4 => i64::from(exports::accept4(fd, b as _, c as _, d as i32)),
            libc::SYS_accept => i64::from(exports::accept(fd, b as _, c as _)),
            libc::SYS_recvmsg => exports::recvmsg(fd, b as _, c as i32) as i64,
            libc::SYS_sendmsg => exports::sendmsg(fd, b as _, c as i32) as i64,
            libc::SYS_recvmmsg => {
                i64::from(exports::recvmmsg(fd, b as _, c as u32, d as i32, e as _))
            }
            libc::SYS_sendmmsg => i64::from(exports::sendmmsg(fd, b as _, c as u32, d as i32)),
            libc::SYS_sendfile => exports::sendfile(fd, b as i32, c as _, d) as i64,
            libc::SYS_splice => exports::splice(fd, b as _, c as i32, d as _, e, f as u32) as i64,
            libc::SYS_ppoll => return poll(words),
            libc::SYS_pselect6 => return select(words),
            libc::SYS_epoll_create1 => i64::from(exports::epoll_create1(fd)),
            libc::SYS_pipe2 => i64::from(exports::pipe2(a as _, b as i32)),
            libc::SYS_socketpair => i64::from(exports::socketpair(fd, b as i32, c as i32, d as _)),
            libc::SYS_openat
            | libc::SYS_eventfd2
            | libc::SYS_timerfd_create
            | libc::SYS_signalfd4 => new_number(number, words),
            libc::SYS_execve => i64::from(exports::execve(a as _, b as _, c as _)),
            libc::SYS_execveat => {
                i64::from(exports::execveat(fd, b as _, c as _, d as _, e as i32))
            }
            libc::SYS_clone if fork::is_fork(a as u64) => fork::around(|| pass_on(number, words)),
            libc::SYS_clone3 if clone_flags(a).is_some_and(fork::is_fork) => {
                fork::around(|| pass_on(number, words))
            }
            libc::SYS_clone if fork::lends_memory(a as u64) => lend(number, words),
            libc::SYS_clone3 if clone_flags(a).is_some_and(fork::lends_memory) => {
                lend(number, words)
            }
            libc::SYS_prctl => i64::from(seccomp::prctl(fd, b, c, d, e)),
            libc::SYS_seccomp => {
                let to = seccomp::of_system_call(a, c)?;
                confine(to, || pass_on(number, words))
            }
            libc::SYS_io_uring_setup if uring::is_refused() => {
                set_errno(libc::ENOSYS);
                -1
            }
            _ => return None,
        }
    })
}

/// The first word of `struct clone_args`, which the kernel demands.
fn clone_flags(arguments: usize) -> Option<u64> {
    argument(arguments as *mut u64).value()
}

/// A clone whose child runs in our memory.
unsafe fn lend(number: i64, words: Words) -> i64 {
    program::fork::lend_memory();
    // SAFETY: the program's own call.
    unsafe { pass_on(number, words) }
}

/// Calls that AArch64 never had.
#[cfg(target_arch = "x86_64")]
unsafe fn on_old_number(number: i64, words: Words) -> Option<i64> {
    let [a, b, c, d, ..] = words;
    let fd = a as i32;
    // SAFETY: as in `on_any`.
    Some(unsafe {
        match number {
            libc::SYS_dup2 => i64::from(duplicate::dup2(fd, b as i32)),
            libc::SYS_poll => i64::from(exports::poll(a as _, b as u64, c as i32)),
            libc::SYS_select => return old_select(words),
            libc::SYS_epoll_create => i64::from(exports::epoll_create(fd)),
            libc::SYS_epoll_wait => i64::from(exports::epoll_wait(fd, b as _, c as i32, d as i32)),
            libc::SYS_pipe => i64::from(exports::pipe(a as _)),
            libc::SYS_open | libc::SYS_creat | libc::SYS_eventfd | libc::SYS_signalfd => {
                new_number(number, words)
            }
            libc::SYS_fork => fork::around(|| pass_on(number, words)),
            _ => return None,
        }
    })
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn on_old_number(_: i64, _: Words) -> Option<i64> {
    None
}

/// Calls on a socket or an epoll set of ours.
unsafe fn on_ours(number: i64, [a, b, c, d, e, f]: Words) -> Option<i64> {
    let fd = a as i32;
    if !descriptors::is_ours(fd) {
        return None;
    }
    // SAFETY: as in `on_any`.
    Some(unsafe {
        match number {
            libc::SYS_read => exports::read(fd, b as _, c) as i64,
            libc::SYS_write => exports::write(fd, b as _, c) as i64,
            libc::SYS_readv => exports::readv(fd, b as _, c as i32) as i64,
            libc::SYS_writev => exports::writev(fd, b as _, c as i32) as i64,
            // The offset comes in two halves, of which 64-bit kernels use the first.
            libc::SYS_preadv2 => exports::preadv2(fd, b as _, c as i32, d as i64, f as i32) as i64,
            libc::SYS_pwritev2 => {
                exports::pwritev2(fd, b as _, c as i32, d as i64, f as i32) as i64
            }
            libc::SYS_recvfrom => exports::recvfrom(fd, b as _, c, d as i32, e as _, f as _) as i64,
            libc::SYS_sendto => exports::sendto(fd, b as _, c, d as i32, e as _, f as u32) as i64,
            libc::SYS_connect => i64::from(exports::connect(fd, b as _, c as u32)),
            libc::SYS_listen => i64::from(exports::listen(fd, b as i32)),
            libc::SYS_shutdown => i64::from(exports::shutdown(fd, b as i32)),
            libc::SYS_ioctl => i64::from(exports::ioctl(fd, b as u64, c)),
            libc::SYS_setsockopt => {
                i64::from(exports::setsockopt(fd, b as i32, c as i32, d as _, e as u32))
            }
            libc::SYS_getpeername => i64::from(exports::getpeername(fd, b as _, c as _)),
            libc::SYS_getsockname => i64::from(exports::getsockname(fd, b as _, c as _)),
            libc::SYS_getsockopt => {
                i64::from(exports::getsockopt(fd, b as i32, c as i32, d as _, e as _))
            }
            libc::SYS_epoll_ctl => i64::from(exports::epoll_ctl(fd, b as i32, c as i32, d as _)),
            libc::SYS_epoll_pwait if is_mask(e, f) => {
                i64::from(exports::epoll_pwait(fd, b as _, c as i32, d as i32, e as _))
            }
            libc::SYS_epoll_pwait2 if is_mask(e, f) => {
                i64::from(exports::epoll_pwait2(fd, b as _, c as i32, d as _, e as _))
            }
            _ => return None,
        }
    })
}

/// A call that returns a new descriptor which is no socket.
unsafe fn new_number(number: i64, words: Words) -> i64 {
    // SAFETY: passed on.
    let fd = unsafe { pass_on(number, words) };
    exports::forget_stale(fd as i32);
    fd
}

/// Whether the kernel would take a signal set of this size at this place.
fn is_mask(at: usize, size: usize) -> bool {
    at == 0 || size == size_of::<u64>()
}

/// Whether there is no limit of time, or one that can be read: libc's own functions read it
/// before the kernel is asked.
fn is_time<T: Bits>(at: usize) -> bool {
    at == 0 || argument(at as *mut T).value().is_some()
}

/// `select`, before it was `pselect6`.
#[cfg(target_arch = "x86_64")]
unsafe fn old_select([nfds, read, write, except, time, _]: Words) -> Option<i64> {
    let nfds = nfds as i32;
    let [read, write, except] = [read, write, except].map(|set| set as *mut c_void);
    // SAFETY: the program's sets and time.
    unsafe {
        let sets = exports::fd_sets(nfds, read, write, except);
        let concerns_us = sets.is_some_and(|sets| sets.concern_us() || sets.are_cut(nfds));
        if !concerns_us || !is_time::<libc::timeval>(time) {
            return None;
        }
        Some(i64::from(exports::select_by_number(nfds, [read, write, except], time as _)))
    }
}

/// `ppoll`, which writes back the time that is left.
unsafe fn poll([fds, count, time, mask, size, _]: Words) -> Option<i64> {
    let fds = fds as *mut libc::pollfd;
    // SAFETY: the program's array, time and mask.
    unsafe {
        let concerns_us = exports::poll_entries(fds, count as u64).is_some();
        if !is_mask(mask, size) || !concerns_us || !is_time::<libc::timespec>(time) {
            return None;
        }
        Some(counting_down(time as *mut libc::timespec, |time| {
            exports::ppoll(fds, count as u64, time, mask as *const c_void)
        }))
    }
}

/// `pselect6`: the last argument points to the mask and its size.
unsafe fn select([nfds, read, write, except, time, sized_mask]: Words) -> Option<i64> {
    let claimed = argument(sized_mask as *mut [usize; 2]).value();
    if claimed.is_none() && sized_mask != 0 {
        return None;
    }
    let [mask, size] = claimed.unwrap_or_default();
    let nfds = nfds as i32;
    let [read, write, except] = [read, write, except].map(|set| set as *mut c_void);
    // SAFETY: the program's sets, time and mask.
    unsafe {
        let sets = exports::fd_sets(nfds, read, write, except);
        let concerns_us = sets.is_some_and(|sets| sets.concern_us() || sets.are_cut(nfds));
        if !is_mask(mask, size) || !concerns_us || !is_time::<libc::timespec>(time) {
            return None;
        }
        Some(counting_down(time as *mut libc::timespec, |time| {
            exports::pselect(nfds, read, write, except, time, mask as *const c_void)
        }))
    }
}

/// Makes a call with a limit of time, and takes what has passed off that.
///
/// # Safety
/// `time` is null or the program's.
unsafe fn counting_down(
    time: *mut libc::timespec,
    call: impl Fn(*const libc::timespec) -> i32,
) -> i64 {
    let start = sys::now_ns();
    let result = call(time);
    let limit = argument(time).value();
    if let Some(limit) = limit.filter(exports::is_valid) {
        let passed = Duration::from_nanos(sys::now_ns() - start);
        let left = sys::timespec(exports::duration(&limit).saturating_sub(passed));
        let words = [left.tv_sec.to_ne_bytes(), left.tv_nsec.to_ne_bytes()];
        // A time that is not to be written stays as it is, as with the kernel.
        let _ = sys::write_own(time.cast(), words.as_flattened());
    }
    i64::from(result)
}
