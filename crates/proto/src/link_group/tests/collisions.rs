//! The collisions of RFC 7609 §3.5.5.3, each under the name of its message and of the flow that it
//! meets.

use super::*;

/// A group with two links, before the messages of a flow have gone anywhere.
fn pair(version: Version) -> Table {
    let mut table = Table::established(Setting::new(version, 2, 2));
    table.connect(1);
    table.connect(2);
    table.run(ms(10));
    table
}

/// One link, and the server's ADD LINK is on its way to the client.
fn adding(version: Version) -> Table {
    let mut table = pair(version);
    table.break_link(Role::Server, 1);
    while !table.trace.iter().any(|line| line.ends_with("ADD LINK request")) {
        table.run(ms(1) / 2);
    }
    assert_eq!(table.links(Role::Server), [2]);
    table
}

/// Two links, and the server's DELETE LINK of the second is on its way.
fn deleting(version: Version) -> Table {
    let mut table = pair(version);
    table.break_link(Role::Server, 2);
    table.assert_trace(&["s1 DELETE LINK 2"]);
    table
}

/// Two links, and a CONFIRM RKEY of this side is on its way.
fn confirming(version: Version, role: Role) -> Table {
    let mut table = pair(version);
    add_rmb(&mut table, role, 2);
    assert!(table.trace[0].ends_with("CONFIRM RKEY request +1"), "{:?}", table.trace);
    table.trace.clear();
    table
}

fn add_rmb(table: &mut Table, role: Role, id: u32) {
    let now = table.now;
    table.group(role).add_rmb(RmbId(id), now).unwrap();
    table.carry_out();
}

fn end(table: &mut Table, role: Role) {
    let now = table.now;
    table.group(role).end(DeleteReason::OPERATOR, false, now);
    table.carry_out();
}

fn test_link(table: &mut Table, to: Role, number: u8) -> String {
    let form = table.group(to).form;
    table.trace.clear();
    let message = llc::TestLink { form, role: llc::Role::Request, user_data: [9; 16] };
    table.inject(to, number, &message.into());
    table.trace.join(", ")
}

fn both_gone(mut table: Table) {
    table.run(s(5));
    table.assert_gone(Role::Server);
    table.assert_gone(Role::Client);
}

// ---- §3.5.5.3.1, ADD LINK / CONFIRM LINK --------------------------------------------------------

#[test]
fn add_link_meets_test_link() {
    let mut table = adding(Version::V1);
    assert_eq!(test_link(&mut table, Role::Server, 2), "s2 TEST LINK response");
    assert_eq!(test_link(&mut table, Role::Client, 2), "c2 TEST LINK response");
    table.run(s(2));
    table.assert_agreement();
    assert_eq!(table.links(Role::Server).len(), 2);
}

#[test]
fn add_link_meets_add_link_from_the_client() {
    for version in [Version::V1, Version::V2] {
        let mut table = adding(version);
        table.trace.clear();
        // It has another adapter, and says so before the server's ADD LINK is there.
        table.adapter_up(Role::Client, 3);
        table.run(s(2));
        assert!(table.trace[0].starts_with("c2"), "{:?}", table.trace);
        let answers = table.trace.iter().filter(|it| it.contains("refused")).count();
        let tries = table.trace.iter().filter(|it| it.contains("ADD LINK response")).count();
        assert_eq!((answers, tries), (0, 1), "{:?}", table.trace);
        assert!(table.client().is_redundant());
        table.assert_agreement();
    }
}

#[test]
fn add_link_meets_delete_link_from_the_client() {
    for orderly in [false, true] {
        let mut table = adding(Version::V2);
        let form = table.server().form;
        table.trace.clear();
        let scope = DeleteScope::Link(LinkNumber(3));
        let (role, reason) = (llc::Role::Request, DeleteReason::OPERATOR);
        // For the link in the making, of which the client may know already.
        let wish = llc::DeleteLink { form, role, scope, orderly, reason };
        table.inject(Role::Server, 2, &wish.into());
        table.run(s(12));
        assert!(table.server().is_quiet() && table.client().is_quiet(), "{:#?}", table.trace);
        table.assert_agreement();
    }
}

