//! A socket that only says ECONNRESET, for the place of a connection that no program can go on with.

use sidestep_device::sys;

/// A socket that says ECONNRESET. `prepare` gets both its ends before.
pub(crate) fn dead_end(prepare: impl FnOnce([i32; 2])) -> Option<i32> {
    let [end, other] = sys::packet_pair().ok()?;
    prepare([end, other]);
    // Unread when the other end is closed: a reset.
    let _ = sys::send(end, b"!", libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    sys::close_number(other);
    Some(end)
}

/// Puts a socket that says ECONNRESET under the number of a connection that no program can go on with:
/// what comes by it would not be the program's bytes.
pub(super) fn close_off(fd: i32) {
    let Some(end) = dead_end(|_| ()) else {
        // No descriptor is left for one. Then the connection itself ends, so that no byte goes by it.
        let _ = sys::shutdown(fd, libc::SHUT_RDWR);
        return;
    };
    let is_kept = sys::fcntl(fd, libc::F_GETFD, 0) == Ok(0);
    let _ = sys::dup_onto(end, fd, !is_kept);
    sys::close_number(end);
}
