//! Order statistics: the median of some values, the least and the most of them.

use statrs::statistics::{Data, OrderStatistics};

use crate::result::Spread;

/// The median of some values; of an even number of them the mean of the middle two.
///
/// # Panics
/// There are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    assert!(!values.is_empty(), "the median of no values");
    Data::new(values.to_vec()).median()
}

/// Median, least and most of some values.
///
/// # Panics
/// There are no values.
#[must_use]
pub fn spread(values: &[f64]) -> Spread {
    Spread {
        median: median(values),
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    }
}
