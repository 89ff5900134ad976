//! Bytes to fields, and fields to bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use sidestep_wire::{
    AlertToken, Chid, Diagnosis, DmbToken, Eid, ExtendedGid, Gid, LinkId, Mac, Mtu, PeerId, Psn,
    QpNumber, Rkey, RmbAddress, RmbeSize, RoceGid,
    clc::{
        AcceptConfirmD, AcceptConfirmDV1, AcceptConfirmR, Decline, DeclineV2, EMITTED_LEN_MAX,
        FirstContact, FirstContactR, FormR, Header, Hostname, Message, OsType, Proposal, Release,
        Role, Version,
        proposal::{GidEntry, IpPrefixes, Ipv6Prefix, IsmDevice, SmcDV2, Types, V1Offer},
        proposal::{V2Offer, V2Types},
    },
    host_control::{
        Channel, ControlMessage, Hello, Instance, Introduction, Lookup, Match, Refusal,
        RefusalCause, Side,
    },
};

use crate::hex::{captures, clc_vectors, control_vectors, decode, vector};

/// Asserts that `bytes` are `message`, read and written.
fn assert_both_ways(bytes: &[u8], message: impl Into<Message>) {
    let message = message.into();
    assert_eq!(Message::parse(bytes).as_ref(), Ok(&message));
    let mut out = [0xAA; EMITTED_LEN_MAX];
    let len = message.emit(&mut out).unwrap();
    assert_eq!(&out[..len], bytes);
    assert!(out[len..].iter().all(|byte| *byte == 0xAA), "wrote past its length");
}

fn eid(name: &str) -> Eid {
    Eid::ueid(name).unwrap()
}

fn gid(first: u64, second: u64) -> ExtendedGid {
    ExtendedGid { gid: Gid(first), gid_ext: second }
}

/// The client of the hand-computed vectors.
const CLIENT: (u64, u64) = (0x0011_2233_4455_6677, 0x8899_AABB_CCDD_EEFF);
/// Their server.
const SERVER: (u64, u64) = (0xFFEE_DDCC_BBAA_9988, 0x7766_5544_3322_1100);
const CHID: Chid = Chid(0xFFFE);

fn linux_proposal() -> Proposal {
    Proposal {
        version: Version::V2,
        peer_id: PeerId::default(),
        roce_gid: RoceGid::default(),
        mac: Mac::default(),
        smc_d_area: Some(IsmDevice::default()),
        v1: None,
        v2: Some(V2Offer {
            types: V2Types::SmcR,
            ueids: [eid("SMCV2-EID-1")].into_iter().collect(),
            release: Release::V2_1,
            roce_gid: RoceGid(Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets()),
            max_conns: 255,
            max_links: 2,
            feature_mask: 0x0001,
        }),
    }
}

#[test]
fn reads_and_writes_the_proposal_of_linux() {
    assert_both_ways(&vector!("linux-proposal-smc-r-v2"), linux_proposal());
}

/// The specification's own example, recorded on another day between the same two computers.
#[test]
fn the_proposal_of_another_capture_has_the_same_bytes() {
    let example = decode(
        "# Proposal, Linux 6.12 over soft-RoCE
        e2d4c3d901009c22 0000000000000000 0000000000000000 0000000000000000
        0000000000000000 0000000000000000 0000001c00000000 0000000000000000
        0000000000000000 0000000000000000 0100001000000000 0000000000000000
        0000ffff0a000002 ff02000100000000 0000000000000000 534d4356322d4549
        442d312020202020 2020202020202020 2020202020202020 e2d4c3d9",
    );
    assert_eq!(example.len(), 156);
    assert_both_ways(&example, linux_proposal());
}

#[test]
fn reads_and_writes_the_decline_of_linux() {
    let decline = Decline::v1(PeerId([0x49, 0x35, 0x52, 0x54, 0, 0, 0, 2]), Diagnosis::NOSMCDEV);
    assert_both_ways(&vector!("linux-decline-v1-no-device"), decline);
}

