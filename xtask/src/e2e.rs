//! `cargo xtask e2e`: unmodified programs talk to each other, both under
//! Sidestep or only one of them, and every byte is checked.
//!
//! A test passes when the payloads are right **and** `sidestep ss`, asked
//! while the connections were open, has shown them to be what they ought to
//! be: SMC-D between two programs under Sidestep, TCP with anybody else.
//! What a machine lacks is said and counts as skipped.

mod cases;
mod containers;
mod demotion;
mod distant;
mod distributor;
mod figures;
mod filter;
mod hosts;
mod learning;
mod metrics;
mod outsiders;
mod pid_namespaces;
mod policy;
mod reload;
mod stage;
mod tap;
mod tcp_option;
mod tls;
mod units;
mod versions;
mod vip;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::bench::launch::{LaunchOptions, Launcher};
use crate::bench::place;
use crate::leftovers::Leftovers;
use crate::suite::{self, Summary};
use crate::witness::Witness;
use cases::{CASES, Case};
use stage::{House, Stage};

/// Options of `cargo xtask e2e`.
#[derive(Args, Debug)]
pub(crate) struct E2eOptions {
    /// Only tests with one of these texts in their names
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,

    /// None with one of these texts in its name
    #[arg(long, value_name = "FILTER", num_args = 1..)]
    except: Vec<String>,

    /// Do not ask `sidestep ss` what the connections were
    #[arg(long)]
    no_proof: bool,

    /// Seed of payloads and moments of death [default: a new one]
    #[arg(long)]
    seed: Option<u32>,

    /// How many peers are killed
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Have tshark look at what goes between hosts in all tests that have any, not in `hosts` only
    #[arg(long)]
    captures: bool,

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
            let stage = Stage { house: &house, mix: *mix };
            summary.add(case.name, mix, suite::play(case.needs, || (case.play)(&stage)));
        }
    }
    let nothing_left = || leftovers.check().map(|()| String::new());
    summary.add("nothing left behind", "", suite::play(&[], nothing_left));
    summary.conclude("end-to-end", Some(house.seed))
}

impl E2eOptions {
    fn wants(&self, case: &Case) -> bool {
        let has = |filters: &[String]| filters.iter().any(|it| case.name.contains(it.as_str()));
        (self.filters.is_empty() || has(&self.filters)) && !has(&self.except)
    }

    fn house(&self) -> Result<House> {
        let repo = place::repo_root()?;
        let launcher = Launcher::new(&self.launch, &repo)?.eager();
        Ok(House {
            witness: self.witness(&launcher)?,
            launcher,
            scripts: repo.join("tests/e2e"),
            scratch: self.scratch(&repo)?,
            seed: self.seed.map_or_else(suite::new_seed, Ok)?,
            rounds: self.rounds,
            captures: self.captures,
        })
    }

    /// Those with some texts in their names, and those without, may go on side by side.
    fn scratch(&self, repo: &Path) -> Result<PathBuf> {
        let others = if self.except.is_empty() { "" } else { "-others" };
        place::scratch_dir(repo, &format!("sidestep-e2e{others}"))
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
