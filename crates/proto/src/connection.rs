//! A connection of SMC-R: what its CDC messages say, and when they are sent.
//!
//! A connection has a ring on either side, its RMBE. The sender writes into the receiver's by RDMA
//! and says in a CDC message how far it has written; the receiver says in one how far it has read.
//!
//! ```text
//!   program ── queue ──> [ send buffer ] ── WRITE ──> [ the peer's RMBE ] ── consume ──> program
//!                         completed … written … queued     consumed … produced
//!                         │                        CDC ─────────────────────^
//!                         └── kept for a failover  <───────────────────── CDC
//! ```
//!
//! All of it is positions: bytes since the beginning, of which nothing ever shrinks but `written`
//! after a failover. The bytes themselves are elsewhere; nothing here allocates or waits. After
//! any call [`Connection::poll_transmit`] says what to send, until it says nothing.
//!
//! | When | a message is sent |
//! |---|---|
//! | bytes were written | with the new producer cursor; it wakes the reader |
//! | bytes were read | if the window as the writer knows it is under a half and gains a tenth; at once if the writer is blocked or has asked |
//! | an urgent byte is to come, or was read | at once |
//! | a side ends | with D, C or A, behind all bytes |
//! | the connection changes links | with F, then everything that may not have arrived, again |
//!
//! What the peer says is a claim: every cursor is checked against the ring and against what we
//! ourselves have said and written. One that cannot be ends the connection, and nothing else.
//!
//! *Source*: RFC 7609 §4.5 to §4.8, §A.4.

use core::cmp::Ordering;

use sidestep_wire::AlertToken;
use sidestep_wire::cdc::{CdcMessage, Cursor, ProducerFlags, StateFlags};

mod at_rest;
mod ending;
mod position;

pub use at_rest::AtRest;
use ending::Ending;
pub use ending::{State, Wish};
use position::Claim;

/// A connection with one peer.
#[derive(Clone, Debug)]
pub struct Connection {
    peer: AlertToken,
    outgoing: Outgoing,
    incoming: Incoming,
    ending: Ending,
    wish: Wish,
    /// Number of our last message.
    sent_seqno: u16,
    /// Number of our last message that has arrived: the standard's SS.
    completed_seqno: u16,
    /// Number of the peer's last message: the standard's SR.
    received_seqno: u16,
    /// What we have said of the end, on this link.
    said: StateFlags,
    /// The connection has changed links: send F.
    must_validate: bool,
    /// A message was lost with a link: the next one says all that it said.
    must_repeat: bool,
}

#[derive(Clone, Debug)]
struct Outgoing {
    /// Of the peer's RMBE.
    len: u32,
    /// What the program has sent.
    queued: u64,
    /// What was written into the peer's RMBE.
    written: u64,
    /// The furthest that was ever written.
    furthest: u64,
    /// What certainly is there.
    completed: u64,
    /// What the peer has read, as it says.
    consumed: u64,
    /// One behind the urgent byte, until the peer has read it.
    urgent: Option<u64>,
    /// The same of the next one, which waits for that.
    next_urgent: Option<u64>,
    /// The peer knows that an urgent byte is to come.
    has_told_urgent: bool,
}

#[derive(Clone, Debug)]
struct Incoming {
    /// Of our RMBE.
    len: u32,
    /// What the peer has written, as it says.
    produced: u64,
    /// What the program has read.
    consumed: u64,
    /// The part of it that the peer was told.
    told: u64,
    /// The peer waits for room (B).
    writer_is_blocked: bool,
    /// The peer wants to know what we have read (R).
    update_requested: bool,
    /// The peer has an urgent byte to send (P).
    urgent_is_pending: bool,
    /// Position of the last urgent byte.
    urgent: Option<u64>,
    /// The program has read an urgent byte, and the peer is to know.
    has_read_urgent: bool,
    /// The peer is told of nothing that was read.
    is_held: bool,
}

