//! Cut-over: which path a direction of a connection in shared memory takes, step by step.
//!
//! A direction goes by TCP first, then through the ring, and where an operator wants it, by TCP
//! again. Each change is a *turn*. The sender takes it, at an offset of its TCP stream from which on
//! that stream means something else: data, or bells. The receiver follows when it has taken
//! everything that comes before. Nothing is said in band, and other threads of both programs send,
//! receive and ring bells meanwhile. So what matters is the *order* in which an end looks at a word
//! and changes another one, and this module holds that order:
//!
//! ```text
//!   sender      Enter   by TCP ──▶ into the ring
//!               Leave   through the ring ──▶ by TCP, if the receiver permits it
//!               Bell    one byte by TCP, by any thread, if TCP carries bells only
//!   receiver    Permit  the sender may leave the ring from now on
//!               follow  the next bytes are in the ring, or in TCP
//! ```
//!
//! [`Enter`], [`Leave`], [`Bell`] and [`Permit`] are machines. A state is the next step to carry out,
//! on shared memory or the kernel; the owner of the machine does so, and tells it what was seen
//! ([`Answer`]). A machine ends in a state in which there is nothing to carry out. So the
//! library runs them with atomics and system calls ([`carry_out`]), and a simulation with neither, in
//! every order that threads can have. An answer to another question is [`Unasked`]. The drawings are in
//! `docs/machines.md`.
//!
//! | method | what it is |
//! |---|---|
//! | `begin` | a call of the program: the first state, from what the caller has read |
//! | [`Machine::answered`] | an event: what was seen |
//! | [`follow`], [`wishes`] | queries, without a state of their own |

use core::fmt;

use crate::ledger::{self, Parts, Reading};

/// What was seen when a state was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// What was looked for is so, or is not; what was tried was possible, or not.
    Is(bool),
    /// The counters; `None`: the connection is not open in both directions.
    Ledger(Option<Reading>),
}

/// States that say what is carried out next.
pub trait Machine: Copy {
    /// The state after this one, which was carried out.
    ///
    /// # Errors
    /// The answer is to another question. The machine is where it was.
    fn answered(self, answer: Answer) -> Result<Self, Unasked>;
}

/// An answer to a question that the state of a machine does not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unasked(pub Answer);

impl fmt::Display for Unasked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} answers no question of this state", self.0)
    }
}

/// Takes a machine to its last state. `carry_out` does what a state says, and tells what was seen;
/// `None`: there is nothing to carry out.
///
/// # Errors
/// `carry_out` has answered another question. What it has done before stays done.
#[inline]
pub fn carry_out<M: Machine>(
    first: M,
    mut carry_out: impl FnMut(M) -> Option<Answer>,
) -> Result<M, Unasked> {
    let mut state = first;
    while let Some(answer) = carry_out(state) {
        state = state.answered(answer)?;
    }
    Ok(state)
}

/// Whether after so many turns bytes go through the ring.
#[inline]
#[must_use]
pub const fn is_ring(turns: u32) -> bool {
    !turns.is_multiple_of(2)
}

/// The sender's way into the ring. Under the send lock, and no signal handler interrupts it: one that sends on the same
/// connection would move the end of the stream that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enter {
    /// Reads the kernel's counters: where does the TCP stream end?
    Measures {
        /// The turn that is tried.
        turn: u32,
    },
    /// Publishes the turn. The peer learns of it before it can see a bell.
    Turns {
        /// The turn.
        turn: u32,
        /// Its offset.
        at: u64,
    },
    /// Allows bells: nothing else goes by TCP now.
    Opens,
    /// Takes back what threads have said that would have rung meanwhile.
    Repays,
    /// Rings for all of them, as any thread does ([`Bell`]).
    Rings,
    /// It has ended: the next bytes go into the ring.
    Entered,
    /// It has ended: the next bytes go by TCP.
    Stays,
}

/// What an end that wants into the ring has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeforeEntering {
    /// Turns taken so far.
    pub turns: u32,
    /// The own end reads by the ledger, for good: the agreement cannot fail any more.
    pub is_settled: bool,
    /// Threads that send by TCP at this moment.
    pub plain_sends: u32,
    /// An operator wants our direction on TCP.
    pub is_held: bool,
    /// The peer permits the next turn. The first one it has permitted by agreeing.
    pub is_permitted: bool,
}

