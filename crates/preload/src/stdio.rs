//! Streams over sockets: `fdopen`, `fclose`.
//!
//! A stream of libc reads and writes by internal calls that no hook sees. For a
//! TCP socket `fdopen` therefore returns a *cookie stream*, whose reads and writes
//! are calls of our own names, with the descriptor number in the place where
//! `fileno` looks for it.

use crate::{exports, real};
use core::ffi::{c_char, c_int, c_void};
use sidestep_socket::descriptors;

/// Offset of `_fileno` in glibc's `struct _IO_FILE` on 64-bit machines, unchanged
/// since 1999: part of the ABI through the old stdio macros.
const FILENO_AT: usize = 112;

#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut libc::FILE;
}

/// # Safety
/// As `fdopen`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: i32, mode: *const c_char) -> *mut libc::FILE {
    if descriptors::sock(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions = CookieFunctions { read, write, seek: None, close };
    // SAFETY: the mode is the caller's; the callbacks match their types.
    unsafe {
        let file = fopencookie(fd as usize as *mut c_void, mode, functions);
        if !file.is_null() {
            file.cast::<u8>().add(FILENO_AT).cast::<c_int>().write(fd);
        }
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
        let _closing = match descriptors::sock(fd) {
            Some(_) => None,
            None => sidestep_socket::sock::before_close(fd),
        };
        real::fclose(file)
    }
}

fn fd_of(cookie: *mut c_void) -> i32 {
    cookie as usize as i32
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, at: *mut c_char, len: usize) -> isize {
    // SAFETY: libc's buffer.
    unsafe { exports::read(fd_of(cookie), at.cast(), len) }
}

unsafe extern "C-unwind" fn write(cookie: *mut c_void, at: *const c_char, len: usize) -> isize {
    // SAFETY: libc's buffer. A cookie's write reports failure by 0.
    unsafe { exports::write(fd_of(cookie), at.cast(), len).max(0) }
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: no memory operands.
    unsafe { exports::close(fd_of(cookie)) }
}
