//! Messages and bytes no one thought of.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::{array, collection::vec, option, prelude::*, sample::select};
use sidestep_wire::{
    AlertToken, Chid, Diagnosis, DmbToken, Eid, ExtendedGid, Gid, LinkId, Mac, Mtu, PeerId, Psn,
    QpNumber, Rkey, RmbAddress, RmbeSize, RoceGid,
    clc::{
        AcceptConfirmD, AcceptConfirmDV1, AcceptConfirmR, Decline, DeclineV2, EMITTED_LEN_MAX,
        FirstContact, FirstContactR, FormR, Hostname, Message, OsType, Proposal, Release, Role,
        Version,
        proposal::{GidEntry, IpPrefixes, Ipv6Prefix, IsmDevice, SmcDV2, Types, V1Offer},
        proposal::{V2Offer, V2Types},
    },
    host_control::{
        self, Channel, ControlMessage, Hello, Instance, Introduction, Lookup, Match, Refusal,
        RefusalCause, Side,
    },
};

prop_compose! {
    fn ueid()(name in "[A-Z0-9][A-Z0-9.-]{0,31}") -> Eid {
        Eid::ueid(&name).unwrap()
    }
}

prop_compose! {
    fn ism_device()(gid: u64, chid: u16) -> IsmDevice {
        IsmDevice { gid: Gid(gid), chid: Chid(chid) }
    }
}

fn prefixes() -> impl Strategy<Value = IpPrefixes> {
    let v4 = (any::<u32>(), 0..=32_u8).prop_map(|(subnet, prefix_len)| IpPrefixes::V4 {
        subnet: Ipv4Addr::from(subnet),
        prefix_len,
    });
    let v6 = (any::<u128>(), 0..=128_u8)
        .prop_map(|(prefix, prefix_len)| Ipv6Prefix { prefix: Ipv6Addr::from(prefix), prefix_len });
    prop_oneof![v4, vec(v6, 1..=8).prop_map(|list| IpPrefixes::V6(list.into_iter().collect()))]
}

prop_compose! {
    fn v1_offer()(
        types in select(&[Types::SmcR, Types::SmcD, Types::Both][..]),
        prefixes in prefixes(),
    ) -> V1Offer {
        V1Offer { types, prefixes }
    }
}

prop_compose! {
    fn smc_d_v2()(
        seid in option::of(array::uniform32(any::<u8>())),
        entries in vec((any::<u64>(), any::<u16>()), 0..=8),
    ) -> SmcDV2 {
        let entry = |(gid, chid)| GidEntry { gid: Gid(gid), chid: Chid(chid) };
        SmcDV2 { seid: seid.map(Eid), entries: entries.into_iter().map(entry).collect() }
    }
}

prop_compose! {
    fn v2_offer()(
        types in prop_oneof![
            Just(V2Types::SmcR),
            smc_d_v2().prop_map(V2Types::SmcD),
            smc_d_v2().prop_map(V2Types::Both),
        ],
        ueids in vec(ueid(), 0..=8),
        release: u8,
        roce_gid: [u8; 16],
        max_conns: u8,
        max_links: u8,
        feature_mask: u16,
    ) -> V2Offer {
        V2Offer {
            types,
            ueids: ueids.into_iter().collect(),
            release: Release::from_low_bits(release),
            roce_gid: RoceGid(roce_gid),
            max_conns,
            max_links,
            feature_mask,
        }
    }
}

/// What the version allows: in version 1 something is offered, and SMC-D needs its area.
fn sections()
-> impl Strategy<Value = (Version, Option<IsmDevice>, Option<V1Offer>, Option<V2Offer>)> {
    let version_1 =
        (option::of(ism_device()), ism_device(), v1_offer()).prop_map(|(perhaps, surely, v1)| {
            let area = if v1.types.has_smc_d() { Some(surely) } else { perhaps };
            (Version::V1, area, Some(v1), None)
        });
    let version_2 = (ism_device(), option::of(v1_offer()), option::of(v2_offer()))
        .prop_map(|(area, v1, v2)| (Version::V2, Some(area), v1, v2));
    prop_oneof![1 => version_1, 3 => version_2]
}

prop_compose! {
    fn proposal()(
        (version, smc_d_area, v1, v2) in sections(),
        peer_id: [u8; 8],
        roce_gid: [u8; 16],
        mac: [u8; 6],
    ) -> Proposal {
        Proposal {
            version,
            peer_id: PeerId(peer_id),
            roce_gid: RoceGid(roce_gid),
            mac: Mac(mac),
            smc_d_area,
            v1,
            v2,
        }
    }
}

prop_compose! {
    fn first_contact()(
        os_type: u8,
        release in 0..=15_u8,
        hostname in array::uniform32(any::<u8>()),
        feature_mask: u16,
    ) -> FirstContact {
        FirstContact {
            os_type: OsType::from_low_bits(os_type),
            release: Release::from_low_bits(release),
            hostname: Hostname(hostname),
            feature_mask: if release == 0 { 0 } else { feature_mask },
        }
    }
}

