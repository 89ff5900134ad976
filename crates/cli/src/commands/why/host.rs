//! Who has which TCP socket on this host, Sidestep or not, as `/proc` tells.
//!
//! `/proc/net/tcp` lists the sockets of our network namespace with their inodes, and
//! `/proc/PID/fd` says which process has which inode, where we may look.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process};

use crate::args::canonical;
use crate::commands::vip_status::{VipStatus, in_force};
use crate::output::Escaped;

/// The TCP sockets of the namespace and their holders.
#[derive(Debug, Default)]
pub(in crate::commands) struct Host {
    sockets: Vec<TcpNetEntry>,
    holders: HashMap<u64, Holder>,
    vips: Vec<VipStatus>,
}

/// A process that has a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct Holder {
    pub(in crate::commands) pid: u32,
    pub(in crate::commands) program: String,
}

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct Listener {
    pub(super) address: SocketAddr,
    /// `None`: another user's, at whose descriptors we may not look.
    pub(in crate::commands) holder: Option<Holder>,
    /// It is a target of a VIP, whose address it is: which one, where it listens, what it does.
    pub(super) target: Option<String>,
}

impl Host {
    /// Looks at the host.
    ///
    /// # Errors
    /// `/proc` cannot be read. Processes that may not be looked at are no error.
    pub(in crate::commands) fn look() -> io::Result<Self> {
        let mut sockets = procfs::net::tcp().map_err(io::Error::other)?;
        // A kernel without IPv6 has no such file.
        sockets.extend(procfs::net::tcp6().unwrap_or_default());
        let mut holders = HashMap::new();
        for process in procfs::process::all_processes().map_err(io::Error::other)?.flatten() {
            note_sockets(&process, &mut holders);
        }
        Ok(Self { sockets, holders, vips: in_force() })
    }

    /// Who listens on a port. At a VIP these are its targets, and not the socket that keeps its address.
    pub(in crate::commands) fn listeners(&self, port: u16) -> Vec<Listener> {
        let is_asked_for = |socket: &&TcpNetEntry| {
            socket.state == TcpState::Listen
                && socket.local_address.port() == port
                && !self.vips.iter().any(|vip| vip.address == socket.local_address)
        };
        let listener = |socket: &TcpNetEntry| Listener {
            address: canonical(socket.local_address),
            holder: self.holders.get(&socket.inode).cloned(),
            target: None,
        };
        let mut listeners: Vec<_> =
            self.sockets.iter().filter(is_asked_for).map(listener).collect();
        listeners.dedup();
        let vips = self.vips.iter().filter(|vip| vip.address.port() == port);
        listeners.extend(vips.flat_map(targets));
        listeners
    }

    /// Who has the end of a connection that has this address.
    pub(super) fn holder_of(&self, local: SocketAddr, peer: SocketAddr) -> Option<&Holder> {
        self.holders.get(&self.socket(local, peer)?.inode)
    }

    /// Whose that end is: the user who has made it. The kernel tells that of any socket.
    pub(super) fn user_of(&self, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        self.socket(local, peer).map(|socket| socket.uid)
    }

    fn socket(&self, local: SocketAddr, peer: SocketAddr) -> Option<&TcpNetEntry> {
        let is_it = |socket: &&TcpNetEntry| {
            canonical(socket.local_address) == local && canonical(socket.remote_address) == peer
        };
        self.sockets.iter().find(is_it)
    }
}

/// The targets of a VIP that listen.
fn targets(vip: &VipStatus) -> impl Iterator<Item = Listener> {
    vip.targets.iter().filter_map(|target| {
        let (pid, program) = (target.pid?, target.program.as_ref()?);
        Some(Listener {
            address: vip.address,
            holder: Some(Holder { pid, program: Escaped(program).to_string() }),
            target: Some(format!(
                "target {} of VIP {}, at {}, {}",
                target.name, vip.name, target.address, target.state
            )),
        })
    })
}

/// Enters what a process has. One that has ended meanwhile, or may not be looked at, has nothing.
fn note_sockets(process: &Process, holders: &mut HashMap<u64, Holder>) {
    let inodes: Vec<u64> = process
        .fd()
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|descriptor| match descriptor.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    if inodes.is_empty() {
        return;
    }
    let pid = process.pid().unsigned_abs();
    let program = name(pid);
    for inode in inodes {
        // The parent of pre-forked workers came first.
        holders.entry(inode).or_insert_with(|| Holder { pid, program: program.clone() });
    }
}

/// What the kernel calls a process, fit for a terminal.
pub(super) fn name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim_end() {
        "" => "?".to_owned(),
        name => Escaped(name).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn sockets_are_found_with_their_holders() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let _server = listener.accept().unwrap();
        let host = Host::look().unwrap();
        let holder = Holder { pid: std::process::id(), program: name(std::process::id()) };
        let expected = Listener { address, holder: Some(holder.clone()), target: None };
        assert_eq!(host.listeners(address.port()), [expected]);
        let local = client.local_addr().unwrap();
        assert_eq!(host.holder_of(local, address), Some(&holder));
        assert_eq!(host.holder_of(address, address), None);
        // SAFETY: no memory operands.
        assert_eq!(host.user_of(local, address), Some(unsafe { libc::geteuid() }));
        drop(listener);
        assert_eq!(Host::look().unwrap().listeners(address.port()), []);
    }
}
