//! `cargo xtask sim`: worlds of two hosts by their seeds, on all CPUs.
//!
//! The worlds are those of `crates/engine/tests/table`, of which `cargo test` plays two hundred. Each
//! process gets a share of the seeds; one that finds something wrong goes on with the others, and
//! names the seeds at its end.

use std::ops::Range;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// From the first, and before the last: 0..10000
    #[arg(long, default_value = "0..10000", value_parser = range)]
    seeds: Range<u64>,
}

fn range(text: &str) -> Result<Range<u64>> {
    let (first, last) = text.split_once("..").context("first..last is wanted")?;
    let (first, last) = (first.parse()?, last.parse()?);
    ensure!(first < last, "there is no seed in {text}");
    Ok(first..last)
}

/// Plays the worlds.
///
/// **Errors**: something is wrong in one of them.
pub(crate) fn run(options: &Options) -> Result<()> {
    // Once, so that the processes do not wait for each other.
    crate::run(worlds().arg("--no-run"))?;
    let processes = thread::available_parallelism().map_or(1, usize::from);
    let play = |seeds: Range<u64>| {
        worlds()
            .args(["worlds_by_seed", "--", "--nocapture"])
            .env("SIDESTEP_TABLE_SEEDS", format!("{}..{}", seeds.start, seeds.end))
            .spawn()
    };
    let children: Vec<_> = shares(&options.seeds, processes as u64).into_iter().map(play).collect();
    let mut are_right = true;
    for child in children {
        are_right &= child.context("cargo")?.wait()?.success();
    }
    ensure!(are_right, "something is wrong in the worlds whose seeds stand above");
    println!("{} worlds", options.seeds.end - options.seeds.start);
    Ok(())
}

fn worlds() -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "--release", "--package", "sidestep-engine"]);
    command.args(["--test", "table"]);
    command
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
