//! One direction of a link: packets in the order of their numbers, put together to messages.
//!
//! A lane does what the receiver's adapter does. The packet that is due goes on with the message
//! under way; an earlier one has come before and is passed over; a later one shows that others are
//! missing, and is dropped: the sender goes back to the first that is missing. If the receiver
//! acknowledges what was never seen, it is the capture that misses it.
//!
//! *Source*: InfiniBand Architecture Specification volume 1, §9.7.

use sidestep_wire::roce::{Headers, Message, Opcode, Packet, Place, Reth};
use sidestep_wire::{Psn, llc};

/// Acknowledgements this far ahead are not believed: no window of an adapter is as long.
const AHEAD_MAX: i32 = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The number that is due, once it is known.
    next: Option<Psn>,
    /// Where the numbers begin, if the handshake said so.
    announced: Option<Psn>,
    /// Packets before the one that is due are missing, and that has been told.
    is_stalled: bool,
    open: Option<Open>,
}

/// A message of which the last packet is still to come.
#[derive(Debug)]
struct Open {
    kind: Message,
    reth: Option<Reth>,
    len: u64,
    packets: u64,
    /// Of a SEND, as far as a message of SMC can be long.
    bytes: Vec<u8>,
    is_cut: bool,
}

/// What a packet comes to.
#[derive(Debug)]
pub(super) enum Session {
    /// A part of a message.
    Part,
    /// The end of a message.
    Whole(Whole),
    /// It was there before.
    Again,
    /// One that is not due, later than this; told once.
    Gap(Psn),
    /// As such a gap, told before.
    Dropped,
    /// It does not fit behind the packet before it.
    Misplaced(&'static str),
}

/// A message, whole.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) kind: Message,
    /// Where it goes, if the capture has that: of a WRITE.
    pub(super) reth: Option<Reth>,
    pub(super) len: u64,
    pub(super) packets: u64,
    /// Of a SEND.
    pub(super) bytes: Vec<u8>,
    /// The capture does not have all its bytes.
    pub(super) is_cut: bool,
}

impl Lane {
    /// The lane of a link whose handshake announces this number as the first.
    pub(super) fn from(first: Psn) -> Self {
        Self { next: Some(first), announced: Some(first), ..Self::default() }
    }

    /// The number that the handshake announced, as long as nothing has come.
    pub(super) fn untouched(&self) -> Option<Psn> {
        self.announced.filter(|first| self.next == Some(*first))
    }

    /// The next packet of the capture. `is_cut`: its payload is not all there.
    pub(super) fn take(&mut self, packet: &Packet<'_>, is_cut: bool) -> Session {
        let psn = packet.headers.bth.psn;
        let due = *self.next.get_or_insert(psn);
        match psn.since(due) {
            0 => {}
            ..0 => return Session::Again,
            1.. if self.is_stalled => return Session::Dropped,
            1.. => {
                self.is_stalled = true;
                return Session::Gap(due);
            }
        }
        self.next = Some(psn.plus(1));
        self.is_stalled = false;
        match packet.headers.bth.opcode {
            Opcode::Part(kind, place, _) => self.join(kind, place, packet, is_cut),
            Opcode::ReadRequest => Session::Misplaced("SMC-R reads no memory"),
            Opcode::Atomic(_) => Session::Misplaced("SMC-R has no atomic operations"),
            Opcode::Acknowledge => Session::Misplaced("an answer is no request"),
        }
    }

    /// The other side has everything up to here. Returns how many packets the capture misses.
    pub(super) fn acknowledge(&mut self, psn: Psn) -> Option<u32> {
        let ahead = psn.since(self.next?);
        if !(0..AHEAD_MAX).contains(&ahead) {
            return None;
        }
        self.next = Some(psn.plus(1));
        self.open = None;
        self.is_stalled = false;
        Some(ahead.unsigned_abs() + 1)
    }

    /// Whether this may be the lane that an acknowledgement of `psn` is about.
    pub(super) fn has_just_sent(&self, psn: Psn) -> bool {
        self.next.is_some_and(|next| next == psn.plus(1))
    }

    fn join(&mut self, kind: Message, place: Place, packet: &Packet<'_>, is_cut: bool) -> Session {
        let known = self.open.take();
        let mut open = match (place, known) {
            (Place::First | Place::Only, None) => Open::new(kind, &packet.headers),
            (Place::First | Place::Only, Some(_)) => {
                self.open = Some(Open::new(kind, &packet.headers));
                return Session::Misplaced("a message begins before the last one has ended");
            }
            (Place::Middle | Place::Last, Some(open)) if open.kind == kind => open,
            (Place::Middle | Place::Last, Some(_)) => {
                return Session::Misplaced("goes on with a message of another kind");
            }
            // Without the beginning of the connection nothing is known of the first packets.
            (Place::Middle | Place::Last, None) if self.announced.is_none() => {
                return Session::Part;
            }
            (Place::Middle | Place::Last, None) => {
                return Session::Misplaced("goes on with a message that has not begun");
            }
        };
        open.push(packet.payload, is_cut);
        if matches!(place, Place::First | Place::Middle) {
            self.open = Some(open);
            return Session::Part;
        }
        let Open { kind, reth, len, packets, bytes, is_cut } = open;
        Session::Whole(Whole { kind, reth, len, packets, bytes, is_cut })
    }
}

impl Open {
    fn new(kind: Message, headers: &Headers) -> Self {
        Self { kind, reth: headers.reth, len: 0, packets: 0, bytes: Vec::new(), is_cut: false }
    }

    fn push(&mut self, payload: &[u8], is_cut: bool) {
        self.len += payload.len() as u64;
        self.packets += 1;
        self.is_cut |= is_cut;
        if self.kind == Message::Send {
            // One byte more than any message has shows that it is too long.
            let room = (llc::LENGTH_MAX + 1).saturating_sub(self.bytes.len());
            self.bytes.extend(&payload[..payload.len().min(room)]);
        }
    }
}
