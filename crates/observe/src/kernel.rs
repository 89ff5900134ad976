//! What the kernel knows about a connection whose program has not asked.
//!
//! A connection that nothing is decided about costs its program no system call, so its
//! addresses do not stand in its slot. They are found from outside: the descriptor names
//! the socket, and the kernel's table of TCP sockets has its addresses. Each network namespace
//! has a table of its own, which is read once.

use super::{Connection, sock_diag};
use core::net::SocketAddr;
use procfs::net::TcpNetEntry;
use procfs::process::{FDInfo, FDTarget, Process};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Both addresses of the TCP sockets of one network namespace, by inode.
type Table = HashMap<u64, [SocketAddr; 2]>;

/// Fills in addresses that are not known. What cannot be found out stays so.
pub(super) fn fill_in_addresses(connections: &mut [Connection]) {
    let mut tables = HashMap::new();
    for connection in connections {
        let Some(fd) = connection.descriptor else { continue };
        let Ok(process) = Process::new(connection.pid.cast_signed()) else { continue };
        let Some(inode) = socket(&process, fd) else { continue };
        let Ok(namespace) = namespace(connection.pid) else { continue };
        let table = tables.entry(namespace).or_insert_with(|| table(&process, namespace));
        if let Some(addresses) = table.get(&inode) {
            let [local, peer] = addresses.map(canonical);
            (connection.local, connection.peer) = (Some(local), Some(peer));
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

/// A network namespace: device and inode of its file.
type Namespace = (u64, u64);

fn namespace(pid: u32) -> io::Result<Namespace> {
    fs::metadata(format!("/proc/{pid}/ns/net")).map(|file| (file.dev(), file.ino()))
}

/// What a process of this namespace sees.
fn table(process: &Process, of: Namespace) -> Table {
    let is_ours = namespace(std::process::id()).is_ok_and(|ours| ours == of);
    let told = is_ours.then(|| sock_diag::connections().ok()).flatten();
    told.unwrap_or_else(|| shown_by_proc(process))
}

fn shown_by_proc(process: &Process) -> Table {
    let lists = [process.tcp(), process.tcp6()];
    let addresses = |entry: &TcpNetEntry| [entry.local_address, entry.remote_address];
    lists.into_iter().flatten().flatten().map(|entry| (entry.inode, addresses(&entry))).collect()
}

/// IPv4-mapped addresses as IPv4, as everywhere.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counters, Mode, Role, StateId};
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

    #[test]
    fn the_kernel_and_proc_agree() {
        let myself = Process::myself().unwrap();
        for host in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let inode = socket(&myself, stream.as_raw_fd()).unwrap();
            let (asked, shown) = (sock_diag::connections().unwrap(), shown_by_proc(&myself));
            assert_eq!(asked[&inode], shown[&inode], "{host}");
        }
    }

    fn connection(fd: i32) -> Connection {
        Connection {
            state: StateId::default(),
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
            passage: None,
        }
    }
}
