//! The time of a host, in which its own pauses do not count.
//!
//! What a host waits for is a word of another one, and when it has waited long enough it gives up a link or a
//! connection. Time in which it did not run itself says nothing of the other one: its words may lie unread, or it stood
//! still as well. A host does not run while other programs have its CPU, while it is stopped, and while its virtual
//! machine moves to another machine. So its clock stands still as long as it does.
//!
//! ```text
//!   owner's clock   ├── waits, 2 s at most ──┼────────── has no CPU ──────────┼── goes on ──
//!   host's          ├── 2 s ─────────────────┼── LATENESS ──┤                 ├── goes on ──
//! ```
//!
//! The clock sees that it was late by how long it wanted to wait. If something has come meanwhile, that was no longer,
//! so a pause counts up to the next time at which something is due, and that is looked at when what has come was heard.

use std::time::Duration;

/// What counts of the time by which a host is late: more than threads wait for their turn on a host that has work
/// for all its CPUs, and little beside what a peer is waited for.
const LATENESS: Duration = Duration::from_millis(250);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Clock {
    /// What the owner's clock has shown last.
    shown: Duration,
    /// The host's time then.
    time: Duration,
}

impl Clock {
    /// The host goes on, and the owner's clock shows this. Since the last time it has wanted to wait for so long
    /// at most; `None`: until something happens, whenever that is. Returns the host's time.
    pub fn go_on(&mut self, shown: Duration, wanted: Option<Duration>) -> Duration {
        let passed = shown.saturating_sub(self.shown);
        let counts = wanted.map_or(Duration::MAX, |wanted| wanted.saturating_add(LATENESS));
        self.shown = shown;
        self.time += passed.min(counts);
        self.time
    }

    /// The host's time when the owner's clock shows this, if the host has run since it went on last.
    #[must_use]
    pub const fn at(&self, shown: Duration) -> Duration {
        self.time.saturating_add(shown.saturating_sub(self.shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_host_that_goes_on_as_it_wants_to_has_the_time_of_its_owner() {
        let mut clock = Clock::default();
        assert_eq!(clock.go_on(s(2), Some(s(2))), s(2));
        assert_eq!(clock.go_on(s(2) + LATENESS, Some(Duration::ZERO)), s(2) + LATENESS);
        assert_eq!(clock.go_on(s(3600), None), s(3600), "nothing was due");
        assert_eq!(clock.go_on(s(3601), Some(Duration::MAX)), s(3601));
        assert_eq!(clock.at(s(3602)), s(3602));
    }

    #[test]
    fn a_pause_does_not_count() {
        let mut clock = Clock::default();
        assert_eq!(clock.go_on(s(8), Some(s(2))), s(2) + LATENESS);
        assert_eq!(clock.go_on(s(14), Some(Duration::ZERO)), s(2) + 2 * LATENESS);
        assert_eq!(clock.at(s(15)), s(3) + 2 * LATENESS);
    }
}
