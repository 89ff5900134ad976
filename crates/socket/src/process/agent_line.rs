//! What a process has of the agent of its host: the line to it, and what it has said on that.

use crate::process::options;
use crate::process::pool::SharedLock;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use sidestep_device::sys::{self, UnixName};
use sidestep_device::valid::Zeroable;

/// Between two calls to the agent.
pub(crate) const CALL_INTERVAL_NS: u64 = 1_000_000_000;

/// Lookups of a process in a second. One answer acquaints two processes, whatever number of
/// connections they have; the others are those to plain programs, which are not answered.
const LOOKUPS_MAX: u32 = 256;

/// Connections remembered whose other end is of a user with whom no memory is shared.
pub(crate) const STRANGERS_MAX: usize = 8;

/// What a process has of the agent. All zero is "nothing yet".
#[derive(Zeroable)]
pub(crate) struct AgentLine {
    pub(crate) lock: SharedLock,
    /// The line to the agent + 1; under the lock.
    line: AtomicI32,
    /// The effective user who has called. The kernel names that one to the agent for as long as the
    /// line lives.
    caller: AtomicU32,
    /// When it was called last, by [`sys::coarse_ns`].
    called: AtomicU64,
    /// The second of the latest lookups, and how many there were in it.
    second: AtomicU32,
    count: AtomicU32,
    /// First halves of tokens, and the place of the next.
    pub(crate) strangers: [AtomicU64; STRANGERS_MAX],
    pub(crate) next_stranger: AtomicU32,
}

impl AgentLine {
    pub(crate) fn line(&self) -> Option<i32> {
        self.line.load(Ordering::Relaxed).checked_sub(1).filter(|fd| *fd >= 0)
    }

    /// A program that has become another user since it called is to be known as that one.
    pub(crate) fn follow_user(&self) {
        let caller = sys::effective_uid();
        if self.caller.swap(caller, Ordering::Relaxed) != caller && self.line().is_some() {
            self.hang_up();
            self.called.store(0, Ordering::Relaxed);
        }
    }

    /// Calls the agent, unless that was tried just now.
    pub(crate) fn call(&self) -> Option<i32> {
        let now = sys::coarse_ns();
        let called = self.called.load(Ordering::Relaxed);
        if called != 0 && now < called + CALL_INTERVAL_NS {
            return None;
        }
        self.called.store(now, Ordering::Relaxed);
        let fd = sys::unix_packet().map(sys::move_up).ok()?;
        let name = UnixName::of_file(&options::current().agent);
        if let Err(errno) = sys::connect_unix(fd, &name) {
            crate::log!(Info, "the agent cannot be reached: errno {}", errno.0);
            sys::close(fd);
            return None;
        }
        self.line.store(fd + 1, Ordering::Relaxed);
        Some(fd)
    }

    pub(crate) fn hang_up(&self) {
        if let Some(fd) = self.line() {
            self.line.store(0, Ordering::Relaxed);
            sys::close(fd);
        }
    }

    /// Counts one more lookup, if there is room for it in this second.
    pub(crate) fn has_room(&self) -> bool {
        let second = sys::coarse_seconds();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed) < LOOKUPS_MAX
    }
}
