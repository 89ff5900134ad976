//! The picture: a panel for each transport, in it a lane for each CPU and for each side.
//!
//! A hand-over takes microseconds and a window has tens of milliseconds, so lanes are drawn in
//! columns: within one, each colour is as high as its part of that time. Two ends that hand a CPU
//! to each other fill a column half and half; a loop that keeps the CPU fills it alone.
//!
//! It is one SVG file with its colours inside: it stands in pages that know nothing of it.

use maud::{Markup, PreEscaped, html};

use super::history::{Actor, History, Reason, Side, Span, State};

/// A transport.
pub(super) struct Panel {
    pub(super) title: &'static str,
    /// Transactions per second of the whole run.
    pub(super) rate: f64,
    pub(super) history: History,
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 120.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 74.0;
const LANE: f64 = 30.0;
const GAP: f64 = 8.0;
/// Above the lanes of a panel, for its title.
const HEAD: f64 = 30.0;
/// Below them, for the axis.
const FOOT: f64 = 38.0;
/// Columns of a lane.
const COLUMNS: usize = 410;
/// Heights are rounded to this part of a lane: equal neighbours become one piece.
const STEPS: f64 = 30.0;

/// A colour, and what it stands for.
struct Paint {
    color: &'static str,
    name: &'static str,
}

const CLIENT: Paint = Paint { color: "#0a5bd3", name: "client" };
const SERVER: Paint = Paint { color: "#e08a00", name: "server" };
const LOOP: Paint = Paint { color: "#9aa3b2", name: "endless loop" };
const OTHER: Paint = Paint { color: "#d9dde5", name: "other programs" };
const WOKEN: Paint = Paint { color: "#f2a6b4", name: "waits: woken" };
const YIELDED: Paint = Paint { color: "#b00030", name: "waits: has yielded" };
const PREEMPTED: Paint = Paint { color: "#e2647a", name: "waits: preempted" };

const LEGEND: [&Paint; 7] = [&CLIENT, &SERVER, &LOOP, &OTHER, &YIELDED, &PREEMPTED, &WOKEN];

fn end(side: Side) -> &'static Paint {
    match side {
        Side::Client => &CLIENT,
        Side::Server => &SERVER,
    }
}

fn paint_of_actor(actor: Actor) -> Option<&'static Paint> {
    Some(match actor {
        Actor::End(side) => end(side),
        Actor::Loop => &LOOP,
        Actor::Other => &OTHER,
    })
}

/// Nothing is drawn for one that sleeps.
fn paint_of_state(side: Side, state: State) -> Option<&'static Paint> {
    match state {
        State::Runs => Some(end(side)),
        State::Waits(Reason::Woken) => Some(&WOKEN),
        State::Waits(Reason::Yielded) => Some(&YIELDED),
        State::Waits(Reason::Preempted) => Some(&PREEMPTED),
        State::Sleeps => None,
    }
}

/// The whole file.
pub(super) fn draw(title: &str, panels: &[Panel]) -> String {
    let height = TOP + panels.iter().map(height_of).sum::<f64>();
    let mut top = TOP;
    let tops: Vec<f64> = panels
        .iter()
        .map(|panel| {
            top += height_of(panel);
            top - height_of(panel)
        })
        .collect();
    let view = format!("0 0 {WIDTH} {height}");
    let font = "font-family:system-ui,sans-serif;font-size:13px";
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(view) width=(WIDTH) height=(height) style=(font) role="img" aria-label=(title) {
            rect width="100%" height="100%" fill="white" {}
            text x="12" y="24" style="font-size:16px;font-weight:600" { (title) }
            (legend())
            @for (panel, top) in panels.iter().zip(tops) { (panel_at(panel, top)) }
        }
    };
    svg.into_string() + "\n"
}

fn legend() -> Markup {
    const SWATCH: f64 = 12.0;
    let places = LEGEND.iter().scan(12.0, |x, paint| {
        let at = *x;
        *x += SWATCH + 22.0 + 7.2 * paint.name.chars().count() as f64;
        Some((paint, at))
    });
    html! {
        @for (paint, x) in places {
            rect x=(n(x)) y="40" width=(SWATCH) height=(SWATCH) fill=(paint.color) {}
            text x=(n(x + SWATCH + 6.0)) y="51" { (paint.name) }
        }
    }
}

