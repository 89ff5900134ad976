//! The program that is assessed, while it runs.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use super::assessor::Assessor;
use crate::commands::run::Launch;
use crate::output;

/// A child of ours.
pub(super) struct Child {
    pid: libc::pid_t,
    /// Readable when it has ended.
    pidfd: OwnedFd,
    has_ended: bool,
    is_told_to_end: bool,
}

impl Child {
    /// Starts the program as `sidestep run` would: it inherits exactly what we were started with.
    pub(super) fn start(launch: Launch) -> io::Result<Self> {
        // SAFETY: this process has one thread, so the child may go on as it likes.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let error = launch.exec();
                output::complain("assess", &error);
                // SAFETY: ends the child without running what the parent has registered.
                unsafe { libc::_exit(error.exit_status()) }
            }
            pid => {
                // Ctrl-C is for the program; when that ends, we report.
                // SAFETY: no handler, only a disposition.
                unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
                // SAFETY: plain numbers; the child is not reaped yet, so its number is its own.
                let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
                if pidfd < 0 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: just opened, and owned here alone.
                let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
                Ok(Self { pid, pidfd, has_ended: false, is_told_to_end: false })
            }
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !self.has_ended
    }

    /// Sleeps until a program has shown something, or the child has ended. At `end` it is asked
    /// to.
    pub(super) fn wait_for(&mut self, assessor: &Assessor, end: Option<Instant>) {
        let mut watched = [self.pidfd.as_raw_fd(), assessor.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let timeout = match end.filter(|_| !self.is_told_to_end) {
            None => -1,
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    self.tell_to_end();
                }
                // Rounded up: not early.
                left.as_millis().saturating_add(1).min(60_000) as libc::c_int
            }
        };
        // SAFETY: two live entries.
        let ready = unsafe { libc::poll(watched.as_mut_ptr(), 2, timeout) };
        if ready > 0 && watched[0].revents != 0 {
            self.reap();
        }
    }

    fn tell_to_end(&mut self) {
        // SAFETY: our child, not reaped yet.
        unsafe { libc::kill(self.pid, libc::SIGTERM) };
        self.is_told_to_end = true;
    }

    fn reap(&mut self) {
        // SAFETY: our child; its status is not asked for.
        let reaped = unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) };
        self.has_ended = reaped == self.pid;
    }
}
