//! Bars relative to the baseline, as in IBM's papers: up is more, down is less.
//!
//! The axis is logarithmic in the ratio. On a linear one nothing can fall below
//! -100 % while everything may rise without end, so a response time cut to a ninth
//! would look small beside a throughput nine times as high: the same effect.

use std::borrow::Cow;

use maud::{Markup, html};

use super::frame::{Frame, class, n};
use crate::plan::Transport;
use crate::report::finding::Effect;
use crate::report::scale::Scale;
use crate::report::units;

/// What is compared, with a bar for each transport.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) title: Cow<'static, str>,
    pub(crate) more_is_better: bool,
    pub(crate) changes: Vec<Change>,
    /// The ratio that IBM has published.
    pub(crate) theirs: Option<f64>,
}

/// The height of a bar, and its whisker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) transport: Transport,
    pub(crate) ratio: f64,
    pub(crate) ci95: [f64; 2],
}

/// The axis that all panels of a document share, so that bars can be compared from
/// one to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis(Scale);

impl Axis {
    pub(crate) fn of<'a>(measures: impl Iterator<Item = &'a Measure>) -> Self {
        let of_change = |c: &Change| [c.ratio, c.ci95[0], c.ci95[1]];
        let of_measure =
            |measure: &'a Measure| measure.changes.iter().flat_map(of_change).chain(measure.theirs);
        Self(Scale::ratios(measures.flat_map(of_measure)))
    }
}

/// One workload: its measures side by side.
pub(crate) fn change_panel(measures: &[Measure], axis: Axis, label: &str) -> Markup {
    let bars = measures.iter().map(|measure| measure.changes.len()).max().unwrap_or(0).max(1);
    let (bars, groups) = (bars as f64, measures.len() as f64);
    let group_width = (bars * BAR_STEP + GROUP_GAP).max(LEAST_GROUP);
    let frame = Frame {
        width: LEFT + groups * group_width + 6.0,
        height: HEIGHT,
        left: LEFT,
        right: 6.0,
        top: 22.0,
        bottom: 58.0,
    };
    let (floor, ceiling) = frame.upward();
    let scale = axis.0.onto(floor - 4.0, ceiling + 4.0);
    let zero = scale.at(1.0);
    let several = bars > 1.0;
    let contents = html! {
        (frame.levels(&scale, &scale.ratio_ticks(), units::change))
        line class="zero" x1=(n(LEFT)) x2=(n(frame.across().1)) y1=(n(zero)) y2=(n(zero)) {}
        @for (i, measure) in (0_u32..).zip(measures) {
            @let middle = LEFT + (f64::from(i) + 0.5) * group_width;
            @for (j, change) in (0_u32..).zip(&measure.changes) {
                (bar(change, measure, &scale, middle + (f64::from(j) + 0.5 - bars / 2.0) * BAR_STEP, several))
            }
            @if let Some(theirs) = measure.theirs { (mark(theirs, scale.at(theirs), middle, group_width)) }
            text class="name" text-anchor="middle" x=(n(middle)) y=(n(HEIGHT - 26.0)) { (measure.title) }
            text class="hint" text-anchor="middle" x=(n(middle)) y=(n(HEIGHT - 9.0)) {
                (if measure.more_is_better { "↑ better" } else { "↓ better" })
            }
        }
    };
    frame.svg(label, &contents)
}

fn bar(change: &Change, measure: &Measure, scale: &Scale, middle: f64, several: bool) -> Markup {
    if !change.ratio.is_finite() {
        return html! {};
    }
    let effect = Effect::of(change.ratio, change.ci95);
    let good = (effect == Effect::More) == measure.more_is_better;
    let (zero, tip) = (scale.at(1.0), scale.at(change.ratio));
    let whisker = change.ci95.iter().all(|bound| bound.is_finite());
    let (low, high) =
        if whisker { (scale.at(change.ci95[0]), scale.at(change.ci95[1])) } else { (tip, tip) };
    let upward = change.ratio >= 1.0;
    let value_at = if upward { tip.min(high) - 7.0 } else { tip.max(low) + 15.0 };
    let verdict = match effect {
        Effect::None => "unclear",
        _ if good => "good",
        _ => "bad",
    };
    let value =
        if several { units::signed_percent(change.ratio) } else { units::change(change.ratio) };
    html! {
        g class={ "bar " (class(change.transport)) " " (verdict) } {
            title {
                (units::name(change.transport)) ", " (measure.title) ": " (units::change(change.ratio))
                " (" (units::change(change.ci95[0])) " … " (units::change(change.ci95[1])) ")"
            }
            rect x=(n(middle - BAR_WIDTH / 2.0)) y=(n(zero.min(tip))) width=(n(BAR_WIDTH))
                height=(n((zero - tip).abs().max(1.0))) rx="3" {}
            @if whisker {
                path class="whisker" d={
                    "M" (n(middle)) " " (n(low)) "V" (n(high))
                    "M" (n(middle - CAP)) " " (n(low)) "h" (n(2.0 * CAP))
                    "M" (n(middle - CAP)) " " (n(high)) "h" (n(2.0 * CAP))
                } {}
            }
            text text-anchor="middle" x=(n(middle)) y=(n(value_at)) { (value) }
        }
    }
}

/// A line through a group where IBM's figure is.
fn mark(theirs: f64, y: f64, middle: f64, group_width: f64) -> Markup {
    let (x1, x2) = (middle - group_width / 2.0 + 4.0, middle + group_width / 2.0 - 4.0);
    html! {
        g class="theirs" {
            title { "IBM: " (units::change(theirs)) }
            line x1=(n(x1)) x2=(n(x2)) y1=(n(y)) y2=(n(y)) {}
            text text-anchor="end" x=(n(x2)) y=(n(y - 4.0)) { "IBM " (units::signed_percent(theirs)) }
        }
    }
}

const HEIGHT: f64 = 290.0;
const LEFT: f64 = 52.0;
const BAR_WIDTH: f64 = 30.0;
const BAR_STEP: f64 = 42.0;
const GROUP_GAP: f64 = 18.0;
/// Room for the title of a measure.
const LEAST_GROUP: f64 = 76.0;
/// Half the width of a whisker's ends.
const CAP: f64 = 5.0;
