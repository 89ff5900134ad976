//! Each workload: what to be wary of, its curves, and every figure.

use maud::{Markup, html};

use super::{Section, legend};
use crate::report::block::{Block, Row, label};
use crate::report::chart::{self, Curve, Timeline, percentile_curves, timelines};
use crate::report::units;
use crate::result::{Cell, Comparison, RemarkKind};

pub(super) fn section(section: &Section<'_>) -> Markup {
    html! {
        @if !section.blocks.is_empty() {
            section id=(section.anchor("workloads")) {
                h2 { "Workload by workload" }
                @if section.blocks.len() > 2 {
                    nav class="chips" aria-label="Workloads" {
                        @for (i, block) in section.blocks.iter().enumerate() {
                            a href={ "#" (place(section, i)) } {
                                span class="workload" { (block.key.workload) } " " (block.key.circumstances())
                            }
                        }
                    }
                }
                @for (i, block) in section.blocks.iter().enumerate() {
                    (article(block, &place(section, i)))
                }
            }
        }
    }
}

fn place(section: &Section<'_>, index: usize) -> String {
    section.anchor(&format!("w{}", index + 1))
}

fn article(block: &Block<'_>, anchor: &str) -> Markup {
    html! {
        article class="card" id=(anchor) {
            header {
                h3 { span class="workload" { (block.key.workload) } span class="tag" { (block.key.circumstances()) } }
                p class="legend" { (legend(block.rows.iter().map(|row| row.cell.transport))) }
            }
            @for row in &block.rows { (banners(row)) }
            (curves(block))
            (figures(block))
            (runs(block))
        }
    }
}

fn banners(row: &Row<'_>) -> Markup {
    html! {
        @for (kind, text) in row.remarks() {
            p class={ "banner" @if kind == RemarkKind::FellBack { " fell-back" } } {
                strong { (units::name(row.cell.transport)) ": " (label(kind)) ". " } (text)
            }
        }
    }
}

fn curves(block: &Block<'_>) -> Markup {
    let cells = || block.rows.iter().map(|row| row.cell);
    let curves: Vec<Curve<'_>> =
        cells().map(|c| Curve { transport: c.transport, points: &c.percentiles }).collect();
    let lines: Vec<Timeline<'_>> =
        cells().map(|c| Timeline { transport: c.transport, runs: &c.over_time }).collect();
    let slice = cells().map(|cell| cell.slice_ms).max().unwrap_or(0);
    html! {
        div class="pair" {
            @if let Some(chart) = percentile_curves(&curves, &in_words(block, "response time at the median and the 99th percentile", |cell| {
                format!("{} and {}", units::time(cell.response_us.p50), units::time(cell.response_us.p99))
            })) {
                figure { figcaption { "Response time by percentile" small { "logarithmic; each nine takes the same room" } } (chart) }
            }
            @if let Some(chart) = timelines(&lines, &in_words(block, "transactions per second over the runs", |cell| {
                format!("{} to {}", units::count(cell.tps.min), units::count(cell.tps.max))
            })) {
                figure { figcaption { "Throughput over time" small { "run after run, in slices of " (slice) " ms" } } (chart) }
            }
        }
    }
}

fn in_words(block: &Block<'_>, what: &str, figures: impl Fn(&Cell) -> String) -> String {
    let each = block
        .rows
        .iter()
        .map(|row| format!("{} {}", units::name(row.cell.transport), figures(row.cell)));
    format!("{}, {what}: {}.", block.key.workload, each.collect::<Vec<_>>().join(", "))
}

/// A ratio to the baseline, and its interval.
type RatioOf = fn(&Comparison) -> (f64, [f64; 2]);

/// A line of the table of figures.
struct Line {
    title: &'static str,
    /// A part of the line above.
    part: bool,
    show: fn(&Cell) -> String,
    ratio: Option<RatioOf>,
}

