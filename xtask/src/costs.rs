//! `cargo xtask costs`: what a message and a connection cost, counted and not timed.
//!
//! Times differ from machine to machine and from minute to minute. The instructions that a program executes do not, nor
//! do its system calls: a change that makes a message dearer shows at once, on a busy machine as well. What they do not
//! show is how long memory and other CPUs let an instruction wait; that is for `cargo xtask bench`.
//!
//! `bench/costs.jsonl` is the record: a line of JSON for each change that has moved a count. What is counted here is
//! compared with its last line, and a change that is dearer by more than [`TOLERANCE`] has to say why in a line of its own:
//! `cargo xtask costs --record WHY`. `docs/images/costs.svg` shows them all.

mod picture;
mod record;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::bench::place;
use crate::callgrind::{self, Count};
use record::{Cost, Costs, Record};

#[derive(Args)]
pub(crate) struct Options {
    /// Writes a line into the record: the change, in a few words.
    #[arg(long, value_name = "CHANGE")]
    record: Option<String>,
    /// Counts this libsidestep.so, of another build.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// How much dearer than on record is not told: compilers inline a little differently when anything changes.
const TOLERANCE: f64 = 0.03;

/// Rounds of which Callgrind counts the instructions.
const ROUNDS: u64 = 1000;

/// The system calls of so many rounds are those of a program that makes the more of them, less those of one that makes
/// the fewer: the beginning and the end of a program are in both.
const ROUNDS_TRACED: [u64; 2] = [500, 1500];

/// What is counted: the words for people, and what `tests/costs/costs.c` calls it.
struct Kind {
    name: &'static str,
    kind: &'static str,
    functions: &'static [&'static str],
    /// `SIDESTEP_OPTIONS`.
    options: &'static str,
}

const MOVES: &str = "promotion=early";
const MESSAGE: &[&str] = &["counted_send", "counted_receive"];
const CONNECTION: &[&str] = &["counted_connection"];

#[rustfmt::skip]
const KINDS: [Kind; 5] = [
    Kind { name: "64 B, sent and received", kind: "message", functions: MESSAGE, options: MOVES },
    Kind { name: "32 KB, sent and received", kind: "bulk", functions: MESSAGE, options: MOVES },
    Kind { name: "64 B through a pipe", kind: "pipe", functions: &["counted_pipe"], options: MOVES },
    Kind { name: "a connection that moves", kind: "connection", functions: CONNECTION, options: MOVES },
    Kind { name: "a connection that stays on TCP", kind: "connection", functions: CONNECTION, options: "" },
];

/// Counts, prints, and compares with the record or adds to it. Without Valgrind, strace or a C compiler it says so.
///
/// **Errors**: something is dearer than on record; the text says what to do.
pub(crate) fn run(options: &Options) -> Result<()> {
    let repo = place::repo_root()?;
    if let Some(missing) = callgrind::missing() {
        println!("costs: skipped: {missing}");
        return Ok(());
    }
    let library = match &options.library {
        Some(library) => fs::canonicalize(library).context("--library")?,
        None => callgrind::shipped_library(&repo)?,
    };
    let counted = Record { costs: count(&repo, &library)?, ..Record::of_today()? };
    let mut records = record::read(&repo)?;
    print(&counted, records.last());
    if let Some(change) = &options.record {
        records.push(Record { change: change.clone(), ..counted });
        return record::write(&repo, &records);
    }
    let dearer = records.last().map_or_else(Vec::new, |last| counted.dearer_than(last, TOLERANCE));
    ensure!(
        dearer.is_empty(),
        "dearer than on record: {}. If that is meant, say why: cargo xtask costs --record WHY",
        dearer.join("; ")
    );
    Ok(())
}

fn count(repo: &Path, library: &Path) -> Result<Costs> {
    let scratch = place::scratch_dir(repo, "costs")?;
    let program = place::compile_c(&repo.join("tests/costs/costs.c"), &scratch)?;
    let mut costs = Costs::new();
    for kind in &KINDS {
        let instructions = instructions(kind, &program, library, &scratch)?;
        let system_calls = system_calls(kind, &program, library, &scratch)?;
        costs.insert(kind.name.to_owned(), Cost { instructions, system_calls });
    }
    Ok(costs)
}

fn instructions(kind: &Kind, program: &Path, library: &Path, scratch: &Path) -> Result<u64> {
    let Kind { kind, functions, options, .. } = *kind;
    let profile = scratch.join(kind).with_extension("callgrind");
    Count { program, library, options, kind, functions, rounds: ROUNDS }.into_profile(&profile)?;
    let profile = fs::read_to_string(profile)?;
    let total = profile.lines().find_map(|line| line.strip_prefix("totals: "));
    let total: u64 = total.context("Callgrind tells no totals")?.trim().parse()?;
    Ok(total.div_ceil(ROUNDS))
}

fn system_calls(kind: &Kind, program: &Path, library: &Path, scratch: &Path) -> Result<f64> {
    let summary = scratch.join("strace");
    let [fewer, more] = ROUNDS_TRACED;
    let traced = |rounds: u64| -> Result<u64> {
        let status = Command::new("strace")
            .args(["-f", "-c", "-U", "calls,name", "-o"])
            .arg(&summary)
            .arg("-E")
            .arg(format!("LD_PRELOAD={}", library.display()))
            .arg("-E")
            .arg(format!("SIDESTEP_OPTIONS={}", kind.options))
            .arg(program)
            .args([kind.kind, &rounds.to_string()])
            .status()
            .context("starting strace")?;
        ensure!(status.success(), "{} under strace: {status}", kind.kind);
        total_of(&fs::read_to_string(&summary)?)
    };
    let calls = traced(more)?.saturating_sub(traced(fewer)?);
    Ok((calls as f64 / (more - fewer) as f64 * 10.0).round() / 10.0)
}

/// The last line of strace's summary: `294 total`.
fn total_of(summary: &str) -> Result<u64> {
    let line = summary.lines().last().context("strace has said nothing")?;
    let number = line.trim().strip_suffix("total").context("strace tells no total")?;
    Ok(number.trim().parse()?)
}

fn print(counted: &Record, last: Option<&Record>) {
    println!("{:32} {:>12} {:>12} {:>12}", "", "instructions", "on record", "system calls");
    for (name, cost) in &counted.costs {
        let before = last.and_then(|last| last.costs.get(name));
        let before = before.map_or_else(|| "-".to_owned(), |it| it.instructions.to_string());
        println!("{name:32} {:>12} {before:>12} {:>12.1}", cost.instructions, cost.system_calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_the_last_line() {
        let summary = " calls syscall\n------ ----\n   12 read\n------ ----\n   294 total\n";
        assert_eq!(total_of(summary).unwrap(), 294);
        assert!(total_of("nothing").is_err());
    }
}
