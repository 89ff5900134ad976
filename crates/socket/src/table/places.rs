//! The place of a descriptor in the state: what an untracked connection has instead of an object.

use crate::process::home;
use sidestep_device::untracked::{Stage, Untracked};

/// The place of a descriptor.
#[inline]
pub(crate) fn place(fd: i32) -> Option<&'static Untracked> {
    home::existing()?.state.untracked(fd)
}

/// What the place of a descriptor says.
#[inline]
pub(crate) fn stage(fd: i32) -> Option<Stage> {
    place(fd)?.stage()
}
