//! Traffic by server address, of a program that only counts.

use super::address::address_of;
use super::connection::Role;
use super::counters::{Sizes, load};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use sidestep_device::services::{self, place};
use sidestep_device::state::{self, State, mode};
use sidestep_device::sys;

/// What a program that only counts has had with one server address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The server's end.
    pub server: Option<SocketAddr>,
    /// Who opened these connections.
    pub role: Role,
    /// Both ends are on this host.
    pub is_here: bool,
    /// Connections so far, those that are open included.
    pub connections: u64,
    /// Those that are open.
    pub open: u64,
    /// How long they lived, together.
    pub lifetime: Duration,
    /// Requests that were answered.
    pub round_trips: u64,
    /// Bytes this end sent.
    pub bytes_sent: u64,
    /// Bytes this end received.
    pub bytes_received: u64,
    /// Lengths of what it sent.
    pub sent: Sizes,
    /// Lengths of what it received.
    pub received: Sizes,
}

/// Traffic by server address, and how many connections found no place to be told apart.
pub(crate) fn services(state: &State) -> (Vec<Service>, u64) {
    let mut services: Vec<Service> = Vec::new();
    let mut add = |kind: services::Kind, more: &dyn Fn(&mut Service)| {
        let server = address_of(kind.family, kind.server_ip, u32::from(kind.server_port));
        let (role, is_here) = (Role::of(kind.is_server), kind.is_here);
        let is_it =
            |known: &Service| (known.server, known.role, known.is_here) == (server, role, is_here);
        let index = services.iter().position(is_it).unwrap_or_else(|| {
            services.push(Service::new(server, role, is_here));
            services.len() - 1
        });
        more(&mut services[index]);
    };
    for (kind, ended) in state.services().known() {
        add(kind, &|service| service.add_ended(ended));
    }
    for slot in state.slots() {
        // Acquire: pairs with the Release that sets the mode after what belongs to it.
        let is_used = slot.mode.load(Ordering::Acquire) != mode::FREE;
        let place = slot.tally.place.load(Ordering::Relaxed);
        if is_used && matches!(place, place::HERE | place::ELSEWHERE) {
            add(slot.service(), &|service| service.add_open(slot));
        }
    }
    (services, state.services().untold())
}

impl Service {
    fn new(server: Option<SocketAddr>, role: Role, is_here: bool) -> Self {
        Self {
            server,
            role,
            is_here,
            connections: 0,
            open: 0,
            lifetime: Duration::ZERO,
            round_trips: 0,
            bytes_sent: 0,
            bytes_received: 0,
            sent: Sizes::default(),
            received: Sizes::default(),
        }
    }

    fn add_ended(&mut self, ended: &services::Service) {
        self.connections = self.connections.saturating_add(load(&ended.connections));
        self.add_lifetime(load(&ended.lifetime_ms));
        self.add_traffic(&ended.round_trips, &ended.bytes_sent, &ended.bytes_received);
        self.sent += Sizes::read(&ended.sent);
        self.received += Sizes::read(&ended.received);
    }

    fn add_open(&mut self, slot: &state::Slot) {
        self.connections = self.connections.saturating_add(1);
        self.open += 1;
        let began = slot.tally.began.load(Ordering::Relaxed);
        self.add_lifetime(u64::from(sys::coarse_ms().wrapping_sub(began)));
        let counters = &slot.counters;
        self.add_traffic(&slot.tally.round_trips, &counters.bytes_sent, &counters.bytes_received);
        self.sent += Sizes::read(&slot.sent);
        self.received += Sizes::read(&slot.received);
    }

    fn add_lifetime(&mut self, ms: u64) {
        self.lifetime = self.lifetime.saturating_add(Duration::from_millis(ms));
    }

    fn add_traffic(&mut self, round_trips: &AtomicU64, sent: &AtomicU64, received: &AtomicU64) {
        self.round_trips = self.round_trips.saturating_add(load(round_trips));
        self.bytes_sent = self.bytes_sent.saturating_add(load(sent));
        self.bytes_received = self.bytes_received.saturating_add(load(received));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Maker, set8};

    #[test]
    fn what_has_ended_and_what_is_open_come_together() {
        let program = Maker::new(sys::pid());
        let connect = |index| {
            let slot = program.connect(index, (80, 2080), mode::TCP);
            // One server, whatever the fixture calls its slots.
            slot.local_ip[0].store(0x0a00_0001, Ordering::Relaxed);
            set8(&slot.is_server, 1);
            set8(&slot.tally.place, place::HERE);
            slot.tally.began.store(sys::coarse_ms(), Ordering::Relaxed);
            slot.counters.bytes_sent.store(10, Ordering::Relaxed);
        };
        connect(0);
        program.state.free_slot(0, 0);
        connect(1);
        let (services, untold) = services(&program.state);
        let [service] = services.try_into().unwrap();
        assert_eq!(service.server, Some("10.0.0.1:80".parse().unwrap()));
        assert_eq!((service.role, service.is_here, untold), (Role::Server, true, 0));
        assert_eq!((service.connections, service.open, service.bytes_sent), (2, 1, 20));
    }

    #[test]
    fn a_connection_whose_end_is_not_known_yet_is_no_service() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (81, 2081), mode::TCP);
        for place in [0, place::PENDING, 200] {
            set8(&slot.tally.place, place);
            assert_eq!(services(&program.state).0, []);
        }
    }
}
