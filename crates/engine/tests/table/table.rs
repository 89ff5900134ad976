//! The table: hosts, the network between their adapters, the TCP connections beside it, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_engine::{
    Caller, Clock, Event, Holdings, Host, Migrant, Proposer, Request, Settings, Sizes, Terms,
    Wording,
};
use sidestep_proto::link_group::{Adapter, AdapterId, KEEPALIVE, LinkState};
use sidestep_rdma::faults::{Faults, Plan as NetworkPlan};
use sidestep_rdma::soft;
use sidestep_rdma::soft::adapter::{DATAGRAM_MAX, Datagram, Drops};
use sidestep_wire::clc::{AcceptConfirmR, FirstContact, FirstContactR, Hostname, OsType, Release};
use sidestep_wire::{AlertToken, Diagnosis, Eid, Mac, Mtu, PeerId, RoceGid};

use crate::liar::{Liar, Lie};
use crate::program::{Fate, Next, Plan, Program};

pub(crate) const SERVER: usize = 0;
pub(crate) const CLIENT: usize = 1;
/// What a CLC message takes.
const TCP: Duration = Duration::from_millis(1);
/// From which every adapter sends.
const SOURCE_PORT: u16 = 50_000;
/// Datagrams that leave together.
const SEGMENTS_MAX: usize = 16;
/// How late a datagram is at most that is very late.
const LATE_MAX: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
struct Packet {
    from: IpAddr,
    to: IpAddr,
    index: u16,
    bytes: Vec<u8>,
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What is to happen beside the network.
enum Due {
    Propose {
        talk: usize,
    },
    Accept {
        talk: usize,
        bytes: Vec<u8>,
    },
    Confirm {
        talk: usize,
        bytes: Vec<u8>,
    },
    Decline {
        talk: usize,
        side: usize,
        is_out_of_sync: bool,
    },
    Act {
        talk: usize,
        side: usize,
    },
    Lie(Lie),
    /// A datagram that is very late.
    Deliver(Packet),
}

/// Two programs, and which of them has accepted.
struct Talk {
    server: usize,
    adapters: &'static [u8],
    /// Those of the client, when it has proposed.
    proposed: Vec<AdapterId>,
    programs: [Program; 2],
}

/// A host that does not run.
struct Standstill {
    until: Duration,
    /// How long it wanted to wait.
    wanted: Option<Duration>,
    /// What has come to its sockets meanwhile.
    unread: Vec<Packet>,
}

pub(crate) struct Table {
    now: Duration,
    hosts: [Option<Host<soft::Adapter>>; 2],
    clocks: [Clock; 2],
    standstills: [Option<Standstill>; 2],
    adapters: [u8; 2],
    network: Faults<Packet>,
    late: f64,
    cut: BTreeSet<IpAddr>,
    /// Nothing that these send arrives.
    unheard: BTreeSet<IpAddr>,
    /// The first adapters of both hosts are on one network, the second on another.
    is_split: bool,
    /// Link groups that have left one process of a host and not come to another, and whose programs wait.
    migrants: [Vec<Migrant>; 2],
    due: BTreeMap<(Duration, u64), Due>,
    count: u64,
    talks: Vec<Talk>,
    names: BTreeMap<(usize, AlertToken), usize>,
    pub(crate) liar: Option<Liar>,
    random: StdRng,
    wording: Wording,
    trace: DefaultHasher,
}

pub(crate) fn address(host: usize, adapter: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, adapter, host as u8 + 1)
}

/// The number of the adapter that has an address.
fn network_of(address: IpAddr) -> u8 {
    IDS.map(|AdapterId(number)| number)
        .into_iter()
        .find(|number| [SERVER, CLIENT].iter().any(|host| self::address(*host, *number) == address))
        .unwrap()
}

fn adapter(host: usize, number: u8) -> Adapter {
    Adapter {
        id: AdapterId(number),
        gid: RoceGid(address(host, number).to_ipv6_mapped().octets()),
        mac: Mac([0x52, 0x54, 0, 0, number, host as u8 + 1]),
        mtu: Mtu::from_low_bits(3),
    }
}

