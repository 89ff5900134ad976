//! Buffers, connections, keepalive, and the end of a group: what has a limit, and what it is.

use super::*;

fn single() -> Table {
    Table::established(Setting::new(Version::V2, 1, 1))
}

fn add_rmb(table: &mut Table, role: Role, id: u32) -> Result<(), RmbError> {
    let now = table.now;
    let result = table.group(role).add_rmb(RmbId(id), now);
    table.carry_out();
    result
}

fn remove_rmb(table: &mut Table, role: Role, id: u32) -> Result<(), RmbError> {
    let now = table.now;
    let result = table.group(role).remove_rmb(RmbId(id), now);
    table.carry_out();
    result
}

#[test]
fn a_buffer_comes_and_goes() {
    for version in [Version::V1, Version::V2] {
        let mut table = Table::established(Setting::new(version, 2, 2));
        add_rmb(&mut table, Role::Client, 2).unwrap();
        table.run(ms(50));
        table.assert_agreement();
        remove_rmb(&mut table, Role::Client, 2).unwrap();
        table.run(ms(50));
        table.assert_trace(&[
            "c1 CONFIRM RKEY request +1",
            "s1 CONFIRM RKEY response",
            "c1 DELETE RKEY request 1",
            "s1 DELETE RKEY response",
        ]);
        assert!(table.host(Role::Client).has(Event::RmbRemoved(RmbId(2))));
        table.assert_agreement();
    }
}

#[test]
fn several_buffers_go_at_once() {
    let mut table = single();
    for id in 2..20 {
        add_rmb(&mut table, Role::Server, id).unwrap();
        table.run(ms(10));
    }
    table.assert_agreement();
    table.trace.clear();
    for id in 2..20 {
        remove_rmb(&mut table, Role::Server, id).unwrap();
    }
    table.run(ms(50));
    let requests: Vec<_> = table.trace.iter().filter(|it| it.contains("request")).collect();
    assert_eq!(
        requests,
        [
            "s1 DELETE RKEY request 1",
            "s1 DELETE RKEY request 8",
            "s1 DELETE RKEY request 8",
            "s1 DELETE RKEY request 1"
        ]
    );
    table.assert_agreement();
}

#[test]
fn a_buffer_is_removed_before_the_peer_has_answered() {
    let mut table = single();
    add_rmb(&mut table, Role::Server, 2).unwrap();
    remove_rmb(&mut table, Role::Server, 2).unwrap();
    table.run(ms(50));
    let host = table.host(Role::Server);
    assert!(host.has(Event::RmbRemoved(RmbId(2))) && !host.has(Event::RmbReady(RmbId(2))));
    table.assert_agreement();
}

#[test]
fn a_buffer_in_use_stays() {
    let mut table = single();
    table.connect(5);
    assert_eq!(remove_rmb(&mut table, Role::Server, 1), Err(RmbError::InUse));
    let now = table.now;
    table.server().close(AlertToken(5), now);
    assert_eq!(remove_rmb(&mut table, Role::Server, 1), Ok(()));
    // The client still has the connection.
    table.run(ms(50));
    assert!(table.host(Role::Client).has(Event::Lost(AlertToken(5))));
    assert_eq!(table.client().destination(AlertToken(5)), None);
}

#[test]
fn buffers_are_numbered_and_counted() {
    let mut table = single();
    assert_eq!(add_rmb(&mut table, Role::Server, 1), Err(RmbError::Number));
    assert_eq!(remove_rmb(&mut table, Role::Server, 9), Err(RmbError::Number));
    for id in 2..=255 {
        add_rmb(&mut table, Role::Server, id).unwrap();
    }
    assert_eq!(add_rmb(&mut table, Role::Server, 256), Err(RmbError::Full));
    table.run(s(2));
    assert_eq!(table.client().peer_rmbs().count(), 255);
    table.assert_agreement();
}

