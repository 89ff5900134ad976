//! Calls that sleep, and all that may wake them.
//!
//! ```text
//!   a thread sleeps in          and then
//!   recv, a peek, recv of all   a message comes, the peer shuts down, closes, resets,
//!   poll, select, epoll         marks a byte; another thread of this end shuts down;
//!   a send without room         the peer reads; an operator has a say first
//! ```
//!
//! Each pair of the two is played on a plain connection, and then on one of ours on TCP, moving, moved and
//! demoted: the sleeper has to be woken, and told the same. That it sleeps the kernel says, so no cell of
//! the table rests on a time.

use crate::call::{self, Returned};
use crate::operation::{Call, Operation};
use crate::pair::{MOVED, Stage};
use crate::twins::{Program, Waits};
use sidestep_device::sys;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Only a sleep without a wake-up takes so long.
const HANG: Duration = Duration::from_secs(30);

/// Of two lines of a cache and more: less than a ring, more than a message.
const LEN: usize = 200;

/// Where a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sleep {
    Receive {
        room: usize,
        flags: i32,
    },
    Poll(i16),
    Epoll(u32),
    /// Sends when nothing has room.
    Send,
}

const READERS: [Sleep; 8] = [
    Sleep::Receive { room: LEN, flags: 0 },
    Sleep::Receive { room: 2 * LEN, flags: libc::MSG_WAITALL },
    Sleep::Receive { room: LEN, flags: libc::MSG_PEEK },
    Sleep::Poll(libc::POLLIN),
    Sleep::Poll(libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI),
    Sleep::Poll(libc::POLLRDHUP),
    Sleep::Epoll(libc::EPOLLIN as u32),
    Sleep::Epoll((libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET) as u32),
];

const WRITERS: [Sleep; 3] =
    [Sleep::Send, Sleep::Poll(libc::POLLOUT), Sleep::Epoll(libc::EPOLLOUT as u32)];

impl Sleep {
    fn play(self, fd: i32, set: i32) -> Vec<Returned> {
        match self {
            Self::Receive { room, flags } => vec![call::receive(fd, room, &[], flags)],
            Self::Poll(events) => vec![call::poll(fd, events, HANG)],
            Self::Epoll(_) => {
                let told = call::wait(set, 4, HANG).expect("no error");
                told.into_iter().map(|(_, events)| Returned::number(events.into())).collect()
            }
            // How much fits depends on the path.
            Self::Send => {
                let sent = call::send(fd, &[0; LEN], &[], 0).value;
                vec![Returned::number(sent.signum())]
            }
        }
    }

    /// Whether this wakes it. A reader of bytes is not woken by less than it waits for.
    fn is_woken_by(self, wake: &[Operation]) -> bool {
        let is_message = |of: &Operation| matches!(of.call, Call::Send { urgent: false, .. });
        let is_mark = |of: &Operation| matches!(of.call, Call::Send { urgent: true, len: 1, .. });
        let sent: usize = wake.iter().filter_map(|of| of.call.len()).sum();
        match self {
            // Alone in the queue, an urgent byte is none of the stream.
            Self::Receive { .. } | Self::Poll(libc::POLLIN) | Self::Epoll(1)
                if wake.iter().all(is_mark) =>
            {
                false
            }
            Self::Receive { room, flags: libc::MSG_WAITALL } => {
                !wake.iter().any(is_message) || sent >= room
            }
            Self::Poll(libc::POLLRDHUP) => !wake.iter().any(|of| of.call.len().is_some()),
            _ => true,
        }
    }
}

/// What a thread that sleeps at one end is told when the rest is done.
fn told(program: &mut Program, sleep: Sleep, wake: &[Operation]) -> Vec<Returned> {
    let fd = program.pair.fd(SLEEPER).expect("open");
    let set = call::new_set(program.pair.is_known);
    if let Sleep::Epoll(events) = sleep {
        assert_eq!(call::control(set, libc::EPOLL_CTL_ADD, fd, events, 1).value, 0);
        if events & libc::EPOLLET as u32 != 0 {
            let _ = call::wait(set, 4, Duration::ZERO);
        }
    }
    let begin = Instant::now();
    let told = asleep(
        || sleep.play(fd, set),
        |has_woken| {
            for Operation { side, call, .. } in wake {
                program.play(*side, call, 0);
                // Of what is on its way a reader takes one part after the other.
                while matches!(call, Call::Receive { .. }) && !has_woken() {
                    program.play(*side, call, 0);
                    thread::yield_now();
                }
            }
        },
    );
    assert!(begin.elapsed() < HANG, "nobody has woken {sleep:?}: {wake:?}");
    call::close(set);
    told
}

