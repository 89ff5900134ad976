//! What a program has written down besides its connections: decisions of the last hour,
//! attempts, rings, lengths of messages, and traffic by server port if it only counts.

use super::{Fallback, Role, address_of, fallback_of, slots_used, young};
use core::net::SocketAddr;
use core::ops::AddAssign;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use sidestep_device::history;
use sidestep_device::services::{self, place};
use sidestep_device::sizes::CLASSES;
use sidestep_device::state::{self, RING_SIZES, State, mode};
use sidestep_device::young::{Batch, Carried};
use sidestep_device::{sizes, sys};
use sidestep_proto::fallback::Reason;
use sidestep_wire::{Diagnosis, RmbeSize};

/// Decisions of one kind about connections with one server, in the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The server's end; `None`: its address was not known.
    pub server: Option<SocketAddr>,
    /// Who opened these connections.
    pub role: Role,
    /// What was decided.
    pub verdict: Verdict,
    /// How often in the last hour, in steps of five minutes.
    pub in_last_hour: u64,
    /// Time since the last one.
    pub last_ago: Duration,
}

/// What was decided about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It moved to shared memory.
    Moved,
    /// Of another host: it was handed to the gateway.
    HandedOver,
    /// Nothing: it ended before.
    Undecided,
    /// It stays on TCP.
    Tcp(Fallback),
}

/// Numbers of messages by their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes(pub [u64; CLASSES]);

/// See [`state::Handshakes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained where they are counted")]
pub struct Handshakes {
    pub attempted: u64,
    pub agreed: u64,
    pub failed: u64,
}

/// See [`state::Rings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained where they are counted")]
pub struct Rings {
    pub fresh: u64,
    pub reused: u64,
    pub incoming: u64,
}

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

impl Decision {
    fn add(&mut self, more: &Self) {
        self.in_last_hour += more.in_last_hour;
        self.last_ago = self.last_ago.min(more.last_ago);
    }
}

impl Sizes {
    pub(super) fn read(from: &sizes::Sizes) -> Self {
        Self(from.0.each_ref().map(load))
    }

    pub(super) fn of_young(carried: Carried) -> Self {
        let mut sizes = Self::default();
        carried.each_class(|class, n| sizes.0[class] = n);
        sizes
    }

    /// The longest message of each class (`None`: there is none), and their number.
    pub fn classes(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.0.iter().enumerate().map(|(class, n)| (sizes::longest_of(class), *n))
    }
}

impl AddAssign for Sizes {
    fn add_assign(&mut self, other: Self) {
        for (sum, n) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(n);
        }
    }
}

impl Handshakes {
    pub(super) fn read(from: &state::Handshakes) -> Self {
        Self {
            attempted: load(&from.attempted),
            agreed: load(&from.agreed),
            failed: load(&from.failed),
        }
    }
}

impl AddAssign for Handshakes {
    fn add_assign(&mut self, other: Self) {
        self.attempted = self.attempted.saturating_add(other.attempted);
        self.agreed = self.agreed.saturating_add(other.agreed);
        self.failed = self.failed.saturating_add(other.failed);
    }
}

impl Rings {
    pub(super) fn read(from: &[state::Rings; RING_SIZES]) -> [Self; RING_SIZES] {
        from.each_ref().map(|rings| Self {
            fresh: load(&rings.fresh),
            reused: load(&rings.reused),
            incoming: load(&rings.incoming),
        })
    }

    /// Whether there were any.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The length of the rings at this place of [`Totals::rings`](super::Totals::rings).
    #[must_use]
    pub fn len_at(index: usize) -> usize {
        let size = u8::try_from(index).ok().and_then(RmbeSize::from_code);
        size.map_or(0, RmbeSize::bytes)
    }
}

impl AddAssign for Rings {
    fn add_assign(&mut self, other: Self) {
        self.fresh = self.fresh.saturating_add(other.fresh);
        self.reused = self.reused.saturating_add(other.reused);
        self.incoming = self.incoming.saturating_add(other.incoming);
    }
}

/// The decisions of the last hour, and how many found no place to be told apart.
pub(super) fn decisions(state: &State) -> (Vec<Decision>, u64) {
    let decision = |(kind, recent): (history::Kind, history::Recent)| Decision {
        server: address_of(kind.family, kind.server_ip, u32::from(kind.server_port)),
        role: role(kind.is_server),
        verdict: match kind.verdict {
            history::Verdict::Moved => Verdict::Moved,
            history::Verdict::HandedOver => Verdict::HandedOver,
            history::Verdict::Undecided => Verdict::Undecided,
            history::Verdict::Tcp { reason, peer_diagnosis } => {
                let reason = Reason::from_number(reason);
                fallback_of(reason, Diagnosis(peer_diagnosis))
                    .map_or(Verdict::Undecided, Verdict::Tcp)
            }
        },
        in_last_hour: recent.in_last_hour,
        last_ago: Duration::from_secs(u64::from(recent.last_ago)),
    };
    let mut decisions: Vec<Decision> = Vec::new();
    let young = young(state).filter_map(|(_, (_, ended))| {
        let Batch { about, connections, last, .. } = ended?;
        let recent = history::Recent::of(connections, last);
        (recent.in_last_hour > 0).then(|| (about.ended_on_tcp(Reason::TooShort as u8), recent))
    });
    for more in state.history().recent().chain(young).map(decision) {
        let is_same = |known: &&mut Decision| {
            (known.server, known.role, &known.verdict) == (more.server, more.role, &more.verdict)
        };
        match decisions.iter_mut().find(is_same) {
            Some(known) => known.add(&more),
            None => decisions.push(more),
        }
    }
    (decisions, state.history().untold().in_last_hour)
}

/// Traffic by server address, and how many connections found no place to be told apart.
pub(super) fn services(state: &State) -> (Vec<Service>, u64) {
    let mut services: Vec<Service> = Vec::new();
    let mut add = |kind: services::Kind, more: &dyn Fn(&mut Service)| {
        let server = address_of(kind.family, kind.server_ip, u32::from(kind.server_port));
        let (role, is_here) = (role(kind.is_server), kind.is_here);
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
    for slot in (0..slots_used(state)).map(|index| state.slot(index)) {
        // Acquire: pairs with the Release that sets the mode after what belongs to it.
        let is_used = slot.mode.load(Ordering::Acquire) != mode::FREE;
        let place = slot.tally.place.load(Ordering::Relaxed);
        if is_used && matches!(place, place::HERE | place::ELSEWHERE) {
            add(services::Kind::of_slot(slot), &|service| service.add_open(slot));
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

fn role(is_server: bool) -> Role {
    if is_server { Role::Server } else { Role::Client }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
