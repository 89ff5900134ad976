//! What to change: of what was counted, and of the last hour's decisions.
//!
//! Each rule needs enough to go by, and says what it goes by. None is carried out.

use std::collections::BTreeMap;

use sidestep_gateway::status::Status;
use sidestep_observe::{Decision, Program, Role, Verdict};
use sidestep_proto::fallback::{PeerCannot, ProgramDid, Reason};

use crate::commands::activity::Activity;
use crate::words::shown_size;

/// A recommendation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    /// What to do.
    pub(super) title: String,
    /// Why: the figures.
    pub(super) because: String,
    /// A command or a line of the configuration that does it, or tells more.
    pub(super) line: String,
}

/// Who listens at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) program: String,
    /// Its service of systemd, if it is one.
    pub(super) unit: Option<String>,
}

/// All that is recommended, the surest first.
pub(super) fn all(
    activities: &BTreeMap<String, Activity>,
    programs: &[Program],
    gateway: Option<&Status>,
    servers: impl Fn(u16) -> Vec<Server>,
) -> Vec<Advice> {
    let ports = Ports::of(programs);
    let mut advice = ports.plain_peers(servers);
    advice.extend(activities.iter().filter_map(|(name, activity)| longer_rings(name, activity)));
    advice.extend(gateway.and_then(full_rmbes));
    advice.extend(ports.in_vain());
    advice
}

/// The last hour's decisions by server port.
#[derive(Default)]
struct Ports(BTreeMap<u16, Port>);

#[derive(Default)]
struct Port {
    moved: u64,
    /// Connections of clients under Sidestep with a server that is not.
    plain_server: u64,
    /// Of a server under Sidestep with clients that are not.
    plain_clients: u64,
    /// Too short to be worth moving.
    short: u64,
    /// For another reason.
    other: u64,
}

impl Ports {
    fn of(programs: &[Program]) -> Self {
        let mut ports = Self::default();
        for decision in programs.iter().flat_map(|program| &program.decisions) {
            if let Some(server) = decision.server {
                ports.0.entry(server.port()).or_default().add(decision);
            }
        }
        ports
    }

    fn plain_peers(&self, servers: impl Fn(u16) -> Vec<Server>) -> Vec<Advice> {
        let mut advice = Vec::new();
        for (&port, it) in &self.0 {
            if it.plain_server >= FEW {
                advice.push(enable_server(port, it.plain_server, &servers(port)));
            }
            if it.plain_clients >= FEW {
                advice.push(Advice {
                    title: format!("Start the clients of port {port} with Sidestep"),
                    because: format!(
                        "{} connections of the last hour stayed on TCP because their clients do not run it.",
                        it.plain_clients
                    ),
                    line: format!("sidestep why :{port}"),
                });
            }
        }
        advice
    }

    fn in_vain(&self) -> Vec<Advice> {
        let is_in_vain =
            |it: &Port| it.moved == 0 && it.other == 0 && it.plain_server + it.plain_clients == 0;
        let short = self.0.iter().filter(|(_, it)| is_in_vain(it) && it.short >= MANY);
        short
            .map(|(port, it)| Advice {
                title: format!("Exclude port {port}"),
                because: format!(
                    "All of its {} connections of the last hour were too short to be worth moving. Excluded \
                     ones are not even looked at.",
                    it.short
                ),
                line: format!("policy.exclude_ports = [{port}]"),
            })
            .collect()
    }
}

impl Port {
    fn add(&mut self, decision: &Decision) {
        let sum = match decision.verdict {
            Verdict::Moved | Verdict::HandedOver => &mut self.moved,
            Verdict::Undecided => &mut self.short,
            Verdict::Tcp(fallback) => match (fallback.reason, decision.role) {
                (Reason::Peer(PeerCannot::PeerNotSmc), Role::Client) => &mut self.plain_server,
                (Reason::Peer(PeerCannot::PeerNotSmc), Role::Server) => &mut self.plain_clients,
                (reason, _) if reason == ProgramDid::TooShort.into() => &mut self.short,
                _ => &mut self.other,
            },
        };
        *sum = sum.saturating_add(decision.in_last_hour);
    }
}

fn enable_server(port: u16, connections: u64, servers: &[Server]) -> Advice {
    let because = format!(
        "{connections} connections of the last hour to port {port} stayed on TCP because the server does not run it."
    );
    let unit = servers.iter().find_map(|server| server.unit.clone());
    match (unit, servers.first()) {
        (Some(unit), _) => Advice {
            title: format!("Enable the service {unit}"),
            because,
            line: format!("sidestep enable {unit}"),
        },
        (None, Some(server)) => Advice {
            title: format!("Start {} with Sidestep", server.program),
            because,
            line: format!("sidestep run {} …", server.program),
        },
        (None, None) => Advice {
            title: format!("Start the server at port {port} with Sidestep"),
            because,
            line: format!("sidestep why :{port}"),
        },
    }
}

