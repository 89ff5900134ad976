//! Directions that change between TCP and the ring, by seed.
//!
//! A world is one direction of a connection: a program that sends, one that receives, threads that
//! ring bells and clear them away, a kernel that delivers late, and operators who demote and
//! promote. All run the machines of [`sidestep_proto::cut_over`], one step at a time, in an order
//! that the seed draws. From outside it is checked that the receiver gets every byte once and in order,
//! that no bell is taken for data and no data for a bell, and that no thread sleeps for ever.
//!
//! The same seed plays the same world. `SIDESTEP_CUT_OVER_SEEDS=first..last` plays other seeds.

mod threads;
mod world;

use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};

use threads::play;
use world::{FAULTS, Fault};

const BYTES: u64 = 300;
/// Worlds of the test; more by the variable.
const SEEDS: u64 = 2_000;

fn seeds() -> Range<u64> {
    let asked = std::env::var("SIDESTEP_CUT_OVER_SEEDS").ok();
    let range = asked.as_deref().and_then(|it| it.split_once(".."));
    range.map_or(0..SEEDS, |(first, last)| first.parse().unwrap()..last.parse().unwrap())
}

#[test]
fn every_byte_arrives_once_and_in_order() {
    let (mut turns, mut worlds) = (0, 0);
    for seed in seeds() {
        let played = panic::catch_unwind(AssertUnwindSafe(|| play(seed, BYTES, None, false)));
        let Ok(world) = played else {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| play(seed, BYTES, None, true)));
            panic!("SIDESTEP_CUT_OVER_SEEDS={seed}..{} cargo test --test cut_over", seed + 1)
        };
        turns += world.turns_taken;
        worlds += 1;
    }
    // Else the worlds would be about nothing.
    assert!(turns > worlds * 2, "{turns} turns in {worlds} worlds");
}

#[test]
fn the_same_seed_plays_the_same_world() {
    let trace_of = |seed| play(seed, BYTES, None, true).trace;
    assert!((0..20).all(|seed| trace_of(seed) == trace_of(seed)));
    assert_ne!(trace_of(0), trace_of(1));
}

/// Worlds of which one has to find a planted fault.
const SEEDS_OF_FAULTS: u64 = 20_000;

/// The first seed, from this one on, whose world goes wrong.
fn found_by(fault: Fault, from: u64) -> Option<u64> {
    (from..from + SEEDS_OF_FAULTS).find(|seed| {
        let play = || play(*seed, BYTES, Some(fault), false);
        panic::catch_unwind(AssertUnwindSafe(play)).is_err()
    })
}

/// From the worlds on that are known to find them; `SIDESTEP_CUT_OVER_FAULTS=all` looks how many it takes
/// from the first one on.
#[test]
fn planted_faults_are_found() {
    let looks_at_all = std::env::var_os("SIDESTEP_CUT_OVER_FAULTS").is_some();
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
