//! When programs are warm.
//!
//! A Java program compiles itself while it runs, and a database fills its caches: for some seconds the rate rises.
//! How many is a matter of the machine and of what else runs on it, so it is not a number of seconds that is waited
//! for but that the rate is flat: the mean of the last seconds and that of as many before differ by a small part.

use serde::Deserialize;

/// Until when a workload is not measured.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WarmUp {
    /// Seconds of each of the two means.
    window_s: usize,
    /// The part of the later mean by which the two may differ.
    within: f64,
    /// A rate that is not flat after so many seconds is measured as it is, and that is said.
    pub(super) at_most_s: usize,
}

impl WarmUp {
    /// Whether the rate is flat, by its value in each second so far.
    pub(super) fn is_flat(self, rates: &[f64]) -> bool {
        let Some(begin) = rates.len().checked_sub(2 * self.window_s) else {
            return false;
        };
        let (earlier, later) = rates[begin..].split_at(self.window_s);
        let (earlier, later) = (mean(earlier), mean(later));
        later > 0.0 && (later - earlier).abs() <= self.within * later
    }

    /// What is wrong with it.
    pub(super) fn mistake(self) -> Option<&'static str> {
        match self {
            Self { window_s: 0, .. } => Some("warm_up.window_s is at least 1"),
            Self { within, .. } if !(0.0..1.0).contains(&within) => {
                Some("warm_up.within is a part, such as 0.05")
            }
            Self { window_s, at_most_s, .. } if at_most_s < 2 * window_s => {
                Some("warm_up.at_most_s is at least two windows")
            }
            _ => None,
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: WarmUp = WarmUp { window_s: 2, within: 0.1, at_most_s: 10 };

    #[test]
    fn a_rate_is_flat_once_two_windows_are_alike() {
        assert!(!RULE.is_flat(&[]), "nothing is known");
        assert!(!RULE.is_flat(&[100.0, 100.0, 100.0]), "the earlier window is not whole");
        assert!(!RULE.is_flat(&[10.0, 40.0, 90.0, 100.0]), "it rises");
        assert!(!RULE.is_flat(&[100.0, 100.0, 60.0, 60.0]), "it falls");
        assert!(RULE.is_flat(&[10.0, 40.0, 95.0, 90.0, 100.0, 97.0]), "only the end counts");
    }

    #[test]
    fn a_second_that_stands_out_is_no_rise_if_the_means_are_alike() {
        assert!(RULE.is_flat(&[80.0, 120.0, 105.0, 95.0]));
    }

    #[test]
    fn what_does_nothing_is_not_warm() {
        assert!(!RULE.is_flat(&[0.0; 8]));
    }

    #[test]
    fn a_rule_that_cannot_be_met_is_a_mistake() {
        assert_eq!(RULE.mistake(), None);
        assert!(WarmUp { at_most_s: 3, ..RULE }.mistake().is_some());
        assert!(WarmUp { within: 5.0, ..RULE }.mistake().is_some());
        assert!(WarmUp { window_s: 0, ..RULE }.mistake().is_some());
    }
}
