//! Cookie streams: streams of libc whose reads and writes are calls of our own names.
//!
//! A stream of libc reads and writes by internal calls that no hook sees. A *cookie stream*
//! calls functions that it was given, here ours, with the descriptor number in the place where
//! `fileno` looks for it.

use crate::{exports, real};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Where a libc has what in its streams: offsets of bytes, on 64-bit machines.
struct Layout {
    /// The descriptor number.
    fileno: usize,
    /// A word that all cookie streams have in common, and no others.
    kind: usize,
    /// The cookie, or where it is.
    cookie: usize,
}

/// `_fileno` in glibc's `struct _IO_FILE`, unchanged since 1999: part of the ABI through the old stdio
/// macros. Behind the struct, the table of functions, and the cookie behind that: `struct
/// _IO_FILE_plus` and `_IO_cookie_file`.
const GLIBC: Layout = Layout { fileno: 112, kind: 216, cookie: 224 };
/// `fd`, `close` and `cookie` of musl's `struct _IO_FILE` (`stdio_impl.h`), the same since 1.1.0. The last
/// leads to the cookie.
const MUSL: Layout = Layout { fileno: 120, kind: 24, cookie: 152 };

fn layout() -> Layout {
    if real::is_musl() { MUSL } else { GLIBC }
}

/// The word that cookie streams have in common, once we have made one.
static COOKIE_KIND: AtomicUsize = AtomicUsize::new(0);

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
    let at = layout();
    // SAFETY: the mode is the caller's; the callbacks match their types. The offsets
    // lie inside libc's object.
    unsafe {
        let file = fopencookie(fd as usize as *mut c_void, mode, functions);
        if !file.is_null() {
            file.cast::<u8>().add(at.fileno).cast::<c_int>().write(fd);
            COOKIE_KIND.store(word(file, at.kind), Ordering::Relaxed);
        }
        file
    }
}

/// # Safety
/// `file` is a stream of libc with a word there.
unsafe fn word(file: *mut libc::FILE, at: usize) -> usize {
    // SAFETY: the caller's promise; libc aligns its streams.
    unsafe { file.cast::<u8>().add(at).cast::<usize>().read() }
}

/// Whether a stream is one of our cookie streams: the cookie is its number. (Those of
/// others have none; their functions are mangled, so we cannot know them by that.)
///
/// # Safety
/// `file` is a stream of libc.
pub(crate) unsafe fn is_ours(file: *mut libc::FILE) -> bool {
    let at = layout();
    // SAFETY: every stream has a word of this place; one of the cookies' kind has a cookie.
    unsafe {
        let is_cookie_stream = word(file, at.kind) == COOKIE_KIND.load(Ordering::Relaxed);
        let cookie = || match (word(file, at.cookie), real::is_musl()) {
            (cookie, false) => cookie,
            (place, true) => (place as *const usize).read(),
        };
        is_cookie_stream
            && cookie() == file.cast::<u8>().add(at.fileno).cast::<u32>().read() as usize
    }
}

/// Has a stream of musl's do what a cookie stream does, under its own number and with its own buffer. (musl's functions
/// of a stream are part of it.)
///
/// # Safety
/// Both are streams of musl's, and no other thread uses the first.
pub(crate) unsafe fn imitate(file: *mut libc::FILE, cookie_stream: *mut libc::FILE) {
    /// `read`, `write` and `seek` of musl's `struct _IO_FILE`.
    const FUNCTIONS: [usize; 3] = [64, 72, 80];
    for at in FUNCTIONS.into_iter().chain([MUSL.kind, MUSL.cookie]) {
        // SAFETY: the caller's promise; the offsets lie inside musl's object.
        unsafe { file.cast::<u8>().add(at).cast::<usize>().write(word(cookie_stream, at)) };
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
    // SAFETY: libc's buffer.
    let written = unsafe { exports::write(fd_of(cookie), at.cast(), len) };
    // To glibc a cookie's write reports failure by 0.
    if real::is_musl() { written } else { written.max(0) }
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
