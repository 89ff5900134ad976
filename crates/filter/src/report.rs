//! What an operator should know of a list.

use crate::graph::Graph;
use crate::list::RuleList;
use crate::region::{Family, KEY_WORDS, Key, Ranked, Region};

/// What was seen when a list was compiled. Rules are told by their place in the list, from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rules that no packet gets to.
    pub unreached: Vec<Unreached>,
    /// Rules that are in many places of the graph, the worst first.
    pub costly: Vec<Costly>,
    /// Bytes of the graph.
    pub bytes: usize,
    /// Steps of the longest walk through it.
    pub steps: u32,
    /// Whether every rule was compared with all before it. In a list of many thousand that overlap
    /// it would take too long; then `unreached` may lack some.
    pub is_complete: bool,
}

/// A rule that no packet gets to: those before it match all that it would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// The rule.
    pub rule: usize,
    /// The one before it that matches all that it would; `None`: several do so together. Of such
    /// rules only those are found that the graph has no place for.
    pub by: Option<usize>,
    /// That one does the opposite.
    pub contradicts: bool,
}

/// A rule that is in many places of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costly {
    /// The rule.
    pub rule: usize,
    /// In how many.
    pub places: u32,
}

/// A rule in so many places is told.
const COSTLY: u32 = 64;
/// How many are told.
const COSTLY_MAX: usize = 10;
/// Comparisons of two rules: a tenth of a second.
const COMPARISONS_MAX: usize = 10_000_000;

impl Report {
    pub(crate) fn of(
        list: &RuleList,
        families: &[Ranked; 2],
        graph: &Graph,
        references: &[u32],
    ) -> Self {
        let mut search = Search { graph, left: COMPARISONS_MAX, is_complete: true };
        let mut fates = vec![None; list.rules.len()];
        for (family, ranked) in [Family::V4, Family::V6].iter().zip(families) {
            for (place, (rank, _)) in ranked.iter().enumerate() {
                let fate = search.fate(*family, ranked, place);
                let known = &mut fates[*rank as usize];
                *known = Some(known.map_or(fate, |known: Fate| known.or(fate)));
            }
        }
        let unreached = (0..).zip(&fates).filter_map(|(rule, fate)| {
            let by = match fate {
                Some(Fate::HiddenBy(by)) => Some(*by as usize),
                // In no leaf: each part of the space has a rule before it that covers the part.
                Some(Fate::Unknown) | None if references[rule] == 0 => None,
                _ => return None,
            };
            let action = |rule: usize| list.rules[rule].action;
            let contradicts = by.is_some_and(|by| action(by) != action(rule));
            Some(Unreached { rule, by, contradicts })
        });
        let costly =
            costliest(references).into_iter().map(|rule| Costly { rule, places: references[rule] });
        Self {
            unreached: unreached.collect(),
            costly: costly.filter(|it| it.places >= COSTLY).collect(),
            bytes: size_of_val(graph.nodes()),
            steps: graph.steps(),
            is_complete: search.is_complete,
        }
    }
}

/// The rules that are in most places, the worst first.
fn costliest(references: &[u32]) -> Vec<usize> {
    let mut rules: Vec<usize> = (0..references.len()).collect();
    rules.sort_by_key(|&rule| std::cmp::Reverse(references[rule]));
    rules.truncate(COSTLY_MAX);
    rules
}

/// What becomes of a rule in a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// A packet gets to it.
    Reached,
    /// This rule matches all that it would.
    HiddenBy(u32),
    /// Neither was found.
    Unknown,
}

impl Fate {
    /// That of a rule with regions in both families.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Reached, _) | (_, Self::Reached) => Self::Reached,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (hidden, Self::HiddenBy(_)) => hidden,
        }
    }
}

/// Looks for the fate of rules.
struct Search<'a> {
    graph: &'a Graph,
    /// Comparisons that may still be made.
    left: usize,
    is_complete: bool,
}

impl Search<'_> {
    fn fate(&mut self, family: Family, ranked: &Ranked, place: usize) -> Fate {
        let (rank, region) = &ranked[place];
        for corner in [corner(region, |low, _| low), corner(region, |_, high| high)] {
            let Some(first) = self.graph.lookup_key(family, corner).rule else { continue };
            if first as u32 == *rank {
                return Fate::Reached;
            }
            let by = ranked[..place].binary_search_by_key(&(first as u32), |(rank, _)| *rank);
            if by.is_ok_and(|by| ranked[by].1.covers(region)) {
                return Fate::HiddenBy(first as u32);
            }
        }
        if place > self.left {
            self.is_complete = false;
            return Fate::Unknown;
        }
        self.left -= place;
        let by = ranked[..place].iter().find(|(_, before)| before.covers(region));
        by.map_or(Fate::Unknown, |(by, _)| Fate::HiddenBy(*by))
    }
}

fn corner(region: &Region, end: impl Fn(u32, u32) -> u32) -> Key {
    let mut key = [0; KEY_WORDS];
    for (word, range) in key.iter_mut().zip(&region.0) {
        *word = end(range.low, range.high);
    }
    key
}
