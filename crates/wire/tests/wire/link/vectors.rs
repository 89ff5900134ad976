//! Bytes to fields, and fields to bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use sidestep_wire::{
    AlertToken, LinkNumber, LinkUserId, Mac, Mtu, Psn, QpNumber, Rkey, RmbAddress, RoceGid,
    cdc::{self, CdcMessage, Cursor, ProducerFlags, StateFlags},
    llc::{
        AddLink, AddLinkContinuation, AddLinkExtension, AddLinkForm, AddLinkStep, ConfirmLink,
        ConfirmRkey, ConfirmRkeyContinuation, ConfirmRkeyStep, DeleteLink, DeleteReason,
        DeleteRkey, DeleteScope, EMITTED_LEN_MAX, Form, LengthOrder, LinkRtoken, Message,
        RejectReason, RequestAddLink, RkeyStep, Role, RtokenPair, TestLink,
    },
};

use crate::hex::{cdc_vectors, decode, link_captures, llc_vectors, vector};

/// The form of Linux on x86.
const LINUX: Form = Form::V2(LengthOrder::LittleEndian);
/// The form of the standard.
const STANDARD: Form = Form::V2(LengthOrder::BigEndian);

/// Asserts that `bytes` are `message`, read and written.
fn assert_both_ways(bytes: &[u8], message: impl Into<Message>) {
    let message = message.into();
    assert_eq!(Message::parse(bytes).as_ref(), Ok(&message));
    let mut out = [0xAA; EMITTED_LEN_MAX];
    let len = message.emit(&mut out).unwrap();
    assert_eq!(&out[..len], bytes);
    assert!(out[len..].iter().all(|byte| *byte == 0xAA), "wrote past its length");
}

/// Asserts that `bytes` are `message`, read and written.
fn assert_cdc_both_ways(bytes: &[u8], message: CdcMessage) {
    assert_eq!(CdcMessage::parse(bytes), Ok(message));
    let mut out = [0xAA; cdc::LEN + 1];
    assert_eq!(message.emit(&mut out), Ok(cdc::LEN));
    assert_eq!(&out[..cdc::LEN], bytes);
    assert_eq!(out[cdc::LEN], 0xAA, "wrote past its length");
}

fn mapped(address: [u8; 4]) -> RoceGid {
    RoceGid(Ipv4Addr::from(address).to_ipv6_mapped().octets())
}

/// A version 1 GID, link-local.
fn link_local(address: &str) -> RoceGid {
    RoceGid(address.parse::<Ipv6Addr>().unwrap().octets())
}

/// What the two Linux hosts of the captures confirm; `host` is the end of their addresses.
fn linux_confirm_link(role: Role, host: u8) -> ConfirmLink {
    ConfirmLink {
        form: LINUX,
        role,
        no_eyecatcher: true,
        mac: Mac([0x52, 0x54, 0, 0, 0, host]),
        gid: mapped([10, 0, 0, host]),
        qp_number: QpNumber([0, 0, 0x11]),
        link_number: LinkNumber(1),
        link_user_id: LinkUserId(0x0101),
        max_links: 2,
        max_conns: 255,
    }
}

#[test]
fn reads_and_writes_the_confirm_link_of_linux() {
    let request = linux_confirm_link(Role::Request, 1);
    assert_both_ways(&vector!("linux-confirm-link-request"), request);
    let response = linux_confirm_link(Role::Response, 2);
    assert_both_ways(&vector!("linux-confirm-link-response"), response);
}

#[test]
fn reads_and_writes_a_confirm_link_of_version_1() {
    let request = ConfirmLink {
        form: Form::V1,
        gid: link_local("fe80::5054:ff:fe00:1"),
        qp_number: QpNumber([0, 0xAB, 0xCD]),
        link_number: LinkNumber(2),
        link_user_id: LinkUserId(0xC1C2_C3C4),
        max_conns: 0,
        ..linux_confirm_link(Role::Request, 1)
    };
    assert_both_ways(&vector!("hand-confirm-link-v1"), request);
}

