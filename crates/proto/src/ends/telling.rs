//! What a call of the program is told about an end.

use super::errno::{ECONNRESET, EPIPE};
use super::hearing::Hearing;
use super::words::{Polled, Reset, Seen};
use super::world::{Kernel, Note, Say, Words};

/// The call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A receive that has found nothing.
    Receives,
    /// A send on a connection that is over for sending.
    Sends {
        /// Bytes that it wanted to send.
        len: usize,
    },
    /// `SO_ERROR`.
    AsksError,
    /// `poll`, or another question about the state.
    Polls,
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// A receive: nothing now, and there may be more.
    Nothing,
    /// A receive: the end of the stream.
    End,
    /// A send: so many bytes were taken.
    Sent(usize),
    /// This error; `SO_ERROR` of a connection without one: 0.
    Errno(i32),
    /// The state of the connection.
    Polled(Polled),
    /// A send that was taken for one behind an end, on a connection that is open for sending. Only an end whose
    /// own words contradict each other comes to this.
    NotOver,
}

/// A call of the program is about an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Telling {
    /// `SO_ERROR`: looks whether the kernel's error is about a reset that is known.
    LooksFirst,
    /// It is: takes it away. It may say that the peer's end is gone.
    DropsError,
    /// Asks whether the peer's end is gone.
    AsksWhetherGone,
    /// Hears what the kernel says first.
    Hears(Call, Hearing),
    /// Looks what has ended.
    Looks {
        /// The call.
        call: Call,
        /// The kernel was heard.
        has_heard: bool,
    },
    /// The peer refuses data, and this call may tell of its FIN, which it said with one word: writes that down first.
    NotesRefusal {
        /// The call.
        call: Call,
        /// The kernel was heard.
        has_heard: bool,
    },
    /// Takes the reset that is pending, if another thread does not.
    Takes(Call),
    /// Tells of the reset that no thread has noticed, if another one does not.
    Claims {
        /// The call.
        call: Call,
        /// What it is told.
        errno: i32,
    },
    /// A send to a peer that refuses: the reset that its TCP would answer with is for both.
    SaysAbort {
        /// Bytes that it wanted to send.
        len: usize,
    },
    /// Wakes the peer's readers for that.
    Wakes {
        /// Bytes that it wanted to send.
        len: usize,
    },
    /// TCP takes the first write after the peer's end, and learns from the answer: the next call is told.
    NotesLate {
        /// Bytes that it wanted to send.
        len: usize,
    },
    /// The program learns of a reset from `poll`: its next call is told.
    NotesReset {
        /// What that is told.
        errno: i32,
        /// What this one is.
        polled: Polled,
    },
    /// It has ended: this is the answer.
    Answers(Told),
}

impl Telling {
    /// The call has come to an end.
    #[must_use]
    pub const fn begin(call: Call) -> Self {
        match call {
            Call::AsksError => Self::LooksFirst,
            _ => Self::Looks { call, has_heard: false },
        }
    }

    /// Carries it out, but for the answer.
    #[must_use]
    pub fn step(self, words: &impl Words, kernel: &impl Kernel) -> Self {
        match self {
            Self::LooksFirst => match words.look().own.reset {
                Reset::None => Self::Hears(Call::AsksError, Hearing::TakesError { is_over: false }),
                _ => Self::DropsError,
            },
            Self::DropsError => match kernel.take_error() {
                0 => Self::AsksWhetherGone,
                _ => Self::Hears(Call::AsksError, Hearing::TcpEnded),
            },
            Self::AsksWhetherGone => match kernel.is_peer_gone() {
                true => Self::Hears(Call::AsksError, Hearing::TcpEnded),
                false => Self::looks_after_hearing(Call::AsksError),
            },
            Self::Hears(call, hearing) => match (hearing.step(words, kernel), hearing) {
                (Some(next), _) => Self::Hears(call, next),
                (None, Hearing::TakesError { is_over: false }) if call == Call::AsksError => {
                    Self::AsksWhetherGone
                }
                (None, _) => Self::looks_after_hearing(call),
            },
            Self::Looks { call, has_heard } => Self::of(&words.look(), call, has_heard),
            Self::NotesRefusal { call, has_heard } => {
                words.note(Note::PeerRefuses);
                Self::Looks { call, has_heard }
            }
            Self::Takes(call) => match words.take_reset() {
                Some(errno) => Self::Answers(Told::Errno(errno)),
                None => Self::looks_after_hearing(call),
            },
            Self::Claims { call, errno } => match words.claim_reset() {
                true => Self::Answers(Told::Errno(errno)),
                false => Self::looks_after_hearing(call),
            },
            Self::SaysAbort { len } => {
                words.say(Say::Abort);
                Self::Wakes { len }
            }
            Self::Wakes { len } => {
                kernel.wake_readers();
                Self::NotesLate { len }
            }
            Self::NotesLate { len } => match words.note_reset(EPIPE) {
                true => Self::Answers(Told::Sent(len)),
                // Another thread's write was the first.
                false => Self::looks_after_hearing(Call::Sends { len }),
            },
            Self::NotesReset { errno, polled } => {
                words.note_reset(errno);
                Self::Answers(Told::Polled(polled))
            }
            Self::Answers(told) => Self::Answers(told),
        }
    }

