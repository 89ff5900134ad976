//! The gateway's one thread: what has happened, what is to be done, sleep.
//!
//! ```text
//!   sleep ──> adapters receive ──> the host's events ──> passages advance ──> adapters send ──┐
//!     └────────────────────────────── nothing more to be done <───────────────────────────────┘
//! ```
//!
//! What comes is taken first and what is to be sent leaves last, so that an answer, its data and the
//! acknowledgement of what it answers leave together.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use sidestep_engine::{AdapterView, Event, Host};
use sidestep_proto::link_group::{self, ADAPTERS_MAX, AdapterId};
use sidestep_proto::rendezvous::hosts::{
    self, Exchange, LocalHost, NETWORKS_MAX, Roce, Route, Versions,
};
use sidestep_rdma::faults::Plan;
use sidestep_rdma::soft::Rnic;
use sidestep_rdma::soft::port::{self, mtu::roce_mtu};
use sidestep_wire::clc::Hostname;
use sidestep_wire::host_control::Side;
use sidestep_wire::{AlertToken, Diagnosis, Mtu, PeerId, RoceGid};
use thiserror::Error;

use crate::desk::{Desk, Offer, Request};
use crate::door::Door;
use crate::interfaces::{self, Changes, Interface};
use crate::lessons::Lessons;
use crate::limits::{
    AT_ONCE, BUFFERS_OF_USER_MAX, CHUNK, FAREWELL, KEEPALIVE, PASSAGES_MAX, PASSAGES_OF_USER_MAX,
    REFUSALS_OF_USER_MAX,
};
use crate::passage::{Fate, Passage, World};
use crate::poller::{Poller, Source};
use crate::settings::{AdapterChoice, Settings};
use crate::status::{self, Status};

/// Why there is no gateway.
#[derive(Debug, Error)]
pub enum OpenError {
    /// None was wanted.
    #[error("there is no adapter: name an address or an interface of this host")]
    NoAdapter,
    /// A link group has room for no more.
    #[error("{0} adapters are too many; use at most {ADAPTERS_MAX}")]
    TooMany(usize),
    /// There is no such interface here, or none has the address.
    #[error("{0}: there is no such interface or address in this network namespace")]
    Unknown(AdapterChoice),
    /// The interface has nothing that an adapter could be at.
    #[error("{0}: the interface has no address")]
    NoAddress(AdapterChoice),
    /// RoCE needs longer packets.
    #[error("{choice}: the interface carries packets of {mtu} bytes, and RoCE needs 336")]
    TooNarrow {
        /// The adapter.
        choice: AdapterChoice,
        /// Of its interface.
        mtu: u32,
    },
    /// A host has one.
    #[error("{0}: the adapters are on different VLANs")]
    OtherVlan(AdapterChoice),
    /// Its UDP port cannot be had.
    #[error(transparent)]
    Adapter(#[from] port::OpenError),
    /// The name is taken.
    #[error("there is a gateway in this network namespace already")]
    InUse,
    /// The kernel refuses something that it should not.
    #[error("{what}: {error}")]
    Kernel {
        /// What was asked for.
        what: &'static str,
        /// What it says.
        error: io::Error,
    },
}

impl OpenError {
    fn kernel<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Kernel { what, error: error.into() }
    }
}

/// An adapter of ours, and where it is.
#[derive(Debug)]
struct Place {
    id: AdapterId,
    address: IpAddr,
    interface: u32,
    is_up: bool,
    /// It has more to do at once.
    is_busy: bool,
}

/// A passage, and what the loop has noted of it.
#[derive(Debug)]
struct Known {
    passage: Passage,
    /// It is among those that may do something.
    is_ready: bool,
    /// Its place among the deadlines.
    due: Option<Duration>,
}

/// What a user has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    passages: usize,
    /// Bytes.
    buffers: usize,
}

/// What there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    /// The connection stays TCP.
    ToDecline,
    /// Not even for that.
    None,
}

impl Share {
    /// Beside these, where there are so many of all users.
    fn room_for(self, passage: &Passage, of_all: usize) -> Room {
        let buffers = self.buffers + passage.buffers();
        let has_room = self.passages < PASSAGES_OF_USER_MAX && of_all < PASSAGES_MAX;
        match has_room && buffers <= BUFFERS_OF_USER_MAX {
            true => Room::Enough,
            false if self.passages < PASSAGES_OF_USER_MAX + REFUSALS_OF_USER_MAX => Room::ToDecline,
            false => Room::None,
        }
    }
}

