//! Cookie streams: streams of libc whose reads and writes are calls of our own names.
//!
//! A stream of libc reads and writes by internal calls that no hook sees. A *cookie stream*
//! calls functions that it was given, here ours, with the descriptor number in the place where
//! `fileno` looks for it.

use crate::exports;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Offset of `_fileno` in glibc's `struct _IO_FILE` on 64-bit machines, unchanged
/// since 1999: part of the ABI through the old stdio macros.
const FILENO_AT: usize = 112;
/// Offsets of the table of functions behind `struct _IO_FILE`, and of the cookie
/// behind that: `struct _IO_FILE_plus` and `_IO_cookie_file`.
const TABLE_AT: usize = 216;
const COOKIE_AT: usize = 224;
/// glibc's table of functions for cookie streams, once we have made one.
static COOKIE_TABLE: AtomicUsize = AtomicUsize::new(0);

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

/// A cookie stream on a descriptor.
///
/// # Safety
/// As `fdopen`.
pub(crate) unsafe fn open(fd: i32, mode: *const c_char) -> *mut libc::FILE {
    let functions = CookieFunctions { read, write, seek: Some(seek), close };
    // SAFETY: the mode is the caller's; the callbacks match their types. The offsets
    // lie inside glibc's object.
    unsafe {
        let file = fopencookie(fd as usize as *mut c_void, mode, functions);
        if !file.is_null() {
            file.cast::<u8>().add(FILENO_AT).cast::<c_int>().write(fd);
            COOKIE_TABLE.store(word(file, TABLE_AT), Ordering::Relaxed);
        }
        file
    }
}

/// # Safety
/// `file` is a stream of libc with a word there.
unsafe fn word(file: *mut libc::FILE, at: usize) -> usize {
    // SAFETY: the caller's promise; glibc aligns its streams.
    unsafe { file.cast::<u8>().add(at).cast::<usize>().read() }
}

/// Whether a stream is one of our cookie streams: the cookie is its number. (Those of
/// others have none; their functions are mangled, so we cannot know them by that.)
///
/// # Safety
/// `file` is a stream of libc.
pub(crate) unsafe fn is_ours(file: *mut libc::FILE) -> bool {
    // SAFETY: every stream has a table; one with the cookies' table has a cookie.
    unsafe {
        word(file, TABLE_AT) == COOKIE_TABLE.load(Ordering::Relaxed)
            && word(file, COOKIE_AT)
                == file.cast::<u8>().add(FILENO_AT).cast::<u32>().read() as usize
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

unsafe extern "C-unwind" fn seek(cookie: *mut c_void, at: *mut i64, whence: c_int) -> c_int {
    // SAFETY: libc's offset; a socket answers ESPIPE.
    unsafe {
        match libc::lseek(fd_of(cookie), *at, whence) {
            -1 => -1,
            position => {
                *at = position;
                0
            }
        }
    }
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: no memory operands.
    unsafe { exports::close(fd_of(cookie)) }
}