/// What a call of another thread returns. `wake` is called when that thread sleeps, or its call is over.
fn asleep<T: Send>(call: impl FnOnce() -> T + Send, wake: impl FnOnce(&dyn Fn() -> bool)) -> T {
    let tid = AtomicU32::new(0);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            tid.store(sys::tid(), Ordering::Relaxed);
            call()
        });
        let is_asleep = || match tid.load(Ordering::Relaxed) {
            0 => false,
            tid => sys::is_asleep(tid) == Ok(true),
        };
        while !is_asleep() && !sleeper.is_finished() {
            thread::yield_now();
        }
        wake(&|| sleeper.is_finished());
        sleeper.join().expect("a call")
    })
}

const SLEEPER: usize = 0;
const PEER: usize = 1;

/// How a connection came to the moment at which one sleeps.
#[derive(Clone, Copy, Debug)]
enum Path {
    Plain,
    /// Begun with or without an object, and so many messages each way.
    Known {
        is_untracked: bool,
        messages: u32,
    },
    Demoted,
}

const PATHS: [Path; 6] = [
    Path::Known { is_untracked: false, messages: 0 },
    Path::Known { is_untracked: true, messages: 0 },
    Path::Known { is_untracked: false, messages: 9 },
    Path::Known { is_untracked: true, messages: MOVED + 1 },
    Path::Known { is_untracked: false, messages: MOVED },
    Path::Demoted,
];

impl Path {
    fn begin(self, stage: &Stage) -> Program {
        let pair = match self {
            Self::Plain => stage.plain(),
            Self::Known { is_untracked, messages } => {
                let pair = stage.known(is_untracked);
                pair.warm_up(messages);
                pair
            }
            Self::Demoted => {
                let pair = stage.moved();
                pair.ends.iter().flatten().for_each(|end| end.hold(true));
                pair.warm_up(4);
                assert!(pair.ends.iter().flatten().all(|end| !end.has_moved()), "it is on TCP");
                pair
            }
        };
        Program::new(pair, Waits::Long(HANG.as_secs() as i32))
    }
}

fn by(side: usize, call: Call) -> Operation {
    Operation { side, call, by_child: false }
}

fn message(len: usize) -> Operation {
    by(PEER, Call::Send { len, parts: Vec::new(), urgent: false })
}

fn urgent(len: usize) -> Operation {
    by(PEER, Call::Send { len, parts: Vec::new(), urgent: true })
}

/// What may come to a reader.
fn news() -> Vec<Vec<Operation>> {
    let shut = |side, how| by(side, Call::Shutdown(how));
    let close = || by(PEER, Call::Close);
    vec![
        vec![message(LEN)],
        vec![message(2 * LEN)],
        vec![message(LEN), message(LEN)],
        vec![message(LEN), shut(PEER, libc::SHUT_WR)],
        vec![shut(PEER, libc::SHUT_WR)],
        vec![shut(PEER, libc::SHUT_RDWR)],
        vec![close()],
        vec![by(PEER, Call::Linger(true)), close()],
        vec![shut(SLEEPER, libc::SHUT_RD)],
        vec![shut(SLEEPER, libc::SHUT_RDWR)],
        vec![urgent(1)],
        vec![urgent(LEN)],
    ]
}

fn assert_same(sleeps: &[Sleep], news: &[Vec<Operation>], begin: impl Fn(Path) -> Program) {
    for sleep in sleeps {
        for wake in news.iter().filter(|wake| sleep.is_woken_by(wake)) {
            let by_tcp = told(&mut begin(Path::Plain), *sleep, wake);
            for path in PATHS {
                let ours = told(&mut begin(path), *sleep, wake);
                assert!(
                    is_as_true(*sleep, &ours, &by_tcp),
                    "{sleep:?} on {path:?}, then {wake:?}: {ours:?}, by TCP {by_tcp:?}"
                );
            }
        }
    }
}

