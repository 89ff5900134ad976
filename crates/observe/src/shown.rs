//! A state that its program has given away: it can be read after the program's end.

use crate::host::allowance::Allowances;
use crate::host::process;
use crate::host::state_file::{self, StateId};
use crate::program::Program;
use sidestep_device::{map, state, sys};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// See the [module](self).
pub struct Shown {
    file: File,
    pid: u32,
    program: String,
}

impl Shown {
    /// The file that process `pid` has sent. `None`: it can be no state.
    #[must_use]
    pub fn new(file: OwnedFd, pid: u32) -> Option<Self> {
        map::check(file.as_raw_fd(), state::STATE_LEN).ok()?;
        // Read-only: a process that could write would be taken for a holder.
        let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(Self { file, pid, program: process::name(pid) })
    }

    /// What they say now; those of another version say nothing. The caller knows which they are, so
    /// their [`Program::state`] is nothing.
    ///
    /// # Errors
    /// There is no address space.
    pub fn read_all(all: &[Self]) -> io::Result<Vec<Program>> {
        let mut mirror = state_file::mirror()?;
        // The states are of the user who looks, or that user is root.
        let user = sys::effective_uid();
        let mut allowances = Allowances::new(user);
        let read = |shown: &Self| {
            let state = state_file::read(&shown.file, &mut mirror, allowances.of(user)).ok()?;
            let (pids, program) = (vec![shown.pid], shown.program.clone());
            Some(Program { pids, program, ..Program::read(state, StateId::default()) })
        };
        Ok(all.iter().filter_map(read).collect())
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
        // SAFETY: just made, and used here alone.
        let file = unsafe { File::from_raw_fd(fd) };
        let shown = Shown::new(file.into(), sys::pid()).unwrap();
        // SAFETY: nothing of it is used again.
        unsafe { state.unmap() };
        let [program] = Shown::read_all(&[shown]).unwrap().try_into().unwrap();
        assert_eq!((program.pids, program.totals.smc), (vec![sys::pid()], 7));
    }

    #[test]
    fn another_file_is_no_state() {
        assert!(Shown::new(File::open("/dev/null").unwrap().into(), 1).is_none());
        let other = map::create(state::STATE_NAME, state::STATE_LEN).unwrap();
        // SAFETY: just made, and used here alone.
        let file = unsafe { OwnedFd::from_raw_fd(other.fd) };
        let shown = Shown::new(file, 1).unwrap();
        assert_eq!(Shown::read_all(&[shown]).unwrap(), [], "it is of another version");
    }
}
