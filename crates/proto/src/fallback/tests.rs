//! Codes, names and words of reasons: what was given stays, and the right side is blamed.

use super::*;
use std::collections::BTreeSet;
use std::string::{String, ToString};
use std::vec::Vec;

/// Names and codes that operators and other versions know: a code that was given stays.
const KNOWN: [(u8, &str); 46] = [
    (0, "Undecided"),
    (1, "ModeTcp"),
    (2, "RemotePeer"),
    (3, "PeerNotSmc"),
    (4, "OtherUser"),
    (5, "OtherNamespace"),
    (6, "NoMemory"),
    (7, "PeerDeclined"),
    (8, "OptionUnsupported"),
    (9, "PromotionNever"),
    (10, "ForkedMeanwhile"),
    (11, "PeerMisbehaved"),
    (12, "NoSlot"),
    (13, "NoCommonEid"),
    (14, "Unanswered"),
    (15, "StandardStream"),
    (16, "HandedOver"),
    (17, "IoUring"),
    (18, "PastLibc"),
    (19, "PortExcluded"),
    (20, "PeerExcluded"),
    (21, "ProgramExcluded"),
    (22, "MemoryLimit"),
    (23, "Congested"),
    (24, "TooShort"),
    (25, "FailedLately"),
    (26, "NoTcpOption"),
    (27, "Demoted"),
    (28, "AgentAway"),
    (29, "LookupUnanswered"),
    (30, "OtherPnet"),
    (31, "ShortLately"),
    (32, "Filtered"),
    (33, "StrictMemory"),
    (34, "OtherVersion"),
    (35, "NothingInCommon"),
    (36, "NameTaken"),
    (37, "Unwritten"),
    (38, "Beset"),
    (39, "Contradiction"),
    (40, "EndedMeanwhile"),
    (41, "NoGain"),
    (42, "Compared"),
    (43, "NoAdapter"),
    (44, "Denied"),
    (45, "TlsLater"),
];

/// With each detail that can be told.
fn all_with_details() -> Vec<Reason> {
    let fields = (0..200).map(|number| Reason::PeerBroke(Field::of_number(number)));
    let declined = Diagnosis::NAMED.iter().map(|code| Reason::PeerDeclined(*code));
    Reason::all().chain(fields).chain(declined).collect()
}

#[test]
fn codes_and_names_are_those_that_operators_know() {
    let mut all: Vec<_> = Reason::all().map(|reason| (reason.code(), reason.name())).collect();
    all.sort_unstable();
    assert_eq!(all, KNOWN);
}

#[test]
fn reasons_come_back_from_a_code_and_from_a_word() {
    for reason in all_with_details() {
        assert_eq!(Reason::of(reason.code(), reason.detail()), reason);
        assert_eq!(Reason::of_word(reason.word()), reason);
        assert_eq!(reason.word() == 0, reason == Reason::None, "a place of zeros has none");
    }
}

#[test]
fn a_code_of_another_version_is_kept_and_said_to_be_unknown() {
    let known: BTreeSet<u8> = KNOWN.iter().map(|(code, _)| *code).collect();
    for code in 0..=u8::MAX {
        let reason = Reason::of(code, 0);
        assert_eq!(reason.code(), code);
        assert_eq!(reason == Reason::Unknown(code), !known.contains(&code));
    }
    let unknown = Reason::of(200, 7);
    assert_eq!((unknown.blame(), unknown.detail()), (None, 0));
    let words = "a reason that this version of Sidestep does not know (code 200)";
    assert_eq!(unknown.to_string(), words);
    assert!(Reason::all().all(|reason| reason.code() < CODES_END));
}

#[test]
fn each_reason_has_a_blame_a_diagnosis_and_words_of_its_own() {
    for reason in Reason::all() {
        let is_none = reason == Reason::None;
        assert_eq!(reason.diagnosis().is_none(), is_none, "{reason:?}");
        assert_eq!(reason.blame().is_none(), is_none, "{reason:?}");
    }
    let words: BTreeSet<_> = Reason::all().map(Reason::words).collect();
    assert_eq!(words.len(), KNOWN.len());
    let told: BTreeSet<_> = Reason::all().filter_map(Reason::blame).map(Blame::name).collect();
    assert_eq!(told, Blame::ALL.iter().map(|blame| blame.name()).collect());
}

#[test]
fn words_tell_the_field_or_the_peers_own_code() {
    let say = |reason: Reason| reason.to_string();
    let broke = Reason::PeerBroke(Field::HELLO_RMBE_LEN);
    assert_eq!(say(broke), "the peer's messages made no sense: Hello RMBE length");
    assert_eq!(say(Reason::PeerBroke(Field::UNTOLD)), "the peer's messages made no sense");
    let declined = say(Reason::PeerDeclined(Diagnosis::MEM));
    let words = "the peer declined: 0x01010000 MEM (out of memory for a buffer or a link group)";
    assert_eq!(declined, words);
    assert_eq!(say(Reason::PeerDeclined(Diagnosis(0))), "the peer declined");
    assert_eq!(say(Lack::NameTaken.into()), Reason::from(Lack::NameTaken).words());
}

/// Two ends on one host have neither links nor devices, so no code of theirs is told in the standard's words about such.
#[test]
fn what_a_peer_on_this_host_means_is_told_in_words_of_its_reasons() {
    let codes: BTreeSet<_> = Reason::all().filter_map(Reason::diagnosis).collect();
    for code in codes {
        let meaning = Reason::meaning_of(code);
        assert!(
            !["LINK", "ISM", "device", "DMB"].iter().any(|it| meaning.contains(it)),
            "{meaning}"
        );
    }
    let ended = Reason::Program(ProgramDid::EndedMeanwhile).diagnosis().unwrap();
    let told = Reason::PeerDeclined(ended).to_string();
    assert!(
        told.ends_with("TIMEOUT_CL (the connection was ending before the two ends had agreed)")
    );
}

/// What is told of the peer says "the peer", or both ends; what is lacking here does not say that the
/// peer has done anything.
#[test]
fn words_name_the_side_that_is_to_blame() {
    let accuses = |words: &str| {
        ["the peer's messages", "the peer declined", "the peer does not", "the peer offers"]
            .iter()
            .any(|accusation| words.starts_with(accusation))
    };
    for reason in Reason::all() {
        if accuses(reason.words()) {
            let blame = reason.blame();
            assert!(matches!(blame, Some(Blame::PeerBroke | Blame::PeerCannot)), "{reason:?}");
        }
    }
    let lacks: Vec<String> = Lack::ALL.iter().map(|it| Reason::from(*it).to_string()).collect();
    assert!(lacks.iter().all(|words| !accuses(words)), "{lacks:?}");
}
