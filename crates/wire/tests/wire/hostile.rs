//! Messages that lie, and what the refusal says.

use sidestep_wire::{
    Error,
    clc::{
        AcceptConfirmD, AcceptConfirmDV1, AcceptConfirmR, Decline, EMITTED_LEN_MAX, FormR, Header,
        Message, Proposal, Role, Version,
        proposal::{IpPrefixes, Types, V1Offer},
    },
    host_control::ControlMessage,
};

use crate::hex::{clc_vectors, control_vectors, vector, with_every_byte};

/// The message with some of its bytes replaced.
fn patched(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// The first `len` bytes made into a message again: with a length that says so, and a trailer.
fn shortened(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut short = bytes[..len].to_vec();
    short[5..7].copy_from_slice(&(len as u16).to_be_bytes());
    short[len - 4..].copy_from_slice(&bytes[..4]);
    short
}

/// The field named in the refusal of `bytes`.
fn refused_for(bytes: &[u8]) -> &'static str {
    Message::parse(bytes).expect_err("a refusal").field()
}

/// Asserts of each patch (offset, new bytes, field) that the refusal names the field.
fn assert_refusals(original: &[u8], patches: &[(usize, &[u8], &str)]) {
    assert!(Message::parse(original).is_ok());
    for (at, new, field) in patches {
        assert_eq!(refused_for(&patched(original.to_vec(), *at, new)), *field, "{at}: {new:x?}");
    }
}

#[test]
fn a_cut_off_message_is_refused_at_every_length() {
    for (name, bytes) in clc_vectors() {
        for len in 0..bytes.len() {
            let error = Message::parse(&bytes[..len]).expect_err(name);
            assert!(matches!(error, Error::Truncated { .. }), "{name} cut at {len}: {error}");
            assert!(!error.field().is_empty());
        }
    }
    for (name, bytes) in control_vectors() {
        for len in 0..bytes.len() {
            let error = ControlMessage::parse(&bytes[..len]).expect_err(name);
            assert!(!error.field().is_empty(), "{name} cut at {len}");
        }
    }
}

#[test]
fn a_message_that_is_shorter_and_says_so_is_refused_at_every_length() {
    for (name, bytes) in clc_vectors() {
        for len in 12..bytes.len() {
            let short = shortened(&bytes, len);
            let Err(error) = Message::parse(&short) else {
                // Only one message has a shorter legal form: a full first contact extension of
                // SMC-D may shrink to the one of release 2.0, and what is left over is ignored.
                assert_eq!(name, "hand-accept-smc-d-v2-first-contact");
                assert!(len >= 114, "{name} with {len} bytes");
                continue;
            };
            assert!(!error.field().is_empty(), "{name} with {len} bytes");
        }
    }
}

#[test]
fn bytes_behind_the_message_are_refused() {
    for (name, mut bytes) in clc_vectors() {
        bytes.push(0);
        assert_eq!(refused_for(&bytes), "CLC length", "{name}");
    }
    for (name, mut bytes) in control_vectors() {
        bytes.push(0);
        let error = ControlMessage::parse(&bytes).expect_err(name);
        assert_eq!(error.field(), "control length", "{name}");
    }
}

#[test]
fn the_frame_is_checked() {
    assert_refusals(
        &vector!("hand-decline-v2-out-of-sync"),
        &[
            (0, b"SMCR", "CLC eyecatcher"),
            (4, &[0], "CLC type"),
            (4, &[5], "CLC type"),
            (5, &[0, 11], "CLC length"),
            (5, &[0x20, 0x01], "CLC length"),
            (5, &[0, 43], "CLC length"),
            (7, &[0x08], "CLC version"),
            (7, &[0x38], "CLC version"),
            (7, &[0x18], "Decline length"),
            (40, &[0; 4], "CLC trailer"),
        ],
    );
}

