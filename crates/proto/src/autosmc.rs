//! AUTOSMC: how long a connection must have lived before it is worth moving.
//!
//! A move costs a few microseconds, and each message that follows gains some. An end cannot know
//! beforehand how many will follow. An end that waits with the move until as many messages have
//! passed as would pay for it never does worse than twice the best that was possible (it is
//! the problem of renting skis or buying them): that is the *patience* of a port that nothing
//! is known about. The connections of a server's port are mostly alike, so their ends teach
//! more: when moved connections end before the move has paid, patience with the port
//! doubles, until connections of that length are not moved any more; when they live on, it
//! halves. A port whose pattern has changed shows it by connections that outlive the patience.

/// How far the learning about one port has come: doublings of the first patience.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Patience(u8);

/// Calls that moved bytes, in both directions, before a connection of a port that nothing is
/// known about is moved; and so many after the move pay for it.
pub const MESSAGES: u64 = 16;
/// Bytes that do the same.
pub const BYTES: u64 = 64 << 10;

/// What passed on a connection, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls that moved bytes.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Whether it is as much as this many times the first patience.
    fn is_worth(self, times: u64) -> bool {
        self.messages >= MESSAGES * times || self.bytes >= BYTES * times
    }
}

impl Patience {
    /// 4096 messages or 16 MiB: practically never moved.
    pub const MAX: Self = Self(8);

    /// The patience with this many doublings; more than the most are the most.
    #[must_use]
    pub fn new(doublings: u8) -> Self {
        Self(doublings).min(Self::MAX)
    }

    /// Doublings of the first patience, up to 8.
    #[must_use]
    pub fn doublings(self) -> u8 {
        self.0
    }

    /// Messages after which a connection of the port is moved.
    #[must_use]
    pub fn messages(self) -> u64 {
        MESSAGES << self.0
    }

    /// Bytes after which a connection of the port is moved.
    #[must_use]
    pub fn bytes(self) -> u64 {
        BYTES << self.0
    }

    /// Whether a connection that has lived so long has to move.
    #[must_use]
    #[inline]
    pub fn is_over(self, lived: Traffic) -> bool {
        lived.is_worth(1 << self.0)
    }

    /// The patience with the port after one of its moved connections has ended.
    #[must_use]
    pub fn after(self, moved: Traffic) -> Self {
        if has_paid(moved) { Self(self.0.saturating_sub(1)) } else { Self::new(self.0 + 1) }
    }
}

/// Whether what went through shared memory was worth the move.
#[must_use]
pub fn has_paid(moved: Traffic) -> bool {
    moved.is_worth(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages(messages: u64) -> Traffic {
        Traffic { messages, bytes: messages }
    }

    #[test]
    fn a_connection_moves_after_messages_or_bytes() {
        let patience = Patience::default();
        assert!(!patience.is_over(messages(15)));
        assert!(patience.is_over(messages(16)));
        assert!(patience.is_over(Traffic { messages: 2, bytes: 64 << 10 }));
        assert!(!Patience::new(3).is_over(messages(127)));
        assert!(Patience::new(3).is_over(messages(128)));
    }

    #[test]
    fn short_connections_are_moved_less_and_less() {
        // Connections of 20 messages: the first is moved, after 16, and does not pay.
        let (mut patience, mut moves) = (Patience::default(), 0);
        for _ in 0..1000 {
            if patience.is_over(messages(20)) {
                moves += 1;
                patience = patience.after(messages(4));
            }
        }
        assert_eq!(moves, 1);
    }

    #[test]
    fn long_connections_are_moved_again_when_they_come_back() {
        let mut patience = Patience::MAX;
        for _ in 0..8 {
            assert!(patience.is_over(messages(5000)));
            patience = patience.after(messages(5000 - patience.messages()));
        }
        assert_eq!(patience, Patience::default());
    }

    proptest! {
        /// Of connections that are all of the same length, as many are moved in vain as
        /// there are doublings, at most.
        #[test]
        fn moves_that_do_not_pay_are_few(len in 1_u64..10_000, connections in 1_usize..500) {
            let (mut patience, mut in_vain) = (Patience::default(), 0);
            for _ in 0..connections {
                if patience.is_over(messages(len)) {
                    let moved = messages(len - patience.messages());
                    in_vain += u32::from(!has_paid(moved));
                    patience = patience.after(moved);
                }
            }
            prop_assert!(in_vain <= u32::from(Patience::MAX.doublings()));
        }
    }
}
