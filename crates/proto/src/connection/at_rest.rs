//! A connection at rest: as plain values, for another process to go on with.
//!
//! It is at rest when everything that it has said has arrived. What it has still to say, and what the program has
//! queued and the peer has no room for, does not matter.

use sidestep_wire::AlertToken;
use sidestep_wire::cdc::StateFlags;

use super::ending::Ending;
use super::{Connection, Incoming, Outgoing, Wish};

/// All that there is to know of a connection at rest. Positions are bytes since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "flags of CDC messages, and whether they were told"
)]
pub struct AtRest {
    /// The peer's name for it.
    pub peer: AlertToken,
    /// Bytes of our RMBE, and of the peer's.
    pub lens: [u32; 2],
    /// What the program has sent.
    pub queued: u64,
    /// What was written into the peer's RMBE, and is there.
    pub written: u64,
    /// The furthest that was ever written.
    pub furthest: u64,
    /// What the peer has read, as it says.
    pub consumed_by_peer: u64,
    /// One behind the urgent byte that is sent or to be sent, and of the one behind it.
    pub urgent_out: [Option<u64>; 2],
    /// The peer knows that the first of them is to come.
    pub has_told_urgent: bool,
    /// What the peer has written, as it says.
    pub produced: u64,
    /// What the program has read, and what of that the peer was told.
    pub consumed: u64,
    /// The part of it that the peer was told.
    pub told: u64,
    /// The peer waits for room.
    pub writer_is_blocked: bool,
    /// The peer wants to know what we have read.
    pub update_requested: bool,
    /// The peer has an urgent byte to send.
    pub urgent_is_pending: bool,
    /// Position of the last urgent byte that has come.
    pub urgent_in: Option<u64>,
    /// The program has read an urgent byte, and the peer is to know.
    pub has_read_urgent: bool,
    /// What each side has said of the end: ours, the peer's, and ours on this link.
    pub said: [StateFlags; 3],
    /// The peer has spoken of the end first.
    pub is_passive: bool,
    /// How the program wants it to end.
    pub wish: Wish,
    /// Numbers of messages: our last, our last that has arrived, the peer's last.
    pub seqnos: [u16; 3],
    /// It has changed links, and has not said so.
    pub must_validate: bool,
    /// The next message says what was lost with a link.
    pub must_repeat: bool,
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

impl AtRest {
    /// Whether the positions are in the order that they have in any connection.
    fn is_possible(&self) -> bool {
        let [own_len, peer_len] = self.lens.map(u64::from);
        let out = [self.consumed_by_peer, self.written, self.furthest, self.queued];
        let into = [self.told, self.consumed, self.produced];
        // Far from where a sum could pass the end of the numbers.
        let is_far = self.queued.max(self.produced) <= u64::MAX / 4;
        own_len > 0
            && peer_len > 0
            && is_far
            && out.is_sorted()
            && into.is_sorted()
            && self.furthest - self.consumed_by_peer <= peer_len
            && self.produced - self.told <= own_len
            && self.urgent_out.iter().flatten().all(|end| (1..=self.queued).contains(end))
            && self.urgent_in.is_none_or(|urgent| urgent < self.produced)
    }
}
