//! A connection with its two buffers: what a program sends into, and what it receives from.
//!
//! ```text
//!   send ──> [ send buffer, a ring ] ──WRITE──>   the peer's RMBE
//!   receive <── [ our RMBE, a ring ] <──WRITE──   the peer's send buffer
//! ```
//!
//! The copy into the send buffer is the only one on the sending side: the adapter takes the bytes
//! from there, again if need be, and they stay until they are known to have arrived.
//!
//! Where the bytes lie in a ring already, and stay there for as long, they are sent in place, without that copy:
//!
//! ```text
//!   the program's ring ──WRITE──> the peer's RMBE      Event::Sent: so many are needed no more
//! ```
//!
//! All bytes that are under way lie in one of the two. So it is the other one's turn only when none is.

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use sidestep_proto::connection::{Connection, SendError, State, Write};
use sidestep_proto::link_group::{AdapterId, LINK_SLOTS, RmbId, Role, Rtoken};
use sidestep_proto::rendezvous::hosts::Wording;
use sidestep_rdma::device::{Device, Source};
use sidestep_rdma::memory::{Shared, Stretch};
use sidestep_wire::cdc::CdcMessage;
use sidestep_wire::clc::AcceptConfirmR;
use sidestep_wire::{AlertToken, LinkUserId, RmbAddress, RmbeSize};

use crate::carrier::{Carrier, Work};
use crate::event::Reset;

/// How far a connection has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A queue pair or a buffer is in the making.
    Preparing,
    /// Our Accept or Confirm is on its way; the peer's Confirm, or the group, is waited for.
    Introduced,
    /// It carries bytes.
    Open,
    /// It has given all back but what the program may still read.
    Over,
}

/// What the peer's Accept or Confirm says of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerEnd {
    /// Its name for the connection.
    pub token: AlertToken,
    /// How long its RMBE is.
    pub size: RmbeSize,
    /// How its RMB is reached over the link that the message names.
    pub rtoken: Rtoken,
    /// Where the RMBE begins in the RMB.
    pub offset: u64,
}

impl PeerEnd {
    /// `None`: there is no such element in any RMB.
    pub(crate) fn of(message: &AcceptConfirmR) -> Option<Self> {
        let before = u64::from(message.rmbe_index).checked_sub(1)?;
        Some(Self {
            token: message.alert_token,
            size: message.size,
            rtoken: Rtoken { rkey: message.rkey, address: message.rmb_address },
            offset: before * message.size.bytes() as u64,
        })
    }
}

/// What a program sends into.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    pub(crate) memory: Arc<Shared>,
    /// For each adapter that may read it.
    pub(crate) sources: Vec<(AdapterId, Source)>,
}

impl SendBuffer {
    pub(crate) fn new(len: usize) -> Self {
        Self { memory: Arc::new(Shared::zeroed(len)), sources: Vec::new() }
    }

    /// Lets an adapter read it, if none has asked for that one before. `None`: it refuses.
    pub(crate) fn lend_to(
        &mut self,
        adapter: AdapterId,
        device: &mut impl Device,
    ) -> Option<Source> {
        if let Some((_, source)) = self.sources.iter().find(|(id, _)| *id == adapter) {
            return Some(source.clone());
        }
        let source = device.lend(&self.memory)?;
        self.sources.push((adapter, source.clone()));
        Some(source)
    }

    /// An adapter is to read it no more, if it could.
    pub(crate) fn part_from(&mut self, adapter: AdapterId) -> Option<Source> {
        let at = self.sources.iter().position(|(id, _)| *id == adapter)?;
        Some(self.sources.swap_remove(at).1)
    }
}

/// A ring that bytes are sent from in place.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) ring: SendBuffer,
    /// What is under way lies there, and what comes next: this is where the first byte of the connection would lie.
    pub(crate) begin: Option<u64>,
}

/// Bytes in a ring, where they stay until they are known to have arrived.
#[derive(Clone, Copy, Debug)]
pub struct InPlace<'a> {
    /// The memory of the ring: the byte at a position lies at that modulo its length, a power of two. One ring for the
    /// life of a connection.
    pub ring: &'a Arc<Shared>,
    /// Of the first of them in the ring.
    pub position: u64,
    /// How many, at most as many as there is memory.
    pub len: usize,
    /// The last of them is urgent.
    pub is_urgent: bool,
}

