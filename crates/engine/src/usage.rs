//! How much links, adapters and connections were used.

use std::ops::AddAssign;

/// What has gone over a link, or to and fro on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of programs, also those that were sent again by a failover.
    pub bytes_sent: u64,
    /// Messages: CDC, and over a link LLC, too.
    pub messages_sent: u64,
    /// Bytes of programs, each once.
    pub bytes_received: u64,
    /// As those sent.
    pub messages_received: u64,
}

/// How much a link or an adapter was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What has gone over it.
    pub traffic: Traffic,
    /// Packets that the device has sent again; `None`: it does not tell.
    pub retransmissions: Option<u64>,
}

/// How often something has happened on a host, each only growing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// A connection has gone over to another link.
    pub failovers: u64,
    /// A connection had bytes to send, and no room for all of them in the peer's RMBE.
    pub rmbe_full: u64,
}

impl Traffic {
    pub(crate) const NONE: Self =
        Self { bytes_sent: 0, messages_sent: 0, bytes_received: 0, messages_received: 0 };
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let (sum, more) = (&mut self.traffic, other.traffic);
        sum.bytes_sent += more.bytes_sent;
        sum.messages_sent += more.messages_sent;
        sum.bytes_received += more.bytes_received;
        sum.messages_received += more.messages_received;
        let told = [self.retransmissions, other.retransmissions].into_iter().flatten();
        self.retransmissions = told.reduce(|sum, more| sum + more);
    }
}
