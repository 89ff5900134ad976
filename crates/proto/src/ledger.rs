//! The ledger: at which byte of a TCP stream the ring takes over.
//!
//! Linux counts every byte of a TCP connection. From three readings that a plain
//! program may take (`TCP_INFO`, `SIOCOUTQNSD`, `SIOCINQ`) follow the two numbers
//! that two ends need to agree on a switch without a byte in band:
//!
//! ```text
//!   sent     = bytes_sent - bytes_retransmitted + not_yet_sent
//!   consumed = bytes_received - still_queued
//! ```
//!
//! `sent` of one end is exactly the offset at which its next byte would have
//! stood in the stream. It publishes that offset as its *switch offset* `X` and
//! puts the next byte into the ring. The other end reads TCP up to `X`, then the
//! ring; whatever else arrives on the TCP connection past `X` is a bell, until the
//! direction goes back to TCP at an offset that is published in the same way.
//!
//! `tcpi_bytes_acked` is of no use here: on the side that connected it counts the
//! SYN. `bytes_received` counts a FIN once it has arrived, so a connection whose
//! peer has closed is not switched at all.

/// One reading of the kernel's counters of a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// `tcpi_bytes_sent`: data bytes given to the network, retransmissions included.
    pub bytes_sent: u64,
    /// `tcpi_bytes_retrans`: the part of `bytes_sent` that was sent again.
    pub bytes_retransmitted: u64,
    /// `SIOCOUTQNSD`: bytes accepted from the program, not given to the network yet.
    pub not_yet_sent: u64,
    /// `tcpi_bytes_received`: data bytes received in order.
    pub bytes_received: u64,
    /// `SIOCINQ`: bytes received that the program has not read.
    pub still_queued: u64,
}

impl Reading {
    /// Bytes the program has written to this socket so far, in bytes from the
    /// start of the stream. Exact only while no write is under way.
    #[must_use]
    pub fn sent(&self) -> u64 {
        (self.bytes_sent + self.not_yet_sent).saturating_sub(self.bytes_retransmitted)
    }

    /// Bytes the program has read from this socket so far. Exact only while no
    /// read is under way and no FIN has been received.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.bytes_received.saturating_sub(self.still_queued)
    }
}

/// What `n` bytes of the TCP stream are: bells, then data, then bells again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Bells in front.
    pub bells: u64,
    /// Bytes of the program behind them.
    pub data: u64,
}

/// What the `n` bytes of the TCP stream at offset `consumed` are, when it carries the
/// program's bytes from `from` on, and up to `until` (`None`: as far as is known).
#[must_use]
pub fn parts(consumed: u64, n: u64, from: u64, until: Option<u64>) -> Parts {
    let bells = from.saturating_sub(consumed).min(n);
    let end = until.map_or(n, |until| until.saturating_sub(consumed).min(n));
    Parts { bells, data: end.saturating_sub(bells) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_with_unsent_and_retransmitted_bytes() {
        let reading = Reading {
            bytes_sent: 150,
            bytes_retransmitted: 50,
            not_yet_sent: 11,
            bytes_received: 300,
            still_queued: 20,
        };
        assert_eq!(reading.sent(), 111);
        assert_eq!(reading.consumed(), 280);
    }

    #[test]
    fn bytes_past_the_switch_are_bells() {
        let data_in = |n, until| parts(100, n, 0, until);
        let data = |data| Parts { bells: 0, data };
        assert_eq!(data_in(30, None), data(30));
        assert_eq!(data_in(30, Some(130)), data(30));
        assert_eq!(data_in(30, Some(110)), data(10));
        assert_eq!(data_in(30, Some(100)), data(0));
        assert_eq!(data_in(1, Some(7)), data(0));
    }

    #[test]
    fn bytes_before_the_way_back_are_bells() {
        assert_eq!(parts(100, 30, 110, None), Parts { bells: 10, data: 20 });
        assert_eq!(parts(100, 30, 110, Some(115)), Parts { bells: 10, data: 5 });
        assert_eq!(parts(100, 30, 130, Some(130)), Parts { bells: 30, data: 0 });
        assert_eq!(parts(100, 3, 200, None), Parts { bells: 3, data: 0 });
        assert_eq!(parts(100, 3, 90, Some(80)), Parts { bells: 0, data: 0 });
    }
}
