//! A report as tables for a terminal.

use std::fmt;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::{Element, Estimate, Figures, Forecast, Limit, Places, Prediction, Report};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", lines(&figures(&self.figures)))?;
        for forecast in &self.forecasts {
            write!(f, "\n{forecast}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prediction { throughput_ratio, response_ratio, tcp, smc } = &self.prediction;
        writeln!(
            f,
            "{} ({}): {throughput_ratio:.2} times TCP's throughput, {response_ratio:.2} times its \
             response time",
            self.workload, self.model
        )?;
        write!(f, "{}", lines(&terms(tcp, smc)))
    }
}

fn figures(figures: &Figures) -> Table {
    let cpus = if figures.cpus == 1 { "1 CPU".into() } else { format!("{} CPUs", figures.cpus) };
    let mut table = table(&[&cpus, "same CPU", "other CPU"]);
    let mut row = |what: String, same_ns: f64, other_ns: Option<f64>| {
        table.add_row([what, time(same_ns), other_ns.map(time).unwrap_or_default()]);
    };
    let Places { same_cpu, other_cpu } = figures.wakeup_us;
    row("wake-up".into(), same_cpu * 1e3, other_cpu.map(|us| us * 1e3));
    let Places { same_cpu, other_cpu } = figures.ring_ns;
    row("cache line, there and back".into(), same_cpu, other_cpu);
    for copy in &figures.copies {
        let len = bytes(copy.len);
        row(format!("{len}, copied in and out"), 2.0 * copy.hot_ns, copy.handed_ns);
    }
    for copy in &figures.copies {
        row(format!("{}, copied out of cache", bytes(copy.len)), copy.cold_ns, None);
    }
    row("system call".into(), figures.syscall_ns, None);
    row("epoll_wait with an event".into(), figures.epoll_ns, None);
    for tcp in &figures.tcp {
        row(format!("{} through TCP", bytes(tcp.len)), tcp.ns, None);
    }
    row("TCP connection".into(), figures.connect_us * 1e3, None);
    table
}

/// Both transports, with a line for each element that one of them has.
fn terms(tcp: &Estimate, smc: &Estimate) -> Table {
    let mut table = table(&["one transaction", "TCP", "", "SMC", ""]);
    for element in Element::ALL {
        let [tcp, smc] = [tcp, smc].map(|estimate| cells(estimate, element));
        if tcp != EMPTY || smc != EMPTY {
            let what = element.to_string();
            table.add_row([vec![what], tcp.to_vec(), smc.to_vec()].concat());
        }
    }
    let both = [tcp, smc];
    let mut row = |what: &str, value: &dyn Fn(&Estimate) -> String| {
        let [tcp, smc] = both.map(value);
        table.add_row([what.into(), String::new(), tcp, String::new(), smc]);
    };
    row("together", &|it| time(it.terms.iter().map(|term| term.us).sum::<f64>() * 1e3));
    row("at a time", &|it| count(it.at_a_time));
    row("transactions per second", &|it| format!("{:.0}", it.tps));
    row("response time", &|it| time(it.response_us * 1e3));
    row("held by", &|it| it.limit.to_string());
    table
}

const EMPTY: [String; 2] = [String::new(), String::new()];

/// How often, and how long.
fn cells(estimate: &Estimate, element: Element) -> [String; 2] {
    let term = estimate.terms.iter().find(|term| term.element == element && term.count > 0.0);
    term.map_or(EMPTY, |term| [format!("{} ×", count(term.count)), time(term.us * 1e3)])
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn lines(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Three digits and a unit.
fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{} ns", three_digits(ns)),
        _ if ns < 1e6 => format!("{} µs", three_digits(ns / 1e3)),
        _ => format!("{} ms", three_digits(ns / 1e6)),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Whole numbers without a fraction.
fn count(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn bytes(len: u64) -> String {
    match len {
        _ if len >= 1 << 20 => format!("{} MB", len >> 20),
        _ if len >= 1 << 10 => format!("{} KB", len >> 10),
        _ => format!("{len} B"),
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Path => "latency",
            Self::Processors => "CPU time",
        })
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Connection => "connection",
            Self::Agreement => "agreement on SMC",
            Self::TcpMessage => "sends and receives of TCP",
            Self::ColdCopies => "copies out of cache",
            Self::RingCopies => "copies in and out of the ring",
            Self::LinesMoved => "cache lines on their way",
            Self::Wakeup => "wake-ups",
            Self::Yield => "yields",
            Self::EpollEvent => "events of epoll",
            Self::LibraryCall => "calls of the library",
            Self::LibraryEvent => "events of the library",
            Self::LibrarySearch => "searches for events",
        })
    }
}

impl Element {
    /// In the order in which they are shown.
    const ALL: [Self; 12] = [
        Self::Connection,
        Self::Agreement,
        Self::TcpMessage,
        Self::ColdCopies,
        Self::RingCopies,
        Self::LinesMoved,
        Self::Wakeup,
        Self::Yield,
        Self::EpollEvent,
        Self::LibraryCall,
        Self::LibraryEvent,
        Self::LibrarySearch,
    ];
}
