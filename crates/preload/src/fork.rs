//! Children that have a copy of our memory: `fork`, and the ways of libc that go
//! round its fork handlers, `_Fork` and `clone`.
//!
//! Both processes of a fork hold every connection, and the child is another process: what
//! has to be done for that is the same however the child was made. A child that shares
//! our memory (a thread, `vfork`) is none of this; nor is one that shares our table of
//! descriptors only, where a close by one is a close for both.
//!
//! A fork that has failed (`RLIMIT_NPROC`) is taken back: no child holds anything. libc does not
//! tell its handlers, so there the thread's `errno` does. It is 0 before the system call, and what
//! else may have changed it only has the question put off until `fork` returns.
//!
//! That memory is lent by `vfork` is written down ([`is_borrowed_memory`](sidestep_socket::process::loan::is_borrowed_memory)), or
//! each `close` would have to ask the kernel who it is that closes.

use crate::errno::{errno, quietly, set_errno};
use crate::real::{self, Begin, Name};
use core::cell::Cell;
use core::ffi::c_void;
use sidestep_socket::polling::epoll;
use sidestep_socket::process::children;
use sidestep_socket::program::fork;

/// Has libc's `fork` call us, by `pthread_atfork`, which is no function of glibc's file but a call of another one.
pub(crate) fn watch() {
    type Handler = unsafe extern "C" fn();
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> i32;
    let name = if real::is_musl() { c"pthread_atfork" } else { c"__register_atfork" };
    let address = Name::new(name).address();
    if address.is_null() {
        return sidestep_socket::log!(
            Error,
            "libc has no {name:?}: children of a fork use connections as if they were alone"
        );
    }
    // SAFETY: both have this signature, glibc's with an object at whose end the handlers go, which is
    // none. They live as long as the library, which is never unloaded.
    unsafe {
        let register: Register = core::mem::transmute(address);
        register(before, in_parent, in_child, core::ptr::null());
    }
}

/// What this thread is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// No call of `fork`, or one that libc makes by itself.
    None,
    /// A call of `fork` by the program.
    Fork,
    /// The same, and there may be no child.
    InDoubt,
}

std::thread_local! {
    static CALL: Cell<Call> = const { Cell::new(Call::None) };
    /// The program's, during a call of `fork`.
    static ERRNO: Cell<i32> = const { Cell::new(0) };
}

unsafe extern "C" fn before() {
    fork::before_fork();
    if CALL.get() == Call::Fork {
        ERRNO.set(errno());
        set_errno(0);
    }
}

unsafe extern "C" fn in_parent() {
    if CALL.get() == Call::Fork {
        if errno() != 0 {
            return CALL.set(Call::InDoubt);
        }
        set_errno(ERRNO.get());
    }
    children::forked();
}

/// There is no child.
fn failed() {
    fork::after_failed_fork();
    children::forked();
}

/// `fork`, made by `make`, during which libc calls the handlers above.
pub(crate) fn fork(make: impl FnOnce() -> i32) -> i32 {
    let before = CALL.replace(Call::Fork);
    let child = make();
    if CALL.replace(before) == Call::InDoubt {
        quietly(|| if child < 0 { failed() } else { children::forked() });
        if child > 0 {
            set_errno(ERRNO.get());
        }
    }
    child
}

unsafe extern "C" fn in_child() {
    if CALL.get() == Call::Fork {
        set_errno(ERRNO.get());
    }
    children::forget_after_fork();
    fork::after_fork_in_child();
    epoll::after_fork_in_child();
}

/// `_Fork`, or a system call to the same effect: `make` returns twice.
pub(crate) fn around<T: Copy + Into<i64>>(make: impl FnOnce() -> T) -> T {
    fork::before_fork();
    let child = make();
    match child.into() {
        // SAFETY: our own handler, called where libc would.
        0 => unsafe { in_child() },
        1.. => children::forked(),
        _ => quietly(failed),
    }
    child
}

/// Whether a clone with these flags copies memory and descriptors, as `fork` does.
pub(crate) fn is_fork(flags: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_FILES) as u64 == 0
}

/// Whether the child of a clone with these flags is a process that runs in our memory.
pub(crate) fn lends_memory(flags: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_THREAD) as u64 == libc::CLONE_VM as u64
}

/// What a child of `clone` does, after what we have to do there.
struct Task {
    begin: Begin,
    argument: *mut c_void,
}

/// `clone` for [`is_fork`].
///
/// # Safety
/// As `clone`.
pub(crate) unsafe fn clone(
    (begin, argument): (Begin, *mut c_void),
    stack: *mut c_void,
    flags: i32,
    [parent_tid, tls, child_tid]: [*mut c_void; 3],
) -> i32 {
    let mut task = Task { begin, argument };
    let at = (&raw mut task).cast();
    fork::before_fork();
    // SAFETY: the caller's promise; the child finds the task in its copy of our stack.
    let child = unsafe { real::clone(run, stack, flags, at, parent_tid, tls, child_tid) };
    // The child is in `run`.
    if child < 0 {
        quietly(failed);
    } else {
        children::forked();
    }
    child
}

unsafe extern "C" fn run(task: *mut c_void) -> i32 {
    // SAFETY: made by `clone` above.
    unsafe {
        in_child();
        let Task { begin, argument } = task.cast::<Task>().read();
        begin(argument)
    }
}
