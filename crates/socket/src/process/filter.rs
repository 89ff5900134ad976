//! Whether a filter of system calls (seccomp) is there, or about to come: see
//! [`seccomp`](crate::program::seccomp).

use crate::process::past_libc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sidestep_device::confinement::{self, Confinement};
use sidestep_device::sys;

/// Filters that are about to come, or have.
pub(crate) static COMING: AtomicU32 = AtomicU32::new(0);

/// When the library starts, before any other call of ours: `trusts` says whether a filter that is there
/// lets our calls pass.
pub fn start(trusts: bool) {
    match sys::inherited_confinement() {
        Confinement::None => {}
        _ if trusts => confinement::trust(),
        confinement => confinement::set(confinement),
    }
}

/// Whether the program has a filter, or is about to install one.
pub(super) fn is_in_the_way() -> bool {
    confinement::is_confined() || COMING.load(Ordering::SeqCst) != 0 || past_libc::has_libseccomp()
}

/// It is the child of a `vfork` that has confined itself, in memory that is not its own.
pub(crate) static IS_LENT: AtomicBool = AtomicBool::new(false);

/// The child of a `vfork` has called `exec` or ended, and took its filter with it.
pub(super) fn end_loan() {
    if IS_LENT.swap(false, Ordering::SeqCst) {
        confinement::set(Confinement::None);
        COMING.fetch_sub(1, Ordering::SeqCst);
    }
}
