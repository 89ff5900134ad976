//! A link: our queue pair, the peer's, and how far the two have got.
//!
//! ```text
//!               the peer's end is known      CONFIRM LINK went both ways
//!   Allocated ───────────────────────> Activating ───────────────────────> Active
//!       │                                  │                                  │
//!       └── never known to the peer ─┐     └────────> Deleting <──────────────┘
//!                                    v                   │ the peer knows, too
//!                                  gone <────────────────┘
//! ```
//!
//! What RFC 7609 calls *asymmetric* is not a property of one link: two links share the adapter of
//! one side, and the later one is the asymmetric one. So it is not kept but computed, over all links
//! in the order in which they were made ([`symmetric`]).

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::clc::Version;
use sidestep_wire::llc::DeleteReason;
use sidestep_wire::{LinkNumber, LinkUserId, Mac, Mtu, Psn, QpNumber, RoceGid};

use super::limits::LINK_SLOTS;

/// An RDMA adapter (RNIC) of this host, in the numbering of the engine's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u8);

/// An adapter that links of a group may use: one on the network and VLAN of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adapter {
    /// Which.
    pub id: AdapterId,
    /// Its address for RoCE.
    pub gid: RoceGid,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The longest packet it sends and takes; one that has a meaning.
    pub mtu: Mtu,
}

/// One end of a link, as it is told to the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEnd {
    /// The adapter's address for RoCE.
    pub gid: RoceGid,
    /// The adapter's Ethernet address.
    pub mac: Mac,
    /// The queue pair.
    pub qp: QpNumber,
    /// The first packet sequence number that this end sends.
    pub psn: Psn,
    /// The longest packet it takes.
    pub mtu: Mtu,
}

impl LinkEnd {
    /// Whether a link of ours can lead there: to a queue pair that programs can have, by the address
    /// of one adapter that is not one of ours, and with an MTU that has a meaning.
    pub(super) fn is_plausible(&self, ours: &[Adapter], version: Version) -> bool {
        let (RoceGid(gid), Mac(mac)) = (self.gid, self.mac);
        // In version 2 it is the IP layer that finds the MAC.
        let is_mac = version == Version::V2 || (mac != [0; 6] && mac[0] & MULTICAST_MAC == 0);
        self.qp >= QpNumber::FIRST
            && gid != [0; 16]
            && gid[0] != MULTICAST_GID
            && !ours.iter().any(|adapter| adapter.gid == self.gid)
            && is_mac
            && self.mtu.bytes().is_some()
    }

    /// Whether it is on the same adapter as another end of the same side. Version 2 goes by the
    /// GID; in version 1 several adapters may have one GID and differ by their MAC.
    pub(super) fn shares_adapter(&self, other: &Self, version: Version) -> bool {
        self.gid == other.gid && (version == Version::V2 || self.mac == other.mac)
    }
}

/// What the first byte of a multicast GID is, as of an IPv6 address.
const MULTICAST_GID: u8 = 0xFF;
/// Of the first byte of a MAC.
const MULTICAST_MAC: u8 = 0x01;

/// How far a link has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkState {
    /// There is a queue pair, or will be. It has no peer yet.
    Allocated,
    /// Both ends know each other, and CONFIRM LINK has not shown yet that they can talk.
    Activating,
    /// It carries connections.
    Active,
    /// It carries nothing any more; the two sides are telling each other that it goes.
    Deleting,
}

/// Which message was sent over a link: see [`Command::Send`](super::Command::Send).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub(super) u64);

/// How a link in [`LinkState::Deleting`] takes its leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    /// Server: a DELETE LINK waits for its turn, or was sent.
    Due(DeleteReason),
    /// Client: the server was asked, over another link, to delete it.
    Asked { over: LinkUserId, until: Duration, reason: DeleteReason },
    /// Client: our answer travels over this very link, and nothing else will.
    Answered { until: Duration, ticket: Ticket },
}

/// A TEST LINK that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) sent: Duration,
    pub(super) until: Duration,
    /// Which of the group's tests it is.
    pub(super) number: u64,
    /// A flow waits for the answer.
    pub(super) is_probe: bool,
}

