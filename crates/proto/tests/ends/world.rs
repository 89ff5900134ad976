//! What two ends share, and the kernel below them.
//!
//! Each change of a word is a step of its own. So are the parts of a look: the own words, the peer's, the
//! cursors.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use sidestep_proto::cut_over::is_ring;
use sidestep_proto::ends::{Kernel, Note, Output, Own, Reset, Said, Say, Seen, What, Words};

use crate::checker::Checker;
use crate::tcp::Tcp;

/// A mistake that is planted, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A receive reads the cursors before the peer's words: an end is told before the last byte.
    LooksAtCursorsFirst,
    /// Two threads may claim one reset.
    ClaimsTwice,
    /// An error that was taken stays.
    LeavesError,
    /// `SO_LINGER` is not said.
    ForgetsLinger,
    /// A FIN behind which a reset comes is forgotten.
    ForgetsFin,
    /// A FIN by TCP is taken for the end of the peer.
    ForgetsFinByTcp,
    /// The peer's end is noted as gone before its reset.
    NotesGoneFirst,
    /// A close is not said: the reset for a bell is taken for one of the connection.
    ForgetsClosed,
    /// No hint behind a close.
    ForgetsHint,
    /// A hint counts as followed before it is.
    FollowsHintsFirst,
    /// That both directions are shut down is not said.
    ForgetsRefusal,
    /// A write behind the end is not answered with a reset.
    ForgetsLateWrite,
    /// A late write does not reset the peer that refuses it.
    ForgetsAbort,
    /// What has ended without an error is taken for an end in order, though another thread has taken the error.
    IgnoresSilence,
}

/// All of them, each with a world that finds it.
pub(crate) const FAULTS: [(Fault, u64); 14] = [
    (Fault::LooksAtCursorsFirst, 12),
    (Fault::ClaimsTwice, 177),
    (Fault::LeavesError, 6),
    (Fault::ForgetsLinger, 442),
    (Fault::ForgetsFin, 36),
    (Fault::ForgetsFinByTcp, 1228),
    (Fault::NotesGoneFirst, 891),
    (Fault::ForgetsClosed, 319),
    (Fault::ForgetsHint, 12),
    (Fault::FollowsHintsFirst, 30),
    (Fault::ForgetsRefusal, 156),
    (Fault::ForgetsLateWrite, 6),
    (Fault::ForgetsAbort, 6),
    (Fault::IgnoresSilence, 520),
];

/// One end: its own words, its record, and what it sends.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) own: Own,
    pub(crate) record: Said,
    /// Hints that were given, and those of the peer that were followed.
    pub(crate) hints: u32,
    pub(crate) followed_hints: u32,
    /// Turns of the own direction, and those of the peer's that were followed.
    pub(crate) turns: u32,
    pub(crate) followed: u32,
    /// Bytes in the own ring, and in the TCP stream that the own direction has sent.
    pub(crate) ring: VecDeque<u64>,
    pub(crate) by_tcp: VecDeque<u64>,
    /// Bytes sent, and bytes of the peer that were received.
    pub(crate) sent: u64,
    pub(crate) got: u64,
    pub(crate) is_locked: bool,
    pub(crate) runs: bool,
    /// It is closing, or about to end: no call begins.
    pub(crate) is_over: bool,
    /// Calls under way.
    pub(crate) calls: u32,
    /// Calls that have begun.
    pub(crate) begun: u64,
    /// A thread shuts down.
    pub(crate) is_shutting: bool,
    /// A thread has asked for the error of TCP when another one had taken it, and had not written it down.
    pub(crate) misses_error: bool,
    /// Several threads make its calls.
    pub(crate) has_threads: bool,
    /// There was a reset from outside.
    pub(crate) is_broken: bool,
    /// Bells of the peer may lie in the queue, which the kernel takes for bytes that were left unread.
    pub(crate) has_bell: bool,
}

