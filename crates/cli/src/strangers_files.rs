//! Files that another user's process has named, read with that user's rights.
//!
//! `sidestep why` tells which file has decided, and the process that it is asked about names the file, in its
//! environment. Root reads it for the user that wrote that name. So it is read as the process itself would:
//!
//! | Danger | Answer |
//! |---|---|
//! | a file that the user may not read | the thread that reads has the user's rights to files, and none of root's |
//! | a FIFO, a terminal, `/dev/zero`, a device that does something when it is opened | nothing but a regular file is opened |
//! | a file without an end | [`LEN_MAX`] |
//! | a file system of the user's own that never answers | the thread is left behind after [`PATIENCE`] |
//! | another root directory, or a relative path | paths are followed from the process's own directories |

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::process::geteuid;

/// Bytes of a file, and of an environment, that are read. A configuration has some thousands.
const LEN_MAX: u64 = 1 << 20;
/// For one file.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process whose files are read.
#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<Directories>);

#[derive(Debug)]
struct Directories {
    /// `/proc/PID`: it stays that of this process when another one gets its number.
    own: OwnedFd,
    root: OwnedFd,
    working: OwnedFd,
}

impl Process {
    /// # Errors
    ///
    /// It is gone, or this user may not look at it.
    pub(crate) fn new(pid: u32) -> io::Result<Self> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = openat(CWD, format!("/proc/{pid}"), directory, Mode::empty())?;
        let root = openat(&own, "root", directory, Mode::empty())?;
        let working = openat(&own, "cwd", directory, Mode::empty())?;
        Ok(Self(Arc::new(Directories { own, root, working })))
    }

    /// The environment that it was started with.
    ///
    /// # Errors
    ///
    /// It is gone, this user may not look at it, or the kernel does not answer in time: the process has a say
    /// in where that memory comes from.
    pub(crate) fn environment(&self) -> io::Result<Vec<(OsString, OsString)>> {
        let directories = Arc::clone(&self.0);
        let bytes = within(PATIENCE, move || directories.of_proc("environ"))?;
        let variable = |line: &[u8]| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            let word = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Some((word(&line[..at]), word(&line[at + 1..])))
        };
        Ok(bytes.split(|byte| *byte == 0).filter_map(variable).collect())
    }

    /// A text file as the process would find it.
    ///
    /// # Errors
    ///
    /// There is none, its user may not read it, it is no regular file, too long, no text, or its file system
    /// does not answer in time.
    pub(crate) fn read(&self, path: &Path) -> io::Result<String> {
        let (directories, path) = (Arc::clone(&self.0), path.to_owned());
        let bytes = within(PATIENCE, move || {
            Rights::of(&directories)?.take()?;
            read_whole(open_regular(&directories, &path)?)
        })?;
        String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }

    /// The file that it runs.
    ///
    /// # Errors
    ///
    /// It is gone, this user may not look at it, or the file system does not answer in time.
    pub(crate) fn executable(&self) -> io::Result<File> {
        let directories = Arc::clone(&self.0);
        within(PATIENCE, move || {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            reopen(&openat(&directories.own, "exe", flags, Mode::empty())?)
        })
    }
}

