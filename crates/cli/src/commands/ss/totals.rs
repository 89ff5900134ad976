//! `sidestep ss --totals`: all that each program ever had, closed connections included.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use comfy_table::Table;
use serde::Serialize;
use sidestep_observe::{Fallback, LeftAlone, Program, Totals};
use sidestep_proto::autosmc::Patience;

use super::reason::ReasonRow;
use super::table::{aligned, bytes};

/// A program in `--json`; the names are part of the command's interface.
#[derive(Serialize)]
struct Row<'a> {
    pids: &'a [u32],
    program: &'a str,
    smc_connections: u64,
    gateway_connections: u64,
    tcp_connections: u64,
    undecided: u64,
    reasons: Vec<CountedReason>,
    bytes_sent: u64,
    bytes_received: u64,
    messages_sent: u64,
    messages_received: u64,
    ring_bytes_sent: u64,
    ring_bytes_received: u64,
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
    /// AUTOSMC.
    patience: Vec<PatienceRow>,
    /// AUTOCACHE.
    left_alone: Vec<LeftAloneRow>,
}

/// Connections to this server's port are moved after so much.
#[derive(Serialize)]
struct PatienceRow {
    port: u16,
    messages: u64,
    bytes: u64,
}

/// A server that is not asked for now.
#[derive(Serialize)]
struct LeftAloneRow {
    server: SocketAddr,
    reason: String,
    failures: u32,
    again_in_s: u64,
}

/// How many connections stayed on TCP for a reason.
#[derive(Serialize)]
pub(in crate::commands) struct CountedReason {
    #[serde(flatten)]
    reason: ReasonRow,
    connections: u64,
}

/// An array with an object for each program.
pub(super) fn to_json(programs: &[Program]) -> String {
    let rows: Vec<_> = programs.iter().map(Row::new).collect();
    let json = serde_json::to_string_pretty(&rows);
    json.expect("numbers and strings are always JSON") + "\n"
}

impl<'a> Row<'a> {
    fn new(Program { pids, program, totals, patience, left_alone, .. }: &'a Program) -> Self {
        let counters = &totals.counters;
        Self {
            pids,
            program,
            smc_connections: totals.smc,
            gateway_connections: totals.handed_over,
            tcp_connections: totals.tcp(),
            undecided: totals.undecided,
            reasons: CountedReason::all_of(totals),
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            messages_sent: counters.messages_sent,
            messages_received: counters.messages_received,
            ring_bytes_sent: counters.ring_bytes_sent,
            ring_bytes_received: counters.ring_bytes_received,
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
            patience: patience.iter().map(PatienceRow::new).collect(),
            left_alone: left_alone.iter().map(LeftAloneRow::new).collect(),
        }
    }
}

impl PatienceRow {
    fn new(&(port, patience): &(u16, Patience)) -> Self {
        Self { port, messages: patience.messages(), bytes: patience.bytes() }
    }
}

impl LeftAloneRow {
    fn new(it: &LeftAlone) -> Self {
        Self {
            server: it.server,
            reason: it.reason.to_string(),
            failures: it.failures,
            again_in_s: it.again_in.as_secs(),
        }
    }
}

impl CountedReason {
    /// All that a program has had.
    pub(in crate::commands) fn all_of(totals: &Totals) -> Vec<Self> {
        let counted = |&(ref fallback, connections): &(Fallback, u64)| Self {
            reason: ReasonRow::new(fallback),
            connections,
        };
        totals.fallbacks.iter().map(counted).collect()
    }
}

/// The table, what AUTOSMC and AUTOCACHE have learned and, in the last line, the sums.
pub(super) fn to_text(programs: &[Program], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.set_header(HEADER).add_rows(programs.iter().map(cells));
    let mut sum = Totals::default();
    programs.iter().for_each(|program| sum.add(&program.totals));
    let (smc, handed_over, tcp) = (sum.smc, sum.handed_over, sum.tcp());
    let all = smc.saturating_add(handed_over).saturating_add(tcp);
    let lessons: String = programs.iter().flat_map(lessons).collect();
    let programs = programs.len();
    aligned(table, NUMBERS, width)
        + &lessons
        + &format!(
            "Programs: {programs}; connections so far: {all}; \
             SMC-D: {smc}, gateway: {handed_over}, TCP: {tcp}\n"
        )
}

