//! What several documents have in common: the same workload, measured more than once.

use maud::{Markup, html};

use super::{Section, legend};
use crate::plan::Transport;
use crate::report::block::{Key, Row};
use crate::report::chart::{Level, level_panel};
use crate::report::units;

/// A chart for each workload that occurs in more than one document.
pub(super) fn same_cells(sections: &[Section<'_>]) -> Markup {
    let shared = shared(sections);
    if shared.is_empty() {
        return html! {};
    }
    let mut transports: Vec<Transport> =
        shared.iter().flat_map(|(_, levels)| levels.iter().map(|level| level.transport)).collect();
    transports.sort();
    transports.dedup();
    html! {
        section id="same" {
            h2 { "The same workloads, side by side" }
            p class="about" {
                "Throughput from zero; the line spans the runs. "
                @if differ(sections) { b { "The machines differ: compare ratios, not heights. " } }
                "Whether a difference is more than noise is a question for " code { "sidestep bench compare" } "."
            }
            p class="legend" { (legend(transports)) }
            div class="panels" {
                @for (key, levels) in &shared {
                    figure class={ "card panel" @if levels.len() > MOST_NARROW { " wide" } } {
                        figcaption {
                            span class="workload" { (key.workload) }
                            span class="tag" { (key.circumstances()) }
                        }
                        (level_panel(levels, &in_words(key, levels)))
                    }
                }
            }
        }
    }
}

/// Keys with the levels of all documents that have them; those of one transport
/// together.
fn shared<'a>(sections: &[Section<'a>]) -> Vec<(Key<'a>, Vec<Level>)> {
    let mut keys: Vec<Key<'a>> = Vec::new();
    for block in sections.iter().flat_map(|section| &section.blocks) {
        if !keys.contains(&block.key) {
            keys.push(block.key);
        }
    }
    keys.into_iter()
        .filter_map(|key| {
            let mut levels: Vec<Level> = Vec::new();
            for section in sections {
                let rows = section.blocks.iter().filter(|b| b.key == key).flat_map(|b| &b.rows);
                levels.extend(rows.map(|row| level(section, row)));
            }
            let again = |one: &Level| {
                levels.iter().any(|o| o.transport == one.transport && o.letter != one.letter)
            };
            let mut common: Vec<Level> = levels.iter().filter(|l| again(l)).cloned().collect();
            common.sort_by_key(|level| level.transport);
            (!common.is_empty()).then_some((key, common))
        })
        .collect()
}

fn level(section: &Section<'_>, row: &Row<'_>) -> Level {
    Level {
        transport: row.cell.transport,
        letter: section.letter(),
        tps: row.cell.tps,
        fell_back: row.fell_back(),
    }
}

fn in_words(key: &Key<'_>, levels: &[Level]) -> String {
    let each = levels.iter().map(|level| {
        let tps = units::count(level.tps.median);
        match level.fell_back {
            true => format!("{} {} fell back to TCP", level.letter, units::name(level.transport)),
            false => format!("{} {} {tps}", level.letter, units::name(level.transport)),
        }
    });
    let each: Vec<String> = each.collect();
    format!("{}, transactions per second: {}.", key.workload, each.join(", "))
}

fn differ(sections: &[Section<'_>]) -> bool {
    let places = sections.iter().map(|section| {
        let machine = &section.document.machine;
        (&machine.cpu_model, machine.cpus, &machine.kernel)
    });
    let places: Vec<_> = places.collect();
    places.windows(2).any(|pair| pair[0] != pair[1])
}

/// More bars than this need a wider panel.
const MOST_NARROW: usize = 5;