/// Both ends of the bytes to send now, all on one link and in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// First these bytes, by RDMA WRITE.
    pub writes: [Option<Write>; 2],
    /// Then this message.
    pub message: CdcMessage,
    /// To be given to [`Connection::completed`] when the message has arrived.
    pub receipt: Receipt,
}

/// A stretch of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Position of the first of them in what the program has sent.
    pub from: u64,
    /// Where they go in the peer's RMBE, in bytes from its beginning.
    pub to: u32,
    /// How many, at least 1.
    pub len: u32,
}

/// Which message has arrived, and with it all bytes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    seqno: u16,
    written: u64,
}

/// What is new after a message of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Bytes to read, or their end.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
    /// An urgent byte is to come, or has.
    pub urgent: bool,
    /// The peer has aborted the connection.
    pub aborted: bool,
}

/// The peer has said what cannot be, or data is lost: abort the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaved {
    /// A cursor lies outside the ring, or names bytes that neither side has written or read.
    #[error("the peer's {cursor} cursor {claim:?} is impossible: we know of {known} bytes")]
    Cursor {
        /// `"producer"` or `"consumer"`.
        cursor: &'static str,
        /// What it said.
        claim: Cursor,
        /// The position that was known before.
        known: u64,
    },
    /// The link has failed after it had acknowledged bytes that are not here (RFC 7609 §4.6.1).
    #[error(
        "data was lost with a link: the peer knows message {claimed} to have arrived, {last} did"
    )]
    DataLost {
        /// Number of the message that the peer believes to be here.
        claimed: u16,
        /// Number of the last one that is.
        last: u16,
    },
}

/// Why the program cannot send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// It has said itself that it would not (`EPIPE`).
    #[error("this side has shut the connection down for sending")]
    Shut,
    /// The peer reads no more (`EPIPE`, or `ECONNRESET` once).
    #[error("the peer has closed the connection")]
    PeerClosed,
    /// The connection was aborted (`ECONNRESET`).
    #[error("the connection was aborted")]
    Aborted,
}

impl Connection {
    /// A connection whose peer knows it as `peer`, with an RMBE of `peer_len` bytes there and of
    /// `own_len` bytes here.
    #[must_use]
    pub const fn new(peer: AlertToken, own_len: u32, peer_len: u32) -> Self {
        let nothing = StateFlags { done_writing: false, closed: false, abnormal_close: false };
        let outgoing = Outgoing {
            len: peer_len,
            queued: 0,
            written: 0,
            furthest: 0,
            completed: 0,
            consumed: 0,
            urgent: None,
            next_urgent: None,
            has_told_urgent: false,
        };
        let incoming = Incoming {
            len: own_len,
            produced: 0,
            consumed: 0,
            told: 0,
            writer_is_blocked: false,
            update_requested: false,
            urgent_is_pending: false,
            urgent: None,
            has_read_urgent: false,
            is_held: false,
        };
        Self {
            peer,
            outgoing,
            incoming,
            ending: Ending::new(nothing),
            wish: Wish::GoOn,
            sent_seqno: 0,
            completed_seqno: 0,
            received_seqno: 0,
            said: nothing,
            must_validate: false,
            must_repeat: false,
        }
    }

    /// How far it has ended.
    #[must_use]
    pub const fn state(&self) -> State {
        self.ending.state()
    }

    /// Whether we have said C or A, behind which we write no more into the peer's RMBE.
    #[must_use]
    pub const fn has_left(&self) -> bool {
        self.ending.ours.closed || self.ending.ours.abnormal_close
    }

    // The program sends.

    /// The program has put `n` more bytes into the send buffer, behind those before.
    ///
    /// # Errors
    /// [`SendError`]: they go nowhere.
    pub fn queue(&mut self, n: u64) -> Result<(), SendError> {
        self.may_send()?;
        self.outgoing.queued += n;
        Ok(())
    }

