//! A BPF file system that is mounted nowhere.
//!
//! What is to go with its maker, whatever becomes of that, is pinned here rather than at a place that others see: the kernel
//! dissolves a mount without a place with its last descriptor, and lets go what is pinned in it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::BpfError;

/// A BPF file system of this process alone (Linux 5.2).
#[derive(Debug)]
pub struct DetachedFileSystem(OwnedFd);

impl DetachedFileSystem {
    /// An empty one.
    ///
    /// # Errors
    /// This process may not mount ([`BpfError::Privilege`]), or the kernel cannot do it.
    pub fn make() -> Result<Self, BpfError> {
        let mounted = || {
            let context = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        };
        mounted().map(Self).map_err(|error| {
            BpfError::of_kernel("mount a BPF file system", &io::Error::from(error))
        })
    }

    /// A directory in it that is not there yet, as this process sees it.
    #[must_use]
    pub fn directory(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }
}
