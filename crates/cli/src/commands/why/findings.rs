//! What was decided about connections, by kind: with whom it was tried, who decided, by which
//! rule, how often, and what to change.
//!
//! Connections that are open and decisions of the last hour that have the same program, role,
//! server and outcome are one finding. If an end says only that its peer was not there, the
//! other end is looked for: a Sidestep program that had a reason of its own, or a plain one. What has
//! become of a connection to another host, the gateway is asked.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use serde::{Serialize, Serializer};
use sidestep_gateway::status;
use sidestep_observe::{Connection, Fallback, Mode, Program, Role, Snapshot, Verdict as Decided};
use sidestep_proto::fallback::{Blame, OperatorSaid, PeerCannot, Reason};
use sidestep_wire::Diagnosis;

use super::advice::{self, Decider, Rule};
use super::host::{Holder, Host};
use super::setting::Environment;
use crate::accounts;
use crate::commands::beyond::{self, Beyond, Records};
use crate::commands::filter;
use crate::preloadable::{self, Caller};
use crate::strangers_files::Process;

/// A kind of decision; the names are part of the command's interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) role: &'static str,
    /// The server's end; `None`: its address was not known.
    pub(super) server: Option<SocketAddr>,
    pub(super) mode: &'static str,
    /// Why, in a few words.
    pub(super) words: String,
    /// Whose fault it is, if that is known.
    #[serde(serialize_with = "name_of")]
    pub(super) blame: Option<Blame>,
    /// The field that was wrong, if the peer broke the protocol.
    pub(super) field: Option<String>,
    /// What had been tried.
    pub(super) tried: String,
    /// Which side decided.
    pub(super) decided_by: String,
    /// The standard's code.
    pub(super) code: Option<Code>,
    /// The setting or rule that decided.
    pub(super) rule: Option<String>,
    /// Such connections that are open.
    pub(super) open: u64,
    pub(super) in_last_hour: u64,
    /// Seconds since the last one was decided.
    pub(super) last_ago_s: Option<u64>,
    /// The one thing to change; `None`: nothing should be.
    pub(super) change: Option<String>,
}

/// A code of the standard, and what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Code {
    pub(super) code: String,
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

impl Code {
    fn of(diagnosis: Diagnosis) -> Self {
        Self { text: diagnosis.meaning(), ..Self::on_this_host(diagnosis) }
    }

    /// In the words of the ends of one host.
    fn on_this_host(diagnosis: Diagnosis) -> Self {
        Self {
            code: format!("{:#010x}", diagnosis.0),
            name: diagnosis.name(),
            text: Reason::meaning_of(diagnosis),
        }
    }
}

fn name_of<S: Serializer>(blame: &Option<Blame>, to: S) -> Result<S::Ok, S::Error> {
    blame.map(Blame::name).serialize(to)
}

/// What is known about one kind before it is explained.
#[derive(Clone, Debug)]
struct Kind {
    pid: u32,
    program: String,
    role: Role,
    server: Option<SocketAddr>,
    outcome: Outcome,
    open: u64,
    in_last_hour: u64,
    last_ago_s: Option<u64>,
    /// Both addresses of one that is open: ours, the peer's.
    example: Option<(SocketAddr, SocketAddr)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Moved,
    /// It is another host's, and goes by the gateway.
    HandedOver,
    /// So it is, and the gateway passes its bytes on by TCP.
    PassedOn(status::Reason),
    /// It goes by the gateway, which speaks TLS: version, suite and rule, and how its records travel.
    Protected(String, Records),
    /// Nothing is decided, or was when it ended.
    Undecided,
    /// The ends are agreeing.
    Agreeing,
    Tcp(Fallback),
}

/// Everything that could be seen, to explain with.
pub(super) struct Sight<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) host: &'a Host,
    pub(super) beyond: &'a Beyond,
}

/// Which connections and decisions are asked for.
pub(super) trait Scope {
    fn has_connection(&self, connection: &Connection) -> bool;
    fn has_decision(&self, program: &Program, server: Option<SocketAddr>) -> bool;
}

