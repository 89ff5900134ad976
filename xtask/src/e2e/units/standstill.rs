//! A loop that stands still: one thread of a process, the others of which go on.

use std::io;

use anyhow::{Context, Result, ensure};

/// A thread that is stopped, as by a debugger, until it is dropped or its process is killed.
#[derive(Debug)]
pub(super) struct Standstill {
    thread: libc::pid_t,
}

impl Standstill {
    /// Stops a thread of another process.
    pub(super) fn of(thread: u32) -> Result<Self> {
        let thread = libc::pid_t::try_from(thread).context("the number of a thread")?;
        ask(libc::PTRACE_SEIZE, thread).context("PTRACE_SEIZE")?;
        let standstill = Self { thread };
        ask(libc::PTRACE_INTERRUPT, thread).context("PTRACE_INTERRUPT")?;
        let status = standstill.wait(0).context("waiting for the thread")?;
        ensure!(libc::WIFSTOPPED(status), "the thread has ended: {status:#x}");
        Ok(standstill)
    }

    /// Whether the thread has ended. Until this was asked, the kernel keeps what is left of its process.
    pub(super) fn has_ended(&self) -> bool {
        // A thread that was waited for is nobody's any more: ECHILD.
        self.wait(libc::WNOHANG)
            .map_or(true, |status| libc::WIFEXITED(status) || libc::WIFSIGNALED(status))
    }

    fn wait(&self, flags: i32) -> io::Result<i32> {
        // The status of a thread of which there is nothing new.
        let mut status = 0x7f;
        // SAFETY: the status has room for what the kernel writes there.
        match unsafe { libc::waitpid(self.thread, &raw mut status, flags | libc::__WALL) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(status),
        }
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        // One that has ended needs no letting go.
        let _ = ask(libc::PTRACE_DETACH, self.thread);
    }
}

fn ask(request: libc::c_uint, thread: libc::pid_t) -> io::Result<()> {
    // SAFETY: these requests take numbers only, and write nothing to our memory.
    match unsafe { libc::ptrace(request, thread, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