const fn peer_id(host: usize) -> PeerId {
    PeerId([host as u8 + 1; 8])
}

/// What a client says of itself.
fn proposer(host: usize, number: u8) -> Proposer {
    let Adapter { gid, mac, .. } = adapter(host, number);
    Proposer { peer_id: peer_id(host), gid, mac }
}

fn version_2() -> Wording {
    let common = FirstContact {
        os_type: OsType::LINUX,
        release: Release::V2_1,
        hostname: Hostname::new(b"host"),
        feature_mask: 0,
    };
    let gids = Default::default();
    let hello = FirstContactR { common, direct: true, max_conns: 255, max_links: 2, gids };
    Wording::V2 { eid: Eid::ueid("TABLE").unwrap(), hello }
}

/// Of all programs.
const USER: u32 = 1000;

const IDS: [AdapterId; 2] = [AdapterId(1), AdapterId(2)];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for host in self.hosts.iter().flatten() {
            for it in host.links() {
                writeln!(f, "{:?} {:?} {:?}", it.link.number(), it.link.state(), it.usage)?;
            }
            for it in host.connections() {
                writeln!(f, "{it:?}")?;
            }
        }
        Ok(())
    }
}

/// When a host or one of its adapters is to be called.
fn next_timeout(host: &mut Host<soft::Adapter>) -> Option<Duration> {
    let of_devices = IDS.map(|id| host.device(id).and_then(|device| device.poll_timeout()));
    of_devices.into_iter().chain([host.poll_timeout()]).flatten().min()
}

// ---- hosts --------------------------------------------------------------------------------------

impl Table {
    pub(crate) fn lay(adapters: [u8; 2], network: NetworkPlan, late: f64, seed: u64) -> Self {
        let mut table = Self {
            now: Duration::from_secs(1),
            hosts: [None, None],
            clocks: [Clock::default(), Clock::default()],
            standstills: [None, None],
            adapters,
            network: Faults::new(network),
            late,
            cut: BTreeSet::new(),
            unheard: BTreeSet::new(),
            is_split: false,
            migrants: [Vec::new(), Vec::new()],
            due: BTreeMap::new(),
            count: 0,
            talks: Vec::new(),
            names: BTreeMap::new(),
            liar: None,
            random: StdRng::seed_from_u64(seed ^ 0xACE5),
            wording: if seed & 16 == 0 { Wording::V1 } else { version_2() },
            trace: DefaultHasher::new(),
        };
        [SERVER, CLIENT].into_iter().for_each(|host| table.bear(host));
        table
    }

    /// A host begins, or begins anew.
    pub(crate) fn bear(&mut self, number: usize) {
        let secrets = StdRng::seed_from_u64(self.random.random());
        let settings = Settings { keepalive: Some(KEEPALIVE) };
        self.hosts[number] = Some(Host::new(settings, secrets));
        (1..=self.adapters[number]).for_each(|id| self.put_in(number, id));
    }

    /// A host gets an adapter.
    pub(crate) fn put_in(&mut self, number: usize, id: u8) {
        let (seed, place, now) = (self.random.random(), address(number, id), self.time(number));
        let device = soft::Adapter::seeded(seed, place.into(), SOURCE_PORT);
        if let Some(host) = &mut self.hosts[number] {
            host.add_adapter(adapter(number, id), device, now);
        }
    }

    /// And loses it.
    pub(crate) fn take_out(&mut self, number: usize, id: u8) {
        let now = self.time(number);
        let Some(host) = &mut self.hosts[number] else { return };
        let device = host.remove_adapter(AdapterId(id), now).expect("it was put in");
        let left = sidestep_rdma::device::Device::holdings(&device);
        assert_eq!(left, sidestep_rdma::device::Holdings::default());
    }

    /// Nothing comes to an adapter any more, and nothing leaves it.
    pub(crate) fn cut(&mut self, host: usize, number: u8) {
        self.cut.insert(address(host, number).into());
    }

