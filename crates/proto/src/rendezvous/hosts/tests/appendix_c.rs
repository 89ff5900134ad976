//! The error scenarios of RFC 7609 Appendix C that are CLC's: C.1 to C.6, each with two machines.

use super::*;

fn neighbours() -> Table {
    Table::neighbours(Engine::SOUND, Engine::SOUND)
}

fn failing(diagnosis: Diagnosis) -> Engine {
    Engine { fails: Some(diagnosis), ..Engine::SOUND }
}

fn refusing(diagnosis: Diagnosis) -> Engine {
    Engine { refuses: Some(diagnosis), ..Engine::SOUND }
}

const KNOWN: Engine = Engine { first_contact: false, ..Engine::SOUND };
const SLOW: Engine = Engine { is_slow: true, ..Engine::SOUND };

/// A stage of the rendezvous, by which side waits for what.
fn waiting() -> [(&'static str, End); 3] {
    let slow = || Table::neighbours(SLOW, SLOW);
    let proposed = {
        let mut table = slow();
        let _ = table.client.act(table.now);
        table.client
    };
    let listening = slow().server;
    let accepted = {
        let mut table = slow();
        table.run();
        table.server.answer(table.now);
        let _ = table.server.act(table.now);
        table.server
    };
    [("client, Accept", proposed), ("server, Proposal", listening), ("server, Confirm", accepted)]
}

/// What becomes of an end that is told this.
fn outcome<R>(end: &mut End, event: impl FnOnce(&mut Exchange) -> R) -> Option<Outcome> {
    event(&mut end.exchange);
    let before = end.sent.len();
    let _ = end.act(Duration::ZERO);
    assert_eq!(end.sent.len(), before, "nobody answers that");
    end.outcome.clone()
}

const PROTOCOL: Option<Outcome> = Some(Outcome::Broken(Failure::Protocol));

// ---- C.1: SMC Decline during CLC negotiation ----------------------------------------------------

#[test]
fn c1_the_client_declines_in_place_of_its_proposal() {
    let nothing = LocalHost { adapters: ArrayVec::new(), ..host(2) };
    let client = (nothing, route("10.0.0.2/24", "10.0.0.1"));
    let mut table = Table::new(client, (host(1), route("10.0.0.1/24", "10.0.0.2")));
    table.assert_declined(Role::Confirm, Cause::NoAdapter);
}

#[test]
fn c1_the_server_declines_in_place_of_its_accept() {
    let mut table = Table::neighbours(Engine::SOUND, refusing(Diagnosis::MEM));
    table.assert_declined(Role::Accept, Cause::Driver(Diagnosis::MEM));
}

#[test]
fn c1_the_client_declines_in_place_of_its_confirm() {
    let mut table = Table::neighbours(refusing(Diagnosis::MEM), Engine::SOUND);
    table.assert_declined(Role::Confirm, Cause::Driver(Diagnosis::MEM));
}

#[test]
fn c1_a_client_that_cannot_any_more_waits_for_the_accept() {
    let mut table = neighbours();
    let proposal = table.client.act(table.now);
    table.client.exchange.decline(Diagnosis::NOSMCRDEV, table.now);
    assert!(table.client.act(table.now).is_empty(), "a Decline does not chase a Proposal");
    table.server.incoming.extend(proposal);
    table.assert_declined(Role::Confirm, Cause::Driver(Diagnosis::NOSMCRDEV));
}

#[test]
fn c1_a_server_that_does_not_want_to_waits_for_the_proposal() {
    let mut table = neighbours();
    table.server.exchange.decline(Diagnosis::CNFERR, table.now);
    assert!(table.server.act(table.now).is_empty());
    table.assert_declined(Role::Accept, Cause::Driver(Diagnosis::CNFERR));
    assert!(table.server.asked.iter().all(|event| !matches!(event, Event::Accept(..))));
}

#[test]
fn c1_of_two_that_decline_the_one_whose_turn_it_is_does() {
    let mut table = neighbours();
    table.client.exchange.decline(Diagnosis::MEM, table.now);
    table.server.exchange.decline(Diagnosis::CNFERR, table.now);
    table.assert_declined(Role::Accept, Cause::Driver(Diagnosis::CNFERR));
}

#[test]
fn c1_a_decline_is_heard_at_every_stage_and_in_both_versions() {
    for decline in [
        Decline::v1(PeerId::default(), Diagnosis::CNFERR),
        Decline::v2(PeerId::default(), Diagnosis::CNFERR),
        Decline { out_of_sync: true, ..Decline::v2(PeerId::default(), Diagnosis::SYNCERR) },
    ] {
        for (stage, mut end) in waiting() {
            let outcome = outcome(&mut end, |it| it.handle_bytes(&bytes(decline)));
            assert_eq!(outcome, Some(Outcome::Tcp(Fallback::Peers(decline))), "{stage}");
        }
    }
}

#[test]
fn c1_a_decline_of_a_later_version_is_one() {
    for (stage, mut end) in waiting() {
        let mut later = bytes(Decline::v2(PeerId::default(), Diagnosis::CNFERR));
        later[7] = 0x30;
        let Some(Outcome::Tcp(Fallback::Peers(decline))) =
            outcome(&mut end, |it| assert_eq!(it.handle_bytes(&later), later.len()))
        else {
            panic!("{stage}")
        };
        assert_eq!(decline.diagnosis, Diagnosis::PEERDECL);
    }
}

// ---- C.2: SMC Decline during LLC negotiation ----------------------------------------------------

#[test]
fn c2_at_first_contact_the_client_may_decline_behind_its_confirm() {
    let mut table = Table::neighbours(failing(Diagnosis::ERR_RDYLNK), SLOW);
    table.run();
    table.server.answer(table.now);
    table.assert_declined(Role::Confirm, Cause::Driver(Diagnosis::ERR_RDYLNK));
}

#[test]
fn c2_at_first_contact_the_server_may_decline_behind_the_confirm() {
    let mut table = Table::neighbours(SLOW, failing(Diagnosis::MAXCONNERR));
    table.run();
    table.client.answer(table.now);
    table.assert_declined(Role::Accept, Cause::Driver(Diagnosis::MAXCONNERR));
}

#[test]
fn c2_who_has_waited_in_vain_for_confirm_link_lets_the_peer_decline_first() {
    let mut table = Table::neighbours(SLOW, failing(Diagnosis::TIMEOUT_CL));
    table.run();
    table.client.answer(table.now);
    table.run();
    assert_eq!(table.server.outcome, None);
    assert_eq!(table.server.exchange.poll_timeout(), Some(DECLINE_WAIT));
    table.client.exchange.decline(Diagnosis::ERR_RDYLNK, table.now);
    table.assert_declined(Role::Confirm, Cause::Driver(Diagnosis::ERR_RDYLNK));
}

#[test]
fn c2_but_not_for_ever() {
    let mut table = Table::neighbours(SLOW, failing(Diagnosis::TIMEOUT_CL));
    table.run();
    table.client.answer(table.now);
    table.assert_declined(Role::Accept, Cause::Driver(Diagnosis::TIMEOUT_CL));
    assert_eq!(table.now, DECLINE_WAIT);
}

#[test]
fn c2_half_a_decline_is_waited_for() {
    let decline = bytes(Decline::v2(PeerId::default(), Diagnosis::TIMEOUT_CL));
    let linking = || {
        let mut table = Table::neighbours(SLOW, SLOW);
        table.run();
        table.server.answer(table.now);
        table.run();
        table.client.answer(table.now);
        let _ = table.client.act(table.now);
        table.client.exchange.handle_bytes(&decline[..5]);
        table.client.exchange.decline(Diagnosis::MEM, table.now);
        table.client
    };
    let mut client = linking();
    let whole = outcome(&mut client, |it| it.handle_bytes(&decline[5..]));
    assert!(matches!(whole, Some(Outcome::Tcp(Fallback::Peers(_)))));
    let mut client = linking();
    let half = outcome(&mut client, |it| it.handle_timeout(DECLINE_WAIT));
    assert_eq!(half, Some(Outcome::Broken(Failure::TimedOut)));
}

#[test]
fn c2_declines_that_cross_are_no_bytes_of_the_programs() {
    let failing = failing(Diagnosis::ERR_RDYLNK);
    let slow = |engine| Engine { is_slow: true, ..engine };
    let mut table = Table::neighbours(slow(failing.clone()), slow(failing));
    table.run();
    table.server.answer(table.now);
    table.run();
    table.client.answer(table.now);
    table.run();
    table.client.answer(table.now);
    table.server.answer(table.now);
    table.run();
    let cause = Cause::Driver(Diagnosis::ERR_RDYLNK);
    for (end, peer) in [(Role::Confirm, Role::Accept), (Role::Accept, Role::Confirm)] {
        let end = if end == Role::Accept { &table.server } else { &table.client };
        assert_eq!(end.outcome, Some(Outcome::Tcp(Fallback::Ours(cause))));
        let stream: Vec<u8> = end.incoming.iter().copied().collect();
        let crossed = end.exchange.crossed(&stream);
        assert_eq!(&stream[crossed..], speech(peer));
        assert_eq!(end.exchange.crossed(speech(peer)), 0, "or it has not declined");
    }
}

#[test]
fn c1_in_turn_no_declines_can_cross() {
    let mut table = Table::neighbours(Engine::SOUND, refusing(Diagnosis::MEM));
    table.run();
    let decline = bytes(Decline::v2(PeerId::default(), Diagnosis::MEM));
    assert_eq!(table.server.exchange.crossed(&decline), 0, "it is the program's");
}

// ---- C.3: the SMC Decline window ----------------------------------------------------------------

#[test]
fn c3_at_a_subsequent_contact_the_server_does_not_decline_behind_its_accept() {
    let mut table = Table::neighbours(Engine::SOUND, KNOWN);
    let proposal = table.client.act(table.now);
    table.server.incoming.extend(proposal);
    table.server.read(usize::MAX);
    table.server.read(usize::MAX);
    let accept = table.server.act(table.now);
    table.server.exchange.decline(Diagnosis::NOACTLINK, table.now);
    table.client.incoming.extend(accept);
    table.run();
    assert_eq!(table.server.outcome, Some(Outcome::Broken(Failure::TooLate)));
    assert!(matches!(table.server.sent[..], [Message::Accept(_)]));
}

#[test]
fn c3_nor_behind_the_confirm() {
    let engine = Engine { fails: Some(Diagnosis::ERR_RTOK), ..KNOWN };
    let mut table = Table::neighbours(Engine::SOUND, engine);
    table.run();
    assert_eq!(table.server.outcome, Some(Outcome::Broken(Failure::TooLate)));
}

#[test]
fn c3_nor_does_the_client_behind_its_confirm() {
    let mut table = Table::neighbours(failing(Diagnosis::ERR_RTOK), KNOWN);
    table.run();
    assert_eq!(table.client.outcome, Some(Outcome::Broken(Failure::TooLate)));
    assert!(matches!(table.client.sent[..], [Message::Proposal(_), Message::Confirm(_)]));
}

#[test]
fn c3_a_confirm_that_does_not_agree_is_declined_only_at_first_contact() {
    type Change = fn(&mut AcceptConfirmR);
    let foreign: Change = |it| {
        if let FormR::V2 { eid, .. } = &mut it.form {
            *eid = Eid::ueid("OTHER").unwrap();
        }
    };
    let reserved: Change = |it| it.mtu = Mtu::from_low_bits(9);
    let version_1: Change = |it| it.form = FormR::V1 { first_contact: it.is_first_contact() };
    let other_contact: Change = |it| {
        if let FormR::V2 { first_contact, .. } = &mut it.form {
            *first_contact = match first_contact {
                Some(_) => None,
                None => Some(host(2).hello(Release::V2_1)),
            };
        }
    };
    for (change, cause) in [
        (foreign, Cause::ForeignEid),
        (reserved, Cause::Reserved),
        (version_1, Cause::NotOffered),
        (other_contact, Cause::Release),
    ] {
        for (engine, is_first) in [(Engine::SOUND, true), (KNOWN, false)] {
            let mut table = Table::neighbours(SLOW, engine);
            table.run();
            let mut confirm = table.client.pending.take().unwrap();
            change(&mut confirm);
            let server = &mut table.server;
            server.exchange.handle_bytes(&bytes(confirm));
            let _ = server.act(table.now);
            let declined = matches!(server.sent[..], [Message::Accept(_), Message::Decline(_)]);
            assert_eq!(declined, is_first);
            assert_eq!(
                server.outcome,
                Some(match is_first {
                    true => Outcome::Tcp(Fallback::Ours(cause)),
                    false => Outcome::Broken(Failure::TooLate),
                })
            );
        }
    }
}

#[test]
fn c3_a_confirm_of_version_1_need_not_repeat_the_flag() {
    let v1 = |n| LocalHost { versions: V1_ONLY, ..host(n) };
    let client = (v1(2), route("10.0.0.2/24", "10.0.0.1"));
    let server = (v1(1), route("10.0.0.1/24", "10.0.0.2"));
    let mut table = Table::with(client, server, SLOW, Engine::SOUND);
    table.run();
    table.client.pending.as_mut().unwrap().form = FormR::V1 { first_contact: false };
    table.client.answer(table.now);
    table.run();
    let agreed = Outcome::Agreed { version: Version::V1, first_contact: true };
    assert_eq!(table.server.outcome, Some(agreed));
    let confirmed = table.server.asked.iter().find_map(|event| match event {
        Event::Confirmed(confirm) => Some(confirm.is_first_contact()),
        _ => None,
    });
    assert_eq!(confirmed, Some(true), "the engine finds it as it is used to");
}

// ---- C.4: out-of-sync conditions ----------------------------------------------------------------

#[test]
fn c4_a_client_without_the_servers_link_group_is_out_of_sync() {
    let mut table = Table::neighbours(refusing(Diagnosis::SYNCERR), KNOWN);
    table.assert_declined(Role::Confirm, Cause::Driver(Diagnosis::SYNCERR));
    let Some(Outcome::Tcp(Fallback::Peers(decline))) = table.server.outcome else { panic!() };
    assert!(decline.out_of_sync, "the server's driver ends the group");
}

// ---- C.5: timeouts during CLC negotiation -------------------------------------------------------

#[test]
fn c5_a_peer_that_is_silent_ends_the_tcp_connection() {
    for (stage, mut end) in waiting() {
        let until = end.exchange.poll_timeout().unwrap();
        assert_eq!(until, CLC_WAIT, "{stage}");
        let early = until - Duration::from_nanos(1);
        assert_eq!(outcome(&mut end, |it| it.handle_timeout(early)), None, "{stage}");
        let late = outcome(&mut end, |it| it.handle_timeout(until));
        assert_eq!(late, Some(Outcome::Broken(Failure::TimedOut)), "{stage}");
        assert_eq!((end.exchange.poll_timeout(), end.exchange.wanted()), (None, 0));
    }
}

#[test]
fn c5_a_message_that_comes_in_drops_has_no_more_time() {
    for (stage, mut end) in waiting() {
        let decline = bytes(Decline::v1(PeerId::default(), Diagnosis::CNFERR));
        for byte in &decline[..decline.len() - 1] {
            end.exchange.handle_bytes(&[*byte]);
        }
        let late = outcome(&mut end, |it| it.handle_timeout(CLC_WAIT));
        assert_eq!(late, Some(Outcome::Broken(Failure::TimedOut)), "{stage}");
    }
}

#[test]
fn c5_a_peer_that_leaves_ends_the_tcp_connection() {
    for (stage, mut end) in waiting() {
        let left = Some(Outcome::Broken(Failure::Left));
        if stage != "server, Proposal" {
            assert_eq!(outcome(&mut end, Exchange::handle_end), left, "{stage}");
        }
    }
    for (stage, mut end) in waiting() {
        let left = Some(Outcome::Broken(Failure::Left));
        assert_eq!(outcome(&mut end, Exchange::handle_reset), left, "{stage}");
    }
}

#[test]
fn c5_a_client_that_leaves_before_it_says_anything_has_left_the_stream_as_it_was() {
    let [_, (_, mut end), _] = waiting();
    let left = outcome(&mut end, Exchange::handle_end);
    assert_eq!(left, Some(Outcome::Tcp(Fallback::Ours(Cause::Silent))));
    let [_, (_, mut end), _] = waiting();
    end.exchange.handle_bytes(&[0xE2]);
    let left = outcome(&mut end, Exchange::handle_end);
    assert_eq!(left, Some(Outcome::Broken(Failure::Left)), "but not if it has said half of it");
}

#[test]
fn c5_a_peer_that_closes_when_all_is_said_may_have_sent_all_by_rdma() {
    for servers in [Engine::SOUND, KNOWN] {
        let mut table = Table::neighbours(Engine::SOUND, Engine { is_slow: true, ..servers });
        table.run();
        table.server.answer(table.now);
        table.run();
        table.server.exchange.handle_end();
        assert_eq!(table.server.exchange.wanted(), 0);
        table.server.answer(table.now);
        table.assert_agreed(Version::V2);
    }
}

#[test]
fn c5_a_peer_that_has_closed_cannot_be_declined() {
    let mut table = Table::neighbours(SLOW, SLOW);
    table.run();
    table.server.answer(table.now);
    table.run();
    table.client.answer(table.now);
    let _ = table.client.act(table.now);
    table.client.exchange.handle_end();
    let failed = outcome(&mut table.client, |it| it.decline(Diagnosis::TIMEOUT_CL, Duration::ZERO));
    assert_eq!(failed, Some(Outcome::Broken(Failure::Left)));
}

// ---- C.6: protocol errors during CLC negotiation ------------------------------------------------

#[test]
fn c6_another_message_than_the_expected_one_ends_the_tcp_connection() {
    let mut table = neighbours();
    table.run();
    let messages: Vec<_> = table.client.sent.iter().chain(&table.server.sent).cloned().collect();
    for message in messages {
        for (stage, mut end) in waiting() {
            let is_expected = match message {
                Message::Proposal(_) => stage == "server, Proposal",
                Message::Accept(_) => stage == "client, Accept",
                _ => stage == "server, Confirm",
            };
            let message = bytes(message.clone());
            let taken = end.exchange.handle_bytes(&message);
            let _ = end.act(Duration::ZERO);
            assert_eq!(end.outcome == PROTOCOL, !is_expected, "{stage}");
            assert_eq!(taken < message.len(), !is_expected, "its header tells");
        }
    }
}

#[test]
fn c6_application_data_in_place_of_a_message_ends_the_tcp_connection() {
    for data in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 600], b"\xE2\xD4\xC3\xD9\x09\0\0\0\0"] {
        for (stage, mut end) in waiting() {
            let broken = outcome(&mut end, |it| it.handle_bytes(data));
            assert_eq!(broken, PROTOCOL, "{stage}");
        }
    }
}

