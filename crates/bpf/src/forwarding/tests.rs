//! Packet by packet, in the kernel (`BPF_PROG_TEST_RUN`): where each goes, and what is written into it. All of it at each hook; what the
//! program of XDP passes goes through that of traffic control, as on an interface.

use std::cell::Cell;
use std::collections::HashMap as Counts;
use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};

use etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded;
use etherparse::{
    Icmpv4Type, Icmpv6Type, IpFragOffset, Ipv4Header, Ipv4Options, PacketBuilder,
    PacketBuilderStep, ip_number,
};
use sidestep_distributor::maglev::{self, Taker};
use sidestep_distributor::{Choice, hash};

use super::*;

/// Has each test run at each hook. On veth and in the generic mode XDP differs by how frames leave, and by checksums that are left open, alone.
macro_rules! at_each_hook {
    ($($test:ident)*) => {
        mod tc {
            $(#[test] fn $test() { super::$test(super::Hook::Tc); })*
        }
        mod native {
            $(#[test] fn $test() { super::$test(super::Hook::Native); })*
        }
        mod veth_and_generic {
            #[test]
            fn an_open_checksum_is_left_to_traffic_control_or_stays_so() {
                super::an_open_checksum_is_left_to_traffic_control(super::Hook::Veth);
                super::an_open_checksum_is_left_to_traffic_control(super::Hook::Generic);
            }
            #[test]
            fn tcp_and_udp_of_both_families_go_by_the_hash_of_the_crate() {
                super::tcp_and_udp_of_both_families_go_by_the_hash_of_the_crate(super::Hook::Veth);
                super::tcp_and_udp_of_both_families_go_by_the_hash_of_the_crate(super::Hook::Generic);
            }
        }
    };
}

at_each_hook! {
    tcp_and_udp_of_both_families_go_by_the_hash_of_the_crate
    shares_of_ten_thousand_connections_are_within_two_points
    what_is_not_for_a_vip_is_the_kernels
    a_flow_keeps_its_target_when_the_table_changes
    a_flow_that_another_distributor_has_noted_keeps_its_target
    one_after_the_other_and_the_least_busy
    an_end_ends_a_flow
    a_flood_of_syns_pushes_no_flow_out
    without_a_note_the_hash_finds_the_target
    what_began_at_another_distributor_keeps_its_target_through_drains
    what_began_under_another_leader_keeps_it
    without_targets_what_begins_is_refused_and_what_goes_on_is_dropped
    a_target_of_unknown_address_is_passed_over_and_our_own_is_the_kernels
    to_a_host_elsewhere_the_whole_packet_goes_in_a_tunnel
    an_icmp_error_goes_in_the_tunnel_as_well
    what_does_not_fit_into_a_tunnel_is_told
    a_client_meets_the_same_target_for_a_while
    a_client_meets_the_target_that_another_distributor_has_noted
    fragments_options_and_extensions
    icmp_errors_go_to_the_target_whose_packet_they_quote
    nothing_is_served_beyond_the_lease
    a_question_by_arp_is_answered_within_the_lease
    a_solicitation_is_answered_within_the_lease
    an_open_checksum_is_left_to_traffic_control
    what_xdp_cannot_do_is_noted_once
}

/// Ends the test, with a word, where BPF may not be used.
macro_rules! forwarding {
    ($hook:expr) => {
        match Loaded::at($hook) {
            Ok(loaded) => loaded,
            Err(lacking @ BpfError::Privilege { .. }) => return println!("skipped: {lacking}"),
            Err(error) => panic!("{error}"),
        }
    };
}

struct Loaded {
    forwarding: Forwarding,
    lease: Lease,
    hook: Hook,
    /// Packets that XDP has not passed.
    by_xdp: Cell<u32>,
}

impl Loaded {
    fn at(hook: Hook) -> Result<Self, BpfError> {
        let (mut forwarding, lease) = Forwarding::load()?;
        match hook {
            Hook::Tc => {}
            Hook::Native => forwarding.load_xdp(XdpMode::Native)?,
            Hook::Veth => forwarding.load_xdp(XdpMode::Veth)?,
            Hook::Generic => forwarding.load_xdp(XdpMode::Generic)?,
        }
        forwarding.set_own_link(US)?;
        Ok(Self { forwarding, lease, hook, by_xdp: Cell::new(0) })
    }

    /// Of service 0, which has no other route.
    fn set_route(&mut self, number: u32, hop: Hop, takes: bool) -> Result<(), BpfError> {
        self.forwarding.set_direct(0, matches!(hop, Hop::Link { .. } | Hop::Nowhere))?;
        self.forwarding.set_route(number, hop, takes)
    }

    /// How many packets XDP has not passed: these, or at traffic control none.
    #[track_caller]
    fn assert_by_xdp(&self, due: u32) {
        assert_eq!(self.by_xdp.get(), if self.hook == Hook::Tc { 0 } else { due });
    }
}

impl Deref for Loaded {
    type Target = Forwarding;

    fn deref(&self) -> &Forwarding {
        &self.forwarding
    }
}

impl DerefMut for Loaded {
    fn deref_mut(&mut self) -> &mut Forwarding {
        &mut self.forwarding
    }
}

/// What becomes of a packet.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It goes to the target of this number.
    To(u32),
    Kernel,
    Dropped,
}

use Verdict::{Dropped, Kernel, To};

const VIP4: &str = "10.77.0.100:80";
const VIP6: &str = "[fd00:77::100]:80";
/// The frame's receiver: the loopback device, in whose name the kernel runs a test.
const US: [u8; 6] = [0; 6];
const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 99];

fn target(number: u32) -> [u8; 6] {
    [2, 0, 0, 0, 1, number as u8]
}

