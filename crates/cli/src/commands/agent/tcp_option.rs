//! The agent's part that has the TCP option of SMC written.

use std::fmt;
use std::path::{Path, PathBuf};

use sidestep_bpf::{BpfError, Cgroup, TcpOption};

/// The option, as long as this exists.
pub(super) struct Attached {
    cgroup: PathBuf,
    programs: TcpOption,
}

impl Attached {
    /// Whether programs are told which connection a socket is an end of.
    pub(super) fn tells_identity(&self) -> bool {
        self.programs.tells_identity()
    }
}

/// For the programs of a control group, or of all.
pub(super) fn attach(cgroup: Option<&Path>) -> Result<Attached, BpfError> {
    let cgroup = cgroup.map_or_else(Cgroup::root, |path| Ok(path.to_owned()))?;
    let programs = TcpOption::attach(&cgroup)?;
    Ok(Attached { cgroup, programs })
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the TCP option of SMC is written for {}", self.cgroup.display())
    }
}
