//! What the kernel knows about a connection whose program has not asked.
//!
//! A connection that nothing is decided about costs its program no system call, so its
//! addresses do not stand in its slot. They are found from outside: the descriptor names
//! the socket, and the kernel's table of TCP sockets has its addresses.

use super::Connection;
use core::net::{IpAddr, SocketAddr};
use procfs::net::TcpNetEntry;
use procfs::process::{FDInfo, FDTarget, Process};
use std::collections::HashMap;

/// Both addresses of the TCP sockets that one process sees, by inode.
type Table = HashMap<u64, [SocketAddr; 2]>;

/// Fills in addresses that are not known. What cannot be found out stays so.
pub(super) fn fill_in_addresses(connections: &mut [Connection]) {
    let mut tables = HashMap::new();
    for connection in connections {
        let Some(fd) = connection.descriptor else { continue };
        let Ok(process) = Process::new(connection.pid.cast_signed()) else { continue };
        let Some(inode) = socket(&process, fd) else { continue };
        let table = tables.entry(connection.pid).or_insert_with(|| table(&process));
        if let Some([local, peer]) = table.get(&inode) {
            (connection.local, connection.peer) = (Some(*local), Some(*peer));
        }
    }
}

/// The inode of the socket that is open under a number.
fn socket(process: &Process, fd: i32) -> Option<u64> {
    match process.fd_from_fd(fd) {
        Ok(FDInfo { target: FDTarget::Socket(inode), .. }) => Some(inode),
        _ => None,
    }
}

fn table(process: &Process) -> Table {
    let lists = [process.tcp(), process.tcp6()];
    lists.into_iter().flatten().flatten().map(|entry| (entry.inode, addresses(&entry))).collect()
}

fn addresses(entry: &TcpNetEntry) -> [SocketAddr; 2] {
    // IPv4-mapped ones as IPv4, as everywhere.
    let plain = |address: SocketAddr| {
        let ip: IpAddr = address.ip().to_canonical();
        SocketAddr::new(ip, address.port())
    };
    [plain(entry.local_address), plain(entry.remote_address)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::{Counters, Mode, Role};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn addresses_are_found_by_descriptor() {
        for host in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut connections = [connection(stream.as_raw_fd()), connection(1_000_000)];
            fill_in_addresses(&mut connections);
            let [found, lost] = connections;
            assert_eq!(found.local, stream.local_addr().ok());
            assert_eq!(found.peer, stream.peer_addr().ok());
            assert_eq!((lost.local, lost.peer), (None, None));
        }
    }

    fn connection(fd: i32) -> Connection {
        Connection {
            pid: std::process::id(),
            program: String::new(),
            local: None,
            peer: None,
            role: Role::Client,
            mode: Mode::Tcp,
            rmbe_local: 0,
            rmbe_peer: 0,
            counters: Counters::default(),
            fallback: None,
            descriptor: Some(fd),
        }
    }
}