/// Service 0, with targets whose routes are 1 and up, begins to be served.
fn put(forwarding: &mut Loaded, vip: &str, protocol: Protocol, plan: &Plan) {
    let routes: Vec<u32> = (1..=plan.weights.len() as u32).collect();
    forwarding.begin(0, &routes, &[0; TARGETS_MAX]).unwrap();
    forwarding.watch(vip.parse::<SocketAddr>().unwrap().ip()).unwrap();
    forwarding.lease.serve_until(Duration::MAX, None).unwrap();
    forwarding.set_earlier(0, plan).unwrap();
    change(forwarding, vip, protocol, plan);
}

/// It goes on by another plan.
fn change(forwarding: &mut Loaded, vip: &str, protocol: Protocol, plan: &Plan) {
    for route in 1..=plan.weights.len() as u32 {
        let hop = Hop::Link { to: target(route), from: US };
        forwarding.set_route(route, hop, plan.places.contains(&(route as u8 - 1))).unwrap();
    }
    forwarding.prepare(0, Whose::Clients, plan).unwrap();
    forwarding
        .commit(0, Whose::Clients, (vip.parse().unwrap(), protocol), plan, Duration::ZERO)
        .unwrap();
}

fn takers(weights: &[u16]) -> Vec<Taker> {
    let taker = |(target, &weight): (usize, &u16)| Taker {
        target: target as u8,
        identity: maglev::identity(&format!("t{target}")),
        weight,
    };
    weights.iter().enumerate().map(taker).collect()
}

fn plan(choice: Choice, weights: &[u16]) -> Plan {
    let places = match choice {
        Choice::Hash => maglev::table(&takers(weights)),
        _ => (0..weights.len() as u8).collect(),
    };
    Plan { choice, places, weights: weights.to_vec() }
}

/// What the program returns for a frame, and what it has made of it.
fn run(forwarding: &Loaded, frame: &[u8]) -> (i32, Vec<u8>) {
    run_into(forwarding, frame, frame.len())
}

/// The same of a frame that may grow up to so many bytes.
fn run_into(forwarding: &Loaded, frame: &[u8], room: usize) -> (i32, Vec<u8>) {
    let run = |hook: Hook| crate::packet::tests::run(&forwarding.loaded, hook.name(), frame, room);
    if forwarding.hook != Hook::Tc {
        let (returned, out) = run(forwarding.hook);
        let as_tc = match returned {
            1 => 2,
            2 => {
                assert_eq!(out, frame, "what passes stays as it is");
                return run(Hook::Tc);
            }
            3 | 4 => {
                assert_eq!(returned == 4, forwarding.hook == Hook::Veth);
                7
            }
            other => panic!("verdict {other} of XDP"),
        };
        forwarding.by_xdp.set(forwarding.by_xdp.get() + 1);
        return (as_tc, out);
    }
    run(Hook::Tc)
}

/// The verdict about a frame; of one that goes on, only the addresses may have changed.
fn judged(forwarding: &Loaded, frame: &[u8]) -> Verdict {
    let (returned, out) = run(forwarding, frame);
    assert_eq!(&out[12..], &frame[12..], "nothing behind the addresses changes");
    match returned {
        7 => {
            assert_eq!(&out[6..12], &US, "it comes from us");
            To(out[5].into())
        }
        2 => Dropped,
        -1 => {
            assert_eq!(out, frame);
            Kernel
        }
        other => panic!("verdict {other}"),
    }
}

fn frame() -> PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2(CLIENT, US)
}

type Ip = PacketBuilderStep<etherparse::IpHeaders>;

/// A packet from a client to a VIP, up to the header of IP.
fn ip(client: SocketAddr, vip: &str) -> Ip {
    let vip: SocketAddr = vip.parse().unwrap();
    match (client.ip(), vip.ip()) {
        (IpAddr::V4(client), IpAddr::V4(vip)) => frame().ipv4(client.octets(), vip.octets(), 64),
        (IpAddr::V6(client), IpAddr::V6(vip)) => frame().ipv6(client.octets(), vip.octets(), 64),
        _ => panic!("two families"),
    }
}

const SYN: &str = "S";
const ACK: &str = "A";
const FIN: &str = "FA";
const RST: &str = "R";

fn tcp(client: SocketAddr, vip: &str, flags: &str) -> Vec<u8> {
    let port = vip.parse::<SocketAddr>().unwrap().port();
    let mut step = ip(client, vip).tcp(client.port(), port, 1, 1000);
    for flag in flags.chars() {
        step = match flag {
            'S' => step.syn(),
            'A' => step.ack(1),
            'F' => step.fin(),
            _ => step.rst(),
        };
    }
    written(|out| step.write(out, b"x").unwrap())
}

fn udp(client: SocketAddr, vip: &str) -> Vec<u8> {
    let port = vip.parse::<SocketAddr>().unwrap().port();
    written(|out| ip(client, vip).udp(client.port(), port).write(out, b"x").unwrap())
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn client4(number: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from(0x0a4d_0100 + number % 7).into(), 32_768 + number as u16)
}

fn client6(number: u32) -> SocketAddr {
    SocketAddr::new(format!("fd00:77::1:{:x}", number % 7).parse().unwrap(), 40_000 + number as u16)
}

/// By which target the hash has a client served.
fn due(plan: &Plan, client: SocketAddr) -> Verdict {
    let place = hash::of_client(client.ip(), client.port()) as usize % plan.places.len();
    To(u32::from(plan.places[place]) + 1)
}

