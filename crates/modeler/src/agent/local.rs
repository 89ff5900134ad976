//! Server workers on this host.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::certificate::machine_cpu;
use crate::control::{
    Address, Command, Event, Evidence, Job, Role, ServerSide, SideSample, Usage, Witness,
};
use crate::launch::{Crew, Launcher};
use crate::plan::Transport;

/// Starts the server's workers on this host.
///
/// A job for an unspecified address (`0.0.0.0`, `::`) gets the loopback address.
pub struct LocalServers<'a> {
    launcher: &'a Launcher,
    witness: &'a dyn Witness,
    /// Where the coordinator reaches this host, if it is on another.
    reached_at: Option<SocketAddr>,
    running: Option<Running>,
}

struct Running {
    transport: Transport,
    crew: Crew,
}

impl<'a> LocalServers<'a> {
    /// For a coordinator in this process.
    #[must_use]
    pub fn new(launcher: &'a Launcher, witness: &'a dyn Witness) -> Self {
        Self { launcher, witness, reached_at: None, running: None }
    }

    /// For a coordinator that came in by this address: workers listen on it, so that
    /// measured connections take the same way.
    pub(super) fn reached_at(self, address: SocketAddr) -> Self {
        Self { reached_at: Some(address), ..self }
    }

    fn running(&mut self) -> io::Result<&mut Running> {
        self.running.as_mut().ok_or_else(|| io::Error::other("no workers are running"))
    }

    /// The job with an address at which the clients find the worker.
    fn placed(&self, job: &Job) -> io::Result<Job> {
        let role = match &job.role {
            Role::Server(Address::Tcp(address)) if address.ip().is_unspecified() => {
                Role::Server(Address::Tcp(self.place(*address)?))
            }
            role => role.clone(),
        };
        Ok(Job { role, ..job.clone() })
    }

    fn place(&self, wanted: SocketAddr) -> io::Result<SocketAddr> {
        let mut place = match self.reached_at {
            None if wanted.is_ipv4() => (Ipv4Addr::LOCALHOST, 0).into(),
            None => (Ipv6Addr::LOCALHOST, 0).into(),
            Some(address) if address.is_ipv4() == wanted.is_ipv4() => address,
            Some(address) => {
                let (has, lacks) = if address.is_ipv4() { (4, 6) } else { (6, 4) };
                return Err(io::Error::other(format!(
                    "the control connection came by IPv{has} (to {}) and the workload wants \
                     IPv{lacks}: give the server's IPv{lacks} address",
                    address.ip()
                )));
            }
        };
        place.set_port(wanted.port());
        Ok(place)
    }
}

impl ServerSide for LocalServers<'_> {
    fn start(&mut self, transport: Transport, jobs: &[Job]) -> io::Result<Vec<Address>> {
        // Those of a run that failed, if they are still there.
        self.running = None;
        let jobs: Vec<_> = jobs.iter().map(|job| self.placed(job)).collect::<io::Result<_>>()?;
        let mut crew = self.launcher.start(transport, &jobs)?;
        let limit = self.launcher.limits().listen;
        let addresses = crew.gather("listen", limit, |event| match event {
            Event::Listening(address) => Ok(address),
            other => Err(other),
        })?;
        self.running = Some(Running { transport, crew });
        Ok(addresses)
    }

    fn sample(&mut self) -> io::Result<SideSample> {
        let (limit, witness) = (self.launcher.limits().sample, self.witness);
        let Running { transport, crew } = self.running()?;
        crew.tell(Command::Sample)?;
        let used = crew.gather("say what it has used", limit, |event| match event {
            Event::Usage(usage) => Ok(usage),
            other => Err(other),
        })?;
        Ok(SideSample {
            usage: used.into_iter().fold(Usage::default(), |sum, one| sum + one),
            evidence: evidence(witness, *transport, crew)?,
            machine: machine_cpu()?,
        })
    }

    fn stop(&mut self) -> io::Result<()> {
        match self.running.take() {
            Some(running) => Ok(running.crew.end()?),
            None => Ok(()),
        }
    }
}

/// What Sidestep says of workers; it is only with those of SMC.
pub(super) fn evidence(
    witness: &dyn Witness,
    transport: Transport,
    crew: &Crew,
) -> io::Result<Evidence> {
    match transport {
        Transport::Smc => witness.look(&crew.pids()),
        Transport::Tcp | Transport::Unix | Transport::Sockmap => Ok(Evidence::default()),
    }
}
