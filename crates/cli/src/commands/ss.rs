//! `sidestep ss`: the connections of all Sidestep programs, and why some of them are TCP; with
//! `--totals` all that each program ever had.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use comfy_table::Table;
use serde::Serialize;
use sidestep_observe::{Connection, Mode, Program, Role, Snapshot};
use thiserror::Error;

use super::beyond::{Beyond, Path as Way};
use super::vip_status::Steered;
use crate::args::SsArgs;
use crate::output;
use crate::terminal;

mod reason;
mod table;
mod totals;

use reason::ReasonRow;
pub(super) use table::{aligned, bytes};
pub(super) use totals::{CountedReason, reasons_of, seconds};

/// Prints the list; 1 if there cannot be one, otherwise 0.
pub(crate) fn execute(args: &SsArgs) -> i32 {
    match list(args)
        .and_then(|list| output::print_as(args.json, &list).map(drop).map_err(SsError::Output))
    {
        Ok(()) => 0,
        Err(error) => {
            output::complain("ss", &error);
            1
        }
    }
}

/// Why there is no list.
#[derive(Debug, Error)]
enum SsError {
    #[error("cannot list /proc: {0}")]
    Processes(io::Error),
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error("process {pid}: {}", refusal(*.is_root))]
    Unreadable { pid: u32, is_root: bool },
    #[error("process {0} runs another version of Sidestep: ask with the `sidestep` of that one")]
    OtherVersion(u32),
    #[error("cannot write the list: {0}")]
    Output(io::Error),
}

fn list(args: &SsArgs) -> Result<String, SsError> {
    let mut snapshot = Snapshot::take().map_err(SsError::Processes)?;
    if args.totals {
        return list_totals(args, snapshot);
    }
    say_curtailed("ss", &snapshot.curtailed);
    let is_asked_for = |connection: &Connection| {
        let of_process = args.pid.is_none_or(|pid| connection.pid == pid);
        of_process && (args.all || connection.mode != Mode::Lingering)
    };
    snapshot.connections.retain(is_asked_for);
    snapshot.find_addresses();
    let connections = &snapshot.connections;
    let beyond = Beyond::of(connections);
    let steered = Steered::look();

    if let Some(pid) = args.pid.filter(|_| connections.is_empty()) {
        check(pid, &snapshot)?;
    }
    Ok(match (args.json, connections.is_empty(), args.pid) {
        (true, ..) => to_json(connections, &beyond, &steered),
        (false, true, Some(pid)) => format!("process {pid} has no Sidestep connections\n"),
        (false, true, None) => nothing(&snapshot, is_root()),
        (false, false, _) => {
            let text = to_text(connections, &beyond, &steered, terminal::width());
            format!("{}{}\n", text.trim_end(), incompatible(&snapshot))
        }
    })
}

fn list_totals(args: &SsArgs, mut snapshot: Snapshot) -> Result<String, SsError> {
    let is_asked_for = |program: &Program| args.pid.is_none_or(|pid| program.pids.contains(&pid));
    snapshot.programs.retain(is_asked_for);
    snapshot.find_run_queue_delays();
    say_curtailed("ss", &snapshot.curtailed);
    let programs = &snapshot.programs;
    if let Some(pid) = args.pid.filter(|_| programs.is_empty()) {
        check(pid, &snapshot)?;
    }
    Ok(match (args.json, programs.is_empty(), args.pid) {
        (true, ..) => totals::to_json(programs),
        (false, true, Some(pid)) => format!("process {pid} has had no Sidestep connections\n"),
        (false, true, None) => nothing(&snapshot, is_root()),
        (false, false, _) => totals::to_text(programs, terminal::width()),
    })
}

/// A process without connections is no error, unless it is not there or was not looked at.
fn check(pid: u32, snapshot: &Snapshot) -> Result<(), SsError> {
    if snapshot.unreadable.contains(&pid) {
        let is_root = is_root();
        return Err(SsError::Unreadable { pid, is_root });
    }
    if snapshot.is_incompatible(pid) {
        return Err(SsError::OtherVersion(pid));
    }
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return Err(SsError::NoProcess(pid));
    }
    Ok(())
}

