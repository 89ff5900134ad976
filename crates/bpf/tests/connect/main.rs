//! Connections of the distributor's own host, on addresses of loopback that no other test uses: by the tables of this host a
//! socket is connected to a target's own address, and has the VIP as its peer.
//!
//! The tests need privilege and say what they lacked when they skip.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use sidestep_bpf::{BpfError, Cgroup, Forwarding, Hop, Whose};
use sidestep_distributor::maglev::{self, Taker};
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{Choice, Plan, Protocol};
use socket2::{Domain, SockAddr, Socket, Type};

/// A VIP, with this host and two others as targets: those are other addresses of loopback.
struct Place {
    forwarding: Forwarding,
    vip: SocketAddr,
    ends: [IpAddr; 3],
    /// What comes to a target, by its number.
    accepted: Receiver<(usize, TcpStream)>,
}

/// Nothing here takes this long.
const HANG: Duration = Duration::from_secs(60);
/// The first target.
const OWN: usize = 0;
const ELSEWHERE: Hop = Hop::Link { to: [2; 6], from: [4; 6] };

impl Place {
    /// `None`, with a printed line, if this machine does not let us. At the VIP listens what is this host's own server.
    fn new(vip: &str, ends: [&str; 3]) -> Option<Self> {
        let loaded = Cgroup::root().and_then(|root| {
            let (mut forwarding, _) = Forwarding::load()?;
            forwarding.attach_to_connects(&root)?;
            Ok(forwarding)
        });
        let mut forwarding = match loaded {
            Ok(forwarding) => forwarding,
            Err(lacking @ (BpfError::Privilege { .. } | BpfError::NoCgroup2)) => {
                println!("skipped: {lacking}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let ends: [IpAddr; 3] = ends.map(|end| end.parse().unwrap());
        let own = TcpListener::bind((vip.parse::<IpAddr>().unwrap(), 0)).unwrap();
        let vip = own.local_addr().unwrap();
        let others = ends[1..].iter().map(|end| TcpListener::bind((*end, vip.port())).unwrap());
        let (sender, accepted) = mpsc::channel();
        for (target, listener) in [own].into_iter().chain(others).enumerate() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut incoming = listener.incoming().map(Result::unwrap);
                incoming.try_for_each(|server| sender.send((target, server)))
            });
        }
        forwarding.begin(0, &[1, 2, 3], &[0; TARGETS_MAX]).unwrap();
        forwarding.set_ends(0, &ends, Some(ends[OWN])).unwrap();
        for (route, hop) in (1..).zip([Hop::Here, ELSEWHERE, ELSEWHERE]) {
            forwarding.set_route(route, hop, true).unwrap();
        }
        Some(Self { forwarding, vip, ends, accepted })
    }

