//! Messages that lie, and what the refusal says.

use std::ops::Range;

use sidestep_wire::{
    Error, Mtu, Rkey,
    cdc::{self, CdcMessage},
    llc::{
        AddLink, AddLinkContinuation, AddLinkForm, ConfirmLink, ConfirmRkey,
        ConfirmRkeyContinuation, DeleteLink, DeleteRkey, EMITTED_LEN_MAX, Form, LENGTH_MAX,
        LengthOrder, Message, OPTIONAL_TYPES, RequestAddLink, TestLink,
    },
};

use crate::hex::{cdc_vectors, llc_vectors, vector, with_every_byte};

/// The message with some of its bytes replaced.
fn patched(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// A version 2 message made `len` bytes long, with a big-endian length that says so; new bytes are
/// zero.
fn resized(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.resize(len, 0);
    patched(bytes, 1, &(len as u16).to_be_bytes())
}

/// The field named in the refusal of `bytes`.
fn refused_for(bytes: &[u8]) -> &'static str {
    Message::parse(bytes).expect_err("a refusal").field()
}

#[test]
fn a_cut_off_message_is_refused_at_every_length() {
    for (name, bytes) in llc_vectors() {
        for len in 0..bytes.len() {
            let error = Message::parse(&bytes[..len]).expect_err(name);
            let is_short = matches!(error, Error::Truncated { .. });
            assert_eq!(is_short, len < 44, "{name} cut at {len}: {error}");
            assert!(is_short || error.field() == "LLC length", "{name} cut at {len}: {error}");
        }
    }
    for (name, bytes) in cdc_vectors() {
        for len in 0..bytes.len() {
            let error = CdcMessage::parse(&bytes[..len]).expect_err(name);
            assert!(matches!(error, Error::Truncated { .. }), "{name} cut at {len}: {error}");
        }
    }
}

#[test]
fn bytes_behind_an_llc_message_are_refused() {
    for (name, mut bytes) in llc_vectors() {
        bytes.push(0);
        assert_eq!(refused_for(&bytes), "LLC length", "{name}");
    }
}

#[test]
fn bytes_behind_a_cdc_message_are_ignored() {
    for (name, mut bytes) in cdc_vectors() {
        let message = CdcMessage::parse(&bytes);
        bytes.extend([0xAA; 20]);
        assert_eq!(CdcMessage::parse(&bytes), message, "{name}");
    }
}

/// Version 2 leaves room for what later editions add.
#[test]
fn a_longer_message_of_version_2_is_read_as_far_as_we_know_it() {
    for original in [vector!("hand-test-link-v2"), vector!("hand-confirm-rkey-v2-retry")] {
        let longer = resized(original.clone(), 60);
        assert_eq!(Message::parse(&longer), Message::parse(&original));
    }
}

#[test]
fn the_longest_message_is_bounded() {
    let original = vector!("hand-test-link-v2");
    assert!(Message::parse(&resized(original.clone(), LENGTH_MAX)).is_ok());
    let error = Message::parse(&resized(original, LENGTH_MAX + 1)).unwrap_err();
    assert_eq!(error, Error::Invalid { field: "LLC length", value: 8193 });
}