fn lanes_of(panel: &Panel) -> usize {
    panel.history.cpus.len() + Side::BOTH.len()
}

fn height_of(panel: &Panel) -> f64 {
    HEAD + lanes_of(panel) as f64 * (LANE + GAP) + FOOT
}

fn panel_at(panel: &Panel, top: f64) -> Markup {
    let history = &panel.history;
    let rate = rate_text(panel.rate);
    let cpus = history.cpus.iter().enumerate().map(|(cpu, spans)| {
        (format!("CPU {cpu}"), pieces(&[spans], history.len_ns, paint_of_actor))
    });
    let sides = Side::BOTH.into_iter().map(|side| {
        let spans: Vec<&Vec<Span<State>>> =
            history.of_side(side).map(|thread| &thread.spans).collect();
        let name = match spans.len() {
            1 => side.name().to_owned(),
            many => format!("{many} {}s", side.name()),
        };
        (name, pieces(&spans, history.len_ns, |state| paint_of_state(side, state)))
    });
    let lanes: Vec<(String, Vec<Piece>)> = cpus.chain(sides).collect();
    let first = top + HEAD;
    let last = first + lanes.len() as f64 * (LANE + GAP);
    html! {
        text x="12" y=(n(top + 18.0)) {
            tspan style="font-weight:600" { (panel.title) }
            tspan fill="#556" dx="12" { (rate) " transactions per second" }
        }
        @for ((name, pieces), row) in lanes.iter().zip(0_u8..) {
            (lane(name, pieces, first + f64::from(row) * (LANE + GAP)))
        }
        (axis(history.len_ns, last))
    }
}

fn lane(name: &str, pieces: &[Piece], top: f64) -> Markup {
    html! {
        text x=(n(LEFT - 10.0)) y=(n(top + LANE * 0.66)) text-anchor="end" { (name) }
        rect x=(n(LEFT)) y=(n(top)) width=(n(WIDTH - LEFT - RIGHT)) height=(n(LANE)) fill="#f6f7f9" {}
        @for paint in LEGEND {
            @let path = path(pieces.iter().filter(|piece| piece.color == paint.color), top);
            @if !path.is_empty() { path fill=(paint.color) d=(PreEscaped(path)) {} }
        }
    }
}

fn axis(len_ns: u64, y: f64) -> Markup {
    let len_ms = len_ns as f64 / 1e6;
    // The tick of most kernels is 1 or 4 ms long.
    let step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 40.0]
        .into_iter()
        .find(|step| len_ms / step <= 14.0)
        .unwrap_or(100.0);
    let ticks = (0..).map(|i| f64::from(i) * step).take_while(|ms| *ms <= len_ms);
    html! {
        @for ms in ticks {
            @let x = n(LEFT + ms / len_ms * (WIDTH - LEFT - RIGHT));
            line x1=(x) x2=(x) y1=(n(y - GAP)) y2=(n(y - GAP + 5.0)) stroke="#889" {}
            text x=(x) y=(n(y + 12.0)) text-anchor="middle" fill="#556" { (format!("{}", (ms * 1e3).round() / 1e3)) }
        }
        text x=(n(LEFT - 10.0)) y=(n(y + 12.0)) text-anchor="end" fill="#556" { "milliseconds" }
    }
}

/// A part of a lane in one colour: columns from `from` up to `to`, heights in [`STEPS`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    color: &'static str,
    from: usize,
    to: usize,
    low: f64,
    high: f64,
}

/// The colours of a lane that shows the average over several threads or one CPU.
fn pieces<T: Copy>(
    threads: &[&Vec<Span<T>>],
    len_ns: u64,
    paint: impl Fn(T) -> Option<&'static Paint>,
) -> Vec<Piece> {
    let column_ns = len_ns.max(1) as f64 / COLUMNS as f64;
    let mut parts = vec![[0.0; LEGEND.len()]; COLUMNS];
    for span in threads.iter().copied().flatten() {
        let Some(paint) = paint(span.of) else { continue };
        let Some(kind) = LEGEND.iter().position(|one| one.color == paint.color) else { continue };
        let (from, to) = (span.from as f64 / column_ns, span.to as f64 / column_ns);
        let mut column = from as usize;
        while column < COLUMNS && (column as f64) < to {
            let within = to.min(column as f64 + 1.0) - from.max(column as f64);
            parts[column][kind] += within / threads.len() as f64;
            column += 1;
        }
    }
    let mut all: Vec<Piece> = Vec::new();
    for (column, part) in parts.iter().enumerate() {
        let mut sum = 0.0;
        for (paint, part) in LEGEND.iter().zip(part) {
            let low = (sum * STEPS).round();
            sum += part;
            let high = (sum * STEPS).round();
            if low < high {
                add(
                    &mut all,
                    Piece { color: paint.color, from: column, to: column + 1, low, high },
                );
            }
        }
    }
    all
}

