//! Packet by packet, in the kernel (`BPF_PROG_TEST_RUN`): what is taken out of a tunnel, and what servers announce.

use std::net::SocketAddr;

use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};

use super::*;
use crate::packet::tests::run;
use crate::tunnel::{GENEVE_LEN, Tunnel};

/// Ends the test, with a word, where BPF may not be used.
macro_rules! reception {
    () => {
        match Reception::load() {
            Ok(loaded) => loaded,
            Err(lacking @ BpfError::Privilege { .. }) => return println!("skipped: {lacking}"),
            Err(error) => panic!("{error}"),
        }
    };
}

const US: [u8; 6] = [0; 6];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 99];
const KEY: u64 = 0x0102_0304_a5b6_c7d8;

/// One of each family: distributor, target, client, VIP.
const ENDS: [[&str; 4]; 2] = [
    ["10.77.0.2", "192.0.2.13", "198.51.100.7:40000", "10.77.0.100:80"],
    ["fd00:77::2", "2001:db8::13", "[2001:db8:9::7]:40000", "[fd00:77::100]:80"],
];

fn tunnel([from, to, ..]: [&str; 4]) -> Tunnel {
    let [from, to] = [from, to].map(|ip| ip.parse().unwrap());
    Tunnel { from, to, key: KEY, interface: 1, mtu: 1500 }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn frame(from: IpAddr, to: IpAddr) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let frame = PacketBuilder::ethernet2(ROUTER, US);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => frame.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => frame.ipv6(from.octets(), to.octets(), 64),
        _ => panic!("two families"),
    }
}

fn segment(client: &str, vip: &str) -> Vec<u8> {
    let [client, vip]: [SocketAddr; 2] = [client, vip].map(|end| end.parse().unwrap());
    let step = frame(client.ip(), vip.ip()).tcp(client.port(), vip.port(), 1, 1000).ack(1);
    written(|out| step.write(out, b"request").unwrap())
}

/// A frame with a packet in a tunnel.
fn wrapped(tunnel: &Tunnel, packet: &[u8]) -> Vec<u8> {
    let headers = tunnel.headers();
    let payload = [&headers[headers.len() - GENEVE_LEN..], packet].concat();
    let step = frame(tunnel.from, tunnel.to).udp(40_000, crate::tunnel::PORT);
    written(|out| step.write(out, &payload).unwrap())
}

fn ready([from, to, _, vip]: [&str; 4], reception: &mut Reception) {
    reception.receive_at(to.parse().unwrap()).unwrap();
    reception.admit(from.parse().unwrap(), KEY).unwrap();
    reception.serve(vip.parse::<SocketAddr>().unwrap().ip()).unwrap();
}

fn unwrap(reception: &Reception, frame: &[u8]) -> (i32, Vec<u8>) {
    run(&reception.loaded, UNWRAP, frame, frame.len() + 100)
}

const PASSES: i32 = -1;
const DROPPED: i32 = 2;

#[test]
fn a_packet_is_as_it_was_before_the_tunnel() {
    let (mut reception, _) = reception!();
    for ends in ENDS {
        ready(ends, &mut reception);
        let packet = segment(ends[2], ends[3]);
        let before = reception.received().unwrap().taken;
        assert_eq!(unwrap(&reception, &wrapped(&tunnel(ends), &packet[14..])), (PASSES, packet));
        assert_eq!(reception.received().unwrap().taken, before + 1);
    }
}

#[test]
fn only_distributors_that_are_known_by_address_and_key_are_believed_and_only_for_vips() {
    let (mut reception, _) = reception!();
    for (ends, other) in ENDS.into_iter().zip(["10.77.0.3", "fd00:77::3"]) {
        ready(ends, &mut reception);
        let other: IpAddr = other.parse().unwrap();
        let (known, packet) = (tunnel(ends), segment(ends[2], ends[3])[14..].to_vec());
        let elsewhere = segment(ends[2], &SocketAddr::new(other, 80).to_string())[14..].to_vec();
        let mut protocol = packet.clone();
        protocol[if other.is_ipv4() { 9 } else { 6 }] = 47;
        let before = reception.received().unwrap().refused;
        for (what, frame) in [
            ("a stranger", wrapped(&Tunnel { from: other, ..known }, &packet)),
            ("one bit of the key", wrapped(&Tunnel { key: KEY ^ 1, ..known }, &packet)),
            ("another bit", wrapped(&Tunnel { key: KEY ^ 1 << 63, ..known }, &packet)),
            ("no VIP", wrapped(&known, &elsewhere)),
            ("another protocol", wrapped(&known, &protocol)),
        ] {
            assert_eq!(unwrap(&reception, &frame), (DROPPED, frame), "{what}");
        }
        assert_eq!(reception.received().unwrap().refused, before + 5);
    }
}

