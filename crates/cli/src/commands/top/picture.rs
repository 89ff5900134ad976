//! The picture of a live view.
//!
//! 80 columns have room for what is sorted by; a wider terminal also has the reason for TCP.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::rows::{ConnectionRow, Notes, ProgramRow, Rates, Rows};
use super::view::View;
use crate::args::SortColumn;
use crate::commands::ss::bytes;
use crate::output::Escaped;

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, rows: &Rows, view: &mut View) {
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, note, list, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(summary(rows, view)), head);
    frame.render_widget(Paragraph::new(remark(rows, view)).style(DIM), note);
    match view.shows_connections {
        true => draw_connections(frame, list, rows, view),
        false => draw_programs(frame, list, rows, view),
    }
    frame.render_widget(Paragraph::new(keys(view)).style(DIM), foot);
}

fn summary(rows: &Rows, view: &View) -> Vec<Line<'static>> {
    let (open, rates) = rows.sum();
    let paused = if view.is_paused { "  (paused)" } else { "" };
    vec![
        Line::from(format!(
            "programs {}, connections {}: SMC {}, TCP {}{paused}",
            rows.programs.len(),
            open.connections,
            open.smc,
            open.tcp,
        ))
        .style(BOLD),
        Line::from(format!(
            "{}/s in {} messages/s; waiting takes {} of a CPU",
            bytes(rates.bytes_per_second.round() as u64),
            count(rates.messages_per_second),
            percent(rates.waiting_cpus),
        )),
    ]
}

/// The filter, or what is missing.
fn remark(rows: &Rows, view: &View) -> String {
    let filter = Escaped(&view.filter);
    match (view.is_filtering, view.filter.is_empty()) {
        (true, _) => format!("filter: {filter}_"),
        (false, false) => format!("filter: {filter}"),
        (false, true) => missing(rows.notes),
    }
}

/// What was not looked at; nothing, if all was.
pub(super) fn missing(notes: Notes) -> String {
    let Notes { unreadable, incompatible, is_curtailed } = notes;
    let mut parts = Vec::new();
    if unreadable > 0 {
        parts.push(format!("processes not looked at: {unreadable} (permission denied)"));
    }
    if incompatible > 0 {
        parts.push(format!("programs with another version of Sidestep: {incompatible}"));
    }
    if is_curtailed {
        parts.push("a user has more than one look reads".to_owned());
    }
    parts.join("; ")
}

fn keys(view: &View) -> &'static str {
    match view.is_filtering {
        true => "Enter takes the filter, Esc clears it",
        false => "b bytes  m messages  w waiting  f fallback  Tab other list  / filter  q end",
    }
}

fn draw_programs(frame: &mut Frame<'_>, area: Rect, rows: &Rows, view: &mut View) {
    let shown = view.programs(rows);
    if shown.is_empty() {
        return draw_nothing(frame, area, rows.programs.is_empty());
    }
    let is_wide = area.width >= WIDE;
    let columns = [
        Column::left("PID", Constraint::Length(7)),
        Column::left("USER", Constraint::Length(9)),
        Column::left("PROGRAM", Constraint::Length(if is_wide { 16 } else { 14 })),
        Column::right("OPEN", Constraint::Length(6)),
        Column::right("SMC", Constraint::Length(6)),
        Column::right("TCP", Constraint::Length(6)).sorted(view, SortColumn::Fallback),
        Column::right("BYTES/s", Constraint::Length(9)).sorted(view, SortColumn::Bytes),
        Column::right("MSG/s", Constraint::Length(7)).sorted(view, SortColumn::Messages),
        Column::right("WAIT", Constraint::Length(8)).sorted(view, SortColumn::Waiting),
    ];
    let cells = |row: &&ProgramRow| {
        let [moved, messages, waiting] = figures(row.rates);
        let mut cells = vec![
            row.pid.to_string(),
            row.user.clone(),
            row.program.clone(),
            row.open.connections.to_string(),
            row.open.smc.to_string(),
            row.open.tcp.to_string(),
            moved,
            messages,
            waiting,
        ];
        cells.extend(is_wide.then(|| row.reason.clone()));
        cells
    };
    draw_table(frame, area, columns.into(), is_wide, view, &shown, cells);
}