/// The gateway of a network namespace.
#[derive(Debug)]
pub struct Gateway {
    begin: Instant,
    settings: Settings,
    poller: Poller,
    changes: Changes,
    interfaces: Vec<Interface>,
    desk: Desk,
    door: Door,
    lessons: Lessons,
    host: Host<Rnic>,
    places: Vec<Place>,
    /// What CLC tells of us, as of now.
    local: Arc<LocalHost>,
    passages: HashMap<u64, Known>,
    last_passage: u64,
    /// What users have.
    shares: HashMap<u32, Share>,
    /// Passages by the host's name for them.
    owners: HashMap<AlertToken, u64>,
    /// Passages that may do something.
    ready: VecDeque<u64>,
    deadlines: BTreeSet<(Duration, u64)>,
    chunk: Box<[u8]>,
}

// ---- beginning ----------------------------------------------------------------------------------

impl Gateway {
    /// Opens the adapters, and listens.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let changes = Changes::listen().map_err(OpenError::kernel("rtnetlink"))?;
        let interfaces = interfaces::read().map_err(OpenError::kernel("rtnetlink"))?;
        let chosen = choose(&settings.adapters, &interfaces)?;
        let (_, first) = chosen.first().ok_or(OpenError::NoAdapter)?;
        let (peer_id, vlan) = (peer_id(first), first.vlan);
        let adapters = chosen
            .iter()
            .enumerate()
            .map(|(at, (address, interface))| {
                // By it links are told apart from those over no adapter, so 0 is none.
                open_adapter(AdapterId(at as u8 + 1), *address, interface, settings.faults)
            })
            .collect::<Result<Vec<_>, _>>()?;
        // Only now: who finds us finds all of it.
        let poller = Poller::new().map_err(OpenError::kernel("epoll"))?;
        let door = Door::open(&poller).map_err(OpenError::kernel("127.0.0.1"))?;
        let desk = Desk::open(door.port(), &poller).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => OpenError::InUse,
            _ => OpenError::Kernel { what: "the abstract name of the gateway", error },
        })?;
        poller.watch(&changes, Source::Interfaces).map_err(OpenError::kernel("epoll"))?;
        let lessons = Lessons::new().map_err(OpenError::kernel("a memory file"))?;
        let keepalive = Some(KEEPALIVE);
        let mut this = Self {
            begin: Instant::now(),
            local: Arc::new(local_host(peer_id, &settings)),
            settings,
            poller,
            changes,
            interfaces,
            desk,
            door,
            lessons,
            host: Host::new(sidestep_engine::Settings { peer_id, vlan, keepalive }),
            places: Vec::new(),
            passages: HashMap::new(),
            last_passage: 0,
            shares: HashMap::new(),
            owners: HashMap::new(),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            chunk: vec![0; CHUNK].into_boxed_slice(),
        };
        for (place, description, rnic) in adapters {
            let watched = this.poller.watch(&rnic, Source::Adapter(place.id.0));
            watched.map_err(OpenError::kernel("epoll"))?;
            this.host.add_adapter(description, rnic, this.begin.elapsed());
            this.places.push(place);
        }
        this.look_at_interfaces();
        Ok(this)
    }

    /// Its adapters, in words.
    pub fn adapters(&self) -> impl Iterator<Item = String> {
        let interface =
            |place: &Place| self.interfaces.iter().find(|it| it.index == place.interface);
        self.places.iter().map(move |place| {
            let (address, state) = (place.address, if place.is_up { "up" } else { "down" });
            let Some(Interface { name, mac, vlan, .. }) = interface(place) else {
                return format!("{address}: {state}");
            };
            let vlan = if *vlan == 0 { String::new() } else { format!(", VLAN {vlan}") };
            let network = self.settings.network(name);
            let network = network.map_or(String::new(), |id| format!(", PNET ID {id}"));
            format!("{address} at {name}, {mac}{vlan}{network}: {state}")
        })
    }
}

fn open_adapter(
    id: AdapterId,
    address: IpAddr,
    interface: &Interface,
    faults: Option<Plan>,
) -> Result<(Place, link_group::Adapter, Rnic), OpenError> {
    let choice = AdapterChoice::Address(address);
    let mtu = mtu_of(interface).ok_or(OpenError::TooNarrow { choice, mtu: interface.mtu })?;
    let mut rnic = Rnic::open(address, &port::Settings::default())?;
    if let Some(plan) = faults {
        rnic.spoil(plan);
    }
    let description = link_group::Adapter { id, gid: gid_of(address), mac: interface.mac, mtu };
    let interface = interface.index;
    Ok((Place { id, address, interface, is_up: true, is_busy: false }, description, rnic))
}

