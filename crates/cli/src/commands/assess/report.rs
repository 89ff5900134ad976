//! The assessment as text and as JSON.

use std::net::SocketAddr;
use std::time::Duration;

use comfy_table::Table;
use serde::Serialize;
use sidestep_modeler::probe::Figures;
use sidestep_observe::Role;

use super::forecast::{Forecast, Verdict};
use super::traffic::{Flow, Traffic};
use crate::commands::ss::{aligned, bytes};
use crate::terminal;

/// What no count and no probe can say.
const NOT_KNOWN: [&str; 5] = [
    "What the programs do between their messages: the gain is that of a program that only talks. \
     One that waits for a disk gains as much less as it waits.",
    "Whether the peer can be run with Sidestep too, and as the same user: `sidestep doctor` tells.",
    "How the threads wait, in calls or in event loops: therefore a range.",
    "How connections of one server differ: all figures are means. If some are short and others long, \
     the long ones gain more.",
    "What else the machine has to do, and at other times: the figures are those of this moment.",
];

/// A table, and what it does not know.
pub(super) fn text(traffic: &Traffic, figures: Option<&Figures>) -> String {
    let seconds = traffic.interval.as_secs_f64();
    if traffic.flows.is_empty() && traffic.untold == 0 {
        return format!("No TCP connections in {seconds:.1} s.\n");
    }
    let mut table = Table::new();
    table.set_header(HEADER);
    for flow in &traffic.flows {
        table.add_row(cells(flow, figures, traffic.interval));
    }
    let mut text = aligned(table, 2..=8, terminal::width());
    text += &format!("\nCounted for {seconds:.1} s; every connection stayed on TCP.\n");
    if traffic.untold > 0 {
        let untold = traffic.untold;
        text += &format!("{untold} connections with too many servers to be told apart.\n");
    }
    text += "Not known:\n";
    for line in NOT_KNOWN {
        text += &format!("  - {line}\n");
    }
    text
}

const HEADER: [&str; 10] = [
    "Server",
    "Program",
    "Connections",
    "Lived",
    "Round trips",
    "Request/Reply",
    "TCP",
    "SMC",
    "Gain",
    "Profits?",
];

fn cells(flow: &Flow, figures: Option<&Figures>, interval: Duration) -> [String; HEADER.len()] {
    let forecast = forecast(flow, figures, interval);
    let [request, reply] = flow.lengths().map(bytes);
    let range = |of: fn(&Forecast) -> [f64; 2], unit: &str| {
        forecast.as_ref().map_or("-".into(), |forecast| format!("{}{unit}", shown(of(forecast))))
    };
    [
        flow.server.map_or("?".into(), |server| server.to_string()),
        format!("{} ({})", flow.program, role(flow)),
        flow.connections.to_string(),
        lifetime(flow),
        flow.round_trips.to_string(),
        format!("{request}/{reply}"),
        range(|forecast| forecast.tcp_us, " us"),
        range(|forecast| forecast.smc_us, " us"),
        range(|forecast| forecast.gain, " x"),
        Verdict::of(flow, forecast.as_ref()).words().into(),
    ]
}

/// Two figures, or one if they look the same.
fn shown([low, high]: [f64; 2]) -> String {
    let figure = |n: f64| if n < 10.0 { format!("{n:.1}") } else { format!("{n:.0}") };
    match (figure(low), figure(high)) {
        (low, high) if low == high => low,
        (low, high) => format!("{low}-{high}"),
    }
}

fn lifetime(flow: &Flow) -> String {
    let mean = flow.lifetime.as_secs_f64() / flow.connections.max(1) as f64;
    if mean < 1.0 { format!("{:.0} ms", mean * 1000.0) } else { format!("{mean:.1} s") }
}

fn forecast(flow: &Flow, figures: Option<&Figures>, interval: Duration) -> Option<Forecast> {
    let figures = figures.filter(|_| flow.is_candidate())?;
    Some(Forecast::of(flow, figures, interval))
}

fn role(flow: &Flow) -> &'static str {
    match flow.role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

/// The assessment in `--json`; the names are part of the command's interface.
#[derive(Serialize)]
struct Assessment<'a> {
    seconds: f64,
    figures: Option<&'a Figures>,
    services: Vec<Row<'a>>,
    untold: u64,
    not_known: [&'static str; NOT_KNOWN.len()],
}