impl Enter {
    /// A send is about to begin. `is_confirmed`: the peer has confirmed, where that is for it to do. Asked last, and
    /// before the first turn only: it takes a look at the connection.
    #[must_use]
    pub fn begin(seen: &BeforeEntering, is_confirmed: impl FnOnce() -> bool) -> Self {
        if is_ring(seen.turns) {
            // A thread has died between the two words of its turn.
            return Self::Opens;
        }
        let is_first = seen.turns == 0;
        let may_enter = seen.is_settled
            && seen.plain_sends == 0
            && !seen.is_held
            && (is_first || seen.is_permitted)
            && (!is_first || is_confirmed());
        if may_enter { Self::Measures { turn: seen.turns + 1 } } else { Self::Stays }
    }
}

impl Machine for Enter {
    fn answered(self, answer: Answer) -> Result<Self, Unasked> {
        Ok(match (self, answer) {
            (Self::Measures { turn }, Answer::Ledger(Some(it))) => {
                Self::Turns { turn, at: it.sent() }
            }
            (Self::Measures { .. }, Answer::Ledger(None)) => Self::Stays,
            (Self::Turns { .. }, Answer::Done) => Self::Opens,
            (Self::Opens, Answer::Done) => Self::Repays,
            (Self::Repays, Answer::Is(true)) => Self::Rings,
            (Self::Repays, Answer::Is(false)) | (Self::Rings, Answer::Done) => Self::Entered,
            _ => return Err(Unasked(answer)),
        })
    }
}

/// The sender's way out of the ring. Under the send lock, by a thread that has interrupted no other
/// that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Wakes readers. Bytes may be published whose reader was not woken yet, and later no bell may be
    /// rung for them.
    Wakes {
        /// The turn that is tried.
        turn: u32,
    },
    /// Forbids bells: no thread begins to send one from here on.
    Closes {
        /// The turn that is tried.
        turn: u32,
    },
    /// Looks whether a thread has begun before. Its bell has an unknown place in the stream.
    Looks {
        /// The turn that is tried.
        turn: u32,
    },
    /// Reads the kernel's counters: where does the TCP stream end?
    Measures {
        /// The turn that is tried.
        turn: u32,
    },
    /// Publishes the turn. The peer learns of it before it can see data.
    Turns {
        /// The turn.
        turn: u32,
        /// Its offset.
        at: u64,
    },
    /// Forgets that it is to leave, and bells that are owed: the bytes that follow by TCP wake as they would.
    Forgets,
    /// It could not be done now: allows bells again.
    Reopens,
    /// Takes back what threads have said that would have rung meanwhile.
    Repays,
    /// Rings for all of them, as any thread does ([`Bell`]).
    Rings,
    /// It has ended: the next bytes go by TCP.
    Left,
    /// It has ended: the next bytes go into the ring.
    Stays,
}

/// What an end that is to leave the ring has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeforeLeaving {
    /// Turns taken so far.
    pub turns: u32,
    /// Bells may be rung: the last turn is complete.
    pub is_open: bool,
    /// Our direction has ended.
    pub is_over: bool,
    /// The peer permits the next turn.
    pub is_permitted: bool,
    /// A byte of the ring is marked as urgent: its mark is a place in the ring.
    pub is_marked: bool,
    /// Sends of which a part is in the ring.
    pub unfinished: u32,
}

impl Leave {
    /// A send is about to begin, and the direction is to leave.
    #[must_use]
    pub const fn begin(seen: &BeforeLeaving) -> Self {
        let may_leave = seen.is_open
            && !seen.is_over
            && seen.is_permitted
            && !seen.is_marked
            && seen.unfinished == 0;
        if may_leave { Self::Wakes { turn: seen.turns + 1 } } else { Self::Stays }
    }
}

impl Machine for Leave {
    fn answered(self, answer: Answer) -> Result<Self, Unasked> {
        Ok(match (self, answer) {
            (Self::Wakes { turn }, Answer::Done) => Self::Closes { turn },
            (Self::Closes { turn }, Answer::Done) => Self::Looks { turn },
            (Self::Looks { turn }, Answer::Is(false)) => Self::Measures { turn },
            (Self::Looks { .. }, Answer::Is(true)) => Self::Reopens,
            (Self::Measures { turn }, Answer::Ledger(Some(it))) => {
                Self::Turns { turn, at: it.sent() }
            }
            (Self::Measures { .. }, Answer::Ledger(None)) => Self::Reopens,
            (Self::Turns { .. }, Answer::Done) => Self::Forgets,
            (Self::Forgets, Answer::Done) => Self::Left,
            (Self::Reopens, Answer::Done) => Self::Repays,
            (Self::Repays, Answer::Is(true)) => Self::Rings,
            (Self::Repays, Answer::Is(false)) | (Self::Rings, Answer::Done) => Self::Stays,
            _ => return Err(Unasked(answer)),
        })
    }
}

