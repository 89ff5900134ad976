//! The record of costs: `bench/costs.jsonl`, a line for each change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::picture;

/// From the repository's root.
const FILE: &str = "bench/costs.jsonl";
const PICTURE: &str = "docs/images/costs.svg";

/// Of one message, or one connection from its socket to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Of the program, its libc and the library; not of the kernel.
    pub(super) instructions: u64,
    /// To a tenth.
    pub(super) system_calls: f64,
}

/// By the name of what was counted.
pub(super) type Costs = BTreeMap<String, Cost>;

/// What was counted after one change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    /// `2026-11-26`.
    pub(super) date: String,
    /// The change, in a few words; empty until it is recorded.
    pub(super) change: String,
    /// The compiler, as it names itself: another one makes other instructions.
    pub(super) rustc: String,
    pub(super) costs: Costs,
}

impl Record {
    /// Without costs, made today by the compiler that is here.
    pub(super) fn of_today() -> Result<Self> {
        let costs = Costs::new();
        let date = said_by(Command::new("date").arg("+%F"))?;
        let rustc = said_by(Command::new("rustc").arg("--version"))?;
        Ok(Self { date, change: String::new(), rustc, costs })
    }

    /// What is dearer than in that record by more than such a part, in words. With another compiler nothing is judged.
    pub(super) fn dearer_than(&self, record: &Self, tolerance: f64) -> Vec<String> {
        if self.rustc != record.rustc {
            println!(
                "costs: not judged: on record are those of {}, here is {}",
                record.rustc, self.rustc
            );
            return Vec::new();
        }
        let judge = |(name, now): (&String, &Cost)| {
            let then = record.costs.get(name)?;
            let is_dearer = now.instructions as f64 > then.instructions as f64 * (1.0 + tolerance)
                || now.system_calls > then.system_calls * (1.0 + tolerance) + 0.1;
            let words = format!(
                "{name}: {} instructions and {} system calls, {} and {} before",
                now.instructions, now.system_calls, then.instructions, then.system_calls
            );
            is_dearer.then_some(words)
        };
        self.costs.iter().filter_map(judge).collect()
    }

    fn to_json(&self) -> Value {
        let cost = |(name, cost): (&String, &Cost)| {
            (
                name.clone(),
                json!({ "instructions": cost.instructions, "system_calls": cost.system_calls }),
            )
        };
        let costs: serde_json::Map<_, _> = self.costs.iter().map(cost).collect();
        json!({ "date": self.date, "change": self.change, "rustc": self.rustc, "costs": costs })
    }

    fn parse(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        let text =
            |member: &str| value[member].as_str().map(str::to_owned).context(member.to_owned());
        let costs = value["costs"].as_object().context("costs")?.iter().map(|(name, cost)| {
            let instructions = cost["instructions"].as_u64().context("instructions")?;
            let system_calls = cost["system_calls"].as_f64().context("system_calls")?;
            Ok((name.clone(), Cost { instructions, system_calls }))
        });
        Ok(Self {
            date: text("date")?,
            change: text("change")?,
            rustc: text("rustc")?,
            costs: costs.collect::<Result<_>>()?,
        })
    }
}

fn said_by(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// All of them, the oldest first; none where there is no file.
///
/// **Errors**: a line is no record.
pub(super) fn read(repo: &Path) -> Result<Vec<Record>> {
    let Ok(text) = fs::read_to_string(repo.join(FILE)) else { return Ok(Vec::new()) };
    let numbered = text.lines().enumerate();
    numbered
        .map(|(at, line)| Record::parse(line).with_context(|| format!("{FILE}:{}", at + 1)))
        .collect()
}

/// Writes them, and draws them.
///
/// **Errors**: the files cannot be written.
pub(super) fn write(repo: &Path, records: &[Record]) -> Result<()> {
    let lines: String = records.iter().map(|record| format!("{}\n", record.to_json())).collect();
    fs::write(repo.join(FILE), lines).context(FILE)?;
    fs::write(repo.join(PICTURE), picture::draw(records)).context(PICTURE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::place;

    fn record(instructions: u64, system_calls: f64) -> Record {
        let costs = [("64 B".to_owned(), Cost { instructions, system_calls })].into();
        let [date, change, rustc] = ["2026-11-26", "It begins", "rustc 1"].map(str::to_owned);
        Record { date, change, rustc, costs }
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let written = record(971, 0.3);
        assert_eq!(Record::parse(&written.to_json().to_string()).unwrap(), written);
        assert!(Record::parse("{}").is_err());
    }

    #[test]
    fn what_is_dearer_is_told_and_what_is_cheaper_is_not() {
        let before = record(1000, 2.0);
        let dearer = |now: Record| now.dearer_than(&before, 0.03).len();
        assert_eq!([record(1030, 2.1), record(900, 0.0)].map(dearer), [0, 0]);
        assert_eq!([record(1031, 2.0), record(1000, 2.3)].map(dearer), [1, 1]);
        let other = Record { rustc: "rustc 2".to_owned(), ..record(5000, 9.0) };
        assert_eq!(dearer(other), 0, "another compiler");
    }

    #[test]
    fn the_picture_is_of_the_record() {
        let repo = place::repo_root().unwrap();
        let records = read(&repo).unwrap();
        assert!(!records.is_empty());
        let drawn = fs::read_to_string(repo.join(PICTURE)).unwrap();
        assert!(drawn == picture::draw(&records), "cargo xtask costs --record draws it");
    }
}
