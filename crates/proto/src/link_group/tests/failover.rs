//! Links that fail, from both sides, and links that come back.

use super::*;

fn moved(table: &mut Table, role: Role) -> Vec<(u32, u8)> {
    let host = table.host(role);
    let to = |event: &Event| match *event {
        Event::Moved { connection, to, .. } => {
            Some((connection.0, host.group.link(to).unwrap().number().0))
        }
        _ => None,
    };
    host.events.iter().filter_map(to).collect()
}

fn redundant(version: Version) -> Table {
    let mut table = Table::established(Setting::new(version, 2, 2));
    for token in 1..=4 {
        table.connect(token);
    }
    for role in [Role::Server, Role::Client] {
        let group = table.group(role);
        let on: Vec<_> = group.links().iter().map(|l| group.connections_on(l.user_id())).collect();
        assert_eq!(on, [2, 2]);
    }
    table
}

#[test]
fn when_the_server_notices_connections_move_and_the_link_is_deleted() {
    let mut table = redundant(Version::V1);
    table.break_link(Role::Server, 1);
    table.run(ms(100));
    table.assert_trace(&["s2 DELETE LINK 1", "c2 DELETE LINK 1 response"]);
    for role in [Role::Server, Role::Client] {
        assert_eq!(moved(&mut table, role), [(1, 2), (3, 2)]);
        let link = table.group(role).links()[0].user_id();
        let group = table.group(role);
        for token in 1..=4 {
            assert_eq!(group.destination(AlertToken(token)).unwrap().0, link);
        }
    }
    table.assert_agreement();
}

#[test]
fn when_the_client_notices_it_asks_the_server() {
    let mut table = redundant(Version::V2);
    table.break_link(Role::Client, 2);
    table.run(ms(100));
    table.assert_trace(&["c1 DELETE LINK 2", "s1 DELETE LINK 2", "c1 DELETE LINK 2 response"]);
    for role in [Role::Server, Role::Client] {
        assert_eq!(moved(&mut table, role), [(2, 1), (4, 1)]);
    }
    table.assert_agreement();
}

#[test]
fn when_both_notice_at_once_the_requests_cross() {
    let mut table = redundant(Version::V2);
    table.break_link(Role::Client, 2);
    table.break_link(Role::Server, 2);
    table.run(ms(100));
    table.assert_trace(&["c1 DELETE LINK 2", "s1 DELETE LINK 2", "c1 DELETE LINK 2 response"]);
    table.assert_agreement();
}

#[test]
fn the_buffers_of_a_moved_connection_have_the_keys_of_the_other_link() {
    let mut table = redundant(Version::V2);
    let link = table.server().links()[1].user_id();
    let expected = table.server().rtoken(RMB, link).unwrap();
    table.break_link(Role::Client, 1);
    table.run(ms(100));
    assert_eq!(table.client().destination(AlertToken(1)).unwrap().1, expected);
}

#[test]
fn a_lost_link_is_replaced() {
    for version in [Version::V1, Version::V2] {
        let mut table = redundant(version);
        table.break_link(Role::Server, 1);
        table.run(s(3));
        assert_eq!(table.links(Role::Server), [2, 3], "{:#?}", table.trace);
        assert!(table.server().is_redundant() && table.client().is_redundant());
        table.assert_agreement();
    }
}

#[test]
fn a_cut_is_noticed_by_keepalive_from_either_side() {
    let setting = Setting { keepalive: Some(KEEPALIVE), ..Setting::new(Version::V1, 2, 2) };
    let mut table = Table::established(setting);
    let second = table.server().links()[1].adapter().id.0;
    table.cut(second, second);
    table.run(s(60));
    assert_eq!(table.links(Role::Server), [1]);
    table.assert_agreement();
}

