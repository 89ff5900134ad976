//! The waiting rules on machines with a scheduler, by seed.
//!
//! A [machine](machine::Machine) has a few CPUs that EEVDF shares out, threads that compute, and
//! pairs of threads that ask and answer and wait by the real rules. What is a law of the rules is
//! checked from outside, and the same pairs that wait by a fixed rule are the measure. Costs are those
//! of Linux 6.18 on a virtual machine.
//!
//! The same seed plays the same world, to the nanosecond. `SIDESTEP_SCHEDULE_SEEDS=first..last`
//! plays other seeds than the usual ones.

mod machine;
mod pairs;
mod queue;
mod traces;
mod world;

use std::ops::Range;

use machine::FOR_EVER;
use pairs::{Habits, Ledger, Manner, SHARED, TCP, Trial};
use queue::{ORDINARY, Yielding};
use sidestep_proto::contention::{JUDGE_NS, PAUSE_FIRST_NS, PAUSE_MAX_NS, SETTLE_NS};
use world::{Places, World};

/// Nanoseconds.
type Ns = u64;

const MS: Ns = 1_000_000;
/// Worlds of each test; more by the variable.
const SEEDS: u64 = 16;

/// Plays worlds. One in which something is wrong is told, and the others are played.
fn for_seeds(usual: Range<u64>, play: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let asked = std::env::var("SIDESTEP_SCHEDULE_SEEDS").ok();
    let range = asked.as_deref().and_then(|it| it.split_once(".."));
    let seeds = range.map_or(usual, |(first, last)| first.parse().unwrap()..last.parse().unwrap());
    let wrong: Vec<u64> =
        seeds.filter(|seed| std::panic::catch_unwind(|| play(*seed)).is_err()).collect();
    assert!(wrong.is_empty(), "worlds in which something is wrong: {wrong:?}");
}

/// For how long a stranger of these weights keeps a CPU that it was given: a slice, until a tick.
fn turn(world: &World) -> Ns {
    let heavier = (world.weights[1] / world.weights[0]).max(1) as Ns;
    world.rules.slice.next_multiple_of(world.rules.tick) * heavier
}

#[test]
fn beside_strangers_pairs_keep_up_with_tcp() {
    for_seeds(0..SEEDS, |seed| {
        let world = World::beside(seed);
        let governed = world.play(Manner::Governed, SHARED);
        let sleeping = world.play(Manner::Sleeps, SHARED);
        let by_tcp = world.play(Manner::Sleeps, TCP);
        let told = format!(
            "{world}: {:.0}/s, sleeping {:.0}/s, by TCP {:.0}/s, p99 {} and {} ns, CPU {} and {} ns",
            governed.rate,
            sleeping.rate,
            by_tcp.rate,
            governed.p99,
            sleeping.p99,
            governed.cpu,
            by_tcp.cpu
        );
        assert!(governed.rate >= 0.95 * by_tcp.rate, "{told}");
        // Trials cost some of it, and short spins in vain where each end has a CPU.
        let least = if world.places == Places::Apart { 0.7 } else { 0.85 };
        assert!(governed.rate >= least * sleeping.rate, "{told}");
        assert!(governed.p99 <= sleeping.p99 + turn(&world), "{told}");
        for ledger in &governed.ledgers {
            check_changes(ledger, &world);
            check_spins(ledger, &world);
        }
    });
}

/// Rules do not flap: a pause and a trial lie between two strangers, and pauses grow.
fn check_changes(Ledger { changes, .. }: &Ledger, world: &World) {
    let quickest = PAUSE_FIRST_NS + SETTLE_NS + JUDGE_NS;
    let met: Vec<Ns> = changes.iter().copied().step_by(2).collect();
    assert!(met.windows(2).all(|two| two[1] - two[0] >= quickest), "{world}: {changes:?}");
    let late = changes.iter().filter(|at| **at > world.counts_from).count();
    assert!(late <= 6, "{world}: {changes:?}");
}

