//! Queue pairs that were destroyed.
//!
//! A destroyed QP leaves a *tombstone* for [`LIFE`]. Its peer may not have heard of the end, and
//! Linux's `rdma_rxe` would repeat its last message for ever; so it is refused. The number is not
//! given to another QP meanwhile, which could take the peer's packets for its own.
//!
//! A peer can have QPs made and destroyed as fast as it likes. There are at most [`COUNT_MAX`]
//! tombstones, and what is to be done for another one does not grow with the time that they stand. Where
//! there are as many, the oldest of the same address goes, or else the oldest of all: so a peer that hears
//! no refusal is one that has destroyed a thousand itself.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use sidestep_wire::roce::{Aeth, Bth, Headers, Nak, Opcode, Packet, Syndrome};
use sidestep_wire::{Psn, QpNumber};

/// How long a tombstone stands.
pub(super) const LIFE: Duration = Duration::from_secs(60);
/// How many there are of an adapter.
const COUNT_MAX: usize = 1024;
/// Between two answers of a tombstone.
const INTERVAL: Duration = Duration::from_millis(50);

/// Those of an adapter.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    by_number: BTreeMap<QpNumber, Tombstone>,
    /// The oldest first. All stand for the same time.
    by_age: VecDeque<QpNumber>,
}

#[derive(Clone, Copy, Debug)]
struct Tombstone {
    peer: (QpNumber, IpAddr),
    expected: Psn,
    until: Duration,
    /// When it may answer again.
    next_answer: Duration,
}

impl Tombstones {
    /// The queue pair of this number, which had this peer, was destroyed now. Its number is none that
    /// has a tombstone.
    pub(super) fn put_up(
        &mut self,
        number: QpNumber,
        peer: (QpNumber, IpAddr),
        expected: Psn,
        now: Duration,
    ) {
        while self.by_age.front().is_some_and(|oldest| self.has_fallen(*oldest, now)) {
            self.remove(0);
        }
        if self.by_age.len() >= COUNT_MAX {
            let is_its = |number: &QpNumber| self.peer_of(*number) == Some(peer.1);
            self.remove(self.by_age.iter().position(is_its).unwrap_or_default());
        }
        let tombstone = Tombstone { peer, expected, until: now + LIFE, next_answer: now };
        self.by_number.insert(number, tombstone);
        self.by_age.push_back(number);
    }

    fn has_fallen(&self, number: QpNumber, now: Duration) -> bool {
        self.by_number.get(&number).is_none_or(|tombstone| tombstone.until <= now)
    }

    fn remove(&mut self, at: usize) {
        if let Some(number) = self.by_age.remove(at) {
            self.by_number.remove(&number);
        }
    }

    /// Whether a queue pair had this number.
    pub(super) fn contain(&self, number: QpNumber) -> bool {
        self.by_number.contains_key(&number)
    }

    /// The address of the peer of the queue pair that had this number.
    pub(super) fn peer_of(&self, number: QpNumber) -> Option<IpAddr> {
        self.by_number.get(&number).map(|tombstone| tombstone.peer.1)
    }

    /// The answer to a packet for a queue pair that was, and to whom it goes.
    pub(super) fn refuse(
        &mut self,
        packet: &Packet<'_>,
        now: Duration,
    ) -> Option<(IpAddr, Headers)> {
        self.by_number.get_mut(&packet.headers.bth.destination)?.refuse(packet, now)
    }
}

impl Tombstone {
    /// Of the expected PSN, or the packet's if that is older: a later one would tell the peer that
    /// something has arrived that has not.
    fn refuse(&mut self, packet: &Packet<'_>, now: Duration) -> Option<(IpAddr, Headers)> {
        let Bth { opcode, psn, .. } = packet.headers.bth;
        if opcode == Opcode::Acknowledge || now < self.next_answer || now >= self.until {
            return None;
        }
        self.next_answer = now + INTERVAL;
        let (peer, address) = self.peer;
        let psn = if psn.since(self.expected) < 0 { psn } else { self.expected };
        let bth = Bth {
            opcode: Opcode::Acknowledge,
            solicited: false,
            destination: peer,
            ack_request: false,
            psn,
        };
        let syndrome = Syndrome::Nak(Nak::InvalidRequest);
        let aeth = Some(Aeth { syndrome, msn: 0 });
        Some((address, Headers { bth, reth: None, aeth, immediate: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: usize) -> QpNumber {
        let [_, bytes @ ..] = (number as u32).to_be_bytes();
        QpNumber(bytes)
    }

    fn put_up(tombstones: &mut Tombstones, at: usize, last: u8, now: Duration) {
        let peer = (QpNumber::FIRST, IpAddr::from([10, 0, 0, last]));
        tombstones.put_up(number(at), peer, Psn::from_low_bits(0), now);
    }

    #[test]
    fn an_address_takes_no_tombstone_from_others() {
        let mut tombstones = Tombstones::default();
        let now = Duration::ZERO;
        put_up(&mut tombstones, 1, 1, now);
        (2..10 * COUNT_MAX).for_each(|at| put_up(&mut tombstones, at, 2, now));
        assert_eq!(tombstones.by_number.len(), COUNT_MAX);
        assert!(tombstones.contain(number(1)) && tombstones.contain(number(10 * COUNT_MAX - 1)));
        put_up(&mut tombstones, 0, 3, now);
        assert!(tombstones.contain(number(0)), "one who has none gets one");
        assert_eq!(tombstones.by_age.len(), COUNT_MAX);
    }

    #[test]
    fn they_fall_after_their_time_in_the_order_in_which_they_were_put_up() {
        let mut tombstones = Tombstones::default();
        for at in 0..200 {
            put_up(&mut tombstones, at, 1, Duration::from_secs(at as u64));
        }
        let standing: Vec<_> = (0..200).filter(|at| tombstones.contain(number(*at))).collect();
        assert_eq!(standing, (140..200).collect::<Vec<_>>());
    }
}
