//! Messages and bytes no one thought of.

use proptest::{collection::vec, option, prelude::*, sample::select};
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

fn order() -> impl Strategy<Value = LengthOrder> {
    select(&[LengthOrder::BigEndian, LengthOrder::LittleEndian][..])
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![1 => Just(Form::V1), 2 => order().prop_map(Form::V2)]
}

fn role() -> impl Strategy<Value = Role> {
    select(&[Role::Request, Role::Response][..])
}

fn rkey_step() -> impl Strategy<Value = RkeyStep> {
    select(&[RkeyStep::Request, RkeyStep::Response, RkeyStep::Negative][..])
}

fn add_link_step() -> impl Strategy<Value = AddLinkStep> {
    prop_oneof![
        Just(AddLinkStep::Request),
        Just(AddLinkStep::Response),
        any::<u8>().prop_map(|code| AddLinkStep::Reject(RejectReason::from_low_bits(code))),
    ]
}

fn pair() -> impl Strategy<Value = RtokenPair> {
    any::<(u32, u32, u64)>().prop_map(|(reference, rkey, address)| RtokenPair {
        reference: Rkey(reference),
        rkey: Rkey(rkey),
        address: RmbAddress(address),
    })
}

fn link_rtoken() -> impl Strategy<Value = LinkRtoken> {
    any::<(u8, u32, u64)>().prop_map(|(number, rkey, address)| LinkRtoken {
        link_number: LinkNumber(number),
        rkey: Rkey(rkey),
        address: RmbAddress(address),
    })
}

prop_compose! {
    fn confirm_link()(
        form in form(),
        role in role(),
        no_eyecatcher: bool,
        mac: [u8; 6],
        gid: [u8; 16],
        qp_number: [u8; 3],
        link_user_id: u32,
        [link_number, max_links, max_conns]: [u8; 3],
    ) -> ConfirmLink {
        ConfirmLink {
            form,
            role,
            no_eyecatcher,
            mac: Mac(mac),
            gid: RoceGid(gid),
            qp_number: QpNumber(qp_number),
            link_number: LinkNumber(link_number),
            link_user_id: LinkUserId(link_user_id),
            max_links,
            max_conns: if form == Form::V1 { 0 } else { max_conns },
        }
    }
}

prop_compose! {
    fn add_link_extension()(
        direct: bool,
        target_gid: [u8; 16],
        // No more: with 124 of them the length is the same in both byte orders.
        pairs in vec(pair(), 0..=100),
    ) -> AddLinkExtension {
        let pairs = pairs.into_iter().collect();
        AddLinkExtension { direct, target_gid: RoceGid(target_gid), pairs }
    }
}

fn add_link_form() -> impl Strategy<Value = AddLinkForm> {
    let v2 = (order(), option::of(add_link_extension()))
        .prop_map(|(order, extension)| AddLinkForm::V2 { order, extension });
    prop_oneof![1 => Just(AddLinkForm::V1), 3 => v2]
}

prop_compose! {
    fn add_link()(
        step in add_link_step(),
        mac: [u8; 6],
        gid: [u8; 16],
        numbers: [[u8; 3]; 2],
        [link_number, mtu]: [u8; 2],
        form in add_link_form(),
    ) -> AddLink {
        AddLink {
            step,
            mac: Mac(mac),
            gid: RoceGid(gid),
            qp_number: QpNumber(numbers[0]),
            link_number: LinkNumber(link_number),
            mtu: Mtu::from_low_bits(mtu),
            psn: Psn(numbers[1]),
            form,
        }
    }
}

prop_compose! {
    fn add_link_continuation()(
        role in role(),
        link_number: u8,
        remaining: u8,
        pairs in vec(pair(), 2),
    ) -> AddLinkContinuation {
        let pairs = pairs.into_iter().take(remaining.into()).collect();
        AddLinkContinuation { role, link_number: LinkNumber(link_number), remaining, pairs }
    }
}

prop_compose! {
    fn delete_link()(
        form in form(),
        role in role(),
        link_number in option::of(any::<u8>()),
        orderly: bool,
        reason: u32,
    ) -> DeleteLink {
        let link = |number| DeleteScope::Link(LinkNumber(number));
        let scope = link_number.map_or(DeleteScope::All, link);
        DeleteLink { form, role, scope, orderly, reason: DeleteReason(reason) }
    }
}

prop_compose! {
    fn request_add_link()(
        order in order(),
        step in add_link_step(),
        gids in vec(any::<[u8; 16]>(), 0..=8),
    ) -> RequestAddLink {
        RequestAddLink { order, step, gids: gids.into_iter().map(RoceGid).collect() }
    }
}

prop_compose! {
    fn confirm_rkey()(
        form in form(),
        step in select(&[
            ConfirmRkeyStep::Request,
            ConfirmRkeyStep::Response,
            ConfirmRkeyStep::Negative,
            ConfirmRkeyStep::RetryLater,
        ][..]),
        rkey: u32,
        address: u64,
        remaining: u8,
        entries in vec(link_rtoken(), 2),
    ) -> ConfirmRkey {
        let entries = entries.into_iter().take(remaining.into()).collect();
        let (rkey, address) = (Rkey(rkey), RmbAddress(address));
        ConfirmRkey { form, step, rkey, address, remaining, entries }
    }
}

