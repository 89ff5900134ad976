//! `sidestep distributor`: one address for servers of many hosts, by direct server return.
//!
//! ```text
//!   client ──> VIP on the distributor ──(its program: another address on the frame)──> a target, VIP on its `lo`
//!      ^                                                                                  │
//!      └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Joins what the link tells of targets ([`link`]), what [`sidestep_distributor`] decides of it, and the program
//! in the kernel ([`sidestep_bpf::Forwarding`]). A target is set up by [`target`]; one beyond a router is reached by a tunnel
//! ([`tunnels`]).

mod addresses;
mod announce;
mod copies;
mod driver;
mod link;
mod locality;
mod oversized;
mod ownership;
mod path;
mod peers;
mod priority;
mod receiving;
mod sharing;
mod store;
mod target;
mod tunnels;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use sidestep_bpf::{
    BpfError, Cgroup, FLOWS_MAX, Forwarding, Hop, INDICES, Lease, ROUTES_MAX, Whose,
};
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{
    Change, Distribution, Plan, Protocol, Refusal, SmcUse, State, Target, TargetKind, Vip, VipSet,
};

use self::addresses::Addresses;
use self::copies::{Copies, ServiceKey};
use self::link::{Interface, Neighbour, Own};
use self::locality::Locality;
use self::oversized::Teller;
use self::ownership::{Ownership, boot_time, own_cpu_time};
use self::path::Path;
use self::store::Store;
use self::tunnels::{Tunnels, Way};
use super::daemon::{self, Direct};
use super::error::VipError;
use super::probe::Outcome;
use super::roster::{self, Probing, Question, Witness};
use super::{show, sockets};
use crate::args::{DistributorArgs, DistributorCommand, VipRunArgs};
use crate::commands::vip_status::{
    self, Connection, Daemon, Request, Status, TargetLink, TargetStatus, Via, VipLink, VipStatus,
};
use crate::commands::{logging, signals};
use crate::options::DataPath;
use crate::output;

/// Does what was asked for; 1 if it could not be done, otherwise 0.
pub(crate) fn execute(args: &DistributorArgs) -> i32 {
    let (command, done) = match &args.command {
        DistributorCommand::Run(args) => ("run", run(args)),
        DistributorCommand::Target(args) => ("target", target::execute(args)),
        DistributorCommand::Move(args) => {
            ("move", show::change(&Request::Move(args.host.to_string()), args.json))
        }
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            output::complain_lines(&format!("distributor {command}"), &error.to_string());
            1
        }
    }
}

fn run(args: &VipRunArgs) -> Result<(), VipError> {
    // First of all: a signal from now on ends it in order.
    let stop = signals::stop().map_err(VipError::of("cannot wait for signals"))?;
    signals::ignore_sigpipe();
    logging::begin(args.log.as_ref())?;
    let config = args.config.as_deref();
    let settings = daemon::configured(config)?;
    let (interface, rank) = (settings.interface.clone(), settings.rank);
    let path = settings.path.unwrap_or(DataPath::Auto);
    let switches_back = settings.switch_back.unwrap_or(false);
    let store = Store::configured(&settings).map_err(VipError::Refused)?;
    let set = daemon::vips_of(settings, TargetKind::Hosts);
    if set.vips().is_empty() {
        return Err(VipError::NoHosts);
    }
    let interface = interface.ok_or(VipError::NoInterface)?;
    let commands = vip_status::listen(Daemon::Hosts).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => VipError::Running(Daemon::Hosts),
        _ => VipError::of("cannot listen for commands")(error),
    })?;
    let mut distributor = Distributor::new(&interface, path)?;
    if let Some(store) = &store {
        distributor.share(&set, store, rank)?;
        distributor.switches_back = switches_back;
    }
    let done = distributor.apply(&set).map_err(VipError::Refused)?;
    if let (Some(ownership), Some(store)) = (&distributor.ownership, store) {
        ownership.start(store)?;
    }
    daemon::say("sidestep distributor", &done)?;
    daemon::serve(distributor, commands, stop, config)
}

/// All VIPs in force whose targets are hosts.
struct Distributor {
    forwarding: Forwarding,
    /// Of the only distributor; it runs for ever.
    lease: Option<Lease>,
    name: String,
    interface: Interface,
    path: Path,
    addresses: Addresses,
    /// `None`: it is the only distributor, and its interface has the addresses of VIPs.
    ownership: Option<Ownership>,
    /// Whether it served at the last look, and whether flows that it has seen begin may be forgotten since.
    is_serving: bool,
    has_forgotten: bool,
    /// Flows that backups are told of; when it was told of some itself, and when it owned the VIPs, by `CLOCK_BOOTTIME`.
    copies: Copies,
    told: Duration,
    owned: Duration,
    is_ending: bool,
    /// A backup of a higher rank that has come back is to own the VIPs.
    switches_back: bool,
    services: Vec<Service>,
    tunnels: Tunnels,
    teller: Teller,
    /// The kernel asks about sockets of this host that connect.
    attends_to_connects: bool,
    /// What each route is for, by its number; 0 is none. One that is known stays: flows have its number.
    routes: Vec<(ServiceKey, IpAddr)>,
    /// When neighbours are asked, and when flows are counted next.
    ask_due: Instant,
    count_due: Instant,
}

