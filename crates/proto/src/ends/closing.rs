//! How an end is brought about: the program shuts down, closes, disconnects or ends itself, or the peer has broken the
//! protocol.

use super::errno::ECONNRESET;
use super::{Hearing, Kernel, Note, Output, Reset, Say, State, Words};

/// What is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// `SHUT_RD`.
    Input,
    /// `SHUT_WR`.
    Output,
    /// `SHUT_RDWR`.
    Both,
}

/// The program shuts down a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutting {
    /// Looks whether the connection has ended.
    Looks(What),
    /// Asks the kernel the same, if our direction goes by TCP.
    AsksWhetherConnected(What),
    /// It is not: hears why.
    Hears(Hearing),
    /// Takes the send lock: the last byte is sent. Is it in the ring?
    Locks(What),
    /// It is: says so to the peer. The producer cursor is final for a peer that sees this.
    SaysDone(What),
    /// It is not: says so, before the FIN, so that a peer that sees the FIN sees this.
    SaysFinByTcp(What),
    /// Sends the FIN.
    SendsFin(What),
    /// Writes down that no more is sent.
    NotesWriteShut(What),
    /// Gives the lock back.
    Unlocks(What),
    /// Wakes the peer's readers.
    Wakes(What),
    /// Writes down that no more is received.
    NotesReadShut,
    /// Wakes the threads that sleep in a receive.
    StopsReading,
    /// Looks whether that was the second direction.
    LooksWhetherBoth,
    /// Says that data is answered with a reset from now on (`tcp_rcv_state_process`, `TCPABORTONDATA`).
    SaysRefuses,
    /// Has a peer that is awake look: it learns that before its next send.
    Hints,
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
            Self::Looks(what) => {
                let seen = words.look();
                match State::of(&seen) {
                    State::Broken => Self::Hears(Hearing::LooksForReset { has_heard: false }),
                    state if state.is_closed() => Self::Refused,
                    _ if seen.own.sends_by_tcp => Self::AsksWhetherConnected(what),
                    _ => Self::begins(what),
                }
            }
            Self::AsksWhetherConnected(what) => match kernel.is_connected() {
                true => Self::begins(what),
                false => Self::Hears(Hearing::AsksWhetherGone),
            },
            Self::Hears(hearing) => hearing.step(words, kernel).map_or(Self::Refused, Self::Hears),
            Self::Locks(what) => match output.lock() {
                true => Self::SaysDone(what),
                false => Self::SaysFinByTcp(what),
            },
            Self::SaysDone(what) => {
                words.say(Say::Done);
                Self::NotesWriteShut(what)
            }
            Self::SaysFinByTcp(what) => {
                words.say(Say::FinByTcp);
                Self::SendsFin(what)
            }
            Self::SendsFin(what) => {
                output.send_fin();
                Self::NotesWriteShut(what)
            }
            Self::NotesWriteShut(what) => {
                words.note(Note::WriteShut);
                Self::Unlocks(what)
            }
            Self::Unlocks(what) => {
                output.unlock();
                Self::Wakes(what)
            }
            Self::Wakes(what) => {
                kernel.wake_readers();
                if what == What::Both { Self::NotesReadShut } else { Self::LooksWhetherBoth }
            }
            Self::NotesReadShut => {
                words.note(Note::ReadShut);
                Self::StopsReading
            }
            Self::StopsReading => {
                output.stop_reading();
                Self::LooksWhetherBoth
            }
            Self::LooksWhetherBoth => {
                let own = words.look().own;
                if own.read_shut && own.write_shut { Self::SaysRefuses } else { Self::Shut }
            }
            Self::SaysRefuses => {
                words.say(Say::Refuses);
                Self::Hints
            }
            Self::Hints => {
                words.hint();
                Self::Shut
            }
            Self::Shut | Self::Refused => self,
        }
    }

    const fn begins(what: What) -> Self {
        match what {
            What::Input => Self::NotesReadShut,
            What::Output | What::Both => Self::Locks(what),
        }
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