prop_compose! {
    fn confirm_rkey_continuation()(
        step in rkey_step(),
        remaining: u8,
        entries in vec(link_rtoken(), 3),
    ) -> ConfirmRkeyContinuation {
        let entries = entries.into_iter().take(remaining.into()).collect();
        ConfirmRkeyContinuation { step, remaining, entries }
    }
}

prop_compose! {
    fn test_link()(form in form(), role in role(), user_data: [u8; 16]) -> TestLink {
        TestLink { form, role, user_data }
    }
}

prop_compose! {
    fn delete_rkey()(
        form in form(),
        step in rkey_step(),
        // No more: with 255 of them the length is the same in both byte orders.
        rkeys in vec(any::<u32>(), 0..=254),
        errors: u8,
    ) -> DeleteRkey {
        let room = if form == Form::V1 { 8 } else { 254 };
        DeleteRkey {
            form,
            step,
            rkeys: rkeys.into_iter().take(room).map(Rkey).collect(),
            errors: if step == RkeyStep::Negative { errors } else { 0 },
        }
    }
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        1 => confirm_link().prop_map(Message::from),
        3 => add_link().prop_map(Message::from),
        1 => add_link_continuation().prop_map(Message::from),
        1 => delete_link().prop_map(Message::from),
        1 => request_add_link().prop_map(Message::from),
        1 => confirm_rkey().prop_map(Message::from),
        1 => confirm_rkey_continuation().prop_map(Message::from),
        1 => test_link().prop_map(Message::from),
        2 => delete_rkey().prop_map(Message::from),
    ]
}

prop_compose! {
    fn cdc_message()(
        seqno: u16,
        alert_token: u32,
        cursors: [(u16, u32); 2],
        producer_flags: [bool; 5],
        state_flags: [bool; 3],
    ) -> CdcMessage {
        let [producer, consumer] = cursors.map(|(wrap, count)| Cursor { wrap, count });
        let [b, p, u, r, f] = producer_flags;
        let [d, c, a] = state_flags;
        CdcMessage {
            seqno,
            alert_token: AlertToken(alert_token),
            producer,
            consumer,
            producer_flags: ProducerFlags {
                writer_blocked: b,
                urgent_pending: p,
                urgent_present: u,
                cursor_update_requested: r,
                failover_validation: f,
            },
            state_flags: StateFlags { done_writing: d, closed: c, abnormal_close: a },
        }
    }
}

/// Random bytes with a header that passes, so that the parsers behind it get to work.
fn framed() -> impl Strategy<Value = Vec<u8>> {
    let v1 = (vec(any::<u8>(), 44), 1..=9_u8).prop_map(|(mut bytes, code)| {
        bytes[..2].copy_from_slice(&[code, 44]);
        bytes
    });
    let v2 = (vec(any::<u8>(), 44..=500), 1..=9_u8, any::<bool>()).prop_map(
        |(mut bytes, code, is_big_endian)| {
            let len = bytes.len() as u16;
            bytes[0] = 0x20 | code;
            let length = if is_big_endian { len.to_be_bytes() } else { len.to_le_bytes() };
            bytes[1..3].copy_from_slice(&length);
            bytes
        },
    );
    prop_oneof![1 => v1, 2 => v2]
}

/// What parses can be emitted, and means the same.
fn check_stable(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).expect("what parsed can be emitted");
        assert_eq!(Message::parse(&out[..len]), Ok(message));
    }
    if let Ok(message) = CdcMessage::parse(bytes) {
        let mut out = [0; cdc::LEN];
        message.emit(&mut out).expect("what parsed can be emitted");
        assert_eq!(CdcMessage::parse(&out), Ok(message));
    }
}

proptest! {
    #[test]
    fn a_message_survives_the_wire(message in message()) {
        let mut out = [0xAA; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        prop_assert!(out[len..].iter().all(|byte| *byte == 0xAA));
        prop_assert_eq!(Message::parse(&out[..len]), Ok(message));
    }

    #[test]
    fn the_length_is_written_in_the_order_that_was_asked_for(message in message()) {
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        let written = match message.form() {
            Form::V1 => u16::from(out[1]),
            Form::V2(LengthOrder::BigEndian) => u16::from_be_bytes([out[1], out[2]]),
            Form::V2(LengthOrder::LittleEndian) => u16::from_le_bytes([out[1], out[2]]),
        };
        prop_assert_eq!(usize::from(written), len);
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
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        check_stable(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_good_header_never_panic(bytes in framed()) {
        check_stable(&bytes);
    }

    #[test]
    fn a_cdc_message_survives_the_wire(message in cdc_message()) {
        let mut out = [0; cdc::LEN];
        prop_assert_eq!(message.emit(&mut out), Ok(cdc::LEN));
        prop_assert_eq!(CdcMessage::parse(&out), Ok(message));
        for cut in 0..cdc::LEN {
            prop_assert!(CdcMessage::parse(&out[..cut]).is_err());
        }
    }
}
