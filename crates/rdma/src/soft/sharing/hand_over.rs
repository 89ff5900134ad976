//! A datagram at the wrong process is handed to the right one.
//!
//! ```text
//!   connection to @sidestep-roce/10.0.0.1/5, by a process of the same user:
//!   one message for each datagram │ address 16 │ port 2 │ the datagram │
//! ```
//!
//! An IPv4 address stands as IPv6 writes it (`::ffff:10.0.0.2`). Whoever takes it treats it as if
//! it had come by the port: the checks are all still to come.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use super::super::adapter::{DATAGRAM_MAX, Datagram};
use super::super::sys;

const ADDRESS_LEN: usize = 16;
const HEADER_LEN: usize = ADDRESS_LEN + 2;
/// Room for any message.
const MESSAGE_MAX: usize = HEADER_LEN + DATAGRAM_MAX;

/// A way to another process.
pub(super) fn visit(name: &str) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    sys::connect_unix(socket.as_fd(), name)?;
    of_same_user(socket)
}

/// One who has come by such a way.
pub(super) fn welcome(listener: &OwnedFd) -> io::Result<OwnedFd> {
    sys::accept(listener.as_fd()).and_then(of_same_user)
}

fn of_same_user(socket: OwnedFd) -> io::Result<OwnedFd> {
    match sys::is_same_user(socket.as_fd())? {
        true => Ok(socket),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Hands a datagram over.
pub(super) fn give(way: &OwnedFd, datagram: &Datagram<'_>) -> io::Result<()> {
    let mut message = [0; MESSAGE_MAX];
    let len = HEADER_LEN + datagram.bytes.len();
    let Some(bytes) = message.get_mut(HEADER_LEN..len) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    bytes.copy_from_slice(datagram.bytes);
    let address = match datagram.from {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    message[..ADDRESS_LEN].copy_from_slice(&address.octets());
    message[ADDRESS_LEN..HEADER_LEN].copy_from_slice(&datagram.port.to_be_bytes());
    sys::send(way.as_fd(), &message[..len]).map(drop)
}

/// Takes everything that a visitor has brought. False: it has gone.
pub(super) fn take(visitor: &OwnedFd, mut on_datagram: impl FnMut(Datagram<'_>)) -> bool {
    let mut message = [0; MESSAGE_MAX];
    loop {
        match sys::receive(visitor.as_fd(), &mut message) {
            Ok(0) => return false,
            Ok(len) => {
                if let Some(datagram) = read(&message[..len]) {
                    on_datagram(datagram);
                }
            }
            Err(error) => return error.raw_os_error() == Some(libc::EAGAIN),
        }
    }
}

fn read(message: &[u8]) -> Option<Datagram<'_>> {
    let (address, rest) = message.split_first_chunk::<ADDRESS_LEN>()?;
    let (port, bytes) = rest.split_first_chunk()?;
    let from = Ipv6Addr::from(*address).to_canonical();
    Some(Datagram { from, port: u16::from_be_bytes(*port), index: 0, bytes })
}