#[test]
fn a_message_of_a_later_version_can_be_read_over() {
    for (name, bytes) in clc_vectors() {
        let later = patched(bytes.clone(), 7, &[0xF0]);
        let (message_type, length) = Header::extent(&later[..Header::LEN]).expect(name);
        assert_eq!((message_type.code(), usize::from(length)), (bytes[4], bytes.len()), "{name}");
        let error = Header::parse(&later).expect_err(name);
        assert!(error.is_reserved_value(), "{name}: {error}");
    }
    for (at, value) in [(0, 0), (4, 0), (4, 5), (5, 0x21)] {
        let bad = patched(vector!("hand-decline-v2-out-of-sync"), at, &[value]);
        assert!(Header::extent(&bad).is_err(), "{at}");
    }
    assert!(
        Header::extent(&[0xE2, 0xD4, 0xC3, 0xD9, 4, 0, 28]).is_ok(),
        "the version is not looked at"
    );
    assert!(Header::extent(&[0xE2, 0xD4, 0xC3, 0xD9, 4, 0]).is_err());
}

#[test]
fn either_eyecatcher_is_read_at_either_end() {
    let (smc_r, smc_d) = ([0xE2, 0xD4, 0xC3, 0xD9], [0xE2, 0xD4, 0xC3, 0xC4]);
    for (name, bytes) in clc_vectors() {
        let expected = Message::parse(&bytes);
        let trailer_at = bytes.len() - 4;
        for (head, tail) in [(smc_r, smc_d), (smc_d, smc_r), (smc_d, smc_d), (smc_r, smc_r)] {
            let mixed = patched(patched(bytes.clone(), 0, &head), trailer_at, &tail);
            assert_eq!(Message::parse(&mixed), expected, "{name}");
        }
    }
}

#[test]
fn a_header_tells_the_length_before_the_rest_is_there() {
    let bytes = vector!("hand-proposal-smc-d-v2");
    let header = Header::parse(&bytes[..Header::LEN]).unwrap();
    assert_eq!(usize::from(header.length), bytes.len());
    assert_eq!(header.version, Version::V2);
}

#[test]
fn a_version_above_2_is_told_apart_from_nonsense() {
    let bytes = patched(vector!("hand-proposal-smc-d-v2"), 7, &[0x36]);
    assert!(matches!(Message::parse(&bytes), Err(Error::Unsupported { value: 3, .. })));
}

#[test]
fn parsers_of_one_type_refuse_the_others() {
    for (name, bytes) in clc_vectors() {
        let accepted = [
            Proposal::parse(&bytes).is_ok(),
            AcceptConfirmR::parse(&bytes).is_ok(),
            AcceptConfirmD::parse(&bytes).is_ok(),
            AcceptConfirmDV1::parse(&bytes).is_ok(),
            Decline::parse(&bytes).is_ok(),
        ];
        assert_eq!(accepted.iter().filter(|ok| **ok).count(), 1, "{name}");
    }
}

#[test]
fn lies_in_an_smc_d_proposal_are_refused() {
    assert_refusals(
        &vector!("hand-proposal-smc-d-v2"),
        &[
            (38, &[0, 41], "IP area offset"),
            (38, &[0xFF, 0xFF], "IP area offset"),
            (50, &[0, 0], "v2 extension offset"),
            (50, &[0, 27], "v2 extension offset"),
            (50, &[0, 29], "v2 extension offset"),
            (50, &[0xFF, 0xFF], "v2 extension offset"),
            (80, &[9], "UEID count"),
            (80, &[255], "UEID count"),
            (80, &[8], "UEID"),
            (80, &[0], "SMC-Dv2 extension offset"),
            (81, &[9], "GID count"),
            (81, &[3], "GID entry"),
            (81, &[1], "Proposal length"),
            (86, &[0, 0], "SMC-Dv2 extension offset"),
            (86, &[0, 63], "SMC-Dv2 extension offset"),
            (86, &[0xFF, 0xFF], "SMC-Dv2 extension offset"),
            (120, b"smcv2", "UEID"),
            (120, b"-", "UEID"),
            (120, b" ", "UEID"),
            (124, b"_", "UEID"),
            (151, &[0], "UEID"),
            (151, b"\n", "UEID"),
            // typev2: neither, SMC-R only; typev1: both.
            (7, &[0x2A], "Proposal length"),
            (7, &[0x22], "Proposal length"),
            (7, &[0x27], "IP area offset"),
        ],
    );
}

