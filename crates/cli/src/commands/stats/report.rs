//! The statistics as text and as JSON.

use std::fmt::Write as _;

use comfy_table::Table;
use serde::Serialize;
use sidestep_gateway::status::{self, Status};
use sidestep_observe::{Program, Rings, Sizes, Totals};

use super::figures::{Figures, growth, sum};
use crate::commands::ss::{CountedReason, aligned, bytes, reasons_of, seconds};

/// Each program, all of them if there are several, and the gateway if it can be asked.
pub(super) fn text(programs: &[Program], gateway: Option<&Status>) -> String {
    let programs = of_programs(programs);
    gateway
        .map_or_else(|| programs.clone(), |gateway| format!("{programs}\n{}", of_gateway(gateway)))
}

fn of_programs(programs: &[Program]) -> String {
    let mut blocks: Vec<_> =
        programs.iter().map(|program| block(&name(program), &program.totals)).collect();
    match programs.len() {
        0 => return "no Sidestep programs are running\n".into(),
        1 => {}
        n => blocks.push(block(&format!("All {n} programs"), &sum(programs))),
    }
    blocks.join("\n")
}

/// What the programs' counters do not tell of connections to other hosts: how they travel there, and what
/// that costs.
fn of_gateway(status: &Status) -> String {
    let Status { totals, cpu, .. } = status;
    let mut text = "Gateway\n".to_owned();
    let mut line = |label: &str, words: String| {
        let _ = writeln!(text, "  {label:<16}{words}");
    };
    let status::Totals { smc_r_connections, tcp_connections, resets, failovers, rmbe_full } =
        totals;
    line(
        "Connections",
        format!("SMC-R {smc_r_connections}, TCP {tcp_connections}, reset {resets}"),
    );
    let us = |us: u64| seconds(us.saturating_mul(1000));
    line("CPU", format!("user {}, system {}", us(cpu.user_us), us(cpu.system_us)));
    let up = status.adapters.iter().filter(|adapter| adapter.is_up).count();
    line(
        "Adapters",
        format!("{} up of {}, links {}", up, status.adapters.len(), status.links.len()),
    );
    let again: Option<u64> = status.sent_again();
    let again = again.map_or_else(|| "?".to_owned(), |packets| packets.to_string());
    line(
        "Trouble",
        format!("failovers {failovers}, RMBE full {rmbe_full}, packets sent again {again}"),
    );
    text
}

fn name(Program { pids, program, .. }: &Program) -> String {
    match &pids[1..] {
        [] => format!("{program} ({})", pids[0]),
        others => format!("{program} ({} and {} forked)", pids[0], others.len()),
    }
}

fn block(name: &str, totals: &Totals) -> String {
    let counters = &totals.counters;
    let mut text = format!("{name}\n");
    let mut line = |label: &str, words: String| {
        let _ = writeln!(text, "  {label:<16}{words}");
    };
    let Totals { smc, handed_over, .. } = totals;
    line("Connections", format!("SMC-D {smc}, to the gateway {handed_over}, TCP {}", totals.tcp()));
    let shakes = totals.handshakes;
    let under_way = shakes.attempted.saturating_sub(shakes.agreed.saturating_add(shakes.failed));
    line(
        "Handshakes",
        format!(
            "attempted {}, agreed {}, failed {}, under way {under_way}",
            shakes.attempted, shakes.agreed, shakes.failed
        ),
    );
    for (n, reason) in reasons_of(totals) {
        line("Stayed on TCP", format!("{n} x {reason}"));
    }
    let direction = |label, all: u64, by_ring: u64, messages: u64| {
        let by_tcp = all.saturating_sub(by_ring);
        format!("{label} {} by rings, {} by TCP, {messages} calls", bytes(by_ring), bytes(by_tcp))
    };
    let sent =
        direction("sent", counters.bytes_sent, counters.ring_bytes_sent, counters.messages_sent);
    let received = direction(
        "received",
        counters.bytes_received,
        counters.ring_bytes_received,
        counters.messages_received,
    );
    line("Bytes", sent);
    line("", received);
    line(
        "Waits",
        format!(
            "spins {}, sleeps {}, wake-ups of the peer {}, yields {}; CPU spun {}",
            counters.spins,
            counters.parks,
            counters.wakeups,
            counters.yields,
            seconds(counters.spin_ns)
        ),
    );
    let run_queue_delay = totals.run_queue_delay_ns.map_or("?".into(), seconds);
    line(
        "Contention",
        format!(
            "of {} waits {} beside strangers; spins in vain {}; strangers met {}, {}; \
             run-queue delay {run_queue_delay}",
            counters.waits,
            counters.waits_beside_strangers,
            counters.spins_in_vain,
            counters.strangers,
            seconds(counters.strangers_ns)
        ),
    );
    text + &rings(&totals.rings) + &sizes(&totals.sent, &totals.received)
}

