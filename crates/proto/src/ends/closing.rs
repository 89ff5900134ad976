//! How an end is brought about: the program shuts down, closes, disconnects or ends itself, or the peer has broken the
//! protocol.

use super::errno::ECONNRESET;
use super::hearing::Hearing;
use super::words::{Own, Reset, Seen, State};
use super::world::{Kernel, Note, Output, Say, What, Words};

/// A shutdown under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shutdown {
    /// What is shut down.
    pub what: What,
    /// With it both directions are: data is answered with a reset from then on (`tcp_rcv_state_process`,
    /// `TCPABORTONDATA`).
    pub refuses: bool,
    /// The FIN goes by TCP; else it is a word behind the last byte in the ring.
    pub by_tcp: bool,
}

impl Shutdown {
    const fn of(own: &Own, what: What) -> Self {
        let refuses = (own.read_shut || what.reads()) && (own.write_shut || what.writes());
        Self { what, refuses, by_tcp: false }
    }
}

/// The program shuts down a direction, or both in one change, as Linux does (`inet_shutdown`): the peer finds both in one
/// word, and so do the threads of this end. A peer can learn that its data is refused before a thread of this end
/// learns that no more is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutting {
    /// Looks whether the connection has ended.
    Looks(What),
    /// Asks the kernel the same, if our direction goes by TCP.
    AsksWhetherConnected(Shutdown),
    /// It is not: hears why.
    Hears(Hearing),
    /// Takes the send lock: the last byte is sent. Is it in the ring?
    Locks(Shutdown),
    /// Says to the peer that no more is sent. If the last byte is in the ring, the producer cursor is final for a peer
    /// that sees this; else it comes before the FIN, so that a peer that sees the FIN sees this.
    SaysFin(Shutdown),
    /// The FIN was sent before: says that data is refused.
    SaysRefuses(Shutdown),
    /// Has a peer that is awake look for that: it learns it before its next send.
    Hints(Shutdown),
    /// Writes down what is shut.
    NotesShut(Shutdown),
    /// Sends the FIN.
    SendsFin(Shutdown),
    /// Gives the lock back.
    Unlocks(Shutdown),
    /// Wakes the peer's readers.
    Wakes(Shutdown),
    /// Wakes the threads that sleep in a receive.
    StopsReading(Shutdown),
    /// The peer was not told that both directions are shut: looks whether another thread has shut the other one.
    LooksWhetherBoth,
    /// It has ended.
    Shut,
    /// It has ended: there is no connection any more (`ENOTCONN`).
    Refused,
}

impl Shutting {
    /// The program has called `shutdown`.
    #[must_use]
    pub const fn begin(what: What) -> Self {
        Self::Looks(what)
    }

    /// Carries it out, but for the answer.
    #[must_use]
    pub fn step(self, words: &impl Words, kernel: &impl Kernel, output: &impl Output) -> Self {
        match self {
            Self::Looks(what) => Self::of(&words.look(), what),
            Self::AsksWhetherConnected(shutdown) => match kernel.is_connected() {
                true => Self::begins(shutdown),
                false => Self::Hears(Hearing::AsksWhetherGone),
            },
            Self::Hears(hearing) => hearing.step(words, kernel).map_or(Self::Refused, Self::Hears),
            Self::Locks(shutdown) => {
                let is_in_ring = output.lock();
                Self::SaysFin(Shutdown { by_tcp: !is_in_ring, ..shutdown })
            }
            Self::SaysFin(shutdown) => {
                let Shutdown { refuses, by_tcp, .. } = shutdown;
                words.say(if by_tcp { Say::FinByTcp { refuses } } else { Say::Done { refuses } });
                if refuses { Self::Hints(shutdown) } else { Self::NotesShut(shutdown) }
            }
            Self::SaysRefuses(shutdown) => {
                words.say(Say::Refuses);
                Self::Hints(shutdown)
            }
            Self::Hints(shutdown) => {
                words.hint();
                Self::NotesShut(shutdown)
            }
            Self::NotesShut(shutdown) => {
                words.note(Note::Shut(shutdown.what));
                match shutdown {
                    Shutdown { what: What::Input, .. } => Self::StopsReading(shutdown),
                    Shutdown { by_tcp: true, .. } => Self::SendsFin(shutdown),
                    Shutdown { by_tcp: false, .. } => Self::Unlocks(shutdown),
                }
            }
            Self::SendsFin(shutdown) => {
                output.send_fin(shutdown.what);
                Self::Unlocks(shutdown)
            }
            Self::Unlocks(shutdown) => {
                output.unlock();
                Self::Wakes(shutdown)
            }
            Self::Wakes(shutdown) => {
                kernel.wake_readers();
                match shutdown.what.reads() {
                    true => Self::StopsReading(shutdown),
                    false => Self::ends(shutdown),
                }
            }
            Self::StopsReading(shutdown) => {
                output.stop_reading();
                Self::ends(shutdown)
            }
            Self::LooksWhetherBoth => {
                let own = words.look().own;
                match own.read_shut && own.write_shut {
                    true => Self::SaysRefuses(Shutdown::of(&own, What::Input)),
                    false => Self::Shut,
                }
            }
            Self::Shut | Self::Refused => self,
        }
    }

