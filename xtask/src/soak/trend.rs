//! Does a series of figures grow, or does it only move about?
//!
//! Two questions, and growth is what both say yes to. *Is there a trend?* Mann and Kendall count the pairs
//! of which the later is the larger; of a series without a trend as many are as are not. *How much is it?*
//! Theil and Sen take the median of the slopes of all pairs, which a few looks at a bad moment do not move.
//! So a step in a figure that comes and goes is none, nor are a few kilobytes, however steadily they come.
//!
//! *Source*: H. B. Mann, "Nonparametric Tests Against Trend", Econometrica 13 (1945); P. K. Sen, "Estimates
//! of the Regression Coefficient Based on Kendall's Tau", JASA 63 (1968).

use std::fmt;

/// What became of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend {
    median: f64,
    /// By the median slope, from the first look to the last.
    growth: f64,
    /// Mann and Kendall's, in standard deviations of a series without a trend.
    z: f64,
}

/// Beyond this, one series in a thousand has a trend that has none.
const SIGNIFICANT: f64 = 3.1;

/// A part of the figure that may be more at the end than at the beginning.
const PART: f64 = 0.05;

impl Trend {
    pub(super) fn of(series: &[f64]) -> Self {
        let n = series.len() as f64;
        let mut slopes = Vec::new();
        let mut sum = 0.0;
        for (i, before) in series.iter().enumerate() {
            for (j, after) in series.iter().enumerate().skip(i + 1) {
                slopes.push((after - before) / (j - i) as f64);
                sum += (after - before).partial_cmp(&0.0).map_or(0.0, |it| f64::from(it as i8));
            }
        }
        let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
        Self {
            median: median(series.to_vec()),
            growth: median(slopes) * (n - 1.0).max(0.0),
            z: if deviation > 0.0 { sum / deviation } else { 0.0 },
        }
    }

    /// Whether it grows, by more than so much, which says nothing.
    pub(super) fn is_growth(&self, noise: f64) -> bool {
        self.z > SIGNIFICANT && self.growth > noise.max(self.median * PART)
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ({:+.0})", self.median, self.growth)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure of about 10 000 that moves about by up to 1000.
    fn series(add: impl Fn(usize) -> f64) -> Vec<f64> {
        let noise = |i: usize| ((i * 7919) % 1000) as f64;
        (0..150).map(|i| 10_000.0 + noise(i) + add(i)).collect()
    }

    fn grows(add: impl Fn(usize) -> f64) -> bool {
        Trend::of(&series(add)).is_growth(400.0)
    }

    #[test]
    fn what_moves_about_does_not_grow() {
        assert!(!grows(|_| 0.0));
        assert!(!grows(|i| if i > 140 { 5_000.0 } else { 0.0 }), "a moment");
        assert!(!grows(|i| (i % 10) as f64 * 200.0), "up, and down again");
        assert!(!grows(|i| -20.0 * i as f64), "less and less");
    }

    #[test]
    fn a_leak_is_seen_beneath_the_noise() {
        assert!(grows(|i| 10.0 * i as f64));
        assert!(grows(|i| (i / 30) as f64 * 400.0), "in steps");
    }

    #[test]
    fn little_is_nothing_however_steady() {
        assert!(!Trend::of(&(0..150).map(f64::from).collect::<Vec<_>>()).is_growth(400.0));
        assert!(!Trend::of(&[7.0; 150]).is_growth(0.0));
        assert!(!Trend::of(&[]).is_growth(0.0));
    }
}
