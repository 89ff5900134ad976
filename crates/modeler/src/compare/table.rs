//! A comparison for the terminal.

use std::fmt;
use std::ops::RangeInclusive;

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

use super::{CellComparison, CellKey, ComparisonReport, FigureComparison, Verdict};

impl ComparisonReport {
    /// A line for each figure of each cell.
    #[must_use]
    pub fn to_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(STYLE);
        table.set_header(["", "", "A", "B", "B / A", "95 %", "verdict"]);
        for cell in &self.cells {
            for (line, figure) in cell.figures.iter().enumerate() {
                table.add_row(row(cell, line, figure));
            }
        }
        for column in NUMBERS {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// The table, what is in only one of the documents, the warnings, and a sum.
impl fmt::Display for ComparisonReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.to_table().trim_fmt())?;
        only(f, 'A', &self.only_a)?;
        only(f, 'B', &self.only_b)?;
        for warning in &self.warnings {
            writeln!(f, "Warning: {warning}")?;
        }
        write!(
            f,
            "Worse: {}; better: {}; equivalent ({:.3} to {:.3}): {}; unclear: {}",
            self.count(Verdict::Worse),
            self.count(Verdict::Better),
            1.0 / (1.0 + self.margin),
            1.0 + self.margin,
            self.count(Verdict::Equivalent),
            self.count(Verdict::Unclear),
        )
    }
}

fn only(f: &mut fmt::Formatter<'_>, document: char, keys: &[CellKey]) -> fmt::Result {
    keys.iter().try_for_each(|key| writeln!(f, "Only in {document}: {key}"))
}

/// The cell is named in its first line alone.
fn row(cell: &CellComparison, line: usize, figure: &FigureComparison) -> Vec<Cell> {
    let name = if line == 0 { cell.key.to_string() } else { String::new() };
    let (ratio, interval) = figure.ratio.map_or_else(Default::default, |it| {
        let [low, high] = it.ci95;
        (format!("{:.3}", it.ratio), format!("{low:.3} … {high:.3}"))
    });
    let texts = [
        name,
        figure.measure.to_string(),
        number(figure.a),
        number(figure.b),
        ratio,
        interval,
        figure.verdict.to_string(),
    ];
    texts.into_iter().map(Cell::new).collect()
}

/// Three digits or more, whatever the size.
fn number(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A line under the header and no other.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Columns of numbers.
const NUMBERS: RangeInclusive<usize> = 2..=5;
