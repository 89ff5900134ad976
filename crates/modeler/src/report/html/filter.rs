//! Each workload under IP filters: what it costs to judge packets, beside what IBM has published.

use maud::{Markup, html};

use super::{Section, legend};
use crate::plan::Transport;
use crate::report::chart::{self, Axis, Change, Measure, change_panel};
use crate::report::units;
use crate::result::{Figure, Filtered, Published};

pub(super) fn section(section: &Section<'_>) -> Markup {
    let filtered = &section.document.filtered;
    let panels: Vec<Panel<'_>> = filtered.chunk_by(is_same).map(Panel::of).collect();
    let axis = Axis::of(panels.iter().flat_map(|panel| &panel.measures));
    let mut transports: Vec<Transport> = filtered.iter().map(|it| it.transport).collect();
    transports.sort();
    transports.dedup();
    html! {
        @if !filtered.is_empty() {
            section id=(section.anchor("filter")) {
                h2 { "Under an IP filter" }
                p class="about" {
                    "Ratios to the same workload without a filter, in the same pair of runs: medians, and their intervals at 95 %. "
                    "No rule matches but the last, so a filter that searches its list from top to bottom takes longer with each rule."
                }
                p class="legend" { (legend(transports)) }
                div class="panels" { @for panel in &panels { (panel.show(axis)) } }
                div class="scroll card" tabindex="0" role="region" aria-label="Under an IP filter" {
                    table class="published" {
                        thead { tr {
                            th scope="col" { "Workload" } th scope="col" { "Over" } th scope="col" class="num" { "Rules" }
                            th scope="col" class="num" { "Response" } th scope="col" class="num" { "Throughput" }
                            th scope="col" class="num" { "CPU" } th scope="col" { "IBM" }
                        } }
                        tbody { @for filtered in filtered { (row(filtered)) } }
                    }
                }
            }
        }
    }
}

/// They differ by rules and transport alone.
fn is_same(a: &Filtered, b: &Filtered) -> bool {
    let key = |it: &Filtered| (it.workload.clone(), it.model, it.rmbe, it.contention.clone());
    key(a) == key(b)
}

/// The response times of a workload, by the number of rules.
struct Panel<'a> {
    of: &'a [Filtered],
    measures: Vec<Measure>,
}

impl<'a> Panel<'a> {
    fn of(of: &'a [Filtered]) -> Self {
        let measure = |level: &[Filtered]| Measure {
            title: format!("{} rules", units::grouped(level[0].filter_rules)).into(),
            more_is_better: false,
            changes: level.iter().map(change).collect(),
            theirs: level.iter().flat_map(|it| &it.published).find_map(theirs),
        };
        let levels = of.chunk_by(|a, b| a.filter_rules == b.filter_rules);
        Self { of, measures: levels.map(measure).collect() }
    }

    fn show(&self, axis: Axis) -> Markup {
        let Filtered { workload, model, .. } = &self.of[0];
        html! {
            figure class="card panel wide" {
                figcaption {
                    span class="workload" { (workload) }
                    span class="tag" { (model) ", response time" }
                }
                (change_panel(&self.measures, axis, &self.label()))
            }
        }
    }

    /// The chart in words.
    fn label(&self) -> String {
        let words = self.of.iter().map(|it| {
            let (over, by) = (units::name(it.transport), units::change(it.response_ratio));
            format!(" {over} under {}, {by}", units::filter_rules(it.filter_rules))
        });
        let words: Vec<String> = words.collect();
        format!("{}, response time:{}.", self.of[0].workload, words.join(";"))
    }
}

fn change(filtered: &Filtered) -> Change {
    let &Filtered { transport, response_ratio: ratio, response_ci95: ci95, .. } = filtered;
    Change { transport, ratio, ci95 }
}

/// IBM's ratio, if it can be drawn.
fn theirs(published: &Published) -> Option<f64> {
    let ratio = 1.0 + published.theirs;
    let is_drawn = published.figure == Figure::Response && ratio.is_finite() && ratio > 0.0;
    is_drawn.then_some(ratio)
}

fn row(filtered: &Filtered) -> Markup {
    html! {
        tr {
            th scope="row" { span class="workload" { (filtered.workload) } small { (filtered.model) } }
            td class="over" {
                span class={ "dot " (chart::class(filtered.transport)) } {} (units::name(filtered.transport))
            }
            td class="num" data-label="Rules" { (units::grouped(filtered.filter_rules)) }
            td class="num" data-label="Response" { (bounded(filtered.response_ratio, filtered.response_ci95)) }
            td class="num" data-label="Throughput" { (bounded(filtered.throughput_ratio, filtered.ci95)) }
            td class="num" data-label="CPU" { (bounded(filtered.cpu_ratio, filtered.cpu_ci95)) }
            td class="judged" { @for published in &filtered.published { (judged(published)) } }
        }
    }
}

fn bounded(ratio: f64, [low, high]: [f64; 2]) -> Markup {
    html! { b { (units::times(ratio)) } small { (units::significant(low)) " … " (units::significant(high)) } }
}

fn judged(published: &Published) -> Markup {
    let (class, mark) = if published.beaten { ("good", "✓") } else { ("bad", "✕") };
    let theirs = units::change(1.0 + published.theirs);
    html! {
        span class={ "badge " (class) } title=(published.source) {
            (mark) " " (units::figure(published.figure)) " " (theirs)
        }
        " "
    }
}
