//! Runs that are too far apart.

use crate::result::{Remark, RemarkKind};

use super::order::{median, spread};
use super::rate::in_words;

/// Whether runs scatter so much that a small difference cannot be seen, by their
/// transactions per second.
///
/// The measure is 1.4826 times the median distance from the median (MAD): for normal
/// noise that is the standard deviation, and one disturbed run among five does not
/// move it. The limit is 10 % of the median. A single run has no scatter to speak of.
#[must_use]
pub fn noisy(tps: &[f64]) -> Option<Remark> {
    if tps.len() < 2 {
        return None;
    }
    let spread = spread(tps);
    let distances: Vec<f64> = tps.iter().map(|run| (run - spread.median).abs()).collect();
    let deviation = MAD_TO_DEVIATION * median(&distances) / spread.median;
    (deviation >= DEVIATION_MAX).then(|| Remark {
        kind: RemarkKind::Noisy,
        text: format!(
            "the runs scatter by {:.0} % of their median ({} to {} transactions per second): a \
             smaller difference cannot be seen in {} runs",
            100.0 * deviation,
            in_words(spread.min),
            in_words(spread.max),
            tps.len(),
        ),
    })
}

/// The standard deviation of a normal distribution in units of its MAD.
const MAD_TO_DEVIATION: f64 = 1.4826;
const DEVIATION_MAX: f64 = 0.1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::statistics::tests::noise_around_1000;

    #[test]
    fn scattered_runs_are_noisy() {
        let remark = noisy(&[1000.0, 1300.0, 700.0, 1200.0, 850.0]).unwrap();
        assert_eq!(remark.kind, RemarkKind::Noisy);
        assert_eq!(
            remark.text,
            "the runs scatter by 30 % of their median (700 to 1300 transactions per second): a \
             smaller difference cannot be seen in 5 runs"
        );
    }

    #[test]
    fn one_disturbed_run_does_not_make_a_series_noisy() {
        assert_eq!(noisy(&[1000.0, 1010.0, 990.0, 1005.0, 300.0]), None);
    }

    #[test]
    fn one_run_has_no_scatter() {
        assert_eq!(noisy(&[1000.0]), None);
        assert_eq!(noisy(&[]), None);
    }

    #[test]
    fn the_measure_is_the_standard_deviation_of_normal_noise() {
        assert!(noisy(&noise_around_1000(1, 400, 0.08)).is_none());
        assert!(noisy(&noise_around_1000(1, 400, 0.12)).is_some());
    }

    proptest! {
        #[test]
        fn the_order_of_runs_does_not_matter(
            (runs, shuffled) in prop::collection::vec(1.0..1e6, 0..12)
                .prop_flat_map(|runs| (Just(runs.clone()), Just(runs).prop_shuffle())),
        ) {
            prop_assert_eq!(noisy(&runs), noisy(&shuffled));
        }
    }
}
