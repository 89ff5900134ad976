//! Two hosts that are network namespaces, for tests and measurements of SMC-R.
//!
//! They have nothing in common but the kernel and their cables. Each has an agent for a control
//! group of its own, which writes the TCP option, and a gateway with a soft RNIC at each cable. All
//! adapters have one PNET ID, so with two cables each link group has two links.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::launch::{self, Dialogue, Program};
use crate::enclosure::{Group, Namespace};
use crate::suite::Lacking;
use crate::user;

/// The server's address at the first cable, by which it is called.
pub(crate) const SERVER: &str = ADDRESSES[0][0];

/// The names of both ends of each cable, and the addresses of the server's and the client's.
const CABLES: [&str; 2] = ["cable", "cable2"];
const ADDRESSES: [[&str; 2]; 2] = [["10.92.1.1", "10.92.1.2"], ["10.92.2.1", "10.92.2.2"]];

/// An address of the link layer that nobody has.
const NOBODY: &str = "02:00:00:00:ff:ff";

/// For an agent or a gateway to begin, or a display to be shown.
const PATIENCE: Duration = Duration::from_secs(20);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What lies between the hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    /// 1 or 2.
    pub(crate) cables: usize,
    /// `smc-r.faults` of both gateways; nothing for a good network.
    pub(crate) faults: &'static str,
}

impl Ground {
    pub(crate) const ONE_CABLE: Self = Self { cables: 1, faults: "" };
    pub(crate) const TWO_CABLES: Self = Self { cables: 2, faults: "" };
}

/// Two hosts and the cables between them.
pub(crate) struct Hosts {
    pub(crate) server: Host,
    pub(crate) client: Host,
    /// For what programs read and write.
    pub(crate) directory: PathBuf,
}

