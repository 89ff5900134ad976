//! The error scenarios of RFC 7609 Appendix C, each with two engines that exchange bytes.

use super::*;
use crate::fallback::Blame;
use proptest::prelude::*;
use sidestep_wire::clc::Role;
use sidestep_wire::ids::Gid;
use std::vec::Vec;

const SERVERS_GROUP: LinkId = LinkId(7);

/// One end: what it is, and what has become of the rendezvous.
struct End {
    local: Local,
    link_id: LinkId,
}

impl End {
    fn new(n: u64, ueid: &str, link_id: LinkId) -> Self {
        let gid = ExtendedGid { gid: Gid(n), gid_ext: !n };
        let ueids = Eid::ueid(ueid).into_iter().collect();
        Self { local: Local { gid, ueids, seid: None }, link_id }
    }

    fn buffer(&self) -> Buffer {
        Buffer {
            token: DmbToken(1),
            size: RmbeSize::DEFAULT,
            link_id: self.link_id,
            first_contact: Some(Hostname::new(b"host")),
        }
    }
}

struct Pair {
    client: End,
    server: End,
}

/// On the wire.
type Bytes = Vec<u8>;

fn bytes(emit: impl FnOnce(&mut [u8]) -> Result<usize, Error>) -> Bytes {
    let mut room = [0; 504];
    let len = emit(&mut room).unwrap();
    room[..len].to_vec()
}

impl Pair {
    fn new() -> Self {
        Self { client: End::new(1, "X", LinkId(3)), server: End::new(2, "X", SERVERS_GROUP) }
    }

    fn proposal(&self) -> Bytes {
        bytes(|room| propose(&self.client.local).emit(room))
    }

    fn server_hears_instead_of_proposal(&self, bytes: &[u8]) -> Result<AcceptConfirmD, Refusal> {
        let (peer, buffer) = (self.client.local.gid, self.server.buffer());
        expect_proposal(Message::parse(bytes), peer, &self.server.local, buffer)
    }

    fn accept(&self) -> AcceptConfirmD {
        self.server_hears_instead_of_proposal(&self.proposal()).unwrap()
    }

    fn client_hears_instead_of_accept(&self, bytes: &[u8]) -> Result<AcceptConfirmD, Refusal> {
        let peer = self.server.local.gid;
        expect_accept(Message::parse(bytes), peer, SERVERS_GROUP, &self.client.local)
    }

    fn confirm(&self) -> AcceptConfirmD {
        confirm(&self.accept(), &self.client.local, self.client.buffer())
    }

    fn server_hears_instead_of_confirm(&self, bytes: &[u8]) -> Result<RmbeSize, Refusal> {
        expect_confirm(Message::parse(bytes), self.client.local.gid, &self.accept())
    }
}

fn emitted(message: &AcceptConfirmD) -> Bytes {
    bytes(|room| message.emit(room))
}

/// As the peer reads what we send for a refusal.
fn sent(refusal: &Refusal) -> Decline {
    let Refusal::Decline(decline, _) = refusal else { panic!("{refusal:?} sends nothing") };
    match Message::parse(&bytes(|room| decline.emit(room))) {
        Ok(Message::Decline(read)) => read,
        other => panic!("{other:?}"),
    }
}

/// The field in which the protocol was broken, if that is why nothing is sent.
fn broken<T>(heard: Result<T, Refusal>) -> Option<&'static str> {
    match heard {
        Err(Refusal::Protocol(field)) => field.name(),
        _ => None,
    }
}

#[test]
fn without_an_error_both_commit() {
    let pair = Pair::new();
    assert!(pair.client_hears_instead_of_accept(&emitted(&pair.accept())).is_ok());
    let size = pair.server_hears_instead_of_confirm(&emitted(&pair.confirm()));
    assert_eq!(size, Ok(RmbeSize::DEFAULT));
}

#[test]
fn c1_the_server_declines_in_place_of_its_accept() {
    let mut pair = Pair::new();
    pair.server = End::new(2, "Y", SERVERS_GROUP);
    let refusal = pair.server_hears_instead_of_proposal(&pair.proposal()).unwrap_err();
    let decline = sent(&refusal);
    assert_eq!(decline.diagnosis, Diagnosis::NOSMCDEV);
    let heard = pair.client_hears_instead_of_accept(&bytes(|room| decline.emit(room)));
    assert_eq!(heard, Err(Refusal::Declined(decline)), "and sends nothing back");
}

#[test]
fn c1_the_client_declines_in_place_of_its_confirm() {
    let pair = Pair::new();
    let foreign = AcceptConfirmD { eid: Eid::ueid("Y").unwrap(), ..pair.accept() };
    let refusal = pair.client_hears_instead_of_accept(&emitted(&foreign)).unwrap_err();
    let decline = sent(&refusal);
    let heard = pair.server_hears_instead_of_confirm(&bytes(|room| decline.emit(room)));
    assert_eq!(heard, Err(Refusal::Declined(decline)));
}

