//! Who runs this, and who programs are given to that refuse to be root's.

/// The user and group that every Linux system has for those with no rights.
pub(crate) const NOBODY: u32 = 65_534;

/// Whether we are root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid() takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whose program it is that refuses to be root's; `None`: ours, we are not root.
pub(crate) fn unless_root() -> Option<u32> {
    is_root().then_some(NOBODY)
}
