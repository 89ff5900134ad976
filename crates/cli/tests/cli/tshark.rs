//! A second opinion: another dissector reads what we emit, of every kind and version.
//!
//! Each message goes into a capture, alone in its connection, and each field that tshark has a name
//! for must come out as it went in. tshark knows nothing of release 2.1 (limits, features) and calls
//! that reserved; for it there are the vectors.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

use sidestep_wire::clc::proposal::{
    GidEntry, IpPrefixes, Ipv6Prefix, IsmDevice, Proposal, SmcDV2, Types, V1Offer, V2Offer, V2Types,
};
use sidestep_wire::clc::{
    AcceptConfirmD, AcceptConfirmDV1, AcceptConfirmR, Decline, DeclineV2, EMITTED_LEN_MAX,
    FEATURE_EMULATED_ISM, FirstContact, FirstContactR, FormR, Hostname, Message, OsType, Release,
    Role, Version,
};
use sidestep_wire::{
    AlertToken, Chid, Diagnosis, DmbToken, Eid, ExtendedGid, Gid, LinkId, Mac, Mtu, PeerId, Psn,
    QpNumber, Rkey, RmbAddress, RmbeSize, RoceGid,
};

use crate::capture::{Capture, Side};
use crate::support::Place;

/// A field as tshark names it, and the values it must have, one for each time it occurs.
type Expected = Vec<(&'static str, Vec<String>)>;

#[test]
fn another_dissector_reads_what_we_emit() {
    let known = Command::new("tshark").args(["-G", "fields"]).output();
    let Some(known) = known.ok().filter(|output| output.status.success()) else {
        println!("skipped: no tshark (package tshark)");
        return;
    };
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    if !known.contains("smc.confirm.gid.list.entry") {
        println!("skipped: a tshark that does not know SMC version 2");
        return;
    }

    let cases = cases();
    let mut capture = Capture::new();
    for (message, _) in &cases {
        let mut bytes = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut bytes).unwrap();
        let from = if matches!(message, Message::Accept(_)) { Side::Server } else { Side::Client };
        capture.open(true, true).say(from, &bytes[..len]).next_connection();
    }
    let place = Place::new();
    let file = place.path().join("smc.pcap");
    std::fs::write(&file, capture.pcap()).unwrap();

    let mut fields: Vec<&str> = cases.iter().flat_map(|(_, it)| it.iter().map(|it| it.0)).collect();
    fields.sort_unstable();
    fields.dedup();
    let rows = dissect(&file, "smc", &fields);
    assert_eq!(rows.len(), cases.len());

    let mut differences = Vec::new();
    for ((message, expected), row) in cases.iter().zip(rows) {
        for (field, values) in expected {
            let column = fields.iter().position(|it| it == field).unwrap();
            if row[column] != values.join("|") {
                differences
                    .push(format!("{field}: {:?}, not {values:?}: {message:?}", row[column]));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));

    let option = ["tcp.option_kind", "tcp.option_len", "tcp.options.experimental.exid"];
    let data = "tcp.options.experimental.data";
    let rows = dissect(&file, "tcp.flags.syn == 1", &[&option[..], &[data]].concat());
    assert_eq!(rows.len(), 2 * cases.len(), "a SYN and a SYN-ACK each");
    for row in rows {
        // Two NOPs, and the ExID as 16 bits and data, as the RFC for experiments has it.
        assert_eq!(row, ["1|1|254", "6", "0xe2d4", "c3d9"]);
    }
}

/// The values of `fields` in each packet that `filter` lets through; several are joined by `|`.
fn dissect(file: &Path, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-Y", filter, "-T", "fields", "-E", "aggregator=|"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn cases() -> Vec<(Message, Expected)> {
    let mut cases = Vec::new();
    for proposal in proposals() {
        cases.push((proposal.clone().into(), of_proposal(&proposal)));
    }
    for role in [Role::Accept, Role::Confirm] {
        for message in smc_r(role) {
            cases.push((message.clone().into(), of_smc_r(&message)));
        }
        for first_contact in [true, false] {
            let message = smc_d_v1(role, first_contact);
            cases.push((message.into(), of_smc_d_v1(&message)));
        }
        for message in smc_d(role) {
            cases.push((message.clone().into(), of_smc_d(&message)));
        }
    }
    for decline in declines() {
        cases.push((decline.into(), of_decline(&decline)));
    }
    cases
}

fn one(value: impl ToString) -> Vec<String> {
    vec![value.to_string()]
}

fn hex(bytes: &[u8]) -> Vec<String> {
    one(format!("0x{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

fn frame(message: &Message) -> Expected {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut bytes).unwrap();
    vec![("smc.clc_msg", one(bytes[4])), ("smc.length", one(len))]
}

const UEIDS: [&str; 2] = ["SMCV2-EID-1", "ANOTHER.EID"];
const SEID: &[u8; 32] = b"IBM-SYSZ-ISMSEID0000000012348561";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// In the words of tshark: with its padding.
fn padded(eid: Eid) -> String {
    String::from_utf8(eid.0.to_vec()).unwrap()
}

/// Each kind of offer: version 1 alone by IPv4 and IPv6, version 2 alone, everything.
fn proposals() -> Vec<Proposal> {
    let v4 = IpPrefixes::V4 { subnet: Ipv4Addr::new(10, 1, 2, 0), prefix_len: 24 };
    let network = |text: &str, prefix_len| Ipv6Prefix { prefix: text.parse().unwrap(), prefix_len };
    let v6 = [network("2001:db8:1::", 64), network("2001:db8:2::", 48)];
    let v6 = IpPrefixes::V6(v6.into_iter().collect());
    let offer = |types| V2Offer {
        types,
        ueids: UEIDS.iter().map(|name| Eid::ueid(name).unwrap()).collect(),
        release: Release::V2_1,
        roce_gid: RoceGid(ADDRESS.to_ipv6_mapped().octets()),
        max_conns: 16,
        max_links: 2,
        feature_mask: FEATURE_EMULATED_ISM,
    };
    let entries = [
        GidEntry { gid: Gid(0x1122_3344_5566_7788), chid: Chid(0x0780) },
        GidEntry { gid: Gid(0x0102_0304_0506_0708), chid: Chid(0xFF01) },
        GidEntry { gid: Gid(0x090A_0B0C_0D0E_0F10), chid: Chid(0xFF01) },
    ];
    let smc_d = SmcDV2 { seid: Some(Eid(*SEID)), entries: entries.into_iter().collect() };
    let base = Proposal {
        version: Version::V2,
        peer_id: PeerId([0xB5, 0x2F, 0x52, 0x54, 0, 0, 0, 1]),
        roce_gid: RoceGid("fe80::5054:ff:fe00:1".parse::<Ipv6Addr>().unwrap().octets()),
        mac: Mac([0x52, 0x54, 0, 0, 0, 1]),
        smc_d_area: Some(IsmDevice { gid: entries[0].gid, chid: entries[0].chid }),
        v1: Some(V1Offer { types: Types::Both, prefixes: v6 }),
        v2: Some(offer(V2Types::Both(smc_d.clone()))),
    };
    let v4_offer = |types| Some(V1Offer { types, prefixes: v4.clone() });
    let without = IsmDevice::default();
    let v2_0 = V2Offer { release: Release::V2_0, ..offer(V2Types::SmcR) };
    vec![
        base.clone(),
        Proposal { v1: v4_offer(Types::SmcR), v2: Some(v2_0), ..base.clone() },
        Proposal {
            v1: None,
            v2: Some(offer(V2Types::SmcR)),
            smc_d_area: Some(without),
            ..base.clone()
        },
        Proposal {
            v1: None,
            v2: Some(offer(V2Types::SmcD(smc_d))),
            smc_d_area: Some(without),
            ..base.clone()
        },
        Proposal {
            version: Version::V1,
            v1: v4_offer(Types::SmcR),
            v2: None,
            smc_d_area: None,
            ..base.clone()
        },
        Proposal { version: Version::V1, v1: v4_offer(Types::SmcD), v2: None, ..base },
    ]
}

fn of_proposal(proposal: &Proposal) -> Expected {
    let code = |types: Types| match types {
        Types::SmcR => 0,
        Types::SmcD => 1,
        Types::Both => 3,
    };
    let v1 = proposal.v1.as_ref();
    let v2 = proposal.v2.as_ref();
    let of_v1 = |has: fn(Types) -> bool| v1.is_some_and(|offer| has(offer.types));
    let of_v2 = |has: fn(Types) -> bool| v2.is_some_and(|offer| has(offer.types.types()));

    let mut fields = frame(&proposal.clone().into());
    fields.push(("smc.proposal.smc.version", one(proposal.version.code())));
    fields.push(("smc.proposal.smc.type", one(v1.map_or(2, |offer| code(offer.types)))));
    if proposal.version == Version::V2 {
        let types = v2.map_or(2, |offer| code(offer.types.types()));
        fields.push(("smc.proposal.smcv2.type", one(types)));
    }
    if of_v1(Types::has_smc_r) || of_v2(Types::has_smc_r) {
        fields.push(("smc.proposal.sender.client.peer.id", hex(&proposal.peer_id.0)));
    }
    if of_v1(Types::has_smc_r) {
        fields.push(("smc.proposal.client.preferred.gid", one(proposal.roce_gid)));
        fields.push(("smc.proposal.client.preferred.mac", one(proposal.mac)));
    }
    // Of an RFC 7609 Proposal, without an SMC-D area, tshark does not read the networks.
    if let (Some(offer), Some(_)) = (v1, proposal.smc_d_area) {
        fields.extend(of_networks(&offer.prefixes));
    }

    let smc_d = v2.and_then(V2Offer::smc_d);
    let entries = smc_d.map_or(&[][..], |smc_d| &smc_d.entries);
    if let (Some(device), true) =
        (proposal.smc_d_area, of_v1(Types::has_smc_d) || of_v2(Types::has_smc_d))
    {
        let gids = [device.gid].into_iter().chain(entries.iter().map(|entry| entry.gid));
        let gids = gids.flat_map(|gid| hex(&gid.0.to_be_bytes())).collect();
        fields.push(("smc.proposal.ism.gid", gids));
    }
    if let (Some(device), true) = (proposal.smc_d_area, of_v2(Types::has_smc_d)) {
        let chids = [device.chid].into_iter().chain(entries.iter().map(|entry| entry.chid));
        fields.push(("smc.proposal.smc.chid", chids.map(|chid| chid.to_string()).collect()));
    }
    if let Some(offer) = v2 {
        fields.extend(of_v2_offer(offer));
    }
    fields
}

fn of_networks(prefixes: &IpPrefixes) -> Expected {
    let (subnet, bits) = match prefixes {
        IpPrefixes::V4 { subnet, prefix_len } => (*subnet, *prefix_len),
        IpPrefixes::V6(_) => (Ipv4Addr::UNSPECIFIED, 0),
    };
    let v6 = match prefixes {
        IpPrefixes::V4 { .. } => &[][..],
        IpPrefixes::V6(list) => list,
    };
    vec![
        ("smc.outgoing.interface.subnet.mask", one(subnet)),
        ("smc.outgoing.interface.subnet.mask.number.of.significant.bits", one(bits)),
        ("smc.proposal.ipv6.prefix.count", one(v6.len())),
        ("smc.proposal.ipv6.prefix.value", v6.iter().map(|it| it.prefix.to_string()).collect()),
        (
            "smc.proposal.ipv6.prefix.length",
            v6.iter().map(|it| it.prefix_len.to_string()).collect(),
        ),
    ]
}

fn of_v2_offer(offer: &V2Offer) -> Expected {
    let smc_d = offer.smc_d();
    let seid = smc_d.and_then(|smc_d| smc_d.seid);
    let mut fields = vec![
        ("smc.proposal.smc.version.relnum", one(offer.release.code())),
        ("smc.proposal.smc.seid", one(u8::from(seid.is_some()))),
        ("smc.proposal.eid.count", one(offer.ueids.len())),
        ("smc.proposal.eid", offer.ueids.iter().map(|ueid| padded(*ueid)).collect()),
        ("smc.proposal.ismv2_gid_count", one(smc_d.map_or(0, |smc_d| smc_d.entries.len()))),
    ];
    if let Some(seid) = seid {
        fields.push(("smc.proposal.system.eid", one(padded(seid))));
    }
    if offer.types.types().has_smc_r() {
        fields.push(("smc.proposal.rocev2.gid.ipv4", one(ADDRESS)));
    }
    fields
}

/// Version 1, and version 2 on first and on later contact.
fn smc_r(role: Role) -> Vec<AcceptConfirmR> {
    let gid = RoceGid(ADDRESS.to_ipv6_mapped().octets());
    let second = RoceGid(Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped().octets());
    let eid = Eid::ueid(UEIDS[0]).unwrap();
    let contact = |release, direct| FirstContactR {
        common: FirstContact {
            os_type: OsType::LINUX,
            release,
            hostname: Hostname::new(b"host-1"),
            feature_mask: 0,
        },
        direct,
        max_conns: if release == Release::V2_0 { 0 } else { 255 },
        max_links: if release == Release::V2_0 { 0 } else { 2 },
        gids: match role {
            Role::Accept => [].into_iter().collect(),
            Role::Confirm => [gid, second].into_iter().collect(),
        },
    };
    let base = AcceptConfirmR {
        role,
        peer_id: PeerId([0xD1, 0x32, 0x52, 0x54, 0, 0, 0, 2]),
        gid,
        mac: Mac([0x52, 0x54, 0, 0, 0, 2]),
        qp_number: QpNumber([0x01, 0x02, 0x03]),
        rkey: Rkey(0x0A0B_0C0D),
        rmbe_index: 7,
        alert_token: AlertToken(0xA1A2_A3A4),
        size: RmbeSize::from_bytes(512 << 10).unwrap(),
        mtu: Mtu::from_low_bits(3),
        rmb_address: RmbAddress(0xFF48_81C2_835A_0000),
        psn: Psn([0xFE, 0xDC, 0xBA]),
        form: FormR::V1 { first_contact: true },
    };
    let form =
        |first_contact| AcceptConfirmR { form: FormR::V2 { eid, first_contact }, ..base.clone() };
    vec![
        base.clone(),
        AcceptConfirmR { form: FormR::V1 { first_contact: false }, ..base.clone() },
        form(None),
        form(Some(contact(Release::V2_0, false))),
        form(Some(contact(Release::V2_1, true))),
    ]
}

fn of_smc_r(message: &AcceptConfirmR) -> Expected {
    // tshark has a name of its own for each side's fields.
    let [peer_id, gid, mac, qp_number, rkey, index, token, size, mtu, address, psn, eid] =
        match message.role {
            Role::Accept => [
                "smc.accept.sender.server.peer.id",
                "smc.accept.server.preferred.gid",
                "smc.accept.server.preferred.mac",
                "smc.accept.server.qp.number",
                "smc.accept.server.rmb.rkey",
                "smc.accept.server.tcp.conn.index",
                "smc.accept.server.rmb.element.alert.token",
                "smc.accept.rmb.buffer.size",
                "smc.accept.qp.mtu.value",
                "smc.accept.server.rmb.virtual.address",
                "smc.accept.initial.psn",
                "smc.accept.eid",
            ],
            Role::Confirm => [
                "smc.confirm.sender.client.peer.id",
                "smc.client.gid",
                "smc.confirm.client.mac",
                "smc.confirm.client.qp.number",
                "smc.confirm.client.rmb.rkey",
                "smc.confirm.client.tcp.conn.index",
                "smc.client.rmb.element.alert.token",
                "smc.confirm.rmb.buffer.size",
                "smc.confirm.qp.mtu.value",
                "smc.client.rmb.virtual.address",
                "smc.initial.psn",
                "smc.confirm.eid",
            ],
        };
    let mut fields = frame(&message.clone().into());
    fields.extend([
        ("smc.proposal.smc.version", one(message.version().code())),
        (peer_id, hex(&message.peer_id.0)),
        (gid, one(message.gid)),
        (mac, one(message.mac)),
        (qp_number, one(message.qp_number)),
        (rkey, hex(&message.rkey.0.to_be_bytes())),
        (index, one(message.rmbe_index)),
        (token, hex(&message.alert_token.0.to_be_bytes())),
        (size, one(message.size.code())),
        (mtu, one(message.mtu.code())),
        (address, hex(&message.rmb_address.0.to_be_bytes())),
        (psn, one(message.psn)),
        (eid, message.eid().map(padded).into_iter().collect()),
    ]);
    let is_first = one(u8::from(message.is_first_contact()));
    match message.role {
        Role::Accept => fields.push(("smc.proposal.first.contact", is_first)),
        Role::Confirm => fields.push(("smc.confirm.first.contact", is_first)),
    }
    if let Some(contact) = message.first_contact() {
        fields.extend(of_first_contact(message.role, &contact.common));
        fields.push(("smc.accept.v2_lg.type", one(u8::from(contact.direct))));
        if message.role == Role::Confirm {
            let gids = contact.gids.iter().map(ToString::to_string).collect();
            fields.push(("smc.confirm.gid.list.entry_count", one(contact.gids.len())));
            fields.push(("smc.confirm.gid.list.entry", gids));
        }
    }
    fields
}

fn of_first_contact(role: Role, contact: &FirstContact) -> Expected {
    let names = match role {
        Role::Accept => {
            ["smc.accept.os.type", "smc.accept.smc.version.relnum", "smc.accept.peer.host.name"]
        }
        Role::Confirm => {
            ["smc.confirm.os.type", "smc.confirm.smc.version.relnum", "smc.confirm.peer.host.name"]
        }
    };
    let hostname = String::from_utf8(contact.hostname.0.to_vec()).unwrap();
    vec![
        (names[0], one(contact.os_type.code())),
        (names[1], one(contact.release.code())),
        (names[2], one(hostname)),
    ]
}

/// Type, contact, GID, DMB token, DMBE index and size, link ID, CHID, EID.
fn names_of_smc_d(role: Role) -> [&'static str; 9] {
    match role {
        Role::Accept => [
            "smc.accept.smc.type",
            "smc.accept.first.contact",
            "smc.accept.sender.server.ism.gid",
            "smc.accept.dmb.token",
            "smc.accept.dmbe.conn.index",
            "smc.accept.dmbe.buffer.size",
            "smc.accept.server.linkid",
            "smc.accept.smc.chid",
            "smc.accept.eid",
        ],
        Role::Confirm => [
            "smc.confirm.smc.type",
            "smc.confirm.first.contact",
            "smc.confirm.sender.client.ism.gid",
            "smc.confirm.dmb.token",
            "smc.confirm.dmbe.conn.index",
            "smc.confirm.dmbe.buffer.size",
            "smc.confirm.client.linkid",
            "smc.confirm.smc.chid",
            "smc.confirm.eid",
        ],
    }
}

fn smc_d_v1(role: Role, first_contact: bool) -> AcceptConfirmDV1 {
    AcceptConfirmDV1 {
        role,
        gid: Gid(0x1122_3344_5566_7788),
        token: DmbToken(0x0123_4567_89AB_CDEF),
        dmbe_index: 3,
        size: RmbeSize::MAX,
        link_id: LinkId(0x0303),
        first_contact,
    }
}

fn of_smc_d_v1(message: &AcceptConfirmDV1) -> Expected {
    let [kind, contact, gid, token, index, size, link_id, chid, eid] = names_of_smc_d(message.role);
    let mut fields = frame(&(*message).into());
    fields.extend([
        ("smc.proposal.smc.version", one(1)),
        (kind, one(1)),
        (contact, one(u8::from(message.first_contact))),
        (gid, hex(&message.gid.0.to_be_bytes())),
        (token, hex(&message.token.0.to_be_bytes())),
        (index, one(message.dmbe_index)),
        (size, one(message.size.code())),
        (link_id, hex(&message.link_id.0.to_be_bytes())),
        // Version 2 only.
        (chid, Vec::new()),
        (eid, Vec::new()),
    ]);
    fields
}

/// On first contact in both releases, and later.
fn smc_d(role: Role) -> Vec<AcceptConfirmD> {
    let base = AcceptConfirmD {
        role,
        gid: ExtendedGid { gid: Gid(0x1122_3344_5566_7788), gid_ext: 0x99AA_BBCC_DDEE_FF00 },
        token: DmbToken(0x0123_4567_89AB_CDEF),
        dmbe_index: 3,
        size: RmbeSize::DEFAULT,
        link_id: LinkId(0x0304),
        chid: Chid::LOOPBACK,
        eid: Eid::ueid(UEIDS[1]).unwrap(),
        first_contact: None,
    };
    let contact = |os_type, release, feature_mask| {
        Some(FirstContact { os_type, release, hostname: Hostname::new(b"host-2"), feature_mask })
    };
    vec![
        base.clone(),
        AcceptConfirmD { first_contact: contact(OsType::ZOS, Release::V2_0, 0), ..base.clone() },
        AcceptConfirmD { first_contact: contact(OsType::AIX, Release::V2_1, 1), ..base },
    ]
}

fn of_smc_d(message: &AcceptConfirmD) -> Expected {
    let [kind, contact, gid, token, index, size, link_id, chid, eid] = names_of_smc_d(message.role);
    let mut fields = frame(&message.clone().into());
    fields.extend([
        ("smc.proposal.smc.version", one(2)),
        (kind, one(1)),
        (contact, one(u8::from(message.first_contact.is_some()))),
        (gid, hex(&message.gid.gid.0.to_be_bytes())),
        (token, hex(&message.token.0.to_be_bytes())),
        (index, one(message.dmbe_index)),
        (size, one(message.size.code())),
        (link_id, hex(&message.link_id.0.to_be_bytes())),
        (chid, one(message.chid)),
        (eid, one(padded(message.eid))),
    ]);
    if let Some(contact) = &message.first_contact {
        fields.extend(of_first_contact(message.role, contact));
    }
    fields
}

/// Every diagnosis, in version 1 and in version 2.
fn declines() -> Vec<Decline> {
    let peer_id = PeerId([0x49, 0x35, 0x52, 0x54, 0, 0, 0, 2]);
    let v1 = Diagnosis::NAMED.iter().map(|diagnosis| Decline::v1(peer_id, *diagnosis));
    let v2 = Diagnosis::NAMED.iter().map(|diagnosis| Decline {
        out_of_sync: *diagnosis == Diagnosis::SYNCERR,
        v2: Some(DeclineV2 { os_type: OsType::AIX, further: [1, 2, 3, 0xFFFF_FFFF] }),
        ..Decline::v1(peer_id, *diagnosis)
    });
    v1.chain(v2).collect()
}

fn of_decline(decline: &Decline) -> Expected {
    let further = decline.v2.map_or(Vec::new(), |v2| v2.further.to_vec());
    let words = [decline.diagnosis.0].into_iter().chain(further);
    let mut fields = frame(&(*decline).into());
    fields.extend([
        ("smc.decline.smc.version", one(decline.version().code())),
        ("smc.decline.osync", one(u8::from(decline.out_of_sync))),
        ("smc.sender.peer.id", hex(&decline.peer_id.0)),
        ("smc.peer.diag.info", words.flat_map(|word| hex(&word.to_be_bytes())).collect()),
        (
            "smc.decline.os.type",
            decline.v2.map(|v2| v2.os_type.code().to_string()).into_iter().collect(),
        ),
    ]);
    fields
}