/// Where each adapter is, and its interface.
fn choose(
    choices: &[AdapterChoice],
    interfaces: &[Interface],
) -> Result<ArrayVec<(IpAddr, Interface), ADAPTERS_MAX>, OpenError> {
    let mut chosen = ArrayVec::<_, ADAPTERS_MAX>::new();
    for choice in choices {
        let has = |it: &&Interface| match choice {
            AdapterChoice::Address(address) => it.has(*address),
            AdapterChoice::Interface(name) => it.name == *name,
        };
        let interface = interfaces.iter().find(has);
        let interface = interface.ok_or_else(|| OpenError::Unknown(choice.clone()))?;
        let address = match choice {
            AdapterChoice::Address(address) => Some(*address),
            AdapterChoice::Interface(_) => first_address(interface),
        };
        let address = address.ok_or_else(|| OpenError::NoAddress(choice.clone()))?;
        let first: Option<&(IpAddr, Interface)> = chosen.first();
        if first.is_some_and(|(_, first)| first.vlan != interface.vlan) {
            return Err(OpenError::OtherVlan(choice.clone()));
        }
        let another = (address, interface.clone());
        chosen.try_push(another).map_err(|_| OpenError::TooMany(choices.len()))?;
    }
    Ok(chosen)
}

/// Of IPv4, if there is one. A link-local one of IPv6 is of no use: it needs an interface beside it.
fn first_address(interface: &Interface) -> Option<IpAddr> {
    let is_useful = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let addresses = || interface.networks.iter().map(ipnet::IpNet::addr).filter(is_useful);
    addresses().find(IpAddr::is_ipv4).or_else(|| addresses().next())
}

fn mtu_of(interface: &Interface) -> Option<Mtu> {
    let bytes = roce_mtu(interface.mtu)?;
    (0..=0xF).map(Mtu::from_low_bits).find(|mtu| mtu.bytes() == Some(bytes))
}

/// An address as a GID of RoCE: one of IPv4 as the IPv6 address that is mapped to it.
fn gid_of(address: IpAddr) -> RoceGid {
    RoceGid(match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    })
}

/// Two bytes of our own choice, by which a gateway that was started anew is another one, and the
/// MAC address of an adapter.
fn peer_id(interface: &Interface) -> PeerId {
    let [instance_high, instance_low] = rand::random::<u16>().to_be_bytes();
    let [a, b, c, d, e, f] = interface.mac.0;
    PeerId([instance_high, instance_low, a, b, c, d, e, f])
}

fn local_host(peer_id: PeerId, settings: &Settings) -> LocalHost {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    LocalHost {
        peer_id,
        hostname: Hostname::new(name.trim().as_bytes()),
        ueids: settings.ueids.clone(),
        adapters: ArrayVec::new(),
        versions: Versions { v1: true, v2: true },
        max_conns: u8::MAX,
        max_links: 2,
    }
}

// ---- the loop -----------------------------------------------------------------------------------

impl Gateway {
    /// Works until something can be read from `stop`, and then a moment longer, in which peers are
    /// told that it ends. What is still open then is reset.
    ///
    /// # Errors
    ///
    /// The kernel does not let it wait any more.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        self.poller.watch(stop, Source::Stop)?;
        let mut end = None;
        loop {
            let now = self.now();
            if end.is_some_and(|end| end <= now || self.host.holdings().groups == 0) {
                return Ok(());
            }
            let rest = self.rest(end);
            let sources = self.poller.wait(rest)?;
            let now = self.now();
            if sources.iter().any(|(source, _)| *source == Source::Stop) && end.is_none() {
                self.poller.forget(stop);
                self.host.end(true, now);
                end = Some(now + FAREWELL);
            }
            for (source, is_urgent) in sources {
                self.attend(source, is_urgent, now);
            }
            self.receive(now);
            self.pass_time(now);
            self.take_events(now);
            self.advance(now);
            self.take_events(now);
            self.transmit(now);
        }
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// How long it may sleep; `None`: until something happens.
    fn rest(&mut self, end: Option<Duration>) -> Option<Duration> {
        if !self.ready.is_empty() || self.places.iter().any(|place| place.is_busy) {
            return Some(Duration::ZERO);
        }
        let of_passages = self.deadlines.first().map(|(due, _)| *due);
        let mut due = [end, self.host.poll_timeout(), self.door.poll_timeout(), of_passages]
            .into_iter()
            .flatten()
            .min();
        for place in &self.places {
            let of_device = self.host.device(place.id).and_then(|device| device.poll_timeout());
            due = [due, of_device].into_iter().flatten().min();
        }
        due.map(|due| due.saturating_sub(self.now()))
    }

