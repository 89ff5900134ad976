//! Memory that the program names in a call: a claim until the kernel has read it.
//!
//! A system call with a bad pointer fails with `EFAULT`, where a load of ours would be a fault.
//! What is passed on untouched needs nothing. What we have to read before it is known whose
//! the call is (the array of `poll`, the sets of `select`, the header of `sendmsg`) is tried
//! first by a call that touches one word of each page, and if that says `EFAULT` the program's
//! own call is left to the kernel, which says it as well.
//!
//! A loop makes the same call with the same array again and again. So what a thread has tried
//! last is not tried again, and such a loop pays nothing. The price: an array that was good in
//! the call before, and that the program has unmapped since, is a fault.

use core::sync::atomic::{AtomicUsize, Ordering};
use sidestep_device::program::Argument;
use sidestep_device::valid::Bits;
use sidestep_device::{confinement, sys};

/// What a claim is about; each has a memory of its own of what was tried last.
#[derive(Clone, Copy)]
pub enum Of {
    /// The array of `poll`.
    Entries,
    /// A set of `select`: to read from, to write to, with urgent data.
    Read,
    /// See [`Self::Read`].
    Write,
    /// See [`Self::Read`].
    Except,
    /// What `sendmsg` is to send.
    Message,
}

/// Kinds of claims.
const KINDS: usize = 5;

std::thread_local! {
    static LAST: [Tried; KINDS] = const { [const { Tried::new() }; KINDS] };
}

/// A range that could be read.
struct Tried {
    /// 0: none.
    at: AtomicUsize,
    len: AtomicUsize,
}

impl Tried {
    const fn new() -> Self {
        Self { at: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    fn is(&self, at: usize, len: usize) -> bool {
        // Acquire: the length is that of this address, also in a handler that interrupts `note`.
        self.at.load(Ordering::Acquire) == at && self.len.load(Ordering::Relaxed) == len
    }

    fn note(&self, at: usize, len: usize) {
        self.at.store(0, Ordering::Release);
        self.len.store(len, Ordering::Release);
        self.at.store(at, Ordering::Release);
    }
}

/// Whether `len` bytes of the program can be read, as far as is known or the kernel says. No, if
/// there are none.
#[must_use]
pub fn holds<T>(of: Of, at: *const T, len: usize) -> bool {
    LAST.with(|last| {
        let last = &last[of as usize];
        if at.is_null() || len == 0 {
            return false;
        }
        if last.is(at as usize, len) {
            return true;
        }
        let holds = sys::is_readable(at.cast(), len);
        if holds {
            last.note(at as usize, len);
        }
        holds
    })
}

/// The number with which a structure of the program begins. What is behind it the program may not
/// have written, and a checker of memory (Valgrind) faults each look at that.
pub(crate) fn first_number<T: Bits>(argument: Argument<'_, T>) -> Option<u32> {
    // The call that copies is none that a filter of system calls is sure to know.
    if confinement::is_confined() {
        return argument.begin().map(u32::from_ne_bytes);
    }
    let mut bytes = [0; 4];
    sys::copy_own(argument.address().cast(), &mut bytes).ok().map(|()| u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_read_holds_nothing() {
        let array = [7_u32; 4];
        for of in [Of::Entries, Of::Read, Of::Write, Of::Except, Of::Message] {
            assert!(holds(of, array.as_ptr(), size_of_val(&array)));
            assert!(!holds(of, core::ptr::null::<u32>(), 4) && !holds(of, array.as_ptr(), 0));
            // No program has the first page.
            assert!(!holds(of, core::ptr::without_provenance::<u32>(16), 4));
            assert!(holds(of, array.as_ptr(), size_of_val(&array)), "as before");
        }
    }

    #[test]
    fn only_the_range_that_was_tried_last_is_known() {
        let tried = Tried::new();
        assert!(!tried.is(4096, 8));
        tried.note(4096, 8);
        assert!(tried.is(4096, 8) && !tried.is(4096, 9) && !tried.is(4097, 8));
        tried.note(8192, 16);
        assert!(tried.is(8192, 16) && !tried.is(4096, 8) && !tried.is(8192, 8));
    }
}
