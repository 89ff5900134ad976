//! The error scenarios of RFC 7609 Appendix C that concern LLC, by the message they begin with.
//! Those of CLC are in `rendezvous/appendix_c.rs`.

use super::*;
use sidestep_wire::llc::AddLinkForm;

fn first_contact(version: Version) -> Table {
    let mut table = Table::lay(Setting::new(version, 2, 2));
    table.exchange_clc();
    table
}

fn pair(version: Version) -> Table {
    Table::established(Setting::new(version, 2, 2))
}

/// One link. When the server gets its second adapter, it will add link 3.
fn growing(version: Version) -> Table {
    Table::established(Setting::new(version, 1, 1))
}

fn is_alive(table: &mut Table, links: &[u8]) {
    for role in [Role::Server, Role::Client] {
        assert_eq!(table.links(role), links, "{role:?}: {:#?}", table.trace);
    }
    table.assert_agreement();
}

// ---- C.2, C.3: declining ------------------------------------------------------------------------

#[test]
fn c2_a_confirm_link_response_that_cannot_be_sent_is_declined_by_the_client() {
    for max_links in [1, 2] {
        let mut table = Table::lay(Setting { max_links, ..Setting::new(Version::V1, 2, 2) });
        table.exchange_clc();
        table.run(LATENCY / 2);
        // The request is on its way and arrives; the way back is broken.
        table.cuts.insert((AdapterId(1), AdapterId(1)));
        table.run(s(1));
        assert!(table.host(Role::Client).has(Event::Declined(Diagnosis::TIMEOUT_CL)));
        assert!(!table.host(Role::Client).has(Event::Established));
        // Its CLC tells the server.
        table.server().abandon();
        table.carry_out();
        table.assert_gone(Role::Server);
    }
}

#[test]
fn c3_nothing_is_declined_after_confirm_link() {
    let mut table = first_contact(Version::V2);
    table.run(ms(3));
    table.break_link(Role::Client, 1);
    table.run(s(5));
    for role in [Role::Server, Role::Client] {
        let declined = |event: &Event| matches!(event, Event::Declined(_));
        assert!(!table.host(role).events.iter().any(declined));
    }
    table.assert_gone(Role::Client);
}

// ---- C.4: out of sync ---------------------------------------------------------------------------

#[test]
fn c4_an_accept_that_names_a_link_the_client_does_not_have() {
    let mut table = pair(Version::V1);
    let mut accept = table.introduce(Role::Server);
    accept.form = FormR::V1 { first_contact: false };
    let link = table.client().links()[0].user_id();
    assert_eq!(table.client().link_of(&accept, 0), Ok(link));
    assert_eq!(table.client().link_of(&accept, 1), Err(Diagnosis::SYNCERR));
    let other = AcceptConfirmR { peer_id: PeerId([9; 8]), ..accept.clone() };
    assert_eq!(table.client().link_of(&other, 0), Err(Diagnosis::SYNCERR));
    let other = AcceptConfirmR { mac: Mac([9; 6]), ..accept.clone() };
    assert_eq!(table.client().link_of(&other, 0), Err(Diagnosis::NOSRVLINK));
    // The link has just failed here, and the server does not know yet.
    table.break_link(Role::Client, 1);
    assert_eq!(table.client().link_of(&accept, 0), Err(Diagnosis::NOSRVLINK));
}

// ---- C.7.1: timeouts ----------------------------------------------------------------------------

#[test]
fn c7_confirm_link_of_the_first_link() {
    let mut table = Table::lay(Setting::new(Version::V1, 1, 1));
    for _ in 0..5 {
        table.swallow("s CONFIRM LINK request");
    }
    table.exchange_clc();
    table.run(s(2));
    table.assert_gone(Role::Server);
    assert!(table.host(Role::Server).has(Event::Declined(Diagnosis::TIMEOUT_CL)));
}