    fn attend(&mut self, source: Source, is_urgent: bool, now: Duration) {
        match source {
            Source::Stop => {}
            Source::Interfaces => {
                self.changes.take();
                match interfaces::read() {
                    Ok(interfaces) => {
                        self.interfaces = interfaces;
                        self.look_at_interfaces();
                    }
                    Err(error) => {
                        log::warn!("interfaces have changed, and cannot be read: {error}")
                    }
                }
            }
            Source::Desk => self.desk.welcome(&self.poller, self.lessons.read_only(), now),
            Source::Line(number) => {
                for _ in 0..AT_ONCE {
                    match self.desk.hear(number, now) {
                        Some(Request::Carry(offer)) => {
                            let pairs = self.door.match_up(offer, now);
                            self.begin_all(pairs, now);
                        }
                        Some(Request::Status) => self.desk.tell(number, &self.status()),
                        None => break,
                    }
                }
            }
            Source::Door => {
                let pairs = self.door.welcome(now);
                self.begin_all(pairs, now);
            }
            Source::Adapter(id) => {
                for place in self.places.iter_mut().filter(|place| place.id == AdapterId(id)) {
                    place.is_busy = true;
                }
            }
            Source::Program(number) => {
                self.rouse(number, |passage| passage.handle_h(is_urgent));
            }
            Source::Network(number) => {
                self.rouse(number, Passage::handle_n);
            }
        }
    }

    /// Lets adapters take what has come, and what is late.
    fn receive(&mut self, now: Duration) {
        for place in &mut self.places {
            let Some(device) = self.host.device(place.id) else { continue };
            if place.is_busy || device.poll_timeout().is_some_and(|due| due <= now) {
                place.is_busy = device.receive(now);
                self.host.handle_device(place.id, now);
            }
        }
    }

    fn pass_time(&mut self, now: Duration) {
        if self.host.poll_timeout().is_some_and(|due| due <= now) {
            self.host.handle_timeout(now);
        }
        if self.door.poll_timeout().is_some_and(|due| due <= now) {
            self.door.handle_timeout(now);
        }
        while let Some((due, number)) = self.deadlines.first().copied()
            && due <= now
        {
            self.deadlines.pop_first();
            if let Some(known) = self.passages.get_mut(&number) {
                known.due = None;
            }
            self.rouse(number, |_| {});
        }
    }

    fn take_events(&mut self, now: Duration) {
        while let Some(event) = self.host.poll_event() {
            let token = token_of(&event);
            let number = match event {
                Event::Gone(_) => self.owners.remove(&token),
                _ => self.owners.get(&token).copied(),
            };
            if let Some(number) = number {
                self.rouse(number, |passage| passage.handle_event(event, now));
            }
        }
    }

    /// Tells a passage something, after which it may do something.
    fn rouse(&mut self, number: u64, tell: impl FnOnce(&mut Passage)) {
        let Some(known) = self.passages.get_mut(&number) else { return };
        tell(&mut known.passage);
        if !known.is_ready {
            known.is_ready = true;
            self.ready.push_back(number);
        }
    }

    /// Gives each passage that may do something its turn.
    fn advance(&mut self, now: Duration) {
        for _ in 0..self.ready.len() {
            let Some(number) = self.ready.pop_front() else { return };
            let Some(known) = self.passages.get_mut(&number) else { continue };
            let mut world = World {
                host: &mut self.host,
                owners: &mut self.owners,
                lessons: &self.lessons,
                chunk: &mut self.chunk,
                now,
            };
            let fate = known.passage.advance(&mut world);
            known.is_ready = false;
            let due = known.passage.poll_timeout();
            if due != known.due {
                known.due.map(|before| self.deadlines.remove(&(before, number)));
                due.map(|due| self.deadlines.insert((due, number)));
                known.due = due;
            }
            match fate {
                Fate::Waits => {}
                Fate::HasMore => self.rouse(number, |_| {}),
                Fate::Over(end) => self.finish(number, end),
            }
        }
    }

    fn transmit(&mut self, now: Duration) {
        self.host.transmit(now);
        for place in &mut self.places {
            if let Some(device) = self.host.device(place.id) {
                place.is_busy |= device.transmit(now);
            }
        }
    }
}

