//! A connection at rest: as plain values, for another process to go on with.
//!
//! It is at rest when everything that it has said has arrived. What it has still to say, and what the program has
//! queued and the peer has no room for, does not matter.

use sidestep_wire::AlertToken;
use sidestep_wire::cdc::StateFlags;

use super::ending::Wish;

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

impl AtRest {
    /// Whether the positions are in the order that they have in any connection.
    pub(super) fn is_possible(&self) -> bool {
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