    const fn looks_after_hearing(call: Call) -> Self {
        Self::Looks { call, has_heard: true }
    }

    fn of(seen: &Seen, call: Call, has_heard: bool) -> Self {
        let own = &seen.own;
        if seen.peer.refuses && !own.peer_refuses {
            return Self::NotesRefusal { call, has_heard };
        }
        // What our own kernel says of a connection that was torn down comes first: it may have been
        // this end. And where our direction goes by TCP and the peer's has ended, what we sent after that is
        // answered with a reset of TCP.
        let is_answered = own.sends_by_tcp && (own.input_ended || own.peer_gone);
        let asks = seen.peer.abort || (call == Call::Polls && is_answered);
        if asks && own.reset == Reset::None && !has_heard {
            return Self::Hears(call, Hearing::Suspects);
        }
        match call {
            Call::Receives => Self::of_receive(seen),
            Call::Sends { len } => Self::of_send(seen, len),
            Call::Polls => match (own.reset, seen.broken()) {
                (Reset::None, Some(errno)) => Self::NotesReset { errno, polled: seen.poll() },
                _ => Self::Answers(Told::Polled(seen.poll())),
            },
            Call::AsksError => match seen.own.reset {
                Reset::Pending(_) => Self::Takes(call),
                Reset::None => match seen.broken() {
                    Some(errno) => Self::Claims { call, errno },
                    None => Self::Answers(Told::Errno(0)),
                },
                Reset::Told => Self::Answers(Told::Errno(0)),
            },
        }
    }

    const fn of_receive(seen: &Seen) -> Self {
        let end = Self::Answers(Told::End);
        match seen.own.reset {
            // Bytes came after the caller has looked for them: they come first.
            Reset::Pending(_) | Reset::Told if seen.unread && seen.is_next => {
                Self::Answers(Told::Nothing)
            }
            // It came before any FIN: behind one it is EPIPE.
            Reset::Pending(ECONNRESET) => Self::Takes(Call::Receives),
            // What comes behind the peer's FIN is for the thread that sends (`tcp_recvmsg`, `SOCK_DONE`).
            Reset::Pending(errno) if errno != EPIPE && !seen.has_sent_fin() => {
                Self::Takes(Call::Receives)
            }
            Reset::Pending(_) | Reset::Told => end,
            Reset::None if seen.unread => Self::Answers(Told::Nothing),
            Reset::None if seen.has_finished() => end,
            Reset::None => match seen.broken() {
                Some(ECONNRESET) => Self::Claims { call: Call::Receives, errno: ECONNRESET },
                // Behind the peer's FIN, or its last look.
                Some(_) => end,
                None if seen.own.peer_gone || seen.own.read_shut => end,
                None => Self::Answers(Told::Nothing),
            },
        }
    }

    const fn of_send(seen: &Seen, len: usize) -> Self {
        let call = Call::Sends { len };
        let own = &seen.own;
        match (own.reset, seen.broken()) {
            (Reset::Pending(_), _) => Self::Takes(call),
            (Reset::Told, _) => Self::Answers(Told::Errno(EPIPE)),
            // Told before all else: also to a send of nothing, and to one behind our own FIN.
            (Reset::None, Some(errno)) => Self::Claims { call, errno },
            (Reset::None, None) if own.write_shut => Self::Answers(Told::Errno(EPIPE)),
            (Reset::None, None) if !own.peer_gone && !own.peer_refuses => {
                Self::Answers(Told::NotOver)
            }
            (Reset::None, None) if len == 0 => Self::Answers(Told::Sent(0)),
            (Reset::None, None) if own.peer_gone => Self::NotesLate { len },
            (Reset::None, None) => Self::SaysAbort { len },
        }
    }
}
