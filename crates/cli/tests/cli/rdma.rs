//! `sidestep decode` behind the handshake: what real hosts said by RDMA breaks no rule, and each rule
//! that a changed packet breaks is told.
//!
//! The captures are those of Linux in `vectors/captures`. A test changes one packet and writes its
//! check anew, as if it had been sent so.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sidestep_wire::roce::icrc::{Addresses, Envelope};

use crate::help::check_text;
use crate::support::{Place, outcome};

const CAPTURES: [&str; 8] = [
    "abort-linger0",
    "decline-no-device",
    "eight-connections",
    "half-close",
    "rr-first-contact",
    "slow-rr-60",
    "stream-300k",
    "urgent",
];

/// Bytes before the BTH: Ethernet, IPv4 and UDP.
const BTH: usize = 14 + 20 + 8;
/// What a SEND carries begins here.
const SEND: usize = BTH + 12;

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/captures");
    folder.join(format!("{name}.pcap"))
}

/// The packets of a recorded capture, with their headers of pcap.
struct Recorded {
    header: Vec<u8>,
    packets: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Recorded {
    fn new(name: &str) -> Self {
        let bytes = std::fs::read(path(name)).unwrap();
        let (header, mut rest) = bytes.split_at(24);
        let mut packets = Vec::new();
        while let Some((header, behind)) = rest.split_first_chunk::<16>() {
            let len = u32::from_le_bytes(header[8..12].try_into().unwrap());
            let (packet, behind) = behind.split_at(len as usize);
            packets.push((header.to_vec(), packet.to_vec()));
            rest = behind;
        }
        Self { header: header.to_vec(), packets }
    }

    /// Changes the packet with this number, and its check with it.
    fn change(mut self, number: usize, change: impl Fn(&mut [u8])) -> Self {
        let (_, packet) = &mut self.packets[number - 1];
        change(packet);
        sign(packet);
        self
    }

    /// Changes the packet with this number, as something on the way might.
    fn damage(mut self, number: usize, at: usize) -> Self {
        self.packets[number - 1].1[at] ^= 1;
        self
    }

    fn without(mut self, number: usize) -> Self {
        self.packets.remove(number - 1);
        self
    }

    fn twice(mut self, number: usize) -> Self {
        let packet = self.packets[number - 1].clone();
        self.packets.insert(number, packet);
        self
    }

    /// What is captured of each packet ends here.
    fn cut(mut self, len: usize) -> Self {
        for (header, packet) in &mut self.packets {
            packet.truncate(len);
            header[8..12].copy_from_slice(&(packet.len() as u32).to_le_bytes());
        }
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let packets = self.packets.iter().flat_map(|(header, packet)| [&header[..], packet]);
        [&self.header[..]].into_iter().chain(packets).flatten().copied().collect()
    }

    fn decoded(&self) -> Value {
        let place = Place::new();
        std::fs::write(place.path().join("file.pcap"), self.bytes()).unwrap();
        let (_, text, errors) =
            outcome(place.sidestep(None).args(["decode", "--json", "file.pcap"]));
        assert_eq!(errors, "");
        serde_json::from_str(&text).unwrap()
    }

    /// The rules that are broken by RDMA.
    fn broken(&self) -> Vec<String> {
        let document = self.decoded();
        let lines = lines(&document);
        let rules = lines.iter().flat_map(|line| line["broken_rules"].as_array().unwrap());
        rules.map(|rule| rule.as_str().unwrap().to_owned()).collect()
    }
}

fn lines(document: &Value) -> Vec<&Value> {
    let links = document["links"].as_array().unwrap();
    links.iter().flat_map(|link| link["lines"].as_array().unwrap()).collect()
}

/// Writes the ICRC of an Ethernet packet.
fn sign(packet: &mut [u8]) {
    let address = |at: usize| -> [u8; 4] { packet[at..at + 4].try_into().unwrap() };
    let envelope = Envelope {
        addresses: Addresses::V4(address(26).into(), address(30).into()),
        source_port: u16::from_be_bytes([packet[34], packet[35]]),
        destination_port: u16::from_be_bytes([packet[36], packet[37]]),
    };
    let identification = u16::from_be_bytes([packet[18], packet[19]]);
    let end = packet.len() - 4;
    let icrc = envelope.icrc(&packet[BTH..end], identification);
    packet[end..].copy_from_slice(&icrc);
}

#[test]
fn what_linux_says_by_rdma_breaks_no_rule() {
    let place = Place::new();
    for name in CAPTURES {
        let (status, text, errors) = outcome(place.sidestep(None).arg("decode").arg(path(name)));
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{name}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{name}: {widest:?} columns");
        // The longer ones say the same more often.
        if ["abort-linger0", "eight-connections", "half-close", "urgent"].contains(&name) {
            check_text(&format!("decode-linux-{name}.txt"), &text);
        }
    }
}

/// The client of this capture writes at 32, 36 and 45, and says so at 33, 37 and 46; its end is at
/// 47. The server writes at 40 and says so at 41. The link is confirmed by 24 and 26.
#[test]
fn each_rule_that_is_broken_is_told() {
    let put = |at: usize, byte: u8| move |packet: &mut [u8]| packet[at] = byte;
    let capture = || Recorded::new("abort-linger0");
    let cases: [(&str, Recorded, &[&str]); 17] = [
        (
            "a sequence number is left out, and the next goes back",
            capture().change(33, put(SEND + 3, 9)),
            &["sequence number 9 where 1 was due", "sequence number 2 where 10 was due"],
        ),
        (
            "a cursor is not in the ring",
            capture().change(33, put(SEND + 13, 1)),
            &["producer count 65537 in a buffer of 65536 bytes"],
        ),
        (
            "more is announced than written",
            capture().change(46, put(SEND + 15, 17)),
            &["gained 2 bytes, 1 were written", "goes back by 1"],
        ),
        (
            "more is announced than there is room for",
            capture().change(46, put(SEND + 11, 2)),
            &["before the peer's consumer cursor", "were written", "goes back"],
        ),
        (
            "more is read than was written",
            capture().change(41, put(SEND + 23, 16)),
            &["the consumer cursor gained 16 bytes, 15 were there to read"],
        ),
        (
            "nobody has this token",
            capture().change(47, put(SEND + 7, 9)),
            &["no connection has the token 00000009"],
        ),
        ("a flag is taken back", capture().change(46, put(SEND + 25, 0x80)), &["takes back D"]),
        (
            "reserved bits",
            capture().change(47, put(SEND + 30, 1)),
            &["reserved bits set, in byte 30"],
        ),
        (
            "a CDC message of another length",
            capture().change(47, put(SEND + 1, 43)),
            &["CDC length"],
        ),
        (
            "a WRITE behind the buffer",
            capture().change(45, put(SEND + 5, 0xFF)),
            &["outside the receive buffer", "gained 1 bytes, 0 were written"],
        ),
        (
            "a WRITE with another key",
            capture().change(45, put(SEND + 8, 0xFF)),
            &["no buffer has RKey", "gained 1 bytes, 0 were written"],
        ),
        (
            "a WRITE that is shorter than it said",
            capture().change(45, put(SEND + 15, 2)),
            &["announces 2 bytes, and has 1"],
        ),
        (
            "an answer without a question, so the real answer has none, either",
            capture().change(55, |packet| packet[SEND + 3] |= 0x80),
            &["answers a DELETE RKEY that was not sent", "answers a DELETE RKEY that was not sent"],
        ),
        (
            "another version",
            capture().change(65, put(SEND, 0x04)),
            &["version 1 in a link group of version 2"],
        ),
        (
            "an LLC message of another length",
            capture().change(55, put(SEND + 1, 45)),
            &["LLC length", "answers a DELETE RKEY that was not sent"],
        ),
        (
            "a link that was set up with another queue pair",
            capture().change(24, put(SEND + 28, 0x12)),
            &["confirms 10.0.0.1 QP 0x000012; the link was set up with 10.0.0.1 QP 0x000011"],
        ),
        ("damaged on the way", capture().damage(47, SEND + 30), &["ICRC wrong"]),
    ];
    for (name, capture, expected) in cases {
        let broken = capture.broken();
        assert_eq!(broken.len(), expected.len(), "{name}: {broken:#?}");
        for (rule, expected) in broken.iter().zip(expected) {
            assert!(rule.contains(expected), "{name}: {broken:#?}");
        }
    }
}

#[test]
fn numbers_of_packets_tell_what_came_twice_and_what_is_missing() {
    let twice = Recorded::new("abort-linger0").twice(33);
    assert_eq!(twice.broken(), [""; 0]);
    let document = twice.decoded();
    let again: Vec<_> = lines(&document).into_iter().filter(|it| it["kind"] == "again").collect();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0]["packet"], 34);

    // The WRITE is missing, so the next packet is not due; the acknowledgement shows that the
    // receiver had it, and all goes on from there.
    let gap = Recorded::new("abort-linger0").without(45);
    let broken = gap.broken();
    assert_eq!(broken.len(), 1, "{broken:#?}");
    assert!(broken[0].contains("where 0x7e68c4 was due"), "{broken:#?}");
}

