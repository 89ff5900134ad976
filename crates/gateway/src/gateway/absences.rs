//! Threads that are away: each waits for the lock of a socket that a user's program has.
//!
//! A thread that was late ([`seat`](crate::seat)) holds one session, or what was handed over and is none yet, and hands it in
//! when the kernel lets it go. Until then no other thread asks a socket of the same user: so one user keeps one
//! thread from its work, and what else that user has to do with sockets waits here. What goes by SMC-R goes on.
//!
//! | Bound | |
//! |---|---|
//! | threads that are away | one for each user, [`ABSENT_MAX`] in all; beyond, no socket of any user is asked |
//! | what waits | the sessions of those users, and [`ARRIVALS_OF_USER_MAX`] that are none yet |
//!
//! A user who has kept a thread for long is a suspect for a while: the loop goes on at once when a thread asks such a user's
//! socket, and does not find out first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{io, mem};

use rustix::event::{EventfdFlags, eventfd};

use crate::control::Offer;
use crate::ends::Ends;
use crate::limits::{ABSENT_MAX, ARRIVALS_OF_USER_MAX, SUSPECT_AFTER, SUSPECT_FOR, TELL_AFTER};
use crate::rivalry::Sight;
use crate::session::{Session, Talk};

/// In the place of a user, where the sockets of all are asked.
pub(super) const EVERYBODY: u32 = u32::MAX;

/// A connection that was handed over, and what has been asked about it so far.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) offer: Offer,
    pub(super) h: TcpStream,
    pub(super) ends: Option<Ends>,
    /// Whether the IP filter denies N …
    pub(super) is_denied: Option<bool>,
    /// … or the N of this session, which is the other end.
    pub(super) other_is_denied: Option<(u64, bool)>,
}

impl Arrival {
    pub(super) fn new((offer, h): (Offer, TcpStream)) -> Self {
        Self { offer, h, ends: None, is_denied: None, other_is_denied: None }
    }
}

/// What waits for a thread that is away.
#[derive(Debug)]
pub(super) enum Waiting {
    /// It has something to do.
    Session(u64),
    Arrival(Box<Arrival>),
}

/// What a thread hands in that was late.
#[derive(Debug)]
pub(super) enum Returned {
    /// The session of this number, and what it has done.
    Session(u64, Box<Session>, Option<Talk>),
    Arrival(Box<Arrival>),
    /// What the kernel has said of all TCP connections.
    Sights(io::Result<Vec<Sight>>),
}

/// Where it is handed in, with the user whose socket has kept the thread.
#[derive(Debug)]
pub(super) struct Returns {
    returned: Mutex<Vec<(u32, Vec<Returned>)>>,
    /// Can be read when something is there.
    bell: OwnedFd,
}

impl Returns {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { returned: Mutex::default(), bell })
    }

    pub(super) fn hand_in(&self, user: u32, returned: Vec<Returned>) {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).push((user, returned));
        // It is full only if it has been rung as often as it can count.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> Vec<(u32, Vec<Returned>)> {
        // First: what comes later rings again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        mem::take(&mut *self.returned.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for Returns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A thread that is away.
#[derive(Debug)]
struct Absent {
    since: Duration,
    /// The log knows.
    is_told: bool,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Absences {
    /// Whose socket the thread asks that has left the loop in its seat.
    asked: Option<u32>,
    absent: BTreeMap<u32, Absent>,
    suspects: HashMap<u32, Duration>,
    waiting: VecDeque<(u32, Waiting)>,
}

impl Absences {
    /// Whether a socket of this user can be asked: no thread is away for one.
    pub(super) fn may_ask(&self, user: u32) -> bool {
        !self.absent.contains_key(&user) && self.absent.len() < ABSENT_MAX
    }

    /// A thread is about to ask a socket of this user. Returns whether the loop is not to wait for it.
    pub(super) fn ask(&mut self, user: u32, now: Duration) -> bool {
        self.asked = Some(user);
        self.suspects.get(&user).is_some_and(|until| *until > now)
    }

    /// It has the answer, in time.
    pub(super) const fn is_answered(&mut self) {
        self.asked = None;
    }

    /// Another thread runs the loop. Whatever the one before it has asked is still to be answered.
    pub(super) fn begin(&mut self, now: Duration) {
        if let Some(user) = self.asked.take() {
            log::debug!("a thread waits for a socket of user {user}");
            self.absent.insert(user, Absent { since: now, is_told: false });
        }
    }

