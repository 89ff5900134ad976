//! The table in docs/suites.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Comparison, Part, Suite};

const HEADER: &str = "\
| Suite | Part | Tests plain | Under Sidestep | Differences | Ends SMC-D | Ends TCP | Date |
|---|---|---|---|---|---|---|---|
";

/// A line of the table.
pub(super) struct Row {
    suite: String,
    part: String,
    cells: String,
    differences: Vec<String>,
    reasons: BTreeMap<String, u64>,
}

impl Row {
    pub(super) fn new(suite: &Suite, part: &Part, compared: &Comparison) -> Self {
        let differences = compared.differences();
        let Comparison { plain, sidestep, connections, .. } = compared;
        let counts = [plain.len(), sidestep.len(), differences.len()].map(|n| n.to_string());
        let ends = [connections.smc, connections.on_tcp()].map(|n| n.to_string());
        Self {
            suite: format!("{} {}", suite.name, suite.version),
            part: part.name.clone(),
            cells: [counts.join(" | "), ends.join(" | ")].join(" | "),
            differences,
            reasons: connections.tcp.clone(),
        }
    }

    fn beginning(&self) -> String {
        format!("| {} | {} | ", self.suite, self.part)
    }

    fn line(&self, date: &str) -> String {
        format!("{}{} | {date} |", self.beginning(), self.cells)
    }
}

/// Writes the table anew, or the lines of some parts. What else is in the file stays;
/// its notes are written by people.
pub(super) fn write(document: &Path, rows: &[Row], anew: bool) -> Result<()> {
    let old = fs::read_to_string(document).context("docs/suites.md")?;
    let date = String::from_utf8(Command::new("date").arg("+%F").output()?.stdout)?;
    fs::write(document, updated(&old, rows, date.trim(), anew))?;
    for row in rows {
        row.differences.iter().for_each(|it| println!("{} {}: {it}", row.suite, row.part));
        let reasons = row.reasons.iter().map(|(reason, ends)| format!("{ends} x {reason}"));
        let reasons: Vec<String> = reasons.collect();
        println!("{} {}: {}", row.suite, row.part, reasons.join(", "));
    }
    Ok(())
}

fn updated(document: &str, rows: &[Row], date: &str, anew: bool) -> String {
    let (before, table) = document.split_once(HEADER).unwrap_or((document, ""));
    let (old, after) = match table.find("\n\n") {
        Some(end) => table.split_at(end + 1),
        None => ("", ""),
    };
    let is_replaced = |line: &&str| rows.iter().any(|row| line.starts_with(&row.beginning()));
    let kept = old.lines().filter(|line| !anew && !is_replaced(line)).map(str::to_owned);
    let mut lines: Vec<String> = kept.chain(rows.iter().map(|row| row.line(date))).collect();
    lines.sort_unstable();
    format!("{before}{HEADER}{}\n{after}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(part: &str, cells: &str) -> Row {
        Row {
            suite: "redis 7".to_owned(),
            part: part.to_owned(),
            cells: cells.to_owned(),
            differences: Vec::new(),
            reasons: BTreeMap::new(),
        }
    }

    #[test]
    fn rows_are_replaced_and_the_rest_stays() {
        let document = format!(
            "# Title\n\n{HEADER}| redis 6 | unit/a | 1 | 1 | 0 | 2 | 0 | old |\n\
             | redis 6 | unit/b | 1 | 1 | 0 | 2 | 0 | old |\n\nNotes.\n"
        );
        let rows = [row("unit/c", "5 | 5 | 0 | 9 | 9"), row("unit/a", "3 | 3 | 0 | 4 | 4")];
        let expected = format!(
            "# Title\n\n{HEADER}| redis 7 | unit/a | 3 | 3 | 0 | 4 | 4 | new |\n\
             | redis 7 | unit/c | 5 | 5 | 0 | 9 | 9 | new |\n\nNotes.\n"
        );
        assert_eq!(updated(&document, &rows, "new", true), expected);
    }

    #[test]
    fn some_rows_are_replaced_by_themselves() {
        let line = |part: &str, cells: &str| format!("| redis 7 | {part} | {cells} |\n");
        let (a, b) = (line("unit/a", "1 | 1 | 0 | 2 | 0 | old"), line("unit/b", "1 | old"));
        let document = format!("# Title\n\n{HEADER}{a}{b}\nNotes.\n");
        let rows = [row("unit/b", "3 | 3 | 0 | 4 | 4")];
        let new = line("unit/b", "3 | 3 | 0 | 4 | 4 | new");
        let expected = format!("# Title\n\n{HEADER}{a}{new}\nNotes.\n");
        assert_eq!(updated(&document, &rows, "new", false), expected);
    }
}
