//! The same calls on two connections: one of the kernel's alone, and one of ours.
//!
//! ```text
//!               list of calls, drawn from a seed
//!                   │                   │
//!        plain TCP, both ends     ours: on TCP, moving, moved, moving back
//!                   │                   │
//!               answers     ==      answers: numbers, errors, bytes, events
//! ```
//!
//! The kernel is the oracle, so nothing here says what a call ought to answer. Where its answer is not
//! determined by the list, or ours is another on purpose, [`ALLOWED`] has the case and the reason.
//!
//! What TCP leaves open is kept out: at most [`ROOM`] bytes and [`SEGMENTS`] messages are on their way, so
//! that each send is taken whole and at once, and nothing goes on before it has arrived
//! ([`Pair::settle`]). A list is played again when it seems wrong, and is wrong if it always is.

use crate::call::{self, Returned};
use crate::operation::{Call, Deck, List, Operation};
use crate::pair::{self, Ends, Pair, Stage};
use crate::processes::Child;
use crate::seeds::{named_or, run};
use proptest::test_runner::TestCaseError;
use std::fmt::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes that may be unread in one direction: no send finds the ring or a window full.
const ROOM: usize = 12 << 10;

/// Messages that may be unread in one direction: of ten, TCP sends the last only when an
/// acknowledgement has come.
const SEGMENTS: usize = 8;

/// How often a list has to be wrong to be called so.
const TRIALS: u32 = 4;

/// What a call that may wait waits for: [`Call::DontWait`].
const PATIENCE_US: i32 = 1000;

/// A case in which the answers may differ.
struct Allowed {
    why: &'static str,
    is_it: fn(&Seen<'_>) -> bool,
    /// The connections are not the same afterwards: the list ends.
    parts: bool,
}

/// A call, and both answers.
struct Seen<'a> {
    call: &'a Call,
    ours: &'a Returned,
    plain: &'a Returned,
    /// What `poll` says of our end right behind the call.
    ready: u32,
    /// An operator has demoted the connection, and a direction of it has ended.
    ended_beside_tcp: bool,
    /// The set was looked at by way of the one around it.
    was_looked_at: bool,
    /// The end is watched by edges.
    is_edge: bool,
    /// A call on it has failed as it does on a connection that is over.
    was_told: bool,
    /// The peer has marked a byte when this end had shut both directions.
    has_late_mark: bool,
    /// The child has ended, and was the last to hold an end.
    has_child_ended_it: bool,
}

impl Seen<'_> {
    /// The answers, as errors or counts.
    fn are(&self, ours: i64, plain: i64) -> bool {
        (self.ours.value, self.plain.value) == (ours, plain)
    }
}

const ENOTCONN: i64 = -(libc::ENOTCONN as i64);

/// All of them.
const ALLOWED: [Allowed; 8] = [
    Allowed {
        why: "that the peer's process has ended by itself is noticed at a later call (docs/limitations.md)",
        is_it: |seen| seen.has_child_ended_it,
        parts: true,
    },
    Allowed {
        why: "an edge may be told again, if it is so",
        is_it: |seen| {
            let ours = (seen.ours.value >> 16) as u32;
            matches!(seen.call, Call::Wait { .. })
                && seen.is_edge
                && seen.plain.value == 0
                && ours & !seen.ready == 0
        },
        parts: false,
    },
    Allowed {
        why: "no edge tells of a reset that a call has told of before",
        is_it: |seen| {
            matches!(seen.call, Call::Wait { .. })
                && seen.is_edge
                && seen.was_told
                && seen.ours.value == 0
        },
        parts: true,
    },
    Allowed {
        why: "what a look from outside has taken off the kernel's list is told as it was then, and not as it is now",
        is_it: |seen| {
            matches!(seen.call, Call::Wait { .. }) && seen.was_looked_at && seen.ours.value > 0
        },
        parts: true,
    },
    Allowed {
        why: "while a direction goes by TCP again the kernel answers beside us, and knows less of ends",
        is_it: |seen| seen.ended_beside_tcp,
        parts: true,
    },
    Allowed {
        why: "an urgent byte to an end that has shut both directions resets the connection; the kernel has \
              noted the mark before, and goes on to tell of it",
        is_it: |seen| seen.has_late_mark,
        parts: true,
    },
    Allowed {
        why: "the kernel gives no urgent byte out of band once the connection was reset; we give one \
              that had arrived",
        is_it: |seen| {
            matches!(seen.call, Call::Receive { flags, .. } if flags & libc::MSG_OOB != 0)
                && seen.plain.value == ENOTCONN
        },
        parts: true,
    },
    Allowed {
        why: "whether the peer has acknowledged a FIN by now (FIN_WAIT1, FIN_WAIT2) no call can tell",
        is_it: |seen| matches!(seen.call, Call::Option(_, libc::TCP_INFO)) && seen.are(5, 4),
        parts: false,
    },
];