    fn of(seen: &Seen, what: What) -> Self {
        let shutdown = Shutdown::of(&seen.own, what);
        match State::of(seen) {
            State::Broken => Self::Hears(Hearing::LooksForReset { has_heard: false }),
            state if state.is_closed() => Self::Refused,
            _ if seen.own.sends_by_tcp => Self::AsksWhetherConnected(shutdown),
            _ => Self::begins(shutdown),
        }
    }

    const fn begins(shutdown: Shutdown) -> Self {
        match shutdown {
            _ if shutdown.what.writes() => Self::Locks(shutdown),
            Shutdown { refuses: true, .. } => Self::SaysRefuses(shutdown),
            Shutdown { refuses: false, .. } => Self::NotesShut(shutdown),
        }
    }

    const fn ends(shutdown: Shutdown) -> Self {
        if shutdown.refuses { Self::Shut } else { Self::LooksWhetherBoth }
    }
}

/// The program closes the last descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Closing {
    /// Bytes of the peer are left unread, for which TCP sends a reset: says so.
    SaysAbort,
    /// Takes bells that no reader needs any more, so that the kernel can send FIN.
    Drains,
    /// Says how it leaves.
    Leaves(Leaving),
}

impl Closing {
    /// The program leaves bytes unread, or none.
    #[must_use]
    pub const fn begin(leaves_unread: bool) -> Self {
        if leaves_unread { Self::SaysAbort } else { Self::Drains }
    }

    /// Carries it out. `None`: that was all.
    #[must_use]
    pub fn step(self, words: &impl Words, output: &impl Output) -> Option<Self> {
        match self {
            Self::SaysAbort => {
                words.say(Say::Abort);
                Some(Self::Drains)
            }
            Self::Drains => {
                output.drain_bells();
                Some(Self::Leaves(Leaving::by_close()))
            }
            Self::Leaves(leaving) => leaving.step(words).map(Self::Leaves),
        }
    }
}

/// The last descriptor goes, by `close` or with its process: what the peer finds of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// The process ends by itself, with nothing unread: says so. The peer may send before it learns of the end, and
    /// could take its own bytes for the reason of a reset.
    SaysReadAll,
    /// Looks whether the connection was torn down before.
    Looks {
        /// A peer that is awake is to look.
        hints: bool,
    },
    /// It was not: says that it closes. How TCP ends from here on, with a reset for a bell that lies unread, means nothing.
    SaysClosed {
        /// A peer that is awake is to look.
        hints: bool,
    },
    /// Has it look.
    Hints,
}

impl Leaving {
    /// It is closed, by the program or with another image of it.
    #[must_use]
    pub const fn by_close() -> Self {
        Self::Looks { hints: false }
    }

    /// The process is about to end with the connection open. Nothing ends here yet: libc still writes out
    /// its streams. What the process leaves unread decides between FIN and reset in the end.
    #[must_use]
    pub const fn by_exit(leaves_unread: bool) -> Self {
        if leaves_unread { Self::Looks { hints: true } } else { Self::SaysReadAll }
    }

    /// Carries it out. `None`: that was all.
    #[must_use]
    pub fn step(self, words: &impl Words) -> Option<Self> {
        match self {
            Self::SaysReadAll => {
                words.say(Say::ReadAll);
                Some(Self::Looks { hints: true })
            }
            Self::Looks { hints } => match words.look().own.reset {
                Reset::None => Some(Self::SaysClosed { hints }),
                _ => hints.then_some(Self::Hints),
            },
            Self::SaysClosed { hints } => {
                words.say(Say::Closed);
                hints.then_some(Self::Hints)
            }
            Self::Hints => {
                words.hint();
                None
            }
        }
    }
}

/// Why this end resets the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// The program disconnects (`connect` to `AF_UNSPEC`): it knows.
    Disconnects,
    /// The peer has broken the protocol, and the call that has found that tells the program.
    Answered,
    /// The same, but the program's next call has to tell.
    Untold,
}

/// This end resets the connection, for both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breaking {
    /// Says so to the peer.
    SaysAbort(Breach),
    /// Has a peer that is awake look.
    Hints,
    /// The program knows, or is told by this call.
    ClaimsReset,
    /// There was a reset already: that is told, too.
    TakesReset,
    /// The program's next call is told.
    NotesReset,
}

impl Breaking {
    /// There is a reason.
    #[must_use]
    pub const fn begin(breach: Breach) -> Self {
        Self::SaysAbort(breach)
    }

    /// Carries it out. `None`: that was all.
    #[must_use]
    pub fn step(self, words: &impl Words) -> Option<Self> {
        match self {
            Self::SaysAbort(breach) => {
                words.say(Say::Abort);
                Some(match breach {
                    Breach::Disconnects => Self::Hints,
                    Breach::Answered => Self::ClaimsReset,
                    Breach::Untold => Self::NotesReset,
                })
            }
            Self::Hints => {
                words.hint();
                Some(Self::ClaimsReset)
            }
            Self::ClaimsReset => (!words.claim_reset()).then_some(Self::TakesReset),
            Self::TakesReset => {
                words.take_reset();
                None
            }
            Self::NotesReset => {
                words.note_reset(ECONNRESET);
                None
            }
        }
    }
}