impl Sight<'_> {
    /// All findings about what `scope` has: TCP first, the most frequent of them first.
    pub(super) fn findings(&self, scope: &impl Scope) -> Vec<Finding> {
        let mut kinds: Vec<Kind> = Vec::new();
        for program in &self.snapshot.programs {
            for decision in &program.decisions {
                if scope.has_decision(program, decision.server) {
                    let ago = decision.last_ago.as_secs();
                    enter(
                        &mut kinds,
                        Kind {
                            pid: program.pids[0],
                            program: program.program.clone(),
                            role: decision.role,
                            server: decision.server,
                            outcome: match decision.verdict {
                                Decided::Moved => Outcome::Moved,
                                Decided::HandedOver => Outcome::HandedOver,
                                Decided::Undecided => Outcome::Undecided,
                                Decided::Tcp(fallback) => Outcome::Tcp(fallback),
                            },
                            open: 0,
                            in_last_hour: decision.in_last_hour,
                            last_ago_s: Some(ago),
                            example: None,
                        },
                    );
                }
            }
        }
        let open = |connection: &&Connection| connection.mode != Mode::Lingering;
        for connection in self.snapshot.connections.iter().filter(open) {
            if scope.has_connection(connection) {
                enter(&mut kinds, self.kind_of(connection));
            }
        }
        tell_apart(&mut kinds);
        kinds.sort_by_key(|kind| {
            let rank = match kind.outcome {
                Outcome::Tcp(_) | Outcome::PassedOn(_) => 0,
                Outcome::Agreeing | Outcome::Undecided => 1,
                Outcome::Moved | Outcome::HandedOver | Outcome::Protected(..) => 2,
            };
            (rank, std::cmp::Reverse(kind.open.saturating_add(kind.in_last_hour)))
        });
        kinds.iter().map(|kind| self.explain(kind)).collect()
    }

    /// The kind of an open connection. A child that uses its parent's counts as its parent: so
    /// do its decisions.
    fn kind_of(&self, connection: &Connection) -> Kind {
        let of_child = |program: &&Program| program.pids.contains(&connection.pid);
        let program = self.snapshot.programs.iter().find(of_child);
        let server = match connection.role {
            Role::Server => connection.local,
            Role::Client => connection.peer,
        };
        Kind {
            pid: program.map_or(connection.pid, |program| program.pids[0]),
            program: program.map_or(&connection.program, |program| &program.program).clone(),
            role: connection.role,
            server,
            outcome: match (connection.mode, connection.fallback) {
                _ if connection.session.is_some() => {
                    let path = self.beyond.path(connection);
                    let protection = path.as_ref().and_then(beyond::Path::protection);
                    let records = path.as_ref().map(beyond::Path::records);
                    let reason = path.and_then(|path| path.fallback().cloned());
                    let passed_on = reason.map_or(Outcome::HandedOver, Outcome::PassedOn);
                    protection
                        .zip(records)
                        .map_or(passed_on, |(words, records)| Outcome::Protected(words, records))
                }
                (Mode::SmcD | Mode::Lingering, _) => Outcome::Moved,
                (Mode::Negotiating, _) => Outcome::Agreeing,
                (Mode::Tcp, Some(fallback)) => Outcome::Tcp(fallback),
                (Mode::Tcp, None) => Outcome::Undecided,
            },
            open: 1,
            in_last_hour: 0,
            last_ago_s: None,
            example: connection.local.zip(connection.peer),
        }
    }

    fn explain(&self, kind: &Kind) -> Finding {
        let end = match kind.role {
            Role::Server => "server",
            Role::Client => "client",
        };
        let plain = |words: &str, tried: &str| Finding {
            pid: kind.pid,
            program: kind.program.clone(),
            role: end,
            server: kind.server,
            mode: "TCP",
            words: words.into(),
            blame: None,
            field: None,
            tried: tried.into(),
            decided_by: "nobody".into(),
            code: None,
            rule: None,
            open: kind.open,
            in_last_hour: kind.in_last_hour,
            last_ago_s: kind.last_ago_s,
            change: None,
        };
        match &kind.outcome {
            Outcome::Moved => Finding {
                mode: "SMC-D",
                decided_by: "both ends".into(),
                ..plain("its bytes go through shared memory", "the ends have met and agreed")
            },
            Outcome::HandedOver => Finding {
                mode: "SMC-R",
                decided_by: "both hosts".into(),
                ..plain(
                    "the peer is on another host; its bytes go to the gateway, and by SMC-R from there \
                     unless the hosts do not agree (see `sidestep ss`)",
                    "both ends have shown by the TCP option that they know SMC",
                )
            },
            Outcome::Protected(words, records) => Finding {
                mode: if *records == Records::BySmcR { "SMC-R" } else { "TLS" },
                words: match records {
                    Records::ByTcp(Some(reason)) => {
                        format!("{words}; its records go by TCP: {}", reason.text)
                    }
                    Records::BySmcR | Records::ByTcp(None) => words.clone(),
                },
                decided_by: "the operator's rules of TLS".into(),
                ..plain("", "a rule has it, and the gateway speaks TLS with the peer")
            },
            Outcome::PassedOn(reason) => Self::explain_passed_on(reason, plain("", "")),
            Outcome::Agreeing => {
                let finding = plain(
                    "its ends are agreeing",
                    "the ends have begun to look for each other; they go on at their next calls",
                );
                // An end that waits has not heard yet what the other has decided.
                self.explain_by_peer(kind, &finding).unwrap_or(finding)
            }
            Outcome::Undecided if kind.open > 0 && kind.in_last_hour == 0 => plain(
                "nothing is decided yet",
                "nothing yet: the ends agree at calls that the programs make",
            ),
            Outcome::Undecided => Finding {
                rule: Some(self.rule(kind.pid, Rule::Settings(&["smc.promotion"]))),
                ..plain(
                    "it ended before anything was decided",
                    "what there was time for: such a connection is too short to gain",
                )
            },
            Outcome::Tcp(fallback) => self.explain_tcp(kind, *fallback, plain("", "")),
        }
    }

    /// The two hosts have not agreed.
    fn explain_passed_on(reason: &status::Reason, blank: Finding) -> Finding {
        let diagnosis = Diagnosis(reason.diagnosis);
        let (rule, change) = advice::between_hosts(diagnosis);
        Finding {
            words: format!("the gateway passes its bytes on by TCP: {}", reason.text),
            tried: "both ends have shown by the TCP option that they know SMC".into(),
            decided_by: if reason.by_peer { "the peer's host" } else { "this host" }.into(),
            code: Some(Code::of(diagnosis)),
            rule: Some(rule.into()),
            change: change.map(Into::into),
            ..blank
        }
    }

    fn explain_tcp(&self, kind: &Kind, fallback: Fallback, blank: Finding) -> Finding {
        let advice = advice::of(fallback.reason, kind.role);
        let diagnosis = fallback.reason.peer_diagnosis().unwrap_or(fallback.diagnosis());
        let finding = Finding {
            words: fallback.reason.to_string(),
            blame: fallback.reason.blame(),
            field: fallback.reason.field().map(|field| field.to_string()),
            tried: advice.tried.into(),
            decided_by: match advice.decider {
                Decider::This => format!("this end, {} ({})", kind.program, kind.pid),
                Decider::Peer => format!("the peer, {}", self.peer_of(kind)),
                Decider::Nobody => "nobody: that is how things are".into(),
            },
            code: Some(Code::on_this_host(diagnosis)),
            rule: match advice.rule {
                Rule::None => None,
                rule => Some(self.rule(kind.pid, rule)),
            },
            change: advice.change.map(Into::into),
            ..blank
        };
        match fallback.reason {
            reason if is_absence(reason) => self.explain_absence(kind, finding),
            Reason::Operator(OperatorSaid::OtherUser) => self.name_other_user(kind, finding),
            Reason::Operator(OperatorSaid::Denied) => explain_denial(kind, finding),
            _ => finding,
        }
    }

    /// Says which program of which user the other end is, if one such connection is open.
    fn name_other_user(&self, kind: &Kind, finding: Finding) -> Finding {
        let Some((local, peer)) = kind.example else { return finding };
        let user = self.host.user_of(peer, local).map(accounts::name_of);
        let holder = self.host.holder_of(peer, local);
        let program = holder.map(|holder| format!("{} ({})", holder.program, holder.pid));
        let who = match (program, user) {
            (Some(program), Some(user)) => format!("{program} of {user}"),
            (None, Some(user)) => format!("a program of {user}"),
            (_, None) => return finding,
        };
        Finding { words: format!("{}: {who}", finding.words), ..finding }
    }

    fn rule(&self, pid: u32, rule: Rule) -> String {
        match rule {
            Rule::Settings(keys) => Environment::of(pid).origin_of(keys),
            Rule::Given(rule) => rule.into(),
            Rule::None => String::new(),
        }
    }

    /// The peer was not there: it had a reason, or it is a plain program, or nothing is known of it but that it has
    /// not answered.
    fn explain_absence(&self, kind: &Kind, finding: Finding) -> Finding {
        if let Some(finding) = self.explain_by_peer(kind, &finding) {
            return finding;
        }
        if let Some(holder) = self.plain_peer(kind) {
            let Stranger { words, change, .. } = Stranger::of(&holder, self.snapshot);
            let decided_by = format!("the peer, {} ({}): {words}", holder.program, holder.pid);
            return Finding { decided_by, change, ..finding };
        }
        match self.stranger_at_peer(kind) {
            Some(user) => self.explain_stranger(kind, &user, finding),
            None => Finding {
                words: "no program under Sidestep has answered at the other end".into(),
                change: Some(UNKNOWN_PEER.into()),
                ..finding
            },
        }
    }

    /// The same, if a Sidestep program at the other end has said why it stays on TCP.
    fn explain_by_peer(&self, kind: &Kind, finding: &Finding) -> Option<Finding> {
        let (pid, program, fallback) = self.reason_of_peer(kind)?;
        let role = match kind.role {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        };
        let advice = advice::of(fallback.reason, role);
        Some(Finding {
            words: "the peer runs Sidestep, and stays on TCP".into(),
            decided_by: format!("the peer, {program} ({pid}): {}", fallback.reason),
            rule: match advice.rule {
                Rule::None => None,
                rule => Some(self.rule(pid, rule)),
            },
            change: advice.change.map(Into::into),
            ..finding.clone()
        })
    }

    /// The peer has not answered, and is another user's: whether that one runs Sidestep is not
    /// known, and makes no difference as long as no memory is shared with it.
    fn explain_stranger(&self, kind: &Kind, user: &str, finding: Finding) -> Finding {
        let advice = advice::of(OperatorSaid::OtherUser.into(), kind.role);
        let role = match kind.role {
            Role::Server => "client",
            Role::Client => "server",
        };
        Finding {
            words: format!("the {role} is of another user, {user}, and has not answered"),
            decided_by: format!("the peer, a program of {user}"),
            rule: Some(self.rule(kind.pid, advice.rule)),
            change: advice.change.map(|change| format!("under Sidestep, {change}")),
            ..finding
        }
    }

    /// The user of the other end of an open connection, if that is not whose this end is, and no
    /// process that has it can be seen.
    fn stranger_at_peer(&self, kind: &Kind) -> Option<String> {
        let (local, peer) = kind.example?;
        let [own, other] = [(local, peer), (peer, local)].map(|(at, to)| self.host.user_of(at, to));
        let other = other.filter(|other| own.is_some_and(|own| own != *other))?;
        Some(accounts::name_of(other))
    }

    /// The reason that a Sidestep program at the other end has written down: of the same connection, if one is open.
    /// The server of connections that have ended is who serves at its address; their clients are not known any more.
    fn reason_of_peer(&self, kind: &Kind) -> Option<(u32, &str, Fallback)> {
        let is_own = |fallback: &Fallback| !is_absence(fallback.reason);
        let of_twin = kind.example.and_then(|(local, peer)| {
            let is_twin = |twin: &&Connection| {
                (twin.local, twin.peer) == (Some(peer), Some(local)) && twin.role != kind.role
            };
            let twin = self.snapshot.connections.iter().find(is_twin)?;
            Some((twin.pid, twin.program.as_str(), twin.fallback.filter(is_own)?))
        });
        of_twin.or_else(|| {
            let server = kind.server.filter(|_| kind.role == Role::Client)?;
            self.snapshot.programs.iter().find_map(|program| {
                let fallback = program.decisions.iter().find_map(|decision| {
                    let is_peer = decision.role == Role::Server && decision.server == Some(server);
                    match decision.verdict {
                        Decided::Tcp(fallback) if is_peer && is_own(&fallback) => Some(fallback),
                        _ => None,
                    }
                })?;
                Some((program.pids[0], program.program.as_str(), fallback))
            })
        })
    }

    /// A program at the other end that is none of Sidestep's: of a connection that is open, or
    /// the one that listens where a client has connected.
    fn plain_peer(&self, kind: &Kind) -> Option<Holder> {
        let is_plain = |holder: &Holder| !self.is_sidestep(holder.pid);
        let of_open = kind.example.and_then(|(local, peer)| self.host.holder_of(peer, local));
        if let Some(holder) = of_open {
            return Some(holder.clone()).filter(is_plain);
        }
        let server = kind.server.filter(|_| kind.role == Role::Client)?;
        let listeners = self.host.listeners(server.port());
        let serves = |ip: IpAddr| ip == server.ip() || ip.is_unspecified();
        let listener = listeners.into_iter().find(|listener| serves(listener.address.ip()))?;
        listener.holder.filter(is_plain)
    }

    /// Whether a process has a state of ours.
    pub(super) fn is_sidestep(&self, pid: u32) -> bool {
        self.snapshot.programs.iter().any(|program| program.pids.contains(&pid))
    }

    fn peer_of(&self, kind: &Kind) -> String {
        let twin = kind.example.and_then(|(local, peer)| self.host.holder_of(peer, local));
        match twin {
            Some(holder) => format!("{} ({})", holder.program, holder.pid),
            None => "whose process is not known".into(),
        }
    }
}

