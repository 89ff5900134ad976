//! The TCP option of SMC on the connections of Sidestep programs.

mod programs;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use aya::maps::{HashMap, MapData};
use aya::programs::{CgroupAttachMode, CgroupSockopt, SockOps};
use aya::{Ebpf, EbpfError};

use crate::error::BpfError;
use crate::loaded::program;
use crate::{key, object_file};
use programs::answer;

/// The option on connections between Sidestep programs of a cgroup, and of those below.
///
/// While it exists, a socket that the library marks before `connect` or `listen` sends
/// the option in SYN and SYN-ACK, if the other end is another such socket of this host,
/// or of another host if the mark says so, and the library may ask of a connection whether
/// both ends have sent it. Sockets that are not marked are not touched.
///
/// Nothing is pinned: with the process that holds this the programs go, whatever ends
/// it. Connections stay what they are, and the library then hears that no agent speaks
/// for its sockets. A listener is known from its `listen` on, so one that was there
/// before is not asked.
#[derive(Debug)]
pub struct TcpOption {
    /// Programs, maps and links: descriptors, closed on drop.
    loaded: Ebpf,
    answers_by_numbers: bool,
}

/// Removes what the programs remember of handshakes with other hosts that have come to
/// nothing, of which the kernel does not tell: see [`TcpOption::sweeper`].
#[derive(Debug)]
pub struct Sweeper {
    answered: HashMap<MapData, [u8; key::LEN as usize], [u8; answer::LEN as usize]>,
}

impl TcpOption {
    /// Loads the programs and attaches them to the cgroup at this path.
    ///
    /// # Errors
    /// The kernel refuses or cannot do it ([`BpfError::Privilege`],
    /// [`BpfError::Kernel`]); the path is not a cgroup's.
    pub fn attach(cgroup: &Path) -> Result<Self, BpfError> {
        let group = File::open(cgroup).map_err(|error| BpfError::of_file(cgroup, error))?;
        Self::load(&group, true).or_else(|_| Self::load(&group, false))
    }

    /// Whether the library is told which connection a socket is an end of
    /// ([`sidestep_wire::tcp_option::Identity`]), and may mark sockets for other hosts. It takes
    /// Linux 5.18.
    #[must_use]
    pub fn answers_by_numbers(&self) -> bool {
        self.answers_by_numbers
    }

    /// Who holds the programs for long lets this sweep from time to time: 65 536 handshakes
    /// that came to nothing, and no other host is answered any more. `None`: it was given
    /// away before.
    pub fn sweeper(&mut self) -> Option<Sweeper> {
        let map = self.loaded.take_map(programs::ANSWERED)?;
        Some(Sweeper { answered: map.try_into().ok()? })
    }

    fn load(group: &File, answers_by_numbers: bool) -> Result<Self, BpfError> {
        let object = object_file::write(&programs::MAPS, &programs::all(answers_by_numbers));
        let mut loaded =
            Ebpf::load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        attach(&mut loaded, group)
            .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))?;
        Ok(Self { loaded, answers_by_numbers })
    }
}

impl Sweeper {
    /// A handshake whose SYN-ACK was not sent for so long is over: the kernel waits for the
    /// third segment, or sends again, for 120 s at most (`TCP_RTO_MAX`).
    pub const DEAD_AFTER: Duration = Duration::from_secs(240);

    /// Removes what was not needed for so long ([`Self::DEAD_AFTER`], or less if a test wants
    /// to see it), and returns how many remain.
    pub fn sweep(&mut self, dead_after: Duration) -> usize {
        let now_ns = monotonic_ns();
        let is_dead = |value: &[u8; answer::LEN as usize]| {
            let sent_ns = value[answer::SENT_NS as usize..].try_into().map(u64::from_ne_bytes);
            sent_ns
                .is_ok_and(|sent_ns| now_ns.saturating_sub(sent_ns) >= dead_after.as_nanos() as u64)
        };
        // An entry that comes or goes meanwhile may be missed, or be met twice.
        let (dead, alive): (Vec<_>, Vec<_>) =
            self.answered.iter().filter_map(Result::ok).partition(|(_, value)| is_dead(value));
        for (key, _) in dead {
            _ = self.answered.remove(&key);
        }
        alive.len()
    }
}

/// The clock of `bpf_ktime_get_ns`.
fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn attach(loaded: &mut Ebpf, cgroup: &File) -> Result<(), EbpfError> {
    // Links; `Single` is no more than their lack of flags. Links leave room for others.
    // The option first: a library that can mark a socket finds it at work.
    let option: &mut SockOps = program(loaded, programs::OPTION)?;
    option.load()?;
    option.attach(cgroup, CgroupAttachMode::Single)?;
    let question: &mut CgroupSockopt = program(loaded, programs::QUESTION)?;
    question.load()?;
    question.attach(cgroup, CgroupAttachMode::Single)?;
    Ok(())
}
