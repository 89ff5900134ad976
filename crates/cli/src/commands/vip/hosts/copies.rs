//! What the owner of the VIPs copies to its backups: flows, so that a takeover breaks none, and affinities, so that clients meet the
//! same targets afterwards.
//!
//! A table of places tells where a connection went as long as nothing has changed since it began: not once a target is
//! drained, or has risen, and never under a method that does not go by the hash. So each flow is copied when it
//! begins, when its client ends it, and every [`REPEAT`] beside, because a datagram may be lost, and a backup may be new. A
//! backup forgets a flow of which it was told nothing for [`FORGET`].
//!
//! An affinity is copied when it begins, has another target, or a part of its time ([`PART`]) has passed since the last copy: that one
//! may be lost too, and each connection of a client makes the affinity last longer.
//!
//! ```text
//!     4 "SDV1"   1 kind   1 protocol   2 port of the service   8 number   16 from   16 to   8 instance of the owner
//!    16 address of the service   16 the target's
//!    20 for each flow (16 address of the client   2 port   1 is closing   1 zero), or
//!       for each affinity (16 address of the client   4 for how many milliseconds)
//!    16 SipHash-2-4-128 of all before, by the store's secret
//! ```
//!
//! Numbers of a process rise, and a backup takes only what the owner's present process says: what is repeated by a stranger
//! is refused.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sidestep_bpf::Flow;
use sidestep_distributor::Protocol;

use super::peers::{self, Ends};
use super::store::Secret;

/// From one copy of a flow that goes on to the next.
const REPEAT: Duration = Duration::from_secs(30);
/// For so long a backup keeps what is not repeated: two copies may be lost.
pub(super) const FORGET: Duration = Duration::from_secs(100);
/// Of an affinity's time, what passes between two copies: a quarter.
const PART: u32 = 4;
/// Datagrams of one turn: as many as a socket has room for, whatever is in them.
pub(super) const BATCH: usize = 48;

pub(super) type ServiceKey = (SocketAddr, Protocol);

/// What the backups were told, and what they are to be told.
#[derive(Default)]
pub(super) struct Copies {
    backups: Vec<IpAddr>,
    told: HashMap<(SocketAddr, ServiceKey), Told>,
    due: VecDeque<Flow>,
    told_clients: HashMap<(IpAddr, ServiceKey), ToldClient>,
    due_clients: VecDeque<Client>,
    /// Flows were looked at since a backup has come.
    has_followed: bool,
}

struct Told {
    at: Duration,
    route: u32,
    is_closing: bool,
}

struct ToldClient {
    at: Duration,
    route: u32,
}

/// A client that meets a target again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) ip: IpAddr,
    pub(super) service: ServiceKey,
    pub(super) route: u32,
    /// By `CLOCK_MONOTONIC`, and for how long the service has clients come back.
    pub(super) until: Duration,
    pub(super) time: Duration,
}

/// What is told of one target in one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    /// The clients' ends, and whether each has ended it.
    Flows(Vec<(SocketAddr, bool)>),
    /// Clients, and for how long each is to meet the target again.
    Clients(Vec<(IpAddr, Duration)>),
}

impl Copies {
    /// These are the backups. A new one is told of all flows.
    pub(super) fn follow_backups(&mut self, backups: &[IpAddr]) {
        let is_known = |host: &IpAddr| self.backups.contains(host);
        if backups.is_empty() || !backups.iter().all(is_known) {
            self.told.clear();
            self.due.clear();
            self.told_clients.clear();
            self.due_clients.clear();
            self.has_followed = false;
        }
        self.backups = backups.to_vec();
    }

    /// These are the flows.
    pub(super) fn follow(&mut self, now: Duration, flows: &[Flow]) {
        if self.backups.is_empty() {
            return;
        }
        self.has_followed = true;
        let mut before = std::mem::take(&mut self.told);
        for flow in flows {
            let ends = (flow.client, flow.service);
            let told = before.remove(&ends);
            if told.as_ref().map_or(!flow.is_closing, |told| told.is_outdated(now, flow)) {
                self.due.push_back(*flow);
                let (route, is_closing) = (flow.route, flow.is_closing);
                self.told.insert(ends, Told { at: now, route, is_closing });
            } else if let Some(told) = told {
                self.told.insert(ends, told);
            }
        }
    }

    /// These are the clients that meet a target again, now by `CLOCK_MONOTONIC`.
    pub(super) fn follow_clients(&mut self, now: Duration, clients: &[Client]) {
        if self.backups.is_empty() {
            return;
        }
        let mut before = std::mem::take(&mut self.told_clients);
        for client in clients {
            let ends = (client.ip, client.service);
            let told = before.remove(&ends).filter(|told| !told.is_outdated(now, client));
            let told = told.unwrap_or_else(|| {
                self.due_clients.push_back(*client);
                ToldClient { at: now, route: client.route }
            });
            self.told_clients.insert(ends, told);
        }
    }