struct Service {
    /// Its number in the kernel.
    index: usize,
    distribution: Distribution,
    members: Vec<Member>,
    /// The kernel knows that all of them are on the link.
    is_direct: bool,
    /// The states that the kernel's table was made of.
    states: Vec<State>,
    /// `None`: it is not served yet, and what began before goes on by its next plan.
    earlier: Option<Earlier>,
    /// `None`: it is in force. Otherwise when it will be at the latest; before, when all targets are up.
    settles: Option<Instant>,
    /// Of connections that begin on this host.
    locality: Locality,
}

/// The plan by which a service began to be served: what began before goes on by it.
struct Earlier {
    plan: Plan,
    /// Targets that were drained then, and still are.
    drained: Vec<usize>,
}

impl Earlier {
    fn new(plan: Plan, distribution: &Distribution) -> Self {
        let is_out = |target: &usize| {
            distribution.state(*target).is_drained() && !plan.places.contains(&(*target as u8))
        };
        let drained = (0..distribution.vip().targets.len()).filter(is_out).collect();
        Self { plan, drained }
    }

    /// The same after targets were resumed: what began with them meets them again.
    fn after_resumption(&self, distribution: &Distribution) -> Self {
        let is_drained = |target: usize| distribution.state(target).is_drained();
        let (drained, resumed): (Vec<usize>, Vec<usize>) =
            self.drained.iter().partition(|target| is_drained(**target));
        let back = resumed.into_iter().filter(|target| distribution.state(*target).is_available());
        let plan = back.fold(self.plan.clone(), |plan, it| distribution.with_resumed(&plan, it));
        Self { plan, drained }
    }
}

struct Member {
    route: u32,
    /// What the kernel has.
    hop: Hop,
    takes: bool,
    /// It is not on the link; why it cannot be reached, as far as is known.
    is_beyond: bool,
    unreached: Option<&'static str>,
    probing: Probing,
    /// Why a target that serves takes nothing.
    fault: Option<&'static str>,
    /// Flows that the client has not ended.
    live: u64,
    /// Clients that meet it again.
    affinities: u64,
}

/// What was seen of the link at one moment.
struct Sight {
    own: Vec<Own>,
    neighbours: Vec<Neighbour>,
}

impl Sight {
    fn take(index: u32) -> io::Result<Self> {
        Ok(Self { own: link::addresses()?, neighbours: link::neighbours(index)? })
    }

    fn is_own(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.ip == ip)
    }

    fn hop(&self, ip: IpAddr, interface: &Interface) -> Hop {
        let neighbour = self.neighbours.iter().find(|it| it.ip == ip);
        match (neighbour.and_then(|it| it.address), interface.address) {
            _ if self.is_own(ip) => Hop::Here,
            (Some(to), Some(from)) => Hop::Link { to, from },
            _ => Hop::Nowhere,
        }
    }
}

/// From one question to a neighbour, and one count of flows, to the next.
const ASK_EVERY: Duration = Duration::from_secs(1);
const COUNT_EVERY: Duration = Duration::from_secs(1);

impl Distributor {
    /// With no VIPs in force.
    fn new(name: &str, path: DataPath) -> Result<Self, VipError> {
        let interface = link::interface(name).map_err(|error| {
            VipError::Refused(match error.raw_os_error() {
                Some(libc::ENODEV) => {
                    format!("there is no interface {name}; set `interface` in [distributor]")
                }
                _ => format!("{name} cannot be looked at: {error}"),
            })
        })?;
        let Some(own_link) = interface.address else {
            let why = "is no Ethernet interface; frames can be sent on to other hosts only there";
            return Err(VipError::Refused(format!("{name} {why}")));
        };
        if !interface.is_up {
            let what = format!("{name} is down; `ip link set {name} up` as root has it up");
            return Err(VipError::Refused(what));
        }
        let (mut forwarding, mut lease) = Forwarding::load()?;
        lease.serve_until(Duration::MAX, None)?;
        forwarding.attach(name)?;
        forwarding.set_own_link(own_link)?;
        let path = Path::begin(path, &interface, &mut forwarding).map_err(VipError::Refused)?;
        let now = Instant::now();
        Ok(Self {
            forwarding,
            lease: Some(lease),
            name: name.to_owned(),
            path,
            addresses: Addresses::new(interface.index),
            interface,
            ownership: None,
            is_serving: false,
            has_forgotten: false,
            copies: Copies::default(),
            told: Duration::ZERO,
            owned: Duration::ZERO,
            is_ending: false,
            switches_back: false,
            services: Vec::new(),
            tunnels: Tunnels::default(),
            teller: Teller::default(),
            attends_to_connects: false,
            routes: vec![],
            ask_due: now,
            count_due: now,
        })
    }

    /// Owns the VIPs only when other distributors do not, by a store that they share.
    fn share(&mut self, set: &VipSet, store: &Store, rank: Option<u32>) -> Result<(), VipError> {
        let mut lease = self.lease.take().expect("it is shared once");
        lease.serve_until(Duration::ZERO, self.interface.address)?;
        let index = self.interface.index;
        let sight = Sight::take(index).map_err(VipError::of("the link cannot be looked at"))?;
        let vips: Vec<IpAddr> = set.vips().iter().map(|vip| vip.address.ip()).collect();
        let host = host_of(index, &sight, &vips).ok_or_else(|| {
            let why =
                "has no address by which other distributors could know this host; give it one";
            VipError::Refused(format!("{} {why}", self.name))
        })?;
        self.ownership = Some(Ownership::begin(host, store, rank, lease)?);
        self.note_link(&sight);
        Ok(())
    }

