//! The cursors of CDC messages, as the positions that they abbreviate.
//!
//! ```text
//!   position  0 .. 2^64           wrap  = position div len, modulo 65536
//!                                 count = position mod len
//! ```
//!
//! A cursor says a position only modulo 65536 times the length of the ring. Which one is meant is
//! clear from what was known before: the peer has moved on by one lap at most.
//!
//! *Source*: RFC 7609 §4.2; invariant 2 to 5 of cursors.

use sidestep_wire::cdc::Cursor;

/// The cursor of a position in a ring of `len` bytes.
#[must_use]
pub(super) fn cursor(position: u64, len: u32) -> Cursor {
    let len = u64::from(len);
    // Each is cut to what it has room for: the wrap by the standard, the count is less than `len`.
    Cursor { wrap: (position / len) as u16, count: (position % len) as u32 }
}

/// What a peer's cursor says, beside what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// So many bytes further; 0: nothing new.
    Ahead(u64),
    /// Something older, by one lap at most: overtaken on its way, or written again after a failover.
    Behind,
    /// Nothing that a ring of this length could have.
    Impossible,
}

/// Reads a cursor of a ring of `len` bytes, of which `known` was the position before.
#[must_use]
pub(super) fn claim(cursor: Cursor, known: u64, len: u32) -> Claim {
    let len = u64::from(len);
    if u64::from(cursor.count) >= len {
        return Claim::Impossible;
    }
    let cycle = len << 16;
    let said = u64::from(cursor.wrap) * len + u64::from(cursor.count);
    let ahead = (said + cycle - known % cycle) % cycle;
    if ahead <= len {
        Claim::Ahead(ahead)
    } else if cycle - ahead <= len {
        Claim::Behind
    } else {
        Claim::Impossible
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: u32 = 65_536;

    #[test]
    fn a_full_lap_is_not_nothing() {
        let at = |wrap, count| Cursor { wrap, count };
        assert_eq!(claim(at(0, 0), 0, LEN), Claim::Ahead(0));
        assert_eq!(claim(at(1, 0), 0, LEN), Claim::Ahead(65_536));
        assert_eq!(claim(at(1, 1), 0, LEN), Claim::Impossible);
        assert_eq!(claim(at(0, LEN), 0, LEN), Claim::Impossible, "not in the ring");
        assert_eq!(claim(at(65_535, 9), 0, LEN), Claim::Behind, "before the first byte");
        assert_eq!(claim(at(0, 5), (65_536 << 16) - 5, LEN), Claim::Ahead(10), "the wrap wraps");
    }

    proptest! {
        #[test]
        fn what_is_at_most_a_lap_away_is_understood(
            known in 0u64..1 << 60, ahead in 0u64..=u64::from(LEN), len in prop::sample::select(
                std::vec![16u32 << 10, 64 << 10, 1 << 20, 65_532],
            ),
        ) {
            let ahead = ahead.min(u64::from(len));
            prop_assert_eq!(claim(cursor(known + ahead, len), known, len), Claim::Ahead(ahead));
            if ahead > 0 {
                prop_assert_eq!(claim(cursor(known, len), known + ahead, len), Claim::Behind);
            }
        }
    }
}
