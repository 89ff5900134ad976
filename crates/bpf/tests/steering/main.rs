//! Connections that are given to listeners, on addresses of loopback that no other test uses.
//!
//! The tests need privilege and say what they lacked when they skip.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use sidestep_bpf::{BpfError, Steering};
use sidestep_distributor::maglev::{self, PLACES, Taker};
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{Choice, Plan, hash};

/// The steering of one test, at a VIP of its own, with listeners elsewhere.
struct Place {
    steering: Steering,
    vip: SocketAddr,
    targets: Vec<TcpListener>,
}

impl Place {
    /// `None`, with a printed line, if this machine does not let us.
    fn new(vip: &str, targets: &[&str]) -> Option<Self> {
        let steering = Steering::load().and_then(|mut steering| {
            steering.attach()?;
            Ok(steering)
        });
        let steering = match steering {
            Ok(steering) => steering,
            Err(lacking @ BpfError::Privilege { .. }) => {
                println!("skipped: {lacking}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let targets = targets.iter().map(|address| TcpListener::bind(address).unwrap()).collect();
        let mut place = Self { steering, vip: vip.parse().unwrap(), targets };
        place.steering.clear(0, &[0; TARGETS_MAX]).unwrap();
        for (target, listener) in place.targets.iter().enumerate() {
            place.steering.number(listener, 1 + target as u64).unwrap();
            let (table, slot) = place.steering.place(0, target);
            sidestep_bpf::give_listener(table, slot, listener.as_fd()).unwrap();
        }
        Some(place)
    }

    fn put(&mut self, plan: &Plan, affinity: Duration) {
        self.steering.prepare(0, plan).unwrap();
        self.steering.commit(0, self.vip, plan, affinity).unwrap();
    }

    /// Connects so often, one after the other, and says how many each target was given.
    fn spread(&self, connections: usize) -> Vec<usize> {
        let mut counts = vec![0; self.targets.len()];
        for _ in 0..connections {
            let client = TcpStream::connect(self.vip).unwrap();
            // A reset leaves no port behind that is waited for.
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            let (target, _server) = self.accepted(&client);
            counts[target] += 1;
            drop(client);
        }
        counts
    }

    /// The target that has a client's connection, which it drops.
    fn meet(&self, client: &TcpStream) -> usize {
        self.accepted(client).0
    }

    fn accepted(&self, client: &TcpStream) -> (usize, TcpStream) {
        let local = client.local_addr().unwrap();
        for _ in 0..1000 {
            for (target, listener) in self.targets.iter().enumerate() {
                listener.set_nonblocking(true).unwrap();
                if let Ok((stream, peer)) = listener.accept() {
                    assert_eq!((peer.ip().to_canonical(), peer.port()), (local.ip(), local.port()));
                    stream.set_nonblocking(false).unwrap();
                    return (target, stream);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no target has the connection")
    }
}

fn plan(choice: Choice, weights: &[u16]) -> Plan {
    let taker = |(target, &weight): (usize, &u16)| Taker {
        target: target as u8,
        identity: maglev::identity(&format!("t{target}")),
        weight,
    };
    let takers: Vec<Taker> = weights.iter().enumerate().map(taker).collect();
    let places = match choice {
        Choice::Hash => maglev::table(&takers),
        _ => (0..weights.len() as u8).collect(),
    };
    Plan { choice, places, weights: weights.to_vec() }
}

const NEVER: Duration = Duration::ZERO;

#[test]
fn both_ends_see_the_vip() {
    for (vip, target) in
        [("127.9.1.1:80", "127.0.0.1:0"), ("[::1]:17980", "[::1]:0"), ("127.9.1.2:80", "[::]:0")]
    {
        let Some(mut place) = Place::new(vip, &[target]) else { return };
        place.put(&plan(Choice::Turn, &[1]), NEVER);
        let mut client = TcpStream::connect(place.vip).unwrap();
        let (_, mut server) = place.accepted(&client);
        assert_eq!(client.peer_addr().unwrap(), place.vip);
        let local = server.local_addr().unwrap();
        assert_eq!(SocketAddr::new(local.ip().to_canonical(), local.port()), place.vip);
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn shares_follow_weights_and_the_hash_is_that_of_the_crate() {
    let Some(mut place) = Place::new("127.9.2.1:80", &["127.0.0.1:0"; 3]) else { return };
    let plan = plan(Choice::Hash, &[4, 2, 1]);
    place.put(&plan, NEVER);
    for _ in 0..200 {
        let client = TcpStream::connect(place.vip).unwrap();
        let local = client.local_addr().unwrap();
        let place_of = hash::of_client(local.ip(), local.port()) as usize % PLACES;
        assert_eq!(place.meet(&client), usize::from(plan.places[place_of]), "{local}");
    }
    let counts = place.spread(10_000);
    for (count, due) in counts.iter().zip([4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0]) {
        assert!((*count as f64 / 10_000.0 - due).abs() < 0.02, "{counts:?}");
    }
    let given = place.steering.steered(0).unwrap();
    assert_eq!(given[..3].iter().sum::<u64>(), 10_200);
}

#[test]
fn one_after_the_other() {
    let Some(mut place) = Place::new("127.9.3.1:80", &["127.0.0.1:0"; 3]) else { return };
    place.put(&plan(Choice::Turn, &[9, 1, 1]), NEVER);
    assert_eq!(place.spread(30), [10, 10, 10]);
}

#[test]
fn the_least_busy_for_its_weight() {
    let Some(mut place) = Place::new("127.9.4.1:80", &["127.0.0.1:0"; 3]) else { return };
    place.put(&plan(Choice::Least, &[4, 2, 2]), NEVER);
    assert_eq!(place.spread(80), [40, 20, 20], "as if all of them lived");
    let mut ended = [0; TARGETS_MAX];
    ended[1] = 20;
    place.steering.note_ended(0, &ended).unwrap();
    assert_eq!(place.spread(20), [0, 20, 0], "the idle one catches up");
}

#[test]
fn a_target_that_is_gone_is_passed_over_at_once() {
    for choice in [Choice::Hash, Choice::Turn, Choice::First, Choice::Least] {
        let Some(mut place) = Place::new("127.9.5.1:80", &["127.0.0.1:0"; 2]) else { return };
        place.put(&plan(choice, &[5, 1]), NEVER);
        let client = TcpStream::connect(place.vip).unwrap();
        let (_, server) = place.accepted(&client);
        place.targets[0] = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(place.spread(20), [0, 20], "{choice:?}");
        place.targets.clear();
        let refused = TcpStream::connect(place.vip).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{choice:?}");
        drop((client, server));
    }
}

#[test]
fn a_change_breaks_no_connection() {
    let Some(mut place) = Place::new("127.9.6.1:80", &["127.0.0.1:0"; 2]) else { return };
    place.put(&plan(Choice::Turn, &[1, 1]), NEVER);
    let connection = |_| {
        let client = TcpStream::connect(place.vip).unwrap();
        let server = place.accepted(&client).1;
        (client, server)
    };
    let mut connections: Vec<(TcpStream, TcpStream)> = (0..20).map(connection).collect();
    let drained = Plan { places: vec![1], ..plan(Choice::Turn, &[1, 1]) };
    place.put(&drained, NEVER);
    assert_eq!(place.spread(20), [0, 20]);
    place.put(&Plan { places: vec![], ..drained }, NEVER);
    assert!(TcpStream::connect(place.vip).is_err());
    place.steering.forget(place.vip).unwrap();
    for (client, server) in &mut connections {
        client.write_all(b"still here").unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
    }
}

#[test]
fn a_client_meets_the_same_target_for_a_while() {
    let Some(mut place) = Place::new("127.9.7.1:80", &["127.0.0.1:0"; 4]) else { return };
    place.put(&plan(Choice::Turn, &[1; 4]), Duration::from_secs(60));
    let counts = place.spread(20);
    let met = counts.iter().position(|count| *count == 20).unwrap_or_else(|| panic!("{counts:?}"));
    let others = (0..4).filter(|target| *target != met as u8).collect();
    place.put(&Plan { places: others, ..plan(Choice::Turn, &[1; 4]) }, Duration::from_millis(200));
    assert_eq!(place.spread(5)[met], 0, "one that takes no connections keeps no clients");
    std::thread::sleep(Duration::from_millis(400));
    let spread = (0..6).map(|_| {
        std::thread::sleep(Duration::from_millis(250));
        place.spread(1)
    });
    let met: Vec<usize> =
        spread.filter_map(|counts| counts.iter().position(|it| *it == 1)).collect();
    assert!(met.iter().any(|target| *target != met[0]), "{met:?}");
}

#[test]
fn other_addresses_are_the_kernels() {
    let Some(mut place) = Place::new("127.9.8.1:80", &["127.0.0.1:0"]) else { return };
    place.put(&plan(Choice::Turn, &[1]), NEVER);
    let plain = TcpListener::bind("127.9.8.2:0").unwrap();
    let client = TcpStream::connect(plain.local_addr().unwrap()).unwrap();
    assert_eq!(plain.accept().unwrap().1, client.local_addr().unwrap());
    let port = SocketAddr::new(place.vip.ip(), 81);
    assert_eq!(TcpStream::connect(port).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let address = SocketAddr::new(IpAddr::from([127, 9, 8, 3]), 80);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