#[test]
fn an_adapter_that_goes_and_comes_at_the_server() {
    for version in [Version::V1, Version::V2] {
        let mut table = redundant(version);
        table.adapter_down(Role::Server, 1);
        table.run(s(5));
        // One adapter is left there; the client has two.
        assert_eq!(table.links(Role::Client).len(), 2);
        assert!(!table.server().is_redundant());
        table.assert_agreement();
        table.adapter_up(Role::Server, 1);
        table.run(s(5));
        assert!(table.server().is_redundant() && table.client().is_redundant());
        assert_eq!(table.links(Role::Server).len(), 2, "the asymmetric one has gone");
        assert_eq!(moved(&mut table, Role::Server).len() % 2, 0);
        table.assert_agreement();
    }
}

#[test]
fn an_adapter_that_comes_at_the_client_is_told_to_the_server() {
    for (version, hint) in [(Version::V1, "c1 ADD LINK hint"), (Version::V2, "c1 REQUEST ADD LINK")]
    {
        let mut table = Table::established(Setting::new(version, 2, 1));
        table.connect(1);
        table.adapter_up(Role::Client, 2);
        table.run(s(5));
        assert_eq!(table.trace[0], hint);
        assert!(table.server().is_redundant() && table.client().is_redundant());
        assert_eq!(table.links(Role::Server), [1, 3], "the asymmetric link is given up");
        table.assert_agreement();
    }
}

/// It comes while the server tries in vain to reach the client's other one: no minute is lost.
#[test]
fn an_adapter_that_comes_at_the_client_while_a_link_is_added_in_vain() {
    for version in [Version::V1, Version::V2] {
        let mut table = Table::established(Setting::new(version, 1, 1));
        table.cut(2, 1);
        table.adapter_up(Role::Server, 2);
        table.run(ms(50));
        assert!(table.trace.iter().any(|line| line.ends_with("ADD LINK response")));
        table.adapter_up(Role::Client, 2);
        table.run(s(15));
        assert!(table.server().is_redundant(), "{:#?}", table.trace);
        table.assert_agreement();
    }
}

#[test]
fn the_last_link_takes_the_group_with_it() {
    for role in [Role::Server, Role::Client] {
        let mut table = Table::established(Setting::new(Version::V2, 1, 1));
        table.connect(1);
        table.break_link(role, 1);
        assert!(table.host(role).has(Event::Ending(DeleteReason::LOST_PATH)));
        table.assert_gone(role);
    }
}

#[test]
fn both_links_cut_end_both_sides() {
    let setting = Setting { keepalive: Some(KEEPALIVE), ..Setting::new(Version::V2, 2, 2) };
    let mut table = Table::established(setting);
    for (servers, clients) in [(1, 1), (2, 2), (1, 2), (2, 1)] {
        table.cut(servers, clients);
    }
    table.run(s(120));
    table.assert_gone(Role::Server);
    table.assert_gone(Role::Client);
}

#[test]
fn the_survivor_fails_while_the_first_failure_is_told() {
    for role in [Role::Server, Role::Client] {
        let mut table = redundant(Version::V2);
        table.cut(2, 2);
        table.break_link(role, 1);
        table.run(s(30));
        table.assert_gone(role);
    }
}

#[test]
fn an_operator_deletes_a_link_at_either_side() {
    for role in [Role::Server, Role::Client] {
        let mut table = redundant(Version::V1);
        let now = table.now;
        let link = table.group(role).links()[0].user_id();
        assert!(table.group(role).delete_link(link, now));
        table.carry_out();
        table.run(ms(100));
        assert_eq!(table.links(other(role)), [2]);
        assert_eq!(moved(&mut table, Role::Client).len(), 2);
        table.assert_agreement();
        let last = table.group(role).links()[0].user_id();
        let now = table.now;
        assert!(!table.group(role).delete_link(last, now), "not the last one");
    }
}