    /// Why a VIP cannot be in force where several distributors share it.
    fn objection_to_sharing(vip: &Vip, sight: &Sight) -> Option<String> {
        let (name, ip) = (&vip.name, vip.address.ip());
        if sight.is_own(ip) {
            return Some(format!(
                "vip.{name}: {ip} is an address of this host; where [distributor] has a `store` no host has it, because the \
                 owner's program answers for it: take it off"
            ));
        }
        let own = vip.targets.iter().find(|target| sight.is_own(target.address.ip()))?;
        Some(format!(
            "vip.{name}: target {} is this host; where [distributor] has a `store` a distributor is no target",
            own.name
        ))
    }

    /// Why VIPs cannot be in force here.
    fn objections(&self, set: &VipSet, sight: &Sight) -> io::Result<Vec<String>> {
        let (mut objections, mut unknown) = (Vec::new(), Vec::new());
        if let Some(ownership) = &self.ownership {
            let of = |vip| Self::objection_to_sharing(vip, sight);
            objections.extend(set.vips().iter().filter_map(of));
            if !objections.is_empty() || ownership.owner().is_some() {
                // The owner answers for them, and has asked before.
                return Ok(objections);
            }
        }
        for vip in set.vips() {
            let ip = vip.address.ip();
            let elsewhere = |own: &&Own| own.ip == ip && own.index != self.interface.index;
            if sight.own.iter().any(|own| elsewhere(&own)) {
                objections.push(format!(
                    "vip.{}: {ip} is an address of another interface of this host than {}; clients that \
                     come by {} would not find it: take it off there",
                    vip.name, self.name, self.name
                ));
            } else if !sight.is_own(ip) && !unknown.contains(&ip) {
                unknown.push(ip);
            }
        }
        if let Some((ip, who)) = link::who_answers(self.interface.index, &unknown)? {
            let who = in_hex(who);
            objections.extend(set.vips().iter().filter(|vip| vip.address.ip() == ip).map(|vip| {
                format!(
                    "vip.{}: host {who} answers for {ip} on {}; a target must not: its VIP is on `lo`, put there by \
                     `sidestep distributor target`; another host has to give the address up, or the VIP takes another",
                    vip.name, self.name
                )
            }));
        }
        Ok(objections)
    }

    fn is_in_force(&self, vip: &Vip) -> bool {
        self.services.iter().any(|service| service.distribution.vip() == vip)
    }

    /// A service with the routes of its targets, which gets no packets yet.
    fn prepare(&mut self, vip: &Vip, sight: &Sight, others: &[Service]) -> Result<Service, String> {
        let is_free =
            |index: &usize| !self.services.iter().chain(others).any(|it| it.index == *index);
        let index = (0..INDICES).find(is_free).expect("twice as many as VIPs");
        let is_before = |it: &&Service| it.is_before(vip);
        let before = self.services.iter().find(is_before);
        let mut given = [0; TARGETS_MAX];
        let (mut distribution, mut settles) =
            (Distribution::new(vip.clone()), Some(settling_ends(vip)));
        let mut earlier = None;
        if let Some(before) = before {
            let counts = self.forwarding.given(before.index).map_err(in_words)?;
            let places = &before.distribution.vip().targets;
            for (target, place) in vip.targets.iter().zip(&mut given) {
                let at = places.iter().position(|it| it.name == target.name);
                *place = at.map_or(0, |at| counts[at]);
            }
            distribution = before.distribution.succeeded_by(vip.clone());
            settles = before.settles;
            let terms = before.distribution.vip();
            let known = before.earlier.as_ref().filter(|_| key_of(terms) == key_of(vip));
            let plan = known.map(|it| distribution.renumbered(&it.plan, terms));
            earlier = plan.map(|plan| Earlier::new(plan, &distribution));
        }
        if let Some(earlier) = &earlier {
            self.forwarding.set_earlier(index, &earlier.plan).map_err(in_words)?;
        }
        let mut members = Vec::new();
        for target in &vip.targets {
            let route = self.route(key_of(vip), target.address.ip())?;
            let (hop, probing) = (Hop::Nowhere, Probing::default());
            members.push(Member {
                route,
                hop,
                takes: false,
                is_beyond: false,
                unreached: None,
                probing,
                fault: None,
                live: 0,
                affinities: 0,
            });
        }
        let routes: Vec<u32> = members.iter().map(|member| member.route).collect();
        self.forwarding.begin(index, &routes, &given).map_err(in_words)?;
        let ends: Vec<IpAddr> = vip.targets.iter().map(|target| target.address.ip()).collect();
        let own = self.own_client(vip.address.ip(), sight);
        self.forwarding.set_ends(index, &ends, own).map_err(in_words)?;
        let (states, locality) = (distribution.states(), Locality::default());
        let mut service = Service {
            index,
            distribution,
            members,
            is_direct: false,
            states,
            earlier,
            settles,
            locality,
        };
        self.follow(&mut service, sight);
        service.look_at_own_server(&locality::listeners([vip]));
        Ok(service)
    }

