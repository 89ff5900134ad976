//! What all charts have in common: the frame with its axes, names at lines, paths.

use maud::{Markup, html};

use crate::plan::Transport;
use crate::report::scale::Scale;
use crate::report::units;

/// The area of a chart in which values are drawn, and what is around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Frame {
    /// From left to right.
    pub(super) fn across(&self) -> (f64, f64) {
        (self.left, self.width - self.right)
    }

    /// From bottom to top.
    pub(super) fn upward(&self) -> (f64, f64) {
        (self.height - self.bottom, self.top)
    }

    /// The whole picture. `label` says what it shows to those who do not see it.
    pub(super) fn svg(&self, label: &str, contents: &Markup) -> Markup {
        let view = format!("0 0 {} {}", n(self.width), n(self.height));
        let size = format!("max-width:{}px", n(self.width * MOST_MAGNIFIED));
        html! {
            svg class="chart" viewBox=(view) style=(size) role="img" aria-label=(label) {
                (contents)
            }
        }
    }

    /// Horizontal lines with what they stand for at the left.
    pub(super) fn levels(
        &self,
        scale: &Scale,
        ticks: &[f64],
        label: impl Fn(f64) -> String,
    ) -> Markup {
        let (x0, x1) = self.across();
        html! {
            g class="grid" {
                @for tick in ticks {
                    line x1=(n(x0)) x2=(n(x1)) y1=(n(scale.at(*tick))) y2=(n(scale.at(*tick))) {}
                }
            }
            g class="axis" text-anchor="end" {
                @for tick in ticks {
                    text x=(n(x0 - 8.0)) y=(n(scale.at(*tick) + HALF_LETTER)) { (label(*tick)) }
                }
            }
        }
    }

    /// What the vertical axis shows, above it.
    pub(super) fn unit(&self, text: &str) -> Markup {
        html! { text class="unit" x="2" y=(n(self.top - 12.0)) { (text) } }
    }
}

/// Names at the right ends of lines, moved apart so that none covers another.
pub(super) fn end_labels(frame: &Frame, ends: &[(Transport, f64)]) -> Markup {
    let mut ends = ends.to_vec();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut lowest = f64::NEG_INFINITY;
    for (_, y) in &mut ends {
        *y = y.max(lowest + LABEL_DISTANCE);
        lowest = *y;
    }
    let too_low = (lowest - frame.upward().0).max(0.0);
    html! {
        @for (transport, y) in ends {
            text class={ "end " (class(transport)) } x=(n(frame.across().1 + 6.0))
                y=(n(y - too_low + HALF_LETTER)) { (units::name(transport)) }
        }
    }
}

/// The class that gives an element a transport's colour and dashes.
pub(in crate::report) fn class(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "t-tcp",
        Transport::Smc => "t-smc",
        Transport::Unix => "t-unix",
        Transport::Sockmap => "t-sockmap",
    }
}

/// A coordinate: a tenth is less than an eye sees.
pub(super) fn n(coordinate: f64) -> String {
    let text = format!("{coordinate:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// A path through points; those that lie on top of the one before are left out, so
/// that a page does not grow with the number of percentiles.
pub(super) fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    let mut last: Option<(String, String)> = None;
    for (x, y) in points {
        let point = (n(x), n(y));
        if last.as_ref() != Some(&point) {
            let step = if path.is_empty() { 'M' } else { 'L' };
            path.push_str(&format!("{step}{} {}", point.0, point.1));
            last = Some(point);
        }
    }
    path
}

/// A chart may grow to this multiple of its size, so that letters stay in proportion.
const MOST_MAGNIFIED: f64 = 1.2;

/// From the middle of a letter to its base line.
const HALF_LETTER: f64 = 4.0;

/// Between the base lines of two names.
const LABEL_DISTANCE: f64 = 15.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_leave_out_what_nobody_sees() {
        let points = [(0.0, 1.0), (0.01, 1.02), (5.0, 2.0), (5.0, 2.0)];
        assert_eq!(path(points.into_iter()), "M0 1L5 2");
        assert_eq!(path(std::iter::empty()), "");
    }

    #[test]
    fn names_at_the_ends_of_lines_do_not_cover_each_other() {
        let frame =
            Frame { width: 100.0, height: 100.0, left: 0.0, right: 0.0, top: 0.0, bottom: 0.0 };
        let labels = end_labels(&frame, &[(Transport::Tcp, 98.0), (Transport::Smc, 97.0)]);
        let ys: Vec<f64> = labels
            .into_string()
            .split("y=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().expect("a value").parse().expect("a number"))
            .collect();
        assert_eq!(ys, [89.0, 104.0]);
    }
}