/// What the Linux server of the captures, which has one RNIC, offers as a second link.
fn linux_add_link(step: AddLinkStep, extension: Option<AddLinkExtension>) -> AddLink {
    AddLink {
        step,
        mac: Mac([0x52, 0x54, 0, 0, 0, 1]),
        gid: mapped([10, 0, 0, 1]),
        qp_number: QpNumber([0, 0, 0x12]),
        link_number: LinkNumber(2),
        mtu: Mtu::from_low_bits(3),
        psn: Psn([0xB0, 0x26, 0xC5]),
        form: AddLinkForm::V2 { order: LengthOrder::LittleEndian, extension },
    }
}

#[test]
fn reads_and_writes_the_add_link_of_linux() {
    let pair = RtokenPair {
        reference: Rkey(0x310),
        rkey: Rkey(0x578),
        address: RmbAddress(0xFF16_5080_02DE_0000),
    };
    let extension = AddLinkExtension {
        direct: true,
        target_gid: mapped([10, 0, 0, 1]),
        pairs: [pair].into_iter().collect(),
    };
    let request = linux_add_link(AddLinkStep::Request, Some(extension));
    assert_eq!(request.emitted_len(), 88);
    assert_both_ways(&vector!("linux-add-link-request"), request);

    let reject = linux_add_link(AddLinkStep::Reject(RejectReason::NONE), None);
    assert_both_ways(&vector!("linux-add-link-reject"), reject);
}

fn add_link_v1(step: AddLinkStep) -> AddLink {
    AddLink {
        step,
        mac: Mac([0x52, 0x54, 0, 0, 1, 1]),
        gid: link_local("fe80::5054:ff:fe00:101"),
        qp_number: QpNumber([0, 0xAB, 0xCE]),
        link_number: LinkNumber(2),
        mtu: Mtu::from_low_bits(5),
        psn: Psn([0xFE, 0xDC, 0xBA]),
        form: AddLinkForm::V1,
    }
}

#[test]
fn reads_and_writes_add_links_of_version_1() {
    assert_both_ways(&vector!("hand-add-link-v1"), add_link_v1(AddLinkStep::Request));
    let reject = AddLinkStep::Reject(RejectReason::NO_ALTERNATE_PATH);
    assert_both_ways(&vector!("hand-add-link-v1-reject"), add_link_v1(reject));
}

/// The receive buffers of the vectors computed by hand.
fn two_pairs() -> [RtokenPair; 2] {
    let pair = |reference, rkey, address| RtokenPair {
        reference: Rkey(reference),
        rkey: Rkey(rkey),
        address: RmbAddress(address),
    };
    [
        pair(0x0102_0304, 0x1112_1314, 0x7F00_1234_0000),
        pair(0x0506_0708, 0x1516_1718, 0x7F00_5678_0000),
    ]
}

#[test]
fn reads_and_writes_big_endian_add_links() {
    let reject = AddLink {
        gid: mapped([10, 0, 1, 1]),
        qp_number: QpNumber([0, 0, 0x12]),
        mtu: Mtu::from_low_bits(0),
        form: AddLinkForm::V2 { order: LengthOrder::BigEndian, extension: None },
        ..add_link_v1(AddLinkStep::Reject(RejectReason::INVALID_MTU))
    };
    assert_both_ways(&vector!("hand-add-link-v2-reject"), reject);

    let extension = AddLinkExtension {
        direct: false,
        target_gid: mapped([10, 0, 1, 1]),
        pairs: two_pairs().into_iter().collect(),
    };
    let response = AddLink {
        step: AddLinkStep::Response,
        mac: Mac([0x52, 0x54, 0, 0, 1, 2]),
        gid: mapped([10, 0, 1, 2]),
        qp_number: QpNumber([0, 0, 0x13]),
        link_number: LinkNumber(2),
        mtu: Mtu::from_low_bits(3),
        psn: Psn([0, 0, 10]),
        form: AddLinkForm::V2 { order: LengthOrder::BigEndian, extension: Some(extension) },
    };
    assert_eq!(response.emitted_len(), 104);
    assert_both_ways(&vector!("hand-add-link-v2-two-pairs"), response);
}

