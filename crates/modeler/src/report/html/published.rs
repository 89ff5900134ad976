//! IBM's published figures beside ours.

use maud::{Markup, html};

use super::Section;
use crate::report::block::Block;
use crate::report::chart;
use crate::report::units;
use crate::result::{Cell, Published};

pub(super) fn section(section: &Section<'_>) -> Markup {
    let rows: Vec<(&Block<'_>, &Cell, &Published)> = section
        .blocks
        .iter()
        .flat_map(|block| block.compared().map(move |compared| (block, compared)))
        .flat_map(|(block, (cell, c))| c.published.iter().map(move |figure| (block, cell, figure)))
        .collect();
    html! {
        @if !rows.is_empty() {
            section id=(section.anchor("published")) {
                h2 { "Beside IBM's figures" }
                p class="about" {
                    "IBM's are changes between network cards and SMC-R or SMC-D on z/OS; ours are changes between the "
                    "kernel's TCP and Sidestep on this machine. They are the same question asked of different systems."
                }
                div class="scroll card" tabindex="0" role="region" aria-label="Published figures" {
                    table class="published" {
                        thead { tr {
                            th scope="col" { "Workload" } th scope="col" { "Over" } th scope="col" { "Figure" }
                            th scope="col" class="num" { "IBM" } th scope="col" class="num" { "Ours" }
                            th scope="col" { "Verdict" } th scope="col" { "Source" }
                        } }
                        tbody {
                            @for (block, cell, figure) in rows { (row(block, cell, figure)) }
                        }
                    }
                }
            }
        }
    }
}

fn row(block: &Block<'_>, cell: &Cell, published: &Published) -> Markup {
    html! {
        tr {
            th scope="row" { span class="workload" { (block.key.workload) } small { (block.key.circumstances()) } }
            td class="over" { span class={ "dot " (chart::class(cell.transport)) } {} (units::name(cell.transport)) }
            td class="what" { (units::figure(published.figure)) }
            td class="num" data-label="IBM" { (units::change(1.0 + published.theirs)) }
            td class="num" data-label="Ours" {
                @if published.lacking.is_none() { b { (units::change(1.0 + published.ours)) } }
                @else { "–" }
            }
            td class="judged" {
                @if let Some(lacking) = &published.lacking { "not measured: " (lacking) }
                @else if published.beaten { span class="badge good" { "✓ reached" } }
                @else { span class="badge bad" { "✕ not reached" } }
            }
            td class="source" { (published.source) small { (published.compared) } }
        }
    }
}
