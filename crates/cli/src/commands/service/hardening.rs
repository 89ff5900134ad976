//! What the restrictions of a unit forbid the library.
//!
//! | Restriction | What it means for Sidestep |
//! |---|---|
//! | `SystemCallFilter=` | the library's calls must pass; if they do, the filter is trusted (`policy.trust_filters`) |
//! | others that become a filter: `MemoryDenyWriteExecute=`, `RestrictRealtime=` … | they forbid nothing that the library calls |
//! | `RestrictAddressFamilies=` | needs `AF_UNIX`, at which the two ends meet; with programs of other users, where an agent runs, `AF_NETLINK` as well: by that an end learns whose the other one is, and so that the agent is to be asked |
//! | `PrivateNetwork=` | a network of its own: connections to other services need `sidestep agent` |
//!
//! What a unit does not have, it does not restrict. `ProtectSystem=`, `ProtectProc=`, `PrivateUsers=` and
//! `NoNewPrivileges=` touch nothing that the library uses: memory files have no name, and names of sockets are abstract.
//! Where the library itself is not seen is [`view`](super::view)'s.
//!
//! A filter may also be of the first process already: the runtime of a container in which systemd runs has one. It is trusted, as
//! that of any container is.

use std::collections::HashMap;
use std::fs;

/// The system calls of the library under a filter, in the order of the alphabet.
const CALLS: [&str; 64] = [
    "bind",
    "clock_gettime",
    "close",
    "connect",
    "dup3",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd2",
    "fchmod",
    "fcntl",
    "fstat",
    "fstatfs",
    "ftruncate",
    "futex",
    "futex_waitv",
    "getdents64",
    "geteuid",
    "getpeername",
    "getpid",
    "getrandom",
    "getsockname",
    "getsockopt",
    "gettid",
    "getuid",
    "ioctl",
    "kill",
    "lseek",
    "madvise",
    "memfd_create",
    "mmap",
    "mprotect",
    "munmap",
    "newfstatat",
    "openat",
    "pidfd_open",
    "poll",
    "ppoll",
    "pread64",
    "preadv2",
    "prlimit64",
    "process_vm_readv",
    "process_vm_writev",
    "pwritev2",
    "read",
    "readlinkat",
    "recvfrom",
    "recvmsg",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigtimedwait",
    "sched_getaffinity",
    "sched_yield",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "sigaltstack",
    "socket",
    "socketpair",
    "tgkill",
    "waitid",
    "write",
];
/// Those of them that older kernels do not know, so the library does without.
const DISPENSABLE: [&str; 2] = ["futex_waitv", "epoll_pwait2"];

/// Settings that systemd enforces by a filter of system calls.
const BY_FILTER: [&str; 13] = [
    "MemoryDenyWriteExecute",
    "RestrictRealtime",
    "RestrictNamespaces",
    "RestrictSUIDSGID",
    "LockPersonality",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "SystemCallLog",
    "PrivateDevices",
    "SystemCallArchitectures",
];

/// The restrictions of a unit that matter here.
#[derive(Debug, Default)]
pub(super) struct Hardening {
    system_calls: List,
    families: List,
    has_other_filter: bool,
    has_own_network: bool,
}

/// What follows from them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Why the unit cannot be enabled.
    pub(super) obstacle: Option<String>,
    /// Programs of the unit begin under a filter, which lets the library's calls pass.
    pub(super) has_filter: bool,
    pub(super) remarks: Vec<String>,
}

impl Hardening {
    pub(super) fn of(fields: &HashMap<&str, &str>) -> Self {
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        Self {
            system_calls: List::parse(field("SystemCallFilter")),
            families: List::parse(field("RestrictAddressFamilies")),
            has_other_filter: BY_FILTER.iter().any(|name| !["", "no"].contains(&field(name))),
            has_own_network: field("PrivateNetwork") == "yes",
        }
    }

    /// What is lacking for connections with programs of other users, where an agent runs.
    pub(super) fn lack_between_users(&self) -> Option<String> {
        (!self.families.permits("AF_NETLINK")).then(|| {
            "RestrictAddressFamilies= forbids AF_NETLINK, by which a program learns that the other end is another user's, so \
             such connections stay on TCP; a drop-in can add: RestrictAddressFamilies=AF_NETLINK"
                .to_owned()
        })
    }

    pub(super) fn examine(&self) -> Findings {
        let forbidden: Vec<&str> = CALLS
            .into_iter()
            .filter(|call| !DISPENSABLE.contains(call) && !self.system_calls.permits(call))
            .collect();
        let obstacle = if !forbidden.is_empty() {
            let calls = forbidden.join(" ");
            Some(format!(
                "SystemCallFilter= forbids what the library calls; a drop-in can add: SystemCallFilter={calls}"
            ))
        } else if !self.families.permits("AF_UNIX") {
            let advice =
                "at which both ends meet; a drop-in can add: RestrictAddressFamilies=AF_UNIX";
            Some(format!("RestrictAddressFamilies= forbids AF_UNIX, {advice}"))
        } else {
            None
        };
        let remarks = self.has_own_network.then(|| {
            "it has a network of its own (PrivateNetwork=), so its connections to other services need `sidestep agent`".to_owned()
        });
        let has_filter =
            self.has_other_filter || self.system_calls != List::All || self.families != List::All;
        Findings { obstacle, has_filter, remarks: remarks.into_iter().collect() }
    }
}

