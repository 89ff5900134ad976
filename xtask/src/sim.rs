//! `cargo xtask sim`: simulated worlds by their seeds, on all CPUs.
//!
//! | worlds | what is simulated |
//! |---|---|
//! | `hosts` | two hosts that speak SMC-R, their adapters and a network |
//! | `agreement` | processes whose connections come to share memory |
//! | `cut-over` | a direction of an SMC-D connection that changes between TCP and the ring |
//! | `ends` | an SMC-D connection that ends, beside a model of TCP |
//!
//! They are tests of their crates: `cargo test` plays some of each kind. Here each process gets a
//! share of the seeds. A world that goes wrong prints the command that plays it again. With `--faults` mistakes
//! are planted one at a time, and for each it is printed which world finds it.

use std::ops::Range;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Of which kinds; all if none is given.
    #[arg(value_enum)]
    worlds: Vec<Worlds>,
    /// From the first, and before the last: 0..10000
    #[arg(long, default_value = "0..10000", value_parser = range)]
    seeds: Range<u64>,
    /// Plants mistakes instead, and looks for the first world that finds each.
    #[arg(long, conflicts_with = "seeds")]
    faults: bool,
}

/// A kind of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Worlds {
    /// Two hosts that speak SMC-R, their adapters and a network.
    Hosts,
    /// Processes whose connections come to share memory.
    Agreement,
    /// A direction of an SMC-D connection that changes between TCP and the ring.
    CutOver,
    /// An SMC-D connection that ends, beside a model of TCP.
    Ends,
}

/// Where worlds are played.
struct Place {
    package: &'static str,
    /// The test, and its function that plays the seeds of the variable.
    test: &'static str,
    plays: &'static str,
    seeds: &'static str,
    /// The function that plants mistakes, and the variable by which it begins with the first seed.
    plants: Option<(&'static str, &'static str)>,
}

impl Worlds {
    fn place(self) -> Place {
        match self {
            Self::Hosts => Place {
                package: "sidestep-engine",
                test: "table",
                plays: "worlds_by_seed",
                seeds: "SIDESTEP_TABLE_SEEDS",
                plants: None,
            },
            Self::Agreement => Place {
                package: "sidestep-proto",
                test: "agreement",
                plays: "both_ends_agree_or_both_stay_on_tcp",
                seeds: "SIDESTEP_AGREEMENT_SEEDS",
                plants: Some(("planted_faults_are_found", "SIDESTEP_AGREEMENT_FAULTS")),
            },
            Self::CutOver => Place {
                package: "sidestep-proto",
                test: "cut_over",
                plays: "every_byte_arrives_once_and_in_order",
                seeds: "SIDESTEP_CUT_OVER_SEEDS",
                plants: Some(("planted_faults_are_found", "SIDESTEP_CUT_OVER_FAULTS")),
            },
            Self::Ends => Place {
                package: "sidestep-proto",
                test: "ends",
                plays: "programs_are_told_what_tcp_tells_them",
                seeds: "SIDESTEP_ENDS_SEEDS",
                plants: Some(("planted_faults_are_found", "SIDESTEP_ENDS_FAULTS")),
            },
        }
    }
}

impl Place {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.args(["test", "--quiet", "--release", "--package", self.package]);
        command.args(["--test", self.test]).args(arguments);
        command
    }

    fn function(&self, name: &str) -> Command {
        self.command(&[name, "--", "--exact", "--nocapture"])
    }
}

fn range(text: &str) -> Result<Range<u64>> {
    let (first, last) = text.split_once("..").context("first..last is wanted")?;
    let (first, last) = (first.parse()?, last.parse()?);
    ensure!(first < last, "there is no seed in {text}");
    Ok(first..last)
}

/// Plays the worlds.
///
/// **Errors**: something is wrong in one of them, or no world finds a planted mistake.
pub(crate) fn run(options: &Options) -> Result<()> {
    let all = Worlds::value_variants();
    let kinds = if options.worlds.is_empty() { all } else { &options.worlds[..] };
    let mut wrong = Vec::new();
    for kind in kinds {
        let is_right = match options.faults {
            true => plant(*kind)?,
            false => play(*kind, &options.seeds)?,
        };
        if !is_right {
            wrong.push(format!("{kind:?}"));
        }
    }
    ensure!(wrong.is_empty(), "something is wrong, see above: {}", wrong.join(", "));
    Ok(())
}

fn play(kind: Worlds, seeds: &Range<u64>) -> Result<bool> {
    let place = kind.place();
    // Once, so that the processes do not wait for each other.
    crate::run(&mut place.command(&["--no-run"]))?;
    let processes = thread::available_parallelism().map_or(1, usize::from);
    let play = |seeds: Range<u64>| {
        let range = format!("{}..{}", seeds.start, seeds.end);
        place.function(place.plays).env(place.seeds, range).spawn()
    };
    let children: Vec<_> = shares(seeds, processes as u64).into_iter().map(play).collect();
    let mut are_right = true;
    for child in children {
        are_right &= child.context("cargo")?.wait()?.success();
    }
    println!("{kind:?}: {} worlds", seeds.end - seeds.start);
    Ok(are_right)
}

fn plant(kind: Worlds) -> Result<bool> {
    let place = kind.place();
    let Some((function, from_the_first)) = place.plants else {
        println!("{kind:?}: no mistakes are planted in these worlds");
        return Ok(true);
    };
    println!("{kind:?}:");
    Ok(place.function(function).env(from_the_first, "all").status().context("cargo")?.success())
}

/// As many shares of about one size, none of them empty.
fn shares(seeds: &Range<u64>, count: u64) -> Vec<Range<u64>> {
    let share = (seeds.end - seeds.start).div_ceil(count);
    let begins = seeds.clone().step_by(share as usize);
    begins.map(|first| first..(first + share).min(seeds.end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_in_one_share() {
        assert_eq!(shares(&(0..10), 3), [0..4, 4..8, 8..10]);
        assert_eq!(shares(&(7..9), 4), [7..8, 8..9]);
        assert!(range("5..5").is_err() && range("5").is_err());
        assert_eq!(range("2..10").unwrap(), 2..10);
    }
}