/// What the two Linux hosts of the captures say of their link; `host` is the end of their addresses.
fn linux_smc_r(role: Role, host: u8, first_contact: Option<FirstContactR>) -> AcceptConfirmR {
    AcceptConfirmR {
        role,
        peer_id: PeerId::default(),
        gid: mapped(Ipv4Addr::new(10, 0, 0, host)),
        mac: Mac([0x52, 0x54, 0, 0, 0, host]),
        qp_number: QpNumber([0, 0, 0x11]),
        rkey: Rkey::default(),
        rmbe_index: 1,
        alert_token: AlertToken(1),
        size: RmbeSize::DEFAULT,
        mtu: Mtu::from_low_bits(3),
        rmb_address: RmbAddress::default(),
        psn: Psn::default(),
        form: FormR::V2 { eid: eid("SMCV2-EID-1"), first_contact },
    }
}

fn linux_first_contact(gids: &[RoceGid]) -> FirstContactR {
    FirstContactR {
        common: FirstContact {
            os_type: OsType::LINUX,
            release: Release::V2_1,
            hostname: Hostname::new(b"(none)"),
            feature_mask: 0x0001,
        },
        direct: true,
        max_conns: 255,
        max_links: 2,
        gids: gids.iter().copied().collect(),
    }
}

fn mapped(address: Ipv4Addr) -> RoceGid {
    RoceGid(address.to_ipv6_mapped().octets())
}

#[test]
fn reads_and_writes_the_first_contact_of_linux() {
    let accept = AcceptConfirmR {
        peer_id: PeerId([0x04, 0x97, 0x52, 0x54, 0, 0, 0, 1]),
        rkey: Rkey(0x310),
        rmb_address: RmbAddress(0xFF16_5080_02DE_0000),
        psn: Psn([0xA4, 0x9C, 0xDC]),
        ..linux_smc_r(Role::Accept, 1, Some(linux_first_contact(&[])))
    };
    assert_eq!(accept.emitted_len(), AcceptConfirmR::LEN_FIRST_CONTACT);
    assert_both_ways(&vector!("linux-accept-smc-r-v2-first-contact"), accept);

    let list = [mapped(Ipv4Addr::new(10, 0, 0, 2))];
    let confirm = AcceptConfirmR {
        peer_id: PeerId([0x03, 0x69, 0x52, 0x54, 0, 0, 0, 2]),
        rkey: Rkey(0x37C),
        rmb_address: RmbAddress(0xFF48_81C2_835A_0000),
        psn: Psn([0x43, 0xAA, 0x06]),
        ..linux_smc_r(Role::Confirm, 2, Some(linux_first_contact(&list)))
    };
    assert_both_ways(&vector!("linux-confirm-smc-r-v2-first-contact"), confirm);
}

#[test]
fn reads_and_writes_a_subsequent_contact_of_linux() {
    let accept = AcceptConfirmR {
        peer_id: PeerId([0xA4, 0x9E, 0x52, 0x54, 0, 0, 0, 1]),
        rkey: Rkey(0x63D),
        alert_token: AlertToken(2),
        rmb_address: RmbAddress(0xFF2E_D82A_C2EF_0000),
        psn: Psn([0x90, 0x46, 0x3D]),
        ..linux_smc_r(Role::Accept, 1, None)
    };
    assert_both_ways(&vector!("linux-accept-smc-r-v2-subsequent"), accept);

    let confirm = AcceptConfirmR {
        peer_id: PeerId([0xFB, 0x3C, 0x52, 0x54, 0, 0, 0, 2]),
        rkey: Rkey(0x455),
        alert_token: AlertToken(2),
        rmb_address: RmbAddress(0xFF28_9EF2_42EF_0000),
        psn: Psn([0xAF, 0x9C, 0x33]),
        ..linux_smc_r(Role::Confirm, 2, None)
    };
    assert_both_ways(&vector!("linux-confirm-smc-r-v2-subsequent"), confirm);
}

