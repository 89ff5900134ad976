//! Over a cable between two network namespaces: what really leaves, and what fits through.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::process::Command;

use sidestep_rdma::soft::Rnic;
use sidestep_rdma::soft::port::Settings;
use sidestep_rdma::soft::port::mtu::MtuError;

use crate::capture::{Capture, Seen, write_pcap};
use crate::namespace::{Cable, addresses};
use crate::pair::Pair;

const V4: usize = 0;
const DONT_FRAGMENT: u8 = 0x40;

fn open(cable: &Cable, family: usize, settings: &Settings) -> [Rnic; 2] {
    [0, 1].map(|end| cable.at(end, |own| Rnic::open(own[family], settings).unwrap()))
}

#[test]
fn both_families_pass_over_a_cable() {
    for (mtu, payload) in [(1500, 1024), (9000, 4096)] {
        let Some(cable) = Cable::lay(mtu) else { return };
        let device = Settings { device: Some("cable".to_owned()), ..Settings::default() };
        for (family, settings) in [(0, &device), (1, &Settings::default())] {
            let rnics = open(&cable, family, settings);
            let peer = addresses(1)[family];
            let offered = cable.at(0, |_| rnics[0].port().mtu_to(peer).unwrap());
            assert_eq!(offered, payload);
            Pair::new(rnics, payload).exchange(20);
        }
    }
}

/// Captures what passes by IPv4 while the RNICs exchange messages and are connected by a cable that
/// takes no runs: the kernel parts them before.
fn captured(settings: &Settings) -> Option<Vec<Vec<u8>>> {
    let cable = Cable::lay(1500)?;
    if !(0..2).all(|end| cable.set(end, &["gso_max_segs", "1"])) {
        eprintln!("skipped: this iproute2 cannot keep runs from a cable");
        return None;
    }
    let rnics = open(&cable, V4, settings);
    let capture = cable.at(1, |_| Capture::begin());
    Pair::new(rnics, 1024).exchange(30);
    Some(capture.frames())
}

#[test]
fn the_segments_of_a_run_are_numbered_from_0() {
    let Some(frames) = captured(&Settings::default()) else { return };
    let seen: Vec<Seen> = frames.iter().filter_map(|frame| Seen::new(frame)).collect();
    let mut counts = BTreeMap::new();
    for packet in &seen {
        assert!(packet.is_intact, "identification {}", packet.identification);
        assert_eq!(packet.flags, DONT_FRAGMENT);
        *counts.entry(packet.identification).or_insert(0) += 1;
    }
    println!("{} packets, by identification: {counts:?}", seen.len());
    let most = counts.keys().next_back().copied();
    assert!(most.is_some_and(|it| it >= 8), "{counts:?}");
    // Each run has all from 0 on.
    assert!(counts.values().is_sorted_by(|fewer, more| fewer >= more), "{counts:?}");
    decodes(&frames);
}

#[test]
fn singles_have_identification_0_and_no_checksum() {
    let Some(frames) = captured(&Settings { runs: false, ..Settings::default() }) else { return };
    let seen: Vec<Seen> = frames.iter().filter_map(|frame| Seen::new(frame)).collect();
    assert!(seen.len() > 100);
    for packet in seen {
        assert!(packet.is_intact);
        let is_expected = (packet.identification, packet.flags, packet.udp_checksum);
        assert_eq!(is_expected, (0, DONT_FRAGMENT, 0));
    }
    decodes(&frames);
}

/// Whether a stranger's decoder finds InfiniBand in every frame, and nothing wrong with it.
fn decodes(frames: &[Vec<u8>]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cable.pcap");
    write_pcap(&path, frames);
    let fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "_ws.malformed", "_ws.expert"];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    // Payloads are ours, and of none of the protocols that it would look for.
    for protocol in
        ["rpcordma", "smb_direct", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "fcoib", "smc"]
    {
        command.args(["--disable-protocol", protocol]);
    }
    let Ok(output) = command.output() else {
        eprintln!("not asked: tshark is not installed");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), frames.len(), "{}", String::from_utf8_lossy(&output.stderr));
    for (number, line) in text.lines().enumerate() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [opcode, psn, rest @ ..] = &columns[..] else { panic!("{line}") };
        assert!(!opcode.is_empty() && !psn.is_empty(), "{number}: {line}");
        assert!(rest.iter().all(|column| column.is_empty()), "{number}: {line}");
    }
}

