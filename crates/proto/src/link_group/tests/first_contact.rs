//! First contact: one link, and whatever second one the adapters allow.

use super::*;

fn clc_of(setting: Setting) -> Table {
    let mut table = Table::lay(setting);
    table.exchange_clc();
    table
}

fn established_trace(setting: Setting) -> (Table, Vec<String>) {
    let mut table = clc_of(setting);
    table.run(s(3));
    for role in [Role::Server, Role::Client] {
        assert!(table.host(role).has(Event::Established), "{role:?}: {:#?}", table.trace);
    }
    table.assert_agreement();
    let trace = core::mem::take(&mut table.trace);
    (table, trace)
}

#[test]
fn version_1_adds_a_symmetric_link() {
    let (mut table, trace) = established_trace(Setting::new(Version::V1, 2, 2));
    assert_eq!(
        trace,
        [
            "s1 CONFIRM LINK request",
            "c1 CONFIRM LINK response",
            "s1 ADD LINK request",
            "c1 ADD LINK response",
            "s1 ADD LINK CONT request 1",
            "c1 ADD LINK CONT response 1",
            "s2 CONFIRM LINK request",
            "c2 CONFIRM LINK response",
        ]
    );
    assert!(table.server().is_redundant() && table.client().is_redundant());
}

#[test]
fn version_2_tells_the_keys_in_add_link() {
    let (mut table, trace) = established_trace(Setting::new(Version::V2, 2, 2));
    assert_eq!(
        trace,
        [
            "s1 CONFIRM LINK request",
            "c1 CONFIRM LINK response",
            "s1 ADD LINK request",
            "c1 ADD LINK response",
            "s2 CONFIRM LINK request",
            "c2 CONFIRM LINK response",
        ]
    );
    assert!(table.server().is_redundant() && table.client().is_redundant());
}

#[test]
fn a_device_that_takes_its_time_changes_nothing() {
    for version in [Version::V1, Version::V2] {
        let swift = established_trace(Setting::new(version, 2, 2)).1;
        let slow = Setting { device: ms(20), ..Setting::new(version, 2, 2) };
        assert_eq!(established_trace(slow).1, swift);
    }
}

#[test]
fn the_second_link_is_asymmetric_if_the_client_has_one_adapter() {
    let (mut table, _) = established_trace(Setting::new(Version::V2, 2, 1));
    assert_eq!(table.links(Role::Client), [1, 2]);
    assert!(!table.server().is_redundant());
    let second = table.client().links()[1].user_id();
    assert!(table.client().is_asymmetric(second));
}

#[test]
fn the_second_link_is_asymmetric_if_the_server_has_one_adapter() {
    let (mut table, _) = established_trace(Setting::new(Version::V1, 1, 2));
    assert_eq!(table.links(Role::Server), [1, 2]);
    let second = table.server().links()[1].user_id();
    assert!(table.server().is_asymmetric(second));
    assert_eq!(table.server().next_link(), Some(table.server().links()[0].user_id()));
}

#[test]
fn a_parallel_link_is_rejected() {
    for (version, reason) in [(Version::V1, 1), (Version::V2, 0)] {
        let (mut table, trace) = established_trace(Setting::new(version, 1, 1));
        assert_eq!(
            trace[2..],
            ["s1 ADD LINK request".to_string(), format!("c1 ADD LINK reject {reason}")]
        );
        assert_eq!(table.links(Role::Server), [1]);
    }
}

#[test]
fn with_one_link_agreed_there_is_no_try() {
    let setting = Setting { max_links: 1, ..Setting::new(Version::V2, 2, 2) };
    let (_, trace) = established_trace(setting);
    assert_eq!(trace, ["s1 CONFIRM LINK request", "c1 CONFIRM LINK response"]);
}

#[test]
fn a_client_that_was_not_looking_is_asked_again() {
    let mut table = Table::lay(Setting::new(Version::V2, 1, 1));
    table.swallow("s CONFIRM LINK request");
    table.exchange_clc();
    table.run(s(1));
    assert_eq!(table.trace[..2], ["s1 CONFIRM LINK request"; 2]);
    assert!(table.client().is_established());
    table.assert_agreement();
}

#[test]
fn the_server_declines_without_an_answer() {
    let mut table = Table::lay(Setting::new(Version::V2, 1, 1));
    for _ in 0..4 {
        table.swallow("c CONFIRM LINK response");
    }
    table.exchange_clc();
    table.run(s(3));
    assert!(table.host(Role::Server).has(Event::Declined(Diagnosis::TIMEOUT_CL)));
    table.assert_gone(Role::Server);
}

#[test]
fn the_client_declines_without_a_question() {
    let mut table = Table::lay(Setting::new(Version::V1, 1, 1));
    for _ in 0..4 {
        table.swallow("s CONFIRM LINK request");
    }
    table.exchange_clc();
    table.run(s(5));
    assert!(table.host(Role::Client).has(Event::Declined(Diagnosis::TIMEOUT_CL)));
    table.assert_gone(Role::Client);
    table.assert_gone(Role::Server);
}