#[test]
fn lies_in_a_proposal_of_everything_are_refused() {
    assert_refusals(
        &vector!("hand-proposal-all-v1-v2"),
        &[
            (38, &[0, 0], "IP area offset"),
            (38, &[0, 39], "IP area offset"),
            (50, &[0, 28], "v2 extension offset"),
            (87, &[9], "IPv6 prefix count"),
            (87, &[255], "IPv6 prefix count"),
            (87, &[1], "v2 extension offset"),
            (104, &[129], "IPv6 prefix length"),
            (121, &[255], "IPv6 prefix length"),
            (7, &[0x2E], "v2 extension offset"),
        ],
    );
}

#[test]
fn lies_in_a_version_1_proposal_are_refused() {
    let bytes = vector!("hand-proposal-smc-r-v1");
    assert_refusals(
        &bytes,
        &[
            (7, &[0x12], "Proposal typev1"),
            (7, &[0x11], "IP area offset"),
            (7, &[0x13], "IP area offset"),
            (38, &[0, 41], "IP area offset"),
            (38, &[0, 1], "IP prefix area"),
            (38, &[0, 40], "SMC-D area"),
            (44, &[33], "IPv4 prefix length"),
            (47, &[1], "IPv6 prefix"),
        ],
    );
}

/// RFC 7609 lets the IP prefix area follow after a gap, for extensions it did not know.
#[test]
fn a_gap_before_the_ip_prefix_area_of_version_1_is_skipped() {
    let original = vector!("hand-proposal-smc-r-v1");
    let mut bytes = patched(original.clone(), 38, &[0, 6]);
    bytes.splice(40..40, [0xAA; 6]);
    bytes[5..7].copy_from_slice(&58_u16.to_be_bytes());
    assert_eq!(Message::parse(&bytes), Message::parse(&original));
}

#[test]
fn lies_in_an_accept_are_refused() {
    assert_refusals(
        &vector!("hand-accept-smc-d-v2-subsequent"),
        &[
            (7, &[0x22], "CLC type bits"),
            (7, &[0x23], "CLC type bits"),
            (7, &[0x11], "Accept or Confirm length"),
            // Of SMC-R it would have to be longer.
            (7, &[0x20], "negotiated EID"),
            (25, &[0x70], "DMBE size code"),
            (25, &[0xF0], "DMBE size code"),
            // First contact, without the extension.
            (7, &[0x29], "first contact extension"),
        ],
    );
}

#[test]
fn lies_in_an_accept_of_smc_r_are_refused() {
    assert_refusals(
        &vector!("linux-confirm-smc-r-v2-first-contact"),
        &[
            (7, &[0x2A], "CLC type bits"),
            (7, &[0x2B], "CLC type bits"),
            (7, &[0x18], "Accept or Confirm length"),
            (156, &[2], "GID list entry"),
            (156, &[8], "GID list entry"),
            (156, &[9], "GID list count"),
            (156, &[255], "GID list count"),
        ],
    );
    assert_refusals(
        &vector!("linux-accept-smc-r-v2-subsequent"),
        &[(7, &[0x28], "first contact extension"), (7, &[0x10], "Accept or Confirm length")],
    );
    assert_refusals(
        &vector!("hand-accept-smc-r-v1-first-contact"),
        &[(7, &[0x28], "negotiated EID"), (7, &[0x11], "Accept or Confirm length")],
    );
}