#[test]
fn either_byte_order_of_the_length_is_read_and_written_again() {
    let big = vector!("hand-add-link-v2-two-pairs");
    let little = patched(patched(big.clone(), 1, &[104, 0]), 70, &[2, 0]);
    let parsed = [&big, &little].map(|bytes| AddLink::parse(bytes).unwrap());
    let pairs = parsed.each_ref().map(|message| match &message.form {
        AddLinkForm::V2 { extension: Some(extension), .. } => extension.pairs.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(pairs[0], pairs[1]);
    let orders = parsed.each_ref().map(AddLink::form);
    assert_eq!(orders, [LengthOrder::BigEndian, LengthOrder::LittleEndian].map(Form::V2));
    for (message, bytes) in parsed.iter().zip([big, little]) {
        let mut out = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        assert_eq!(&out[..len], bytes);
    }
}

#[test]
fn a_type_that_is_not_read_is_told_apart() {
    let original = vector!("hand-test-link-v2");
    let known = [1, 2, 3, 4, 6, 7, 8, 9, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29];
    for first in 0..=u8::MAX {
        let parsed = Message::parse(&patched(original.clone(), 0, &[first]));
        let Err(Error::Unsupported { field, value, what }) = parsed else {
            assert!(known.contains(&first), "{first:#x}: {parsed:?}");
            continue;
        };
        assert!(!known.contains(&first), "{first:#x}");
        assert_eq!((field, value), ("LLC type", first.into()));
        assert_eq!(OPTIONAL_TYPES.contains(&first), what == "an optional message");
        assert_eq!(first == cdc::TYPE, what == "a CDC message");
    }
}

#[test]
fn parsers_of_one_type_refuse_the_others() {
    for (name, bytes) in llc_vectors() {
        let results = [
            ConfirmLink::parse(&bytes).err(),
            AddLink::parse(&bytes).err(),
            AddLinkContinuation::parse(&bytes).err(),
            DeleteLink::parse(&bytes).err(),
            RequestAddLink::parse(&bytes).err(),
            ConfirmRkey::parse(&bytes).err(),
            ConfirmRkeyContinuation::parse(&bytes).err(),
            TestLink::parse(&bytes).err(),
            DeleteRkey::parse(&bytes).err(),
        ];
        let refusals: Vec<Error> = results.into_iter().flatten().collect();
        assert_eq!(refusals.len(), 8, "{name}");
        let is_for_type = |error: &Error| matches!(error, Error::Invalid { field: "LLC type", .. });
        assert!(refusals.iter().all(is_for_type), "{name}: {refusals:?}");
    }
}

#[test]
fn a_part_of_an_add_link_extension_is_refused() {
    let original = vector!("hand-add-link-v2-two-pairs");
    for len in 45..72 {
        assert_eq!(refused_for(&resized(original.clone(), len)), "ADD LINK rkey count", "{len}");
    }
}

/// Linux counts its connections there.
#[test]
fn pairs_that_are_not_there_are_not_read() {
    let pairs = |bytes: &[u8]| match AddLink::parse(bytes).unwrap().form {
        AddLinkForm::V2 { extension: Some(extension), .. } => extension.pairs.len(),
        other => panic!("{other:?}"),
    };
    let original = vector!("hand-add-link-v2-two-pairs");
    for (len, expected) in [(72, 0), (87, 0), (88, 1), (103, 1), (104, 2), (120, 2)] {
        assert_eq!(pairs(&resized(original.clone(), len)), expected, "{len} bytes");
    }
    for (count, expected) in [(0, 0), (1, 1), (2, 2), (3, 2), (0x0200, 2), (u16::MAX, 2)] {
        let bytes = patched(original.clone(), 70, &count.to_be_bytes());
        assert_eq!(pairs(&bytes), expected, "{count} claimed");
    }
}

#[test]
fn more_pairs_than_a_link_group_has_buffers_are_refused() {
    let original = vector!("hand-add-link-v2-two-pairs");
    let with = |count: u16, present: usize| {
        let bytes = patched(original.clone(), 70, &count.to_be_bytes());
        AddLink::parse(&resized(bytes, 72 + 16 * present)).map(|_| ())
    };
    assert_eq!(with(255, 255), Ok(()));
    assert_eq!(with(255, 300), Ok(()));
    assert_eq!(with(300, 255), Ok(()));
    let error = with(300, 256).unwrap_err();
    assert!(matches!(error, Error::Unsupported { value: 256, .. }), "{error}");
    assert_eq!(error.field(), "ADD LINK rkey count");
}

#[test]
fn lies_in_a_request_add_link_are_refused() {
    let original = vector!("hand-request-add-link");
    for (count, field) in [
        (3, "REQUEST ADD LINK GID"),
        (8, "REQUEST ADD LINK GID"),
        (9, "REQUEST ADD LINK GID count"),
        (255, "REQUEST ADD LINK GID count"),
    ] {
        assert_eq!(refused_for(&patched(original.clone(), 24, &[count])), field, "{count}");
    }
}

#[test]
fn lies_in_a_delete_rkey_are_refused() {
    let v1 = vector!("hand-delete-rkey-v1-negative");
    for count in [9, 255] {
        let error = Message::parse(&patched(v1.clone(), 4, &[count])).unwrap_err();
        assert_eq!(error, Error::Invalid { field: "DELETE RKEY count", value: count.into() });
    }
    assert!(Message::parse(&patched(v1, 4, &[8])).is_ok());

    let v2 = vector!("hand-delete-rkey-v2-ten");
    for count in [11, 255] {
        let error = Message::parse(&patched(v2.clone(), 4, &[count])).unwrap_err();
        assert!(matches!(error, Error::Truncated { field: "DELETE RKEY RKey", .. }), "{error}");
    }
}

#[test]
fn a_list_says_how_it_goes_on_and_no_more_is_read() {
    for remaining in 0..=u8::MAX {
        let here = |room: usize| room.min(remaining.into());
        let bytes = patched(vector!("hand-add-link-continuation"), 5, &[remaining]);
        assert_eq!(AddLinkContinuation::parse(&bytes).unwrap().pairs.len(), here(2));
        let bytes = patched(vector!("hand-confirm-rkey-v1-continued"), 4, &[remaining]);
        assert_eq!(ConfirmRkey::parse(&bytes).unwrap().entries.len(), here(2));
        let bytes = patched(vector!("hand-confirm-rkey-continuation"), 4, &[remaining]);
        assert_eq!(ConfirmRkeyContinuation::parse(&bytes).unwrap().entries.len(), here(3));
    }
}

#[test]
fn a_list_that_contradicts_its_number_is_not_emitted() {
    let mut out = [0; EMITTED_LEN_MAX];
    let full = AddLinkContinuation::parse(&vector!("hand-add-link-continuation")).unwrap();
    for remaining in [0, 1] {
        let error = AddLinkContinuation { remaining, ..full.clone() }.emit(&mut out).unwrap_err();
        assert!(matches!(error, Error::Inconsistent { .. }), "{error}");
        assert_eq!(error.field(), "ADD LINK CONTINUATION remaining");
    }

    let request = ConfirmRkey::parse(&vector!("hand-confirm-rkey-v2-retry")).unwrap();
    for remaining in [0, 2] {
        let error = ConfirmRkey { remaining, ..request.clone() }.emit(&mut out).unwrap_err();
        assert_eq!(error.field(), "CONFIRM RKEY remaining");
    }

    let rest = ConfirmRkeyContinuation::parse(&vector!("hand-confirm-rkey-continuation")).unwrap();
    for remaining in [0, 2] {
        let error = ConfirmRkeyContinuation { remaining, ..rest.clone() }.emit(&mut out);
        assert_eq!(error.unwrap_err().field(), "CONFIRM RKEY CONTINUATION remaining");
    }
}

#[test]
fn a_ninth_key_of_version_1_is_not_emitted() {
    let mut message = DeleteRkey::parse(&vector!("hand-delete-rkey-v1-negative")).unwrap();
    message.rkeys = (0..9).map(Rkey).collect();
    let error = message.emit(&mut [0; EMITTED_LEN_MAX]).unwrap_err();
    assert!(matches!(error, Error::Inconsistent { .. }), "{error}");
    assert_eq!(error.field(), "DELETE RKEY count");
}

/// It can be rejected then, instead of breaking the link.
#[test]
fn a_reserved_mtu_is_read() {
    for code in [0, 6, 15] {
        let bytes = patched(vector!("linux-add-link-request"), 32, &[code]);
        assert_eq!(AddLink::parse(&bytes).unwrap().mtu, Mtu::from_low_bits(code));
    }
}

#[test]
fn lies_in_a_cdc_message_are_refused() {
    for (at, new, field) in
        [(0, 0x27, "CDC type"), (0, 0, "CDC type"), (1, 43, "CDC length"), (1, 45, "CDC length")]
    {
        let bytes = patched(vector!("linux-cdc-first"), at, &[new]);
        assert_eq!(CdcMessage::parse(&bytes).unwrap_err().field(), field);
    }
}

/// Offsets and bits that are reserved in each vector.
#[test]
fn reserved_bits_are_ignored() {
    type Reserved = (Range<usize>, u8);
    let of_extension: &[Reserved] = &[
        (3..4, 0x7F), // reject and its reason, in a request
        (10..12, 0xFF),
        (32..33, 0xF0),
        (36..44, 0xFF),
        (44..45, 0x7F),
        (45..46, 0xFF),
        (62..70, 0xFF),
    ];
    let of_add_link_v1: &[Reserved] =
        &[(2..3, 0xF0), (3..4, 0x3F), (10..12, 0xFF), (32..33, 0xF0), (36..44, 0xFF)];
    let of_confirm_link: &[Reserved] = &[(2..3, 0xFF), (3..4, 0x7C), (35..44, 0xFF)];
    let of_continuation: &[Reserved] =
        &[(2..3, 0xFF), (3..4, 0x7F), (6..8, 0xFF), (8..40, 0xFF), (40..44, 0xFF)];
    let of_delete_rkey: &[Reserved] = &[(2..3, 0xFF), (3..4, 0x5F), (6..8, 0xFF), (20..44, 0xFF)];
    let cases: [(Vec<u8>, &[Reserved]); 15] = [
        (vector!("hand-confirm-link-v1"), of_confirm_link),
        (vector!("linux-confirm-link-request"), &[(3..4, 0x7C), (36..44, 0xFF)]),
        (vector!("linux-add-link-request"), of_extension),
        (vector!("hand-add-link-v1-reject"), of_add_link_v1),
        (vector!("hand-add-link-v2-reject"), &[(3..4, 0x30), (32..33, 0xF0)]),
        (vector!("hand-add-link-continuation-empty"), of_continuation),
        (vector!("linux-delete-link-all"), &[(3..4, 0x1F), (4..5, 0xFF), (9..44, 0xFF)]),
        (vector!("hand-request-add-link-reject"), &[(3..4, 0x30), (4..24, 0xFF), (25..44, 0xFF)]),
        (vector!("linux-confirm-rkey-request"), &[(3..4, 0x7F), (17..44, 0xFF)]),
        (vector!("hand-confirm-rkey-v2-retry"), &[(3..4, 0x4F), (30..44, 0xFF)]),
        (vector!("hand-confirm-rkey-continuation"), &[(3..4, 0x7F), (18..44, 0xFF)]),
        (vector!("hand-test-link-v1"), &[(2..3, 0xFF), (3..4, 0x7F), (20..44, 0xFF)]),
        (vector!("hand-delete-rkey-v1-negative"), of_delete_rkey),
        (vector!("hand-delete-rkey-v2-ten"), &[(3..4, 0x7F), (5..8, 0xFF)]),
        (vector!("linux-delete-rkey-response"), &[(3..4, 0x5F), (5..8, 0xFF), (12..44, 0xFF)]),
    ];
    for (original, reserved) in cases {
        let mut noisy = original.clone();
        for (range, bits) in reserved {
            noisy[range.clone()].iter_mut().for_each(|byte| *byte |= bits);
        }
        assert_ne!(noisy, original);
        assert_eq!(Message::parse(&noisy), Message::parse(&original));
    }

    let original = vector!("linux-cdc-closed");
    let mut noisy = original.clone();
    for (range, bits) in [(8..10, 0xFF), (16..18, 0xFF), (24..25, 0x07), (25..26, 0x1F)] {
        noisy[range].iter_mut().for_each(|byte| *byte |= bits);
    }
    noisy[26..].fill(0xFF);
    assert_eq!(CdcMessage::parse(&noisy), CdcMessage::parse(&original));
}

/// Every byte of every vector, in turn, takes every value.
#[test]
fn no_single_byte_makes_a_parser_panic() {
    for (_, original) in llc_vectors() {
        with_every_byte(&original, |bytes| {
            if let Ok(message) = Message::parse(bytes) {
                let mut out = [0; EMITTED_LEN_MAX];
                let len = message.emit(&mut out).expect("what parsed can be emitted");
                assert_eq!(Message::parse(&out[..len]), Ok(message));
            }
        });
    }
    for (_, original) in cdc_vectors() {
        with_every_byte(&original, |bytes| {
            if let Ok(message) = CdcMessage::parse(bytes) {
                let mut out = [0; cdc::LEN];
                message.emit(&mut out).expect("what parsed can be emitted");
                assert_eq!(CdcMessage::parse(&out), Ok(message));
            }
        });
    }
}

/// Asserts that `bytes`, each bit of them turned in turn, are no message, the same message, or one
/// that is written with the turned bit. `rewrite` reads a message and writes it again.
fn assert_no_bit_is_lost(name: &str, bytes: &[u8], rewrite: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    for (at, mask) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, 1 << bit))) {
        let turned = patched(bytes.to_vec(), at, &[bytes[at] ^ mask]);
        let Some(rewritten) = rewrite(&turned) else { continue };
        // Another length: the bit belongs to what lays the message out.
        if rewritten != bytes && rewritten.len() == bytes.len() {
            assert_eq!(rewritten[at] & mask, turned[at] & mask, "{name}: bit {mask:#x} of {at}");
        }
    }
}