/// A line for each.
fn lessons(Program { pids, program, patience, left_alone, .. }: &Program) -> Vec<String> {
    let who = format!("{}/{program}", pids[0]);
    let ports = patience.iter().map(|(port, patience)| {
        let (messages, enough) = (patience.messages(), bytes(patience.bytes()));
        format!(
            "{who}: AUTOSMC: connections of port {port} move after {messages} messages or \
             {enough}; shorter ones did not earn it\n"
        )
    });
    let servers = left_alone.iter().map(|it| {
        let LeftAlone { server, reason, failures, again_in } = it;
        let seconds = again_in.as_secs();
        format!(
            "{who}: AUTOCACHE: {server} is left alone for {seconds} s more: {reason} \
             (failures in a row: {failures})\n"
        )
    });
    ports.chain(servers).collect()
}

const HEADER: [&str; 11] = [
    "PID/Program",
    "SMC-D",
    "Gateway",
    "TCP",
    "Sent",
    "Received",
    "Waits",
    "Spun",
    "Strangers",
    "Run queue",
    "Reasons for TCP",
];

/// The columns from "SMC-D" to "Run queue", which are aligned to the right.
const NUMBERS: RangeInclusive<usize> = 1..=9;

fn cells(Program { pids, program, totals, .. }: &Program) -> [String; HEADER.len()] {
    let counters = &totals.counters;
    let traffic = |n, messages: u64| format!("{} ({messages})", bytes(n));
    [
        match &pids[1..] {
            [] => format!("{}/{program}", pids[0]),
            others => format!("{}/{program} (+{})", pids[0], others.len()),
        },
        totals.smc.to_string(),
        totals.handed_over.to_string(),
        totals.tcp().to_string(),
        traffic(counters.bytes_sent, counters.messages_sent),
        traffic(counters.bytes_received, counters.messages_received),
        format!("{}/{}/{}", counters.spins, counters.parks, counters.wakeups),
        seconds(counters.spin_ns),
        seconds(counters.strangers_ns),
        totals.run_queue_delay_ns.map_or("?".into(), seconds),
        reasons(totals),
    ]
}

pub(in crate::commands) fn seconds(ns: u64) -> String {
    format!("{:.3} s", Duration::from_nanos(ns).as_secs_f64())
}

/// One line for each reason, the most frequent first.
fn reasons(totals: &Totals) -> String {
    let lines: Vec<_> =
        reasons_of(totals).iter().map(|(n, text)| format!("{n} x {text}")).collect();
    lines.join("\n")
}

