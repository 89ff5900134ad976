//! The table: hosts, the network between their adapters, the TCP connections beside it, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_engine::{Event, Holdings, Host, Proposer, Settings, Sizes, Wording};
use sidestep_proto::link_group::{Adapter, AdapterId, KEEPALIVE, LinkGroup};
use sidestep_rdma::faults::{Faults, Plan as NetworkPlan};
use sidestep_rdma::soft;
use sidestep_rdma::soft::adapter::{DATAGRAM_MAX, Datagram};
use sidestep_wire::clc::{AcceptConfirmR, FirstContact, FirstContactR, Hostname, OsType, Release};
use sidestep_wire::{AlertToken, Eid, Mac, Mtu, PeerId, RmbeSize, RoceGid};

use crate::program::{Fate, Plan, Program};

pub(crate) const SERVER: usize = 0;
pub(crate) const CLIENT: usize = 1;
/// What a CLC message takes.
const TCP: Duration = Duration::from_millis(1);
/// From which every adapter sends.
const SOURCE_PORT: u16 = 50_000;
/// Datagrams that leave together.
const SEGMENTS_MAX: usize = 16;

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
    Propose { talk: usize },
    Accept { talk: usize, bytes: Vec<u8> },
    Confirm { talk: usize, bytes: Vec<u8> },
    Decline { talk: usize, side: usize },
    Act { talk: usize, side: usize },
}

pub(crate) struct Table {
    now: Duration,
    hosts: [Option<Host<soft::Adapter>>; 2],
    network: Faults<Packet>,
    cut: BTreeSet<IpAddr>,
    due: BTreeMap<(Duration, u64), Due>,
    count: u64,
    talks: Vec<[Program; 2]>,
    names: BTreeMap<(usize, AlertToken), usize>,
    random: StdRng,
    wording: Wording,
}

fn address(host: usize, adapter: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, adapter, host as u8 + 1)
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

const IDS: [AdapterId; 2] = [AdapterId(1), AdapterId(2)];

/// When a host or one of its adapters is to be called.
fn next_timeout(host: &mut Host<soft::Adapter>) -> Option<Duration> {
    let of_devices = IDS.map(|id| host.device(id).and_then(|device| device.poll_timeout()));
    of_devices.into_iter().chain([host.poll_timeout()]).flatten().min()
}

const SIZES: Sizes = Sizes { rmbe: RmbeSize::MIN, send_buffer: RmbeSize::MIN };

impl Table {
    pub(crate) fn lay(adapters: [u8; 2], network: NetworkPlan, seed: u64) -> Self {
        let hosts = [SERVER, CLIENT].map(|number| {
            let peer_id = peer_id(number);
            let mut host = Host::new(Settings { peer_id, vlan: 0, keepalive: Some(KEEPALIVE) });
            for id in 1..=adapters[number] {
                let place = address(number, id);
                let seed = seed << 8 | u64::from(u32::from(place) & 0xFFFF) << 40;
                let device = soft::Adapter::seeded(seed, place.into(), SOURCE_PORT);
                host.add_adapter(adapter(number, id), device, Duration::ZERO);
            }
            Some(host)
        });
        Self {
            now: Duration::from_secs(1),
            hosts,
            network: Faults::new(network),
            cut: BTreeSet::new(),
            due: BTreeMap::new(),
            count: 0,
            talks: Vec::new(),
            names: BTreeMap::new(),
            random: StdRng::seed_from_u64(seed ^ 0xACE5),
            wording: if seed % 16 < 8 { Wording::V1 } else { version_2() },
        }
    }

    /// A connection, and two programs that talk over it.
    pub(crate) fn begin_talk(&mut self, plan: Plan) {
        let talk = self.talks.len();
        self.talks.push([0, 1].map(|side| Program::new(talk, side, &plan)));
        self.at(TCP, Due::Propose { talk });
    }

    /// Nothing comes to an adapter any more, and nothing leaves it.
    pub(crate) fn cut(&mut self, host: usize, number: u8) {
        self.cut.insert(address(host, number).into());
    }

    /// An operator takes an adapter out of use.
    pub(crate) fn relieve(&mut self, host: usize, number: u8) {
        if let Some(host) = &mut self.hosts[host] {
            host.relieve_adapter(AdapterId(number), self.now);
        }
    }

    /// A host is there no more.
    pub(crate) fn kill(&mut self, host: usize) {
        self.hosts[host] = None;
    }

    /// Whether both ends of all groups survive the loss of an adapter.
    pub(crate) fn is_redundant(&self) -> bool {
        self.hosts.iter().flatten().flat_map(Host::groups).all(LinkGroup::is_redundant)
    }

