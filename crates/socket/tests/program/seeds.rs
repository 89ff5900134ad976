//! Lists by their seeds: the same seed draws the same lists.
//!
//! `SIDESTEP_SEEDS=100..200 cargo test -p sidestep-socket --test program` draws others.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::ops::Range;

/// Lists of each seed.
const LISTS: u32 = 50;

/// The seeds that the environment names, or else these.
pub(crate) fn named_or(seeds: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("SIDESTEP_SEEDS") else { return seeds };
    let (first, end) = text.split_once("..").expect("FIRST..END");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// Plays the lists of a seed; one that is wrong is shortened as long as it stays wrong.
pub(crate) fn run<S: Strategy>(
    seed: u64,
    lists: S,
    play: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = Config { cases: LISTS, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    match TestRunner::new_with_rng(config, rng).run(&lists, play) {
        Ok(()) => {}
        Err(TestError::Fail(story, list)) => panic!("seed {seed}: {list:?}\n{story}"),
        Err(TestError::Abort(why)) => panic!("seed {seed}: {why}"),
    }
}