#[test]
fn c7_confirm_link_of_the_second_link_at_first_contact() {
    for line in ["s CONFIRM LINK request", "c CONFIRM LINK response"] {
        let mut table = first_contact(Version::V2);
        table.run(ms(3));
        table.swallow(line);
        table.run(ms(100));
        assert!(!table.server().is_established(), "not before it is settled");
        table.run(s(5));
        let announced = table.trace.iter().position(|it| it == "s1 DELETE LINK 2");
        let answered = table.trace.iter().position(|it| it == "c1 DELETE LINK 2 response");
        assert!(announced.is_some() && announced < answered, "{:#?}", table.trace);
        is_alive(&mut table, &[1]);
        table.run(s(65));
        is_alive(&mut table, &[1, 3]);
    }
}

#[test]
fn c7_confirm_link_reply_from_the_client_is_followed_by_no_add_link() {
    let mut table = first_contact(Version::V1);
    table.swallow("s ADD LINK request");
    table.run(s(1));
    assert!(!table.client().is_established(), "it waits for the server's try");
    table.run(s(2));
    assert!(table.client().is_established() && table.server().is_established());
    assert!(table.trace.contains(&"c1 TEST LINK response".to_string()), "{:#?}", table.trace);
    table.run(s(70));
    is_alive(&mut table, &[1, 3]);
}

#[test]
fn c7_add_link_has_no_answer() {
    for version in [Version::V1, Version::V2] {
        let mut table = growing(version);
        table.swallow("c ADD LINK response");
        table.adapter_up(Role::Server, 2);
        table.run(s(12));
        // The server gives up first; the client hears of it.
        assert!(table.trace.contains(&"s1 TEST LINK request".to_string()), "{:#?}", table.trace);
        assert!(table.trace.contains(&"s1 DELETE LINK 3".to_string()), "{:#?}", table.trace);
        is_alive(&mut table, &[1]);
        table.run(s(300));
        assert_eq!(table.links(Role::Server).len(), 2, "{:#?}", table.trace);
        table.assert_agreement();
    }
}

#[test]
fn c7_add_link_has_no_answer_because_the_link_it_goes_over_is_dead() {
    let mut table = growing(Version::V1);
    table.cut(1, 1);
    table.adapter_up(Role::Server, 2);
    table.run(s(12));
    table.assert_gone(Role::Server);
}

#[test]
fn c7_add_link_continuation_has_no_answer() {
    for line in ["s ADD LINK CONT request 1", "c ADD LINK CONT response 1"] {
        let mut table = growing(Version::V1);
        table.swallow(line);
        table.adapter_up(Role::Server, 2);
        table.run(s(15));
        is_alive(&mut table, &[1]);
        table.run(s(300));
        assert_eq!(table.links(Role::Client).len(), 2);
        table.assert_agreement();
    }
}

#[test]
fn c7_the_client_waits_in_vain_for_confirm_link_over_the_new_link() {
    let mut table = growing(Version::V2);
    table.swallow("s CONFIRM LINK request");
    table.swallow("s DELETE LINK 3");
    table.swallow("s DELETE LINK 3");
    table.adapter_up(Role::Server, 2);
    table.run(s(8));
    // The server's own DELETE LINK does not come, so the client asks for it.
    assert!(table.trace.contains(&"c1 DELETE LINK 3".to_string()), "{:#?}", table.trace);
}

#[test]
fn c7_delete_link_from_the_client_has_no_answer() {
    let mut table = pair(Version::V1);
    table.swallow("c DELETE LINK 2");
    table.swallow("c TEST LINK request");
    table.swallow("c DELETE LINK 2");
    table.break_link(Role::Client, 2);
    table.run(s(19));
    table.assert_trace(&["c1 DELETE LINK 2"]);
    table.run(s(2));
    // It is asked once more, and the link is tested.
    table.assert_trace(&["c1 DELETE LINK 2", "c1 TEST LINK request"]);
    table.run(s(15));
    assert_eq!(table.links(Role::Client), [0; 0], "the link it was sent over has failed as well");
    table.assert_gone(Role::Client);
}

