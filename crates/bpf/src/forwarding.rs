//! Packets to one address, sent on to other hosts.

mod connect;
mod hook;
mod layout;
mod programs;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuHashMap, RingBuf};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachType};
use aya::programs::xdp::{XdpLinkId, XdpMode as AyaMode};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, ProgramError, SchedClassifier, Xdp};
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{Plan, Protocol};

use crate::error::BpfError;
use crate::loaded::program;
use crate::object_file;
use crate::tables::programs::{CLIENTS, client, page, service_key};
use crate::tables::{Tables, Whose, earlier_page_of, key_of, octets, of_map, slot, take};
use crate::tunnel::{Family, SOURCE_PORTS, Tunnel};
use hook::Hook;
use layout::{
    ADDRESSES, DIRECT, EARLIER, FLOWS, HOSTS, LEASE, OVERSIZED, OWN_LINK, ROUTES, TRAFFIC,
    TUNNEL_PORTS, TUNNELS, flow, lease, oversized, route, tally, way,
};
pub use layout::{FLOWS_MAX, ROUTES_MAX};

/// Sends packets that come in by one interface for a service, an address, port and protocol, on to hosts of that
/// link, or through a tunnel to others: direct server return.
///
/// Nothing is pinned: with the process that holds this the program goes.
pub struct Forwarding {
    /// Programs, maps and links: descriptors, closed on drop.
    loaded: Ebpf,
    link: Option<SchedClassifierLinkId>,
    /// Of XDP, and which program it is of.
    first: Option<(Hook, XdpLinkId)>,
    tables: Tables,
    hosts: Array<MapData, u32>,
    routes: Array<MapData, [u8; route::LEN]>,
    direct: Array<MapData, u32>,
    own_link: Array<MapData, [u8; 8]>,
    tunnels: Array<MapData, [u8; way::LEN]>,
    tunnel_ports: Array<MapData, u32>,
    oversized: RingBuf<MapData>,
    earlier: Array<MapData, [u8; page::LEN]>,
    traffic: PerCpuArray<MapData, [u64; 2]>,
    flows: HashMap<MapData, [u8; flow::KEY_LEN], [u8; flow::LEN]>,
    addresses: PerCpuHashMap<MapData, [u8; 16], [u64; tally::COUNTERS]>,
    clients: HashMap<MapData, [u8; client::KEY_LEN as usize], [u8; client::LEN as usize]>,
    own_host: Array<MapData, u64>,
    own_client: Array<MapData, [u8; 16]>,
    ends: Array<MapData, [u8; 16]>,
    connecting: Map,
}

sockopt_impl!(
    /// Which network namespace a socket is of.
    NetnsCookie,
    GetOnly,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64
);

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`; Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;

/// Until when services are served. It is apart from the rest: what keeps a lease does not wait for what reads tables.
pub struct Lease(Array<MapData, [u8; lease::LEN]>);

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}

impl Lease {
    /// Serves until that time of `CLOCK_BOOTTIME`; until this was called, never. With an address of the link the program answers in
    /// its name for each address that is watched; without one the kernel has to have them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn serve_until(&mut self, until: Duration, link: Option<[u8; 6]>) -> Result<(), BpfError> {
        let mut entry = [0; lease::LEN];
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        entry[..lease::OPTION].copy_from_slice(&until.to_ne_bytes());
        if let Some(address) = link {
            entry[lease::OPTION..lease::ADDRESS].copy_from_slice(&lease::OPTION_BEGINS);
            entry[lease::ADDRESS..].copy_from_slice(&address);
        }
        of_map(self.0.set(0, entry, 0))
    }
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Nowhere: its packets are dropped.
    Nowhere,
    /// To this host itself.
    Here,
    /// To a host of the link, with the link's addresses of that host and of this one.
    Link {
        /// The target's.
        to: [u8; 6],
        /// Ours.
        from: [u8; 6],
    },
    /// To a host elsewhere.
    Tunnel(Tunnel),
}

/// Which program of XDP an interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// Its driver calls it, as soon as a frame is there.
    Native,
    /// The same of veth, whose other end has to receive by NAPI.
    Veth,
    /// The kernel calls it, for any driver, when it has made a packet of the frame.
    Generic,
}

impl XdpMode {
    fn hook(self) -> Hook {
        match self {
            Self::Native => Hook::Native,
            Self::Veth => Hook::Veth,
            Self::Generic => Hook::Generic,
        }
    }

    fn of_aya(self) -> AyaMode {
        match self {
            Self::Native | Self::Veth => AyaMode::Driver,
            Self::Generic => AyaMode::Skb,
        }
    }
}

/// A packet that did not fit into a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oversized {
    /// How long a packet may be.
    pub fits: u32,
    /// Its beginning, from the header of IP on.
    pub packet: [u8; oversized::PACKET_LEN],
}

/// A client's connection, or its datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its end.
    pub client: SocketAddr,
    /// The service's.
    pub service: (SocketAddr, Protocol),
    /// Where it goes, by number.
    pub route: u32,
    /// The client has said that it sends no more.
    pub is_closing: bool,
    /// When a packet of the client was seen, by `CLOCK_BOOTTIME`.
    pub seen: Duration,
}

/// A client that meets the same target of a service again, by its `timedaffinity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Its address.
    pub client: IpAddr,
    /// The service's number.
    pub service: usize,
    /// The target's place among those of the service.
    pub target: usize,
    /// Until when, by `CLOCK_MONOTONIC`.
    pub until: Duration,
}

