//! Two series of runs without pairs: how far apart, and whether near enough.
//!
//! Figures of performance are compared as ratios, and a ratio is a difference of
//! logarithms. On these works Welch's t-test, which does not ask that both series
//! scatter alike.
//!
//! A test for a difference cannot show that there is none: with noise enough it finds
//! nothing. The equivalence test turns the question round (TOST, two one-sided tests;
//! Schuirmann 1987): with a margin of 5 %, the ratio is shown to be below 1.05 *and*
//! shown to be above 1 / 1.05, each at the level of 5 %. Noise then leads to "not
//! shown", never to "the same". The bounds are each other's reciprocals, so it does
//! not matter which series is the first.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The difference of the means of two series' logarithms: `ln(b / a)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogDifference {
    estimate: f64,
    standard_error: f64,
    /// Degrees of freedom (Welch and Satterthwaite); of no meaning when the standard
    /// error is 0.
    freedom: f64,
}

impl LogDifference {
    /// From `a` to `b`. `None` if either has fewer than two values, because then
    /// nothing is known of its scatter, or a value that is not positive.
    #[must_use]
    pub fn between(a: &[f64], b: &[f64]) -> Option<Self> {
        let (mean_a, error_a) = mean_and_squared_error(a)?;
        let (mean_b, error_b) = mean_and_squared_error(b)?;
        let squared = error_a + error_b;
        let spent = error_a.powi(2) / free(a) + error_b.powi(2) / free(b);
        Some(Self {
            estimate: mean_b - mean_a,
            standard_error: squared.sqrt(),
            freedom: squared.powi(2) / spent,
        })
    }

    /// The ratio b / a of the geometric means.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.estimate.exp()
    }

    /// The bounds of [`Self::ratio`] at 95 %.
    #[must_use]
    pub fn ci95(&self) -> [f64; 2] {
        let reach = self.reach(0.975);
        [(self.estimate - reach).exp(), (self.estimate + reach).exp()]
    }

    /// Both one-sided tests at 5 % say that the ratio is within
    /// `1 / (1 + margin) ..= 1 + margin`. `margin` is more than zero: 0.05 is 5 %.
    #[must_use]
    pub fn equivalent_within(&self, margin: f64) -> bool {
        self.estimate.abs() + self.reach(0.95) <= margin.ln_1p()
    }

    /// How far the true difference may be from the estimate on one side, when it is
    /// to be nearer with this probability.
    fn reach(&self, probability: f64) -> f64 {
        if self.standard_error == 0.0 {
            return 0.0;
        }
        StudentsT::new(0.0, 1.0, self.freedom)
            .map_or(f64::INFINITY, |student| student.inverse_cdf(probability) * self.standard_error)
    }
}

/// Mean of the logarithms, and the square of its standard error.
fn mean_and_squared_error(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 || !values.iter().all(|&value| value > 0.0 && value.is_finite()) {
        return None;
    }
    let len = values.len() as f64;
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / len;
    let squares: f64 = values.iter().map(|value| (value.ln() - mean).powi(2)).sum();
    Some((mean, squares / free(values) / len))
}