/// How often each reason kept a connection on TCP, the most frequent first.
pub(in crate::commands) fn reasons_of(totals: &Totals) -> Vec<(u64, String)> {
    let undecided = "no reason: not decided yet, or ended before";
    let mut reasons: Vec<_> =
        totals.fallbacks.iter().map(|(fallback, n)| (*n, fallback.to_string())).collect();
    reasons.extend((totals.undecided > 0).then(|| (totals.undecided, undecided.to_owned())));
    reasons.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_observe::Counters;
    use sidestep_proto::fallback::{Field, Lack, PeerCannot, Reason};

    fn server() -> Program {
        let plain_peer = Fallback { reason: Reason::Peer(PeerCannot::PeerNotSmc) };
        let no_memory = Fallback { reason: Reason::Lack(Lack::NoMemory) };
        Program {
            pids: vec![4711, 4712, 4713],
            program: "redis-server".into(),
            totals: Totals {
                smc: 1000,
                handed_over: 20,
                fallbacks: vec![(no_memory, 2), (plain_peer, 30)],
                undecided: 1,
                counters: Counters {
                    bytes_sent: 5_242_880,
                    bytes_received: 1536,
                    messages_sent: 5120,
                    messages_received: 12,
                    ring_bytes_sent: 5_242_000,
                    ring_bytes_received: 1500,
                    waits: 100,
                    waits_beside_strangers: 40,
                    spins: 90,
                    spins_in_vain: 10,
                    spin_ns: 1_234_567_890,
                    yields: 5,
                    strangers: 2,
                    strangers_ns: 8_000_000,
                    parks: 4,
                    wakeups: 3,
                },
                run_queue_delay_ns: Some(2_500_000_000),
                ..Totals::default()
            },
            patience: vec![(6379, Patience::new(3))],
            left_alone: vec![LeftAlone {
                server: "127.0.0.1:5000".parse().unwrap(),
                reason: Reason::PeerBroke(Field::HELLO_RMBE_LEN),
                failures: 2,
                again_in: Duration::from_millis(59_900),
            }],
            ..Program::default()
        }
    }

    fn client() -> Program {
        Program {
            pids: vec![99],
            program: "curl".into(),
            totals: Totals { smc: 1, ..Totals::default() },
            ..Program::default()
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_reason_and_ends_with_sums() {
        let expected = "\
PID/Program             SMC-D  Gateway  TCP         Sent     Received   Waits     Spun  Strangers  Run queue  Reasons for TCP
4711/redis-server (+2)   1000       20   33  5 MB (5120)  1.5 KB (12)  90/4/3  1.235 s    0.008 s    2.500 s  30 x 0x03010000 the peer does not run Sidestep
                                                                                                              2 x 0x01010000 no memory, address space or descriptors for the rings
                                                                                                              1 x no reason: not decided yet, or ended before
99/curl                     1        0    0      0 B (0)      0 B (0)   0/0/0  0.000 s    0.000 s          ?
4711/redis-server: AUTOSMC: connections of port 6379 move after 128 messages or 512 KB; shorter ones did not earn it
4711/redis-server: AUTOCACHE: 127.0.0.1:5000 is left alone for 59 s more: the peer's messages made no sense: Hello RMBE length (failures in a row: 2)
Programs: 2; connections so far: 1054; SMC-D: 1001, gateway: 20, TCP: 33
";
        assert_eq!(to_text(&[server(), client()], None), expected);
    }

    #[test]
    fn json_has_these_keys_in_this_order() {
        let expected = r#"[
  {
    "pids": [
      4711,
      4712,
      4713
    ],
    "program": "redis-server",
    "smc_connections": 1000,
    "gateway_connections": 20,
    "tcp_connections": 33,
    "undecided": 1,
    "reasons": [
      {
        "code": "0x01010000",
        "name": "MEM",
        "text": "no memory, address space or descriptors for the rings",
        "blame": "lack",
        "field": null,
        "connections": 2
      },
      {
        "code": "0x03010000",
        "name": "PEERNOSMC",
        "text": "the peer does not run Sidestep",
        "blame": "peer",
        "field": null,
        "connections": 30
      }
    ],
    "bytes_sent": 5242880,
    "bytes_received": 1536,
    "messages_sent": 5120,
    "messages_received": 12,
    "ring_bytes_sent": 5242000,
    "ring_bytes_received": 1500,
    "waits": 100,
    "waits_beside_strangers": 40,
    "spins": 90,
    "spins_in_vain": 10,
    "spin_ns": 1234567890,
    "yields": 5,
    "strangers": 2,
    "strangers_ns": 8000000,
    "parks": 4,
    "wakeups": 3,
    "run_queue_delay_ns": 2500000000,
    "patience": [
      {
        "port": 6379,
        "messages": 128,
        "bytes": 524288
      }
    ],
    "left_alone": [
      {
        "server": "127.0.0.1:5000",
        "reason": "the peer's messages made no sense: Hello RMBE length",
        "failures": 2,
        "again_in_s": 59
      }
    ]
  }
]
"#;
        assert_eq!(to_json(&[server()]), expected);
        assert_eq!(to_json(&[]), "[]\n");
    }
}
