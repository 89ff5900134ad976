//! How many open files a worker needs, and whether it may have them.

use std::io;

use thiserror::Error;

use crate::control::Job;
use crate::plan::{Model, Transport};

/// Fewer open files are allowed than are needed.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "{who} needs {needed} open files, but no process may have more than {hard} (`ulimit -Hn`); \
     raise that as root by `prlimit --nofile={needed} --pid $$` in this shell, or take fewer \
     clients"
)]
pub struct TooFewDescriptors {
    who: String,
    needed: u64,
    hard: u64,
}

/// `RLIMIT_NOFILE` of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    soft: u64,
    hard: u64,
}

impl Allowed {
    pub(super) fn now() -> io::Result<Self> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel fills one `rlimit`, for which there is room.
        match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
            0 => Ok(Self { soft: limit.rlim_cur, hard: limit.rlim_max }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The limit to set before `needed` files are open; `None`: it will do as it is.
    pub(super) fn raised_for(
        self,
        needed: u64,
        who: impl FnOnce() -> String,
    ) -> Result<Option<libc::rlimit>, TooFewDescriptors> {
        if needed > self.hard {
            return Err(TooFewDescriptors { who: who(), needed, hard: self.hard });
        }
        let raised = libc::rlimit { rlim_cur: needed, rlim_max: self.hard };
        Ok((needed > self.soft).then_some(raised))
    }
}

/// Sets `RLIMIT_NOFILE`. Allocates nothing: it also runs between fork and exec.
pub(super) fn set(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: the kernel reads one `rlimit`.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Open files of a worker at most.
pub(super) fn needed_by(job: &Job, transport: Transport) -> u64 {
    let connections = u64::from(job.connections);
    let each = match transport {
        // While its ends agree, a connection has the socket they meet at beside it.
        Transport::Smc => 2,
        Transport::Tcp | Transport::Unix | Transport::Sockmap => 1,
    };
    let loops = match (job.model, job.conduct.connections_per_loop) {
        (Model::EventLoop, Some(most)) => connections.div_ceil(most.max(1).into()),
        (Model::EventLoop, None) => 1,
        (Model::Threads | Model::Processes, _) => 0,
    };
    connections * each + loops * OF_A_LOOP + OF_A_WORKER
}

/// Open files of this process for so many workers: their three standard streams and
/// a configuration file each.
pub(super) fn needed_for(workers: usize) -> u64 {
    workers as u64 * 4 + OF_A_WORKER
}

/// An epoll set, an eventfd of its own, one of Sidestep's.
const OF_A_LOOP: u64 = 3;

/// Standard streams, listener, what Sidestep shares with the few processes at the
/// other end, and some to spare.
const OF_A_WORKER: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Address, Role};
    use crate::plan::Conduct;
    use crate::workload::{Kind, Workload};

    fn job(model: Model, connections: u32, connections_per_loop: Option<u32>) -> Job {
        let workload = Workload {
            kind: Kind::RequestResponse,
            clients: connections,
            request_len: 1,
            reply_len: 1,
        };
        let conduct = Conduct { connections_per_loop, ..Conduct::default() };
        let role = Role::Server(Address::Unix(String::new()));
        Job { role, workload, model, connections, first_client: 0, conduct }
    }

    #[test]
    fn every_connection_needs_a_descriptor() {
        let threads = job(Model::Threads, 1000, None);
        assert_eq!(needed_by(&threads, Transport::Tcp), 1064);
        assert_eq!(needed_by(&threads, Transport::Smc), 2064);
        assert_eq!(needed_by(&job(Model::EventLoop, 1000, None), Transport::Unix), 1067);
        assert_eq!(needed_by(&job(Model::EventLoop, 1000, Some(300)), Transport::Tcp), 1076);
    }

    #[test]
    fn the_soft_limit_is_raised_and_the_hard_one_is_an_error() {
        let allowed = Allowed { soft: 100, hard: 200 };
        let raised = |needed| allowed.raised_for(needed, || "a worker".to_owned());
        assert!(raised(100).unwrap().is_none());
        let limit = raised(101).unwrap().unwrap();
        assert_eq!((limit.rlim_cur, limit.rlim_max), (101, 200));
        assert!(raised(200).unwrap().is_some());
        let text = raised(201).unwrap_err().to_string();
        assert!(text.contains("a worker needs 201 open files"), "{text}");
        assert!(text.contains("more than 200 (`ulimit -Hn`)"), "{text}");
        assert!(text.contains("prlimit --nofile=201"), "{text}");
    }

    #[test]
    fn a_process_has_limits() {
        let Allowed { soft, hard } = Allowed::now().unwrap();
        assert!(0 < soft && soft <= hard);
        set(libc::rlimit { rlim_cur: soft, rlim_max: hard }).unwrap();
    }
}
