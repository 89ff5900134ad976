//! The words of an end, each read once, and the state that they amount to.

use super::errno::{ECONNRESET, EPIPE};

/// The reset of an end: one word, of which all processes of the end have their answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reset {
    /// There was none.
    #[default]
    None,
    /// There was one, and the program's next call is told this error number.
    Pending(i32),
    /// There was one, and the program knows.
    Told,
}

impl Reset {
    /// No error number is that high.
    const TOLD: u32 = u32::MAX;

    /// What a word means.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        match word {
            0 => Self::None,
            Self::TOLD => Self::Told,
            errno => Self::Pending(errno as i32),
        }
    }

    /// The word for it.
    #[inline]
    #[must_use]
    pub const fn word(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Pending(errno) => errno as u32,
            Self::Told => Self::TOLD,
        }
    }

    /// A reset has come that the program does not know of. `None`: it is not the first, and the first one is what
    /// the program hears of.
    #[must_use]
    pub const fn noted(self, errno: i32) -> Option<Self> {
        if matches!(self, Self::None) { Some(Self::Pending(errno)) } else { None }
    }

    /// A reset has come, and the caller tells the program. `None`: another thread was first.
    #[must_use]
    pub const fn claimed(self) -> Option<Self> {
        if matches!(self, Self::None) { Some(Self::Told) } else { None }
    }

    /// The caller tells the program what is pending. `None`: nothing is.
    #[must_use]
    pub const fn taken(self) -> Option<Self> {
        if matches!(self, Self::Pending(_)) { Some(Self::Told) } else { None }
    }

    /// A call that was to tell this has bytes to tell of instead: the next one does. As in TCP the last error is
    /// the one that counts.
    #[must_use]
    pub const fn kept(self, errno: i32) -> Self {
        Self::Pending(errno)
    }
}

/// What this end has written down for its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Own {
    /// The program has shut down receiving.
    pub read_shut: bool,
    /// It has shut down sending.
    pub write_shut: bool,
    /// The kernel has brought the FIN of a peer that goes by TCP, and that may still receive.
    pub input_ended: bool,
    /// The kernel has said that the peer's end is gone.
    pub peer_gone: bool,
    /// The peer has said that it answers data with a reset.
    pub peer_refuses: bool,
    /// The reset.
    pub reset: Reset,
    /// Our direction goes by TCP: what comes back for it, a reset, is TCP's own.
    pub sends_by_tcp: bool,
}

/// What the peer's record says. The peer may have written anything there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Said {
    /// It sends no more, and the last byte is in the ring.
    pub done: bool,
    /// It sends no more, and the FIN is in the TCP stream. It receives still.
    pub fin_by_tcp: bool,
    /// The connection was torn down.
    pub abort: bool,
    /// Its end will be a reset (`SO_LINGER` with time 0).
    pub linger_zero: bool,
    /// Both of its directions are shut down: it answers data with a reset.
    pub refuses: bool,
    /// Its process was ending by itself when it had read everything.
    pub read_all: bool,
    /// It closes: how its TCP connection ends says nothing.
    pub closed: bool,
}

/// All words, each read once, in the order of the [module](super).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Our own.
    pub own: Own,
    /// The peer's.
    pub peer: Said,
    /// Bytes of the peer lie in the ring that were not read.
    pub unread: bool,
    /// And the next receive finds them: nothing by TCP comes before them.
    pub is_next: bool,
    /// Bytes of ours lie in the ring that the peer has not read.
    pub unread_by_peer: bool,
    /// The peer's direction goes by TCP, as far as it has turned.
    pub peer_sends_by_tcp: bool,
}

impl Seen {
    /// The peer sends no more, and all that it has sent is here.
    pub(super) const fn has_finished(&self) -> bool {
        self.peer.done || self.own.input_ended
    }

    /// The peer has sent its FIN, whether or not everything before it is here.
    pub(super) const fn has_sent_fin(&self) -> bool {
        self.peer.fin_by_tcp || self.has_finished()
    }

    /// The peer's end is gone: TCP would have sent RST instead of FIN if bytes of ours were left unread, or
    /// if the peer had asked for that.
    pub(super) const fn was_aborted(&self) -> bool {
        let unread = self.unread_by_peer && !self.peer.read_all;
        unread || self.peer.linger_zero || self.peer.abort
    }

    /// Both directions have ended: TCP has nothing left to reset.
    pub(super) const fn both_ended(&self) -> bool {
        self.has_sent_fin() && self.own.write_shut
    }

    /// What a reset by the peer is reported as. Behind its FIN the end of input stays what it was, and
    /// the thread that sends hears of it (`tcp_reset` in CLOSE_WAIT).
    pub(super) const fn error_of_reset(&self) -> i32 {
        if self.has_sent_fin() { EPIPE } else { ECONNRESET }
    }

