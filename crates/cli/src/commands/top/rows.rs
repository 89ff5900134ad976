//! The rows: what has grown between two looks, in a second.

use std::collections::HashMap;

use serde::Serialize;
use sidestep_observe::{Connection, Counters, Mode, StateId};

use super::look::{Identity, Look, SeenConnection, SeenProgram};
use crate::output::Escaped;

/// All rows of one interval, in the order of the processes.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) programs: Vec<ProgramRow>,
    pub(super) connections: Vec<ConnectionRow>,
    pub(super) notes: Notes,
}

/// What was not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    pub(super) unreadable: usize,
    pub(super) incompatible: usize,
    pub(super) is_curtailed: bool,
}

/// How fast counters grow; the names are part of the interface of `--json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) bytes_per_second: f64,
    pub(super) bytes_sent_per_second: f64,
    pub(super) bytes_received_per_second: f64,
    pub(super) messages_per_second: f64,
    /// CPUs that looked for the peer's bytes: 0.25 is a quarter of one.
    pub(super) waiting_cpus: f64,
}

/// A program; the names are part of the interface of `--json`, and its texts are escaped.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ProgramRow {
    pub(super) pid: u32,
    /// Processes that share it.
    pub(super) processes: usize,
    pub(super) program: String,
    pub(super) user: String,
    #[serde(flatten)]
    pub(super) open: Open,
    #[serde(flatten)]
    pub(super) rates: Rates,
    /// Why most of its connections on TCP are there.
    pub(super) reason: String,
}

/// Connections that are open now, by their path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Open {
    pub(super) connections: u64,
    pub(super) smc: u64,
    pub(super) tcp: u64,
    /// The part of those on TCP that has a reason to be there.
    pub(super) fallbacks: u64,
}

/// A connection; the names are part of the interface of `--json`, and its texts are escaped.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ConnectionRow {
    pub(super) mode: &'static str,
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) user: String,
    pub(super) local: String,
    pub(super) peer: String,
    #[serde(flatten)]
    pub(super) rates: Rates,
    pub(super) reason: String,
}

impl Rows {
    /// What has come between two looks; nothing has, if they are the same.
    pub(super) fn between(before: &Look, now: &Look) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let open = Open::of_programs(&now.connections);
        let known = before.counters_of_programs();
        let program = |seen: &SeenProgram| {
            let (open, reasons) = open.get(&seen.program.state).cloned().unwrap_or_default();
            let rates =
                Rates::of(known.get(&seen.program.state), &seen.program.totals.counters, seconds);
            ProgramRow::new(seen, open, commonest(&reasons), rates)
        };
        let programs = now.programs.iter().map(program).collect();
        let users: HashMap<StateId, &str> =
            now.programs.iter().map(|seen| (seen.program.state, seen.user.as_str())).collect();
        let known = before.counters_of_connections();
        let connection = |seen: &SeenConnection| {
            let identity = Identity::of(&seen.connection);
            let rates = Rates::of(known.get(&identity), &seen.connection.counters, seconds);
            let user = users.get(&seen.connection.state).copied().unwrap_or_default();
            ConnectionRow::new(seen, user, rates)
        };
        let connections = open_ones(&now.connections).map(connection).collect();
        let notes = Notes {
            unreadable: now.unreadable,
            incompatible: now.incompatible,
            is_curtailed: now.is_curtailed,
        };
        Self { programs, connections, notes }
    }

    /// All programs together.
    pub(super) fn sum(&self) -> (Open, Rates) {
        self.programs.iter().fold(Default::default(), |(open, rates): (Open, Rates), row| {
            (open.plus(row.open), rates.plus(row.rates))
        })
    }
}

/// Those that `sidestep ss` lists without `--all`.
fn open_ones(connections: &[SeenConnection]) -> impl Iterator<Item = &SeenConnection> {
    connections.iter().filter(|seen| seen.connection.mode != Mode::Lingering)
}