fn draw_connections(frame: &mut Frame<'_>, area: Rect, rows: &Rows, view: &mut View) {
    let shown = view.connections(rows);
    if shown.is_empty() {
        return draw_nothing(frame, area, rows.programs.is_empty());
    }
    let is_wide = area.width >= WIDE;
    // What the other columns and the gaps leave, in two halves.
    let address = if is_wide { 21 } else { area.width.saturating_sub(50) / 2 };
    let columns = [
        Column::left("MODE", Constraint::Length(7)),
        Column::left("PROGRAM", Constraint::Length(14)),
        Column::left("LOCAL", Constraint::Length(address)),
        Column::left("PEER", Constraint::Length(address)),
        Column::right("BYTES/s", Constraint::Length(9)).sorted(view, SortColumn::Bytes),
        Column::right("MSG/s", Constraint::Length(7)).sorted(view, SortColumn::Messages),
        Column::right("WAIT", Constraint::Length(7)).sorted(view, SortColumn::Waiting),
    ];
    let cells = |row: &&ConnectionRow| {
        let [moved, messages, waiting] = figures(row.rates);
        let mut cells = vec![
            row.mode.to_owned(),
            row.program.clone(),
            end_of(&row.local, address.into()),
            end_of(&row.peer, address.into()),
            moved,
            messages,
            waiting,
        ];
        cells.extend(is_wide.then(|| row.reason.clone()));
        cells
    };
    draw_table(frame, area, columns.into(), is_wide, view, &shown, cells);
}

/// A column that is always there.
struct Column {
    title: String,
    alignment: Alignment,
    width: Constraint,
    is_sorted: bool,
}

impl Column {
    fn left(title: &str, width: Constraint) -> Self {
        Self { title: title.to_owned(), alignment: Alignment::Left, width, is_sorted: false }
    }

    fn right(title: &str, width: Constraint) -> Self {
        Self { alignment: Alignment::Right, ..Self::left(title, width) }
    }

    /// Marked, if rows are sorted by it.
    fn sorted(mut self, view: &View, by: SortColumn) -> Self {
        self.is_sorted = view.sort == by;
        if self.is_sorted {
            self.title.push(if view.is_reversed { '^' } else { 'v' });
        }
        self
    }

    fn heading(&self) -> Cell<'static> {
        let style = if self.is_sorted { BOLD } else { Style::new() };
        Cell::from(Text::from(self.title.clone()).alignment(self.alignment)).style(style)
    }
}

/// The rows for which there is room, and no others: so a list of ten thousand costs what one of twenty does.
fn draw_table<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: Vec<Column>,
    is_wide: bool,
    view: &mut View,
    shown: &[T],
    cells: impl Fn(&T) -> Vec<String>,
) {
    let room = usize::from(area.height.saturating_sub(1));
    let aligned = |row: &T| {
        let cells = cells(row).into_iter().enumerate();
        Row::new(cells.map(|(place, text)| {
            let alignment = columns.get(place).map_or(Alignment::Left, |it| it.alignment);
            Text::from(text).alignment(alignment)
        }))
    };
    let rows: Vec<Row<'_>> = shown[view.window(shown.len(), room)].iter().map(aligned).collect();
    let heading = columns.iter().map(Column::heading);
    let heading = heading.chain(is_wide.then(|| Cell::from("REASON"))).collect::<Row<'_>>();
    let widths = columns.iter().map(|column| column.width);
    let widths = widths.chain(is_wide.then_some(Constraint::Fill(1)));
    let table = Table::new(rows, widths).header(heading.style(UNDERLINED)).column_spacing(1);
    frame.render_widget(table, area);
}

