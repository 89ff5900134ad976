//! What must be gone when the last program of a suite is: files with our name,
//! and sockets in the network namespace.
//!
//! Other Sidestep programs may run on the machine at the same time. A socket
//! that one of them holds is theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::bench::launch;
use crate::suite::HANG;

const INTERVAL: Duration = Duration::from_millis(50);

/// What there was before the tests.
#[derive(Debug)]
pub(crate) struct Leftovers {
    files: BTreeSet<String>,
    sockets: BTreeMap<u64, String>,
}

impl Leftovers {
    /// Notes what is there now. Descendants of this process whose parents end
    /// become its children from now on, so that it can tell them from others.
    pub(crate) fn note() -> Self {
        // SAFETY: prctl(PR_SET_CHILD_SUBREAPER) takes its arguments by value.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Self { files: files(), sockets: sockets() }
    }

    /// **Errors**: something is there that was not before, and stays: it was seen in
    /// every look. What others make and give up meanwhile is not.
    pub(crate) fn check(&self) -> Result<()> {
        let deadline = Instant::now() + HANG;
        let mut left = self.new_names();
        while !left.is_empty() && Instant::now() < deadline {
            thread::sleep(INTERVAL);
            let now = self.new_names();
            left.retain(|name| now.contains(name));
        }
        let names: Vec<String> = left.into_iter().collect();
        ensure!(names.is_empty(), "left behind: {}", names.join(", "));
        Ok(())
    }

    fn new_names(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = files().difference(&self.files).cloned().collect();
        let mut sockets = sockets();
        sockets.retain(|inode, _| !self.sockets.contains_key(inode));
        if !sockets.is_empty() {
            let (holders, ours) = (socket_holders(), launch::family_of(std::process::id()));
            sockets.retain(|inode, _| {
                !is_of_others(holders.get(inode).map_or(&[], Vec::as_slice), &ours)
            });
        }
        names.extend(sockets.into_iter().map(|(inode, name)| format!("socket {inode} {name}")));
        names
    }
}

/// Whether a process that is not one of `ours` is among the holders of a socket.
fn is_of_others(holders: &[u32], ours: &[u32]) -> bool {
    holders.iter().any(|pid| !ours.contains(pid))
}

/// The files with our name where programs leave such things.
fn files() -> BTreeSet<String> {
    let entries = ["/dev/shm", "/tmp"].iter().flat_map(fs::read_dir).flatten().flatten();
    // A file of somebody else's may well have our name in its own; ours begin with it.
    let is_ours =
        |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("sidestep");
    entries.filter(is_ours).map(|entry| entry.path().display().to_string()).collect()
}

/// Inodes and names of the sockets with our name.
fn sockets() -> BTreeMap<u64, String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let rows = table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(6);
        Some((fields.next()?.parse().ok()?, fields.next()?.to_owned()))
    });
    rows.filter(|(_, name)| is_ours(name)).collect()
}

/// The processes that hold each socket, as far as we may look.
fn socket_holders() -> BTreeMap<u64, Vec<u32>> {
    let mut holders: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        for target in descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()) {
            if let Some(inode) = target.to_str().and_then(socket_inode) {
                holders.entry(inode).or_default().push(pid);
            }
        }
    }
    holders
}

/// The number in `socket:[123]`.
fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn is_ours(name: &str) -> bool {
    name.to_ascii_lowercase().contains("sidestep")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn an_abstract_socket_is_a_leftover() -> Result<()> {
        let leftovers = Leftovers::note();
        let name = format!("sidestep-leftover-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        assert!(leftovers.new_names().iter().any(|it| it.contains(&name)));
        drop(listener);
        assert!(!leftovers.new_names().iter().any(|it| it.contains(&name)));
        Ok(())
    }

    #[test]
    fn a_socket_that_somebody_else_holds_is_none() {
        assert!(is_of_others(&[7], &[5, 6]));
        assert!(is_of_others(&[5, 7], &[5, 6]));
        assert!(!is_of_others(&[5, 6], &[5, 6]));
        assert!(!is_of_others(&[], &[5, 6]), "held by nobody who can be seen");
    }
}