#[derive(Serialize)]
struct Row<'a> {
    server: Option<SocketAddr>,
    program: &'a str,
    role: &'static str,
    same_host: bool,
    connections: u64,
    open: u64,
    lifetime_ms: u64,
    round_trips: u64,
    request_bytes: u64,
    reply_bytes: u64,
    clients: u32,
    sizes: Vec<SizeRow>,
    forecast: Option<ForecastRow>,
    profits: &'static str,
    text: &'static str,
}

#[derive(Serialize)]
struct SizeRow {
    /// `null`: longer than the class before.
    up_to: Option<u64>,
    sent: u64,
    received: u64,
}

#[derive(Serialize)]
struct ForecastRow {
    tcp_us: [f64; 2],
    smc_us: [f64; 2],
    gain: [f64; 2],
}

pub(super) fn json(traffic: &Traffic, figures: Option<&Figures>) -> String {
    let assessment = Assessment {
        seconds: traffic.interval.as_secs_f64(),
        figures,
        services: traffic
            .flows
            .iter()
            .map(|flow| Row::new(flow, figures, traffic.interval))
            .collect(),
        untold: traffic.untold,
        not_known: NOT_KNOWN,
    };
    let json = serde_json::to_string_pretty(&assessment);
    json.expect("numbers and strings are always JSON") + "\n"
}

impl<'a> Row<'a> {
    fn new(flow: &'a Flow, figures: Option<&Figures>, interval: Duration) -> Self {
        let forecast = forecast(flow, figures, interval);
        let verdict = Verdict::of(flow, forecast.as_ref());
        let sizes = flow.sent.classes().zip(flow.received.classes());
        Self {
            server: flow.server,
            program: &flow.program,
            role: role(flow),
            same_host: flow.is_here,
            connections: flow.connections,
            open: flow.open,
            lifetime_ms: flow.lifetime.as_millis() as u64,
            round_trips: flow.round_trips,
            request_bytes: flow.request_bytes,
            reply_bytes: flow.reply_bytes,
            clients: flow.clients(interval),
            sizes: sizes
                .map(|((up_to, sent), (_, received))| SizeRow { up_to, sent, received })
                .collect(),
            forecast: forecast.map(|Forecast { tcp_us, smc_us, gain }| ForecastRow {
                tcp_us,
                smc_us,
                gain,
            }),
            profits: verdict.keyword(),
            text: verdict.words(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::forecast::tests::figures;
    use super::super::traffic::tests::{program, service};
    use super::*;
    use sidestep_observe::Service;

    fn traffic() -> Traffic {
        let far = Service {
            server: Some("192.0.2.1:443".parse().unwrap()),
            role: Role::Client,
            is_here: false,
            ..service(2)
        };
        let busy = Service { round_trips: 100_000, ..service(1) };
        Traffic::of(&[program(1, vec![busy, far])], Duration::from_secs(2))
    }

    #[test]
    fn the_table_says_who_profits_and_what_is_not_known() {
        let text = text(&traffic(), Some(&figures()));
        let line = |server: &str| text.lines().find(|line| line.starts_with(server)).unwrap();
        assert!(line("127.0.0.1:80").contains("yes: run both ends"), "{text}");
        assert!(line("192.0.2.1:443").ends_with("no: the peers are on other hosts"), "{text}");
        assert!(text.contains("Counted for 2.0 s"), "{text}");
        assert!(text.contains("Not known:"), "{text}");
        let nothing = Traffic::of(&[], Duration::from_secs(1));
        assert_eq!(super::text(&nothing, None), "No TCP connections in 1.0 s.\n");
    }

    #[test]
    fn json_has_the_counts_and_the_forecast() {
        let json = json(&traffic(), Some(&figures()));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let services = &value["services"];
        assert_eq!(services[0]["profits"], "yes");
        assert_eq!(services[0]["round_trips"], 100_000);
        assert!(services[0]["forecast"]["gain"][0].as_f64().unwrap() > 1.0);
        assert_eq!(services[1]["same_host"], false);
        assert!(services[1]["forecast"].is_null());
        assert_eq!(value["figures"]["cpus"], 2);
    }
}
