//! Response times as workers keep and send them.
//!
//! All histograms have one shape, from 1 ns to one hour with three digits, so that
//! they add up without loss and without a case in which they do not. They have a fixed
//! size of 270 KB: an HDR histogram can also grow, but then the one slow transaction of
//! a run would, at the worst moment, also pay for an allocation.
//!
//! **Record with `saturating_record`.** It never fails: what took longer than an hour
//! counts as an hour, in the percentiles only; the mean comes from sums beside the
//! histogram. `record` would return an error for it.
//!
//! In messages a histogram is the hexadecimal form of HdrHistogram's V2 format: a
//! header of 40 bytes, then counts with runs of zeros folded; some KB, half of it for
//! the hexadecimal. All fields of the header are fixed by the shape except for the
//! length:
//!
//! ```text
//!  0  cookie 1c849303       8  offset 0          16  lowest 1         32  ratio 1.0
//!  4  length of the counts  12 digits 3          24  highest 3.6e12   40  counts
//! ```

use std::fmt::Write;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{DeserializeError, Deserializer, Serializer, V2Serializer};
use thiserror::Error;

/// An empty histogram of response times in nanoseconds: 1 ns to 1 hour, three digits.
#[must_use]
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS).expect("the bounds are valid")
}

/// A histogram for a message.
///
/// # Panics
/// It is not one of [`new_histogram`]'s shape.
#[must_use]
pub fn to_hex(histogram: &Histogram<u64>) -> String {
    let shape = (histogram.low(), histogram.high(), histogram.sigfig());
    assert_eq!(shape, (LOWEST_NS, HIGHEST_NS, DIGITS), "made by new_histogram");
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(histogram, &mut bytes).expect("a Vec takes all bytes");
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a String takes all text");
        hex
    })
}

/// A histogram from a message.
///
/// # Errors
/// The text is not one that [`to_hex`] makes: it is not hexadecimal, the histogram has
/// another shape, is cut short, or holds more than [`COUNT_MAX`] times.
pub fn from_hex(hex: &str) -> Result<Histogram<u64>, HistogramError> {
    let bytes = bytes_of(hex)?;
    check_header(&bytes)?;
    check_counts(&bytes[HEADER_LEN..])?;
    let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice())?;
    if histogram.len() > COUNT_MAX {
        return Err(HistogramError::TooMany);
    }
    Ok(histogram)
}

/// Why a text is not a histogram of response times. It comes from a worker, so the
/// remedy is always the same: coordinator and workers of one build.
#[derive(Debug, Error)]
pub enum HistogramError {
    /// Something other than pairs of hexadecimal digits.
    #[error("not hexadecimal at character {0}; take workers of the same build")]
    NotHexadecimal(usize),
    /// Another header than that of [`new_histogram`]'s shape, or another length than
    /// it says.
    #[error("not a histogram of {LOWEST_NS} ns to 1 h; take workers of the same build")]
    OtherShape,
    /// More times than can be added up.
    #[error("more than {COUNT_MAX} response times; take workers of the same build")]
    TooMany,
    /// The counts make no sense.
    #[error("broken counts ({0}); take workers of the same build")]
    Counts(#[from] DeserializeError),
}

fn bytes_of(hex: &str) -> Result<Vec<u8>, HistogramError> {
    let digit = |at: usize, byte: u8| {
        char::from(byte).to_digit(16).ok_or(HistogramError::NotHexadecimal(at))
    };
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(HistogramError::NotHexadecimal(hex.len()));
    }
    let byte = |(at, &[high, low]): (usize, &[u8; 2])| {
        Ok((digit(2 * at, high)? << 4 | digit(2 * at + 1, low)?) as u8)
    };
    pairs.iter().enumerate().map(byte).collect()
}

/// The header must be our own: the library would reserve whatever memory the lengths
/// and bounds of another ask for.
fn check_header(bytes: &[u8]) -> Result<(), HistogramError> {
    let counts_len = bytes.len().checked_sub(HEADER_LEN).ok_or(HistogramError::OtherShape)?;
    let counts_len = u32::try_from(counts_len).map_err(|_| HistogramError::OtherShape)?;
    let mut expected = Vec::with_capacity(HEADER_LEN);
    expected.extend(COOKIE.to_be_bytes());
    expected.extend(counts_len.to_be_bytes());
    expected.extend(0u32.to_be_bytes());
    expected.extend(u32::from(DIGITS).to_be_bytes());
    expected.extend(LOWEST_NS.to_be_bytes());
    expected.extend(HIGHEST_NS.to_be_bytes());
    expected.extend(1f64.to_be_bytes());
    if bytes[..HEADER_LEN] == expected { Ok(()) } else { Err(HistogramError::OtherShape) }
}