#[test]
fn a_link_that_fails_in_the_making_leaves_the_group_as_it_was() {
    for version in [Version::V1, Version::V2] {
        let mut table = Table::lay(Setting::new(version, 2, 2));
        for (servers, clients) in [(2, 2), (2, 1), (1, 2)] {
            table.cut(servers, clients);
        }
        table.exchange_clc();
        table.run(s(15));
        assert!(table.server().is_established() && table.client().is_established());
        assert_eq!(table.links(Role::Client), [1]);
        table.assert_agreement();
        // The retry timer finds that the network is mended.
        table.mend(2, 2);
        table.run(s(70));
        assert!(table.server().is_redundant());
        table.assert_agreement();
    }
}

#[test]
fn a_connection_without_a_key_on_the_other_link_is_lost() {
    let mut table = redundant(Version::V2);
    let link = table.server().links()[1].user_id();
    let group = table.server();
    group.peer_rmbs.forget_link(link);
    table.break_link(Role::Server, 1);
    assert!(table.host(Role::Server).has(Event::Lost(AlertToken(1))));
}

#[test]
fn a_device_that_cannot_make_another_link_leaves_the_group_as_it_was() {
    for (role, trace) in [
        (Role::Server, &[][..]),
        (Role::Client, &["s1 ADD LINK request", "c1 ADD LINK reject 1"][..]),
    ] {
        let mut table = Table::established(Setting::new(Version::V1, 1, 1));
        table.host(role).refuses_registrations = true;
        table.adapter_up(Role::Server, 2);
        table.run(s(1));
        table.assert_trace(trace);
        table.assert_agreement();
        // Nor can a queue pair be made: it says no in the middle of the wait.
        let mut table = Table::established(Setting::new(Version::V1, 1, 1));
        table.setting.device = s(60);
        table.adapter_up(Role::Server, 2);
        if role == Role::Client {
            let made = table.server().links()[1].user_id();
            table.setting.device = Duration::ZERO;
            table.happen(Role::Server, Due::Made(made, Some((QpNumber([9; 3]), Psn::default()))));
            table.setting.device = s(60);
            table.carry_out();
            let (rmb, rtoken) = (RMB, Rtoken { rkey: Rkey(9), address: RmbAddress(9) });
            table.happen(Role::Server, Due::Registered(made, rmb, Some(rtoken)));
            table.run(ms(2));
        }
        let making = table.group(role).links()[1].user_id();
        table.happen(role, Due::Made(making, None));
        table.carry_out();
        table.run(ms(50));
        table.assert_trace(trace);
        assert_eq!(table.links(role), [1]);
    }
}

#[test]
fn a_lost_link_is_not_used_even_if_the_client_calls_its_end_orderly() {
    // So does Linux. The server is in the middle of another flow.
    let mut table = redundant(Version::V2);
    table.swallow("s CONFIRM RKEY request +1");
    let now = table.now;
    table.server().add_rmb(RmbId(2), now).unwrap();
    table.carry_out();
    let form = table.server().form;
    let (role, scope) = (llc::Role::Request, DeleteScope::Link(LinkNumber(2)));
    let reason = DeleteReason::LOST_PATH;
    let message = llc::DeleteLink { form, role, scope, orderly: true, reason };
    table.inject(Role::Server, 1, &message.into());
    assert_eq!(table.links(Role::Server), [1]);
    assert_eq!(moved(&mut table, Role::Server), [(2, 1), (4, 1)]);
}

/// A group whose asymmetric link 2 has just been replaced by link 3, and is about to go.
fn three_links() -> Table {
    let mut table = Table::established(Setting::new(Version::V2, 2, 1));
    table.adapter_up(Role::Client, 2);
    table.swallow("s DELETE LINK 2");
    while !table.trace.contains(&"s1 DELETE LINK 2".to_string()) {
        table.run(LATENCY / 2);
    }
    assert_eq!(table.links(Role::Client), [1, 2, 3]);
    table.trace.clear();
    table
}

