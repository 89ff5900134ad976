//! Two engines on a table: a virtual clock, a device for each, and a network that can be cut.
//!
//! ```text
//!   Host (server)                          Host (client)
//!   LinkGroup <─> queue pairs, keys  ~~~~  queue pairs, keys <─> LinkGroup
//!                      messages in order over each link, each after LATENCY
//! ```
//!
//! A message that finds no queue pair, or goes between adapters that were cut apart, breaks the
//! queue pair that sent it, after the time that retransmissions take. A message can also be
//! *swallowed*: it arrives, and the peer does as if it had not, as Linux does at times.

use super::*;
use sidestep_wire::clc::{
    AcceptConfirmR, FirstContact as Introduces, FirstContactR, FormR, Hostname, OsType, Release,
    Role as ClcRole, Version,
};
use sidestep_wire::llc::{
    self, AddLinkStep, ConfirmRkeyStep, DeleteScope, Form, Message, RkeyStep,
};
use sidestep_wire::{
    AlertToken, Diagnosis, Eid, LinkNumber, Mac, Mtu, PeerId, Psn, QpNumber, Rkey, RmbAddress,
    RmbeSize, RoceGid,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

mod appendix_c;
mod balance;
mod collisions;
mod failover;
mod first_contact;
mod hostile;
mod limits;
mod random;
mod replay;

const LATENCY: Duration = Duration::from_millis(1);
/// How long a queue pair tries to send.
const RETRIES: Duration = Duration::from_millis(300);
const RMB: RmbId = RmbId(1);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The adapter number `n` of one side.
fn adapter(role: Role, n: u8) -> Adapter {
    let side = match role {
        Role::Server => 1,
        Role::Client => 2,
    };
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xFF, 0xFF, 10, 0, n, side]);
    let (gid, mac) = (RoceGid(gid), Mac([0x52, 0x54, 0, 0, n, side]));
    Adapter { id: AdapterId(n), gid, mac, mtu: Mtu::from_low_bits(3) }
}

/// How a table is laid.
#[derive(Clone, Copy)]
struct Setting {
    version: Version,
    servers_adapters: u8,
    clients_adapters: u8,
    max_links: u8,
    keepalive: Option<Duration>,
    /// How long devices think, up to thrice that; 0 for one that answers within the call.
    device: Duration,
    /// How many times longer a message takes over the next adapter than over the one before it.
    skew: u32,
}

impl Setting {
    const fn new(version: Version, servers_adapters: u8, clients_adapters: u8) -> Self {
        let (keepalive, device, max_links, skew) = (None, Duration::ZERO, 2, 0);
        Self { version, servers_adapters, clients_adapters, max_links, keepalive, device, skew }
    }
}

/// One side, with its device.
struct Host {
    group: LinkGroup,
    queue_pairs: BTreeMap<LinkUserId, QueuePair>,
    registered: BTreeMap<(LinkUserId, RmbId), Rtoken>,
    events: Vec<Event>,
    next_qp: u8,
    next_rkey: u32,
    /// Registrations that the device refuses.
    refuses_registrations: bool,
}

#[derive(Clone, Copy)]
struct QueuePair {
    number: QpNumber,
    adapter: AdapterId,
    gid: RoceGid,
    peer: Option<LinkEnd>,
    sends: bool,
    broken: bool,
}

/// What is to happen to a host.
#[derive(Clone)]
enum Due {
    Made(LinkUserId, Option<(QpNumber, Psn)>),
    Receiving(LinkUserId),
    Registered(LinkUserId, RmbId, Option<Rtoken>),
    Arrives { to: QpNumber, from: RoceGid, bytes: Vec<u8> },
    Sent(Ticket),
    Broken(LinkUserId),
}

