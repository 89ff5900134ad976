//! What `bpf(2)` is asked for that aya does not ask for.
//!
//! * The link of a program of `setsockopt`, pinned: aya pins the links of other programs of a cgroup, but gives the
//!   link of this kind out of its hands by nothing. One call attaches, one gives the link a name.
//! * The programs that are attached to a cgroup, ours and others'.
//!
//! *Source*: `union bpf_attr` of `linux/bpf.h`. The kernel takes what is cut off for zero.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const LINK_CREATE: libc::c_long = 28;
const OBJECT_PIN: libc::c_long = 6;
const PROGRAM_QUERY: libc::c_long = 16;
/// `BPF_CGROUP_SETSOCKOPT`.
const SETSOCKOPT: u32 = 22;

#[repr(C)]
struct LinkCreate {
    program: u32,
    cgroup: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct ObjectPin {
    path: u64,
    object: u32,
    flags: u32,
}

#[repr(C)]
struct ProgramQuery {
    cgroup: u32,
    attach_type: u32,
    query_flags: u32,
    /// The kernel's answer.
    attach_flags: u32,
    ids: u64,
    /// How many there is room for, then how many there are.
    count: u32,
    reserved: u32,
}

/// Attaches a program of `setsockopt` to a cgroup, beside those of others, and has a file keep the link.
///
/// # Errors
/// As the kernel says; nothing is attached then.
pub(crate) fn attach(program: impl AsFd, cgroup: &File, at: &Path) -> io::Result<()> {
    let number = |fd: i32| fd.cast_unsigned();
    let mut create = LinkCreate {
        program: number(program.as_fd().as_raw_fd()),
        cgroup: number(cgroup.as_raw_fd()),
        attach_type: SETSOCKOPT,
        flags: 0,
    };
    let link = call(LINK_CREATE, &mut create)?;
    // SAFETY: a descriptor that the kernel has made for this process a moment ago.
    #[expect(unsafe_code, reason = "a number of the kernel becomes a descriptor")]
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    let path = CString::new(at.as_os_str().as_bytes())?;
    let mut pin =
        ObjectPin { path: path.as_ptr() as u64, object: number(link.as_raw_fd()), flags: 0 };
    call(OBJECT_PIN, &mut pin).map(drop)
}

/// The numbers of the programs of one kind (`enum bpf_attach_type`) that are attached to a cgroup itself.
///
/// # Errors
/// As the kernel says.
pub(crate) fn attached(cgroup: &File, attach_type: u32) -> io::Result<Vec<u32>> {
    /// The kernel attaches no more to one (`BPF_CGROUP_MAX_PROGS`).
    const PROGRAMS_MAX: usize = 64;
    let mut ids = vec![0; PROGRAMS_MAX];
    let mut query = ProgramQuery {
        cgroup: cgroup.as_raw_fd().cast_unsigned(),
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: PROGRAMS_MAX as u32,
        reserved: 0,
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