    /// Whether each backup was told of all flows and affinities.
    pub(super) fn are_complete(&self) -> bool {
        self.has_followed && self.due.is_empty() && self.due_clients.is_empty()
    }

    /// What is to be told now, by `CLOCK_MONOTONIC`, in at most [`BATCH`] datagrams, each about one route. Flows go first: without theirs
    /// connections break.
    pub(super) fn take(&mut self, now: Duration) -> Vec<(u32, Entries)> {
        let flow = |flow: &Flow| (flow.route, (flow.client, flow.is_closing));
        let flows = batch(&mut self.due, BATCH, flow);
        let lasts = |client: &Client| client.until.saturating_sub(now);
        let client = |client: &Client| (client.route, (client.ip, lasts(client)));
        let clients = batch(&mut self.due_clients, BATCH - flows.len(), client);
        let flows = flows.into_iter().map(|(route, it)| (route, Entries::Flows(it)));
        let clients = clients.into_iter().map(|(route, it)| (route, Entries::Clients(it)));
        flows.chain(clients).collect()
    }
}

/// Takes entries for at most so many datagrams, each about one route.
fn batch<T, E>(
    due: &mut VecDeque<T>,
    count: usize,
    entry: impl Fn(&T) -> (u32, E),
) -> Vec<(u32, Vec<E>)> {
    let mut batch: Vec<(u32, Vec<E>)> = Vec::new();
    while let Some(first) = due.front() {
        let (route, entry) = entry(first);
        let has_room = |it: &(u32, Vec<E>)| it.0 == route && it.1.len() < ENTRIES_MAX;
        match batch.iter().position(has_room) {
            Some(at) => batch[at].1.push(entry),
            None if batch.len() < count => batch.push((route, vec![entry])),
            None => break,
        }
        due.pop_front();
    }
    batch
}

impl ToldClient {
    fn is_outdated(&self, now: Duration, client: &Client) -> bool {
        self.route != client.route || now.saturating_sub(self.at) >= client.time / PART
    }
}

impl Told {
    fn is_outdated(&self, now: Duration, flow: &Flow) -> bool {
        let has_changed = (self.route, self.is_closing) != (flow.route, flow.is_closing);
        has_changed || (!flow.is_closing && now.saturating_sub(self.at) >= REPEAT)
    }
}

/// What goes to one target of a service, by the word of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) instance: u64,
    pub(super) number: u64,
    pub(super) service: ServiceKey,
    pub(super) target: IpAddr,
    pub(super) entries: Entries,
}

/// Of copies of flows, and of affinities.
const KIND_OF_FLOWS: u8 = 4;
const KIND_OF_CLIENTS: u8 = 5;
const PROTOCOL: usize = peers::KIND + 1;
const PORT: usize = PROTOCOL + 1;
const INSTANCE: usize = peers::ENDS + 32;
const SERVICE: usize = INSTANCE + 8;
const TARGET: usize = SERVICE + 16;
const ENTRIES: usize = TARGET + 16;
const ENTRY_LEN: usize = 20;
/// No link of IPv6 carries less in one packet.
pub(super) const LEN_MAX: usize = 1280 - 40 - 8;
/// Of one copy.
const ENTRIES_MAX: usize = (LEN_MAX - ENTRIES - peers::SEAL_LEN) / ENTRY_LEN;

impl Copy {
    /// The datagram that says this.
    pub(super) fn written(&self, ends: &Ends, secret: &Secret) -> Vec<u8> {
        let (service, protocol) = self.service;
        let kind = match &self.entries {
            Entries::Flows(_) => KIND_OF_FLOWS,
            Entries::Clients(_) => KIND_OF_CLIENTS,
        };
        let mut bytes = peers::begun(kind, self.number, ends);
        bytes[PROTOCOL] = protocol.number();
        bytes[PORT..peers::NUMBER].copy_from_slice(&service.port().to_be_bytes());
        bytes.extend(self.instance.to_be_bytes());
        bytes.extend(peers::octets(service.ip()));
        bytes.extend(peers::octets(self.target));
        match &self.entries {
            Entries::Flows(flows) => {
                for (client, is_closing) in flows {
                    bytes.extend(peers::octets(client.ip()));
                    bytes.extend(client.port().to_be_bytes());
                    bytes.extend([u8::from(*is_closing), 0]);
                }
            }
            Entries::Clients(clients) => {
                for (client, lasts) in clients {
                    bytes.extend(peers::octets(*client));
                    let lasts = u32::try_from(lasts.as_millis()).unwrap_or(u32::MAX);
                    bytes.extend(lasts.to_be_bytes());
                }
            }
        }
        peers::sealed(bytes, secret)
    }