#[test]
fn a_delete_link_whose_link_fails_goes_over_another() {
    let mut table = three_links();
    table.break_link(Role::Server, 1);
    table.run(ms(100));
    table.assert_trace(&[
        "s3 DELETE LINK 1",
        "c3 DELETE LINK 1 response",
        "s3 DELETE LINK 2",
        "c3 DELETE LINK 2 response",
    ]);
    assert_eq!(table.links(Role::Client), [3]);
    table.assert_agreement();
}

#[test]
fn a_wish_whose_link_fails_goes_over_another() {
    let mut table = three_links();
    table.swallow("c DELETE LINK 3");
    table.break_link(Role::Client, 3);
    table.break_link(Role::Client, 1);
    assert_eq!(table.trace, ["c1 DELETE LINK 3", "c2 DELETE LINK 1", "c2 DELETE LINK 3"]);
}

#[test]
fn an_answer_over_the_link_that_goes_is_not_waited_for_when_it_fails() {
    let mut table = redundant(Version::V1);
    table.cut(2, 2);
    let (role, scope) = (llc::Role::Request, DeleteScope::Link(LinkNumber(2)));
    let reason = DeleteReason::OPERATOR;
    let message = llc::DeleteLink { form: Form::V1, role, scope, orderly: true, reason };
    table.inject(Role::Client, 2, &message.into());
    assert_eq!(table.client().links().len(), 2);
    table.run(RETRIES + ms(1));
    assert_eq!(table.client().links().len(), 1);
}

#[test]
fn an_answer_over_the_link_that_goes_arrives_before_it_does() {
    let mut table = redundant(Version::V1);
    let (role, scope) = (llc::Role::Request, DeleteScope::Link(LinkNumber(2)));
    let reason = DeleteReason::OPERATOR;
    let message = llc::DeleteLink { form: Form::V1, role, scope, orderly: true, reason };
    table.inject(Role::Client, 2, &message.into());
    table.assert_trace(&["c2 DELETE LINK 2 response"]);
    table.run(LATENCY);
    assert_eq!(table.client().links()[1].state(), LinkState::Deleting);
    table.run(LATENCY);
    assert_eq!(table.client().links().len(), 1);
}

#[test]
fn a_buffer_that_was_leaving_when_a_link_came_needs_no_farewell_there() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    let now = table.now;
    table.server().add_rmb(RmbId(2), now).unwrap();
    table.run(ms(50));
    for _ in 0..2 {
        table.swallow("s DELETE RKEY");
    }
    let now = table.now;
    table.server().remove_rmb(RmbId(2), now).unwrap();
    table.adapter_up(Role::Server, 2);
    table.run(ms(2100));
    assert_eq!(table.links(Role::Server), [1, 3], "{:#?}", table.trace);
    assert!(!table.host(Role::Server).has(Event::RmbRemoved(RmbId(2))));
    table.break_link(Role::Server, 1);
    table.run(ms(100));
    assert!(table.host(Role::Server).has(Event::RmbRemoved(RmbId(2))));
    table.assert_agreement();
}

/// One link is given up after some seconds, as the peer may be behind the other; the other after as many as the only one.
#[test]
fn a_peer_that_stands_still_keeps_one_of_two_links() {
    let mut table = redundant(Version::V1);
    for line in ["s TEST LINK", "s DELETE LINK"] {
        (0..20).for_each(|_| table.swallow(line));
    }
    table.break_link(Role::Server, 2);
    table.run(s(14));
    assert_eq!(table.links(Role::Server), [1], "{:#?}", table.trace);
    // It goes on.
    table.swallows.clear();
    table.run(s(4));
    assert_eq!(table.links(Role::Client)[0], 1);
    table.assert_agreement();
}

