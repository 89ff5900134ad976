//! Packets that this host passes on from one interface to another.
//!
//! They have no socket, so no program of a cgroup sees them. A gate of their own sees each packet that leaves by an
//! interface that was named. One that came in by an interface is forwarded; what was made here is a socket's or the
//! kernel's own, and goes on. So no packet is judged twice, and which is forwarded is not guessed: the kernel has
//! routed it. (Where a packet arrives, that would have to be asked for, and the helper that tells is for programs
//! under the GPL alone.) What has been translated by netfilter is seen as it leaves: with its new destination, and with its
//! new source.
//!
//! The link to an interface is pinned as `forwarded_NAMESPACE_INTERFACE`, by the number of the network namespace's
//! inode and the interface's index. The kernel ends it with the interface; the file stays, and is replaced when the
//! same numbers are named again.

use std::collections::HashSet;
use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use aya::programs::SchedClassifier;

use super::frame::skb;
use super::pins::remove_file;
use super::programs::{FORWARDED, pass_on};
use crate::assembler::Assembler;
use crate::assembler::Register::{R1, R6};
use crate::bpf_call::{self, Target};
use crate::error::BpfError;
use crate::object_file::Program;

const LINK: &str = "forwarded_";

/// Has the gate that is pinned in this directory see what leaves by these interfaces, and by no others.
pub(super) fn judge(pins: &Path, interfaces: &[u32]) -> Result<(), BpfError> {
    let gate = SchedClassifier::from_pin(pins.join(FORWARDED.gate))
        .map_err(|error| BpfError::of_kernel("open a BPF program", &error))?;
    let namespace = namespace()?;
    let mut wanted = HashSet::new();
    for interface in interfaces {
        let name = format!("{LINK}{namespace}_{interface}");
        attach(&gate, *interface, &pins.join(&name))?;
        wanted.insert(name);
    }
    let mut others = links(pins)?.into_iter().filter(|name| !wanted.contains(name));
    others.try_for_each(|name| remove_file(&pins.join(name)))
}

/// The interfaces of the calling thread's network namespace that have a link in this directory.
pub(super) fn interfaces(pins: &Path) -> Result<Vec<u32>, BpfError> {
    let begin = format!("{LINK}{}_", namespace()?);
    let index = |name: &String| name.strip_prefix(&begin)?.parse().ok();
    Ok(links(pins)?.iter().filter_map(index).collect())
}

fn attach(gate: &SchedClassifier, interface: u32, pin: &Path) -> Result<(), BpfError> {
    let failed = |error: &(dyn Error + 'static)| {
        BpfError::of_kernel("attach a program to an interface", error)
    };
    let program = gate.fd().map_err(|error| failed(&error))?;
    let link = match bpf_call::attach(program, Target::Egress(interface)) {
        // The link that has this name lives.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(BpfError::NoTcx),
        attached => attached.map_err(|error| failed(&error))?,
    };
    // Of an interface that had these numbers and has gone.
    remove_file(pin)?;
    bpf_call::pin(&link, pin).map_err(|error| BpfError::of_kernel("pin a link", &error))
}

/// The names of the links in this directory.
pub(super) fn links(pins: &Path) -> Result<Vec<String>, BpfError> {
    let entries = fs::read_dir(pins).map_err(|error| BpfError::of_file(pins, error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with(LINK)).collect())
}

/// The number of the calling thread's network namespace.
fn namespace() -> Result<u64, BpfError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let namespace = fs::metadata(path).map_err(|error| BpfError::of_file(path, error))?;
    Ok(namespace.ino())
}

/// What was made here passes.
pub(super) fn gate() -> Program {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R1, R6, skb::INGRESS_IFINDEX);
    a.jump_if_equal(R1, 0, "open");
    pass_on(&mut a, FORWARDED.judges, FORWARDED.hook.answers());
    Program { name: FORWARDED.gate, section: FORWARDED.section, code: a.finish() }
}
