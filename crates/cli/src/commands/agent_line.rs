//! Whether an agent answers at its socket: `doctor` and `enable` ask.

use std::io;
use std::path::Path;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};

/// Calls it, and hangs up.
///
/// # Errors
///
/// There is none, or it cannot be reached from here.
pub(super) fn call(socket: &Path) -> io::Result<()> {
    let line = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    Ok(net::connect(line, &SocketAddrUnix::new(socket)?)?)
}
