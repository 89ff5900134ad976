//! AUTOSMC between hosts: does SMC-R gain anything at a server, where TCP leads there as well?
//!
//! Within a host shared memory wins, and only the length of a connection decides ([`autosmc`](crate::autosmc)).
//! Between hosts it depends on the adapters, on who shares CPUs with whom, and on the network, so both paths
//! are tried and what they have carried is set side by side. Connections of one server are mostly alike: what
//! one program asks of it in a second over the better path is more. So the rate decides, bytes in a second of
//! a connection's life, summed over connections. A round trip has the same bytes over both paths, so a path
//! with the shorter round trips has the higher rate, too.
//!
//! What cannot be compared is not judged: too little was carried, or the connections were not alike, as their
//! shares each way tell.

use core::time::Duration;

/// What connections of one server have carried over one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// For how long, all of them together.
    pub time: Duration,
    /// Bytes to the server.
    pub sent: u64,
    /// Bytes from it.
    pub received: u64,
}

/// What the comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: they cannot be compared.
    Unknown,
    /// SMC-R carries more.
    Gains,
    /// It does not.
    GainsNothing,
}

/// Connections have to have lived so long, together.
const TIME_MIN: Duration = Duration::from_secs(1);
/// And to have carried so much: AUTOSMC's first patience, sixteen times.
const BYTES_MIN: u64 = 1 << 20;
/// SMC-R has to carry so many percent more. Less is the difference between two seconds of one path.
const MARGIN_PERCENT: u128 = 5;
/// Shares each way may differ by so many percent of all bytes.
const LIKENESS_PERCENT: u128 = 25;

impl Carried {
    /// Whether it is enough to judge by.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.time >= TIME_MIN && self.bytes() >= BYTES_MIN
    }

    /// More of the same path.
    pub fn add(&mut self, more: Self) {
        self.time = self.time.saturating_add(more.time);
        self.sent = self.sent.saturating_add(more.sent);
        self.received = self.received.saturating_add(more.received);
    }

    const fn bytes(&self) -> u64 {
        self.sent.saturating_add(self.received)
    }

    /// Of its bytes, what was sent.
    fn percent_sent(&self) -> u128 {
        u128::from(self.sent) * 100 / u128::from(self.bytes()).max(1)
    }
}

/// Whether SMC-R gains anything, as far as both have been seen.
#[must_use]
pub fn compare(smc: Carried, tcp: Carried) -> Verdict {
    let are_alike = smc.percent_sent().abs_diff(tcp.percent_sent()) <= LIKENESS_PERCENT;
    if !smc.is_enough() || !tcp.is_enough() || !are_alike {
        return Verdict::Unknown;
    }
    // Rates, without dividing: bytes of one times the time of the other.
    let over = |it: Carried, time: Duration| u128::from(it.bytes()) * time.as_micros();
    match over(smc, tcp.time) * 100 > over(tcp, smc.time) * (100 + MARGIN_PERCENT) {
        true => Verdict::Gains,
        false => Verdict::GainsNothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn carried(seconds: u64, sent: u64, received: u64) -> Carried {
        Carried { time: Duration::from_secs(seconds), sent, received }
    }

    #[test]
    fn the_rate_decides() {
        let tcp = carried(2, 100 * MB, 100 * MB);
        assert_eq!(compare(carried(2, 150 * MB, 150 * MB), tcp), Verdict::Gains);
        assert_eq!(compare(carried(20, 1500 * MB, 1500 * MB), tcp), Verdict::Gains);
        assert_eq!(compare(carried(20, 800 * MB, 800 * MB), tcp), Verdict::GainsNothing);
        assert_eq!(compare(tcp, tcp), Verdict::GainsNothing);
        assert_eq!(compare(carried(2, 104 * MB, 104 * MB), tcp), Verdict::GainsNothing);
        assert_eq!(compare(carried(2, 106 * MB, 106 * MB), tcp), Verdict::Gains);
    }

    #[test]
    fn what_cannot_be_compared_is_not_judged() {
        let enough = carried(2, 100 * MB, 100 * MB);
        for other in [carried(2, MB / 2, 0), Carried { time: TIME_MIN / 2, ..enough }] {
            assert_eq!(compare(enough, other), Verdict::Unknown);
            assert_eq!(compare(other, enough), Verdict::Unknown);
        }
        let other_way = carried(2, 200 * MB, 0);
        assert_eq!(compare(enough, other_way), Verdict::Unknown, "another kind of connections");
        let most = Carried { time: Duration::MAX, sent: u64::MAX, received: u64::MAX };
        let mut sum = most;
        sum.add(most);
        assert_eq!(sum, most);
    }
}
