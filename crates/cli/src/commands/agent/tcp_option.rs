//! The agent's part that has the TCP option of SMC written.

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;

use sidestep_bpf::{BpfError, Cgroup, Sweeper, TcpOption};

/// The option, as long as this exists.
pub(super) struct Attached {
    cgroup: PathBuf,
    programs: TcpOption,
}

impl Attached {
    /// Whether programs are told which connection a socket is an end of.
    pub(super) fn tells_identity(&self) -> bool {
        self.programs.answers_by_numbers()
    }
}

/// For the programs of a control group, or of all.
pub(super) fn attach(cgroup: Option<&Path>) -> Result<Attached, BpfError> {
    let cgroup = cgroup.map_or_else(Cgroup::root, |path| Ok(path.to_owned()))?;
    let mut programs = TcpOption::attach(&cgroup)?;
    if let Some(sweeper) = programs.sweeper() {
        keep_swept(sweeper);
    }
    Ok(Attached { cgroup, programs })
}

/// Has what is dead swept as long as this process runs. Without a thread for that, other hosts
/// are answered for a while, and then no more.
fn keep_swept(mut sweeper: Sweeper) {
    let sweep = move || {
        loop {
            thread::sleep(Sweeper::DEAD_AFTER / 4);
            sweeper.sweep(Sweeper::DEAD_AFTER);
        }
    };
    if let Err(error) = thread::Builder::new().name("sweeper".to_owned()).spawn(sweep) {
        log::warn!("handshakes that come to nothing are not swept: {error}");
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the TCP option of SMC is written for {}", self.cgroup.display())
    }
}
