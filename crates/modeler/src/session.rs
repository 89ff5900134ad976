//! The coordinator: which run is made when, and what a document is made of.
//!
//! # The order of runs
//!
//! Each entry of a plan is run to its end before the next. Within it transports take
//! turns in the order of the plan, `A B A B …`; a turn of all is a *pair*, and what
//! is compared later is the two runs of one pair. Entries that differ by the filter alone
//! take turns as well, so a pair has a run of each transport under each filter.
//!
//! The order is the same in every pair. Turning it round (`A B B A`) would cancel a
//! steady drift, but it also makes two kinds of pairs: half of the runs would follow a
//! run of their own transport, half one of another, with the clock, the caches and
//! the sockets in `TIME_WAIT` that it leaves behind. The ratios would be a mixture, and
//! the median of five of them would belong to whichever kind has three. As it is, what
//! a run inherits is the same in every pair; it is there for the warm-up to wear off.
//! What remains of drift is small and known. The second of k transports is late by one
//! run of k · n, so of a drift of x % over all of them its ratio takes x / (k · n) %: for
//! two transports and five pairs half a percent at the 5 % from which on a cell is
//! called *drifting*. And a cold start spoils the first pair alone, which the median
//! leaves out.
//!
//! # When a run fails
//!
//! It is tried once more. When that fails too, or when trying again is of no use
//! ([`RunError::Hopeless`]), this transport is given up for this entry: it keeps the
//! runs that it has, and the others go on. Every failure is kept, whether or not the
//! second attempt was better ([`SessionOutcome::failures`]).
//!
//! # What is where
//!
//! Sockets, processes and clocks are behind [`Executor`], so that everything here is
//! tested without them. [`RunOutcome::from_parts`] turns what workers and hosts say of
//! one run into its figures; `cell` gathers the runs of a transport, `comparison` sets
//! one against the baseline.

mod cell;
mod comparison;
pub mod histogram;
mod outcome;

use std::fmt;
use std::time::Duration;

use thiserror::Error;

pub use comparison::PublishedFor;
pub use outcome::{OutcomeError, RunOutcome};

use self::cell::Series;
use self::comparison::{comparison, filtered};
use crate::plan::{Entry, Extent, Model, Pace, Plan, Transport};
use crate::result::{self, Cell, Comparison, Document, Filtered, Machine};

/// Makes single runs.
pub trait Executor {
    /// Makes one run.
    ///
    /// # Errors
    /// There are no figures; the error says whether another attempt is of use.
    fn run(&mut self, entry: &Entry, transport: Transport) -> Result<RunOutcome, RunError>;
}

/// Why a run has no figures. The texts are the executor's.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// Another attempt may succeed: a worker died, an address was in use.
    #[error("{0}")]
    Failed(String),
    /// No run of this entry over this transport will succeed: a privilege is missing,
    /// there are too few descriptors for its clients.
    #[error("{0}")]
    Hopeless(String),
}

impl From<OutcomeError> for RunError {
    fn from(error: OutcomeError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Hears how far a session is.
pub trait Observer {
    /// Before the first run.
    fn session_begins(&mut self, _estimate: &Estimate) {}

    /// Before each attempt at a run.
    fn run_begins(&mut self, _run: &Run<'_>) {}

    /// After each attempt at a run.
    fn run_ends(&mut self, _run: &Run<'_>, _result: Result<&RunOutcome, &RunError>) {}
}

/// One run of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Run<'a> {
    /// Its number in the plan: `0 <= number < Estimate::runs`. Numbers rise; those of
    /// runs that are given up are left out.
    pub number: u64,
    /// What is run.
    pub entry: &'a Entry,
    /// Over which transport.
    pub transport: Transport,
    /// The number of its pair, from 0.
    pub pair: u32,
    /// 1, or 2 when the first attempt has failed.
    pub attempt: u32,
}

/// What a plan will take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Runs in all.
    pub runs: u64,
    /// How long they will take together; `None` when a run lasts for a number of
    /// transactions in a closed loop, because how long these take is not known.
    pub duration: Option<Duration>,
}

impl Estimate {
    /// The estimate for a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let turns = plan.runs.saturating_mul(plan.transports.len() as u32);
        let duration = plan.entries.iter().try_fold(Duration::ZERO, |sum, entry| {
            sum.checked_add(duration(entry)?.checked_mul(turns)?)
        });
        Self { runs: plan.entries.len() as u64 * u64::from(turns), duration }
    }
}

/// How long one run of an entry takes.
fn duration(entry: &Entry) -> Option<Duration> {
    let running = match (entry.conduct.extent, entry.conduct.pace) {
        (Extent::Time { warmup, measured }, _) => warmup.checked_add(measured)?,
        (Extent::Count { warmup, measured }, Pace::Open { per_second }) => {
            let transactions =
                (warmup as f64 + measured as f64) * f64::from(entry.workload.clients);
            Duration::try_from_secs_f64(transactions / per_second).ok()?
        }
        (Extent::Count { .. }, Pace::Closed) => return None,
    };
    running.checked_add(START_AND_STOP)
}

/// A plan that is being carried out.
pub struct Session<'a> {
    plan: &'a Plan,
    executor: &'a mut dyn Executor,
    observer: &'a mut dyn Observer,
    outcome: SessionOutcome,
}