/// Bytes of the peer's that lie in the RMBE, in order.
#[derive(Clone, Copy, Debug)]
pub struct Readable<'a> {
    /// The second, if it is not empty, goes on where the first ends.
    pub stretches: [Stretch<'a>; 2],
    /// It is one urgent byte.
    pub is_urgent: bool,
}

impl Readable<'_> {
    const NOTHING: Self = Self { stretches: [Stretch::NONE; 2], is_urgent: false };

    /// How many they are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.stretches[0].len() + self.stretches[1].len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A connection, as its program and its group see it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) group: u32,
    pub(crate) role: Role,
    pub(crate) is_first: bool,
    pub(crate) wording: Wording,
    pub(crate) stage: Stage,
    /// The link that it was introduced with.
    pub(crate) named: LinkUserId,
    pub(crate) peer: Option<PeerEnd>,
    /// What it says and hears, once it is open.
    pub(crate) connection: Option<Connection>,
    /// Where it writes to.
    pub(crate) to: Option<(LinkUserId, Rtoken)>,
    /// It is to go on over another link, once nothing is on its way over this one.
    pub(crate) moving: bool,
    /// It leaves a link that works, and the peer is asked whether it has understood all over that.
    pub(crate) probed: Option<LinkUserId>,
    /// The link that the peer sends over, as far as it has told.
    pub(crate) heard_over: Option<LinkUserId>,
    /// Links that it has sent over before, as long as they work and more of that may come.
    pub(crate) left: ArrayVec<LinkUserId, LINK_SLOTS>,
    /// The newest word of the peer, from before it was open.
    pub(crate) early: Option<(LinkUserId, CdcMessage)>,
    /// Messages of it that wait or are posted.
    pub(crate) under_way: usize,
    pub(crate) is_ready: bool,
    /// The peer's RMBE had no room for all that is to be sent, as the last message has told.
    pub(crate) is_blocked: bool,
    pub(crate) rmb: RmbId,
    pub(crate) incoming: Arc<Shared>,
    /// Until nothing of it is needed any more.
    pub(crate) outgoing: Option<SendBuffer>,
    /// Where the first byte of the connection would lie there.
    buffer_begin: u64,
    pub(crate) lent: Option<Lent>,
    /// An adapter cannot read the ring.
    pub(crate) is_ring_refused: bool,
    /// By which the adapter of its link reads what is sent.
    pub(crate) source: Option<Source>,
    /// Bytes that the program has sent.
    pub(crate) queued: u64,
    /// The program was told to wait for room.
    pub(crate) wants_room: bool,
    /// The program has not closed it yet.
    pub(crate) is_held: bool,
    pub(crate) reset: Option<Reset>,
    /// When it is over without a word of the peer.
    pub(crate) patience: Option<Duration>,
    /// CDC messages.
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    /// How often it has gone over to another link.
    pub(crate) moves: u64,
}

/// What a connection needs to begin with.
pub(crate) struct Beginning {
    pub(crate) group: u32,
    pub(crate) role: Role,
    pub(crate) is_first: bool,
    pub(crate) wording: Wording,
    pub(crate) named: LinkUserId,
    pub(crate) peer: Option<PeerEnd>,
    pub(crate) rmb: RmbId,
    pub(crate) incoming: Arc<Shared>,
    pub(crate) outgoing: SendBuffer,
}

impl Stream {
    pub(crate) fn new(beginning: Beginning) -> Self {
        let Beginning { group, role, is_first, wording, named, peer, rmb, incoming, outgoing } =
            beginning;
        Self {
            group,
            role,
            is_first,
            wording,
            stage: Stage::Preparing,
            named,
            peer,
            connection: None,
            to: None,
            moving: false,
            probed: None,
            heard_over: None,
            left: ArrayVec::new(),
            early: None,
            under_way: 0,
            is_ready: false,
            is_blocked: false,
            rmb,
            incoming,
            outgoing: Some(outgoing),
            buffer_begin: 0,
            lent: None,
            is_ring_refused: false,
            source: None,
            queued: 0,
            wants_room: false,
            is_held: true,
            reset: None,
            patience: None,
            messages_sent: 0,
            messages_received: 0,
            moves: 0,
        }
    }

    /// Bytes that are not known to have arrived.
    pub(crate) fn kept(&self) -> u64 {
        self.connection.as_ref().map_or(0, Connection::kept)
    }