#[test]
fn a_peers_buffer_beyond_the_limit_is_refused_for_now() {
    let mut table = single();
    for id in 2..=255 {
        add_rmb(&mut table, Role::Server, id).unwrap();
    }
    table.run(s(2));
    table.trace.clear();
    let (step, entries) = (ConfirmRkeyStep::Request, Default::default());
    let (rkey, address, form) = (Rkey(0xFFFF), RmbAddress(0), table.client().form);
    let one_more = llc::ConfirmRkey { form, step, rkey, address, remaining: 0, entries };
    table.inject(Role::Client, 1, &one_more.into());
    table.assert_trace(&["c1 CONFIRM RKEY refused"]);
    assert!(!table.client().has_room_for_peer_rmb());
}

/// Linux keeps its buffers by their sizes. With 255 of other sizes it asks for one more, and is refused: its next connection
/// is to have a new group, and not to be refused again.
#[test]
fn a_peer_that_was_refused_a_buffer_begins_another_group() {
    let mut table = single();
    let Adapter { gid, mac, .. } = adapter(Role::Client, 1);
    let fits = |table: &mut Table| table.server().fits(PeerId([2; 8]), gid, mac, 0);
    for id in 2..=255 {
        add_rmb(&mut table, Role::Client, id).unwrap();
    }
    table.run(s(2));
    assert!(!table.server().has_room_for_peer_rmb() && fits(&mut table));
    let (step, entries) = (ConfirmRkeyStep::Request, Default::default());
    let (rkey, address, form) = (Rkey(0xFFFF), RmbAddress(0), table.server().form);
    let one_more = llc::ConfirmRkey { form, step, rkey, address, remaining: 0, entries };
    table.inject(Role::Server, 1, &one_more.into());
    assert!(!fits(&mut table));
    remove_rmb(&mut table, Role::Client, 9).unwrap();
    table.run(s(2));
    assert!(fits(&mut table));
}

#[test]
fn a_buffer_that_cannot_be_registered_is_not_announced() {
    let mut table = single();
    table.host(Role::Client).refuses_registrations = true;
    add_rmb(&mut table, Role::Client, 2).unwrap();
    assert!(table.host(Role::Client).has(Event::RmbFailed(RmbId(2))));
    assert!(table.host(Role::Client).has(Event::RmbRemoved(RmbId(2))));
    table.run(ms(50));
    table.assert_trace(&[]);
    table.assert_agreement();
}

#[test]
fn buffers_added_while_a_link_is_added_get_keys_on_it() {
    for version in [Version::V1, Version::V2] {
        let mut table = Table::established(Setting::new(version, 1, 2));
        table.adapter_up(Role::Server, 2);
        add_rmb(&mut table, Role::Server, 2).unwrap();
        add_rmb(&mut table, Role::Client, 3).unwrap();
        table.run(s(1));
        assert!(table.server().is_redundant());
        table.assert_agreement();
    }
}

#[test]
fn connections_are_limited_as_agreed() {
    let mut table = single();
    let link = table.server().links()[0].user_id();
    for token in 0..255 {
        table.server().open(AlertToken(token), RMB, link).unwrap();
    }
    let open = |table: &mut Table, token| table.server().open(AlertToken(token), RMB, link);
    assert_eq!(open(&mut table, 255), Err(Refusal::Full));
    let (gid, mac) = (adapter(Role::Client, 1).gid, adapter(Role::Client, 1).mac);
    assert!(!table.server().fits(PeerId([2; 8]), gid, mac, 0));
    let now = table.now;
    table.server().close(AlertToken(0), now);
    assert!(table.server().fits(PeerId([2; 8]), gid, mac, 0));
    assert_eq!(open(&mut table, 7), Err(Refusal::Token));
    let nowhere = table.server().open(AlertToken(255), RMB, LinkUserId(9));
    assert_eq!(nowhere, Err(Refusal::NoLink));
    let unknown = table.server().open(AlertToken(255), RmbId(9), link);
    assert_eq!(unknown, Err(Refusal::NoRmb));
    assert_eq!(Refusal::NoLink.diagnosis(), Diagnosis::NOSRVLINK);
}

