//! Another number of the same socket: `dup`, `dup2`, `dup3`, and `fcntl`, which makes one as well.
//!
//! Each number leads to the one object of the socket. One that is put under the number of a
//! standard stream changes that stream, too ([`standard_streams`]).

use crate::errno::quietly;
use crate::exports::{alias, export, not_open};
use crate::{real, standard_streams};
use sidestep_device::confinement::{self, Call};
use sidestep_device::sys;
use sidestep_socket::process::loan;
use sidestep_socket::program::{life, socket_options};
use sidestep_socket::table::descriptors;

export! {
    fn dup(fd: i32) -> i32 {
        if sys::is_hidden(fd) {
            return not_open();
        }
        // SAFETY: passed on.
        duplicated(fd, unsafe { real::dup(fd) })
    }

    fn dup2(old: i32, new: i32) -> i32 {
        // SAFETY: passed on.
        over(old, new, || unsafe { real::dup2(old, new) })
    }

    fn dup3(old: i32, new: i32, flags: i32) -> i32 {
        // SAFETY: passed on.
        over(old, new, || unsafe { real::dup3(old, new, flags) })
    }

    fn fcntl(fd: i32, command: i32, argument: usize) -> i32 {
        confinement::admit(Call::Fcntl);
        if sys::is_hidden(fd) {
            return not_open();
        }
        // SAFETY: passed on.
        let result = unsafe { real::fcntl(fd, command, argument) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
            libc::F_SETFL if result == 0 => {
                let flags = argument as i32;
                // Whether a socket waits, the kernel can be asked later.
                let sock = match flags & libc::O_ASYNC {
                    0 => descriptors::object(fd),
                    _ => descriptors::sock(fd),
                };
                sock.inspect(|sock| socket_options::note_status_flags(sock, flags));
                result
            }
            _ => result,
        }
    }
}

alias! {
    fn __dup2 = dup2(old: i32, new: i32) -> i32;
    fn fcntl64 = fcntl(fd: i32, command: i32, argument: usize) -> i32;
    fn __fcntl = fcntl(fd: i32, command: i32, argument: usize) -> i32;
}

fn duplicated(old: i32, new: i32) -> i32 {
    if new >= 0 {
        quietly(|| life::duplicate(old, new));
    }
    new
}

/// `dup2` and `dup3`: `new` is closed if it was open, by the kernel, at once.
fn over(old: i32, new: i32, call: impl Fn() -> i32) -> i32 {
    if sys::is_hidden(old) {
        return not_open();
    }
    let concerns_us = descriptors::is_ours(old) || descriptors::is_ours(new) || sys::is_hidden(new);
    if old == new || !concerns_us || sys::fcntl(old, libc::F_GETFD, 0).is_err() {
        return call();
    }
    if sys::is_hidden(new) && !loan::is_borrowed_memory() && !sys::make_way(new) {
        return not_open();
    }
    let _closing = quietly(|| life::before_put_over(old, new));
    let result = duplicated(old, call());
    if (0..3).contains(&result) && !loan::is_borrowed_memory() {
        quietly(|| standard_streams::note_standard(result));
    }
    result
}
