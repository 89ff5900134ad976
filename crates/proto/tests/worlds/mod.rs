//! What all kinds of worlds have in common: they are played by their seeds, mistakes are planted in
//! them, and their threads give way after every step.

use std::fmt::Debug;
use std::future::Future;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Worlds of which one has to find a planted mistake.
const SEEDS_OF_FAULTS: u64 = 20_000;

/// The seeds that the variable asks for (`first..last`), or else the first `usual` ones.
pub(crate) fn seeds(variable: &str, usual: u64) -> Range<u64> {
    let asked = std::env::var(variable).ok();
    let range = asked.as_deref().and_then(|it| it.split_once(".."));
    range.map_or(0..usual, |(first, last)| first.parse().unwrap()..last.parse().unwrap())
}

/// What a world came to, unless it went wrong.
pub(crate) fn unless_wrong<T>(play: impl FnOnce() -> T) -> Option<T> {
    panic::catch_unwind(AssertUnwindSafe(play)).ok()
}

/// Worlds that are expected to go wrong say nothing.
pub(crate) fn silently<T>(play: impl FnOnce() -> T) -> T {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let played = play();
    panic::set_hook(hook);
    played
}

/// The smallest size of a world at which it goes wrong; it does so at the largest.
pub(crate) fn shortest(largest: u64, is_right: impl Fn(u64) -> bool) -> u64 {
    silently(|| (1..largest).find(|size| !is_right(*size))).unwrap_or(largest)
}

/// Looks for the first world that goes wrong with a mistake and right without it, for each mistake: from the
/// seed that stands beside it on, or from the first one on if the variable is set.
///
/// # Panics
/// There is none.
pub(crate) fn find<F: Copy + Debug>(
    faults: &[(F, u64)],
    variable: &str,
    goes_wrong: impl Fn(u64, Option<F>) -> bool,
) {
    let begins_anew = std::env::var_os(variable).is_some();
    let find = |&(fault, known)| {
        let from = if begins_anew { 0 } else { known };
        let finds = |seed: &u64| goes_wrong(*seed, Some(fault)) && !goes_wrong(*seed, None);
        (fault, (from..from + SEEDS_OF_FAULTS).find(finds))
    };
    let found: Vec<(F, Option<u64>)> = silently(|| faults.iter().map(find).collect());
    for (fault, seed) in &found {
        let told = seed.map_or("NOT FOUND".to_owned(), |seed| format!("by world {seed}"));
        println!("{fault:?}: {told}");
    }
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}

/// Gives way once.
#[derive(Default)]
pub(crate) struct Step(bool);

impl Future for Step {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if core::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}