    /// It does again.
    pub(crate) fn mend(&mut self, host: usize, number: u8) {
        self.cut.remove(&address(host, number).into());
    }

    /// Nothing leaves an adapter any more, but all that is sent to it arrives.
    pub(crate) fn silence(&mut self, host: usize, number: u8) {
        self.unheard.insert(address(host, number).into());
    }

    /// An adapter goes or comes, and its host is told.
    pub(crate) fn set_up(&mut self, host: usize, number: u8, is_up: bool) {
        let (id, now) = (AdapterId(number), self.time(host));
        let Some(it) = &mut self.hosts[host] else { return };
        match is_up {
            true => it.handle_adapter_up(id, now),
            false => it.handle_adapter_down(id, now),
        }
        match is_up {
            true => self.mend(host, number),
            false => self.cut(host, number),
        }
    }

    /// The link groups of a host leave it, each as soon as it is at rest. Those that are not in so much time stay: how
    /// many.
    pub(crate) fn emigrate(&mut self, number: usize, patience: Duration) -> usize {
        let end = self.now + patience;
        let left = loop {
            let now = self.time(number);
            let host = self.hosts[number].as_mut().unwrap();
            let groups: Vec<u32> = host.group_numbers().collect();
            groups.iter().for_each(|group| host.freeze(*group));
            let leave = groups.iter().filter_map(|group| host.emigrate(*group, now));
            self.migrants[number].extend(leave);
            let left: Vec<u32> = host.group_numbers().collect();
            if left.is_empty() || !self.step(end) {
                break left;
            }
        };
        let now = self.time(number);
        let host = self.hosts[number].as_mut().unwrap();
        left.iter().for_each(|group| host.thaw(*group, now));
        left.len()
    }

    /// And come to it, or to the process that has its place now.
    pub(crate) fn immigrate(&mut self, number: usize) {
        let now = self.time(number);
        let host = self.hosts[number].as_mut().unwrap();
        for migrant in self.migrants[number].drain(..) {
            assert_eq!(host.immigrate(migrant, now), Ok(()));
        }
    }

    /// What has left a host.
    pub(crate) fn migrants(&mut self, number: usize) -> &mut Vec<Migrant> {
        &mut self.migrants[number]
    }

    /// An operator takes an adapter out of use.
    pub(crate) fn relieve(&mut self, host: usize, number: u8) {
        let now = self.time(host);
        if let Some(host) = &mut self.hosts[host] {
            host.relieve_adapter(AdapterId(number), now);
        }
    }

    /// A host ends all its link groups, in order.
    pub(crate) fn end(&mut self, host: usize) {
        let now = self.time(host);
        if let Some(host) = &mut self.hosts[host] {
            host.end(true, now);
        }
    }

    /// A host and its programs do not run for so long.
    pub(crate) fn stand_still(&mut self, number: usize, time: Duration) {
        assert!(self.standstills[number].is_none(), "it stands still already");
        self.clocks[number].go_on(self.now, None);
        let now = self.time(number);
        let due = self.hosts[number].as_mut().and_then(next_timeout);
        let wanted = due.map(|due| due.saturating_sub(now));
        let (until, unread) = (self.now + time, Vec::new());
        self.standstills[number] = Some(Standstill { until, wanted, unread });
    }

    /// A host is there no more, and neither are its programs.
    pub(crate) fn kill(&mut self, host: usize) {
        self.hosts[host] = None;
        self.names.retain(|(side, _), _| *side != host);
        self.talks.iter_mut().for_each(|talk| talk.programs[host].is_dead = true);
    }

    /// Whether all groups have another link than those over an adapter of a host.
    pub(crate) fn survives_without(&self, host: usize, number: u8) -> bool {
        let gid = adapter(host, number).gid;
        self.hosts.iter().flatten().flat_map(Host::groups).all(|group| {
            group.links().iter().any(|link| {
                let uses_it =
                    link.adapter().gid == gid || link.peer().is_some_and(|it| it.gid == gid);
                link.state() == LinkState::Active && !uses_it
            })
        })
    }

