//! Whether the connections of a run under Sidestep were what the run is about: moved.
//!
//! With `-w` a program says of each connection that it has made warm whether the kernel's socket
//! carries the mark of one whose bytes have left TCP. A run in which nothing moves would
//! pass every test, because all of them state what TCP does.
//!
//! All of them have to; there is no test for which it would be right to stay. Not asked are
//! cold connections, which move in the middle of a test if it is long enough (each test has warm
//! ones as well), and tests that make their own sockets (`ALONE`): many of those are
//! about connections that stay, or are no connections at all.

use std::collections::BTreeSet;

/// What a program has said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    moved: usize,
    /// Tests of which a connection stayed on TCP.
    stayed: BTreeSet<String>,
}

impl Moved {
    pub(super) fn parse(output: &str) -> Self {
        let mut seen = Self::default();
        for line in output.lines().filter_map(|line| line.strip_prefix("witness ")) {
            let test = line.split(' ').next().unwrap_or_default();
            if line.ends_with(": moved") {
                seen.moved += 1;
            } else {
                seen.stayed.insert(test.to_owned());
            }
        }
        seen
    }

    /// Connections that have moved.
    pub(super) fn count(&self) -> usize {
        self.moved
    }

    /// The tests of which one has not; `None`: there is none.
    pub(super) fn complaint(&self) -> Option<String> {
        let tests: Vec<&str> = self.stayed.iter().map(String::as_str).collect();
        (!tests.is_empty()).then(|| format!("stayed on TCP: {}", tests.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_stays_on_tcp_is_a_complaint() {
        let seen = Moved::parse(
            "witness a (same thread, warm, client, v4): moved\n\
             a [same thread, warm, client, v4]\n\
             witness b (same thread, warm, client, v4): stayed\n",
        );
        assert_eq!(seen.count(), 1);
        assert_eq!(seen.complaint().as_deref(), Some("stayed on TCP: b"));
        assert_eq!(Moved::parse("2 passed, 0 failed\n"), Moved::default());
    }
}
