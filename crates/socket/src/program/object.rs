//! Socket objects: made when a socket begins, and dissolved when no descriptor and no call leads to them.

use crate::connection::ends;
use crate::process::tcp;
use crate::rendezvous::agreement;
use crate::rendezvous::marker;
use crate::table::account;
use crate::table::file::File;
use crate::table::sock;
use crate::table::sock::Phase;
use crate::table::sock::Sock;
use core::sync::atomic::Ordering;
use sidestep_device::sys;
use sidestep_device::young::About;

/// An object of which only the caller knows.
pub(crate) fn new(nonblocking: bool, is_server: bool) -> Option<&'static Sock> {
    sock::take(nonblocking, is_server, dissolve)
}

/// The object of a socket that had none: of a young connection, or of one that is not
/// connected. Nobody else knows it yet.
pub(crate) fn grown(fd: i32, about: Option<About>) -> Option<&'static Sock> {
    // A socket that does not wait must not spin for a while before that is found out.
    let sock = new(tcp::is_nonblocking(fd), about.is_some_and(|about| about.is_server))?;
    if let Some(about) = about {
        sock.server_port.store(about.server_port, Ordering::Relaxed);
        sock.note_was_young(fd);
    }
    Some(sock)
}

/// The last descriptor of this process is about to be closed, and no call is under way.
pub(crate) fn say_goodbye(sock: &Sock, fd: i32) {
    if let Some(conn) = sock.conn() {
        ends::before_last_close(sock, &conn, File::certain(sock, fd));
    }
}

/// The kernel has closed it. A peer that is awake need not sleep to learn it.
pub(crate) fn tell_of_close(sock: &Sock) {
    if let Some(conn) = sock.conn() {
        ends::note_closed(&conn);
    }
}

/// Nobody refers to the object: gives its slot back and itself to the pool.
fn dissolve(sock: &'static Sock) {
    // A call that has outlived the descriptors kept the file.
    if sock.naming.let_go(|copy| say_goodbye(sock, copy)) {
        tell_of_close(sock);
    }
    sock.with_last_meeting(|meeting| agreement::abandon(meeting, sock));
    let marker = sock.marker.load(Ordering::Relaxed);
    if marker >= 0 {
        marker::retire_marker(marker);
    }
    let name = sock.given_name.load(Ordering::Relaxed);
    if name >= 0 {
        sys::close(name);
    }
    if matches!(sock.phase(), Phase::Candidate | Phase::Meeting) && sock.slot().is_some() {
        crate::log!(Info, "connection ends on TCP before it was decided");
        account::undecided(sock);
    }
    sock.release_slot();
    sock::give(sock);
}
