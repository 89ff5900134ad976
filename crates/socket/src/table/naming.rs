//! By which numbers the file of a socket or an epoll set is named: see [`file`](crate::table::file).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use sidestep_device::names::Names;
use sidestep_device::sys;
use sidestep_device::valid::{Renew, Zeroable};

/// Copies that this process keeps.
static COPIES: AtomicU32 = AtomicU32::new(0);

/// What a socket, or an epoll set, knows of the numbers by which its file is named.
#[derive(Renew, Zeroable)]
pub(crate) struct Naming {
    pub(super) names: Names,
    /// The copy for calls whose number has gone: its number + 1, 0 = none.
    pub(super) copy: AtomicI32,
    /// Another program is about to begin here: its numbers lead to a bundle, though the table says that
    /// they lead to the file.
    pub(super) is_packed: AtomicBool,
    /// Another program is about to begin here, and one of its numbers leads to the file.
    pub(crate) stays_open: AtomicBool,
}

impl Naming {
    /// Whether calls keep the file after its last descriptor.
    pub(crate) fn has_copy(&self) -> bool {
        self.copy.load(Ordering::Acquire) != 0
    }

    /// No descriptor and no call is left: runs `last` with the number of the copy, if there is one,
    /// and closes it. True: there was one.
    pub(crate) fn let_go(&self, last: impl FnOnce(i32)) -> bool {
        let Some(copy) = self.copy.swap(0, Ordering::AcqRel).checked_sub(1).filter(|fd| *fd >= 0)
        else {
            return false;
        };
        last(sys::seat(copy));
        COPIES.fetch_sub(1, Ordering::Relaxed);
        sys::close(copy);
        true
    }

    /// In the child of a fork: the calls under way are the parent's.
    pub(crate) fn after_fork_in_child(&self) {
        self.names.reset();
        self.is_packed.store(false, Ordering::Relaxed);
        self.let_go(|_| {});
    }

    /// `exec` has failed: the numbers lead to the file again.
    pub(crate) fn is_unpacked(&self) {
        // Release: a call that sees it finds the file under the number.
        self.is_packed.store(false, Ordering::Release);
    }

    /// The closing side: keeps the file for calls under way, if it can.
    pub(super) fn keep(&self, fd: i32) {
        if self.has_copy() {
            return;
        }
        let Ok(copy) = sys::copy_up(fd) else { return };
        COPIES.fetch_add(1, Ordering::Relaxed);
        // AcqRel: a call that finds the number finds the descriptor. Two numbers of the socket may
        // go at once, and one copy is enough.
        if self.copy.compare_exchange(0, copy + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            COPIES.fetch_sub(1, Ordering::Relaxed);
            sys::close(copy);
        }
    }
}

/// Whether any socket of this process has a copy.
pub(crate) fn are_any_kept() -> bool {
    COPIES.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn naming() -> Box<Naming> {
        // SAFETY: all atomics, for which zero bytes are a value.
        unsafe { Box::new_zeroed().assume_init() }
    }

    #[test]
    fn a_copy_is_made_once_leads_to_the_file_and_is_let_go_once() {
        let (naming, file) = (naming(), File::open("/proc/self/exe").unwrap());
        let inode = sys::inode(file.as_raw_fd()).unwrap();
        assert!(!naming.has_copy() && !naming.let_go(|_| panic!("there is none")));
        naming.keep(file.as_raw_fd());
        naming.keep(file.as_raw_fd());
        assert!(naming.has_copy() && are_any_kept());
        drop(file);
        let mut copy = -1;
        assert!(naming.let_go(|fd| {
            copy = fd;
            assert_eq!(sys::inode(fd), Ok(inode), "it outlives the number");
        }));
        assert!(sys::fcntl(copy, libc::F_GETFD, 0).is_err(), "it is closed");
        assert!(!naming.has_copy() && !naming.let_go(|_| panic!("it was let go")));
    }

    #[test]
    fn a_child_keeps_nothing_for_calls_of_its_parent() {
        let (naming, file) = (naming(), File::open("/proc/self/exe").unwrap());
        naming.keep(file.as_raw_fd());
        naming.is_packed.store(true, Ordering::Relaxed);
        naming.after_fork_in_child();
        assert!(!naming.has_copy() && !naming.is_packed.load(Ordering::Relaxed));
    }

    #[test]
    fn what_is_no_number_is_not_copied() {
        let naming = naming();
        naming.keep(-1);
        assert!(!naming.has_copy());
    }
}