/// Whether all of this system is under a filter, as in a container.
pub(super) fn is_system_filtered() -> bool {
    is_filtered(&fs::read_to_string("/proc/1/status").unwrap_or_default())
}

fn is_filtered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() != "0")
}

/// A list as systemd shows it: words that are permitted or, behind `~`, forbidden.
#[derive(Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    All,
    Only(Vec<String>),
    AllBut(Vec<String>),
}

impl List {
    fn parse(shown: &str) -> Self {
        // A word may carry the error that is returned: `ptrace:EPERM`.
        let words = |text: &str| {
            text.split_whitespace()
                .map(|word| word.split(':').next().unwrap_or(word).to_owned())
                .collect()
        };
        match shown.strip_prefix('~') {
            // So systemd shows that there is no list.
            Some("") => Self::All,
            Some(forbidden) => Self::AllBut(words(forbidden)),
            None if shown.is_empty() => Self::All,
            None => Self::Only(words(shown)),
        }
    }

    fn permits(&self, word: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(words) => words.iter().any(|it| it == word),
            Self::AllBut(words) => !words.iter().any(|it| it == word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(fields: &[(&str, &str)]) -> Findings {
        Hardening::of(&fields.iter().copied().collect()).examine()
    }

    /// What the library calls where there is no filter alone (`confinement::is_recent`).
    const UNFILTERED: [&str; 1] = ["futex_wait"];

    /// The library's own source is the only place that knows what it calls.
    #[test]
    fn the_list_has_every_call_of_the_library() {
        let source = include_str!("../../../../device/src/sys.rs");
        let calls = source.match_indices("call!(").filter_map(|(at, call)| {
            // Not the end of `syscall!(`, by which the macro is made.
            let is_whole = !source[..at].ends_with(char::is_alphanumeric);
            let rest = &source[at + call.len()..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
            is_whole.then_some(&rest[..end])
        });
        let is_listed = |call: &&str| !call.is_empty() && !UNFILTERED.contains(call);
        let mut calls: Vec<&str> = calls.filter(is_listed).collect();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls, CALLS);
    }

    #[test]
    fn a_unit_without_restrictions_has_no_filter() {
        assert_eq!(
            findings(&[
                ("SystemCallFilter", "~"),
                ("RestrictAddressFamilies", "~"),
                ("SystemCallArchitectures", ""),
                ("MemoryDenyWriteExecute", "no")
            ]),
            Findings::default()
        );
    }

    #[test]
    fn what_becomes_a_filter_is_trusted() {
        for name in BY_FILTER {
            let found = findings(&[(name, "yes")]);
            assert!(found.has_filter && found.obstacle.is_none(), "{name}");
        }
    }

    #[test]
    fn a_list_that_lacks_a_call_is_an_obstacle_and_names_it() {
        let all_but = |missing: &str| {
            CALLS.into_iter().filter(|it| *it != missing).collect::<Vec<_>>().join(" ")
        };
        let obstacle =
            findings(&[("SystemCallFilter", &all_but("memfd_create"))]).obstacle.unwrap();
        assert!(obstacle.ends_with("SystemCallFilter=memfd_create"), "{obstacle}");
        assert_eq!(findings(&[("SystemCallFilter", &all_but("futex_waitv"))]).obstacle, None);
        let obstacle = findings(&[("SystemCallFilter", "~ptrace mmap:EPERM")]).obstacle.unwrap();
        assert!(obstacle.ends_with("SystemCallFilter=mmap"), "{obstacle}");
    }

    #[test]
    fn a_container_has_a_filter_of_its_own() {
        let status = |mode: &str| is_filtered(&format!("Name:\tsystemd\nSeccomp:\t{mode}\n"));
        assert_eq!([status("2"), status("0"), is_filtered("")], [true, false, false]);
    }

    #[test]
    fn both_ends_meet_at_unix_sockets() {
        assert_eq!(findings(&[("RestrictAddressFamilies", "AF_INET AF_UNIX")]).obstacle, None);
        let obstacle =
            findings(&[("RestrictAddressFamilies", "AF_INET AF_INET6")]).obstacle.unwrap();
        assert!(obstacle.contains("AF_UNIX"), "{obstacle}");
        let lack = |families| {
            let fields = HashMap::from([("RestrictAddressFamilies", families)]);
            Hardening::of(&fields).lack_between_users()
        };
        assert!(lack("AF_INET AF_UNIX").unwrap().contains("AF_NETLINK"));
        assert_eq!(
            [lack("~"), lack("AF_INET AF_NETLINK AF_UNIX"), lack("~AF_PACKET")],
            [const { None }; 3]
        );
    }
}
