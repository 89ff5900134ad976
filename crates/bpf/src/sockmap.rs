//! Connections whose messages skip TCP.

mod programs;

use std::error::Error;
use std::fs::File;
use std::path::Path;

use aya::maps::{MapError, PerCpuArray, SockHash};
use aya::programs::{CgroupAttachMode, SkMsg, SockOps};
use aya::{Ebpf, EbpfError};

use crate::error::BpfError;
use crate::loaded::program;
use crate::object_file;
use programs::Counter;

/// The kernel's transparent redirect for the TCP connections of a cgroup.
///
/// While it exists, a connection made between two sockets of the cgroup's processes has
/// its messages handed from socket to socket, whatever addresses of this host it uses.
/// A socket counts when its process had joined the cgroup before it was made; both ends
/// must be made while this exists. Other connections stay what they are.
///
/// The bytes are the same and in the same order. The rest is what Linux 6.18 does:
///
/// * **No back-pressure.** A sender never waits: what the receiver has not read lies in
///   the kernel's memory, hundreds of megabytes if need be.
/// * `recv` with `MSG_WAITALL` may return less than was asked for.
/// * `TCP_INFO` and `/proc/net/snmp` do not count what was handed over; `SIOCINQ` does.
/// * A direction whose first message is sent before the other end has been made goes by
///   TCP for good ([`Counters::by_tcp`]), because the kernel would confuse the order.
///   On loopback a plain `connect` returns after the other end was made, so it is rare.
/// * A socket that is taken out of the map loses what was handed to it and not yet read:
///   drop this after the processes have ended.
#[derive(Debug)]
pub struct Sockmap {
    /// Programs, maps and links: descriptors, closed on drop and by the end of the
    /// process, whichever comes first.
    loaded: Ebpf,
}

/// What a [`Sockmap`] has done since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ends of connections that entered the map.
    pub joined: u64,
    /// Messages that were handed from socket to socket: one for each `send`, more for
    /// large ones.
    pub redirected: u64,
    /// Messages of these connections that went by TCP.
    pub by_tcp: u64,
}

impl Sockmap {
    /// Loads the programs and attaches them to the cgroup at this path.
    ///
    /// # Errors
    /// The kernel refuses or cannot do it ([`BpfError::Privilege`],
    /// [`BpfError::Kernel`]); the path is not a cgroup's.
    pub fn attach(cgroup: &Path) -> Result<Self, BpfError> {
        let mut loaded = load().map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        attach_redirect(&mut loaded)
            .map_err(|error| BpfError::of_kernel("attach a program to a sockmap", &*error))?;
        let group = File::open(cgroup).map_err(|error| BpfError::of_file(cgroup, error))?;
        attach_join(&mut loaded, &group)
            .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))?;
        Ok(Self { loaded })
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn counters(&self) -> Result<Counters, BpfError> {
        let sum = |counter| {
            self.counter(counter).map_err(|error| BpfError::of_kernel("read a BPF map", &error))
        };
        Ok(Counters {
            joined: sum(Counter::Joined)?,
            redirected: sum(Counter::Redirected)?,
            by_tcp: sum(Counter::ByTcp)?,
        })
    }

    /// The sum over all CPUs.
    fn counter(&self, counter: Counter) -> Result<u64, MapError> {
        let counters = self.loaded.map(programs::COUNTERS).expect("a map of ours");
        let counters = PerCpuArray::<_, u64>::try_from(counters)?;
        Ok(counters.get(&(counter as u32), 0)?.iter().sum())
    }
}

fn load() -> Result<Ebpf, EbpfError> {
    Ebpf::load(&object_file::write(&programs::MAPS, &programs::all()))
}

fn attach_redirect(loaded: &mut Ebpf) -> Result<(), Box<dyn Error>> {
    let connections = loaded.map(programs::CONNECTIONS).expect("a map of ours");
    let connections = SockHash::<_, [u8; 48]>::try_from(connections)?;
    let connections = connections.fd().try_clone()?;
    let redirect: &mut SkMsg = program(loaded, programs::REDIRECT)?;
    redirect.load()?;
    redirect.attach(&connections)?;
    Ok(())
}

fn attach_join(loaded: &mut Ebpf, cgroup: &File) -> Result<(), EbpfError> {
    let join: &mut SockOps = program(loaded, programs::JOIN)?;
    join.load()?;
    // A link; `Single` is no more than its lack of flags. Links leave room for others.
    join.attach(cgroup, CgroupAttachMode::Single)?;
    Ok(())
}