    fn put(&mut self, plan: &Plan, affinity: Duration) {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            self.forwarding.prepare(0, Whose::OwnHost, plan).unwrap();
            let service = (self.vip, protocol);
            self.forwarding.commit(0, Whose::OwnHost, service, plan, affinity).unwrap();
        }
    }

    /// By which target a client is served. Bytes go there and back, and the client has the VIP as its peer.
    fn meet(&self, client: &TcpStream) -> usize {
        assert_eq!(canonical(client.peer_addr().unwrap()), self.vip);
        let (target, mut server) = self.accepted.recv_timeout(HANG).expect("a target has it");
        assert_eq!(canonical(server.peer_addr().unwrap()), canonical(client.local_addr().unwrap()));
        let mut client = client;
        client.write_all(b"there").unwrap();
        let mut got = [0; 5];
        server.read_exact(&mut got).unwrap();
        server.write_all(&got).unwrap();
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"there");
        target
    }

    fn spread(&self, connections: usize) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for _ in 0..connections {
            let client = TcpStream::connect(self.vip).unwrap();
            *counts.entry(self.meet(&client)).or_default() += 1;
        }
        counts
    }

    fn given(&self) -> Vec<u64> {
        self.forwarding.given(0).unwrap()[..3].to_vec()
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn plan(choice: Choice, places: Vec<u8>, weights: [u16; 3]) -> Plan {
    Plan { choice, places, weights: weights.to_vec() }
}

fn first(places: Vec<u8>) -> Plan {
    plan(Choice::First, places, [1; 3])
}

macro_rules! place {
    ($vip:expr, $ends:expr) => {
        match Place::new($vip, $ends) {
            Some(place) => place,
            None => return,
        }
    };
}

#[test]
fn the_own_server_is_met_at_the_vip_and_another_one_at_its_own_address() {
    let mut place = place!("127.0.9.1", ["127.0.9.2", "127.0.9.3", "127.0.9.4"]);
    let at_vip = |place: &Place| place.meet(&TcpStream::connect(place.vip).unwrap());
    assert_eq!(at_vip(&place), OWN, "no table is there for it");
    assert_eq!(place.given(), [0; 3]);
    for target in [OWN, 1, 2] {
        place.put(&first(vec![target as u8]), Duration::ZERO);
        assert_eq!(at_vip(&place), target);
    }
    assert_eq!(place.given(), [1; 3]);
    // What cannot be reached is passed over.
    place.put(&first(vec![1, 2, 0]), Duration::ZERO);
    place.forwarding.set_route(2, Hop::Nowhere, false).unwrap();
    assert_eq!(at_vip(&place), 2);
    place.put(&first(Vec::new()), Duration::ZERO);
    assert_eq!(at_vip(&place), OWN, "without targets it is the kernel's");
    place.forwarding.forget(Whose::OwnHost, (place.vip, Protocol::Tcp)).unwrap();
    place.forwarding.forget(Whose::OwnHost, (place.vip, Protocol::Tcp)).unwrap();
    assert_eq!(at_vip(&place), OWN);
}

#[test]
fn sockets_of_ipv6_go_by_the_same_tables() {
    let mut place = place!("127.0.9.11", ["127.0.9.12", "127.0.9.13", "127.0.9.14"]);
    place.put(&first(vec![2]), Duration::ZERO);
    let mapped = Ipv4Addr::new(127, 0, 9, 11).to_ipv6_mapped();
    let client = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    client.connect(&SocketAddr::from((mapped, place.vip.port())).into()).unwrap();
    assert_eq!(place.meet(&client.into()), 2);

    // One address of loopback is there: whose port is another one's is another server.
    let own = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let vip = own.local_addr().unwrap();
    let end: IpAddr = "ff02::1".parse().unwrap();
    place.forwarding.set_ends(0, &[end; 3], None).unwrap();
    let plan = first(vec![2]);
    place.forwarding.prepare(0, Whose::OwnHost, &plan).unwrap();
    let service = (vip, Protocol::Tcp);
    place.forwarding.commit(0, Whose::OwnHost, service, &plan, Duration::ZERO).unwrap();
    assert!(TcpStream::connect(vip).is_err(), "it goes to a group, to which no connection leads");
    place.forwarding.set_ends(0, &[vip.ip(); 3], None).unwrap();
    assert_eq!(TcpStream::connect(vip).unwrap().peer_addr().unwrap(), vip);
}

#[test]
fn by_weight_the_shares_are_those_of_all_clients() {
    let mut place = place!("127.0.9.21", ["127.0.9.22", "127.0.9.23", "127.0.9.24"]);
    let taker = |(target, weight): (u8, u16)| Taker {
        target,
        identity: maglev::identity(&format!("t{target}")),
        weight,
    };
    let table = maglev::table(&(0..).zip([4, 2, 1]).map(taker).collect::<Vec<_>>());
    place.put(&plan(Choice::Hash, table, [4, 2, 1]), Duration::ZERO);
    let counts = place.spread(700);
    for (target, due) in [400.0, 200.0, 100.0_f64].into_iter().enumerate() {
        // Five deviations, at most.
        assert!((counts[&target] as f64 - due).abs() < 66.0, "{counts:?}");
    }
    place.put(&plan(Choice::Turn, vec![0, 1, 2], [1; 3]), Duration::ZERO);
    assert_eq!(place.spread(6), BTreeMap::from([(0, 2), (1, 2), (2, 2)]));
}

/// Live ones are those that were given and have not ended; with eight times its weight it has eight before another has one.
#[test]
fn the_least_busy_for_its_weight_is_met_and_among_equals_the_first() {
    let mut place = place!("127.0.9.31", ["127.0.9.32", "127.0.9.33", "127.0.9.34"]);
    place.put(&plan(Choice::LeastInOrder, vec![1, 0, 2], [1, 8, 1]), Duration::ZERO);
    let met: Vec<usize> =
        (0..11).map(|_| place.meet(&TcpStream::connect(place.vip).unwrap())).collect();
    // Empty they are equal, and so are they at 8 : 1 and 1 : 1.
    assert_eq!(met, [1, 0, 2, 1, 1, 1, 1, 1, 1, 1, 1], "given {:?}", place.given());
    let mut ended = [0; TARGETS_MAX];
    ended[..3].copy_from_slice(&place.given());
    place.forwarding.note_ended(0, &ended).unwrap();
    assert_eq!(place.meet(&TcpStream::connect(place.vip).unwrap()), 1, "all have ended");
}

#[test]
fn this_host_is_one_client_that_meets_the_same_target_again() {
    let mut place = place!("127.0.9.41", ["127.0.9.42", "127.0.9.43", "127.0.9.44"]);
    place.put(&plan(Choice::Turn, vec![0, 1, 2], [1; 3]), Duration::from_secs(60));
    let counts = place.spread(5);
    assert_eq!(counts.values().copied().collect::<Vec<_>>(), [5], "{counts:?}");
    let affinities = place.forwarding.affinities().unwrap();
    assert_eq!(affinities.len(), 1);
    assert_eq!(affinities[0].client, place.ends[OWN]);
    // Where the own server comes first, it comes before that as well.
    place.put(&first(vec![2, 1, 0]), Duration::from_secs(60));
    assert_eq!(place.spread(2), BTreeMap::from([(2, 2)]));
}

#[test]
fn a_socket_that_is_bound_to_an_address_stays_and_one_that_is_connected_again_is_forgotten() {
    let mut place = place!("127.0.9.51", ["127.0.9.52", "127.0.9.53", "127.0.9.54"]);
    place.put(&first(vec![1]), Duration::ZERO);
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    bound.bind(&SockAddr::from(SocketAddr::from(([127, 0, 9, 50], 0)))).unwrap();
    bound.connect(&place.vip.into()).unwrap();
    assert_eq!(place.meet(&bound.into()), OWN);

    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(place.vip).unwrap();
    assert_eq!(socket.peer_addr().unwrap(), place.vip);
    let server = UdpSocket::bind((place.ends[1], place.vip.port())).unwrap();
    socket.send(b"there").unwrap();
    let mut got = [0; 9];
    server.set_read_timeout(Some(HANG)).unwrap();
    assert_eq!(server.recv(&mut got).unwrap(), 5);
    // To the host itself: then that is the peer.
    let end = SocketAddr::new(place.ends[1], place.vip.port());
    socket.connect(end).unwrap();
    assert_eq!(socket.peer_addr().unwrap(), end);
}