fn tcp_and_udp_of_both_families_go_by_the_hash_of_the_crate(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let plan = plan(Choice::Hash, &[4, 2, 1]);
    for (vip, client) in [(VIP4, client4 as fn(u32) -> SocketAddr), (VIP6, client6)] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            put(&mut forwarding, vip, protocol, &plan);
            for number in 0..100 {
                let client = client(number);
                let frame = match protocol {
                    Protocol::Tcp => tcp(client, vip, SYN),
                    Protocol::Udp => udp(client, vip),
                };
                assert_eq!(judged(&forwarding, &frame), due(&plan, client), "{client}");
            }
            assert_eq!(forwarding.given(0).unwrap()[..3].iter().sum::<u64>(), 100);
        }
    }
    forwarding.assert_by_xdp(400);
}

fn shares_of_ten_thousand_connections_are_within_two_points(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Hash, &[4, 2, 1]));
    let mut counts: Counts<u32, f64> = Counts::new();
    for number in 0..10_000 {
        let To(target) = judged(&forwarding, &tcp(client4(number), VIP4, SYN)) else { panic!() };
        *counts.entry(target).or_default() += 1.0;
    }
    for (target, due) in [(1, 4.0 / 7.0), (2, 2.0 / 7.0), (3, 1.0 / 7.0)] {
        let error = (counts[&target] / 10_000.0 - due).abs();
        assert!(error < 0.02, "{target}: {counts:?}");
    }
    let traffic: u64 = (1..=3).map(|route| forwarding.traffic(route).unwrap()[0]).sum();
    assert_eq!(traffic, 10_000);
}

fn what_is_not_for_a_vip_is_the_kernels(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Turn, &[1]));
    let client = client4(1);
    assert_eq!(judged(&forwarding, &tcp(client, "10.77.0.100:81", SYN)), Kernel, "another port");
    assert_eq!(judged(&forwarding, &tcp(client, "10.77.0.99:80", SYN)), Kernel);
    assert_eq!(judged(&forwarding, &udp(client, VIP4)), Kernel, "another protocol");
    let arp = [&US[..], &CLIENT, &[0x08, 0x06], &[0; 28]].concat();
    assert_eq!(judged(&forwarding, &arp), Kernel);
    let mut to_others = tcp(client, VIP4, SYN);
    to_others[..6].copy_from_slice(&[2; 6]);
    assert_eq!(judged(&forwarding, &to_others), Kernel, "a frame for another host");
    let cut_off = &tcp(client, VIP4, SYN)[..14 + 20 + 3];
    assert_eq!(judged(&forwarding, cut_off), Kernel, "no ports");
    forwarding.forget(Whose::Clients, (VIP4.parse().unwrap(), Protocol::Tcp)).unwrap();
    assert_eq!(judged(&forwarding, &tcp(client, VIP4, SYN)), Kernel, "a VIP no more");
    forwarding.assert_by_xdp(0);
}

fn a_flow_keeps_its_target_when_the_table_changes(hook: Hook) {
    for choice in [Choice::Hash, Choice::Turn, Choice::Least, Choice::First] {
        let mut forwarding = forwarding!(hook);
        put(&mut forwarding, VIP4, Protocol::Tcp, &plan(choice, &[1, 1]));
        let begin = |number| {
            let to = judged(&forwarding, &tcp(client4(number), VIP4, SYN));
            assert_eq!(judged(&forwarding, &tcp(client4(number), VIP4, ACK)), to);
            (number, to)
        };
        let flows: Vec<(u32, Verdict)> = (0..20).map(begin).collect();
        assert!(flows.iter().any(|(_, to)| *to == To(1)), "{choice:?}");
        let drained = Plan { places: vec![1], ..plan(choice, &[1, 1]) };
        change(&mut forwarding, VIP4, Protocol::Tcp, &drained);
        for (number, to) in flows {
            assert_eq!(judged(&forwarding, &tcp(client4(number), VIP4, ACK)), to, "{choice:?}");
        }
        for number in 100..120 {
            assert_eq!(judged(&forwarding, &tcp(client4(number), VIP4, SYN)), To(2), "{choice:?}");
        }
    }
}

fn a_flow_that_another_distributor_has_noted_keeps_its_target(hook: Hook) {
    for (vip, client) in [(VIP4, client4 as fn(u32) -> SocketAddr), (VIP6, client6)] {
        let (mut owner, mut backup) = (forwarding!(hook), forwarding!(hook));
        let all = plan(Choice::Turn, &[1, 1, 1]);
        put(&mut owner, vip, Protocol::Tcp, &all);
        put(&mut backup, vip, Protocol::Tcp, &Plan { places: vec![2], ..all });
        let begin = |number| {
            let to = judged(&owner, &tcp(client(number), vip, SYN));
            assert_eq!(judged(&owner, &tcp(client(number), vip, ACK)), to);
            to
        };
        let begun: Vec<Verdict> = (0..30).map(begin).collect();
        for flow in owner.flows().unwrap() {
            backup.note(&flow, true).unwrap();
        }
        for (number, to) in (0..).zip(&begun) {
            assert_eq!(judged(&backup, &tcp(client(number), vip, ACK)), *to);
        }
        assert!((1..=3).all(|target| begun.contains(&To(target))), "{begun:?}");

        let own = backup.flows().unwrap()[0];
        let other = Flow { route: own.route % 3 + 1, is_closing: true, ..own };
        let noted = |backup: &Loaded| {
            backup.flows().unwrap().into_iter().find(|it| it.client == own.client).unwrap()
        };
        backup.note(&other, false).unwrap();
        assert_eq!(noted(&backup).route, own.route, "what is noted here stays");
        backup.note(&other, true).unwrap();
        assert_eq!(noted(&backup), other);
    }
}

