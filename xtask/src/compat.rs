//! `cargo xtask compat`: strangers' programs of as many kinds as possible, one
//! after the other, under Sidestep.
//!
//! Each is started as its manual says, driven by a real client, and what
//! arrived is compared byte for byte, or by the program's own check.
//! `sidestep ss --totals`, asked again and again meanwhile, has to show that its
//! connections moved to shared memory; of a program for which Sidestep can do
//! nothing, that they did not. `--write` makes docs/compatibility.md of it.
//!
//! The end-to-end tests (`cargo xtask e2e`) go deeper with fewer programs.

mod databases;
mod document;
mod messages;
mod musl;
mod programs;
mod runtimes;
mod site;
mod tools;
mod transfer;
mod web;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;

use crate::bench::launch::{LaunchOptions, Launcher};
use crate::bench::place;
use crate::debian;
use crate::leftovers::Leftovers;
use crate::posix::Libc;
use crate::suite::{self, Outcome, Summary};
use crate::witness::{Sums, Tally, Witness};
use document::Row;
use programs::{Entry, PROGRAMS};
use site::{House, Site};

/// Options of `cargo xtask compat`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only programs with this text in their name
    #[arg(value_name = "FILTER")]
    filter: Option<String>,

    /// Print the programs and their models, and run nothing
    #[arg(long)]
    list: bool,

    /// Only those that take a few seconds
    #[arg(long)]
    short: bool,

    /// Programs of this C library; those of musl are built first
    #[arg(long, value_enum, default_value_t = Libc::Glibc)]
    libc: Libc,

    /// Write docs/compatibility.md
    #[arg(long, conflicts_with_all = ["filter", "short", "plain", "libc"])]
    write: bool,

    /// Seed of payloads [default: a new one]
    #[arg(long)]
    seed: Option<u32>,

    #[command(flatten)]
    launch: LaunchOptions,
}

/// Tries the programs and prints the summary; its last line is
/// `N passed, N failed, N skipped`.
///
/// **Errors**: a program failed, or nothing matched.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen: Vec<&Entry> = PROGRAMS.iter().filter(|it| options.wants(it)).collect();
    ensure!(!chosen.is_empty(), "no program has that name");
    if options.list {
        chosen.iter().for_each(|entry| println!("{:<20} {}", entry.name, entry.model));
        return Ok(());
    }
    let house = options.house()?;
    println!("seed {} (repeat with --seed {0})", house.seed);
    let leftovers = Leftovers::note();
    let (mut summary, mut rows) = (Summary::default(), Vec::new());
    for entry in chosen {
        let outcome = play(&house, entry);
        rows.push(Row::new(entry, &outcome));
        summary.add(entry.name, "", outcome);
    }
    let nothing_left = || leftovers.check().map(|()| String::new());
    summary.add("nothing left behind", "", suite::play(&[], nothing_left));
    if options.write {
        document::write(&rows)?;
    }
    summary.conclude("compatibility", Some(house.seed))
}

impl Options {
    fn wants(&self, entry: &Entry) -> bool {
        let is_named = |filter: &String| entry.name.contains(filter.as_str());
        let is_built = self.libc == Libc::Glibc || musl::is_tried(entry);
        self.filter.as_ref().is_none_or(is_named) && (entry.short || !self.short) && is_built
    }

    fn house(&self) -> Result<House> {
        let repo = place::repo_root()?;
        let launcher = Launcher::new(&self.launch, &repo)?.eager();
        let sidestep = launcher.observer().map(Path::to_path_buf);
        ensure!(sidestep.is_some() || launcher.is_plain(), "there is no `sidestep` to ask");
        Ok(House {
            launcher,
            witness: Witness::new(sidestep),
            scripts: repo.join("tests"),
            scratch: place::scratch_dir(&repo, "sidestep-compat")?,
            programs: match self.libc {
                Libc::Glibc => None,
                Libc::Musl => Some(musl::built(&place::target_dir(&repo))?),
            },
            seed: self.seed.map_or_else(suite::new_seed, Ok)?,
        })
    }
}

fn play(house: &House, entry: &Entry) -> Outcome {
    if let Err(error) = debian::ensure(entry.packages) {
        return Outcome::Skipped(format!("{error:#}"));
    }
    let start = Instant::now();
    let result = try_out(house, entry);
    Outcome::of(result, start.elapsed())
}

fn try_out(house: &House, entry: &Entry) -> Result<String> {
    let site = Site::create(house, entry.name, entry.refuses_root)?;
    let compared = (entry.play)(&site)?;
    let proof = if house.witness.sees() { prove(&site.tally(), entry)? } else { "plain".into() };
    Ok(format!("{proof}; {compared}"))
}

/// What the connections were.
///
/// **Errors**: not what they were to be.
fn prove(seen: &Tally, entry: &Entry) -> Result<String> {
    if entry.stays_on_tcp.is_some() {
        ensure!(seen.all_smc() == 0, "there were SMC-D connections ({seen})");
        return Ok("no SMC-D".to_owned());
    }
    let mut told = Vec::new();
    for program in entry.observed {
        let Sums { smc, tcp } = seen.of(program);
        ensure!(smc > 0, "{program} has no SMC-D connection ({seen})");
        told.push(match tcp {
            0 => format!("{program} {smc} SMC-D"),
            _ => format!("{program} {smc} SMC-D, {tcp} TCP ({})", seen.reasons()),
        });
    }
    Ok(told.join(", "))
}
