//! `cargo xtask e2e`: unmodified programs talk to each other, both under
//! Sidestep or only one of them, and every byte is checked.
//!
//! A test passes when the payloads are right **and** `sidestep ss`, asked
//! while the connections were open, has shown them to be what they ought to
//! be: SMC-D between two programs under Sidestep, TCP with anybody else.
//! What a machine lacks is said and counts as skipped.

mod cases;
mod leftovers;
mod stage;
mod witness;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::bench::launch::{LaunchOptions, Launcher};
use crate::bench::place;
use cases::{CASES, Case};
use leftovers::Leftovers;
use stage::{House, Mix, Stage};
use witness::Witness;

/// A death is promised to be noticed this soon.
const NOTICE_LIMIT_MS: u32 = 100;

/// Options of `cargo xtask e2e`.
#[derive(Args, Debug)]
pub(crate) struct E2eOptions {
    /// Only tests with this text in their name
    #[arg(value_name = "FILTER")]
    filter: Option<String>,

    /// Do not ask `sidestep ss` what the connections were
    #[arg(long)]
    no_proof: bool,

    /// Seed of payloads and moments of death [default: a new one]
    #[arg(long)]
    seed: Option<u32>,

    /// How many peers are killed
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Added to the 100 ms within which a death must be noticed, for busy machines
    #[arg(long, value_name = "MS", default_value_t = 0)]
    slack_ms: u32,

    #[command(flatten)]
    launch: LaunchOptions,
}

/// Runs the tests and prints the summary; its last line is
/// `N passed, N failed, N skipped`.
///
/// **Errors**: a test failed, or nothing matched.
pub(crate) fn run(options: &E2eOptions) -> Result<()> {
    let chosen: Vec<&Case> = CASES.iter().filter(|it| options.wants(it)).collect();
    ensure!(!chosen.is_empty(), "no end-to-end test has that name");
    let house = options.house()?;
    println!("seed {} (repeat with --seed {0})", house.seed);
    let leftovers = Leftovers::note();
    let mut summary = Summary::default();
    for case in chosen {
        for mix in case.mixes {
            summary.add(case.name, Some(*mix), play(&house, case, *mix));
        }
    }
    let nothing_left = leftovers.check().map(|()| String::new());
    summary.add("nothing left behind", None, Outcome::of(nothing_left, Duration::ZERO));
    summary.print();
    if summary.failed > 0 {
        bail!("{} end-to-end tests failed (seed {})", summary.failed, house.seed);
    }
    Ok(())
}

impl E2eOptions {
    fn wants(&self, case: &Case) -> bool {
        self.filter.as_ref().is_none_or(|filter| case.name.contains(filter.as_str()))
    }

    fn house(&self) -> Result<House> {
        let repo = place::repo_root()?;
        let launcher = Launcher::new(&self.launch, &repo)?;
        Ok(House {
            witness: self.witness(&launcher)?,
            launcher,
            scripts: repo.join("tests/e2e"),
            scratch: place::scratch_dir(&repo, "sidestep-e2e")?,
            seed: self.seed.map_or_else(new_seed, Ok)?,
            rounds: self.rounds,
            notice_limit_ms: NOTICE_LIMIT_MS + self.slack_ms,
        })
    }

    fn witness(&self, launcher: &Launcher) -> Result<Witness> {
        if self.no_proof || launcher.is_plain() {
            return Ok(Witness::new(None));
        }
        let sidestep = launcher.observer().map(Path::to_path_buf);
        let sidestep =
            sidestep.context("there is no `sidestep` to ask: build it or say --no-proof")?;
        Ok(Witness::new(Some(sidestep)))
    }
}

fn new_seed() -> Result<u32> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    // Short enough to be typed.
    Ok(now.subsec_micros())
}

fn play(house: &House, case: &Case, mix: Mix) -> Outcome {
    if let Some(missing) = place::first_missing(case.needs) {
        return Outcome::Skipped(format!("{missing} is not installed"));
    }
    let start = Instant::now();
    let result = (case.play)(&Stage { house, mix });
    Outcome::of(result, start.elapsed())
}

/// How a test ended.
#[derive(Debug)]
enum Outcome {
    Passed(String, Duration),
    Failed(anyhow::Error),
    Skipped(String),
}

impl Outcome {
    fn of(result: Result<String>, took: Duration) -> Self {
        match result {
            Ok(remark) => Self::Passed(remark, took),
            Err(error) => Self::Failed(error),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(remark, took) => {
                write!(f, "passed {:4.1} s  {remark}", took.as_secs_f64())
            }
            Self::Failed(error) => write!(f, "FAILED {error:#}"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

#[derive(Debug, Default)]
struct Summary {
    passed: u32,
    failed: u32,
    skipped: u32,
    failures: Vec<String>,
}

impl Summary {
    /// Counts a test and prints its line.
    fn add(&mut self, name: &str, mix: Option<Mix>, outcome: Outcome) {
        let mix = mix.map_or_else(String::new, |mix| mix.to_string());
        println!("{name:<20} {mix:<10} {outcome}");
        match outcome {
            Outcome::Passed(..) => self.passed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Failed(_) => {
                self.failed += 1;
                self.failures.push(format!("{name} {mix}").trim().to_owned());
            }
        }
    }

    fn print(&self) {
        if self.failed > 0 {
            println!("failed: {}", self.failures.join(", "));
        }
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_once() {
        let mut summary = Summary::default();
        summary.add("a", Some(Mix::Both), Outcome::Passed(String::new(), Duration::ZERO));
        summary.add("b", None, Outcome::Skipped("no gcc".to_owned()));
        summary.add("c", Some(Mix::ServerOnly), Outcome::Failed(anyhow::anyhow!("wrong")));
        assert_eq!((summary.passed, summary.failed, summary.skipped), (1, 1, 1));
        assert_eq!(summary.failures, ["c smc/plain"]);
    }
}
