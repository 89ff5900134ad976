//! What the filter says of a connection, asked by its socket.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use rustix::fs::fstat;
use sidestep_wire::verdict::Question;

mod option {
    use nix::{setsockopt_impl, sockopt_impl};
    use sidestep_wire::verdict;

    sockopt_impl!(
        /// What of the packets that leave by the connection?
        Out, SetOnly, verdict::LEVEL, verdict::OUT, u64
    );
    sockopt_impl!(
        /// What of those that arrive?
        In, SetOnly, verdict::LEVEL, verdict::IN, u64
    );
}

/// Whether a filter of the host denies packets of a TCP connection, one way or the other. `interface`: the
/// index of the one that they take, 0: not known. False, too, if there is no filter for the control group of the socket.
///
/// Every program that has a descriptor may ask. What lies below is [`sidestep_wire::verdict`].
///
/// # Errors
/// It is no socket.
pub fn is_denied(socket: impl AsFd, interface: u32) -> io::Result<bool> {
    let socket = socket.as_fd();
    let user = fstat(socket)?.st_uid;
    let value = u64::from_ne_bytes(Question { user, interface }.to_bytes());
    for answer in
        [setsockopt(&socket, option::Out, &value), setsockopt(&socket, option::In, &value)]
    {
        match answer {
            Err(Errno::EPERM) => return Ok(true),
            Ok(()) | Err(Errno::ENOPROTOOPT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}