/// Rings by their length; nothing if there were none.
fn rings(rings: &[Rings]) -> String {
    let used: Vec<_> = rings.iter().enumerate().filter(|(_, rings)| !rings.is_none()).collect();
    let mut table = Table::new();
    table.set_header(["RMBE", "To send: fresh", "reused", "To receive"]);
    for (index, rings) in &used {
        let numbers = [rings.fresh, rings.reused, rings.incoming].map(|n| n.to_string());
        let [fresh, reused, incoming] = numbers;
        table.add_row([bytes(Rings::len_at(*index) as u64), fresh, reused, incoming]);
    }
    if used.is_empty() { String::new() } else { indented(&aligned(table, 0..=3, None)) }
}

/// Messages by their length, from the shortest class that has any to the longest.
fn sizes(sent: &Sizes, received: &Sizes) -> String {
    let rows: Vec<_> = sent.classes().zip(received.classes()).collect();
    let is_used = |((_, sent), (_, received)): &((_, u64), (_, u64))| sent + received > 0;
    let (Some(first), Some(last)) = (rows.iter().position(is_used), rows.iter().rposition(is_used))
    else {
        return String::new();
    };
    let mut table = Table::new();
    table.set_header(["Message up to", "Sent", "Received"]);
    for ((longest, sent), (_, received)) in &rows[first..=last] {
        let longest = longest.map_or("longer".into(), bytes);
        table.add_row([longest, sent.to_string(), received.to_string()]);
    }
    indented(&aligned(table, 0..=2, None))
}

/// Below the name of a program.
fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("  {line}\n")).collect()
}

/// A line of rates; the heading before the first and every twentieth.
pub(super) fn rates(now: &[Program], before: &[Program], seconds: f64, lines: usize) -> String {
    const HEADING: &str = "   SMC-D/s gateway/s     TCP/s     calls/s  by rings/s    by TCP/s  wake-ups/s   CPU spun  strangers/s  run queue\n";
    const LINES: usize = 20;
    let per_second = |n: u64| (n as f64 / seconds).round() as u64;
    let grown = growth(now, before);
    let mut text = if lines.is_multiple_of(LINES) { HEADING.to_owned() } else { String::new() };
    let percent = |ns: u64| format!("{:.1} %", ns as f64 / 1e9 / seconds * 100.0);
    let _ = writeln!(
        text,
        "{:>10}{:>10}{:>10}{:>12}{:>12}{:>12}{:>12}{:>11}{:>13}{:>11}",
        per_second(grown.smc),
        per_second(grown.handed_over),
        per_second(grown.tcp),
        per_second(grown.messages),
        bytes(per_second(grown.ring_bytes)),
        bytes(per_second(grown.tcp_bytes)),
        per_second(grown.wakeups),
        percent(grown.spin_ns),
        per_second(grown.strangers),
        grown.run_queue_delay_ns.map_or("?".into(), percent),
    );
    text
}

/// The statistics in `--json`; the names are part of the command's interface.
#[derive(Serialize)]
struct Statistics<'a> {
    programs: Vec<ProgramRow<'a>>,
    all: Row,
    /// That of this network namespace, if it can be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<GatewayRow>,
    /// With `--watch`: what has come since the last look.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Since>,
}