impl Directories {
    /// One of the kernel's files about the process.
    fn of_proc(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = openat(&self.own, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::new();
        File::from(file).take(LEN_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// What a user may do with files.
struct Rights {
    user: u32,
    group: u32,
    groups: Vec<libc::gid_t>,
}

impl Rights {
    fn of(process: &Directories) -> io::Result<Self> {
        let status = process.of_proc("status")?;
        let status = String::from_utf8_lossy(&status);
        let numbers = |field: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_whitespace().map(|number| number.parse().ok()).collect()
        };
        // Real, effective, saved, and for files.
        let last = |field| numbers(field).filter(|ids| ids.len() == 4).map(|ids| ids[3]);
        let rights = || {
            Some(Self { user: last("Uid:")?, group: last("Gid:")?, groups: numbers("Groups:")? })
        };
        rights().ok_or_else(|| io::Error::other("the kernel does not say whose process it is"))
    }

    /// From now on this thread may do with files what the user may, and nothing else. (Signals and `ptrace`
    /// go by other numbers than these: the user cannot reach us through it.)
    fn take(&self) -> io::Result<()> {
        if self.user == geteuid().as_raw() && self.user != 0 {
            return Ok(());
        }
        // The C library's function would change all threads.
        // SAFETY: the kernel reads so many numbers there.
        let done =
            unsafe { libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a number; with it the thread's capabilities over files go, unless it is root's.
        unsafe { libc::setfsgid(self.group) };
        // SAFETY: the same.
        unsafe { libc::setfsuid(self.user) };
        // They tell what was before, and never fail. No user has this number, so nothing changes.
        // SAFETY: the same.
        let [user, group] = unsafe { [libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX)] };
        match (user as u32, group as u32) == (self.user, self.group) {
            true => Ok(()),
            false => Err(io::Error::from(ErrorKind::PermissionDenied)),
        }
    }
}

/// Opens a file without touching one of another kind.
fn open_regular(process: &Directories, path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Its `/proc/self/root` would be ours.
    let no_magic = ResolveFlags::NO_MAGICLINKS;
    let found = match path.strip_prefix("/") {
        Ok(below) => {
            let resolve = ResolveFlags::IN_ROOT | no_magic;
            openat2(&process.root, below, flags, Mode::empty(), resolve)?
        }
        Err(_) => {
            let resolve = ResolveFlags::BENEATH | no_magic;
            openat2(&process.working, path, flags, Mode::empty(), resolve)?
        }
    };
    reopen(&found)
}

/// Opens for reading what was found, if it is a regular file. It is the same one, whatever has its name now.
fn reopen(found: &OwnedFd) -> io::Result<File> {
    let found_file = File::from(found.as_fd().try_clone_to_owned()?);
    if !found_file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

fn read_whole(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LEN_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= LEN_MAX {
        true => Ok(bytes),
        false => Err(io::Error::new(ErrorKind::FileTooLarge, "longer than 1 MiB")),
    }
}

/// Does it in a thread of its own, which is left alone with it if that takes longer.
fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = mpsc::channel();
    // No reader may be waiting any more.
    thread::Builder::new().spawn(move || drop(done.send(work())))?;
    result.recv_timeout(patience).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    /// A user without a name.
    const STRANGER: u32 = 3_999_999_999;

    struct Sleeper(Child);

    impl Sleeper {
        fn start(user: Option<u32>, directory: &Path) -> Self {
            let mut command = Command::new("sleep");
            command.arg("1000").current_dir(directory).env("SEEN", "yes").stdin(Stdio::null());
            if let Some(user) = user {
                command.uid(user).gid(user);
            }
            Self(command.spawn().unwrap())
        }

        fn process(&self) -> Process {
            Process::new(self.0.id()).unwrap()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::write(directory.path().join("a.toml"), "a = 1").unwrap();
        directory
    }

    #[test]
    fn a_regular_file_is_read_by_any_name_that_the_process_has_for_it() {
        let directory = directory();
        symlink("a.toml", directory.path().join("link.toml")).unwrap();
        let sleeper = Sleeper::start(None, directory.path());
        let process = sleeper.process();
        for path in [directory.path().join("a.toml"), "a.toml".into(), "link.toml".into()] {
            assert_eq!(process.read(&path).unwrap(), "a = 1", "{}", path.display());
        }
        let environment = process.environment().unwrap();
        assert!(environment.contains(&("SEEN".into(), "yes".into())));
        assert!(process.executable().unwrap().metadata().unwrap().len() > 1000);
        assert_eq!(process.read(Path::new("b")).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(Process::new(1 << 30).is_err());
    }

    #[test]
    fn nothing_but_a_regular_file_is_opened_and_no_long_one_is_read() {
        let directory = directory();
        let fifo = directory.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let long = directory.path().join("long");
        File::create(&long).unwrap().set_len(1 << 40).unwrap();
        let sleeper = Sleeper::start(None, directory.path());
        let process = sleeper.process();
        let begun = Instant::now();
        for (path, kind) in [
            (fifo.as_path(), ErrorKind::InvalidInput),
            (Path::new("/dev/zero"), ErrorKind::InvalidInput),
            (directory.path(), ErrorKind::InvalidInput),
            (&long, ErrorKind::FileTooLarge),
        ] {
            assert_eq!(process.read(path).unwrap_err().kind(), kind, "{}", path.display());
        }
        assert!(begun.elapsed() < PATIENCE, "none of them was waited for");
        let ours = process.read(Path::new("/proc/self/exe")).unwrap_err();
        assert_eq!(ours.raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn the_thread_has_the_rights_of_the_other_user_and_no_more() {
        if !geteuid().is_root() {
            return output::complain("test", "skipped: to be another user takes root");
        }
        let directory = directory();
        let of = |name: &str, user: u32, mode| {
            let path = directory.path().join(name);
            fs::write(&path, name).unwrap();
            std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        let [own, roots] = [of("own", STRANGER, 0o600), of("root's", 0, 0o600)];
        let sleeper = Sleeper::start(Some(STRANGER), directory.path());
        let process = sleeper.process();
        assert_eq!(process.read(&own).unwrap(), "own");
        assert_eq!(process.read(&roots).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(fs::read_to_string(&roots).unwrap(), "root's", "this thread is root's as ever");
    }

    #[test]
    fn who_does_not_answer_is_left_behind() {
        let never = || {
            thread::park();
            Ok(())
        };
        assert_eq!(within(Duration::ZERO, never).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
