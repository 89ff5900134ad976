//! Change relative to the baseline: IBM's bar charts, a panel for each workload.

use maud::{Markup, html};

use super::{Section, legend};
use crate::plan::{Model, Transport};
use crate::report::block::Block;
use crate::report::chart::{Axis, Change, Measure, change_panel};
use crate::report::units;

pub(super) fn section(section: &Section<'_>) -> Markup {
    let panels: Vec<Panel<'_>> = section.blocks.iter().filter_map(Panel::of).collect();
    let Some(baseline) = section.blocks.iter().find_map(Block::baseline) else { return html! {} };
    let axis = Axis::of(panels.iter().flat_map(|panel| &panel.measures));
    let mut models: Vec<Model> = panels.iter().map(|panel| panel.block.key.model).collect();
    models.sort();
    models.dedup();
    let mut transports: Vec<Transport> = panels.iter().flat_map(Panel::transports).collect();
    transports.sort();
    transports.dedup();
    html! {
        section id=(section.anchor("relative")) {
            h2 { "Relative to " (units::name(baseline)) }
            p class="about" {
                "Change against " (units::name(baseline)) " in the same pair of runs: medians, with 95 % confidence intervals as whiskers. "
                "The axis is logarithmic in the ratio, so that twice as much and half as much are equally far from zero. "
                "A hollow bar: the interval includes zero, no difference can be seen."
            }
            p class="legend" { (legend(transports)) }
            @for model in models {
                div class="panels" {
                    @for panel in panels.iter().filter(|panel| panel.block.key.model == model) {
                        (panel.show(axis))
                    }
                }
            }
        }
    }
}

/// A workload with something to compare, or something lost.
struct Panel<'a> {
    block: &'a Block<'a>,
    measures: Vec<Measure>,
    lost: Vec<Transport>,
}

impl<'a> Panel<'a> {
    fn of(block: &'a Block<'a>) -> Option<Self> {
        let lost = block.rows.iter().filter(|row| row.fell_back());
        let panel = Self {
            block,
            measures: measures(block),
            lost: lost.map(|row| row.cell.transport).collect(),
        };
        (panel.transports().next().is_some() || !panel.lost.is_empty()).then_some(panel)
    }

    fn transports(&self) -> impl Iterator<Item = Transport> {
        self.measures.iter().take(1).flat_map(|m| m.changes.iter().map(|c| c.transport))
    }

    fn show(&self, axis: Axis) -> Markup {
        html! {
            figure class={ "card panel" @if self.transports().count() > 1 { " wide" } } {
                figcaption {
                    span class="workload" { (self.block.key.workload) }
                    span class="tag" { (self.block.key.circumstances()) }
                }
                @for transport in &self.lost {
                    p class="banner fell-back" { strong { (units::name(*transport)) " fell back to TCP" } ": not drawn." }
                }
                @if self.transports().next().is_some() { (change_panel(&self.measures, axis, &self.label())) }
            }
        }
    }

    /// The chart in words.
    fn label(&self) -> String {
        let mut label = format!("{}, {}:", self.block.key.workload, self.block.key.circumstances());
        for transport in self.transports() {
            label.push_str(&format!(" {}", units::name(transport)));
            for measure in &self.measures {
                let changes = measure.changes.iter().filter(|c| c.transport == transport);
                for change in changes {
                    let by = units::change(change.ratio);
                    label.push_str(&format!(", {} {by}", measure.title.to_lowercase()));
                }
            }
            label.push('.');
        }
        label
    }
}

fn measures(block: &Block<'_>) -> Vec<Measure> {
    let changes = |of: fn(&crate::result::Comparison) -> (f64, [f64; 2])| {
        let compared = block.compared();
        compared
            .map(|(cell, comparison)| {
                let (ratio, ci95) = of(comparison);
                Change { transport: cell.transport, ratio, ci95 }
            })
            .collect()
    };
    vec![
        Measure {
            title: "Throughput".into(),
            more_is_better: true,
            changes: changes(|c| (c.throughput_ratio, c.ci95)),
            theirs: None,
        },
        Measure {
            title: "CPU client".into(),
            more_is_better: false,
            changes: changes(|c| (c.cpu_ratio_client, c.cpu_ci95_client)),
            theirs: None,
        },
        Measure {
            title: "CPU server".into(),
            more_is_better: false,
            changes: changes(|c| (c.cpu_ratio_server, c.cpu_ci95_server)),
            theirs: None,
        },
        Measure {
            title: "Response".into(),
            more_is_better: false,
            changes: changes(|c| (c.response_ratio, c.response_ci95)),
            theirs: None,
        },
    ]
}