/// How many connections of a program are on TCP for each reason.
type Reasons<'a> = HashMap<&'a str, u64>;

/// The reason of the most; of several, the first by its words, so that it does not change by itself.
fn commonest(reasons: &Reasons<'_>) -> String {
    let most = reasons.iter().max_by_key(|(words, n)| (**n, std::cmp::Reverse(**words)));
    most.map_or_else(String::new, |(words, _)| Escaped(words).to_string())
}

impl Open {
    fn of_programs(connections: &[SeenConnection]) -> HashMap<StateId, (Self, Reasons<'_>)> {
        let mut programs: HashMap<StateId, (Self, Reasons<'_>)> = HashMap::new();
        for seen in open_ones(connections) {
            let (open, reasons) = programs.entry(seen.connection.state).or_default();
            open.connections += 1;
            match seen.mode {
                "SMC-D" | "SMC-R" => open.smc += 1,
                "TCP" => open.tcp += 1,
                _ => {}
            }
            if !seen.reason.is_empty() {
                open.fallbacks += 1;
                *reasons.entry(&seen.reason).or_default() += 1;
            }
        }
        programs
    }

    fn plus(self, other: Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            smc: self.smc + other.smc,
            tcp: self.tcp + other.tcp,
            fallbacks: self.fallbacks + other.fallbacks,
        }
    }
}

impl Rates {
    /// A connection that was not there before has had everything since. A counter that has fallen is another
    /// connection's.
    fn of(before: Option<&Counters>, now: &Counters, seconds: f64) -> Self {
        let before = before.copied().unwrap_or_default();
        let per_second = |now: u64, before: u64| match seconds > 0.0 {
            true => now.checked_sub(before).unwrap_or(now) as f64 / seconds,
            false => 0.0,
        };
        let sent = per_second(now.bytes_sent, before.bytes_sent);
        let received = per_second(now.bytes_received, before.bytes_received);
        Self {
            bytes_per_second: sent + received,
            bytes_sent_per_second: sent,
            bytes_received_per_second: received,
            messages_per_second: per_second(now.messages_sent, before.messages_sent)
                + per_second(now.messages_received, before.messages_received),
            waiting_cpus: per_second(now.spin_ns, before.spin_ns) / 1e9,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes_per_second: self.bytes_per_second + other.bytes_per_second,
            bytes_sent_per_second: self.bytes_sent_per_second + other.bytes_sent_per_second,
            bytes_received_per_second: self.bytes_received_per_second
                + other.bytes_received_per_second,
            messages_per_second: self.messages_per_second + other.messages_per_second,
            waiting_cpus: self.waiting_cpus + other.waiting_cpus,
        }
    }
}

impl ProgramRow {
    fn new(seen: &SeenProgram, open: Open, reason: String, rates: Rates) -> Self {
        Self {
            pid: seen.program.pids.first().copied().unwrap_or_default(),
            processes: seen.program.pids.len(),
            program: Escaped(&seen.program.program).to_string(),
            user: seen.user.clone(),
            open,
            rates,
            reason,
        }
    }
}