#[test]
fn a_device_that_cannot_is_a_reason_to_decline() {
    for (due, diagnosis) in [
        (Due::Made(LinkUserId(0x701), None), Diagnosis::MEM),
        (Due::Registered(LinkUserId(0x701), RMB, None), Diagnosis::ERR_REGBUF),
    ] {
        let setting = Setting { device: s(1), ..Setting::new(Version::V2, 1, 1) };
        let mut table = Table::lay(setting);
        if matches!(due, Due::Registered(..)) {
            table.host(Role::Server).refuses_registrations = true;
            table.run(s(9));
        } else {
            table.carry_out();
            table.happen(Role::Server, due);
            table.carry_out();
        }
        assert!(table.host(Role::Server).has(Event::Declined(diagnosis)));
        table.assert_gone(Role::Server);
    }
}

#[test]
fn a_confirm_of_another_agreement_is_declined() {
    let confirm_with = |change: fn(&mut AcceptConfirmR)| {
        let mut table = Table::lay(Setting::new(Version::V2, 1, 1));
        table.run(ms(50));
        let accept = table.introduce(Role::Server);
        let local = Table::local(&table.setting, Role::Client);
        table.hosts.push(Host::new(LinkGroup::client(local, &accept, RMB).unwrap()));
        table.run(ms(50));
        let mut confirm = table.introduce(Role::Client);
        change(&mut confirm);
        let now = table.now;
        table.server().handle_confirm(&confirm, now);
        table.carry_out();
        table.assert_gone(Role::Server);
        table.host(Role::Server).events.clone()
    };
    fn contact(confirm: &mut AcceptConfirmR) -> &mut FirstContactR {
        match &mut confirm.form {
            FormR::V2 { first_contact: Some(contact), .. } => contact,
            _ => unreachable!(),
        }
    }
    for (change, diagnosis) in [
        ((|it| contact(it).max_conns = 17) as fn(&mut AcceptConfirmR), Diagnosis::MAXCONNERR),
        (|it| contact(it).max_conns = 15, Diagnosis::MAXCONNERR),
        (|it| contact(it).max_links = 1, Diagnosis::MAXLINKERR),
        (|it| contact(it).max_links = 0, Diagnosis::MAXLINKERR),
        (|it| it.mtu = Mtu::from_low_bits(6), Diagnosis::ERR_RDYLNK),
        (|it| it.qp_number = QpNumber([0, 0, 1]), Diagnosis::ERR_RDYLNK),
        (|it| it.gid = RoceGid([0; 16]), Diagnosis::ERR_RDYLNK),
        (|it| it.gid.0[0] = 0xFF, Diagnosis::ERR_RDYLNK),
        (|it| it.gid = adapter(Role::Server, 1).gid, Diagnosis::ERR_RDYLNK),
        (|it| it.role = ClcRole::Accept, Diagnosis::MODEUNSUPP),
    ] {
        let events = confirm_with(change);
        assert!(events.contains(&Event::Declined(diagnosis)), "{diagnosis}: {events:?}");
    }
}

#[test]
fn a_queue_pair_that_does_not_become_ready_is_a_reason_to_decline() {
    let mut table = Table::lay(Setting::new(Version::V2, 1, 1));
    table.setting.device = ms(1);
    table.run(ms(50));
    table.setting.device = Duration::ZERO;
    let accept = table.introduce(Role::Server);
    let local = Table::local(&table.setting, Role::Client);
    table.hosts.push(Host::new(LinkGroup::client(local, &accept, RMB).unwrap()));
    table.run(ms(50));
    let (confirm, now) = (table.introduce(Role::Client), table.now);
    table.setting.device = s(60);
    table.server().handle_confirm(&confirm, now);
    table.run(s(6));
    assert!(table.host(Role::Server).has(Event::Declined(Diagnosis::ERR_RDYLNK)));
    table.assert_gone(Role::Server);
}

#[test]
fn a_client_may_want_fewer_links_than_the_server() {
    let mut table = clc_of(Setting::new(Version::V1, 2, 2));
    table.client().max_links = 1;
    table.run(s(3));
    assert_eq!(table.trace, ["s1 CONFIRM LINK request", "c1 CONFIRM LINK response"]);
    assert_eq!((table.server().max_links(), table.server().is_established()), (1, true));
    table.assert_agreement();
}

#[test]
fn the_smaller_mtu_is_the_links() {
    let mut table = Table::established(Setting::new(Version::V2, 1, 1));
    let mtu = table.server().links()[0].mtu();
    assert_eq!(mtu.bytes(), Some(1024));
    let qp = *table.host(Role::Client).queue_pairs.values().next().unwrap();
    assert_eq!(qp.peer.unwrap().mtu, mtu);
}

#[test]
fn an_abandoned_first_contact_leaves_nothing() {
    let mut table = clc_of(Setting::new(Version::V2, 2, 2));
    table.client().abandon();
    table.server().abandon();
    table.run(s(1));
    table.assert_gone(Role::Server);
    table.assert_gone(Role::Client);
}