    /// The same; the last of them is urgent. If one before is still to be sent that is ordinary
    /// from now on, as with TCP.
    ///
    /// # Errors
    /// As [`Connection::queue`].
    pub fn queue_urgent(&mut self, n: u64) -> Result<(), SendError> {
        self.queue(n)?;
        let outgoing = &mut self.outgoing;
        let end = Some(outgoing.queued);
        if outgoing.urgent.is_some_and(|urgent| urgent <= outgoing.written) {
            outgoing.next_urgent = end;
        } else {
            outgoing.urgent = end;
            // One that was written, and will be written again after a failover, counts no more.
            outgoing.next_urgent = None;
            outgoing.has_told_urgent = false;
        }
        Ok(())
    }

    /// Whether the program may send.
    ///
    /// # Errors
    /// Why not.
    pub fn may_send(&self) -> Result<(), SendError> {
        let Ending { ours, theirs, .. } = &self.ending;
        if ours.abnormal_close || theirs.abnormal_close || self.wish == Wish::Abort {
            Err(SendError::Aborted)
        } else if self.wish != Wish::GoOn {
            Err(SendError::Shut)
        } else if theirs.closed {
            Err(SendError::PeerClosed)
        } else {
            Ok(())
        }
    }

    /// Bytes that stay in the send buffer: not known to have arrived.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.outgoing.queued - self.outgoing.completed
    }

    // The program receives.

    /// Bytes that the program may read now.
    #[must_use]
    pub const fn readable(&self) -> u64 {
        self.incoming.produced - self.incoming.consumed
    }

    /// Position of the next byte to be read; modulo the length of our RMBE, where it is.
    #[must_use]
    pub const fn read_position(&self) -> u64 {
        self.incoming.consumed
    }

    /// Whether nothing follows what is readable.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ending.theirs.done_writing || self.ending.theirs.closed
    }

    /// Position of the last urgent byte that has come.
    #[must_use]
    pub const fn urgent_byte(&self) -> Option<u64> {
        self.incoming.urgent
    }

    /// Whether the peer has an urgent byte to send that has not come yet.
    #[must_use]
    pub const fn urgent_is_pending(&self) -> bool {
        self.incoming.urgent_is_pending
    }

    /// The program has read `n` bytes, at most [`Connection::readable`].
    pub fn consume(&mut self, n: u64) {
        debug_assert!(n <= self.readable());
        let incoming = &mut self.incoming;
        let before = incoming.consumed;
        incoming.consumed += n;
        let is_read = |urgent| (before..incoming.consumed).contains(&urgent);
        incoming.has_read_urgent |= incoming.urgent.is_some_and(is_read);
    }

    // The program ends it.

    /// The program sends no more (`shutdown(SHUT_WR)`): D, behind all bytes.
    pub fn shut(&mut self) {
        self.wish = self.wish.max(Wish::WriteNoMore);
    }

    /// The program has closed it: C, behind all bytes. If there is something unread, or comes
    /// before, it is aborted, as with TCP.
    pub fn close(&mut self) {
        self.wish = self.wish.max(Wish::Close);
    }

    /// It ends at once: A, and what is not sent is not.
    pub fn abort(&mut self) {
        self.wish = Wish::Abort;
    }

    // The link.

    /// What to send now; `None`: nothing.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        // Also behind the last word: that may be what was lost with the link.
        if self.must_validate {
            self.must_validate = false;
            return Some(self.validation());
        }
        if self.said.closed || self.said.abnormal_close {
            return None;
        }
        if self.must_abort() {
            return Some(self.abortion());
        }
        let writes = self.outgoing.write();
        let flags = self.due_flags();
        let is_due = writes[0].is_some()
            || flags != self.said
            || self.must_repeat
            || self.outgoing.must_tell_urgent()
            || self.incoming.update_is_due();
        is_due.then(|| self.transmit(writes, flags))
    }

    /// A message has arrived, and all bytes before it. In the order in which they were sent.
    pub fn completed(&mut self, receipt: Receipt) {
        self.completed_seqno = receipt.seqno;
        let outgoing = &mut self.outgoing;
        // After a failover some of it may have been known to be there.
        outgoing.completed = outgoing.completed.max(receipt.written);
    }

    /// The link has failed and the connection goes on over another: what is not known to have
    /// arrived is sent again (RFC 7609 §4.6). Receipts of the old link mean nothing any more.
    pub fn change_link(&mut self) {
        if self.completed_seqno != self.sent_seqno {
            self.must_repeat = true;
            self.said = StateFlags::default();
        }
        self.must_validate = true;
        let outgoing = &mut self.outgoing;
        // What the peer has read has arrived, too.
        outgoing.completed = outgoing.completed.max(outgoing.consumed);
        outgoing.written = outgoing.completed;
    }

    /// From now on, or no longer, the peer is not told what the program has read: of what it has
    /// written it will write again the same bytes to the same places, and nothing else.
    ///
    /// So writes that were under way when it has changed links, and come late, do no harm.
    pub const fn hold_window(&mut self, is_held: bool) {
        self.incoming.is_held = is_held;
    }

    /// Takes a message of the peer.
    ///
    /// # Errors
    /// [`Misbehaved`]: to be answered with [`Connection::abort`]. Nothing has changed.
    pub fn handle(&mut self, message: &CdcMessage) -> Result<News, Misbehaved> {
        let order = order(message.seqno, self.received_seqno);
        if message.producer_flags.failover_validation {
            return if order == Ordering::Greater {
                let (claimed, last) = (message.seqno, self.received_seqno);
                Err(Misbehaved::DataLost { claimed, last })
            } else {
                Ok(News::default())
            };
        }
        if order == Ordering::Less {
            return Ok(News::default());
        }
        let produced = self.incoming.check(message.producer)?;
        let consumed = self.outgoing.check(message.consumer)?;
        self.received_seqno = message.seqno;

        let had_ended = self.has_ended();
        let was_aborted = self.ending.theirs.abnormal_close;
        self.ending.hear(message.state_flags);
        let has_urgent = self.incoming.take(produced, message.producer_flags);
        self.outgoing.take(consumed);
        Ok(News {
            readable: produced > 0 || self.has_ended() != had_ended,
            writable: consumed > 0,
            urgent: has_urgent,
            aborted: self.ending.theirs.abnormal_close && !was_aborted,
        })
    }

    /// Whether it has to end at once.
    fn must_abort(&self) -> bool {
        let is_closing_unread = self.wish == Wish::Close && self.readable() > 0;
        // What is left can go nowhere.
        let is_unwanted = self.ending.theirs.closed && self.outgoing.written < self.outgoing.queued;
        self.wish == Wish::Abort
            || self.ending.theirs.abnormal_close
            || is_closing_unread
            || is_unwanted
    }

    /// What we may say now of the end: all bytes go before it.
    fn due_flags(&self) -> StateFlags {
        let all_is_written = self.outgoing.written == self.outgoing.queued;
        StateFlags {
            done_writing: all_is_written && self.wish == Wish::WriteNoMore
                || self.said.done_writing,
            closed: all_is_written && self.wish == Wish::Close,
            abnormal_close: false,
        }
    }

    fn validation(&self) -> Transmit {
        let message = CdcMessage {
            seqno: self.completed_seqno,
            alert_token: self.peer,
            producer: Cursor::default(),
            consumer: Cursor::default(),
            producer_flags: ProducerFlags { failover_validation: true, ..ProducerFlags::default() },
            state_flags: StateFlags::default(),
        };
        let receipt = Receipt { seqno: self.completed_seqno, written: self.outgoing.completed };
        Transmit { writes: [None; 2], message, receipt }
    }

    fn abortion(&mut self) -> Transmit {
        self.wish = Wish::Abort;
        let flags = StateFlags { abnormal_close: true, ..self.said };
        self.transmit([None; 2], flags)
    }

    /// A message that says all there is to say.
    fn transmit(&mut self, writes: [Option<Write>; 2], flags: StateFlags) -> Transmit {
        self.ending.say(flags);
        self.said = flags;
        self.must_repeat = false;
        self.sent_seqno = self.sent_seqno.wrapping_add(1);
        let producer_flags = self.outgoing.flags();
        let message = CdcMessage {
            seqno: self.sent_seqno,
            alert_token: self.peer,
            producer: position::cursor(self.outgoing.written, self.outgoing.len),
            consumer: position::cursor(self.incoming.tell(), self.incoming.len),
            producer_flags,
            state_flags: flags,
        };
        let receipt = Receipt { seqno: self.sent_seqno, written: self.outgoing.written };
        Transmit { writes, message, receipt }
    }
}