prop_compose! {
    fn first_contact_r()(
        common in first_contact(),
        direct: bool,
        limits: [u8; 2],
        gids in vec(any::<[u8; 16]>(), 0..=8),
    ) -> FirstContactR {
        let [max_conns, max_links] = if common.release == Release::V2_0 { [0; 2] } else { limits };
        let gids = gids.into_iter().map(RoceGid).collect();
        FirstContactR { common, direct, max_conns, max_links, gids }
    }
}

fn form_r(role: Role) -> impl Strategy<Value = FormR> {
    // Only a Confirm has a GID list.
    let first_contact = first_contact_r().prop_map(move |mut extension| {
        if role == Role::Accept {
            extension.gids.clear();
        }
        extension
    });
    let v2 = (array::uniform32(any::<u8>()), option::of(first_contact))
        .prop_map(|(eid, first_contact)| FormR::V2 { eid: Eid(eid), first_contact });
    let v1 = any::<bool>().prop_map(|first_contact| FormR::V1 { first_contact });
    prop_oneof![1 => v1, 3 => v2]
}

fn role() -> impl Strategy<Value = Role> {
    select(&[Role::Accept, Role::Confirm][..])
}

prop_compose! {
    fn accept_confirm_r()(
        (role, form) in role().prop_flat_map(|role| (Just(role), form_r(role))),
        peer_id: [u8; 8],
        gid: [u8; 16],
        mac: [u8; 6],
        numbers: [[u8; 3]; 2],
        words: [u32; 2],
        codes: [u8; 3],
        address: u64,
    ) -> AcceptConfirmR {
        AcceptConfirmR {
            role,
            peer_id: PeerId(peer_id),
            gid: RoceGid(gid),
            mac: Mac(mac),
            qp_number: QpNumber(numbers[0]),
            rkey: Rkey(words[0]),
            rmbe_index: codes[0],
            alert_token: AlertToken(words[1]),
            size: RmbeSize::from_low_bits(codes[1]),
            mtu: Mtu::from_low_bits(codes[2]),
            rmb_address: RmbAddress(address),
            psn: Psn(numbers[1]),
            form,
        }
    }
}

prop_compose! {
    fn accept_confirm_d_v1()(
        role in role(),
        gid: u64,
        token: u64,
        dmbe_index: u8,
        code in 0..=RmbeSize::CODE_MAX,
        link_id: u32,
        first_contact: bool,
    ) -> AcceptConfirmDV1 {
        AcceptConfirmDV1 {
            role,
            gid: Gid(gid),
            token: DmbToken(token),
            dmbe_index,
            size: RmbeSize::from_code(code).unwrap(),
            link_id: LinkId(link_id),
            first_contact,
        }
    }
}

prop_compose! {
    fn accept_confirm_d()(
        role in role(),
        gid: [u8; 16],
        token: u64,
        dmbe_index: u8,
        code in 0..=RmbeSize::CODE_MAX,
        link_id: u32,
        chid: u16,
        eid in array::uniform32(any::<u8>()),
        first_contact in option::of(first_contact()),
    ) -> AcceptConfirmD {
        AcceptConfirmD {
            role,
            gid: ExtendedGid::from_bytes(gid),
            token: DmbToken(token),
            dmbe_index,
            size: RmbeSize::from_code(code).unwrap(),
            link_id: LinkId(link_id),
            chid: Chid(chid),
            eid: Eid(eid),
            first_contact,
        }
    }
}

prop_compose! {
    fn decline()(
        peer_id: [u8; 8],
        diagnosis: u32,
        out_of_sync: bool,
        v2: Option<(u8, [u32; 4])>,
    ) -> Decline {
        Decline {
            peer_id: PeerId(peer_id),
            diagnosis: Diagnosis(diagnosis),
            out_of_sync,
            v2: v2.map(|(os, further)| DeclineV2 { os_type: OsType::from_low_bits(os), further }),
        }
    }
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        3 => proposal().prop_map(Message::from),
        2 => accept_confirm_d().prop_map(Message::from),
        3 => accept_confirm_r().prop_map(Message::from),
        1 => accept_confirm_d_v1().prop_map(Message::from),
        1 => decline().prop_map(Message::from),
    ]
}