/// A bell, by any thread of the sender, without a lock.
///
/// *Either the thread that leaves the ring sees the ringer, or the ringer sees that bells are forbidden*:
/// each writes its own word before it reads the other's. A ringer that sees it says that a bell
/// is owed and looks once more. So either it rings itself, or the thread that allows bells again
/// finds the debt.
///
/// A request for a bell is answered once, so the ringer claims it, and only when it may ring. Else a thread that
/// leaves the ring would find the request claimed by a ringer that it cannot see yet, or by one
/// that cannot ring any more, and the sleeper would wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// Counts itself among those that are about to ring.
    Begins,
    /// Looks whether bells are allowed.
    Looks,
    /// They are not: says that a bell is owed.
    Owes,
    /// Looks again: the thread that forbids bells may have looked for debts before this one was there.
    LooksAgain,
    /// Claims the request: another thread may have answered it.
    Claims,
    /// Sends the byte that is a bell: TCP carries bells only.
    Sends,
    /// Counts itself out.
    Ends,
    /// It has ended: it has rung, or another thread does.
    Over,
}

impl Bell {
    /// A reader has to be woken.
    #[must_use]
    pub const fn begin() -> Self {
        Self::Begins
    }
}

impl Machine for Bell {
    fn answered(self, answer: Answer) -> Result<Self, Unasked> {
        Ok(match (self, answer) {
            (Self::Begins, Answer::Done) => Self::Looks,
            (Self::Looks | Self::LooksAgain, Answer::Is(true)) => Self::Claims,
            (Self::Looks, Answer::Is(false)) => Self::Owes,
            (Self::Owes, Answer::Done) => Self::LooksAgain,
            (Self::Claims, Answer::Is(true)) => Self::Sends,
            (Self::LooksAgain | Self::Claims, Answer::Is(false)) | (Self::Sends, Answer::Done) => {
                Self::Ends
            }
            (Self::Ends, Answer::Done) => Self::Over,
            _ => return Err(Unasked(answer)),
        })
    }
}

/// The receiver permits the sender to leave the ring. Under the receive lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Forgets the wish. The direction cannot leave: its bytes come by TCP already, or a mark binds it to the
    /// ring.
    Drops,
    /// Keeps other threads from taking bytes of the TCP stream, if that is possible. One that sleeps in the kernel
    /// would take a byte of the program for a bell.
    Secludes,
    /// Reads the kernel's counters: how many bells were taken until now?
    Measures,
    /// Notes the offset. From there on bytes are counted one by one.
    Counts {
        /// Bytes taken from the start of the stream.
        consumed: u64,
    },
    /// Says that from now on no byte is taken without asking what it is.
    Asks,
    /// Permits the turn, and tells the peer. Only now it may send a byte that is none of ours to drop.
    Grants,
    /// Lets other threads take bytes again: they ask, too.
    Returns,
    /// The counters say nothing: lets other threads take bytes again, as before.
    Resigns,
    /// It has ended: the peer may turn.
    Permitted,
    /// It has ended: not now. The next receive tries again, if it is still wished.
    Withheld,
}

impl Permit {
    /// The peer is to send by TCP. `is_marked`: a byte of the ring is marked as urgent.
    #[must_use]
    pub const fn begin(followed: u32, is_marked: bool) -> Self {
        if is_ring(followed) && !is_marked { Self::Secludes } else { Self::Drops }
    }
}

