//! How long a failover takes, and that there is none without a reason.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_rdma::faults;

use crate::program::Plan;
use crate::table::{CLIENT, SERVER, Table};

/// A short message so often.
const PAUSE: Duration = Duration::from_millis(5);

fn chatter(seconds: u64) -> Plan {
    Plan::chatter(SERVER, &[1, 2], PAUSE, Duration::from_secs(seconds))
}

fn network(seed: u64, delay_ms: u64, loss: f64) -> faults::Plan {
    let delay = Duration::from_micros(50 + 1000 * delay_ms);
    faults::Plan { seed, loss, delay, ..faults::Plan::PERFECT }
}

/// What becomes of an adapter, of which its host is not told.
type Blow = fn(&mut Table, usize, u8);

/// For how long nothing arrives after a cut.
fn outage(blow: Blow, seed: u64, delay_ms: u64, loss: f64) -> Duration {
    let mut random = StdRng::seed_from_u64(seed);
    let mut table = Table::lay([2, 2], network(seed, delay_ms, loss), 0.0, seed);
    table.begin_talk(chatter(6));
    table.run(Duration::from_secs(3) + Duration::from_micros(random.random_range(0..200_000)));
    assert!(table.survives_without(SERVER, 1), "seed {seed}: {table}");
    // The first link, which the connection uses, is over the first adapters.
    blow(&mut table, random.random_range(SERVER..=CLIENT), 1);
    table.run(Duration::from_secs(1));
    assert_eq!(table.moves(CLIENT), 1, "seed {seed}: {table}");
    table.longest_gap(SERVER)
}

#[test]
fn after_a_cut_data_flows_again_within_half_a_second() {
    for (blow, what) in [(Table::cut as Blow, "cut"), (Table::silence as Blow, "unheard")] {
        for (delay_ms, loss) in [(0, 0.0), (0, 0.01), (20, 0.0), (20, 0.01)] {
            let outage = |seed| outage(blow, seed, delay_ms, loss);
            let mut outages: Vec<Duration> = (0..20).map(outage).collect();
            outages.sort_unstable();
            let [least, median, most] = [0, 10, 19].map(|at| outages[at]);
            let case = format!("{what}, {delay_ms} ms, loss {loss}");
            println!("{case}: {least:?} … {median:?} … {most:?}");
            assert!(most <= Duration::from_millis(500), "{case}: {outages:?}");
        }
    }
}

#[test]
fn a_lossy_and_distant_network_is_no_failure() {
    for seed in 0..10 {
        let mut table = Table::lay([2, 2], network(seed, 20, 0.01), 0.0, seed);
        (0..3).for_each(|_| table.begin_talk(chatter(30)));
        table.run(Duration::from_secs(25));
        assert_eq!((table.moves(SERVER), table.moves(CLIENT)), (0, 0), "seed {seed}");
    }
}
