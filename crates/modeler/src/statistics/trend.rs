//! Runs that become faster or slower.
//!
//! The Mann-Kendall test counts, over all pairs of runs, whether the later is the
//! faster. Under no trend every order of the runs is equally likely, so the
//! distribution of that count is known exactly, whatever the runs are distributed
//! like; no approximation is needed for few runs, and none is taken for many.

use crate::result::{Remark, RemarkKind};

use super::order::median;
use super::rate::in_words;

/// Whether runs drift, by their transactions per second in the order in which they
/// were made.
///
/// * An order as extreme as theirs has a probability of at most 5 % (two-sided). Four
///   runs cannot show that; of five only those that rise or fall throughout do
///   (probability 2 / 5! = 1.7 %).
/// * From the first to the last run the trend (Theil-Sen: the median slope over all
///   pairs) makes at least 5 % of the median.
#[must_use]
pub fn drifting(tps: &[f64]) -> Option<Remark> {
    if tps.len() < 2 {
        return None;
    }
    let change = median_slope(tps) * (tps.len() - 1) as f64 / median(tps);
    let chance = probability(tps.len(), rises_less_falls(tps));
    (chance <= CHANCE_MAX && change.abs() >= CHANGE_MIN).then(|| Remark {
        kind: RemarkKind::Drifting,
        text: format!(
            "from the first of {} runs to the last the rate {} by {:.0} % (from {} to {} \
             transactions per second); by chance alone with a probability of {:.1} %",
            tps.len(),
            if change > 0.0 { "rises" } else { "falls" },
            100.0 * change.abs(),
            in_words(tps[0]),
            in_words(tps[tps.len() - 1]),
            100.0 * chance,
        ),
    })
}

/// Kendall's S: pairs in which the later is greater, less those in which it is less.
fn rises_less_falls(values: &[f64]) -> i64 {
    pairs(values)
        .map(|(earlier, later, _)| i64::from(later > earlier) - i64::from(later < earlier))
        .sum()
}

fn median_slope(values: &[f64]) -> f64 {
    let slopes: Vec<f64> =
        pairs(values).map(|(earlier, later, distance)| (later - earlier) / distance).collect();
    median(&slopes)
}

/// All pairs of an earlier and a later value, with their distance.
fn pairs(values: &[f64]) -> impl Iterator<Item = (f64, f64, f64)> {
    values.iter().enumerate().flat_map(move |(at, &earlier)| {
        let later = values[at + 1..].iter().zip(1u32..);
        later.map(move |(&later, distance)| (earlier, later, f64::from(distance)))
    })
}

/// The probability that S of `len` values in random order is as far from 0 as `s`.
///
/// S is the number of pairs less twice the number of inversions. The probabilities of
/// 0, 1, 2 … inversions grow value by value: the n-th is put at one of n places, each
/// equally likely, and adds 0 to n - 1 of them. Ties bring S nearer to 0, so with them
/// the test only becomes more careful.
fn probability(len: usize, s: i64) -> f64 {
    let mut inversions = vec![1.0];
    for places in 2..=len {
        let mut grown = vec![0.0; inversions.len() + places - 1];
        for (at, chance) in inversions.iter().enumerate() {
            for added in 0..places {
                grown[at + added] += chance / places as f64;
            }
        }
        inversions = grown;
    }
    let pairs = inversions.len() as i64 - 1;
    let as_far = |count: i64| (pairs - 2 * count).abs() >= s.abs();
    inversions.iter().zip(0..).filter(|&(_, count)| as_far(count)).map(|(chance, _)| chance).sum()
}

const CHANCE_MAX: f64 = 0.05;
const CHANGE_MIN: f64 = 0.05;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::statistics::tests::noise_around_1000;

    #[test]
    fn runs_that_fall_throughout_drift() {
        let remark = drifting(&[1000.0, 980.0, 950.0, 930.0, 900.0]).unwrap();
        assert_eq!(remark.kind, RemarkKind::Drifting);
        assert_eq!(
            remark.text,
            "from the first of 5 runs to the last the rate falls by 11 % (from 1000 to 900 \
             transactions per second); by chance alone with a probability of 1.7 %"
        );
        assert!(drifting(&[900.0, 930.0, 950.0, 980.0, 1000.0]).unwrap().text.contains("rises"));
    }

    #[test]
    fn a_trend_too_small_to_matter_is_none() {
        assert_eq!(drifting(&[1000.0, 1001.0, 1002.0, 1003.0, 1004.0]), None);
    }

    #[test]
    fn four_runs_cannot_show_a_trend() {
        assert_eq!(drifting(&[1000.0, 1200.0, 1400.0, 1600.0]), None);
        assert_eq!(drifting(&[1000.0]), None);
        assert_eq!(drifting(&[]), None);
    }

    #[test]
    fn a_trend_under_noise_is_found_in_more_runs() {
        let runs: Vec<f64> = noise_around_1000(1, 12, 0.03)
            .iter()
            .zip(0..)
            .map(|(run, at)| run * (1.0 + 0.03 * f64::from(at)))
            .collect();
        assert!(drifting(&runs).is_some());
    }

    /// Of the n! orders one has no inversion and n - 1 have one; as many have all or all
    /// but one.
    #[test]
    fn the_probabilities_are_exact() {
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12);
        near(probability(5, 10), 2.0 / 120.0);
        near(probability(5, -8), 2.0 * 5.0 / 120.0);
        near(probability(4, 6), 2.0 / 24.0);
        near(probability(9, 0), 1.0);
    }

    /// 5 of 100 are allowed; the relevance only makes it fewer. Of 1000 seeds 50 are
    /// the limit's expectation, with a deviation of 7.
    #[test]
    fn noise_is_seldom_taken_for_a_trend() {
        let found =
            (0..1000).filter(|&seed| drifting(&noise_around_1000(seed, 8, 0.2)).is_some()).count();
        assert!(found <= 75, "{found} of 1000");
    }

    proptest! {
        #[test]
        fn backwards_a_trend_has_the_other_sign(
            mut runs in prop::collection::vec(1.0..1e6, 2..12),
        ) {
            let forwards = rises_less_falls(&runs);
            runs.reverse();
            prop_assert_eq!(rises_less_falls(&runs), -forwards);
        }
    }
}