#[derive(Serialize)]
struct ProgramRow<'a> {
    pids: &'a [u32],
    program: &'a str,
    #[serde(flatten)]
    row: Row,
}

#[derive(Serialize)]
struct Row {
    smc_connections: u64,
    gateway_connections: u64,
    tcp_connections: u64,
    undecided: u64,
    handshakes_attempted: u64,
    handshakes_agreed: u64,
    handshakes_failed: u64,
    reasons: Vec<CountedReason>,
    bytes_sent: u64,
    bytes_received: u64,
    ring_bytes_sent: u64,
    ring_bytes_received: u64,
    messages_sent: u64,
    messages_received: u64,
    rings: Vec<RingRow>,
    sizes: Vec<SizeRow>,
    waits: u64,
    waits_beside_strangers: u64,
    spins: u64,
    spins_in_vain: u64,
    spin_ns: u64,
    yields: u64,
    strangers: u64,
    strangers_ns: u64,
    parks: u64,
    wakeups: u64,
    run_queue_delay_ns: Option<u64>,
}

#[derive(Serialize)]
struct GatewayRow {
    #[serde(flatten)]
    totals: status::Totals,
    #[serde(flatten)]
    cpu: status::Cpu,
    adapters_up: usize,
    links: usize,
    /// `null`: no adapter tells.
    packets_sent_again: Option<u64>,
}

impl GatewayRow {
    fn new(status: &Status) -> Self {
        Self {
            totals: status.totals,
            cpu: status.cpu,
            adapters_up: status.adapters.iter().filter(|adapter| adapter.is_up).count(),
            links: status.links.len(),
            packets_sent_again: status.sent_again(),
        }
    }
}

#[derive(Serialize)]
struct RingRow {
    rmbe: usize,
    send_fresh: u64,
    send_reused: u64,
    receive: u64,
}

#[derive(Serialize)]
struct SizeRow {
    /// `null`: longer than the class before.
    up_to: Option<u64>,
    sent: u64,
    received: u64,
}

#[derive(Serialize)]
struct Since {
    seconds: f64,
    smc_connections: u64,
    gateway_connections: u64,
    tcp_connections: u64,
    messages: u64,
    ring_bytes: u64,
    tcp_bytes: u64,
    spins: u64,
    parks: u64,
    wakeups: u64,
    spin_ns: u64,
    waits: u64,
    waits_beside_strangers: u64,
    spins_in_vain: u64,
    strangers: u64,
    strangers_ns: u64,
    run_queue_delay_ns: Option<u64>,
}

/// All of it; in one line if it is one of many.
pub(super) fn json(
    programs: &[Program],
    gateway: Option<&Status>,
    before: Option<(&[Program], f64)>,
) -> String {
    let statistics = Statistics {
        programs: programs
            .iter()
            .map(|program| ProgramRow {
                pids: &program.pids,
                program: &program.program,
                row: Row::new(&program.totals),
            })
            .collect(),
        all: Row::new(&sum(programs)),
        gateway: gateway.map(GatewayRow::new),
        since: before.map(|(before, seconds)| Since::new(&growth(programs, before), seconds)),
    };
    let json = match before {
        Some(_) => serde_json::to_string(&statistics),
        None => serde_json::to_string_pretty(&statistics),
    };
    json.expect("numbers and strings are always JSON") + "\n"
}