impl ConnectionRow {
    fn new(seen: &SeenConnection, user: &str, rates: Rates) -> Self {
        let Connection { pid, program, local, peer, descriptor, .. } = &seen.connection;
        let unknown = || descriptor.map_or_else(|| "?".to_owned(), |fd| format!("fd {fd}"));
        Self {
            mode: seen.mode,
            pid: *pid,
            program: Escaped(program).to_string(),
            user: user.to_owned(),
            local: local.map_or_else(unknown, |end| end.to_string()),
            peer: peer.map_or_else(|| "?".to_owned(), |end| end.to_string()),
            rates,
            reason: Escaped(&seen.reason).to_string(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Instant;

    use super::super::look::tests::look;
    use super::*;
    use crate::commands::ss::tests::{on_tcp, server};
    use sidestep_observe::{Program, Totals};

    fn program(counters: Counters) -> Program {
        let totals = Totals { counters, ..Totals::default() };
        Program {
            pids: vec![4711, 4712],
            program: "redis-server".into(),
            totals,
            ..Program::default()
        }
    }

    /// One whose program has not said yet which connection it is.
    fn unnamed() -> Connection {
        Connection { local: None, peer: None, descriptor: Some(12), ..on_tcp() }
    }

    /// Two seconds, in which everything that is counted of a connection in shared memory grows by half.
    pub(in crate::commands::top) fn rows() -> Rows {
        let begun = Instant::now();
        let old = server();
        let counters = Counters {
            bytes_sent: old.counters.bytes_sent + 4_194_304,
            messages_sent: old.counters.messages_sent + 2000,
            messages_received: old.counters.messages_received + 2000,
            spin_ns: old.counters.spin_ns + 250_000_000,
            ..old.counters
        };
        let new = Connection { counters, ..old.clone() };
        let lingering = Connection { mode: Mode::Lingering, ..server() };
        let before = look(begun, 0, vec![program(old.counters)], vec![old]);
        let now =
            look(begun, 2000, vec![program(counters)], vec![new, unnamed(), unnamed(), lingering]);
        Rows::between(&before, &now)
    }

    #[test]
    fn rates_are_of_the_growth_in_a_second() {
        let rows = rows();
        let [program] = &rows.programs[..] else { panic!() };
        assert_eq!((program.pid, program.processes, &*program.user), (4711, 2, "root"));
        let rates = Rates {
            bytes_per_second: 2_097_152.0,
            bytes_sent_per_second: 2_097_152.0,
            bytes_received_per_second: 0.0,
            messages_per_second: 2000.0,
            waiting_cpus: 0.125,
        };
        assert_eq!(program.rates, rates);
        assert_eq!(program.open, Open { connections: 3, smc: 1, tcp: 2, fallbacks: 2 });
        assert_eq!(program.reason, "0x03010000 the peer does not run Sidestep");
        assert_eq!(rows.sum(), (program.open, rates));
        let [moved, tcp, _] = &rows.connections[..] else { panic!() };
        assert_eq!((moved.rates, moved.mode), (rates, "SMC-D"));
        assert_eq!((tcp.rates, tcp.mode, &*tcp.local), (Rates::default(), "TCP", "fd 12"));
    }

    #[test]
    fn a_slot_that_another_connection_has_now_counts_from_nothing() {
        let had = Counters { bytes_sent: 100, ..Counters::default() };
        let has = Counters { bytes_sent: 30, ..Counters::default() };
        assert_eq!(Rates::of(Some(&had), &has, 1.0).bytes_sent_per_second, 30.0);
        assert_eq!(Rates::of(None, &has, 2.0).bytes_sent_per_second, 15.0);
        assert_eq!(Rates::of(None, &has, 0.0), Rates::default(), "no time has passed");
    }

    #[test]
    fn the_commonest_reason_does_not_change_by_itself() {
        let reasons = Reasons::from([("b", 2), ("a", 2), ("c", 1)]);
        assert_eq!(commonest(&reasons), "a");
        assert_eq!(commonest(&Reasons::new()), "");
    }

    #[test]
    fn names_do_not_command_the_terminal() {
        let hostile = Connection { program: "a\x1b[2J\u{202e}\n".into(), ..server() };
        let begun = Instant::now();
        let program = Program { program: "\x1b]0;x\x07".into(), ..program(Counters::default()) };
        let now = look(begun, 1, vec![program], vec![hostile]);
        let rows = Rows::between(&now, &now);
        assert_eq!(rows.programs[0].program, "\\u{1b}]0;x\\u{7}");
        assert_eq!(rows.connections[0].program, "a\\u{1b}[2J\\u{202e}\\n");
    }
}