fn control_message() -> impl Strategy<Value = ControlMessage> {
    let hello = (any::<[u8; 16]>(), any::<[u32; 3]>(), any::<[u8; 16]>(), any::<[u64; 2]>())
        .prop_map(|(instance, [slot, generation, rmbe_len], token, cookies)| Hello {
            instance: Instance(instance),
            slot,
            generation,
            token,
            socket_cookie: cookies[0],
            netns_cookie: cookies[1],
            rmbe_len,
        });
    let introduction = (any::<[u8; 16]>(), any::<bool>(), any::<u32>(), any::<u64>(), any::<u32>())
        .prop_map(|(instance, reply_wanted, pid, slab_len, link_id)| Introduction {
            instance: Instance(instance),
            reply_wanted,
            pid,
            slab_len,
            link_id: LinkId(link_id),
        });
    let channel = (any::<[u8; 16]>(), any::<u16>())
        .prop_map(|(instance, channel)| Channel { instance: Instance(instance), channel });
    let lookup = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<bool>(), any::<u16>()).prop_map(
        |(instance, token, is_server, port)| Lookup {
            instance: Instance(instance),
            token,
            side: if is_server { Side::Server } else { Side::Client },
            port,
        },
    );
    let side = (prop_oneof![Just(Side::Client), Just(Side::Server)], any::<bool>());
    let ids = any::<[u32; 3]>();
    let matched = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u16>(), side, ids).prop_map(
        |(instance, token, port, (side, is_granted), [own_uid, uid, gid])| Match {
            instance: Instance(instance),
            token,
            port,
            side,
            is_granted,
            own_uid,
            uid,
            gid,
        },
    );
    let cause = prop_oneof![Just(RefusalCause::Malformed), Just(RefusalCause::NoRoom)];
    prop_oneof![
        lookup.prop_map(ControlMessage::Lookup),
        matched.prop_map(ControlMessage::Match),
        cause.prop_map(|cause| ControlMessage::Refusal(Refusal { cause })),
        hello.prop_map(ControlMessage::Hello),
        introduction.prop_map(ControlMessage::Introduction),
        channel.prop_map(ControlMessage::Channel),
    ]
}

/// Random bytes with a frame around them that passes, so that the parsers behind it get to work.
fn framed() -> impl Strategy<Value = Vec<u8>> {
    (vec(any::<u8>(), 12..700), 1..=4_u8, 1..=2_u8, any::<u8>()).prop_map(
        |(mut bytes, message_type, version, flags)| {
            let len = bytes.len();
            bytes[..4].copy_from_slice(&[0xE2, 0xD4, 0xC3, 0xD9]);
            bytes[4] = message_type;
            bytes[5..7].copy_from_slice(&(len as u16).to_be_bytes());
            bytes[7] = version << 4 | flags & 0x0F;
            bytes[len - 4..].copy_from_slice(&[0xE2, 0xD4, 0xC3, 0xC4]);
            bytes
        },
    )
}

/// What parses can be emitted, and means the same.
fn check_stable(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).expect("what parsed can be emitted");
        assert_eq!(Message::parse(&out[..len]), Ok(message));
    }
}

proptest! {
    #[test]
    fn a_message_survives_the_wire(message in message()) {
        let mut out = [0xAA; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        let bytes = &out[..len];
        prop_assert_eq!(Message::parse(bytes), Ok(message));

        // The length says how many bytes were written, and the trailer is at its end.
        prop_assert_eq!(usize::from(u16::from_be_bytes([bytes[5], bytes[6]])), len);
        prop_assert_eq!(&bytes[len - 4..], &bytes[..4]);
        prop_assert!(out[len..].iter().all(|byte| *byte == 0xAA));
    }

    #[test]
    fn a_proposal_has_the_length_of_its_sections(proposal in proposal()) {
        let ip_area = proposal.v1.as_ref().map_or(0, |v1| match &v1.prefixes {
            IpPrefixes::V4 { .. } => 8,
            IpPrefixes::V6(list) => 8 + 17 * list.len(),
        });
        let v2 = proposal.v2.as_ref().map_or(0, |v2| 40 + 32 * v2.ueids.len()
            + v2.smc_d().map_or(0, |smc_d| 48 + 10 * smc_d.entries.len()));
        let area = if proposal.smc_d_area.is_some() { 40 } else { 0 };
        prop_assert_eq!(proposal.emitted_len(), 40 + area + ip_area + v2 + 4);
    }

    #[test]
    fn a_cut_off_message_is_refused(message in message(), cut: prop::sample::Index) {
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        let error = Message::parse(&out[..cut.index(len)]).unwrap_err();
        prop_assert!(!error.field().is_empty());
    }

    #[test]
    fn a_changed_message_never_panics(
        message in message(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        for (at, value) in changes {
            out[at.index(len)] = value;
        }
        check_stable(&out[..len]);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..800)) {
        check_stable(&bytes);
        let _ = ControlMessage::parse(&bytes);
    }

    #[test]
    fn random_bytes_in_a_good_frame_never_panic(bytes in framed()) {
        check_stable(&bytes);
    }

    #[test]
    fn a_control_message_survives_the_wire(message in control_message()) {
        let mut out = [0; host_control::EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        prop_assert_eq!(ControlMessage::parse(&out[..len]), Ok(message));
        for cut in 0..len {
            prop_assert!(ControlMessage::parse(&out[..cut]).is_err());
        }
    }
}