/// What came to an address besides whole packets that go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Fragments, which are dropped.
    pub fragments: u64,
    /// Packets of IPv4 with options, which go on.
    pub options: u64,
    /// Packets of IPv6 with extension headers, which are dropped.
    pub extended: u64,
    /// ICMP errors, which go to the target whose packet they quote.
    pub errors: u64,
    /// Packets without a target: refused if they begin something, dropped otherwise.
    pub stranded: u64,
    /// Packets that did not fit into a tunnel, which are dropped.
    pub oversized: u64,
    /// Packets whose checksum their sender has left to an interface, which XDP has left to traffic control.
    pub open_sums: u64,
}

impl fmt::Debug for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarding").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Forwarding {
    /// What the program of traffic control is called.
    pub const NAME: &str = Hook::Tc.name();

    /// Loads the program. It is asked from [`Self::attach`] on, and serves by the lease.
    ///
    /// # Errors
    /// The kernel refuses ([`BpfError::Privilege`]) or cannot do it ([`BpfError::Kernel`]).
    pub fn load() -> Result<(Self, Lease), BpfError> {
        let maps = [layout::maps(), connect::maps().into()].concat();
        let all: Vec<_> = programs::all().into_iter().chain(connect::all()).collect();
        let object = object_file::write(&maps, &all);
        let mut loaded =
            Ebpf::load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        let forward: Result<&mut SchedClassifier, _> = program(&mut loaded, Hook::Tc.name());
        forward
            .and_then(SchedClassifier::load)
            .map_err(|error| BpfError::of_kernel("load a BPF program for packets", &error))?;
        let lease = Lease(take(&mut loaded, LEASE)?);
        let forwarding = Self {
            link: None,
            first: None,
            direct: take(&mut loaded, DIRECT)?,
            own_link: take(&mut loaded, OWN_LINK)?,
            tables: Tables::of(&mut loaded)?,
            hosts: take(&mut loaded, HOSTS)?,
            routes: take(&mut loaded, ROUTES)?,
            tunnels: take(&mut loaded, TUNNELS)?,
            tunnel_ports: take(&mut loaded, TUNNEL_PORTS)?,
            oversized: take(&mut loaded, OVERSIZED)?,
            earlier: take(&mut loaded, EARLIER)?,
            traffic: take(&mut loaded, TRAFFIC)?,
            flows: take(&mut loaded, FLOWS)?,
            addresses: take(&mut loaded, ADDRESSES)?,
            clients: take(&mut loaded, CLIENTS)?,
            own_host: take(&mut loaded, connect::OWN_HOST)?,
            own_client: take(&mut loaded, connect::OWN_CLIENT)?,
            ends: take(&mut loaded, connect::ENDS)?,
            connecting: loaded.take_map(connect::CONNECTING).expect("a map of ours"),
            loaded,
        };
        Ok((forwarding, lease))
    }

    /// From here on each packet that comes in by this interface is looked at.
    ///
    /// # Errors
    /// The kernel refuses, or there is no such interface.
    pub fn attach(&mut self, interface: &str) -> Result<(), BpfError> {
        let begins = TcAttachType::Ingress;
        // Before Linux 6.6 programs hang on a queueing discipline; where it is there already, it stays.
        _ = aya::programs::tc::qdisc_add_clsact(interface);
        let forward: Result<&mut SchedClassifier, _> = program(&mut self.loaded, Hook::Tc.name());
        let link = forward
            .and_then(|forward| forward.attach(interface, begins))
            .map_err(|error| BpfError::of_kernel("attach a BPF program to an interface", &error))?;
        self.link = Some(link);
        Ok(())
    }

    /// From here on packets that come in by this interface are looked at by a program of XDP before all else. What it cannot
    /// send on comes to the program of [`Self::attach`].
    ///
    /// # Errors
    /// The kernel or the driver refuses, or there is no such interface.
    pub fn attach_xdp(&mut self, interface: &str, mode: XdpMode) -> Result<(), BpfError> {
        self.detach_xdp();
        self.load_xdp(mode)?;
        let link = self
            .xdp(mode.hook())
            .and_then(|forward| forward.attach(interface, mode.of_aya()))
            .map_err(|error| BpfError::of_kernel("attach a program of XDP", &error))?;
        self.first = Some((mode.hook(), link));
        Ok(())
    }

    fn load_xdp(&mut self, mode: XdpMode) -> Result<(), BpfError> {
        match self.xdp(mode.hook()).and_then(Xdp::load) {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(()),
            Err(error) => Err(BpfError::of_kernel("load a program of XDP (Linux 5.18)", &error)),
        }
    }

    fn xdp(&mut self, hook: Hook) -> Result<&mut Xdp, ProgramError> {
        program(&mut self.loaded, hook.name())
    }

    /// No program of XDP looks at packets any more; that of [`Self::attach`] sends them all on.
    pub fn detach_xdp(&mut self) {
        if let Some((hook, link)) = self.first.take()
            && let Ok(forward) = self.xdp(hook)
        {
            // An interface that is gone has no program either.
            _ = forward.detach(link);
        }
    }

    /// Says which frames are for this host: those to this address of the link. Until then the program of XDP takes none for that.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_own_link(&mut self, address: [u8; 6]) -> Result<(), BpfError> {
        let mut entry = [0; 8];
        entry[..address.len()].copy_from_slice(&address);
        of_map(self.own_link.set(0, entry, 0))
    }

    /// Says whether all targets of service `index` are on the link. Until then the program of XDP leaves it to that of
    /// [`Self::attach`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_direct(&mut self, index: usize, is_direct: bool) -> Result<(), BpfError> {
        of_map(self.direct.set(index as u32, u32::from(is_direct), 0))
    }

    /// Writes a plan for service `index` where it is not in force yet, for [`Self::commit`].
    ///
    /// # Errors
    /// The kernel refuses.
    ///
    /// **Panics** if there are no so many services, or the plan has too many places.
    pub fn prepare(&mut self, index: usize, whose: Whose, plan: &Plan) -> Result<(), BpfError> {
        self.tables.prepare(index, whose, plan)
    }

    /// Has connections of service `index` that began before it was served, and so are no flows here, go by this plan: the one
    /// that was in force when they began, as far as is known.
    ///
    /// # Errors
    /// The kernel refuses.
    ///
    /// **Panics** if there are no so many services, or the plan has too many places.
    pub fn set_earlier(&mut self, index: usize, plan: &Plan) -> Result<(), BpfError> {
        of_map(self.earlier.set(index as u32, earlier_page_of(plan), 0))
    }

    /// Puts the plan that was prepared for service `index` into force, in one step.
    ///
    /// # Errors
    /// The kernel refuses; then it is as it was before.
    pub fn commit(
        &mut self,
        index: usize,
        whose: Whose,
        service: (SocketAddr, Protocol),
        plan: &Plan,
        affinity: Duration,
    ) -> Result<(), BpfError> {
        self.tables.commit(index, whose, service, plan, affinity)
    }

    /// Packets to this service, or connections of this host to it, are the kernel's again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget(
        &mut self,
        whose: Whose,
        service: (SocketAddr, Protocol),
    ) -> Result<(), BpfError> {
        self.tables.forget(whose, service)
    }

    /// From here on each socket of this network namespace is looked at that connects, by the tables of [`Whose::OwnHost`]. The programs
    /// hang on the cgroup at this path, and hear of sockets of processes in it and below.
    ///
    /// # Errors
    /// The kernel refuses, or there is no cgroup.
    pub fn attach_to_connects(&mut self, cgroup: &Path) -> Result<(), BpfError> {
        let group = File::open(cgroup).map_err(|error| BpfError::of_file(cgroup, error))?;
        let any = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
        let cookie = any.and_then(|any| Ok(getsockopt(&any, NetnsCookie)?));
        let cookie = cookie
            .map_err(|error| BpfError::of_kernel("tell which network namespace this is", &error))?;
        of_map(self.own_host.set(0, cookie, 0))?;
        for name in connect::PEER_NAME.into_iter().chain(connect::CONNECT) {
            let asked: Result<&mut CgroupSockAddr, _> = program(&mut self.loaded, name);
            asked
                .and_then(|asked| {
                    asked.load()?;
                    // Links; `Single` is no more than their lack of flags. They leave room for others.
                    asked.attach(&group, CgroupAttachMode::Single)
                })
                .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))?;
        }
        Ok(())
    }

    /// Says by which address the host of each target of service `index` is reached, and as which client this host itself counts
    /// for affinities.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_ends(
        &mut self,
        index: usize,
        targets: &[IpAddr],
        own: Option<IpAddr>,
    ) -> Result<(), BpfError> {
        for (target, end) in targets.iter().enumerate() {
            of_map(self.ends.set(slot(index, target), octets(*end), 0))?;
        }
        of_map(self.own_client.set(index as u32, own.map_or([0; 16], octets), 0))
    }

    /// The map in which each socket of this host that is connected to a VIP has the number of the route: for who asks the kernel about
    /// sockets (`sock_diag`).
    ///
    /// **Panics** never: the map is of the kind that it was made of.
    #[must_use]
    pub fn connecting(&self) -> BorrowedFd<'_> {
        let Map::SkStorage(data) = &self.connecting else { unreachable!("a map of ours") };
        data.fd().as_fd()
    }

    /// Gives service `index`, which is in force nowhere, the routes of its targets, and has it begin with so many
    /// flows given.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn begin(
        &mut self,
        index: usize,
        routes: &[u32],
        given: &[u64; TARGETS_MAX],
    ) -> Result<(), BpfError> {
        self.set_direct(index, false)?;
        for target in 0..TARGETS_MAX {
            let route = routes.get(target).copied().unwrap_or(0);
            of_map(self.hosts.set(slot(index, target), route, 0))?;
        }
        self.tables.begin(index, given)
    }

    /// How many flows each target of a service was given.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn given(&self, index: usize) -> Result<[u64; TARGETS_MAX], BpfError> {
        self.tables.steered(index)
    }

    /// How many of these have ended: for plans that choose the least busy.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn note_ended(&mut self, index: usize, ended: &[u64; TARGETS_MAX]) -> Result<(), BpfError> {
        self.tables.note_ended(index, ended)
    }

    /// Says where route `number` leads, from 1 to [`ROUTES_MAX`] - 1, and whether what begins may take it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_route(&mut self, number: u32, hop: Hop, takes: bool) -> Result<(), BpfError> {
        let mut entry = [0; route::LEN];
        let mut flags = if takes { route::TAKES } else { 0 };
        match hop {
            Hop::Nowhere => {}
            Hop::Here => flags |= route::KNOWN | route::OWN,
            Hop::Link { to, from } => {
                entry[..route::SOURCE].copy_from_slice(&to);
                entry[route::SOURCE..route::FLAGS].copy_from_slice(&from);
                flags |= route::KNOWN;
            }
            Hop::Tunnel(tunnel) => {
                // First, since from then on it is looked at.
                of_map(self.tunnels.set(number, way_of(&tunnel), 0))?;
                flags |= route::KNOWN | route::TUNNEL;
            }
        }
        entry[route::FLAGS..].copy_from_slice(&flags.to_ne_bytes());
        of_map(self.routes.set(number, entry, 0))
    }

    /// From which ports of this host tunnels to addresses like this one are sent. Before, none is.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_tunnel_ports(
        &mut self,
        like: IpAddr,
        ports: [u16; SOURCE_PORTS],
    ) -> Result<(), BpfError> {
        let first = Family::of(like).first_source_port();
        for (at, port) in (first..).zip(ports) {
            of_map(self.tunnel_ports.set(at as u32, u32::from(port), 0))?;
        }
        Ok(())
    }

    /// Takes the oldest packet that did not fit into a tunnel, and of which no sender was told.
    pub fn take_oversized(&mut self) -> Option<Oversized> {
        let record = self.oversized.next()?;
        let record: &[u8; oversized::LEN] = record.first_chunk().expect("whole records");
        let (fits, packet) = record.split_at(oversized::PACKET);
        Some(Oversized {
            fits: u32::from_ne_bytes(fits.try_into().expect("four bytes")),
            packet: packet.try_into().expect("its beginning"),
        })
    }

    /// Packets and bytes that have taken a route.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn traffic(&self, route: u32) -> Result<[u64; 2], BpfError> {
        let values = of_map(self.traffic.get(&route, 0))?;
        let sum = |[packets, bytes]: [u64; 2], one: &[u64; 2]| [packets + one[0], bytes + one[1]];
        Ok(values.iter().fold([0; 2], sum))
    }

    /// Counts at this address from here on, if it does not yet.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&mut self, address: IpAddr) -> Result<(), BpfError> {
        let zeroes = vec![[0; tally::COUNTERS]; of_cpus()?];
        let zeroes = aya::maps::PerCpuValues::try_from(zeroes)
            .map_err(|error| BpfError::of_kernel("count the CPUs", &error))?;
        unless_there(self.addresses.insert(octets(address), zeroes, IF_ABSENT))
    }

    /// Counts there no more.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn unwatch(&mut self, address: IpAddr) -> Result<(), BpfError> {
        of_map(self.addresses.remove(&octets(address)))
    }

    /// What came to an address that is watched.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn tally(&self, address: IpAddr) -> Result<Tally, BpfError> {
        let values = of_map(self.addresses.get(&octets(address), 0))?;
        let of = |counter: i16| values.iter().map(|value| value[counter as usize / 8]).sum();
        Ok(Tally {
            fragments: of(tally::FRAGMENTS),
            options: of(tally::OPTIONS),
            extended: of(tally::EXTENDED),
            errors: of(tally::ERRORS),
            stranded: of(tally::STRANDED),
            oversized: of(tally::OVERSIZED),
            open_sums: of(tally::OPEN_SUMS),
        })
    }

    /// The flows that both ends have confirmed, in no order.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn flows(&self) -> Result<Vec<Flow>, BpfError> {
        let mut flows = Vec::new();
        for entry in self.flows.iter() {
            let (key, value) = of_map(entry)?;
            flows.push(Flow::of(key, &value));
        }
        Ok(flows)
    }

    /// Notes a flow that another distributor has: its packets take its route from here on. One that is noted here already
    /// stays as it is, unless `replaces`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn note(&mut self, flow: &Flow, replaces: bool) -> Result<(), BpfError> {
        let flags = if replaces { 0 } else { IF_ABSENT };
        unless_there(self.flows.insert(flow.key(), flow.value(), flags))
    }

    /// The clients that meet a target again, in no order, those whose time is over among them.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn affinities(&self) -> Result<Vec<Affinity>, BpfError> {
        let mut affinities = Vec::new();
        for entry in self.clients.iter() {
            let (key, value) = of_map(entry)?;
            affinities.push(Affinity::of(&key, &value));
        }
        Ok(affinities)
    }

    /// Has a client meet a target again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn note_affinity(&mut self, affinity: &Affinity) -> Result<(), BpfError> {
        of_map(self.clients.insert(affinity.key(), affinity.value(), 0))
    }

    /// A flow is over. It may go on all the same, as one that is not known.
    pub fn end(&mut self, flow: &Flow) {
        // One that has gone meanwhile is not there afterwards either.
        _ = self.flows.remove(&flow.key());
    }
}