#[test]
fn what_is_not_in_the_form_of_a_tunnel_to_this_host_is_the_kernels() {
    let (mut reception, _) = reception!();
    for (ends, other) in ENDS.into_iter().zip(["192.0.2.14", "2001:db8::14"]) {
        ready(ends, &mut reception);
        let (known, packet) = (tunnel(ends), segment(ends[2], ends[3]));
        let good = wrapped(&known, &packet[14..]);
        let passed_on = wrapped(&Tunnel { to: other.parse().unwrap(), ..known }, &packet[14..]);
        let mut variants = vec![packet, passed_on, good[..70].to_vec()];
        let udp = if other.contains('.') { 14 + 20 } else { 14 + 40 };
        // The port, each byte of Geneve before the key, the receiver on the link.
        for at in [udp + 3].into_iter().chain(udp + 8..udp + 20) {
            let mut changed = good.clone();
            changed[at] ^= 1;
            variants.push(changed);
        }
        let mut for_another = good.clone();
        for_another[..6].copy_from_slice(&[2; 6]);
        variants.push(for_another);
        if other.contains('.') {
            let mut fragment = good.clone();
            fragment[20] |= 0x20;
            variants.push(fragment);
        }
        for frame in variants {
            assert_eq!(unwrap(&reception, &frame), (PASSES, frame));
        }
    }
    assert_eq!(reception.received().unwrap(), Received::default());
}

#[test]
fn a_packet_that_met_congestion_in_the_tunnel_says_so() {
    const CAPABLE: u8 = 2;
    let (mut reception, _) = reception!();
    for ends in ENDS {
        ready(ends, &mut reception);
        let mark = |packet: &mut [u8], mark: u8| match ends[0].contains('.') {
            true => packet[15] |= mark,
            false => packet[15] |= mark << 4,
        };
        for (inner, outer, due) in [(CAPABLE, CAPABLE, CAPABLE), (CAPABLE, 3, 3), (0, 0, 0)] {
            let mut packet = segment(ends[2], ends[3]);
            mark(&mut packet, inner);
            let mut frame = wrapped(&tunnel(ends), &packet[14..]);
            mark(&mut frame, outer);
            let (_, out) = unwrap(&reception, &frame);
            let seen = if ends[0].contains('.') { out[15] & 3 } else { out[15] >> 4 & 3 };
            assert_eq!(seen, due, "{inner} in {outer}");
        }
    }
}

/// A SYN-ACK from a VIP with these options.
fn answer(vip: &str, client: &str, options: &[TcpOptionElement]) -> Vec<u8> {
    let [vip, client]: [SocketAddr; 2] = [vip, client].map(|end| end.parse().unwrap());
    let step = frame(vip.ip(), client.ip()).tcp(vip.port(), client.port(), 1, 1000).syn().ack(1);
    written(|out| step.options(options).unwrap().write(out, &[]).unwrap())
}

#[test]
fn a_server_announces_no_longer_segments_than_fit() {
    use TcpOptionElement::{MaximumSegmentSize, SelectiveAcknowledgementPermitted, WindowScale};
    let (mut reception, mut announcement) = reception!();
    for (ends, fits) in ENDS.into_iter().zip([1500 - 48 - 40, 1500 - 68 - 60]) {
        ready(ends, &mut reception);
        let announce = |frame: &[u8]| run(&reception.loaded, ANNOUNCE, frame, frame.len());
        let options =
            |len| [MaximumSegmentSize(len), SelectiveAcknowledgementPermitted, WindowScale(7)];
        let long = answer(ends[3], ends[2], &options(1460));
        assert_eq!(announce(&long), (PASSES, long.clone()), "nothing is known yet");
        announcement.fit(ends[0].parse().unwrap(), 1500).unwrap();
        let (returned, out) = announce(&long);
        assert_eq!((returned, &out), (PASSES, &answer(ends[3], ends[2], &options(fits))));
        let Some(TransportSlice::Tcp(tcp)) = SlicedPacket::from_ethernet(&out).unwrap().transport
        else {
            panic!("no TCP")
        };
        assert_eq!(tcp.options_iterator().next(), Some(Ok(MaximumSegmentSize(fits))));
        let segment = segment(ends[3], ends[2]);
        for (what, frame) in [
            ("it fits", answer(ends[3], ends[2], &options(fits))),
            ("no such option", answer(ends[3], ends[2], &[WindowScale(7)])),
            ("no options", answer(ends[3], ends[2], &[])),
            ("no VIP", answer(&ends[3].replace("100", "101"), ends[2], &options(1460))),
            ("no SYN-ACK", segment),
        ] {
            assert_eq!(announce(&frame), (PASSES, frame), "{what}");
        }
    }
}
