//! The programs for packets that are attached to a cgroup or to an interface, ours and others'.
//!
//! A packet passes a cgroup if all of its programs let it pass, and an interface if each lets it pass to the next, so `sidestep filter
//! show` tells of each. The kernel tells numbers, names of up to 15 characters, and which user has loaded one. It is asked
//! alone: nothing is changed.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use aya::programs::{ProgramInfo, loaded_programs};
use sidestep_filter::Way;

use crate::bpf_call::{PacketHook, attached};
use crate::error::BpfError;

/// A program that sees the packets of a cgroup or an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketProgram {
    /// The kernel's number for it.
    pub id: u32,
    /// As its loader has called it; empty if it has not.
    pub name: String,
    /// The user that has loaded it; `None`: the kernel does not tell.
    pub user: Option<u32>,
    /// Which packets it sees.
    pub way: Way,
}

const WAYS: [Way; 2] = [Way::In, Way::Out];

/// Those that are attached to each of these cgroups itself, with its place among them. A cgroup that has gone has none.
///
/// # Errors
/// The kernel does not tell.
pub fn packet_programs<'a>(
    cgroups: impl IntoIterator<Item = &'a Path>,
) -> Result<Vec<(usize, PacketProgram)>, BpfError> {
    let mut found = Vec::new();
    for (place, cgroup) in cgroups.into_iter().enumerate() {
        let Ok(cgroup) = File::open(cgroup) else { continue };
        for way in WAYS {
            let ids = attached(PacketHook::Cgroup(&cgroup, way))
                .map_err(|error| BpfError::of_kernel("tell which programs a cgroup has", &error))?;
            found.extend(ids.into_iter().map(|id| (place, id, way)));
        }
    }
    Ok(described(found))
}

/// Those of tcx at each of these interfaces of the calling thread's network namespace, told by their indices, with its place among
/// them, in the order in which they are asked. Before Linux 6.6 there are none.
///
/// # Errors
/// The kernel does not tell, or there is no such interface.
pub fn interface_programs(interfaces: &[u32]) -> Result<Vec<(usize, PacketProgram)>, BpfError> {
    let mut found = Vec::new();
    for (place, &interface) in interfaces.iter().enumerate() {
        for way in WAYS {
            let ids = match attached(PacketHook::Interface(interface, way)) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => continue,
                ids => ids.map_err(|error| {
                    BpfError::of_kernel("tell which programs an interface has", &error)
                })?,
            };
            found.extend(ids.into_iter().map(|id| (place, id, way)));
        }
    }
    Ok(described(found))
}

/// What the kernel tells of the programs with these numbers.
fn described(found: Vec<(usize, u32, Way)>) -> Vec<(usize, PacketProgram)> {
    if found.is_empty() {
        return Vec::new();
    }
    let known: HashMap<u32, ProgramInfo> =
        loaded_programs().filter_map(Result::ok).map(|info| (info.id(), info)).collect();
    let program = |(place, id, way)| {
        let info = known.get(&id);
        let name = info.and_then(ProgramInfo::name_as_str).unwrap_or_default().to_owned();
        let user = info.and_then(ProgramInfo::created_by_uid);
        (place, PacketProgram { id, name, user, way })
    };
    found.into_iter().map(program).collect()
}
