//! Who shares a state: the processes that work on its slots, and which of them live.
//!
//! A forked child goes on with the connections of its parent, and so does a program that was
//! given one. Each of them may be killed while it holds a lock, and the others have to learn
//! that. A process number does not tell: two PID namespaces use the same ones. So each process
//! draws a number at random, its [`Holder`], and *enters* the state: it takes the kernel's
//! lock on one byte of the file, the byte at the offset of its number. (A file may be
//! locked far behind its end.)
//!
//! ```text
//!   state file   0 ........ STATE_LEN ........ 2^41
//!                                 ^       ^
//!                                 holder  another: locked as long as they live
//! ```
//!
//! The kernel gives the lock back when the process ends, in whatever way, and when `exec`
//! replaces its program: all its threads have stopped by then. A process that has the file may ask
//! who is in it, from any namespace.
//!
//! A lock belongs to an open file description, and a descriptor that is inherited or sent leads
//! to its maker's. So a holder opens the file anew. Without `/proc` that cannot be done: then
//! the lock belongs to the process, which loses it when it closes any descriptor of the file.

use crate::lock::Holder;
use crate::sys::{self, Result};

/// A holder that no other process is, but for a chance of one in 2^41.
#[must_use]
pub fn draw() -> Holder {
    let mut bytes = [0; 8];
    let drawn = match sys::random(&mut bytes) {
        Ok(_) => u64::from_ne_bytes(bytes),
        // A process without randomness makes no state of its own. For those it has inherited
        // any number will do that no living process has, which `enter` finds out.
        Err(_) => sys::now_ns(),
    };
    Holder::from_number(drawn & Holder::MAX.number()).unwrap_or(Holder::MAX)
}

/// What keeps this process in a state until it is closed.
#[derive(Debug)]
pub enum Membership {
    /// A descriptor of its own, at a hidden number.
    OfDescription(i32),
    /// The lock is the process's.
    OfProcess,
}

/// Enters a process into the state behind `file`.
///
/// # Errors
/// `EAGAIN` when a holder of this number lives, `ENOLCK` without memory for locks, or what a
/// filter of system calls says.
pub fn enter(file: i32, holder: Holder) -> Result<Membership> {
    let at = holder.number();
    let Ok(own) = sys::reopen(file) else {
        return sys::lock_byte(file, libc::F_SETLK, at).map(|_| Membership::OfProcess);
    };
    match sys::lock_byte(own, libc::F_OFD_SETLK, at) {
        Ok(_) => Ok(Membership::OfDescription(sys::move_up(own))),
        Err(errno) => {
            sys::close_number(own);
            Err(errno)
        }
    }
}

/// Whether a holder lives. `file` leads to the state. What cannot be found out counts as life:
/// nothing is taken from the living.
#[must_use]
pub fn is_in(file: i32, holder: Holder) -> bool {
    sys::is_locked(file, holder.number(), 1).unwrap_or(true)
}

/// Whether a state has any holder but the one whose own descriptor `own` is.
#[must_use]
pub fn has_others(own: i32) -> bool {
    // No length: to the end of all offsets.
    sys::is_locked(own, 0, 0).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map;

    fn file() -> i32 {
        map::create(c"sidestep-test", 4096).unwrap().fd
    }

    fn own(membership: Membership) -> i32 {
        match membership {
            Membership::OfDescription(own) => own,
            Membership::OfProcess => panic!("there is /proc"),
        }
    }

    #[test]
    fn a_holder_is_in_until_its_descriptor_is_closed() {
        let _alone = crate::alone_with_descriptors();
        let file = file();
        let [first, second] = [Some(Holder::MAX), Holder::from_number(1)].map(Option::unwrap);
        assert!(!is_in(file, first));
        let firsts = own(enter(file, first).unwrap());
        assert!(is_in(file, first) && !is_in(file, second));
        assert!(!has_others(firsts), "but for itself there is none");
        let seconds = own(enter(file, second).unwrap());
        assert!(has_others(firsts) && is_in(firsts, second));
        assert_eq!(enter(file, first).unwrap_err(), sys::Errno(libc::EAGAIN));
        // Other descriptors of the file come and go.
        sys::close_number(sys::fcntl(file, libc::F_DUPFD, 0).unwrap() as i32);
        assert!(is_in(file, second));
        sys::close(seconds);
        assert!(!is_in(file, second) && !has_others(firsts));
        sys::close(firsts);
        sys::close(file);
    }

    #[test]
    fn a_holder_that_is_killed_is_in_no_more() {
        let _alone = crate::alone_with_descriptors();
        let file = file();
        let holder = draw();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let entered = enter(file, holder).is_ok();
            // SAFETY: as above.
            unsafe {
                if entered {
                    libc::pause();
                }
                libc::_exit(1)
            }
        }
        while !is_in(file, holder) {
            assert!(sys::exists(child as u32));
            std::thread::yield_now();
        }
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
        assert!(!is_in(file, holder));
        sys::close(file);
    }
}