/// As Linux, which deletes a link only when it knows what became of all that it has sent over it, and may
/// not learn that as long as the path is cut.
#[test]
fn c7_delete_link_from_the_client_has_no_answer_over_a_link_that_works() {
    let mut table = pair(Version::V2);
    // One of them is over the link that stays.
    let links = [table.connect(10), table.connect(11)];
    assert_ne!(links[0], links[1]);
    (0..5).for_each(|_| table.swallow("c DELETE LINK 2"));
    table.break_link(Role::Client, 2);
    table.run(s(99));
    assert_eq!(table.links(Role::Client), [1], "{:#?}", table.trace);
    assert_eq!(table.client().connections().len(), 2);
    table.trace.clear();
    // The path is whole again, and the server sees to what it was asked for.
    table.run(s(2));
    table.assert_trace(&[
        "c1 DELETE LINK 2",
        "c1 TEST LINK request",
        "s1 DELETE LINK 2",
        "s1 TEST LINK response",
        "c1 DELETE LINK 2 response",
    ]);
    is_alive(&mut table, &[1]);
    table.run(s(1));
    is_alive(&mut table, &[1, 3]);
}

#[test]
fn c7_delete_link_from_the_server_has_no_answer() {
    let mut table = pair(Version::V2);
    table.swallow("s DELETE LINK 2");
    table.break_link(Role::Server, 2);
    table.run(ms(2500));
    // Once more, and the link is tested.
    table.assert_trace(&[
        "s1 DELETE LINK 2",
        "s1 DELETE LINK 2",
        "s1 TEST LINK request",
        "c1 DELETE LINK 2 response",
        "c1 TEST LINK response",
        "s1 ADD LINK request",
        "c1 ADD LINK response",
        "s3 CONFIRM LINK request",
        "c3 CONFIRM LINK response",
    ]);
    // A client that is heard otherwise has more time, for its answer may wait behind data; but not
    // for ever.
    (0..11).for_each(|_| table.swallow("s DELETE LINK 1"));
    is_alive(&mut table, &[1, 3]);
    table.break_link(Role::Server, 1);
    table.run(s(15));
    assert!(!table.host(Role::Server).group.has_ended());
    table.run(s(10));
    table.assert_gone(Role::Server);
}

#[test]
fn c7_delete_link_of_the_group_goes_over_another_link() {
    for role in [Role::Server, Role::Client] {
        let mut table = pair(Version::V1);
        table.cuts.insert((AdapterId(1), AdapterId(1)));
        let now = table.now;
        table.group(role).end(DeleteReason::OPERATOR, true, now);
        table.carry_out();
        table.run(s(5));
        let all: Vec<_> = table.trace.iter().filter(|it| it.ends_with("DELETE LINK all")).collect();
        assert!(all[0].contains('1') && all[1].contains('2'), "{all:?}");
        table.assert_gone(Role::Server);
        table.assert_gone(Role::Client);
    }
}

#[test]
fn c7_delete_link_of_the_group_reaches_nobody() {
    for role in [Role::Server, Role::Client] {
        let mut table = pair(Version::V1);
        table.cut(1, 1);
        table.cut(2, 2);
        let now = table.now;
        table.group(role).end(DeleteReason::OPERATOR, true, now);
        table.carry_out();
        table.run(s(2));
        table.assert_gone(role);
    }
}

#[test]
fn c7_confirm_rkey_has_no_answer() {
    for (role, line) in [(Role::Server, 's'), (Role::Client, 'c')] {
        let mut table = pair(Version::V2);
        table.swallow(&format!("{line} CONFIRM RKEY request +1"));
        let now = table.now;
        table.group(role).add_rmb(RmbId(2), now).unwrap();
        table.carry_out();
        table.run(s(3));
        // The link is tested, works, and the buffer is told again.
        assert!(table.trace[1].ends_with("TEST LINK request"), "{:#?}", table.trace);
        assert!(table.host(role).has(Event::RmbReady(RmbId(2))));
        is_alive(&mut table, &[1, 2]);
    }
}

#[test]
fn c7_confirm_rkey_has_no_answer_because_the_link_has_failed() {
    for role in [Role::Server, Role::Client] {
        let mut table = pair(Version::V1);
        table.cut(1, 1);
        let now = table.now;
        table.group(role).add_rmb(RmbId(2), now).unwrap();
        table.carry_out();
        table.run(ms(900));
        assert!(table.host(role).has(Event::RmbReady(RmbId(2))), "{:#?}", table.trace);
        is_alive(&mut table, &[2]);
    }
}

