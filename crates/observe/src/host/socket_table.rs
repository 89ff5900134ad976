//! The kernel's tables of TCP sockets, which know the addresses of a connection whose program has
//! not asked for them.
//!
//! A connection that nothing is decided about costs its program no system call, so its
//! addresses do not stand in its slot. They are found from outside: the descriptor names
//! the socket, and the kernel's table of TCP sockets has its addresses. Each network namespace
//! has a table of its own, which is read once.

use super::sock_diag;
use core::net::SocketAddr;
use procfs::net::TcpNetEntry;
use procfs::process::{FDInfo, FDTarget, Process};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The tables that were read so far.
#[derive(Default)]
pub(crate) struct SocketTables(HashMap<Namespace, Table>);

/// Both addresses of the TCP sockets of one network namespace, by inode.
type Table = HashMap<u64, [SocketAddr; 2]>;
/// A network namespace: device and inode of its file.
type Namespace = (u64, u64);

impl SocketTables {
    /// The addresses, its own and its peer's, of the TCP socket that a process has open as `fd`.
    pub(crate) fn addresses(&mut self, pid: u32, fd: i32) -> Option<[SocketAddr; 2]> {
        let process = Process::new(pid.cast_signed()).ok()?;
        let inode = socket(&process, fd)?;
        let namespace = namespace(pid).ok()?;
        let table = self.0.entry(namespace).or_insert_with(|| table(&process, namespace));
        table.get(&inode).map(|addresses| addresses.map(canonical))
    }
}

/// The inode of the socket that is open under a number.
fn socket(process: &Process, fd: i32) -> Option<u64> {
    match process.fd_from_fd(fd) {
        Ok(FDInfo { target: FDTarget::Socket(inode), .. }) => Some(inode),
        _ => None,
    }
}

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
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn addresses_are_found_by_descriptor() {
        let pid = std::process::id();
        for host in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut tables = SocketTables::default();
            let expected = [stream.local_addr().unwrap(), stream.peer_addr().unwrap()];
            assert_eq!(tables.addresses(pid, stream.as_raw_fd()), Some(expected));
            assert_eq!(tables.addresses(pid, 1_000_000), None);
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
}