#[test]
fn c1_a_decline_in_place_of_the_proposal_is_heard() {
    let decline = Decline::v1(PeerId::default(), Diagnosis::CNFERR);
    let heard = Pair::new().server_hears_instead_of_proposal(&bytes(|room| decline.emit(room)));
    assert_eq!(heard, Err(Refusal::Declined(decline)));
}

#[test]
fn c3_after_its_accept_the_server_does_not_decline() {
    let pair = Pair::new();
    let good = pair.confirm();
    let wrong = [
        (Field::EID, AcceptConfirmD { eid: Eid::ueid("Y").unwrap(), ..good.clone() }),
        (Field::GID, AcceptConfirmD { gid: pair.server.local.gid, ..good.clone() }),
        (Field::CHID, AcceptConfirmD { chid: Chid(1), ..good.clone() }),
        (Field::RELEASE, AcceptConfirmD { first_contact: None, ..good }),
    ];
    for (field, confirm) in wrong {
        let heard = pair.server_hears_instead_of_confirm(&emitted(&confirm));
        assert_eq!(heard, Err(Refusal::Protocol(field)), "{confirm:?}");
    }
}

#[test]
fn c4_an_accept_of_a_link_group_that_we_do_not_have_is_out_of_sync() {
    let pair = Pair::new();
    for first_contact in [None, pair.accept().first_contact] {
        let stale = AcceptConfirmD { link_id: LinkId(8), first_contact, ..pair.accept() };
        let refusal = pair.client_hears_instead_of_accept(&emitted(&stale)).unwrap_err();
        let decline = sent(&refusal);
        assert_eq!((decline.diagnosis, decline.out_of_sync), (Diagnosis::SYNCERR, true));
    }
}

/// Waits for so many looks, each after such a pause.
fn waited(mut wait: AnswerWait, looks: u32, pause_ns: u64) -> bool {
    (1..=u64::from(looks)).for_each(|look| wait.look(look * pause_ns));
    wait.is_late()
}

#[test]
fn c5_an_answer_that_does_not_come_is_not_waited_for_for_ever() {
    const MS: u64 = 1_000_000;
    let wait = AnswerWait::begin(16, 0);
    assert!(!waited(wait, 1_000_000, 6_000), "a peer that gets no CPU while we send and send");
    assert!(waited(wait, LOOKS_IN_TIME, 100 * MS));
    assert!(
        !waited(wait, LOOKS_IN_TIME - 1, 3_600_000 * MS),
        "a program that makes a call an hour"
    );
}

#[test]
fn c5_while_the_program_rests_no_answer_is_waited_for() {
    let mut wait = AnswerWait::begin(16, 0);
    wait.look(3_600_000_000_000);
    assert!(!waited(wait, 1_000, 1), "it has just come back");
}

#[test]
fn c5_a_peer_that_looks_again_after_as_many_messages_is_given_them() {
    let wait = AnswerWait::begin(1_000, 0);
    assert!(!waited(wait, 2_000, 10_000_000), "a thousand more, twenty seconds");
    assert!(waited(wait, 4_000, 10_000_000));
    assert!(waited(AnswerWait::begin(u64::MAX, 0), 16_384, 1_000_000), "never for ever");
}

#[test]
fn c6_another_message_than_the_expected_one_is_a_protocol_error() {
    let pair = Pair::new();
    let [proposal, accept, confirm] =
        [pair.proposal(), emitted(&pair.accept()), emitted(&pair.confirm())];
    let other_type = Refusal::Protocol(Field::CLC_TYPE);
    for message in [&accept, &confirm] {
        assert_eq!(pair.server_hears_instead_of_proposal(message), Err(other_type));
    }
    for message in [&proposal, &confirm] {
        assert_eq!(pair.client_hears_instead_of_accept(message), Err(other_type));
    }
    for message in [&proposal, &accept] {
        assert_eq!(pair.server_hears_instead_of_confirm(message), Err(other_type));
    }
}

#[test]
fn c6_application_data_in_place_of_a_message_is_a_protocol_error() {
    let pair = Pair::new();
    let only_eyecatcher = &[0xE2, 0xD4, 0xC3, 0xC4];
    for data in [&b""[..], b"G", b"GET / HTTP/1.1\r\n\r\n", only_eyecatcher, &[0; 504]] {
        let field = if data == only_eyecatcher { "CLC type" } else { "CLC eyecatcher" };
        assert_eq!(broken(pair.server_hears_instead_of_proposal(data)), Some(field));
        assert_eq!(broken(pair.client_hears_instead_of_accept(data)), Some(field));
        assert_eq!(broken(pair.server_hears_instead_of_confirm(data)), Some(field));
    }
}