    /// Whether all groups have two links.
    fn is_redundant(&self) -> bool {
        let mut groups = self.hosts.iter().flatten().flat_map(Host::groups);
        groups.all(|group| {
            let links = group.links().iter();
            links.filter(|link| link.state() == LinkState::Active).count() > 1
        })
    }
}

// ---- time ---------------------------------------------------------------------------------------

impl Table {
    /// What the clock of a host shows.
    fn time(&self, host: usize) -> Duration {
        self.clocks[host].at(self.now)
    }

    /// When a host, or one of its adapters, is to be called, or goes on.
    fn next_call(&mut self, number: usize) -> Option<Duration> {
        if let Some(standstill) = &self.standstills[number] {
            return Some(standstill.until);
        }
        let now = self.time(number);
        let due = self.hosts[number].as_mut().and_then(next_timeout)?;
        Some(self.now + due.saturating_sub(now))
    }

    /// Hosts go on whose time has come.
    fn end_standstills(&mut self) {
        for number in [SERVER, CLIENT] {
            let is_over = |it: &mut Standstill| it.until <= self.now;
            let Some(over) = self.standstills[number].take_if(is_over) else { continue };
            self.clocks[number].go_on(self.now, over.wanted);
            over.unread.iter().for_each(|packet| self.deliver(packet));
        }
    }

    fn at(&mut self, after: Duration, due: Due) {
        self.count += 1;
        self.due.insert((self.now + after, self.count), due);
    }

    /// Lets so much time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// Lets time pass until every connection has begun or will not.
    pub(crate) fn run_until_settled(&mut self) {
        let end = self.now + Duration::from_secs(30);
        let has_begun = |it: &Program| it.is_established || it.is_declined || it.is_dead;
        let programs =
            |table: &Self| table.talks.iter().flat_map(|talk| &talk.programs).all(has_begun);
        while !programs(self) && self.step(end) {}
    }

    /// Lets time pass until no host stands still.
    pub(crate) fn run_until_all_go_on(&mut self) {
        let end = self.now + Duration::from_secs(60);
        while self.standstills.iter().any(Option::is_some) && self.step(end) {}
    }

    /// Lets time pass until all groups have two links. A server that has tried in vain tries again
    /// after a minute, and then after two.
    pub(crate) fn run_until_redundant(&mut self) {
        let end = self.now + Duration::from_secs(400);
        while !self.is_redundant() {
            assert!(self.step(end), "there is no second link");
        }
    }

    /// Lets time pass until a connection has left a link though that works, or nobody wants to.
    pub(crate) fn run_until_balancing(&mut self) {
        let end = self.now + Duration::from_secs(10);
        let moves = [SERVER, CLIENT].map(|host| self.moves(host));
        while [SERVER, CLIENT].map(|host| self.moves(host)) == moves && self.step(end) {}
    }

    /// Whatever is next, unless it is later than `end`.
    fn step(&mut self, end: Duration) -> bool {
        self.carry();
        let of_hosts = [SERVER, CLIENT].map(|host| self.next_call(host));
        let due = self.due.keys().next().map(|(at, _)| *at);
        let all = of_hosts.into_iter().chain([due, self.network.poll_timeout()]);
        let Some(next) = all.flatten().min().filter(|next| *next <= end) else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        self.end_standstills();
        while let Some(packet) = self.network.pop(now) {
            if self.late > 0.0 && self.random.random_bool(self.late) {
                let after = LATE_MAX.mul_f64(self.random.random());
                self.at(after, Due::Deliver(packet));
            } else {
                self.deliver(&packet);
            }
        }
        while let Some(entry) = self.due.first_entry().filter(|it| it.key().0 <= now) {
            let due = entry.remove();
            self.happen(due);
        }
        [SERVER, CLIENT].into_iter().for_each(|host| self.pass_time(host));
        true
    }

