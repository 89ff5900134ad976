//! Scales: from values to coordinates, and where the ticks stand.
//!
//! Documents hold whatever figures a file can hold. A scale answers every value with
//! a coordinate between its ends; what is no number, or lies outside, is drawn at the
//! nearer end.

/// A range of values laid onto a range of coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    kind: Kind,
    /// `from < to`, both finite; on a logarithmic scale positive.
    from: f64,
    to: f64,
    /// The coordinates of `from` and `to`.
    start: f64,
    end: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    Logarithmic,
}

impl Scale {
    /// From zero to a round number at or above all values.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let most = finite(values).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let step = round_step(most / f64::from(TICKS_WANTED));
        Self::new(Kind::Linear, 0.0, (most / step).ceil() * step)
    }

    /// All positive values, on a logarithmic scale of at least a factor of 2.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>) -> Self {
        let (from, to) = bounds(finite(values).filter(|value| *value > 1.0 / BEYOND));
        let (from, to) = if from <= to { (from, to) } else { (1.0, 1.0) };
        // Widened from the middle, so that a single value stands in it.
        let widen = (2.0 / (to / from)).max(1.0).sqrt();
        Self::new(Kind::Logarithmic, from / widen, to * widen)
    }

    /// Ratios, with 1 among them. Twice and half are equally far from 1.
    pub(super) fn ratios(values: impl Iterator<Item = f64>) -> Self {
        let sensible = finite(values).filter(|v| (1.0 / MOST_RATIO..=MOST_RATIO).contains(v));
        let (from, to) = bounds(sensible.chain([1.0 / LEAST_RATIO, LEAST_RATIO]));
        Self::new(Kind::Logarithmic, from, to)
    }

    /// Percentiles from 0 to this one, by `1 / (1 - p)`: each further nine takes as
    /// much room as the one before it. Give [`odds`] of a percentile to [`Self::at`].
    pub(super) fn percentiles(highest: f64) -> Self {
        Self::new(Kind::Logarithmic, 1.0, odds(highest).max(10.0))
    }

    fn new(kind: Kind, from: f64, to: f64) -> Self {
        let to = if to > from && to.is_finite() { to } else { from + 1.0 };
        Self { kind, from, to, start: 0.0, end: 1.0 }
    }

    /// Lays the scale onto coordinates; `start` may be above `end`, as heights are.
    pub(super) fn onto(self, start: f64, end: f64) -> Self {
        Self { start, end, ..self }
    }

    /// The coordinate of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = if value.is_nan() { self.from } else { value.clamp(self.from, self.to) };
        let part = match self.kind {
            Kind::Linear => (value - self.from) / (self.to - self.from),
            Kind::Logarithmic => (value / self.from).ln() / (self.to / self.from).ln(),
        };
        self.start + part * (self.end - self.start)
    }

    /// Round values within the scale, rising; about [`TICKS_WANTED`] of them.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => linear_ticks(self.from, self.to),
            Kind::Logarithmic => logarithmic_ticks(self.from, self.to),
        }
    }

    /// [`Self::ticks`] for ratios: those that are round as changes in percent.
    pub(super) fn ratio_ticks(&self) -> Vec<f64> {
        if self.to / self.from > NEARLY_LINEAR {
            return self.ticks();
        }
        let percents = linear_ticks((self.from - 1.0) * 100.0, (self.to - 1.0) * 100.0);
        percents.into_iter().map(|percent| 1.0 + percent / 100.0).collect()
    }
}

/// `1 / (1 - p)` of a percentile: 90 becomes 10, 99.9 becomes 1000. The hundredth has
/// none; it counts as the one at [`HIGHEST_ODDS`].
pub(super) fn odds(percentile: f64) -> f64 {
    let rest = 1.0 - percentile / 100.0;
    if rest.is_nan() { 1.0 } else { (1.0 / rest.max(1.0 / HIGHEST_ODDS)).max(1.0) }
}

fn linear_ticks(from: f64, to: f64) -> Vec<f64> {
    let step = round_step((to - from) / f64::from(TICKS_WANTED));
    let (first, last) = ((from / step - SLACK).ceil(), (to / step + SLACK).floor());
    let count = (last - first) as i32;
    (0..=count).map(|i| (first + f64::from(i)) * step).collect()
}