#[test]
fn c6_wrong_lengths_versions_and_eyecatchers_end_the_tcp_connection() {
    let good = bytes(Decline::v2(PeerId::default(), Diagnosis::CNFERR));
    let last = good.len() - 1;
    for (at, value) in
        [(0, 0), (3, 0), (4, 0), (4, 5), (5, 0xFF), (6, 11), (6, 40), (7, 0x00), (last, 0)]
    {
        for (stage, mut end) in waiting() {
            let mut bad = good.clone();
            bad[at] = value;
            let broken = outcome(&mut end, |it| it.handle_bytes(&bad));
            assert_eq!(broken, PROTOCOL, "{stage}, byte {at}");
        }
    }
}

#[test]
fn c6_a_header_is_judged_before_the_rest_is_waited_for() {
    let good = bytes(Decline::v2(PeerId::default(), Diagnosis::CNFERR));
    for (at, value) in [(0, 0), (4, 0), (5, 0xFF), (6, 11), (7, 0x00)] {
        for (stage, mut end) in waiting() {
            let mut header = good[..Header::LEN].to_vec();
            header[at] = value;
            let broken = outcome(&mut end, |it| it.handle_bytes(&header));
            assert_eq!(broken, PROTOCOL, "{stage}, byte {at}");
        }
    }
}

