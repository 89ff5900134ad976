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
    Address, ClientReport, Command, Event, Evidence, Job, MachineCpu, Role, ServerSide, SideSample,
    Usage, Witness,
};
use crate::launch::{Crew, Launcher, Limits, WorkerError};
use crate::plan::{Entry, Extent, Model, Transport};

/// What one run has yielded.
#[derive(Clone, Debug, PartialEq)]
pub struct RunParts {
    /// Of the client workers, in the order of their first clients.
    pub reports: Vec<ClientReport>,
    /// Of the clients' side.
    pub client: SideDifference,
    /// Of the server's side.
    pub server: SideDifference,
    /// The server's side is on another host: the two `machine`s are different ones.
    pub remote: bool,
}

/// What one side did in the measured time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideDifference {
    /// All its workers.
    pub usage: Usage,
    /// Waits in the measured time; connections since the workers' start.
    pub evidence: Evidence,
    /// Its host.
    pub machine: MachineCpu,
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
}

/// Makes one run of an entry over a transport.
///
/// # Errors
/// A worker of either side failed, or did not do its part in time.
pub fn drive(
    servers: &mut dyn ServerSide,
    launcher: &Launcher,
    witness: &dyn Witness,
    entry: &Entry,
    transport: Transport,
) -> Result<RunParts, RunError> {
    let run = Run { launcher, witness, entry, transport };
    let measured = run.measure(servers);
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
    fn measure(&self, servers: &mut dyn ServerSide) -> Result<RunParts, RunError> {
        let limits = self.launcher.limits();
        let addresses =
            servers.start(self.transport, &self.server_jobs()).map_err(RunError::Servers)?;
        let mut clients = self.launcher.start(self.transport, &self.client_jobs(&addresses))?;
        clients.gather("connect", limits.connect, |event| match event {
            Event::Connected => Ok(()),
            other => Err(other),
        })?;

        clients.tell(Command::Go { at_ns: monotonic_ns() + GO_LEAD.as_nanos() as u64 })?;
        let [warmup, measured] = parts_of(self.entry.conduct.extent, limits);
        clients.gather("finish its warm-up", GO_LEAD + warmup, |event| match event {
            Event::Warm => Ok(()),
            other => Err(other),
        })?;
        let before = self.look(servers, &clients)?;
        let reports = clients.gather("report", measured, |event| match event {
            Event::Report(report) => Ok(*report),
            other => Err(other),
        })?;
        let after = self.look(servers, &clients)?;
        clients.end()?;

        let usage = reports.iter().fold(Usage::default(), |sum, report| sum + report.usage);
        let client = SideDifference { usage, ..after.client.since(before.client) };
        let server = after.server.since(before.server);
        Ok(RunParts { reports, client, server, remote: servers.is_remote() })
    }

    fn look(&self, servers: &mut dyn ServerSide, clients: &Crew) -> Result<Look, RunError> {
        let server = servers.sample().map_err(RunError::Servers)?;
        let client = SideSample {
            usage: Usage::default(),
            evidence: evidence(self.witness, self.transport, clients).map_err(RunError::Witness)?,
            machine: machine_cpu().map_err(RunError::Machine)?,
        };
        Ok(Look { client, server })
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
        let Entry { workload, model, conduct } = self.entry;
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
}

impl SideSample {
    fn since(self, earlier: Self) -> SideDifference {
        SideDifference {
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

/// `CLOCK_MONOTONIC` in nanoseconds: the same for all processes of a host.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills one `timespec`; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
