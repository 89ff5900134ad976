//! Packets that have come before their turn.
//!
//! Where a network has several ways, packets overtake each other. One that comes early is kept until all
//! before it have come, and then carried out as if it came only now. Nobody outside can tell: nothing is
//! carried out or acknowledged before its turn.
//!
//! ```text
//!   expected                         expected + REACH
//!      │ missing │ kept │ … │ kept │ … │ too far ahead: it will come again
//! ```
//!
//! A PSN has a slot, its number modulo [`REACH`]. There are slots from the first packet on that comes
//! early, and nothing is allocated for any later one.

use sidestep_wire::Psn;
use sidestep_wire::roce::{Headers, Packet};

/// How far ahead a packet may be. Our requester has at most so many on their way, and `rdma_rxe` one
/// more. 2^24 is a multiple of it, so slots stay in order where the numbers go around.
pub(super) const REACH: usize = 128;

/// What is kept.
#[derive(Debug)]
pub(super) struct Early {
    mtu: usize,
    /// Headers and the payload's length, by slot.
    packets: Box<[Option<(Headers, usize)>]>,
    /// `mtu` bytes for each slot.
    payloads: Box<[u8]>,
    kept: usize,
}

impl Early {
    /// Room for packets with payloads of up to `mtu` bytes.
    pub(super) fn new(mtu: usize) -> Self {
        Self {
            mtu,
            packets: vec![None; REACH].into(),
            payloads: vec![0; REACH * mtu].into(),
            kept: 0,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Keeps a packet that is `1..` ahead of the expected one, unless it is too far ahead, is there
    /// already, or is longer than any may be.
    pub(super) fn keep(&mut self, packet: &Packet<'_>, ahead: usize) {
        let slot = slot_of(packet.headers.bth.psn);
        let len = packet.payload.len();
        if ahead >= REACH || len > self.mtu || self.packets[slot].is_some() {
            return;
        }
        self.packets[slot] = Some((packet.headers, len));
        self.payloads[slot * self.mtu..][..len].copy_from_slice(packet.payload);
        self.kept += 1;
    }

    /// The packet whose turn it is, if it is there.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Packet<'_>> {
        let slot = slot_of(expected);
        let (headers, len) = self.packets[slot].take()?;
        self.kept -= 1;
        Some(Packet { headers, payload: &self.payloads[slot * self.mtu..][..len] })
    }
}

const fn slot_of(psn: Psn) -> usize {
    psn.bits() as usize % REACH
}
