//! AUTOCACHE: for how long a server with which agreeing has failed is left alone.
//!
//! An attempt that fails costs both sides sockets and messages, and the next one a moment
//! later fails for the same reason. After some failures in a row a client therefore asks that
//! server no more for a while, twice as long each time that comes again. The server may be another
//! by then; a caller that can tell that at once forgets the failures.
//!
//! One failure says little: an address can be that of several servers (a VIP), of which each
//! connection gets one, and a client cannot choose. Failures in a row tell such an address from a server that
//! declines: where a share *p* of the connections fails, so many in a row are *p* to that power, which
//! for a third and [`PATIENCE`] is one in 6 561. Where connections have succeeded beside those that fail, it takes
//! [`PATIENCE_WITH_SUCCESS`] of them, so that no rate of connections makes the rare run a
//! frequent one; and a success begins the count anew.

use crate::fallback::{PeerCannot, Reason};
use core::time::Duration;

/// The first pause.
pub const FIRST: Duration = Duration::from_secs(30);
/// The longest.
pub const LONGEST: Duration = Duration::from_secs(20 * 60);

/// Failures in a row until a server is left alone with which no attempt has succeeded.
pub const PATIENCE: u32 = 8;
/// The same where one has, since the first that failed.
pub const PATIENCE_WITH_SUCCESS: u32 = 64;

/// Failures in a row until a server is left alone.
#[must_use]
pub const fn patience(has_succeeded: bool) -> u32 {
    if has_succeeded { PATIENCE_WITH_SUCCESS } else { PATIENCE }
}

/// The pause that begins with the last of so many failures in a row, from 1, if one does.
#[must_use]
pub fn pause_after(in_a_row: u32, has_succeeded: bool) -> Option<Duration> {
    let patience = patience(has_succeeded);
    in_a_row.is_multiple_of(patience).then(|| pause(in_a_row / patience))
}

/// The pause of this number, from 1.
#[must_use]
pub fn pause(number: u32) -> Duration {
    let doublings = number.saturating_sub(1).min(u32::BITS - 1);
    FIRST.saturating_mul(1 << doublings).min(LONGEST)
}

/// What is told of a server that is left alone, when agreeing has failed for this reason. A setting, or
/// another version, does not pass with time: it stays the reason.
#[must_use]
pub const fn told(failure: Reason) -> Reason {
    match failure {
        Reason::Operator(_) | Reason::Peer(PeerCannot::OtherVersion) => failure,
        _ => Reason::Peer(PeerCannot::FailedLately),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fallback::{Blame, OperatorSaid};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn a_setting_is_told_as_one_also_when_it_is_remembered() {
        let settings = [OperatorSaid::OtherUser, OperatorSaid::NoCommonEid].map(Reason::from);
        assert!(settings.iter().all(|reason| told(*reason).blame() == Some(Blame::Operator)));
        assert_eq!(told(PeerCannot::OtherVersion.into()), PeerCannot::OtherVersion.into());
        assert_eq!(told(PeerCannot::Unanswered.into()), PeerCannot::FailedLately.into());
    }

    #[test]
    fn so_many_failures_in_a_row_begin_a_pause() {
        let after = |failures: [u32; 4], has_succeeded| {
            failures.map(|failures| pause_after(failures, has_succeeded))
        };
        let pauses = [None, Some(FIRST), None, Some(2 * FIRST)];
        assert_eq!(after([7, 8, 9, 16], false), pauses);
        assert_eq!(after([63, 64, 65, 128], true), pauses);
    }

    /// Three servers behind one address, one of which declines: hardly a connection of the others' is kept from them,
    /// whatever the rate of connections.
    #[test]
    fn one_of_three_that_declines_keeps_hardly_a_connection_from_the_others() {
        for seed in 0..32 {
            let mut rng = StdRng::seed_from_u64(seed);
            let interval = Duration::from_micros(rng.random_range(10..100_000));
            let (mut in_a_row, mut has_succeeded, mut until) = (0, false, Duration::ZERO);
            let (mut others, mut moved) = (0, 0_u64);
            for turn in 0..100_000 {
                let (now, declines) = (interval * turn, rng.random_range(0..3) == 0);
                others += u64::from(!declines);
                if now < until {
                    continue;
                }
                if declines {
                    in_a_row += 1;
                    until = now + pause_after(in_a_row, has_succeeded).unwrap_or_default();
                } else {
                    (in_a_row, has_succeeded) = (0, true);
                    moved += 1;
                }
            }
            assert!(moved * 100 >= others * 99, "seed {seed}: {moved} of {others}");
        }
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        assert_eq!([1, 2, 3].map(pause), [30, 60, 120].map(Duration::from_secs));
        assert_eq!(pause(7), LONGEST);
        assert_eq!(pause(u32::MAX), LONGEST);
    }
}