fn one_after_the_other_and_the_least_busy(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Turn, &[9, 1, 1]));
    let begin = |forwarding: &Loaded, from: u32, count: u32| {
        let mut counts = [0; 3];
        for number in from..from + count {
            let To(target) = judged(forwarding, &tcp(client4(number), VIP4, SYN)) else { panic!() };
            counts[target as usize - 1] += 1;
            let again = judged(forwarding, &tcp(client4(number), VIP4, SYN));
            assert_eq!(again, To(target), "a SYN that is sent again is none more");
        }
        counts
    };
    assert_eq!(begin(&forwarding, 0, 30), [10, 10, 10]);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Least, &[4, 2, 2]));
    assert_eq!(begin(&forwarding, 100, 80), [40, 20, 20]);
    let mut ended = [0; TARGETS_MAX];
    ended[1] = 20;
    forwarding.note_ended(0, &ended).unwrap();
    assert_eq!(begin(&forwarding, 300, 20), [0, 20, 0]);
}

fn an_end_ends_a_flow(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Turn, &[1, 1]));
    let client = client4(1);
    let send = |flags| judged(&forwarding, &tcp(client, VIP4, flags));
    let first = send(SYN);
    assert!(forwarding.flows().unwrap().is_empty(), "one that has only begun is no flow");
    send(ACK);
    let flows = forwarding.flows().unwrap();
    let [flow] = flows[..] else { panic!("{flows:?}") };
    assert_eq!((flow.client, flow.service), (client, (VIP4.parse().unwrap(), Protocol::Tcp)));
    assert!(To(flow.route) == first && !flow.is_closing && !flow.seen.is_zero());
    assert_eq!(send(FIN), first);
    assert!(forwarding.flows().unwrap()[0].is_closing);
    assert_eq!(send(ACK), first, "it still takes the target's last bytes");
    let second = send(SYN);
    assert_ne!(second, first, "the client begins anew");
    send(ACK);
    assert_eq!(send(RST), second);
    let flows = forwarding.flows().unwrap();
    assert!(flows.len() == 1 && flows[0].is_closing, "a stranger's RST takes no route away");
    assert_eq!(send(ACK), second);
    forwarding.end(&flows[0]);
    assert!(forwarding.flows().unwrap().is_empty());
}

fn a_flood_of_syns_pushes_no_flow_out(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Turn, &[1, 1, 1]));
    let live: Vec<(u32, Verdict)> = (0..200)
        .map(|number| {
            judged(&forwarding, &tcp(client4(number), VIP4, SYN));
            (number, judged(&forwarding, &tcp(client4(number), VIP4, ACK)))
        })
        .collect();
    // More than the table of those that have begun holds.
    for number in 0..100_000_u32 {
        let invented = SocketAddr::new(Ipv4Addr::from(0xc633_0000 + number).into(), 1024);
        judged(&forwarding, &tcp(invented, VIP4, SYN));
    }
    for (number, to) in live {
        assert_eq!(judged(&forwarding, &tcp(client4(number), VIP4, ACK)), to);
    }
    assert_eq!(forwarding.flows().unwrap().len(), 200);
}

fn without_a_note_the_hash_finds_the_target(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let plan = plan(Choice::Hash, &[4, 2, 1]);
    put(&mut forwarding, VIP6, Protocol::Tcp, &plan);
    for number in 0..50 {
        let client = client6(number);
        assert_eq!(judged(&forwarding, &tcp(client, VIP6, ACK)), due(&plan, client));
    }
    assert!(forwarding.flows().unwrap().is_empty(), "and none is made");
}

/// A table without some of the targets of `plan`.
fn without(plan: &Plan, gone: &[u8]) -> Plan {
    let mut takers = takers(&plan.weights);
    takers.retain(|it| !gone.contains(&it.target));
    Plan { places: maglev::table(&takers), ..plan.clone() }
}

fn what_began_at_another_distributor_keeps_its_target_through_drains(hook: Hook) {
    let (mut before, mut forwarding) = (forwarding!(hook), forwarding!(hook));
    let plan = plan(Choice::Hash, &[4, 2, 1, 1]);
    let (one_down, others) = (without(&plan, &[3]), [&[1, 2][..], &[0], &[], &[0, 1, 2, 3]]);
    for (vip, client) in [(VIP4, client4 as fn(u32) -> SocketAddr), (VIP6, client6)] {
        put(&mut before, vip, Protocol::Tcp, &one_down);
        let begin = |number| judged(&before, &tcp(client(number), vip, SYN));
        let begun: Vec<Verdict> = (0..60).map(begin).collect();
        assert!((1..=3).all(|target| begun.contains(&To(target))), "{begun:?}");
        put(&mut forwarding, vip, Protocol::Tcp, &one_down);
        for gone in others {
            let now = without(&plan, gone);
            change(&mut forwarding, vip, Protocol::Tcp, &now);
            for (number, to) in (0..).zip(&begun) {
                assert_eq!(judged(&forwarding, &tcp(client(number), vip, ACK)), *to, "{gone:?}");
            }
            let new = client(100 + gone.len() as u32);
            let to = if now.places.is_empty() { Kernel } else { due(&now, new) };
            assert_eq!(
                judged(&forwarding, &tcp(new, vip, SYN)),
                to,
                "what begins goes by the new one"
            );
        }
    }
}

fn what_began_under_another_leader_keeps_it(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let led = |places: &[u8]| Plan { places: places.to_vec(), ..plan(Choice::First, &[9, 5, 1]) };
    put(&mut forwarding, VIP4, Protocol::Tcp, &led(&[1, 2]));
    for now in [&[1, 2][..], &[0, 1, 2], &[2], &[]] {
        change(&mut forwarding, VIP4, Protocol::Tcp, &led(now));
        for number in 0..20 {
            assert_eq!(judged(&forwarding, &tcp(client4(number), VIP4, ACK)), To(2), "{now:?}");
        }
    }
}