#[test]
fn a_group_of_other_peers_adapters_or_vlans_does_not_fit() {
    let mut table = single();
    let Adapter { gid, mac, .. } = adapter(Role::Client, 1);
    let peer = PeerId([2; 8]);
    assert!(table.server().fits(peer, gid, mac, 0));
    assert!(!table.server().fits(PeerId([3; 8]), gid, mac, 0));
    // As from Linux in version 2, of which only the Confirm tells the identity.
    table.server().proposer = PeerId([0; 8]);
    assert!(table.server().fits(PeerId([0; 8]), gid, mac, 0));
    assert_eq!(table.server().peer_id(), peer);
    table.server().proposer = peer;
    assert!(!table.server().fits(peer, gid, mac, 1));
    assert!(!table.server().fits(peer, adapter(Role::Client, 2).gid, mac, 0));
    assert!(!table.client().fits(PeerId([1; 8]), adapter(Role::Server, 1).gid, mac, 0));
}

#[test]
fn a_key_that_contradicts_another_is_not_bound() {
    let mut table = single();
    table.connect(1);
    let (link, rtoken) = table.server().destination(AlertToken(1)).unwrap();
    let elsewhere = Rtoken { address: RmbAddress(1), ..rtoken };
    let bound = table.server().bind(AlertToken(1), link, elsewhere);
    assert_eq!(bound, Err(Refusal::PeerRmb));
    assert_eq!(table.server().bind(AlertToken(2), link, rtoken), Err(Refusal::Token));
    assert_eq!(table.server().bind(AlertToken(1), LinkUserId(9), rtoken), Err(Refusal::NoLink));
}

#[test]
fn an_idle_group_is_ended_by_the_server() {
    let mut table = Table::established(Setting::new(Version::V2, 2, 2));
    table.connect(1);
    table.run(s(2000));
    assert!(table.server().is_established() && table.client().is_established());
    for role in [Role::Server, Role::Client] {
        let now = table.now;
        table.group(role).close(AlertToken(1), now);
    }
    table.run(s(599));
    assert!(table.server().is_established());
    table.run(s(2));
    table.assert_trace(&["s1 DELETE LINK all", "c1 DELETE LINK all"]);
    assert!(table.host(Role::Client).has(Event::Ending(DeleteReason::PROGRAM)));
    table.assert_gone(Role::Server);
    table.assert_gone(Role::Client);
}

#[test]
fn a_new_connection_in_time_keeps_the_group() {
    let mut table = single();
    table.run(s(590));
    table.connect(1);
    table.run(s(100));
    assert!(table.server().is_established());
    let now = table.now;
    table.server().close(AlertToken(1), now);
    table.run(s(590));
    assert!(table.server().is_established());
    table.run(s(11));
    table.assert_gone(Role::Server);
}

#[test]
fn either_side_ends_the_group_and_both_at_once() {
    let everybody = [Role::Server, Role::Client];
    for enders in [&everybody[..1], &everybody[1..], &everybody[..]] {
        let mut table = Table::established(Setting::new(Version::V1, 2, 2));
        table.connect(1);
        for role in enders {
            let now = table.now;
            table.group(*role).end(DeleteReason::OPERATOR, false, now);
        }
        table.carry_out();
        table.run(ms(100));
        for role in everybody {
            assert!(table.host(role).has(Event::Ending(DeleteReason::OPERATOR)));
            table.assert_gone(role);
        }
        assert_eq!(table.trace.len(), 2);
    }
}

#[test]
fn a_silent_peer_does_not_keep_a_group_alive() {
    let mut table = single();
    table.swallow("s DELETE LINK all");
    let now = table.now;
    table.server().end(DeleteReason::OPERATOR, false, now);
    table.carry_out();
    table.run(s(1));
    assert!(!table.server().has_ended(), "its messages are still acknowledged");
    table.run(s(1));
    table.assert_gone(Role::Server);
}