#[test]
fn add_link_meets_an_orderly_delete_link_of_the_link_it_goes_over() {
    let mut table = adding(Version::V2);
    let form = table.server().form;
    let scope = DeleteScope::Link(LinkNumber(2));
    let (role, reason) = (llc::Role::Request, DeleteReason::OPERATOR);
    table.trace.clear();
    let wish = llc::DeleteLink { form, role, scope, orderly: true, reason };
    table.inject(Role::Server, 2, &wish.into());
    assert_eq!(table.trace, Vec::<String>::new(), "queued");
    table.run(ms(100));
    assert_eq!(
        table.trace,
        [
            "c2 ADD LINK response",
            "s3 CONFIRM LINK request",
            "c3 CONFIRM LINK response",
            "s3 DELETE LINK 2",
            "c3 DELETE LINK 2 response",
        ]
    );
    table.assert_agreement();
}

#[test]
fn add_link_meets_the_end_of_the_group() {
    for role in [Role::Server, Role::Client] {
        let mut table = adding(Version::V1);
        end(&mut table, role);
        both_gone(table);
    }
}

#[test]
fn add_link_meets_confirm_rkey_from_the_client() {
    for version in [Version::V1, Version::V2] {
        let mut table = adding(version);
        table.trace.clear();
        add_rmb(&mut table, Role::Client, 2);
        assert_eq!(table.trace, ["c2 CONFIRM RKEY request +0"], "it has not seen ADD LINK yet");
        table.run(s(2));
        assert_eq!(table.trace[1], "s2 CONFIRM RKEY response", "as Linux answers");
        assert!(table.trace[2].ends_with("ADD LINK response"), "parked until then");
        assert!(table.host(Role::Client).has(Event::RmbReady(RmbId(2))));
        // The new link has keys of both buffers.
        table.assert_agreement();
        assert_eq!(table.links(Role::Client).len(), 2);
    }
}

#[test]
fn a_server_that_refuses_confirm_rkey_meanwhile_is_asked_again() {
    let mut table = pair(Version::V1);
    table.swallow("c CONFIRM RKEY request +1");
    add_rmb(&mut table, Role::Client, 2);
    let link = table.client().links()[0].user_id();
    let Rtoken { rkey, address } = table.client().rtoken(RmbId(2), link).unwrap();
    let (form, step, entries) = (Form::V1, ConfirmRkeyStep::Negative, Default::default());
    let refusal = llc::ConfirmRkey { form, step, rkey, address, remaining: 0, entries };
    table.inject(Role::Client, 1, &refusal.into());
    table.run(s(1));
    assert_eq!(table.trace[1..], ["c1 CONFIRM RKEY request +1", "s1 CONFIRM RKEY response"]);
    table.assert_agreement();
}

#[test]
fn a_parked_add_link_goes_with_the_link_it_came_over() {
    let mut table = Table::established(Setting::new(Version::V1, 2, 1));
    table.swallow("c CONFIRM RKEY request +1");
    add_rmb(&mut table, Role::Client, 2);
    let Adapter { gid, mac, mtu, .. } = adapter(Role::Server, 3);
    let (qp_number, link_number, psn) = (QpNumber([9; 3]), LinkNumber(9), Psn::default());
    let (step, form) = (AddLinkStep::Request, llc::AddLinkForm::V1);
    let offer = llc::AddLink { step, mac, gid, qp_number, link_number, mtu, psn, form };
    table.inject(Role::Client, 1, &offer.into());
    assert!(table.client().parked.is_some());
    table.break_link(Role::Client, 1);
    assert!(table.client().parked.is_none());
    assert!(table.client().link_numbered(LinkNumber(9)).is_none());
}