/// Spins take a quarter of one CPU at most while strangers want it, of any number of threads.
fn check_spins(Ledger { spun_beside, beside, .. }: &Ledger, world: &World) {
    assert!(*spun_beside <= beside / 4, "{world}: {spun_beside} of {beside}");
}

#[test]
fn pairs_that_only_yield_beside_strangers_are_far_slower() {
    for_seeds(0..SEEDS, |seed| {
        let world = World::beside(seed);
        if world.places != Places::OneCpu
            || !world.same_group
            || world.rules.yielding != Yielding::MovesRuntime
        {
            return;
        }
        let (yielding, by_tcp) =
            (world.play(Manner::Yields, SHARED), world.play(Manner::Sleeps, TCP));
        assert!(yielding.rate < by_tcp.rate / 5.0, "{world}: {} {}", yielding.rate, by_tcp.rate);
    });
}

#[test]
fn alone_pairs_are_as_fast_as_by_the_best_fixed_rule() {
    for_seeds(0..SEEDS, |seed| {
        let (world, _) = World::of(seed);
        let governed = world.play(Manner::Governed, SHARED);
        // Spins are better where the ends run on two CPUs.
        let best = if world.places == Places::Apart { Manner::Spins } else { Manner::Yields };
        let fixed = world.play(best, SHARED);
        // Pairs whose ends both have a CPU keep it as strangers do, and a few are taken for some.
        let are_friends = world.places == Places::Apart && world.pairs > 1;
        let least = if are_friends { 0.55 } else { 0.9 };
        assert!(governed.rate >= least * fixed.rate, "{world}: {} {}", governed.rate, fixed.rate);
        let are_strangers = |it: &Ledger| !it.changes.is_empty();
        assert!(
            are_friends || !governed.ledgers.iter().any(are_strangers),
            "{world}: {governed:?}"
        );
    });
}

/// Pairs of which each end has another CPU could find each other by spinning, two CPUs for a whole slice, while all others
/// wait: p99 is up to fifteen times TCP's then.
#[test]
fn alone_many_pairs_wait_no_longer_than_by_tcp() {
    for_seeds(0..SEEDS, |seed| {
        let (world, _) = World::of(seed);
        let world = World { places: Places::Apart, pairs: 10 + seed as usize, ..world };
        let governed = world.play(Manner::Governed, SHARED);
        let by_tcp = world.play(Manner::Sleeps, TCP);
        let told = format!("{world}: {} and {} ns", governed.p99, by_tcp.p99);
        assert!(governed.p99 <= by_tcp.p99 * 5 / 4, "{told}");
        assert!(governed.rate >= 1.1 * by_tcp.rate, "{world}: {} {}", governed.rate, by_tcp.rate);
    });
}

/// Strangers of the pairs' own group come, and go after 400 ms.
fn visited(seed: u64) -> Option<World> {
    let world = World::beside(seed);
    let world = World { quota: None, steal: None, weights: [ORDINARY; 2], ..world };
    let world = World { same_group: true, counts_from: 0, length: 1_400 * MS, ..world };
    (world.places != Places::Apart).then_some(World { from: 50 * MS, to: 450 * MS, ..world })
}

#[test]
fn yielding_ends_with_the_first_stranger_and_begins_again_after_the_last() {
    for_seeds(0..SEEDS, |seed| {
        let Some(world) = visited(seed) else { return };
        for Ledger { changes, .. } in world.play(Manner::Governed, SHARED).ledgers {
            let [first, last] =
                [changes.first(), changes.last()].map(|it| it.copied().unwrap_or(0));
            // Before Linux 6.18 a pair alone may hand a CPU to and fro for some slices first.
            let turns = if world.rules.yielding == Yielding::MovesRuntime { 2 } else { 8 };
            let told_by = world.from + turns * (world.loops as Ns + 1) * turn(&world);
            assert!((world.from..told_by).contains(&first), "{world}: {changes:?}");
            // The pause that has begun last, and a trial. A trial may fail once with no stranger
            // there: threads of the other process sleep while those of this one yield.
            let trial = SETTLE_NS + JUDGE_NS + 5 * turn(&world);
            let over_by = world.to + 2 * (PAUSE_MAX_NS + trial);
            assert!(changes.len() % 2 == 0 && last < over_by, "{world}: {changes:?}");
        }
    });
}

