//! What programs have had with each server, added up.

use std::net::SocketAddr;
use std::time::Duration;

use sidestep_observe::{Program, Role, Service, Sizes};

/// Everything that was counted in an interval.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) interval: Duration,
    /// The busiest first.
    pub(super) flows: Vec<Flow>,
    /// Connections that found no place to be told apart.
    pub(super) untold: u64,
}

/// What programs of one name have had with one server, in one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) program: String,
    pub(super) role: Role,
    pub(super) server: Option<SocketAddr>,
    /// Both ends are on this host.
    pub(super) is_here: bool,
    pub(super) connections: u64,
    pub(super) open: u64,
    pub(super) lifetime: Duration,
    pub(super) round_trips: u64,
    /// Bytes from client to server.
    pub(super) request_bytes: u64,
    /// Bytes from server to client.
    pub(super) reply_bytes: u64,
    pub(super) sent: Sizes,
    pub(super) received: Sizes,
}

impl Traffic {
    /// All that these programs have had so far, in the time that they have run.
    pub(super) fn of(programs: &[Program], interval: Duration) -> Self {
        Self::between(&[], programs, interval)
    }

    /// What they have had between two looks.
    pub(super) fn between(before: &[Program], after: &[Program], interval: Duration) -> Self {
        let mut flows: Vec<Flow> = Vec::new();
        for program in after {
            let known = before.iter().find(|known| known.pids[0] == program.pids[0]);
            for service in &program.services {
                let is_it = |old: &&Service| {
                    (old.server, old.role, old.is_here)
                        == (service.server, service.role, service.is_here)
                };
                let old = known.and_then(|known| known.services.iter().find(is_it));
                enter(&mut flows, Flow::new(&program.program, service, old));
            }
        }
        flows.retain(|flow| flow.connections > 0);
        flows.sort_by_key(|flow| std::cmp::Reverse((flow.round_trips, flow.connections)));
        let untold = |programs: &[Program]| -> u64 {
            programs.iter().map(|program| program.services_untold).sum()
        };
        let untold = untold(after).saturating_sub(untold(before));
        Self { interval, flows, untold }
    }

    /// Whether any of it could move.
    pub(super) fn has_candidates(&self) -> bool {
        self.flows.iter().any(Flow::is_candidate)
    }
}

fn enter(flows: &mut Vec<Flow>, more: Flow) {
    let is_it = |flow: &&mut Flow| {
        (&flow.program, flow.role, flow.server, flow.is_here)
            == (&more.program, more.role, more.server, more.is_here)
    };
    match flows.iter_mut().find(is_it) {
        Some(flow) => flow.add(&more),
        None => flows.push(more),
    }
}

impl Flow {
    /// What has come since `old`. Connections that were open then and still are had their life
    /// in the interval as well.
    fn new(program: &str, service: &Service, old: Option<&Service>) -> Self {
        let since = |of: fn(&Service) -> u64| of(service).saturating_sub(old.map_or(0, of));
        let received = since(|service| service.bytes_received);
        let sent = since(|service| service.bytes_sent);
        let (request_bytes, reply_bytes) = match service.role {
            Role::Server => (received, sent),
            Role::Client => (sent, received),
        };
        let ended_before = old.map_or(0, |old| old.connections - old.open.min(old.connections));
        let sizes = |of: fn(&Service) -> Sizes| {
            let mut sizes = of(service);
            for (n, old) in sizes.0.iter_mut().zip(old.map_or(Sizes::default(), of).0) {
                *n = n.saturating_sub(old);
            }
            sizes
        };
        Self {
            program: program.to_owned(),
            role: service.role,
            server: service.server,
            is_here: service.is_here,
            connections: service.connections.saturating_sub(ended_before),
            open: service.open,
            lifetime: service.lifetime.saturating_sub(old.map_or(Duration::ZERO, |o| o.lifetime)),
            round_trips: since(|service| service.round_trips),
            request_bytes,
            reply_bytes,
            sent: sizes(|service| service.sent),
            received: sizes(|service| service.received),
        }
    }

