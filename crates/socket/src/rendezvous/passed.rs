//! Connections that are passed on before anything was decided about them.
//!
//! A server may accept in one process and serve in another, as Node's cluster does: the
//! connection goes by `SCM_RIGHTS` before its first byte. It goes as the TCP socket that
//! it is, because the receiver may be a plain program. One with this library may
//! take it up, as if it had accepted it, if no other program is left that uses it as TCP:
//!
//! * The giver *marks* the socket, by the value of an option: it is an accepted one, and
//!   was given away once, by a program that will not use it unseen.
//! * As long as the giver has it open, it is bound to a *name* that is made of the
//!   socket's cookie. The kernel frees the name with the giver's last descriptor, which is
//!   closed after the connection's.
//! * The receiver begins when the mark is there and no such name is bound. Until then, and
//!   if that takes long, the connection is an ordinary one.
//!
//! Who gives a connection away twice, takes the mark off: there would be two to take it
//! up. A receiver that passes it on becomes a giver beside the first.

use crate::connection::kept_options;
use crate::process::home::Home;
use crate::process::tcp::socket_cookie;
use crate::table::descriptors;
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use sidestep_device::sys::{self, Errno, UnixName};
use sidestep_proto::rendezvous::agreement::Givers;
use sidestep_wire::host_control::given_name;

/// Givers of one connection that may have it open at a time.
const GIVERS_MAX: u8 = 4;

/// A descriptor is about to be sent to another process.
pub(crate) fn offer(fd: i32) {
    let Some(sock) = descriptors::sock(fd) else { return };
    let mut is_offered = false;
    // Not while this process forks: the child would have the connection without its name.
    sock.with_rendezvous(|_| is_offered = may_be_taken_up(&sock, fd) && mark(&sock, fd));
    if !is_offered {
        kept_options::mark_given(fd, false);
    }
}

/// Marks and names a connection.
fn mark(sock: &Sock, fd: i32) -> bool {
    let Some(name) = bind_name(fd) else { return false };
    sock.given_name.store(name, Ordering::Relaxed);
    kept_options::mark_given(fd, true)
}

/// It could not be sent.
pub(crate) fn withdraw(fd: i32) {
    if let Some(sock) = descriptors::sock(fd) {
        let name = sock.given_name.swap(-1, Ordering::Relaxed);
        if name >= 0 {
            kept_options::mark_given(fd, false);
            sys::close(name);
        }
    }
}

/// Whether this process lets go of all it has of a connection when it closes it.
fn may_be_taken_up(sock: &Sock, fd: i32) -> bool {
    let is_ours_alone = || {
        sock.slot().is_some_and(|slot| slot.holders.load(Ordering::Acquire) == 1)
            // A program that is begun meanwhile does not get it.
            && sys::fcntl(fd, libc::F_GETFD, 0) == Ok(libc::FD_CLOEXEC as usize)
    };
    sock.phase() == Phase::Candidate
        && sock.is_server.load(Ordering::Relaxed)
        && sock.given_name.load(Ordering::Relaxed) < 0
        && !sock.tcp_only.load(Ordering::Relaxed)
        && is_ours_alone()
}

/// A socket that has the first free name of this connection.
fn bind_name(fd: i32) -> Option<i32> {
    let cookie = Some(socket_cookie(fd)).filter(|cookie| *cookie != 0)?;
    let holder = sys::unix_datagram().map(sys::move_up).ok()?;
    let bind = |index| sys::bind_unix(holder, &UnixName::new(&given_name(cookie, index))).is_ok();
    if (0..GIVERS_MAX).any(bind) {
        return Some(holder);
    }
    sys::close(holder);
    None
}

/// Who else has a connection that was received.
pub(super) fn givers(process: &Home, fd: i32) -> Givers {
    let cookie = socket_cookie(fd);
    let is_bound = |index| {
        let name = UnixName::new(&given_name(cookie, index));
        sys::connect_unix(process.probe, &name) != Err(Errno(libc::ECONNREFUSED))
    };
    if !kept_options::is_given(fd) {
        Givers::Many
    } else if (0..GIVERS_MAX).any(is_bound) {
        Givers::Here
    } else {
        kept_options::mark_given(fd, false);
        Givers::Gone
    }
}