#[test]
fn c7_a_peer_that_never_takes_a_buffer() {
    let mut table = pair(Version::V2);
    for _ in 0..3 {
        table.swallow("c CONFIRM RKEY request +1");
    }
    let now = table.now;
    table.client().add_rmb(RmbId(2), now).unwrap();
    table.carry_out();
    table.run(s(9));
    assert!(table.host(Role::Client).has(Event::RmbFailed(RmbId(2))));
    is_alive(&mut table, &[1, 2]);
}

#[test]
fn c7_test_link_has_no_answer() {
    for (role, line) in [(Role::Server, 'c'), (Role::Client, 's')] {
        let setting = Setting { keepalive: Some(s(10)), ..Setting::new(Version::V1, 2, 2) };
        let mut table = Table::established(setting);
        table.swallow(&format!("{line} TEST LINK response"));
        // Only this side tests: the other hears enough.
        for _ in 0..12 {
            let (now, peer) = (table.now, other(role));
            let links: Vec<_> = table.group(peer).links().iter().map(Link::user_id).collect();
            for link in links {
                table.group(peer).handle_traffic(link, now);
            }
            table.run(s(1));
        }
        assert!(table.group(role).is_established());
        assert!(table.host(role).events.iter().any(|it| matches!(it, Event::LinkDown(_))));
    }
}

// ---- C.7.1: invalid messages --------------------------------------------------------------------

#[test]
fn c7_incorrect_link_information_in_the_first_confirm_link_is_declined() {
    for version in [Version::V1, Version::V2] {
        for (change, is_wrong) in [
            ((|it| it.qp_number = QpNumber([1, 1, 1])) as fn(&mut llc::ConfirmLink), true),
            (|it| it.gid.0[15] ^= 1, true),
            (|it| it.link_number = LinkNumber(0), true),
            (|it| it.link_user_id = LinkUserId(99), false),
        ] {
            let mut table = first_contact(version);
            let link = table.server().links()[0].clone();
            let end = link.end().unwrap();
            let mut request = llc::ConfirmLink {
                form: table.server().form,
                role: llc::Role::Request,
                no_eyecatcher: true,
                mac: end.mac,
                gid: end.gid,
                qp_number: end.qp,
                link_number: link.number(),
                link_user_id: link.user_id(),
                max_links: 2,
                max_conns: 255,
            };
            change(&mut request);
            table.inject(Role::Client, 0, &request.into());
            let declined = table.host(Role::Client).has(Event::Declined(Diagnosis::SYNCERR));
            assert_eq!(declined, is_wrong);
        }
    }
}

/// "The link must be brought down by sending a DELETE LINK for the link over another link in the link
/// group if one exists."
#[test]
fn c7_incorrect_link_information_in_the_confirm_link_of_another_link_brings_that_down() {
    for role in [Role::Server, Role::Client] {
        let mut table = growing(Version::V2);
        let line = if role == Role::Client { "s CONFIRM" } else { "c CONFIRM" };
        table.swallow(line);
        table.adapter_up(Role::Server, 2);
        table.run(ms(100));
        let sender = table.group(other(role));
        let link = sender.links().last().unwrap().clone();
        let end = link.end().unwrap();
        let message = llc::ConfirmLink {
            form: sender.form,
            role: if role == Role::Client { llc::Role::Request } else { llc::Role::Response },
            no_eyecatcher: true,
            mac: end.mac,
            gid: end.gid,
            qp_number: QpNumber([1, 1, 1]),
            link_number: link.number(),
            link_user_id: link.user_id(),
            max_links: 2,
            max_conns: 255,
        };
        table.inject(role, link.number().0, &message.into());
        table.run(s(1));
        let number = link.number();
        let announced = table.trace.contains(&format!("s1 DELETE LINK {number}"));
        assert!(announced, "{:#?}", table.trace);
        is_alive(&mut table, &[1]);
    }
}

