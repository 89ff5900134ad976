//! What `bpf(2)` is asked for that aya does not ask for.
//!
//! * The link of a program of `setsockopt`, pinned: aya pins the links of other programs of a cgroup, but gives the
//!   link of this kind out of its hands by nothing. One call attaches, one gives the link a name.
//! * The link of a program to an interface by its number, and whether it was there already.
//! * The programs that are attached to a cgroup or an interface, ours and others'.
//!
//! *Source*: `union bpf_attr` of `linux/bpf.h`. The kernel takes what is cut off for zero.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sidestep_filter::Way;

const LINK_CREATE: libc::c_long = 28;
const OBJECT_PIN: libc::c_long = 6;
const PROGRAM_QUERY: libc::c_long = 16;

/// What a program is attached to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// Calls of `setsockopt` of a cgroup's processes (`BPF_CGROUP_SETSOCKOPT`).
    SetSockOpt(&'a File),
    /// Packets that leave by the interface of this index (`BPF_TCX_EGRESS`, Linux 6.6).
    Egress(u32),
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    /// A cgroup's descriptor, or an interface's index.
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct ObjectPin {
    path: u64,
    object: u32,
    flags: u32,
}

/// All of it is there, although the end is not asked for: of an interface the kernel tells `revision`, whatever length it is told.
#[repr(C)]
#[derive(Default)]
struct ProgramQuery {
    /// A cgroup's descriptor, or an interface's index.
    target: u32,
    attach_type: u32,
    query_flags: u32,
    /// The kernel's answer.
    attach_flags: u32,
    ids: u64,
    /// How many there is room for, then how many there are.
    count: u32,
    reserved: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    /// The kernel's answer.
    revision: u64,
}

/// Attaches a program beside those of others, at an interface before them, for as long as the link is held or has a
/// name.
///
/// # Errors
/// As the kernel says: nothing is attached then. `EEXIST`: this program is attached to the interface already.
pub(crate) fn attach(program: impl AsFd, to: Target<'_>) -> io::Result<OwnedFd> {
    /// `BPF_F_BEFORE`: one before us could let a packet pass that we are not asked about then.
    const BEFORE: u32 = 1 << 3;
    let (target, attach_type, flags) = match to {
        Target::SetSockOpt(cgroup) => (cgroup.as_raw_fd().cast_unsigned(), 22, 0),
        Target::Egress(interface) => (interface, 47, BEFORE),
    };
    let program = program.as_fd().as_raw_fd().cast_unsigned();
    let link = call(LINK_CREATE, &mut LinkCreate { program, target, attach_type, flags })?;
    // SAFETY: a descriptor that the kernel has made for this process a moment ago.
    #[expect(unsafe_code, reason = "a number of the kernel becomes a descriptor")]
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    Ok(link)
}

/// Has a file keep a link.
///
/// # Errors
/// As the kernel says.
pub(crate) fn pin(link: &OwnedFd, at: &Path) -> io::Result<()> {
    let path = CString::new(at.as_os_str().as_bytes())?;
    let object = link.as_raw_fd().cast_unsigned();
    let mut pin = ObjectPin { path: path.as_ptr() as u64, object, flags: 0 };
    call(OBJECT_PIN, &mut pin).map(drop)
}

/// Programs that see packets, those that arrive or those that leave.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PacketHook<'a> {
    /// Of a cgroup itself (`BPF_CGROUP_INET_INGRESS`, `BPF_CGROUP_INET_EGRESS`).
    Cgroup(&'a File, Way),
    /// Of the interface with this index (`BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`).
    Interface(u32, Way),
}

/// The numbers of the programs that are attached there, in the order in which they are asked.
///
/// # Errors
/// As the kernel says. `EINVAL`: it knows no such hook.
pub(crate) fn attached(to: PacketHook<'_>) -> io::Result<Vec<u32>> {
    /// The kernel attaches no more to one (`BPF_CGROUP_MAX_PROGS`, `BPF_MPROG_MAX`).
    const PROGRAMS_MAX: usize = 64;
    let place = |way: Way| u32::from(way == Way::Out);
    let (target, attach_type) = match to {
        PacketHook::Cgroup(cgroup, way) => (cgroup.as_raw_fd().cast_unsigned(), place(way)),
        PacketHook::Interface(index, way) => (index, 46 + place(way)),
    };
    let mut ids = vec![0; PROGRAMS_MAX];
    let mut query = ProgramQuery {
        target,
        attach_type,
        ids: ids.as_mut_ptr() as u64,
        count: PROGRAMS_MAX as u32,
        ..ProgramQuery::default()
    };
    call(PROGRAM_QUERY, &mut query)?;
    ids.truncate(query.count as usize);
    Ok(ids)
}

fn call<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    let at = std::ptr::from_mut(attributes);
    // SAFETY: the kernel reads and writes as many bytes as are told, and the string or the numbers that one of them
    // may point at, as many as another says; all live until it returns.
    #[expect(unsafe_code, reason = "bpf(2) has no safe name")]
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    match i32::try_from(result) {
        Ok(result @ 0..) => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