#[test]
fn a_quiet_link_is_tested_and_a_busy_one_is_not() {
    let setting = Setting { keepalive: Some(KEEPALIVE), ..Setting::new(Version::V1, 1, 1) };
    let mut table = Table::established(setting);
    table.connect(1);
    for _ in 0..50 {
        for role in [Role::Server, Role::Client] {
            let (now, link) = (table.now, table.group(role).links()[0].user_id());
            table.group(role).handle_traffic(link, now);
        }
        table.run(s(1));
    }
    assert!(!table.trace.iter().any(|line| line.contains("TEST LINK")), "{:?}", table.trace);
    table.run(s(62));
    assert!(table.trace.contains(&"c1 TEST LINK response".to_string()), "{:?}", table.trace);
    table.assert_agreement();
}

/// A host that stands still for some seconds is not gone, and there is no other link to ask over.
#[test]
fn the_only_link_is_waited_for_and_not_for_ever() {
    let setting = Setting { keepalive: Some(KEEPALIVE), ..Setting::new(Version::V1, 1, 1) };
    let mut table = Table::established(setting);
    table.connect(1);
    table.swallow("s TEST LINK request");
    table.swallow("c TEST LINK request");
    table.run(KEEPALIVE + s(10));
    assert!(!table.server().has_ended() && !table.client().has_ended());
    table.run(s(10));
    table.assert_gone(Role::Server);
    table.assert_gone(Role::Client);
}

#[test]
fn a_group_can_be_shown() {
    let mut table = Table::established(Setting::new(Version::V2, 2, 2));
    table.connect(1);
    let server = table.server();
    assert_eq!((server.role(), server.version(), server.vlan()), (Role::Server, Version::V2, 0));
    assert_eq!((server.max_conns(), server.max_links()), (255, 2));
    assert_eq!(server.peer_id(), PeerId([2; 8]));
    let link = &server.links()[1];
    assert_eq!((link.number(), link.state()), (LinkNumber(2), LinkState::Active));
    assert_eq!(link.adapter(), adapter(Role::Server, 2));
    assert_eq!(link.peer().unwrap().gid, adapter(Role::Client, 2).gid);
    assert_eq!(link.user_id().to_string(), "00000702");
    assert_eq!(link.peer_user_id().to_string(), "00000702");
    assert_eq!(server.connections().len(), 1);
    assert_eq!(server.rmbs().collect::<Vec<_>>(), [(RMB, RmbState::Announced)]);
    assert_eq!(server.peer_rmbs().map(|(_, keys)| keys.len()).collect::<Vec<_>>(), [2]);
}

#[test]
fn lengths_are_written_as_the_peer_writes_them() {
    let mut table = single();
    assert_eq!(table.server().form, Form::V2(llc::LengthOrder::LittleEndian), "it is Linux");
    let order = llc::LengthOrder::BigEndian;
    let (role, user_data) = (llc::Role::Request, [0; 16]);
    let big = llc::TestLink { form: Form::V2(order), role, user_data };
    table.inject(Role::Server, 1, &big.into());
    assert_eq!(table.server().form, Form::V2(order), "on another processor");
}

#[test]
fn another_link_that_fails_does_not_announce_the_end_again() {
    let mut table = Table::established(Setting::new(Version::V1, 2, 2));
    let now = table.now;
    table.server().end(DeleteReason::OPERATOR, false, now);
    table.carry_out();
    table.break_link(Role::Server, 2);
    table.assert_trace(&["s1 DELETE LINK all"]);
    table.run(ms(50));
    table.assert_gone(Role::Server);
}

#[test]
fn what_is_no_connection_keeps_no_group() {
    let mut table = single();
    table.run(s(500));
    let now = table.now;
    table.server().close(AlertToken(99), now);
    table.run(s(101));
    table.assert_gone(Role::Server);
}

#[test]
fn a_link_that_came_makes_the_next_try_an_early_one_again() {
    let mut table = Table::established(Setting::new(Version::V2, 1, 1));
    table.connect(1);
    table.run(s(500));
    table.adapter_up(Role::Client, 2);
    table.run(s(1));
    assert_eq!(table.links(Role::Server).len(), 2);
    table.adapter_down(Role::Client, 2);
    table.run(s(3));
    table.trace.clear();
    table.run(s(61));
    assert!(table.trace.contains(&"s1 ADD LINK request".to_string()), "{:?}", table.trace);
}
