//! From runs to figures: medians, intervals, and what is wrong with a series of runs.
//!
//! A run on a shared machine is a draw from a distribution with moods: other guests
//! steal time, the governor changes the clock, threads land on the same CPU or on
//! two. Three habits keep that out of the figures:
//!
//! * A figure is the **median** over runs, so that one disturbed run moves nothing
//!   ([`spread`]).
//! * Transports are compared **pair by pair**, two runs that were made one after the
//!   other and saw the same mood; the interval of the median ratio comes from a
//!   bootstrap that assumes no distribution ([`paired_ratio`]).
//! * Measurements of two days have no pairs. They are compared by Welch's t-test on
//!   logarithms, and *no difference found* is never taken for *no difference*: that
//!   is what the equivalence test is for ([`LogDifference`]).
//!
//! A median over runs that are not of one kind is not a figure of anything.
//! [`remarks`] says so: when they fall into two groups, when they become faster or
//! slower, when they are too far apart. Every rule asks twice, whether chance alone
//! would do this seldom, and whether it is large enough to matter.
//!
//! All of this is arithmetic on slices: no clock, and chance only from a fixed seed,
//! so that the same samples always give the same words.

mod bootstrap;
mod equivalence;
mod modes;
mod noise;
mod order;
mod rate;
mod trend;

pub use bootstrap::{Ratio, paired_ratio};
pub use equivalence::LogDifference;
pub use modes::{bimodal_runs, bimodal_slices};
pub use noise::noisy;
pub use order::{median, spread};
pub use trend::drifting;

use crate::result::Remark;

/// What is wrong with the runs of a cell.
///
/// `tps` are their transactions per second in the order in which they were made;
/// `over_time` the same in slices of each run; `grain` the least by which a slice can
/// differ from another, in transactions per second: see [`bimodal_slices`].
///
/// Two groups or a trend explain why runs are far apart: only what neither explains
/// is called noise.
#[must_use]
pub fn remarks(tps: &[f64], over_time: &[Vec<f64>], grain: f64) -> Vec<Remark> {
    let bimodal = bimodal_runs(tps).or_else(|| bimodal_slices(over_time, grain));
    let drift = drifting(tps);
    let explained = bimodal.is_some() || drift.is_some();
    let noise = if explained { None } else { noisy(tps) };
    [bimodal, drift, noise].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::result::{RemarkKind, Spread};

    /// Values around 1000 with this relative deviation: sums of twelve uniform draws,
    /// near enough to a normal distribution.
    pub(super) fn noise_around_1000(seed: u64, len: usize, deviation: f64) -> Vec<f64> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut draw = || (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        (0..len).map(|_| 1000.0 * (1.0 + deviation * draw())).collect()
    }

    fn kinds(remarks: &[Remark]) -> Vec<RemarkKind> {
        remarks.iter().map(|remark| remark.kind).collect()
    }

    #[test]
    fn the_spread_of_an_even_number_of_values_has_the_mean_of_the_middle_two() {
        assert_eq!(spread(&[4.0, 1.0, 3.0, 2.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(spread(&[7.0]), Spread { median: 7.0, min: 7.0, max: 7.0 });
    }

    #[test]
    fn steady_runs_are_not_remarked_upon() {
        for seed in 0..200 {
            let runs = noise_around_1000(seed, 5, 0.01);
            let slices: Vec<_> =
                (0..5).map(|run| noise_around_1000(1000 + seed * 5 + run, 10, 0.03)).collect();
            assert_eq!(remarks(&runs, &slices, 1.0), [], "seed {seed}: {runs:?}");
        }
    }

    #[test]
    fn what_two_groups_explain_is_not_also_called_noise() {
        let runs = [1000.0, 2000.0, 1010.0, 2010.0, 1005.0];
        assert_eq!(kinds(&remarks(&runs, &[], 1.0)), [RemarkKind::Bimodal]);
        assert!(noisy(&[1000.0, 1400.0, 1800.0, 2200.0, 1600.0]).is_some());
    }

    #[test]
    fn what_a_trend_explains_is_not_also_called_noise() {
        let runs = [1000.0, 1300.0, 1600.0, 1900.0, 2200.0];
        assert!(noisy(&runs).is_some(), "alone it would be");
        assert_eq!(kinds(&remarks(&runs, &[], 1.0)), [RemarkKind::Drifting]);
    }

    proptest! {
        #[test]
        fn the_spread_does_not_depend_on_the_order(
            values in prop::collection::vec(0.1..1e9, 1..30),
        ) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert_eq!(spread(&values), spread(&sorted));
        }

        #[test]
        fn the_median_lies_between_least_and_most(
            values in prop::collection::vec(0.1..1e9, 1..30),
        ) {
            let Spread { median, min, max } = spread(&values);
            prop_assert!(min <= median && median <= max);
        }
    }
}