/// What to change if no more is known of a peer than that it has not answered.
const UNKNOWN_PEER: &str = "start the peer with `sidestep run`; if it runs so, as another user, let the two share memory: \
     [share] with `sidestep agent`, or policy.share_with_users at both ends";

/// Whether a reason says no more than that the other end was not found.
fn is_absence(reason: Reason) -> bool {
    matches!(reason, Reason::Peer(PeerCannot::PeerNotSmc | PeerCannot::LookupUnanswered))
}

/// A program without a state of ours.
pub(super) struct Stranger {
    pub(super) is_under_sidestep: bool,
    /// What it is.
    pub(super) words: String,
    pub(super) change: Option<String>,
}

impl Stranger {
    /// What can be said of it from outside.
    pub(super) fn of(holder: &Holder, snapshot: &Snapshot) -> Self {
        if snapshot.is_incompatible(holder.pid) {
            return Self {
                is_under_sidestep: true,
                words: "it runs under another version of Sidestep, which this one cannot read"
                    .to_owned(),
                change: Some(format!(
                    "start {} again, or ask with the `sidestep` of its version",
                    holder.program
                )),
            };
        }
        let file = Process::new(holder.pid).and_then(|process| process.executable()).ok();
        let obstacle =
            file.and_then(|file| preloadable::obstacle(&file, Caller::current()).ok()?);
        let is_of_sidestep = Environment::of(holder.pid).is_of_sidestep();
        match obstacle {
            Some(obstacle) => Self {
                is_under_sidestep: false,
                words: obstacle.to_string(),
                change: Some(obstacle.advice().to_owned()),
            },
            None if is_of_sidestep && is_filtered(holder.pid) => Self {
                is_under_sidestep: true,
                words: "it runs under a filter of system calls (seccomp), and stays on TCP"
                    .to_owned(),
                change: Some(
                    "if the filter lets Sidestep's calls pass (`sidestep doctor` under it), set \
                     policy.trust_filters = true"
                        .to_owned(),
                ),
            },
            None if is_of_sidestep && is_memory_strict() => Self {
                is_under_sidestep: true,
                words: "vm.overcommit_memory is 2, and all its connections stay on TCP".to_owned(),
                change: Some("set vm.overcommit_memory to 0 or 1".to_owned()),
            },
            None if is_of_sidestep => Self {
                is_under_sidestep: true,
                words: "it runs under Sidestep, and has had no TCP connection yet".to_owned(),
                change: None,
            },
            None => Self {
                is_under_sidestep: false,
                words: "it was not started with Sidestep".to_owned(),
                change: Some(format!("start {} with `sidestep run`", holder.program)),
            },
        }
    }
}

