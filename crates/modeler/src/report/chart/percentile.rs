//! Response times at percentiles: the tail is where transports differ.

use maud::{Markup, html};

use super::frame::{Frame, class, end_labels, n, path};
use crate::plan::Transport;
use crate::report::scale::{Scale, odds};
use crate::report::units;

/// The percentiles of a transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Curve<'a> {
    pub(crate) transport: Transport,
    /// Percentile (0 to 100) and microseconds, rising.
    pub(crate) points: &'a [(f64, f64)],
}

/// One curve for each transport; nothing if none has points.
pub(crate) fn percentile_curves(curves: &[Curve<'_>], label: &str) -> Option<Markup> {
    let curves: Vec<&Curve<'_>> = curves.iter().filter(|c| !c.points.is_empty()).collect();
    let points = || curves.iter().flat_map(|curve| curve.points).copied();
    if curves.is_empty() {
        return None;
    }
    // The hundredth percentile lies infinitely far to the right: the maximum has a
    // place of its own behind the highest one that does not.
    let highest = points().map(|(p, _)| p).filter(|p| *p < 100.0).fold(0.0, f64::max);
    let (x0, x1) = FRAME.across();
    let (floor, ceiling) = FRAME.upward();
    let scale = Scale::percentiles(highest).onto(x0, x1 - ROOM_FOR_MAX);
    let x = |percentile: f64| if percentile < 100.0 { scale.at(odds(percentile)) } else { x1 };
    let y = Scale::logarithmic(points().map(|(_, us)| us)).onto(floor, ceiling);
    let ends: Vec<(Transport, f64)> = curves
        .iter()
        .filter_map(|curve| Some((curve.transport, y.at(curve.points.last()?.1))))
        .collect();
    let max = points().any(|(p, _)| p >= 100.0).then_some(100.0);
    let marks: Vec<f64> = MARKS.into_iter().filter(|mark| *mark <= highest).chain(max).collect();
    Some(FRAME.svg(
        label,
        &html! {
            (FRAME.levels(&y, &y.ticks(), |us| units::tick(&units::time(us))))
            (FRAME.unit("response time"))
            g class="grid" {
                @for mark in &marks {
                    line x1=(n(x(*mark))) x2=(n(x(*mark))) y1=(n(floor)) y2=(n(ceiling)) {}
                }
            }
            g class="axis" text-anchor="middle" {
                @for mark in &marks {
                    text x=(n(x(*mark))) y=(n(floor + 20.0)) { (title(*mark)) }
                }
            }
            // The baseline last: its dashes let a curve beneath it be seen.
            @for curve in curves.iter().rev() {
                g class={ "curve " (class(curve.transport)) } {
                    path d=(path(curve.points.iter().map(|(p, us)| (x(*p), y.at(*us))))) {}
                    @for mark in &marks {
                        @if let Some(us) = reading(curve.points, *mark) {
                            circle cx=(n(x(*mark))) cy=(n(y.at(us))) r="3.5" {
                                title { (units::name(curve.transport)) ", " (title(*mark)) ": " (units::time(us)) }
                            }
                        }
                    }
                }
            }
            (end_labels(&FRAME, &ends))
        },
    ))
}

fn title(percentile: f64) -> String {
    if percentile < 100.0 { format!("p{percentile}") } else { "max".to_owned() }
}

/// The time at a percentile: that of the first point at or above it.
fn reading(points: &[(f64, f64)], percentile: f64) -> Option<f64> {
    points.iter().find(|(p, _)| *p >= percentile).map(|(_, us)| *us)
}

const FRAME: Frame =
    Frame { width: 440.0, height: 262.0, left: 56.0, right: 58.0, top: 32.0, bottom: 30.0 };

/// For the way from the highest percentile to the maximum.
const ROOM_FOR_MAX: f64 = 44.0;

/// Where readers look.
const MARKS: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_that_of_the_next_point() {
        let points = [(0.0, 1.0), (50.0, 2.0), (99.5, 3.0), (100.0, 9.0)];
        assert_eq!(reading(&points, 50.0), Some(2.0));
        assert_eq!(reading(&points, 99.0), Some(3.0));
        assert_eq!(reading(&points, 99.9), Some(9.0));
        assert_eq!(reading(&[], 50.0), None);
    }

    #[test]
    fn without_points_there_is_no_chart() {
        assert!(
            percentile_curves(&[Curve { transport: Transport::Tcp, points: &[] }], "").is_none()
        );
    }
}
