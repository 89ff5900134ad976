//! `cargo xtask walk`: which files one warm send and one warm receive pass, and what they execute.
//!
//! Callgrind counts the calls of `tests/costs/costs.c`, with the library as it is shipped; the table of debug
//! information that comes with it says from which file each instruction is, whatever was inlined into what.
//! ARCHITECTURE.md shows the same walk in a table, so the two are compared: a file that is in one of them alone is
//! an error.
//!
//! A file is on the walk if it has an instruction in each call. Instructions of the standard library stand beside those of our files: an atomic load is one of
//! `core`'s, whichever file it is written in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::bench::place;
use crate::callgrind::{self, Count};

/// Calls that are counted.
const ROUNDS: u64 = 1000;

/// The most files that a send or a receive may pass.
const FILES_MAX: usize = 10;

/// Counts, prints, and compares with ARCHITECTURE.md; without Valgrind or a C compiler it says so.
///
/// **Errors**: the connection of the program has not moved, a call passes too many files, or the table is another.
pub(crate) fn run() -> Result<()> {
    if let Some(missing) = callgrind::missing() {
        println!("walk: skipped: {missing}");
        return Ok(());
    }
    let root = place::repo_root()?;
    let scratch = place::scratch_dir(&root, "walk")?;
    let library = callgrind::shipped_library(&root)?;
    let program = place::compile_c(&root.join("tests/costs/costs.c"), &scratch)?;
    let table = Table::read(&fs::read_to_string(root.join("ARCHITECTURE.md"))?)?;
    let mut wrong = String::new();
    for (name, function, told) in
        [("send", "counted_send", &table.send), ("receive", "counted_receive", &table.receive)]
    {
        let profile = scratch.join(function).with_extension("callgrind");
        let count = Count {
            program: &program,
            library: &library,
            options: "promotion=early",
            kind: "message",
            functions: &[function],
            rounds: ROUNDS,
        };
        count.into_profile(&profile)?;
        let passed = Passed::parse(&fs::read_to_string(&profile)?, &root);
        println!("{}", passed.report(name));
        wrong += &passed.complaints(name, told);
    }
    ensure!(wrong.is_empty(), "{}", wrong.trim_end());
    Ok(())
}

/// Files that a call has passed.
#[derive(Debug, Default, PartialEq)]
struct Passed {
    /// Instructions of all calls, by file of ours.
    files: BTreeMap<String, u64>,
    /// Those of files that are not ours.
    others: u64,
}

impl Passed {
    /// Reads what Callgrind has written: lines of costs, each of the file that was named last. A line behind
    /// `calls=` is what a call has cost in all, and stands again where it was executed.
    fn parse(profile: &str, root: &Path) -> Self {
        let mut passed = Self::default();
        let mut file = None;
        let mut is_of_call = false;
        for line in profile.lines() {
            if let Some((_, name)) = line.split_once('=').filter(|(key, _)| is_file(key)) {
                file = of_ours(name, root);
            } else if line.starts_with("calls=") {
                is_of_call = true;
            } else if let Some((number, cost)) = cost(line)
                && !core::mem::take(&mut is_of_call)
            {
                match &file {
                    // No line is 0: the compiler has written it for none.
                    Some(name) if number > 0 => {
                        *passed.files.entry(name.clone()).or_default() += cost
                    }
                    _ => passed.others += cost,
                }
            }
        }
        passed.files.retain(|_, cost| {
            let is_in_each = *cost >= ROUNDS;
            passed.others += if is_in_each { 0 } else { *cost };
            is_in_each
        });
        passed
    }

    fn report(&self, name: &str) -> String {
        let each = |instructions: u64| instructions as f64 / ROUNDS as f64;
        let all = self.files.values().sum::<u64>() + self.others;
        let mut text = format!(
            "{name}: {:.0} instructions, {} files\n{:10.1}  (std, libc, the program)\n",
            each(all),
            self.files.len(),
            each(self.others)
        );
        for (file, instructions) in &self.files {
            text += &format!("{:10.1}  {file}\n", each(*instructions));
        }
        text
    }