impl Row {
    fn new(totals: &Totals) -> Self {
        let counters = &totals.counters;
        let sizes = totals.sent.classes().zip(totals.received.classes());
        Self {
            smc_connections: totals.smc,
            gateway_connections: totals.handed_over,
            tcp_connections: totals.tcp(),
            undecided: totals.undecided,
            handshakes_attempted: totals.handshakes.attempted,
            handshakes_agreed: totals.handshakes.agreed,
            handshakes_failed: totals.handshakes.failed,
            reasons: CountedReason::all_of(totals),
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            ring_bytes_sent: counters.ring_bytes_sent,
            ring_bytes_received: counters.ring_bytes_received,
            messages_sent: counters.messages_sent,
            messages_received: counters.messages_received,
            rings: totals
                .rings
                .iter()
                .enumerate()
                .filter(|(_, rings)| !rings.is_none())
                .map(|(index, rings)| RingRow {
                    rmbe: Rings::len_at(index),
                    send_fresh: rings.fresh,
                    send_reused: rings.reused,
                    receive: rings.incoming,
                })
                .collect(),
            sizes: sizes
                .map(|((up_to, sent), (_, received))| SizeRow { up_to, sent, received })
                .collect(),
            waits: counters.waits,
            waits_beside_strangers: counters.waits_beside_strangers,
            spins: counters.spins,
            spins_in_vain: counters.spins_in_vain,
            spin_ns: counters.spin_ns,
            yields: counters.yields,
            strangers: counters.strangers,
            strangers_ns: counters.strangers_ns,
            parks: counters.parks,
            wakeups: counters.wakeups,
            run_queue_delay_ns: totals.run_queue_delay_ns,
        }
    }
}

