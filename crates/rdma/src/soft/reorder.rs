//! Packets that have come before their turn.
//!
//! Where a network has several ways, packets overtake each other. One that comes early is kept until all
//! before it have come, and then carried out as if it came only now. That cannot be seen from outside: nothing is
//! carried out or acknowledged before its turn.
//!
//! ```text
//!   expected                         expected + REACH
//!      │ missing │ kept │ … │ kept │ … │ too far ahead: it will come again
//! ```
//!
//! A queue pair with a gap holds a *reorder buffer*, with a slot for each PSN: its number modulo
//! [`REACH`]. When the gap is closed, the buffer goes back to its adapter, where the next gap of any queue
//! pair finds it; so nothing is allocated once there were as many gaps at a time.
//!
//! A peer can open a gap on each queue pair that it has with us and never close one. So an adapter has
//! [`BUFFERS_MAX`] reorder buffers, however many queue pairs there are. Where all are held, the address that
//! holds the most loses the one that it has held longest. No byte is lost with it: what a buffer holds
//! was not acknowledged, so the peer sends it again, as to an adapter that keeps nothing.

use std::cmp::Reverse;
use std::net::IpAddr;

use sidestep_wire::roce::{Headers, Packet};
use sidestep_wire::{Psn, QpNumber};

use super::requester::WINDOW_MAX;

/// How far ahead a packet may be. Our requester has at most so many on their way, `rdma_rxe` 129. 2^24 is a
/// multiple of it, so slots stay in order where the numbers go around.
const REACH: usize = WINDOW_MAX as usize;

/// Reorder buffers of an adapter: 9 MB where packets have 1024 bytes, 34 MB with the longest, of which there is what
/// was ever used. A gap is open for one round trip after a loss, so few queue pairs have one at the same time.
const BUFFERS_MAX: usize = 16;

/// The reorder buffers of an adapter.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffers {
    /// In the order in which they were taken.
    held: Vec<Held>,
    /// Empty.
    spare: Vec<Buffer>,
}

#[derive(Debug)]
struct Held {
    by: Holder,
    buffer: Buffer,
}

/// A queue pair, and the address of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    qp: QpNumber,
    peer: IpAddr,
}

impl ReorderBuffers {
    /// As the queue pair sees them that has this peer.
    pub(super) const fn of(&mut self, qp: QpNumber, peer: IpAddr) -> Reorder<'_> {
        Reorder { buffers: self, holder: Holder { qp, peer } }
    }

    /// A queue pair is no more.
    pub(super) fn release(&mut self, qp: QpNumber) {
        if let Some(at) = self.place_of(qp) {
            self.give_back(at);
        }
    }

    fn place_of(&self, qp: QpNumber) -> Option<usize> {
        self.held.iter().position(|held| held.by.qp == qp)
    }

    fn give_back(&mut self, at: usize) {
        let mut buffer = self.held.remove(at).buffer;
        buffer.clear();
        self.spare.push(buffer);
    }

    /// An empty buffer for packets with payloads of up to `mtu` bytes.
    fn take_spare(&mut self, mtu: usize) -> Buffer {
        if let Some(at) = self.spare.iter().position(|buffer| buffer.mtu == mtu) {
            return self.spare.swap_remove(at);
        }
        if self.held.len() + self.spare.len() >= BUFFERS_MAX {
            self.spare.pop();
        }
        Buffer::new(mtu)
    }

    /// Takes the buffer away that the address with the most of them has held longest.
    fn take_away(&mut self) {
        let peers = self.held.iter().map(|held| held.by.peer);
        let held_by = |peer: IpAddr| peers.clone().filter(|other| *other == peer).count();
        // The first of several.
        let longest = peers.clone().enumerate().min_by_key(|(_, peer)| Reverse(held_by(*peer)));
        if let Some((at, _)) = longest {
            self.give_back(at);
        }
    }
}

/// What one queue pair keeps of the packets that have come early.
#[derive(Debug)]
pub(super) struct Reorder<'a> {
    buffers: &'a mut ReorderBuffers,
    holder: Holder,
}

impl Reorder<'_> {
    /// Keeps a packet that is `1..` ahead of the expected one, unless it is too far ahead, is there
    /// already, or is longer than `mtu`, which is the same for all packets of the queue pair.
    pub(super) fn keep(&mut self, packet: &Packet<'_>, ahead: usize, mtu: usize) {
        if ahead < REACH && packet.payload.len() <= mtu {
            self.buffer(mtu).keep(packet);
        }
    }

    /// The packet whose turn it is, if it is there.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Packet<'_>> {
        let at = self.buffers.place_of(self.holder.qp)?;
        self.buffers.held[at].buffer.take(expected)
    }

    /// Whether nothing is kept; then the buffer goes back.
    pub(super) fn is_over(&mut self) -> bool {
        let Some(at) = self.buffers.place_of(self.holder.qp) else { return true };
        let is_empty = self.buffers.held[at].buffer.kept == 0;
        if is_empty {
            self.buffers.give_back(at);
        }
        is_empty
    }

    fn buffer(&mut self, mtu: usize) -> &mut Buffer {
        let at = self.buffers.place_of(self.holder.qp).unwrap_or_else(|| {
            if self.buffers.held.len() >= BUFFERS_MAX {
                self.buffers.take_away();
            }
            let buffer = self.buffers.take_spare(mtu);
            self.buffers.held.push(Held { by: self.holder, buffer });
            self.buffers.held.len() - 1
        });
        &mut self.buffers.held[at].buffer
    }
}

