//! The table for a terminal: a block for each workload.
//!
//! All blocks take the widest of three forms in which all fit: transports in rows with the
//! parts of the CPU time, the same without them, or, where there is little room,
//! figures in rows and transports in columns. Beneath it stands what must be known
//! before the figures are used, what fell back to TCP first; then IBM's figures.

use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle,
};

use crate::report::block::{Block, Row, label};
use crate::report::contention::{self, Bounded, Line};
use crate::report::finding::Effect;
use crate::report::foreign::cleaned;
use crate::report::units;
use crate::result::{
    Comparison, CpuCost, Document, Filtered, Machine, Published, RemarkKind, Required,
};

/// The document as lines for a terminal that is `width` columns wide. With `colour`
/// they hold ANSI escapes: the caller asks whether there is a terminal, and for
/// `NO_COLOR`.
///
/// Lines are wider than a `width` that is less than about 20 columns for each
/// transport. Control characters in foreign text are replaced, so that a file cannot
/// command the terminal.
#[must_use]
pub fn render(document: &Document, width: usize, colour: bool) -> String {
    let page = Page { width, colour };
    let document = cleaned(document);
    let blocks = Block::all(&document);
    let form = Form::widest(&blocks, width);
    let mut text = String::new();
    for block in &blocks {
        text += &page.block(block, form);
        text.push('\n');
    }
    text += &page.contention(&contention::lines(&blocks));
    text += &page.filtered(&document.filtered);
    text += &page.certificate(&document.machine);
    text
}

struct Page {
    width: usize,
    colour: bool,
}

impl Page {
    fn block(&self, block: &Block<'_>, form: Form) -> String {
        let runs = block.rows.iter().map(|row| row.cell.runs).max().unwrap_or(0);
        let runs = if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") };
        let about = format!("{}, {runs} over each transport", block.key.circumstances());
        let title = [Ink::Bold.mark(block.key.workload), Ink::Dim.mark(&about)];
        let mut text = self.paint(&format!("{}\n", title.join("  ")));
        text += &self.paint(&format!("{}\n", form.lay_out(block).trim_fmt()));
        for row in &block.rows {
            text += &self.remarks(row);
        }
        for (cell, comparison) in block.compared() {
            for required in &comparison.required {
                text += &self.required(required, units::name(cell.transport));
            }
            for published in &comparison.published {
                text += &self.published(published, units::name(cell.transport));
            }
        }
        text
    }

    fn remarks(&self, row: &Row<'_>) -> String {
        let lines = row.remarks().into_iter().map(|(kind, text)| {
            let ink = if kind == RemarkKind::FellBack { Ink::Alarm } else { Ink::Warning };
            let what = format!("{} {}", units::name(row.cell.transport), label(kind));
            let what = if ink == Ink::Alarm { what.to_uppercase() } else { what };
            self.paragraph(&format!("!! {what}:"), ink, &text)
        });
        lines.collect()
    }

    fn published(&self, published: &Published, ours: &str) -> String {
        let figure = units::figure(published.figure);
        if let Some(lacking) = &published.lacking {
            let theirs = units::change(1.0 + published.theirs);
            let verdict = Ink::Warning.mark("not measured");
            let text = format!("{figure} {theirs}: {verdict}, {lacking}  ({})", &published.source);
            return self.paragraph("IBM", Ink::Dim, &text);
        }
        let verdict = if published.beaten {
            Ink::Good.mark("reached")
        } else {
            Ink::Alarm.mark("not reached")
        };
        let text = format!(
            "{figure} {}, {ours} {}: {verdict}  ({}; ours: {})",
            units::change(1.0 + published.theirs),
            units::change(1.0 + published.ours),
            &published.source,
            &published.compared,
        );
        self.paragraph("IBM", Ink::Dim, &text)
    }

    fn required(&self, required: &Required, ours: &str) -> String {
        let verdict = if required.met { Ink::Good.mark("met") } else { Ink::Alarm.mark("not met") };
        let [low, high] = required.ours_ci95;
        let text = format!(
            "{} {}, {ours} {} ({} … {}): {verdict}",
            units::figure(required.figure),
            units::required(required),
            units::times(required.ours),
            units::significant(low),
            units::significant(high),
        );
        self.paragraph("Must", Ink::Dim, &text)
    }

