//! The page.
//!
//! It has the frame and the style of the pages of `sidestep bench`. Names of programs and hosts are
//! strangers' texts: they are escaped as for a terminal, so that no character arranges what is around it,
//! and then by maud, so that none becomes an element.

use std::fmt::Display;

use maud::{Markup, html};
use sidestep_modeler::report::page::Page;

use super::facts::{Facts, Moment};
use super::gain::Gain;
use crate::commands::activity::Activity;
use crate::commands::ss::bytes;
use crate::output::Escaped;

/// The document.
pub(super) fn render(facts: &Facts) -> String {
    let mut all = Activity::default();
    facts.activities.values().for_each(|activity| all.add(activity));
    let content = html! {
        (hero(facts, &all))
        (cards(facts, &all))
        (timeline(&facts.timeline))
        (programs(facts))
        (reasons(facts))
        (gains(facts))
        (advice(facts))
        (notes(facts))
    };
    let title = plain(&facts.host);
    Page { title: &title, name: "report", note: "1 KB is 1024 bytes.", content }.render()
}

/// A stranger's text, fit to stand in a line.
fn plain(text: impl Display) -> String {
    Escaped(text).to_string()
}

fn hero(facts: &Facts, all: &Activity) -> Markup {
    html! {
        section class="hero plain" {
            p class="eyebrow" { (plain(&facts.host)) " · " (facts.at) }
            h1 {
                @match all.moved_part() {
                    Some(part) => { em { (percent(part)) } " of the bytes of this host’s programs left TCP." },
                    None => { "No program under Sidestep has moved a byte here." },
                }
            }
            p class="lede" { (period(facts)) " Kernel " (plain(&facts.kernel)) "." }
        }
    }
}

fn period(facts: &Facts) -> String {
    match facts.timeline.as_slice() {
        [] => "What the programs that run now have had since their start.".to_owned(),
        [first, .., last] | [first @ last] => {
            let seconds: f64 = facts.timeline.iter().map(|moment| moment.seconds).sum();
            format!(
                "Recorded in {} intervals, which end from {} to {}: {} together.",
                facts.timeline.len(),
                moment(&first.at),
                moment(&last.at),
                span(seconds)
            )
        }
    }
}

fn cards(facts: &Facts, all: &Activity) -> Markup {
    let connections = all.smc_connections.saturating_add(all.tcp_connections);
    let moved = all.ring_bytes_sent.saturating_add(all.ring_bytes_received);
    let messages = all.messages_sent.saturating_add(all.messages_received);
    html! {
        section aria-label="Summary" {
            div class="cards" {
                (card("In shared memory", &grouped(all.smc_connections), &format!("ends of connections, of {}", grouped(connections))))
                (card("Bytes through rings", &bytes(moved), "sent and received"))
                (card("Messages", &grouped(messages), "calls that moved bytes"))
                (card("CPU in waiting", &span(all.spin_ns as f64 / 1e9), "looking for the peer’s bytes"))
                @if !facts.gains.is_empty() {
                    (card("CPU saved", &span(facts.gains.iter().map(Gain::cpu_s).sum()), "by the measurement below"))
                }
            }
        }
    }
}

fn card(label: &str, figure: &str, note: &str) -> Markup {
    html! { div class="card" { p class="label" { (label) } p class="figure" { (figure) } p class="note" { (note) } } }
}

