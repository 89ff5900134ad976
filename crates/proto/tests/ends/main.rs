//! Ends of connections in shared memory, by seed.
//!
//! A world is a connection with two ends. Threads of both programs send, receive, shut down, set `SO_LINGER`, ask for
//! errors and close; processes exit and are killed at any step; connections are torn down from outside; directions
//! move between TCP and the ring. All of that runs the machines of [`sidestep_proto::ends`], one word at a
//! time, in an order that the seed draws. From outside a [`checker`] compares what each call was told with what
//! TCP could have told it, by a model of TCP ([`tcp`]) that knows nothing of the library.
//!
//! The same seed plays the same world. `SIDESTEP_ENDS_SEEDS=first..last` plays other seeds.

mod checker;
mod tcp;
mod threads;
mod world;

use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};

use threads::play;
use world::{FAULTS, Fault};

/// Worlds of the test; more by the variable.
const SEEDS: u64 = 4_000;

fn seeds() -> Range<u64> {
    let asked = std::env::var("SIDESTEP_ENDS_SEEDS").ok();
    let range = asked.as_deref().and_then(|it| it.split_once(".."));
    range.map_or(0..SEEDS, |(first, last)| first.parse().unwrap()..last.parse().unwrap())
}

#[test]
fn programs_are_told_what_tcp_tells_them() {
    let (mut calls, mut resets, mut ended, mut worlds) = (0, 0, 0, 0);
    for seed in seeds() {
        let played = panic::catch_unwind(AssertUnwindSafe(|| play(seed, None, false)));
        let Ok(world) = played else {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| play(seed, None, true)));
            panic!(
                "SIDESTEP_ENDS_SEEDS={seed}..{} cargo test -p sidestep-proto --test ends",
                seed + 1
            )
        };
        calls += world.calls;
        resets += world.resets;
        ended += world.ended;
        worlds += 1;
    }
    println!("{worlds} worlds, {calls} calls, {ended} ends and {resets} resets told");
    // Else the worlds would be about nothing.
    assert!(worlds < 100 || (resets * 10 > worlds && ended * 3 > worlds), "{ended}, {resets}");
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

/// From the worlds on that are known to find them; `SIDESTEP_ENDS_FAULTS=all` looks how many it takes
/// from the first one on.
#[test]
fn planted_faults_are_found() {
    let looks_at_all = std::env::var_os("SIDESTEP_ENDS_FAULTS").is_some();
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
