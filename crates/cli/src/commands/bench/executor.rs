//! The bench itself: where runs are made.

use sidestep_bpf::{BpfError, Cgroup, Sockmap};
use sidestep_modeler::agent::{self, LocalServers, RemoteError, RemoteServers};
use sidestep_modeler::contention::Contention;
use sidestep_modeler::control::ServerSide;
use sidestep_modeler::cpu_groups::{CpuGroupError, CpuGroups};
use sidestep_modeler::launch::{Confines, Launcher, WorkerError};
use sidestep_modeler::neighbours::{LoopError, Loops};
use sidestep_modeler::plan::{Entry, Plan, Transport};
use sidestep_modeler::session::{Executor, RunError, RunOutcome};
use thiserror::Error;

use super::filter::{FilterError, Filters};
use super::witness::LibraryWitness;

/// Makes runs: here, or with the server side on another host.
pub(super) struct Bench {
    launcher: Launcher,
    remote: Option<RemoteServers>,
    surroundings: Option<Surroundings>,
    filters: Filters,
    /// Present if the plan has that transport.
    _sockmap: Option<Redirect>,
}

/// Under what the entry that was run last was measured: neighbours and limits stay as long
/// as the entries want the same, so that all transports meet the same.
struct Surroundings {
    contention: Contention,
    loops: Loops,
    /// Of workers.
    confines: Confines,
    // After the processes that are in them: they go last.
    _groups: Option<CpuGroups>,
}

/// Why an entry's contention cannot be had.
#[derive(Debug, Error)]
enum ContentionError {
    #[error(transparent)]
    Loops(#[from] LoopError),
    #[error(transparent)]
    Groups(#[from] CpuGroupError),
}

impl Surroundings {
    fn make(contention: &Contention, launcher: &Launcher) -> Result<Self, ContentionError> {
        let Contention { neighbours, cpu_quota, cpu_weight, cpus } = contention;
        let groups = match (cpu_quota, cpu_weight) {
            (None, None) => None,
            (quota, weight) => Some(CpuGroups::create(*quota, *weight)?),
        };
        let confines = |cgroup| Confines { cpus: cpus.clone(), cgroup };
        let beside = confines(groups.as_ref().map(CpuGroups::neighbours));
        Ok(Self {
            contention: contention.clone(),
            loops: Loops::start(launcher.sidestep(), *neighbours, &beside)?,
            confines: confines(groups.as_ref().map(CpuGroups::measured)),
            _groups: groups,
        })
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
        let filters = Filters::default();
        Ok(Self { launcher, remote, surroundings: None, filters, _sockmap: sockmap })
    }
}

impl Executor for Bench {
    fn run(&mut self, entry: &Entry, transport: Transport) -> Result<RunOutcome, RunError> {
        let Surroundings { confines, loops, .. } =
            surroundings(&mut self.surroundings, &entry.contention, &self.launcher)
                .map_err(|error| RunError::Hopeless(error.to_string()))?;
        let mut confines = confines.clone();
        if entry.filter_rules > 0 {
            let group = match &self.remote {
                Some(_) => Err(FilterError::Elsewhere),
                None => self.filters.group(entry, transport),
            };
            let group = group.map_err(|error| RunError::Hopeless(error.to_string()))?;
            confines.cgroup = Some(group.to_owned());
        }
        let launcher = &self.launcher.clone().confined(confines);
        let witness = &LibraryWitness;
        let mut local = LocalServers::new(launcher, witness);
        let servers: &mut dyn ServerSide = match &mut self.remote {
            Some(remote) => remote,
            None => &mut local,
        };
        let parts = agent::drive(servers, launcher, witness, loops, entry, transport)
            .map_err(|error| run_error(&error))?;
        Ok(RunOutcome::from_parts(&parts)?)
    }
}

/// Those that are wanted. Where a neighbour has ended, all are made anew.
fn surroundings<'a>(
    current: &'a mut Option<Surroundings>,
    wanted: &Contention,
    launcher: &Launcher,
) -> Result<&'a mut Surroundings, ContentionError> {
    let is_fit = |it: &mut Surroundings| it.contention == *wanted && it.loops.cpu_ns().is_ok();
    if let Some(fit) = current.take_if(is_fit) {
        return Ok(current.insert(fit));
    }
    // The old ones end before others begin.
    *current = None;
    Ok(current.insert(Surroundings::make(wanted, launcher)?))
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