#[test]
fn c7_eyecatchers_are_declined() {
    let mut table = first_contact(Version::V2);
    let link = table.server().links()[0].clone();
    let end = link.end().unwrap();
    let request = llc::ConfirmLink {
        form: table.server().form,
        role: llc::Role::Request,
        no_eyecatcher: false,
        mac: end.mac,
        gid: end.gid,
        qp_number: end.qp,
        link_number: link.number(),
        link_user_id: link.user_id(),
        max_links: 2,
        max_conns: 255,
    };
    table.inject(Role::Client, 0, &request.into());
    assert!(table.host(Role::Client).has(Event::Declined(Diagnosis::RMBE_EC)));
}

/// A server's ADD LINK for a link that it does not have.
fn offer(table: &mut Table, change: impl FnOnce(&mut llc::AddLink)) -> Message {
    let Adapter { gid, mac, mtu, .. } = adapter(Role::Server, 3);
    let form = match table.client().form {
        Form::V1 => AddLinkForm::V1,
        Form::V2(order) => AddLinkForm::V2 { order, extension: None },
    };
    let mut message = llc::AddLink {
        step: AddLinkStep::Request,
        mac,
        gid,
        qp_number: QpNumber([0, 9, 9]),
        link_number: LinkNumber(9),
        mtu,
        psn: Psn::default(),
        form,
    };
    change(&mut message);
    message.into()
}

#[test]
fn c7_an_undefined_mtu_in_add_link_is_rejected_with_reason_2() {
    for (version, line) in
        [(Version::V1, "c1 ADD LINK reject 2"), (Version::V2, "c1 ADD LINK reject 0")]
    {
        for code in [0, 6, 15] {
            let mut table = growing(version);
            let message = offer(&mut table, |it| it.mtu = Mtu::from_low_bits(code));
            table.inject(Role::Client, 1, &message);
            table.assert_trace(&[line]);
        }
    }
}

#[test]
fn c7_an_add_link_with_a_number_that_is_taken_is_rejected() {
    for number in [0, 1] {
        let mut table = growing(Version::V1);
        let message = offer(&mut table, |it| it.link_number = LinkNumber(number));
        table.inject(Role::Client, 1, &message);
        table.assert_trace(&["c1 ADD LINK reject 1"]);
    }
}

#[test]
fn c7_a_second_asymmetric_link_is_rejected() {
    let mut table = Table::established(Setting::new(Version::V1, 2, 1));
    let message = offer(&mut table, |_| {});
    table.inject(Role::Client, 1, &message);
    table.assert_trace(&["c1 ADD LINK reject 1"]);
}

#[test]
fn c7_an_add_link_reply_for_a_parallel_link() {
    let mut table = growing(Version::V1);
    table.server().growth.first_contact(s(0));
    table.swallow("s ADD LINK request");
    let now = table.now;
    table.server().settle(now);
    table.carry_out();
    assert_eq!(table.trace, ["s1 ADD LINK request"]);
    let number = table.server().links()[1].number();
    let Adapter { gid, mac, mtu, .. } = adapter(Role::Client, 1);
    let answer = llc::AddLink {
        step: AddLinkStep::Response,
        mac,
        gid,
        qp_number: QpNumber([0, 9, 9]),
        link_number: number,
        mtu,
        psn: Psn::default(),
        form: AddLinkForm::V1,
    };
    table.inject(Role::Server, 1, &answer.into());
    table.run(ms(50));
    let gone = format!("s1 DELETE LINK {number}");
    assert_eq!(table.trace[1..], [gone.clone(), format!("c1 DELETE LINK {number} unknown")]);
    is_alive(&mut table, &[1]);
}

#[test]
fn c7_a_command_over_a_link_that_the_client_wants_deleted_is_ignored() {
    let mut table = pair(Version::V1);
    table.swallow("c DELETE LINK 2");
    table.break_link(Role::Client, 2);
    table.trace.clear();
    let message = offer(&mut table, |_| {});
    table.inject(Role::Client, 2, &message);
    table.assert_trace(&[]);
    let all = llc::DeleteLink {
        form: Form::V1,
        role: llc::Role::Request,
        scope: DeleteScope::All,
        orderly: false,
        reason: DeleteReason::OPERATOR,
    };
    table.inject(Role::Client, 2, &all.into());
    assert!(table.host(Role::Client).has(Event::Ending(DeleteReason::OPERATOR)));
}

