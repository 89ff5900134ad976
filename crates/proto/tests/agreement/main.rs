//! How two ends come to share memory, by seed.
//!
//! A world is some processes in one or two network namespaces, connections between them, and a process
//! that has none and forges names, hellos, claims and records. The ends run the machines of
//! [`sidestep_proto::rendezvous::agreement`], one step at a time, in an order that the seed draws; threads look at once, hellos
//! are late, lost, doubled or find no room, processes fork, pass connections on, or die at any step.
//!
//! From outside it is checked that an end is joined with the other end of its own connection and with
//! no other, that no byte goes where it is not read, that each byte arrives once and in order, that
//! each attempt is over after so many looks, and that no name, claim, ring, slot or attempt is left.
//!
//! The same seed plays the same world. `cargo xtask sim agreement --seeds first..last` plays other seeds.

mod threads;
mod world;
#[path = "../worlds/mod.rs"]
mod worlds;

use threads::play;
use world::{FAULTS, Fault};

/// Worlds of the test; others by the variable.
const SEEDS: u64 = 2_000;
/// Connections of a world, at most.
const CONNECTIONS: u64 = 5;

#[test]
fn both_ends_agree_or_both_stay_on_tcp() {
    let (mut joined, mut through_rings, mut connections) = (0, 0, 0);
    for seed in worlds::seeds("SIDESTEP_AGREEMENT_SEEDS", SEEDS) {
        let played = worlds::unless_wrong(|| play(seed, CONNECTIONS, None, false));
        let Some(world) = played else { tell_of(seed) };
        joined += world.joined;
        through_rings += world.through_rings;
        connections += world.ends.len() as u64 / 2;
    }
    println!("{connections} connections, {joined} ends moved, {through_rings} bytes through rings");
    // Else the worlds would be about nothing.
    assert!(joined > connections / 2, "{joined} ends of {connections} connections moved");
}

/// A world goes wrong: shows how, with as few connections as do it.
fn tell_of(seed: u64) -> ! {
    let is_right =
        |connections| worlds::unless_wrong(|| play(seed, connections, None, false)).is_some();
    let connections = worlds::shortest(CONNECTIONS, is_right);
    worlds::unless_wrong(|| play(seed, connections, None, true));
    panic!("{connections} connections: cargo xtask sim agreement --seeds {seed}..{}", seed + 1)
}

fn goes_wrong(seed: u64, fault: Option<Fault>) -> bool {
    worlds::unless_wrong(|| play(seed, CONNECTIONS, fault, false)).is_none()
}

#[test]
fn the_same_seed_plays_the_same_world() {
    let trace_of = |seed| play(seed, CONNECTIONS, None, true).trace;
    assert!((0..20).all(|seed| trace_of(seed) == trace_of(seed)));
    assert_ne!(trace_of(0), trace_of(1));
}

/// From the worlds on that are known to find them; `cargo xtask sim agreement --faults` looks how many it
/// takes from the first one on.
#[test]
fn planted_faults_are_found() {
    worlds::find(&FAULTS, "SIDESTEP_AGREEMENT_FAULTS", goes_wrong);
}
