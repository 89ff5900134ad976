//! States as programs have them, for tests.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use sidestep_device::state::{self, Slot, State};
use sidestep_device::sys;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A state as a Sidestep program has it; gone with the test.
pub(crate) struct Maker {
    pub(crate) state: State,
    pub(crate) fd: i32,
}

impl Maker {
    pub(crate) fn new(pid: u32) -> Self {
        let (state, fd) = state::create(pid, [1, 2]).unwrap();
        Self { state, fd }
    }

    fn slot(&self, index: usize) -> &'static Slot {
        let used = &self.state.header().slots_used;
        used.fetch_max(index as u32 + 1, Ordering::Relaxed);
        self.state.slot(index)
    }

    /// Fills a slot with an IPv4 connection from 10.0.0.`index` to 10.0.0.99, made
    /// known by its ports.
    pub(crate) fn connect(&self, index: usize, ports: (u16, u16), mode: u32) -> &'static Slot {
        let slot = self.slot(index);
        set(&slot.user_pid, sys::pid());
        set(&slot.local_port, ports.0.into());
        set(&slot.peer_port, ports.1.into());
        slot.local_ip[0].store(0x0a00_0000 + index as u64, Ordering::Relaxed);
        slot.peer_ip[0].store(0x0a00_0063, Ordering::Relaxed);
        set8(&slot.family, 4);
        set(&slot.mode, mode);
        slot
    }

    /// A process that holds this state, too, as a forked child does.
    pub(crate) fn child(&self) -> Heir {
        let _alone = alone();
        sys::fcntl(self.fd, libc::F_SETFD, 0).unwrap();
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        sys::fcntl(self.fd, libc::F_SETFD, libc::FD_CLOEXEC as usize).unwrap();
        Heir(child)
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        sys::close(self.fd);
        // SAFETY: tests keep nothing of it.
        unsafe { self.state.unmap() }
    }
}

pub(crate) struct Heir(pub(crate) Child);

impl Drop for Heir {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(crate) fn set(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

pub(crate) fn set8(word: &AtomicU8, value: u8) {
    word.store(value, Ordering::Relaxed);
}

/// A number that no process has: beyond the kernel's `PID_MAX_LIMIT` of 2^22.
pub(crate) const DEAD: u32 = 1 << 30;

/// Tests share a process: another test's child would inherit our state, and another
/// test's look would hold it open.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}
