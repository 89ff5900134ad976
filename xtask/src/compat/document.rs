//! docs/compatibility.md: the table that a run leaves behind.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

use super::programs::Entry;
use crate::bench::place;
use crate::debian;
use crate::suite::{self, Outcome};

const PAGE: &str = "docs/compatibility.md";

const OPENING: &str = "\
# Compatibility

Unmodified programs that were run under `sidestep run`, written by `cargo xtask compat --write`. How they are
tried and what *passed* means stands in [testing.md](testing.md#compatibility); what never works and why in
[limitations.md](limitations.md). *Seen* counts connections that moved, as the ends of the named process
have them; for programs whose processes end with their connections, the most at once. A connection that is closed
after one request usually ends before it has moved, and is not counted.
";

/// A program and how it went.
#[derive(Debug)]
pub(crate) struct Row {
    entry: &'static Entry,
    result: &'static str,
    remark: String,
}

impl Row {
    /// The row of a program that was tried.
    pub(crate) fn new(entry: &'static Entry, outcome: &Outcome) -> Self {
        let (result, remark) = match outcome {
            Outcome::Passed(remark, _) => ("passed", remark.clone()),
            Outcome::Failed(error) => ("**failed**", format!("{error:#}")),
            Outcome::Skipped(reason) => ("skipped", reason.clone()),
        };
        Self { entry, result, remark }
    }
}

/// Writes the page.
pub(crate) fn write(rows: &[Row]) -> Result<()> {
    let page = page(rows, &suite::host()?)?;
    fs::write(place::repo_root()?.join(PAGE), page).with_context(|| format!("writing {PAGE}"))
}

fn page(rows: &[Row], host: &str) -> Result<String> {
    let mut page = format!("{OPENING}\nLast run: {host}.\n");
    let (on_tcp, moved): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.entry.stays_on_tcp.is_some());
    write!(page, "\n## Programs that move to shared memory\n\n{}", table(&moved))?;
    write!(page, "\n## Programs that stay on TCP, unharmed\n\n{}", table(&on_tcp))?;
    Ok(page)
}

fn table(rows: &[&Row]) -> String {
    let has_reasons = rows.iter().any(|row| row.entry.stays_on_tcp.is_some());
    let why = if has_reasons { "Why | " } else { "" };
    let head = format!("| Program | Version | Model | {why}Result | Seen |\n");
    let rule = "|---".repeat(head.matches('|').count() - 1) + "|\n";
    let lines = rows.iter().map(|Row { entry, result, remark }| {
        let version = debian::version(entry.packages[0]).unwrap_or_else(|| "?".to_owned());
        let first = [entry.name, &version, entry.model].into_iter();
        let cells = first.chain(entry.stays_on_tcp).chain([*result, remark]);
        format!("| {} |\n", cells.map(one_line).collect::<Vec<_>>().join(" | "))
    });
    head + &rule + &lines.collect::<String>()
}

/// A cell of a table has one line and no bars.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::programs::PROGRAMS;
    use std::time::Duration;

    #[test]
    fn a_row_says_what_was_seen_in_one_line() -> Result<()> {
        let passed = Outcome::Passed("3 SMC-D\nand | more".to_owned(), Duration::ZERO);
        let page = page(&[Row::new(&PROGRAMS[0], &passed)], "today")?;
        assert!(page.contains("| passed | 3 SMC-D and / more |"), "{page}");
        Ok(())
    }
}