fn free(values: &[f64]) -> f64 {
    values.len() as f64 - 1.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::statistics::tests::noise_around_1000;

    fn times(values: &[f64], factor: f64) -> Vec<f64> {
        values.iter().map(|value| value * factor).collect()
    }

    /// Worked by hand: ln 1, ln e² against ln e, ln e³: difference 1; each variance 2,
    /// squared errors 1 and 1, hence error √2 and freedom 2² / (1 + 1) = 2. Student's
    /// table has 4.3027 for 2 degrees at 97.5 %.
    #[test]
    fn welch_s_numbers_are_those_of_the_textbook() {
        let e = 1f64.exp();
        let difference = LogDifference::between(&[1.0, e * e], &[e, e.powi(3)]).unwrap();
        assert!((difference.estimate - 1.0).abs() < 1e-12);
        assert!((difference.standard_error - 2f64.sqrt()).abs() < 1e-12);
        assert!((difference.freedom - 2.0).abs() < 1e-12);
        let [low, high] = difference.ci95();
        assert!((low.ln() - (1.0 - 4.302_653 * 2f64.sqrt())).abs() < 1e-4);
        assert!((high.ln() - (1.0 + 4.302_653 * 2f64.sqrt())).abs() < 1e-4);
    }

    #[test]
    fn series_of_one_kind_are_equivalent_when_the_margin_allows_for_their_scatter() {
        let (a, b) = (noise_around_1000(1, 10, 0.01), noise_around_1000(2, 10, 0.01));
        let difference = LogDifference::between(&a, &b).unwrap();
        assert!(difference.equivalent_within(0.05));
        assert!(!difference.equivalent_within(0.001));
    }

    #[test]
    fn noise_is_not_taken_for_equivalence() {
        let (a, b) = (noise_around_1000(3, 5, 0.25), noise_around_1000(4, 5, 0.25));
        let difference = LogDifference::between(&a, &b).unwrap();
        let [low, high] = difference.ci95();
        assert!(low < 1.0 && 1.0 < high, "no difference is found");
        assert!(!difference.equivalent_within(0.05), "nor is equivalence");
    }

    #[test]
    fn a_difference_beyond_the_margin_is_not_equivalent_however_sure() {
        let a = noise_around_1000(5, 20, 0.001);
        let difference = LogDifference::between(&a, &times(&a, 1.06)).unwrap();
        assert!(!difference.equivalent_within(0.05));
        assert!(difference.ci95()[0] > 1.05);
    }

    #[test]
    fn without_scatter_the_interval_is_a_point() {
        let difference = LogDifference::between(&[2.0, 2.0], &[3.0, 3.0]).unwrap();
        assert_eq!(difference.ci95(), [difference.ratio(); 2]);
        assert!(!difference.equivalent_within(0.49) && difference.equivalent_within(0.51));
    }

    #[test]
    fn single_runs_and_figures_without_logarithm_cannot_be_compared() {
        assert_eq!(LogDifference::between(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(LogDifference::between(&[1.0, 2.0], &[]), None);
        assert_eq!(LogDifference::between(&[1.0, 0.0], &[1.0, 2.0]), None);
        assert_eq!(LogDifference::between(&[1.0, 2.0], &[f64::NAN, 2.0]), None);
    }

    /// At the very edge of the margin there is nothing to be shown: at most 5 % of the
    /// series may pass, 20 of 400.
    #[test]
    fn the_equivalence_test_errs_at_most_as_often_as_its_level_says() {
        let passes = |seed: u64| {
            let a = noise_around_1000(2 * seed, 8, 0.02);
            let b = times(&noise_around_1000(2 * seed + 1, 8, 0.02), 1.05);
            LogDifference::between(&a, &b).unwrap().equivalent_within(0.05)
        };
        let passed = (0..400).filter(|&seed| passes(seed)).count();
        assert!(passed <= 30, "{passed} of 400");
    }

    fn series() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(0.01..1e6, 2..12)
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_ratio(a in series(), b in series()) {
            let difference = LogDifference::between(&a, &b).unwrap();
            let [low, high] = difference.ci95();
            prop_assert!(low <= difference.ratio() && difference.ratio() <= high);
        }

        #[test]
        fn it_does_not_matter_which_series_is_the_first(
            a in series(), b in series(), margin in 0.01..2.0,
        ) {
            let there = LogDifference::between(&a, &b).unwrap();
            let back = LogDifference::between(&b, &a).unwrap();
            prop_assert!((there.ratio() * back.ratio() - 1.0).abs() < 1e-9);
            prop_assert_eq!(there.equivalent_within(margin), back.equivalent_within(margin));
        }
    }
}