/// Bytes sent in each interval, as bars above each other. Long records are summed up to fit.
fn timeline(moments: &[Moment]) -> Markup {
    if moments.len() < 2 {
        return html! {};
    }
    let each = moments.len().div_ceil(BARS_MAX);
    let bars: Vec<(&Moment, [f64; 2])> = moments
        .chunks(each)
        .filter_map(|chunk| {
            let seconds: f64 = chunk.iter().map(|it| it.seconds).sum();
            let rate = |of: fn(&Moment) -> u64| {
                chunk.iter().map(|it| of(it) as f64).sum::<f64>() / seconds
            };
            Some((chunk.first()?, [rate(|it| it.ring_bytes), rate(|it| it.tcp_bytes)]))
        })
        .collect();
    let most = bars.iter().map(|(_, [ring, tcp])| ring + tcp).fold(1.0, f64::max);
    let width = WIDTH / bars.len() as f64;
    let label = format!("Bytes sent per second, at most {}", bytes(most.round() as u64));
    html! {
        section {
            h2 { "Over time" }
            p class="about" { "Bytes sent in a second, by their path; the highest bar is " (bytes(most.round() as u64)) "." }
            p class="legend" {
                @for (class, name) in [("t-smc", "through rings"), ("t-tcp", "by TCP")] {
                    span class={ "key " (class) } { span class="dot" {} (name) }
                }
            }
            figure class="card panel" {
                svg class="chart" viewBox={ "0 0 " (WIDTH) " " (HEIGHT + 18.0) } role="img" aria-label=(label) {
                    @for (i, (first, [ring, tcp])) in bars.iter().enumerate() {
                        @let x = i as f64 * width;
                        @let heights = [ring / most * HEIGHT, tcp / most * HEIGHT];
                        g {
                            title { (moment(&first.at)) ": " (bytes(ring.round() as u64)) "/s through rings, " (bytes(tcp.round() as u64)) "/s by TCP" }
                            (bar("t-smc", x, width, HEIGHT - heights[0], heights[0]))
                            (bar("t-tcp", x, width, HEIGHT - heights[0] - heights[1], heights[1]))
                        }
                    }
                    g class="axis" {
                        text x="0" y=(HEIGHT + 14.0) { (moment(&moments[0].at)) }
                        text x=(WIDTH) y=(HEIGHT + 14.0) text-anchor="end" { (moments.last().map(|it| moment(&it.at)).unwrap_or_default()) }
                    }
                }
            }
        }
    }
}

fn bar(class: &str, x: f64, width: f64, y: f64, height: f64) -> Markup {
    let [x, y, height] = [x, y, height].map(|value| format!("{value:.1}"));
    let width = format!("{:.1}", (width * 0.9).max(0.5));
    html! { g class={ "fill " (class) } { rect x=(x) y=(y) width=(width) height=(height) {} } }
}

fn programs(facts: &Facts) -> Markup {
    let mut rows: Vec<_> = facts.activities.iter().collect();
    rows.sort_by_key(|(_, it)| std::cmp::Reverse(it.bytes_sent.saturating_add(it.bytes_received)));
    html! {
        section {
            h2 { "What moved" }
            p class="about" { "Programs of one name together. Each connection of two programs under Sidestep has two ends, and counts once at each." }
            @if rows.is_empty() {
                p { "No program under Sidestep has had a connection. Start one: " code { "sidestep run PROGRAM" } "." }
            } @else {
                div class="scroll card" {
                    table {
                        thead { tr {
                            th { "Program" }
                            @for name in ["SMC-D", "Gateway", "TCP", "Bytes", "Left TCP", "Messages", "CPU in waiting"] { th class="num" { (name) } }
                        } }
                        tbody { @for (name, it) in rows.iter().take(ROWS_MAX) { (program(name, it)) } }
                    }
                }
                @if rows.len() > ROWS_MAX { p class="about" { (rows.len() - ROWS_MAX) " more have moved fewer bytes." } }
            }
        }
    }
}

fn program(name: &str, it: &Activity) -> Markup {
    let all = it.bytes_sent.saturating_add(it.bytes_received);
    html! {
        tr {
            th { (plain(name)) }
            @for number in [it.smc_connections, it.gateway_connections, it.tcp_connections] { td class="num" { (grouped(number)) } }
            td class="num" { (bytes(all)) }
            td class="num" { (it.moved_part().map_or_else(|| "–".to_owned(), percent)) }
            td class="num" { (grouped(it.messages_sent.saturating_add(it.messages_received))) }
            td class="num" { (span(it.spin_ns as f64 / 1e9)) }
        }
    }
}