#[test]
fn a_narrow_cable_is_told() {
    let Some(cable) = Cable::lay(1500) else { return };
    let rnics = open(&cable, V4, &Settings::default());
    assert!((0..2).all(|end| cable.set(end, &["mtu", "600"])));
    let peer = addresses(1)[V4];
    let offered = cable.at(0, |_| rnics[0].port().mtu_to(peer));
    assert_eq!(offered.unwrap(), 512);
    // Whoever has offered more before hears of it.
    let mut pair = Pair::new(rnics, 1024);
    pair.ends[0].post_send(0, &[7; 1000]);
    pair.turn();
    assert_eq!(pair.ends[0].rnic.port().counters().too_long, 1);
    assert!((0..2).all(|end| cable.set(end, &["mtu", "300"])));
    let offered = cable.at(0, |_| pair.ends[0].rnic.port().mtu_to(peer));
    assert!(matches!(offered, Err(MtuError::TooNarrow { mtu: 300, .. })));
    let nowhere = cable.at(0, |_| pair.ends[0].rnic.port().mtu_to("192.0.2.1".parse().unwrap()));
    assert!(matches!(nowhere, Err(MtuError::NoWay { .. })));
}

#[test]
fn a_full_socket_is_waited_for() {
    let Some(cable) = Cable::lay(1500) else { return };
    let slow = "tc qdisc add dev cable root tbf rate 20mbit burst 64kb limit 16mb";
    if !cable.command(0, &slow.split(' ').collect::<Vec<_>>()) {
        return;
    }
    let rnics = open(&cable, V4, &Settings::default());
    let (socket, least) = (rnics[0].port().sender().as_raw_fd(), 1);
    // SAFETY: the value is there, with its length.
    let result = unsafe {
        let (level, option, len) = (libc::SOL_SOCKET, libc::SO_SNDBUF, size_of_val(&least) as u32);
        libc::setsockopt(socket, level, option, (&raw const least).cast(), len)
    };
    assert_eq!(result, 0);
    let mut pair = Pair::new(rnics, 1024);
    pair.exchange(20);
    let counters = pair.ends[0].rnic.port().counters();
    assert!(counters.full > 0, "{counters:?}");
    assert_eq!((counters.stopped, counters.too_long), (0, 0));
}

#[test]
fn what_a_firewall_stops_is_counted_and_comes_again() {
    let Some(cable) = Cable::lay(1500) else { return };
    if !cable.command(0, &["nft", "add table inet f"]) {
        return;
    }
    let chain = "add chain inet f out { type filter hook output priority 0; }";
    assert!(cable.command(0, &["nft", chain]));
    assert!(cable.command(0, &["nft", "add rule inet f out udp dport 4791 drop"]));
    let mut pair = Pair::new(open(&cable, V4, &Settings::default()), 1024);
    pair.ends[0].post_send(0, b"let me through");
    pair.turn();
    assert_eq!(pair.ends[0].rnic.port().counters().stopped, 1);
    assert!(cable.command(0, &["nft", "delete table inet f"]));
    pair.run_until(|ends| ends[0].completed == [0]);
    assert_eq!(pair.ends[1].received, [b"let me through"]);
}

#[test]
fn runs_that_are_lost_as_a_whole_come_again() {
    let Some(cable) = Cable::lay(1500) else { return };
    for end in [0, 1] {
        if !cable.command(end, &["nft", "add table inet f"]) {
            return;
        }
        let chain = "add chain inet f in { type filter hook input priority 0; }";
        let lose = "add rule inet f in udp dport 4791 numgen random mod 20 == 0 drop";
        assert!(cable.command(end, &["nft", chain]));
        if !cable.command(end, &["nft", lose]) {
            return;
        }
    }
    Pair::new(open(&cable, V4, &Settings::default()), 1024).exchange(25);
}