/// What came of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionOutcome {
    /// One for each entry and transport with at least one run, in the plan's order.
    pub results: Vec<Cell>,
    /// Each transport against the baseline, where they have pairs.
    pub comparisons: Vec<Comparison>,
    /// Each filter against none, where they have pairs.
    pub filtered: Vec<Filtered>,
    /// Every attempt that failed, in order.
    pub failures: Vec<Failure>,
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The workload's name.
    pub workload: String,
    /// How the clients were made.
    pub model: Model,
    /// Rules of the filter; 0: there was to be none.
    pub filter_rules: u32,
    /// How the bytes were to travel.
    pub transport: Transport,
    /// The number of its pair, from 0.
    pub pair: u32,
    /// What went wrong.
    pub error: RunError,
    /// This transport got no further run for this workload.
    pub given_up: bool,
}

impl<'a> Session<'a> {
    /// A session that will carry out this plan.
    pub fn new(
        plan: &'a Plan,
        executor: &'a mut dyn Executor,
        observer: &'a mut dyn Observer,
    ) -> Self {
        Self { plan, executor, observer, outcome: SessionOutcome::default() }
    }

    /// Makes all runs of the plan.
    #[must_use]
    pub fn run(mut self, published: &PublishedFor<'_>) -> SessionOutcome {
        self.observer.session_begins(&Estimate::of(self.plan));
        let (plan, mut number) = (self.plan, 0);
        for entries in plan.entries.chunk_by(Entry::differs_by_filter_alone) {
            let all = self.all_runs(&mut number, entries);
            let cells: Vec<Cell> = all.into_iter().filter_map(Series::into_cell).collect();
            for entry in entries {
                let of_entry = cells.iter().filter(|cell| cell.filter_rules == entry.filter_rules);
                let of_entry: Vec<&Cell> = of_entry.collect();
                self.outcome.comparisons.extend(comparisons(plan, entry, &of_entry, published));
            }
            self.outcome.filtered.extend(under_filters(&cells));
            self.outcome.results.extend(cells);
        }
        self.outcome
    }

    /// The runs of entries that take turns over all transports, A B A B. `number` is that of the first, then of the
    /// one behind the last.
    fn all_runs(&mut self, number: &mut u64, entries: &'a [Entry]) -> Vec<Series<'a>> {
        let plan = self.plan;
        let of_entry =
            |entry| plan.transports.iter().map(move |&transport| Series::new(entry, transport));
        let mut all: Vec<Series<'a>> = entries.iter().flat_map(of_entry).collect();
        for pair in 0..plan.runs {
            for series in &mut all {
                let (entry, transport) = (series.entry(), series.transport());
                let run = Run { number: *number, entry, transport, pair, attempt: 1 };
                if !series.is_given_up() {
                    self.run_until_done(run, series);
                }
                *number += 1;
            }
        }
        all
    }

    /// One run, and a second attempt if the first fails.
    fn run_until_done(&mut self, mut run: Run<'_>, series: &mut Series<'_>) {
        loop {
            self.observer.run_begins(&run);
            let result = self.executor.run(run.entry, run.transport);
            self.observer.run_ends(&run, result.as_ref());
            let error = match result {
                Ok(outcome) => return series.push(run.pair, outcome),
                Err(error) => error,
            };
            let given_up = run.attempt == ATTEMPTS || matches!(error, RunError::Hopeless(_));
            self.outcome.failures.push(Failure::new(&run, error, given_up));
            if given_up {
                return series.give_up();
            }
            run.attempt += 1;
        }
    }
}

fn comparisons(
    plan: &Plan,
    entry: &Entry,
    cells: &[&Cell],
    published: &PublishedFor<'_>,
) -> Vec<Comparison> {
    let Some(baseline) = cells.iter().find(|cell| cell.transport == plan.baseline) else {
        return Vec::new();
    };
    cells
        .iter()
        .filter(|cell| cell.transport != plan.baseline)
        .filter_map(|cell| comparison(entry, cell, baseline, published))
        .collect()
}

/// Of cells that differ by the filter and the transport alone, each with a filter against that without.
fn under_filters(cells: &[Cell]) -> impl Iterator<Item = Filtered> {
    let without = |with: &Cell| {
        cells.iter().find(|cell| cell.filter_rules == 0 && cell.transport == with.transport)
    };
    cells
        .iter()
        .filter(|cell| cell.filter_rules > 0)
        .filter_map(move |with| filtered(with, without(with)?))
}

impl SessionOutcome {
    /// The document of this session. `options` are words that `sidestep bench` takes.
    ///
    /// Failures have no place of their own in the document; they join the machine's
    /// warnings, so that no reader takes a missing run for one that was not wanted.
    #[must_use]
    pub fn into_document(
        self,
        mut machine: Machine,
        options: Vec<String>,
        suite: Option<String>,
    ) -> Document {
        machine.warnings.extend(self.failures.iter().map(ToString::to_string));
        Document {
            version: result::VERSION,
            machine,
            options,
            suite,
            results: self.results,
            comparisons: self.comparisons,
            filtered: self.filtered,
        }
    }
}

impl Failure {
    fn new(run: &Run<'_>, error: RunError, given_up: bool) -> Self {
        Self {
            workload: run.entry.workload.to_string(),
            model: run.entry.model,
            filter_rules: run.entry.filter_rules,
            transport: run.transport,
            pair: run.pair,
            error,
            given_up,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under = match self.filter_rules {
            0 => String::new(),
            rules => format!(" under {rules} filter rules"),
        };
        write!(
            f,
            "{} over {} ({}){under}, run {}: {}; {}",
            self.workload,
            self.transport,
            self.model,
            self.pair + 1,
            self.error,
            if self.given_up { "no further run was made of it" } else { "it was tried once more" },
        )
    }
}

/// Attempts at each run.
const ATTEMPTS: u32 = 2;

/// To start workers, connect and stop them: what it takes for ten clients. Only for
/// the estimate.
const START_AND_STOP: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