    /// The number of the route of a service to a target.
    fn route(&mut self, service: ServiceKey, target: IpAddr) -> Result<u32, String> {
        let known = self.routes.iter().position(|it| *it == (service, target));
        let at = known.unwrap_or(self.routes.len());
        if at + 1 >= ROUTES_MAX {
            return Err("more targets have come and gone than there is room for; start \
                        `sidestep distributor run` again"
                .to_owned());
        }
        if known.is_none() {
            self.routes.push((service, target));
        }
        Ok(at as u32 + 1)
    }

    /// Puts a service into force that was prepared, or has it settle, in place of what has its name or address.
    fn take(&mut self, mut service: Service) -> Result<String, String> {
        let vip = service.distribution.vip().clone();
        if service.settles.is_none() {
            self.commit(&mut service).map_err(in_words)?;
        }
        let before: Vec<Service> = self.services.extract_if(.., |it| it.is_before(&vip)).collect();
        self.services.push(service);
        for before in before {
            self.retire(&before, key_of(&vip));
        }
        self.services
            .sort_by(|one, other| one.distribution.vip().name.cmp(&other.distribution.vip().name));
        Ok(roster::in_words(&vip))
    }

    /// Has a service gone, unless its successor is at the same place.
    fn retire(&mut self, service: &Service, successor: ServiceKey) {
        let vip = service.distribution.vip();
        let key = key_of(vip);
        if key != successor
            && service.settles.is_none()
            && let Err(error) = self.forget(key)
        {
            log::error!("{} stays in force: {error}", vip.address);
        }
        self.leave(vip.address.ip());
    }

    fn forget(&mut self, key: ServiceKey) -> Result<(), BpfError> {
        self.forwarding.forget(Whose::Clients, key)?;
        self.forwarding.forget(Whose::OwnHost, key)
    }

    /// Answers no more for an address at which there is no VIP any more. One that the interface has goes with it.
    fn leave(&mut self, ip: IpAddr) {
        let is_used = self.vips().any(|vip| vip.address.ip() == ip);
        if self.ownership.is_some()
            && !is_used
            && let Err(error) = self.forwarding.unwatch(ip)
        {
            log::error!("{ip} is still answered for: {error}");
        }
    }

    /// Where each target is on the link, and what follows.
    fn follow(&mut self, service: &mut Service, sight: &Sight) {
        let vip = service.distribution.vip().clone();
        for (target, terms) in vip.targets.iter().enumerate() {
            let ip = terms.address.ip();
            let way = self.tunnels.way(ip);
            let hop = match way {
                Way::Link => sight.hop(ip, &self.interface),
                Way::Tunnel(tunnel) => tunnel.map_or(Hop::Nowhere, Hop::Tunnel),
            };
            let is_there = hop != Hop::Nowhere;
            let changes = service.distribution.listens(target, is_there);
            let unreached = self.tunnels.fault(ip);
            let silent = unreached.unwrap_or("its host does not answer");
            let why = if is_there { "its host answers" } else { silent };
            roster::report(&service.distribution, &changes, why);
            let member = &mut service.members[target];
            (member.is_beyond, member.unreached) = (way != Way::Link, unreached);
            if !is_there {
                member.fault = None;
            }
            self.lead(service, target, hop);
        }
        let is_on_link = |member: &Member| matches!(member.hop, Hop::Link { .. } | Hop::Nowhere);
        let is_direct = service.members.iter().all(is_on_link);
        if is_direct != service.is_direct {
            match self.forwarding.set_direct(service.index, is_direct) {
                Ok(()) => service.is_direct = is_direct,
                Err(error) => log::error!("a service stays where it was looked at: {error}"),
            }
        }
    }

    /// Has the route of a target lead there.
    fn lead(&mut self, service: &mut Service, target: usize, hop: Hop) {
        let takes = service.distribution.state(target).is_available();
        let member = &mut service.members[target];
        if (member.hop, member.takes) == (hop, takes) {
            return;
        }
        match self.forwarding.set_route(member.route, hop, takes) {
            Ok(()) => (member.hop, member.takes) = (hop, takes),
            Err(error) => log::error!("a route stays as it was: {error}"),
        }
    }

    /// Puts into force what has changed.
    fn put(&mut self, service: &mut Service) {
        self.put_for_clients(service);
        let is_concerned = service.distribution.vip().opt_local.is_some();
        if is_concerned
            && service.settles.is_none()
            && let Err(error) = self.put_own(service)
        {
            let name = &service.distribution.vip().name;
            log::error!("vip.{name}: the table before stays for this host: {error}");
        }
    }

    fn put_for_clients(&mut self, service: &mut Service) {
        for target in 0..service.members.len() {
            self.lead(service, target, service.members[target].hop);
        }
        let is_settled = service.has_settled();
        let has_changed = service.distribution.states() != service.states;
        let is_in_force = service.settles.is_none() && service.earlier.is_some();
        if !is_settled || (is_in_force && !has_changed) {
            return;
        }
        if let Err(error) = self.commit(service) {
            let name = &service.distribution.vip().name;
            log::error!("vip.{name}: the table before stays: {error}");
        }
    }