fn without_targets_what_begins_is_refused_and_what_goes_on_is_dropped(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let none = Plan { places: vec![], ..plan(Choice::Hash, &[1, 1]) };
    put(&mut forwarding, VIP4, Protocol::Tcp, &none);
    assert_eq!(judged(&forwarding, &tcp(client4(1), VIP4, SYN)), Kernel);
    assert_eq!(judged(&forwarding, &tcp(client4(1), VIP4, ACK)), Dropped);
    assert_eq!(forwarding.tally(VIP4.parse::<SocketAddr>().unwrap().ip()).unwrap().stranded, 2);
}

fn a_target_of_unknown_address_is_passed_over_and_our_own_is_the_kernels(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Turn, &[1, 1]));
    forwarding.set_route(1, Hop::Nowhere, true).unwrap();
    for number in 0..10 {
        assert_eq!(judged(&forwarding, &tcp(client4(number), VIP4, SYN)), To(2));
    }
    forwarding.set_route(2, Hop::Here, true).unwrap();
    assert_eq!(judged(&forwarding, &tcp(client4(20), VIP4, SYN)), Kernel);
    assert_eq!(forwarding.traffic(2).unwrap()[0], 11, "it counts");
}

/// What stands before a packet in a tunnel, by the same RFCs and another hand.
fn outer(tunnel: &Tunnel, sender: u16, packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if tunnel.to.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
    let geneve = [&[0x03, 0x40][..], &kind, &[0; 4], &[0xff, 0x53, 0x81, 2]].concat();
    let payload = [&geneve[..], &tunnel.key.to_be_bytes(), packet].concat();
    let step = match (tunnel.from, tunnel.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip =
                Ipv4Header::new(0, 64, ip_number::UDP, from.octets(), to.octets()).unwrap();
            (ip.dscp, ip.ecn) = (DSCP.try_into().unwrap(), ECN.try_into().unwrap());
            ip.dont_fragment = true;
            frame().ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = etherparse::Ipv6Header {
                traffic_class: DSCP << 2 | ECN,
                flow_label: LABEL.try_into().unwrap(),
                ..Default::default()
            };
            let ip = etherparse::Ipv6Header {
                source: from.octets(),
                destination: to.octets(),
                next_header: ip_number::UDP,
                hop_limit: 64,
                ..ip
            };
            frame().ip(etherparse::IpHeaders::Ipv6(ip, Default::default()))
        }
        _ => panic!("two families"),
    };
    let mut frame = written(|out| step.udp(sender, 6081).write(out, &payload).unwrap());
    let checksum = frame.len() - payload.len() - 2;
    frame[checksum..][..2].copy_from_slice(&[0; 2]);
    frame
}

const DSCP: u8 = 10;
const ECN: u8 = 2;
const LABEL: u32 = 0x5_1d3c;
const PORTS: [u16; 8] = [40_000, 40_011, 40_022, 40_033, 40_044, 40_055, 40_066, 40_077];

/// A frame whose packet bears marks that the outer one has to have as well.
fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12] == 8 {
        frame[15] = DSCP << 2 | ECN;
    } else {
        let word = 6 << 28 | u32::from(DSCP << 2 | ECN) << 20 | LABEL;
        frame[14..18].copy_from_slice(&word.to_be_bytes());
    }
    frame
}

/// A VIP, its clients, and the way to its target.
type Way = (&'static str, fn(u32) -> SocketAddr, Tunnel);

fn tunnels() -> [Way; 2] {
    let tunnel = |from: &str, to: &str| Tunnel {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        key: 0x0102_0304_a5b6_c7d8,
        interface: 1,
        mtu: 1500,
    };
    [
        (VIP4, client4, tunnel("10.77.0.2", "192.0.2.13")),
        (VIP6, client6, tunnel("fd00:77::2", "2001:db8::13")),
    ]
}

/// What the program makes of a frame that is to go through a tunnel.
fn wrapped(forwarding: &Loaded, frame: &[u8]) -> (i32, Vec<u8>) {
    run_into(forwarding, frame, frame.len() + 100)
}

fn to_a_host_elsewhere_the_whole_packet_goes_in_a_tunnel(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    for (vip, client, tunnel) in tunnels() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            put(&mut forwarding, vip, protocol, &plan(Choice::Turn, &[1]));
            forwarding.set_tunnel_ports(tunnel.to, PORTS).unwrap();
            forwarding.set_route(1, Hop::Tunnel(tunnel), true).unwrap();
            let before = forwarding.traffic(1).unwrap()[0];
            for number in 0..20 {
                let client = client(number);
                let frame = marked(match protocol {
                    Protocol::Tcp => tcp(client, vip, SYN),
                    Protocol::Udp => udp(client, vip),
                });
                let sender = PORTS[usize::from(client.port()) % PORTS.len()];
                let (returned, out) = wrapped(&forwarding, &frame);
                assert_eq!(returned, 7, "{client}");
                assert_eq!(out, outer(&tunnel, sender, &frame[14..]), "{client}");
            }
            assert_eq!(forwarding.traffic(1).unwrap()[0] - before, 20);
        }
        // Back on the link.
        change(&mut forwarding, vip, Protocol::Udp, &plan(Choice::Turn, &[1]));
        assert_eq!(judged(&forwarding, &udp(client(30), vip)), To(1));
    }
}

fn an_icmp_error_goes_in_the_tunnel_as_well(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let (vip, client, tunnel) = tunnels()[0];
    put(&mut forwarding, vip, Protocol::Tcp, &plan(Choice::Turn, &[1]));
    forwarding.set_tunnel_ports(tunnel.to, PORTS).unwrap();
    forwarding.set_route(1, Hop::Tunnel(tunnel), true).unwrap();
    wrapped(&forwarding, &tcp(client(1), vip, SYN));
    let quoted = &tcp(vip.parse().unwrap(), &client(1).to_string(), ACK)[14..14 + 28];
    let unreachable =
        Icmpv4Type::DestinationUnreachable(FragmentationNeeded { next_hop_mtu: 1300 });
    let router = SocketAddr::new(IpAddr::from([10, 77, 0, 1]), 0);
    let error =
        marked(written(|out| ip(router, vip).icmpv4(unreachable).write(out, quoted).unwrap()));
    let sender = PORTS[usize::from(client(1).port()) % PORTS.len()];
    assert_eq!(wrapped(&forwarding, &error), (7, outer(&tunnel, sender, &error[14..])));
}