/// A sleeper may be woken by the first of several things that are done, or by the next: what it is told
/// begins as the other's does.
fn is_as_true(sleep: Sleep, ours: &[Returned], by_tcp: &[Returned]) -> bool {
    match sleep {
        Sleep::Receive { .. } => ours == by_tcp || shorter_is_begin(ours, by_tcp),
        Sleep::Send => ours == by_tcp,
        Sleep::Poll(_) | Sleep::Epoll(_) => {
            let [ours, by_tcp] = [ours, by_tcp].map(|told| told.first().map_or(0, |it| it.value));
            ours != 0 && by_tcp != 0 && (ours & !by_tcp == 0 || by_tcp & !ours == 0)
        }
    }
}

fn shorter_is_begin(ours: &[Returned], by_tcp: &[Returned]) -> bool {
    let ([ours], [by_tcp]) = (ours, by_tcp) else { return false };
    let len = ours.bytes.len().min(by_tcp.bytes.len());
    len > 0 && ours.bytes[..len] == by_tcp.bytes[..len]
}

#[test]
fn a_sleeping_reader_is_woken_and_told_as_by_tcp() {
    let stage = Stage::enter();
    assert_same(&READERS, &news(), |path| path.begin(&stage));
}

/// Fills one direction, whichever way it goes.
fn full(program: Program) -> Program {
    let fd = program.pair.fd(SLEEPER).expect("open");
    for len in [1 << 14, 1] {
        while call::send(fd, &vec![0; len], &[], libc::MSG_DONTWAIT).value > 0 {}
    }
    program
}

#[test]
fn a_sleeping_writer_is_woken_by_room_and_by_ends() {
    let stage = Stage::enter();
    let flags = libc::MSG_DONTWAIT;
    let reads = vec![by(PEER, Call::Receive { len: 1 << 20, parts: Vec::new(), flags })];
    let resets = vec![by(PEER, Call::Linger(true)), by(PEER, Call::Close)];
    let shuts = vec![by(SLEEPER, Call::Shutdown(libc::SHUT_WR))];
    assert_same(&WRITERS, &[reads, resets, shuts], |path| full(path.begin(&stage)));
}

/// Seconds, of which the kernel keeps so many as `SO_RCVTIMEO`. In nanoseconds, and in a word of 64 bits that goes
/// around, they are four microseconds.
const BEYOND_S: i64 = 1_759_579_576_958_933;

/// The same for calls, which take more: nothing.
const BEYOND: Duration = Duration::from_secs(1 << 55);

#[test]
fn a_time_out_that_no_clock_counts_does_not_end_a_sleep() {
    let stage = Stage::enter();
    let time_out = [BEYOND_S as i32, (BEYOND_S >> 32) as i32, 0, 0];
    for path in PATHS {
        let program = path.begin(&stage);
        let [fd, peer] = [SLEEPER, PEER].map(|side| program.pair.fd(side).expect("open"));
        let set = call::new_set(program.pair.is_known);
        let events = libc::EPOLLIN as u32;
        assert_eq!(call::control(set, libc::EPOLL_CTL_ADD, fd, events, 1).value, 0);
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            assert_eq!(call::set_option(fd, libc::SOL_SOCKET, name, &time_out).value, 0);
        }
        let sleeps: [&(dyn Fn() -> i64 + Sync); 4] = [
            &|| call::receive(fd, LEN, &[], 0).value,
            &|| call::receive(fd, 2 * LEN, &[], libc::MSG_WAITALL).value.min(LEN as i64),
            &|| call::poll(fd, libc::POLLIN, BEYOND).value * LEN as i64,
            &|| call::wait(set, 4, BEYOND).expect("no error").len() as i64 * LEN as i64,
        ];
        for (at, sleep) in sleeps.iter().enumerate() {
            let send = |_: &dyn Fn() -> bool| {
                for _ in 0..2 {
                    assert_eq!(call::send(peer, &[0; LEN], &[], 0).value, LEN as i64);
                }
            };
            assert_eq!(asleep(sleep, send), LEN as i64, "sleep {at} on {path:?}");
            while call::receive(fd, LEN, &[], libc::MSG_DONTWAIT).value > 0 {}
        }
        call::close(set);
    }
}
