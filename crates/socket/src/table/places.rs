//! The place of a descriptor in the state: what a young connection has instead of an object.

use crate::process::home;
use sidestep_device::young::{Stage, Young};

/// The place of a descriptor.
#[inline]
pub(crate) fn place(fd: i32) -> Option<&'static Young> {
    home::existing()?.state.young(fd)
}

/// What the place of a descriptor says.
#[inline]
pub(crate) fn stage(fd: i32) -> Option<Stage> {
    place(fd)?.stage()
}