/// Powers of ten, with their 2 and 5 between them if there is room; some of them
/// only if they are too many.
fn logarithmic_ticks(from: f64, to: f64) -> Vec<f64> {
    let (low, high) = (from.log10().floor(), to.log10().ceil());
    let within = |value: &f64| *value >= from * (1.0 - SLACK) && *value <= to * (1.0 + SLACK);
    let powers = |stride: usize, within_decade: &[f64]| -> Vec<f64> {
        let exponents = (low as i32..=high as i32).step_by(stride);
        let values = exponents.flat_map(|exponent| {
            within_decade.iter().map(move |digit| digit * 10_f64.powi(exponent))
        });
        values.filter(within).collect()
    };
    let fine = powers(1, &[1.0, 2.0, 5.0]);
    if fine.len() <= MOST_TICKS {
        return if fine.len() >= 2 { fine } else { linear_ticks(from, to) };
    }
    let strides = 1..;
    strides
        .map(|stride| powers(stride, &[1.0]))
        .find(|ticks| ticks.len() <= MOST_TICKS)
        .unwrap_or_default()
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least this.
fn round_step(least: f64) -> f64 {
    let least = if least > f64::MIN_POSITIVE && least.is_finite() { least } else { 1.0 };
    let power = 10_f64.powf(least.log10().floor());
    let digits = [1.0, 2.0, 5.0, 10.0];
    let digit = digits.into_iter().find(|digit| digit * power >= least * (1.0 - SLACK));
    digit.unwrap_or(10.0) * power
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

fn finite(values: impl Iterator<Item = f64>) -> impl Iterator<Item = f64> {
    values.filter(|value| value.is_finite() && value.abs() < BEYOND)
}

/// From here on a product or a quotient of figures could leave the numbers.
const BEYOND: f64 = 1e100;

const TICKS_WANTED: u8 = 5;

/// More would run into each other on the smallest chart.
const MOST_TICKS: usize = 8;

/// Rounding of the last digits must not lose the tick at an end.
const SLACK: f64 = 1e-9;

/// A scale of ratios reaches at least 20 % up and as far down, so that noise does not
/// look like an effect.
const LEAST_RATIO: f64 = 1.2;

/// A ratio beyond is an accident and must not flatten all others.
const MOST_RATIO: f64 = 1e4;

/// Up to this factor from end to end, even steps in percent look even.
const NEARLY_LINEAR: f64 = 2.5;

/// The hundredth percentile of a million transactions.
const HIGHEST_ODDS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    #[test]
    fn linear_scales_begin_at_zero_and_end_round() {
        let scale = Scale::from_zero([370.0, 12.0].into_iter()).onto(100.0, 0.0);
        assert_eq!(scale.ticks(), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert!(near(scale.at(0.0), 100.0) && near(scale.at(400.0), 0.0));
        assert!(near(scale.at(100.0), 75.0));
    }

    #[test]
    fn logarithmic_scales_give_each_factor_the_same_room() {
        let scale = Scale::logarithmic([1.0, 10_000.0].into_iter()).onto(0.0, 4.0);
        assert!(near(scale.at(10.0), 1.0) && near(scale.at(1000.0), 3.0));
        assert_eq!(scale.ticks(), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        let narrow = Scale::logarithmic([8.0, 90.0].into_iter());
        assert_eq!(narrow.ticks(), [10.0, 20.0, 50.0]);
    }

    #[test]
    fn a_wide_scale_leaves_decades_out() {
        for ends in [[1e-9, 1e9], [1e-99, 1e99], [4e-255, 2e84]] {
            let scale = Scale::logarithmic(ends.into_iter());
            assert!(scale.ticks().len() <= MOST_TICKS, "{scale:?}");
            assert!(scale.at(f64::MAX) == 1.0 && scale.at(0.0) == 0.0, "{scale:?}");
        }
        assert!(Scale::logarithmic([1e-9, 1e9].into_iter()).ticks().len() >= 4);
    }

    #[test]
    fn ratios_lie_around_one() {
        let scale = Scale::ratios([8.0, 0.125].into_iter()).onto(200.0, 0.0);
        assert!(near(scale.at(1.0), 100.0));
        assert!(near(scale.at(2.0) - 100.0, 100.0 - scale.at(0.5)));
        assert_eq!(scale.ratio_ticks(), [0.2, 0.5, 1.0, 2.0, 5.0]);
        let small = Scale::ratios([1.01].into_iter());
        let percents: Vec<f64> =
            small.ratio_ticks().iter().map(|r| ((r - 1.0) * 100.0).round()).collect();
        assert_eq!(percents, [-10.0, 0.0, 10.0, 20.0]);
    }

    #[test]
    fn each_nine_of_a_percentile_takes_the_same_room() {
        let scale = Scale::percentiles(99.99).onto(0.0, 4.0);
        for (percentile, expected) in [(0.0, 0.0), (90.0, 1.0), (99.0, 2.0), (99.9, 3.0)] {
            assert!((scale.at(odds(percentile)) - expected).abs() < 1e-6, "{percentile}");
        }
        assert!(near(odds(100.0), HIGHEST_ODDS));
        assert!(near(odds(-5.0), 1.0) && near(odds(f64::NAN), 1.0));
    }

    proptest! {
        #[test]
        fn every_value_has_a_place_and_ticks_are_few(
            values in prop::collection::vec(any::<f64>(), 0..5), probe in any::<f64>(),
        ) {
            let ratios = Scale::ratios(values.iter().copied());
            for (scale, ticks) in [
                (Scale::from_zero(values.iter().copied()), Scale::ticks as fn(&Scale) -> Vec<f64>),
                (Scale::logarithmic(values.iter().copied()), Scale::ticks),
                (Scale::percentiles(probe), Scale::ticks),
                (ratios, Scale::ticks),
                (ratios, Scale::ratio_ticks),
            ] {
                let place = scale.at(probe);
                prop_assert!((-1e-9..=1.0 + 1e-9).contains(&place), "{scale:?} at {place}");
                let ticks = ticks(&scale);
                prop_assert!(ticks.len() <= 16, "{scale:?}: {ticks:?}");
                prop_assert!(ticks.iter().all(|tick| tick.is_finite()));
                prop_assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]));
            }
        }
    }
}
