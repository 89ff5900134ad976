//! The programs answer like the list, packet by packet, in the kernel (`BPF_PROG_TEST_RUN`).

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use aya::programs::{TestRun, TestRunOptions};
use sidestep_filter::profiles::{Packets, Profile};
use sidestep_filter::{Action, Group, Names, Packet, RuleList, compile};

use super::frame::{Answers, Hook};
use super::*;

struct Machine;

impl Names for Machine {
    fn interface(&self, _: &str) -> Option<u32> {
        None
    }

    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn group(&self, _: &Group) -> Option<RangeInclusive<u32>> {
        Some(1..=2)
    }
}

/// Ends the test, with a word, where BPF may not be used.
macro_rules! need_privilege {
    () => {
        if let Err(lacking) = crate::available() {
            println!("skipped: {lacking}");
            return;
        }
    };
}

#[test]
fn programs_answer_like_the_list() {
    need_privilege!();
    for profile in Profile::ALL {
        let list = profile.list(300, 12);
        let set = set_of(&list);
        let mut denied = 0;
        for mut packet in Packets::new(&list, 13).take(1_000) {
            // A socket of a test is root's.
            if packet.way != sidestep_filter::Way::Forwarded {
                packet.user = 0;
            }
            // Its control group has no number.
            packet.group = 0;
            let wanted = action(&list, &packet);
            assert_eq!(judged(&set, &packet, &bytes(&packet)), wanted, "{profile:?}: {packet}");
            denied += usize::from(wanted == Action::Deny);
        }
        assert!((1..1_000).contains(&denied), "{profile:?}: {denied} denied");
        let hits: Array<_, [u64; 2]> = set.loaded.map(HITS).unwrap().try_into().unwrap();
        let sum: u64 = hits.iter().map(|it| it.unwrap()[0]).sum();
        assert_eq!(sum, 1_000, "each packet counts once");
    }
}

#[test]
fn a_hundred_thousand_rules_are_loaded_and_walked() {
    need_privilege!();
    let list = Profile::Acl.list(100_000, 2);
    let begin = Instant::now();
    let graph = compile(&list, &Machine).unwrap().graph;
    let compiled = begin.elapsed();
    let set = load(&graph, list.rules.len());
    println!("compiled in {compiled:?}, loaded in {:?}", begin.elapsed() - compiled);
    let mut times = Vec::new();
    for packet in Packets::new(&list, 3).take(500) {
        let wanted = graph.lookup(&packet).action;
        let (action, time) = run(&set, &packet, &bytes(&packet), 100);
        assert_eq!(action, wanted, "{packet}");
        times.push(time);
    }
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    println!("a packet takes {mean:?}, one in a hundred {:?}", times[times.len() * 99 / 100]);
}