/// RFC 7609 §C.6: what is reserved in an enumeration is declined, the connection lives on.
#[test]
fn a_reserved_mtu_is_read() {
    for code in [0, 6, 15] {
        let bytes = patched(vector!("linux-accept-smc-r-v2-subsequent"), 50, &[0x20 | code]);
        let message = AcceptConfirmR::parse(&bytes).unwrap();
        assert_eq!((message.mtu.code(), message.mtu.bytes()), (code, None));
    }
}

#[test]
fn a_parser_of_one_kind_names_the_other() {
    let kind = |error| match error {
        Error::Unsupported { field: "CLC type bits", what, .. } => what,
        other => panic!("{other}"),
    };
    let smc_r = vector!("linux-accept-smc-r-v2-subsequent");
    let smc_d = vector!("hand-accept-smc-d-v2-subsequent");
    let smc_d_v1 = vector!("hand-confirm-smc-d-v1");
    assert_eq!(kind(AcceptConfirmD::parse(&smc_r).unwrap_err()), "SMC-R");
    assert_eq!(kind(AcceptConfirmD::parse(&smc_d_v1).unwrap_err()), "SMC-D version 1");
    assert_eq!(kind(AcceptConfirmDV1::parse(&smc_d).unwrap_err()), "SMC-D version 2");
    assert_eq!(kind(AcceptConfirmR::parse(&smc_d).unwrap_err()), "SMC-D version 2");
    assert_eq!(kind(AcceptConfirmR::parse(&smc_d_v1).unwrap_err()), "SMC-D version 1");
}

#[test]
fn a_version_1_accept_has_one_length() {
    for original in
        [vector!("hand-confirm-smc-d-v1"), vector!("hand-accept-smc-r-v1-first-contact")]
    {
        let mut longer = original.clone();
        longer.splice(36..36, [0; 4]);
        let length = longer.len() as u16;
        longer[5..7].copy_from_slice(&length.to_be_bytes());
        assert_eq!(refused_for(&longer), "Accept or Confirm length");
    }
}

#[test]
fn an_accept_with_a_gid_list_is_not_emitted() {
    let confirm = AcceptConfirmR::parse(&vector!("hand-confirm-smc-r-v2-two-gids")).unwrap();
    let accept = AcceptConfirmR { role: Role::Accept, ..confirm };
    let error = accept.emit(&mut [0; EMITTED_LEN_MAX]).unwrap_err();
    assert_eq!(error.field(), "GID list");
}

/// Reserved at release 2.0: limits and features.
#[test]
fn the_limits_of_smc_r_begin_with_release_2_1() {
    let bytes = patched(vector!("linux-accept-smc-r-v2-first-contact"), 105, &[0x20]);
    let AcceptConfirmR { form: FormR::V2 { first_contact: Some(contact), .. }, .. } =
        AcceptConfirmR::parse(&bytes).unwrap()
    else {
        panic!("a first contact");
    };
    assert_eq!((contact.max_conns, contact.max_links, contact.common.feature_mask), (0, 0, 0));
}

#[test]
fn an_accept_may_be_longer_than_we_know() {
    for original in [
        vector!("hand-accept-smc-d-v2-subsequent"),
        vector!("hand-accept-smc-d-v2-first-contact"),
        vector!("linux-accept-smc-r-v2-subsequent"),
        vector!("linux-accept-smc-r-v2-first-contact"),
        vector!("linux-confirm-smc-r-v2-first-contact"),
    ] {
        let mut bytes = original.clone();
        let end = bytes.len() - 4;
        bytes.splice(end..end, [0xAA; 30]);
        let length = bytes.len() as u16;
        bytes[5..7].copy_from_slice(&length.to_be_bytes());
        assert_eq!(Message::parse(&bytes), Message::parse(&original));
    }
}

