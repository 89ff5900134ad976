//! What the suites of tests have in common: a seed, a line for each test, and
//! the sum at the end.

use std::error::Error;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};

use crate::bench::place;

/// Only a hang takes so long, however busy the machine is. Waits are for a condition, and none for
/// what has to come is shorter: a verdict that rests on being quick is one on the machine.
pub(crate) const HANG: Duration = Duration::from_secs(300);

/// A seed for a run that was given none.
pub(crate) fn new_seed() -> Result<u32> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    // Short enough to be typed.
    Ok(now.subsec_micros())
}

/// The day, the distribution and the kernel without its builder's suffix.
pub(crate) fn host() -> Result<String> {
    let output = Command::new("sh")
        .args([
            "-c",
            ". /etc/os-release; echo \"$(date -u +%Y-%m-%d), $PRETTY_NAME, $(uname -sr | cut -d- -f1)\"",
        ])
        .output()?;
    ensure!(output.status.success(), "the name of this system cannot be found");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Plays a test, unless one of the commands that it needs is missing.
pub(crate) fn play(needs: &[&str], test: impl FnOnce() -> Result<String>) -> Outcome {
    if let Some(missing) = place::first_missing(needs) {
        return Outcome::Skipped(format!("{missing} is not installed"));
    }
    let start = Instant::now();
    let result = test();
    Outcome::of(result, start.elapsed())
}

/// The error of a test that cannot be played here, with what was lacking: it
/// counts as skipped.
#[derive(Debug)]
pub(crate) struct Lacking(pub(crate) String);

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Lacking {}

/// How a test ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed(String, Duration),
    Failed(anyhow::Error),
    Skipped(String),
}

impl Outcome {
    /// Of a test that returned a remark worth reading.
    pub(crate) fn of(result: Result<String>, took: Duration) -> Self {
        match result {
            Ok(remark) => Self::Passed(remark, took),
            Err(error) => match error.downcast_ref() {
                Some(Lacking(what)) => Self::Skipped(what.clone()),
                None => Self::Failed(error),
            },
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

/// The sum of a suite.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: u32,
    failed: u32,
    skipped: u32,
    failures: Vec<String>,
}

impl Summary {
    /// Counts a test, in one of its variants, and prints its line.
    pub(crate) fn add(&mut self, name: &str, variant: impl fmt::Display, outcome: Outcome) {
        println!("{name:<20} {variant:<10} {outcome}");
        match outcome {
            Outcome::Passed(..) => self.passed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Failed(_) => {
                self.failed += 1;
                self.failures.push(format!("{name} {variant}").trim().to_owned());
            }
        }
    }

    /// Prints the sum; its last line is `N passed, N failed, N skipped`.
    ///
    /// **Errors**: a test of this suite failed.
    pub(crate) fn conclude(&self, suite: &str, seed: Option<u32>) -> Result<()> {
        if self.failed > 0 {
            println!("failed: {}", self.failures.join(", "));
        }
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        if self.failed > 0 {
            let seed = seed.map(|seed| format!(" (seed {seed})")).unwrap_or_default();
            bail!("{} {suite} tests failed{seed}", self.failed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_once() {
        let mut summary = Summary::default();
        summary.add("a", "both", Outcome::Passed(String::new(), Duration::ZERO));
        summary.add("b", "", Outcome::Skipped("no gcc".to_owned()));
        assert!(summary.conclude("small", Some(1)).is_ok());
        summary.add("c", "smc/plain", Outcome::Failed(anyhow::anyhow!("wrong")));
        assert_eq!((summary.passed, summary.failed, summary.skipped), (1, 1, 1));
        assert_eq!(summary.failures, ["c smc/plain"]);
        assert!(summary.conclude("small", Some(1)).is_err());
    }

    #[test]
    fn what_a_machine_lacks_is_no_failure() {
        let outcome = play(&["sh"], || bail!(Lacking("root".to_owned())));
        assert!(matches!(outcome, Outcome::Skipped(what) if what == "root"));
        let outcome = play(&["no-such-command"], || Ok(String::new()));
        assert!(matches!(outcome, Outcome::Skipped(_)));
        assert!(matches!(play(&[], || bail!("wrong")), Outcome::Failed(_)));
    }
}
