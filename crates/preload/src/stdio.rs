//! Streams over sockets: `fdopen`, `freopen`, `fclose`.
//!
//! For a TCP socket `fdopen` returns a [cookie stream](cookie), whose reads and writes are calls of
//! our own names. `freopen` keeps it one, and `fclose` closes what it is on.

use crate::{cookie, duplicate, real};
use core::ffi::{c_char, c_int};
use sidestep_socket::table::descriptors;

/// Bits of the first word of `struct _IO_FILE`: `_IO_NO_READS` and `_IO_NO_WRITES` of glibc, `F_NORD` and `F_NOWR` of musl.
const NO_READS: c_int = 4;
const NO_WRITES: c_int = 8;

unsafe extern "C" {
    fn __fpurge(file: *mut libc::FILE);
}

/// # Safety
/// As `fdopen`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: i32, mode: *const c_char) -> *mut libc::FILE {
    if descriptors::sock(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real::fdopen(fd, mode) };
    }
    // SAFETY: the caller's promise.
    unsafe { cookie::open(fd, mode) }
}

/// # Safety
/// As `freopen`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the caller's promise.
    unsafe {
        if cookie::is_ours(file) {
            return reopen(path, mode, file);
        }
        let _closing = sidestep_socket::program::life::before_close(libc::fileno(file));
        real::freopen(path, mode, file)
    }
}

/// # Safety
/// As `freopen64`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { freopen(path, mode, file) }
}

/// `freopen` of a cookie stream: it stays one, on the same number, with another file
/// under it.
///
/// # Safety
/// As `freopen`, for a stream of ours.
unsafe fn reopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the caller's promise; libc's own functions and its flag word.
    unsafe {
        libc::fflush(file);
        let fd = libc::fileno(file);
        let opened = if path.is_null() { core::ptr::null_mut() } else { libc::fopen(path, mode) };
        if opened.is_null() || duplicate::dup2(libc::fileno(opened), fd) < 0 {
            fclose(file);
            return core::ptr::null_mut();
        }
        let flags = opened.cast::<c_int>().read() & (NO_READS | NO_WRITES);
        libc::fclose(opened);
        __fpurge(file);
        libc::clearerr(file);
        let own = file.cast::<c_int>();
        own.write(own.read() & !(NO_READS | NO_WRITES) | flags);
        file
    }
}

/// # Safety
/// As `fclose`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(file: *mut libc::FILE) -> i32 {
    // SAFETY: the caller's promise; fileno answers -1 for streams without one.
    unsafe {
        let fd = libc::fileno(file);
        // A cookie stream closes through our own `close`; any other by an internal
        // call of libc.
        let _closing = if cookie::is_ours(file) {
            None
        } else {
            sidestep_socket::program::life::before_close(fd)
        };
        real::fclose(file)
    }
}
