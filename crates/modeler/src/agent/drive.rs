//! One run: both sides started, measured and ended.
//!
//! The clocks of both sides are read when all clients are warm and again when all
//! have reported; what lies between belongs to the measured time. (The clients' own
//! CPU time they measure themselves, at the exact moments.)

use std::io;
use std::time::Duration;

use thiserror::Error;

use super::local::evidence;
use crate::certificate::machine_cpu;
use crate::control::{
    Address, ClientReport, Command, Event, Job, Role, ServerSide, SideSample, Usage, Witness,
};
use crate::launch::{Crew, Launcher, Limits, WorkerError};
use crate::neighbours::{LoopError, Loops};
use crate::plan::{Entry, Extent, Model, Transport};
use crate::worker::clock::now_ns;

/// What one run has yielded: of the measured time alone, except that connections are
/// counted since the workers' start, because they were made before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunParts {
    /// Of the client workers, in the order of their first clients.
    pub reports: Vec<ClientReport>,
    /// Of the clients' side.
    pub client: SideSample,
    /// Of the server's side.
    pub server: SideSample,
    /// The server's side is on another host: the two `machine`s are different ones.
    pub remote: bool,
    /// Of the neighbours.
    pub neighbours: NeighbourUse,
}

/// CPU time of the neighbours between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourUse {
    /// All of theirs, in nanoseconds.
    pub cpu_ns: u64,
    /// From look to look, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Why a run failed. No worker is left.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum RunError {
    #[error("server side: {0}")]
    Servers(io::Error),
    #[error(transparent)]
    Clients(#[from] WorkerError),
    #[error("{clients}\nserver side: {servers}")]
    Both { clients: WorkerError, servers: io::Error },
    #[error("cannot look at the library's counters: {0}")]
    Witness(io::Error),
    #[error("cannot read the CPU times of this host: {0}")]
    Machine(io::Error),
    #[error(transparent)]
    Neighbours(#[from] LoopError),
}

/// Makes one run of an entry over a transport, beside these neighbours.
///
/// # Errors
/// A worker of either side failed, or did not do its part in time.
pub fn drive(
    servers: &mut dyn ServerSide,
    launcher: &Launcher,
    witness: &dyn Witness,
    neighbours: &mut Loops,
    entry: &Entry,
    transport: Transport,
) -> Result<RunParts, RunError> {
    let run = Run { launcher, witness, entry, transport };
    let measured = run.measure(servers, neighbours);
    // Whatever came of it, the servers end; why a client failed, they may know.
    match (measured, servers.stop()) {
        (Ok(parts), Ok(())) => Ok(parts),
        (Ok(_), Err(servers)) => Err(RunError::Servers(servers)),
        (Err(RunError::Clients(clients)), Err(servers)) => Err(RunError::Both { clients, servers }),
        (Err(error), _) => Err(error),
    }
}

struct Run<'a> {
    launcher: &'a Launcher,
    witness: &'a dyn Witness,
    entry: &'a Entry,
    transport: Transport,
}