fn draw_nothing(frame: &mut Frame<'_>, area: Rect, is_without_programs: bool) {
    let text = match is_without_programs {
        true => "no Sidestep programs are running; start one with `sidestep run PROGRAM`",
        false => "nothing here: Tab shows the other list, Esc clears the filter",
    };
    frame.render_widget(Paragraph::new(text), area);
}

/// Bytes and messages in a second, and waiting.
pub(super) fn figures(rates: Rates) -> [String; 3] {
    let moved = bytes(rates.bytes_per_second.round() as u64);
    [moved, count(rates.messages_per_second), percent(rates.waiting_cpus)]
}

/// A number in at most six characters.
fn count(n: f64) -> String {
    match n.round() {
        n if n < 100_000.0 => format!("{n}"),
        n if n < 10_000_000.0 => format!("{:.0} k", n / 1e3),
        n => format!("{:.0} M", n / 1e6),
    }
}

fn percent(of_one: f64) -> String {
    format!("{:.1} %", of_one * 100.0)
}

/// The last characters of an address, which tell ports apart, behind a mark if it is longer than that.
fn end_of(text: &str, width: usize) -> String {
    match text.len().checked_sub(width) {
        None | Some(0) => text.to_owned(),
        Some(cut) => format!("…{}", text.get(cut + 1..).unwrap_or_default()),
    }
}

/// From so many columns on there is room for reasons.
const WIDE: u16 = 110;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const UNDERLINED: Style = Style::new().add_modifier(Modifier::UNDERLINED);

#[cfg(test)]
mod tests {
    use super::super::rows::Open;
    use super::super::rows::tests::rows;
    use super::super::view::tests::{press, view};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, rows: &Rows, view: &mut View) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, rows, view)).unwrap();
        terminal.backend().clone()
    }

    /// Forty programs beside the one that works.
    fn many() -> Rows {
        let mut rows = rows();
        rows.programs.extend((1..=40).map(|pid| ProgramRow {
            pid,
            program: format!("worker-{pid}"),
            user: "www-data".into(),
            open: Open { connections: 250, smc: 250, ..Open::default() },
            rates: Rates { messages_per_second: f64::from(pid), ..Rates::default() },
            ..ProgramRow::default()
        }));
        rows.notes.unreadable = 3;
        rows
    }

    #[test]
    fn programs_in_80_columns() {
        insta::assert_snapshot!(drawn(80, 24, &many(), &mut view("")));
    }

    #[test]
    fn programs_in_120_columns() {
        insta::assert_snapshot!(drawn(120, 40, &many(), &mut view("--sort messages")));
    }

    #[test]
    fn connections_in_80_columns() {
        insta::assert_snapshot!(drawn(80, 24, &rows(), &mut view("--connections")));
    }

    #[test]
    fn connections_in_120_columns_while_a_filter_is_typed() {
        let mut view = view("--connections --sort fallback");
        press(&mut view, "/6379");
        insta::assert_snapshot!(drawn(120, 10, &rows(), &mut view));
    }

    #[test]
    fn few_lines() {
        insta::assert_snapshot!(drawn(80, 6, &many(), &mut view("")));
    }

    #[test]
    fn no_programs() {
        insta::assert_snapshot!(drawn(80, 24, &Rows::default(), &mut view("")));
    }

    /// No terminal is too small, and none makes it panic.
    #[test]
    fn every_size_is_drawn() {
        for connections in ["", "--connections"] {
            for width in 1..130 {
                for height in [1, 2, 3, 4, 5, 25] {
                    drawn(width, height, &many(), &mut view(connections));
                }
            }
        }
    }

    #[test]
    fn numbers_keep_their_width() {
        let counted = [0.4, 99_999.0, 123_456.0, 12_345_678.0].map(count);
        assert_eq!(counted, ["0", "99999", "123 k", "12 M"]);
        assert_eq!(end_of("127.0.0.1:6379", 15), "127.0.0.1:6379");
        assert_eq!(end_of("[fe80::1234:5678]:6379", 15), "…234:5678]:6379");
    }
}
