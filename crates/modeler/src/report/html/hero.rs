//! The top of the page, or of a document's part of it: the finding and the summary.

use maud::{Markup, html};

use super::{Section, sentence};
use crate::contention::Contention;
use crate::plan::Transport;
use crate::report::block::{Block, Row};
use crate::report::chart;
use crate::report::finding::{Finding, Overall, Summary, several_models};
use crate::report::units;
use crate::result::{Comparison, Machine};

/// The opening of a page with one document.
pub(super) fn single(section: &Section<'_>) -> Markup {
    let machine = &section.document.machine;
    html! {
        section class="hero" {
            div {
                p class="eyebrow" { (origin(section)) }
                h1 { (sentence(&Finding::of(section.document))) "." }
                p class="lede" { (breadth(section)) (place(machine)) }
                (alarm(section))
            }
            (race(section))
        }
    }
}

/// The opening of a page with several.
pub(super) fn several(sections: &[Section<'_>]) -> Markup {
    html! {
        section class="hero plain" {
            p class="eyebrow" { "Workload report" }
            h1 { em { (sections.len()) } " measurements side by side" }
            ol class="contents" {
                @for section in sections {
                    li {
                        a href={ "#" (section.anchor("top")) } {
                            span class="letter" { (section.letter()) }
                            span {
                                (sentence(&Finding::of(section.document))) "."
                                small { (origin(section)) " · Sidestep " (section.document.machine.sidestep) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The opening of one document among several.
pub(super) fn nested(section: &Section<'_>) -> Markup {
    html! {
        section class="hero nested" id=(section.anchor("top")) {
            div {
                p class="eyebrow" { span class="letter" { (section.letter()) } (origin(section)) }
                h2 class="finding" { (sentence(&Finding::of(section.document))) "." }
                p class="lede" { (breadth(section)) (place(&section.document.machine)) }
                (alarm(section))
            }
            (race(section))
        }
    }
}

/// The figures over all workloads.
pub(super) fn cards(section: &Section<'_>) -> Markup {
    let summary = Summary::of(&section.blocks);
    html! {
        section aria-label="Summary" {
            @if let Some(summary) = &summary { (caption(summary)) }
            div class="cards" {
                @if let Some(summary) = &summary { (gains(summary)) }
                (beside_ibm(section))
                (proof(section))
            }
        }
    }
}

/// Whom the cards speak of.
fn caption(summary: &Summary<'_>) -> Markup {
    html! {
        p class="caption" {
            (units::name(summary.subject)) " relative to " (units::name(summary.baseline))
            @if summary.count > 1 { ": geometric means of " (summary.count) " measurements, and their range" }
        }
    }
}

fn gains(summary: &Summary<'_>) -> Markup {
    let throughput = summary.throughput;
    html! {
        (card("Throughput", &units::times(throughput.mean), &range(throughput, units::times, summary.count)))
        @for (label, overall) in [
            ("Response time", summary.response),
            ("CPU of the client", summary.cpu_client),
            ("CPU of the server", summary.cpu_server),
        ] {
            @if let Some(overall) = overall {
                (card(label, &units::change(overall.mean), &range(overall, units::change, summary.count)))
            }
        }
    }
}

fn card(label: &str, figure: &str, note: &str) -> Markup {
    html! { div class="card" { p class="label" { (label) } p class="figure" { (figure) } p class="note" { (note) } } }
}

fn range(overall: Overall, show: fn(f64) -> String, count: usize) -> String {
    if count == 1 {
        return "in the one measurement".to_owned();
    }
    format!("{} to {}", show(overall.min), show(overall.max))
}

fn beside_ibm(section: &Section<'_>) -> Markup {
    let of_transports = section.blocks.iter().flat_map(Block::compared);
    let of_filters = section.document.filtered.iter().flat_map(|filtered| &filtered.published);
    let published: Vec<bool> = of_transports
        .flat_map(|(_, comparison)| &comparison.published)
        .chain(of_filters)
        .filter(|figure| figure.lacking.is_none())
        .map(|figure| figure.beaten)
        .collect();
    let beaten = published.iter().filter(|beaten| **beaten).count();
    html! {
        @if !published.is_empty() {
            (card("IBM's figures", &format!("{beaten} of {}", published.len()), "reached or beaten"))
        }
    }
}

fn proof(section: &Section<'_>) -> Markup {
    let proofs = section
        .blocks
        .iter()
        .flat_map(|block| &block.rows)
        .filter(|row| row.cell.transport == Transport::Smc)
        .map(|row| &row.cell.transport_proof);
    let (smc, tcp) = proofs.fold((0_u64, 0_u64), |(smc, tcp), proof| {
        (smc.saturating_add(proof.smc_connections), tcp.saturating_add(proof.tcp_connections))
    });
    html! {
        @if smc > 0 || tcp > 0 || section.fell_back() {
            div class={ "card" @if section.fell_back() { " alarming" } } {
                p class="label" { "Proof" }
                p class="figure" { (smc) small { " of " (smc.saturating_add(tcp)) } }
                p class="note" { "SMC connections were SMC-D" }
            }
        }
    }
}

/// Suite and moment.
fn origin(section: &Section<'_>) -> Markup {
    html! {
        @match &section.document.suite {
            Some(suite) => { "Suite " (suite) },
            None => "Workload report",
        }
        " · " (moment(&section.document.machine.began))
    }
}

/// `2026-03-01 10:15 UTC`; what cannot be read as a time is shown as it is.
pub(super) fn moment(began: &str) -> String {
    match began.parse::<jiff::Timestamp>() {
        Ok(moment) => moment.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => began.to_owned(),
    }
}

/// So that the best workload is not taken for all of them.
fn breadth(section: &Section<'_>) -> Markup {
    let Some(summary) = Summary::of(&section.blocks).filter(|summary| summary.count > 1) else {
        return html! {};
    };
    html! {
        "That is the largest gain of " (summary.count) "; on average it is "
        b { (units::times(summary.throughput.mean)) } " (geometric mean), at least "
        b { (units::times(summary.throughput.min)) } " with "
        span class="workload" { (name_of(section, summary.worst)) } ". "
        @if summary.left_out > 0 {
            (summary.left_out) " that fell back to " (units::name(summary.baseline)) " "
            (if summary.left_out == 1 { "is" } else { "are" }) " not counted. "
        }
    }
}

fn name_of(section: &Section<'_>, comparison: &Comparison) -> String {
    let mut name = comparison.workload.clone();
    if several_models(section.document) {
        name += &format!(" ({})", comparison.model);
    }
    if comparison.contention != Contention::NONE {
        name += &format!(" beside {}", comparison.contention);
    }
    if comparison.filter_rules > 0 {
        name += &format!(" under {}", units::filter_rules(comparison.filter_rules));
    }
    name
}

fn place(machine: &Machine) -> Markup {
    html! {
        "Measured on " (machine.cpus) " CPUs of " (machine.cpu_model) ", " (machine.kernel) "."
    }
}

/// A figure of TCP under the name of SMC must not be overlooked.
fn alarm(section: &Section<'_>) -> Markup {
    let lost: Vec<&Row<'_>> =
        section.blocks.iter().flat_map(|b| &b.rows).filter(|row| row.fell_back()).collect();
    html! {
        @if !lost.is_empty() {
            div class="banner fell-back" role="alert" {
                p {
                    strong { "Fell back to TCP. " }
                    (lost.len()) " of the measurements below "
                    (if lost.len() == 1 { "is not a figure" } else { "are not figures" })
                    " of " (units::name(lost[0].cell.transport)) ": "
                    @for (i, row) in lost.iter().take(MOST_NAMED).enumerate() {
                        @if i > 0 { ", " }
                        span class="workload" { (row.cell.workload) } " (" (row.cell.model) ")"
                    }
                    @if lost.len() > MOST_NAMED { " and others" }
                    (if lost.len() == 1 { ". It is" } else { ". They are" }) " left out of all comparisons."
                }
            }
        }
    }
}

/// The workload of the finding: its transports as bars.
fn race(section: &Section<'_>) -> Markup {
    let best = Summary::of(&section.blocks).map(|summary| summary.best);
    let with_best = |block: &&Block<'_>| {
        best.is_none_or(|best| block.compared().any(|(_, c)| std::ptr::eq(c, best)))
    };
    let Some(block) = section.blocks.iter().find(with_best) else { return html! {} };
    let rows: Vec<&Row<'_>> = block.rows.iter().filter(|row| !row.fell_back()).collect();
    let most = rows.iter().map(|row| row.cell.tps.median).fold(0.0, f64::max);
    html! {
        div class="race card" {
            p class="race-title" { span class="workload" { (block.key.workload) } span { (block.key.circumstances()) } }
            dl {
                @for row in rows {
                    dt { (units::name(row.cell.transport)) }
                    dd {
                        span class={ "track " (chart::class(row.cell.transport)) } { span style={ "width:" (share(row.cell.tps.median, most)) "%" } {} }
                        b { (units::count(row.cell.tps.median)) }
                        small { "tran/s · " (units::time(row.cell.response_us.mean)) }
                    }
                }
            }
        }
    }
}

/// A part of the largest in percent, from 1 (still to be seen) to 100.
fn share(value: f64, most: f64) -> String {
    let part = value / most * 100.0;
    format!("{:.1}", if part.is_finite() { part.clamp(1.0, 100.0) } else { 1.0 })
}

/// Measurements that a banner can name.
const MOST_NAMED: usize = 6;