impl Machine for Permit {
    fn answered(self, answer: Answer) -> Result<Self, Unasked> {
        Ok(match (self, answer) {
            (Self::Secludes, Answer::Is(true)) => Self::Measures,
            (Self::Secludes, Answer::Is(false)) => Self::Withheld,
            (Self::Measures, Answer::Ledger(Some(it))) => Self::Counts { consumed: it.consumed() },
            (Self::Measures, Answer::Ledger(None)) => Self::Resigns,
            (Self::Counts { .. }, Answer::Done) => Self::Asks,
            (Self::Asks, Answer::Done) => Self::Grants,
            (Self::Grants, Answer::Done) => Self::Returns,
            (Self::Returns, Answer::Done) => Self::Permitted,
            (Self::Drops | Self::Resigns, Answer::Done) => Self::Withheld,
            _ => return Err(Unasked(answer)),
        })
    }
}

/// Where the receiver finds the next bytes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the TCP queue.
    Tcp,
    /// In the ring.
    Ring,
}

/// What the receiver does next about the sender's turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Nothing: the next bytes are there.
    Reads(Source),
    /// All of the program's bytes were taken from TCP: the rest comes from the ring.
    IntoRing,
    /// All of the program's bytes were taken from the ring: the rest comes by TCP.
    IntoTcp {
        /// From this offset on.
        from: u64,
    },
    /// Nothing: the peer has broken the protocol. It has turned at an offset that we have passed.
    Breaks,
}

/// What the receiver has read, in this order: a byte of the queue that was seen before the turn was
/// asked for is not one that a later turn is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// Bytes of the TCP stream that were taken.
    pub consumed: u64,
    /// Turns of the peer that were followed.
    pub followed: u32,
    /// The offset of the turn after these, if the peer has taken it.
    pub turn: Option<u64>,
    /// The ring has no more bytes. Read after the turn was seen: the producer cursor is final then.
    pub is_ring_empty: bool,
}

/// Where the next bytes are, or which turn to follow first. Under the receive lock, after the
/// bells at the front of the queue were taken.
#[must_use]
pub const fn follow(seen: &Receiving) -> Follow {
    match (is_ring(seen.followed), seen.turn) {
        (true, Some(at)) if seen.is_ring_empty && at < seen.consumed => Follow::Breaks,
        (true, Some(from)) if seen.is_ring_empty => Follow::IntoTcp { from },
        (true, _) => Follow::Reads(Source::Ring),
        (false, Some(at)) if seen.consumed >= at => Follow::IntoRing,
        (false, _) => Follow::Reads(Source::Tcp),
    }
}

/// What the receiver knows of its TCP queue. The turn is asked for after bytes of the queue were
/// seen, so no later turn is about one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Bytes of the TCP stream that were taken.
    pub consumed: u64,
    /// Turns of the peer that were followed.
    pub followed: u32,
    /// Where the data began, if the direction goes by TCP.
    pub from: u64,
    /// The offset of the turn after those that were followed, if the peer has taken it.
    pub turn: Option<u64>,
}

/// What `n` bytes at the front of the queue are.
#[must_use]
pub fn parts(n: u64, queue: &Queue) -> Parts {
    match (is_ring(queue.followed), queue.turn) {
        (true, None) => Parts { bells: n, data: 0 },
        (true, Some(from)) => ledger::parts(queue.consumed, n, from, None),
        (false, until) => ledger::parts(queue.consumed, n, queue.from, until),
    }
}

/// What an end has read of the wishes of operators, here and at the peer, and of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wished {
    /// An operator wants the connection on TCP at this end.
    pub is_held: bool,
    /// The peer says that one does at its end.
    pub peer_wants_tcp: bool,
    /// Threads take bytes of TCP as bells, without asking.
    pub takes_unasked: bool,
    /// Turns of the peer that were followed.
    pub followed: u32,
    /// Our turns.
    pub turns: u32,
    /// The peer permits our next one.
    pub is_permitted: bool,
}

/// What follows for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// It tells the peer that it wants TCP.
    pub says_tcp: bool,
    /// Its next receive permits the peer's turn out of the ring.
    pub wants_permit: bool,
    /// It permits this turn of the peer, back into the ring.
    pub grants: Option<u32>,
    /// Its next send leaves the ring.
    pub leaves: bool,
}