/// The packets of one queue pair.
#[derive(Debug)]
struct Buffer {
    mtu: usize,
    /// Headers and the payload's length, by slot.
    packets: Box<[Option<(Headers, usize)>]>,
    /// `mtu` bytes for each slot.
    payloads: Box<[u8]>,
    kept: usize,
}

impl Buffer {
    fn new(mtu: usize) -> Self {
        Self {
            mtu,
            packets: vec![None; REACH].into(),
            payloads: vec![0; REACH * mtu].into(),
            kept: 0,
        }
    }

    fn clear(&mut self) {
        self.packets.fill(None);
        self.kept = 0;
    }

    fn keep(&mut self, packet: &Packet<'_>) {
        let slot = slot_of(packet.headers.bth.psn);
        let len = packet.payload.len();
        if self.packets[slot].is_some() {
            return;
        }
        self.packets[slot] = Some((packet.headers, len));
        self.payloads[slot * self.mtu..][..len].copy_from_slice(packet.payload);
        self.kept += 1;
    }

    fn take(&mut self, expected: Psn) -> Option<Packet<'_>> {
        let slot = slot_of(expected);
        let (headers, len) = self.packets[slot].take()?;
        self.kept -= 1;
        Some(Packet { headers, payload: &self.payloads[slot * self.mtu..][..len] })
    }
}

const fn slot_of(psn: Psn) -> usize {
    psn.bits() as usize % REACH
}

#[cfg(test)]
mod tests {
    use sidestep_wire::roce::{Bth, Message, Opcode, Place, With};

    use super::*;

    const MTU: usize = 1024;

    fn qp(number: u32) -> QpNumber {
        let [_, bytes @ ..] = number.to_be_bytes();
        QpNumber(bytes)
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn psn(number: u32) -> Psn {
        Psn::from_low_bits(number)
    }

    fn packet(psn: Psn, payload: &[u8]) -> Packet<'_> {
        let bth = Bth {
            opcode: Opcode::Part(Message::Send, Place::Only, With::Nothing),
            solicited: false,
            destination: QpNumber::FIRST,
            ack_request: false,
            psn,
        };
        Packet { headers: Headers { bth, reth: None, aeth: None, immediate: None }, payload }
    }

    /// Keeps the packet behind the one of number 0, which is missing.
    fn open_gap(buffers: &mut ReorderBuffers, number: u32, peer: IpAddr, mtu: usize) {
        let payload = number.to_be_bytes();
        buffers.of(qp(number), peer).keep(&packet(psn(1), &payload), 1, mtu);
    }

    fn keeps(buffers: &mut ReorderBuffers, number: u32, peer: IpAddr) -> bool {
        let mut reorder = buffers.of(qp(number), peer);
        let kept = reorder.take(psn(1)).map(|packet| packet.payload == number.to_be_bytes());
        kept.unwrap_or_default() && reorder.is_over()
    }

    #[test]
    fn who_opens_more_gaps_than_there_are_buffers_loses_his_own() {
        let mut buffers = ReorderBuffers::default();
        let [stranger, honest] = [1, 2].map(address);
        let gaps_of_stranger = 0..10 * BUFFERS_MAX as u32;
        open_gap(&mut buffers, 1_000_000, honest, MTU);
        for number in gaps_of_stranger.clone() {
            open_gap(&mut buffers, number, stranger, MTU);
        }
        // One that begins while all are held finds one.
        open_gap(&mut buffers, 1_000_001, honest, MTU);
        assert!([1_000_000, 1_000_001].iter().all(|it| keeps(&mut buffers, *it, honest)));
        let kept = gaps_of_stranger.filter(|number| keeps(&mut buffers, *number, stranger));
        let latest = 9 * BUFFERS_MAX as u32 + 2..10 * BUFFERS_MAX as u32;
        assert!(kept.eq(latest), "the oldest have gone");
    }

    #[test]
    fn there_are_never_more_than_so_many_whatever_their_packets_length() {
        let mut buffers = ReorderBuffers::default();
        for number in 0..1000 {
            open_gap(&mut buffers, number, address(number as u8), 256 << (number % 5));
            if number % 3 == 0 {
                buffers.release(qp(number / 2));
            }
            assert!(buffers.held.len() + buffers.spare.len() <= BUFFERS_MAX);
        }
    }

    #[test]
    fn what_another_queue_pair_has_left_is_not_found() {
        let mut buffers = ReorderBuffers::default();
        open_gap(&mut buffers, 1, address(1), MTU);
        buffers.release(qp(1));
        let mut reorder = buffers.of(qp(2), address(1));
        reorder.keep(&packet(psn(300), b"far"), 2, MTU);
        assert!(reorder.take(psn(1)).is_none() && !reorder.is_over());
        assert_eq!(reorder.take(psn(300)).map(|packet| packet.payload), Some(&b"far"[..]));
        assert!(reorder.is_over());
        assert_eq!((buffers.held.len(), buffers.spare.len()), (0, 1));
    }
}
