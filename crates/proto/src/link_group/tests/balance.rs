//! Connections that move to a link that has come, and the question that goes before them.

use super::*;

/// All connections are on the second link, because the first has failed. At the end another comes.
fn lopsided(version: Version, connections: u32) -> Table {
    let mut table = Table::established(Setting::new(version, 2, 2));
    table.adapter_down(Role::Server, 1);
    table.run(s(5));
    // The one that shares an adapter is for failures only.
    for token in 1..=connections {
        table.connect(token);
    }
    for role in [Role::Server, Role::Client] {
        table.host(role).events.clear();
    }
    table.adapter_up(Role::Server, 1);
    table
}

/// Connections on each link.
fn loads(table: &mut Table, role: Role) -> Vec<usize> {
    let group = table.group(role);
    group.active().map(|link| group.connections_on(link.user_id)).collect()
}

fn moves(table: &mut Table, role: Role) -> usize {
    let is_move = |event: &&Event| matches!(event, Event::Moved { .. });
    table.host(role).events.iter().filter(is_move).count()
}

#[test]
fn a_link_that_comes_takes_its_share() {
    for version in [Version::V1, Version::V2] {
        let mut table = lopsided(version, 7);
        table.run(s(1));
        for role in [Role::Server, Role::Client] {
            assert_eq!((loads(&mut table, role), moves(&mut table, role)), ([7, 0].into(), 0));
        }
        table.run(s(2));
        for role in [Role::Server, Role::Client] {
            assert_eq!((loads(&mut table, role), moves(&mut table, role)), ([4, 3].into(), 3));
            let new = table.group(role).links()[1].user_id();
            let group = table.group(role);
            let on_it: Vec<_> = group.connections().iter().filter(|it| it.link == new).collect();
            assert!(on_it.iter().all(|it| group.destination(it.token).is_some()));
        }
        table.assert_agreement();
    }
}

#[test]
fn only_a_few_move_at_once_and_then_none() {
    let mut table = lopsided(Version::V2, 50);
    let mut before = 0;
    for _ in 0..100 {
        table.run(timers::BALANCE_PAUSE);
        let now = moves(&mut table, Role::Client);
        assert!(now - before <= timers::BALANCE_STEP, "{before} {now}");
        before = now;
    }
    assert_eq!(loads(&mut table, Role::Client), [25, 25]);
    // Connections that end make no others wander.
    let group = table.client();
    let link = group.links()[0].user_id();
    let ends: Vec<_> = group.connections().iter().filter(|it| it.link == link).copied().collect();
    let now = table.now;
    ends.iter().for_each(|it| table.client().close(it.token, now));
    table.run(s(100));
    assert_eq!(
        (loads(&mut table, Role::Client), moves(&mut table, Role::Client)),
        ([0, 25].into(), 25)
    );
}

#[test]
fn a_link_that_comes_and_goes_moves_nobody() {
    let mut table = lopsided(Version::V1, 6);
    for _ in 0..5 {
        table.run(ms(1500));
        table.adapter_down(Role::Server, 1);
        table.run(ms(1500));
        table.adapter_up(Role::Server, 1);
    }
    assert_eq!([Role::Server, Role::Client].map(|role| moves(&mut table, role)), [0, 0]);
}

#[test]
fn a_connection_whose_buffer_is_not_known_there_stays() {
    let mut table = lopsided(Version::V2, 4);
    table.run(s(1));
    let new = table.server().links()[1].user_id();
    table.server().peer_rmbs.forget_link(new);
    table.run(s(3));
    assert_eq!(loads(&mut table, Role::Server), [4, 0]);
    assert_eq!(loads(&mut table, Role::Client), [2, 2]);
}

#[test]
fn an_asymmetric_link_takes_none() {
    let mut table = Table::established(Setting::new(Version::V2, 2, 1));
    for token in 1..=4 {
        table.connect(token);
    }
    table.run(s(10));
    assert_eq!(loads(&mut table, Role::Server), [4, 0]);
}

// ---- the question -------------------------------------------------------------------------------

fn answers(table: &mut Table, role: Role) -> usize {
    let is_answer = |event: &&Event| matches!(event, Event::Answered(_));
    table.host(role).events.iter().filter(is_answer).count()
}

fn probe(table: &mut Table) -> LinkUserId {
    let (link, now) = (table.server().links()[0].user_id(), table.now);
    table.server().probe(link, now);
    table.carry_out();
    link
}

#[test]
fn a_link_that_is_probed_answers() {
    let mut table = Table::established(Setting::new(Version::V1, 2, 2));
    let link = probe(&mut table);
    // A second time, while the first answer may already be on its way.
    probe(&mut table);
    table.run(ms(10));
    table.assert_trace(&[
        "s1 TEST LINK request",
        "c1 TEST LINK response",
        "s1 TEST LINK request",
        "c1 TEST LINK response",
    ]);
    assert_eq!(answers(&mut table, Role::Server), 2);
    assert!(table.host(Role::Server).has(Event::Answered(link)));
}

#[test]
fn a_link_that_is_heard_but_does_not_answer_has_understood_in_time() {
    let mut table = Table::established(Setting::new(Version::V2, 2, 2));
    table.swallow("s TEST LINK request");
    let link = probe(&mut table);
    table.run(ms(1500));
    let now = table.now;
    table.server().handle_traffic(link, now);
    assert_eq!(answers(&mut table, Role::Server), 0);
    table.run(s(1));
    assert_eq!(answers(&mut table, Role::Server), 1);
    assert_eq!(table.links(Role::Server), [1, 2]);
}

#[test]
fn a_link_that_is_probed_in_vain_goes_down() {
    let mut table = Table::established(Setting::new(Version::V2, 2, 2));
    table.swallow("s TEST LINK request");
    let link = probe(&mut table);
    table.run(s(3));
    assert_eq!(answers(&mut table, Role::Server), 0);
    assert!(table.host(Role::Server).has(Event::LinkDown(link)));
}

/// It answers a test that was given up for other messages, and the next is under way.
#[test]
fn a_late_answer_is_none_to_the_next_test() {
    let mut table = Table::established(Setting::new(Version::V1, 2, 2));
    table.swallow("c TEST LINK response");
    let link = probe(&mut table);
    let late = table.server().link(link).and_then(|link| link.test).unwrap().number;
    table.run(ms(1900));
    let now = table.now;
    table.server().handle_traffic(link, now);
    table.run(ms(200));
    table.swallow("s TEST LINK request");
    probe(&mut table);
    let user_data = u128::from(late).to_be_bytes();
    let form = table.server().form;
    let answer = llc::TestLink { form, role: llc::Role::Response, user_data };
    table.inject(Role::Server, 1, &answer.into());
    assert_eq!(answers(&mut table, Role::Server), 1);
    assert_eq!(table.links(Role::Server), [1, 2]);
}
