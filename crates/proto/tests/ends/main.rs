//! Ends of connections in shared memory, by seed.
//!
//! A world is a connection with two ends. Threads of both programs send, receive, shut down, set `SO_LINGER`, ask for
//! errors and close; processes exit and are killed at any step; connections are torn down from outside; directions
//! move between TCP and the ring. All of that runs the machines of [`sidestep_proto::ends`], one word at a
//! time, in an order that the seed draws. From outside a [`checker`] compares what each call was told with what
//! TCP could have told it, by a model of TCP ([`tcp`]) that knows nothing of the library.
//!
//! The same seed plays the same world. `cargo xtask sim ends --seeds first..last` plays other seeds.

mod checker;
mod tcp;
mod threads;
mod world;
#[path = "../worlds/mod.rs"]
mod worlds;

use threads::play;
use world::{FAULTS, Fault};

/// Worlds of the test; others by the variable.
const SEEDS: u64 = 4_000;
/// Calls of a thread, at most.
const CALLS: u64 = 9;

/// Later worlds that once went wrong: a peer that was killed with bytes unread in the ring, after the direction had left it.
const ONCE_WRONG: [u64; 1] = [46_628];

#[test]
fn programs_are_told_what_tcp_tells_them() {
    let (mut calls, mut resets, mut ended, mut worlds) = (0, 0, 0, 0);
    for seed in worlds::seeds("SIDESTEP_ENDS_SEEDS", SEEDS) {
        let played = worlds::unless_wrong(|| play(seed, CALLS, None, false));
        let Some(world) = played else { tell_of(seed) };
        calls += world.calls;
        resets += world.resets;
        ended += world.ended;
        worlds += 1;
    }
    println!("{worlds} worlds, {calls} calls, {ended} ends and {resets} resets told");
    // Else the worlds would be about nothing.
    assert!(worlds < 100 || (resets * 10 > worlds && ended * 3 > worlds), "{ended}, {resets}");
}

/// A world goes wrong: shows how, with as few calls as do it.
fn tell_of(seed: u64) -> ! {
    let is_right = |calls| worlds::unless_wrong(|| play(seed, calls, None, false)).is_some();
    let calls = worlds::shortest(CALLS, is_right);
    worlds::unless_wrong(|| play(seed, calls, None, true));
    panic!("{calls} calls: cargo xtask sim ends --seeds {seed}..{}", seed + 1)
}

fn goes_wrong(seed: u64, fault: Option<Fault>) -> bool {
    worlds::unless_wrong(|| play(seed, CALLS, fault, false)).is_none()
}

#[test]
fn worlds_that_once_went_wrong_are_right() {
    for seed in ONCE_WRONG {
        assert!(!goes_wrong(seed, None), "{seed}");
    }
}

#[test]
fn the_same_seed_plays_the_same_world() {
    let trace_of = |seed| play(seed, CALLS, None, true).trace;
    assert!((0..20).all(|seed| trace_of(seed) == trace_of(seed)));
    assert_ne!(trace_of(0), trace_of(1));
}

/// From the worlds on that are known to find them; `cargo xtask sim ends --faults` looks how many it
/// takes from the first one on.
#[test]
fn planted_faults_are_found() {
    worlds::find(&FAULTS, "SIDESTEP_ENDS_FAULTS", goes_wrong);
}