#[test]
fn a_refused_buffer_waits_for_its_key_on_a_link_that_has_come_meanwhile() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    table.swallow("c CONFIRM RKEY request +0");
    add_rmb(&mut table, Role::Client, 2);
    let link = table.client().links()[0].user_id();
    let Rtoken { rkey, address } = table.client().rtoken(RmbId(2), link).unwrap();
    let (form, step, entries) = (Form::V1, ConfirmRkeyStep::RetryLater, Default::default());
    let refusal = llc::ConfirmRkey { form, step, rkey, address, remaining: 0, entries };
    table.inject(Role::Client, 1, &refusal.into());
    table.adapter_up(Role::Server, 2);
    while !table.trace.contains(&"s3 CONFIRM LINK request".to_string()) {
        table.run(LATENCY / 2);
    }
    // The device takes longer than the peer wants to be left alone.
    table.setting.device = s(1);
    table.run(s(5));
    assert!(table.trace.contains(&"c1 CONFIRM RKEY request +1".to_string()));
    table.assert_agreement();
}

// ---- §3.5.5.3.2, DELETE LINK --------------------------------------------------------------------

#[test]
fn delete_link_meets_test_link() {
    let mut table = deleting(Version::V1);
    assert_eq!(test_link(&mut table, Role::Server, 1), "s1 TEST LINK response");
    assert_eq!(test_link(&mut table, Role::Client, 1), "c1 TEST LINK response");
    table.run(ms(50));
    table.assert_agreement();
}

#[test]
fn delete_link_meets_add_link_from_the_client() {
    for version in [Version::V1, Version::V2] {
        let mut table = deleting(version);
        let hint = hint(&mut table);
        table.inject(Role::Server, 1, &hint);
        assert_eq!(table.trace, Vec::<String>::new(), "queued");
        table.run(ms(50));
        assert_eq!(table.trace[..2], ["c1 DELETE LINK 2 response", "s1 ADD LINK request"]);
        assert!(table.server().is_redundant());
        table.assert_agreement();
    }
}

/// What a client says that has got another adapter.
fn hint(table: &mut Table) -> Message {
    let Adapter { gid, mac, .. } = adapter(Role::Client, 3);
    match table.server().form {
        Form::V1 => Message::AddLink(llc::AddLink {
            step: AddLinkStep::Request,
            mac,
            gid,
            qp_number: QpNumber::default(),
            link_number: LinkNumber(0),
            mtu: Mtu::default(),
            psn: Psn::default(),
            form: llc::AddLinkForm::V1,
        }),
        Form::V2(order) => {
            let gids = [gid].into_iter().collect();
            Message::RequestAddLink(llc::RequestAddLink { order, step: AddLinkStep::Request, gids })
        }
    }
}

#[test]
fn a_client_tells_of_an_adapter_when_there_is_room_for_a_link() {
    let mut table = pair(Version::V2);
    table.adapter_up(Role::Client, 3);
    table.run(s(1));
    assert_eq!(table.trace, Vec::<String>::new());
    table.break_link(Role::Client, 2);
    table.run(ms(100));
    assert_eq!(table.trace[..2], ["c1 DELETE LINK 2", "c1 REQUEST ADD LINK"]);
    assert!(table.server().is_redundant());
    table.assert_agreement();
}

#[test]
fn delete_link_meets_delete_link_from_the_client() {
    // Of the same link.
    let mut table = deleting(Version::V1);
    table.break_link(Role::Client, 2);
    table.run(ms(50));
    table.assert_trace(&["c1 DELETE LINK 2", "c1 DELETE LINK 2 response"]);
    table.assert_agreement();
    // Of the other one, in order: it is the last, and the group goes with it.
    let mut table = deleting(Version::V1);
    let scope = DeleteScope::Link(LinkNumber(1));
    let (role, reason) = (llc::Role::Request, DeleteReason::OPERATOR);
    let wish = llc::DeleteLink { form: Form::V1, role, scope, orderly: true, reason };
    table.inject(Role::Server, 1, &wish.into());
    assert_eq!(table.trace, Vec::<String>::new(), "queued");
    table.run(ms(50));
    assert_eq!(table.trace[..2], ["c1 DELETE LINK 2 response", "s1 DELETE LINK all"]);
    both_gone(table);
}

#[test]
fn delete_link_meets_the_end_of_the_group() {
    for role in [Role::Server, Role::Client] {
        let mut table = deleting(Version::V2);
        end(&mut table, role);
        both_gone(table);
    }
}