/// Peers disagree on when they send which form of the first contact extension.
#[test]
fn the_form_of_the_first_contact_extension_shows_in_the_length() {
    let full = vector!("hand-accept-smc-d-v2-first-contact");

    let short = AcceptConfirmD::parse(&shortened(&full, 114)).unwrap().first_contact.unwrap();
    assert_eq!(short.release.code(), 1);
    assert_eq!(short.feature_mask, 0, "the short form has no room for it");

    let at_2_0 = AcceptConfirmD::parse(&patched(full, 75, &[0x20])).unwrap().first_contact.unwrap();
    assert_eq!(at_2_0.release.code(), 0);
    assert_eq!(at_2_0.feature_mask, 0, "reserved at release 2.0");
}

#[test]
fn lies_in_a_host_control_datagram_are_refused() {
    let introduction = vector!("hand-introduction");
    for (at, new, field) in [
        (0, &b"SSTQ"[..], "control magic"),
        (4, &[0, 2], "control version"),
        (6, &[0, 0], "control kind"),
        (6, &[0, 7], "control kind"),
        (6, &[0, 1], "control length"),
        (8, &[0, 0, 0, 49], "control length"),
        (8, &[0xFF; 4], "control length"),
        (28, &[2], "Introduction reply wanted"),
    ] {
        let bytes = patched(introduction.clone(), at, new);
        let error = ControlMessage::parse(&bytes).expect_err(field);
        assert_eq!(error.field(), field);
    }
    for (vector, at, new, field) in [
        (vector!("hand-lookup"), 44, 0, "Lookup role"),
        (vector!("hand-lookup"), 44, 3, "Lookup role"),
        (vector!("hand-match"), 46, 0, "Match role"),
        (vector!("hand-refusal"), 31, 3, "Refusal cause"),
    ] {
        let error = ControlMessage::parse(&patched(vector, at, &[new])).expect_err(field);
        assert_eq!(error.field(), field);
    }
}

/// Offsets and bits that are reserved in each vector. "rsv" is sent as 0 and ignored on receipt.
#[test]
fn reserved_bits_are_ignored() {
    type Reserved = (std::ops::Range<usize>, u8);
    let of_proposal_d: &[Reserved] = &[
        (52..80, 0xFF),
        (82..83, 0xFF),
        (83..84, 0x0E),
        (84..86, 0xFF),
        (108..120, 0xFF),
        (152..184, 0xFF), // the SEID, without its flag
        (184..200, 0xFF),
    ];
    let of_proposal_all: &[Reserved] = &[
        (52..80, 0xFF),
        (80..85, 0xFF), // the IPv4 subnet, with IPv6 prefixes
        (85..87, 0xFF),
        (124..125, 0xFF),
        (125..126, 0x0E),
        (126..128, 0xFF),
        (150..162, 0xFF),
        (226..242, 0xFF),
    ];
    let of_accept: &[Reserved] = &[
        (7..8, 0x04),
        (25..26, 0x0F),
        (26..28, 0xFF),
        (74..75, 0xFF),
        (76..78, 0xFF),
        (110..112, 0xFF),
        (114..126, 0xFF),
    ];
    let of_accept_r: &[Reserved] = &[
        (7..8, 0x04),
        (51..52, 0xFF),
        (60..61, 0xFF),
        (96..104, 0xFF),
        (104..105, 0x7F),
        (106..108, 0xFF),
        (144..156, 0xFF),
    ];
    let cases: [(Vec<u8>, &[Reserved]); 9] = [
        (vector!("hand-proposal-smc-d-v2"), of_proposal_d),
        (vector!("hand-proposal-all-v1-v2"), of_proposal_all),
        (vector!("hand-proposal-smc-r-v1"), &[(7..8, 0x0C), (45..47, 0xFF)]),
        (vector!("hand-accept-smc-d-v2-first-contact"), of_accept),
        (vector!("linux-accept-smc-r-v2-first-contact"), of_accept_r),
        (vector!("hand-accept-smc-r-v1-first-contact"), &[(51..52, 0xFF), (60..61, 0xFF)]),
        (vector!("hand-confirm-smc-d-v1"), &[(25..26, 0x0F), (26..28, 0xFF), (32..44, 0xFF)]),
        (vector!("linux-decline-v1-no-device"), &[(7..8, 0x07), (20..24, 0xFF)]),
        (vector!("hand-decline-v2-out-of-sync"), &[(7..8, 0x07), (20..21, 0x0F), (21..24, 0xFF)]),
    ];
    for (original, reserved) in cases {
        let mut noisy = original.clone();
        for (range, bits) in reserved {
            noisy[range.clone()].iter_mut().for_each(|byte| *byte |= bits);
        }
        assert_ne!(noisy, original);
        assert_eq!(Message::parse(&noisy), Message::parse(&original));
    }

    for (original, range) in
        [(vector!("hand-introduction"), 29..32), (vector!("hand-channel"), 30..32)]
    {
        let mut noisy = original.clone();
        noisy[range].fill(0xFF);
        assert_eq!(ControlMessage::parse(&noisy), ControlMessage::parse(&original));
    }
}

