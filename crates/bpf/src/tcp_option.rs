//! The TCP option of SMC on the connections of Sidestep programs.

mod programs;

use std::fs::File;
use std::path::Path;

use aya::programs::{CgroupAttachMode, CgroupSockopt, SockOps};
use aya::{Ebpf, EbpfError};

use crate::error::BpfError;
use crate::{object_file, program};

/// The option on connections between Sidestep programs of a cgroup, and of those below.
///
/// While it exists, a socket that the library marks before `connect` or `listen` sends
/// the option in SYN and SYN-ACK, if the other end is another such socket of this host,
/// and the library may ask of a connection whether both ends have sent it. Sockets that
/// nobody marks are not touched.
///
/// Nothing is pinned: with the process that holds this the programs go, whatever ends
/// it. Connections stay what they are, and the library then hears that nobody speaks
/// for its sockets. A listener is known from its `listen` on, so one that was there
/// before is not asked.
#[derive(Debug)]
pub struct TcpOption {
    /// Programs, maps and links: descriptors, closed on drop.
    _loaded: Ebpf,
    tells_identity: bool,
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
    /// ([`sidestep_wire::tcp_option::Identity`]). It takes Linux 5.18.
    #[must_use]
    pub fn tells_identity(&self) -> bool {
        self.tells_identity
    }

    fn load(group: &File, tells_identity: bool) -> Result<Self, BpfError> {
        let object = object_file::write(&programs::MAPS, &programs::all(tells_identity));
        let mut loaded =
            Ebpf::load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        attach(&mut loaded, group)
            .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))?;
        Ok(Self { _loaded: loaded, tells_identity })
    }
}

fn attach(loaded: &mut Ebpf, cgroup: &File) -> Result<(), EbpfError> {
    // Links; `Single` is no more than their lack of flags. Links leave room for others.
    // The option first: whoever can mark a socket finds it at work.
    let option: &mut SockOps = program(loaded, programs::OPTION)?;
    option.load()?;
    option.attach(cgroup, CgroupAttachMode::Single)?;
    let question: &mut CgroupSockopt = program(loaded, programs::QUESTION)?;
    question.load()?;
    question.attach(cgroup, CgroupAttachMode::Single)?;
    Ok(())
}