#[test]
fn c6_wrong_lengths_and_eyecatchers_are_protocol_errors() {
    let pair = Pair::new();
    let good = emitted(&pair.accept());
    let last = good.len() - 1;
    // The eyecatchers at both ends, the length, and an end that is missing.
    let (eyecatcher, length) = ("CLC eyecatcher", "CLC length");
    for (at, field) in
        [(0, eyecatcher), (3, eyecatcher), (5, length), (6, length), (last, "CLC trailer")]
    {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        assert_eq!(broken(pair.client_hears_instead_of_accept(&bad)), Some(field), "byte {at}");
    }
    assert_eq!(broken(pair.client_hears_instead_of_accept(&good[..last])), Some(length));
}

#[test]
fn c6_a_reserved_value_is_declined_and_no_error() {
    /// Where an Accept of SMC-D has the code of its buffer size, in the upper four bits.
    const SIZE_CODE_AT: usize = 25;
    let pair = Pair::new();
    for code in 7..=15 {
        let mut bytes = emitted(&pair.accept());
        bytes[SIZE_CODE_AT] = code << 4;
        let refusal = pair.client_hears_instead_of_accept(&bytes).unwrap_err();
        assert_eq!(sent(&refusal).diagnosis, Diagnosis::MODEUNSUPP, "code {code}");
    }
}

#[test]
fn an_accept_of_a_mode_that_was_not_offered_is_declined() {
    let pair = Pair::new();
    let mut accept = pair.accept();
    accept.chid = Chid(1);
    assert_eq!(accept.role, Role::Accept);
    let refusal = pair.client_hears_instead_of_accept(&emitted(&accept)).unwrap_err();
    assert_eq!(sent(&refusal).diagnosis, Diagnosis::MODEUNSUPP);
}

#[test]
fn each_decline_that_we_send_says_whose_fault_it_is() {
    let pair = Pair::new();
    let heard = |accept: AcceptConfirmD| {
        let refusal = pair.client_hears_instead_of_accept(&emitted(&accept)).unwrap_err();
        (sent(&refusal).diagnosis, refusal.reason())
    };
    let accept = || pair.accept();
    let broke = |diagnosis, field| (diagnosis, Reason::PeerBroke(field));
    let other_gid = pair.client.local.gid;
    let of_ours = [
        (heard(AcceptConfirmD { chid: Chid(1), ..accept() }), Diagnosis::MODEUNSUPP, Field::CHID),
        (heard(AcceptConfirmD { gid: other_gid, ..accept() }), Diagnosis::MODEUNSUPP, Field::GID),
        (
            heard(AcceptConfirmD { eid: Eid::ueid("Y").unwrap(), ..accept() }),
            Diagnosis::NOUEID,
            Field::EID,
        ),
        (
            heard(AcceptConfirmD { link_id: LinkId(8), ..accept() }),
            Diagnosis::SYNCERR,
            Field::LINK_ID,
        ),
    ];
    for (told, diagnosis, field) in of_ours {
        assert_eq!(told, broke(diagnosis, field));
    }
    // No UEID in common is no breach: the operators of both ends have named them.
    let others = Pair { client: End::new(1, "Y", LinkId(3)), ..Pair::new() };
    let refusal = others.server_hears_instead_of_proposal(&others.proposal()).unwrap_err();
    assert_eq!(refusal.reason().blame(), Some(Blame::Operator));
}

proptest! {
    /// Whatever comes in place of a message: if it leads no further, that is the peer's fault, or it is
    /// no fault that the operators have named other EIDs. The field is told, and has a number.
    #[test]
    fn what_the_peer_says_is_never_told_as_our_failure(
        which in 0usize..4,
        cut in 0usize..700,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        is_fitted in any::<bool>(),
    ) {
        let pair = Pair::new();
        let decline = Decline::v2(PeerId::default(), Diagnosis::CNFERR);
        let mut message = match which {
            0 => pair.proposal(),
            1 => emitted(&pair.accept()),
            2 => emitted(&pair.confirm()),
            _ => bytes(|room| decline.emit(room)),
        };
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        message.truncate(cut);
        if is_fitted && message.len() > 6 {
            let length = message.len() as u16;
            message[5..7].copy_from_slice(&length.to_be_bytes());
        }
        let refusals = [
            pair.server_hears_instead_of_proposal(&message).err(),
            pair.client_hears_instead_of_accept(&message).err(),
            pair.server_hears_instead_of_confirm(&message).err(),
        ];
        for refusal in refusals.into_iter().flatten() {
            let reason = refusal.reason();
            let is_peers = matches!(reason.blame(), Some(Blame::PeerBroke | Blame::PeerCannot));
            let is_named_otherwise = reason == OperatorSaid::NoCommonEid.into();
            prop_assert!(is_peers || is_named_otherwise, "{refusal:?}");
            if reason.blame() == Some(Blame::PeerBroke) {
                prop_assert!(reason.field().and_then(Field::name).is_some(), "{refusal:?}");
            }
        }
    }
}
