//! Tables for a terminal, and the figures in them.

use std::ops::RangeInclusive;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table};

/// The lines of a table whose last column has reasons and whose columns `numbers` are aligned
/// to the right. Lines are as long as they need to be, but the reasons are broken to fit into
/// `width` if that leaves room for them.
pub(in crate::commands) fn aligned(
    mut table: Table,
    numbers: RangeInclusive<usize>,
    width: Option<u16>,
) -> String {
    table.load_style(NOTHING);
    let widths = table.column_max_content_widths();
    let reason = widths.len() - 1;
    let others = widths[..reason].iter().map(|width| width + GAP).sum();
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if index == reason { 0 } else { GAP }));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if index != reason {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    if let Some(width) = width
        && width.saturating_sub(others) >= REASON_WIDTH_MIN
    {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width);
    }
    let mut text = String::new();
    for line in table.lines() {
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Reasons in a narrower column are hard to read; better to let the terminal break lines.
const REASON_WIDTH_MIN: u16 = 24;

/// Blanks between columns.
const GAP: u16 = 2;

/// A number of bytes in a unit that leaves at most four digits, and one decimal if that says
/// more. One KB is 1024 bytes, as in the configuration.
pub(in crate::commands) fn bytes(n: u64) -> String {
    let tenths = |unit_len: u128| (u128::from(n) * 10 + unit_len / 2) / unit_len;
    let (mut unit, mut unit_len) = ("B", 1);
    for larger in ["KB", "MB", "GB", "TB", "PB", "EB"] {
        if tenths(unit_len) < 10 * 1024 {
            break;
        }
        (unit, unit_len) = (larger, unit_len * 1024);
    }
    match (tenths(unit_len) / 10, tenths(unit_len) % 10) {
        (whole, 0) => format!("{whole} {unit}"),
        (whole, tenth) => format!("{whole}.{tenth} {unit}"),
    }
}