/// How often each was allowed.
static TIMES: [AtomicU32; ALLOWED.len()] = [const { AtomicU32::new(0) }; ALLOWED.len()];

/// Plays the lists of the seeds that the environment names, or else of these.
pub(crate) fn play_all(deck: Deck, seeds: std::ops::Range<u64>) {
    let stage = Stage::enter();
    for seed in named_or(seeds) {
        play_seed(&stage, deck, seed);
    }
    for (allowed, times) in ALLOWED.iter().zip(&TIMES) {
        println!("{:6} times: {}", times.swap(0, Ordering::Relaxed), allowed.why);
    }
}

/// Plays one list, in which both have to answer the same.
pub(crate) fn play_list(list: &List) {
    let stage = Stage::enter();
    if let Some(story) = is_wrong(&stage, list) {
        panic!("{list:?}\n{story}");
    }
}

fn play_seed(stage: &Stage, deck: Deck, seed: u64) {
    run(seed, deck.lists(), |list| match is_wrong(stage, &list) {
        Some(story) => Err(TestCaseError::fail(story)),
        None => Ok(()),
    });
}

/// What goes wrong whenever a list is played.
fn is_wrong(stage: &Stage, list: &List) -> Option<String> {
    (0..TRIALS).map_while(|_| Twins::new(stage, list).play(list)).nth(TRIALS as usize - 1)
}

/// The two connections, and what else a program has.
struct Twins {
    /// Another process that holds all ends, too. It goes first.
    child: Option<Child>,
    both: Both,
    /// Bytes that each side has sent, and received from the other.
    sent: [usize; 2],
    received: [usize; 2],
    /// Messages that each side has sent since the other had read them all.
    unread: [usize; 2],
    /// Whether each side has marked a byte as urgent since the other has read last.
    marked: [bool; 2],
    /// Whether the last read of each side has stopped before an urgent byte.
    stood: [bool; 2],
    /// Which of two things each side has seen, that do not go together: see [`Self::within_limits`].
    has_urgent: [bool; 2],
    has_offset: [bool; 2],
    has_forked: bool,
    has_child_left: bool,
    has_ended: bool,
    is_demoted: bool,
    was_looked_at: [bool; 2],
    is_edge: [bool; 2],
    was_told: [bool; 2],
    /// What each side has shut down, as bits: input, output.
    shut: [i32; 2],
    has_late_mark: [bool; 2],
    story: String,
}

/// One connection of ours and one of the kernel's, of one process.
pub(crate) struct Both {
    ours: Program,
    plain: Program,
}

impl Both {
    /// Makes a call on both; `None`: that end is not open here.
    pub(crate) fn play(&mut self, side: usize, call: &Call, first: usize) -> Option<[Returned; 2]> {
        let ours = self.ours.play(side, call, first);
        let plain = self.plain.play(side, call, first);
        let (mut ours, plain) = (ours?, plain?);
        self.complete(side, call, &mut ours, plain.value);
        Some([ours, plain])
    }

    /// A `splice` may end early: where a direction changes between TCP and the ring, and at the end of the
    /// ring's memory. The rest is there at once.
    fn complete(&mut self, side: usize, call: &Call, ours: &mut Returned, wanted: i64) {
        while let Call::SpliceOut { .. } = call
            && (1..wanted).contains(&ours.value)
        {
            let len = (wanted - ours.value) as usize;
            let rest = self.ours.play(side, &Call::SpliceOut { len }, 0).expect("open");
            if rest.value <= 0 {
                return;
            }
            ours.value += rest.value;
            ours.bytes.extend(rest.bytes);
        }
    }

    /// What the kernel says of the ends that are open here.
    pub(crate) fn tcp(&self) -> [Ends; 2] {
        [self.ours.pair.tcp(), self.plain.pair.tcp()]
    }
}

/// One connection, and sets and a pipe for its ends.
pub(crate) struct Program {
    pub(crate) pair: Pair,
    /// For each side a set, and one around it.
    sets: [[i32; 2]; 2],
    is_watched: [bool; 2],
    pipe: [OwnedFd; 2],
    file: OwnedFd,
}

/// A number by which a set around another one reports it.
const INNER: u64 = 1;
/// And by which an end is reported.
const END: u64 = 2;

