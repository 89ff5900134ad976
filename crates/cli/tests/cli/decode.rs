//! `sidestep decode`: handshakes that are told as they were, with every rule they broke, and files
//! that are no captures.
//!
//! The captures are made here, of recorded and of hand-computed messages. Figures are snapshots;
//! after an intended change: `SIDESTEP_UPDATE_SNAPSHOTS=1 cargo test -p sidestep-cli`.

use serde_json::Value;
use sidestep_wire::clc::proposal::Proposal;
use sidestep_wire::clc::{
    AcceptConfirm, AcceptConfirmD, AcceptConfirmR, Decline, EMITTED_LEN_MAX, FormR, Message, Role,
};
use sidestep_wire::{Chid, Diagnosis, Eid, ExtendedGid, Gid, Mtu, PeerId, QpNumber};

use crate::capture::Side::{self, Client, Server};
use crate::capture::{Capture, vector};
use crate::help::check_text;
use crate::support::{Place, outcome};

/// What `sidestep decode` makes of a file with these bytes.
fn decode(file: &[u8], options: &[&str]) -> (Option<i32>, String, String) {
    let place = Place::new();
    std::fs::write(place.path().join("file.pcap"), file).unwrap();
    outcome(place.sidestep(None).arg("decode").args(options).arg("file.pcap"))
}

/// Asserts that the figure is the one in the snapshot, and that rules were broken or not.
fn check(snapshot: &str, capture: &Capture, status: i32) {
    let (is, text, errors) = decode(&capture.pcap(), &[]);
    assert_eq!((is, errors.as_str()), (Some(status), ""), "{text}");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?} columns");
    check_text(snapshot, &text);
}