/// What a program has to find its way through before it gets to the ports.
#[test]
fn headers_that_are_not_plain_are_read() {
    need_privilege!();
    let list = "deny tcp any any:443\ndeny icmp6:135 any any\ndeny udp any any:1000-";
    let list = RuleList::parse(list).unwrap();
    let set = set_of(&list);
    let tcp = |v6: bool| {
        let (from, to) = if v6 { ("[::1]:9", "[::2]:443") } else { ("10.0.0.1:9", "10.0.0.2:443") };
        Packet::between(6, from.parse().unwrap(), to.parse().unwrap(), sidestep_filter::Way::In)
    };
    // At a socket a packet begins with the header of IP, at an interface with that of its frame.
    let is = |packet: &Packet, bytes: &[u8], wanted| {
        assert_eq!(judged(&set, packet, bytes), wanted, "{bytes:02x?}");
        let forwarded = Packet { way: sidestep_filter::Way::Forwarded, ..*packet };
        assert_eq!(judged(&set, &forwarded, bytes), wanted, "forwarded: {bytes:02x?}");
    };
    // Options of IPv4: a header of 24 bytes.
    let mut with_options = bytes(&tcp(false));
    with_options[14] = 0x46;
    with_options.splice(34..34, [1; 4]);
    is(&tcp(false), &with_options, Action::Deny);
    // A fragment behind the first has no ports.
    let mut fragment = bytes(&tcp(false));
    fragment[21] = 1;
    is(&tcp(false), &fragment, Action::Permit);
    // Extension headers: hop by hop, then authentication, then a fragment that is the first.
    let plain = bytes(&tcp(true));
    let mut extended = plain.clone();
    extended[20] = 0;
    let hop_by_hop = [51, 0, 1, 4, 0, 0, 0, 0];
    let authentication = [44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let first_fragment = [6, 0, 0, 1, 0, 0, 0, 9];
    let extensions = [&hop_by_hop[..], &authentication, &first_fragment].concat();
    extended.splice(54..54, extensions);
    is(&tcp(true), &extended, Action::Deny);
    let at = 54 + 8 + 12 + 3;
    extended[at] = 8;
    is(&tcp(true), &extended, Action::Permit);
    // What is not IP.
    let mut other = plain.clone();
    other[12] = 0x88;
    is(&tcp(true), &other, Action::Permit);
    let mut neighbour = tcp(true);
    (neighbour.protocol, neighbour.icmp) = (58, (135, 0));
    is(&neighbour, &bytes(&neighbour), Action::Deny);
}

/// The kernel's verifier looks at all ways through a program, up to a million instructions. A change of a program that has it look at
/// some way once for each of many others takes seconds with each list.
#[test]
fn programs_are_verified_at_once() {
    need_privilege!();
    for text in ["default permit", "permit tcp any any:443 in tls log\ndeny any any any user 7"] {
        let set = set_of(&RuleList::parse(text).unwrap());
        for (name, program) in set.loaded.programs() {
            // Not told before Linux 5.16.
            let verified = program.info().unwrap().verified_instruction_count().unwrap_or(0);
            println!("{name}: {verified} instructions");
            assert!(verified < 200_000, "{name}: {verified}, under {text}");
        }
    }
}

/// No connection is protected here, so bytes do not pass, wherever they begin.
#[test]
fn where_tls_is_asked_for_segments_without_bytes_pass() {
    need_privilege!();
    let list = RuleList::parse("permit tcp any any:443 both tls\ndefault permit").unwrap();
    let set = set_of(&list);
    for (from, to) in [("10.0.0.1:9", "10.0.0.2:443"), ("[::1]:9", "[::2]:443")] {
        for way in [sidestep_filter::Way::In, sidestep_filter::Way::Out] {
            let packet = Packet::between(6, from.parse().unwrap(), to.parse().unwrap(), way);
            let is = |bytes: &[u8], wanted| {
                assert_eq!(judged(&set, &packet, bytes), wanted, "{packet}: {bytes:02x?}");
            };
            let plain = bytes(&packet);
            is(&plain, Action::Permit);
            is(&[&plain[..], b"x"].concat(), Action::Deny);
            let mut with_option = [&plain[..], &[1; 4]].concat();
            is(&with_option, Action::Deny);
            with_option[plain.len() - 8] = 0x60;
            is(&with_option, Action::Permit);
            with_option.pop();
            is(&with_option, Action::Permit);
            if packet.source.is_ipv4() {
                let mut of_ip = plain.clone();
                of_ip[14] = 0x46;
                of_ip.splice(34..34, [1; 4]);
                is(&of_ip, Action::Permit);
                of_ip.push(0);
                is(&of_ip, Action::Deny);
            } else {
                let mut extended = plain.clone();
                extended[20] = 0;
                extended.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
                is(&extended, Action::Deny);
            }
            let other = Packet { ports: (9, 444), ..packet };
            let of_other = [&bytes(&other)[..], b"x"].concat();
            assert_eq!(judged(&set, &other, &of_other), Action::Permit);
        }
    }
}

fn set_of(list: &RuleList) -> Set {
    let graph = compile(list, &Machine).unwrap().graph;
    load(&graph, list.rules.len())
}

fn load(graph: &Graph, rules: usize) -> Set {
    let groups = GroupNumbers::default();
    let set = RuleSet { graph, rules, identity: [0; 7], groups: &groups };
    Set::load(&mut EbpfLoader::new(), &set, 0).unwrap()
}

fn action(list: &RuleList, packet: &Packet) -> Action {
    list.first_match(packet, &Machine).map_or(list.default, |rule| list.rules[rule].action)
}

/// What the program says of these bytes.
fn judged(set: &Set, packet: &Packet, bytes: &[u8]) -> Action {
    run(set, packet, bytes, 1).0
}

/// The same, and how long it takes, of so many runs.
fn run(set: &Set, packet: &Packet, bytes: &[u8], repeat: u32) -> (Action, Duration) {
    let way = match packet.way {
        sidestep_filter::Way::In => WAYS[0],
        sidestep_filter::Way::Out => WAYS[1],
        sidestep_filter::Way::Forwarded => FORWARDED,
    };
    let options = TestRunOptions { data_in: Some(bytes), repeat, ..TestRunOptions::default() };
    let judge = set.loaded.program(way.judge).unwrap();
    let ran = if way.hook == Hook::Interface {
        let judge: &SchedClassifier = judge.try_into().unwrap();
        judge.test_run(options).unwrap()
    } else {
        let judge: &CgroupSkb = judge.try_into().unwrap();
        judge.test_run(options).unwrap()
    };
    let Answers { pass, drop } = way.hook.answers();
    let action = match ran.return_value.cast_signed() {
        answer if answer == drop => Action::Deny,
        answer if answer == pass => Action::Permit,
        other => panic!("{other}"),
    };
    (action, ran.duration)
}

/// A frame of Ethernet with the packet.
fn bytes(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            bytes.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, packet.protocol, 0, 0]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, packet.protocol, 64]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
        }
        _ => panic!("two families"),
    }
    match packet.protocol {
        1 | 58 => bytes.extend([packet.icmp.0, packet.icmp.1, 0, 0]),
        _ => {
            bytes.extend(packet.ports.0.to_be_bytes());
            bytes.extend(packet.ports.1.to_be_bytes());
        }
    }
    // Of TCP: a header of five words, and nothing behind it.
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}
