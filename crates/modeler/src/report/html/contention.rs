//! Each workload under each contention, and what is required of it.

use maud::{Markup, html};

use super::Section;
use crate::report::chart;
use crate::report::contention::{Bounded, Line, lines};
use crate::report::units;
use crate::result::Required;

pub(super) fn section(section: &Section<'_>) -> Markup {
    let lines = lines(&section.blocks);
    html! {
        @if !lines.is_empty() {
            section id=(section.anchor("contention")) {
                h2 { "Under contention" }
                p class="about" {
                    "Ratios to the baseline while other work wants the CPUs, or little of them is left: medians of the pairs, "
                    "and their intervals at 95 %. Neighbours are endless loops, the same for all transports."
                }
                div class="scroll card" tabindex="0" role="region" aria-label="Under contention" {
                    table class="published" {
                        thead { tr {
                            th scope="col" { "Workload" } th scope="col" { "Over" } th scope="col" { "Beside" }
                            th scope="col" class="num" { "Throughput" } th scope="col" class="num" { "p99" }
                            th scope="col" class="num" { "CPU" } th scope="col" { "Required" }
                        } }
                        tbody { @for line in &lines { (row(line)) } }
                    }
                }
            }
        }
    }
}

fn row(line: &Line<'_>) -> Markup {
    let Line { block, cell, comparison, .. } = line;
    html! {
        tr {
            th scope="row" { span class="workload" { (block.key.workload) } small { (block.key.make()) } }
            td class="over" { span class={ "dot " (chart::class(cell.transport)) } {} (units::name(cell.transport)) }
            td class="what" { (comparison.contention) }
            td class="num" data-label="Throughput" { (bounded(Some(line.throughput()))) }
            td class="num" data-label="p99" { (bounded(line.p99())) }
            td class="num" data-label="CPU" { (bounded(line.cpu())) }
            td class="judged" { @for required in &comparison.required { (judged(required)) } }
        }
    }
}

fn bounded(ratio: Option<Bounded>) -> Markup {
    html! {
        @match ratio {
            Some((ratio, [low, high])) => {
                b { (units::times(ratio)) }
                small { (units::significant(low)) " … " (units::significant(high)) }
            }
            None => (units::UNKNOWN),
        }
    }
}

/// Its words say what was required.
fn judged(required: &Required) -> Markup {
    let (class, mark) = if required.met { ("good", "✓") } else { ("bad", "✕") };
    html! {
        span class={ "badge " (class) } title=(units::required(required)) {
            (mark) " " (units::figure(required.figure))
        }
        " "
    }
}