fn what_does_not_fit_into_a_tunnel_is_told(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    for (vip, client, tunnel) in tunnels() {
        put(&mut forwarding, vip, Protocol::Udp, &plan(Choice::Turn, &[1]));
        forwarding.set_tunnel_ports(tunnel.to, PORTS).unwrap();
        forwarding.set_route(1, Hop::Tunnel(tunnel), true).unwrap();
        let port = vip.parse::<SocketAddr>().unwrap().port();
        let datagram = |len: u32| {
            let headers = if tunnel.to.is_ipv4() { 28 } else { 48 };
            let data = vec![7; (len - headers) as usize];
            written(|out| ip(client(1), vip).udp(client(1).port(), port).write(out, &data).unwrap())
        };
        let fits = tunnel.mtu - Tunnel::overhead(tunnel.to);
        let (returned, out) = wrapped(&forwarding, &datagram(fits));
        assert_eq!((returned, out.len() as u32), (7, 14 + tunnel.mtu));
        assert_eq!(forwarding.take_oversized(), None);
        let too_long = datagram(fits + 1);
        assert_eq!(judged(&forwarding, &too_long), Dropped);
        let packet = *too_long[14..].first_chunk().unwrap();
        assert_eq!(forwarding.take_oversized(), Some(Oversized { fits, packet }));
        assert_eq!(forwarding.take_oversized(), None);
        let address = vip.parse::<SocketAddr>().unwrap().ip();
        assert_eq!(forwarding.tally(address).unwrap().oversized, 1);
    }
}

fn a_client_meets_the_same_target_for_a_while(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let plan = plan(Choice::Turn, &[1, 1, 1]);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan);
    let minute = Duration::from_secs(60);
    let vip = (VIP4.parse().unwrap(), Protocol::Tcp);
    forwarding.commit(0, Whose::Clients, vip, &plan, minute).unwrap();
    let from = |port| SocketAddr::new(client4(0).ip(), port);
    let first = judged(&forwarding, &tcp(from(1), VIP4, SYN));
    for port in 2..9 {
        assert_eq!(judged(&forwarding, &tcp(from(port), VIP4, SYN)), first);
        assert_eq!(judged(&forwarding, &tcp(from(port), VIP4, ACK)), first, "noted by its port");
    }
    assert_eq!(forwarding.flows().unwrap().len(), 7);
}

fn a_client_meets_the_target_that_another_distributor_has_noted(hook: Hook) {
    for (vip, client) in [(VIP4, client4 as fn(u32) -> SocketAddr), (VIP6, client6)] {
        let (mut owner, mut backup) = (forwarding!(hook), forwarding!(hook));
        let plan = plan(Choice::Turn, &[1, 1, 1]);
        for forwarding in [&mut owner, &mut backup] {
            put(forwarding, vip, Protocol::Tcp, &plan);
            let service = (vip.parse().unwrap(), Protocol::Tcp);
            forwarding.commit(0, Whose::Clients, service, &plan, Duration::from_secs(60)).unwrap();
        }
        let from = |number, port| SocketAddr::new(client(number).ip(), port);
        let met: Vec<Verdict> =
            (0..7).map(|number| judged(&owner, &tcp(from(number, 1), vip, SYN))).collect();
        let affinities = owner.affinities().unwrap();
        assert_eq!(affinities.len(), 7);
        for affinity in &affinities {
            assert_eq!(To(affinity.target as u32 + 1), met[index_of(client, affinity.client)]);
            backup.note_affinity(affinity).unwrap();
        }
        // Not in the order in which they were given.
        for (number, to) in met.iter().enumerate().rev() {
            let frame = tcp(from(number as u32, 2), vip, SYN);
            assert_eq!(judged(&backup, &frame), *to, "{number}");
        }
        let over = Affinity { until: Duration::from_nanos(1), ..affinities[0] };
        backup.note_affinity(&over).unwrap();
        let noted = backup.affinities().unwrap();
        assert!(noted.contains(&over), "its time is over, and it is there: {noted:?}");
    }
}

fn index_of(client: fn(u32) -> SocketAddr, address: IpAddr) -> usize {
    (0..7).position(|number| client(number).ip() == address).unwrap()
}