    /// What a datagram says that another distributor has sent; `None`: it is not of one.
    pub(super) fn read(bytes: &[u8], ends: &Ends, secret: &Secret) -> Option<Self> {
        let told = peers::opened(bytes, ends, secret).filter(|told| told.len() >= ENTRIES)?;
        let port = |at: usize| u16::from_be_bytes([told[at], told[at + 1]]);
        let word = |at: usize| u64::from_be_bytes(told[at..at + 8].try_into().expect("eight"));
        let protocol = match told[PROTOCOL] {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            _ => return None,
        };
        let (entries, rest) = told[ENTRIES..].as_chunks::<ENTRY_LEN>();
        let flow = |flow: &[u8; ENTRY_LEN]| {
            let port = u16::from_be_bytes([flow[16], flow[17]]);
            (SocketAddr::new(address(flow), port), flow[18] != 0)
        };
        let client = |client: &[u8; ENTRY_LEN]| {
            let lasts = u32::from_be_bytes(client[16..].try_into().expect("four bytes"));
            (address(client), Duration::from_millis(lasts.into()))
        };
        let entries = match told[peers::KIND] {
            KIND_OF_FLOWS => Entries::Flows(entries.iter().map(flow).collect()),
            KIND_OF_CLIENTS => Entries::Clients(entries.iter().map(client).collect()),
            _ => return None,
        };
        rest.is_empty().then(|| Self {
            instance: word(INSTANCE),
            number: word(peers::NUMBER),
            service: (SocketAddr::new(address(&told[SERVICE..]), port(PORT)), protocol),
            target: address(&told[TARGET..]),
            entries,
        })
    }
}