    // ---- time -----------------------------------------------------------------------------------

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
        let has_begun = |program: &Program| program.is_established || program.is_declined;
        while !self.talks.iter().flatten().all(has_begun) && self.step(end) {}
    }

    /// Whatever is next, unless it is later than `end`.
    fn step(&mut self, end: Duration) -> bool {
        self.carry();
        let timeouts: Vec<Duration> =
            self.hosts.iter_mut().flatten().filter_map(next_timeout).collect();
        let due = self.due.keys().next().map(|(at, _)| *at);
        let next = timeouts.into_iter().chain(self.network.poll_timeout()).chain(due).min();
        let Some(next) = next.filter(|next| *next <= end) else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        while let Some(packet) = self.network.pop(now) {
            self.deliver(&packet);
        }
        while let Some(entry) = self.due.first_entry().filter(|it| it.key().0 <= now) {
            let due = entry.remove();
            self.happen(due);
        }
        for host in self.hosts.iter_mut().flatten() {
            if next_timeout(host).is_some_and(|at| at <= now) {
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
        }
        true
    }

    fn deliver(&mut self, packet: &Packet) {
        let Packet { from, to, index, ref bytes } = *packet;
        if self.cut.contains(&from) || self.cut.contains(&to) {
            return;
        }
        for number in [SERVER, CLIENT] {
            for id in 1..=2 {
                if IpAddr::from(address(number, id)) == to
                    && let Some(host) = &mut self.hosts[number]
                {
                    let datagram = Datagram { from, port: SOURCE_PORT, index, bytes };
                    if let Some(device) = host.device(AdapterId(id)) {
                        device.handle_datagram(&datagram, self.now);
                        host.handle_device(AdapterId(id), self.now);
                    }
                }
            }
        }
    }

    /// Takes what the hosts send and tell.
    fn carry(&mut self) {
        let mut out = [0; SEGMENTS_MAX * DATAGRAM_MAX];
        for number in [SERVER, CLIENT] {
            for id in 1..=2 {
                let from = IpAddr::from(address(number, id));
                while let Some(host) = &mut self.hosts[number]
                    && let Some(device) = host.device(AdapterId(id))
                    && let Some(run) = device.poll_transmit(&mut out, SEGMENTS_MAX, self.now)
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

    // ---- programs -------------------------------------------------------------------------------

    fn tell(&mut self, side: usize, event: Event) {
        let token = match &event {
            Event::Introduce(token, _)
            | Event::Declined(token, _)
            | Event::Established(token)
            | Event::Readable(token)
            | Event::Writable(token)
            | Event::Urgent(token)
            | Event::Reset(token, _)
            | Event::Gone(token) => *token,
        };
        let talk = self.names[&(side, token)];
        let program = &mut self.talks[talk][side];
        assert!(!program.is_gone, "{event:?} after the end");
        match event {
            Event::Introduce(_, message) => {
                let mut bytes = vec![0; message.emitted_len()];
                message.emit(&mut bytes).unwrap();
                let due = match side {
                    SERVER => Due::Accept { talk, bytes },
                    _ => Due::Confirm { talk, bytes },
                };
                return self.at(TCP, due);
            }
            Event::Declined(..) => {
                program.is_declined = true;
                return self.at(TCP, Due::Decline { talk, side: 1 - side });
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
            Event::Readable(_) | Event::Writable(_) | Event::Urgent(_) => {}
        }
        self.wake(talk, side);
    }

    fn wake(&mut self, talk: usize, side: usize) {
        let after = Duration::from_micros(self.random.random_range(0..2000));
        self.at(after, Due::Act { talk, side });
    }

    fn happen(&mut self, due: Due) {
        let now = self.now;
        match due {
            Due::Propose { talk } => {
                let Adapter { gid, mac, .. } = adapter(CLIENT, 1);
                let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
                let Some(host) = &mut self.hosts[SERVER] else { return };
                let token = host.accept(proposer, self.wording.clone(), SIZES, now).unwrap();
                self.name(talk, SERVER, token);
            }
            Due::Accept { talk, bytes } => {
                let accept = AcceptConfirmR::parse(&bytes).unwrap();
                let Some(host) = &mut self.hosts[CLIENT] else { return };
                match host.connect(&accept, self.wording.clone(), SIZES, now) {
                    Ok(token) => self.name(talk, CLIENT, token),
                    Err(_) => {
                        let program = &mut self.talks[talk][CLIENT];
                        (program.is_declined, program.is_gone) = (true, true);
                        self.at(TCP, Due::Decline { talk, side: SERVER });
                    }
                }
            }
            Due::Confirm { talk, bytes } => {
                let confirm = AcceptConfirmR::parse(&bytes).unwrap();
                let token = self.talks[talk][SERVER].token.unwrap();
                let Some(host) = &mut self.hosts[SERVER] else { return };
                host.handle_confirm(token, &confirm, now);
            }
            Due::Decline { talk, side } => {
                let Some(token) = self.talks[talk][side].token else { return };
                let Some(host) = &mut self.hosts[side] else { return };
                host.abandon(token, now);
                self.talks[talk][side].is_declined = true;
            }
            Due::Act { talk, side } => {
                let Some(host) = &mut self.hosts[side] else { return };
                if self.talks[talk][side].act(host, &mut self.random, now) {
                    self.wake(talk, side);
                }
            }
        }
    }

    fn name(&mut self, talk: usize, side: usize, token: AlertToken) {
        self.talks[talk][side].token = Some(token);
        let before = self.names.insert((side, token), talk);
        assert!(before.is_none(), "two connections of one name");
    }

    // ---- checks ---------------------------------------------------------------------------------

    pub(crate) fn check_programs(&self, fate: Fate) {
        for [server, client] in &self.talks {
            for (program, other, side) in [(server, client, SERVER), (client, server, CLIENT)] {
                if self.hosts[side].is_some() {
                    program.check(other, fate);
                }
            }
        }
    }

    pub(crate) fn check_nothing_is_left(&self) {
        for host in self.hosts.iter().flatten() {
            assert_eq!(host.holdings(), Holdings::default());
        }
        assert!(self.hosts.iter().any(Option::is_none) || self.names.is_empty());
    }
}