    /// Whether what is under way lies in a ring, and what comes next.
    pub(crate) fn sends_in_place(&self) -> bool {
        self.begin_in_place().is_some()
    }

    pub(crate) fn begin_in_place(&self) -> Option<u64> {
        self.lent.as_ref()?.begin
    }

    /// Where the first byte of the connection would lie in what is sent from.
    pub(crate) fn begin(&self) -> u64 {
        self.begin_in_place().unwrap_or(self.buffer_begin)
    }

    /// Bytes that fit into the send buffer.
    pub(crate) fn room(&self) -> usize {
        let len = self.outgoing.as_ref().map_or(0, |buffer| buffer.memory.len());
        match (self.sends_in_place(), self.kept()) {
            (true, 1..) => 0,
            (true, 0) => len,
            (false, kept) => len - kept as usize,
        }
    }

    /// Where what is sent next is to be read from: the ring, or the send buffer.
    pub(crate) fn sending_from(&mut self) -> Option<&mut SendBuffer> {
        match &mut self.lent {
            Some(Lent { ring, begin: Some(_) }) => Some(ring),
            _ => self.outgoing.as_mut(),
        }
    }

    /// All that adapters may read.
    pub(crate) fn sources(&mut self) -> impl Iterator<Item = &mut SendBuffer> {
        let ring = self.lent.as_mut().map(|lent| &mut lent.ring);
        self.outgoing.iter_mut().chain(ring)
    }

    /// Whether bytes can be sent in place, behind those that are under way.
    pub(crate) fn goes_on_at(&self, position: u64) -> bool {
        self.begin_in_place().is_some_and(|begin| begin.wrapping_add(self.queued) == position)
    }

