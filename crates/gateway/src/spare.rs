//! A descriptor in reserve: without any left, who waits to be accepted could not even be turned away,
//! and would be reported for ever.

use std::fs::File;

/// Held until it is needed.
#[derive(Debug)]
pub(crate) struct Spare(Option<File>);

impl Spare {
    pub(crate) fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Makes room for a descriptor while `turn_away` accepts a caller and closes that.
    pub(crate) fn lend(&mut self, turn_away: impl FnOnce()) {
        self.0 = None;
        turn_away();
        *self = Self::new();
    }
}