fn fragments_options_and_extensions(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let plan = plan(Choice::Hash, &[1, 1]);
    put(&mut forwarding, VIP4, Protocol::Udp, &plan);
    let client = client4(1);
    let address = VIP4.parse::<SocketAddr>().unwrap();
    let (IpAddr::V4(from), IpAddr::V4(to)) = (client.ip(), address.ip()) else { panic!() };
    let header = |change: &dyn Fn(&mut Ipv4Header), to: Ipv4Addr| {
        let mut ip = Ipv4Header::new(0, 64, ip_number::UDP, from.octets(), to.octets()).unwrap();
        change(&mut ip);
        let headers = etherparse::IpHeaders::Ipv4(ip, Default::default());
        written(|out| frame().ip(headers).udp(client.port(), 80).write(out, b"datagram").unwrap())
    };
    let first = |ip: &mut Ipv4Header| ip.more_fragments = true;
    let second = |ip: &mut Ipv4Header| ip.fragment_offset = IpFragOffset::try_new(2).unwrap();
    let whole = |ip: &mut Ipv4Header| ip.dont_fragment = true;
    assert_eq!(judged(&forwarding, &header(&first, to)), Dropped);
    assert_eq!(judged(&forwarding, &header(&second, to)), Dropped);
    assert_eq!(judged(&forwarding, &header(&whole, to)), due(&plan, client));
    let other = Ipv4Addr::new(10, 77, 0, 99);
    assert_eq!(judged(&forwarding, &header(&first, other)), Kernel, "none of a VIP");
    // Record route, in all the room there is.
    let mut route = [0; 40];
    route[..3].copy_from_slice(&[7, 39, 4]);
    let options = |ip: &mut Ipv4Header| ip.options = Ipv4Options::from(route);
    assert_eq!(judged(&forwarding, &header(&options, to)), due(&plan, client));
    let tally = forwarding.tally(address.ip()).unwrap();
    assert_eq!((tally.fragments, tally.options, tally.stranded), (2, 1, 0));
    forwarding.assert_by_xdp(3);
    forwarding.watch(address.ip()).unwrap();
    assert_eq!(forwarding.tally(address.ip()).unwrap(), tally, "what is watched stays counted");

    put(&mut forwarding, VIP6, Protocol::Udp, &plan);
    let six = VIP6.parse::<SocketAddr>().unwrap().ip();
    for extension in [0, 43, 44, 60] {
        let mut frame = udp(client6(1), VIP6);
        frame[14 + 6] = extension;
        assert_eq!(judged(&forwarding, &frame), Dropped, "{extension}");
    }
    assert_eq!(forwarding.tally(six).unwrap().extended, 4);
}

fn icmp_errors_go_to_the_target_whose_packet_they_quote(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let turn = plan(Choice::Turn, &[1, 1, 1]);
    let too_big = Icmpv4Type::DestinationUnreachable(FragmentationNeeded { next_hop_mtu: 1400 });
    put(&mut forwarding, VIP4, Protocol::Tcp, &turn);
    let vip: SocketAddr = VIP4.parse().unwrap();
    for number in 0..9 {
        let client = client4(number);
        let to = judged(&forwarding, &tcp(client, VIP4, SYN));
        if number % 2 == 0 {
            judged(&forwarding, &tcp(client, VIP4, ACK));
        }
        let quoted = &tcp(vip, &client.to_string(), ACK)[14..14 + 28];
        let router = SocketAddr::new(IpAddr::from([10, 77, 0, 1]), 0);
        let error =
            written(|out| ip(router, VIP4).icmpv4(too_big.clone()).write(out, quoted).unwrap());
        assert_eq!(judged(&forwarding, &error), to, "{client}");
        assert_eq!(judged(&forwarding, &error), to, "an error makes no flow");
    }
    assert_eq!(forwarding.flows().unwrap().len(), 5);
    assert_eq!(forwarding.tally(vip.ip()).unwrap().errors, 18);
    forwarding.assert_by_xdp(9 + 5 + 18);
    let echo = Icmpv4Type::EchoRequest(etherparse::IcmpEchoHeader { id: 1, seq: 1 });
    let echo = written(|out| ip(client4(1), VIP4).icmpv4(echo).write(out, b"ping").unwrap());
    assert_eq!(judged(&forwarding, &echo), Kernel);

    let hashed = plan(Choice::Hash, &[1, 1, 1]);
    put(&mut forwarding, VIP6, Protocol::Udp, &hashed);
    let vip: SocketAddr = VIP6.parse().unwrap();
    let router = SocketAddr::new("fd00:77::1".parse().unwrap(), 0);
    for number in 0..9 {
        let client = client6(number);
        let quoted = &udp(vip, &client.to_string())[14..];
        let too_big = Icmpv6Type::PacketTooBig { mtu: 1280 };
        let error = written(|out| ip(router, VIP6).icmpv6(too_big).write(out, quoted).unwrap());
        assert_eq!(judged(&forwarding, &error), due(&hashed, client));
    }
    for kind in [133, 135, 136] {
        let message = Icmpv6Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8: [0; 4] };
        let frame = written(|out| ip(router, VIP6).icmpv6(message).write(out, &[0; 16]).unwrap());
        assert_eq!(judged(&forwarding, &frame), Kernel, "a neighbour's question");
    }
}

/// `CLOCK_BOOTTIME` a minute from now, and a minute ago.
fn around_now() -> [Duration; 2] {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    [seconds + 60.0, (seconds - 60.0).max(0.0)].map(Duration::from_secs_f64)
}

fn nothing_is_served_beyond_the_lease(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let plan = plan(Choice::Hash, &[1]);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan);
    let [later, before] = around_now();
    for (until, verdict) in [(later, To(1)), (before, Dropped), (Duration::MAX, To(1))] {
        forwarding.lease.serve_until(until, None).unwrap();
        for flags in [SYN, ACK] {
            assert_eq!(judged(&forwarding, &tcp(client4(1), VIP4, flags)), verdict, "{flags}");
        }
    }
    let elsewhere = tcp(client4(1), "10.77.0.101:80", SYN);
    forwarding.lease.serve_until(before, None).unwrap();
    assert_eq!(judged(&forwarding, &elsewhere), Kernel, "what is of no VIP");
}

/// What a question about a VIP becomes; `None`: the kernel gets it as it was.
fn answered(forwarding: &Loaded, frame: &[u8]) -> Option<Vec<u8>> {
    let (returned, out) = run(forwarding, frame);
    match returned {
        7 => Some(out),
        -1 if out == frame => None,
        other => panic!("verdict {other}"),
    }
}

const LINK: [u8; 6] = [2, 0, 0, 0, 2, 1];

