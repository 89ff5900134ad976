//! The standard streams, `stdin`, `stdout` and `stderr`, over a connection in shared memory.
//!
//! They exist before any socket does. When such a connection is put under number 0, 1 or 2
//! (as inetd and its children do), the variables are pointed to [cookie streams](cookie) on that
//! number, which serve whatever is under it later, too. C++'s `cin` and `cout` have looked at the
//! variables before; they need `std::ios::sync_with_stdio(false)` to be served. musl's variables cannot be written, but
//! its streams can become like those.

use crate::{cookie, real};
use sidestep_proto::fallback::{ProgramDid, Reason};
use sidestep_socket::table::descriptors;
use sidestep_socket::table::sock::Phase;

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
}

/// A descriptor has been put under one of the standard numbers. Streams of libc will
/// use it, and often a program that is started next: a connection that is not decided
/// stays on TCP.
pub(crate) fn note_standard(fd: i32) {
    let Some(sock) = descriptors::sock(fd) else { return };
    if sock.is_undecided() {
        return sock.stay_plain(Reason::Program(ProgramDid::StandardStream));
    }
    if sock.phase() != Phase::Smc {
        sock.sock().settle_offer(fd);
        return;
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
        if cookie::is_ours(*place) {
            return;
        }
        let file = cookie::open(fd, mode.as_ptr());
        if file.is_null() {
            return;
        }
        if real::is_musl() {
            return cookie::imitate(*place, file);
        }
        if fd == 2 {
            libc::setvbuf(file, core::ptr::null_mut(), libc::_IONBF, 0);
        }
        *place = file;
    }
}
