//! The agent's part that closes ports to all programs but the gateway: those of rules of TLS with `enforce`.
//!
//! A program of the library hands such a connection over, and the gateway marks it before it sends on it. What any other program
//! sends there does not leave ([`Enforcement`]). The rules are those of the agent's own configuration, looked at every two
//! seconds. The log is told of each connection once; packets are counted for each rule.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sidestep_bpf::{BpfError, Cgroup, Enforcement, GroupNumbers, LogLine, RuleSet};
use sidestep_filter::{
    Action, Direction, Endpoint, Names, Ports, Protocol, Rule as Judgement, RuleList, User, compile,
};
use sidestep_proto::protection::Role;
use sidestep_tls::Rule;
use thiserror::Error;

use crate::accounts;
use crate::commands::filter::ControlGroups;
use crate::config::Configuration;
use crate::config::tls::table_of;

/// Between two looks at the configuration.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Connections that are remembered as told.
const TOLD_MAX: usize = 256;
/// *Source*: IANA, "Protocol Numbers".
const TCP: u8 = 6;

/// Why rules are not enforced.
#[derive(Debug, Error)]
pub(super) enum Obstacle {
    #[error(transparent)]
    Kernel(#[from] BpfError),
    #[error("the rules are too many in all: {0}")]
    Compile(#[from] sidestep_filter::CompileError),
}

/// Packets that were dropped, by the rule.
static DROPPED: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());

/// Packets that were dropped since the rules were loaded, by the rule.
pub(super) fn dropped() -> Vec<(String, u64)> {
    DROPPED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What the agent enforces.
pub(super) struct Enforcer {
    cgroup: PathBuf,
    /// The file that the command line names.
    named: Option<PathBuf>,
    rules: Vec<Rule>,
    /// `None`: there is nothing to enforce, or it cannot be.
    in_force: Option<InForce>,
    look_at: Instant,
    told: VecDeque<[SocketAddr; 2]>,
    groups: ControlGroups,
}

struct InForce {
    programs: Enforcement,
    /// Of each line of the list, the rule that it is of.
    names: Vec<String>,
    /// The rules that are enforced.
    enforced: Vec<String>,
}

impl Enforcer {
    /// For the programs of a control group, or of all.
    ///
    /// # Errors
    ///
    /// No control groups are mounted.
    pub(super) fn new(cgroup: Option<&Path>, named: Option<&Path>) -> Result<Self, BpfError> {
        let cgroup = cgroup.map_or_else(Cgroup::root, |path| Ok(path.to_owned()))?;
        let root = Cgroup::root().unwrap_or_else(|_| cgroup.clone());
        Ok(Self {
            cgroup,
            named: named.map(Path::to_owned),
            rules: Vec::new(),
            in_force: None,
            look_at: Instant::now(),
            told: VecDeque::new(),
            groups: ControlGroups::below(root),
        })
    }

    /// Becomes readable when something was dropped.
    pub(super) fn events(&self) -> Option<&Enforcement> {
        self.in_force.as_ref().map(|it| &it.programs)
    }

    /// Looks at the rules if it is time, tells what was dropped, and says how long it is until the next look.
    pub(super) fn work(&mut self, now: Instant) -> Duration {
        self.tell();
        if now >= self.look_at {
            self.look_at = now + LOOK_INTERVAL;
            self.follow();
            self.count();
        }
        self.look_at - now
    }

    /// A configuration with a mistake leaves in force what is.
    fn follow(&mut self) {
        let environment = |name: &str| std::env::var_os(name);
        let Ok(read) = Configuration::load(self.named.as_deref(), environment) else { return };
        let rules = read.settings.tls.unwrap_or_default();
        if rules == self.rules {
            return;
        }
        self.rules = rules;
        match InForce::attach(&self.cgroup, &self.rules) {
            Ok(in_force) => {
                if let Some(InForce { enforced, .. }) = &in_force {
                    log::info!("only the gateway sends on connections of: {}", enforced.join(", "));
                }
                // What was in force goes when this is.
                self.in_force = in_force;
            }
            Err(error) => log::error!("rules of TLS with `enforce` are not enforced: {error}"),
        }
    }

    fn tell(&mut self) {
        while let Some(line) = self.in_force.as_mut().and_then(|it| it.programs.take()) {
            self.tell_of(&line);
        }
    }

    fn tell_of(&mut self, line: &LogLine) {
        let packet = &line.packet;
        let ends = [
            SocketAddr::new(packet.source, packet.ports.0),
            SocketAddr::new(packet.destination, packet.ports.1),
        ];
        if self.told.contains(&ends) {
            return;
        }
        if self.told.len() == TOLD_MAX {
            self.told.pop_front();
        }
        self.told.push_back(ends);
        let names = self.in_force.as_ref().map_or(&[][..], |it| &it.names);
        let rule = line.verdict.rule.and_then(|rule| names.get(rule)).map_or("?", String::as_str);
        let program = match (self.groups.program(line.cgroup), self.groups.name(line.cgroup)) {
            (Some((pid, name)), _) => format!("{name} ({pid})"),
            (None, Some(group)) => format!("a program of {group}"),
            (None, None) => "a program".to_owned(),
        };
        let [from, to] = ends;
        log::warn!(
            "rule {rule}: {program} of user {} sends past the gateway from {from} to {to}, and nothing of it leaves; \
             start it by `sidestep run`",
            accounts::name_of(packet.user)
        );
    }

    fn count(&self) {
        let counts = self.in_force.as_ref().map_or_else(Vec::new, InForce::counts);
        *DROPPED.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

impl InForce {
    /// `None`: no rule is to be enforced.
    fn attach(cgroup: &Path, rules: &[Rule]) -> Result<Option<Self>, Obstacle> {
        if !rules.iter().any(|rule| rule.enforce) {
            return Ok(None);
        }
        let (list, names) = judgements(rules);
        let graph = compile(&list, &Numbers)?.graph;
        let groups = GroupNumbers::default();
        let set =
            RuleSet { graph: &graph, rules: list.rules.len(), identity: [0; 7], groups: &groups };
        let programs = Enforcement::attach(cgroup, &set)?;
        let enforced = rules.iter().filter(|rule| rule.enforce).map(name_of).collect();
        Ok(Some(Self { programs, names, enforced }))
    }

    /// Packets that were dropped, by the rule.
    fn counts(&self) -> Vec<(String, u64)> {
        let of_rule = |rule: &String| {
            let lines = self.names.iter().enumerate().filter(|(_, name)| *name == rule);
            let counts = lines.filter_map(|(line, _)| self.programs.dropped(line).ok());
            (rule.clone(), counts.sum())
        };
        self.enforced.iter().map(of_rule).collect()
    }
}

/// Users of rules of TLS are numbers, and there are neither interfaces nor control groups.
struct Numbers;

impl Names for Numbers {
    fn interface(&self, _: &str) -> Option<u32> {
        None
    }

    fn user(&self, _: &str) -> Option<u32> {
        None
    }
}

/// What leaves, as the rules have it, the first that has a connection first, and of which rule each line is. A rule
/// that is not enforced lets its connections pass; one of some programs says nothing, because which program a packet is
/// of is not known: what the gateway sends for them is marked.
fn judgements(rules: &[Rule]) -> (RuleList, Vec<String>) {
    let (mut lines, mut names) = (Vec::new(), Vec::new());
    for rule in rules.iter().filter(|it| it.programs.is_empty()) {
        let of_rule = lines_of(rule);
        names.extend(of_rule.iter().map(|_| name_of(rule)));
        lines.extend(of_rule);
    }
    (RuleList::new(lines, Action::Permit), names)
}

fn name_of(rule: &Rule) -> String {
    format!("{}.{}", table_of(rule.scope.role), rule.name())
}

/// One for each of its ports with each of its peers and users.
fn lines_of(rule: &Rule) -> Vec<Judgement> {
    let scope = &rule.scope;
    let ports = scope.ports.iter().map(|it| Ports { low: it.first(), high: it.last() });
    let mut lines = Vec::new();
    for ports in ports {
        for prefix in each(&scope.peers) {
            for user in each(&scope.users) {
                let (own, peer) = match scope.role {
                    Role::Outbound => (Ports::ANY, ports),
                    Role::Inbound => (ports, Ports::ANY),
                };
                lines.push(Judgement {
                    protocol: Protocol::Number(TCP),
                    from: Endpoint { prefix: None, ports: own },
                    to: Endpoint { prefix, ports: peer },
                    direction: Direction::Out,
                    user: user.map(User::Id),
                    is_logged: rule.enforce,
                    needs_tls: rule.enforce,
                    ..Judgement::default()
                });
            }
        }
    }
    lines
}

/// All of a list; of an empty one `None`, which is everything.
fn each<T: Copy>(list: &[T]) -> Vec<Option<T>> {
    if list.is_empty() { vec![None] } else { list.iter().copied().map(Some).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_filter::{Packet, Way};
    use sidestep_proto::protection::{Begin, Scope};

    fn rule(role: Role, name: &str, ports: &str, peers: &[&str], users: &[u32]) -> Rule {
        Rule::new(Scope {
            role,
            begin: Begin::Connected,
            name: name.parse().unwrap(),
            ports: [ports.parse().unwrap()].into_iter().collect(),
            peers: peers.iter().map(|it| it.parse().unwrap()).collect(),
            users: users.iter().copied().collect(),
        })
    }

    #[test]
    fn what_leaves_is_judged_as_the_rules_have_it() {
        let enforced = |it| Rule { enforce: true, ..it };
        let rules = [
            Rule {
                programs: vec!["a".to_owned()],
                ..rule(Role::Outbound, "some", "6514", &[], &[])
            },
            rule(Role::Outbound, "free", "6514", &["10.1.0.0/16"], &[]),
            enforced(rule(Role::Outbound, "logs", "6514", &["10.0.0.0/8", "fd00::/8"], &[5, 6])),
            enforced(rule(Role::Inbound, "web", "8443-8444", &[], &[])),
        ];
        let (list, names) = judgements(&rules);
        assert_eq!(names.len(), list.rules.len());
        let verdict = |from: &str, to: &str, user| {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let packet = Packet { user, ..Packet::between(TCP, from, to, Way::Out) };
            let rule = list.first_match(&packet, &Numbers)?;
            list.rules[rule].needs_tls.then(|| names[rule].as_str())
        };
        assert_eq!(verdict("10.0.0.1:40000", "10.2.0.1:6514", 5), Some("outbound.logs"));
        assert_eq!(verdict("[fd00::1]:40000", "[fd00::2]:6514", 6), Some("outbound.logs"));
        assert_eq!(verdict("10.0.0.1:40000", "10.2.0.1:6514", 7), None, "another user");
        assert_eq!(verdict("10.0.0.1:40000", "10.1.0.1:6514", 5), None, "by the rule before");
        assert_eq!(verdict("10.0.0.1:6514", "10.2.0.1:40000", 5), None, "the server of it");
        assert_eq!(verdict("10.0.0.1:8444", "192.0.2.1:40000", 7), Some("inbound.web"));
        assert_eq!(verdict("10.0.0.1:40000", "192.0.2.1:8444", 7), None, "a client of it");
    }
}