    fn commit(&mut self, service: &mut Service) -> Result<(), BpfError> {
        let (plan, states) = (service.distribution.plan(), service.distribution.states());
        let vip = service.distribution.vip();
        self.forwarding.watch(vip.address.ip())?;
        self.forwarding.prepare(service.index, Whose::Clients, &plan)?;
        // Until it serves, connections begin at another distributor, by a table like this one. It may serve since the last look.
        let keeps = (self.is_serving || self.serves()) && !self.has_forgotten;
        let distribution = &service.distribution;
        let earlier = match &service.earlier {
            Some(it) if keeps => it.after_resumption(distribution),
            _ => Earlier::new(plan.clone(), distribution),
        };
        self.forwarding.set_earlier(service.index, &earlier.plan)?;
        service.earlier = Some(earlier);
        let whose = Whose::Clients;
        self.forwarding.commit(service.index, whose, key_of(vip), &plan, vip.affinity)?;
        (service.states, service.settles) = (states, None);
        self.put_own(service)
    }

    /// Whether it serves decides which table is the one of what began before.
    fn note_serving(&mut self) {
        let is_serving = self.serves();
        if self.is_serving && !is_serving {
            self.has_forgotten = false;
            self.follow_tables();
        }
        self.is_serving = is_serving;
    }

    fn serves(&self) -> bool {
        self.ownership.as_ref().is_none_or(Ownership::serves)
    }

    /// What is no flow may have begun by the table that is in force now.
    fn follow_tables(&mut self) {
        self.services.iter_mut().for_each(|service| service.earlier = None);
    }

    /// Has the interface the addresses of all VIPs that are in force.
    fn tend_addresses(&mut self, sight: &Sight) {
        if self.ownership.is_some() {
            return;
        }
        let settling = |ip: IpAddr| {
            let of = self.services.iter().filter(|it| it.distribution.vip().address.ip() == ip);
            of.filter(|it| it.settles.is_some()).count() > 0
        };
        let mut wanted: Vec<IpAddr> =
            self.services.iter().map(|it| it.distribution.vip().address.ip()).collect();
        wanted.sort();
        wanted.dedup();
        wanted.retain(|ip| self.addresses.has(*ip) || !settling(*ip));
        for gone in self.addresses.keep(&wanted, &sight.own) {
            if let Err(error) = self.forwarding.unwatch(gone) {
                log::error!("{gone} is still counted: {error}");
            }
        }
    }

    fn look_at_interface(&mut self) {
        let known = &mut self.interface;
        let gone = match link::interface(&self.name) {
            Ok(interface) if interface.index == known.index => {
                let address = interface.address.filter(|_| interface.address != known.address);
                *known = interface;
                if let Some(address) = address
                    && let Err(error) = self.forwarding.set_own_link(address)
                {
                    log::error!("the interface's new address is not noted: {error}");
                }
                return;
            }
            Ok(_) => "another interface has its name".to_owned(),
            Err(error) => error.to_string(),
        };
        // The program went with it.
        if std::mem::replace(&mut known.is_running, false) {
            log::error!("{} is gone: {gone}; start `sidestep distributor run` again", self.name);
        }
    }

    /// Looks after what the data path needs.
    fn follow_path(&mut self) {
        self.path.follow(&self.interface, &mut self.forwarding);
        let tallies = self.vips().map(|vip| self.forwarding.tally(vip.address.ip()));
        let open_sums = tallies.map(|tally| tally.unwrap_or_default().open_sums).sum();
        self.path.note_open_sums(open_sums);
    }