#[test]
fn reads_and_writes_an_smc_r_accept_of_version_1() {
    let accept = AcceptConfirmR {
        role: Role::Accept,
        peer_id: PeerId([0xB5, 0x2F, 0x52, 0x54, 0, 0, 0, 1]),
        gid: RoceGid("fe80::5054:ff:fe00:1".parse::<Ipv6Addr>().unwrap().octets()),
        mac: Mac([0x52, 0x54, 0, 0, 0, 1]),
        qp_number: QpNumber([0x00, 0xAB, 0xCD]),
        rkey: Rkey(0x0102_0304),
        rmbe_index: 7,
        alert_token: AlertToken(0xA1A2_A3A4),
        size: RmbeSize::from_bytes(512 * 1024).unwrap(),
        mtu: Mtu::from_low_bits(5),
        rmb_address: RmbAddress(0x0000_7F00_1234_0000),
        psn: Psn([0xFE, 0xDC, 0xBA]),
        form: FormR::V1 { first_contact: true },
    };
    assert_both_ways(&vector!("hand-accept-smc-r-v1-first-contact"), accept);
}

#[test]
fn reads_and_writes_a_confirm_with_two_gids() {
    let list = [mapped(Ipv4Addr::new(10, 0, 0, 2)), mapped(Ipv4Addr::new(192, 0, 2, 2))];
    let confirm = AcceptConfirmR {
        peer_id: PeerId([0xD1, 0x32, 0x52, 0x54, 0, 0, 0, 2]),
        qp_number: QpNumber([0, 0, 0x12]),
        rkey: Rkey(0x0A0B_0C0D),
        rmbe_index: 255,
        size: RmbeSize::from_low_bits(15),
        mtu: Mtu::from_low_bits(4),
        rmb_address: RmbAddress(0xFF48_81C2_835A_0000),
        psn: Psn([0, 0, 1]),
        ..linux_smc_r(
            Role::Confirm,
            2,
            Some(FirstContactR {
                common: FirstContact {
                    os_type: OsType::AIX,
                    release: Release::V2_1,
                    hostname: Hostname::new(b"client-1"),
                    feature_mask: 0,
                },
                direct: false,
                max_conns: 16,
                max_links: 1,
                gids: list.into_iter().collect(),
            }),
        )
    };
    assert_eq!(confirm.emitted_len(), 196);
    assert_both_ways(&vector!("hand-confirm-smc-r-v2-two-gids"), confirm);
}

#[test]
fn reads_and_writes_an_smc_d_confirm_of_version_1() {
    let confirm = AcceptConfirmDV1 {
        role: Role::Confirm,
        gid: Gid(0x1122_3344_5566_7788),
        token: DmbToken(0x0123_4567_89AB_CDEF),
        dmbe_index: 0,
        size: RmbeSize::from_bytes(32 * 1024).unwrap(),
        link_id: LinkId(0x0303),
        first_contact: false,
    };
    assert_both_ways(&vector!("hand-confirm-smc-d-v1"), confirm);
}

/// Every CLC message that two Linux hosts exchanged in the captures.
#[test]
fn every_message_of_the_captures_survives_a_round_trip() {
    let mut counts = [0; 4];
    for (capture, bytes) in captures() {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = Header::parse(rest).unwrap().length;
            let (bytes, behind) = rest.split_at(length.into());
            let message =
                Message::parse(bytes).unwrap_or_else(|error| panic!("{capture}: {error}"));
            let mut out = [0; EMITTED_LEN_MAX];
            let len = message.emit(&mut out).unwrap();
            assert_eq!(&out[..len], bytes, "{capture}");
            counts[usize::from(bytes[4]) - 1] += 1;
            rest = behind;
        }
    }
    assert_eq!(counts, [14, 14, 14, 1], "Proposals, Accepts, Confirms, Declines");
}

