//! The bench itself: where runs are made.

use sidestep_bpf::{BpfError, Cgroup, Sockmap};
use sidestep_modeler::agent::{self, LocalServers, RemoteError, RemoteServers};
use sidestep_modeler::contention::Neighbours;
use sidestep_modeler::control::ServerSide;
use sidestep_modeler::launch::{Launcher, WorkerError};
use sidestep_modeler::neighbours::{LoopError, Loops};
use sidestep_modeler::plan::{Entry, Plan, Transport};
use sidestep_modeler::session::{Executor, RunError, RunOutcome};
use thiserror::Error;

use super::witness::LibraryWitness;

/// Makes runs: here, or with the server side on another host.
pub(super) struct Bench {
    launcher: Launcher,
    remote: Option<RemoteServers>,
    beside: Beside,
    /// Present if the plan has that transport.
    _sockmap: Option<Redirect>,
}

/// The neighbours of the entry that was run last.
#[derive(Default)]
struct Beside {
    wanted: Neighbours,
    loops: Loops,
}

impl Beside {
    /// Those that are wanted: they stay as long as these are, so that all transports meet
    /// the same ones. Where one has ended, all start anew.
    fn make(&mut self, wanted: Neighbours, launcher: &Launcher) -> Result<&mut Loops, LoopError> {
        if self.wanted != wanted || self.loops.cpu_ns().is_err() {
            // The old ones end first.
            *self = Self::default();
            *self = Self { wanted, loops: Loops::start(launcher.sidestep(), wanted)? };
        }
        Ok(&mut self.loops)
    }
}

/// The kernel's redirect, for the workers in a control group of their own.
struct Redirect {
    // Before the group that it is attached to: it goes first.
    _attached: Sockmap,
    _cgroup: Cgroup,
}

/// Why no run can be made.
#[derive(Debug, Error)]
pub(super) enum BenchError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("--over sockmap: {0}")]
    Sockmap(#[from] BpfError),
    #[error("--over {0} works on one host only; leave --server out")]
    LocalOnly(Transport),
}

impl Bench {
    /// Makes ready what the plan needs.
    ///
    /// # Errors
    /// The server side is not reachable, or a transport cannot be had.
    pub(super) fn set_up(
        mut launcher: Launcher,
        plan: &Plan,
        server: Option<&str>,
    ) -> Result<Self, BenchError> {
        let local_only = |it: &&Transport| matches!(it, Transport::Unix | Transport::Sockmap);
        if let Some(transport) =
            plan.transports.iter().find(local_only).filter(|_| server.is_some())
        {
            return Err(BenchError::LocalOnly(*transport));
        }
        let mut sockmap = None;
        if plan.transports.contains(&Transport::Sockmap) {
            let cgroup = Cgroup::create_for_run()?;
            let attached = Sockmap::attach(cgroup.path())?;
            launcher = launcher.with_cgroup(cgroup.path().to_owned());
            sockmap = Some(Redirect { _attached: attached, _cgroup: cgroup });
        }
        let remote =
            server.map(|server| RemoteServers::connect(server, launcher.limits())).transpose()?;
        Ok(Self { launcher, remote, beside: Beside::default(), _sockmap: sockmap })
    }
}

impl Executor for Bench {
    fn run(&mut self, entry: &Entry, transport: Transport) -> Result<RunOutcome, RunError> {
        let witness = &LibraryWitness;
        let mut local = LocalServers::new(&self.launcher, witness);
        let servers: &mut dyn ServerSide = match &mut self.remote {
            Some(remote) => remote,
            None => &mut local,
        };
        let wanted = entry.contention.neighbours;
        let neighbours = self
            .beside
            .make(wanted, &self.launcher)
            .map_err(|error| RunError::Hopeless(error.to_string()))?;
        let parts = agent::drive(servers, &self.launcher, witness, neighbours, entry, transport)
            .map_err(|error| run_error(&error))?;
        Ok(RunOutcome::from_parts(&parts)?)
    }
}

fn run_error(error: &agent::RunError) -> RunError {
    let text = error.to_string();
    if has_too_few_descriptors(error) { RunError::Hopeless(text) } else { RunError::Failed(text) }
}

/// They stay too few.
fn has_too_few_descriptors(error: &agent::RunError) -> bool {
    let worker = match error {
        agent::RunError::Clients(worker) => Some(worker),
        agent::RunError::Servers(error) => error.get_ref().and_then(|it| it.downcast_ref()),
        _ => None,
    };
    matches!(worker, Some(WorkerError::TooFewDescriptors(_)))
}