/// Every byte of every vector, in turn, takes every value.
#[test]
fn no_single_byte_makes_a_parser_panic() {
    for (_, original) in clc_vectors() {
        with_every_byte(&original, |bytes| {
            if let Ok(message) = Message::parse(bytes) {
                let mut out = [0; EMITTED_LEN_MAX];
                let len = message.emit(&mut out).expect("what parsed can be emitted");
                assert_eq!(Message::parse(&out[..len]), Ok(message));
            }
        });
    }
    for (_, original) in control_vectors() {
        with_every_byte(&original, |bytes| _ = ControlMessage::parse(bytes));
    }
}

#[test]
fn a_short_buffer_is_refused_at_every_length() {
    for (name, bytes) in clc_vectors() {
        let message = Message::parse(&bytes).unwrap();
        let mut out = [0; EMITTED_LEN_MAX];
        for len in 0..bytes.len() {
            let error = message.emit(&mut out[..len]).expect_err(name);
            assert!(matches!(error, Error::NoRoom { .. }), "{name}: {error}");
        }
    }
    for (name, bytes) in control_vectors() {
        let message = ControlMessage::parse(&bytes).unwrap();
        let mut out = [0; sidestep_wire::host_control::EMITTED_LEN_MAX];
        for len in 0..bytes.len() {
            let error = message.emit(&mut out[..len]).expect_err(name);
            assert!(matches!(error, Error::NoRoom { .. }), "{name}: {error}");
        }
    }
}

#[test]
fn a_proposal_that_contradicts_itself_is_not_emitted() {
    let sound = Proposal::parse(&vector!("hand-proposal-all-v1-v2")).unwrap();
    let ipv4 = |prefix_len| V1Offer {
        types: Types::SmcD,
        prefixes: IpPrefixes::V4 { subnet: [10, 0, 0, 0].into(), prefix_len },
    };
    let no_prefix = V1Offer { types: Types::Both, prefixes: IpPrefixes::V6(Default::default()) };
    let v1 = |proposal: &Proposal| Proposal { version: Version::V1, v2: None, ..proposal.clone() };
    for (proposal, field) in [
        (Proposal { version: Version::V1, ..sound.clone() }, "v2 extension"),
        (Proposal { v1: None, ..v1(&sound) }, "Proposal typev1"),
        (Proposal { smc_d_area: None, ..v1(&sound) }, "SMC-D area"),
        (Proposal { smc_d_area: None, ..sound.clone() }, "SMC-D area"),
        (Proposal { v1: Some(ipv4(33)), ..sound.clone() }, "IPv4 prefix length"),
        (Proposal { v1: Some(no_prefix), ..sound.clone() }, "IPv6 prefix count"),
    ] {
        let error = proposal.emit(&mut [0; EMITTED_LEN_MAX]).expect_err(field);
        assert!(matches!(error, Error::Inconsistent { .. }), "{error}");
        assert_eq!(error.field(), field);
    }
}