/// The client of this capture rejects another link at 30. Here it accepts, and writes there at 32.
#[test]
fn a_link_that_is_added_has_the_connections_of_its_group() {
    let first = Recorded::new("abort-linger0").packets[31].1[BTH + 9..BTH + 12].to_vec();
    let capture = Recorded::new("abort-linger0")
        .change(30, |packet| {
            packet[SEND + 3] = 0x80;
            packet[SEND + 27] = 2;
            packet[SEND + 33..SEND + 36].copy_from_slice(&first);
        })
        .change(32, |packet| {
            packet[BTH + 7] = 0x12;
            // The key that the server's ADD LINK has for its buffer there.
            packet[SEND + 8..SEND + 12].copy_from_slice(&[0, 0, 5, 0x98]);
        })
        .change(33, |packet| packet[BTH + 7] = 0x12);
    let document = capture.decoded();
    assert_eq!(document["broken_rules"], 0, "{document:#}");
    let link = &document["links"][1];
    assert_eq!((&link["number"], &link["packets"]), (&2.into(), &2.into()));
    let lines = link["lines"].as_array().unwrap();
    let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["WRITE", "CDC"]);
    for line in lines {
        assert_eq!(line["fields"]["connection"], "10.0.0.2:39738 → 10.0.0.1:5000");
    }
}

