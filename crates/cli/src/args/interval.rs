//! How long there is between two looks: a tenth of a second to a day.

use std::ops::RangeInclusive;
use std::time::Duration;

const SECONDS: RangeInclusive<f64> = 0.1..=86_400.0;

/// A time with a unit, such as `60s`.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let time = super::bench::parse_time(text)?;
    let is_possible = SECONDS.contains(&time.as_secs_f64());
    is_possible.then_some(time).ok_or_else(|| "use a time from 100ms to 24h".into())
}

/// A number of seconds.
pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| SECONDS.contains(seconds));
    seconds.ok_or_else(|| "use a number of seconds from 0.1 to 86400".into())
}
