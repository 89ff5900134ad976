//! What the kernel says, or the peer hints at, and what follows for this end.

use super::errno::{EBADF, ECONNRESET, ENOTCONN, ENOTSOCK, EPIPE};
use super::words::{Reset, Seen};
use super::world::{Kernel, Note, Say, Words};

/// The kernel, or a hint, says that something has ended.
///
/// A reset of TCP alone means little once only bells go by TCP. A peer that closes or dies with a bell
/// unread ends with one. So does one whose connection was torn down from outside (`ss -K`, BPF, a forged RST),
/// in which a program could take the half of a message for the whole. The first has said that it closes, or
/// is no more; the second runs, and has said nothing. All other errors are our own kernel's:
/// our end was torn down (`ECONNABORTED`), or the peer's did not answer (`ETIMEDOUT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hearing {
    /// A hint: looks for what the peer says.
    Hinted,
    /// Writes down that the peer refuses data.
    NotesRefusal,
    /// Asks whether the peer's end of the TCP connection is gone.
    AsksWhetherGone,
    /// Looks whether the peer's words make that a reset, or say that there was one.
    LooksForReset {
        /// The own kernel was asked.
        has_heard: bool,
    },
    /// It does: takes the error of the own kernel, for it may have been this end.
    AsksOwnKernel,
    /// It was not: writes down the reset.
    NotesBroken {
        /// What it is reported as.
        errno: i32,
    },
    /// TCP has nothing more: looks what is known already.
    TcpEnded,
    /// The program has shut down receiving, which looks the same to a reader: asks whether it is more.
    AsksWhetherMore {
        /// A reset is known.
        is_reset: bool,
    },
    /// There may be an error: looks whether one is known.
    Suspects,
    /// TCP has nothing more: asks whether it is connected still, which it is behind a FIN.
    AsksWhetherConnected,
    /// Takes the error of TCP.
    TakesError {
        /// It is not connected any more.
        is_over: bool,
    },
    /// It has no error. The kernel tells an error once, and what is over and had none, another thread has
    /// taken one of: looks whether that has written it down.
    LooksAtSilence,
    /// TCP has ended without an error: looks how.
    LooksAtEnd,
    /// TCP has told this error: looks what it is.
    LooksAtError {
        /// The error.
        errno: i32,
    },
    /// The peer has said nothing: asks whether it runs.
    AsksWhetherPeerRuns {
        /// What a reset is reported as.
        errno: i32,
    },
    /// A call of the program by TCP has failed, and it is not connected any more: looks whether the peer knows.
    OwnCallFailed,
    /// Tells the peer, whose TCP may know nothing of it, that there was a reset.
    SaysAbort {
        /// What it is reported as; `None`: the program knows.
        errno: Option<i32>,
    },
    /// Has a peer that only sends look. Before the own program is told, which may tell the other one.
    Hints {
        /// As above.
        errno: Option<i32>,
    },
    /// The program knows of the reset, by its own call: it is not told again.
    ClaimsReset,
    /// It was known already: that is told, too.
    TakesReset,
    /// Writes down that the peer's end is gone.
    NotesGone,
    /// Writes down that the peer sends no more.
    NotesInputEnded,
    /// Writes down the reset. First: behind an end that is gone a receive would find the end of the stream.
    NotesReset {
        /// What it is reported as.
        errno: i32,
    },
}

impl Hearing {
    /// A call of ours on the TCP connection has failed.
    #[must_use]
    pub const fn failed(errno: i32) -> Option<Self> {
        // The number is gone, which says nothing of the connection.
        if errno == EBADF { None } else { Some(Self::LooksAtError { errno }) }
    }

