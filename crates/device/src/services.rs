//! What a program that only counts has had with each server port: `sidestep assess` reads it.
//!
//! With `mode=tcp` no connection moves, and no peer reads the state of the process while a
//! short one lives. So each is added to the entry of its server's address when it ends.

use crate::counts::count;
use crate::keyed::{self, Entry, Key, Label, Server};
use crate::sizes::Sizes;
use crate::sys;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use sidestep_derive::{Renew, Shared};

/// What a slot counts for this table.
#[derive(Renew, Shared)]
#[repr(C)]
pub struct Tally {
    /// [`place`].
    pub place: AtomicU8,
    /// [`direction`] of the last message.
    last: AtomicU8,
    /// When it began, by [`sys::coarse_ms`].
    pub began: AtomicU32,
    /// Requests that were answered: how often its server has sent after it received, or its
    /// client has received after it sent.
    pub round_trips: AtomicU64,
}

/// Where the peer of a connection is: [`Tally::place`].
pub mod place {
    /// The connection is not tallied.
    pub const UNKNOWN: u8 = 0;
    /// On this host.
    pub const HERE: u8 = 1;
    /// On another host.
    pub const ELSEWHERE: u8 = 2;
    /// The connection is tallied, and was not established when that was asked.
    pub const PENDING: u8 = 3;
}

/// What a message was.
mod direction {
    pub(super) const SENT: u8 = 1;
    pub(super) const RECEIVED: u8 = 2;
}

impl Tally {
    /// Whether the connection is counted here.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.place.load(Ordering::Relaxed) != place::UNKNOWN
    }

    /// Whether it was ever established, and it is known where its peer is.
    pub(crate) fn is_established(&self) -> bool {
        matches!(self.place.load(Ordering::Relaxed), place::HERE | place::ELSEWHERE)
    }

    /// Whether the peer is on this host.
    pub(crate) fn is_here(&self) -> bool {
        self.place.load(Ordering::Relaxed) == place::HERE
    }

    /// A message was sent or received.
    pub fn note(&self, is_server: bool, sent: bool) {
        let now = if sent { direction::SENT } else { direction::RECEIVED };
        let before = self.last.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        self.last.store(now, Ordering::Relaxed);
        if before != 0 && sent == is_server {
            count(&self.round_trips, 1);
        }
    }
}

/// Connections with one server address.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Service {
    label: Label,
    /// Connections that have ended.
    pub connections: AtomicU64,
    /// How long they lived, together, in milliseconds.
    pub lifetime_ms: AtomicU64,
    /// See [`Tally::round_trips`].
    pub round_trips: AtomicU64,
    /// Bytes this end sent.
    pub bytes_sent: AtomicU64,
    /// Bytes this end received.
    pub bytes_received: AtomicU64,
    /// Lengths of what it sent.
    pub sent: Sizes,
    /// Lengths of what it received.
    pub received: Sizes,
}

/// All of them.
#[derive(Shared)]
#[repr(C)]
pub struct Services {
    entries: [Service; ENTRIES],
    /// Connections that found the table full.
    untold: Service,
}

/// Server addresses that are told apart.
pub const ENTRIES: usize = 128;

/// What a [`Service`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Address of the server's end, as in a slot.
    pub server_ip: [u64; 2],
    /// Port of the server's end.
    pub server_port: u16,
    /// 4 or 6; 0: the address is not known.
    pub family: u8,
    /// This end accepted.
    pub is_server: bool,
    /// The peer is on this host.
    pub is_here: bool,
}

/// In the word of a key.
const HERE: u64 = 1 << 28;

impl Kind {
    fn key(&self) -> Key {
        let Self { server_ip, server_port, family, is_server, is_here } = *self;
        let here = if is_here { HERE } else { 0 };
        Server { ip: server_ip, port: server_port, family, is_ours: is_server }.key(here)
    }

    fn of(key: Key) -> Self {
        let Server { ip, port, family, is_ours } = Server::of(&key);
        Self {
            server_ip: ip,
            server_port: port,
            family,
            is_server: is_ours,
            is_here: key.word & HERE != 0,
        }
    }
}

impl Services {
    /// Adds a connection that has ended.
    pub(crate) fn add(&self, kind: &Kind, ended: &Ended<'_>) {
        let entry = keyed::enter(&self.entries, &kind.key());
        entry.unwrap_or(&self.untold).add(ended);
    }

    /// Those that had connections.
    pub fn known(&self) -> impl Iterator<Item = (Kind, &Service)> {
        self.entries.iter().filter_map(|entry| Some((Kind::of(entry.label.key()?), entry)))
    }

