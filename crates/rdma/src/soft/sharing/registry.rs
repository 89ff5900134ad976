//! Who is in a group, and where: names of AF_UNIX sockets.
//!
//! ```text
//!   @sidestep-roce/10.0.0.1/5       the process with slot 5 listens here for what is handed over
//!   @sidestep-roce/10.0.0.1/5=2     and its socket has place 2 in the group
//! ```
//!
//! The kernel is the registry: a name belongs to one socket, is there at once for all, in the same
//! network namespace as the UDP port, and is gone with its process however that ends. What is
//! there is read from `/proc/net/unix`.
//!
//! Such names are free for all users. A stranger who takes one of a place sends datagrams to the
//! wrong process of ours, which hands them over: he can make us slower, and no more.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::super::sys;
use super::{Places, Slot};

/// Connections that wait to be taken.
const BACKLOG: usize = 64;

fn prefix(address: IpAddr) -> String {
    format!("sidestep-roce/{address}/")
}

/// Where the process with a slot listens.
pub(super) fn name(address: IpAddr, slot: Slot) -> String {
    format!("{}{}", prefix(address), slot.0)
}

/// Takes a slot. `None`: somebody has it.
pub(super) fn take(address: IpAddr, slot: Slot) -> io::Result<Option<OwnedFd>> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    match sys::bind_unix(socket.as_fd(), &name(address, slot)) {
        Ok(()) => sys::listen(socket.as_fd(), BACKLOG).map(|()| Some(socket)),
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Tells all where the socket of a slot is, as long as what is returned lives.
pub(super) fn tell(address: IpAddr, slot: Slot, place: u8) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM)?;
    sys::bind_unix(socket.as_fd(), &format!("{}={place}", name(address, slot)))?;
    Ok(socket)
}

/// Where the sockets of all members are.
pub(super) fn places(address: IpAddr) -> io::Result<Places> {
    // Of this thread: another one may be in another namespace.
    let table = fs::read_to_string("/proc/thread-self/net/unix")?;
    Ok(places_in(&table, &prefix(address)))
}

fn places_in(table: &str, prefix: &str) -> Places {
    let names = table.lines().filter_map(|line| line.split_once('@')?.1.strip_prefix(prefix));
    names
        .filter_map(|name| {
            let (slot, place) = name.trim_end().split_once('=')?;
            Some((Slot::new(slot.parse().ok()?)?, place.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_from_the_kernels_table() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 7001 @sidestep-roce/10.0.0.1/5
0000000000000000: 00000002 00000000 00000000 0002 01 7002 @sidestep-roce/10.0.0.1/5=2
0000000000000000: 00000002 00000000 00000000 0002 01 7003 @sidestep-roce/10.0.0.11/6=3
0000000000000000: 00000002 00000000 00000000 0002 01 7004 @sidestep-roce/10.0.0.1/128=3
0000000000000000: 00000002 00000000 00000000 0002 01 7005 @sidestep-roce/10.0.0.1/x=y
0000000000000000: 00000003 00000000 00000000 0001 03 7006 /run/a@sidestep-roce/1=1
0000000000000000: 00000003 00000000 00000000 0001 03 7007
";
        let expected: Places = [(Slot(5), 2)].into();
        assert_eq!(places_in(table, &prefix("10.0.0.1".parse().unwrap())), expected);
    }
}
