//! Sending bytes from where they lie: two stretches of memory in one call.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::io::Errno;
use rustix::net::SendFlags;
use sidestep_rdma::memory::Stretch;

/// Sends as many bytes as the socket takes, the first stretch before the second, and says how many. Never waits.
///
/// # Errors
///
/// What `sendmsg` says of the connection, but for `EINTR`.
#[expect(
    unsafe_code,
    reason = "what another process may write meanwhile has an address, and is no slice"
)]
pub(crate) fn send(
    socket: &TcpStream,
    stretches: [Stretch<'_>; 2],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut parts = stretches.map(|stretch| libc::iovec {
        iov_base: stretch.base().cast_mut().cast(),
        iov_len: stretch.len(),
    });
    let message = libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: parts.as_mut_ptr(),
        msg_iovlen: parts.len(),
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    let flags = (flags | SendFlags::NOSIGNAL | SendFlags::DONTWAIT).bits();
    loop {
        // SAFETY: the message leads to two parts, which can be read as long as the stretches live.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags as i32) };
        match usize::try_from(sent) {
            Ok(count) => return Ok(count),
            Err(_) => match errno() {
                Errno::INTR => {}
                error => return Err(error),
            },
        }
    }
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
