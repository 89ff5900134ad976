//! The words of one end in shared memory: what it has noted of the connection's end, and what it says of it
//! to its peer. No question to the kernel is asked here.

use crate::Errno;
use crate::connection::turns;
use crate::table::conn::Conn;
use crate::table::descriptors::Use;
use core::fmt::Display;
use core::sync::atomic::Ordering;
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_proto::cursor;
use sidestep_proto::ends::{
    Breach, Breaking, Leaving, Note, Own, Reset, Said, Say, Seen, State, What, Words,
};

/// With one of these flags a send is for [`send_after_end`](crate::connection::ends::send_after_end).
pub(crate) const SEND_OVER: u32 =
    flag::WRITE_SHUT | flag::RESET | flag::PEER_GONE | flag::PEER_REFUSES;

/// The words of one end in shared memory.
pub(crate) struct OwnWords<'a> {
    pub(super) conn: &'a Conn,
    /// Bytes that the caller has looked past: what is unread lies behind them.
    pub(super) passed: u64,
}

impl<'a> OwnWords<'a> {
    pub(super) const fn new(conn: &'a Conn) -> Self {
        Self { conn, passed: 0 }
    }
}

impl OwnWords<'_> {
    /// Changes the reset, if it may be changed so. SeqCst: as in [`Self::note`].
    fn change_reset(&self, change: impl Fn(Reset) -> Option<Reset>) -> Option<Reset> {
        let word = |reset: Reset| reset.word();
        let before =
            self.conn.slot.reset.fetch_update(Ordering::SeqCst, Ordering::Acquire, |now| {
                change(Reset::from_word(now)).map(word)
            });
        // Behind the word: a thread that sees the bit sees what it is about.
        if self.conn.slot.flags.load(Ordering::Relaxed) & flag::RESET == 0 {
            self.conn.slot.flags.fetch_or(flag::RESET, Ordering::SeqCst);
        }
        before.ok().map(Reset::from_word)
    }
}

impl Words for OwnWords<'_> {
    fn look(&self) -> Seen {
        let conn = self.conn;
        let slot = conn.slot;
        let theirs = &conn.theirs.sending;
        // Acquire, in this order: see "The words" of `proto::ends`.
        let reset = Reset::from_word(slot.reset.load(Ordering::Acquire));
        let flags = slot.flags.load(Ordering::Acquire);
        let peer = theirs.flags.load(Ordering::Acquire);
        let unread = has_unread(conn, self.passed);
        Seen {
            own: Own {
                read_shut: flags & flag::READ_SHUT != 0,
                write_shut: flags & flag::WRITE_SHUT != 0,
                input_ended: flags & flag::TCP_ENDED != 0,
                peer_gone: flags & flag::PEER_GONE != 0,
                peer_refuses: flags & flag::PEER_REFUSES != 0,
                reset,
                sends_by_tcp: flags & flag::SEND_SWITCHED == 0,
            },
            peer: Said {
                done: peer & said::DONE != 0,
                fin_by_tcp: peer & said::FIN_BY_TCP != 0,
                abort: peer & said::ABORT != 0,
                linger_zero: peer & said::LINGER_ZERO != 0,
                refuses: peer & said::REFUSES != 0,
                read_all: peer & said::READ_ALL != 0,
                closed: peer & said::CLOSED != 0,
            },
            unread,
            is_next: unread && is_next(conn),
            unread_by_peer: conn.theirs.receiving.consumer.claim()
                != conn.mine.sending.producer.position(),
            peer_sends_by_tcp: turns::peer_sends_by_tcp(conn),
        }
    }

    fn note(&self, note: Note) {
        let bit = match note {
            Note::Shut(What::Input) => flag::READ_SHUT,
            Note::Shut(What::Output) => flag::WRITE_SHUT,
            Note::Shut(What::Both) => flag::READ_SHUT | flag::WRITE_SHUT,
            Note::InputEnded => flag::TCP_ENDED,
            Note::PeerGone => flag::PEER_GONE,
            Note::PeerRefuses => flag::PEER_REFUSES,
        };
        // SeqCst: a sleeper that looks afterwards, behind a fence of its own, sees the end.
        self.conn.slot.flags.fetch_or(bit, Ordering::SeqCst);
    }

    fn say(&self, say: Say) {
        let bit = match say {
            Say::Done { refuses: false } => said::DONE,
            Say::Done { refuses: true } => said::DONE | said::REFUSES,
            Say::FinByTcp { refuses: false } => said::FIN_BY_TCP,
            Say::FinByTcp { refuses: true } => said::FIN_BY_TCP | said::REFUSES,
            Say::Abort => said::ABORT,
            Say::Refuses => said::REFUSES,
            Say::ReadAll => said::READ_ALL,
            Say::Closed => said::CLOSED,
        };
        // SeqCst: step b of `sidestep_device::arm`, as for a cursor: a reader that falls asleep sees it, or
        // we see the reader. It releases the producer cursor, which is final for a peer that sees the bit.
        self.conn.mine.sending.flags.fetch_or(bit, Ordering::SeqCst);
    }

    fn note_reset(&self, errno: i32) -> bool {
        self.change_reset(|reset| reset.noted(errno)).is_some()
    }

    fn claim_reset(&self) -> bool {
        self.change_reset(Reset::claimed).is_some()
    }

    fn take_reset(&self) -> Option<i32> {
        match self.change_reset(Reset::taken)? {
            Reset::Pending(errno) => Some(errno),
            Reset::None | Reset::Told => None,
        }
    }

    fn hint(&self) {
        hint(self.conn);
    }
}