impl Line {
    /// Some transport has such a figure.
    fn applies(&self, block: &Block<'_>) -> bool {
        block.rows.iter().any(|row| (self.show)(row.cell) != NO_FIGURE)
    }
}

const fn line(title: &'static str, show: fn(&Cell) -> String) -> Line {
    Line { title, part: false, show, ratio: None }
}

const fn part(title: &'static str, show: fn(&Cell) -> String) -> Line {
    Line { title, part: true, show, ratio: None }
}

const fn compared(title: &'static str, show: fn(&Cell) -> String, ratio: RatioOf) -> Line {
    Line { title, part: false, show, ratio: Some(ratio) }
}

/// A table for each group, side by side if there is room.
fn figures(block: &Block<'_>) -> Markup {
    html! {
        div class={ "groups" @if block.rows.len() > MOST_BESIDE { " broad" } } {
            @for (group, lines) in GROUPS {
                div class="scroll" tabindex="0" role="region" aria-label={ (group) " of " (block.key.workload) } {
                    table class="figures" style={ "min-width:" (least_width(block)) "rem" } {
                        thead { tr {
                            th scope="col" class="group" { (group) }
                            @for row in &block.rows { (heading(row)) }
                        } }
                        tbody { @for line in lines.iter().filter(|line| line.applies(block)) { (line_of(block, line)) } }
                    }
                }
            }
        }
    }
}

/// Room for the titles and for each transport.
fn least_width(block: &Block<'_>) -> usize {
    8 + 5 * block.rows.len()
}

fn heading(row: &Row<'_>) -> Markup {
    html! {
        th scope="col" class="num" {
            span class={ "dot " (chart::class(row.cell.transport)) } {}
            (units::name(row.cell.transport))
            @if row.fell_back() { span class="badge bad" { "fell back" } }
        }
    }
}

fn line_of(block: &Block<'_>, line: &Line) -> Markup {
    html! {
        tr class=[line.part.then_some("part")] {
            th scope="row" { (line.title) }
            @for row in &block.rows {
                td class="num" {
                    (numeral(&(line.show)(row.cell)))
                    @if let (Some(ratio), Some(c), false) = (line.ratio, row.comparison, row.fell_back()) {
                        @let (ratio, ci95) = ratio(c);
                        small {
                            (units::change(ratio)) " "
                            span { "[" (units::signed_percent(ci95[0])) " … " (units::signed_percent(ci95[1])) "]" }
                        }
                    }
                }
            }
        }
    }
}

/// The figure in ink, its unit in grey.
fn numeral(text: &str) -> Markup {
    match text.split_once(' ') {
        Some((figure, unit)) if !unit.contains(' ') => html! { (figure) i { " " (unit) } },
        _ => html! { (text) },
    }
}