/// Whether the kernel counts what memory it has promised.
fn is_memory_strict() -> bool {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory");
    mode.is_ok_and(|mode| mode.trim() == "2")
}

/// Whether a process runs under a filter of system calls, as `/proc` tells of any.
fn is_filtered(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() != "0")
}

/// Adds what is known of a kind to what was known of it before.
fn enter(kinds: &mut Vec<Kind>, more: Kind) {
    let is_it = |known: &&mut Kind| {
        (known.pid, known.role, known.server) == (more.pid, more.role, more.server)
            && known.outcome == more.outcome
    };
    let Some(known) = kinds.iter_mut().find(is_it) else {
        kinds.push(more);
        return;
    };
    known.open += more.open;
    known.in_last_hour += more.in_last_hour;
    known.last_ago_s = match (known.last_ago_s, more.last_ago_s) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    known.example = known.example.or(more.example);
}

/// Names the rule of the IP filter, if a connection of the kind is open and this user may see the filter.
fn explain_denial(kind: &Kind, finding: Finding) -> Finding {
    let user = fs::metadata(format!("/proc/{}", kind.pid)).map_or(0, |process| process.uid());
    let cgroup = filter::control_group_of(kind.pid).unwrap_or_default();
    let owner = filter::Owner { user, cgroup: &cgroup };
    let denial = |(local, remote)| filter::denial(TCP, [local, remote], owner);
    match kind.example.map(denial) {
        Some(Ok(Some(rule))) => Finding { rule: Some(rule), ..finding },
        _ => finding,
    }
}

