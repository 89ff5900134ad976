//! Link groups go on in another process of their host, in the middle of what programs say, and the peer notices
//! nothing: every byte comes once and in order, and no connection is reset.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_engine::{Migrant, Sizes, Unfit};
use sidestep_rdma::faults;
use sidestep_wire::{AlertToken, QpNumber, Rkey, RmbeSize};

use crate::program::{Fate, Plan, Side};
use crate::table::{CLIENT, SERVER, Table};

const SECOND: Duration = Duration::from_secs(1);
/// How long a group has to come to rest.
const PATIENCE: Duration = Duration::from_millis(200);

/// Both sides say so much as fast as they can, through buffers that are short now and then.
fn stream(random: &mut StdRng) -> Plan {
    let mut side = || {
        let mut size = || RmbeSize::from_low_bits(random.random_range(0..=2));
        let sizes = Sizes { rmbe: size(), send_buffer: size() };
        Side { len: random.random_range(0..600_000), aborts_at: None, sizes, pause: None }
    };
    Plan { server: SERVER, adapters: &[1, 2], sides: [side(), side()] }
}

/// A table with talks that are in the middle of it.
fn table(seed: u64, random: &mut StdRng) -> Table {
    let is_bad = seed % 2 == 1;
    let (loss, duplication, late) = if is_bad { (0.02, 0.02, 0.005) } else { (0.0, 0.0, 0.0) };
    let delay = Duration::from_micros(random.random_range(10..2000));
    let network = faults::Plan { seed, loss, duplication, delay, ..faults::Plan::PERFECT };
    let adapters = [random.random_range(1..=2), random.random_range(1..=2)];
    let mut table = Table::lay(adapters, network, late, seed * 8);
    for talk in 0..random.random_range(1..12) {
        let plan = match talk % 3 {
            0 => stream(random),
            of => {
                let pause = Duration::from_millis(random.random_range(1..30));
                let mut plan = Plan::chatter(SERVER, &[1, 2], pause, 5 * SECOND);
                if of == 1 {
                    plan.sides.swap(SERVER, CLIENT);
                }
                plan
            }
        };
        table.begin_talk(plan);
        table.run(Duration::from_micros(random.random_range(0..3000)));
    }
    table.run_until_settled();
    table
}

#[test]
fn what_moves_to_another_process_loses_nothing() {
    let (mut moved, mut stayed) = (0, 0);
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut table = table(seed, &mut random);
        for _ in 0..random.random_range(1..12) {
            table.run(Duration::from_micros(random.random_range(0..100_000)));
            let host = random.random_range(SERVER..=CLIENT);
            let left = table.emigrate(host, PATIENCE);
            (moved, stayed) = (moved + table.migrants(host).len(), stayed + left);
            // What the peer sends meanwhile finds no queue pair, and comes again.
            table.run(Duration::from_micros(random.random_range(0..20_000)));
            if left == 0 && random.random_bool(0.5) {
                // The adapters of the process before have nothing any more.
                table.bear(host);
            }
            table.immigrate(host);
        }
        table.run(400 * SECOND);
        table.check_programs(Fate::MustFinish);
        table.run(1500 * SECOND);
        table.check_nothing_is_left();
    }
    assert!(moved > 50 && stayed < moved / 2, "{moved} moved, {stayed} stayed");
}

/// Nothing is taken of a group that contradicts itself, and what was tried leaves no trace: neither queue pairs nor
/// keys, nor a word to the peer.
#[test]
fn what_cannot_be_is_not_taken() {
    let mut random = StdRng::seed_from_u64(2);
    let mut table = table(2, &mut random);
    assert_eq!(table.emigrate(SERVER, SECOND), 0);
    table.bear(SERVER);
    let whole = table.migrants(SERVER)[0].clone();
    assert!(whole.streams.len() > 1, "some talk");
    let (host, now) = table.host_at(SERVER).unwrap();
    let before = host.holdings();
    for (nth, (unfit, plant)) in PLANTED.iter().enumerate() {
        let mut changed = whole.clone();
        plant(&mut changed);
        assert_eq!(host.immigrate(changed, now), Err(*unfit), "planted fault {nth}");
        assert_eq!(host.holdings(), before, "planted fault {nth}");
    }
    table.immigrate(SERVER);
    let (host, now) = table.host_at(SERVER).unwrap();
    assert_eq!(host.immigrate(whole, now), Err(Unfit::Connections), "it is here already");
    table.run(400 * SECOND);
    table.check_programs(Fate::MustFinish);
}

type Plant = fn(&mut Migrant);

const PLANTED: [(Unfit, Plant); 17] = [
    (Unfit::Group, |it| it.group.links.clear()),
    (Unfit::Group, |it| it.group.links[0].gid.0[0] ^= 1),
    (Unfit::Group, |it| it.group.links.push(it.group.links[0])),
    (Unfit::Group, |it| {
        it.group.adapters = vec![it.group.adapters[0]; 99];
        it.group.max_links = 9;
    }),
    (Unfit::Group, |it| it.group.rmbs[0].1.clear()),
    (Unfit::Group, |it| it.group.connections[0].token = it.group.connections[1].token),
    (Unfit::Group, |it| it.group.peer_rmbs.clear()),
    (Unfit::Buffers, |it| _ = it.buffers.pop()),
    (Unfit::Buffers, |it| it.buffers[0].size = RmbeSize::from_low_bits(9)),
    (Unfit::Buffers, |it| it.streams[0].rmb = it.streams[1].rmb),
    (Unfit::Connections, |it| it.streams[0].token = AlertToken(0)),
    (Unfit::Connections, |it| it.streams[0].unsent.push(0)),
    (Unfit::Connections, |it| it.streams[0].connection.produced += 1 << 30),
    (Unfit::Connections, |it| it.streams[0].send_buffer_len = u32::MAX),
    (Unfit::QueuePairs, |it| it.queue_pairs.clear()),
    (Unfit::QueuePairs, |it| it.queue_pairs[0].peer.qp = QpNumber([9; 3])),
    (Unfit::QueuePairs, |it| {
        // Two buffers by one key.
        let rkey = it.group.rmbs[0].1[0].1.rkey;
        assert_ne!(rkey, Rkey(0));
        it.group.rmbs[1].1[0].1.rkey = rkey;
    }),
];