#[test]
fn c6_a_reserved_value_is_declined() {
    // An MTU that only a later edition knows, in the Accept.
    let mut table = Table::neighbours(Engine::SOUND, SLOW);
    table.run();
    table.server.pending.as_mut().unwrap().mtu = Mtu::from_low_bits(7);
    table.server.answer(table.now);
    table.assert_declined(Role::Confirm, Cause::Reserved);
    // The same, in the Confirm.
    let mut table = Table::neighbours(SLOW, Engine::SOUND);
    table.run();
    table.client.pending.as_mut().unwrap().mtu = Mtu::from_low_bits(15);
    table.client.answer(table.now);
    table.assert_declined(Role::Accept, Cause::Reserved);
}

#[test]
fn c6_a_message_of_a_later_version_is_read_over_and_declined() {
    let mut table = neighbours();
    let mut proposal = table.client.act(table.now);
    proposal[7] |= 0x10;
    assert_eq!(proposal[7] >> 4, 3);
    table.server.incoming.extend(proposal);
    table.assert_declined(Role::Accept, Cause::Reserved);
    let [Message::Decline(decline)] = &table.server.sent[..] else { panic!() };
    assert_eq!(decline.version(), Version::V2);
}

#[test]
fn c6_bytes_in_the_middle_of_first_contact_end_the_tcp_connection() {
    let linking = || {
        let mut table = Table::neighbours(Engine::SOUND, SLOW);
        table.run();
        table.server.answer(table.now);
        table.run();
        table.server
    };
    let mut server = linking();
    let broken = outcome(&mut server, |it| it.handle_bytes(b"GET / HTTP/1.1\r\n"));
    assert_eq!(broken, PROTOCOL);
    let mut server = linking();
    server.exchange.handle_bytes(b"\xE2\xD4");
    assert_eq!(outcome(&mut server, Exchange::established), PROTOCOL);
}
