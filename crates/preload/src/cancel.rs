//! `pthread_cancel`: a thread is ended while it waits in a call.
//!
//! glibc unwinds the stack, and guards in our frames let go of what they hold. musl unwinds nothing: it runs the
//! program's own handlers where the thread stands, and the thread is gone. What our frames hold would stay held: a count
//! of calls under way, the seat of the one thread that sleeps. So under musl a call that may wait is made with
//! cancellation *masked*, a state that only musl has: the call is interrupted, and fails with `ECANCELED`. The frames
//! return as from any call that has failed, and the outermost one, which holds nothing any more, ends the thread.

use crate::errno::{errno, set_errno};
use crate::real;
use core::ffi::c_int;
use core::ptr::null_mut;
use sidestep_device::confinement;
use sidestep_socket::Answer;

/// `PTHREAD_CANCEL_ENABLE` of `pthread.h`, and `PTHREAD_CANCEL_MASKED` of musl's.
const ENABLED: c_int = 0;
const MASKED: c_int = 2;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// Makes a call of libc's that may wait, from below our frames.
#[inline(always)]
pub(crate) fn below_us<T>(call: impl FnOnce() -> T) -> T {
    if real::is_musl() { masked(call) } else { call() }
}

/// Cold, so that glibc's calls stay a jump on the way of the program's.
#[cold]
fn masked<T>(call: impl FnOnce() -> T) -> T {
    let before = set_state(MASKED);
    if before != ENABLED {
        // The program has disabled it, or masks it itself.
        set_state(before);
        return call();
    }
    let result = call();
    set_state(ENABLED);
    result
}

/// Sets the thread's state, and returns what it was.
fn set_state(state: c_int) -> c_int {
    let mut before = ENABLED;
    // SAFETY: the second operand is writable.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// The outermost of our frames has failed, and holds nothing: where the reason is a cancellation, the thread ends here.
/// Calls fail all the time, with `EAGAIN` above all, so glibc's pay for one look at a flag.
#[inline(always)]
pub(crate) fn end_if_cancelled() {
    if real::is_musl() {
        end_if_masked();
    }
}

#[cold]
fn end_if_masked() {
    if errno() == libc::ECANCELED {
        test();
    }
}

/// A cancellation point for sleeps that libc does not know.
///
/// # Errors
/// `ECANCELED` under musl, where the caller returns with it. glibc unwinds from here.
pub(crate) fn look() -> Answer<()> {
    if !real::is_musl() {
        test();
        return Ok(());
    }
    if confinement::is_strict() {
        return Ok(());
    }
    let before = errno();
    // A call that waits for nothing is interrupted all the same.
    // SAFETY: no entries.
    let result = below_us(|| unsafe { real::poll(null_mut(), 0, 0) });
    let is_cancelled = result < 0 && errno() == libc::ECANCELED;
    set_errno(before);
    if is_cancelled { Err(libc::ECANCELED) } else { Ok(()) }
}

/// Ends the thread if it is to be cancelled.
fn test() {
    // SAFETY: no operands; callers hold what they hold by guards, or nothing.
    unsafe { pthread_testcancel() }
}