#[test]
fn delete_link_meets_confirm_rkey_from_the_client() {
    let mut table = deleting(Version::V2);
    add_rmb(&mut table, Role::Client, 2);
    table.run(ms(50));
    assert!(table.trace.contains(&"s1 CONFIRM RKEY response".to_string()));
    assert!(table.host(Role::Client).has(Event::RmbReady(RmbId(2))));
    table.assert_agreement();
}

// ---- §3.5.5.3.3, CONFIRM RKEY -------------------------------------------------------------------

#[test]
fn confirm_rkey_meets_test_link() {
    let mut table = confirming(Version::V1, Role::Client);
    assert_eq!(test_link(&mut table, Role::Client, 1), "c1 TEST LINK response");
    assert_eq!(test_link(&mut table, Role::Server, 1), "s1 TEST LINK response");
    table.run(ms(50));
    table.assert_agreement();
}

#[test]
fn confirm_rkey_meets_add_link_from_the_client() {
    let mut table = Table::established(Setting::new(Version::V2, 2, 1));
    add_rmb(&mut table, Role::Server, 2);
    table.adapter_up(Role::Client, 2);
    table.run(s(1));
    let added = table.trace.iter().position(|line| line == "s1 ADD LINK request");
    let confirmed = table.trace.iter().position(|line| line == "c1 CONFIRM RKEY response");
    assert!(added > confirmed && confirmed.is_some(), "queued: {:#?}", table.trace);
    assert!(table.server().is_redundant());
    table.assert_agreement();
}

#[test]
fn confirm_rkey_meets_add_link_from_the_server() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 2));
    // They cross.
    table.adapter_up(Role::Server, 2);
    add_rmb(&mut table, Role::Client, 2);
    assert_eq!(table.trace, ["s1 ADD LINK request", "c1 CONFIRM RKEY request +1"]);
    table.run(s(1));
    assert!(table.host(Role::Client).has(Event::RmbReady(RmbId(2))));
    assert!(table.server().is_redundant());
    table.assert_agreement();
}

#[test]
fn confirm_rkey_meets_delete_link_from_the_client() {
    let mut table = confirming(Version::V1, Role::Server);
    table.break_link(Role::Client, 2);
    table.run(ms(100));
    table.assert_trace(&[
        "c1 DELETE LINK 2",
        "c1 CONFIRM RKEY response",
        "s1 DELETE LINK 2",
        "c1 DELETE LINK 2 response",
    ]);
    table.assert_agreement();
}

#[test]
fn confirm_rkey_meets_delete_link_from_the_client_of_the_link_it_goes_over() {
    let mut table = confirming(Version::V1, Role::Server);
    table.break_link(Role::Client, 1);
    table.run(s(1));
    // It begins again over the other link, and is about that one only.
    assert!(table.trace.contains(&"s2 CONFIRM RKEY request +0".to_string()), "{:?}", table.trace);
    assert!(table.host(Role::Server).has(Event::RmbReady(RmbId(2))));
    table.assert_agreement();
}

#[test]
fn confirm_rkey_meets_delete_link_from_the_server() {
    let mut table = confirming(Version::V2, Role::Client);
    table.break_link(Role::Server, 2);
    table.run(ms(100));
    table.assert_trace(&[
        "s1 DELETE LINK 2",
        "s1 CONFIRM RKEY response",
        "c1 DELETE LINK 2 response",
    ]);
    assert!(table.host(Role::Client).has(Event::RmbReady(RmbId(2))));
    table.assert_agreement();
}

#[test]
fn confirm_rkey_meets_the_end_of_the_group() {
    for (ours, ends) in [(Role::Server, Role::Client), (Role::Client, Role::Server)] {
        let mut table = confirming(Version::V1, ours);
        end(&mut table, ends);
        both_gone(table);
    }
}