/// The rules that the messages of a capture break.
fn broken_rules(capture: &Capture) -> Vec<String> {
    let (_, text, _) = decode(&capture.pcap(), &["--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    let connections = document["connections"].as_array().unwrap();
    let steps = connections.iter().flat_map(|it| it["steps"].as_array().unwrap());
    let rules = steps.flat_map(|step| step["broken_rules"].as_array().unwrap());
    rules.map(|rule| rule.as_str().unwrap().to_owned()).collect()
}

fn bytes(message: impl Into<Message>) -> Vec<u8> {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = message.into().emit(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// The messages of two Linux hosts on first contact.
fn linux() -> [Vec<u8>; 3] {
    [
        vector("linux-proposal-smc-r-v2"),
        vector("linux-accept-smc-r-v2-first-contact"),
        vector("linux-confirm-smc-r-v2-first-contact"),
    ]
}

/// A capture of those three messages, changed.
fn changed(change: impl Fn(&mut Proposal, &mut AcceptConfirmR, &mut AcceptConfirmR)) -> Capture {
    let [proposal, accept, confirm] = linux();
    let mut proposal = Proposal::parse(&proposal).unwrap();
    let mut accept = AcceptConfirmR::parse(&accept).unwrap();
    let mut confirm = AcceptConfirmR::parse(&confirm).unwrap();
    change(&mut proposal, &mut accept, &mut confirm);
    talk(&[(Client, bytes(proposal)), (Server, bytes(accept)), (Client, bytes(confirm))])
}

/// A capture of these messages, with the option on both sides.
fn talk(messages: &[(Side, Vec<u8>)]) -> Capture {
    let mut capture = Capture::new();
    capture.open(true, true);
    for (from, bytes) in messages {
        capture.say(*from, bytes);
    }
    capture
}

/// A handshake of SMC-D with emulated devices.
fn smc_d() -> [Vec<u8>; 3] {
    let accept = AcceptConfirmD::parse(&vector("hand-accept-smc-d-v2-first-contact")).unwrap();
    let gid = ExtendedGid { gid: Gid(0x0011_2233_4455_6677), gid_ext: 0x8899_AABB_CCDD_EEFF };
    let confirm = AcceptConfirmD { role: Role::Confirm, gid, ..accept.clone() };
    [vector("hand-proposal-smc-d-v2"), bytes(accept), bytes(confirm)]
}

#[test]
fn smc_r_on_first_contact() {
    let [proposal, accept, confirm] = linux();
    let mut capture = talk(&[(Client, proposal), (Server, accept), (Client, confirm)]);
    capture.roce(Client).roce(Server);
    check("decode-smc-r.txt", &capture, 0);
}

#[test]
fn smc_d_on_first_contact() {
    let [proposal, accept, confirm] = smc_d();
    let capture = talk(&[(Client, proposal), (Server, accept), (Client, confirm)]);
    check("decode-smc-d.txt", &capture, 0);
}

#[test]
fn everything_offered_and_declined() {
    let decline = Decline::v2(PeerId::default(), Diagnosis::NOSMCD2DEV);
    let capture = talk(&[
        (Client, vector("hand-proposal-all-v1-v2")),
        (Server, bytes(decline)),
        (Client, b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        (Server, b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
    ]);
    let mut broken = capture;
    broken.next_connection().open(true, false).say(Client, b"hello");
    broken.next_connection().open(false, false).say(Client, b"hello").say(Server, b"hello");
    // A lone half of an emulated device is among what is offered.
    check("decode-declined.txt", &broken, 1);
}

/// An agent has the option written, but CLC goes beside the connection.
#[test]
fn programs_of_sidestep_on_one_host_say_no_clc() {
    let mut capture = Capture::new();
    capture.open(true, true).say(Client, b"hello").say(Server, b"hello");
    let local = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        // Both addresses of IPv4, behind the header of Ethernet.
        packet[26..34].copy_from_slice(&[127, 0, 0, 1, 127, 0, 0, 1]);
        packet
    };
    let (status, text, _) = decode(&capture.pcap_of(1, local), &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("agreed on beside the connection"), "{text}");
    assert!(text.contains("5 bytes by the client, 5 by the server; see `sidestep ss`"), "{text}");
    let (status, text, _) = decode(&capture.pcap(), &[]);
    assert_eq!(status, Some(1), "two hosts have to say it: {text}");
}

#[test]
fn rules_that_are_broken_stand_below_what_breaks_them() {
    let mut capture = Capture::new();
    let [proposal, ..] = linux();
    let confirm = vector("hand-confirm-smc-d-v2.0-first-contact");
    let decline = Decline::v1(PeerId::default(), Diagnosis::SYNCERR);
    capture
        .open(false, true)
        .say(Server, &vector("hand-accept-smc-d-v2-subsequent"))
        .say(Client, &proposal)
        .say(Client, &confirm)
        .say(Server, &bytes(decline))
        .say(Client, &vector("linux-decline-v1-no-device"));
    check("decode-broken.txt", &capture, 1);
}

#[test]
fn all_versions_of_smc_r_and_smc_d_are_told_in_words() {
    let decline = Decline { out_of_sync: true, ..Decline::v2(PeerId([7; 8]), Diagnosis::SYNCERR) };
    let mut capture = talk(&[
        (Client, vector("hand-proposal-smc-r-v1")),
        (Server, vector("hand-accept-smc-r-v1-first-contact")),
    ]);
    let accept = vector("linux-accept-smc-r-v2-subsequent");
    capture.next_connection().open(true, true);
    capture.say(Client, &linux()[0]).say(Server, &accept).say(Client, &bytes(decline));
    check("decode-versions.txt", &capture, 0);
}

#[test]
fn json_has_the_same_facts() {
    let [proposal, accept, confirm] = linux();
    let mut capture = talk(&[(Client, proposal), (Server, accept), (Client, confirm)]);
    capture.roce(Client).roce(Server).next_connection().open(false, false);
    let (status, text, errors) = decode(&capture.pcap(), &["--json"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    check_text("decode-smc-r.json", &text);
}

/// However the bytes come, the messages are the same: only packet numbers and times differ.
#[test]
fn pieces_late_segments_and_repetitions_change_nothing() {
    let [proposal, accept, confirm] = linux();
    let told = |capture: &Capture| -> Vec<(String, Value)> {
        let (status, text, _) = decode(&capture.pcap(), &["--json"]);
        assert_eq!(status, Some(0), "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        let steps = document["connections"][0]["steps"].as_array().unwrap();
        let step = |step: &Value| (step["kind"].to_string(), step["fields"].clone());
        steps.iter().map(step).collect()
    };
    let plain = told(&talk(&[
        (Client, proposal.clone()),
        (Server, accept.clone()),
        (Client, confirm.clone()),
    ]));
    assert_eq!(plain.len(), 5);

    let at = proposal.len() as u32;
    let mut capture = Capture::new();
    capture
        .open(true, true)
        .open(true, true)
        .segment(Client, 100, &proposal[100..])
        .segment(Client, 7, &proposal[7..120])
        .segment(Client, 0, &proposal[..7])
        .segment(Client, 0, &proposal)
        .segment(Client, u32::MAX, b"?"); // a keep-alive
    for (index, byte) in accept.iter().enumerate() {
        capture.segment(Server, index as u32, &[*byte]);
    }
    capture.segment(Client, at + 1, &confirm[1..]).segment(Client, at, &confirm[..1]);
    assert_eq!(told(&capture), plain);
}

#[test]
fn messages_in_one_segment_with_what_follows_are_told_apart() {
    let decline = bytes(Decline::v1(PeerId::default(), Diagnosis::NOSMCDEV));
    let capture =
        talk(&[(Client, [decline, b"hello".to_vec()].concat()), (Server, b"hi".to_vec())]);
    let (status, text, _) = decode(&capture.pcap(), &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("TCP: 5 bytes by the client, 2 by the server"), "{text}");
}

#[test]
fn other_captures_of_the_same_packets_say_the_same() {
    let [proposal, accept, confirm] = linux();
    let capture = talk(&[(Client, proposal), (Server, accept), (Client, confirm)]);
    let expected = decode(&capture.pcap(), &[]);
    assert_eq!(decode(&capture.pcapng(), &[]), expected, "pcapng");

    let ip = |packet: &[u8]| packet[14..].to_vec();
    assert_eq!(decode(&capture.pcap_of(101, ip), &[]), expected, "raw IP");
    let behind = |header: &[u8], packet: &[u8]| [header, &packet[14..]].concat();
    let any = |packet: &[u8]| behind(&[&[0; 14][..], &[8, 0]].concat(), packet);
    assert_eq!(decode(&capture.pcap_of(113, any), &[]), expected, "as of -i any");
    let any2 = |packet: &[u8]| behind(&[&[8, 0][..], &[0; 18]].concat(), packet);
    assert_eq!(decode(&capture.pcap_of(276, any2), &[]), expected, "as of -i any, newer");
    let loopback = |packet: &[u8]| behind(&[2, 0, 0, 0], packet);
    assert_eq!(decode(&capture.pcap_of(0, loopback), &[]), expected, "BSD loopback");
    let vlan = |packet: &[u8]| [&packet[..12], &[0x81, 0, 0, 7], &packet[12..]].concat();
    assert_eq!(decode(&capture.pcap_of(1, vlan), &[]), expected, "VLAN 7");
}

#[test]
fn ipv6_is_read_as_well() {
    let capture = talk(&[(Client, linux()[0].clone())]);
    let ipv6 = |packet: &[u8]| {
        let (source, destination, tcp) = (packet[29], packet[33], &packet[34..]);
        let len = (tcp.len() as u16).to_be_bytes();
        let address = |end| [0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end];
        let header = [&[0x60, 0, 0, 0][..], &len, &[6, 64]].concat();
        [&header[..], &address(source), &address(destination), tcp].concat()
    };
    let (status, text, _) = decode(&capture.pcap_of(101, ipv6), &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.starts_with("[2001:db8::2]:40000 → [2001:db8::1]:5000"), "{text}");
    assert!(text.contains("Proposal version 2, 156 bytes"), "{text}");
}

#[test]
fn each_rule_is_found() {
    let other = Eid::ueid("OTHER").unwrap();
    let expect = |rule: &str, capture: Capture| {
        let rules = broken_rules(&capture);
        assert!(rules.iter().any(|it| it.contains(rule)), "{rule} is not among {rules:#?}");
    };
    assert_eq!(broken_rules(&changed(|_, _, _| {})), Vec::<String>::new());

    expect("8 bytes; it has 6", {
        let mut capture = Capture::new();
        capture.open_with(&[254, 8, 0xE2, 0xD4, 0xC3, 0xD9, 0, 0], &[]);
        capture
    });
    expect(
        "release 2.1, of 2.0 that was offered",
        changed(|proposal, _, _| {
            proposal.v2.as_mut().unwrap().release = sidestep_wire::clc::Release::V2_0;
        }),
    );
    expect(
        "255 connections a link group, of 100 that were offered",
        changed(|proposal, _, _| {
            proposal.v2.as_mut().unwrap().max_conns = 100;
        }),
    );
    expect(
        "3 connections a link group: fewer than 16",
        changed(|proposal, _, _| {
            proposal.v2.as_mut().unwrap().max_conns = 3;
        }),
    );
    expect(
        "without an EID",
        changed(|proposal, _, _| {
            proposal.v2.as_mut().unwrap().ueids.clear();
        }),
    );
    expect("EID OTHER was not offered", changed(|_, accept, _| set_eid(accept, other)));
    expect("another EID than in the Accept", changed(|_, _, confirm| set_eid(confirm, other)));
    expect(
        "confirms SMC-R version 1; SMC-R version 2 was accepted",
        changed(|_, _, confirm| {
            confirm.form = FormR::V1 { first_contact: true };
        }),
    );
    expect(
        "SMC-R version 1 was not offered",
        changed(|_, accept, _| {
            accept.form = FormR::V1 { first_contact: true };
        }),
    );
    expect(
        "another contact",
        changed(|_, _, confirm| {
            confirm.form = FormR::V2 { eid: confirm.eid().unwrap(), first_contact: None };
        }),
    );
    expect(
        "other limits of the link group",
        changed(|_, _, confirm| {
            contact(confirm).max_links = 1;
        }),
    );
    expect("a link group without links", changed(|_, accept, _| contact(accept).max_links = 0));
    expect(
        "features that are not in both",
        changed(|_, _, confirm| {
            contact(confirm).common.feature_mask = 2;
        }),
    );
    expect("the GID list does not begin", changed(|_, _, confirm| contact(confirm).gids.clear()));
    expect("a larger MTU", changed(|_, _, confirm| confirm.mtu = Mtu::from_low_bits(5)));
    expect("MTU: reserved code 9", changed(|_, accept, _| accept.mtu = Mtu::from_low_bits(9)));
    expect("QP number 0x000001", changed(|_, accept, _| accept.qp_number = QpNumber([0, 0, 1])));
    expect("RMBE index 0", changed(|_, accept, _| accept.rmbe_index = 0));
    expect("GID :: is no address", changed(|_, accept, _| accept.gid.0 = [0; 16]));
    expect("multicast", changed(|_, accept, _| accept.mac.0[0] = 1));
    expect("end of the address space", changed(|_, accept, _| accept.rmb_address.0 = u64::MAX));

    let [proposal, accept, confirm] = linux();
    let flip = |bytes: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 0x1D; // "SMCR" to "SMCD" in the last letter
        bytes
    };
    expect("the other kind of SMC", talk(&[(Client, flip(&proposal, 3))]));
    expect("trailer differ", talk(&[(Client, flip(&proposal, proposal.len() - 1))]));
    expect("no CLC message (no eyecatcher) where a Proposal", talk(&[(Client, vec![0; 9])]));
    expect(
        "no CLC message (no eyecatcher) where an Accept",
        talk(&[(Client, proposal.clone()), (Server, b"220 ready".to_vec())]),
    );
    expect(
        "by TCP after the Confirm",
        talk(&[
            (Client, proposal.clone()),
            (Server, accept.clone()),
            (Client, confirm.clone()),
            (Client, b"hello".to_vec()),
        ]),
    );
    expect("Accept where a Proposal was due", talk(&[(Server, accept.clone())]));
    expect("a client sends no Accept", talk(&[(Client, accept.clone())]));
    expect(
        "Proposal where an Accept was due",
        talk(&[(Client, proposal.clone()), (Client, proposal.clone())]),
    );

    let subsequent = vector("linux-accept-smc-r-v2-subsequent");
    let [v1, v2] = [Decline::v1, Decline::v2].map(|of| of(PeerId::default(), Diagnosis::MEM));
    let declined = |decline: Decline| talk(&[(Client, proposal.clone()), (Server, bytes(decline))]);
    assert_eq!(broken_rules(&declined(v2)), Vec::<String>::new());
    expect("a Decline of version 1 where", declined(v1));
    let with = |diagnosis| Decline { diagnosis, ..v2 };
    expect("NOV2EXT: the Proposal has", declined(with(Diagnosis::NOV2EXT)));
    expect("PEERDECL: it is never sent", declined(with(Diagnosis::PEERDECL)));
    expect("NOROUTE: only a client", declined(with(Diagnosis::NOROUTE)));
    expect("out-of-sync bit and the diagnosis", declined(Decline { out_of_sync: true, ..v2 }));
    expect(
        "after its own Accept on a subsequent contact",
        talk(&[(Client, proposal.clone()), (Server, subsequent), (Server, bytes(v2))]),
    );
    expect(
        "comes after the Decline",
        talk(&[(Client, proposal.clone()), (Server, bytes(v2)), (Client, bytes(v2))]),
    );

    let [proposal, accept, confirm] = smc_d();
    let accept = AcceptConfirmD::parse(&accept).unwrap();
    let elsewhere = AcceptConfirmD { chid: Chid(0xFF00), ..accept.clone() };
    expect(
        "CHID 0xff00 was not offered",
        talk(&[(Client, proposal.clone()), (Server, bytes(elsewhere))]),
    );
    let mut confirm = AcceptConfirmD::parse(&confirm).unwrap();
    confirm.chid = Chid(0xFF00);
    expect(
        "another CHID than in the Accept",
        talk(&[
            (Client, proposal),
            (Server, bytes(AcceptConfirm::SmcD(accept))),
            (Client, bytes(confirm)),
        ]),
    );
}

fn set_eid(message: &mut AcceptConfirmR, new: Eid) {
    if let FormR::V2 { eid, .. } = &mut message.form {
        *eid = new;
    }
}

fn contact(message: &mut AcceptConfirmR) -> &mut sidestep_wire::clc::FirstContactR {
    match &mut message.form {
        FormR::V2 { first_contact: Some(contact), .. } => contact,
        _ => panic!("no first contact in version 2"),
    }
}

#[test]
fn connections_without_smc_are_only_counted() {
    let mut capture = Capture::new();
    capture.open(false, false).say(Client, b"hello");
    let (status, text, _) = decode(&capture.pcap(), &[]);
    assert_eq!(status, Some(0));
    assert_eq!(
        text,
        "Connections: 1; SMC: 0, TCP: 1; not shown, without a sign of SMC: 1 (--all); broken rules: 0\n"
    );
    let (_, text, _) = decode(&capture.pcap(), &["--all"]);
    assert!(text.contains("SYN without the SMC option"), "{text}");
    assert!(text.contains("plain TCP: the client shows no SMC option"), "{text}");
}

#[test]
fn a_capture_that_begins_late_is_told_as_far_as_it_goes() {
    let [proposal, accept, confirm] = linux();
    let mut capture = Capture::new();
    capture.say(Client, &proposal).say(Server, &accept).say(Client, &confirm[..50]);
    let (status, text, _) = decode(&capture.pcap(), &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.starts_with("10.0.0.2:40000 → 10.0.0.1:5000"), "{text}");
    assert!(text.contains("Confirm version 2: the capture has 50 of 180 bytes"), "{text}");
    assert!(text.contains("no agreement: a message is not all there"), "{text}");
}

/// What is missing in the capture was sent all the same: no rule is broken.
#[test]
fn a_missing_piece_breaks_no_rule() {
    let [proposal, ..] = linux();
    for len in [4, 7, 8, 100] {
        let capture = talk(&[(Client, proposal[..len].to_vec()), (Server, b"hello".to_vec())]);
        let (status, text, _) = decode(&capture.pcap(), &[]);
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("a message is not all there"), "{text}");
    }
}

/// One that cannot be read does; after it nothing is known, and nothing more is held against them.
#[test]
fn an_unreadable_message_breaks_one_rule() {
    let [mut proposal, accept, _] = linux();
    proposal[4] = 9;
    let capture = talk(&[(Client, proposal), (Server, accept)]);
    assert_eq!(broken_rules(&capture), ["CLC type: 0x9 is not allowed"]);

    let mut decline = vector("linux-decline-v1-no-device");
    decline[6] = 29;
    decline.insert(8, 0);
    let capture = talk(&[(Client, decline), (Server, b"hello".to_vec())]);
    assert_eq!(broken_rules(&capture), ["Decline length: says 29, the message is laid out for 28"]);
}

#[test]
fn what_is_no_capture_is_told_with_what_to_do() {
    for (file, words) in [
        (&b""[..], "is empty"),
        (b"\x1F\x8B\x08\x00", "`gunzip`"),
        (b"(\xB5/\xFD\0", "`unzstd`"),
        (b"MZ", "is no packet capture"),
        (&Capture::new().pcap()[..20], "is cut short within its header"),
        (b"{\"packets\": [], \"this\": \"is JSON, and not what was asked for\"}", "tcpdump -i any"),
        (&[0; 5000], "is no packet capture"),
        (&Capture::new().pcap(), "has no packets of TCP or RoCEv2, of 0"),
    ] {
        let (status, text, errors) = decode(file, &[]);
        assert_eq!((status, text.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.starts_with("sidestep decode: file.pcap "), "{errors}");
        assert!(errors.contains(words), "{words}: {errors}");
    }
    let place = Place::new();
    for (path, words) in [("missing.pcap", "No such file"), (".", "is a directory")] {
        let (status, _, errors) = outcome(place.sidestep(None).args(["decode", path]));
        assert_eq!(status, Some(1));
        assert!(errors.contains(words), "{errors}");
    }
}

/// A capture of which the end is missing: all that is there is shown.
#[test]
fn a_capture_that_is_cut_short_is_shown_up_to_there() {
    let [proposal, accept, _] = linux();
    for whole in [
        talk(&[(Client, proposal.clone()), (Server, accept.clone())]).pcap(),
        talk(&[(Client, proposal), (Server, accept)]).pcapng(),
    ] {
        let (status, text, errors) = decode(&whole[..whole.len() - 10], &[]);
        assert_eq!(status, Some(1));
        assert!(text.contains("Proposal version 2, 156 bytes"), "{text}");
        assert!(!text.contains("Accept version 2"), "{text}");
        assert!(errors.contains("is cut short after 3 packets"), "{errors}");
    }
}

/// Every byte of a capture, in turn, is changed: never a crash, always a status.
#[test]
fn damaged_captures_are_no_crash() {
    let [proposal, ..] = linux();
    let capture = talk(&[(Client, proposal)]);
    let place = Place::new();
    let path = place.path().join("file.pcap");
    for original in [capture.pcap(), capture.pcapng()] {
        for at in (0..original.len()).step_by(3) {
            let mut file = original.clone();
            file[at] ^= 0xFF;
            std::fs::write(&path, file).unwrap();
            let (status, _, errors) = outcome(place.sidestep(None).args(["decode", "file.pcap"]));
            assert!(matches!(status, Some(0 | 1)), "byte {at}: {status:?} {errors}");
        }
    }
}