#[test]
fn refusals_are_told_in_words() {
    for (syndrome, kind, words) in [
        (0x60, "NAK", "packets before it are missing"),
        (0x62, "NAK", "the key or the range was refused"),
        (0x2C, "RNR NAK", "not ready, again after 0.64 ms"),
    ] {
        let capture = Recorded::new("abort-linger0").change(34, |packet| packet[SEND] = syndrome);
        let document = capture.decoded();
        let line = lines(&document).into_iter().find(|line| line["packet"] == 34).unwrap();
        assert_eq!(line["kind"], kind);
        assert!(line["label"].as_str().unwrap().contains(words), "{line}");
    }
}

#[test]
fn a_capture_of_the_first_bytes_of_each_packet_is_no_offence() {
    for len in [60, 90, 128, 300] {
        assert_eq!(Recorded::new("stream-300k").cut(len).broken(), [""; 0], "{len} bytes");
    }
}

#[test]
fn a_capture_may_begin_anywhere() {
    let mut capture = Recorded::new("half-close");
    for first in 0..capture.packets.len() {
        assert_eq!(capture.broken(), [""; 0], "from packet {}", first + 1);
        capture.packets.remove(0);
        if capture.packets.len() < 2 {
            break;
        }
    }
}

/// Bytes changed anywhere in packets make rules broken, and nothing worse.
#[test]
fn hostile_captures_are_told_too() {
    let mut seed = 1_u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize
    };
    for round in 0..60 {
        let mut capture = Recorded::new("abort-linger0");
        for _ in 0..1 + round % 8 {
            let number = random() % capture.packets.len();
            let (_, packet) = &mut capture.packets[number];
            let at = random() % packet.len();
            packet[at] = random() as u8;
            if packet.len() > SEND + 4 && packet[12..14] == [8, 0] {
                sign(packet);
            }
        }
        capture.decoded();
    }
}

/// What tshark is asked for; from the fifth on of CDC messages. It has one name for the cursors of
/// producer and consumer, so there are two values.
const FIELDS: [&str; 10] = [
    "frame.number",
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
    "smc.rmbe.ctrl.seqno",
    "smc.rmbe.ctrl.alert.token",
    "smc.rmbe.ctrl.peer.prod.curs",
    "smc.rmbe.ctrl.prod.wrap.seq",
    "smc.rmbe.ctrl.conn.rw.status.flags",
    "smc.rmbe.ctrl.peer.conn.state.flags",
];