pub(crate) struct World {
    pub(crate) ends: [End; 2],
    /// What TCP carries: bells, and directions that do not go through their ring.
    pub(crate) kernel: Tcp,
    pub(crate) checker: Checker,
    pub(crate) fault: Option<Fault>,
    /// What came to pass, if that was asked for.
    pub(crate) trace: Option<Vec<String>>,
    /// Calls that were answered, and resets and ends that were told.
    pub(crate) calls: u64,
    pub(crate) resets: u64,
    pub(crate) ended: u64,
}

impl World {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// A reset from outside, or no answer.
    pub(crate) fn breaks(&mut self, end: usize, errno: i32) {
        self.kernel.breaks(end, errno);
        self.ends[end].is_broken = true;
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }
}

/// One end, as a thread of it sees it. Own and peer's words are those of its last look.
#[derive(Clone)]
pub(crate) struct Hand {
    pub(crate) world: Rc<RefCell<World>>,
    pub(crate) end: usize,
    own: Rc<Cell<Own>>,
    peer: Rc<Cell<Said>>,
    cursors: Rc<Cell<(bool, bool)>>,
}

impl Hand {
    pub(crate) fn new(world: Rc<RefCell<World>>, end: usize) -> Self {
        let (own, peer, cursors) = Default::default();
        Self { world, end, own, peer, cursors }
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.world.borrow_mut())
    }

    /// This end.
    pub(crate) fn mine<T>(&self, f: impl FnOnce(&mut End) -> T) -> T {
        self.with(|world| f(&mut world.ends[self.end]))
    }

    /// The other one.
    pub(crate) fn theirs<T>(&self, f: impl FnOnce(&mut End) -> T) -> T {
        self.with(|world| f(&mut world.ends[1 - self.end]))
    }

    fn has(&self, fault: Fault) -> bool {
        self.world.borrow().has(fault)
    }

    /// The first part of a look.
    pub(crate) fn looks_at_own(&self) {
        self.own.set(self.own_now());
    }

    /// Too early, for the fault.
    pub(crate) fn looks_at_cursors(&self) {
        self.cursors.set(self.cursors_now());
    }

    /// The second.
    pub(crate) fn looks_at_peer(&self) {
        self.peer.set(self.theirs(|end| end.record));
    }

    fn own_now(&self) -> Own {
        self.mine(|end| Own { sends_by_tcp: !is_ring(end.turns), ..end.own })
    }

    /// Bytes of the peer in the ring, and bytes of ours there.
    fn cursors_now(&self) -> (bool, bool) {
        (!self.theirs(|end| end.ring.is_empty()), !self.mine(|end| end.ring.is_empty()))
    }

    fn change_reset(&self, change: impl FnOnce(Reset) -> Option<Reset>) -> Option<Reset> {
        self.mine(|end| {
            let before = end.own.reset;
            end.own.reset = change(before)?;
            Some(before)
        })
    }
}

impl Words for Hand {
    fn look(&self) -> Seen {
        let (unread, unread_by_peer) = match self.has(Fault::LooksAtCursorsFirst) {
            true => self.cursors.get(),
            false => self.cursors_now(),
        };
        let mut peer = self.peer.get();
        if self.has(Fault::ForgetsFin) && peer.abort {
            peer.done = false;
        }
        if self.has(Fault::ForgetsFinByTcp) {
            peer.fin_by_tcp = false;
        }
        Seen {
            own: self.own.get(),
            peer,
            unread,
            is_next: unread && self.mine(|end| is_ring(end.followed)),
            unread_by_peer,
            peer_sends_by_tcp: self.theirs(|end| !is_ring(end.turns)),
        }
    }

    fn note(&self, note: Note) {
        self.mine(|end| match note {
            Note::Shut(what) => {
                end.own.read_shut |= what != What::Output;
                end.own.write_shut |= what != What::Input;
            }
            Note::InputEnded => end.own.input_ended = true,
            Note::PeerGone => end.own.peer_gone = true,
            Note::PeerRefuses => end.own.peer_refuses = true,
        });
    }