    /// Each workload under each contention, if there was any.
    fn contention(&self, lines: &[Line<'_>]) -> String {
        if lines.is_empty() {
            return String::new();
        }
        let mut table = bordered();
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(self.width.max(LEAST_WIDTH)).unwrap_or(u16::MAX));
        table.set_header(["", "", "tran/s", "p99", "CPU/tran"].map(titled));
        for line in lines {
            let Line { block, cell, comparison, continues } = line;
            let over = format!(
                "{}, {} ÷ {}",
                block.key.make(),
                units::name(cell.transport),
                units::name(comparison.b)
            );
            let name = two(Ink::Bold.mark(block.key.workload), &over);
            let figures = [Some(line.throughput()), line.p99(), line.cpu()]
                .map(|ratio| plain(ratio.map_or_else(|| units::UNKNOWN.to_owned(), beneath)));
            let names =
                [if *continues { String::new() } else { name }, comparison.contention.to_string()];
            table.add_row(names.into_iter().map(Cell::new).chain(figures));
        }
        self.paint(&format!("{}\n\n", table.trim_fmt()))
    }

    /// Workloads under filters against the same without, if there were any.
    fn filtered(&self, filtered: &[Filtered]) -> String {
        if filtered.is_empty() {
            return String::new();
        }
        let mut table = bordered();
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(self.width.max(LEAST_WIDTH)).unwrap_or(u16::MAX));
        table.set_header(["", "", "response", "tran/s", "CPU/tran"].map(titled));
        let mut verdicts = String::new();
        for it in filtered {
            let name = two(
                Ink::Bold.mark(&it.workload),
                &format!("{}, {}", it.model, units::name(it.transport)),
            );
            let under = format!("{} ÷ none", units::filter_rules(it.filter_rules));
            let figures = [
                (it.response_ratio, it.response_ci95),
                (it.throughput_ratio, it.ci95),
                (it.cpu_ratio, it.cpu_ci95),
            ];
            let figures = figures.map(|ratio| plain(beneath(ratio)));
            table.add_row([name, under].into_iter().map(Cell::new).chain(figures));
            let ours = format!("under {}", units::filter_rules(it.filter_rules));
            let of_level = it.published.iter().map(|published| self.published(published, &ours));
            verdicts += &of_level.collect::<String>();
        }
        self.paint(&format!("{}\n{verdicts}\n", table.trim_fmt()))
    }

    fn certificate(&self, machine: &Machine) -> String {
        let mut text = self.paragraph("Machine", Ink::Dim, &certificate_line(machine));
        text += &self.paragraph("Noise", Ink::Dim, &noise_line(machine));
        for warning in &machine.warnings {
            text += &self.paragraph("!!", Ink::Warning, warning);
        }
        text
    }

    /// A word at the left, and text beside it that is wrapped to the width.
    fn paragraph(&self, word: &str, ink: Ink, text: &str) -> String {
        let mut table = Table::new();
        table.load_style(TableStyle::new());
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(self.width.max(LEAST_WIDTH)).unwrap_or(u16::MAX));
        table.add_row([ink.mark(&word.replace(' ', UNBROKEN)), text.to_owned()]);
        if let Some(column) = table.column_mut(0) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        self.paint(&format!("{}\n", table.trim_fmt().replace(UNBROKEN, " ")))
    }

    /// Marks become escapes, or nothing.
    fn paint(&self, marked: &str) -> String {
        let inks = [Ink::Bold, Ink::Dim, Ink::Good, Ink::Warning, Ink::Alarm];
        let escapes = inks.map(|ink| (ink.begin(), ink.escape())).into_iter();
        escapes.chain([(END, "\x1b[0m")]).fold(marked.to_owned(), |text, (mark, escape)| {
            text.replace(mark, if self.colour { escape } else { "" })
        })
    }
}

/// How a block is laid out.
#[derive(Clone, Copy, Debug)]
enum Form {
    RowsWithParts,
    Rows,
    Columns,
}

impl Form {
    fn widest(blocks: &[Block<'_>], width: usize) -> Self {
        let fits = |form: &Self| {
            blocks.iter().all(|block| {
                // The rules go from end to end.
                let rule = form.lay_out(block).lines().next();
                rule.is_none_or(|rule| rule.chars().count() <= width)
            })
        };
        [Self::RowsWithParts, Self::Rows].into_iter().find(fits).unwrap_or(Self::Columns)
    }

    fn lay_out(self, block: &Block<'_>) -> Table {
        match self {
            Self::RowsWithParts => in_rows(block, true),
            Self::Rows => in_rows(block, false),
            Self::Columns => in_columns(block),
        }
    }
}

/// A way to write. A table is laid out with marks that take no room, and painted
/// when every cell has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ink {
    Bold,
    Dim,
    Good,
    Warning,
    Alarm,
}

impl Ink {
    fn mark(self, text: &str) -> String {
        format!("{}{text}{END}", self.begin())
    }

    /// Characters of width zero that no figure contains and [`cleaned`] removes from
    /// all else.
    const fn begin(self) -> char {
        match self {
            Self::Bold => '\u{2061}',
            Self::Dim => '\u{2062}',
            Self::Good => '\u{2063}',
            Self::Warning => '\u{2064}',
            Self::Alarm => '\u{2060}',
        }
    }