/// Follows wishes. Whether or not both ends are asked, both directions go to TCP; they come back
/// when no end is held any more: each end permits the peer to, and takes its own direction back.
#[must_use]
pub const fn wishes(seen: &Wished) -> Wishes {
    let wants_tcp = seen.is_held || seen.peer_wants_tcp;
    let is_back = seen.followed > 0 && !is_ring(seen.followed);
    Wishes {
        says_tcp: seen.is_held,
        wants_permit: wants_tcp && seen.takes_unasked,
        grants: if is_back && !seen.is_held { Some(seen.followed + 1) } else { None },
        leaves: is_ring(seen.turns) && seen.is_permitted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing;
    use std::vec::Vec;

    const READING: Answer = Answer::Ledger(Some(Reading {
        bytes_sent: 7,
        bytes_retransmitted: 0,
        not_yet_sent: 0,
        bytes_received: 9,
        still_queued: 0,
    }));
    const ANSWERS: [(&str, Answer); 5] = [
        ("done", Answer::Done),
        ("yes", Answer::Is(true)),
        ("no", Answer::Is(false)),
        ("counters", READING),
        ("not open", Answer::Ledger(None)),
    ];

    fn draw<M: Machine + PartialEq + fmt::Debug>(name: &str, first: &[M]) {
        drawing::check(name, first, &ANSWERS, |state, answer| state.answered(answer).ok());
    }

    #[test]
    fn the_drawings_are_those_of_the_code() {
        draw("Enter", &[Enter::Measures { turn: 1 }, Enter::Opens]);
        draw("Leave", &[Leave::Wakes { turn: 2 }]);
        draw("Bell", &[Bell::begin()]);
        draw("Permit", &[Permit::Secludes, Permit::Drops]);
    }

    #[test]
    fn an_answer_to_another_question_is_refused_and_nothing_is_carried_out() {
        assert_eq!(Bell::Looks.answered(Answer::Done), Err(Unasked(Answer::Done)));
        assert_eq!(Bell::Over.answered(Answer::Done), Err(Unasked(Answer::Done)));
        let mut seen = Vec::new();
        let carry = |state| {
            seen.push(state);
            Some(Answer::Done)
        };
        assert_eq!(carry_out(Bell::begin(), carry), Err(Unasked(Answer::Done)));
        assert_eq!(seen, [Bell::Begins, Bell::Looks]);
    }

    #[test]
    fn an_end_enters_the_ring_only_if_nothing_is_against_it() {
        let may = BeforeEntering {
            turns: 0,
            is_settled: true,
            plain_sends: 0,
            is_held: false,
            is_permitted: false,
        };
        let begins = |seen| Enter::begin(&seen, || true);
        assert_eq!(begins(may), Enter::Measures { turn: 1 });
        assert_eq!(Enter::begin(&may, || false), Enter::Stays);
        assert_eq!(begins(BeforeEntering { is_settled: false, ..may }), Enter::Stays);
        assert_eq!(begins(BeforeEntering { plain_sends: 1, ..may }), Enter::Stays);
        assert_eq!(begins(BeforeEntering { is_held: true, ..may }), Enter::Stays);
        // Back again takes a permit, and no Confirm.
        let back = BeforeEntering { turns: 2, ..may };
        assert_eq!(begins(back), Enter::Stays);
        let back = BeforeEntering { is_permitted: true, ..back };
        assert_eq!(Enter::begin(&back, || unreachable!()), Enter::Measures { turn: 3 });
        // A turn that is half done.
        let half = BeforeEntering { turns: 1, ..may };
        assert_eq!(begins(half), Enter::Opens);
    }

    #[test]
    fn the_receiver_follows_when_it_has_taken_what_comes_before() {
        let by_tcp = Receiving { consumed: 5, followed: 2, turn: None, is_ring_empty: true };
        let tcp = Follow::Reads(Source::Tcp);
        assert_eq!(follow(&by_tcp), tcp);
        assert_eq!(follow(&Receiving { turn: Some(6), ..by_tcp }), tcp);
        assert_eq!(follow(&Receiving { turn: Some(5), ..by_tcp }), Follow::IntoRing);
        let by_ring = Receiving { followed: 1, is_ring_empty: false, ..by_tcp };
        let ring = Follow::Reads(Source::Ring);
        assert_eq!(follow(&by_ring), ring);
        assert_eq!(follow(&Receiving { turn: Some(9), ..by_ring }), ring);
        let empty = Receiving { turn: Some(9), is_ring_empty: true, ..by_ring };
        assert_eq!(follow(&empty), Follow::IntoTcp { from: 9 });
        assert_eq!(follow(&Receiving { turn: Some(4), ..empty }), Follow::Breaks);
        assert_eq!(follow(&Receiving { turn: None, ..empty }), ring);
    }
}
