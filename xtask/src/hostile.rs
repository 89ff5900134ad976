//! `cargo xtask hostile`: peers that break every rule, strangers, and machines
//! that have run out of something.
//!
//! A test passes when the victim lives and has lost nothing that it does not
//! get back, when honest clients beside the attack saw every byte right, and
//! when no call of anybody waited for longer than it may. What a machine lacks
//! is said and counts as skipped.

mod cases;
mod hardship;
mod mixed;
mod small_group;
mod sparse;
mod stage;
mod vitals;

use std::cell::Cell;
use std::path::Path;

use anyhow::{Result, ensure};
use clap::Args;

use crate::bench::launch::{LaunchOptions, Launcher};
use crate::bench::place;
use crate::leftovers::Leftovers;
use crate::suite::{self, Summary};
use crate::witness::Witness;
use cases::{CASES, Case};
use stage::{House, Stage};

/// Options of `cargo xtask hostile`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only tests with this text in their name
    #[arg(value_name = "FILTER")]
    filter: Option<String>,

    /// Seed of payloads and attacks [default: a new one]
    #[arg(long)]
    seed: Option<u32>,

    /// How long each attack lasts; what is counted grows with it
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,

    #[command(flatten)]
    launch: LaunchOptions,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("between 0.1 and 3600".to_owned()),
    }
}

/// Runs the tests and prints the summary; its last line is
/// `N passed, N failed, N skipped`.
///
/// **Errors**: a test failed, or nothing matched.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen: Vec<&Case> = CASES.iter().filter(|it| options.wants(it)).collect();
    ensure!(!chosen.is_empty(), "no hostile test has that name");
    let seed = options.seed.map_or_else(suite::new_seed, Ok)?;
    println!("seed {seed} (repeat with --seed {seed})");
    let house = options.house(&place::repo_root()?, seed)?;
    let leftovers = Leftovers::note();
    let mut summary = Summary::default();
    for case in chosen {
        for style in case.styles {
            let stage = Stage { house: &house, style: *style };
            // Each test for itself: with a filter it is the same as without.
            house.seed.set(seed);
            summary.add(case.name, style, suite::play(case.needs, || (case.play)(&stage)));
        }
    }
    let nothing_left = || leftovers.check().map(|()| String::new());
    summary.add("nothing left behind", "", suite::play(&[], nothing_left));
    summary.conclude("hostile", Some(seed))
}

impl Options {
    fn wants(&self, case: &Case) -> bool {
        self.filter.as_ref().is_none_or(|filter| case.name.contains(filter.as_str()))
    }

    fn house(&self, repo: &Path, seed: u32) -> Result<House> {
        let (sources, scratch) =
            (repo.join("tests/hostile"), place::scratch_dir(repo, "sidestep-hostile")?);
        let launcher = Launcher::new(&self.launch, repo)?.eager();
        Ok(House {
            witness: Witness::new(launcher.observer().map(Path::to_path_buf)),
            victim: place::compile_c(&sources.join("victim.c"), &scratch)?,
            client: place::compile_c(&sources.join("client.c"), &scratch)?,
            doomed: place::compile_c(&sources.join("doomed.c"), &scratch)?,
            scribbler: place::compile_c_library(&sources.join("scribbler.c"), &scratch)?,
            library: place::build_dir(repo).join("libsidestep.so"),
            late: Launcher::new(&self.launch, repo)?,
            datagrams: sources.join("datagrams.py"),
            scripted_client: sources.join("scripted_client.py"),
            scripted_server: sources.join("scripted_server.py"),
            scripts: sources,
            scratch,
            launcher,
            seconds: self.seconds,
            seed: Cell::new(seed),
        })
    }
}