const fn token_of(event: &Event) -> AlertToken {
    match event {
        Event::Introduce(token, _)
        | Event::Declined(token, _)
        | Event::Established(token)
        | Event::Readable(token)
        | Event::Writable(token)
        | Event::Urgent(token)
        | Event::Reset(token, _)
        | Event::Gone(token) => *token,
    }
}

// ---- passages -----------------------------------------------------------------------------------

impl Gateway {
    fn begin_all(&mut self, pairs: Vec<(Offer, TcpStream)>, now: Duration) {
        for (offer, h) in pairs {
            self.begin(offer, h, now);
        }
    }

    fn begin(&mut self, offer: Offer, h: TcpStream, now: Duration) {
        self.last_passage += 1;
        let (number, uid) = (self.last_passage, offer.uid);
        // A connection that has ended meanwhile is let go, and so is H.
        let Some(route) = self.route(&offer.connection) else { return };
        let begin = match offer.side {
            Side::Client => Exchange::client,
            Side::Server => Exchange::server,
        };
        let exchange = begin(Arc::clone(&self.local), route, now);
        let mut passage = Passage::begin(number, offer, h, exchange);
        let share = self.shares.get(&uid).copied().unwrap_or_default();
        match share.room_for(&passage, self.passages.len()) {
            Room::Enough => {}
            Room::ToDecline => {
                log::warn!("connection {number}: user {uid} has too many");
                passage.decline(Diagnosis::MEM, now);
            }
            Room::None => {
                return log::warn!("a connection of user {uid} is reset: there are too many");
            }
        }
        let [h, n] = passage.sockets();
        let watched = self
            .poller
            .watch_changes(h, Source::Program(number))
            .and_then(|()| self.poller.watch_changes(n, Source::Network(number)));
        if let Err(error) = watched {
            // H is reset.
            log::warn!("connection {number} of user {uid} cannot be watched: {error}");
            return self.poller.forget(n);
        }
        let share = self.shares.entry(uid).or_default();
        share.passages += 1;
        share.buffers += passage.buffers();
        self.passages.insert(number, Known { passage, is_ready: false, due: None });
        self.rouse(number, |_| {});
    }

    fn finish(&mut self, number: u64, end: crate::passage::End) {
        let Some(Known { passage, due, .. }) = self.passages.remove(&number) else { return };
        if let Some(due) = due {
            self.deadlines.remove(&(due, number));
        }
        let [h, n] = passage.sockets();
        self.poller.forget(h);
        // The program has it, too: closing ours would not take it out of the set.
        self.poller.forget(n);
        if let Some(share) = self.shares.get_mut(&passage.uid()) {
            share.passages -= 1;
            share.buffers -= passage.buffers();
            if share.passages == 0 {
                self.shares.remove(&passage.uid());
            }
        }
        log::debug!("connection {number} is over: {end:?}");
        passage.end(end);
    }
}

// ---- status -------------------------------------------------------------------------------------

impl Gateway {
    fn status(&self) -> Status {
        Status {
            adapters: self.host.adapters().filter_map(|it| self.adapter_status(&it)).collect(),
            links: self.host.links().map(|it| status::Link::of(&it)).collect(),
            connections: self.passages.values().map(|it| it.passage.status(&self.host)).collect(),
        }
    }

    fn adapter_status(&self, adapter: &AdapterView) -> Option<status::Adapter> {
        let place = self.places.iter().find(|place| place.id == adapter.description.id)?;
        let interface = self.interfaces.iter().find(|it| it.index == place.interface);
        let name = interface.map(|it| it.name.clone());
        Some(status::Adapter {
            address: place.address,
            gid: adapter.description.gid.to_string(),
            mac: adapter.description.mac.to_string(),
            mtu: adapter.description.mtu.bytes(),
            vlan: interface.map_or(0, |it| it.vlan),
            pnet_id: name.as_deref().and_then(|it| self.settings.network(it)).map(str::to_owned),
            interface: name,
            is_up: adapter.is_up,
            links: adapter.links,
            usage: adapter.usage.into(),
        })
    }
}

// ---- interfaces ---------------------------------------------------------------------------------