/// A message longer than the ring waits, in the middle, until its reader has made room.
fn longer_rings(program: &str, activity: &Activity) -> Option<Advice> {
    let Activity { rmbe, messages_beyond_rmbe: longer, messages_sent: all, .. } = *activity;
    let is_worth_it = longer >= FEW && longer.saturating_mul(LONG_PART) >= all;
    (is_worth_it && (1..RMBE_MAX).contains(&rmbe)).then(|| Advice {
        title: format!("Give {program} more room"),
        because: format!(
            "{longer} of the {all} messages that it sent are longer than its ring of {}, so each waits until \
             the reader has made room. The size is that of the reader's configuration.",
            shown_size(rmbe)
        ),
        line: format!("smc.rmbe_size = \"{}\"", shown_size(2 * rmbe)),
    })
}

fn full_rmbes(status: &Status) -> Option<Advice> {
    let full = status.totals.rmbe_full;
    (full >= MANY).then(|| Advice {
        title: "Give peers on other hosts more to send into".to_owned(),
        because: format!(
            "Since the gateway began, {full} times a connection had more to send than the peer's RMBE had room \
             for. The size is that of the peer's configuration."
        ),
        line: "smc.rmbe_size = \"1MB\"".to_owned(),
    })
}

/// Fewer than this may be chance.
const FEW: u64 = 10;
/// What is recommended against has to come this often.
const MANY: u64 = 100;
/// One message in so many is long: worth a word.
const LONG_PART: u64 = 100;
/// The largest value of `smc.rmbe_size`.
const RMBE_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use sidestep_gateway::status::Totals;
    use sidestep_observe::Fallback;

    fn decided(port: u16, role: Role, verdict: Verdict, in_last_hour: u64) -> Decision {
        let server = Some(([127, 0, 0, 1], port).into());
        Decision { server, role, verdict, in_last_hour, last_ago: Duration::ZERO }
    }

    fn tcp(reason: Reason) -> Verdict {
        Verdict::Tcp(Fallback { reason })
    }

    fn titles(decisions: Vec<Decision>, servers: &[Server]) -> Vec<String> {
        let programs = [Program { decisions, ..Program::default() }];
        let advice = all(&BTreeMap::new(), &programs, None, |_| servers.to_vec());
        advice.into_iter().map(|advice| format!("{}: {}", advice.title, advice.line)).collect()
    }

    #[test]
    fn a_plain_server_is_to_be_enabled_by_the_name_that_there_is() {
        let plain = tcp(PeerCannot::PeerNotSmc.into());
        let decisions = || vec![decided(6379, Role::Client, plain, 20)];
        let server = |unit: Option<&str>| Server {
            program: "redis-server".to_owned(),
            unit: unit.map(str::to_owned),
        };
        let named = titles(decisions(), &[server(Some("redis-server.service"))]);
        assert_eq!(
            named,
            ["Enable the service redis-server.service: sidestep enable redis-server.service"]
        );
        let run = titles(decisions(), &[server(None)]);
        assert_eq!(run, ["Start redis-server with Sidestep: sidestep run redis-server …"]);
        let unknown = titles(decisions(), &[]);
        assert_eq!(unknown, ["Start the server at port 6379 with Sidestep: sidestep why :6379"]);
        let clients = titles(vec![decided(80, Role::Server, plain, 20)], &[]);
        assert_eq!(clients, ["Start the clients of port 80 with Sidestep: sidestep why :80"]);
        assert!(titles(vec![decided(80, Role::Server, plain, 3)], &[]).is_empty(), "too few");
    }

    #[test]
    fn a_port_whose_connections_are_all_short_may_be_excluded() {
        let short = tcp(ProgramDid::TooShort.into());
        let of_port = |more: Option<Decision>| {
            let both = [
                decided(25, Role::Client, short, 60),
                decided(25, Role::Server, Verdict::Undecided, 60),
            ];
            titles(both.into_iter().chain(more).collect(), &[])
        };
        assert_eq!(of_port(None), ["Exclude port 25: policy.exclude_ports = [25]"]);
        assert!(of_port(Some(decided(25, Role::Client, Verdict::Moved, 1))).is_empty());
    }

    #[test]
    fn rings_that_are_too_short_are_seen_by_the_messages_that_are_longer() {
        let advice = |rmbe, messages_beyond_rmbe| {
            let activity =
                Activity { rmbe, messages_beyond_rmbe, messages_sent: 1000, ..Activity::default() };
            longer_rings("a", &activity).map(|advice| advice.line)
        };
        assert_eq!(advice(64 << 10, 500).as_deref(), Some("smc.rmbe_size = \"128KB\""));
        assert_eq!(advice(64 << 10, 5), None);
        assert_eq!(advice(1 << 20, 500), None, "there is no larger one");
        assert_eq!(advice(0, 500), None, "nothing was in shared memory");
        let full = Totals { rmbe_full: 5000, ..Totals::default() };
        let gateway = Status { totals: full, ..Status::default() };
        assert!(full_rmbes(&gateway).unwrap().because.contains("5000 times"));
        assert_eq!(full_rmbes(&Status::default()), None);
    }
}
