//! `errno` of the thread: it belongs to the program, and changes when a call of ours fails.

use sidestep_socket::Errno;

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: libc's own thread-local word.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn errno() -> Errno {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Runs `f`, which is no business of the program, without changing `errno`.
pub(crate) fn quietly<T>(f: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = f();
    set_errno(before);
    result
}