fn reasons(facts: &Facts) -> Markup {
    let of_program = |(name, it): (&String, &Activity)| {
        let of = |(reason, n): (&String, &u64)| (*n, reason.clone(), name.clone());
        it.reasons.iter().map(of).collect::<Vec<_>>()
    };
    let mut rows: Vec<(u64, String, String)> =
        facts.activities.iter().flat_map(of_program).collect();
    rows.sort_by_key(|(connections, ..)| std::cmp::Reverse(*connections));
    html! {
        section {
            h2 { "What did not, and why" }
            @if rows.is_empty() {
                p class="about" { "No connection stayed on TCP for a reason." }
            } @else {
                div class="scroll card" {
                    table {
                        thead { tr { th class="num" { "Connections" } th { "Program" } th { "Reason" } } }
                        tbody {
                            @for (connections, reason, program) in rows.iter().take(ROWS_MAX) {
                                tr { td class="num" { (grouped(*connections)) } th { (plain(program)) } td { (plain(reason)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn gains(facts: &Facts) -> Markup {
    html! {
        section {
            h2 { "What it gained" }
            @if !facts.is_measured {
                p class="about" {
                    "Nothing is said here without a measurement of this machine. "
                    code { "sidestep bench --json bench.json 'RR10(2KB/2KB)'" } " makes one, and "
                    code { "sidestep report --bench bench.json" } " uses it."
                }
            } @else if facts.gains.is_empty() {
                p class="about" { "No measured workload has messages of a length that these programs send through shared memory, within a factor of four." }
            } @else {
                p class="about" {
                    "Messages sent through shared memory × the difference between TCP and SMC for one message, which is half "
                    "a transaction of the measured workload whose messages are nearest in length. CPU time is that of both ends. "
                    "A negative figure is a loss. It is an estimate: the programs were not measured, but a workload like them."
                }
                div class="scroll card" {
                    table {
                        thead { tr {
                            th { "Program" }
                            @for name in ["Messages", "Mean length", "CPU, each", "CPU", "Waiting, each", "Waiting"] { th class="num" { (name) } }
                            th { "Measured" }
                        } }
                        tbody { @for it in &facts.gains { (gain(it)) } }
                    }
                }
            }
        }
    }
}

fn gain(it: &Gain) -> Markup {
    let unseen = || "no difference seen".to_owned();
    html! {
        tr {
            th { (plain(&it.program)) }
            td class="num" { (grouped(it.messages.round() as u64)) }
            td class="num" { (bytes(it.len.round() as u64)) }
            td class="num" { (format!("{:.2} µs", it.cpu_us)) }
            td class="num" { b { (span(it.cpu_s())) } }
            td class="num" { (it.time_us.map_or_else(unseen, |us| format!("{us:.2} µs"))) }
            td class="num" { b { (it.time_s().map_or_else(|| "–".to_owned(), span)) } }
            td { (plain(&it.workload)) }
        }
    }
}

fn advice(facts: &Facts) -> Markup {
    html! {
        section {
            h2 { "What to change" }
            @if facts.advice.is_empty() {
                p class="about" { "Nothing that was counted asks for a change." }
            }
            @for it in facts.advice.iter().take(ROWS_MAX) {
                article class="card" {
                    h3 { (plain(&it.title)) }
                    p class="about" { (plain(&it.because)) }
                    pre class="command" { (plain(&it.line)) }
                }
            }
        }
    }
}

fn notes(facts: &Facts) -> Markup {
    html! {
        @if !facts.notes.is_empty() {
            section aria-label="What is missing" {
                div class="banner" {
                    strong { "Not all of this host is here. " }
                    @for note in &facts.notes { (plain(note)) ". " }
                }
            }
        }
    }
}

/// With a thin space between thousands.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// A time in a unit that leaves few digits.
fn span(seconds: f64) -> String {
    match seconds.abs() {
        s if s < 1.0 => format!("{:.0} ms", seconds * 1e3),
        s if s < 120.0 => format!("{seconds:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// `2026-03-01 10:15 UTC`; what cannot be read as a time is shown as it is.
fn moment(at: &str) -> String {
    match at.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => plain(at),
    }
}

/// Bars of a chart at most: one for each pixel or two would be none.
const BARS_MAX: usize = 240;
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 180.0;
/// Rows of a table, and recommendations, that are read.
const ROWS_MAX: usize = 50;