    fn pass_time(&mut self, number: usize) {
        let now = self.time(number);
        let is_running = self.standstills[number].is_none();
        let Some(host) = self.hosts[number].as_mut().filter(|_| is_running) else { return };
        if next_timeout(host).is_none_or(|at| at > now) {
            return;
        }
        for id in IDS {
            if let Some(device) = host.device(id) {
                device.handle_timeout(now);
                host.handle_device(id, now);
            }
        }
        host.handle_timeout(now);
        let next = next_timeout(host);
        assert!(next.is_none_or(|at| at > now), "a timer that does not stop");
    }

    fn deliver(&mut self, packet: &Packet) {
        let Packet { from, to, index, ref bytes } = *packet;
        assert!(!self.is_split || network_of(from) == network_of(to), "{from} to {to}");
        if [from, to].iter().any(|end| self.cut.contains(end)) || self.unheard.contains(&from) {
            return;
        }
        (self.now, to, bytes).hash(&mut self.trace);
        for number in [SERVER, CLIENT] {
            let now = self.time(number);
            for id in IDS {
                if IpAddr::from(address(number, id.0)) != to {
                    continue;
                }
                if let Some(standstill) = &mut self.standstills[number] {
                    standstill.unread.push(packet.clone());
                } else if let Some(host) = &mut self.hosts[number]
                    && let Some(device) = host.device(id)
                {
                    let datagram = Datagram { from, port: SOURCE_PORT, index, bytes };
                    device.handle_datagram(&datagram, now);
                    host.handle_device(id, now);
                }
            }
        }
    }

    /// Takes what the hosts send and tell.
    fn carry(&mut self) {
        let mut out = [0; SEGMENTS_MAX * DATAGRAM_MAX];
        for number in [SERVER, CLIENT] {
            if self.standstills[number].is_some() {
                continue;
            }
            let now = self.time(number);
            if let Some(host) = &mut self.hosts[number] {
                host.transmit(now);
            }
            for id in IDS {
                let from = IpAddr::from(address(number, id.0));
                while let Some(host) = &mut self.hosts[number]
                    && let Some(device) = host.device(id)
                    && let Some(run) = device.poll_transmit(&mut out, SEGMENTS_MAX, now)
                {
                    for (index, bytes) in out[..run.len].chunks(run.segment_len).enumerate() {
                        let (to, bytes) = (run.to, bytes.to_vec());
                        let packet = Packet { from, to, index: index as u16, bytes };
                        self.network.push(packet, self.now);
                    }
                }
            }
            while let Some(host) = &mut self.hosts[number]
                && let Some(event) = host.poll_event()
            {
                self.tell(number, event);
            }
        }
    }
}

// ---- programs -----------------------------------------------------------------------------------

impl Table {
    /// A connection, and two programs that talk over it.
    pub(crate) fn begin_talk(&mut self, plan: Plan) {
        let talk = self.talks.len();
        let programs = [SERVER, CLIENT].map(|side| Program::new(talk, side, plan.sides[side]));
        let Plan { server, adapters, .. } = plan;
        self.talks.push(Talk { server, adapters, proposed: Vec::new(), programs });
        self.at(TCP, Due::Propose { talk });
    }

    /// From now on no way leads from one adapter to those of another number.
    pub(crate) fn split(&mut self) {
        self.is_split = true;
    }

    /// How many link groups a host has.
    pub(crate) fn groups(&self, host: usize) -> usize {
        self.hosts[host].iter().flat_map(Host::groups).count()
    }

    /// Whether both ends of a talk stay TCP.
    pub(crate) fn is_declined(&self, talk: usize) -> bool {
        self.talks[talk].programs.iter().all(|program| program.is_declined)
    }

    /// How many connections a host has on each of its links.
    pub(crate) fn loads(&self, host: usize) -> Vec<usize> {
        let links = self.hosts[host].iter().flat_map(Host::links);
        links.filter(|it| it.link.state() == LinkState::Active).map(|it| it.connections).collect()
    }

    /// How many there were.
    pub(crate) fn talks(&self) -> usize {
        self.talks.len()
    }

