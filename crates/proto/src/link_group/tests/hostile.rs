//! Messages that have no place: late ones, repeated ones, and those that only a peer sends which
//! means no good. What each side does then is the table in `received.rs`.

use super::*;

fn pair(version: Version) -> Table {
    Table::established(Setting::new(version, 2, 2))
}

/// The links are as before, and nothing was said.
fn assert_ignored(table: &mut Table) {
    table.run(s(1));
    table.assert_trace(&[]);
    table.assert_agreement();
    assert_eq!(table.links(Role::Server), [1, 2]);
}

/// The link over which it came has failed. Connections are on the other.
fn assert_failed(table: &mut Table, role: Role) {
    assert_eq!(table.links(role), [2], "{:?}", table.trace);
    table.run(s(3));
    table.assert_agreement();
    assert_eq!(table.links(role).len(), 2, "it is replaced");
}

fn confirm_link(table: &mut Table, from: Role, role: llc::Role) -> Message {
    let group = table.group(from);
    let link = &group.links()[0];
    let end = link.end().unwrap();
    let message = llc::ConfirmLink {
        form: group.form,
        role,
        no_eyecatcher: true,
        mac: end.mac,
        gid: end.gid,
        qp_number: end.qp,
        link_number: link.number(),
        link_user_id: link.user_id(),
        max_links: 2,
        max_conns: 255,
    };
    message.into()
}

fn add_link(table: &mut Table, step: AddLinkStep, number: u8) -> Message {
    let Adapter { gid, mac, mtu, .. } = adapter(Role::Server, 3);
    let form = match table.server().form {
        Form::V1 => llc::AddLinkForm::V1,
        Form::V2(order) => llc::AddLinkForm::V2 { order, extension: None },
    };
    let (qp_number, psn, link_number) = (QpNumber([0, 9, 9]), Psn::default(), LinkNumber(number));
    llc::AddLink { step, mac, gid, qp_number, link_number, mtu, psn, form }.into()
}

fn delete_link(table: &mut Table, role: llc::Role, number: u8) -> Message {
    let (form, scope) = (table.server().form, DeleteScope::Link(LinkNumber(number)));
    llc::DeleteLink { form, role, scope, orderly: false, reason: DeleteReason::LOST_PATH }.into()
}

#[test]
fn late_responses_are_ignored() {
    for version in [Version::V1, Version::V2] {
        let mut table = pair(version);
        let form = table.server().form;
        let (rkey, address, entries) = (Rkey(1), RmbAddress(0), Default::default());
        let step = ConfirmRkeyStep::Response;
        let confirmed = llc::ConfirmRkey { form, step, rkey, address, remaining: 0, entries };
        let refused = llc::ConfirmRkey { step: ConfirmRkeyStep::Negative, ..confirmed.clone() };
        let (step, rkeys) = (RkeyStep::Negative, [rkey].into_iter().collect());
        let deleted = llc::DeleteRkey { form, step, rkeys, errors: 1 };
        let tested = llc::TestLink { form, role: llc::Role::Response, user_data: [7; 16] };
        let late: [Message; 7] = [
            confirm_link(&mut table, Role::Client, llc::Role::Response),
            add_link(&mut table, AddLinkStep::Response, 2),
            add_link(&mut table, AddLinkStep::Reject(llc::RejectReason::NONE), 3),
            delete_link(&mut table, llc::Role::Response, 1),
            confirmed.into(),
            refused.into(),
            deleted.into(),
        ];
        for role in [Role::Server, Role::Client] {
            for message in &late {
                table.inject(role, 1, message);
                table.inject(role, 2, message);
            }
            table.inject(role, 1, &tested.into());
        }
        assert_ignored(&mut table);
    }
}