#[test]
fn every_bit_comes_back_or_means_nothing() {
    // The count in a response of DELETE RKEY is lowered to what is there.
    let all = llc_vectors().into_iter();
    for (name, bytes) in all.filter(|(name, _)| *name != "linux-delete-rkey-response") {
        assert_no_bit_is_lost(name, &bytes, |bytes| {
            let mut out = [0; EMITTED_LEN_MAX];
            let len = Message::parse(bytes).ok()?.emit(&mut out).unwrap();
            Some(out[..len].to_vec())
        });
    }
    for (name, bytes) in cdc_vectors() {
        assert_no_bit_is_lost(name, &bytes, |bytes| {
            let mut out = [0; cdc::LEN];
            CdcMessage::parse(bytes).ok()?.emit(&mut out).unwrap();
            Some(out.to_vec())
        });
    }
}

#[test]
fn a_short_buffer_is_refused_at_every_length() {
    for (name, bytes) in llc_vectors() {
        let message = Message::parse(&bytes).unwrap();
        let mut out = [0; EMITTED_LEN_MAX];
        for len in 0..bytes.len() {
            let error = message.emit(&mut out[..len]).expect_err(name);
            assert!(matches!(error, Error::NoRoom { .. }), "{name}: {error}");
        }
    }
    for (name, bytes) in cdc_vectors() {
        let message = CdcMessage::parse(&bytes).unwrap();
        let mut out = [0; cdc::LEN];
        for len in 0..bytes.len() {
            let error = message.emit(&mut out[..len]).expect_err(name);
            assert!(matches!(error, Error::NoRoom { .. }), "{name}: {error}");
        }
    }
}