    /// What an error of TCP is reported as, unless a reset is known. TCP knows neither of a FIN that went by the ring, nor of
    /// bytes there that the peer has left unread: behind its own FIN it says [`EPIPE`] where it would have been reset.
    #[must_use]
    pub const fn error_of_tcp(&self, errno: i32) -> i32 {
        match errno {
            ECONNRESET => self.error_of_reset(),
            EPIPE if self.was_aborted() && !self.both_ended() => self.error_of_reset(),
            _ => errno,
        }
    }

    /// The peer has ended, and not in order: what a thread that finds it tells the program.
    pub(super) const fn broken(&self) -> Option<i32> {
        // It had read all when its process was about to end. What came later is answered with a reset, as a
        // write to an end that is gone.
        let is_late = self.peer.read_all && self.unread_by_peer;
        match () {
            () if self.both_ended() => None,
            () if self.peer.abort => Some(self.error_of_reset()),
            () if self.own.peer_gone && self.was_aborted() => Some(self.error_of_reset()),
            () if self.own.peer_gone && is_late => Some(EPIPE),
            () => None,
        }
    }

    /// What `poll` has to know.
    #[must_use]
    pub const fn poll(&self) -> Polled {
        let is_broken = self.broken().is_some();
        Polled {
            peer_done: self.own.peer_gone || self.has_finished(),
            reset: is_broken || !matches!(self.own.reset, Reset::None),
            error_pending: match self.own.reset {
                Reset::None => is_broken,
                Reset::Pending(_) => true,
                Reset::Told => false,
            },
        }
    }
}

/// The part of [`crate::readiness::State`] that is about ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Polled {
    /// The peer sends no more.
    pub peer_done: bool,
    /// The connection was reset, whether or not the program knows.
    pub reset: bool,
    /// The program does not know yet.
    pub error_pending: bool,
}

/// What the words amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Both directions are open.
    Open,
    /// We send no more.
    OutputShut,
    /// The peer sends no more, and receives.
    InputEnded,
    /// The peer's end is gone, in order. It neither sends nor receives.
    PeerGone,
    /// Neither side sends.
    BothEnded,
    /// The peer's end was a reset, and no thread of ours has noticed.
    Broken,
    /// There was a reset, and the program does not know.
    Pending,
    /// There was a reset, and the program knows.
    Told,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Open,
        Self::OutputShut,
        Self::InputEnded,
        Self::PeerGone,
        Self::BothEnded,
        Self::Broken,
        Self::Pending,
        Self::Told,
    ];

    /// The state that these words amount to.
    #[must_use]
    pub const fn of(seen: &Seen) -> Self {
        match seen.own.reset {
            Reset::Pending(_) => return Self::Pending,
            Reset::Told => return Self::Told,
            Reset::None => {}
        }
        let has_finished = seen.has_finished();
        match (seen.own.write_shut, seen.own.peer_gone) {
            _ if seen.broken().is_some() => Self::Broken,
            (true, gone) if gone || has_finished => Self::BothEnded,
            (true, _) => Self::OutputShut,
            (false, true) => Self::PeerGone,
            (false, false) if has_finished => Self::InputEnded,
            (false, false) => Self::Open,
        }
    }

    /// The state in which TCP would be (`net/tcp_states.h`). On one host every FIN is acknowledged at once, and
    /// an end that waits in TIME_WAIT shows CLOSE to its program.
    #[must_use]
    pub const fn of_tcp(self) -> u8 {
        const ESTABLISHED: u8 = 1;
        const FIN_WAIT2: u8 = 5;
        const CLOSE: u8 = 7;
        const CLOSE_WAIT: u8 = 8;
        match self {
            Self::Open => ESTABLISHED,
            Self::OutputShut => FIN_WAIT2,
            Self::InputEnded | Self::PeerGone => CLOSE_WAIT,
            Self::BothEnded | Self::Broken | Self::Pending | Self::Told => CLOSE,
        }
    }

    /// Whether the connection is over, so that neither `shutdown` nor `getpeername` finds one.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::BothEnded | Self::Broken | Self::Pending | Self::Told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_told_once() {
        assert_eq!(Reset::None.noted(EPIPE), Some(Reset::Pending(EPIPE)));
        assert_eq!(Reset::Pending(EPIPE).noted(ECONNRESET), None);
        assert_eq!(Reset::Told.noted(ECONNRESET), None);
        assert_eq!(Reset::Pending(EPIPE).taken(), Some(Reset::Told));
        assert_eq!((Reset::Told.taken(), Reset::None.taken()), (None, None));
        assert_eq!(Reset::None.claimed(), Some(Reset::Told));
        assert_eq!((Reset::Told.claimed(), Reset::Pending(EPIPE).claimed()), (None, None));
        for reset in [Reset::None, Reset::Pending(EPIPE), Reset::Told] {
            assert_eq!(Reset::from_word(reset.word()), reset);
            assert_eq!(reset.kept(ECONNRESET), Reset::Pending(ECONNRESET));
        }
    }
}