impl Run<'_> {
    fn measure(
        &self,
        servers: &mut dyn ServerSide,
        neighbours: &mut Loops,
    ) -> Result<RunParts, RunError> {
        let limits = self.launcher.limits();
        let addresses =
            servers.start(self.transport, &self.server_jobs()).map_err(RunError::Servers)?;
        let mut clients = self.launcher.start(self.transport, &self.client_jobs(&addresses))?;
        clients.gather("connect", limits.connect, |event| match event {
            Event::Connected => Ok(()),
            other => Err(other),
        })?;

        clients.tell(Command::Go { at_ns: now_ns() + GO_LEAD.as_nanos() as u64 })?;
        let [warmup, measured] = parts_of(self.entry.conduct.extent, limits);
        clients.gather("finish its warm-up", GO_LEAD + warmup, |event| match event {
            Event::Warm => Ok(()),
            other => Err(other),
        })?;
        let before = self.look(servers, &clients, neighbours)?;
        let reports = clients.gather("report", measured, |event| match event {
            Event::Report(report) => Ok(*report),
            other => Err(other),
        })?;
        let after = self.look(servers, &clients, neighbours)?;
        clients.end()?;

        let usage = reports.iter().fold(Usage::default(), |sum, report| sum + report.usage);
        let client = SideSample { usage, ..after.client.since(before.client) };
        let server = after.server.since(before.server);
        let neighbours = after.neighbours.since(before.neighbours);
        Ok(RunParts { reports, client, server, remote: servers.is_remote(), neighbours })
    }

    fn look(
        &self,
        servers: &mut dyn ServerSide,
        clients: &Crew,
        neighbours: &mut Loops,
    ) -> Result<Look, RunError> {
        let server = servers.sample().map_err(RunError::Servers)?;
        let client = SideSample {
            usage: Usage::default(),
            evidence: evidence(self.witness, self.transport, clients).map_err(RunError::Witness)?,
            machine: machine_cpu().map_err(RunError::Machine)?,
        };
        let neighbours = NeighbourUse { cpu_ns: neighbours.cpu_ns()?, elapsed_ns: now_ns() };
        Ok(Look { client, server, neighbours })
    }

    fn server_jobs(&self) -> Vec<Job> {
        let any = match (self.transport, self.entry.conduct.ipv6) {
            (Transport::Unix, _) => Address::Unix(String::new()),
            (_, false) => Address::Tcp(([0; 4], 0).into()),
            (_, true) => Address::Tcp(([0; 16], 0).into()),
        };
        let jobs = 0..self.workers();
        jobs.map(|number| self.job(number, Role::Server(any.clone()))).collect()
    }

    /// Client worker i connects to server worker i.
    fn client_jobs(&self, addresses: &[Address]) -> Vec<Job> {
        let jobs = (0..).zip(addresses);
        jobs.map(|(number, address)| self.job(number, Role::Client(address.clone()))).collect()
    }

    /// Workers on either side.
    fn workers(&self) -> u32 {
        match self.entry.model {
            Model::Processes => self.entry.workload.clients,
            Model::Threads | Model::EventLoop => 1,
        }
    }

    fn job(&self, number: u32, role: Role) -> Job {
        let Entry { workload, model, conduct, .. } = self.entry;
        let connections = workload.clients / self.workers();
        Job {
            role,
            workload: *workload,
            model: *model,
            connections,
            first_client: number * connections,
            conduct: conduct.clone(),
        }
    }
}

struct Look {
    client: SideSample,
    server: SideSample,
    /// Since they started; `elapsed_ns` is the moment of the look.
    neighbours: NeighbourUse,
}

impl NeighbourUse {
    /// What was used since an earlier look at the same neighbours.
    fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            elapsed_ns: self.elapsed_ns.saturating_sub(earlier.elapsed_ns),
        }
    }
}

impl SideSample {
    /// What was used since an earlier sample of the same workers.
    fn since(self, earlier: Self) -> Self {
        Self {
            usage: self.usage - earlier.usage,
            evidence: self.evidence.waits_since(&earlier.evidence),
            machine: self.machine - earlier.machine,
        }
    }
}

/// How long warm-up and measured time may last.
fn parts_of(extent: Extent, limits: &Limits) -> [Duration; 2] {
    match extent {
        Extent::Time { warmup, measured } => [warmup, measured].map(|time| time + limits.slack),
        Extent::Count { .. } => [limits.count; 2],
    }
}

