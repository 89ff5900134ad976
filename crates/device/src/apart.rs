//! A table of words by descriptor, in which neighbours share no cache line.
//!
//! Neighbouring descriptors are opened and closed by different threads, and each time all that
//! lies in the same cache line would be lost to the other CPUs. So an entry lies in the page in
//! which it would lie anyway, and its neighbour one line further.

/// Words of a cache line, and of a page.
const LINE: usize = 64 / size_of::<usize>();
const PAGE: usize = 4096 / size_of::<usize>();

/// Where the word of a number lies in a table that begins with a page.
#[must_use]
#[inline]
pub const fn place(number: usize) -> usize {
    const LINES: usize = PAGE / LINE;
    let (line, entry) = (number % LINES, number % PAGE / LINES);
    number - number % PAGE + line * LINE + entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn neighbours_lie_apart_in_their_page_and_no_two_in_one_place() {
        let mut places: Vec<usize> = (4096..8192).map(place).collect();
        assert!(places.windows(2).all(|two| two[0] / LINE != two[1] / LINE));
        assert!(places.iter().zip(4096..).all(|(at, number)| at / PAGE == number / PAGE));
        places.sort_unstable();
        assert!(places.into_iter().eq(4096..8192));
        assert!(place(usize::MAX) > usize::MAX - PAGE);
    }
}