    /// The addresses of all targets of these VIPs.
    fn targets_of<'a>(vips: impl Iterator<Item = &'a Vip>) -> Vec<IpAddr> {
        let of = |vip: &'a Vip| vip.targets.iter().map(|target| target.address.ip());
        let mut targets: Vec<IpAddr> = vips.flat_map(of).collect();
        targets.sort();
        targets.dedup();
        targets
    }

    /// Follows the ways to targets that are not on the link, of VIPs in force and of these.
    fn follow_tunnels(&mut self, more: &VipSet) {
        let targets = Self::targets_of(self.vips().chain(more.vips()));
        self.tunnels.follow(&targets, self.interface.index, &mut self.forwarding);
    }

    /// Asks all neighbours that are targets whether they are there.
    fn ask_neighbours(&mut self, sight: &Sight) {
        let is_neighbour =
            |target: &IpAddr| !sight.is_own(*target) && self.tunnels.way(*target) == Way::Link;
        for target in Self::targets_of(self.vips()).into_iter().filter(is_neighbour) {
            if let Err(error) = link::ask_for(self.interface.index, target) {
                log::error!("{target} cannot be asked whether it is there: {error}");
            }
        }
    }

    /// Counts live flows, and ends those that are over.
    fn count(&mut self) {
        /// As long as a client waits for stray packets.
        const CLOSING: Duration = Duration::from_secs(60);
        /// Datagrams have no end.
        const QUIET: Duration = Duration::from_secs(120);
        let flows = match self.forwarding.flows() {
            Ok(flows) => flows,
            Err(error) => return log::error!("flows are not counted: {error}"),
        };
        // A full table forgets the longest quiet; some room stays free until then.
        if flows.len() > FLOWS_MAX / 2 && !self.has_forgotten {
            self.has_forgotten = true;
            self.follow_tables();
        }
        let now = boot_time();
        self.copies.follow(now, &flows);
        self.follow_affinities();
        let mut live: HashMap<u32, u64> = HashMap::new();
        for flow in &flows {
            let quiet = now.saturating_sub(flow.seen);
            let is_datagrams = flow.service.1 == Protocol::Udp;
            let is_over = (flow.is_closing && quiet > CLOSING) || (is_datagrams && quiet > QUIET);
            if is_over || self.is_untold(flow) {
                self.forwarding.end(flow);
            } else if !flow.is_closing {
                *live.entry(flow.route).or_default() += 1;
            }
        }
        self.count_own(&mut live);
        for service in &mut self.services {
            let Ok(given) = self.forwarding.given(service.index) else { continue };
            let mut ended = given;
            for (target, member) in service.members.iter_mut().enumerate() {
                member.live = live.get(&member.route).copied().unwrap_or(0);
                // Flows that another distributor was given live as well: the difference is the kernel's.
                ended[target] = given[target].wrapping_sub(member.live);
            }
            if let Err(error) = self.forwarding.note_ended(service.index, &ended) {
                log::error!("ended flows are not noted: {error}");
            }
        }
    }

    fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Distribution, usize) -> Result<Vec<Change>, Refusal>,
    ) -> Result<String, String> {
        self.may_change()?;
        let mut services = std::mem::take(&mut self.services);
        let mut all: Vec<_> = services.iter_mut().map(|it| &mut it.distribution).collect();
        let done = roster::change(&mut all, name, change).map(|(at, done)| {
            self.put(&mut services[at]);
            done
        });
        self.services = services;
        self.note_vips();
        done
    }

    fn may_change(&self) -> Result<(), String> {
        self.ownership.as_ref().map_or(Ok(()), Ownership::may_change)
    }

    fn vips(&self) -> impl Iterator<Item = &Vip> + Clone {
        self.services.iter().map(|service| service.distribution.vip())
    }

    /// The name of the target of a route.
    fn target_of(&self, vip: &Vip, route: u32) -> Option<String> {
        let (_, ip) = self.routes.get((route as usize).wrapping_sub(1))?;
        let target = vip.targets.iter().find(|target| target.address.ip() == *ip);
        // It was a target once, and has a name no more.
        Some(target.map_or_else(|| ip.to_string(), |target| target.name.clone()))
    }

    fn status_of(&self, service: &Service) -> VipStatus {
        let vip = service.distribution.vip();
        let given = self.forwarding.given(service.index).unwrap_or([0; TARGETS_MAX]);
        let targets = vip.targets.iter().zip(&service.members).enumerate();
        let targets = targets.map(|(at, (terms, member))| {
            let [packets, bytes] = self.forwarding.traffic(member.route).unwrap_or_default();
            let queue = service.locality.queue.filter(|_| member.hop == Hop::Here);
            let (waiting, waiting_max) = queue.unwrap_or_default();
            TargetStatus {
                name: terms.name.clone(),
                address: terms.address,
                state: service.distribution.state(at).to_string(),
                weight: terms.weight,
                connections: member.live,
                given: given[at],
                affinities: Some(member.affinities),
                queue: waiting,
                queue_max: waiting_max,
                responsiveness: queue.map(roster::responsiveness),
                pid: None,
                program: None,
                is_marked: false,
                fault: member.unreached.or(member.fault).map(str::to_owned),
                link: Some(link_status(member, packets, bytes)),
            }
        });
        let ip = vip.address.ip();
        let tally = self.forwarding.tally(ip).unwrap_or_default();
        let link = VipLink {
            interface: self.name.clone(),
            path: self.path.in_words(),
            is_taken: self.ownership.as_ref().map_or(self.addresses.has(ip), Ownership::serves),
            owner: self.ownership.as_ref().and_then(Ownership::owner),
            backups: self.ownership.as_ref().map(Ownership::backups).unwrap_or_default(),
            store_fault: self.ownership.as_ref().and_then(Ownership::fault),
            fragments: tally.fragments,
            options: tally.options,
            extension_headers: tally.extended,
            icmp_errors: tally.errors,
            without_target: tally.stranded,
            too_big: tally.oversized,
            open_checksums: tally.open_sums,
        };
        VipStatus { link: Some(link), ..roster::status(vip, targets.collect()) }
    }
}

/// Connections that begin on this host.
impl Distributor {
    /// Has the kernel ask about sockets of this host that connect, once a VIP needs it.
    fn attend_to_connects(&mut self, set: &VipSet) -> Result<(), String> {
        let Some(vip) = set.vips().iter().find(|vip| vip.opt_local.is_some()) else {
            return Ok(());
        };
        if self.attends_to_connects {
            return Ok(());
        }
        let done = Cgroup::root().and_then(|root| self.forwarding.attach_to_connects(&root));
        self.attends_to_connects = done.is_ok();
        done.map_err(|error| {
            let name = &vip.name;
            format!("vip.{name}: optlocal: {error}\nwithout it, leave `optlocal` out; nothing is changed")
        })
    }

    /// As which client this host counts at a VIP.
    fn own_client(&self, vip: IpAddr, sight: &Sight) -> Option<IpAddr> {
        let is_it = |ip: &IpAddr| *ip != vip && ip.is_ipv4() == vip.is_ipv4();
        let here = sight.own.iter().filter(|own| own.index == self.interface.index);
        here.map(|own| own.ip).find(is_it)
    }