    fn say(&self, say: Say) {
        let forgotten = match say {
            Say::Refuses => self.has(Fault::ForgetsRefusal),
            Say::Closed => self.has(Fault::ForgetsClosed),
            Say::Abort => self.has(Fault::ForgetsAbort) && !self.mine(|end| end.is_over),
            _ => false,
        };
        if forgotten {
            return;
        }
        let forgets_refusal = self.has(Fault::ForgetsRefusal);
        self.mine(|end| match say {
            Say::Done { refuses } => {
                end.record.done = true;
                end.record.refuses |= refuses && !forgets_refusal;
            }
            Say::FinByTcp { refuses } => {
                end.record.fin_by_tcp = true;
                end.record.refuses |= refuses && !forgets_refusal;
            }
            Say::Abort => end.record.abort = true,
            Say::Refuses => end.record.refuses = true,
            Say::ReadAll => end.record.read_all = true,
            Say::Closed => end.record.closed = true,
        });
    }

    fn note_reset(&self, errno: i32) -> bool {
        if errno == crate::tcp::EPIPE && self.has(Fault::ForgetsLateWrite) {
            return true;
        }
        let has_ended = self.theirs(|end| {
            let said = &end.record;
            said.done || said.fin_by_tcp || said.closed || !end.runs
        });
        let is_noted = self.change_reset(|reset| reset.noted(errno)).is_some();
        if is_noted && has_ended && self.mine(|end| end.is_broken && end.has_threads) {
            // One of the differences that `checker` names.
            self.with(|world| world.checker.stop());
        }
        is_noted
    }

    fn claim_reset(&self) -> bool {
        self.change_reset(Reset::claimed).is_some() || self.has(Fault::ClaimsTwice)
    }

    fn take_reset(&self) -> Option<i32> {
        let leaves = self.has(Fault::LeavesError);
        let taken = |reset: Reset| if leaves { Some(reset) } else { reset.taken() };
        match self.change_reset(taken)? {
            Reset::Pending(errno) => Some(errno),
            Reset::None | Reset::Told => None,
        }
    }

    fn hint(&self) {
        if !self.has(Fault::ForgetsHint) {
            self.mine(|end| end.hints += 1);
        }
    }
}

impl Kernel for Hand {
    fn take_error(&self) -> i32 {
        self.with(|world| {
            let error = world.kernel.take_error(self.end);
            let end = &mut world.ends[self.end];
            let is_known = end.own.reset != Reset::None;
            end.misses_error |= error == 0 && world.kernel.ends[self.end].reset && !is_known;
            error
        })
    }

    fn is_peer_gone(&self) -> bool {
        self.with(|world| world.kernel.is_peer_gone(self.end))
    }

    fn peer_runs(&self) -> bool {
        self.theirs(|end| end.runs)
    }

    fn is_connected(&self) -> bool {
        let ignores = self.has(Fault::IgnoresSilence);
        self.with(|world| {
            let end = &world.kernel.ends[self.end];
            !end.is_over() || (ignores && end.error == 0)
        })
    }

    /// A sleeper is no part of these worlds.
    fn wake_readers(&self) {}
}

impl Output for Hand {
    /// The caller waits until the lock is free.
    fn lock(&self) -> bool {
        self.mine(|end| {
            end.is_locked = true;
            is_ring(end.turns)
        })
    }

    fn unlock(&self) {
        self.mine(|end| end.is_locked = false);
    }

    fn send_fin(&self, what: What) {
        let reading = what == What::Both;
        let _ = self.with(|world| world.kernel.shutdown(self.end, reading, true));
    }

    fn stop_reading(&self) {
        let _ = self.with(|world| world.kernel.shutdown(self.end, true, false));
    }

    fn drain_bells(&self) {
        self.mine(|end| end.has_bell = false);
    }
}
