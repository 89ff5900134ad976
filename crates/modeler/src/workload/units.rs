//! Units of lengths: what a KB has in papers, and what in the SI.

/// How many bytes the units of a name stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Units {
    /// As in IBM's papers: a KB has 1024 bytes, a MB 1 000 000, a GB 10⁹.
    #[default]
    Ibm,
    /// As in the SI: a KB has 1000 bytes, a MB 1 000 000, a GB 10⁹.
    Si,
}

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MB: u64 = 1_000_000;
pub(super) const GB: u64 = 1_000_000_000;
