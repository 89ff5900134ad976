//! Tables by descriptor, in which neighbours share no cache line.
//!
//! Neighbouring descriptors are opened and closed by different threads, and each time all that
//! lies in the same cache line would be lost to the other CPUs. So an entry lies in the page in
//! which it would lie anyway, and its neighbour one line further.

/// Bytes of a cache line, and of a page.
const LINE: usize = 64;
const PAGE: usize = 4096;

/// Where the entry of a number lies in a table of entries of `LEN` bytes, a part of [`LINE`].
#[must_use]
#[inline]
pub const fn place<const LEN: usize>(number: usize) -> usize {
    const { assert!(LINE.is_multiple_of(LEN)) };
    let (lines, entries) = (PAGE / LINE, PAGE / LEN);
    let (line, entry) = (number % lines, number % entries / lines);
    number - number % entries + line * (LINE / LEN) + entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn check<const LEN: usize>() {
        let mut places: Vec<usize> = (4096..8192).map(place::<LEN>).collect();
        assert!(places.windows(2).all(|two| two[0] * LEN / LINE != two[1] * LEN / LINE));
        assert!(
            places.iter().zip(4096..).all(|(at, number)| at * LEN / PAGE == number * LEN / PAGE)
        );
        places.sort_unstable();
        assert!(places.into_iter().eq(4096..8192));
    }

    #[test]
    fn neighbours_lie_apart_in_their_page_and_no_two_in_one_place() {
        check::<8>();
        check::<32>();
        assert!(place::<8>(usize::MAX) > usize::MAX - PAGE);
    }
}