/// A buffer of the server's that connections have left, and of which the client does not say that it lets go.
fn leaving(table: &mut Table, answers: usize) {
    let now = table.now;
    table.server().add_rmb(RmbId(2), now).unwrap();
    table.run(ms(50));
    for _ in 0..answers {
        table.swallow("s DELETE RKEY");
        table.swallow("s TEST LINK");
    }
    let now = table.now;
    table.server().remove_rmb(RmbId(2), now).unwrap();
}

/// What it has sent before may still come.
#[test]
fn a_buffer_stays_as_long_as_the_peer_stands_still() {
    let mut table = Table::established(Setting::new(Version::V1, 1, 1));
    leaving(&mut table, 6);
    table.run(s(11));
    assert!(!table.host(Role::Server).has(Event::RmbRemoved(RmbId(2))), "{:#?}", table.trace);
    // It goes on.
    table.run(s(4));
    assert!(table.host(Role::Server).has(Event::RmbRemoved(RmbId(2))), "{:#?}", table.trace);
    assert_eq!(table.links(Role::Server), [1]);
    table.assert_agreement();
}

#[test]
fn a_buffer_is_given_up_if_the_peer_talks_and_does_not_let_go_of_it() {
    let mut table = Table::established(Setting::new(Version::V2, 1, 1));
    leaving(&mut table, 3);
    for _ in 0..7 {
        table.run(s(1));
        let now = table.now;
        let group = table.server();
        let link = group.links()[0].user_id();
        group.handle_traffic(link, now);
    }
    assert!(table.host(Role::Server).has(Event::RmbRemoved(RmbId(2))), "{:#?}", table.trace);
    assert_eq!(table.links(Role::Server), [1]);
}

/// The device of one side hears nothing over a link.
fn silent(table: &mut Table, role: Role, number: u8) {
    let now = table.now;
    let group = table.group(role);
    let link = group.links().iter().find(|it| it.number().0 == number).unwrap().user_id();
    group.handle_silence(link, now);
    table.carry_out();
}

#[test]
fn a_link_that_stays_silent_while_the_peer_is_heard_elsewhere_is_left() {
    for role in [Role::Server, Role::Client] {
        let mut table = redundant(Version::V2);
        table.cut(1, 1);
        silent(&mut table, role, 1);
        assert_eq!(moved(&mut table, role), [], "the peer may be busy");
        table.run(ms(30));
        silent(&mut table, role, 1);
        assert_eq!(moved(&mut table, role), [(1, 2), (3, 2)]);
        assert_eq!(table.host(role).queue_pairs.len(), 1, "nothing leaves by it any more");
        table.run(ms(100));
        table.assert_agreement();
    }
}

#[test]
fn a_peer_that_is_heard_nowhere_is_waited_for() {
    let mut table = redundant(Version::V1);
    for _ in 0..20 {
        silent(&mut table, Role::Server, 1);
        silent(&mut table, Role::Server, 2);
    }
    // It was away, and both links tell of it.
    table.run(ms(30));
    for number in [1, 2] {
        let now = table.now;
        let group = table.server();
        let link = group.links()[number - 1].user_id();
        group.handle_traffic(link, now);
    }
    silent(&mut table, Role::Server, 1);
    assert_eq!(moved(&mut table, Role::Server), []);
    assert_eq!(table.links(Role::Server), [1, 2]);
}

#[test]
fn the_only_link_is_not_left_for_silence() {
    let mut table = Table::established(Setting::new(Version::V2, 1, 1));
    for _ in 0..20 {
        silent(&mut table, Role::Client, 1);
        table.run(ms(100));
    }
    assert_eq!(table.links(Role::Client), [1]);
}

#[test]
fn a_test_without_an_answer_is_forgiven_if_anything_else_was_heard() {
    let mut table = redundant(Version::V2);
    table.swallow("c TEST LINK");
    let link = table.server().links()[0].user_id();
    table.run(KEEPALIVE + ms(500));
    let now = table.now;
    table.server().handle_traffic(link, now);
    table.run(s(3));
    assert_eq!(table.links(Role::Server), [1, 2]);
}