#[test]
fn reads_and_writes_add_link_continuations() {
    let request = AddLinkContinuation {
        role: Role::Request,
        link_number: LinkNumber(2),
        remaining: 3,
        pairs: two_pairs().into_iter().collect(),
    };
    assert_both_ways(&vector!("hand-add-link-continuation"), request.clone());

    let empty = AddLinkContinuation {
        role: Role::Response,
        remaining: 0,
        pairs: Default::default(),
        ..request
    };
    assert_both_ways(&vector!("hand-add-link-continuation-empty"), empty);
}

#[test]
fn reads_and_writes_the_delete_link_of_linux() {
    let all = DeleteLink {
        form: LINUX,
        role: Role::Request,
        scope: DeleteScope::All,
        orderly: false,
        reason: DeleteReason::OPERATOR,
    };
    assert_both_ways(&vector!("linux-delete-link-all"), all);
    let orderly = DeleteLink { orderly: true, ..all };
    assert_both_ways(&vector!("linux-delete-link-all-orderly"), orderly);
}

#[test]
fn reads_and_writes_a_delete_link_of_version_1() {
    let response = DeleteLink {
        form: Form::V1,
        role: Role::Response,
        scope: DeleteScope::Link(LinkNumber(2)),
        orderly: true,
        reason: DeleteReason::UNKNOWN_LINK,
    };
    assert_both_ways(&vector!("hand-delete-link-v1"), response);
}

#[test]
fn reads_and_writes_request_add_links() {
    let request = RequestAddLink {
        order: LengthOrder::LittleEndian,
        step: AddLinkStep::Request,
        gids: [mapped([10, 0, 0, 2]), mapped([10, 0, 1, 2])].into_iter().collect(),
    };
    assert_eq!(request.emitted_len(), 60);
    assert_both_ways(&vector!("hand-request-add-link"), request);

    let reject = RequestAddLink {
        order: LengthOrder::BigEndian,
        step: AddLinkStep::Reject(RejectReason::NO_ALTERNATE_PATH),
        gids: Default::default(),
    };
    assert_both_ways(&vector!("hand-request-add-link-reject"), reject);
}

#[test]
fn reads_and_writes_the_confirm_rkey_of_linux() {
    let request = ConfirmRkey {
        form: LINUX,
        step: ConfirmRkeyStep::Request,
        rkey: Rkey(0x63D),
        address: RmbAddress(0xFF2E_D82A_C2EF_0000),
        remaining: 0,
        entries: Default::default(),
    };
    assert_both_ways(&vector!("linux-confirm-rkey-request"), request.clone());
    let response = ConfirmRkey { step: ConfirmRkeyStep::Response, ..request };
    assert_both_ways(&vector!("linux-confirm-rkey-response"), response);
}

/// The receive buffer of the vectors computed by hand, on the links 2, 3 and 4.
fn on_other_links() -> [LinkRtoken; 3] {
    let on_link = |number, rkey, address| LinkRtoken {
        link_number: LinkNumber(number),
        rkey: Rkey(rkey),
        address: RmbAddress(address),
    };
    [
        on_link(2, 0x1112_1314, 0x7F00_5678_0000),
        on_link(3, 0x2122_2324, 0x7F00_9ABC_0000),
        on_link(4, 0x3132_3334, 0x7F00_DEF0_0000),
    ]
}

#[test]
fn reads_and_writes_the_keys_of_a_buffer_on_many_links() {
    let [second, third, fourth] = on_other_links();
    let request = ConfirmRkey {
        form: Form::V1,
        step: ConfirmRkeyStep::Request,
        rkey: Rkey(0x0102_0304),
        address: RmbAddress(0x7F00_1234_0000),
        remaining: 3,
        entries: [second, third].into_iter().collect(),
    };
    assert_both_ways(&vector!("hand-confirm-rkey-v1-continued"), request.clone());

    let continuation = ConfirmRkeyContinuation {
        step: RkeyStep::Request,
        remaining: 1,
        entries: [fourth].into_iter().collect(),
    };
    assert_both_ways(&vector!("hand-confirm-rkey-continuation"), continuation);

    let refusal = ConfirmRkey {
        form: STANDARD,
        step: ConfirmRkeyStep::RetryLater,
        remaining: 1,
        entries: [second].into_iter().collect(),
        ..request
    };
    assert_both_ways(&vector!("hand-confirm-rkey-v2-retry"), refusal);
}

