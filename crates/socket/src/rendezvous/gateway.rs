//! Connections to other hosts: SMC-R, by the gateway of this host.
//!
//! SMC-R takes a process that is always there: the other host tests its links, asks about buffers,
//! and fails, whether or not a program makes a call. A library is there only while one does. So
//! each host has a *gateway*, a process with the adapters and the link groups, and programs reach
//! it as they reach each other.
//!
//! ```text
//!   before   descriptor ──> N, TCP to the other host
//!   after    descriptor ──> H, TCP to the gateway, and soon shared memory
//!                           gateway ──> N: CLC, then silence; SMC-R beside it
//! ```
//!
//! When the TCP option was agreed with another host, the number of the descriptor means H from
//! then on, and the gateway has N. That holds wherever the kernel serves by that number:
//! `poll` and `epoll`, forked children, programs that are begun or that get it by `SCM_RIGHTS`. So
//! bytes, readiness, errors and ends need nothing new. What is N's and shows are its addresses,
//! which are kept ([`name`](crate::program::hand_over::name)), and the options that it had, which H is given.
//!
//! No call waits for CLC: what the program sends meanwhile is on its way in H. If the two hosts do
//! not agree, the gateway passes the bytes on by TCP, and remembers that server, as it does one whose
//! connections are short: the next connections to it are not offered ([`may_lead_to`]), and are TCP
//! from their first byte.
//!
//! After a `connect` that did not wait, it is not known yet what came of the option, and the socket is
//! [offered](crate::table::offer). Not a byte may go by N then, because the other host waits for CLC: each call that
//! uses the socket, or waits for it, looks first ([`settle_offer`](crate::table::sock::Sock::settle_offer)).

use crate::process::options;
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use sidestep_device::rights;
use sidestep_device::sys::{self, Errno, UnixName};
use sidestep_proto::autocache;
use sidestep_proto::fallback::{Lack, PeerCannot, ProgramDid, Reason};
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, Greeting, Message, gateway_name};
use sidestep_wire::lessons::{self, Cause, Lesson};

/// From an attempt to reach a gateway that was in vain to the next.
const CALL_INTERVAL_NS: u64 = 1_000_000_000;

/// How long a gateway may take to greet, or to take a message: what TCP gives a SYN before it sends it again. The
/// gateway does nothing else than wait for them, so one that takes longer stands still; 200 ms is too short on a
/// host where a dozen threads wait for each CPU.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// The line to the gateway; a forked child goes on with its parent's, as long as it is the same user.
pub(crate) static LINE: Line = Line {
    lock: SharedLock::new(),
    fd: AtomicI32::new(0),
    caller: AtomicU32::new(0),
    port: AtomicU32::new(0),
    takes_agreed: AtomicBool::new(false),
    lessons: AtomicI32::new(0),
    user: AtomicU32::new(0),
    in_vain: AtomicU64::new(0),
};

pub(crate) struct Line {
    pub(crate) lock: SharedLock,
    /// Its number + 1; under the lock.
    fd: AtomicI32,
    /// The effective user who has called, or called in vain. The kernel names that one to the gateway
    /// for as long as the line lives; H is of the user who makes it.
    caller: AtomicU32,
    /// Where the gateway takes H.
    port: AtomicU32,
    /// Whether it takes connections for which a rule of TLS and SMC were agreed.
    takes_agreed: AtomicBool,
    /// The file in which the servers stand that are to be left alone: its number + 1.
    lessons: AtomicI32,
    /// Who we are there.
    user: AtomicU32,
    /// When it was last called in vain, by [`sys::coarse_ns`].
    pub(crate) in_vain: AtomicU64,
}

/// Whether connections may be offered to other hosts.
pub(crate) fn is_present() -> bool {
    let _held = Held::enter(LINE.lock.get());
    LINE.reach().is_some()
}

/// Whether those that TLS protects may be, by the gateway that was present when it was last looked for: older ones begin TLS
/// at once.
pub(super) fn takes_agreed() -> bool {
    LINE.takes_agreed.load(Ordering::Relaxed)
}

/// Whether a connection to this server may be offered to another host: there is a gateway, and it
/// has not learned that it would be in vain.
pub(crate) fn may_lead_to(server: SocketAddr) -> bool {
    is_present() && objection(server).is_none()
}

/// Why the gateway has this server left alone for now.
pub(crate) fn objection(server: SocketAddr) -> Option<Reason> {
    let lesson = {
        let _held = Held::enter(LINE.lock.get());
        LINE.lesson(server)?
    };
    let left = lesson.until.saturating_sub(Duration::from_nanos(sys::now_ns()));
    // No pause is longer: the gateway's clock would be another one.
    let is_left_alone = !left.is_zero() && left <= autocache::LONGEST;
    let options = options::current();
    match lesson.cause {
        Cause::Failed if options.autocache && is_left_alone => {
            Some(Reason::Peer(PeerCannot::FailedLately))
        }
        Cause::Short if options.autosmc && is_left_alone => {
            Some(Reason::Program(ProgramDid::ShortLately))
        }
        Cause::Compared if options.autosmc && is_left_alone => {
            Some(Reason::Program(ProgramDid::Compared))
        }
        Cause::NoAdapter if is_left_alone => Some(Reason::Lack(Lack::NoAdapter)),
        Cause::NoGain if options.autosmc && is_left_alone => {
            Some(Reason::Program(ProgramDid::NoGain))
        }
        _ => None,
    }
}

