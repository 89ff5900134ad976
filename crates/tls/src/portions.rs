//! Records are given to rustls few at a time.
//!
//! rustls keeps what it is given in one buffer, and with each record that it has worked on it moves what is behind that to the
//! front. Of a hundred short records (a message of syslog in each) that is a copy of all the others for each of them. So
//! it gets as many whole records as make a short buffer, and a longer one by itself: where it is cut, nothing is behind.

/// Bytes of a portion, unless one record is longer: what rustls reads at once.
const PORTION: usize = 4096;

/// Of a record, the last two of which are its length. *Source*: RFC 8446 §5.1.
const HEADER_LEN: usize = 5;
const LENGTH_AT: usize = 3;

/// Where in a record the next byte is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Portions {
    /// Bytes of the header that were passed.
    header: usize,
    /// Bytes behind the header that were not, as far as the header is known.
    left: usize,
}

impl Portions {
    /// How many of these bytes are given next: some, where there are any.
    pub(crate) fn next(mut self, bytes: &[u8]) -> usize {
        let mut len = 0;
        while len < bytes.len() {
            let end = len + self.pass_record(&bytes[len..]);
            if end > PORTION && len > 0 {
                break;
            }
            len = end;
        }
        len
    }

    /// They were taken.
    pub(crate) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = self.pass_record(bytes);
            bytes = &bytes[len..];
        }
    }

    /// Passes to the end of the record, or of what there is of it.
    fn pass_record(&mut self, bytes: &[u8]) -> usize {
        let mut len = 0;
        while self.header < HEADER_LEN {
            let Some(byte) = bytes.get(len) else { return len };
            if self.header >= LENGTH_AT {
                self.left = self.left << 8 | usize::from(*byte);
            }
            self.header += 1;
            len += 1;
        }
        let passed = self.left.min(bytes.len() - len);
        self.left -= passed;
        if self.left == 0 {
            *self = Self::default();
        }
        len + passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records(lens: &[usize]) -> Vec<u8> {
        let record = |len: &usize| {
            let [high, low] = (*len as u16).to_be_bytes();
            [vec![23, 3, 3, high, low], vec![7; *len]].concat()
        };
        lens.iter().flat_map(record).collect()
    }

    #[test]
    fn a_portion_ends_with_a_record_and_a_long_one_comes_by_itself() {
        let bytes = records(&[1000, 1000, 1000, 1000, 1000, 16_000, 100]);
        let mut portions = Portions::default();
        let mut rest = &bytes[..];
        let mut lens = Vec::new();
        while !rest.is_empty() {
            let len = portions.next(rest);
            portions.pass(&rest[..len]);
            lens.push(len);
            rest = &rest[len..];
        }
        assert_eq!(lens, [4 * 1005, 1005, 16_005, 105]);
    }

    proptest! {
        /// However the bytes come: all of them, and from the first whole record on no portion ends within one that is there.
        #[test]
        fn pieces_are_cut_at_the_ends_of_records(
            lens in prop::collection::vec(0usize..6000, 1..12),
            cuts in prop::collection::vec(1usize..9000, 1..12),
        ) {
            let bytes = records(&lens);
            let ends: Vec<_> = lens.iter().scan(0, |at, len| {
                *at += HEADER_LEN + len;
                Some(*at)
            }).collect();
            let (mut portions, mut at, mut cuts) = (Portions::default(), 0, cuts.iter().cycle());
            while at < bytes.len() {
                let piece_end = (at + cuts.next().unwrap()).min(bytes.len());
                while at < piece_end {
                    let len = portions.next(&bytes[at..piece_end]);
                    prop_assert!(len > 0);
                    portions.pass(&bytes[at..at + len]);
                    at += len;
                    prop_assert!(ends.contains(&at) || at == piece_end, "{at} of {ends:?}");
                }
            }
        }
    }
}