    fn tell(&mut self, side: usize, event: Event) {
        (self.now, side, format!("{event:?}")).hash(&mut self.trace);
        let token = event.connection();
        if self.liar.as_ref().is_some_and(|liar| liar.has(side, token)) {
            return self.tell_liar(side, token, event);
        }
        let talk = self.names[&(side, token)];
        let server = self.talks[talk].server;
        let program = &mut self.talks[talk].programs[side];
        assert!(!program.is_gone, "{event:?} after the end");
        match event {
            Event::Introduce(_, message) => {
                if side != server && message.is_first_contact() {
                    let AdapterId(proposed) = self.talks[talk].proposed[0];
                    assert_eq!(message.gid, adapter(side, proposed).gid, "as proposed");
                }
                let mut bytes = vec![0; message.emitted_len()];
                message.emit(&mut bytes).unwrap();
                let due = match side == server {
                    true => Due::Accept { talk, bytes },
                    false => Due::Confirm { talk, bytes },
                };
                return self.at(TCP, due);
            }
            Event::Declined(..) => {
                program.is_declined = true;
                return self.at(TCP, Due::Decline { talk, side: 1 - side, is_out_of_sync: false });
            }
            Event::Established(_) => program.is_established = true,
            Event::Reset(_, reset) => {
                assert_eq!(program.reset, None);
                program.reset = Some(reset);
            }
            Event::Gone(_) => {
                program.is_gone = true;
                self.names.remove(&(side, token));
                return;
            }
            Event::Readable(_) | Event::Writable(_) | Event::Sent(_) | Event::Urgent(_) => {}
        }
        let after = Duration::from_micros(self.random.random_range(0..2000));
        self.at(after, Due::Act { talk, side });
    }

    /// The host at which something is to happen.
    fn place_of(&self, due: &Due) -> Option<usize> {
        match due {
            Due::Propose { talk } | Due::Confirm { talk, .. } => Some(self.talks[*talk].server),
            Due::Accept { talk, .. } => Some(1 - self.talks[*talk].server),
            Due::Decline { side, .. } | Due::Act { side, .. } => Some(*side),
            Due::Lie(_) | Due::Deliver(_) => None,
        }
    }

    fn happen(&mut self, due: Due) {
        let standstill = self.place_of(&due).and_then(|host| self.standstills[host].as_ref());
        if let Some(until) = standstill.map(|it| it.until) {
            return self.at(until - self.now, due);
        }
        match due {
            Due::Propose { talk } => self.propose(talk),
            Due::Accept { talk, bytes } => self.take_accept(talk, &bytes),
            Due::Confirm { talk, bytes } => {
                let confirm = AcceptConfirmR::parse(&bytes).unwrap();
                let server = self.talks[talk].server;
                if let Some((host, token)) = self.end_of(talk, server) {
                    let now = self.time(host);
                    self.hosts[host].as_mut().unwrap().handle_confirm(token, &confirm, now);
                }
            }
            Due::Decline { talk, side, is_out_of_sync } => {
                let program = &mut self.talks[talk].programs[side];
                program.is_declined = true;
                program.is_gone |= program.token.is_none();
                let Some((host, token)) = self.end_of(talk, side) else { return };
                let now = self.time(host);
                let host = self.hosts[host].as_mut().unwrap();
                match is_out_of_sync {
                    true => host.handle_out_of_sync(token, now),
                    false => host.abandon(token, now),
                }
            }
            Due::Act { talk, side } => self.act(talk, side),
            Due::Lie(lie) => self.lie(lie),
            Due::Deliver(packet) => self.deliver(&packet),
        }
    }

    /// The host and the connection of a program, if both are still there.
    fn end_of(&self, talk: usize, side: usize) -> Option<(usize, AlertToken)> {
        let program = &self.talks[talk].programs[side];
        Some((side, program.token.filter(|_| !program.is_dead)?))
    }

