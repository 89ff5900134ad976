//! Flows that the owner of the VIPs copies to its backups, so that a takeover breaks none.
//!
//! A table of places tells where a connection went as long as nothing has changed since it began: not once a target is
//! drained, or has risen, and never under a method that does not go by the hash. So each flow is copied when it
//! begins, when its client ends it, and every [`REPEAT`] beside, because a datagram may be lost, and a backup may be new. A
//! backup forgets a flow of which it was told nothing for [`FORGET`].
//!
//! ```text
//!     4 "SDV1"   1 kind   1 protocol   2 port of the service   8 number   16 from   16 to   8 instance of the owner
//!    16 address of the service   16 the target's   20 for each flow (16 address of the client   2 port   1 is closing   1 zero)
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
/// Datagrams of one turn: as many as a socket has room for, whatever is in them.
pub(super) const BATCH: usize = 48;

pub(super) type ServiceKey = (SocketAddr, Protocol);

/// What the backups were told, and what they are to be told.
#[derive(Default)]
pub(super) struct Copies {
    backups: Vec<IpAddr>,
    told: HashMap<(SocketAddr, ServiceKey), Told>,
    due: VecDeque<Flow>,
    /// Flows were looked at since a backup has come.
    has_followed: bool,
}

struct Told {
    at: Duration,
    route: u32,
    is_closing: bool,
}

impl Copies {
    /// These are the backups. A new one is told of all flows.
    pub(super) fn follow_backups(&mut self, backups: &[IpAddr]) {
        let is_known = |host: &IpAddr| self.backups.contains(host);
        if backups.is_empty() || !backups.iter().all(is_known) {
            self.told.clear();
            self.due.clear();
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

    /// Whether each backup was told of all flows.
    pub(super) fn are_complete(&self) -> bool {
        self.has_followed && self.due.is_empty()
    }

    /// What is to be told now: flows by their route, for at most [`BATCH`] datagrams.
    pub(super) fn take(&mut self) -> Vec<(u32, Vec<Flow>)> {
        let mut batch: Vec<(u32, Vec<Flow>)> = Vec::new();
        while let Some(flow) = self.due.front() {
            let has_room = |it: &(u32, Vec<Flow>)| it.0 == flow.route && it.1.len() < FLOWS_MAX;
            match batch.iter().position(has_room) {
                Some(at) => batch[at].1.push(*flow),
                None if batch.len() < BATCH => batch.push((flow.route, vec![*flow])),
                None => break,
            }
            self.due.pop_front();
        }
        batch
    }
}

impl Told {
    fn is_outdated(&self, now: Duration, flow: &Flow) -> bool {
        let has_changed = (self.route, self.is_closing) != (flow.route, flow.is_closing);
        has_changed || (!flow.is_closing && now.saturating_sub(self.at) >= REPEAT)
    }
}

/// Flows of a service that go to one target, by the word of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) instance: u64,
    pub(super) number: u64,
    pub(super) service: ServiceKey,
    pub(super) target: IpAddr,
    /// The client's ends, and whether each has ended it.
    pub(super) flows: Vec<(SocketAddr, bool)>,
}

/// Of a copy.
pub(super) const KIND: u8 = 4;
const PROTOCOL: usize = peers::KIND + 1;
const PORT: usize = PROTOCOL + 1;
const INSTANCE: usize = peers::ENDS + 32;
const SERVICE: usize = INSTANCE + 8;
const TARGET: usize = SERVICE + 16;
const FLOWS: usize = TARGET + 16;
const FLOW_LEN: usize = 20;
/// No link of IPv6 carries less in one packet.
pub(super) const LEN_MAX: usize = 1280 - 40 - 8;
/// Of one copy.
const FLOWS_MAX: usize = (LEN_MAX - FLOWS - peers::SEAL_LEN) / FLOW_LEN;

impl Copy {
    /// The datagram that says this.
    pub(super) fn written(&self, ends: &Ends, secret: &Secret) -> Vec<u8> {
        let (service, protocol) = self.service;
        let mut bytes = peers::begun(KIND, self.number, ends);
        bytes[PROTOCOL] = protocol.number();
        bytes[PORT..peers::NUMBER].copy_from_slice(&service.port().to_be_bytes());
        bytes.extend(self.instance.to_be_bytes());
        bytes.extend(peers::octets(service.ip()));
        bytes.extend(peers::octets(self.target));
        for (client, is_closing) in &self.flows {
            bytes.extend(peers::octets(client.ip()));
            bytes.extend(client.port().to_be_bytes());
            bytes.extend([u8::from(*is_closing), 0]);
        }
        peers::sealed(bytes, secret)
    }

    /// What a datagram says that another distributor has sent; `None`: it is not of one.
    pub(super) fn read(bytes: &[u8], ends: &Ends, secret: &Secret) -> Option<Self> {
        let told = peers::opened(bytes, ends, secret).filter(|told| told.len() >= FLOWS)?;
        let port = |at: usize| u16::from_be_bytes([told[at], told[at + 1]]);
        let word = |at: usize| u64::from_be_bytes(told[at..at + 8].try_into().expect("eight"));
        let protocol = match told[PROTOCOL] {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            _ => return None,
        };
        let flow = |flow: &[u8; FLOW_LEN]| {
            let port = u16::from_be_bytes([flow[16], flow[17]]);
            (SocketAddr::new(address(flow), port), flow[18] != 0)
        };
        let (flows, rest) = told[FLOWS..].as_chunks();
        (told[peers::KIND] == KIND && rest.is_empty()).then(|| Self {
            instance: word(INSTANCE),
            number: word(peers::NUMBER),
            service: (SocketAddr::new(address(&told[SERVICE..]), port(PORT)), protocol),
            target: address(&told[TARGET..]),
            flows: flows.iter().map(flow).collect(),
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

    fn told(copies: &mut Copies) -> Vec<Flow> {
        copies.take().into_iter().flat_map(|(_, flows)| flows).collect()
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
        assert_eq!(due(0, &[one]), [one]);
        assert_eq!(due(29, &[one, flow(2, 7)]), [flow(2, 7)]);
        assert_eq!(due(30, &[one, flow(2, 7)]), [one]);
        assert_eq!(due(31, &[flow(1, 8), flow(2, 7)]), [flow(1, 8)], "it has begun anew");
        let ended = Flow { is_closing: true, ..flow(1, 8) };
        assert_eq!(due(32, &[ended, flow(2, 7)]), [ended]);
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
            let batch = copies.take();
            if batch.is_empty() {
                break;
            }
            assert!(batch.len() <= BATCH && batch.iter().all(|(_, it)| it.len() <= FLOWS_MAX));
            assert!(batch.iter().all(|(route, it)| it.iter().all(|it| it.route == *route)));
            all += batch.iter().map(|(_, flows)| flows.len()).sum::<usize>();
            turns += 1;
        }
        assert_eq!((all, turns), (10_000, 10_000_usize.div_ceil(BATCH * FLOWS_MAX)));
    }

    #[test]
    fn only_what_the_sender_has_written_for_us_is_read() {
        let [one, two]: [IpAddr; 2] = ["10.0.0.1", "fd00::2"].map(|ip| ip.parse().unwrap());
        let (ends, secret) = (Ends { from: one, to: two }, [7; 16]);
        let flows = (0..FLOWS_MAX as u16).map(|at| (flow(at, 0).client, at % 2 == 0)).collect();
        let copy = Copy {
            instance: u64::MAX,
            number: 5,
            service: ("[fd00::100]:80".parse().unwrap(), Protocol::Udp),
            target: one,
            flows,
        };
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
