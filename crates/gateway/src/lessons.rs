//! What connections to other hosts teach: AUTOCACHE and AUTOSMC, for the programs of this host.
//!
//! A connection that does not come to SMC-R is passed on between H and N for as long as it lives, and
//! one that ends after a few messages has cost more than it gained. The next one need not: libraries
//! look here before they connect, and leave out the TCP option. What they look at is a memory file
//! ([`sidestep_wire::lessons`]) of which they have a descriptor that only reads, so that looking costs
//! them one system call and nobody has to answer.
//!
//! A server is left alone after a failure that costs time, after [`patience`] declined connections in a
//! row, or after [`SHORT_ONES`] short ones, and each time that comes again for longer. In between so many may try. A
//! server that declines does so at once, and may be one of several behind an address: the others are to go on.
//!
//! Each user has lessons of its own: nobody can keep another one's connections from SMC-R.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};
use sidestep_proto::autocache::{patience, pause};
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

    /// The server has declined a connection of this user's. How long the server is left alone now, if it is.
    pub(crate) fn note_decline(
        &self,
        server: SocketAddr,
        user: u32,
        now: Duration,
    ) -> Option<Duration> {
        let before = self.find(server, user).unwrap_or_else(|| nothing_about(server, user));
        if before.until > now {
            return Some(before.until - now);
        }
        let declined = before.declined.saturating_add(1);
        if u32::from(declined) >= patience(before.has_accepted) {
            return self.note(server, user, Cause::Failed, now);
        }
        self.write(&Lesson { declined, ..before });
        None
    }

    /// The server has accepted a connection of this user's, which may take far longer to come to SMC-R than
    /// others take to be declined by another server at that address. Of a server of which nothing is known that is noted at first
    /// contact alone: each place that is taken may be another server's.
    pub(crate) fn note_accept(&self, server: SocketAddr, user: u32, is_first_contact: bool) {
        let before = self.find(server, user);
        if let Some(before) = before.or(is_first_contact.then(|| nothing_about(server, user))) {
            self.write(&Lesson { declined: 0, has_accepted: true, ..before });
        }
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
        let lesson = self.find(server, user).unwrap_or_else(|| nothing_about(server, user));
        // Connections that were begun together teach it once.
        if lesson.until > now {
            return Some(lesson.until - now);
        }
        let before = if lesson.in_vain >= MOST { MOST - SHORT_ONES } else { lesson.in_vain };
        let (in_vain, declined) = match cause {
            Cause::Failed => ((before / SHORT_ONES + 1) * SHORT_ONES, 0),
            Cause::Short | Cause::Compared | Cause::NoGain | Cause::NoAdapter => {
                (before + 1, lesson.declined)
            }
        };
        let is_enough = in_vain.is_multiple_of(SHORT_ONES);
        let pause = is_enough.then(|| pause((in_vain / SHORT_ONES).into()));
        let until = pause.map_or(Duration::ZERO, |pause| now + pause);
        self.write(&Lesson { in_vain, cause, until, declined, ..lesson });
        pause
    }

    /// One has come to SMC-R: what has failed does not fail any more, or not always.
    pub(crate) fn note_success(&self, server: SocketAddr, user: u32) {
        let Some(lesson) = self.find(server, user) else { return };
        let (in_vain, until) = match lesson.cause {
            Cause::Failed => (0, Duration::ZERO),
            _ => (lesson.in_vain, lesson.until),
        };
        self.write(&Lesson { in_vain, until, declined: 0, has_accepted: true, ..lesson });
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
        let lesson = nothing_about(server, user);
        self.write(&Lesson { in_vain: 1, cause, until: now + pause, ..lesson });
    }

    /// Why a server is left alone, or was.
    #[cfg(test)]
    pub(crate) fn cause(&self, server: SocketAddr, user: u32) -> Option<Cause> {
        self.find(server, user).map(|lesson| lesson.cause)
    }

    /// One has been worth it, for its length. That says nothing of TCP, nor of what declines there.
    pub(crate) fn forget(&self, server: SocketAddr, user: u32) {
        let is_of_length = |lesson: &Lesson| matches!(lesson.cause, Cause::Failed | Cause::Short);
        if let Some(lesson) = self.find(server, user).filter(is_of_length) {
            self.write(&Lesson { in_vain: 0, until: Duration::ZERO, ..lesson });
        }
    }

    /// There is no adapter that is up: no server is to be asked, for so long.
    pub(crate) fn leave_all_out(&self, pause: Duration, now: Duration) {
        let server = SocketAddr::from(([0; 4], 1));
        let (in_vain, cause, until) = (1, Cause::NoAdapter, now + pause);
        let lesson = Lesson { in_vain, cause, until, ..nothing_about(server, 0) };
        if let Ok(bytes) = lesson.emit() {
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

const fn nothing_about(server: SocketAddr, user: u32) -> Lesson {
    let server = SocketAddr::new(server.ip().to_canonical(), server.port());
    let (cause, until) = (Cause::Failed, Duration::ZERO);
    Lesson { server, user, in_vain: 0, cause, until, declined: 0, has_accepted: false }
}

/// The clock by which libraries look.
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
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
    fn a_server_that_declines_is_left_alone_after_some_in_a_row() {
        let lessons = Lessons::new().unwrap();
        let decline = |now| lessons.note_decline(server(), 7, now);
        let declines = |count: usize, now| (0..count).map(|_| decline(now)).collect::<Vec<_>>();
        let run = |count: usize, pause| [vec![None; count - 1], vec![Some(pause)]].concat();
        assert_eq!(declines(8, seconds(1000)), run(8, FIRST));
        assert_eq!(decline(seconds(1010)), Some(FIRST - seconds(10)));
        assert_eq!(declines(8, seconds(1030)), run(8, 2 * FIRST));
        // Where some connections succeed, it takes more of them, and pauses begin anew.
        lessons.note_success(server(), 7);
        assert_eq!(declines(64, seconds(2000)), run(64, FIRST));
        // What costs time is not tried as often.
        lessons.note_success(server(), 7);
        assert_eq!(lessons.note(server(), 7, Cause::Failed, seconds(3000)), Some(FIRST));
    }

    /// As of sixty that are begun together, some behind a first contact.
    #[test]
    fn declines_before_the_first_connection_has_moved_are_not_all_that_the_address_says() {
        let lessons = Lessons::new().unwrap();
        lessons.note_accept(server(), 8, false);
        assert_eq!(lessons.find(server(), 8), None);
        lessons.note_accept(server(), 7, true);
        assert!((0..20).all(|_| lessons.note_decline(server(), 7, seconds(1000)).is_none()));
        lessons.note_accept(server(), 7, false);
        assert!((0..63).all(|_| lessons.note_decline(server(), 7, seconds(1000)).is_none()));
        assert_eq!(lessons.note_decline(server(), 7, seconds(1000)), Some(FIRST));
    }

    #[test]
    fn declines_between_short_ones_do_not_hide_them() {
        let lessons = Lessons::new().unwrap();
        let turn = || {
            assert_eq!(lessons.note_decline(server(), 7, seconds(1000)), None);
            lessons.note_success(server(), 7);
            lessons.note(server(), 7, Cause::Short, seconds(1000))
        };
        let turns: Vec<_> = (0..SHORT_ONES).map(|_| turn()).collect();
        assert_eq!(turns.last(), Some(&Some(FIRST)));
        assert!(turns[..turns.len() - 1].iter().all(Option::is_none));
    }

    /// Three servers behind one address of which one declines: hardly a connection of the others' is kept
    /// on TCP, at any rate of connections.
    #[test]
    fn one_of_three_that_declines_keeps_hardly_a_connection_from_the_others() {
        const CONNECTIONS: u64 = 20_000;
        for seed in 0..32 {
            let mut rng = StdRng::seed_from_u64(seed);
            let lessons = Lessons::new().unwrap();
            let interval = Duration::from_millis(rng.random_range(1..500));
            let (mut others, mut moved) = (0, 0);
            for turn in 0..CONNECTIONS {
                let now = seconds(1000) + interval * u32::try_from(turn).unwrap();
                let declines = rng.random_range(0..3) == 0;
                others += u64::from(!declines);
                if lessons.find(server(), 7).is_some_and(|lesson| lesson.until > now) {
                    continue;
                }
                if declines {
                    lessons.note_decline(server(), 7, now);
                } else {
                    lessons.note_success(server(), 7);
                    moved += 1;
                    // One that was long ends.
                    lessons.forget(server(), 7);
                }
            }
            assert!(moved * 100 >= others * 99, "seed {seed}: {moved} of {others}");
        }
    }

    #[test]
    fn a_server_that_always_declines_is_hardly_asked() {
        let lessons = Lessons::new().unwrap();
        let (mut asked, day) = (0, 24 * 3600);
        for now in (1000..1000 + day).map(seconds) {
            if lessons.find(server(), 7).is_none_or(|lesson| lesson.until <= now) {
                asked += 1;
                lessons.note_decline(server(), 7, now);
            }
        }
        // At first 6 pauses of an hour in all, then one in 20 minutes.
        assert!(asked <= 8 * (6 + 3 * 24), "{asked} in a day");
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