/// What to say instead of an empty table.
fn nothing(snapshot: &Snapshot, is_root: bool) -> String {
    let mut text = match snapshot.programs.len() {
        0 => "no Sidestep programs are running".to_owned(),
        programs => format!("no connections; Sidestep programs running: {programs}"),
    };
    text += &incompatible(snapshot);
    if !snapshot.unreadable.is_empty() {
        let processes = snapshot.unreadable.len();
        let reason = refusal(is_root);
        text += &format!("; processes not looked at: {processes} ({reason})");
    }
    text + "\n"
}

/// Says of whom not all is shown.
pub(super) fn say_curtailed(command: &str, users: &[u32]) {
    if !users.is_empty() {
        output::complain(command, curtailed(users));
    }
}

fn curtailed(users: &[u32]) -> String {
    let numbers: Vec<_> = users.iter().map(u32::to_string).collect();
    let users = if users.len() == 1 { "user" } else { "users" };
    format!(
        "not all of {users} {} is here: there is more than one look reads of another user's \
         programs; they see it themselves",
        numbers.join(", ")
    )
}

/// Programs of which nothing is known, if there are any.
fn incompatible(snapshot: &Snapshot) -> String {
    match snapshot.incompatible.len() {
        0 => String::new(),
        programs => format!("; programs with another version of Sidestep: {programs}"),
    }
}

/// Why a process was not looked at. Even root may be refused, in a container for example.
pub(super) fn refusal(is_root: bool) -> &'static str {
    if is_root { "permission denied" } else { "permission denied; root sees all" }
}

pub(super) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A connection in `--json`; the names are part of the command's interface.
#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    program: &'a str,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    role: &'static str,
    mode: &'static str,
    rmbe_local: u32,
    rmbe_peer: u32,
    bytes_sent: u64,
    bytes_received: u64,
    messages_sent: u64,
    messages_received: u64,
    ring_bytes_sent: u64,
    ring_bytes_received: u64,
    reason: Option<ReasonRow>,
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
    /// The VIP that it was made to and the target that has it.
    vip: Option<&'a str>,
    /// What TLS protects it by: version, suite and rule.
    protection: Option<String>,
}

fn to_json(connections: &[Connection], beyond: &Beyond, steered: &Steered) -> String {
    let rows: Vec<_> = connections.iter().map(|it| Row::new(it, beyond, steered)).collect();
    let json = serde_json::to_string_pretty(&rows);
    json.expect("numbers and strings are always JSON") + "\n"
}

impl<'a> Row<'a> {
    fn new(connection: &'a Connection, beyond: &'a Beyond, steered: &'a Steered) -> Self {
        let counters = &connection.counters;
        let way = beyond.path(connection);
        let fallback = connection.fallback.as_ref().map(ReasonRow::new);
        Self {
            pid: connection.pid,
            program: &connection.program,
            local: connection.local,
            peer: connection.peer,
            role: match connection.role {
                Role::Client => "client",
                Role::Server => "server",
            },
            mode: mode(connection, way.as_ref()),
            rmbe_local: connection.rmbe_local,
            rmbe_peer: connection.rmbe_peer,
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            messages_sent: counters.messages_sent,
            messages_received: counters.messages_received,
            ring_bytes_sent: counters.ring_bytes_sent,
            ring_bytes_received: counters.ring_bytes_received,
            protection: way.as_ref().and_then(Way::protection),
            reason: way.map_or(fallback, |way| way.fallback().map(ReasonRow::by_gateway)),
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
            vip: target_of(connection, steered),
        }
    }
}

/// The target of a VIP that a connection is with.
fn target_of<'a>(connection: &Connection, steered: &'a Steered) -> Option<&'a str> {
    let (server, client) = match connection.role {
        Role::Server => (connection.local?, connection.peer?),
        Role::Client => (connection.peer?, connection.local?),
    };
    steered.of(server, client)
}