    fn propose(&mut self, talk: usize) {
        let Talk { server, ref programs, .. } = self.talks[talk];
        let (client, sizes) = (1 - server, programs[server].sizes());
        let is_dead = programs.iter().any(|program| program.is_dead);
        let [proposed, accepted] = [client, server].map(|host| self.eligible(host, talk));
        let preferred = proposed.first().copied().filter(|id| !is_dead && self.is_up(client, *id));
        let Some(AdapterId(preferred)) = preferred else {
            return self.stays_tcp(talk, [SERVER, CLIENT]);
        };
        self.talks[talk].proposed = proposed;
        let proposer = proposer(client, preferred);
        let request = self.request(server, &accepted, sizes);
        let now = self.time(server);
        let Some(host) = self.hosts[server].as_mut() else {
            return self.stays_tcp(talk, [SERVER, CLIENT]);
        };
        match host.accept(proposer, request, now) {
            Ok(token) => self.name(talk, server, token),
            Err(_) => self.stays_tcp(talk, [SERVER, CLIENT]),
        }
    }

    /// The adapters of a host that a talk may use, those that are up first.
    fn eligible(&self, host: usize, talk: usize) -> Vec<AdapterId> {
        let mut adapters: Vec<_> =
            self.talks[talk].adapters.iter().copied().map(AdapterId).collect();
        adapters.sort_by_key(|id| !self.is_up(host, *id));
        adapters
    }

    fn is_up(&self, host: usize, id: AdapterId) -> bool {
        let mut adapters = self.hosts[host].iter().flat_map(Host::adapters);
        adapters.any(|it| it.description.id == id && it.is_up)
    }

    /// What a host is asked for by a program that holds a TCP connection with this address.
    pub(crate) fn request_of(&self, uid: u32, host: usize, remote: IpAddr) -> Request {
        let caller = Caller::new(uid, address(host, 1).into(), remote);
        let adapters = (1..=self.adapters[host]).map(AdapterId).collect::<Vec<_>>();
        Request { caller, ..self.request(host, &adapters, Sizes::default()) }
    }

    /// What a server is asked for by a Proposal in the name of a host, over a TCP connection with this
    /// address.
    pub(crate) fn proposal_from(&self, host: usize, remote: IpAddr) -> (Proposer, Request) {
        (proposer(host, 1), self.request_of(USER, 1 - host, remote))
    }

    /// A host, if it is there, and what time it is.
    pub(crate) fn host_at(
        &mut self,
        number: usize,
    ) -> Option<(&mut Host<soft::Adapter>, Duration)> {
        let now = self.time(number);
        Some((self.hosts[number].as_mut()?, now))
    }

    pub(crate) fn lie_after(&mut self, after: Duration, lie: Lie) {
        self.at(after, Due::Lie(lie));
    }

    /// What a program asks its host for. Its TCP connection is with the first adapter's address of the
    /// other host.
    fn request(&self, host: usize, adapters: &[AdapterId], sizes: Sizes) -> Request {
        let [local, remote] = [host, 1 - host].map(|host| address(host, 1).into());
        let adapters = adapters.iter().copied().collect();
        let own_id = peer_id(host);
        let terms = Terms { own_id, adapters, vlan: 0, wording: self.wording.clone() };
        Request { caller: Caller::new(USER, local, remote), terms, sizes, stays: false }
    }

    fn take_accept(&mut self, talk: usize, bytes: &[u8]) {
        let accept = AcceptConfirmR::parse(bytes).unwrap();
        let Talk { server, ref programs, ref proposed, .. } = self.talks[talk];
        let client = 1 - server;
        let request = self.request(client, proposed, programs[client].sizes());
        let (is_dead, now) = (programs[client].is_dead, self.time(client));
        let Some(host) = self.hosts[client].as_mut().filter(|_| !is_dead) else {
            return self.at(TCP, Due::Decline { talk, side: server, is_out_of_sync: false });
        };
        match host.connect(&accept, request, now) {
            Ok(token) => self.name(talk, client, token),
            Err(diagnosis) => {
                self.stays_tcp(talk, [client]);
                let is_out_of_sync = diagnosis == Diagnosis::SYNCERR;
                self.at(TCP, Due::Decline { talk, side: server, is_out_of_sync });
            }
        }
    }

