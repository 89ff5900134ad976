//! The programs for packets that are attached to a cgroup, ours and others'.
//!
//! A packet passes if all of them let it pass, so `sidestep filter show` tells of each. The kernel
//! tells numbers, names of up to 15 characters, and which user has loaded one. It is asked alone: nothing is changed.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use aya::programs::{ProgramInfo, loaded_programs};
use sidestep_filter::Way;

use crate::bpf_call;
use crate::error::BpfError;

/// A program that sees the packets of a cgroup.
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

/// `BPF_CGROUP_INET_INGRESS` and `BPF_CGROUP_INET_EGRESS` of `linux/bpf.h`.
const WAYS: [(Way, u32); 2] = [(Way::In, 0), (Way::Out, 1)];

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
        for (way, kind) in WAYS {
            let ids = bpf_call::attached(&cgroup, kind)
                .map_err(|error| BpfError::of_kernel("tell which programs a cgroup has", &error))?;
            found.extend(ids.into_iter().map(|id| (place, id, way)));
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let known: HashMap<u32, ProgramInfo> =
        loaded_programs().filter_map(Result::ok).map(|info| (info.id(), info)).collect();
    let program = |(place, id, way)| {
        let info = known.get(&id);
        let name = info.and_then(ProgramInfo::name_as_str).unwrap_or_default().to_owned();
        let user = info.and_then(ProgramInfo::created_by_uid);
        (place, PacketProgram { id, name, user, way })
    };
    Ok(found.into_iter().map(program).collect())
}
