//! How fast lines may come: what users and peers do makes the daemons log, and they do it as often as they
//! like. Each place in the code that logs has so many lines at once and so many a second after that; what
//! goes beyond is counted, and the next line that is written says how many there were.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines of one place at once: more than a busy host begins connections in a moment.
const BURST: u32 = 1_000;
/// Between two lines of one place after that. About a megabyte of log in an hour.
const INTERVAL: Duration = Duration::from_millis(200);

/// A place in the code.
pub(super) type Place = (&'static str, u32);

/// What each place has left.
#[derive(Debug, Default)]
pub(super) struct Pace {
    places: HashMap<Place, Budget>,
}

#[derive(Debug)]
struct Budget {
    lines: u32,
    /// Up to when lines were added.
    filled: Instant,
    left_out: u64,
}

impl Pace {
    /// Whether a place may write a line now, and then how many it could not write before.
    pub(super) fn admit(&mut self, place: Place, now: Instant) -> Option<u64> {
        let full = || Budget { lines: BURST, filled: now, left_out: 0 };
        let budget = self.places.entry(place).or_insert_with(full);
        budget.fill(now);
        match budget.lines.checked_sub(1) {
            Some(lines) => {
                budget.lines = lines;
                Some(std::mem::take(&mut budget.left_out))
            }
            None => {
                budget.left_out += 1;
                None
            }
        }
    }
}

impl Budget {
    fn fill(&mut self, now: Instant) {
        let intervals = now.duration_since(self.filled).as_nanos() / INTERVAL.as_nanos();
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        self.filled += INTERVAL.saturating_mul(intervals);
        self.lines = self.lines.saturating_add(intervals).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Place = ("here.rs", 1);

    #[test]
    fn a_flood_is_counted_and_told_of_once() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let flood = |pace: &mut Pace, at| {
            (0..10 * BURST).filter(|_| pace.admit(HERE, at).is_some()).count()
        };
        assert_eq!(flood(&mut pace, start), BURST as usize);
        let later = start + INTERVAL;
        assert_eq!(pace.admit(HERE, later), Some(9 * u64::from(BURST)));
        assert_eq!(pace.admit(HERE, later), None);
        assert_eq!(pace.admit(("elsewhere.rs", 1), later), Some(0), "others are not slowed down");
        assert_eq!(pace.admit(HERE, later + INTERVAL), Some(1));
    }

    #[test]
    fn in_the_long_run_lines_come_at_intervals() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let hour = Duration::from_secs(3600);
        let steps = 100_000;
        let written =
            (0..steps).filter(|step| pace.admit(HERE, start + hour * *step / steps).is_some());
        let most = BURST as usize + (hour.as_millis() / INTERVAL.as_millis()) as usize;
        assert!((most - 2..=most).contains(&written.count()));
    }
}