/// Whether calls on a connection wait.
#[derive(Clone, Copy)]
pub(crate) enum Waits {
    /// Not at first, and not for long when they are told to.
    Never,
    /// For so many seconds, after which something hangs.
    Long(i32),
}

impl Waits {
    /// `struct timeval` in words of 32 bits.
    fn time_out(self) -> [i32; 4] {
        match self {
            Self::Never => [0, 0, PATIENCE_US, 0],
            Self::Long(seconds) => [seconds, 0, 0, 0],
        }
    }
}

impl Program {
    pub(crate) fn new(pair: Pair, waits: Waits) -> Self {
        let sets = [(); 2].map(|()| [(); 2].map(|()| call::new_set(pair.is_known)));
        for [inner, outer] in sets {
            let events = libc::EPOLLIN as u32;
            assert_eq!(call::control(outer, libc::EPOLL_CTL_ADD, inner, events, INNER).value, 0);
        }
        for fd in pair.fds() {
            call::set_nonblocking(fd, matches!(waits, Waits::Never));
            for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let time = waits.time_out();
                assert_eq!(call::set_option(fd, libc::SOL_SOCKET, name, &time).value, 0);
            }
        }
        Self { pair, sets, is_watched: [false; 2], pipe: pipe(), file: file() }
    }

    /// Makes a call. `first`: the position in the stream of the next byte that this side sends.
    pub(crate) fn play(&mut self, side: usize, call: &Call, first: usize) -> Option<Returned> {
        let fd = self.pair.fd(side)?;
        let [inner, outer] = self.sets[side];
        Some(match call {
            Call::Send { len, parts, urgent } => {
                let flags = if *urgent { libc::MSG_OOB } else { 0 };
                call::send(fd, &pattern(first, *len), parts, flags)
            }
            Call::SendFile { len } => call::send_file(fd, self.file.as_raw_fd(), first, *len),
            Call::SpliceIn { len } => self.splice_in(fd, &pattern(first, *len)),
            Call::Receive { len, parts, flags } => call::receive(fd, *len, parts, *flags),
            Call::SpliceOut { len } => self.splice_out(fd, *len),
            Call::Poll(events) => call::poll(fd, *events, Duration::ZERO),
            Call::Select => call::select(fd),
            Call::Watch(events) => {
                let operation =
                    if self.is_watched[side] { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
                self.is_watched[side] = true;
                call::control(inner, operation, fd, *events, END)
            }
            Call::Unwatch => {
                self.is_watched[side] = false;
                call::control(inner, libc::EPOLL_CTL_DEL, fd, 0, 0)
            }
            Call::Wait { outside } => events(if *outside { outer } else { inner }),
            Call::CountUnread => call::unread(fd),
            Call::LookForMark => call::at_mark(fd),
            Call::Option(level, name) => call::option(fd, *level, *name),
            Call::Name => call::peer_name(fd),
            Call::LowWater(bytes) => {
                call::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &[*bytes])
            }
            Call::InLine(on) => {
                call::set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &[i32::from(*on)])
            }
            Call::PeekOffset(at) => {
                call::set_option(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &[*at])
            }
            Call::Linger(on) => {
                call::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[i32::from(*on), 0])
            }
            Call::DontWait(on) => {
                call::set_nonblocking(fd, *on);
                Returned::number(0)
            }
            Call::Renumber => self.renumber(side, fd, |fd| {
                let new = call::duplicate(fd);
                call::close(fd);
                new
            }),
            Call::PassOn => self.renumber(side, fd, call::pass_on),
            Call::Shutdown(how) => call::shutdown(fd, *how),
            Call::Close => {
                self.pair.close(side);
                Returned::number(0)
            }
            Call::Fork | Call::Leave => return None,
            Call::Demote(on_tcp) => {
                self.pair.ends.iter().flatten().for_each(|end| end.hold(*on_tcp));
                Returned::number(0)
            }
        })
    }

    /// What is left in the pipe is part of the answer.
    fn splice_in(&self, fd: i32, bytes: &[u8]) -> Returned {
        let [out, into] = self.pipe.each_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: so many bytes.
        unsafe { libc::write(into, bytes.as_ptr().cast(), bytes.len()) };
        let spliced = call::splice_in(fd, out, bytes.len());
        Returned { bytes: drain(out), ..spliced }
    }

    fn splice_out(&self, fd: i32, len: usize) -> Returned {
        let [out, into] = self.pipe.each_ref().map(AsRawFd::as_raw_fd);
        let spliced = call::splice_out(fd, into, len);
        Returned { bytes: drain(out), ..spliced }
    }

    fn renumber(&mut self, side: usize, fd: i32, renumber: impl Fn(i32) -> i32) -> Returned {
        // epoll would go on reporting the old number (epoll(7), question 6).
        if std::mem::take(&mut self.is_watched[side]) {
            call::control(self.sets[side][0], libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.pair.ends[side].as_mut().expect("open").fd = renumber(fd);
        Returned::number(0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.sets.iter().flatten().for_each(|set| call::close(*set));
    }
}

/// The bytes of a stream from a position on.
fn pattern(first: usize, len: usize) -> Vec<u8> {
    (first..first + len).map(|at| (at % 251) as u8).collect()
}

/// A file of them, from the beginning.
fn file() -> OwnedFd {
    use std::io::Write;
    let mut file = std::fs::File::from(memfd());
    file.write_all(&pattern(0, 251 + ROOM)).expect("memory");
    file.into()
}

fn memfd() -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: a name.
    let fd = call::forget(unsafe { libc::memfd_create(c"bytes".as_ptr(), libc::MFD_CLOEXEC) });
    // SAFETY: just made.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The ends to read from and to write to.
fn pipe() -> [OwnedFd; 2] {
    use std::os::fd::FromRawFd;
    let mut fds = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) }, 0);
    // SAFETY: just made.
    fds.map(|fd| unsafe { OwnedFd::from_raw_fd(call::forget(fd)) })
}

