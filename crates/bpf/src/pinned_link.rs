//! The link of a program of `setsockopt`, pinned.
//!
//! aya pins the links of other programs of a cgroup, but gives the link of this kind out of its hands by
//! nothing. So the two system calls are made here: one attaches, one gives the link a name.
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

/// Attaches a program of `setsockopt` to a cgroup, beside those of others, and has a file keep the link.
///
/// # Errors
/// As the kernel says; nothing is attached then.
pub(crate) fn attach(program: impl AsFd, cgroup: &File, at: &Path) -> io::Result<()> {
    let number = |fd: i32| fd.cast_unsigned();
    let create = LinkCreate {
        program: number(program.as_fd().as_raw_fd()),
        cgroup: number(cgroup.as_raw_fd()),
        attach_type: SETSOCKOPT,
        flags: 0,
    };
    let link = call(LINK_CREATE, &create)?;
    // SAFETY: a descriptor that the kernel has made for this process a moment ago.
    #[expect(unsafe_code, reason = "a number of the kernel becomes a descriptor")]
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    let path = CString::new(at.as_os_str().as_bytes())?;
    let pin = ObjectPin { path: path.as_ptr() as u64, object: number(link.as_raw_fd()), flags: 0 };
    call(OBJECT_PIN, &pin).map(drop)
}

fn call<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    let at = std::ptr::from_ref(attributes);
    // SAFETY: the kernel reads as many bytes as are told, and the string that one of them may point at; both
    // live until it returns.
    #[expect(unsafe_code, reason = "bpf(2) has no safe name")]
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    match i32::try_from(result) {
        Ok(result @ 0..) => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