impl Hosts {
    /// Makes them; `directory` is theirs alone, and its last part is a part of the namespaces' names.
    ///
    /// **Errors**: [`Lacking`] if the machine does not let us.
    pub(crate) fn set(sidestep: Option<&Path>, directory: PathBuf, ground: Ground) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("network namespaces and an agent need root".to_owned()));
        }
        let Some(sidestep) = sidestep else {
            bail!(Lacking("there is no `sidestep` to be agent and gateway".to_owned()));
        };
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or("hosts");
        let [server, client] = ["server", "client"].map(|end| format!("{name}-{end}"));
        let [server, client] = [Namespace::make(&server)?, Namespace::make(&client)?];
        for (cable, addresses) in CABLES.iter().zip(ADDRESSES).take(ground.cables) {
            server.join(cable, client.name())?;
            server.settle(cable, &addresses[..1])?;
            client.settle(cable, &addresses[1..])?;
        }
        let begin = |namespace, end: usize| {
            let directory = directory.join(ADDRESSES[0][end]);
            let addresses = ADDRESSES.iter().map(|of_cable| of_cable[end]).take(ground.cables);
            Host::begin(sidestep, namespace, &addresses.collect::<Vec<_>>(), ground, directory)
        };
        let (server, client) = (begin(server, 0)?, begin(client, 1)?);
        Ok(Self { server, client, directory })
    }

    /// Bytes of programs that all adapters have sent by RDMA.
    pub(crate) fn bytes_sent(&self) -> Result<u64> {
        let devices = [self.server.ask("devices")?, self.client.ask("devices")?];
        let adapters = devices.iter().flat_map(Value::as_array).flatten();
        Ok(adapters.filter_map(|adapter| adapter["bytes_sent"].as_u64()).sum())
    }

    /// Waits until a link group has two links, whatever happened before.
    pub(crate) fn await_two_links(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        for host in [&self.server, &self.client] {
            while host.active_links()?.len() < CABLES.len() {
                ensure!(Instant::now() < deadline, "no two links: {}", host.ask("links")?);
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// The cable by which most of the client's connections send.
    pub(crate) fn busiest_cable(&self) -> Result<usize> {
        let links = self.client.active_links()?;
        let busiest = links.iter().max_by_key(|link| link["connections"].as_u64());
        let gid = &busiest.context("no link")?["gid"];
        let devices = self.client.ask("devices")?;
        let mut adapters = devices.as_array().into_iter().flatten();
        let adapter = adapters.find(|it| &it["gid"] == gid).context("no adapter has that GID")?;
        let at = ADDRESSES.iter().position(|[_, client]| adapter["address"] == *client);
        at.with_context(|| format!("no cable leads to {adapter}"))
    }

    /// Both ends of a cable are told.
    pub(crate) fn unplug(&self, cable: usize) -> Result<()> {
        self.client.namespace.ip(&["link", "set", CABLES[cable], "down"])
    }

    /// Nothing arrives any more by a cable, and nobody is told.
    pub(crate) fn silence(&self, cable: usize) -> Result<()> {
        let [server, client] = ADDRESSES[cable];
        let device = ["lladdr", NOBODY, "dev", CABLES[cable], "nud", "permanent"];
        let mislead = |host: &Host, peer| {
            host.namespace.ip(&[&["neighbour", "replace", peer][..], &device].concat())
        };
        mislead(&self.server, client)?;
        mislead(&self.client, server)
    }

    /// The cable is as good as new.
    pub(crate) fn mend(&self, cable: usize) -> Result<()> {
        for host in [&self.server, &self.client] {
            host.namespace.ip(&["link", "set", CABLES[cable], "up"])?;
            host.namespace.ip(&["neighbour", "flush", "dev", CABLES[cable], "nud", "permanent"])?;
        }
        Ok(())
    }
}

/// A network namespace that is a host, until this is dropped.
pub(crate) struct Host {
    // In this order: a group can only go without programs.
    _gateway: Dialogue,
    _agent: Dialogue,
    group: Group,
    namespace: Namespace,
    gateway_pid: u32,
    sidestep: PathBuf,
    directory: PathBuf,
}

impl Host {
    fn begin(
        sidestep: &Path,
        namespace: Namespace,
        addresses: &[&str],
        ground: Ground,
        directory: PathBuf,
    ) -> Result<Self> {
        fs::create_dir_all(&directory)?;
        let socket = directory.join("agent.sock");
        let settings = format!(
            "[smc]\nagent_socket = {socket:?}\n\
             [smc-r]\nadapters = {addresses:?}\nfaults = {:?}\n\
             [pnet.CABLE]\ninterfaces = {:?}\n",
            ground.faults,
            &CABLES[..ground.cables],
        );
        fs::write(directory.join("sidestep.toml"), settings)?;
        let group = Group::make()?;
        let mut agent = Command::new(sidestep);
        agent.arg("agent").arg("--cgroup").arg(group.at()).arg("--socket").arg(socket);
        let mut agent = Dialogue::start(agent)?;
        agent.await_line("sidestep agent: the TCP option", PATIENCE)?;
        let mut gateway = Command::new(sidestep);
        gateway.arg("gateway");
        enclose(&mut gateway, &group, &namespace, &directory);
        let mut gateway = Dialogue::start(gateway)?;
        gateway.await_line("sidestep gateway:", PATIENCE)?;
        let (gateway_pid, sidestep) = (gateway.program().pid(), sidestep.to_owned());
        let (_gateway, _agent) = (gateway, agent);
        Ok(Self { _gateway, _agent, group, namespace, gateway_pid, sidestep, directory })
    }

    /// A program of this host, under Sidestep.
    pub(crate) fn program(&self, words: &[&str]) -> Command {
        self.sidestep(&[&["run", "--"], words].concat())
    }

    /// The `sidestep` command on this host.
    pub(crate) fn sidestep(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.sidestep);
        command.args(words).env("PYTHONDONTWRITEBYTECODE", "1");
        enclose(&mut command, &self.group, &self.namespace, &self.directory);
        command
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn serve(&self, port: u16, command: Command) -> Result<Program> {
        let mut server = Program::start(command, &self.directory)?;
        server.await_listener(port)?;
        Ok(server)
    }

    /// What one of the displays says here.
    pub(crate) fn ask(&self, display: &str) -> Result<Value> {
        let mut command = Command::new(&self.sidestep);
        command.args([display, "--json"]);
        self.namespace.enclose(&mut command);
        let said = launch::run(command, PATIENCE)?;
        serde_json::from_str(&said).with_context(|| format!("sidestep {display}: {said}"))
    }

    fn active_links(&self) -> Result<Vec<Value>> {
        let Value::Array(links) = self.ask("links")? else { bail!("`sidestep links`: no list") };
        Ok(links.into_iter().filter(|link| link["state"] == "Active").collect())
    }

    /// CPU time that the gateway has taken so far, in seconds.
    pub(crate) fn gateway_cpu_s(&self) -> f64 {
        launch::cpu_s(&launch::family_of(self.gateway_pid))
    }
}

fn enclose(command: &mut Command, group: &Group, namespace: &Namespace, directory: &Path) {
    namespace.enclose(command);
    group.enclose(command);
    command.env("SIDESTEP_CONFIG", directory.join("sidestep.toml"));
}