    /// Puts something off until a socket of this user can be asked. False: there is no room.
    pub(super) fn put_off(&mut self, user: u32, what: Waiting) -> bool {
        let is_arrival = |it: &&(u32, Waiting)| it.0 == user && matches!(it.1, Waiting::Arrival(_));
        let has_room = matches!(what, Waiting::Session(_))
            || self.waiting.iter().filter(is_arrival).count() < ARRIVALS_OF_USER_MAX;
        if has_room {
            self.waiting.push_back((user, what));
        }
        has_room
    }

    /// The thread is back that has asked a socket of this user. Returns what can go on now.
    pub(super) fn end(&mut self, user: u32, now: Duration) -> Vec<Waiting> {
        if let Some(Absent { since, is_told }) = self.absent.remove(&user) {
            let time = now.saturating_sub(since);
            if is_told {
                log::info!("a program of user {user} has let its socket go");
            }
            self.suspects.retain(|_, until| *until > now);
            if time >= SUSPECT_AFTER && user != EVERYBODY {
                self.suspects.insert(user, now + SUSPECT_FOR);
            }
        }
        let waiting = mem::take(&mut self.waiting);
        let (free, rest): (VecDeque<_>, _) =
            waiting.into_iter().partition(|(user, _)| self.may_ask(*user));
        self.waiting = rest;
        free.into_iter().map(|(_, what)| what).collect()
    }

    /// When the log is to be told of a thread.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let due = |it: &Absent| (!it.is_told).then_some(it.since + TELL_AFTER);
        self.absent.values().filter_map(due).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Duration) {
        for (user, absent) in &mut self.absent {
            if absent.is_told || absent.since + TELL_AFTER > now {
                continue;
            }
            absent.is_told = true;
            match *user {
                EVERYBODY => log::warn!(
                    "the kernel does not tell what TCP carries: a program keeps the lock of its socket"
                ),
                user => log::warn!(
                    "a program of user {user} keeps the lock of its socket: what that user's other connections do \
                     by TCP waits. A thread of it sleeps in a send whose memory does not come (FUSE, userfaultfd)"
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(9);

    fn sessions(waiting: &[Waiting]) -> Vec<u64> {
        let number = |it: &Waiting| match it {
            Waiting::Session(number) => *number,
            Waiting::Arrival(_) => unreachable!(),
        };
        waiting.iter().map(number).collect()
    }

    /// A thread asks a socket of this user, and is late.
    fn leave(absences: &mut Absences, user: u32) {
        assert!(absences.may_ask(user));
        absences.ask(user, Duration::ZERO);
        absences.begin(Duration::ZERO);
    }

    #[test]
    fn one_thread_is_away_for_a_user_and_what_else_is_that_users_waits() {
        let mut absences = Absences::default();
        absences.ask(7, Duration::ZERO);
        absences.is_answered();
        absences.begin(Duration::ZERO);
        assert!(absences.may_ask(7), "the answer was in time");
        leave(&mut absences, 7);
        assert!(!absences.may_ask(7) && absences.may_ask(8));
        leave(&mut absences, 8);
        for (user, number) in [(7, 1), (8, 2), (7, 3)] {
            assert!(absences.put_off(user, Waiting::Session(number)));
        }
        assert_eq!(sessions(&absences.end(7, LATER)), [1, 3], "in their order");
        assert_eq!(sessions(&absences.end(8, LATER)), [2]);
        assert!(absences.may_ask(7) && absences.may_ask(8));
    }

    #[test]
    fn who_keeps_a_thread_for_long_is_a_suspect_for_a_while() {
        let mut absences = Absences::default();
        leave(&mut absences, 7);
        absences.end(7, SUSPECT_AFTER / 2);
        assert!(!absences.ask(7, SUSPECT_AFTER));
        absences.is_answered();
        leave(&mut absences, 7);
        absences.end(7, LATER);
        assert!(absences.ask(7, LATER) && !absences.ask(8, LATER));
        assert!(!absences.ask(7, LATER + SUSPECT_FOR));
    }

    #[test]
    fn with_too_many_away_nobody_is_asked() {
        let mut absences = Absences::default();
        (0..ABSENT_MAX as u32).for_each(|user| leave(&mut absences, user));
        assert!(!absences.may_ask(1 << 20));
        assert!(absences.put_off(1 << 20, Waiting::Session(1)));
        assert_eq!(sessions(&absences.end(3, LATER)), [1]);
    }

    #[test]
    fn the_log_is_told_once() {
        let mut absences = Absences::default();
        assert_eq!(absences.poll_timeout(), None);
        leave(&mut absences, 7);
        assert_eq!(absences.poll_timeout(), Some(TELL_AFTER));
        absences.handle_timeout(TELL_AFTER);
        assert_eq!(absences.poll_timeout(), None);
    }
}