#[test]
fn c7_add_link_continuations_that_do_not_add_up() {
    let mut table = growing(Version::V1);
    table.swallow("c ADD LINK CONT response 1");
    table.adapter_up(Role::Server, 2);
    table.run(ms(10));
    let number = table.server().links()[1].number();
    let message = |remaining| {
        let pair = llc::RtokenPair::default();
        let pairs = core::iter::repeat_n(pair, usize::from(remaining).min(2)).collect();
        let role = llc::Role::Response;
        llc::AddLinkContinuation { role, link_number: number, remaining, pairs }
    };
    table.inject(Role::Server, 1, &message(5).into());
    assert_eq!(table.links(Role::Server), [1]);
    // Three are left, not four.
    table.inject(Role::Server, 1, &message(4).into());
    table.assert_gone(Role::Server);
}

#[test]
fn c7_delete_link_of_a_link_that_does_not_exist() {
    for (version, role) in [(Version::V1, Role::Server), (Version::V2, Role::Client)] {
        let mut table = pair(version);
        let form = table.group(role).form;
        let scope = DeleteScope::Link(LinkNumber(77));
        let (request, reason) = (llc::Role::Request, DeleteReason::LOST_PATH);
        let message = llc::DeleteLink { form, role: request, scope, orderly: false, reason };
        table.inject(role, 1, &message.into());
        assert!(table.trace[0].ends_with("1 DELETE LINK 77 unknown"), "{:?}", table.trace);
        table.run(s(1));
        is_alive(&mut table, &[1, 2]);
    }
}

#[test]
fn c7_delete_link_from_the_client_of_a_link_that_is_being_cleaned_up_is_ignored() {
    let mut table = pair(Version::V1);
    table.break_link(Role::Server, 2);
    let scope = DeleteScope::Link(LinkNumber(2));
    let (role, reason) = (llc::Role::Request, DeleteReason::LOST_PATH);
    let message = llc::DeleteLink { form: Form::V1, role, scope, orderly: false, reason };
    table.inject(Role::Server, 1, &message.into());
    table.run(ms(50));
    table.assert_trace(&["s1 DELETE LINK 2", "c1 DELETE LINK 2 response"]);
    is_alive(&mut table, &[1]);
}

#[test]
fn c7_confirm_rkey_without_a_key_for_a_link_is_a_failure_of_that_link() {
    for role in [Role::Server, Role::Client] {
        let mut table = pair(Version::V1);
        let (step, entries) = (ConfirmRkeyStep::Request, Default::default());
        let message = llc::ConfirmRkey {
            form: Form::V1,
            step,
            rkey: Rkey(0xABC),
            address: RmbAddress(0),
            remaining: 0,
            entries,
        };
        table.inject(role, 1, &message.into());
        assert!(table.trace[0].ends_with("CONFIRM RKEY response"));
        assert_eq!(table.links(role), [1]);
    }
}

#[test]
fn c7_delete_rkey_of_a_key_that_does_not_exist_is_refused() {
    for version in [Version::V1, Version::V2] {
        let mut table = pair(version);
        let known = table.client().peer_rmbs().next().unwrap().1[0].1.rkey;
        let rkeys = [Rkey(0xABC), known, Rkey(0xDEF)].into_iter().collect();
        let (form, step) = (table.client().form, RkeyStep::Request);
        let message = llc::DeleteRkey { form, step, rkeys, errors: 0 };
        let mut room = [0; 64];
        let len = message.emit(&mut room).unwrap();
        let now = table.now;
        let link = table.client().links()[0].user_id();
        table.client().handle_message(link, &room[..len], now);
        let Some(Command::Send { bytes, .. }) = table.client().poll_command() else { panic!() };
        let Message::DeleteRkey(answer) = Message::parse(&bytes).unwrap() else { panic!() };
        let errors = if version == Version::V1 { 0b1010_0000 } else { 2 };
        assert_eq!((answer.step, answer.errors), (RkeyStep::Negative, errors));
        assert_eq!(table.client().peer_rmbs().count(), 0, "the known one is gone");
    }
}