fn address(bytes: &[u8]) -> IpAddr {
    let octets: [u8; 16] = bytes[..16].try_into().expect("an address");
    Ipv6Addr::from(octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKUP: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    fn flow(number: u16, route: u32) -> Flow {
        Flow {
            client: SocketAddr::new([10, 0, 0, 1].into(), number),
            service: ("10.0.0.100:80".parse().unwrap(), Protocol::Tcp),
            route,
            is_closing: false,
            seen: Duration::ZERO,
        }
    }

    /// Of flows, what is due: ends, routes, and whether they are closing.
    fn told(copies: &mut Copies) -> Vec<(SocketAddr, u32, bool)> {
        let of = |(route, entries): (u32, Entries)| match entries {
            Entries::Flows(flows) => flows.into_iter().map(|(end, is)| (end, route, is)).collect(),
            Entries::Clients(_) => Vec::new(),
        };
        copies.take(Duration::ZERO).into_iter().flat_map(of).collect()
    }

    fn shown(flow: Flow) -> (SocketAddr, u32, bool) {
        (flow.client, flow.route, flow.is_closing)
    }

    #[test]
    fn a_flow_is_copied_when_it_begins_and_ends_and_now_and_then() {
        let mut copies = Copies::default();
        let (one, closing) = (flow(1, 7), Flow { is_closing: true, ..flow(1, 7) });
        copies.follow(Duration::ZERO, &[one]);
        assert_eq!(told(&mut copies), [], "there is no backup");
        copies.follow_backups(&[BACKUP]);
        let mut due = |second: u64, flows: &[Flow]| {
            copies.follow(Duration::from_secs(second), flows);
            told(&mut copies)
        };
        assert_eq!(due(0, &[one]), [shown(one)]);
        assert_eq!(due(29, &[one, flow(2, 7)]), [shown(flow(2, 7))]);
        assert_eq!(due(30, &[one, flow(2, 7)]), [shown(one)]);
        assert_eq!(due(31, &[flow(1, 8), flow(2, 7)]), [shown(flow(1, 8))], "it has begun anew");
        let ended = Flow { is_closing: true, ..flow(1, 8) };
        assert_eq!(due(32, &[ended, flow(2, 7)]), [shown(ended)]);
        assert_eq!(due(99, &[ended]), [], "it is told once");
        assert_eq!(due(99, &[]), []);
        assert_eq!(due(99, &[closing]), [], "it was never told");
    }

    #[test]
    fn a_new_backup_is_told_of_all_flows_and_an_old_one_of_none() {
        let mut copies = Copies::default();
        let other = IpAddr::V4([10, 0, 0, 3].into());
        let flows = [flow(1, 7), flow(2, 8)];
        for (backups, due) in [
            (&[BACKUP][..], 2),
            (&[BACKUP], 0),
            (&[other, BACKUP], 2),
            (&[BACKUP], 0),
            (&[other], 2),
        ] {
            copies.follow_backups(backups);
            assert_eq!(copies.are_complete(), due == 0, "{backups:?}");
            copies.follow(Duration::ZERO, &flows);
            assert_eq!(told(&mut copies).len(), due, "{backups:?}");
            assert!(copies.are_complete());
        }
    }

    #[test]
    fn a_turn_has_a_bounded_number_of_datagrams() {
        let mut copies = Copies::default();
        copies.follow_backups(&[BACKUP]);
        let flows: Vec<Flow> = (0..10_000).map(|at| flow(at, u32::from(at) % 3)).collect();
        copies.follow(Duration::ZERO, &flows);
        let (mut all, mut turns) = (0, 0);
        loop {
            let batch = copies.take(Duration::ZERO);
            if batch.is_empty() {
                break;
            }
            assert!(batch.len() <= BATCH);
            for (route, entries) in batch {
                let Entries::Flows(flows) = entries else { panic!("{entries:?}") };
                assert!(flows.len() <= ENTRIES_MAX);
                assert!(flows.iter().all(|(client, _)| u32::from(client.port()) % 3 == route));
                all += flows.len();
            }
            turns += 1;
        }
        assert_eq!((all, turns), (10_000, 10_000_usize.div_ceil(BATCH * ENTRIES_MAX)));
    }

    #[test]
    fn an_affinity_is_copied_when_it_begins_or_changes_and_now_and_then() {
        let mut copies = Copies::default();
        let client = |route: u32, until: u64| Client {
            ip: [10, 0, 0, 1].into(),
            service: flow(0, 0).service,
            route,
            until: Duration::from_secs(until),
            time: Duration::from_secs(40),
        };
        copies.follow_clients(Duration::ZERO, &[client(7, 100)]);
        assert_eq!(copies.take(Duration::ZERO), [], "there is no backup");
        copies.follow_backups(&[BACKUP]);
        let mut due = |now: u64, all: &[Client]| {
            let now = Duration::from_secs(now);
            copies.follow_clients(now, all);
            copies.take(now)
        };
        let told = |route: u32, lasts: u64| {
            let lasts = Duration::from_secs(lasts);
            [(route, Entries::Clients(vec![([10, 0, 0, 1].into(), lasts)]))]
        };
        assert_eq!(due(60, &[client(7, 100)]), told(7, 40));
        assert_eq!(due(69, &[client(7, 109)]), [], "less than a quarter of its time");
        assert_eq!(due(70, &[client(7, 100)]), told(7, 30), "the first copy may be lost");
        assert_eq!(due(72, &[client(8, 111)]), told(8, 39), "another target");
        assert_eq!(due(73, &[]), []);
        assert_eq!(due(74, &[client(8, 111)]), told(8, 37), "it was gone");
    }

    #[test]
    fn only_what_the_sender_has_written_for_us_is_read() {
        let [one, two]: [IpAddr; 2] = ["10.0.0.1", "fd00::2"].map(|ip| ip.parse().unwrap());
        let (ends, secret) = (Ends { from: one, to: two }, [7; 16]);
        let number = 0..ENTRIES_MAX as u16;
        let flows = number.clone().map(|at| (flow(at, 0).client, at % 2 == 0)).collect();
        let lasts =
            |at: u16| (IpAddr::from([10, 0, 1, at as u8]), Duration::from_millis(at.into()));
        let clients = Entries::Clients(number.map(lasts).collect());
        let copy = Copy {
            instance: u64::MAX,
            number: 5,
            service: ("[fd00::100]:80".parse().unwrap(), Protocol::Udp),
            target: one,
            entries: Entries::Flows(flows),
        };
        let other = Copy { entries: clients, ..copy.clone() };
        let bytes = other.written(&ends, &secret);
        assert_eq!(Copy::read(&bytes, &ends, &secret), Some(other));
        let bytes = copy.written(&ends, &secret);
        assert!(bytes.len() <= LEN_MAX);
        assert_eq!(Copy::read(&bytes, &ends, &secret), Some(copy));
        assert_eq!(Copy::read(&bytes, &Ends { from: two, to: one }, &secret), None);
        assert_eq!(Copy::read(&bytes, &ends, &[8; 16]), None);
        for len in 0..bytes.len() {
            assert_eq!(Copy::read(&bytes[..len], &ends, &secret), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Copy::read(&changed, &ends, &secret), None, "byte {at}");
        }
    }
}