/// Counts are numbers of seven bits a byte, the eighth saying that more follow. One of
/// eight such bytes or more exceeds [`COUNT_MAX`], and the library's arithmetic on the
/// largest of them would overflow.
fn check_counts(counts: &[u8]) -> Result<(), HistogramError> {
    let goes_on = |byte: &u8| byte & 0x80 != 0;
    if counts.windows(8).any(|bytes| bytes.iter().all(goes_on)) {
        return Err(HistogramError::TooMany);
    }
    Ok(())
}

/// More response times than this are not believed. 65 536 such histograms can be added
/// before a sum of 64 bits overflows.
pub const COUNT_MAX: u64 = 1 << 48;

const LOWEST_NS: u64 = 1;
const HIGHEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// HdrHistogram's V2 format: its base with a word size of 0x10.
const COOKIE: u32 = 0x1c84_9303 | 0x10;
const HEADER_LEN: usize = 40;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Histogram<u64> {
        let mut histogram = new_histogram();
        times.iter().for_each(|&time| histogram.saturating_record(time));
        histogram
    }

    #[test]
    fn what_takes_longer_than_an_hour_counts_as_an_hour() {
        let histogram = of(&[u64::MAX]);
        assert!(histogram.equivalent(histogram.max(), HIGHEST_NS));
        assert_eq!(histogram.len(), 1);
    }

    #[test]
    fn an_empty_histogram_can_be_sent() {
        assert_eq!(from_hex(&to_hex(&new_histogram())).unwrap(), new_histogram());
    }

    #[test]
    fn histograms_of_another_shape_are_refused() {
        let mut bytes = Vec::new();
        let other = Histogram::<u64>::new_with_bounds(1, u64::MAX / 2, 5).unwrap();
        V2Serializer::new().serialize(&other, &mut bytes).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(matches!(from_hex(&hex), Err(HistogramError::OtherShape)));
    }

    #[test]
    fn every_truncation_is_refused() {
        let hex = to_hex(&of(&[1, 1000, 70_000, 3_000_000_000]));
        for len in 0..hex.len() {
            assert!(from_hex(&hex[..len]).is_err(), "{len} of {}", hex.len());
        }
    }

    #[test]
    fn what_is_not_hexadecimal_is_pointed_at() {
        let hex = to_hex(&new_histogram()).replacen("1c", "1g", 1);
        assert!(matches!(from_hex(&hex), Err(HistogramError::NotHexadecimal(1))));
        assert!(matches!(from_hex("+1-1"), Err(HistogramError::NotHexadecimal(0))));
        assert!(matches!(from_hex("µs"), Err(HistogramError::NotHexadecimal(_))));
    }

    /// A header of ours with these bytes for counts.
    fn with_counts(counts: &[u8]) -> String {
        let mut hex = to_hex(&new_histogram());
        hex.truncate(2 * HEADER_LEN);
        hex.replace_range(8..16, &format!("{:08x}", counts.len()));
        counts.iter().for_each(|byte| write!(hex, "{byte:02x}").unwrap());
        hex
    }

    #[test]
    fn counts_that_would_overflow_are_refused() {
        for at in 0..8 {
            let mut counts = vec![0; at];
            counts.extend([0xff; 9]);
            let hex = with_counts(&counts);
            assert!(matches!(from_hex(&hex), Err(HistogramError::TooMany)), "{hex}");
        }
        let two_to_the_48 = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 | 0x40, 0x01];
        let more = [two_to_the_48.as_slice(), &[2]].concat();
        assert!(matches!(from_hex(&with_counts(&more)), Err(HistogramError::TooMany)));
    }

    #[test]
    fn zeros_beyond_the_last_bucket_and_counts_there_are_refused() {
        // -2^33 zeros, folded; then one count.
        let counts = [0xff, 0xff, 0xff, 0xff, 0x3f, 2];
        assert!(matches!(from_hex(&with_counts(&counts)), Err(HistogramError::Counts(_))));
    }

    proptest! {
        #[test]
        fn what_is_sent_arrives(times in prop::collection::vec(0u64..4_000_000_000_000, 0..200)) {
            let sent = of(&times);
            let arrived = from_hex(&to_hex(&sent)).unwrap();
            prop_assert_eq!(&arrived, &sent);
            prop_assert_eq!(arrived.max(), sent.max());
            prop_assert_eq!(arrived.len(), times.len() as u64);
        }

        /// Whatever is accepted can be used: nothing overflows in sums and percentiles.
        #[test]
        fn no_counts_lead_to_a_panic(counts in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(histogram) = from_hex(&with_counts(&counts)) {
                let mut sum = new_histogram();
                sum.add(&histogram).unwrap();
                sum.add(&histogram).unwrap();
                prop_assert_eq!(sum.len(), 2 * histogram.len());
                prop_assert_eq!(sum.value_at_quantile(1.0), sum.max());
            }
        }

        #[test]
        fn no_text_leads_to_a_panic(text in ".{0,200}") {
            prop_assert!(from_hex(&text).is_err());
        }
    }
}
