//! Directions that change between TCP and the ring, by seed.
//!
//! A world is one direction of a connection: a program that sends, one that receives, threads that
//! ring bells and clear them away, a kernel that delivers late, and operators who demote and
//! promote. All run the machines of [`sidestep_proto::cut_over`], one step at a time, in an order
//! that the seed draws. From outside it is checked that the receiver gets every byte once and in order,
//! that no bell is taken for data and no data for a bell, and that no thread sleeps for ever.
//!
//! The same seed plays the same world. `cargo xtask sim cut-over --seeds first..last` plays other seeds.

mod threads;
mod world;

use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};

use threads::play;
use world::{FAULTS, Fault};

/// That the program of a world sends.
const BYTES: u64 = 300;
/// Worlds of the test; others by the variable.
const SEEDS: u64 = 10_000;

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
        let Ok(world) = played else { tell_of(seed) };
        turns += world.turns_taken;
        worlds += 1;
    }
    // Else the worlds would be about nothing.
    assert!(turns > worlds * 2, "{turns} turns in {worlds} worlds");
}

/// A world goes wrong: shows how, with as few bytes as do it.
fn tell_of(seed: u64) -> ! {
    let bytes =
        silently(|| (1..BYTES).find(|bytes| goes_wrong(seed, *bytes, None))).unwrap_or(BYTES);
    let _ = panic::catch_unwind(AssertUnwindSafe(|| play(seed, bytes, None, true)));
    panic!("{bytes} bytes: cargo xtask sim cut-over --seeds {seed}..{}", seed + 1)
}

fn goes_wrong(seed: u64, bytes: u64, fault: Option<Fault>) -> bool {
    panic::catch_unwind(AssertUnwindSafe(|| play(seed, bytes, fault, false))).is_err()
}

/// Worlds that are expected to go wrong say nothing.
fn silently<T>(play: impl FnOnce() -> T) -> T {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let played = play();
    panic::set_hook(hook);
    played
}

#[test]
fn the_same_seed_plays_the_same_world() {
    let trace_of = |seed| play(seed, BYTES, None, true).trace;
    assert!((0..20).all(|seed| trace_of(seed) == trace_of(seed)));
    assert_ne!(trace_of(0), trace_of(1));
}

/// Worlds of which one has to find a planted fault.
const SEEDS_OF_FAULTS: u64 = 20_000;

/// The first seed, from this one on, whose world goes wrong, and does not without the fault.
fn found_by(fault: Fault, from: u64) -> Option<u64> {
    (from..from + SEEDS_OF_FAULTS)
        .find(|seed| goes_wrong(*seed, BYTES, Some(fault)) && !goes_wrong(*seed, BYTES, None))
}

/// From the worlds on that are known to find them; `cargo xtask sim cut-over --faults` looks how many it
/// takes from the first one on.
#[test]
fn planted_faults_are_found() {
    let looks_at_all = std::env::var_os("SIDESTEP_CUT_OVER_FAULTS").is_some();
    let find = |(fault, known)| (fault, found_by(fault, if looks_at_all { 0 } else { known }));
    let found: Vec<(Fault, Option<u64>)> = silently(|| FAULTS.into_iter().map(find).collect());
    for (fault, seed) in &found {
        let told = seed.map_or("NOT FOUND".to_owned(), |seed| format!("by world {seed}"));
        println!("{fault:?}: {told}");
    }
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