#[test]
fn reads_and_writes_test_links() {
    let response = TestLink {
        form: Form::V1,
        role: Role::Response,
        user_data: std::array::from_fn(|index| index as u8),
    };
    assert_both_ways(&vector!("hand-test-link-v1"), response);
    let request = TestLink {
        form: STANDARD,
        role: Role::Request,
        user_data: std::array::from_fn(|index| 0xF0 + index as u8),
    };
    assert_both_ways(&vector!("hand-test-link-v2"), request);
}

#[test]
fn reads_and_writes_the_delete_rkey_of_linux() {
    let request = DeleteRkey {
        form: LINUX,
        step: RkeyStep::Request,
        rkeys: [Rkey(0x455)].into_iter().collect(),
        errors: 0,
    };
    assert_both_ways(&vector!("linux-delete-rkey-request"), request);
    let response = DeleteRkey {
        form: LINUX,
        step: RkeyStep::Response,
        rkeys: [Rkey(0)].into_iter().collect(),
        errors: 0,
    };
    assert_both_ways(&vector!("linux-delete-rkey-response"), response);
}

#[test]
fn reads_and_writes_delete_rkeys_of_each_version() {
    let negative = DeleteRkey {
        form: Form::V1,
        step: RkeyStep::Negative,
        rkeys: [0x0102_0304, 0x1112_1314, 0x2122_2324].into_iter().map(Rkey).collect(),
        errors: 0b1010_0000,
    };
    assert_both_ways(&vector!("hand-delete-rkey-v1-negative"), negative);
    let ten = DeleteRkey {
        form: STANDARD,
        step: RkeyStep::Request,
        rkeys: (0x100..0x10A).map(Rkey).collect(),
        errors: 0,
    };
    assert_eq!(ten.emitted_len(), 48);
    assert_both_ways(&vector!("hand-delete-rkey-v2-ten"), ten);
}

/// A CDC message of the captures without flags; both hosts call their first connection 1.
fn linux_cdc(seqno: u16, producer: (u16, u32), consumer: (u16, u32)) -> CdcMessage {
    let cursor = |(wrap, count)| Cursor { wrap, count };
    CdcMessage {
        seqno,
        alert_token: AlertToken(1),
        producer: cursor(producer),
        consumer: cursor(consumer),
        producer_flags: ProducerFlags::default(),
        state_flags: StateFlags::default(),
    }
}

#[test]
fn reads_and_writes_the_cdc_messages_of_linux() {
    assert_cdc_both_ways(&vector!("linux-cdc-first"), linux_cdc(1, (0, 1), (0, 0)));

    let blocked = ProducerFlags { writer_blocked: true, ..ProducerFlags::default() };
    let wrapped = CdcMessage { producer_flags: blocked, ..linux_cdc(1, (1, 0), (0, 5)) };
    assert_cdc_both_ways(&vector!("linux-cdc-wrapped"), wrapped);

    let urgent =
        ProducerFlags { urgent_pending: true, urgent_present: true, ..ProducerFlags::default() };
    let urgent_byte = CdcMessage { producer_flags: urgent, ..linux_cdc(2, (0, 2), (0, 0)) };
    assert_cdc_both_ways(&vector!("linux-cdc-urgent-byte"), urgent_byte);

    let done = StateFlags { done_writing: true, ..StateFlags::default() };
    let done_writing = CdcMessage { state_flags: done, ..linux_cdc(3, (0, 5001), (0, 0)) };
    assert_cdc_both_ways(&vector!("linux-cdc-done-writing"), done_writing);

    let both = StateFlags { closed: true, ..done };
    let closed = CdcMessage { state_flags: both, ..linux_cdc(4, (0, 5001), (0, 1000)) };
    assert_cdc_both_ways(&vector!("linux-cdc-closed"), closed);
}