    fn add(&mut self, more: &Self) {
        self.connections = self.connections.saturating_add(more.connections);
        self.open = self.open.saturating_add(more.open);
        self.lifetime = self.lifetime.saturating_add(more.lifetime);
        self.round_trips = self.round_trips.saturating_add(more.round_trips);
        self.request_bytes = self.request_bytes.saturating_add(more.request_bytes);
        self.reply_bytes = self.reply_bytes.saturating_add(more.reply_bytes);
        self.sent += more.sent;
        self.received += more.received;
    }

    /// Whether it could move: both ends are here, and there was something to move.
    pub(super) fn is_candidate(&self) -> bool {
        self.is_here && self.request_bytes.saturating_add(self.reply_bytes) > 0
    }

    /// Transactions: round trips, or the connections of a stream that is not answered.
    pub(super) fn transactions(&self) -> u64 {
        self.round_trips.max(self.connections).max(1)
    }

    /// Of each connection.
    pub(super) fn transactions_each(&self) -> f64 {
        self.transactions() as f64 / self.connections.max(1) as f64
    }

    /// Mean lengths of request and reply, at least 1.
    pub(super) fn lengths(&self) -> [u64; 2] {
        [self.request_bytes, self.reply_bytes].map(|bytes| (bytes / self.transactions()).max(1))
    }

    /// Connections that were open at a time, on average (Little's law); at least 1.
    pub(super) fn clients(&self, interval: Duration) -> u32 {
        let mean = self.lifetime.as_secs_f64() / interval.as_secs_f64().max(0.001);
        (mean.round() as u32).max(1)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A server's side of connections with 100 round trips of 64 bytes each way.
    pub(in crate::commands::assess) fn service(connections: u64) -> Service {
        Service {
            server: Some("127.0.0.1:80".parse().unwrap()),
            role: Role::Server,
            is_here: true,
            connections,
            open: 1,
            lifetime: Duration::from_secs(connections),
            round_trips: 100 * connections,
            bytes_sent: 6400 * connections,
            bytes_received: 6400 * connections,
            sent: Sizes::default(),
            received: Sizes::default(),
        }
    }

    pub(in crate::commands::assess) fn program(pid: u32, services: Vec<Service>) -> Program {
        Program { pids: vec![pid], program: "httpd".into(), services, ..Program::default() }
    }

    #[test]
    fn workers_of_one_name_come_together() {
        let programs = [program(1, vec![service(2)]), program(2, vec![service(3)])];
        let traffic = Traffic::of(&programs, Duration::from_secs(5));
        let [flow] = traffic.flows.try_into().unwrap();
        assert_eq!((flow.connections, flow.open, flow.round_trips), (5, 2, 500));
        assert_eq!(flow.lengths(), [64, 64]);
        assert_eq!((flow.clients(Duration::from_secs(5)), flow.transactions_each()), (1, 100.0));
        assert_eq!(flow.clients(Duration::from_secs(1)), 5);
    }

    #[test]
    fn what_was_there_before_the_interval_does_not_count() {
        let before = [program(1, vec![service(10)])];
        let after = [program(1, vec![service(14)]), program(7, vec![service(1)])];
        let traffic = Traffic::between(&before, &after, Duration::from_secs(1));
        let [flow] = traffic.flows.try_into().unwrap();
        // Four new ones, one that was open before, and the one of the new program.
        assert_eq!((flow.connections, flow.round_trips), (6, 500));
        let unchanged = Traffic::between(&before, &before, Duration::from_secs(1));
        assert_eq!(unchanged.flows[0].round_trips, 0);
        assert!(!unchanged.has_candidates());
    }

    #[test]
    fn a_clients_request_is_what_it_sends() {
        let client = Service {
            role: Role::Client,
            bytes_sent: 1000,
            bytes_received: 50_000,
            round_trips: 10,
            ..service(1)
        };
        let traffic = Traffic::of(&[program(1, vec![client])], Duration::from_secs(1));
        assert_eq!(traffic.flows[0].lengths(), [100, 5000]);
    }

    #[test]
    fn peers_elsewhere_are_no_candidates() {
        let far = Service { is_here: false, ..service(1) };
        assert!(!Traffic::of(&[program(1, vec![far])], Duration::from_secs(1)).has_candidates());
    }
}
