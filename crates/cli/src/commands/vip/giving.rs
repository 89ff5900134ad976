//! How the kernel's table gets the listener of a target: a process of its own gives it.
//!
//! The kernel waits for the lock of a socket that it takes into such a table. A program can hold the lock of its listener for as long as it
//! likes, with a system call that waits for the program's own memory, and no signal ends the wait. So that is another process's:
//!
//! ```text
//!   sidestep vip run ──starts──> sidestep vip give-listener SLOT     its standard input is the table, its
//!                     <──ends───                                     standard output the listener
//! ```
//!
//! While it waits, that target alone is given nothing. Its place in the table is left to it until it has ended: it could write there at any time.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::listener::Fetched;
use crate::args::GiveListenerArgs;

/// How long everything else waits for it: it takes some milliseconds.
const AT_ONCE: Duration = Duration::from_millis(300);
/// Afterwards it is said that it waits. New terms wait so long for all of theirs: on a busy host a process may begin late.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A process that gives the kernel's table a listener.
pub(super) struct Giving {
    process: Child,
    /// Readable as soon as `process` can be reaped. Its standard error is closed before that.
    end: OwnedFd,
    /// Of the listener.
    pub(super) cookie: u64,
    pub(super) pid: u32,
    pub(super) program: String,
    begun: Instant,
    is_told: bool,
}

impl Giving {
    /// Starts it, and waits for it as long as it takes if no lock is held.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn begin(
        table: BorrowedFd<'_>,
        slot: u32,
        fetched: Fetched,
        cookie: u64,
    ) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["vip", "give-listener", &slot.to_string()]);
        command.stdin(table.try_clone_to_owned()?).stdout(fetched.socket);
        let giving = Self::of(&mut command, cookie, fetched.pid, fetched.program)?;
        giving.await_end(AT_ONCE)?;
        Ok(giving)
    }

    fn of(command: &mut Command, cookie: u64, pid: u32, program: String) -> io::Result<Self> {
        let process = command.stderr(Stdio::piped()).spawn()?;
        let end = pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?;
        Ok(Self { process, end, cookie, pid, program, begun: Instant::now(), is_told: false })
    }

    /// Waits until it has ended, at most so long: then there is an [`outcome`](Self::outcome).
    ///
    /// # Errors
    /// It cannot be waited for.
    pub(super) fn await_end(&self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                ended => return ended.map(drop).map_err(io::Error::from),
            }
        }
    }

    /// What has come of it; `None`: it has not ended.
    pub(super) fn outcome(&mut self) -> Option<Result<(), String>> {
        let status = match self.process.try_wait() {
            Ok(status) => status?,
            Err(error) => return Some(Err(error.to_string())),
        };
        let mut errors = String::new();
        if let Some(said) = &mut self.process.stderr {
            _ = said.read_to_string(&mut errors);
        }
        let why = if errors.is_empty() { status.to_string() } else { errors.trim_end().to_owned() };
        Some(if status.success() { Ok(()) } else { Err(why) })
    }

    /// Whether it is to be said that it waits: once.
    pub(super) fn is_to_be_told(&mut self) -> bool {
        let is_late = self.begun.elapsed() >= PATIENCE;
        is_late && !std::mem::replace(&mut self.is_told, true)
    }
}

impl Drop for Giving {
    fn drop(&mut self) {
        // One that waits ends when the program lets go.
        _ = self.process.kill();
        _ = self.process.try_wait();
    }
}

/// `sidestep vip give-listener`: one place of the table gets a socket.
///
/// # Errors
/// The kernel refuses.
pub(super) fn execute(args: &GiveListenerArgs) -> Result<(), sidestep_bpf::BpfError> {
    let (table, listener) = (io::stdin(), io::stdout());
    sidestep_bpf::give_listener(table.as_fd(), args.slot, listener.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn giving(script: &str) -> Giving {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Giving::of(&mut command, 1, 2, "server".to_owned()).unwrap()
    }

    /// Its outcome once it has ended.
    fn ended(script: &str) -> Result<(), String> {
        let mut giving = giving(script);
        giving.await_end(Duration::from_secs(60)).unwrap();
        giving.outcome().expect("it has ended")
    }

    #[test]
    fn what_it_ends_with_is_what_has_come_of_it() {
        assert_eq!(ended("exit 0"), Ok(()));
        assert_eq!(ended("echo no such table >&2; exit 1"), Err("no such table".to_owned()));
        assert_eq!(ended("kill -9 $$"), Err("signal: 9 (SIGKILL)".to_owned()));
        assert_eq!(ended("exec 2>&-; exec sleep 0.1"), Ok(()), "closed files are not the end");
    }

    #[test]
    fn one_that_waits_is_waited_for_no_longer_than_that_and_told_of_once() {
        let mut waiting = giving("exec sleep 1000");
        waiting.await_end(Duration::from_millis(10)).unwrap();
        assert!(waiting.outcome().is_none() && !waiting.is_to_be_told());
        waiting.begun -= PATIENCE;
        assert!(waiting.is_to_be_told() && !waiting.is_to_be_told());
    }
}
