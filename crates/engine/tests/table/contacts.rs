//! First contacts: over which adapters, and one after the other.

use std::time::Duration;

use sidestep_engine::Sizes;
use sidestep_rdma::faults;

use crate::program::{Plan, Side};
use crate::table::{CLIENT, SERVER, Table};

fn table(adapters: [u8; 2]) -> Table {
    let delay = Duration::from_micros(100);
    Table::lay(adapters, faults::Plan { delay, ..faults::Plan::PERFECT }, 0.0, 16)
}

/// Each side says so much.
fn talk(server: usize, adapters: &'static [u8]) -> Plan {
    let side = Side { len: 5000, aborts_at: None, sizes: Sizes::default(), pause: None };
    Plan { server, adapters, sides: [side; 2] }
}

#[test]
fn proposals_at_once_make_one_group_for_each_direction() {
    let mut table = table([2, 2]);
    for server in [SERVER, CLIENT, SERVER, CLIENT, SERVER, SERVER, CLIENT, CLIENT] {
        table.begin_talk(talk(server, &[1, 2]));
    }
    table.run(Duration::from_secs(3));
    table.check_established(0);
    assert_eq!([SERVER, CLIENT].map(|host| table.groups(host)), [2, 2]);
}

/// A group has room for 255. Those that CLC is not through with have a place, too.
#[test]
fn more_proposals_at_once_than_a_group_has_room_for_make_another_group() {
    let mut table = table([1, 1]);
    let (pause, time) = (Duration::from_secs(1), Duration::from_secs(20));
    (0..300).for_each(|_| table.begin_talk(Plan::chatter(SERVER, &[1], pause, time)));
    table.run(Duration::from_secs(10));
    table.check_established(0);
    assert_eq!([SERVER, CLIENT].map(|host| table.groups(host)), [2, 2]);
}

/// Each side knows 255 buffers of the other then, and none is used.
#[test]
fn a_group_that_was_full_takes_connections_again() {
    let mut table = table([1, 1]);
    let (pause, time) = (Duration::from_secs(1), Duration::from_secs(5));
    for _ in 0..3 {
        (0..300).for_each(|_| table.begin_talk(Plan::chatter(SERVER, &[1], pause, time)));
        table.run(Duration::from_secs(12));
    }
    assert_eq!([SERVER, CLIENT].map(|host| table.groups(host)), [2, 2]);
}

/// Nothing comes through, and so the first contact comes to nothing. Who has waited behind it is the
/// next, and who is behind that one is of its group.
#[test]
fn after_a_first_contact_in_vain_there_is_another() {
    let mut table = table([1, 1]);
    table.cut(SERVER, 1);
    (0..3).for_each(|_| table.begin_talk(talk(SERVER, &[1])));
    table.run(Duration::from_millis(2100));
    assert!(table.is_declined(0));
    table.mend(SERVER, 1);
    table.run(Duration::from_secs(5));
    table.check_established(1);
    assert_eq!(table.groups(SERVER), 1);
}

/// It comes up between the client's Proposal and the server's Accept, and nobody says so again.
#[test]
fn an_adapter_that_comes_up_meanwhile_is_used() {
    let mut table = table([1, 2]);
    table.set_up(CLIENT, 2, false);
    let (pause, time) = (Duration::from_millis(10), Duration::from_secs(60));
    table.begin_talk(Plan::chatter(SERVER, &[1, 2], pause, time));
    table.run(Duration::from_micros(1500));
    table.set_up(CLIENT, 2, true);
    table.run(Duration::from_secs(5));
    table.check_established(0);
    assert_eq!([SERVER, CLIENT].map(|host| table.loads(host).len()), [2, 2]);
}

#[test]
fn networks_that_are_apart_have_groups_of_their_own() {
    let mut table = table([2, 2]);
    table.split();
    for adapters in [&[2], &[1], &[2], &[1]] {
        table.begin_talk(talk(SERVER, adapters));
        table.run(Duration::from_secs(5));
    }
    table.check_established(0);
    assert_eq!(table.groups(CLIENT), 2);
    for number in [1, 2] {
        // An adapter that comes again brings no link to a group of the other network.
        table.set_up(CLIENT, number, false);
        table.set_up(CLIENT, number, true);
        table.run(Duration::from_secs(200));
    }
}
