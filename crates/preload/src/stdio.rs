//! Streams over sockets: `fdopen`, `freopen`, `fclose`, and the standard streams.
//!
//! A stream of libc reads and writes by internal calls that no hook sees. For a
//! TCP socket `fdopen` therefore returns a *cookie stream*, whose reads and writes
//! are calls of our own names, with the descriptor number in the place where
//! `fileno` looks for it.
//!
//! The standard streams exist before any socket does. When a connection in shared
//! memory is put under number 0, 1 or 2 (as inetd and its heirs do), the variables
//! `stdin`, `stdout` and `stderr` are pointed to cookie streams on that number, which
//! serve whatever is under it later, too. C++'s `cin` and `cout` have looked at the
//! variables before; they need `std::ios::sync_with_stdio(false)` to be served.

use crate::{exports, real};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use sidestep_proto::fallback::{ProgramDid, Reason};
use sidestep_socket::sock::Phase;
use sidestep_socket::{descriptors, gateway};

/// Offset of `_fileno` in glibc's `struct _IO_FILE` on 64-bit machines, unchanged
/// since 1999: part of the ABI through the old stdio macros.
const FILENO_AT: usize = 112;
/// Offsets of the table of functions behind `struct _IO_FILE`, and of the cookie
/// behind that: `struct _IO_FILE_plus` and `_IO_cookie_file`.
const TABLE_AT: usize = 216;
const COOKIE_AT: usize = 224;
/// Bits of the first word of `struct _IO_FILE`: `_IO_NO_READS`, `_IO_NO_WRITES`.
const NO_READS: c_int = 4;
const NO_WRITES: c_int = 8;

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
    fn __fpurge(file: *mut libc::FILE);
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
}

/// A cookie stream on a descriptor.
///
/// # Safety
/// As `fdopen`.
unsafe fn open_stream(fd: i32, mode: *const c_char) -> *mut libc::FILE {
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
unsafe fn is_ours(file: *mut libc::FILE) -> bool {
    // SAFETY: every stream has a table; one with the cookies' table has a cookie.
    unsafe {
        word(file, TABLE_AT) == COOKIE_TABLE.load(Ordering::Relaxed)
            && word(file, COOKIE_AT)
                == file.cast::<u8>().add(FILENO_AT).cast::<u32>().read() as usize
    }
}

/// A descriptor has been put under one of the standard numbers. Streams of libc will
/// use it, and often a program that is started next: a connection that is not decided
/// stays on TCP.
pub(crate) fn note_standard(fd: i32) {
    let Some(sock) = descriptors::sock(fd) else { return };
    match sock.phase() {
        Phase::Candidate | Phase::Meeting => {
            return sock.stay_plain(Reason::Program(ProgramDid::StandardStream));
        }
        Phase::Smc => {}
        Phase::Offered => return gateway::look(&sock, fd),
        Phase::Fresh | Phase::Listener | Phase::Plain => return,
    }
    // SAFETY: libc's variables; programs that replace them in another thread at this
    // very moment are beyond help.
    unsafe {
        let (place, mode) = match fd {
            0 => (&raw mut stdin, c"r"),
            1 => (&raw mut stdout, c"w"),
            2 => (&raw mut stderr, c"w"),
            _ => return,
        };
        if is_ours(*place) {
            return;
        }
        let file = open_stream(fd, mode.as_ptr());
        if file.is_null() {
            return;
        }
        if fd == 2 {
            libc::setvbuf(file, core::ptr::null_mut(), libc::_IONBF, 0);
        }
        *place = file;
    }
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
    unsafe { open_stream(fd, mode) }
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
        if is_ours(file) {
            return reopen(path, mode, file);
        }
        let _closing = sidestep_socket::sock::before_close(libc::fileno(file));
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
        if opened.is_null() || exports::dup2(libc::fileno(opened), fd) < 0 {
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
        let _closing = if is_ours(file) { None } else { sidestep_socket::sock::before_close(fd) };
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
