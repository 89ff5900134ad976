//! What the machines act on: the words of an end, the kernel, and the output.
//!
//! The library has them as atomics and system calls, worlds by seed have neither.

use super::words::Seen;

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

impl What {
    pub(super) const fn reads(self) -> bool {
        matches!(self, Self::Input | Self::Both)
    }

    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Output | Self::Both)
    }
}

/// What an end writes down for its processes. Each is written once and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// [`Own::read_shut`](super::Own::read_shut), [`Own::write_shut`](super::Own::write_shut), or both at once.
    Shut(What),
    /// [`Own::input_ended`](super::Own::input_ended).
    InputEnded,
    /// [`Own::peer_gone`](super::Own::peer_gone).
    PeerGone,
    /// [`Own::peer_refuses`](super::Own::peer_refuses).
    PeerRefuses,
}

/// What an end says in its record, where the peer reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// [`Said::done`](super::Said::done).
    Done {
        /// And [`Said::refuses`](super::Said::refuses), at once.
        refuses: bool,
    },
    /// [`Said::fin_by_tcp`](super::Said::fin_by_tcp).
    FinByTcp {
        /// And [`Said::refuses`](super::Said::refuses), at once.
        refuses: bool,
    },
    /// [`Said::abort`](super::Said::abort).
    Abort,
    /// [`Said::refuses`](super::Said::refuses).
    Refuses,
    /// [`Said::read_all`](super::Said::read_all).
    ReadAll,
    /// [`Said::closed`](super::Said::closed).
    Closed,
}

/// The words of an end.
pub trait Words {
    /// Reads all of them, in the order of the [module](super).
    fn look(&self) -> Seen;
    /// Writes one down for the processes of this end.
    fn note(&self, note: Note);
    /// Says one to the peer.
    fn say(&self, say: Say);
    /// [`Reset::noted`](super::Reset::noted). True: it was.
    fn note_reset(&self, errno: i32) -> bool;
    /// [`Reset::claimed`](super::Reset::claimed). True: it was.
    fn claim_reset(&self) -> bool;
    /// [`Reset::taken`](super::Reset::taken): the error number that was pending.
    fn take_reset(&self) -> Option<i32>;
    /// Raises the hint by which a peer that is awake learns that it should look.
    fn hint(&self);
}

/// What the kernel and the host know.
pub trait Kernel {
    /// Takes the error of our end of the TCP connection; 0: there is none.
    fn take_error(&self) -> i32;
    /// The peer's end of the TCP connection is gone: FIN or RST has come.
    fn is_peer_gone(&self) -> bool;
    /// A process of the peer runs.
    fn peer_runs(&self) -> bool;
    /// The kernel still knows a peer.
    fn is_connected(&self) -> bool;
    /// Wakes the peer's readers, wherever they sleep.
    fn wake_readers(&self);
}

/// The output of an end, and the sleep of its own readers.
pub trait Output {
    /// Takes the send lock, and moves the direction into the ring if that can be done now. True: its last byte is
    /// in the ring.
    fn lock(&self) -> bool;
    /// Gives the lock back.
    fn unlock(&self);
    /// Sends FIN by TCP; if both directions are shut down, the kernel ends receiving with it.
    fn send_fin(&self, what: What);
    /// Has the kernel shut down receiving: it wakes all threads that sleep there.
    fn stop_reading(&self);
    /// Takes bells out of the TCP queue, so that the kernel can send FIN.
    fn drain_bells(&self);
}