impl Since {
    fn new(grown: &Figures, seconds: f64) -> Self {
        Self {
            seconds,
            smc_connections: grown.smc,
            gateway_connections: grown.handed_over,
            tcp_connections: grown.tcp,
            messages: grown.messages,
            ring_bytes: grown.ring_bytes,
            tcp_bytes: grown.tcp_bytes,
            spins: grown.spins,
            parks: grown.parks,
            wakeups: grown.wakeups,
            spin_ns: grown.spin_ns,
            waits: grown.waits,
            waits_beside_strangers: grown.waits_beside_strangers,
            spins_in_vain: grown.spins_in_vain,
            strangers: grown.strangers,
            strangers_ns: grown.strangers_ns,
            run_queue_delay_ns: grown.run_queue_delay_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_observe::{Counters, Fallback, Handshakes};
    use sidestep_proto::fallback::{PeerCannot, Reason};

    fn program() -> Program {
        let mut totals = Totals {
            smc: 7,
            handed_over: 2,
            fallbacks: vec![(Fallback { reason: Reason::Peer(PeerCannot::PeerNotSmc) }, 2)],
            undecided: 1,
            counters: Counters {
                bytes_sent: 3000,
                bytes_received: 2048,
                messages_sent: 12,
                messages_received: 3,
                ring_bytes_sent: 1976,
                spins: 5,
                spin_ns: 1_500_000_000,
                parks: 4,
                wakeups: 3,
                yields: 2,
                waits: 50,
                waits_beside_strangers: 40,
                spins_in_vain: 1,
                strangers: 6,
                strangers_ns: 24_000_000,
                ..Counters::default()
            },
            handshakes: Handshakes { attempted: 10, agreed: 7, failed: 2 },
            run_queue_delay_ns: Some(2_500_000_000),
            ..Totals::default()
        };
        totals.sent.0[1] = 12;
        totals.received.0[3] = 3;
        totals.rings[2] = Rings { fresh: 2, reused: 5, incoming: 7 };
        Program { pids: vec![47, 48], program: "redis".into(), totals, ..Program::default() }
    }

    #[test]
    fn a_program_has_a_block() {
        let expected = "\
redis (47 and 1 forked)
  Connections     SMC-D 7, to the gateway 2, TCP 3
  Handshakes      attempted 10, agreed 7, failed 2, under way 1
  Stayed on TCP   2 x 0x03010000 the peer does not run Sidestep
  Stayed on TCP   1 x no reason: not decided yet, or ended before
  Bytes           sent 1.9 KB by rings, 1 KB by TCP, 12 calls
                  received 0 B by rings, 2 KB by TCP, 3 calls
  Waits           spins 5, sleeps 4, wake-ups of the peer 3, yields 2; CPU spun 1.500 s
  Contention      of 50 waits 40 beside strangers; spins in vain 1; strangers met 6, 0.024 s; run-queue delay 2.500 s
   RMBE  To send: fresh  reused  To receive
  64 KB               2       5           7
  Message up to  Sent  Received
          128 B    12         0
          256 B     0         0
          512 B     0         3
";
        assert_eq!(text(&[program()], None), expected);
        let both = text(&[program(), program()], None);
        assert!(
            both.contains(
                "\nAll 2 programs\n  Connections     SMC-D 14, to the gateway 4, TCP 6\n"
            ),
            "{both}"
        );
        assert_eq!(text(&[], None), "no Sidestep programs are running\n");
    }

    /// What it passes on by TCP is not SMC-R, and what it takes is not forgotten.
    #[test]
    fn the_gateway_has_a_block() {
        let gateway = Status {
            totals: status::Totals {
                smc_r_connections: 5,
                tcp_connections: 3,
                resets: 1,
                failovers: 2,
                rmbe_full: 7,
            },
            cpu: status::Cpu { user_us: 1_500_000, system_us: 20_000, ..status::Cpu::default() },
            ..Status::default()
        };
        let expected = "\
no Sidestep programs are running

Gateway
  Connections     SMC-R 5, TCP 3, reset 1
  CPU             user 1.500 s, system 0.020 s
  Adapters        0 up of 0, links 0
  Trouble         failovers 2, RMBE full 7, packets sent again ?
";
        assert_eq!(text(&[], Some(&gateway)), expected);
        let json: serde_json::Value =
            serde_json::from_str(&json(&[], Some(&gateway), None)).unwrap();
        let of = |key: &str| json["gateway"][key].clone();
        assert_eq!(
            (of("smc_r_connections"), of("tcp_connections"), of("user_us")),
            (5.into(), 3.into(), 1_500_000.into())
        );
        assert!(json["all"].get("smc_r_connections").is_none());
    }

    #[test]
    fn rates_are_of_the_growth() {
        let mut now = program();
        now.totals.counters.messages_sent += 300;
        now.totals.counters.spin_ns += 500_000_000;
        now.totals.counters.strangers += 14;
        now.totals.run_queue_delay_ns = Some(2_600_000_000);
        now.totals.smc += 4;
        now.totals.handed_over += 6;
        let lines = rates(&[now.clone()], &[program()], 2.0, 0);
        let last = lines.lines().last().unwrap();
        let words: Vec<_> = last.split_whitespace().collect();
        assert_eq!(words[..4], ["2", "3", "0", "150"]);
        assert_eq!(words[words.len() - 5..], ["25.0", "%", "7", "5.0", "%"]);
        assert_eq!(lines.lines().count(), 2);
        assert_eq!(rates(&[now.clone()], &[program()], 2.0, 1).lines().count(), 1);
        now.totals.run_queue_delay_ns = None;
        let untold = rates(&[now.clone()], &[now], 2.0, 1);
        assert!(untold.ends_with(" ?\n"), "{untold}");
    }

    #[test]
    fn json_has_programs_all_and_with_a_look_before_the_growth() {
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let once = parse(&json(&[program(), program()], None, None));
        assert_eq!(once["programs"][0]["pids"], serde_json::json!([47, 48]));
        assert_eq!(once["all"]["smc_connections"], 14);
        assert_eq!(once["all"]["gateway_connections"], 4);
        assert_eq!(once["all"]["sizes"][1]["up_to"], 128);
        assert_eq!(once["all"]["sizes"][1]["sent"], 24);
        assert_eq!(once["programs"][1]["rings"][0]["send_reused"], 5);
        assert_eq!(once["all"]["reasons"][0]["connections"], 4);
        assert_eq!(once["all"]["waits_beside_strangers"], 80);
        assert_eq!(once["all"]["run_queue_delay_ns"], 5_000_000_000_u64);
        assert!(once.get("since").is_none());
        let again = json(&[program()], None, Some((&[program()], 1.0)));
        assert_eq!(again.lines().count(), 1);
        assert_eq!(parse(&again)["since"]["messages"], 0);
        assert_eq!(parse(&again)["since"]["run_queue_delay_ns"], 0);
    }
}
