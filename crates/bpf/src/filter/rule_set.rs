//! What is put into force.

use sidestep_filter::Graph;

use super::groups::GroupNumbers;
use super::hits::Counters;
use super::log::Identity;

/// What is put into force.
#[derive(Clone, Copy, Debug)]
pub struct RuleSet<'a> {
    /// The rules, compiled.
    pub graph: &'a Graph,
    /// How many they are.
    pub rules: usize,
    /// What the list is called.
    pub identity: Identity,
    /// The control groups that the rules name.
    pub groups: &'a GroupNumbers,
}

impl RuleSet<'_> {
    pub(super) fn counters(&self) -> Counters {
        // Without a number of CPUs they share.
        Counters::of(self.rules, aya::util::nr_cpus().unwrap_or(1))
    }
}