/// Release: a peer that follows the hint sees what it is about.
pub(crate) fn hint(conn: &Conn) {
    conn.mine.sending.closes.fetch_add(1, Ordering::Release);
}

/// Bytes of the peer lie in the ring, behind those that were passed.
pub(super) fn has_unread(conn: &Conn, passed: u64) -> bool {
    let consumer = conn.mine.receiving.consumer.position();
    // Acquire: read after the peer's flags, it is the last one if they say so.
    conn.theirs.sending.producer.claim() != consumer.wrapping_add(passed)
}

/// The next receive takes the bytes in the ring: none by TCP come before them, no urgent mark
/// stands among them, and the peer's cursor can be believed.
fn is_next(conn: &Conn) -> bool {
    let consumer = conn.mine.receiving.consumer.position();
    let claim = conn.theirs.sending.producer.claim();
    turns::comes_by_ring(conn.slot)
        && !conn.is_marked()
        && cursor::readable(consumer, claim, conn.incoming.len()).is_ok()
}

/// A call that was to tell of a reset has bytes to tell of: the next one does.
pub(crate) fn keep(slot: &Slot, errno: Errno) {
    // SeqCst: as in `OwnWords::note`.
    slot.reset.store(Reset::None.kept(errno).word(), Ordering::SeqCst);
}

#[cold]
fn break_off(conn: &Conn, breach: Breach) {
    let mut next = Some(Breaking::begin(breach));
    while let Some(breaking) = next {
        next = breaking.step(&OwnWords::new(conn));
    }
}

/// The peer broke the protocol: the connection is reset on both sides, and the caller tells the program.
#[cold]
pub fn reset(conn: &Conn, what: &dyn Display) -> Errno {
    crate::log!(Error, "{}: {what}; connection reset", conn.group.peer);
    break_off(conn, Breach::Answered);
    libc::ECONNRESET
}

/// The same where there is no call to tell the program: its next one does.
#[cold]
pub(crate) fn reset_untold(conn: &Conn, what: &dyn Display) {
    crate::log!(Error, "{}: {what}; connection reset", conn.group.peer);
    break_off(conn, Breach::Untold);
}

/// Before `connect` to nowhere (`AF_UNSPEC`), which resets a connection: the peer will
/// find the reset of its TCP end explained. True: the connection had ended before, so
/// no end is to see a reset.
pub fn before_disconnect(sock: &Use) -> bool {
    sock.conn().is_some_and(disconnect)
}

/// This side resets a connection. True: it had ended before.
pub(super) fn disconnect(conn: &Conn) -> bool {
    let had_ended = State::of(&OwnWords::new(conn).look()).is_closed();
    if !had_ended {
        break_off(conn, Breach::Disconnects);
    }
    had_ended
}

pub(crate) fn leave(conn: &Conn, leaving: Leaving) {
    let mut next = Some(leaving);
    while let Some(leaving) = next {
        next = leaving.step(&OwnWords::new(conn));
    }
}

/// The kernel is about to close the last descriptor: how, the record says from now on, and not TCP. Of
/// a connection that was torn down before, it says that.
pub(crate) fn note_close(conn: &Conn) {
    leave(conn, Leaving::by_close());
}

/// It is not closed after all.
pub(crate) fn withdraw_close(conn: &Conn) {
    conn.mine.sending.flags.fetch_and(!said::CLOSED, Ordering::SeqCst);
}

/// The process is about to end with this connection open. A bell that lies unread makes TCP's end a reset,
/// and the process whose connection it was at first, by which the peer knows us, may live on.
pub(crate) fn before_exit(conn: &Conn) {
    let by_ring = conn.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    if by_ring && conn.slot.holders.load(Ordering::Acquire) <= 1 {
        leave(conn, Leaving::by_exit(has_unread(conn, 0)));
    }
}

/// The kernel has closed the last descriptor. A peer that is awake need not sleep to learn it.
pub(crate) fn note_closed(conn: &Conn) {
    hint(conn);
}

/// The last who knows how to go on with a connection lets go of it while it is under way
/// to another program. If that one cannot either, its end is a reset.
pub(super) fn end_by_reset_unless_received(conn: &Conn, fd: i32) {
    // SeqCst: pairs with the count of holders in `sock::receive`. Either we see that it
    // was received, or the receiver, who looks at the option afterwards, undoes this.
    end_by_reset(conn);
    if conn.slot.holders.load(Ordering::SeqCst) > 1 {
        follow_linger_option(conn, fd);
    }
}

/// Whatever ends the connection from now on is a reset to the peer.
pub(crate) fn end_by_reset(conn: &Conn) {
    note_linger(conn, true);
}

/// Tells the peer what `SO_LINGER` says.
pub(crate) fn follow_linger_option(conn: &Conn, fd: i32) {
    let linger: Result<libc::linger, _> = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    note_linger(conn, linger.is_ok_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0));
}

/// The peer learns how the end of this connection is to be read.
pub(crate) fn note_linger(conn: &Conn, zero: bool) {
    let flags = &conn.mine.sending.flags;
    if zero {
        flags.fetch_or(said::LINGER_ZERO, Ordering::SeqCst);
    } else {
        flags.fetch_and(!said::LINGER_ZERO, Ordering::SeqCst);
    }
}
