//! Two groups where there should be one.
//!
//! A workload that runs in one of two ways, for instance with its threads on one CPU
//! or on two, has no typical figure: its median falls into either group by chance.
//!
//! Few runs and many slices need different rules. No usual test (Hartigan's dip,
//! mixtures) has any power with five values, but five values show a gap.

use crate::control::SLICE_MS;
use crate::result::{Remark, RemarkKind};

use super::order::median;
use super::rate::in_words;

/// Whether runs fall into two groups, by their transactions per second.
///
/// Sorted, with at least two runs on either side of it, there is a gap that is
///
/// * at least three times as wide as either group. Normal noise does this in 6 of 100
///   series of four runs, 3 of five, 1 of six and fewer of more (by simulation);
/// * at least 10 % of the median: smaller groups do not matter.
#[must_use]
pub fn bimodal_runs(tps: &[f64]) -> Option<Remark> {
    if tps.len() < 2 * GROUP_MIN {
        return None;
    }
    let sorted = sorted(tps.iter().copied());
    (GROUP_MIN..=sorted.len() - GROUP_MIN)
        .map(|at| sorted.split_at(at))
        .find(|(low, high)| {
            let gap = high[0] - low[low.len() - 1];
            gap >= GAP_TO_WIDTH * width(low).max(width(high)) && gap >= GAP_TO_MEDIAN * median(tps)
        })
        .map(|(low, high)| runs_remark(low, high))
}

/// Whether slices of runs fall into two groups: a workload that changes its ways while
/// it runs.
///
/// Over the slices of all runs the best cut into two groups (2-means; in one dimension
/// all cuts can be tried)
///
/// * explains at least 85 % of their variance. The best cut of a normal distribution
///   explains 64 %, of a uniform one, which is what steady drift looks like, 75 %;
/// * leaves at least 15 % of the slices on either side, so that a few wild slices are
///   not a group;
/// * has means that are at least 20 % of the median apart, and three times `grain`.
///
/// `grain` is the change in transactions per second when each client ends one
/// transaction more in a slice. Streams of 20 MB end a handful of transactions in a
/// slice, so that even perfect regularity falls into two groups, of five and of six.
///
/// Fewer than 20 slices say nothing.
#[must_use]
pub fn bimodal_slices(over_time: &[Vec<f64>], grain: f64) -> Option<Remark> {
    let sorted = sorted(over_time.iter().flatten().copied());
    if sorted.len() < SLICES_MIN {
        return None;
    }
    let (at, explained) = best_cut(&sorted);
    let (low, high) = sorted.split_at(at);
    let share = low.len().min(high.len()) as f64 / sorted.len() as f64;
    let distance = mean(high) - mean(low);
    let bimodal = explained >= EXPLAINED_MIN
        && share >= SHARE_MIN
        && distance >= DISTANCE_TO_MEDIAN * median(&sorted)
        && distance >= DISTANCE_TO_GRAIN * grain;
    bimodal.then(|| slices_remark(low, high, explained))
}

/// Where a cut of sorted values explains the most of their variance, and how much. The
/// cut lies within the values; of equal values it explains nothing.
fn best_cut(sorted: &[f64]) -> (usize, f64) {
    let len = sorted.len() as f64;
    let total: f64 = sorted.iter().sum();
    let centre = total / len;
    let variation: f64 = sorted.iter().map(|value| (value - centre).powi(2)).sum();
    let mut below = 0.0;
    let mut best = (1, 0.0);
    for at in 1..sorted.len() {
        below += sorted[at - 1];
        let (low, high) = (at as f64, len - at as f64);
        let between =
            low * (below / low - centre).powi(2) + high * ((total - below) / high - centre).powi(2);
        if variation > 0.0 && between / variation > best.1 {
            best = (at, between / variation);
        }
    }
    best
}

fn runs_remark(low: &[f64], high: &[f64]) -> Remark {
    let text = format!(
        "the runs fall into two groups, {} of {} to {} and {} of {} to {} transactions per \
         second: their median is a matter of chance",
        low.len(),
        in_words(low[0]),
        in_words(low[low.len() - 1]),
        high.len(),
        in_words(high[0]),
        in_words(high[high.len() - 1]),
    );
    Remark { kind: RemarkKind::Bimodal, text }
}

