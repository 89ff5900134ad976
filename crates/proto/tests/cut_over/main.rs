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
mod wishes;
mod world;
#[path = "../worlds/mod.rs"]
mod worlds;

use threads::play;
use world::{FAULTS, Fault};

/// That the program of a world sends.
const BYTES: u64 = 300;
/// Worlds of the test; others by the variable.
const SEEDS: u64 = 10_000;

#[test]
fn every_byte_arrives_once_and_in_order() {
    let (mut turns, mut worlds) = (0, 0);
    for seed in worlds::seeds("SIDESTEP_CUT_OVER_SEEDS", SEEDS) {
        let played = worlds::unless_wrong(|| play(seed, BYTES, None, false));
        let Some(world) = played else { tell_of(seed) };
        turns += world.turns_taken;
        worlds += 1;
    }
    // Else the worlds would be about nothing.
    assert!(turns > worlds * 2, "{turns} turns in {worlds} worlds");
}

/// A world goes wrong: shows how, with as few bytes as do it.
fn tell_of(seed: u64) -> ! {
    let is_right = |bytes| worlds::unless_wrong(|| play(seed, bytes, None, false)).is_some();
    let bytes = worlds::shortest(BYTES, is_right);
    worlds::unless_wrong(|| play(seed, bytes, None, true));
    panic!("{bytes} bytes: cargo xtask sim cut-over --seeds {seed}..{}", seed + 1)
}

fn goes_wrong(seed: u64, fault: Option<Fault>) -> bool {
    worlds::unless_wrong(|| play(seed, BYTES, fault, false)).is_none()
}

#[test]
fn the_same_seed_plays_the_same_world() {
    let trace_of = |seed| play(seed, BYTES, None, true).trace;
    assert!((0..20).all(|seed| trace_of(seed) == trace_of(seed)));
    assert_ne!(trace_of(0), trace_of(1));
}

/// From the worlds on that are known to find them; `cargo xtask sim cut-over --faults` looks how many it
/// takes from the first one on.
#[test]
fn planted_faults_are_found() {
    worlds::find(&FAULTS, "SIDESTEP_CUT_OVER_FAULTS", goes_wrong);
}
