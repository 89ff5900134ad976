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
//! The same seed plays the same world. `SIDESTEP_AGREEMENT_SEEDS=first..last` plays other seeds.

mod threads;
mod world;

use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};

use threads::play;
use world::{FAULTS, Fault};

/// Worlds of the test; more by the variable.
const SEEDS: u64 = 2_000;

fn seeds() -> Range<u64> {
    let asked = std::env::var("SIDESTEP_AGREEMENT_SEEDS").ok();
    let range = asked.as_deref().and_then(|it| it.split_once(".."));
    range.map_or(0..SEEDS, |(first, last)| first.parse().unwrap()..last.parse().unwrap())
}

#[test]
fn both_ends_agree_or_both_stay_on_tcp() {
    let (mut joined, mut through_rings, mut connections) = (0, 0, 0);
    for seed in seeds() {
        let played = panic::catch_unwind(AssertUnwindSafe(|| play(seed, None, false)));
        let Ok(world) = played else {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| play(seed, None, true)));
            panic!("SIDESTEP_AGREEMENT_SEEDS={seed}..{} cargo test --test agreement", seed + 1)
        };
        joined += world.joined;
        through_rings += world.through_rings;
        connections += world.ends.len() as u64 / 2;
    }
    println!("{connections} connections, {joined} ends moved, {through_rings} bytes through rings");
    // Else the worlds would be about nothing.
    assert!(joined > connections / 2, "{joined} ends of {connections} connections moved");
}

#[test]
fn the_same_seed_plays_the_same_world() {
    let trace_of = |seed| play(seed, None, true).trace;
    assert!((0..20).all(|seed| trace_of(seed) == trace_of(seed)));
    assert_ne!(trace_of(0), trace_of(1));
}

/// Worlds of which one has to find a planted fault.
const SEEDS_OF_FAULTS: u64 = 20_000;

/// The first seed, from this one on, whose world goes wrong.
fn found_by(fault: Fault, from: u64) -> Option<u64> {
    (from..from + SEEDS_OF_FAULTS).find(|seed| {
        let play = || play(*seed, Some(fault), false);
        panic::catch_unwind(AssertUnwindSafe(play)).is_err()
    })
}

/// From the worlds on that are known to find them; `SIDESTEP_AGREEMENT_FAULTS=all` looks how many it takes
/// from the first one on.
#[test]
fn planted_faults_are_found() {
    let looks_at_all = std::env::var_os("SIDESTEP_AGREEMENT_FAULTS").is_some();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let found: Vec<(Fault, Option<u64>)> = FAULTS
        .into_iter()
        .map(|(fault, known)| (fault, found_by(fault, if looks_at_all { 0 } else { known })))
        .collect();
    panic::set_hook(hook);
    for (fault, seed) in &found {
        let told = seed.map_or("NOT FOUND".to_owned(), |seed| format!("by world {seed}"));
        println!("{fault:?}: {told}");
    }
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