struct Table {
    setting: Setting,
    now: Duration,
    /// The server, then the client if there is one yet.
    hosts: Vec<Host>,
    due: BTreeMap<(Duration, u64), (Role, Due)>,
    count: u64,
    /// Pairs of adapters between which nothing comes through: the server's, the client's.
    cuts: BTreeSet<(AdapterId, AdapterId)>,
    /// Messages that arrive without effect, by how what `describe` calls them begins.
    swallows: Vec<String>,
    /// What is done to the next messages: at which byte, which bits.
    mangles: VecDeque<(usize, u8)>,
    trace: Vec<String>,
}

const fn index(role: Role) -> usize {
    match role {
        Role::Server => 0,
        Role::Client => 1,
    }
}

const fn other(role: Role) -> Role {
    match role {
        Role::Server => Role::Client,
        Role::Client => Role::Server,
    }
}

/// A message in few words.
fn describe(bytes: &[u8]) -> String {
    let role = |role| if role == llc::Role::Request { "request" } else { "response" };
    match Message::parse(bytes).unwrap() {
        Message::ConfirmLink(it) => format!("CONFIRM LINK {}", role(it.role)),
        Message::AddLink(it) => match it.step {
            AddLinkStep::Request if it.link_number.0 == 0 => "ADD LINK hint".to_string(),
            AddLinkStep::Request => "ADD LINK request".to_string(),
            AddLinkStep::Response => "ADD LINK response".to_string(),
            AddLinkStep::Reject(reason) => format!("ADD LINK reject {}", reason.code()),
        },
        Message::AddLinkContinuation(it) => {
            format!("ADD LINK CONT {} {}", role(it.role), it.remaining)
        }
        Message::DeleteLink(it) => match (it.scope, it.role) {
            (DeleteScope::All, _) => "DELETE LINK all".to_string(),
            (DeleteScope::Link(number), llc::Role::Request) => format!("DELETE LINK {number}"),
            (DeleteScope::Link(number), _) if it.reason == DeleteReason::UNKNOWN_LINK => {
                format!("DELETE LINK {number} unknown")
            }
            (DeleteScope::Link(number), _) => format!("DELETE LINK {number} response"),
        },
        Message::RequestAddLink(it) => match it.step {
            AddLinkStep::Request => "REQUEST ADD LINK".to_string(),
            _ => "REQUEST ADD LINK refused".to_string(),
        },
        Message::ConfirmRkey(it) => match it.step {
            ConfirmRkeyStep::Request => format!("CONFIRM RKEY request +{}", it.entries.len()),
            ConfirmRkeyStep::Response => "CONFIRM RKEY response".to_string(),
            _ => "CONFIRM RKEY refused".to_string(),
        },
        Message::ConfirmRkeyContinuation(_) => "CONFIRM RKEY CONT".to_string(),
        Message::TestLink(it) => format!("TEST LINK {}", role(it.role)),
        Message::DeleteRkey(it) => match it.step {
            RkeyStep::Request => format!("DELETE RKEY request {}", it.rkeys.len()),
            RkeyStep::Response => "DELETE RKEY response".to_string(),
            RkeyStep::Negative => "DELETE RKEY refused".to_string(),
        },
    }
}

impl Host {
    fn new(group: LinkGroup) -> Self {
        Self {
            group,
            queue_pairs: BTreeMap::new(),
            registered: BTreeMap::new(),
            events: Vec::new(),
            next_qp: 0x10,
            next_rkey: 0x100,
            refuses_registrations: false,
        }
    }

    fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }
}

impl Table {
    /// A server that was asked for a first contact.
    fn lay(setting: Setting) -> Self {
        let agreement = Agreement {
            version: setting.version,
            max_conns: CONNECTIONS_MAX,
            max_links: setting.max_links,
        };
        let local = Self::local(&setting, Role::Server);
        let group = LinkGroup::server(local, agreement, PeerId([2; 8]), RMB).unwrap();
        Self {
            setting,
            now: s(1),
            hosts: [Host::new(group)].into(),
            due: BTreeMap::new(),
            count: 0,
            cuts: BTreeSet::new(),
            swallows: Vec::new(),
            mangles: VecDeque::new(),
            trace: Vec::new(),
        }
    }

