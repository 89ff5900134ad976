//! Rules that come later than their list.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use sidestep_bpf::Filter;
use sidestep_filter::{LaterRule, RuleList};

use super::{Machine, arrives, connection, exchange, identity, with_cgroup};

fn rules(text: &str) -> Vec<LaterRule> {
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    lines
        .map(|(before, rule)| LaterRule {
            before: before.parse().unwrap(),
            rule: RuleList::parse(rule).unwrap().rules[0].clone(),
        })
        .collect()
}

/// False: the list has to be put as a whole.
fn add(filter: &Filter, text: &str) -> bool {
    match filter.put_later(&rules(text), &Machine).unwrap() {
        Some(done) => done.map(|()| true).unwrap(),
        None => false,
    }
}

#[test]
fn a_rule_that_comes_later_has_its_place_in_the_order() {
    with_cgroup(|place| {
        let list = "permit udp any any:53 out\ndeny udp any any:53-55 out\ndefault permit";
        let filter = place.attach(list, 1);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let passes = || [53, 54, 55, 56].map(|it| socket.send_to(b"x", ("127.0.0.1", it)).is_ok());
        assert_eq!(passes(), [true, false, false, true]);
        assert!(add(&filter, "1 deny udp any any:53 out"));
        assert_eq!(passes(), [true, false, false, true], "one before it decides");
        assert!(add(&filter, "0 deny udp any any:53 out"));
        assert_eq!(passes(), [false, false, false, true]);
        assert!(add(&filter, "1 permit udp any any:55 out\n2 deny udp any any:54-56 out"));
        assert_eq!(passes(), [true, false, true, false]);
        assert!(add(&filter, "0 permit udp any any:54 out\n0 deny udp any any out"));
        assert_eq!(passes(), [false, true, false, false], "behind the one that came before");
        let counts: Vec<u64> = filter.hits().unwrap().iter().map(|it| it.count).collect();
        assert_eq!(counts[..5], [3, 7, 3, 3, 4], "the two, the default, the two that came later");
        assert!(!add(&filter, "0 deny udp any any user root"), "no program asks for users");
        assert!(!add(&filter, "0 deny udp any any log"), "none writes the log");
        assert_eq!(passes(), [false, true, false, false]);
        assert!(add(&filter, ""), "none at all");
        assert_eq!(passes(), [true, false, false, true]);
        filter.take_back(identity(1)).unwrap();
    });
}

/// A verdict that is kept is of the rules that were in force; so is what is asked.
#[test]
fn connections_that_live_meet_a_rule_that_comes_later() {
    with_cgroup(|place| {
        let filter = place.attach("default permit", 1);
        let (mut client, mut server, port) = connection();
        for _ in 0..20 {
            exchange(&mut client, &mut server);
        }
        assert!(!sidestep_bpf::is_denied(&client, 0).unwrap());
        assert!(add(&filter, &format!("0 deny tcp any any:{port} out")));
        assert!(sidestep_bpf::is_denied(&client, 0).unwrap());
        client.write_all(b"x").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(server.read(&mut [0]).is_err(), "the next packet is judged anew");
        assert!(add(&filter, ""));
        server.set_read_timeout(Some(super::PATIENCE)).unwrap();
        server.read_exact(&mut [0]).unwrap();
    });
}

/// While rules come, no packet meets none; and there is an end of the room.
#[test]
fn each_addition_is_one_moment_until_there_is_no_room() {
    with_cgroup(|place| {
        let filter = place.attach("deny udp any any:53 out\npermit udp any any:55 out", 0);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let receiver = UdpSocket::bind("127.0.0.1:55").unwrap();
        thread::scope(|scope| {
            let adder = scope.spawn(|| {
                let mut later = String::new();
                let (mut slowest, mut count) = (Duration::ZERO, 0);
                loop {
                    later += &format!("{} deny udp 10.0.0.{count} any:9 out\n", count % 3);
                    let begin = Instant::now();
                    if !add(&filter, &later) {
                        break (count, slowest);
                    }
                    slowest = slowest.max(begin.elapsed());
                    count += 1;
                }
            });
            while !adder.is_finished() {
                assert!(socket.send_to(b"x", "127.0.0.1:53").is_err());
                socket.send_to(b"x", "127.0.0.1:55").unwrap();
            }
            let (count, slowest) = adder.join().unwrap();
            println!("{count} additions, the slowest in {slowest:?}");
            assert!((20..64).contains(&count));
        });
        assert!(arrives(&receiver));
        super::put(&filter, "deny udp any any:53 out", 2);
        assert!(add(&filter, "0 deny udp any any:9"), "another list has room again");
    });
}