/// Joins it to its left neighbour if that is alike.
fn add(all: &mut Vec<Piece>, piece: Piece) {
    let alike = |it: &&mut Piece| {
        it.to == piece.from && (it.color, it.low, it.high) == (piece.color, piece.low, piece.high)
    };
    // Neighbours of the last column are among the last few.
    match all.iter_mut().rev().take(2 * LEGEND.len()).find(alike) {
        Some(left) => left.to = piece.to,
        None => all.push(piece),
    }
}

fn path<'a>(pieces: impl Iterator<Item = &'a Piece>, top: f64) -> String {
    let width = (WIDTH - LEFT - RIGHT) / COLUMNS as f64;
    let rectangle = |piece: &Piece| {
        let x = LEFT + piece.from as f64 * width;
        let y = top + LANE * (1.0 - piece.high / STEPS);
        let (w, h) =
            ((piece.to - piece.from) as f64 * width, LANE * (piece.high - piece.low) / STEPS);
        format!("M{} {}h{}v{}h-{}z", n(x), n(y), n(w), n(h), n(w))
    };
    pieces.map(rectangle).collect()
}

fn rate_text(rate: f64) -> String {
    if rate >= 10_000.0 { format!("{:.0} 000", rate / 1e3) } else { format!("{rate:.0}") }
}

/// A coordinate.
fn n(value: f64) -> String {
    format!("{}", (value * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span<T>(from: u64, to: u64, of: T) -> Span<T> {
        Span { from, to, of }
    }

    #[test]
    fn a_column_is_shared_by_those_who_ran_in_it() {
        // Columns of 2 ns: client and server take turns by nanoseconds, then a loop has it all.
        let len = 2 * COLUMNS as u64;
        let half = len / 2;
        let (client, server) = (Actor::End(Side::Client), Actor::End(Side::Server));
        let mut spans: Vec<Span<Actor>> = (0..half / 2)
            .flat_map(|i| [span(2 * i, 2 * i + 1, client), span(2 * i + 1, 2 * i + 2, server)])
            .collect();
        spans.push(span(half, len, Actor::Loop));
        let columns = COLUMNS / 2;
        let piece =
            |paint: &Paint, from, to, low, high| Piece { color: paint.color, from, to, low, high };
        assert_eq!(
            pieces(&[&spans], len, paint_of_actor),
            [
                piece(&CLIENT, 0, columns, 0.0, STEPS / 2.0),
                piece(&SERVER, 0, columns, STEPS / 2.0, STEPS),
                piece(&LOOP, columns, COLUMNS, 0.0, STEPS),
            ]
        );
    }

    #[test]
    fn threads_of_a_side_are_averaged_and_sleepers_leave_a_gap() {
        let len = COLUMNS as u64;
        let [runs, sleeps] = [State::Runs, State::Sleeps].map(|state| vec![span(0, len, state)]);
        let lane = pieces(&[&runs, &sleeps], len, |state| paint_of_state(Side::Client, state));
        let half = STEPS / 2.0;
        let all = Piece { color: CLIENT.color, from: 0, to: COLUMNS, low: 0.0, high: half };
        assert_eq!(lane, [all]);
    }

    #[test]
    fn a_picture_names_its_lanes_and_panels() {
        let thread =
            |side| super::super::history::Thread { side, spans: vec![span(0, 4, State::Runs)] };
        let history = History {
            len_ns: 4_000_000,
            cpus: vec![vec![span(0, 4, Actor::Loop)]],
            threads: Side::BOTH.map(thread).into(),
        };
        let svg = draw("A < B", &[Panel { title: "TCP", rate: 12_345.0, history }]);
        for text in ["A &lt; B", ">TCP<", "12 000", ">CPU 0<", ">client<", ">server<"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }
}