    /// Puts into force what has changed for connections of this host.
    fn put_own(&mut self, service: &mut Service) -> Result<(), BpfError> {
        let vip = service.distribution.vip();
        if vip.opt_local.is_none() {
            // The VIP may have had it by its terms before.
            return self.forwarding.forget(Whose::OwnHost, key_of(vip));
        }
        let Some(plan) = service.locality.plan(&service.distribution) else { return Ok(()) };
        let whose = Whose::OwnHost;
        self.forwarding.prepare(service.index, whose, &plan)?;
        self.forwarding.commit(service.index, whose, key_of(vip), &plan, vip.affinity)?;
        service.locality.note(&service.distribution);
        Ok(())
    }

    /// Adds live connections of this host, by route.
    fn count_own(&self, live: &mut HashMap<u32, u64>) {
        for vip in self.vips().filter(|vip| vip.opt_local.is_some()) {
            match self.own_connections_to(vip) {
                Ok(seen) => {
                    for (_, route) in seen {
                        *live.entry(route).or_default() += 1;
                    }
                }
                Err(error) => log::error!("connections of this host are not counted: {error}"),
            }
        }
    }

    /// Live connections of this host to VIPs with `optlocal`.
    fn own_connections(&self) -> io::Result<Vec<Connection>> {
        let mut all = Vec::new();
        for vip in self.vips().filter(|vip| vip.opt_local.is_some()) {
            for (client, route) in self.own_connections_to(vip)? {
                let (name, target) = (vip.name.clone(), self.target_of(vip, route));
                all.push(Connection { vip: name, address: vip.address, client, target });
            }
        }
        Ok(all)
    }

    /// The clients, and the routes of their targets.
    fn own_connections_to(&self, vip: &Vip) -> io::Result<Vec<(SocketAddr, u32)>> {
        let seen = locality::connections_to(vip, self.forwarding.connecting())?;
        // Several VIPs may have the port.
        let is_its = |route: u32| {
            self.routes.get((route as usize).wrapping_sub(1)).is_some_and(|it| it.0 == key_of(vip))
        };
        Ok(seen.into_iter().filter(|(_, route)| is_its(*route)).collect())
    }
}

impl Service {
    /// Whether this host is a target whose server listens, and has room.
    fn look_at_own_server(&mut self, listeners: &[sockets::Seen]) {
        let vip = self.distribution.vip();
        if vip.opt_local.is_none() {
            return;
        }
        let target = self.members.iter().position(|member| member.hop == Hop::Here);
        self.locality.look(vip, target, listeners);
    }
}

impl Direct for Distributor {
    const KIND: TargetKind = TargetKind::Hosts;

    fn has_parted(&mut self) -> bool {
        self.has_given_up()
    }

    fn move_to(&mut self, host: &str) -> Result<String, String> {
        self.give_up_to(host)
    }

    fn is_unsettled(&self, request: &Request) -> bool {
        let Some(ownership) = &self.ownership else { return false };
        match request {
            Request::Apply => ownership.fault().is_some(),
            Request::Drain(_) | Request::Resume(_) | Request::Move(_) => {
                ownership.part().is_unsettled()
            }
            _ => false,
        }
    }

    fn apply(&mut self, set: &VipSet) -> Result<String, String> {
        let unseen = |error: io::Error| format!("the link cannot be looked at: {error}");
        let sight = Sight::take(self.interface.index).map_err(unseen)?;
        if let Some(fault) = self.ownership.as_ref().and_then(Ownership::fault) {
            return Err(format!("{fault}; nothing is changed until it answers"));
        }
        let objections = self.objections(set, &sight).map_err(unseen)?;
        if !objections.is_empty() {
            return Err(format!("{}\nnothing is changed", objections.join("\n")));
        }
        self.attend_to_connects(set)?;
        self.follow_tunnels(set);
        let mut prepared: Vec<Service> = Vec::new();
        for vip in set.vips() {
            if !self.is_in_force(vip) {
                let service = self.prepare(vip, &sight, &prepared);
                prepared.push(service.map_err(|error| format!("vip.{}: {error}", vip.name))?);
            }
        }
        let mut lines = Vec::new();
        for service in prepared {
            lines.push(self.take(service)?);
        }
        let stays = |name: &str| set.vips().iter().any(|vip| vip.name == name);
        let names: Vec<String> = self.vips().map(|vip| vip.name.clone()).collect();
        for name in names.iter().filter(|name| !stays(name)) {
            lines.push(self.remove(name)?);
        }
        self.note_vips();
        Ok(if lines.is_empty() { "nothing to change".to_owned() } else { lines.join("\n") })
    }

    fn look(&mut self) -> Vec<Question> {
        let now = Instant::now();
        self.note_serving();
        self.look_at_interface();
        let sight = match Sight::take(self.interface.index) {
            Ok(sight) => sight,
            Err(error) => {
                log::error!("the link cannot be looked at: {error}");
                return Vec::new();
            }
        };
        self.note_link(&sight);
        self.follow_tunnels(&VipSet::default());
        self.teller.tell_all(&mut self.forwarding);
        if now >= self.ask_due {
            self.ask_neighbours(&sight);
            self.follow_path();
            self.ask_due = now + ASK_EVERY;
        }
        self.note_copies();
        if self.owns() {
            self.owned = boot_time();
        }
        if now >= self.count_due {
            let before = own_cpu_time();
            self.count();
            // A full table takes a while to read: that is to be a small part of a CPU. How long this thread waited for one does not count.
            self.count_due = now + COUNT_EVERY.max((own_cpu_time() - before) * 20);
        }
        let mut due = Vec::new();
        let listeners = locality::listeners(self.vips());
        let mut services = std::mem::take(&mut self.services);
        for service in &mut services {
            self.follow(service, &sight);
            service.look_at_own_server(&listeners);
            due.extend(service.probes_due(now));
            self.put(service);
        }
        self.services = services;
        self.tend_addresses(&sight);
        self.follow_record();
        self.copy_flows();
        self.follow_ranks();
        due
    }

