//! Servers with which SMC-R has come to nothing lately: AUTOCACHE, for the programs of this host.
//!
//! Such a connection is passed on between H and N for as long as it lives. The next one need not be:
//! libraries look here before they connect, and leave out the TCP option. What they look at is a
//! memory file ([`sidestep_wire::failed_lately`]) of which they have a descriptor that only reads, so
//! that looking costs them one system call and nobody has to answer.
//!
//! Each user has failures of its own: nobody can keep another one's connections from SMC-R.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};
use sidestep_proto::autocache::pause;
use sidestep_wire::failed_lately::{FILE_LEN, Failure, offset};

/// The file, and a descriptor of it for others.
#[derive(Debug)]
pub(crate) struct Failures {
    file: File,
    read_only: File,
}

impl Failures {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("sidestep-failures", flags)?);
        file.set_len(FILE_LEN as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read_only = OpenOptions::new().read(true).open(name)?;
        // Nobody opens theirs by such a name to write.
        fchmod(&file, Mode::empty())?;
        Ok(Self { file, read_only })
    }

    /// For libraries.
    pub(crate) fn read_only(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// A connection of this user's to this server has not come to SMC-R. For how long the server is
    /// left alone.
    pub(crate) fn note(&self, server: SocketAddr, user: u32, now: Duration) -> Duration {
        let before = self.find(server, user);
        // Connections that were begun together fail together.
        if let Some(failure) = before.filter(|failure| failure.until > now) {
            return failure.until - now;
        }
        let in_a_row = before.map_or(0, |failure| failure.in_a_row).saturating_add(1);
        let pause = pause(in_a_row.into());
        let server = SocketAddr::new(server.ip().to_canonical(), server.port());
        self.write(&Failure { server, user, in_a_row, until: now + pause });
        pause
    }

    /// One has.
    pub(crate) fn forget(&self, server: SocketAddr, user: u32) {
        if self.find(server, user).is_some() {
            self.put(offset(server, user), &[0; Failure::LEN]);
        }
    }

    /// What has failed may succeed now.
    pub(crate) fn forget_all(&self) {
        self.put(0, &[0; FILE_LEN]);
    }

    fn find(&self, server: SocketAddr, user: u32) -> Option<Failure> {
        let mut bytes = [0; Failure::LEN];
        self.file.read_exact_at(&mut bytes, offset(server, user)).ok()?;
        Failure::parse(&bytes).ok().filter(|failure| failure.is_about(server, user))
    }

    fn write(&self, failure: &Failure) {
        if let Ok(bytes) = failure.emit() {
            self.put(offset(failure.server, failure.user), &bytes);
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        if let Err(error) = self.file.write_all_at(bytes, at) {
            log::warn!("what has failed is not remembered: {error}");
        }
    }
}

/// The clock by which libraries look.
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::autocache::{FIRST, LONGEST};
    use std::io::ErrorKind;

    const SERVER: &str = "10.0.0.1:80";

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn pauses_grow_with_failures_that_follow_each_other() {
        let (failures, server) = (Failures::new().unwrap(), SERVER.parse().unwrap());
        assert_eq!(failures.note(server, 7, seconds(1000)), FIRST);
        // Of the same moment.
        assert_eq!(failures.note(server, 7, seconds(1010)), FIRST - seconds(10));
        assert_eq!(failures.note(server, 7, seconds(1030)), 2 * FIRST);
        (2..9).for_each(|n| _ = failures.note(server, 7, n * LONGEST));
        assert_eq!(failures.note(server, 7, 9 * LONGEST), LONGEST);
        failures.forget(server, 7);
        assert_eq!(failures.note(server, 7, 10 * LONGEST), FIRST);
    }

    #[test]
    fn each_user_has_its_own() {
        let (failures, server) = (Failures::new().unwrap(), SERVER.parse().unwrap());
        failures.note(server, 7, seconds(1000));
        assert!(failures.find(server, 7).is_some() && failures.find(server, 8).is_none());
        failures.forget(server, 8);
        assert!(failures.find(server, 7).is_some());
        failures.forget_all();
        assert!(failures.find(server, 7).is_none());
    }

    #[test]
    fn others_can_only_read() {
        let (failures, server) = (Failures::new().unwrap(), SERVER.parse().unwrap());
        failures.note(server, 7, seconds(1000));
        let theirs = File::from(failures.read_only().try_clone_to_owned().unwrap());
        let mut bytes = [0; Failure::LEN];
        theirs.read_exact_at(&mut bytes, offset(server, 7)).unwrap();
        assert!(Failure::parse(&bytes).unwrap().is_about(server, 7));
        assert!(theirs.write_all_at(&bytes, 0).is_err());
        assert_eq!(failures.file.set_len(0).unwrap_err().kind(), ErrorKind::PermissionDenied);
        if !rustix::process::geteuid().is_root() {
            let name = format!("/proc/self/fd/{}", theirs.as_raw_fd());
            assert!(OpenOptions::new().write(true).open(name).is_err());
        }
    }
}