#[test]
fn one_emulated_device_makes_a_proposal_of_224_bytes() {
    let bytes = vector!("hand-proposal-smc-d-v2");
    let ueids = [eid("SMCV2-EID-1")].into_iter().collect();
    let proposal = Proposal::smc_d_v2(ueids, None, gid(CLIENT.0, CLIENT.1), CHID);
    assert_eq!(bytes.len(), 224);
    assert_eq!(proposal.emitted_len(), 224);
    assert_both_ways(&bytes, proposal.clone());
    assert_eq!(proposal.emulated_devices().collect::<Vec<_>>(), [(gid(CLIENT.0, CLIENT.1), CHID)]);
}

/// Nothing else of the message is another.
#[test]
fn a_seid_stands_behind_its_flag_and_before_the_devices() {
    let seid = Eid::seid(0x0F3C_2A1B_4D5E_4F60);
    let ueids = [eid("SMCV2-EID-1")].into_iter().collect();
    let proposal = Proposal::smc_d_v2(ueids, Some(seid), gid(CLIENT.0, CLIENT.1), CHID);
    let mut bytes = vector!("hand-proposal-smc-d-v2");
    assert_eq!((bytes[83], &bytes[152..184]), (0x10, &[0; 32][..]));
    bytes[83] |= 0x01;
    bytes[152..184].copy_from_slice(b"SIDESTEP-ISMSEID0F3C2A1B4D5E4F60");
    assert_both_ways(&bytes, proposal);
}

#[test]
fn reads_and_writes_a_proposal_of_rfc_7609() {
    let proposal = Proposal {
        version: Version::V1,
        peer_id: PeerId([0xB5, 0x2F, 0x52, 0x54, 0, 0, 0, 1]),
        roce_gid: RoceGid("fe80::5054:ff:fe00:1".parse::<Ipv6Addr>().unwrap().octets()),
        mac: Mac([0x52, 0x54, 0, 0, 0, 1]),
        smc_d_area: None,
        v1: Some(V1Offer {
            types: Types::SmcR,
            prefixes: IpPrefixes::V4 { subnet: Ipv4Addr::new(10, 0, 0, 0), prefix_len: 24 },
        }),
        v2: None,
    };
    assert_both_ways(&vector!("hand-proposal-smc-r-v1"), proposal);
}

#[test]
fn reads_and_writes_a_proposal_of_everything() {
    let native = IsmDevice { gid: Gid(0x1122_3344_5566_7788), chid: Chid(0x0780) };
    let network =
        |prefix: &str, prefix_len| Ipv6Prefix { prefix: prefix.parse().unwrap(), prefix_len };
    let entries = [
        GidEntry { gid: native.gid, chid: native.chid },
        GidEntry { gid: Gid(CLIENT.0), chid: Chid(0xFF00) },
    ];
    let proposal = Proposal {
        version: Version::V2,
        peer_id: PeerId([0xB5, 0x2F, 0x52, 0x54, 0, 0, 0, 1]),
        roce_gid: RoceGid("fe80::5054:ff:fe00:1".parse::<Ipv6Addr>().unwrap().octets()),
        mac: Mac([0x52, 0x54, 0, 0, 0, 1]),
        smc_d_area: Some(native),
        v1: Some(V1Offer {
            types: Types::Both,
            prefixes: IpPrefixes::V6(
                [network("2001:db8:1::", 64), network("2001:db8:2::", 48)].into_iter().collect(),
            ),
        }),
        v2: Some(V2Offer {
            types: V2Types::Both(SmcDV2 {
                seid: Some(Eid(*b"IBM-SYSZ-ISMSEID0000000012348561")),
                entries: entries.into_iter().collect(),
            }),
            ueids: [eid("A1")].into_iter().collect(),
            release: Release::V2_1,
            roce_gid: RoceGid(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets()),
            max_conns: 255,
            max_links: 2,
            feature_mask: 0x0001,
        }),
    };
    assert_both_ways(&vector!("hand-proposal-all-v1-v2"), proposal.clone());
    assert_eq!(proposal.emulated_devices().count(), 0, "a lone half is not a device");
}