    /// Sends bytes from where they lie, in the ring that what is under way lies in.
    pub(crate) fn queue_in_place(&mut self, bytes: &InPlace<'_>) -> Result<(), SendError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        match bytes.is_urgent {
            true => connection.queue_urgent(bytes.len as u64)?,
            false => connection.queue(bytes.len as u64)?,
        }
        self.queued += bytes.len as u64;
        Ok(())
    }

    /// Puts bytes into the send buffer, as many as fit, and returns how many. If all of them do and
    /// `is_urgent`, the last is urgent.
    pub(crate) fn queue(
        &mut self,
        bytes: Stretch<'_>,
        is_urgent: bool,
    ) -> Result<usize, SendError> {
        let room = self.room();
        let Some(connection) = &self.connection else { return Ok(0) };
        connection.may_send()?;
        let n = room.min(bytes.len());
        if self.under_way == 0 && self.kept() == 0 {
            // As much of it is written to as there is in it at once, whatever the connection has sent before.
            self.buffer_begin = self.queued.wrapping_neg();
        }
        if let Some(buffer) = &self.outgoing {
            let at = self.buffer_begin.wrapping_add(self.queued);
            copy_in(&buffer.memory, at, bytes.split_at(n).0);
        }
        self.queued += n as u64;
        let Some(connection) = &mut self.connection else { return Ok(0) };
        match is_urgent && n == bytes.len() {
            true => connection.queue_urgent(n as u64)?,
            false => connection.queue(n as u64)?,
        }
        Ok(n)
    }

    /// Puts bytes into the empty send buffer that another process had taken from the program, and not sent.
    pub(crate) fn put_back(&mut self, position: u64, unsent: &[u8]) {
        self.buffer_begin = position.wrapping_neg();
        if let Some(buffer) = &self.outgoing {
            copy_in(&buffer.memory, 0, unsent.into());
        }
        self.queued = position + unsent.len() as u64;
    }

    /// Takes bytes out of the RMBE.
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> usize {
        let Some(connection) = &mut self.connection else { return 0 };
        let readable = usize::try_from(connection.readable()).unwrap_or(usize::MAX);
        let n = readable.min(buffer.len());
        copy_out(&self.incoming, connection.read_position(), &mut buffer[..n]);
        connection.consume(n as u64);
        n
    }

    /// What lies in the RMBE and is to be read next: one stretch, or two around its end. An urgent byte
    /// comes by itself.
    pub(crate) fn readable(&self) -> Readable<'_> {
        let Some(connection) = &self.connection else { return Readable::NOTHING };
        let position = connection.read_position();
        let before_mark = connection.urgent_byte().and_then(|at| at.checked_sub(position));
        let most = match before_mark {
            Some(before) => before.max(1),
            None => u64::MAX,
        };
        let n = connection.readable().min(most) as usize;
        let len = self.incoming.len();
        let at = (position % len as u64) as usize;
        let first = n.min(len - at);
        // What the peer has said is in the RMBE is no more than that.
        let stretch = |at, n| self.incoming.stretch(at, n).unwrap_or(Stretch::NONE);
        Readable {
            stretches: [stretch(at, first), stretch(0, n - first)],
            is_urgent: before_mark == Some(0),
        }
    }

    /// The next `n` bytes of those have been taken.
    pub(crate) fn consume(&mut self, n: usize) {
        if let Some(connection) = &mut self.connection {
            connection.consume(n as u64);
        }
    }

    /// Gives the next step of the connection to its link: WRITEs, and the CDC message behind them.
    /// False: nothing is due.
    pub(crate) fn take_step(&mut self, token: AlertToken, carrier: &mut Carrier) -> bool {
        let (Some((_, rtoken)), Some(peer)) = (self.to, self.peer) else { return false };
        let transmit = self.connection.as_mut().and_then(Connection::poll_transmit);
        let Some(transmit) = transmit else { return false };
        for write in transmit.writes.into_iter().flatten() {
            self.under_way += self.take_write(token, write, (rtoken, peer.offset), carrier);
        }
        self.is_blocked = transmit.message.producer_flags.writer_blocked;
        let mut bytes = [0; sidestep_wire::cdc::LEN];
        let emitted = transmit.message.emit(&mut bytes);
        debug_assert!(emitted.is_ok(), "there is room for any");
        carrier.take(Work::Cdc { of: token, receipt: transmit.receipt, bytes });
        self.under_way += 1;
        self.messages_sent += 1;
        true
    }

    /// A stretch of bytes is one WRITE, or two around the end of where they lie. How many it was.
    fn take_write(
        &self,
        of: AlertToken,
        write: Write,
        (rtoken, offset): (Rtoken, u64),
        carrier: &mut Carrier,
    ) -> usize {
        let Some(source) = &self.source else { return 0 };
        let len = source.memory.len();
        let from = self.begin().wrapping_add(write.from);
        let at = (from % len as u64) as usize;
        let first = (len - at).min(write.len as usize) as u32;
        let to = rtoken.address.0.wrapping_add(offset + u64::from(write.to));
        let behind = to.wrapping_add(u64::from(first));
        let pieces = [(at, first, to), (0, write.len - first, behind)];
        let mut count = 0;
        for (at, len, to) in pieces.into_iter().filter(|(_, len, _)| *len > 0) {
            let from = (source.clone(), at, len);
            carrier.take(Work::Write { of, from, to: (rtoken.rkey, RmbAddress(to)) });
            count += 1;
        }
        count
    }

    /// Whether both sides have said the last word.
    pub(crate) fn is_agreed(&self) -> bool {
        self.connection.as_ref().is_some_and(|it| it.state() == State::Closed)
    }

    /// Whether there is nothing that the peer could still be needed for: all it had to say has come,
    /// and all that we had has arrived, or is unwanted.
    pub(crate) fn is_complete(&self) -> bool {
        let Some(connection) = &self.connection else { return false };
        let needs_no_sending = match connection.may_send() {
            Err(SendError::PeerClosed) => true,
            Err(SendError::Shut) => connection.kept() == 0,
            Err(SendError::Aborted) | Ok(()) => false,
        };
        connection.has_ended() && needs_no_sending
    }
}

fn copy_in(ring: &Shared, position: u64, bytes: Stretch<'_>) {
    let at = (position % ring.len() as u64) as usize;
    let (first, second) = bytes.split_at(ring.len() - at);
    let fits = ring.copy_in(at, first) && ring.copy_in(0, second);
    debug_assert!(fits, "no more than the ring has room for");
}

fn copy_out(ring: &Shared, position: u64, bytes: &mut [u8]) {
    let at = (position % ring.len() as u64) as usize;
    let (first, second) = bytes.split_at_mut(bytes.len().min(ring.len() - at));
    let fits = ring.copy_out(at, first) && ring.copy_out(0, second);
    debug_assert!(fits, "no more than there is in the ring");
}