#[test]
fn a_continuation_without_add_link_is_ignored() {
    let mut table = pair(Version::V1);
    for role in [llc::Role::Request, llc::Role::Response] {
        let pairs = [llc::RtokenPair::default()].into_iter().collect();
        let link_number = LinkNumber(2);
        let message = llc::AddLinkContinuation { role, link_number, remaining: 1, pairs };
        table.inject(Role::Server, 1, &message.clone().into());
        table.inject(Role::Client, 1, &message.into());
    }
    let (step, entries) = (RkeyStep::Request, Default::default());
    let message = llc::ConfirmRkeyContinuation { step, remaining: 0, entries };
    table.inject(Role::Client, 1, &message.into());
    assert_ignored(&mut table);
}

#[test]
fn a_repeated_confirm_link_is_answered_again() {
    let mut table = pair(Version::V2);
    let again = confirm_link(&mut table, Role::Server, llc::Role::Request);
    table.inject(Role::Client, 1, &again);
    table.run(s(1));
    table.assert_trace(&["c1 CONFIRM LINK response"]);
    // That of another link says nothing here.
    table.inject(Role::Client, 2, &again);
    assert_ignored(&mut table);
}

#[test]
fn a_repeated_add_link_makes_one_link() {
    for version in [Version::V1, Version::V2] {
        let mut table = Table::established(Setting::new(version, 1, 2));
        let slow = Setting { device: ms(50), ..table.setting };
        table.setting = slow;
        table.break_link(Role::Server, 2);
        while table.client().flow.is_none() {
            table.run(ms(1));
        }
        let number = table.client().links().last().unwrap().number();
        let request = add_link(&mut table, AddLinkStep::Request, number.0);
        table.inject(Role::Client, 1, &request);
        table.inject(Role::Client, 1, &request);
        table.run(s(3));
        assert_eq!(table.links(Role::Client).len(), 2, "{:#?}", table.trace);
        table.assert_agreement();
    }
}

#[test]
fn an_add_link_answer_over_another_link_is_ignored() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    table.swallow("s ADD LINK request");
    table.adapter_up(Role::Server, 2);
    let answer = add_link(&mut table, AddLinkStep::Response, 1);
    table.inject(Role::Server, 1, &answer);
    assert_eq!(table.server().links()[1].state(), LinkState::Allocated);
}

#[test]
fn only_a_server_confirms_links() {
    for version in [Version::V1, Version::V2] {
        let mut table = pair(version);
        let message = confirm_link(&mut table, Role::Client, llc::Role::Request);
        table.inject(Role::Server, 1, &message);
        assert_failed(&mut table, Role::Server);
    }
}

#[test]
fn only_a_client_requests_links() {
    let mut table = pair(Version::V2);
    let Form::V2(order) = table.client().form else { panic!() };
    let (step, gids) = (AddLinkStep::Request, Default::default());
    table.inject(Role::Client, 1, &llc::RequestAddLink { order, step, gids }.into());
    assert_failed(&mut table, Role::Client);
}

#[test]
fn a_server_with_links_enough_refuses_a_request_in_version_2_only() {
    let mut table = pair(Version::V2);
    let Form::V2(order) = table.server().form else { panic!() };
    let (step, gids) = (AddLinkStep::Request, Default::default());
    table.inject(Role::Server, 1, &llc::RequestAddLink { order, step, gids }.into());
    table.run(s(1));
    table.assert_trace(&["s1 REQUEST ADD LINK refused"]);
    let mut table = pair(Version::V1);
    let hint = add_link(&mut table, AddLinkStep::Request, 0);
    table.inject(Role::Server, 1, &hint);
    assert_ignored(&mut table);
}

#[test]
fn the_other_version_is_no_language_of_this_group() {
    for (version, form) in
        [(Version::V1, Form::V2(llc::LengthOrder::BigEndian)), (Version::V2, Form::V1)]
    {
        for role in [Role::Server, Role::Client] {
            let mut table = pair(version);
            let (request, user_data) = (llc::Role::Request, [0; 16]);
            let message = llc::TestLink { form, role: request, user_data };
            table.inject(role, 1, &message.into());
            assert_failed(&mut table, role);
        }
    }
}