impl Connection {
    /// What another process needs to go on with it. `None`: something that it has said may not have arrived, or what
    /// the program has read is not to be told.
    #[must_use]
    pub fn at_rest(&self) -> Option<AtRest> {
        let Self { peer, outgoing, incoming, ending, .. } = self;
        // What the peer has read has arrived.
        let has_arrived = outgoing.completed.max(outgoing.consumed) == outgoing.written;
        (has_arrived && !incoming.is_held).then_some(AtRest {
            peer: *peer,
            lens: [incoming.len, outgoing.len],
            queued: outgoing.queued,
            written: outgoing.written,
            furthest: outgoing.furthest,
            consumed_by_peer: outgoing.consumed,
            urgent_out: [outgoing.urgent, outgoing.next_urgent],
            has_told_urgent: outgoing.has_told_urgent,
            produced: incoming.produced,
            consumed: incoming.consumed,
            told: incoming.told,
            writer_is_blocked: incoming.writer_is_blocked,
            update_requested: incoming.update_requested,
            urgent_is_pending: incoming.urgent_is_pending,
            urgent_in: incoming.urgent,
            has_read_urgent: incoming.has_read_urgent,
            said: [ending.ours, ending.theirs, self.said],
            is_passive: ending.is_passive,
            wish: self.wish,
            seqnos: [self.sent_seqno, self.completed_seqno, self.received_seqno],
            must_validate: self.must_validate,
            must_repeat: self.must_repeat,
        })
    }