    fn local(setting: &Setting, role: Role) -> Local {
        let (id, count) = match role {
            Role::Server => (1, setting.servers_adapters),
            Role::Client => (2, setting.clients_adapters),
        };
        Local {
            peer_id: PeerId([id; 8]),
            vlan: 0,
            group: 7,
            direct: true,
            keepalive: setting.keepalive,
            adapters: (1..=count).map(|n| adapter(role, n)).collect(),
        }
    }

    fn host(&mut self, role: Role) -> &mut Host {
        &mut self.hosts[index(role)]
    }

    fn group(&mut self, role: Role) -> &mut LinkGroup {
        &mut self.host(role).group
    }

    fn server(&mut self) -> &mut LinkGroup {
        self.group(Role::Server)
    }

    fn client(&mut self) -> &mut LinkGroup {
        self.group(Role::Client)
    }

    /// The Accept or Confirm of one side.
    fn introduce(&mut self, role: Role) -> AcceptConfirmR {
        let setting = self.setting;
        let local = Self::local(&setting, role);
        let group = self.group(role);
        let link = group.links()[0].user_id();
        let Introduction { end, rtoken } = group.introduction(RMB, link).unwrap();
        AcceptConfirmR {
            role: if role == Role::Server { ClcRole::Accept } else { ClcRole::Confirm },
            peer_id: local.peer_id,
            gid: end.gid,
            mac: end.mac,
            qp_number: end.qp,
            rkey: rtoken.rkey,
            rmbe_index: 1,
            alert_token: AlertToken(1),
            size: RmbeSize::DEFAULT,
            mtu: end.mtu,
            rmb_address: rtoken.address,
            psn: end.psn,
            form: match setting.version {
                Version::V1 => FormR::V1 { first_contact: true },
                Version::V2 => FormR::V2 {
                    eid: Eid::ueid("TABLE").unwrap(),
                    first_contact: Some(FirstContactR {
                        common: Introduces {
                            os_type: OsType::LINUX,
                            release: Release::V2_1,
                            hostname: Hostname::new(b"host"),
                            feature_mask: 0,
                        },
                        direct: true,
                        max_conns: CONNECTIONS_MAX,
                        max_links: setting.max_links,
                        gids: Default::default(),
                    }),
                },
            },
        }
    }

    /// Lets the client come, and CLC pass. CONFIRM LINK is next.
    fn exchange_clc(&mut self) {
        self.run(ms(200));
        let accept = self.introduce(Role::Server);
        let group = LinkGroup::client(Self::local(&self.setting, Role::Client), &accept, RMB);
        self.hosts.push(Host::new(group.unwrap()));
        self.run(ms(200));
        let (confirm, now) = (self.introduce(Role::Client), self.now);
        self.server().handle_confirm(&confirm, now);
        self.carry_out();
    }

    /// A group whose first contact is over.
    fn established(setting: Setting) -> Self {
        let mut table = Self::lay(setting);
        table.exchange_clc();
        table.run(s(3));
        for role in [Role::Server, Role::Client] {
            assert!(table.group(role).is_established(), "{role:?}: {:#?}", table.trace);
        }
        table.assert_agreement();
        table.trace.clear();
        table
    }

    /// A connection at both ends, with the buffers of the first contact.
    fn connect(&mut self, token: u32) -> LinkUserId {
        let link = self.server().next_link().unwrap();
        let peer = self.server().link(link).unwrap().number();
        self.server().open(AlertToken(token), RMB, link).unwrap();
        let theirs = self.client().link_numbered(peer).unwrap().user_id();
        self.client().open(AlertToken(token), RMB, theirs).unwrap();
        let (ours_at, theirs_at) =
            (self.server().rtoken(RMB, link), self.client().rtoken(RMB, theirs));
        self.client().bind(AlertToken(token), theirs, ours_at.unwrap()).unwrap();
        self.server().bind(AlertToken(token), link, theirs_at.unwrap()).unwrap();
        link
    }

    // ---- the world ------------------------------------------------------------------------------

