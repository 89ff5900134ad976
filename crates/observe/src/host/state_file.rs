//! The memory file in which a program keeps its connections: finding, opening and reading it.
//!
//! `/proc/PID/fd` shows it as `/memfd:sidestep-state`. It is a stranger's: opening it waits for
//! nothing, and reading it makes no page of it and is paid for from its user's allowance.

use super::allowance::Allowance;
use super::process::is_refusal;
use sidestep_device::mirror::{Mirror, NotRead};
use sidestep_device::state::{self, State};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Which state something belongs to: device and inode of its file. As long as a process holds
/// the state, no other has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateId {
    device: u64,
    inode: u64,
}

/// A state that was found open in a process, opened once more.
pub(crate) struct StateFile {
    pub(crate) id: StateId,
    /// The user who made it.
    pub(crate) user: u32,
    pub(crate) file: File,
}

/// What the file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To look: a process that only reads is taken for no holder.
    Read,
    /// To write an operator's word as well.
    Write,
}

/// The paths of the states that a process holds, as far as its user's allowance reaches.
///
/// # Errors
/// The process has ended, or we may not look at its descriptors.
pub(crate) fn paths_of(pid: u32, allowance: &mut Allowance) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    if !allowance.takes_process() {
        return Ok(paths);
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        if !allowance.takes_descriptor() {
            break;
        }
        let path = entry?.path();
        match is_held(&path) {
            Ok(true) => paths.push(path),
            Err(error) if is_refusal(&error) => return Err(error),
            // Another file, or closed meanwhile.
            Ok(false) | Err(_) => {}
        }
        if paths.len() == STATES_MAX {
            break;
        }
    }
    Ok(paths)
}

/// Whether a descriptor of a process is a state that it holds. One that only looks has opened it read-only.
///
/// # Errors
/// It is closed, the process has ended, or we may not look at it.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    Ok(is_state(&fs::read_link(path)?) && is_writable(path))
}

fn is_state(target: &Path) -> bool {
    let name = target.as_os_str().as_bytes();
    let name = name.strip_prefix(b"/memfd:").and_then(|name| name.strip_suffix(b" (deleted)"));
    name == Some(state::STATE_NAME.to_bytes())
}

/// Whether a descriptor is open for writing, as the mode of its link says.
fn is_writable(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.mode() & 0o200 != 0)
}

impl StateFile {
    /// Opens a file that was a state a moment ago: if it is a FIFO or terminal by now, nothing
    /// happens to it or to us. `None`: it was closed meanwhile.
    ///
    /// # Errors
    /// We may not look at it.
    pub(crate) fn open(path: &Path, access: Access) -> io::Result<Option<Self>> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let write = access == Access::Write;
        let opened = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if is_refusal(&error) => return Err(error),
            Err(_) => return Ok(None),
        };
        let metadata = file.metadata()?;
        let id = StateId { device: metadata.dev(), inode: metadata.ino() };
        Ok(Some(Self { id, user: metadata.uid(), file }))
    }
}

/// Memory into which states are read, one after the other.
///
/// # Errors
/// There is no address space.
pub(crate) fn mirror() -> io::Result<Mirror> {
    Mirror::new().map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

/// Reads a state, as far as its user's allowance reaches.
///
/// # Errors
/// See [`NotRead`].
pub(crate) fn read<'a>(
    file: &File,
    mirror: &'a mut Mirror,
    allowance: &mut Allowance,
) -> Result<&'a State, NotRead> {
    if !allowance.takes_state() {
        return Err(NotRead::Beyond);
    }
    mirror.read(file.as_raw_fd(), &mut allowance.bytes).inspect_err(|not_read| {
        if *not_read == NotRead::Beyond {
            allowance.exceed();
        }
    })
}

/// States looked at in one process: its own and, after forks of forks, those of its
/// ancestors. More is no Sidestep program.
const STATES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{DEAD, Maker};
    use crate::host::allowance::Allowances;
    use sidestep_device::sys;

    #[test]
    fn a_holder_is_told_from_one_who_looks() {
        let maker = Maker::new(sys::pid());
        let path = PathBuf::from(format!("/proc/self/fd/{}", maker.fd));
        assert!(is_writable(&path));
        let looked = StateFile::open(&path, Access::Read).unwrap().unwrap();
        assert!(!is_writable(Path::new(&format!("/proc/self/fd/{}", looked.file.as_raw_fd()))));
        let told = StateFile::open(&path, Access::Write).unwrap().unwrap();
        assert_eq!((looked.id, looked.user), (told.id, sys::effective_uid()));
    }

    #[test]
    fn a_state_that_is_closed_before_it_is_opened_is_no_error() {
        // A number beyond the largest that a process may have.
        let path = format!("/proc/self/fd/{}", u32::MAX);
        for access in [Access::Read, Access::Write] {
            assert!(StateFile::open(Path::new(&path), access).unwrap().is_none());
        }
    }

    #[test]
    fn a_process_that_has_ended_holds_nothing() {
        let mut allowances = Allowances::new(0);
        assert!(paths_of(DEAD, allowances.of(0)).is_err());
    }
}
