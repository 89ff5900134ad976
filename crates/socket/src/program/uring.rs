//! Connections that a program uses through io_uring.
//!
//! What a ring is given, the kernel does by itself, on the TCP socket, and none of our
//! calls sees a byte of it. So a connection that is given to a ring stays on TCP, and
//! with it all later ones of the process: one that was read by `recv` first and by a ring
//! then would have moved in between. A connection that has moved already cannot be
//! served: a program that gives it away is to see an error, not to wait for bytes that never
//! come by TCP.
//!
//! A ring by itself changes nothing. Most programs use one for files.

use crate::process::unseen;
use crate::program::life;
use crate::table::descriptors;
use crate::table::sock::Phase;
use sidestep_proto::fallback::{ProgramDid, Reason};

/// A descriptor is given to a ring. False: it must not be, because its connection is in
/// shared memory.
#[must_use]
pub fn give(fd: i32) -> bool {
    let Some(sock) = descriptors::sock(fd) else { return true };
    if !unseen::note_given() {
        crate::log!(Info, "sockets are used through io_uring: connections stay on TCP");
    }
    sock.keep_plain(Reason::Program(ProgramDid::IoUring));
    let moved = sock.phase() == Phase::Smc;
    if moved {
        crate::log!(Error, "descriptor {fd} is in shared memory, and refused to io_uring");
    }
    !moved
}

/// A descriptor is given to a ring to be closed.
pub fn give_to_close(fd: i32) {
    // The kernel closes it in its own time; the end of its TCP connection tells the peer.
    drop(life::before_close(fd));
}