    fn probed(&mut self, question: &Question, outcome: Outcome) {
        let mut services = std::mem::take(&mut self.services);
        let is_it = |service: &&mut Service| service.distribution.vip().name == question.vip;
        if let Some(service) = services.iter_mut().find(is_it) {
            let targets = &service.distribution.vip().targets;
            if let Some(target) = targets.iter().position(|it| it.address == question.target) {
                let member = &mut service.members[target];
                member.probing.answered();
                member.fault = match outcome {
                    Outcome::LacksSmc(why) => Some(why),
                    Outcome::Serves | Outcome::Fails => None,
                };
                let why = member.fault.unwrap_or("its probe");
                let changes = service.distribution.probed(target, outcome == Outcome::Serves);
                roster::report(&service.distribution, &changes, why);
                self.put(service);
            }
        }
        self.services = services;
    }

    fn drain(&mut self, target: &str) -> Result<String, String> {
        self.change(target, Distribution::drain)
    }

    fn resume(&mut self, target: &str) -> Result<String, String> {
        self.change(target, Distribution::resume)
    }

    fn remove(&mut self, vip: &str) -> Result<String, String> {
        let at = self.services.iter().position(|it| it.distribution.vip().name == vip);
        let at = at.ok_or_else(|| roster::no_such_vip(self.vips(), vip))?;
        let service = self.services.remove(at);
        let vip = service.distribution.vip();
        if service.settles.is_none() {
            self.forget(key_of(vip)).map_err(in_words)?;
            self.leave(vip.address.ip());
        }
        Ok(format!("{} at {} is not in force any more", vip.name, vip.address))
    }

    fn status(&mut self) -> Status {
        Status { vips: self.services.iter().map(|service| self.status_of(service)).collect() }
    }

    fn connections(&self) -> io::Result<Vec<Connection>> {
        let mut all = Vec::new();
        for flow in self.forwarding.flows().map_err(io::Error::other)? {
            let of = |vip: &&Vip| key_of(vip) == flow.service;
            let (Some(vip), false) = (self.vips().find(of), flow.is_closing) else { continue };
            let target = self.target_of(vip, flow.route);
            let (vip, address) = (vip.name.clone(), vip.address);
            all.push(Connection { vip, address, client: flow.client, target });
        }
        all.extend(self.own_connections()?);
        Ok(all)
    }
}

impl Service {
    /// Whether a VIP takes its place: by its name, or by its address.
    fn is_before(&self, vip: &Vip) -> bool {
        let own = self.distribution.vip();
        own.name == vip.name || key_of(own) == key_of(vip)
    }

    /// Whether enough is known of its targets that clients may come: a table of the one that has answered first would
    /// send the others' connections there.
    fn has_settled(&self) -> bool {
        let all_up = || self.distribution.states().iter().all(|state| *state != State::Down);
        self.settles.is_none_or(|settles| Instant::now() >= settles || all_up())
    }

    fn probes_due(&mut self, now: Instant) -> Vec<Question> {
        let vip = self.distribution.vip();
        let members = vip.targets.iter().zip(&mut self.members);
        let there = members.filter(|(_, member)| member.hop != Hop::Nowhere);
        let ask = |(terms, member): (&Target, &mut Member)| {
            let witness = if member.hop == Hop::Here { Witness::Here } else { Witness::There };
            let witness = (vip.smc == SmcUse::Require).then_some(witness);
            member.probing.ask(vip, terms.address, witness, now)
        };
        there.filter_map(ask).collect()
    }
}

fn key_of(vip: &Vip) -> ServiceKey {
    (vip.address, vip.protocol)
}

/// When a target that serves has risen by now.
fn settling_ends(vip: &Vip) -> Instant {
    let probe = &vip.probe;
    Instant::now() + ASK_EVERY + (probe.interval + probe.timeout) * probe.rise
}

fn link_status(member: &Member, packets: u64, bytes: u64) -> TargetLink {
    let (address, mtu) = match member.hop {
        Hop::Link { to, .. } => (Some(in_hex(to)), None),
        Hop::Tunnel(tunnel) => (None, Some(tunnel.mtu)),
        Hop::Here | Hop::Nowhere => (None, None),
    };
    let via = if member.is_beyond { Via::Tunnel } else { Via::Link };
    TargetLink { via, address, is_own: member.hop == Hop::Here, mtu, packets, bytes }
}

fn in_hex(address: link::LinkAddress) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

fn in_words(error: BpfError) -> String {
    error.to_string()
}

/// By which address on its link a distributor is known to others.
fn host_of(index: u32, sight: &Sight, vips: &[IpAddr]) -> Option<IpAddr> {
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let own = sight.own.iter().filter(|own| own.index == index).map(|own| own.ip);
    let own = own.filter(|ip| !is_link_local(ip) && !vips.contains(ip));
    own.min_by_key(IpAddr::is_ipv6)
}