    /// Goes on where another process has left it. `None`: no connection could be so.
    #[must_use]
    pub fn resume(from: &AtRest) -> Option<Self> {
        if !from.is_possible() {
            return None;
        }
        let [own_len, peer_len] = from.lens;
        let [urgent, next_urgent] = from.urgent_out;
        let [ours, theirs, said] = from.said;
        let [sent_seqno, completed_seqno, received_seqno] = from.seqnos;
        Some(Self {
            peer: from.peer,
            outgoing: Outgoing {
                len: peer_len,
                queued: from.queued,
                written: from.written,
                furthest: from.furthest,
                completed: from.written,
                consumed: from.consumed_by_peer,
                urgent,
                next_urgent,
                has_told_urgent: from.has_told_urgent,
            },
            incoming: Incoming {
                len: own_len,
                produced: from.produced,
                consumed: from.consumed,
                told: from.told,
                writer_is_blocked: from.writer_is_blocked,
                update_requested: from.update_requested,
                urgent_is_pending: from.urgent_is_pending,
                urgent: from.urgent_in,
                has_read_urgent: from.has_read_urgent,
                is_held: false,
            },
            ending: Ending { ours, theirs, is_passive: from.is_passive },
            wish: from.wish,
            sent_seqno,
            completed_seqno,
            received_seqno,
            said,
            must_validate: from.must_validate,
            must_repeat: from.must_repeat,
        })
    }
}

/// How the number of a message is to another, of which it is less than half a round away.
fn order(seqno: u16, other: u16) -> Ordering {
    seqno.wrapping_sub(other).cast_signed().cmp(&0)
}

impl Outgoing {
    /// Bytes that may be written now.
    fn writable(&self) -> u64 {
        let window = u64::from(self.len) - (self.written - self.consumed);
        let end = match self.urgent {
            // The urgent byte is the last before a cursor, and nothing follows until it is read.
            Some(urgent) => urgent.max(self.written),
            None => self.queued,
        };
        window.min(end - self.written)
    }

