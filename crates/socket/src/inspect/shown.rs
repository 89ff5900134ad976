//! A state that its program has given away: it can be read after the program's end.

use super::{Mapped, Program, StateId, program};
use sidestep_device::state;
use std::os::fd::{AsFd, AsRawFd};

/// See the [module](self).
pub struct Shown {
    state: Mapped,
    pid: u32,
    program: String,
}

impl Shown {
    /// The state in a file that process `pid` has sent. `None`: it is not one of this version.
    #[must_use]
    pub fn new(file: impl AsFd, pid: u32) -> Option<Self> {
        let state = state::inspect(file.as_fd().as_raw_fd()).ok().map(Mapped)?;
        Some(Self { state, pid, program: program(pid) })
    }

    /// What it says now. Who has it from here has no need to tell it from others: its
    /// [`Program::state`] is nothing.
    #[must_use]
    pub fn read(&self) -> Program {
        let program = self.program.clone();
        Program::read(&self.state.0, StateId::default(), vec![self.pid], program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use sidestep_device::sys;
    use std::fs::File;
    use std::os::fd::FromRawFd;

    #[test]
    fn a_state_is_read_when_its_program_has_let_go() {
        let (state, fd) = state::create(sys::pid(), [0, 0]).unwrap();
        state.header().ended[0].smc.store(7, Ordering::Relaxed);
        // SAFETY: just made, and used by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        let shown = Shown::new(&file, sys::pid()).unwrap();
        drop(file);
        // SAFETY: nothing of it is used again.
        unsafe { state.unmap() };
        let program = shown.read();
        assert_eq!((program.pids, program.totals.smc), (vec![sys::pid()], 7));
    }

    #[test]
    fn another_file_is_no_state() {
        assert!(Shown::new(File::open("/dev/null").unwrap(), 1).is_none());
    }
}