#[test]
fn confirm_rkey_meets_confirm_rkey() {
    // "CONFIRM LINK from the peer that did not start the current CONFIRM LINK exchange" stands in
    // the RFC under CONFIRM RKEY. Only servers send CONFIRM LINK, so it can only be about this; and
    // §3.5.5.3 says that these "do not represent a collision".
    let mut table = confirming(Version::V2, Role::Client);
    add_rmb(&mut table, Role::Server, 3);
    table.run(ms(50));
    table.assert_trace(&[
        "s1 CONFIRM RKEY request +1",
        "s1 CONFIRM RKEY response",
        "c1 CONFIRM RKEY response",
    ]);
    table.assert_agreement();
}

#[test]
fn confirm_rkey_meets_delete_rkey() {
    let mut table = confirming(Version::V2, Role::Client);
    for token in [1, 2] {
        let now = table.now;
        table.server().close(AlertToken(token), now);
    }
    let now = table.now;
    table.server().remove_rmb(RMB, now).unwrap();
    table.carry_out();
    table.run(ms(50));
    assert!(table.host(Role::Server).has(Event::RmbRemoved(RMB)));
    table.assert_agreement();
}

// ---- DELETE RKEY: "see CONFIRM RKEY" -------------------------------------------------------------

/// Two links, and a DELETE RKEY of this side is on its way, of a buffer without connections.
fn withdrawing(version: Version, role: Role) -> Table {
    let mut table = confirming(version, role);
    table.run(ms(50));
    table.trace.clear();
    let now = table.now;
    table.group(role).remove_rmb(RmbId(2), now).unwrap();
    table.carry_out();
    assert!(table.trace[0].ends_with("DELETE RKEY request 1"), "{:?}", table.trace);
    table.trace.clear();
    table
}

#[test]
fn delete_rkey_meets_test_link() {
    let mut table = withdrawing(Version::V2, Role::Server);
    assert_eq!(test_link(&mut table, Role::Server, 1), "s1 TEST LINK response");
    assert_eq!(test_link(&mut table, Role::Client, 1), "c1 TEST LINK response");
    table.run(ms(50));
    assert!(table.host(Role::Server).has(Event::RmbRemoved(RmbId(2))));
    table.assert_agreement();
}

#[test]
fn delete_rkey_meets_add_link_from_the_server() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 2));
    add_rmb(&mut table, Role::Client, 2);
    table.run(ms(50));
    table.trace.clear();
    // They cross.
    table.adapter_up(Role::Server, 2);
    let now = table.now;
    table.client().remove_rmb(RmbId(2), now).unwrap();
    table.carry_out();
    assert_eq!(table.trace, ["s1 ADD LINK request", "c1 DELETE RKEY request 1"]);
    table.run(s(1));
    assert!(table.host(Role::Client).has(Event::RmbRemoved(RmbId(2))));
    assert!(table.server().is_redundant());
    table.assert_agreement();
}

#[test]
fn delete_rkey_meets_delete_link_of_the_link_it_goes_over() {
    for role in [Role::Server, Role::Client] {
        for notices in [Role::Server, Role::Client] {
            let mut table = withdrawing(Version::V1, role);
            table.break_link(notices, 1);
            table.run(s(1));
            assert!(table.host(role).has(Event::RmbRemoved(RmbId(2))), "{:?}", table.trace);
            assert_eq!(table.links(Role::Server).first(), Some(&2));
            table.run(s(3));
            table.assert_agreement();
        }
    }
}

#[test]
fn delete_rkey_meets_the_end_of_the_group() {
    for (ours, ends) in [(Role::Server, Role::Client), (Role::Client, Role::Server)] {
        let mut table = withdrawing(Version::V2, ours);
        end(&mut table, ends);
        both_gone(table);
    }
}

#[test]
fn delete_rkey_meets_delete_rkey() {
    let mut table = withdrawing(Version::V1, Role::Client);
    add_rmb(&mut table, Role::Server, 3);
    table.run(ms(50));
    let now = table.now;
    table.server().remove_rmb(RmbId(3), now).unwrap();
    add_rmb(&mut table, Role::Client, 4);
    table.run(ms(50));
    assert!(table.host(Role::Server).has(Event::RmbRemoved(RmbId(3))));
    assert!(table.host(Role::Client).has(Event::RmbReady(RmbId(4))));
    table.assert_agreement();
}
