//! AUTOCACHE: for how long a server with which agreeing has failed is left alone.
//!
//! An attempt that fails costs both sides sockets and messages, and the next one a moment
//! later fails for the same reason. After a failure a client therefore asks that server no
//! more for a while, twice as long after each further one. The server may be another by
//! then; a caller that can tell that at once forgets the failure.

use crate::fallback::{PeerCannot, Reason};
use core::time::Duration;

/// The first pause.
pub const FIRST: Duration = Duration::from_secs(30);
/// The longest.
pub const LONGEST: Duration = Duration::from_secs(20 * 60);

/// The pause after so many failures in a row, from 1.
#[must_use]
pub fn pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(u32::BITS - 1);
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

    #[test]
    fn a_setting_is_told_as_one_also_when_it_is_remembered() {
        let settings = [OperatorSaid::OtherUser, OperatorSaid::NoCommonEid].map(Reason::from);
        assert!(settings.iter().all(|reason| told(*reason).blame() == Some(Blame::Operator)));
        assert_eq!(told(PeerCannot::OtherVersion.into()), PeerCannot::OtherVersion.into());
        assert_eq!(told(PeerCannot::Unanswered.into()), PeerCannot::FailedLately.into());
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        assert_eq!([1, 2, 3].map(pause), [30, 60, 120].map(Duration::from_secs));
        assert_eq!(pause(7), LONGEST);
        assert_eq!(pause(u32::MAX), LONGEST);
    }
}
