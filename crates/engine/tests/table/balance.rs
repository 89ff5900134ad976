//! A link that comes takes its share of the connections that are there, in the middle of what they say.

use std::time::Duration;

use sidestep_rdma::faults;

use crate::program::{Fate, Plan};
use crate::table::{CLIENT, SERVER, Table};

const SECOND: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 9;

/// The client has a word for the server over each of them, and the other way round over each second.
fn begin_chatters(table: &mut Table) {
    for talk in 0..CONNECTIONS {
        let mut plan = Plan::chatter(SERVER, &[1, 2], Duration::from_millis(15), 40 * SECOND);
        if talk % 2 == 0 {
            plan.sides[SERVER] = plan.sides[CLIENT];
        }
        table.begin_talk(plan);
        table.run(SECOND / 4);
    }
}

#[test]
fn when_an_adapter_comes_back_connections_spread_again_and_then_rest() {
    for seed in 0..6 {
        let (loss, late) = if seed % 2 == 0 { (0.0, 0.0) } else { (0.02, 0.01) };
        let delay = Duration::from_micros(50 << seed);
        let network = faults::Plan { seed, loss, delay, ..faults::Plan::PERFECT };
        let mut table = Table::lay([2, 2], network, late, seed * 16);
        begin_chatters(&mut table);
        table.run(3 * SECOND);
        let (host, adapter) = (seed as usize % 2, 1 + (seed / 2 % 2) as u8);
        table.set_up(host, adapter, false);
        table.run(SECOND / 2);
        let moves = [SERVER, CLIENT].map(|host| table.moves(host));
        table.set_up(host, adapter, true);
        table.run(10 * SECOND);
        for host in [SERVER, CLIENT] {
            let mut loads = table.loads(host);
            loads.sort_unstable();
            assert_eq!(loads, [4, 5], "seed {seed}: {table}");
            assert!(table.moves(host) >= moves[host] + 4, "seed {seed}: {table}");
        }
        let moves = [SERVER, CLIENT].map(|host| table.moves(host));
        table.run(10 * SECOND);
        assert_eq!([SERVER, CLIENT].map(|host| table.moves(host)), moves, "seed {seed}: {table}");
        table.run(200 * SECOND);
        table.check_established(0);
        table.check_programs(Fate::MustFinish);
    }
}

/// An adapter that goes and comes, again and again, while connections are on their way to it.
#[test]
fn who_is_on_the_way_to_a_link_that_goes_finds_another() {
    for seed in 0..10 {
        let delay = Duration::from_micros(100 + 2000 * seed);
        let network = faults::Plan { seed, delay, loss: 0.01, ..faults::Plan::PERFECT };
        let mut table = Table::lay([2, 2], network, 0.01, seed * 16);
        begin_chatters(&mut table);
        table.run(2 * SECOND);
        for time in 0..3 {
            let (host, adapter) = ((seed + time) as usize % 2, 1 + (time % 2) as u8);
            if !table.survives_without(host, adapter) {
                break;
            }
            table.set_up(host, adapter, false);
            table.run(SECOND);
            table.set_up(host, adapter, true);
            // Those that are needed for it take a second, and two more before anybody moves.
            table.run_until_balancing();
            table.run(delay * (seed % 7) as u32);
        }
        table.run(200 * SECOND);
        // Where the first contact takes long, some begin while a link goes.
        table.check_programs(Fate::MayStayTcp);
    }
}
