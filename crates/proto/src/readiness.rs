//! What `poll` says about a connection, from the state of its two rings.
//!
//! Linux's truth table for TCP (each row is asserted against the kernel by
//! `tests/posix/poll.c` and `shutdown.c`):
//!
//! | state | mask |
//! |---|---|
//! | idle / data to read | `OUT` / `IN OUT` |
//! | no room to send | no `OUT` |
//! | peer will send no more | `IN OUT RDHUP` |
//! | we will send no more | `OUT` |
//! | both | `IN OUT HUP RDHUP` |
//! | reset by the peer | `IN OUT HUP RDHUP`, and `ERR` until the error was read |
//! | urgent byte waiting | `PRI` besides |

/// Bits as in `poll(2)` and `epoll(7)`, which agree on Linux.
pub mod mask {
    #![allow(missing_docs)]
    pub const IN: u32 = 0x001;
    pub const PRI: u32 = 0x002;
    pub const OUT: u32 = 0x004;
    pub const ERR: u32 = 0x008;
    pub const HUP: u32 = 0x010;
    pub const RDNORM: u32 = 0x040;
    pub const RDBAND: u32 = 0x080;
    pub const WRNORM: u32 = 0x100;
    pub const WRBAND: u32 = 0x200;
    pub const RDHUP: u32 = 0x2000;
}

/// A connection as `poll` looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Bytes a `recv` would find, from the TCP queue and the ring together.
    pub readable: usize,
    /// `SO_RCVLOWAT`: fewer readable bytes than this do not count, at least 1.
    pub low_water: usize,
    /// Bytes a `send` could place now.
    pub window: usize,
    /// How large `window` must be to count (see [`crate::cursor::writable_threshold`]).
    pub window_threshold: usize,
    /// The peer said it will send no more, or is gone.
    pub peer_done: bool,
    /// We shut down our receiving side.
    pub read_shut: bool,
    /// We shut down our sending side.
    pub write_shut: bool,
    /// The connection was reset.
    pub reset: bool,
    /// An error waits to be read by `SO_ERROR` or the next call.
    pub error_pending: bool,
    /// An urgent byte has not been read.
    pub urgent: bool,
}

impl State {
    /// The mask for this state, for every interest; the caller intersects it
    /// (`ERR` and `HUP` are always reported).
    #[must_use]
    pub fn mask(&self) -> u32 {
        let mut m = 0;
        let no_more_input = self.peer_done || self.read_shut || self.reset;
        if self.readable >= self.low_water.max(1) || no_more_input {
            m |= mask::IN | mask::RDNORM;
        }
        if no_more_input {
            m |= mask::RDHUP;
        }
        let output_over = self.write_shut || self.reset;
        if output_over || (self.window > 0 && self.window >= self.window_threshold) {
            m |= mask::OUT | mask::WRNORM;
        }
        if self.reset || (self.write_shut && no_more_input) {
            m |= mask::HUP;
        }
        if self.error_pending {
            m |= mask::ERR;
        }
        if self.urgent {
            m |= mask::PRI;
        }
        m
    }
}

#[cfg(test)]
mod tests {
    use super::mask::*;
    use super::*;

    const SEEN: u32 = IN | PRI | OUT | ERR | HUP | RDHUP;

    fn idle() -> State {
        State { low_water: 1, window: 64, window_threshold: 21, ..State::default() }
    }

    #[test]
    fn the_truth_table() {
        let rows: &[(&str, State, u32)] = &[
            ("idle", idle(), OUT),
            ("data", State { readable: 1, ..idle() }, IN | OUT),
            ("below the low-water mark", State { readable: 50, low_water: 100, ..idle() }, OUT),
            ("no room", State { window: 20, ..idle() }, 0),
            ("peer done", State { peer_done: true, ..idle() }, IN | OUT | RDHUP),
            ("we are done", State { write_shut: true, ..idle() }, OUT),
            ("we read no more", State { read_shut: true, ..idle() }, IN | OUT | RDHUP),
            (
                "both done",
                State { peer_done: true, write_shut: true, ..idle() },
                IN | OUT | HUP | RDHUP,
            ),
            (
                "reset, error not read yet",
                State { reset: true, error_pending: true, window: 0, ..idle() },
                IN | OUT | ERR | HUP | RDHUP,
            ),
            (
                "reset, error read",
                State { reset: true, window: 0, ..idle() },
                IN | OUT | HUP | RDHUP,
            ),
            ("urgent", State { urgent: true, readable: 1, ..idle() }, IN | PRI | OUT),
        ];
        for (name, state, expected) in rows {
            assert_eq!(state.mask() & SEEN, *expected, "{name}");
        }
    }
}