/// Another dissector sees the same packets: opcode, queue pair and number of each, and every field
/// of CDC.
#[test]
fn another_dissector_sees_the_same() {
    let known = Command::new("tshark").args(["-G", "fields"]).output();
    let Some(known) = known.ok().filter(|output| output.status.success()) else {
        println!("skipped: no tshark (package tshark)");
        return;
    };
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    if !FIELDS.iter().all(|field| known.contains(&format!("\t{field}\t"))) {
        println!("skipped: a tshark that does not know RoCE or CDC");
        return;
    }
    let place = Place::new();
    for name in CAPTURES {
        let (_, text, _) = outcome(place.sidestep(None).args(["decode", "--json"]).arg(path(name)));
        let document: Value = serde_json::from_str(&text).unwrap();
        let rows = dissected(&path(name));
        let links = document["links"].as_array().unwrap();
        let packets: u64 = links.iter().map(|link| link["packets"].as_u64().unwrap()).sum();
        assert_eq!(packets, rows.len() as u64, "{name}");
        for link in links {
            for line in link["lines"].as_array().unwrap() {
                let number = line["packet"].to_string();
                let row = rows.iter().find(|row| row[0] == number).unwrap();
                compare(link, line, row);
            }
        }
    }
}

fn dissected(file: &Path) -> Vec<Vec<String>> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-Y", "infiniband", "-T", "fields"]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = String::from_utf8(tshark.output().unwrap().stdout).unwrap();
    output.lines().map(|row| row.split('\t').map(str::to_owned).collect()).collect()
}

/// A number as tshark writes it, decimal or hexadecimal.
fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

fn compare(link: &Value, line: &Value, row: &[String]) {
    let kind = line["kind"].as_str().unwrap();
    let opcodes: &[u64] = match kind {
        "ACK" => &[0x11],
        // A message of several packets is told at its last one.
        "WRITE" => &[0x0A, 0x08],
        "CDC" | "LLC" => &[0x04, 0x02],
        "again" => &[0x04, 0x02, 0x06, 0x07, 0x08, 0x0A],
        other => panic!("{other} in {line}"),
    };
    assert!(opcodes.contains(&number(&row[1])), "{line}");
    let to = if line["from"] == "client" { 1 } else { 0 };
    assert_eq!(link["ends"][to]["qp_number"], row[3].as_str(), "{line}");
    // Of a run the line has the first packet's number and the last one's PSN.
    if !["ACK", "again"].contains(&kind) {
        assert_eq!(number(line["psn"].as_str().unwrap()), number(&row[2]), "{line}");
    }
    if kind != "CDC" {
        return;
    }
    let field = |name: &str| line["fields"][name].as_str().unwrap_or_default().to_owned();
    let of = |index: usize| number(&row[index]);
    assert_eq!(line["label"], format!("CDC, sequence number {}", of(4)));
    assert_eq!(field("alert_token"), format!("{:08x}", of(5)), "{line}");
    let (counts, wraps) = (row[6].split(','), row[7].split(','));
    for ((name, count), wrap) in ["producer", "consumer"].into_iter().zip(counts).zip(wraps) {
        let expected = format!("{}, wrap {}", number(count), number(wrap));
        assert_eq!(field(name), expected, "{line}");
    }
    let set = |byte: u64, letters: &str| -> String {
        let bits = letters.chars().zip((0..8).rev());
        bits.filter(|(_, bit)| byte >> bit & 1 == 1).map(|(letter, _)| letter).collect()
    };
    let flags = field("flags");
    let letters: String = flags.split(", ").filter_map(|flag| flag.chars().next()).collect();
    assert_eq!(letters, set(of(8), "BPURF") + &set(of(9), "DCA"), "{line}");
}

#[test]
fn a_tag_of_a_vlan_and_a_cooked_capture_change_nothing() {
    let plain = Recorded::new("half-close");
    let mut tagged = Recorded::new("half-close");
    let mut cooked = Recorded::new("half-close");
    for (header, packet) in &mut tagged.packets {
        packet.splice(12..12, [0x81, 0, 0, 7]);
        header[8..12].copy_from_slice(&(packet.len() as u32).to_le_bytes());
    }
    cooked.header[20] = 113;
    for (header, packet) in &mut cooked.packets {
        packet.splice(..12, [0; 14]);
        header[8..12].copy_from_slice(&(packet.len() as u32).to_le_bytes());
    }
    assert_eq!(tagged.decoded(), plain.decoded());
    assert_eq!(cooked.decoded(), plain.decoded());
}