    /// There will be no connection of SMC-R, and a program has none.
    fn stays_tcp<const N: usize>(&mut self, talk: usize, sides: [usize; N]) {
        for side in sides {
            let program = &mut self.talks[talk].programs[side];
            (program.is_declined, program.is_gone) = (true, true);
        }
    }

    fn act(&mut self, talk: usize, side: usize) {
        if !self.migrants[side].is_empty() {
            return self.at(TCP, Due::Act { talk, side });
        }
        let now = self.time(side);
        let Talk { programs, .. } = &mut self.talks[talk];
        let [program, other] = match programs {
            [server, client] if side == SERVER => [server, client],
            [server, client] => [client, server],
        };
        let Some(host) = self.hosts[side].as_mut().filter(|_| !program.is_dead) else { return };
        program.check_urgent(other, host);
        let after = match program.act(host, &mut self.random, now) {
            Next::Wait => return,
            Next::GoOn => Duration::from_micros(self.random.random_range(0..2000)),
            Next::Pause(pause) => pause,
        };
        self.at(after, Due::Act { talk, side });
    }

    fn name(&mut self, talk: usize, side: usize, token: AlertToken) {
        self.talks[talk].programs[side].token = Some(token);
        let before = self.names.insert((side, token), talk);
        assert!(before.is_none(), "two connections of one name");
    }
}

// ---- checks -------------------------------------------------------------------------------------

impl Table {
    pub(crate) fn check_programs(&self, fate: Fate) {
        for Talk { programs: [server, client], .. } in &self.talks {
            for (program, other) in [(server, client), (client, server)] {
                if !program.is_dead {
                    program.check(other, fate);
                }
            }
        }
    }

    /// Both ends of all talks from this one on use SMC-R.
    pub(crate) fn check_established(&self, first: usize) {
        for program in self.talks[first..].iter().flat_map(|talk| &talk.programs) {
            assert!(program.is_established, "{program:#?}");
        }
    }

    /// The connections that the server has accepted last are not all on one link.
    pub(crate) fn check_spread(&self) {
        let host = self.hosts[SERVER].as_ref().unwrap();
        let links = host.links().filter(|it| it.usage.traffic.messages_sent > 0);
        assert!(links.count() > 1, "one link for all: {:#?}", host.links().collect::<Vec<_>>());
    }

    /// Everything that nobody took has its reason.
    pub(crate) fn check_drops(&mut self, is_calm: bool, forgets: bool) {
        for host in self.hosts.iter_mut().flatten() {
            let drops = host.drops();
            assert_eq!(drops.malformed, 0);
            // After a failover, or to a peer that was given up, the same may be said twice.
            assert!(!is_calm || drops.unknown == 0, "{drops:?}");
            for device in IDS.map(|id| host.device(id).map(|device| device.drops())) {
                let Drops { malformed, unknown_qp, stranger, damaged } = device.unwrap_or_default();
                assert_eq!((malformed, damaged), (0, 0));
                // The liar has links made that lead from one end to another one's.
                assert!(self.liar.is_some() || stranger == 0, "{stranger}");
                // A queue pair that was destroyed is remembered for a minute, unless its adapter is
                // another one by then.
                assert!(forgets || unknown_qp == 0, "{unknown_qp}");
            }
        }
    }

    pub(crate) fn check_nothing_is_left(&self) {
        for host in self.hosts.iter().flatten() {
            assert_eq!(host.holdings(), Holdings::default());
        }
        assert!(self.names.is_empty(), "{:?}", self.names);
    }

    /// The longest time for which the program at one end of the last talk received nothing, once it
    /// had begun to.
    pub(crate) fn longest_gap(&self, side: usize) -> Duration {
        self.talks.last().unwrap().programs[side].longest_gap
    }

    /// How often connections of a host have gone over to other links.
    pub(crate) fn moves(&self, host: usize) -> u64 {
        self.hosts[host].iter().flat_map(Host::connections).map(|it| it.moves).sum()
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.finish()
    }
}
