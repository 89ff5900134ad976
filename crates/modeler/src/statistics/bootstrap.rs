//! The median ratio of pairs, with an interval that assumes no distribution.
//!
//! The bootstrap takes the measured ratios for the whole world: it draws as many of
//! them as there are, with replacement, takes the median, and does so 10 000 times.
//! The middle 95 % of these medians are the interval (percentile bootstrap).
//!
//! With few pairs there is little to draw from, and the interval says less than its
//! name:
//!
//! | Pairs | The interval | Covers the true median in |
//! |---|---|---|
//! | 1 | is the ratio itself: no interval at all | 0 % |
//! | 2, 3, 4 | goes from the least ratio to the greatest | 50 %, 75 %, 88 % |
//! | 5 | goes from the least ratio to the greatest | 94 % |
//! | 6 | ends between the two outermost of either side | 93 % |
//! | 7 | goes from the second ratio to the last but one | 88 % |
//! | 10 and more | leaves out the outer ones | 92 to 94 % |
//!
//! Up to 5 this is exact, for any distribution: all n ratios lie on one side of the
//! median with probability 2 / 2ⁿ, and a drawn median is the least ratio in more than
//! 2.5 % of all draws. The rest is by simulation with normal noise. So five pairs are
//! the least that deserve their "95 %", and an interval that ends short of 1 with five
//! pairs means that all five agreed.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::order::median;

/// A ratio that was measured in pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The median of the pairs' ratios.
    pub median: f64,
    /// Its bounds at 95 %: `ci95[0] <= median <= ci95[1]`.
    pub ci95: [f64; 2],
}

/// The ratio a / b of pairs `(a, b)` of positive figures; the module's text says how
/// far its interval can be trusted when there are few.
///
/// The result depends on nothing but the pairs, not even on their order: the seed is
/// fixed, and the ratios are sorted before any is drawn.
///
/// # Panics
/// There are no pairs.
#[must_use]
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Ratio {
    let mut ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    ratios.sort_by(f64::total_cmp);
    Ratio { median: median(&ratios), ci95: interval_of_median(&ratios) }
}

fn interval_of_median(ratios: &[f64]) -> [f64; 2] {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut draw = |_| {
        let drawn = ratios.choose_iter(&mut rng).into_iter().flatten();
        median(&drawn.take(ratios.len()).copied().collect::<Vec<_>>())
    };
    let mut medians: Vec<f64> = (0..RESAMPLES).map(&mut draw).collect();
    medians.sort_by(f64::total_cmp);
    [medians[TAIL], medians[RESAMPLES - 1 - TAIL]]
}

/// Medians that are drawn: enough that another seed would move the bounds by less
/// than is printed.
const RESAMPLES: usize = 10_000;

/// Medians beyond the interval at either end: 2.5 %.
const TAIL: usize = RESAMPLES / 40;

/// Any number would do, as long as it is always the same.
const SEED: u64 = 7609;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::statistics::tests::noise_around_1000;

    fn against_one(ratios: &[f64]) -> Ratio {
        paired_ratio(&ratios.iter().map(|&ratio| (ratio, 1.0)).collect::<Vec<_>>())
    }

    #[test]
    fn with_one_pair_the_interval_is_the_ratio() {
        assert_eq!(paired_ratio(&[(6.0, 2.0)]), Ratio { median: 3.0, ci95: [3.0, 3.0] });
    }

    #[test]
    fn up_to_five_pairs_the_interval_is_the_least_and_the_greatest_ratio() {
        let ratios = [2.0, 4.0, 1.0, 3.0, 5.0];
        assert_eq!(against_one(&ratios[..2]).ci95, [2.0, 4.0]);
        assert_eq!(against_one(&ratios[..3]).ci95, [1.0, 4.0]);
        assert_eq!(against_one(&ratios[..4]).ci95, [1.0, 4.0]);
        assert_eq!(against_one(&ratios), Ratio { median: 3.0, ci95: [1.0, 5.0] });
    }

    #[test]
    fn with_many_pairs_a_wild_one_does_not_widen_the_interval() {
        let mut ratios = noise_around_1000(1, 30, 0.01);
        ratios.push(1e6);
        let Ratio { median, ci95 } = against_one(&ratios);
        assert!(ci95[0] > 980.0 && ci95[1] < 1020.0, "{median} in {ci95:?}");
    }

    /// The table above, where it is exact: 5 pairs cover in 1 - 2/2⁵ of all cases. Of
    /// 400 seeds 375 are expected with a deviation of 5.
    #[test]
    fn five_pairs_cover_the_true_median_as_often_as_promised() {
        let covers = |seed| {
            let [low, high] = against_one(&noise_around_1000(seed, 5, 0.05)).ci95;
            low <= 1000.0 && 1000.0 <= high
        };
        let covered = (0..400).filter(|&seed| covers(seed)).count();
        assert!((355..=395).contains(&covered), "{covered} of 400");
    }

    fn pairs() -> impl Strategy<Value = Vec<(f64, f64)>> {
        prop::collection::vec((0.01..1e6, 0.01..1e6), 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_interval_holds_the_median_and_lies_within_the_ratios(pairs in pairs()) {
            let Ratio { median, ci95: [low, high] } = paired_ratio(&pairs);
            let ratios = || pairs.iter().map(|(a, b)| a / b);
            prop_assert!(ratios().fold(f64::INFINITY, f64::min) <= low);
            prop_assert!(low <= median && median <= high);
            prop_assert!(high <= ratios().fold(0.0, f64::max));
        }

        #[test]
        fn the_order_of_the_pairs_does_not_matter(
            (pairs, shuffled) in pairs().prop_flat_map(|pairs| {
                (Just(pairs.clone()), Just(pairs).prop_shuffle())
            }),
        ) {
            prop_assert_eq!(paired_ratio(&pairs), paired_ratio(&shuffled));
        }

        /// Doubling is exact in binary, so the bounds double exactly.
        #[test]
        fn the_unit_of_the_figures_does_not_matter(pairs in pairs()) {
            let doubled: Vec<_> = pairs.iter().map(|(a, b)| (a * 2.0, *b)).collect();
            let (once, twice) = (paired_ratio(&pairs), paired_ratio(&doubled));
            prop_assert_eq!(twice.median, once.median * 2.0);
            prop_assert_eq!(twice.ci95, once.ci95.map(|bound| bound * 2.0));
        }
    }
}