/// What is in a pipe.
fn drain(pipe: i32) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let mut len = 0;
    loop {
        // SAFETY: the rest of the bytes.
        let n = unsafe { libc::read(pipe, bytes[len..].as_mut_ptr().cast(), bytes.len() - len) };
        match n {
            1.. => len += n as usize,
            _ => break,
        }
    }
    bytes.truncate(len);
    bytes
}

/// What a wait without waiting reports, as one number.
fn events(epfd: i32) -> Returned {
    Returned::number(match call::wait(epfd, 4, Duration::ZERO) {
        Ok(events) => events
            .iter()
            .fold(0, |all, (data, events)| all | i64::from(*events) << (16 * (data - 1))),
        Err(error) => error,
    })
}

impl Twins {
    fn new(stage: &Stage, list: &List) -> Self {
        let pairs = [stage.known(list.is_untracked), stage.plain()];
        pairs.iter().for_each(|pair| pair.warm_up(list.warm_rounds));
        let [ours, plain] = pairs.map(|pair| Program::new(pair, Waits::Never));
        Self {
            child: None,
            both: Both { ours, plain },
            sent: [0; 2],
            received: [0; 2],
            unread: [0; 2],
            marked: [false; 2],
            stood: [false; 2],
            has_urgent: [false; 2],
            has_offset: [false; 2],
            has_forked: false,
            has_child_left: false,
            has_ended: false,
            is_demoted: false,
            was_looked_at: [false; 2],
            is_edge: [false; 2],
            was_told: [false; 2],
            shut: [0; 2],
            has_late_mark: [false; 2],
            story: String::new(),
        }
    }

    /// Plays a list; returns what came before the first difference, and that.
    fn play(mut self, list: &List) -> Option<String> {
        for (number, Operation { side, call, by_child }) in list.operations.iter().enumerate() {
            let Some(call) = self.within_limits(*side, call) else { continue };
            self.settle();
            let first = self.sent[*side] % 251;
            let answers = match (&mut self.child, &call) {
                (child, Call::Fork) => {
                    let new = || Child::fork(&mut self.both, list);
                    child.get_or_insert_with(new);
                    continue;
                }
                (_, Call::Leave) => {
                    self.has_child_left |= self.child.take().is_some();
                    continue;
                }
                (Some(child), call) if *by_child => child.play(number, call, *side, first),
                _ => self.both.play(*side, &call, first),
            };
            let Some([ours, plain]) = answers else { continue };
            self.note(*side, &call, &plain);
            let name = ["client", "server"][*side];
            let by = if *by_child && self.child.is_some() { " in the child" } else { "" };
            writeln!(self.story, "{name}{by}: {call:?} -> {ours:?}, by TCP {plain:?}")
                .expect("memory");
            if ours != plain {
                match self.allowed(*side, &call, &ours, &plain) {
                    None => return Some(self.story),
                    Some(allowed) if allowed.parts => return None,
                    Some(_) => {}
                }
            }
        }
        None
    }

    /// Waits until everything has arrived, whichever process has the ends.
    fn settle(&mut self) {
        let Self { child, both, .. } = self;
        pair::settle(|| {
            let here = both.tcp();
            let there = child.as_mut().map(Child::tcp).unwrap_or_default();
            [0, 1].map(|pair| [0, 1].map(|side| here[pair][side].or(there[pair][side])))
        });
    }

