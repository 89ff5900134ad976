//! RFC 7609 §4.8.3: other conditions under which connections end. Those of §4.8.1 and §4.8.2 are tests
//! of `proto::connection`.

use std::time::Duration;

use sidestep_proto::link_group::KEEPALIVE;
use sidestep_rdma::faults;

use crate::program::{Fate, Plan};
use crate::table::{CLIENT, SERVER, Table};

const SECOND: Duration = Duration::from_secs(1);

/// Hosts that talk over several connections.
fn talking(adapters: [u8; 2]) -> Table {
    let delay = Duration::from_micros(100);
    let network = faults::Plan { delay, ..faults::Plan::PERFECT };
    let mut table = Table::lay(adapters, network, 0.0, 16);
    for _ in 0..5 {
        let pause = Duration::from_millis(10);
        table.begin_talk(Plan::chatter(SERVER, &[1, 2], pause, 200 * SECOND));
    }
    table.run(5 * SECOND);
    table.check_established(0);
    table
}

/// Everybody who lives is told so after this time, and nothing is left. Who has nothing to send finds
/// out by TEST LINK.
fn check_all_are_reset(mut table: Table, after: Duration) {
    table.run(after);
    table.check_programs(Fate::MayBeReset);
    table.check_nothing_is_left();
}

#[test]
fn an_smc_r_peer_being_gracefully_shut_down() {
    for host in [SERVER, CLIENT] {
        let mut table = talking([2, 2]);
        table.end(host);
        check_all_are_reset(table, SECOND);
    }
}

#[test]
fn abnormal_termination_of_an_smc_r_peer() {
    for host in [SERVER, CLIENT] {
        let mut table = talking([2, 2]);
        table.kill(host);
        check_all_are_reset(table, KEEPALIVE + 60 * SECOND);
    }
}

#[test]
fn loss_of_roce_connectivity_between_two_smc_r_peers() {
    for adapters in [[1, 1], [2, 2], [1, 2]] {
        let mut table = talking(adapters);
        (1..=2).for_each(|adapter| table.cut(SERVER, adapter));
        check_all_are_reset(table, KEEPALIVE + 60 * SECOND);
    }
}