#[test]
fn reads_and_writes_a_first_contact_accept() {
    let accept = AcceptConfirmD {
        role: Role::Accept,
        gid: gid(SERVER.0, SERVER.1),
        token: DmbToken(0x0123_4567_89AB_CDEF),
        dmbe_index: 0,
        size: RmbeSize::DEFAULT,
        link_id: LinkId(0x0101),
        chid: CHID,
        eid: eid("SMCV2-EID-1"),
        first_contact: Some(FirstContact {
            os_type: OsType::LINUX,
            release: Release::V2_1,
            hostname: Hostname::new(b"server-1"),
            feature_mask: 0x0001,
        }),
    };
    assert_eq!(accept.emitted_len(), 130);
    assert_both_ways(&vector!("hand-accept-smc-d-v2-first-contact"), accept);
}

#[test]
fn reads_and_writes_a_subsequent_contact_accept() {
    let accept = AcceptConfirmD {
        role: Role::Accept,
        gid: gid(SERVER.0, SERVER.1),
        token: DmbToken(0x0123_4567_89AB_CDF0),
        dmbe_index: 0,
        size: RmbeSize::MAX,
        link_id: LinkId(0x0101),
        chid: CHID,
        eid: eid("SMCV2-EID-1"),
        first_contact: None,
    };
    assert_eq!(accept.emitted_len(), 78);
    assert_both_ways(&vector!("hand-accept-smc-d-v2-subsequent"), accept);
}

#[test]
fn reads_and_writes_a_first_contact_confirm_of_release_2_0() {
    let confirm = AcceptConfirmD {
        role: Role::Confirm,
        gid: gid(CLIENT.0, 0),
        token: DmbToken(0xFEDC_BA98_7654_3210),
        dmbe_index: 0,
        size: RmbeSize::MIN,
        link_id: LinkId(0x0202),
        chid: Chid(0x0780),
        eid: Eid(*b"IBM-SYSZ-ISMSEID0000000012348561"),
        first_contact: Some(FirstContact {
            os_type: OsType::ZOS,
            release: Release::V2_0,
            hostname: Hostname::new(b"CLIENT"),
            feature_mask: 0,
        }),
    };
    assert_both_ways(&vector!("hand-confirm-smc-d-v2.0-first-contact"), confirm);
}

#[test]
fn reads_and_writes_an_out_of_sync_decline() {
    let decline = Decline {
        peer_id: PeerId([0xD1, 0x32, 0x52, 0x54, 0, 0, 0, 2]),
        diagnosis: Diagnosis::SYNCERR,
        out_of_sync: true,
        v2: Some(DeclineV2 { os_type: OsType::LINUX, further: [0; 4] }),
    };
    assert_both_ways(&vector!("hand-decline-v2-out-of-sync"), decline);
}

/// The example lengths of the Proposal: what is offered, and how long that is.
#[test]
fn a_proposal_is_as_long_as_its_sections() {
    let ipv4 = V1Offer {
        types: Types::SmcR,
        prefixes: IpPrefixes::V4 { subnet: Ipv4Addr::new(10, 0, 0, 0), prefix_len: 8 },
    };
    let both = Proposal { v1: Some(ipv4.clone()), ..linux_proposal() };
    let only_v1 = Proposal { v2: None, ..both.clone() };
    let rfc = Proposal { version: Version::V1, smc_d_area: None, ..only_v1.clone() };
    let nothing = Proposal { v2: None, ..linux_proposal() };
    for (proposal, len) in
        [(linux_proposal(), 156), (both, 164), (only_v1, 92), (rfc, 52), (nothing, 84)]
    {
        let mut out = [0; EMITTED_LEN_MAX];
        assert_eq!(proposal.emit(&mut out), Ok(len));
        assert_eq!(Proposal::parse(&out[..len]), Ok(proposal));
    }
}

