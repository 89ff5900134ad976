//! The agent's part that has the TCP option of SMC written.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

    /// What has to be done beside it.
    pub(super) fn sweeps(&mut self, now: Instant) -> Option<Sweeps> {
        let sweeper = self.programs.sweeper()?;
        Some(Sweeps { sweeper, due: now + Sweeps::INTERVAL })
    }
}

/// For the programs of a control group, or of all.
pub(super) fn attach(cgroup: Option<&Path>) -> Result<Attached, BpfError> {
    let cgroup = cgroup.map_or_else(Cgroup::root, |path| Ok(path.to_owned()))?;
    let programs = TcpOption::attach(&cgroup)?;
    Ok(Attached { cgroup, programs })
}

/// Handshakes that have come to nothing, swept from time to time. Without it other hosts are answered for
/// a while, and then no more.
pub(super) struct Sweeps {
    sweeper: Sweeper,
    due: Instant,
}

impl Sweeps {
    const INTERVAL: Duration = Sweeper::DEAD_AFTER.checked_div(4).unwrap();

    /// Sweeps if it is time, and says how long it is until the next time.
    pub(super) fn sweep_if_due(&mut self, now: Instant) -> Duration {
        if now >= self.due {
            self.sweeper.sweep(Sweeper::DEAD_AFTER);
            self.due = now + Self::INTERVAL;
        }
        self.due - now
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the TCP option of SMC is written for {}", self.cgroup.display())
    }
}
