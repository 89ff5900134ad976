//! Throughput over time: the runs of all transports, one pair after the other, as
//! they were made. Drift, bursts and two modes are seen here before any figure tells.

use maud::{Markup, html};

use super::frame::{Frame, class, end_labels, n};
use crate::plan::Transport;
use crate::report::scale::Scale;
use crate::report::units;

/// The runs of a transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline<'a> {
    pub(crate) transport: Transport,
    /// Transactions per second in each slice, for each run.
    pub(crate) runs: &'a [Vec<f64>],
}

/// One line for each run, those of a pair above each other; nothing without slices.
pub(crate) fn timelines(lines: &[Timeline<'_>], label: &str) -> Option<Markup> {
    let pairs = lines.iter().map(|line| line.runs.len()).max().unwrap_or(0);
    let slices = || lines.iter().flat_map(|line| line.runs).flatten().copied();
    slices().next()?;
    let (x0, x1) = FRAME.across();
    let (floor, ceiling) = FRAME.upward();
    let y = Scale::from_zero(slices()).onto(floor, ceiling);
    let room = |pair: usize| x0 + (x1 - x0) * pair as f64 / pairs as f64;
    let gap = if pairs <= MOST_LABELS { GAP } else { 0.0 };
    let label_every = pairs.div_ceil(MOST_LABELS);
    let ends: Vec<(Transport, f64)> = lines
        .iter()
        .filter_map(|line| Some((line.transport, y.at(*line.runs.last()?.last()?))))
        .collect();
    Some(FRAME.svg(
        label,
        &html! {
            (FRAME.levels(&y, &y.ticks(), |tps| units::tick(&units::count(tps))))
            (FRAME.unit("transactions per second"))
            g class="axis" text-anchor="middle" {
                @for pair in (0..pairs).step_by(label_every) {
                    text x=(n((room(pair) + room(pair + 1)) / 2.0)) y=(n(floor + 20.0)) {
                        @if pair == 0 && pairs <= MOST_NAMED { "run " } (pair + 1)
                    }
                }
            }
            @for line in lines.iter().rev() {
                g class={ "curve level " (class(line.transport)) } {
                    @for (pair, run) in line.runs.iter().enumerate() {
                        path d=(steps(run, &y, room(pair) + gap, room(pair + 1) - gap)) {
                            title { (story(line.transport, pair, run)) }
                        }
                    }
                }
            }
            (end_labels(&FRAME, &ends))
        },
    ))
}

/// A slice is an average over its time: a level line from its beginning to its end.
fn steps(run: &[f64], y: &Scale, from: f64, to: f64) -> String {
    let groups = run.chunks(run.len().div_ceil(MOST_STEPS).max(1));
    let width = (to - from) / groups.len().max(1) as f64;
    let mut path = String::new();
    let mut x = from;
    for group in groups {
        let level = n(y.at(mean(group)));
        let move_to =
            if path.is_empty() { format!("M{} {level}", n(x)) } else { format!("V{level}") };
        x += width;
        path.push_str(&format!("{move_to}H{}", n(x)));
    }
    path
}

fn story(transport: Transport, pair: usize, run: &[f64]) -> String {
    let name = units::name(transport);
    format!("{name}, run {}: {} transactions per second", pair + 1, units::count(mean(run)))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

const FRAME: Frame =
    Frame { width: 440.0, height: 262.0, left: 56.0, right: 58.0, top: 32.0, bottom: 30.0 };

/// Between the runs of two pairs, on either side.
const GAP: f64 = 2.0;

/// Runs that can have a number beneath them.
const MOST_LABELS: usize = 12;

/// Runs that leave room for the word.
const MOST_NAMED: usize = 6;

/// More steps than this in a run are averaged: they would be narrower than their line.
const MOST_STEPS: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_level_and_long_runs_are_averaged() {
        let y = Scale::from_zero([10.0].into_iter()).onto(100.0, 0.0);
        assert_eq!(steps(&[5.0, 10.0], &y, 0.0, 20.0), "M0 50H10V0H20");
        assert_eq!(steps(&[], &y, 0.0, 20.0), "");
        let long = vec![5.0; 100 * MOST_STEPS];
        assert_eq!(steps(&long, &y, 0.0, 20.0).matches('H').count(), MOST_STEPS);
    }

    #[test]
    fn without_slices_there_is_no_chart() {
        let line = Timeline { transport: Transport::Tcp, runs: &[Vec::new()] };
        assert!(timelines(&[line], "").is_none());
    }
}