fn slices_remark(low: &[f64], high: &[f64], explained: f64) -> Remark {
    let all = (low.len() + high.len()) as f64;
    let text = format!(
        "within the runs the rate jumps between two levels: {:.0} % of the slices of {SLICE_MS} \
         ms are near {} and {:.0} % near {} transactions per second; this explains {:.0} % of \
         their variance",
        100.0 * low.len() as f64 / all,
        in_words(mean(low)),
        100.0 * high.len() as f64 / all,
        in_words(mean(high)),
        100.0 * explained,
    );
    Remark { kind: RemarkKind::Bimodal, text }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn width(sorted: &[f64]) -> f64 {
    sorted[sorted.len() - 1] - sorted[0]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A run alone is an outlier, not a group.
const GROUP_MIN: usize = 2;
const GAP_TO_WIDTH: f64 = 3.0;
const GAP_TO_MEDIAN: f64 = 0.1;

const SLICES_MIN: usize = 20;
const EXPLAINED_MIN: f64 = 0.85;
const SHARE_MIN: f64 = 0.15;
const DISTANCE_TO_MEDIAN: f64 = 0.2;
const DISTANCE_TO_GRAIN: f64 = 3.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::statistics::tests::noise_around_1000;

    fn scaled(values: Vec<f64>, factor: f64) -> Vec<f64> {
        values.into_iter().map(|value| value * factor).collect()
    }

    #[test]
    fn two_groups_of_runs_are_found_and_named() {
        let remark = bimodal_runs(&[810.0, 1610.0, 800.0, 1600.0, 805.0]).unwrap();
        assert_eq!(remark.kind, RemarkKind::Bimodal);
        assert_eq!(
            remark.text,
            "the runs fall into two groups, 3 of 800 to 810 and 2 of 1600 to 1610 transactions \
             per second: their median is a matter of chance"
        );
    }

    #[test]
    fn one_run_apart_from_the_others_is_not_a_group() {
        assert_eq!(bimodal_runs(&[800.0, 801.0, 802.0, 803.0, 1600.0]), None);
    }

    #[test]
    fn groups_that_lie_close_together_do_not_matter() {
        assert_eq!(bimodal_runs(&[1000.0, 1000.0, 1050.0, 1050.0, 1050.0]), None);
        assert!(bimodal_runs(&[1000.0, 1000.0, 1150.0, 1150.0, 1150.0]).is_some());
    }

    #[test]
    fn three_runs_cannot_be_two_groups() {
        assert_eq!(bimodal_runs(&[1000.0, 1000.0, 2000.0]), None);
        assert_eq!(bimodal_runs(&[]), None);
    }

    /// The rate promised above is 3 of 100 for five runs; of 1000 seeds 30 are
    /// expected with a deviation of 5.4.
    #[test]
    fn noise_is_seldom_taken_for_two_groups() {
        let found = (0..1000)
            .filter(|&seed| bimodal_runs(&noise_around_1000(seed, 5, 0.3)).is_some())
            .count();
        assert!(found <= 50, "{found} of 1000");
    }

    #[test]
    fn jumps_between_two_levels_are_found_within_runs() {
        let runs: Vec<Vec<f64>> = (0..5)
            .map(|seed| {
                let mut run = noise_around_1000(seed, 6, 0.03);
                run.extend(scaled(noise_around_1000(100 + seed, 4, 0.03), 1.5));
                run
            })
            .collect();
        let remark = bimodal_slices(&runs, 10.0).unwrap();
        let text = remark.text;
        assert!(text.contains("60 % of the slices of 100 ms are near "), "{text}");
        assert!(text.contains("40 % near "), "{text}");
    }

    #[test]
    fn one_level_of_any_usual_shape_is_not_two() {
        let normal = noise_around_1000(1, 500, 0.2);
        let uniform: Vec<f64> = (0..500).map(|at| 1000.0 + 2.0 * f64::from(at)).collect();
        let skewed = normal.iter().map(|value| (value / 250.0).exp()).collect();
        for shape in [normal, uniform, skewed] {
            assert_eq!(bimodal_slices(&[shape], 0.0), None);
        }
    }

    #[test]
    fn a_few_wild_slices_are_not_a_level() {
        let mut slices = noise_around_1000(2, 50, 0.02);
        slices.extend([5000.0; 5]);
        assert_eq!(bimodal_slices(&[slices], 0.0), None);
    }

    /// Clients that each end one or two streams in a slice of 100 ms: when each of them
    /// changes the rate by 10 a second, 30 and 50 are not two levels.
    #[test]
    fn the_grain_of_slices_is_not_two_levels() {
        let slices: Vec<f64> = (0..40).map(|at| f64::from(30 + 20 * (at % 2))).collect();
        assert_eq!(bimodal_slices(std::slice::from_ref(&slices), 10.0), None);
        assert!(bimodal_slices(&[slices], 5.0).is_some(), "with finer grain they are");
    }

    #[test]
    fn levels_that_lie_close_together_do_not_matter() {
        let slices =
            |high| vec![(0..40).map(|at| if at % 2 == 0 { 1000.0 } else { high }).collect()];
        assert_eq!(bimodal_slices(&slices(1150.0), 1.0), None);
        assert!(bimodal_slices(&slices(1350.0), 1.0).is_some());
    }

    #[test]
    fn equal_slices_are_one_level() {
        assert_eq!(bimodal_slices(&[vec![0.0; 30]], 10.0), None);
        assert_eq!(bimodal_slices(&[vec![1000.0; 30]], 10.0), None);
    }

    proptest! {
        #[test]
        fn the_order_of_runs_does_not_matter(
            (runs, shuffled) in prop::collection::vec(1.0..1e6, 0..12)
                .prop_flat_map(|runs| (Just(runs.clone()), Just(runs).prop_shuffle())),
        ) {
            prop_assert_eq!(bimodal_runs(&runs), bimodal_runs(&shuffled));
        }

        #[test]
        fn a_cut_explains_a_part_of_the_variance(
            values in prop::collection::vec(0.0..1e6, 2..60),
        ) {
            let (at, explained) = best_cut(&sorted(values.iter().copied()));
            prop_assert!(1 <= at && at < values.len());
            prop_assert!((0.0..=1.0 + 1e-9).contains(&explained));
        }
    }
}