    fn at(&mut self, after: Duration, role: Role, due: Due) {
        self.count += 1;
        self.due.insert((self.now + after, self.count), (role, due));
    }

    /// Lets time pass.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.carry_out();
        for turn in 0.. {
            assert!(turn < 100_000, "it does not come to rest: {:?}", self.trace.last_chunk::<9>());
            let timeouts = self.hosts.iter().filter_map(|host| host.group.poll_timeout());
            let next = timeouts.chain(self.due.keys().next().map(|(at, _)| *at)).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            let now = self.now;
            for host in &mut self.hosts {
                if host.group.poll_timeout().is_some_and(|at| at <= now) {
                    host.group.handle_timeout(now);
                    let next = host.group.poll_timeout();
                    assert!(next.is_none_or(|at| at > now), "a timer that does not stop");
                }
            }
            self.carry_out();
            while let Some(entry) = self.due.first_entry().filter(|it| it.key().0 <= now) {
                let (role, due) = entry.remove();
                self.happen(role, due);
                self.carry_out();
            }
        }
        self.now = end;
    }

    fn happen(&mut self, role: Role, due: Due) {
        let now = self.now;
        let host = &mut self.hosts[index(role)];
        let group = &mut host.group;
        match due {
            Due::Made(link, made) => group.handle_queue_pair(link, made, now),
            Due::Receiving(link) => group.handle_ready_to_receive(link, now),
            Due::Registered(link, rmb, rtoken) => group.handle_registered(link, rmb, rtoken, now),
            Due::Sent(ticket) => group.handle_sent(ticket, now),
            Due::Broken(link) => {
                if let Some(qp) = host.queue_pairs.get_mut(&link) {
                    qp.broken = true;
                    group.handle_link_failed(link, now);
                }
            }
            Due::Arrives { to, from, bytes } => {
                let is_it = |qp: &QueuePair| {
                    qp.number == to && qp.peer.is_some_and(|peer| peer.gid == from)
                };
                let link = host.queue_pairs.iter().find(|(_, qp)| is_it(qp)).map(|(link, _)| *link);
                if let Some(link) = link {
                    group.handle_message(link, &bytes, now);
                }
            }
        }
    }

    /// Does what the engines want.
    fn carry_out(&mut self) {
        for role in [Role::Server, Role::Client] {
            while let Some(host) = self.hosts.get_mut(index(role)) {
                while let Some(event) = host.group.poll_event() {
                    host.events.push(event);
                }
                let Some(command) = host.group.poll_command() else { break };
                self.execute(role, command);
            }
        }
    }

    /// An answer of the device.
    fn answer(&mut self, role: Role, due: Due) {
        if self.setting.device.is_zero() {
            self.happen(role, due);
        } else {
            // Answers overtake each other.
            let factor = (self.count * 7 % 5) as u32 % 3 + 1;
            self.at(self.setting.device * factor, role, due);
        }
    }

    fn execute(&mut self, role: Role, command: Command) {
        let host = &mut self.hosts[index(role)];
        match command {
            Command::CreateQueuePair { link, adapter: id } => {
                host.next_qp += 1;
                let number = QpNumber([0, index(role) as u8 + 1, host.next_qp]);
                let (peer, sends, broken) = (None, false, false);
                let gid = adapter(role, id.0).gid;
                let qp = QueuePair { number, adapter: id, gid, peer, sends, broken };
                assert!(host.queue_pairs.insert(link, qp).is_none(), "made twice");
                let psn = Psn([0, 0, host.next_qp]);
                self.answer(role, Due::Made(link, Some((number, psn))));
            }
            Command::ReadyToReceive { link, peer } => {
                host.queue_pairs.get_mut(&link).unwrap().peer = Some(peer);
                self.answer(role, Due::Receiving(link));
            }
            Command::ReadyToSend { link } => {
                let qp = host.queue_pairs.get_mut(&link).unwrap();
                assert!(qp.peer.is_some(), "ready to send before ready to receive");
                qp.sends = true;
            }
            Command::Register { link, rmb } => {
                assert!(host.queue_pairs.contains_key(&link));
                host.next_rkey += 1;
                let rkey = Rkey(host.next_rkey);
                let rtoken = Rtoken { rkey, address: RmbAddress(u64::from(rkey.0) << 20) };
                let rtoken = Some(rtoken).filter(|_| !host.refuses_registrations);
                if let Some(rtoken) = rtoken {
                    let before = host.registered.insert((link, rmb), rtoken);
                    assert!(before.is_none(), "registered twice");
                }
                self.answer(role, Due::Registered(link, rmb, rtoken));
            }
            Command::Deregister { link, rmb } => {
                host.registered.remove(&(link, rmb));
            }
            Command::Send { link, ticket, bytes } => self.transmit(role, link, ticket, bytes),
            Command::Destroy { link } => {
                assert!(host.queue_pairs.remove(&link).is_some(), "destroyed twice");
                host.registered.retain(|(on, _), _| *on != link);
            }
        }
    }

    fn transmit(&mut self, role: Role, link: LinkUserId, ticket: Ticket, mut bytes: Vec<u8>) {
        let host = &self.hosts[index(role)];
        let number = host.group.link(link).map_or(0, |link| link.number().0);
        let Some(qp) = host.queue_pairs.get(&link).copied() else { return };
        assert!(qp.sends, "sent before ready to send: {}", describe(&bytes));
        let words = describe(&bytes);
        let side = if role == Role::Server { 's' } else { 'c' };
        self.trace.push(format!("{side}{number} {words}"));
        let peer = qp.peer.unwrap();
        let there = self.hosts.get(1 - index(role)).and_then(|host| {
            host.queue_pairs.values().find(|it| it.number == peer.qp && it.peer.is_some())
        });
        let reaches = there.is_some_and(|there| {
            let ends = match role {
                Role::Server => (qp.adapter, there.adapter),
                Role::Client => (there.adapter, qp.adapter),
            };
            !self.cuts.contains(&ends) && !there.broken && !qp.broken
        });
        if !reaches {
            return self.at(RETRIES, role, Due::Broken(link));
        }
        let latency = LATENCY * (1 + self.setting.skew * u32::from(qp.adapter.0 - 1));
        self.at(2 * latency, role, Due::Sent(ticket));
        let line = format!("{side} {words}");
        if let Some(at) = self.swallows.iter().position(|it| line.starts_with(it)) {
            self.swallows.remove(at);
            return;
        }
        if let Some((at, change)) = self.mangles.pop_front()
            && let Some(byte) = bytes.get_mut(at)
        {
            *byte ^= change;
        }
        self.at(latency, other(role), Due::Arrives { to: peer.qp, from: qp.gid, bytes });
    }

    /// From now on nothing gets through between two adapters, not even what is on its way.
    fn cut(&mut self, servers: u8, clients: u8) {
        self.cuts.insert((AdapterId(servers), AdapterId(clients)));
        let (from, to) = (adapter(Role::Server, servers).gid, adapter(Role::Client, clients).gid);
        let gid_of = |hosts: &[Host], role, number| {
            let mut all = hosts.get(index(role)).into_iter().flat_map(|it| it.queue_pairs.values());
            all.find(|qp| qp.number == number).map(|qp| qp.gid)
        };
        let hosts = &self.hosts;
        self.due.retain(|_, (role, due)| match due {
            Due::Arrives { to: number, from: sender, .. } => {
                let receiver = gid_of(hosts, *role, *number);
                let ends = (Some(*sender), receiver);
                ends != (Some(from), Some(to)) && ends != (Some(to), Some(from))
            }
            _ => true,
        });
    }

    /// The network of both adapters works again.
    fn mend(&mut self, servers: u8, clients: u8) {
        self.cuts.remove(&(AdapterId(servers), AdapterId(clients)));
    }

    fn adapter_down(&mut self, role: Role, n: u8) {
        let now = self.now;
        for qp in self.host(role).queue_pairs.values_mut() {
            qp.broken |= qp.adapter == AdapterId(n);
        }
        self.group(role).handle_adapter_down(AdapterId(n), now);
        self.carry_out();
    }

    fn adapter_up(&mut self, role: Role, n: u8) {
        let now = self.now;
        self.group(role).handle_adapter_up(adapter(role, n), now);
        self.carry_out();
    }

    /// A queue pair breaks, and its owner notices.
    fn break_link(&mut self, role: Role, number: u8) {
        let link = self.group(role).link_numbered(LinkNumber(number)).unwrap().user_id();
        self.happen(role, Due::Broken(link));
        self.carry_out();
    }

    /// The next message of this kind has no effect.
    fn swallow(&mut self, line: &str) {
        self.swallows.push(line.to_string());
    }

    /// Something that the peer's engine would not send.
    fn inject(&mut self, to: Role, number: u8, message: &Message) {
        let mut room = [0; llc::EMITTED_LEN_MAX];
        let len = message.emit(&mut room).unwrap();
        self.inject_bytes(to, number, &room[..len]);
    }

    fn inject_bytes(&mut self, to: Role, number: u8, bytes: &[u8]) {
        let now = self.now;
        let link = self.group(to).link_numbered(LinkNumber(number)).unwrap().user_id();
        self.group(to).handle_message(link, bytes, now);
        self.carry_out();
    }

    // ---- what must hold ---------------------------------------------------------------------------

    /// The numbers of the links that carry connections.
    fn links(&mut self, role: Role) -> Vec<u8> {
        self.group(role).active().map(|link| link.number().0).collect()
    }

    /// Both sides are at rest, have the same links, and know each other's buffers on all of them;
    /// the devices have what the engines think they have.
    fn assert_agreement(&mut self) {
        let trace = &self.trace;
        for role in [Role::Server, Role::Client] {
            let (host, peer) = (&self.hosts[index(role)], &self.hosts[1 - index(role)]);
            let group = &host.group;
            assert!(group.is_quiet(), "{role:?} is not quiet: {group:#?}\n{trace:#?}");
            for link in group.links() {
                let theirs = peer.group.link_numbered(link.number());
                let theirs = theirs.unwrap_or_else(|| panic!("{role:?} alone has {link:?}"));
                assert_eq!(link.end().map(|end| end.qp), theirs.peer().map(|end| end.qp));
                assert_eq!(link.peer_user_id(), theirs.user_id());
                let at_device = host.queue_pairs[&link.user_id()];
                assert_eq!(Some(at_device.number), link.end().map(|end| end.qp));
                for (rmb, _) in group.rmbs() {
                    let ours = group.rtoken(rmb, link.user_id()).unwrap();
                    assert_eq!(host.registered[&(link.user_id(), rmb)], ours);
                    let known = peer.group.peer_rmbs.find(theirs.user_id(), ours.rkey);
                    let known = known.unwrap_or_else(|| panic!("{rmb:?} is unknown\n{trace:#?}"));
                    assert_eq!(peer.group.peer_rmbs.rtoken(known, theirs.user_id()), Some(ours));
                }
            }
            assert_eq!(group.rmbs().count(), peer.group.peer_rmbs.len(), "{trace:#?}");
            assert_eq!(host.queue_pairs.len(), group.links().len());
            assert_eq!(host.registered.len(), group.links().len() * group.rmbs().count());
        }
    }

    /// The device has got everything back.
    fn assert_gone(&mut self, role: Role) {
        let host = self.host(role);
        assert!(host.group.has_ended() && host.has(Event::Ended));
        assert!(host.queue_pairs.is_empty() && host.registered.is_empty());
        assert_eq!(host.group.poll_timeout(), None);
        assert!(host.group.links().is_empty() && host.group.connections().is_empty());
    }

    #[track_caller]
    fn assert_trace(&mut self, expected: &[&str]) {
        assert_eq!(self.trace, expected, "\n{:#?}", self.trace);
        self.trace.clear();
    }
}
