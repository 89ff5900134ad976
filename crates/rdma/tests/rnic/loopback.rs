//! Both ends on the loopback interface. Each test has addresses of its own: they run at once.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sidestep_rdma::faults::Plan;
use sidestep_rdma::soft::Rnic;
use sidestep_rdma::soft::adapter::LANES;
use sidestep_rdma::soft::port::{OpenError, Settings};
use sidestep_wire::roce::PORT;

use crate::pair::{Pair, pattern};

fn open(addresses: [&str; 2], settings: &Settings) -> [Rnic; 2] {
    addresses.map(|address| Rnic::open(address.parse().unwrap(), settings).unwrap())
}

#[test]
fn everything_arrives_by_ipv4_in_runs() {
    let rnics = open(["127.0.1.1", "127.0.1.2"], &Settings::default());
    let mut pair = Pair::new(rnics, 1024);
    pair.exchange(40);
    let counters = pair.ends.each_ref().map(|end| end.rnic.port().counters());
    assert!(counters.iter().all(|it| (it.stopped, it.too_long, it.passed) == (0, 0, 0)));
    assert!(pair.ends.iter_mut().all(|end| end.rnic.adapter().drops() == Default::default()));
}

#[test]
fn everything_arrives_by_ipv4_one_by_one() {
    let settings = Settings { runs: false, ..Settings::default() };
    Pair::new(open(["127.0.2.1", "127.0.2.2"], &settings), 1024).exchange(40);
}

#[test]
fn messages_of_every_mtu_arrive() {
    for (third, mtu) in [(1, 256), (2, 512), (3, 2048), (4, 4096)] {
        let addresses = [1, 2].map(|last| format!("127.0.{}.{last}", 30 + third));
        let rnics = open(addresses.each_ref().map(String::as_str), &Settings::default());
        Pair::new(rnics, mtu).exchange(10);
    }
}

#[test]
fn a_bad_network_changes_nothing_but_the_time() {
    let jitter = Duration::from_micros(300);
    let plans = [
        Plan { seed: 1, loss: 0.01, ..Plan::PERFECT },
        Plan { seed: 2, loss: 0.05, ..Plan::PERFECT },
        Plan { seed: 3, duplication: 0.2, jitter, ..Plan::PERFECT },
        Plan { seed: 4, loss: 0.02, duplication: 0.02, jitter, ..Plan::PERFECT },
    ];
    for (third, plan) in plans.into_iter().enumerate() {
        let addresses = [1, 2].map(|last| format!("127.0.{}.{last}", 40 + third));
        let mut rnics = open(addresses.each_ref().map(String::as_str), &Settings::default());
        rnics.iter_mut().for_each(|rnic| rnic.spoil(plan));
        Pair::new(rnics, 1024).exchange(25);
    }
}

#[test]
fn hostile_datagrams_change_nothing() {
    let mut pair = Pair::new(open(["127.0.5.1", "127.0.5.2"], &Settings::default()), 1024);
    let target = (pair.ends[1].address, PORT);
    let qp = pair.ends[1].qp.0;
    // One is the peer's own address: only the check and the numbers are left to stop it.
    for from in ["127.0.5.1", "127.0.5.3"] {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        for round in 0..400usize {
            let mut bytes = pattern(round * 7 % 1500, round);
            if round % 2 == 0 && bytes.len() >= 12 {
                bytes[..8].copy_from_slice(&[
                    round as u8 % 32,
                    0,
                    0xFF,
                    0xFF,
                    0,
                    qp[0],
                    qp[1],
                    qp[2],
                ]);
            }
            let _ = socket.send_to(&bytes, target);
            if round % 50 == 0 {
                pair.turn();
            }
        }
    }
    pair.exchange(5);
    let drops = pair.ends[1].rnic.adapter().drops();
    let all = drops.malformed + drops.unknown_qp + drops.stranger + drops.damaged;
    assert!(drops.damaged > 0 && drops.stranger > 0 && all >= 600, "{drops:?}");
}

#[test]
fn a_replaced_adapter_goes_on_behind_its_successor_and_after_it() {
    let settings = Settings::default();
    let mut pair = Pair::new(open(["127.0.9.1", "127.0.9.2"], &settings), 1024);
    pair.exchange(5);
    let address = pair.ends[1].address;
    let first = take_over(&mut pair.ends[1].rnic, address);
    pair.exchange(40);
    // It receives by itself, until another one takes its place.
    drop(first.end());
    pair.exchange(5);
    assert!(!pair.ends[1].rnic.has_successor());
    let mut second = take_over(&mut pair.ends[1].rnic, address).end();
    let third = take_over(&mut second, address);
    let [first, second_] = [pair.ends[1].qp, second.adapter().create().0];
    // One that ends is missed by no other.
    drop(second);
    pair.exchange(40);
    assert!(pair.ends[1].rnic.has_successor());
    let third = third.end().adapter().create().0;
    let lanes = [first, second_, third].map(|qp| qp.0[2] % LANES);
    assert_eq!(lanes, [0, 1, 2], "numbers are apart");
}

/// An adapter that takes the place of another one, and works.
fn take_over(from: &mut Rnic, address: IpAddr) -> Turning {
    let succession = from.give_way().unwrap();
    Turning::begin(Rnic::take_over(address, &Settings::default(), succession).unwrap())
}

/// An adapter at work in a thread of its own.
struct Turning {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Rnic>,
}

impl Turning {
    fn begin(mut rnic: Rnic) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let its_end = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !its_end.load(Ordering::Relaxed) {
                rnic.turn(Duration::ZERO);
                thread::yield_now();
            }
            rnic
        });
        Self { ends, thread }
    }

    fn end(self) -> Rnic {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn a_port_that_is_taken_is_told() {
    let address: IpAddr = "127.0.6.1".parse().unwrap();
    let first = Rnic::open(address, &Settings::default()).unwrap();
    assert!(first.port().source_port() >= 0xC000);
    // Less than was wanted only without privilege, and never nothing.
    assert!(first.port().receive_buffer() >= 100_000);
    let second = Rnic::open(address, &Settings::default());
    assert!(matches!(second, Err(OpenError::InUse(it)) if it == address));
    let elsewhere = "192.0.2.1".parse().unwrap();
    let third = Rnic::open(elsewhere, &Settings::default());
    assert!(matches!(third, Err(OpenError::NoSuchAddress(it)) if it == elsewhere));
    let no_device = Settings { device: Some("nowhere0".to_owned()), ..Settings::default() };
    let fourth = Rnic::open("127.0.6.2".parse().unwrap(), &no_device);
    assert!(matches!(fourth, Err(OpenError::Kernel { .. })));
}

#[test]
fn silence_wakes_by_the_deadline() {
    let mut pair = Pair::new(open(["127.0.7.1", "127.0.7.2"], &Settings::default()), 1024);
    assert_eq!(pair.ends[0].rnic.poll_timeout(), None);
    pair.ends[0].post_send(0, b"anybody?");
    let now = pair.now();
    assert!(!pair.ends[0].rnic.turn(now));
    assert!(pair.ends[0].rnic.poll_timeout().is_some_and(|it| it > now));
    pair.run_until(|ends| ends[0].completed == [0]);
    assert_eq!(pair.ends[0].rnic.poll_timeout(), None);
}
