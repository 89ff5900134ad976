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
        let Comparison { plain, sidestep, connections } = compared;
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

    fn line(&self, date: &str) -> String {
        format!("| {} | {} | {} | {date} |", self.suite, self.part, self.cells)
    }
}

/// Writes the table anew, so that it comes from one run. What else is in the file stays;
/// its notes are written by people.
pub(super) fn write(document: &Path, rows: &[Row]) -> Result<()> {
    let old = fs::read_to_string(document).context("docs/suites.md")?;
    let date = String::from_utf8(Command::new("date").arg("+%F").output()?.stdout)?;
    fs::write(document, updated(&old, rows, date.trim()))?;
    for row in rows {
        row.differences.iter().for_each(|it| println!("{} {}: {it}", row.suite, row.part));
        let reasons = row.reasons.iter().map(|(reason, ends)| format!("{ends} x {reason}"));
        let reasons: Vec<String> = reasons.collect();
        println!("{} {}: {}", row.suite, row.part, reasons.join(", "));
    }
    Ok(())
}

fn updated(document: &str, rows: &[Row], date: &str) -> String {
    let (before, table) = document.split_once(HEADER).unwrap_or((document, ""));
    let after = table.find("\n\n").map_or("", |end| &table[end + 1..]);
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| (&row.suite, &row.part));
    let lines: String = rows.into_iter().map(|row| row.line(date) + "\n").collect();
    format!("{before}{HEADER}{lines}{after}")
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
        assert_eq!(updated(&document, &rows, "new"), expected);
    }
}