#[test]
fn a_wrong_length_fails_the_link() {
    let test = [[0x07, 44, 0, 0], [0x07, 43, 0, 0], [0x07, 45, 0, 0]];
    for (header, len) in [(test[0], 45), (test[0], 43), (test[1], 43), (test[2], 44), (test[0], 0)]
    {
        let mut table = pair(Version::V1);
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(&header);
        table.inject_bytes(Role::Server, 1, &bytes[..len]);
        assert_failed(&mut table, Role::Server);
    }
}

#[test]
fn a_cdc_message_is_for_somebody_else() {
    let mut table = pair(Version::V2);
    let mut bytes = [0; 44];
    bytes[..2].copy_from_slice(&[0xFE, 44]);
    table.inject_bytes(Role::Server, 1, &bytes);
    table.inject_bytes(Role::Client, 2, &bytes[..3]);
    assert_ignored(&mut table);
}

#[test]
fn a_confirm_rkey_with_more_links_than_there_can_be_is_refused() {
    let mut table = pair(Version::V1);
    let (form, step) = (Form::V1, ConfirmRkeyStep::Request);
    let (rkey, address) = (Rkey(77), RmbAddress(0));
    let entries = [llc::LinkRtoken::default(); 2].into_iter().collect();
    let message = llc::ConfirmRkey { form, step, rkey, address, remaining: 3, entries };
    table.inject(Role::Client, 1, &message.into());
    table.assert_trace(&["c1 CONFIRM RKEY refused"]);
    assert_ignored(&mut table);
}

#[test]
fn a_confirm_rkey_that_takes_the_key_of_another_buffer_is_refused_as_a_whole() {
    let mut table = pair(Version::V2);
    let taken = table.client().peer_rmbs().next().unwrap().1[1].1.rkey;
    let (form, step) = (table.client().form, ConfirmRkeyStep::Request);
    let (rkey, address) = (Rkey(77), RmbAddress(0));
    let entry = llc::LinkRtoken { link_number: LinkNumber(2), rkey: taken, address };
    let entries = [entry].into_iter().collect();
    let message = llc::ConfirmRkey { form, step, rkey, address, remaining: 1, entries };
    table.inject(Role::Client, 1, &message.into());
    table.assert_trace(&["c1 CONFIRM RKEY refused"]);
    assert_ignored(&mut table);
}

#[test]
fn nothing_over_a_link_in_the_making_is_answered() {
    for setting in [Setting::new(Version::V1, 2, 2), Setting::new(Version::V2, 2, 2)] {
        let mut table = Table::lay(Setting { device: ms(100), ..setting });
        table.run(ms(250));
        let link = table.server().links()[0].user_id();
        let form = table.server().form;
        let test = llc::TestLink { form, role: llc::Role::Request, user_data: [0; 16] };
        let mut room = [0; 44];
        test.emit(&mut room).unwrap();
        let now = table.now;
        table.server().handle_message(link, &room, now);
        table.carry_out();
        table.assert_trace(&[]);
    }
}

#[test]
fn answers_of_the_device_that_come_too_late_do_nothing() {
    let mut table = pair(Version::V2);
    let before = format!("{:?}", table.server());
    let (link, now) = (LinkUserId(0x7FF), table.now);
    let server = table.server();
    server.handle_queue_pair(link, Some((QpNumber::FIRST, Psn::default())), now);
    server.handle_queue_pair(link, None, now);
    server.handle_ready_to_receive(link, now);
    server.handle_registered(link, RMB, None, now);
    server.handle_link_failed(link, now);
    server.handle_sent(Ticket(0), now);
    server.handle_adapter_down(AdapterId(7), now);
    assert_eq!(format!("{server:?}"), before);
}

#[test]
fn hints_without_end_bring_one_try_a_second() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    let hint = add_link(&mut table, AddLinkStep::Request, 0);
    for _ in 0..100 {
        table.inject(Role::Server, 1, &hint);
        table.run(ms(50));
    }
    let tries = table.trace.iter().filter(|line| *line == "s1 ADD LINK request").count();
    assert!((5..=6).contains(&tries), "{tries}");
}
