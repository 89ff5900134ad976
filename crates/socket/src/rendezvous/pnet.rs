//! Whether the interface of a connection has the PNET ID of the shared memory.
//!
//! Configuration names the interfaces that have it, and the kernel tells which one a
//! connection's own address is on ([`route`](sidestep_device::route)): seven system calls,
//! before each attempt to move, and none if the shared memory has no PNET ID.

use crate::process::options;
use crate::process::tcp::netns_cookie;
use core::net::IpAddr;
use sidestep_device::route::Rtnetlink;
use sidestep_device::sys::InterfaceName;
use sidestep_proto::fallback::Reason;

/// What speaks against a connection, by the interface of its own address.
pub(crate) fn objection(fd: i32, local: IpAddr) -> Option<Reason> {
    let policy = &options::current().policy;
    if policy.interfaces.is_empty() {
        return None;
    }
    let interface = interface(fd, local);
    policy.objection_to_interface(interface.as_ref().map(InterfaceName::as_bytes))
}

/// The interface of an address of a socket. `None`: also for a socket of another network
/// namespace than the thread is in, where the same address may be on another interface.
fn interface(fd: i32, address: IpAddr) -> Option<InterfaceName> {
    in_reach(fd)?.interface(address)
}

/// The same, its number.
pub(super) fn interface_number(fd: i32, address: IpAddr) -> Option<u32> {
    in_reach(fd)?.interface_number(address)
}

fn in_reach(fd: i32) -> Option<Rtnetlink> {
    let kernel = Rtnetlink::open().ok()?;
    (netns_cookie(kernel.fd()) == netns_cookie(fd)).then_some(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_interface_of_a_socket_on_loopback_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().ip();
        let name = interface(listener.as_raw_fd(), address).unwrap();
        assert_eq!(name.as_bytes(), b"lo");
    }

    #[test]
    fn what_is_no_socket_has_no_interface() {
        assert_eq!(interface(-1, "127.0.0.1".parse().unwrap()), None);
    }
}
