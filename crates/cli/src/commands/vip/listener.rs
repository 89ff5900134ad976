//! The listener of a target: which one it is, and how it is fetched from the process that has it.
//!
//! A table of the kernel takes a socket by a descriptor. `pidfd_getfd(2)` makes one of that of another
//! process. It is closed again at once: as long as it is open the listener would outlive its server.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::socket_cookie;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::sockets::Seen;

/// A socket of another process, and whose it is.
pub(super) struct Fetched {
    pub(super) socket: OwnedFd,
    pub(super) pid: u32,
    pub(super) program: String,
}

/// Who serves a target's address: a listener at that address, or at all addresses. It must be able to serve
/// clients of a VIP's family.
pub(super) fn of_target(all: &[Seen], target: SocketAddr, vip: SocketAddr) -> Option<&Seen> {
    let serves = |seen: &&Seen| {
        let local = seen.local;
        let is_there = local.ip() == target.ip() || serves_all(seen, target);
        let is_of_family =
            local.is_ipv6() && !seen.is_ipv6_only || local.is_ipv4() == vip.is_ipv4();
        local.port() == target.port() && is_there && is_of_family
    };
    all.iter().filter(serves).max_by_key(|seen| seen.local.ip() == target.ip())
}

/// Who takes connections to an address without a VIP.
pub(super) fn in_the_way(all: &[Seen], address: SocketAddr) -> Option<&Seen> {
    let serves = |seen: &&Seen| seen.local.ip() == address.ip() || serves_all(seen, address);
    all.iter().find(|seen| seen.local.port() == address.port() && serves(seen))
}

fn serves_all(seen: &Seen, address: SocketAddr) -> bool {
    let local = seen.local.ip();
    local.is_unspecified()
        && (local.is_ipv4() == address.is_ipv4() || local.is_ipv6() && !seen.is_ipv6_only)
}

/// Fetches it from a process that has it.
///
/// # Errors
/// None of the processes that we may look at has it; we may not have it.
pub(super) fn fetch(seen: &Seen) -> io::Result<Fetched> {
    let link = format!("socket:[{}]", seen.inode);
    let mut refused = None;
    for pid in processes()? {
        match number_of(pid, &link)
            .map(|number| number.map(|number| take(pid, number, seen.cookie)))
        {
            Ok(Some(Ok(socket))) => return Ok(Fetched { socket, pid, program: name(pid) }),
            Ok(Some(Err(error))) | Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                refused = Some(error);
            }
            // It has ended, or is not the one.
            _ => {}
        }
    }
    Err(refused.unwrap_or_else(|| ErrorKind::NotFound.into()))
}

/// Who has a socket: number and name of a process that we may look at.
pub(super) fn holder(seen: &Seen) -> Option<(u32, String)> {
    let link = format!("socket:[{}]", seen.inode);
    let holds = |pid: &u32| number_of(*pid, &link).is_ok_and(|number| number.is_some());
    processes().ok()?.into_iter().find(holds).map(|pid| (pid, name(pid)))
}

fn processes() -> io::Result<Vec<u32>> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(fs::read_dir("/proc")?.flatten().filter_map(number).collect())
}

/// Under which number a process has what is called so.
fn number_of(pid: u32, link: &str) -> io::Result<Option<i32>> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        if fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link) {
            return Ok(entry.file_name().to_str().and_then(|number| number.parse().ok()));
        }
    }
    Ok(None)
}

fn take(pid: u32, number: i32, cookie: u64) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
    // The number may mean another file by now.
    let is_it = socket_cookie(&socket).is_ok_and(|its| its == cookie);
    if is_it { Ok(socket) } else { Err(ErrorKind::NotFound.into()) }
}

fn name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::sockets;
    use super::*;
    use std::net::TcpListener;

    fn seen(local: &str, is_ipv6_only: bool) -> Seen {
        Seen {
            local: local.parse().unwrap(),
            peer: "0.0.0.0:0".parse().unwrap(),
            is_ipv6_only,
            inode: 1,
            cookie: 1,
            queue: (0, 1),
            owner: None,
        }
    }

    #[test]
    fn a_target_is_served_at_its_address_or_at_all() {
        let all = [seen("0.0.0.0:80", false), seen("127.0.0.1:80", false), seen("[::]:81", false)];
        let of = |target: &str, vip: &str| {
            of_target(&all, target.parse().unwrap(), vip.parse().unwrap()).map(|seen| seen.local)
        };
        assert_eq!(of("127.0.0.1:80", "127.0.0.9:1"), Some(all[1].local));
        assert_eq!(of("127.0.0.2:80", "127.0.0.9:1"), Some(all[0].local));
        assert_eq!(of("127.0.0.1:81", "127.0.0.9:1"), Some(all[2].local), "of both families");
        assert_eq!(of("127.0.0.1:82", "127.0.0.9:1"), None);
        let only = [seen("[::]:81", true), seen("[::1]:82", false)];
        let of = |target: &str, vip: &str| {
            of_target(&only, target.parse().unwrap(), vip.parse().unwrap()).is_some()
        };
        assert!(!of("127.0.0.1:81", "127.0.0.9:1"), "of IPv6 only");
        assert!(of("[::1]:82", "127.0.0.9:1") && of("[::1]:81", "[::2]:1"));
    }

    #[test]
    fn a_listener_is_fetched_and_not_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let all = sockets::listeners().unwrap();
        let seen = of_target(&all, local, local).unwrap();
        assert_eq!(in_the_way(&all, local), Some(seen));
        assert_eq!(holder(seen).unwrap().0, std::process::id());
        let fetched = fetch(seen).unwrap();
        assert_eq!(fetched.pid, std::process::id());
        assert_eq!(socket_cookie(&fetched.socket).unwrap(), seen.cookie);
        drop((fetched, listener));
        let all = sockets::listeners().unwrap();
        assert_eq!(of_target(&all, local, local), None);
    }
}