/// How it travels, in a word.
pub(super) fn mode(connection: &Connection, way: Option<&Way<'_>>) -> &'static str {
    match way {
        Some(way) => way.mode(),
        None if connection.is_smc() => "SMC-D",
        None => "TCP",
    }
}

/// The table and, in its last line, the sums.
fn to_text(
    connections: &[Connection],
    beyond: &Beyond,
    steered: &Steered,
    width: Option<u16>,
) -> String {
    let mut table = Table::new();
    table.set_header(HEADER).add_rows(connections.iter().map(|it| cells(it, beyond, steered)));
    aligned(table, NUMBERS, width) + &sums(connections, beyond) + "\n"
}

const HEADER: [&str; 9] =
    ["Mode", "Local", "Peer", "PID/Program", "RMBE", "Sent", "Received", "Waits", "Reason"];

/// The columns from "RMBE" to "Waits", which are aligned to the right.
const NUMBERS: RangeInclusive<usize> = 4..=7;

fn cells(connection: &Connection, beyond: &Beyond, steered: &Steered) -> [String; HEADER.len()] {
    let counters = &connection.counters;
    let way = beyond.path(connection);
    let address = |address: Option<SocketAddr>| match address {
        Some(address) => address.to_string(),
        None => "?".into(),
    };
    let traffic = |n, messages: u64| format!("{} ({messages})", bytes(n));
    [
        mode(connection, way.as_ref()).into(),
        address(connection.local),
        address(connection.peer),
        format!("{}/{}", connection.pid, connection.program),
        if connection.is_smc() {
            let [local, peer] = [connection.rmbe_local, connection.rmbe_peer].map(u64::from);
            format!("{}/{}", bytes(local), bytes(peer))
        } else {
            "-".into()
        },
        traffic(counters.bytes_sent, counters.messages_sent),
        traffic(counters.bytes_received, counters.messages_received),
        format!("{}/{}/{}", counters.spins, counters.parks, counters.wakeups),
        [way.map_or_else(|| remark(connection), |way| way.words())]
            .into_iter()
            .filter(|words| !words.is_empty())
            .chain(target_of(connection, steered).map(|target| format!("by VIP: {target}")))
            .collect::<Vec<_>>()
            .join("; "),
    ]
}

/// What stands in the column "Reason".
pub(super) fn remark(connection: &Connection) -> String {
    match (&connection.fallback, connection.mode) {
        (Some(fallback), _) => fallback.to_string(),
        (None, Mode::Tcp) => "not decided yet".into(),
        (None, Mode::Negotiating) => "the two ends are agreeing".into(),
        (None, Mode::SmcD) => String::new(),
        (None, Mode::Lingering) if connection.is_smc() => "closed; the peer still reads".into(),
        (None, Mode::Lingering) => "closed; a forked child has gone on with it".into(),
    }
}

fn sums(connections: &[Connection], beyond: &Beyond) -> String {
    let all = connections.len();
    let of = |path: &str| {
        let has_it = |it: &&Connection| mode(it, beyond.path(it).as_ref()) == path;
        connections.iter().filter(has_it).count()
    };
    let mut text = format!("Connections: {all}; SMC-D: {}, TCP: {}", of("SMC-D"), of("TCP"));
    match of("SMC-R") {
        0 => {}
        smc_r => text += &format!(", SMC-R: {smc_r}"),
    }
    match of("TLS") {
        0 => {}
        tls => text += &format!(", TLS: {tls}"),
    }
    let closed = connections.iter().filter(|c| c.mode == Mode::Lingering);
    match closed.count() {
        0 => {}
        closed => text += &format!("; closed: {closed}"),
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use sidestep_observe::{Counters, Fallback, StateId};
    use sidestep_proto::fallback::{Field, Lack, PeerCannot, Reason};
    use sidestep_wire::Diagnosis;

    pub(in crate::commands) fn server() -> Connection {
        Connection {
            state: StateId::default(),
            pid: 4711,
            program: "redis-server".into(),
            local: Some("127.0.0.1:6379".parse().unwrap()),
            peer: Some("127.0.0.1:40000".parse().unwrap()),
            role: Role::Server,
            mode: Mode::SmcD,
            rmbe_local: 65_536,
            rmbe_peer: 1_048_576,
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
                spin_ns: 123_456,
                yields: 5,
                strangers: 2,
                strangers_ns: 8_000_000,
                parks: 4,
                wakeups: 3,
            },
            fallback: None,
            descriptor: None,
            session: None,
            place: None,
        }
    }

    /// A connection that stays on TCP because its peer does not run Sidestep.
    pub(in crate::commands) fn on_tcp() -> Connection {
        client(Mode::Tcp, Some(plain_peer()))
    }

    fn client(mode: Mode, fallback: Option<Fallback>) -> Connection {
        Connection {
            state: StateId::default(),
            pid: 99,
            program: "curl".into(),
            local: Some("[::1]:40001".parse().unwrap()),
            peer: Some("[::1]:443".parse().unwrap()),
            role: Role::Client,
            mode,
            rmbe_local: 0,
            rmbe_peer: 0,
            counters: Counters::default(),
            fallback,
            descriptor: None,
            session: None,
            place: None,
        }
    }

    fn plain_peer() -> Fallback {
        Fallback { reason: Reason::Peer(PeerCannot::PeerNotSmc) }
    }

    fn declined() -> Fallback {
        Fallback { reason: Reason::PeerDeclined(Diagnosis::MEM) }
    }

    fn every_kind() -> Vec<Connection> {
        let nowhere = Connection { local: None, peer: None, ..client(Mode::Tcp, None) };
        let closed = Connection { mode: Mode::Lingering, ..server() };
        let childs = Connection { rmbe_local: 0, rmbe_peer: 0, ..closed.clone() };
        vec![
            server(),
            client(Mode::Tcp, Some(plain_peer())),
            client(Mode::Tcp, Some(declined())),
            client(Mode::Negotiating, None),
            nowhere,
            closed,
            childs,
        ]
    }

    #[test]
    fn the_table_is_aligned_and_ends_with_totals() {
        let expected = "\
Mode   Local           Peer             PID/Program              RMBE         Sent     Received   Waits  Reason
SMC-D  127.0.0.1:6379  127.0.0.1:40000  4711/redis-server  64 KB/1 MB  5 MB (5120)  1.5 KB (12)  90/4/3
TCP    [::1]:40001     [::1]:443        99/curl                     -      0 B (0)      0 B (0)   0/0/0  0x03010000 the peer does not run Sidestep
TCP    [::1]:40001     [::1]:443        99/curl                     -      0 B (0)      0 B (0)   0/0/0  0x05000000 the peer declined: 0x01010000 MEM (out of memory for a buffer or a link group)
TCP    [::1]:40001     [::1]:443        99/curl                     -      0 B (0)      0 B (0)   0/0/0  the two ends are agreeing
TCP    ?               ?                99/curl                     -      0 B (0)      0 B (0)   0/0/0  not decided yet
SMC-D  127.0.0.1:6379  127.0.0.1:40000  4711/redis-server  64 KB/1 MB  5 MB (5120)  1.5 KB (12)  90/4/3  closed; the peer still reads
TCP    127.0.0.1:6379  127.0.0.1:40000  4711/redis-server           -  5 MB (5120)  1.5 KB (12)  90/4/3  closed; a forked child has gone on with it
Connections: 7; SMC-D: 2, TCP: 5; closed: 2
";
        assert_eq!(to_text(&every_kind(), &Beyond::default(), &Steered::default(), None), expected);
    }

    #[test]
    fn on_a_terminal_only_the_reason_is_broken() {
        let text = to_text(&every_kind()[..2], &Beyond::default(), &Steered::default(), Some(130));
        let expected = "\
Mode   Local           Peer             PID/Program              RMBE         Sent     Received   Waits  Reason
SMC-D  127.0.0.1:6379  127.0.0.1:40000  4711/redis-server  64 KB/1 MB  5 MB (5120)  1.5 KB (12)  90/4/3
TCP    [::1]:40001     [::1]:443        99/curl                     -      0 B (0)      0 B (0)   0/0/0  0x03010000 the peer does
                                                                                                         not run Sidestep
Connections: 2; SMC-D: 1, TCP: 1
";
        assert_eq!(text, expected);

        let narrow = to_text(&every_kind(), &Beyond::default(), &Steered::default(), Some(80));
        assert_eq!(narrow, to_text(&every_kind(), &Beyond::default(), &Steered::default(), None));
    }

    #[test]
    fn json_has_these_keys_in_this_order() {
        let expected = r#"[
  {
    "pid": 4711,
    "program": "redis-server",
    "local": "127.0.0.1:6379",
    "peer": "127.0.0.1:40000",
    "role": "server",
    "mode": "SMC-D",
    "rmbe_local": 65536,
    "rmbe_peer": 1048576,
    "bytes_sent": 5242880,
    "bytes_received": 1536,
    "messages_sent": 5120,
    "messages_received": 12,
    "ring_bytes_sent": 5242000,
    "ring_bytes_received": 1500,
    "reason": null,
    "waits": 100,
    "waits_beside_strangers": 40,
    "spins": 90,
    "spins_in_vain": 10,
    "spin_ns": 123456,
    "yields": 5,
    "strangers": 2,
    "strangers_ns": 8000000,
    "parks": 4,
    "wakeups": 3,
    "vip": null,
    "protection": null
  }
]
"#;
        assert_eq!(to_json(&[server()], &Beyond::default(), &Steered::default()), expected);
        assert_eq!(to_json(&[], &Beyond::default(), &Steered::default()), "[]\n");
    }

    #[test]
    fn the_target_of_a_vip_is_told() {
        let steered = Steered::with("127.0.0.1:6379", "127.0.0.1:40000", "redis/a");
        let text = to_text(&[server()], &Beyond::default(), &steered, None);
        assert!(text.contains("90/4/3  by VIP: redis/a\n"), "{text}");
        let json = to_json(&[server()], &Beyond::default(), &steered);
        assert!(json.contains("\"vip\": \"redis/a\""), "{json}");
    }

    #[test]
    fn json_tells_tcp_and_its_reason() {
        let json = to_json(&every_kind(), &Beyond::default(), &Steered::default());
        let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
        let modes = ["SMC-D", "TCP", "TCP", "TCP", "TCP", "SMC-D"];
        for (row, mode) in rows.as_array().unwrap().iter().zip(modes) {
            assert_eq!(row["mode"], mode);
        }
        let reason = serde_json::json!({
            "code": "0x03010000",
            "name": "PEERNOSMC",
            "text": "the peer does not run Sidestep",
            "blame": "peer",
            "field": null,
        });
        assert_eq!(rows[1]["reason"], reason);
        assert_eq!(rows[2]["reason"]["code"], "0x05000000");
        let text = "the peer declined: 0x01010000 MEM (out of memory for a buffer or a link group)";
        assert_eq!(rows[2]["reason"]["text"], text);
        assert_eq!(rows[2]["reason"]["blame"], "peer");
        assert_eq!(rows[3]["reason"], serde_json::Value::Null);
        assert_eq!(rows[4]["local"], serde_json::Value::Null);
    }

    #[test]
    fn json_names_the_field_by_which_the_peer_broke_the_protocol() {
        let told = |reason| {
            let row = ReasonRow::new(&Fallback { reason });
            (row.text.into_owned(), row.blame, row.field)
        };
        let broke = told(Reason::PeerBroke(Field::HELLO_RMBE_LEN));
        let words = "the peer's messages made no sense: Hello RMBE length".to_owned();
        let field = Some("Hello RMBE length".to_owned());
        assert_eq!(broke, (words, Some("protocol"), field));
        let (_, blame, field) = told(Lack::NameTaken.into());
        assert_eq!((blame, field), (Some("lack"), None), "our own failure");
        let (words, blame, field) = told(Reason::Unknown(77));
        assert_eq!((blame, field), (None, None));
        assert!(words.ends_with("does not know (code 77)"), "{words}");
    }

    #[test]
    fn nothing_says_what_was_not_seen() {
        let mut snapshot = Snapshot::default();
        assert_eq!(nothing(&snapshot, false), "no Sidestep programs are running\n");
        snapshot.unreadable = vec![1, 2, 3];
        assert_eq!(
            nothing(&snapshot, false),
            "no Sidestep programs are running; processes not looked at: 3 (permission denied; \
             root sees all)\n"
        );
        assert_eq!(
            nothing(&snapshot, true),
            "no Sidestep programs are running; processes not looked at: 3 (permission denied)\n"
        );
        let program = Program { pids: vec![1], program: "a".into(), ..Program::default() };
        let programs = vec![program.clone(), program];
        let snapshot = Snapshot { programs, incompatible: vec![vec![7]], ..Snapshot::default() };
        assert_eq!(
            nothing(&snapshot, true),
            "no connections; Sidestep programs running: 2; programs with another version of \
             Sidestep: 1\n"
        );
    }

    #[test]
    fn bytes_have_four_digits_and_perhaps_a_decimal() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KB"),
            (1536, "1.5 KB"),
            (65_536, "64 KB"),
            (1_024_000, "1000 KB"),
            (1_048_575, "1 MB"),
            (1_048_576, "1 MB"),
            (5_555_555_555, "5.2 GB"),
            (u64::MAX, "16 EB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text, "{n}");
        }
    }
}
