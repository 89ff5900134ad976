//! How long `tap` rests between two looks.

use std::time::Duration;

/// Rests so long for each moment of work that it takes a tenth of a CPU at most.
const RESTS_FOR_WORK: u32 = 9;
/// After a look that has found something. The timers of Linux add 50 µs to any rest.
const SHORTEST: Duration = Duration::from_micros(20);
/// After many that have not. At 1 GB/s a ring of 1 MiB takes so long to be overwritten.
const LONGEST: Duration = Duration::from_millis(1);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pace {
    rest: Duration,
}

impl Pace {
    /// How long to rest after a look that has taken so long.
    pub(super) fn rest_after(&mut self, work: Duration, has_found: bool) -> Duration {
        self.rest = match has_found {
            true => SHORTEST,
            false => (self.rest * 2).clamp(SHORTEST, LONGEST),
        };
        self.rest.max(work * RESTS_FOR_WORK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Duration = Duration::ZERO;

    #[test]
    fn it_looks_soon_again_where_something_is_and_seldom_where_nothing_is() {
        let mut pace = Pace::default();
        let idle: Vec<_> = (0..10).map(|_| pace.rest_after(NOTHING, false)).collect();
        assert_eq!((idle[0], idle[1], idle[9]), (SHORTEST, SHORTEST * 2, LONGEST));
        assert_eq!(pace.rest_after(NOTHING, true), SHORTEST);
    }

    #[test]
    fn it_works_for_a_tenth_of_the_time() {
        let mut pace = Pace::default();
        let work = Duration::from_millis(3);
        assert_eq!(pace.rest_after(work, true), Duration::from_millis(27));
        assert_eq!(pace.rest_after(work, false), Duration::from_millis(27));
    }
}