    const fn escape(self) -> &'static str {
        match self {
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Warning => "\x1b[33;1m",
            Self::Alarm => "\x1b[31;1m",
        }
    }
}

/// A transport in each row. Second lines hold ranges and parts.
fn in_rows(block: &Block<'_>, with_parts: bool) -> Table {
    let mut table = bordered();
    let against = block.baseline().map_or("", units::name);
    let parts = if with_parts { "user, system, spin" } else { "" };
    let mut header = vec![
        String::new(),
        "tran/s\nleast … most".to_owned(),
        "MB/s\n".to_owned(),
        "response mean\np50".to_owned(),
        "p99\nmax".to_owned(),
        format!("client CPU µs\n{parts}"),
        format!("server CPU µs\n{parts}"),
        "connections\n".to_owned(),
    ];
    if !against.is_empty() {
        header.push(format!("tran/s\n÷ {against}"));
        header.push("response\nchange".to_owned());
    }
    table.set_header(header.iter().map(|title| titled(title)));
    for row in &block.rows {
        let cell = row.cell;
        let mut cells = vec![
            transport(row),
            plain(two(units::count(cell.tps.median), &range(row))),
            plain(units::significant(cell.mb_per_s)),
            plain(two(units::time(cell.response_us.mean), &units::time(cell.response_us.p50))),
            plain(two(units::time(cell.response_us.p99), &units::time(cell.response_us.max))),
            plain(cpu(&Side::client(&cell.cpu_us_per_tran), with_parts)),
            plain(cpu(&Side::server(&cell.cpu_us_per_tran), with_parts)),
            plain(proof(row)),
        ];
        if !against.is_empty() {
            cells.extend(
                [throughput_ratio(row), response_change(row)].map(|ratio| {
                    plain(ratio.map_or_else(String::new, |ratio| ratio.in_two_lines()))
                }),
            );
        }
        table.add_row(cells);
    }
    table
}

