//! The record of costs as a picture: for each kind the instructions from change to change, and the system calls.
//!
//! It is one SVG file with its colours inside, and is the same for the same record.

use maud::{Markup, html};

use super::record::{Cost, Record};

const WIDTH: f64 = 900.0;
/// Of one kind: its title, its line, and room to the next.
const PANEL: f64 = 128.0;
const TITLE: f64 = 26.0;
const PLOT: f64 = 78.0;
/// Room for the first value at the left and the last one at the right.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 270.0;
const TOP: f64 = 40.0;
const FOOT: f64 = 34.0;
const LINE: &str = "#0b6e99";
const GREY: &str = "#667085";

/// The whole file.
pub(super) fn draw(records: &[Record]) -> String {
    let kinds: Vec<&String> = records.last().iter().flat_map(|last| last.costs.keys()).collect();
    let height = TOP + kinds.len() as f64 * PANEL + FOOT;
    let font = "font-family:system-ui,sans-serif;font-size:13px";
    let title = "Instructions and system calls, from change to change";
    let foot = TOP + kinds.len() as f64 * PANEL + 12.0;
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={"0 0 " (WIDTH) " " (height)} width=(WIDTH) height=(height) style=(font) role="img" aria-label=(title) {
            rect width="100%" height="100%" fill="white" {}
            text x="12" y="24" style="font-size:16px;font-weight:600" { (title) }
            @for (at, kind) in kinds.iter().enumerate() {
                (panel(kind, records, TOP + at as f64 * PANEL))
            }
            @if let [first, .., last] = records {
                text x=(LEFT) y=(foot) fill=(GREY) { (first.date) }
                text x=(WIDTH - RIGHT) y=(foot) fill=(GREY) text-anchor="end" { (last.date) }
            }
        }
    };
    svg.into_string() + "\n"
}

fn panel(kind: &str, records: &[Record], top: f64) -> Markup {
    let costs: Vec<(usize, &Record, Cost)> = records
        .iter()
        .enumerate()
        .filter_map(|(at, record)| Some((at, record, *record.costs.get(kind)?)))
        .collect();
    let most = costs.iter().map(|(_, _, cost)| cost.instructions).max().unwrap_or(1).max(1);
    let x =
        |at: usize| LEFT + (WIDTH - LEFT - RIGHT) * at as f64 / (records.len().max(2) - 1) as f64;
    let y = |cost: &Cost| top + TITLE + PLOT * (1.0 - cost.instructions as f64 / most as f64);
    let points: Vec<String> =
        costs.iter().map(|(at, _, cost)| format!("{:.1},{:.1}", x(*at), y(cost))).collect();
    let bottom = top + TITLE + PLOT;
    html! {
        text x="12" y=(top + 14.0) style="font-weight:600" { (kind) }
        line x1=(LEFT) y1=(bottom) x2=(WIDTH - RIGHT) y2=(bottom) stroke="#d0d5dd" {}
        polyline points=(points.join(" ")) fill="none" stroke=(LINE) stroke-width="2" {}
        @for (at, record, cost) in &costs {
            circle cx=(format!("{:.1}", x(*at))) cy=(format!("{:.1}", y(cost))) r="3.5" fill=(LINE) {
                title { (record.date) ": " (record.change) ", " (said(cost)) }
            }
        }
        @if let Some((at, _, cost)) = costs.first() {
            text x=(format!("{:.1}", x(*at) - 10.0)) y=(format!("{:.1}", y(cost) + 4.0)) text-anchor="end" fill=(GREY) { (cost.instructions) }
        }
        @if let Some((at, _, cost)) = costs.last() {
            text x=(format!("{:.1}", x(*at) + 10.0)) y=(format!("{:.1}", y(cost) + 4.0)) { (said(cost)) }
        }
    }
}

fn said(Cost { instructions, system_calls }: &Cost) -> String {
    format!("{instructions} instructions, {system_calls} system calls")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_last_cost_in_words_and_its_changes_as_points() {
        let record = |instructions, change: &str| Record {
            date: "2026-11-26".to_owned(),
            change: change.to_owned(),
            rustc: String::new(),
            costs: [("64 B".to_owned(), Cost { instructions, system_calls: 0.0 })].into(),
        };
        let svg = draw(&[record(1268, "It begins"), record(971, "Rooms < circles")]);
        for text in ["64 B", ">1268<", "971 instructions, 0 system calls", "Rooms &lt; circles"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(draw(&[]).contains("<svg"));
    }
}
