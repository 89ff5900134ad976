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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::fake::{Blind, FakeWitness};
    use crate::launch::fake::{Fake, SERVER, client_of, server_at};

    fn tcp(addresses: &[&str]) -> Vec<Address> {
        addresses.iter().map(|at| Address::Tcp(at.parse().unwrap())).collect()
    }

    #[test]
    fn workers_are_started_sampled_and_ended() {
        let (fake, witness) = (Fake::new(SERVER, ""), FakeWitness::default());
        let launcher = fake.launcher();
        let mut servers = LocalServers::new(&launcher, &witness);
        let jobs = ["127.0.0.2:0", "127.0.0.3:0"].map(server_at);
        let addresses = servers.start(Transport::Smc, &jobs).unwrap();
        assert_eq!(addresses, tcp(&["127.0.0.2:4711", "127.0.0.3:4711"]));
        let sample = servers.sample().unwrap();
        assert_eq!((sample.usage.user_us, sample.usage.system_us), (200, 2));
        assert_eq!(sample.evidence.smc_connections, 10);
        assert!(sample.machine.busy_us > 0);
        assert_eq!(servers.sample().unwrap().usage.user_us, 400);
        let looks = witness.looks.lock().unwrap().clone();
        let looked_at: Vec<_> = looks[0].iter().map(u32::to_string).collect();
        let mut sorted = looked_at.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, fake.lines("processes")[..]);
        assert_eq!(looks[0], looks[1]);
        servers.stop().unwrap();
        fake.wait_until_gone(2);
        assert!(!servers.is_remote());
    }

    #[test]
    fn sidestep_is_asked_about_smc_only() {
        let fake = Fake::new(SERVER, "");
        let launcher = fake.launcher();
        let mut servers = LocalServers::new(&launcher, &Blind);
        for transport in [Transport::Tcp, Transport::Unix, Transport::Sockmap, Transport::Smc] {
            servers.start(transport, &[server_at("127.0.0.1:0")]).unwrap();
            match servers.sample() {
                Ok(sample) => assert_eq!(sample.evidence, Evidence::default()),
                Err(error) => assert_eq!(
                    (transport, error.kind()),
                    (Transport::Smc, io::ErrorKind::PermissionDenied)
                ),
            }
        }
    }

    #[test]
    fn an_unspecified_address_is_the_one_where_clients_come_from() {
        let launcher = Launcher::new("x".into());
        let placed = |reached_at: Option<&str>, at: &str| {
            let servers = LocalServers::new(&launcher, &Blind);
            let servers = match reached_at {
                Some(address) => servers.reached_at(address.parse().unwrap()),
                None => servers,
            };
            match servers.placed(&server_at(at)) {
                Ok(Job { role: Role::Server(Address::Tcp(at)), .. }) => at.to_string(),
                Ok(job) => panic!("{job:?}"),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(placed(None, "0.0.0.0:7"), "127.0.0.1:7");
        assert_eq!(placed(None, "[::]:0"), "[::1]:0");
        assert_eq!(placed(None, "10.0.0.1:7"), "10.0.0.1:7");
        assert_eq!(placed(Some("10.0.0.1:9"), "0.0.0.0:7"), "10.0.0.1:7");
        assert_eq!(placed(Some("10.0.0.1:9"), "10.0.0.2:7"), "10.0.0.2:7");
        assert_eq!(placed(Some("[fe80::1%3]:9"), "[::]:7"), "[fe80::1%3]:7");
        let error = placed(Some("10.0.0.1:9"), "[::]:7");
        assert!(
            error.contains("came by IPv4 (to 10.0.0.1) and the workload wants IPv6"),
            "{error}"
        );
        let client = client_of("0.0.0.0:7");
        assert_eq!(LocalServers::new(&launcher, &Blind).placed(&client).unwrap(), client);
    }

    #[test]
    fn a_worker_that_does_not_start_leaves_none() {
        let server = r#"
            case "$address" in
            127.0.0.1:*) echo '{"failed":"the port is in use"}' ;;
            esac
            exec sleep 600"#;
        let fake = Fake::new(server, "");
        let launcher = fake.launcher();
        let mut servers = LocalServers::new(&launcher, &Blind);
        let jobs = ["127.0.0.2:0", "127.0.0.1:0"].map(server_at);
        let error = servers.start(Transport::Tcp, &jobs).unwrap_err().to_string();
        assert!(error.ends_with("): the port is in use"), "{error}");
        fake.wait_until_gone(fake.lines("processes").len());
        assert_eq!(servers.sample().unwrap_err().to_string(), "no workers are running");
        servers.stop().unwrap();
    }

    #[test]
    fn a_new_start_ends_what_is_left_of_the_last() {
        let fake = Fake::new(SERVER, "");
        let launcher = fake.launcher();
        let mut servers = LocalServers::new(&launcher, &Blind);
        for _ in 0..2 {
            servers.start(Transport::Tcp, &[server_at("127.0.0.1:0")]).unwrap();
        }
        servers.stop().unwrap();
        fake.wait_until_gone(2);
    }
}
