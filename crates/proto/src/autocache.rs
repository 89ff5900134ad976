//! AUTOCACHE: for how long a server with which agreeing has failed is left alone.
//!
//! An attempt that fails costs both sides sockets and messages, and the next one a moment
//! later fails for the same reason. After a failure a client therefore asks that server no
//! more for a while, twice as long after each further one. The server may be another by
//! then; who can tell that at once forgets the failure.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest() {
        assert_eq!([1, 2, 3].map(pause), [30, 60, 120].map(Duration::from_secs));
        assert_eq!(pause(7), LONGEST);
        assert_eq!(pause(u32::MAX), LONGEST);
    }
}
