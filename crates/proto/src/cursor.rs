//! Cursors of a ring, and what may be believed about them.
//!
//! A ring of `len` bytes is described by two absolute positions that only grow:
//! the *producer* (bytes ever written) and the *consumer* (bytes ever read).
//!
//! ```text
//!   readable = producer - consumer            0 <= readable <= len
//!   window   = len - readable                 what the producer may still write
//!   offset   = position mod len               where a position lies in memory
//! ```
//!
//! The cursors of the standard are pairs (wrap, count) with `count = P mod N` and
//! `wrap = (P div N) mod 2^16` (RFC 7609 §4.2). Both sides of our ring share one
//! host, so the pair travels as the 64-bit position it abbreviates: one aligned
//! word, written and read at once, and it does not wrap within the life of a
//! machine (at 100 GB/s: after five years).
//!
//! One of the two is always the peer's word, read from memory that the peer can
//! write. It is a *claim*: [`readable`] and [`window`] turn it into a length
//! only if it lies inside the ring, and into [`Misbehaved`] otherwise.

/// The peer's cursor lies outside the ring: it broke the protocol or its memory
/// is corrupt. The connection is reset (`ECONNRESET`), nothing else is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "peer's {cursor} cursor {claim} is impossible beside ours at {ours} in a ring of {len} bytes"
)]
pub struct Misbehaved {
    /// Which cursor lied: `"producer"` or `"consumer"`.
    pub cursor: &'static str,
    /// The value read from the peer's memory.
    pub claim: u64,
    /// Our own cursor, which bounds it.
    pub ours: u64,
    /// Ring length in bytes.
    pub len: usize,
}

/// Bytes that may be read: from our `consumer` up to the peer's claimed `producer`.
///
/// # Errors
/// [`Misbehaved`] unless `consumer <= claim <= consumer + len`.
///
/// *Source*: RFC 7609 §4.2; invariant `0 <= readable <= len`.
#[inline]
pub fn readable(consumer: u64, claim: u64, len: usize) -> Result<usize, Misbehaved> {
    let n = claim.wrapping_sub(consumer);
    if n <= len as u64 {
        return Ok(n as usize);
    }
    Err(Misbehaved { cursor: "producer", claim, ours: consumer, len })
}

/// Bytes that may be written: from our `producer` until the ring is full, given
/// the peer's claimed `consumer`.
///
/// # Errors
/// [`Misbehaved`] unless `producer - len <= claim <= producer`.
///
/// *Source*: RFC 7609 §4.5; invariant `0 <= window <= len`.
#[inline]
pub fn window(producer: u64, claim: u64, len: usize) -> Result<usize, Misbehaved> {
    let used = producer.wrapping_sub(claim);
    if used <= len as u64 {
        return Ok(len - used as usize);
    }
    Err(Misbehaved { cursor: "consumer", claim, ours: producer, len })
}

/// How much of the ring must be free before a blocked writer is told: a third.
///
/// Linux reports a TCP socket writable only after a good part of the window was
/// freed; one byte would wake the writer for every read of the other side.
#[inline]
#[must_use]
pub const fn writable_threshold(len: usize) -> usize {
    len / 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_ring_and_an_empty_ring_differ() {
        assert_eq!(window(64, 0, 64), Ok(0));
        assert_eq!(window(64, 64, 64), Ok(64));
        assert_eq!(readable(0, 64, 64), Ok(64));
        assert_eq!(readable(64, 64, 64), Ok(0));
    }

    #[test]
    fn claims_outside_the_ring_are_refused() {
        assert!(readable(10, 9, 64).is_err(), "producer behind the consumer");
        assert!(readable(10, 75, 64).is_err(), "more than a lap ahead");
        assert!(window(10, 11, 64).is_err(), "read what was never written");
        assert!(window(100, 35, 64).is_err(), "more than a lap behind");
    }

    /// Where positions begin: at zero, where their lower half wraps, and where all of them would.
    const BEGINNINGS: [u64; 3] = [0, (1 << 32) - 256, u64::MAX - 255];
    /// Every ring up to this length.
    const SHIFT_MAX: u32 = 7;

    /// All claims within two laps, from each position of two laps. What a claim gives is told by its
    /// distance from our cursor alone, and beyond two laps it is as far outside as there: so this is
    /// all cases of these rings. A longer ring has no other constant than its length.
    #[test]
    fn every_distance_is_a_length_inside_the_ring_or_refused() {
        for (beginning, shift) in
            BEGINNINGS.into_iter().flat_map(|at| (0..=SHIFT_MAX).map(move |n| (at, n)))
        {
            let len = 1usize << shift;
            let laps = 2 * len as i64 + 2;
            for ours in (0..2 * len as u64).map(|n| beginning.wrapping_add(n)) {
                for distance in -laps..=laps {
                    let ahead = (0..=len as i64).contains(&distance).then_some(distance as usize);
                    let claim = ours.wrapping_add_signed(distance);
                    assert_eq!(readable(ours, claim, len).ok(), ahead, "{ours} {claim} {len}");
                    // The same two the other way: a writer so far ahead has that much less room.
                    let room = ahead.map(|n| len - n);
                    assert_eq!(window(claim, ours, len).ok(), room, "{claim} {ours} {len}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn readable_and_window_add_up_to_the_ring(
            consumer in 0u64..u64::MAX / 2, n in 0usize..=65_536, shift in 0u32..17,
        ) {
            let len = 1usize << shift;
            let n = n % (len + 1);
            let producer = consumer + n as u64;
            prop_assert_eq!(readable(consumer, producer, len).unwrap(), n);
            prop_assert_eq!(window(producer, consumer, len).unwrap(), len - n);
        }

        #[test]
        fn any_claim_gives_a_length_inside_the_ring_or_an_error(
            ours: u64, claim: u64, shift in 0u32..21,
        ) {
            let len = 1usize << shift;
            if let Ok(n) = readable(ours, claim, len) { prop_assert!(n <= len) }
            if let Ok(n) = window(ours, claim, len) { prop_assert!(n <= len) }
        }
    }
}