    fn complaints(&self, name: &str, told: &[String]) -> String {
        let told: BTreeSet<_> = told.iter().collect();
        let found: BTreeSet<_> = self.files.keys().collect();
        let mut text = String::new();
        if found.len() > FILES_MAX {
            text += &format!("a warm {name} passes more than {FILES_MAX} files\n");
        }
        if !self.files.keys().any(|file| file.ends_with(&format!("connection/ring_{name}.rs"))) {
            text += &format!("{name}: the connection has not moved\n");
        }
        for file in found.difference(&told) {
            text += &format!("ARCHITECTURE.md, the walk: a warm {name} passes {file}\n");
        }
        for file in told.difference(&found) {
            text += &format!("ARCHITECTURE.md, the walk: a warm {name} does not pass {file}\n");
        }
        text
    }
}

/// Whether a key names the file of the lines that follow.
fn is_file(key: &str) -> bool {
    ["fl", "fi", "fe"].contains(&key)
}

/// A file of this repository, as ARCHITECTURE.md names it.
fn of_ours(name: &str, root: &Path) -> Option<String> {
    let at = name.find("crates/")?;
    Some(name[at..].to_owned()).filter(|file| root.join(file).is_file())
}

/// The number of a line and its cost.
fn cost(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// The files of the walk in ARCHITECTURE.md: links in the rows of its first table. A row without a number comes
/// between those of the two sides.
#[derive(Debug, PartialEq)]
struct Table {
    send: Vec<String>,
    receive: Vec<String>,
}

impl Table {
    fn read(document: &str) -> Result<Self> {
        let (_, section) = document
            .split_once("## 2. The walk of one byte")
            .context("ARCHITECTURE.md: no walk")?;
        let section = section.split("\n## ").next().unwrap_or_default();
        let mut sides = [Vec::new(), Vec::new()];
        let mut side = 0;
        // Behind the head and the line below it.
        for row in section.lines().filter(|line| line.starts_with('|')).skip(2) {
            let links = row.split("](").skip(1).filter_map(|link| link.split(')').next());
            let files: Vec<_> =
                links.filter(|link| link.ends_with(".rs")).map(str::to_owned).collect();
            if row.starts_with("| |") {
                side += 1;
            }
            sides.get_mut(side).context("ARCHITECTURE.md: the walk has two sides")?.extend(files);
        }
        let [send, receive] = sides;
        Ok(Self { send, receive })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_inlined_files_count_and_costs_of_calls_do_not() {
        let root = place::repo_root().unwrap();
        let profile = "\
events: Ir
fl=/here/crates/preload/src/exports.rs
fn=send
12 3000
fi=/rustc/1/library/core/src/sync/atomic.rs
100 2
fe=/here/crates/preload/src/exports.rs
14 5000
calls=1 0
14 1000
15 7000
fl=/here/crates/preload/src/exports.rs
0 4
fl=/here/crates/device/src/lock.rs
9 999
totals: 21
";
        let passed = Passed::parse(profile, &root);
        assert_eq!(passed.files, [("crates/preload/src/exports.rs".to_owned(), 15_000)].into());
        assert_eq!(passed.others, 1005);
    }

    #[test]
    fn the_table_has_two_sides() {
        let table = "## 2. The walk of one byte\n\n| # | File |\n|---|---|\n| 1 | [`a`](crates/a.rs) |\n\
                     | | *the other process* |\n| 2 | [`b`](crates/b.rs), [`c`](crates/c.rs) |\n\n## 3. More\n\
                     | 9 | [`d`](crates/d.rs) |\n";
        let read = Table::read(table).unwrap();
        assert_eq!(
            (read.send, read.receive),
            (vec!["crates/a.rs".into()], vec!["crates/b.rs".into(), "crates/c.rs".into()])
        );
    }

    #[test]
    fn a_file_that_is_in_one_of_both_alone_is_told() {
        let passed = Passed {
            files: [("crates/socket/src/connection/ring_send.rs".to_owned(), 1)].into(),
            others: 0,
        };
        let told = ["crates/socket/src/connection/ring_send.rs".to_owned()];
        assert_eq!(passed.complaints("send", &told), "");
        assert_eq!(passed.complaints("send", &[]).lines().count(), 1);
        let more = [told[0].clone(), "crates/device/src/lock.rs".to_owned()];
        assert_eq!(passed.complaints("send", &more).lines().count(), 1);
        assert!(passed.complaints("receive", &told).contains("has not moved"));
    }
}