    /// The call with a length that has room; `None`: it is not made.
    fn within_limits(&mut self, side: usize, call: &Call) -> Option<Call> {
        // The kernel's offset of `SO_PEEK_OFF` counts urgent bytes, ours does not (docs/limitations.md).
        match call {
            // What a set says of a descriptor that another process has open, too: docs/limitations.md.
            Call::Watch(_) | Call::Unwatch | Call::Wait { .. } if self.has_forked => return None,
            Call::Fork => self.has_forked = true,
            Call::Send { urgent: true, .. } if self.has_offset[1 - side] => return None,
            Call::Send { urgent: true, .. } if self.is_mark_unknown(side) => return None,
            Call::Send { urgent: true, .. } => self.has_urgent[1 - side] = true,
            // What is a mark no more when it is changed was one to the kernel.
            Call::InLine(_) if self.stood[side] && self.marked[1 - side] => return None,
            Call::PeekOffset(_) if self.has_urgent[side] => return None,
            Call::PeekOffset(_) => self.has_offset[side] = true,
            _ => {}
        }
        let Some(len) = call.len() else { return Some(call.clone()) };
        let room = ROOM.saturating_sub(self.sent[side] - self.received[1 - side]);
        (self.unread[side] < SEGMENTS).then(|| call.with_len(len.min(room)))
    }

    /// Whether the peer has come to the byte that was marked last without a read that has told it: the
    /// kernel throws the byte away when another one is marked, and we do not (docs/limitations.md).
    fn is_mark_unknown(&self, side: usize) -> bool {
        self.marked[side] && self.is_at_mark(1 - side)
    }

    fn is_at_mark(&self, side: usize) -> bool {
        self.both.plain.pair.fd(side).is_some_and(|fd| call::at_mark(fd).value == 1)
    }

    /// What a call has done to the streams, as TCP says.
    fn note(&mut self, side: usize, call: &Call, plain: &Returned) {
        let moved = usize::try_from(plain.value).unwrap_or(0);
        let is_reset = [libc::ECONNRESET, libc::EPIPE].contains(&(-plain.value as i32));
        let asks_error = matches!(call, Call::Option(_, libc::SO_ERROR)) && plain.value != 0;
        self.was_told[side] |= is_reset || asks_error;
        match call {
            Call::Send { .. } | Call::SendFile { .. } | Call::SpliceIn { .. } => {
                self.sent[side] += moved;
                self.unread[side] += 1;
                let is_urgent = matches!(call, Call::Send { urgent: true, .. }) && moved > 0;
                self.marked[side] |= is_urgent;
                self.has_late_mark[1 - side] |= is_urgent && self.shut[1 - side] == 3;
            }
            Call::Receive { flags, .. } if flags & (libc::MSG_PEEK | libc::MSG_OOB) != 0 => {}
            Call::Receive { .. } | Call::SpliceOut { .. } => {
                self.received[side] += moved;
                self.marked[1 - side] &= moved == 0;
                self.stood[side] = self.is_at_mark(side);
                if self.received[side] >= self.sent[1 - side] {
                    self.unread[1 - side] = 0;
                }
            }
            Call::Shutdown(how) => {
                self.has_ended = true;
                self.shut[side] |= (how + 1) & 3;
            }
            Call::Close => self.has_ended = true,
            Call::Demote(_) => self.is_demoted = true,
            Call::Watch(events) => self.is_edge[side] = events & libc::EPOLLET as u32 != 0,
            Call::Wait { outside: true } => self.was_looked_at[side] = true,
            _ => {}
        }
    }

    fn allowed(
        &self,
        side: usize,
        call: &Call,
        ours: &Returned,
        plain: &Returned,
    ) -> Option<&'static Allowed> {
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
        let ready = |fd| call::poll(fd, all, Duration::ZERO).value as u32;
        let ready = self.both.ours.pair.fd(side).map_or(0, ready);
        let ended_beside_tcp = self.has_ended && self.is_demoted;
        let seen = Seen {
            call,
            ours,
            plain,
            ready,
            ended_beside_tcp,
            was_looked_at: self.was_looked_at[side],
            is_edge: self.is_edge[side],
            was_told: self.was_told[side],
            has_late_mark: self.has_late_mark[side],
            has_child_ended_it: self.has_child_left
                && self.both.ours.pair.ends.iter().any(Option::is_none),
        };
        let place = ALLOWED.iter().position(|allowed| (allowed.is_it)(&seen))?;
        TIMES[place].fetch_add(1, Ordering::Relaxed);
        Some(&ALLOWED[place])
    }
}