impl Line {
    /// The line, and the gateway's port. Under the lock.
    ///
    /// A program that becomes another user (a server that is root until it listens) calls again as that
    /// one: what it hands over by the old line would not be taken with an H of the new user.
    pub(crate) fn reach(&self) -> Option<(i32, u16)> {
        let caller = sys::effective_uid();
        let is_same = self.caller.swap(caller, Ordering::Relaxed) == caller;
        let fd = self.fd.load(Ordering::Relaxed) - 1;
        if fd >= 0 && is_same && !sys::is_hung_up(fd) {
            return Some((fd, self.port.load(Ordering::Relaxed) as u16));
        }
        for place in [&self.fd, &self.lessons] {
            let old = place.swap(0, Ordering::Relaxed) - 1;
            if old >= 0 {
                sys::close(old);
            }
        }
        let (now, in_vain) = (sys::coarse_ns(), self.in_vain.load(Ordering::Relaxed));
        if is_same && in_vain != 0 && now < in_vain + CALL_INTERVAL_NS {
            return None;
        }
        self.in_vain.store(now, Ordering::Relaxed);
        let (fd, Greeting { port, takes_agreed, user }, lessons) = call()?;
        self.in_vain.store(0, Ordering::Relaxed);
        self.port.store(u32::from(port), Ordering::Relaxed);
        self.takes_agreed.store(takes_agreed, Ordering::Relaxed);
        self.user.store(user, Ordering::Relaxed);
        self.lessons.store(lessons + 1, Ordering::Relaxed);
        self.fd.store(fd + 1, Ordering::Relaxed);
        Some((fd, port))
    }

    /// What the gateway has learned of a server. Under the lock.
    fn lesson(&self, server: SocketAddr) -> Option<Lesson> {
        let file = self.lessons.load(Ordering::Relaxed) - 1;
        let user = self.user.load(Ordering::Relaxed);
        let mut bytes = [0; Lesson::LEN];
        let at = lessons::offset(server, user);
        let len = (file >= 0).then(|| sys::read_at(file, &mut bytes, at))?.ok()?;
        let lesson = Lesson::parse(bytes.get(..len)?).ok()?;
        lesson.is_about(server, user).then_some(lesson)
    }
}

/// Whether one of these events comes before `end`, by [`sys::now_ns`], whatever signals the program has meanwhile: one that
/// ended the wait would be taken for the gateway's end.
pub(crate) fn comes(fd: i32, events: i16, end: u64) -> bool {
    loop {
        let left = end.saturating_sub(sys::now_ns());
        match sys::poll_until(fd, events, Some(Duration::from_nanos(left))) {
            Err(Errno(libc::EINTR)) if left > 0 => {}
            answer => return answer.is_ok_and(|count| count > 0),
        }
    }
}

/// A line for a question; the caller closes it, by [`rights::close`].
pub(crate) fn call_once() -> Option<i32> {
    let (line, _, lessons) = call()?;
    sys::close(lessons);
    Some(line)
}

/// Calls the gateway, which says at which port it takes H, and has a file to look into.
fn call() -> Option<(i32, Greeting, i32)> {
    let fd = sys::unix_packet().map(sys::move_up).ok()?;
    let greeted =
        sys::connect_unix(fd, &UnixName::new(&gateway_name())).ok().and_then(|_| greet(fd));
    if greeted.is_none() {
        // It may be a stranger's.
        rights::close(fd);
    }
    greeted.map(|(greeting, lessons)| (fd, greeting, lessons))
}

fn greet(fd: i32) -> Option<(Greeting, i32)> {
    let gateway = sys::peer_user(sys::seat(fd)).ok()?;
    if ![0, sys::effective_uid()].contains(&gateway) {
        crate::log!(Warn, "a gateway of user {gateway} is not used");
        return None;
    }
    let mut bytes = [0; EMITTED_LEN_MAX];
    comes(sys::seat(fd), libc::POLLIN, sys::deadline(PATIENCE)).then_some(())?;
    let received = sys::recv_with_fds(fd, &mut bytes).ok()?;
    match (Message::parse(&bytes[..received.len]), received.fds()) {
        (Ok(Message::Greeting(greeting)), &[lessons]) => Some((greeting, sys::move_up(lessons))),
        (other, _) => {
            received.close_fds();
            match other {
                Ok(_) => crate::log!(Warn, "the gateway does not begin with its greeting"),
                Err(error) => {
                    crate::log!(Warn, "the greeting of the gateway cannot be read: {error}")
                }
            }
            None
        }
    }
}