#[test]
fn reads_and_writes_a_cdc_message_with_every_flag() {
    let message = CdcMessage {
        seqno: 65534,
        alert_token: AlertToken(0xA1A2_A3A4),
        producer: Cursor { wrap: 65535, count: 0x0001_FFFB },
        consumer: Cursor { wrap: 0x8001, count: 0xFEDC },
        producer_flags: ProducerFlags {
            writer_blocked: true,
            urgent_pending: true,
            urgent_present: true,
            cursor_update_requested: true,
            failover_validation: true,
        },
        state_flags: StateFlags { done_writing: true, closed: true, abnormal_close: true },
    };
    assert_cdc_both_ways(&vector!("hand-cdc-failover"), message);
}

/// The specification's own examples, recorded on another day between the same two computers.
#[test]
fn reads_and_writes_the_messages_of_another_capture() {
    let end = decode(
        "# DELETE LINK of all links, Linux 6.12 over soft-RoCE
        242c004000000200 0000000000000000 0000000000000000 0000000000000000
        0000000000000000 00000000",
    );
    assert_eq!(end, vector!("linux-delete-link-all"));

    let abort = decode(
        "# CDC message of an abort, Linux 6.12 over soft-RoCE
        fe2c006c00000001 0000000300005800 0000000300005800 0020000000000000
        0000000000000000 00000000",
    );
    let abnormal = StateFlags { abnormal_close: true, ..StateFlags::default() };
    let message = CdcMessage { state_flags: abnormal, ..linux_cdc(0x6C, (3, 0x5800), (3, 0x5800)) };
    assert_cdc_both_ways(&abort, message);
}

/// Every LLC message that two Linux hosts exchanged in the captures.
#[test]
fn every_llc_message_of_the_captures_survives_a_round_trip() {
    let mut counts = [0; 0x30];
    for (capture, bytes, _) in link_captures() {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = u16::from_le_bytes([rest[1], rest[2]]);
            let (bytes, behind) = rest.split_at(length.into());
            let message =
                Message::parse(bytes).unwrap_or_else(|error| panic!("{capture}: {error}"));
            assert_eq!(message.form(), LINUX);
            let mut out = [0; EMITTED_LEN_MAX];
            let len = message.emit(&mut out).unwrap();
            assert_eq!(&out[..len], bytes, "{capture}");
            counts[usize::from(bytes[0])] += 1;
            rest = behind;
        }
    }
    let of_types = [0x21, 0x22, 0x24, 0x26, 0x29].map(|first: usize| counts[first]);
    assert_eq!(of_types, [14, 14, 17, 28, 56], "of each type");
    assert_eq!(counts.iter().sum::<usize>(), 129);
}

/// Every CDC message that two Linux hosts exchanged in the captures.
#[test]
fn every_cdc_message_of_the_captures_survives_a_round_trip() {
    let mut count = 0;
    for (capture, _, bytes) in link_captures() {
        assert_eq!(bytes.len() % cdc::LEN, 0, "{capture}");
        for bytes in bytes.chunks_exact(cdc::LEN) {
            let message =
                CdcMessage::parse(bytes).unwrap_or_else(|error| panic!("{capture}: {error}"));
            let mut out = [0; cdc::LEN];
            message.emit(&mut out).unwrap();
            assert_eq!(out, bytes, "{capture}");
            count += 1;
        }
    }
    assert_eq!(count, 273);
}

#[test]
fn every_vector_survives_a_round_trip() {
    for (name, bytes) in llc_vectors() {
        let message = Message::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        assert_eq!(&out[..len], bytes, "{name}");
    }
    for (name, bytes) in cdc_vectors() {
        let message = CdcMessage::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut out = [0; cdc::LEN];
        message.emit(&mut out).unwrap();
        assert_eq!(&out[..], bytes, "{name}");
    }
}
