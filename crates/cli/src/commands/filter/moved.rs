//! Connections that have moved to shared memory or RDMA, and that the rules in force deny: they are reset.
//!
//! A packet meets new rules by itself; these connections have none. So the command that has put rules into force
//! looks at all of them, at once and once: those within the host itself
//! ([`apart`], by [`sidestep_observe::end_denied`]), those to other hosts by the gateway of each network namespace. There is no
//! process that watches, and so none that could be late, or gone.

pub(super) mod apart;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;
use sidestep_observe::{Denied, Held};

use crate::output;

/// What was reset.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reset {
    in_memory: usize,
    by_rdma: usize,
}

/// Resets what is denied, and complains of what could not be looked at.
pub(super) fn reset_denied() -> Reset {
    let (denied, held) = match apart::end_denied() {
        Ok(ended) => ended,
        Err(error) => {
            complain(&format!("cannot look at connections in shared memory: {error}"));
            return Reset::default();
        }
    };
    for complaint in complaints(&denied, &held) {
        complain(&complaint);
    }
    // Where no program is, a gateway has links still, which new rules hold for.
    let is_own = |pid: &u32| is_own_namespace(*pid).unwrap_or(false);
    let own = std::process::id();
    let is_missing = !denied.namespaces.iter().any(is_own);
    let namespaces = is_missing.then_some(&own).into_iter().chain(&denied.namespaces);
    let by_gateways = namespaces.map(|&pid| match within(pid, ask_gateway) {
        Ok(count) => count,
        Err(error) => {
            complain(&format!("the gateway of process {pid}'s network namespace: {error}"));
            0
        }
    });
    Reset { in_memory: denied.connections, by_rdma: by_gateways.sum() }
}

fn complain(what: &str) {
    output::complain("filter", format_args!("{what}"));
}

fn complaints(denied: &Denied, held: &Held) -> impl Iterator<Item = String> {
    let pids = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let told = |of: &[u32], what: &str| (!of.is_empty()).then(|| format!("{what} {}", pids(of)));
    [
        told(&denied.incompatible, "of another version, whose connections go on, are processes"),
        told(&denied.curtailed, "not all connections were looked at, of users"),
        told(
            &held.processes,
            "all connections were reset, because a socket could not be asked, of processes",
        ),
        told(
            &held.users,
            "all connections were reset, because a socket could not be asked, of users",
        ),
    ]
    .into_iter()
    .flatten()
}

fn ask_gateway() -> io::Result<usize> {
    match sidestep_gateway::status::judge_again() {
        Ok(denied) => Ok(denied as usize),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(0),
        Err(error) => Err(error),
    }
}

/// Does something in the network namespace of a process.
fn within<T: Send + 'static>(pid: u32, what: fn() -> io::Result<T>) -> io::Result<T> {
    if is_own_namespace(pid)? {
        return what();
    }
    let namespace = File::open(namespace_of(pid))?;
    let there = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        what()
    };
    thread::spawn(there).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Whether it is that of a process. Not of this one, whose other threads may be elsewhere, but of this thread.
fn is_own_namespace(pid: u32) -> io::Result<bool> {
    let inode = |path: &str| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    Ok(inode(&namespace_of(pid))? == inode("/proc/thread-self/ns/net")?)
}

fn namespace_of(pid: u32) -> String {
    format!("/proc/{pid}/ns/net")
}

impl Reset {
    pub(super) fn to_json(&self) -> serde_json::Value {
        json!({ "in_shared_memory": self.in_memory, "by_gateway": self.by_rdma })
    }

    /// For the end of a sentence; empty if there was nothing.
    pub(super) fn to_text(&self) -> String {
        let some = |n: usize, how: &str| {
            (n > 0).then(|| format!("{n} connection{} {how}", if n == 1 { "" } else { "s" }))
        };
        let all: Vec<String> =
            [some(self.in_memory, "in shared memory"), some(self.by_rdma, "by the gateway")]
                .into_iter()
                .flatten()
                .collect();
        if all.is_empty() { String::new() } else { format!("; reset: {}", all.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reset_is_said_and_nothing_otherwise() {
        let text = |in_memory, by_rdma| Reset { in_memory, by_rdma }.to_text();
        assert_eq!(text(0, 0), "");
        assert_eq!(text(1, 0), "; reset: 1 connection in shared memory");
        let both = "; reset: 2 connections in shared memory, 3 connections by the gateway";
        assert_eq!(text(2, 3), both);
    }

    #[test]
    fn what_was_not_looked_at_is_named() {
        let denied = Denied { incompatible: vec![7, 9], ..Denied::default() };
        let held = Held { processes: Vec::new(), users: vec![1000] };
        let told: Vec<String> = complaints(&denied, &held).collect();
        assert_eq!(
            told,
            [
                "of another version, whose connections go on, are processes 7, 9",
                "all connections were reset, because a socket could not be asked, of users 1000"
            ]
        );
    }

    #[test]
    fn the_own_namespace_is_not_left() {
        assert!(within(std::process::id(), || Ok(7)).is_ok_and(|it| it == 7));
    }
}