/// A link of a group.
#[derive(Debug, Clone)]
pub struct Link {
    pub(super) user_id: LinkUserId,
    pub(super) state: LinkState,
    pub(super) number: LinkNumber,
    pub(super) adapter: Adapter,
    /// `None` until the device has made it.
    pub(super) qp: Option<(QpNumber, Psn)>,
    pub(super) peer: Option<LinkEnd>,
    pub(super) peer_user_id: LinkUserId,
    /// The device has said that the queue pair takes the peer's packets.
    pub(super) is_receiving: bool,
    /// The device was told to let it send.
    pub(super) is_sending: bool,
    pub(super) last_received: Duration,
    /// The device says that it hears nothing, since then.
    pub(super) silent_since: Option<Duration>,
    /// The device was told to destroy the queue pair.
    pub(super) is_destroyed: bool,
    pub(super) test: Option<Test>,
    /// Another test follows, whose answer a flow waits for.
    pub(super) probe_is_due: bool,
    /// `Some` exactly in [`LinkState::Deleting`].
    pub(super) farewell: Option<Farewell>,
    /// Server: the client wants it deleted in order, when there is time.
    pub(super) resigns: Option<DeleteReason>,
}

impl Link {
    pub(super) const fn new(user_id: LinkUserId, number: LinkNumber, adapter: Adapter) -> Self {
        Self {
            user_id,
            state: LinkState::Allocated,
            number,
            adapter,
            qp: None,
            peer: None,
            peer_user_id: LinkUserId(0),
            is_receiving: false,
            is_sending: false,
            last_received: Duration::ZERO,
            silent_since: None,
            is_destroyed: false,
            test: None,
            probe_is_due: false,
            farewell: None,
            resigns: None,
        }
    }

    /// Something has come over it.
    pub(super) const fn heard(&mut self, now: Duration) {
        self.last_received = now;
        self.silent_since = None;
    }

    /// Whether something has come over it later than that.
    pub(super) fn was_heard_since(&self, moment: Duration) -> bool {
        self.last_received > moment
    }

    /// Our name for it. Commands and events name links so.
    #[must_use]
    pub const fn user_id(&self) -> LinkUserId {
        self.user_id
    }

    /// The peer's name for it; 0 before CONFIRM LINK.
    #[must_use]
    pub const fn peer_user_id(&self) -> LinkUserId {
        self.peer_user_id
    }

    /// How far it has got.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// Its number, the same on both sides; 0 at the client of a first contact, until the server
    /// has told it.
    #[must_use]
    pub const fn number(&self) -> LinkNumber {
        self.number
    }

    /// Our adapter.
    #[must_use]
    pub const fn adapter(&self) -> Adapter {
        self.adapter
    }

    /// Our end, once the queue pair is made.
    #[must_use]
    pub fn end(&self) -> Option<LinkEnd> {
        let Adapter { gid, mac, mtu, .. } = self.adapter;
        self.qp.map(|(qp, psn)| LinkEnd { gid, mac, qp, psn, mtu })
    }

    /// The peer's end, once it is known.
    #[must_use]
    pub const fn peer(&self) -> Option<LinkEnd> {
        self.peer
    }

    /// The longest packet that travels on it: the smaller of what both ends take.
    #[must_use]
    pub fn mtu(&self) -> Mtu {
        self.peer.map_or(self.adapter.mtu, |peer| peer.mtu.min(self.adapter.mtu))
    }

    /// Whether it shares an adapter, of either side, with another link.
    fn shares_adapter(&self, other: &Self, version: Version) -> bool {
        let shares_theirs = match (&self.peer, &other.peer) {
            (Some(ours), Some(theirs)) => ours.shares_adapter(theirs, version),
            _ => false,
        };
        self.adapter.id == other.adapter.id || shares_theirs
    }
}

/// The links that share no adapter with an earlier one of them: those that one failure cannot take
/// together. Links on their way out do not count.
pub(super) fn symmetric(links: &[Link], version: Version) -> impl Iterator<Item = &Link> {
    let mut found = ArrayVec::<&Link, LINK_SLOTS>::new();
    for link in links {
        let counts = matches!(link.state, LinkState::Activating | LinkState::Active);
        if counts && !found.iter().any(|earlier| link.shares_adapter(earlier, version)) {
            found.push(link);
        }
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_version_1_adapters_with_one_gid_differ_by_their_mac() {
        let (gid, mac) = (RoceGid([7; 16]), Mac([2; 6]));
        let (qp, psn, mtu) = (QpNumber::FIRST, Psn::default(), Mtu::from_low_bits(3));
        let end = LinkEnd { gid, mac, qp, psn, mtu };
        let other = LinkEnd { mac: Mac([4; 6]), qp: QpNumber([9; 3]), ..end };
        assert!(!end.shares_adapter(&other, Version::V1));
        assert!(end.shares_adapter(&other, Version::V2));
        assert!(end.shares_adapter(&LinkEnd { qp: other.qp, ..end }, Version::V1));
    }
}