    /// Connections for which there was no place.
    pub fn untold(&self) -> u64 {
        self.untold.connections.load(Ordering::Relaxed)
    }
}

/// What a connection that has ended has had: what it sent comes first, then what it received.
pub(crate) struct Ended<'a> {
    pub(crate) tally: &'a Tally,
    pub(crate) bytes: [u64; 2],
    pub(crate) messages: [u64; 2],
    pub(crate) lengths: [&'a Sizes; 2],
}

impl Service {
    fn add(&self, Ended { tally, bytes, messages, lengths }: &Ended<'_>) {
        let add = |to: &AtomicU64, n: u64| to.fetch_add(n, Ordering::Relaxed);
        let lifetime = sys::coarse_ms().wrapping_sub(tally.began.load(Ordering::Relaxed));
        add(&self.connections, 1);
        add(&self.lifetime_ms, u64::from(lifetime));
        add(&self.round_trips, tally.round_trips.load(Ordering::Relaxed));
        add(&self.bytes_sent, bytes[0]);
        add(&self.bytes_received, bytes[1]);
        self.sent.add(lengths[0], messages[0]);
        self.received.add(lengths[1], messages[1]);
    }
}

impl Entry for Service {
    fn label(&self) -> &Label {
        &self.label
    }

    /// Never: an assessment of an hour wants all of it.
    fn is_outdated(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Slot;
    use crate::valid::zeroed;
    use std::boxed::Box;

    fn slot(port: u32, is_server: u8) -> Box<Slot> {
        let slot = zeroed::<Slot>();
        let (at, of) = if is_server == 1 {
            (&slot.local_port, &slot.local_ip)
        } else {
            (&slot.peer_port, &slot.peer_ip)
        };
        at.store(port, Ordering::Relaxed);
        of[0].store(0x7f00_0001, Ordering::Relaxed);
        slot.family.store(4, Ordering::Relaxed);
        slot.is_server.store(is_server, Ordering::Relaxed);
        slot.tally.place.store(place::HERE, Ordering::Relaxed);
        slot.tally.began.store(sys::coarse_ms().wrapping_sub(40), Ordering::Relaxed);
        slot
    }

    #[test]
    fn a_round_trip_is_a_request_that_was_answered() {
        let round_trips = |is_server: bool, calls: &str| {
            let slot = slot(1, u8::from(is_server));
            calls.chars().for_each(|call| slot.tally.note(is_server, call == 's'));
            slot.tally.round_trips.load(Ordering::Relaxed)
        };
        // The client sends a request in two parts and receives the reply in three.
        assert_eq!(round_trips(false, "ssrrr"), 1);
        assert_eq!(round_trips(true, "rrs"), 1);
        assert_eq!(round_trips(true, "rsrsrs"), 3);
        // A server that greets: no answer to anything.
        assert_eq!(round_trips(true, "srs"), 1);
        assert_eq!(round_trips(false, "rsr"), 1);
        assert_eq!(round_trips(false, "ssss"), 0);
    }

    #[test]
    fn connections_of_one_server_come_together() {
        let services = zeroed::<Services>();
        for (port, is_server) in [(80, 1), (80, 1), (80, 0), (443, 1)] {
            let slot = slot(port, is_server);
            slot.counters.bytes_sent.store(10, Ordering::Relaxed);
            slot.counters.messages_sent.store(1, Ordering::Relaxed);
            slot.sent.count(10);
            services.add(&slot.service(), &slot.what_it_had());
        }
        assert_eq!(services.known().count(), 3);
        let is_http = |kind: &Kind| kind.server_port == 80 && kind.is_server;
        let (kind, service) = services.known().find(|(kind, _)| is_http(kind)).unwrap();
        assert_eq!((kind.family, kind.server_ip, kind.is_here), (4, [0x7f00_0001, 0], true));
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        assert_eq!((load(&service.connections), load(&service.bytes_sent)), (2, 20));
        assert_eq!(load(&service.sent.0[0]), 2);
        assert!((80..10_000).contains(&load(&service.lifetime_ms)));
        assert_eq!(services.untold(), 0);
    }

    #[test]
    fn a_full_table_counts_what_it_does_not_tell() {
        let services = zeroed::<Services>();
        for port in 1..=1000 {
            let slot = slot(port, 1);
            services.add(&slot.service(), &slot.what_it_had());
        }
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let told: u64 = services.known().map(|(_, service)| load(&service.connections)).sum();
        assert!(told <= ENTRIES as u64);
        assert_eq!(told + services.untold(), 1000);
    }
}
