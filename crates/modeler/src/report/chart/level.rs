//! The same workload in several documents: throughput from zero, with the least and
//! the most of the runs as whiskers.

use maud::{Markup, html};

use super::frame::{Frame, class, n};
use crate::plan::Transport;
use crate::report::scale::Scale;
use crate::report::units;
use crate::result::Spread;

/// A transport's throughput in a document.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) transport: Transport,
    /// The document's letter.
    pub(crate) letter: String,
    pub(crate) tps: Spread,
    /// What it claims to be, it is not: nothing is drawn.
    pub(crate) fell_back: bool,
}

/// A bar for each; those of one transport stand together, in the order given.
pub(crate) fn level_panel(levels: &[Level], label: &str) -> Markup {
    let width = LEFT + 12.0 + levels.len() as f64 * STEP + gaps(levels, levels.len());
    let frame = Frame {
        width: width.max(LEAST_WIDTH),
        height: 260.0,
        left: LEFT,
        right: 6.0,
        top: 38.0,
        bottom: 54.0,
    };
    let (floor, ceiling) = frame.upward();
    let shown = levels.iter().filter(|level| !level.fell_back);
    let y = Scale::from_zero(shown.flat_map(|l| [l.tps.median, l.tps.max])).onto(floor, ceiling);
    let middle = |i: usize| LEFT + 6.0 + (i as f64 + 0.5) * STEP + gaps(levels, i);
    let contents = html! {
        (frame.levels(&y, &y.ticks(), |tps| units::tick(&units::count(tps))))
        (frame.unit("transactions per second"))
        @for (i, level) in levels.iter().enumerate() {
            (bar(level, &y, middle(i), floor))
            text class="name" text-anchor="middle" x=(n(middle(i))) y=(n(floor + 18.0)) { (level.letter) }
        }
        @for (transport, first, last) in runs_of_transports(levels) {
            text class="hint" text-anchor="middle" x=(n((middle(first) + middle(last)) / 2.0))
                y=(n(floor + 38.0)) { (units::name(transport)) }
        }
    };
    frame.svg(label, &contents)
}

fn bar(level: &Level, y: &Scale, middle: f64, floor: f64) -> Markup {
    if level.fell_back {
        return html! {
            text class="lost" text-anchor="middle" x=(n(middle)) y=(n(floor - 6.0)) {
                title { "fell back to TCP" } "✕"
            }
        };
    }
    let (tip, low, high) = (y.at(level.tps.median), y.at(level.tps.min), y.at(level.tps.max));
    html! {
        g class={ "bar " (class(level.transport)) } {
            title {
                (units::name(level.transport)) ", " (level.letter) ": "
                (units::count(level.tps.median)) " transactions per second"
            }
            rect x=(n(middle - WIDTH / 2.0)) y=(n(tip)) width=(n(WIDTH))
                height=(n((floor - tip).max(1.0))) rx="3" {}
            path class="whisker" d={ "M" (n(middle)) " " (n(low)) "V" (n(high)) } {}
            text text-anchor="middle" x=(n(middle)) y=(n(tip.min(high) - 6.0)) {
                (units::count(level.tps.median).replace(' ', ""))
            }
        }
    }
}

/// Extra room before a bar: between the transports.
fn gaps(levels: &[Level], before: usize) -> f64 {
    let changes =
        levels.windows(2).take(before).filter(|pair| pair[0].transport != pair[1].transport);
    let changes = changes.count() as f64;
    changes * GAP
}

/// Transports with the first and the last of their bars.
fn runs_of_transports(levels: &[Level]) -> Vec<(Transport, usize, usize)> {
    let mut runs: Vec<(Transport, usize, usize)> = Vec::new();
    for (i, level) in levels.iter().enumerate() {
        match runs.last_mut() {
            Some((transport, _, last)) if *transport == level.transport => *last = i,
            _ => runs.push((level.transport, i, i)),
        }
    }
    runs
}

const LEFT: f64 = 58.0;
const LEAST_WIDTH: f64 = 300.0;
const WIDTH: f64 = 32.0;
const STEP: f64 = 46.0;
const GAP: f64 = 18.0;
