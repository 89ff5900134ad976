//! What can be taken from a program before it starts: limits, `/proc`, its
//! user, a standard error that somebody reads.

use std::ffi::{CStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::suite::Lacking;

/// A user that has nothing and runs nothing.
pub(crate) const STRANGER: u32 = 54_321;

/// The smallest pipe there is.
const PIPE_LEN: usize = 4096;

/// Sets both limits of a resource.
pub(crate) fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    let set = move || {
        // SAFETY: setrlimit() reads one rlimit, which lives in the closure.
        checked(unsafe { libc::setrlimit(resource, &raw const limit) })
    };
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe { command.pre_exec(set) };
}

/// The most descriptors that a program may be allowed here.
///
/// **Errors**: fewer than it needs.
pub(crate) fn descriptors_for(needed: u64) -> Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit() fills one rlimit.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_max < needed {
        bail!(Lacking(format!("{needed} descriptors: the limit is {}", limit.rlim_max)));
    }
    Ok(limit.rlim_max)
}

/// An empty directory in the place of `/proc`, for this program only.
pub(crate) fn hide_proc(command: &mut Command) {
    const NO_FILE: *const libc::c_char = std::ptr::null();
    const TREE_OF_OUR_OWN: u64 = libc::MS_REC | libc::MS_PRIVATE;
    let mount = |kind: &CStr, at: &CStr, flags| {
        // SAFETY: strings that end, or none.
        let answer =
            unsafe { libc::mount(NO_FILE, at.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
        checked(answer)
    };
    let hide = move || {
        // SAFETY: unshare() takes its argument by value.
        checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        mount(c"", c"/", TREE_OF_OUR_OWN)?;
        mount(c"tmpfs", c"/proc", 0)
    };
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe { command.pre_exec(hide) };
}

/// A pipe into which nothing can be written, for as long as its reader is kept.
pub(crate) fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = pipe()?;
    // SAFETY: fcntl(F_SETPIPE_SZ) takes its arguments by value.
    checked(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_LEN) })?;
    writer.write_all(&[b'.'; PIPE_LEN])?;
    Ok((reader, writer))
}

/// A pipe that nobody will read any more.
pub(crate) fn broken_pipe() -> Result<PipeWriter> {
    let (_, writer) = pipe()?;
    Ok(writer)
}

/// Gives the program this standard error, whatever else is said of it.
pub(crate) fn set_standard_error(command: &mut Command, to: PipeWriter) {
    let set = move || {
        // SAFETY: dup2() takes its arguments by value.
        checked(unsafe { libc::dup2(to.as_raw_fd(), libc::STDERR_FILENO) })
    };
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe { command.pre_exec(set) };
}

/// Preloads another library behind what the command preloads.
pub(crate) fn preload_beside(command: &mut Command, library: &Path) {
    let ours = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
    let mut all = ours.and_then(|(_, value)| value).map_or_else(OsString::new, OsString::from);
    if !all.is_empty() {
        all.push(":");
    }
    all.push(library);
    command.env("LD_PRELOAD", all);
}

/// **Errors**: this machine does not let us do that to a program, or `file`
/// cannot be used then.
pub(crate) fn must_be_possible(
    what: &str,
    file: &Path,
    hardship: impl FnOnce(&mut Command),
) -> Result<()> {
    let mut command = Command::new("test");
    command.arg("-r").arg(file);
    hardship(&mut command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => bail!(Lacking(format!("{what} cannot read {}", file.display()))),
        Err(error) => bail!(Lacking(format!("{what} is not possible here: {error}"))),
    }
}

/// Makes the program one of another user.
pub(crate) fn estrange(command: &mut Command) {
    command.uid(STRANGER);
}

fn checked(answer: i32) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_preloaded_behind_ours() {
        let mut command = Command::new("true");
        preload_beside(&mut command, Path::new("/x.so"));
        preload_beside(&mut command, Path::new("/y.so"));
        let value = command.get_envs().next().and_then(|(_, value)| value);
        assert_eq!(value, Some("/x.so:/y.so".as_ref()));
    }

    #[test]
    fn a_limit_holds() -> Result<()> {
        let mut command = Command::new("sh");
        limit(command.args(["-c", "ulimit -n"]), libc::RLIMIT_NOFILE, 17);
        assert_eq!(command.output()?.stdout, b"17\n");
        Ok(())
    }

    #[test]
    fn a_full_pipe_takes_nothing() -> Result<()> {
        const TIMED_OUT: i32 = 124;
        let mut command = Command::new("timeout");
        let (_reader, writer) = full_pipe()?;
        set_standard_error(command.args(["0.1", "sh", "-c", "echo x >&2"]), writer);
        assert_eq!(command.status()?.code(), Some(TIMED_OUT));
        Ok(())
    }
}
