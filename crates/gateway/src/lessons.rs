//! What connections to other hosts teach: AUTOCACHE and AUTOSMC, for the programs of this host.
//!
//! A connection that does not come to SMC-R is passed on between H and N for as long as it lives, and
//! one that ends after a few messages has cost more than it gained. The next one need not: libraries
//! look here before they connect, and leave out the TCP option. What they look at is a memory file
//! ([`sidestep_wire::lessons`]) of which they have a descriptor that only reads, so that looking costs
//! them one system call and nobody has to answer.
//!
//! A server is left alone after a failure, or after [`SHORT_ONES`] short connections in a row, and each
//! time that comes again for longer. In between so many may try.
//!
//! Each user has lessons of its own: nobody can keep another one's connections from SMC-R.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};
use sidestep_proto::autocache::pause;
use sidestep_wire::lessons::{Cause, FILE_LEN, Lesson, PLACES, offset};

/// So many short connections are in vain as much as one that fails.
pub(crate) const SHORT_ONES: u16 = 16;
/// What is counted in vain at most: pauses are no longer than then.
const MOST: u16 = 8 * SHORT_ONES;

/// The file, and a descriptor of it for others.
#[derive(Debug)]
pub(crate) struct Lessons {
    file: File,
    read_only: File,
}

impl Lessons {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("sidestep-lessons", flags)?);
        file.set_len(FILE_LEN as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read_only = OpenOptions::new().read(true).open(name)?;
        // Nobody opens theirs by such a name to write.
        fchmod(&file, Mode::empty())?;
        Ok(Self { file, read_only })
    }

    /// Those of another gateway: its file, and the descriptor of it for others.
    pub(crate) fn take_over(file: OwnedFd, read_only: OwnedFd) -> Self {
        Self { file: file.into(), read_only: read_only.into() }
    }

    /// To be written.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// For libraries.
    pub(crate) fn read_only(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// A connection of this user's to this server was in vain. How long the server is left alone now, if
    /// it is.
    pub(crate) fn note(
        &self,
        server: SocketAddr,
        user: u32,
        cause: Cause,
        now: Duration,
    ) -> Option<Duration> {
        let before = self.find(server, user);
        // Connections that were begun together teach it once.
        if let Some(lesson) = before.filter(|lesson| lesson.until > now) {
            return Some(lesson.until - now);
        }
        let before = before.map_or(0, |lesson| lesson.in_vain).min(MOST);
        let before = if before == MOST { MOST - SHORT_ONES } else { before };
        let in_vain = match cause {
            Cause::Failed => (before / SHORT_ONES + 1) * SHORT_ONES,
            Cause::Short | Cause::Compared | Cause::NoGain | Cause::NoAdapter => before + 1,
        };
        let is_enough = in_vain.is_multiple_of(SHORT_ONES);
        let pause = is_enough.then(|| pause((in_vain / SHORT_ONES).into()));
        let server = SocketAddr::new(server.ip().to_canonical(), server.port());
        let until = pause.map_or(Duration::ZERO, |pause| now + pause);
        self.write(&Lesson { server, user, in_vain, cause, until });
        pause
    }

    /// One has come to SMC-R: what has failed does not fail any more.
    pub(crate) fn note_success(&self, server: SocketAddr, user: u32) {
        if self.find(server, user).is_some_and(|lesson| lesson.cause == Cause::Failed) {
            self.forget(server, user);
        }
    }

    /// Connections to this server go by TCP for so long, whatever they are like.
    pub(crate) fn leave_out(
        &self,
        server: SocketAddr,
        user: u32,
        cause: Cause,
        pause: Duration,
        now: Duration,
    ) {
        let server = SocketAddr::new(server.ip().to_canonical(), server.port());
        self.write(&Lesson { server, user, in_vain: 1, cause, until: now + pause });
    }

    /// Why a server is left alone, or was.
    #[cfg(test)]
    pub(crate) fn cause(&self, server: SocketAddr, user: u32) -> Option<Cause> {
        self.find(server, user).map(|lesson| lesson.cause)
    }

    /// One has been worth it, for its length. That says nothing of TCP.
    pub(crate) fn forget(&self, server: SocketAddr, user: u32) {
        let is_of_length = |lesson: &Lesson| matches!(lesson.cause, Cause::Failed | Cause::Short);
        if self.find(server, user).as_ref().is_some_and(is_of_length) {
            self.put(offset(server, user), &[0; Lesson::LEN]);
        }
    }

    /// There is no adapter that is up: no server is to be asked, for so long.
    pub(crate) fn leave_all_out(&self, pause: Duration, now: Duration) {
        let server = SocketAddr::from(([0; 4], 1));
        let (user, in_vain, cause, until) = (0, 1, Cause::NoAdapter, now + pause);
        if let Ok(bytes) = (Lesson { server, user, in_vain, cause, until }).emit() {
            self.put(0, &bytes.repeat(PLACES));
        }
    }

    /// What has failed may succeed now.
    pub(crate) fn forget_all(&self) {
        self.put(0, &[0; FILE_LEN]);
    }

    fn find(&self, server: SocketAddr, user: u32) -> Option<Lesson> {
        let mut bytes = [0; Lesson::LEN];
        self.file.read_exact_at(&mut bytes, offset(server, user)).ok()?;
        let of_all = |lesson: &Lesson| lesson.cause == Cause::NoAdapter;
        let its = Lesson::parse(&bytes).ok().filter(|lesson| !of_all(lesson));
        its.filter(|lesson| lesson.is_about(server, user))
    }

    fn write(&self, lesson: &Lesson) {
        if let Ok(bytes) = lesson.emit() {
            self.put(offset(lesson.server, lesson.user), &bytes);
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        if let Err(error) = self.file.write_all_at(bytes, at) {
            log::warn!("what was learned is not remembered: {error}");
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

    fn server() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 80))
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn pauses_grow_with_failures_that_follow_each_other() {
        let lessons = Lessons::new().unwrap();
        let fail = |now| lessons.note(server(), 7, Cause::Failed, now);
        assert_eq!(fail(seconds(1000)), Some(FIRST));
        // Of the same moment.
        assert_eq!(fail(seconds(1010)), Some(FIRST - seconds(10)));
        assert_eq!(fail(seconds(1030)), Some(2 * FIRST));
        (2..20).for_each(|n| _ = fail(n * LONGEST));
        assert_eq!(fail(20 * LONGEST), Some(LONGEST));
        lessons.note_success(server(), 7);
        assert_eq!(fail(21 * LONGEST), Some(FIRST));
    }

    #[test]
    fn short_ones_are_in_vain_when_they_are_many() {
        let lessons = Lessons::new().unwrap();
        let end = |now| lessons.note(server(), 7, Cause::Short, now);
        let pauses_of = |now| (0..SHORT_ONES).map(|_| end(now)).collect::<Vec<_>>();
        let round = |pause| [vec![None; usize::from(SHORT_ONES) - 1], vec![Some(pause)]].concat();
        assert_eq!(pauses_of(seconds(1000)), round(FIRST));
        assert_eq!(end(seconds(1010)), Some(FIRST - seconds(10)));
        assert_eq!(pauses_of(seconds(1030)), round(2 * FIRST));
        (2..20).for_each(|n| _ = pauses_of(n * LONGEST));
        assert_eq!(pauses_of(20 * LONGEST), round(LONGEST));
        // That they come to SMC-R was clear.
        lessons.note_success(server(), 7);
        assert_eq!(pauses_of(21 * LONGEST), round(LONGEST));
        lessons.forget(server(), 7);
        assert_eq!(pauses_of(22 * LONGEST), round(FIRST));
    }

    #[test]
    fn each_user_has_its_own() {
        let lessons = Lessons::new().unwrap();
        lessons.note(server(), 7, Cause::Failed, seconds(1000));
        assert!(lessons.find(server(), 7).is_some() && lessons.find(server(), 8).is_none());
        lessons.forget(server(), 8);
        assert!(lessons.find(server(), 7).is_some());
        lessons.forget_all();
        assert!(lessons.find(server(), 7).is_none());
    }

    #[test]
    fn others_can_only_read() {
        let lessons = Lessons::new().unwrap();
        lessons.note(server(), 7, Cause::Failed, seconds(1000));
        let theirs = File::from(lessons.read_only().try_clone_to_owned().unwrap());
        let mut bytes = [0; Lesson::LEN];
        theirs.read_exact_at(&mut bytes, offset(server(), 7)).unwrap();
        assert!(Lesson::parse(&bytes).unwrap().is_about(server(), 7));
        assert!(theirs.write_all_at(&bytes, 0).is_err());
        assert_eq!(lessons.file.set_len(0).unwrap_err().kind(), ErrorKind::PermissionDenied);
        if !rustix::process::geteuid().is_root() {
            let name = format!("/proc/self/fd/{}", theirs.as_raw_fd());
            assert!(OpenOptions::new().write(true).open(name).is_err());
        }
    }
}