/// A trial may fail with no stranger there: threads of the process repay each other with slices what they have
/// slept, and those are as dear. Hence they settle before it judges: without that a quarter of these trials fail,
/// and with a millisecond a fifth.
#[test]
fn the_own_kind_is_not_taken_for_strangers() {
    let trials = trials(|seed| {
        let world = visited(seed)?;
        let from = world.to;
        Some((world, from))
    });
    let failed = trials.iter().filter(|it| !it.is_passed).count();
    assert!(trials.len() > 50 && failed <= trials.len() / 12, "{failed} of {}", trials.len());
}

/// What a process gives to trials beside strangers that stay, when pauses have grown: a twentieth of its time at
/// most. If threads settled for twice as long, it would be more.
#[test]
fn trials_take_a_twentieth_of_the_time() {
    let span = |world: &World| world.length - world.counts_from;
    let worlds: Vec<World> = (0..TRIAL_SEEDS).map(World::beside).collect();
    // Of each of the two processes.
    let whole: Ns = worlds.iter().map(|world| 2 * span(world)).sum();
    let trials = trials(|seed| {
        let world = worlds[seed as usize].clone();
        let from = world.counts_from;
        Some((world, from))
    });
    let taken: Ns = trials.iter().map(|it| it.to - it.from).sum();
    assert!((whole / 100..=whole / 20).contains(&taken), "{taken} of {whole}");
}

/// Enough worlds for a law that is one of many trials together.
const TRIAL_SEEDS: u64 = 64;

/// The trials in these worlds that begin after this moment.
fn trials(world_of: impl Fn(u64) -> Option<(World, Ns)>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (world, from) in (0..TRIAL_SEEDS).filter_map(world_of) {
        let ledgers = world.play(Manner::Governed, SHARED).ledgers;
        let all = ledgers.into_iter().flat_map(|it| it.trials);
        trials.extend(all.filter(|it| it.from > from));
    }
    trials
}

#[test]
fn one_loss_is_a_lesson_for_all_threads() {
    for_seeds(0..SEEDS, |seed| {
        let Some(world) = visited(seed) else { return };
        for ledger in world.play(Manner::Governed, SHARED).ledgers {
            // A thread yields in a trial, and until one of its process has met a stranger. In
            // each it loses a few turns, and 1.4 s have time for eight.
            let most = world.pairs * 8 * (2 + (SETTLE_NS / turn(&world)) as usize * 2);
            assert!(ledger.losses.len() <= most, "{world}: {} of {most}", ledger.losses.len());
        }
    });
}

#[test]
fn what_was_learned_is_not_lost_with_a_connection() {
    for_seeds(0..SEEDS, |seed| {
        let Some(world) = visited(seed) else { return };
        let play = |messages| {
            let habits = Habits { messages, ..world.habits };
            World { habits, to: world.length, ..world.clone() }.play(Manner::Governed, SHARED)
        };
        let (short, long) = (play(1), play(FOR_EVER));
        assert!(short.rate >= 0.9 * long.rate, "{world}: {:.0}/s, {:.0}/s", short.rate, long.rate);
    });
}

#[test]
fn the_same_seed_plays_the_same_world() {
    let play = |seed| {
        let it = World::beside(seed).play(Manner::Governed, SHARED);
        (it.p99, it.cpu, it.ledgers.map(|it| (it.changes, it.losses)))
    };
    assert!((0..5).all(|seed| play(seed) == play(seed)));
    assert_ne!(play(0), play(1));
}