impl Flow {
    fn of(key: [u8; flow::KEY_LEN], value: &[u8; flow::LEN]) -> Self {
        let word = |bytes: &[u8], at: usize| {
            u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
        };
        let end = |at: usize, port: usize| {
            let octets: [u8; 16] = key[at..at + 16].try_into().expect("an address");
            SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), word(&key, port) as u16)
        };
        let service = flow::SERVICE;
        let protocol = match word(&key, service + service_key::PROTOCOL) {
            17 => Protocol::Udp,
            _ => Protocol::Tcp,
        };
        let seen = value[flow::SEEN_NS..].try_into().expect("eight bytes");
        Self {
            client: end(0, flow::PORT),
            service: (end(service, service + service_key::PORT), protocol),
            route: word(value, flow::ROUTE),
            is_closing: word(value, flow::IS_CLOSING) != 0,
            seen: Duration::from_nanos(u64::from_ne_bytes(seen)),
        }
    }

    fn key(&self) -> [u8; flow::KEY_LEN] {
        let mut key = [0; flow::KEY_LEN];
        key[..flow::PORT].copy_from_slice(&octets(self.client.ip()));
        let port = u32::from(self.client.port());
        key[flow::PORT..][..4].copy_from_slice(&port.to_ne_bytes());
        key[flow::SERVICE..].copy_from_slice(&key_of(self.service));
        key
    }

    fn value(&self) -> [u8; flow::LEN] {
        let mut value = [0; flow::LEN];
        let words = [(flow::ROUTE, self.route), (flow::IS_CLOSING, self.is_closing.into())];
        for (at, word) in words {
            value[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        value[flow::SEEN_NS..].copy_from_slice(&(self.seen.as_nanos() as u64).to_ne_bytes());
        value
    }
}

impl Affinity {
    fn of(key: &[u8; client::KEY_LEN as usize], value: &[u8; client::LEN as usize]) -> Self {
        let (address, service) = key.split_at(client::SERVICE as usize);
        let (target, until) = value.split_at(client::UNTIL_NS as usize);
        let address: [u8; 16] = address.try_into().expect("an address");
        let long = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        Self {
            client: Ipv6Addr::from(address).to_canonical(),
            service: u32::from_ne_bytes(service[..4].try_into().expect("four bytes")) as usize,
            target: long(target) as usize,
            until: Duration::from_nanos(long(until)),
        }
    }

    fn key(&self) -> [u8; client::KEY_LEN as usize] {
        let mut key = [0; client::KEY_LEN as usize];
        let (address, service) = key.split_at_mut(client::SERVICE as usize);
        address.copy_from_slice(&octets(self.client));
        service[..4].copy_from_slice(&(self.service as u32).to_ne_bytes());
        key
    }

    fn value(&self) -> [u8; client::LEN as usize] {
        let mut value = [0; client::LEN as usize];
        let (target, until) = value.split_at_mut(client::UNTIL_NS as usize);
        target.copy_from_slice(&(self.target as u64).to_ne_bytes());
        until.copy_from_slice(&(self.until.as_nanos() as u64).to_ne_bytes());
        value
    }
}

/// `BPF_NOEXIST`: an entry that is there stays as it is.
const IF_ABSENT: u64 = 1;

/// What became of an entry by [`IF_ABSENT`].
fn unless_there(done: Result<(), MapError>) -> Result<(), BpfError> {
    match done {
        Err(MapError::SyscallError(error))
            if error.io_error.kind() == io::ErrorKind::AlreadyExists =>
        {
            Ok(())
        }
        done => of_map(done),
    }
}

fn way_of(tunnel: &Tunnel) -> [u8; way::LEN] {
    let mut entry = [0; way::LEN];
    for (at, word) in [(way::INTERFACE, tunnel.interface), (way::MTU, tunnel.mtu)] {
        entry[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let headers = tunnel.headers();
    entry[way::HEADERS..][..headers.len()].copy_from_slice(&headers);
    entry
}

fn of_cpus() -> Result<usize, BpfError> {
    aya::util::nr_cpus().map_err(|(_, error)| BpfError::of_kernel("count the CPUs", &error))
}