fn arp_request(target: [u8; 4]) -> Vec<u8> {
    let head = [&[0xff; 6][..], &CLIENT, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    [&head[..], &CLIENT, &[10, 77, 0, 1], &[0; 6], &target].concat()
}

fn solicitation(source: &str, target: &str) -> Vec<u8> {
    let [source, target]: [Ipv6Addr; 2] = [source, target].map(|it| it.parse().unwrap());
    let many = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 1, 0];
    let body = [&target.octets()[..], &[1, 1], &CLIENT].concat();
    let step = PacketBuilder::ethernet2(CLIENT, [0x33, 0x33, 0xff, 0, 1, 0]);
    let step = step.ipv6(source.octets(), many, 255).icmpv6_raw(135, 0, [0; 4]);
    written(|out| step.write(out, &body).unwrap())
}

fn a_question_by_arp_is_answered_within_the_lease(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP4, Protocol::Tcp, &plan(Choice::Hash, &[1]));
    let request = arp_request([10, 77, 0, 100]);
    assert_eq!(answered(&forwarding, &request), None, "the kernel has the address");
    let [later, before] = around_now();
    forwarding.lease.serve_until(later, Some(LINK)).unwrap();
    let head = [&CLIENT[..], &LINK, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    let reply = [&head[..], &LINK, &[10, 77, 0, 100], &CLIENT, &[10, 77, 0, 1]].concat();
    assert_eq!(answered(&forwarding, &request), Some(reply));
    assert_eq!(answered(&forwarding, &arp_request([10, 77, 0, 101])), None, "of no VIP");
    let mut reply = request.clone();
    reply[21] = 2;
    assert_eq!(answered(&forwarding, &reply), None, "no request");
    assert_eq!(answered(&forwarding, &request[..40]), None, "cut off");
    forwarding.lease.serve_until(before, Some(LINK)).unwrap();
    assert_eq!(answered(&forwarding, &request), None, "the lease is over");
}

fn a_solicitation_is_answered_within_the_lease(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    put(&mut forwarding, VIP6, Protocol::Tcp, &plan(Choice::Hash, &[1]));
    let question = solicitation("fd00:77::1", "fd00:77::100");
    assert_eq!(answered(&forwarding, &question), None, "the kernel has the address");
    let [later, before] = around_now();
    forwarding.lease.serve_until(later, Some(LINK)).unwrap();
    let answer = answered(&forwarding, &question).expect("an answer");
    let vip: Ipv6Addr = "fd00:77::100".parse().unwrap();
    let client: Ipv6Addr = "fd00:77::1".parse().unwrap();
    let body = [&vip.octets()[..], &[2, 1], &LINK].concat();
    let step = PacketBuilder::ethernet2(LINK, CLIENT).ipv6(vip.octets(), client.octets(), 255);
    let step = step.icmpv6_raw(136, 0, [0x60, 0, 0, 0]);
    assert_eq!(answer, written(|out| step.write(out, &body).unwrap()), "its checksum, too");
    for (source, target) in [("::", "fd00:77::100"), ("fd00:77::1", "fd00:77::101")] {
        assert_eq!(answered(&forwarding, &solicitation(source, target)), None, "{source} {target}");
    }
    let mut without_option = question.clone();
    without_option[78] = 14;
    assert_eq!(answered(&forwarding, &without_option), None);
    forwarding.lease.serve_until(before, Some(LINK)).unwrap();
    assert_eq!(answered(&forwarding, &question), None, "the lease is over");
}

/// A frame whose sender has left the checksum, at this offset of what is behind IP, to its interface.
fn left_open(mut frame: Vec<u8>, checksum: usize) -> Vec<u8> {
    let (addresses, protocol, at) = match frame[12] {
        8 => (26..34, frame[23], 34),
        _ => (22..54, frame[20], 54),
    };
    let len = (frame.len() - at) as u32;
    let mut sum = u32::from(protocol) + len;
    for pair in frame[addresses].chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at + checksum..][..2].copy_from_slice(&(sum as u16).to_be_bytes());
    frame
}

fn an_open_checksum_is_left_to_traffic_control(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let plan = plan(Choice::Turn, &[1, 1, 1]);
    for (vip, client) in [(VIP4, client4 as fn(u32) -> SocketAddr), (VIP6, client6)] {
        for (protocol, checksum) in [(Protocol::Tcp, 16), (Protocol::Udp, 6)] {
            put(&mut forwarding, vip, protocol, &plan);
            forwarding.by_xdp.set(0);
            let before =
                forwarding.tally(vip.parse::<SocketAddr>().unwrap().ip()).unwrap().open_sums;
            for number in 0..60 {
                let whole = match protocol {
                    Protocol::Tcp => tcp(client(number), vip, SYN),
                    Protocol::Udp => udp(client(number), vip),
                };
                let to = judged(&forwarding, &left_open(whole.clone(), checksum));
                assert_eq!(to, To(number % 3 + 1), "the turn is taken once");
                assert_eq!(judged(&forwarding, &whole), to);
            }
            let left = forwarding.tally(vip.parse::<SocketAddr>().unwrap().ip()).unwrap().open_sums;
            let due = if matches!(hook, Hook::Native | Hook::Veth) { 60 } else { 0 };
            assert_eq!(left - before, due);
            forwarding.assert_by_xdp(120 - due as u32);
        }
    }
}

fn what_xdp_cannot_do_is_noted_once(hook: Hook) {
    let mut forwarding = forwarding!(hook);
    let (vip, client, tunnel) = tunnels()[0];
    put(&mut forwarding, vip, Protocol::Udp, &plan(Choice::Turn, &[1, 1]));
    forwarding.set_tunnel_ports(tunnel.to, PORTS).unwrap();
    forwarding.set_route(1, Hop::Tunnel(tunnel), true).unwrap();
    for number in 0..20 {
        wrapped(&forwarding, &udp(client(number), vip));
    }
    assert_eq!(forwarding.given(0).unwrap()[..2], [10, 10]);
    assert!(forwarding.flows().unwrap().is_empty(), "one datagram confirms nothing");
    forwarding.assert_by_xdp(0);
}