/// A transport in each column.
fn in_columns(block: &Block<'_>) -> Table {
    let mut table = bordered();
    let names = block.rows.iter().map(transport);
    table.set_header(
        std::iter::once(Cell::new("")).chain(names.map(|c| c.set_alignment(CellAlignment::Right))),
    );
    let mut line = |title: &str, show: &dyn Fn(&Row<'_>) -> String| {
        let figures = block.rows.iter().map(|row| plain(show(row)));
        table.add_row(std::iter::once(Cell::new(Ink::Dim.mark(title))).chain(figures));
    };
    line("tran/s", &|row| units::count(row.cell.tps.median));
    line("  least", &|row| units::count(row.cell.tps.min));
    line("  most", &|row| units::count(row.cell.tps.max));
    line("MB/s", &|row| units::significant(row.cell.mb_per_s));
    line("response, mean", &|row| units::time(row.cell.response_us.mean));
    line("  p50", &|row| units::time(row.cell.response_us.p50));
    line("  p99", &|row| units::time(row.cell.response_us.p99));
    line("  max", &|row| units::time(row.cell.response_us.max));
    line("CPU client, µs/tran", &|row| cpu(&Side::client(&row.cell.cpu_us_per_tran), false));
    line("CPU server, µs/tran", &|row| cpu(&Side::server(&row.cell.cpu_us_per_tran), false));
    line("connections", &proof);
    if let Some(baseline) = block.baseline() {
        let against = units::name(baseline);
        for (title, of) in [
            (format!("tran/s ÷ {against}"), throughput_ratio as fn(&Row<'_>) -> Option<Ratio>),
            ("response change".to_owned(), response_change),
        ] {
            line(&title, &|row| of(row).map_or_else(String::new, |ratio| ratio.value));
            line("  95 % from", &|row| of(row).map_or_else(String::new, |ratio| ratio.from));
            line("  95 % to", &|row| of(row).map_or_else(String::new, |ratio| ratio.to));
        }
    }
    table
}

fn transport(row: &Row<'_>) -> Cell {
    let name = units::name(row.cell.transport);
    Cell::new(if row.fell_back() { Ink::Alarm.mark(name) } else { Ink::Bold.mark(name) })
}

fn range(row: &Row<'_>) -> String {
    let tps = row.cell.tps;
    format!("{} … {}", units::count(tps.min), units::count(tps.max))
}

fn proof(row: &Row<'_>) -> String {
    let proof = row.proof();
    if !row.fell_back() {
        return proof;
    }
    let lines: Vec<String> = proof.split(", ").map(|line| Ink::Alarm.mark(line)).collect();
    lines.join("\n")
}

/// The CPU time of a side and its parts.
struct Side {
    all: f64,
    user: f64,
    system: f64,
    spin: f64,
}

impl Side {
    fn client(cpu: &CpuCost) -> Self {
        Self {
            all: cpu.client,
            user: cpu.client_user,
            system: cpu.client_system,
            spin: cpu.client_spin,
        }
    }

    fn server(cpu: &CpuCost) -> Self {
        Self {
            all: cpu.server,
            user: cpu.server_user,
            system: cpu.server_system,
            spin: cpu.server_spin,
        }
    }
}

fn cpu(side: &Side, with_parts: bool) -> String {
    let all = units::significant(side.all);
    if !with_parts {
        return all;
    }
    let [user, system, spin] = [side.user, side.system, side.spin].map(units::significant);
    let spin = if side.spin > 0.0 { format!(", {spin}") } else { String::new() };
    two(all, &format!("{user}, {system}{spin}"))
}

/// A ratio in a table: green if all of its interval is good, red if all is bad.
struct Ratio {
    value: String,
    from: String,
    to: String,
}

impl Ratio {
    fn of(ratio: f64, ci95: [f64; 2], show: fn(f64) -> String, good: Effect) -> Self {
        let shown = show(ratio);
        let value = match Effect::of(ratio, ci95) {
            Effect::None => shown,
            effect if effect == good => Ink::Good.mark(&shown),
            _ => Ink::Alarm.mark(&shown),
        };
        let bare = |ratio| show(ratio).trim_end_matches([' ', '%', '×']).to_owned();
        Self { value, from: bare(ci95[0]), to: bare(ci95[1]) }
    }

    /// With its interval beneath it.
    fn in_two_lines(&self) -> String {
        if self.from.is_empty() {
            return self.value.clone();
        }
        two(self.value.clone(), &format!("{} … {}", self.from, self.to))
    }
}

fn throughput_ratio(row: &Row<'_>) -> Option<Ratio> {
    compared(row, |c| Ratio::of(c.throughput_ratio, c.ci95, units::times, Effect::More))
}

fn response_change(row: &Row<'_>) -> Option<Ratio> {
    compared(row, |c| Ratio::of(c.response_ratio, c.response_ci95, units::change, Effect::Less))
}

fn compared(row: &Row<'_>, show: fn(&Comparison) -> Ratio) -> Option<Ratio> {
    if row.fell_back() {
        let value = Ink::Alarm.mark("not SMC");
        return Some(Ratio { value, from: String::new(), to: String::new() });
    }
    row.comparison.map(show)
}

fn certificate_line(machine: &Machine) -> String {
    let hypervisor = machine.hypervisor.as_ref().map(|name| format!(" under {name}"));
    format!(
        "{} × {}, {}, {}{}; Sidestep {}, {}, took {}",
        machine.cpus,
        machine.cpu_model,
        units::memory(machine.memory),
        machine.kernel,
        hypervisor.unwrap_or_default(),
        machine.sidestep,
        machine.began,
        units::span(machine.took_s),
    )
}

fn noise_line(machine: &Machine) -> String {
    let [one, five, fifteen] = machine.load_average;
    let other = match machine.wakeup_other_cpu_us {
        0.0 => String::new(),
        us => format!(", other CPU {}", units::time(us)),
    };
    format!(
        "load {one:.2} {five:.2} {fifteen:.2}, steal {}, foreign CPU {}; wake-up: same CPU {}{other}; \
         generator {} a transaction",
        units::percent(machine.steal_percent),
        units::percent(machine.foreign_percent),
        units::time(machine.wakeup_same_cpu_us),
        units::time(machine.generator_us_per_tran),
    )
}

fn bordered() -> Table {
    let rule = LineStyle::none().fill('─').junction('─');
    let mut table = Table::new();
    table.load_style(TableStyle::new().top_border(rule).header_separator(rule).bottom_border(rule));
    table
}

fn titled(text: &str) -> Cell {
    let lines: Vec<String> = text.split('\n').map(|line| Ink::Dim.mark(line)).collect();
    plain(lines.join("\n"))
}

/// A ratio with its bounds beneath it.
fn beneath((ratio, [low, high]): Bounded) -> String {
    let bounds = format!("{} … {}", units::significant(low), units::significant(high));
    two(units::times(ratio), &bounds)
}

/// A figure, and less loudly what belongs to it.
fn two(figure: String, beneath: &str) -> String {
    format!("{figure}\n{}", Ink::Dim.mark(beneath))
}

fn plain(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Ends what an [`Ink`] began: another character of width zero.
const END: char = '\u{2065}';

/// In place of a space at which no line may end.
const UNBROKEN: &str = "\u{a0}";

/// Paragraphs are not made narrower than this.
const LEAST_WIDTH: usize = 40;