fn runs(block: &Block<'_>) -> Markup {
    let most = block.rows.iter().map(|row| row.cell.samples.len()).max().unwrap_or(0);
    html! {
        @if most > 0 {
            details {
                summary { "Every run" }
                div class="scroll" tabindex="0" role="region" aria-label={ "Every run of " (block.key.workload) } {
                    table {
                        thead { tr {
                            th scope="col" { "Pair" } th scope="col" { "Over" }
                            @for title in ["Transactions", "Seconds", "Tran/s", "MB/s", "Mean", "p50", "p99", "Max", "CPU client", "CPU server", "Whole machine"] {
                                th scope="col" class="num" { (title) }
                            }
                        } }
                        tbody {
                            @for i in 0..most {
                                @for row in &block.rows {
                                    @if let Some(sample) = row.cell.samples.get(i) {
                                        tr {
                                            th scope="row" { (u64::from(sample.pair) + 1) }
                                            td { span class={ "dot " (chart::class(row.cell.transport)) } {} (units::name(row.cell.transport)) }
                                            td class="num" { (sample.transactions) }
                                            td class="num" { (units::significant(sample.elapsed_s)) }
                                            td class="num" { (units::count(sample.tps)) }
                                            td class="num" { (units::significant(sample.mb_per_s)) }
                                            td class="num" { (units::time(sample.response_us.mean)) }
                                            td class="num" { (units::time(sample.response_us.p50)) }
                                            td class="num" { (units::time(sample.response_us.p99)) }
                                            td class="num" { (units::time(sample.response_us.max)) }
                                            td class="num" { (units::time(sample.cpu_us_per_tran.client)) }
                                            td class="num" { (units::time(sample.cpu_us_per_tran.server)) }
                                            td class="num" { (units::time(sample.machine_us_per_tran)) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// In place of a figure that does not apply.
const NO_FIGURE: &str = "–";

/// Transports whose figures leave room for another table beside them.
const MOST_BESIDE: usize = 2;

const GROUPS: &[(&str, &[Line])] = &[
    (
        "Throughput",
        &[
            compared(
                "Transactions per second",
                |c| units::count(c.tps.median),
                |c| (c.throughput_ratio, c.ci95),
            ),
            part("least of the runs", |c| units::count(c.tps.min)),
            part("most of the runs", |c| units::count(c.tps.max)),
            line("Application bytes, both ways", |c| units::rate(c.mb_per_s)),
        ],
    ),
    (
        "Response time",
        &[
            compared(
                "Mean",
                |c| units::time(c.response_us.mean),
                |c| (c.response_ratio, c.response_ci95),
            ),
            line("Standard deviation", |c| units::time(c.response_us.stddev)),
            line("p50", |c| units::time(c.response_us.p50)),
            line("p90", |c| units::time(c.response_us.p90)),
            line("p99", |c| units::time(c.response_us.p99)),
            line("p99.9", |c| units::time(c.response_us.p999)),
            line("Longest", |c| units::time(c.response_us.max)),
        ],
    ),
    (
        "What was measured",
        &[
            line("Runs", |c| c.runs.to_string()),
            line("Connections by SMC", |c| c.transport_proof.smc_connections.to_string()),
            line("Connections by TCP", |c| c.transport_proof.tcp_connections.to_string()),
        ],
    ),
    (
        "CPU time per transaction",
        &[
            compared(
                "Client",
                |c| units::time(c.cpu_us_per_tran.client),
                |c| (c.cpu_ratio_client, c.cpu_ci95_client),
            ),
            part("user", |c| units::time(c.cpu_us_per_tran.client_user)),
            part("of it spinning", |c| units::time(c.cpu_us_per_tran.client_spin)),
            part("system", |c| units::time(c.cpu_us_per_tran.client_system)),
            part("of both the gateway's", |c| units::time(c.cpu_us_per_tran.client_gateway)),
            compared(
                "Server",
                |c| units::time(c.cpu_us_per_tran.server),
                |c| (c.cpu_ratio_server, c.cpu_ci95_server),
            ),
            part("user", |c| units::time(c.cpu_us_per_tran.server_user)),
            part("of it spinning", |c| units::time(c.cpu_us_per_tran.server_spin)),
            part("system", |c| units::time(c.cpu_us_per_tran.server_system)),
            part("of both the gateway's", |c| units::time(c.cpu_us_per_tran.server_gateway)),
            line("Whole machine (RMF's arithmetic)", |c| units::time(c.machine_us_per_tran)),
            line("Whole machine of the server", |c| {
                c.server_machine_us_per_tran.map_or_else(|| NO_FIGURE.to_owned(), units::time)
            }),
        ],
    ),
    (
        "Waiting per transaction",
        &[
            line("Context switches, client", |c| {
                units::significant(c.waits_per_tran.client_switches)
            }),
            line("Context switches, server", |c| {
                units::significant(c.waits_per_tran.server_switches)
            }),
            line("Sleeps in Sidestep", |c| units::significant(c.waits_per_tran.parks)),
            line("Wake-ups of the peer", |c| units::significant(c.waits_per_tran.wakeups)),
        ],
    ),
];