    /// Writes what may be written: one stretch, or two around the end of the ring.
    fn write(&mut self) -> [Option<Write>; 2] {
        let n = self.writable();
        let len = u64::from(self.len);
        let to = self.written % len;
        let first = n.min(len - to);
        // All of them are lengths of a ring, or offsets in it.
        let stretch = |from: u64, to: u64, n: u64| {
            (n > 0).then_some(Write { from, to: to as u32, len: n as u32 })
        };
        let writes =
            [stretch(self.written, to, first), stretch(self.written + first, 0, n - first)];
        self.written += n;
        self.furthest = self.furthest.max(self.written);
        writes
    }

    const fn must_tell_urgent(&self) -> bool {
        self.urgent.is_some() && !self.has_told_urgent
    }

    fn flags(&mut self) -> ProducerFlags {
        self.has_told_urgent = true;
        let is_there = self.urgent == Some(self.written);
        let waits_for_urgent = self.urgent.is_some_and(|urgent| urgent <= self.written);
        ProducerFlags {
            writer_blocked: self.written < self.queued && !waits_for_urgent,
            urgent_pending: self.urgent.is_some(),
            urgent_present: is_there,
            ..ProducerFlags::default()
        }
    }

    /// Bytes that the peer has read more than was known.
    fn check(&self, claim: Cursor) -> Result<u64, Misbehaved> {
        let known = self.consumed;
        match position::claim(claim, known, self.len) {
            Claim::Ahead(n) if known + n <= self.furthest => Ok(n),
            Claim::Behind => Ok(0),
            _ => Err(Misbehaved::Cursor { cursor: "consumer", claim, known }),
        }
    }

    fn take(&mut self, consumed: u64) {
        self.consumed += consumed;
        // What was read need not be written again.
        self.written = self.written.max(self.consumed);
        if self.urgent.is_some_and(|urgent| urgent <= self.consumed) {
            self.urgent = self.next_urgent.take();
            self.has_told_urgent = false;
        }
    }
}

impl Incoming {
    /// Whether the peer has to be told what was read, without another reason for a message.
    fn update_is_due(&self) -> bool {
        let gain = self.consumed - self.told;
        let len = u64::from(self.len);
        let window = len - (self.produced - self.told);
        let is_worth_it = window < len.div_ceil(2) && gain * 10 >= len;
        let is_wanted = self.writer_is_blocked || self.update_requested || self.has_read_urgent;
        !self.is_held && (gain > 0 && (is_worth_it || is_wanted) || self.has_read_urgent)
    }

    /// What the peer is told to have been read.
    const fn tell(&mut self) -> u64 {
        if !self.is_held {
            self.told = self.consumed;
            self.update_requested = false;
            self.has_read_urgent = false;
        }
        self.told
    }

    /// Bytes that the peer has written more than was known.
    fn check(&self, claim: Cursor) -> Result<u64, Misbehaved> {
        let known = self.produced;
        match position::claim(claim, known, self.len) {
            // It knows of no more room than it was told.
            Claim::Ahead(n) if known + n <= self.told + u64::from(self.len) => Ok(n),
            Claim::Behind => Ok(0),
            _ => Err(Misbehaved::Cursor { cursor: "producer", claim, known }),
        }
    }

    /// True: something about an urgent byte is new.
    fn take(&mut self, produced: u64, flags: ProducerFlags) -> bool {
        self.produced += produced;
        self.writer_is_blocked = flags.writer_blocked;
        self.update_requested |= flags.cursor_update_requested;
        let was_pending = self.urgent_is_pending;
        let is_there = flags.urgent_present && produced > 0;
        if is_there {
            self.urgent = Some(self.produced - 1);
        }
        self.urgent_is_pending = flags.urgent_pending && !flags.urgent_present;
        is_there || self.urgent_is_pending && !was_pending
    }
}

#[cfg(test)]
mod tests;