/// From the word to the moment at which clients begin: all have heard it by then.
const GO_LEAD: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::fake::{Blind, FakeWitness};
    use crate::agent::{LocalServers, RemoteServers, serve};
    use crate::control::Evidence;
    use crate::launch::fake::{CLIENT, Fake, SERVER, entry};
    use std::net::TcpListener;
    use std::thread;

    /// One run with workers that do as they are told, both sides here.
    fn drive_here(
        fake: &Fake,
        witness: &dyn Witness,
        entry: &Entry,
        transport: Transport,
    ) -> Result<RunParts, RunError> {
        let launcher = fake.launcher();
        let mut servers = LocalServers::new(&launcher, witness);
        drive(&mut servers, &launcher, witness, &mut Loops::default(), entry, transport)
    }

    #[test]
    fn a_run_has_reports_and_differences() {
        let (fake, witness) = (Fake::new(SERVER, CLIENT), FakeWitness::default());
        let parts = drive_here(&fake, &witness, &entry(Model::Threads, 4), Transport::Smc).unwrap();
        assert_eq!(parts.reports.len(), 1);
        assert_eq!((parts.reports[0].transactions, parts.reports[0].bytes), (7, 14));
        assert!(!parts.remote);
        // The server had used 100 µs at the first sample and 200 at the second.
        assert_eq!((parts.server.usage.user_us, parts.server.usage.system_us), (100, 0));
        assert_eq!(parts.client.usage, parts.reports[0].usage);
        // Four looks: server, client, server, client. Waits are what came between,
        // connections what was seen last.
        let Evidence { smc_connections, spin_ns, spins, wakeups, .. } = parts.server.evidence;
        assert_eq!((smc_connections, spin_ns, spins, wakeups), (30, 8000, 0, 6));
        let Evidence { tcp_connections, fallbacks, spin_ns, .. } = parts.client.evidence;
        assert_eq!((tcp_connections, spin_ns), (4, 12_000));
        assert_eq!(fallbacks.into_values().collect::<Vec<_>>(), [4]);
        fake.wait_until_gone(2);
    }

    #[test]
    fn clients_of_one_worker_share_a_job() {
        for model in [Model::Threads, Model::EventLoop] {
            let fake = Fake::new(SERVER, CLIENT);
            drive_here(&fake, &Blind, &entry(model, 40), Transport::Tcp).unwrap();
            let jobs = fake.jobs();
            assert_eq!(jobs.len(), 2);
            for job in jobs {
                assert_eq!((job.connections, job.first_client, job.model), (40, 0, model));
                assert_eq!(job.workload.clients, 40);
            }
            assert_eq!(fake.lines("command-lines"), ["bench worker"; 2]);
        }
    }

    #[test]
    fn clients_that_are_processes_have_a_server_each() {
        let number = r#"$(echo "$job" | sed 's/.*"first_client":\([0-9]*\).*/\1/')"#;
        let server = SERVER.replace("4711", &format!("$((4000 + {number}))"));
        let fake = Fake::new(&server, CLIENT);
        let parts = drive_here(&fake, &Blind, &entry(Model::Processes, 3), Transport::Tcp).unwrap();
        assert_eq!(parts.reports.len(), 3);
        assert_eq!(parts.server.usage.user_us, 300);
        assert_eq!(parts.client.usage.user_us, 60);
        let (servers, clients): (Vec<_>, Vec<_>) =
            fake.jobs().into_iter().partition(|job| matches!(job.role, Role::Server(_)));
        let numbers = |jobs: &[Job]| {
            let mut numbers: Vec<_> = jobs.iter().map(|job| job.first_client).collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!((numbers(&servers), numbers(&clients)), (vec![0, 1, 2], vec![0, 1, 2]));
        assert!(servers.iter().chain(&clients).all(|job| job.connections == 1));
        let mut ports: Vec<_> = clients
            .iter()
            .map(|job| match &job.role {
                Role::Client(Address::Tcp(address)) => address.port(),
                role => panic!("{role:?}"),
            })
            .collect();
        ports.sort_unstable();
        assert_eq!(ports, [4000, 4001, 4002], "each to its own server");
    }

    #[test]
    fn servers_listen_at_the_kind_of_address_that_is_measured() {
        let roles = |transport, ipv6| {
            let fake = Fake::new(SERVER, CLIENT);
            let mut entry = entry(Model::Threads, 1);
            entry.conduct.ipv6 = ipv6;
            let launcher = fake.launcher();
            let run = Run { launcher: &launcher, witness: &Blind, entry: &entry, transport };
            run.server_jobs().remove(0).role
        };
        let tcp = |at: &str| Role::Server(Address::Tcp(at.parse().unwrap()));
        assert_eq!(roles(Transport::Tcp, false), tcp("0.0.0.0:0"));
        assert_eq!(roles(Transport::Smc, true), tcp("[::]:0"));
        let any = Role::Server(Address::Unix(String::new()));
        assert_eq!(roles(Transport::Unix, true), any);
    }

    #[test]
    fn a_run_with_servers_elsewhere() {
        let (fake, witness) = (Fake::new(SERVER, CLIENT), FakeWitness::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let launcher = fake.launcher();
        let there = launcher.clone();
        thread::spawn(move || serve(&listener, &there, &FakeWitness::default()));
        let mut servers = RemoteServers::connect(&address, launcher.limits()).unwrap();
        for _ in 0..2 {
            let entry = entry(Model::Processes, 2);
            let none = &mut Loops::default();
            let parts =
                drive(&mut servers, &launcher, &witness, none, &entry, Transport::Smc).unwrap();
            assert!(parts.remote);
            assert_eq!(parts.server.usage.user_us, 200);
            assert_eq!(parts.reports.len(), 2);
        }
        fake.wait_until_gone(8);
    }

    #[test]
    fn why_a_client_fails_the_server_may_know() {
        let server = r#"
            echo "{\"listening\":{\"tcp\":\"$address\"}}"
            echo '{"failed":"request 7 differs at byte 3"}'"#;
        // The client fails when its server is gone for certain.
        let client = r#"
            server=$(head -n 1 "$home/processes")
            while kill -0 "$server" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$server/status"; do
                sleep 0.01
            done
            echo '{"failed":"the server has closed the connection"}'"#;
        let fake = Fake::new(server, client);
        let run = drive_here(&fake, &Blind, &entry(Model::Threads, 1), Transport::Tcp);
        let error = run.unwrap_err();
        assert!(matches!(error, RunError::Both { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(": the server has closed the connection\nserver side: "), "{text}");
        assert!(text.ends_with(": request 7 differs at byte 3"), "{text}");
        fake.wait_until_gone(2);
    }

    #[test]
    fn a_run_that_fails_leaves_no_worker() {
        let fake = Fake::new(SERVER, r#"echo '{"failed":"connection refused"}'"#);
        let run = drive_here(&fake, &Blind, &entry(Model::Processes, 3), Transport::Tcp);
        assert!(matches!(run.unwrap_err(), RunError::Clients(_)));
        fake.wait_until_gone(fake.lines("processes").len());

        let fake = Fake::new("exit 1", CLIENT);
        let run = drive_here(&fake, &Blind, &entry(Model::Threads, 1), Transport::Tcp);
        assert!(matches!(run.unwrap_err(), RunError::Servers(_)));
        fake.wait_until_gone(1);

        let fake = Fake::new(SERVER, CLIENT);
        let run = drive_here(&fake, &Blind, &entry(Model::Threads, 1), Transport::Smc);
        let text = run.unwrap_err().to_string();
        assert!(text.contains("permission denied"), "{text}");
        fake.wait_until_gone(2);
    }

    #[test]
    fn a_run_may_last_as_long_as_it_was_asked_to() {
        let limits = crate::launch::fake::limits(Duration::from_secs(2));
        let [warmup, measured] = [3, 50].map(Duration::from_secs);
        let time = Extent::Time { warmup, measured };
        assert_eq!(parts_of(time, &limits), [5, 52].map(Duration::from_secs));
        let count = Extent::Count { warmup: 1, measured: 1 };
        assert_eq!(parts_of(count, &limits), [Duration::from_secs(2); 2]);
    }
}