#[test]
fn c7_a_test_link_reply_with_other_data_is_a_failure_of_the_link() {
    let setting = Setting { keepalive: Some(s(10)), ..Setting::new(Version::V2, 2, 2) };
    let mut table = Table::established(setting);
    table.swallow("c TEST LINK response");
    while table.server().links().iter().all(|link| link.test.is_none()) {
        table.run(ms(1));
    }
    table.run(ms(10));
    let form = table.server().form;
    let answer = llc::TestLink { form, role: llc::Role::Response, user_data: [1; 16] };
    let tested = table.server().links().iter().find(|link| link.test.is_some()).unwrap().number();
    table.inject(Role::Server, tested.0, &answer.into());
    assert_eq!(table.links(Role::Server).len(), 1);
}

#[test]
fn c7_an_optional_message_is_ignored() {
    let mut table = pair(Version::V1);
    for kind in 0x80..=0xBF {
        let mut bytes = [0; 44];
        bytes[..2].copy_from_slice(&[kind, 44]);
        table.inject_bytes(Role::Server, 1, &bytes);
        table.inject_bytes(Role::Client, 2, &bytes[..7]);
    }
    table.run(s(1));
    table.assert_trace(&[]);
    is_alive(&mut table, &[1, 2]);
}

#[test]
fn c7_an_unknown_message_is_a_failure_of_the_link() {
    for kind in (0x00..=0xFF).filter(|kind| !(0x80..=0xBF).contains(kind) && *kind != 0xFE) {
        let mut bytes = [0; 44];
        bytes[..2].copy_from_slice(&[kind, 44]);
        // Version 1 has 1 to 9 but 5; what they do is told elsewhere.
        if (1..=9).contains(&kind) && kind != 5 {
            continue;
        }
        let mut table = pair(Version::V1);
        table.inject_bytes(Role::Client, 2, &bytes);
        assert_eq!(table.links(Role::Client), [1], "{kind:#x}");
        table.run(s(3));
        assert_eq!(table.links(Role::Server).len(), 2, "and is replaced");
    }
}

// ---- C.8 ----------------------------------------------------------------------------------------

#[test]
fn c8_a_second_link_is_tried_again_when_the_timer_expires() {
    let mut table = Table::lay(Setting::new(Version::V2, 2, 2));
    table.swallow("s ADD LINK request");
    table.exchange_clc();
    table.run(s(10));
    is_alive(&mut table, &[1]);
    table.run(s(60));
    is_alive(&mut table, &[1, 3]);
}

#[test]
fn c8_a_second_link_is_tried_again_when_the_server_gets_an_adapter() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    table.adapter_up(Role::Server, 2);
    table.run(s(1));
    is_alive(&mut table, &[1, 3]);
    assert!(!table.server().is_redundant(), "the client has one");
}

#[test]
fn c8_a_second_link_is_tried_again_when_the_client_says_so() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    table.adapter_up(Role::Client, 2);
    table.run(s(1));
    assert_eq!(table.trace[..2], ["c1 ADD LINK hint", "s1 ADD LINK request"]);
    is_alive(&mut table, &[1, 3]);
}

/// A server that does not hear of it finds out by its timer.
#[test]
fn c8_a_second_link_is_tried_again_though_the_client_was_not_heard() {
    for (version, hint) in [(Version::V1, "c ADD LINK hint"), (Version::V2, "c REQUEST ADD LINK")] {
        let mut table = Table::established(Setting::new(version, 1, 1));
        table.swallow(hint);
        table.adapter_up(Role::Client, 2);
        table.run(s(5));
        is_alive(&mut table, &[1]);
        table.run(s(120));
        assert_eq!(table.links(Role::Client).len(), 2, "{:#?}", table.trace);
        table.assert_agreement();
    }
}

#[test]
fn c8_tries_become_rarer() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    table.run(s(599));
    let rejected = table.trace.iter().filter(|line| *line == "c1 ADD LINK reject 1").count();
    // After 60, 180 and 420 seconds.
    assert_eq!(rejected, 3);
}
