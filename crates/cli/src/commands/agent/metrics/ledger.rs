//! What programs have had since the agent began to look, by their names: sums that only grow,
//! whoever ends.
//!
//! Of each program the ledger knows how far it has been entered, so what it had before the
//! first look counts in full, and what came since the last one counts once.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::rc::Rc;

use sidestep_observe::{Program, StateId, Watched};

use super::figures::{self, Figure};

/// See the [module](self).
#[derive(Default)]
pub(super) struct Ledger {
    /// Programs of the last look.
    known: HashMap<StateId, Account>,
    sums: BTreeMap<Rc<str>, Sums>,
}

/// What all programs of one name have had.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) figures: BTreeMap<Figure, u64>,
    /// Those that have ended.
    pub(super) ended: u64,
}

/// How far a program has been entered.
struct Account {
    /// The name under which it counts: its first one, because a program may change its name,
    /// and no sum may fall.
    name: Rc<str>,
    entered: BTreeMap<Figure, u64>,
    has_ended: bool,
}

impl Ledger {
    /// Enters what has come since the last look.
    pub(super) fn enter(&mut self, watched: &Watched) {
        let there = watched.snapshot.programs.iter().map(|program| (program, false));
        let gone = watched.gone.iter().map(|program| (program, true));
        let mut before = std::mem::take(&mut self.known);
        for (program, has_ended) in there.chain(gone) {
            let mut account = before
                .remove(&program.state)
                .unwrap_or_else(|| Account::new(self.name_for(&program.program)));
            let sums = self.sums.entry(Rc::clone(&account.name)).or_default();
            account.enter(program, has_ended, sums);
            self.known.insert(program.state, account);
        }
        for account in before.values().filter(|account| !account.has_ended) {
            self.sums.entry(Rc::clone(&account.name)).or_default().ended += 1;
        }
    }

    /// The name under which a program of the last look counts.
    pub(super) fn name_of(&self, state: StateId) -> Option<&Rc<str>> {
        self.known.get(&state).map(|account| &account.name)
    }

    pub(super) fn sums(&self) -> impl Iterator<Item = (&Rc<str>, &Sums)> {
        self.sums.iter()
    }

    fn name_for(&self, name: &str) -> Rc<str> {
        match self.sums.get_key_value(name) {
            Some((known, _)) => Rc::clone(known),
            None if self.sums.len() < NAMES_MAX => name.into(),
            None => OTHERS.into(),
        }
    }
}

impl Account {
    fn new(name: Rc<str>) -> Self {
        Self { name, entered: BTreeMap::new(), has_ended: false }
    }

    fn enter(&mut self, program: &Program, has_ended: bool, sums: &mut Sums) {
        for (figure, now) in figures::of(program, has_ended) {
            let entered = self.entered.entry(figure).or_default();
            let sum = sums.figures.entry(figure).or_default();
            // What falls is a claim that was never true, or a connection that was told twice.
            *sum = sum.saturating_add(now.saturating_sub(*entered));
            *entered = now.max(*entered);
        }
        sums.ended += u64::from(has_ended && !self.has_ended);
        self.has_ended = has_ended || self.has_ended;
    }
}

/// Names that are told apart. A user may call programs anything, and each
/// name costs Prometheus some hundred time series for as long as the agent runs.
const NAMES_MAX: usize = 64;

/// The name of those who came later.
const OTHERS: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_observe::{Counters, Snapshot, Totals};

    fn program(name: &str, wakeups: u64) -> Program {
        let counters = Counters { wakeups, ..Counters::default() };
        let totals = Totals { counters, ..Totals::default() };
        Program { program: name.to_owned(), totals, ..Program::default() }
    }

    fn watched(there: Vec<Program>, gone: Vec<Program>) -> Watched {
        Watched { snapshot: Snapshot { programs: there, ..Snapshot::default() }, gone }
    }

    fn wakeups(ledger: &Ledger, name: &str) -> u64 {
        ledger.sums[name].figures[&Figure::Wakeups]
    }

    #[test]
    fn no_sum_ever_falls() {
        let mut ledger = Ledger::default();
        let mut look = |there: &[u64], gone: &[u64]| {
            let programs = |all: &[u64]| all.iter().map(|n| program("a", *n)).collect();
            ledger.enter(&watched(programs(there), programs(gone)));
            (wakeups(&ledger, "a"), ledger.sums["a"].ended)
        };
        assert_eq!(look(&[7], &[]), (7, 0), "all it had before");
        assert_eq!(look(&[10], &[]), (10, 0));
        assert_eq!(look(&[9], &[]), (10, 0), "a word that was overwritten");
        assert_eq!(look(&[11], &[]), (11, 0));
        assert_eq!(look(&[], &[12]), (12, 1), "the last words");
        assert_eq!(look(&[], &[12]), (12, 1));
        assert_eq!(look(&[], &[]), (12, 1), "the number may be another program's now");
        assert_eq!(look(&[5], &[]), (17, 1));
        assert_eq!(look(&[], &[]), (17, 2), "nobody held on to it");
        assert_eq!(look(&[u64::MAX], &[]), (u64::MAX, 2));
    }

    #[test]
    fn a_program_keeps_the_name_it_was_seen_with() {
        let mut ledger = Ledger::default();
        ledger.enter(&watched(vec![program("before", 1)], Vec::new()));
        ledger.enter(&watched(vec![program("after", 3)], Vec::new()));
        assert_eq!(wakeups(&ledger, "before"), 3);
        assert_eq!(ledger.sums.len(), 1);
    }

    #[test]
    fn names_are_bounded() {
        let mut ledger = Ledger::default();
        for n in 0..3 * NAMES_MAX {
            ledger.enter(&watched(vec![program(&format!("p{n}"), 1)], Vec::new()));
            ledger.enter(&watched(Vec::new(), Vec::new()));
        }
        assert_eq!(ledger.sums.len(), NAMES_MAX + 1);
        assert_eq!(wakeups(&ledger, OTHERS), 2 * NAMES_MAX as u64);
    }
}