/// The protocol's number.
const TCP: u8 = 6;

/// A program decides only to hand a connection over. Of those that are passed on, that decision was about
/// them.
fn tell_apart(kinds: &mut Vec<Kind>) {
    let passed_on = |kind: &Kind| matches!(kind.outcome, Outcome::PassedOn(_));
    for at in (0..kinds.len()).filter(|at| passed_on(&kinds[*at])).collect::<Vec<_>>() {
        let Kind { pid, role, server, open, .. } = kinds[at];
        let is_decision = |kind: &&mut Kind| {
            (kind.pid, kind.role, kind.server) == (pid, role, server)
                && kind.outcome == Outcome::HandedOver
        };
        let Some(decision) = kinds.iter_mut().find(is_decision) else { continue };
        let moved = open.min(decision.in_last_hour);
        decision.in_last_hour -= moved;
        let ago = decision.last_ago_s;
        kinds[at].in_last_hour += moved;
        kinds[at].last_ago_s = ago;
    }
    let is_empty = |kind: &Kind| kind.open == 0 && kind.in_last_hour == 0;
    kinds.retain(|kind| kind.outcome != Outcome::HandedOver || !is_empty(kind));
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_observe::{Counters, Decision, StateId};
    use sidestep_proto::fallback::{Field, Lack, ProgramDid};
    use std::time::Duration;

    fn server_at() -> SocketAddr {
        "127.0.0.1:80".parse().unwrap()
    }

    struct Everything;

    impl Scope for Everything {
        fn has_connection(&self, _: &Connection) -> bool {
            true
        }

        fn has_decision(&self, _: &Program, _: Option<SocketAddr>) -> bool {
            true
        }
    }

    fn decision(role: Role, verdict: Decided, in_last_hour: u64) -> Decision {
        let last_ago = Duration::from_secs(in_last_hour);
        Decision { server: Some(server_at()), role, verdict, in_last_hour, last_ago }
    }

    fn tcp(reason: Reason) -> Decided {
        Decided::Tcp(Fallback { reason })
    }

    /// Numbers beyond the kernel's: nothing is known of such processes but what is said here.
    fn program(pid: u32, decisions: Vec<Decision>) -> Program {
        let program = format!("p{}", pid & 0xf);
        Program { pids: vec![1 << 30 | pid], program, decisions, ..Program::default() }
    }

    fn open(pid: u32, role: Role, fallback: Option<Fallback>) -> Connection {
        let ends = [Some(server_at()), Some("127.0.0.1:40000".parse().unwrap())];
        let [local, peer] = if role == Role::Server { ends } else { [ends[1], ends[0]] };
        Connection {
            state: StateId::default(),
            pid: 1 << 30 | pid,
            program: format!("p{pid}"),
            local,
            peer,
            role,
            mode: if fallback.is_some() { Mode::Tcp } else { Mode::SmcD },
            rmbe_local: 0,
            rmbe_peer: 0,
            counters: Counters::default(),
            fallback,
            descriptor: None,
            session: None,
            place: None,
        }
    }

    fn findings(snapshot: &Snapshot) -> Vec<Finding> {
        findings_with(snapshot, &Beyond::default())
    }

    fn findings_with(snapshot: &Snapshot, beyond: &Beyond) -> Vec<Finding> {
        Sight { snapshot, host: &Host::default(), beyond }.findings(&Everything)
    }

    #[test]
    fn a_connection_that_is_passed_on_is_tcp_for_the_reason_that_the_gateway_gives() {
        let handed_over = Connection { session: Some(2), ..open(1, Role::Client, None) };
        let snapshot = Snapshot {
            connections: vec![handed_over.clone()],
            programs: vec![program(1, vec![decision(Role::Client, Decided::HandedOver, 3)])],
            ..Snapshot::default()
        };
        let reason = status::Reason {
            diagnosis: Diagnosis::NOSMCDEV.0,
            text: "no UEID in common".to_owned(),
            by_peer: true,
        };
        let beyond = Beyond::with(2, handed_over.peer, reason);
        let [passed_on, others] = findings_with(&snapshot, &beyond).try_into().unwrap();
        assert_eq!((passed_on.mode, passed_on.open, passed_on.in_last_hour), ("TCP", 1, 1));
        assert!(passed_on.words.ends_with("no UEID in common"), "{}", passed_on.words);
        assert_eq!(passed_on.code.unwrap().name, "NOSMCDEV");
        assert_eq!(passed_on.decided_by, "the peer's host");
        assert!(passed_on.change.unwrap().contains("smc.eid"));
        assert_eq!((others.mode, others.open, others.in_last_hour), ("SMC-R", 0, 2));
    }

    #[test]
    fn a_connection_to_another_host_is_one_whatever_the_way_to_the_gateway() {
        let other_user = Fallback { reason: Reason::Operator(OperatorSaid::OtherUser) };
        let by_the_gateway =
            |fallback| Connection { session: Some(1), ..open(1, Role::Client, fallback) };
        let snapshot = Snapshot {
            connections: vec![by_the_gateway(None), by_the_gateway(Some(other_user))],
            programs: vec![program(1, vec![decision(Role::Client, Decided::HandedOver, 3)])],
            ..Snapshot::default()
        };
        let [finding] = findings(&snapshot).try_into().unwrap();
        assert_eq!((finding.mode, finding.open, finding.in_last_hour), ("SMC-R", 2, 3));
        assert!(finding.words.contains("gateway") && finding.code.is_none());
    }

    #[test]
    fn open_connections_and_past_decisions_of_one_kind_are_one_finding() {
        let plain = tcp(Reason::Peer(PeerCannot::PeerNotSmc));
        let decisions = vec![
            decision(Role::Server, Decided::Moved, 90),
            decision(Role::Server, plain, 5),
            decision(Role::Server, tcp(Reason::Lack(Lack::NoMemory)), 7),
            decision(Role::Client, plain, 1),
        ];
        let fallback = Fallback { reason: Reason::Peer(PeerCannot::PeerNotSmc) };
        let snapshot = Snapshot {
            connections: vec![
                open(1, Role::Server, Some(fallback)),
                open(1, Role::Server, Some(fallback)),
                open(1, Role::Server, None),
            ],
            programs: vec![program(1, decisions)],
            ..Snapshot::default()
        };
        let findings = findings(&snapshot);
        let counts: Vec<_> =
            findings.iter().map(|f| (f.role, f.mode, f.open, f.in_last_hour)).collect();
        let expected = [
            ("server", "TCP", 2, 5),
            ("server", "TCP", 0, 7),
            ("client", "TCP", 0, 1),
            ("server", "SMC-D", 1, 90),
        ];
        assert_eq!(counts, expected);
        assert_eq!(findings[0].last_ago_s, Some(5));
        assert_eq!(findings[0].code.as_ref().unwrap().name, "PEERNOSMC");
        assert_eq!(findings[0].change.as_deref(), Some(UNKNOWN_PEER));
        assert!(findings[1].rule.as_ref().unwrap().starts_with("smc.memory_limit"));
        assert_eq!(findings[3].change, None);
    }

    #[test]
    fn a_breach_names_its_field_and_a_lack_does_not_accuse_the_peer() {
        let of = |reason| {
            let snapshot = Snapshot {
                programs: vec![program(1, vec![decision(Role::Client, tcp(reason), 1)])],
                ..Snapshot::default()
            };
            let [finding] = findings(&snapshot).try_into().unwrap();
            finding
        };
        let broke = of(Reason::PeerBroke(Field::HELLO_RMBE_LEN));
        assert_eq!(broke.blame, Some(Blame::PeerBroke));
        assert_eq!(broke.field.as_deref(), Some("Hello RMBE length"));
        assert!(broke.words.ends_with(": Hello RMBE length"), "{broke:?}");
        let json = serde_json::to_value(&broke).unwrap();
        assert_eq!((&json["blame"], &json["field"]), (&"protocol".into(), &broke.field.into()));
        let lack = of(Lack::NameTaken.into());
        assert_eq!((lack.blame, &lack.field), (Some(Blame::Lack), &None));
        assert!(lack.decided_by.starts_with("this end, p1 ("), "{lack:?}");
        assert!(!lack.words.contains("the peer's messages"), "{lack:?}");
        let unknown = of(Reason::Unknown(77));
        assert_eq!(serde_json::to_value(&unknown).unwrap()["blame"], serde_json::Value::Null);
        assert!(unknown.words.ends_with("(code 77)") && unknown.change.is_some(), "{unknown:?}");
    }

    #[test]
    fn a_peer_that_had_a_reason_of_its_own_is_who_decided() {
        let client =
            program(1, vec![decision(Role::Client, tcp(Reason::Peer(PeerCannot::PeerNotSmc)), 3)]);
        let server = program(
            2,
            vec![decision(Role::Server, tcp(Reason::Operator(OperatorSaid::PortExcluded)), 3)],
        );
        let snapshot = Snapshot { programs: vec![client, server], ..Snapshot::default() };
        let finding = findings(&snapshot).into_iter().find(|f| f.role == "client").unwrap();
        assert!(finding.decided_by.starts_with("the peer, p2 ("), "{finding:?}");
        assert!(finding.decided_by.contains("policy.exclude_ports"), "{finding:?}");
        assert!(finding.rule.unwrap().starts_with("policy.exclude_ports"));
        assert!(finding.change.unwrap().contains("policy.exclude_ports"));
    }

    #[test]
    fn the_twin_of_an_open_connection_says_more_than_others() {
        let of = |reason| Some(Fallback { reason });
        let snapshot = Snapshot {
            connections: vec![
                open(1, Role::Server, of(Reason::Peer(PeerCannot::PeerNotSmc))),
                open(2, Role::Client, of(Reason::Program(ProgramDid::IoUring))),
            ],
            ..Snapshot::default()
        };
        let findings = findings(&snapshot);
        let server = findings.iter().find(|f| f.role == "server").unwrap();
        assert!(server.decided_by.contains("p2 (") && server.decided_by.contains("io_uring"));
        assert!(server.change.as_ref().unwrap().contains("epoll"));
    }
}