#[test]
fn emulated_devices_are_paired_by_neighbours() {
    let entry = |gid, chid| GidEntry { gid: Gid(gid), chid: Chid(chid) };
    let pairs = |entries: &[GidEntry]| {
        let mut proposal =
            Proposal::smc_d_v2([eid("A")].into_iter().collect(), None, gid(1, 2), CHID);
        let offer = proposal.v2.as_mut().unwrap();
        let entries = entries.iter().copied().collect();
        offer.types = V2Types::SmcD(SmcDV2 { seid: None, entries });
        proposal.emulated_devices().map(|(g, c)| (g.gid.0, g.gid_ext, c.0)).collect::<Vec<_>>()
    };
    let native = entry(9, 0x0780);
    assert_eq!(pairs(&[]), []);
    assert_eq!(pairs(&[native, native]), []);
    assert_eq!(pairs(&[entry(1, 0xFF00)]), []);
    assert_eq!(pairs(&[entry(1, 0xFF00), entry(2, 0xFF01)]), []);
    assert_eq!(pairs(&[entry(1, 0xFF00), native, entry(2, 0xFF00)]), []);
    assert_eq!(
        pairs(&[entry(7, 0xFF01), entry(1, 0xFF00), entry(2, 0xFF00), native]),
        [(1, 2, 0xFF00)]
    );
    assert_eq!(
        pairs(&[entry(1, 0xFFFF), entry(2, 0xFFFF), entry(3, 0xFFFF), entry(4, 0xFFFF)]),
        [(1, 2, 0xFFFF), (3, 4, 0xFFFF)]
    );
}

#[test]
fn reads_and_writes_host_control_datagrams() {
    let instance = Instance::from(gid(CLIENT.0, CLIENT.1));
    let hello = Hello {
        instance,
        slot: 5,
        generation: 7,
        token: std::array::from_fn(|index| 0xA0 + index as u8),
        socket_cookie: 0x1234,
        netns_cookie: 1,
        rmbe_len: 65_536,
    };
    let introduction = Introduction {
        instance,
        reply_wanted: true,
        pid: 4096,
        slab_len: 64 << 20,
        link_id: LinkId(0x0101),
    };
    let channel = Channel { instance, channel: 258 };
    let lookup = Lookup { instance, token: hello.token, side: Side::Server, port: 8080 };
    let (own_uid, uid, gid) = (1000, 100_000, 100);
    let (token, side) = (hello.token, Side::Client);
    let is_granted = true;
    let matched = Match { instance, token, port: 8080, side, is_granted, own_uid, uid, gid };
    let refusal = Refusal { cause: RefusalCause::NoRoom };
    let messages = [
        ControlMessage::Hello(hello),
        ControlMessage::Introduction(introduction),
        ControlMessage::Channel(channel),
        ControlMessage::Lookup(lookup),
        ControlMessage::Match(matched),
        ControlMessage::Refusal(refusal),
    ];
    for (message, (name, bytes)) in messages.into_iter().zip(control_vectors()) {
        assert_eq!(ControlMessage::parse(&bytes), Ok(message), "{name}");
        let mut out = [0; sidestep_wire::host_control::EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        assert_eq!(&out[..len], bytes, "{name}");
        let is_agents = matches!(message, ControlMessage::Refusal(_));
        assert_eq!(message.instance(), if is_agents { Instance([0; 16]) } else { instance });
    }
}

#[test]
fn every_vector_survives_a_round_trip() {
    for (name, bytes) in clc_vectors() {
        let message = Message::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        assert_eq!(&out[..len], bytes, "{name}");
    }
}