impl Gateway {
    /// Adapters come and go with their interfaces, and with their addresses.
    fn look_at_interfaces(&mut self) {
        let now = self.now();
        let mut local = LocalHost::clone(&self.local);
        local.adapters.clear();
        for place in &mut self.places {
            let interface = self.interfaces.iter().find(|it| it.index == place.interface);
            let interface = interface.filter(|it| it.is_up && it.has(place.address));
            match (place.is_up, interface.is_some()) {
                (true, false) => {
                    log::warn!("the adapter at {} is down", place.address);
                    self.host.handle_adapter_down(place.id, now);
                }
                (false, true) => {
                    log::info!("the adapter at {} is up", place.address);
                    self.lessons.forget_all();
                    self.host.handle_adapter_up(place.id, now);
                }
                _ => {}
            }
            place.is_up = interface.is_some();
            let described = interface.and_then(|it| describe(place, it, &self.settings));
            if let Some(adapter) = described {
                // There are no more than these.
                let _ = local.adapters.try_push(adapter);
            }
        }
        self.local = Arc::new(local);
    }

    /// Where a connection goes. `None`: it is none any more.
    fn route(&self, connection: &TcpStream) -> Option<Route> {
        let local = connection.local_addr().ok()?.ip().to_canonical();
        let remote = connection.peer_addr().ok()?.ip().to_canonical();
        let interface = self.interfaces.iter().find(|it| it.has(local));
        Some(Route {
            local,
            remote,
            interface: interface.map_or(0, |it| it.index),
            networks: interface
                .map_or_else(ArrayVec::<_, NETWORKS_MAX>::new, |it| it.networks.clone()),
            vlan: interface.map_or(0, |it| it.vlan),
            pnet_id: interface.and_then(|it| self.settings.pnet_id(&it.name)),
        })
    }
}

fn describe(place: &Place, interface: &Interface, settings: &Settings) -> Option<hosts::Adapter> {
    Some(hosts::Adapter {
        id: place.id,
        roce: Roce::V2,
        gid: gid_of(place.address),
        mac: interface.mac,
        mtu: mtu_of(interface)?,
        interface: interface.index,
        networks: interface.networks.clone(),
        vlan: interface.vlan,
        pnet_id: settings.pnet_id(&interface.name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_wire::Mac;

    fn interface(name: &str, networks: &[&str]) -> Interface {
        Interface {
            index: 7,
            name: name.to_owned(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            vlan: 0,
            is_up: true,
            networks: networks.iter().map(|it| it.parse().unwrap()).collect(),
        }
    }

    fn chosen(choices: &[&str], interfaces: &[Interface]) -> Result<Vec<IpAddr>, String> {
        let choices: Vec<AdapterChoice> = choices.iter().map(|it| it.parse().unwrap()).collect();
        let chosen = choose(&choices, interfaces).map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|(address, _)| address).collect())
    }

    #[test]
    fn adapters_are_named_by_address_or_interface() {
        let interfaces = [
            interface("eth0", &["fe80::1/64", "fd00::1/64", "10.0.0.1/24"]),
            interface("eth1", &["fe80::2/64", "fd00::2/64"]),
            interface("eth2", &["fe80::3/64"]),
        ];
        let all = chosen(&["eth1", "eth0", "fd00::1"], &interfaces).unwrap();
        let expected: [IpAddr; 3] =
            ["fd00::2", "10.0.0.1", "fd00::1"].map(|it| it.parse().unwrap());
        assert_eq!(all, expected);
        for (choice, error) in [
            ("eth2", "eth2: the interface has no address"),
            ("eth3", "eth3: there is no such interface or address in this network namespace"),
            (
                "10.0.0.2",
                "10.0.0.2: there is no such interface or address in this network namespace",
            ),
        ] {
            assert_eq!(chosen(&[choice], &interfaces).unwrap_err(), error);
        }
        let many = chosen(&["eth0"; ADAPTERS_MAX + 1], &interfaces).unwrap_err();
        assert_eq!(many, "9 adapters are too many; use at most 8");
    }

    #[test]
    fn adapters_are_on_one_vlan() {
        let tagged = Interface { vlan: 3, ..interface("eth1", &["10.0.1.1/24"]) };
        let interfaces = [interface("eth0", &["10.0.0.1/24"]), tagged];
        let error = chosen(&["eth0", "eth1"], &interfaces).unwrap_err();
        assert_eq!(error, "eth1: the adapters are on different VLANs");
    }

    #[test]
    fn the_mtu_of_roce_fits_into_that_of_the_interface() {
        let of = |mtu| mtu_of(&Interface { mtu, ..interface("eth0", &[]) }).and_then(Mtu::bytes);
        assert_eq!([1500, 9000, 300].map(of), [Some(1024), Some(4096), None]);
    }
}