    /// Carries it out. `None`: that was all.
    #[must_use]
    pub fn step(self, words: &impl Words, kernel: &impl Kernel) -> Option<Self> {
        match self {
            Self::Hinted => {
                let seen = words.look();
                let is_news = seen.peer.refuses && !seen.own.peer_refuses;
                Some(if is_news { Self::NotesRefusal } else { Self::AsksWhetherGone })
            }
            Self::NotesRefusal => {
                words.note(Note::PeerRefuses);
                Some(Self::AsksWhetherGone)
            }
            Self::AsksWhetherGone => match kernel.is_peer_gone() {
                true => Some(Self::TcpEnded),
                false => Some(Self::LooksForReset { has_heard: false }),
            },
            Self::LooksForReset { has_heard } => {
                let seen = words.look();
                match (seen.own.reset, seen.broken()) {
                    (Reset::None, Some(_)) if !has_heard => Some(Self::AsksOwnKernel),
                    (Reset::None, Some(errno)) => Some(Self::NotesBroken { errno }),
                    _ => None,
                }
            }
            Self::AsksOwnKernel => match kernel.take_error() {
                0 => Some(Self::LooksForReset { has_heard: true }),
                errno => Self::failed(errno),
            },
            Self::NotesBroken { errno } => {
                words.note_reset(errno);
                None
            }
            Self::TcpEnded => {
                let own = words.look().own;
                let is_reset = own.reset != Reset::None;
                match own.read_shut {
                    true => Some(Self::AsksWhetherMore { is_reset }),
                    false => Some(Self::asks(is_reset)),
                }
            }
            Self::AsksWhetherMore { is_reset } => {
                kernel.is_peer_gone().then_some(Self::asks(is_reset))
            }
            Self::Suspects => {
                let is_reset = words.look().own.reset != Reset::None;
                (!is_reset).then_some(Self::TakesError { is_over: false })
            }
            Self::AsksWhetherConnected => Some(match kernel.is_connected() {
                true => Self::LooksAtEnd,
                false => Self::TakesError { is_over: true },
            }),
            Self::TakesError { is_over } => match kernel.take_error() {
                0 => is_over.then_some(Self::LooksAtSilence),
                errno => Self::failed(errno),
            },
            Self::LooksAtSilence => Some(Self::of_silence(&words.look())),
            Self::LooksAtEnd => Some(Self::of_end(&words.look())),
            Self::LooksAtError { errno } => Some(Self::of_error(&words.look(), errno)),
            Self::AsksWhetherPeerRuns { errno } => Some(match kernel.peer_runs() {
                true => Self::SaysAbort { errno: Some(errno) },
                false => Self::NotesGone,
            }),
            Self::OwnCallFailed => Some(match words.look().peer_sends_by_tcp {
                true => Self::ClaimsReset,
                false => Self::SaysAbort { errno: None },
            }),
            Self::SaysAbort { errno } => {
                words.say(Say::Abort);
                Some(Self::Hints { errno })
            }
            Self::Hints { errno } => {
                words.hint();
                Some(errno.map_or(Self::ClaimsReset, |errno| Self::NotesReset { errno }))
            }
            Self::NotesReset { errno } => {
                words.note_reset(errno);
                Some(Self::NotesGone)
            }
            Self::ClaimsReset => Some(match words.claim_reset() {
                true => Self::NotesGone,
                false => Self::TakesReset,
            }),
            Self::TakesReset => {
                words.take_reset();
                Some(Self::NotesGone)
            }
            Self::NotesGone => {
                words.note(Note::PeerGone);
                Some(Self::LooksForReset { has_heard: true })
            }
            Self::NotesInputEnded => {
                words.note(Note::InputEnded);
                None
            }
        }
    }

    /// TCP has nothing more. Of a reset that is known it has no more to say either.
    const fn asks(is_reset: bool) -> Self {
        if is_reset { Self::LooksAtEnd } else { Self::AsksWhetherConnected }
    }

    /// TCP is over, and has no error. Both sides have sent FIN by TCP, or another thread has taken the error: until that has
    /// written it down, the end of the stream would be told instead. Which error it was, the kernel does not say twice: it
    /// is taken for [`ECONNRESET`].
    const fn of_silence(seen: &Seen) -> Self {
        let own = &seen.own;
        let has_sent_fin = own.write_shut && own.sends_by_tcp;
        match own.reset {
            Reset::None if has_sent_fin => Self::of_end(seen),
            Reset::None => Self::of_error(seen, ECONNRESET),
            Reset::Pending(_) | Reset::Told => Self::NotesGone,
        }
    }

    /// TCP has ended without an error. While neither side goes through its ring, TCP's own rules hold, and a FIN may be half
    /// a close; else a peer that only half closes says so. After a reset TCP says that there is no
    /// more, too; that is no FIN.
    const fn of_end(seen: &Seen) -> Self {
        // Bytes in the ring, from before our direction left it, are none of TCP's.
        let by_tcp = seen.own.sends_by_tcp && !seen.unread_by_peer;
        let is_half = (by_tcp || seen.peer.fin_by_tcp) && seen.peer_sends_by_tcp;
        match seen.own.reset {
            Reset::None if is_half && !seen.peer.abort && !seen.peer.closed => {
                Self::NotesInputEnded
            }
            _ => Self::NotesGone,
        }
    }

    /// TCP has told an error: the connection is over, and if that is not how an end in order looks, it is the
    /// program's.
    const fn of_error(seen: &Seen, errno: i32) -> Self {
        let told = seen.error_of_tcp(errno);
        match errno {
            _ if seen.both_ended() => Self::NotesGone,
            // A peer that sends through its ring has no answer of TCP.
            _ if seen.own.sends_by_tcp && !seen.peer_sends_by_tcp => {
                Self::SaysAbort { errno: Some(told) }
            }
            _ if seen.own.sends_by_tcp => Self::NotesReset { errno: told },
            // Behind a FIN; or no word about the connection.
            EPIPE | ENOTSOCK | ENOTCONN => Self::NotesGone,
            ECONNRESET if seen.peer.closed => Self::NotesGone,
            ECONNRESET => Self::AsksWhetherPeerRuns { errno: told },
            _ => Self::SaysAbort { errno: Some(told) },
        }
    }
}
