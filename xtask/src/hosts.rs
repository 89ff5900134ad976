//! Two hosts that are network namespaces, for tests and measurements of SMC-R.
//!
//! They have nothing in common but the kernel and their cables. Each has an agent for a control
//! group of its own, which writes the TCP option, and a gateway with a soft RNIC at each cable. All
//! adapters have one PNET ID, so with two cables each link group has two links.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sidestep_rdma::faults::Plan;

use crate::bench::launch::{self, Dialogue, Program};
use crate::capture::Capture;
use crate::cpus;
use crate::distance::Distance;
use crate::enclosure::{Group, Namespace};
use crate::suite::{HANG, Lacking};
use crate::user;

/// The addresses at the first cable; by the server's it is called.
pub(crate) const SERVER: &str = Family::V4.server();
pub(crate) const CLIENT: &str = ADDRESSES[0][Family::V4 as usize][1];

/// The names of both ends of each cable.
pub(crate) const CABLES: [&str; 2] = ["cable", "cable2"];
/// By cable and family, the addresses of the server's end and the client's.
const ADDRESSES: [[[&str; 2]; 2]; 2] = [
    [["10.92.1.1", "10.92.1.2"], ["fd92:1::1", "fd92:1::2"]],
    [["10.92.2.1", "10.92.2.2"], ["fd92:2::1", "fd92:2::2"]],
];

/// An address of the link layer that nobody has.
const NOBODY: &str = "02:00:00:00:ff:ff";

const ROCE_PORT: u16 = 4791;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// The server's address at the first cable.
    pub(crate) const fn server(self) -> &'static str {
        ADDRESSES[0][self as usize][0]
    }
}

/// What lies between the hosts, and how they are set up. Both ends of a cable have an address of each
/// family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground<'a> {
    /// 1 or 2.
    pub(crate) cables: usize,
    /// Of which families each end of a cable has an adapter, the preferred first.
    pub(crate) families: &'a [Family],
    /// `smc-r.faults` of both gateways; nothing for a good network.
    pub(crate) faults: &'a str,
    /// `smc.eid` of the server and of the client.
    pub(crate) eids: [&'a str; 2],
    /// More of the configuration of the server and of the client.
    pub(crate) more: [&'a str; 2],
    /// Each host has CPUs of its own: half of this machine's.
    pub(crate) is_divided: bool,
    /// Two routers, and a line like this between them, in the place of the one cable; for IPv4.
    pub(crate) distance: Option<Plan>,
}

impl Ground<'_> {
    pub(crate) const ONE_CABLE: Self = Self {
        cables: 1,
        families: &[Family::V4],
        faults: "",
        eids: ["SIDESTEP"; 2],
        more: [""; 2],
        is_divided: false,
        distance: None,
    };
    pub(crate) const TWO_CABLES: Self = Self { cables: 2, ..Self::ONE_CABLE };

    /// The addresses of the adapters at one end.
    fn adapters(&self, end: usize) -> Vec<&'static str> {
        let of_cable = |cable: &[[&'static str; 2]; 2]| {
            let cable = *cable;
            self.families.iter().map(move |family| cable[*family as usize][end])
        };
        ADDRESSES.iter().take(self.cables).flat_map(of_cable).collect()
    }
}

/// Two hosts and the cables between them.
pub(crate) struct Hosts {
    pub(crate) server: Host,
    pub(crate) client: Host,
    /// What lies between them in the place of cables.
    _distances: Vec<Distance>,
    /// For what programs read and write.
    pub(crate) directory: PathBuf,
}

impl Hosts {
    /// Makes them; `directory` is theirs alone, and its last part is a part of the namespaces' names.
    ///
    /// **Errors**: [`Lacking`] if the machine does not let us.
    pub(crate) fn set(
        sidestep: Option<&Path>,
        directory: PathBuf,
        ground: Ground<'_>,
    ) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("network namespaces and an agent need root".to_owned()));
        }
        let Some(sidestep) = sidestep else {
            bail!(Lacking("there is no `sidestep` to be agent and gateway".to_owned()));
        };
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or("hosts");
        let [server, client] = ["server", "client"].map(|end| format!("{name}-{end}"));
        let [server, client] = [Namespace::make(&server)?, Namespace::make(&client)?];
        let mut distances = Vec::new();
        for (cable, addresses) in CABLES.iter().zip(ADDRESSES).take(ground.cables) {
            if let Some(plan) = ground.distance {
                let at = addresses[Family::V4 as usize];
                distances.push(Distance::lay([&server, &client], cable, at, plan)?);
                continue;
            }
            server.join(cable, client.name())?;
            for (end, namespace) in [&server, &client].into_iter().enumerate() {
                namespace.settle(cable, &addresses.map(|of_family| of_family[end]))?;
            }
        }
        let cpus = ground.is_divided.then(cpus::halves).transpose()?;
        // An agent has to write its program into the kernel first, so both begin at once.
        let prepare = |namespace, end: usize| {
            let directory = directory.join(["server", "client"][end]);
            let settings = settings(&directory, end, ground);
            let cpus = cpus.as_ref().map(|halves| halves[end].clone());
            Site::prepare(sidestep, Rc::new(namespace), cpus, directory, &settings)
        };
        let sites = [prepare(server, 0)?, prepare(client, 1)?];
        let [server, client] = sites.map(|site| Host::begin(sidestep, site));
        let (mut server, mut client) = (server?, client?);
        server.await_gateway()?;
        client.await_gateway()?;
        Ok(Self { server, client, _distances: distances, directory })
    }

    /// Bytes of programs that adapters have sent by RDMA.
    pub(crate) fn bytes_sent(&self) -> Result<u64> {
        self.sum_of_adapters("bytes_sent")
    }

    /// Packets that adapters have sent more than once.
    pub(crate) fn packets_sent_again(&self) -> Result<u64> {
        self.sum_of_adapters("retransmissions")
    }

    /// Waits until the links are other ones than these.
    pub(crate) fn await_other_links(&self, before: &[Value], patience: Duration) -> Result<()> {
        wait_while(patience, || {
            Ok((self.links()? == before).then(|| format!("the links are still {before:?}")))
        })
    }

    /// A third host, behind a cable of its own to the server, and the address that it has there. It has
    /// neither agent nor gateway.
    pub(crate) fn neighbour(&self) -> Result<(Namespace, &'static str)> {
        const LANE: &str = "lane";
        let [ours, its] = ["10.92.3.1", "10.92.3.2"];
        let neighbour = Namespace::make("hosts-neighbour")?;
        neighbour.join(LANE, self.server.site.namespace.name())?;
        self.server.site.namespace.settle(LANE, &[ours])?;
        neighbour.settle(LANE, &[its])?;
        neighbour.ip(&["route", "add", "default", "via", ours])?;
        Ok((neighbour, its))
    }

    fn sum_of_adapters(&self, key: &str) -> Result<u64> {
        let devices = [self.server.ask("devices")?, self.client.ask("devices")?];
        let adapters = devices.iter().flat_map(Value::as_array).flatten();
        Ok(adapters.filter_map(|adapter| adapter[key].as_u64()).sum())
    }

    /// The links that are active, by the numbers that the server has given them.
    pub(crate) fn links(&self) -> Result<Vec<Value>> {
        let links = self.server.active_links()?;
        Ok(links.into_iter().map(|mut link| link["link"].take()).collect())
    }

    /// Waits until neither end has a link group.
    pub(crate) fn await_no_links(&self, patience: Duration) -> Result<()> {
        self.wait_at_both(patience, |host| {
            let links = host.ask("links")?;
            Ok((links != json!([])).then(|| format!("links are left: {links}")))
        })
    }

    /// Waits until each link group has as many links as this at both ends, whatever happened before.
    pub(crate) fn await_links(&self, count: usize, patience: Duration) -> Result<()> {
        self.wait_at_both(patience, |host| match host.has_links(count)? {
            true => Ok(None),
            false => Ok(Some(format!("not {count} links: {}", host.ask("links")?))),
        })
    }

    /// Waits at one end and then at the other, as [`wait_while`] does.
    fn wait_at_both(
        &self,
        patience: Duration,
        wrong: impl Fn(&Host) -> Result<Option<String>>,
    ) -> Result<()> {
        wait_while(patience, || wrong(&self.server))?;
        wait_while(patience, || wrong(&self.client))
    }

    /// The cable by which most of the client's connections send.
    pub(crate) fn busiest_cable(&self) -> Result<usize> {
        let links = self.client.active_links()?;
        let mut connections = HashMap::new();
        for link in &links {
            let of_adapter = connections.entry(link["gid"].as_str()).or_insert(0);
            *of_adapter += link["connections"].as_u64().unwrap_or(0);
        }
        let (gid, _) = connections.into_iter().max_by_key(|(_, n)| *n).context("no link")?;
        let devices = self.client.ask("devices")?;
        let mut adapters = devices.as_array().into_iter().flatten();
        let adapter =
            adapters.find(|it| it["gid"].as_str() == gid).context("no adapter has that GID")?;
        let is_its = |cable: &[[&str; 2]; 2]| cable.iter().any(|it| adapter["address"] == it[1]);
        let at = ADDRESSES.iter().position(is_its);
        at.with_context(|| format!("no cable leads to {adapter}"))
    }

    /// Begins to look at CLC of connections to a port, and at all of RoCEv2.
    pub(crate) fn capture(&self, port: u16) -> Result<Capture> {
        self.part_runs()?;
        let filter = format!("tcp port {port} or udp port {ROCE_PORT}");
        let file = self.directory.join("cable.pcapng");
        Capture::begin(&self.client.site.namespace, CABLES[0], &filter, file)
    }

    /// The first cable has each packet by itself: the kernel parts runs before.
    pub(crate) fn part_runs(&self) -> Result<()> {
        [&self.server, &self.client].into_iter().try_for_each(|host| {
            host.site.namespace.ip(&["link", "set", CABLES[0], "gso_max_segs", "1"])
        })
    }

    /// The first cable loses its addresses of a family.
    pub(crate) fn take_addresses(&self, family: Family) -> Result<()> {
        let [server, client] = ADDRESSES[0][family as usize];
        for (host, address) in [(&self.server, server), (&self.client, client)] {
            host.site.namespace.ip(&["address", "flush", "to", address, "dev", CABLES[0]])?;
        }
        Ok(())
    }

    /// It has them again.
    pub(crate) fn give_addresses(&self, family: Family) -> Result<()> {
        let [server, client] = ADDRESSES[0][family as usize];
        self.server.site.namespace.settle(CABLES[0], &[server])?;
        self.client.site.namespace.settle(CABLES[0], &[client])
    }

    /// Waits until so many adapters are up at both ends.
    pub(crate) fn await_adapters(&self, count: usize, patience: Duration) -> Result<()> {
        self.wait_at_both(patience, |host| {
            let devices = host.ask("devices")?;
            let up = devices.as_array().into_iter().flatten().filter(|it| it["is_up"] == true);
            let is_wrong = up.count() != count;
            Ok(is_wrong.then(|| format!("not {count} adapters are up: {devices}")))
        })
    }

    /// Both ends of a cable are told.
    pub(crate) fn unplug(&self, cable: usize) -> Result<()> {
        self.client.site.namespace.ip(&["link", "set", CABLES[cable], "down"])
    }

    /// Nothing arrives any more by a cable, and nobody is told.
    pub(crate) fn silence(&self, cable: usize) -> Result<()> {
        let device = ["lladdr", NOBODY, "dev", CABLES[cable], "nud", "permanent"];
        let mislead = |host: &Host, peer| {
            host.site.namespace.ip(&[&["neighbour", "replace", peer][..], &device].concat())
        };
        ADDRESSES[cable].into_iter().try_for_each(|[server, client]| {
            mislead(&self.server, client)?;
            mislead(&self.client, server)
        })
    }

    /// The cable is as good as new.
    pub(crate) fn mend(&self, cable: usize) -> Result<()> {
        for host in [&self.server, &self.client] {
            host.site.namespace.ip(&["link", "set", CABLES[cable], "up"])?;
            host.site.namespace.ip(&[
                "neighbour",
                "flush",
                "dev",
                CABLES[cable],
                "nud",
                "permanent",
            ])?;
        }
        Ok(())
    }
}

/// Waits as long as something is wrong.
///
/// **Errors**: what is still wrong in the end.
fn wait_while(patience: Duration, mut wrong: impl FnMut() -> Result<Option<String>>) -> Result<()> {
    let deadline = Instant::now() + patience;
    while let Some(wrong) = wrong()? {
        ensure!(Instant::now() < deadline, wrong);
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// All that can go by SMC-R does: no connection is left to TCP to be compared with.
fn settings(directory: &Path, end: usize, ground: Ground<'_>) -> String {
    let own = own_settings(directory, ground.eids[end], &ground.adapters(end));
    let interfaces = &CABLES[..ground.cables];
    let faults = match ground.faults {
        "" => String::new(),
        faults => format!("faults = {faults:?}\n"),
    };
    format!("{own}{faults}[pnet.CABLE]\ninterfaces = {interfaces:?}\n{}", ground.more[end])
}

/// With a soft RNIC at each of these addresses.
fn own_settings(directory: &Path, eid: &str, adapters: &[&str]) -> String {
    let socket = directory.join("agent.sock");
    let adapters: Vec<_> = adapters.iter().map(|address| format!("soft:{address}")).collect();
    format!(
        "[smc]\nagent_socket = {socket:?}\neid = {eid:?}\nautosmc = false\n\
         [smc-r]\nadapters = {adapters:?}\n"
    )
}

/// A network namespace and a control group with an agent.
struct Site {
    // In this order: a group can only go without programs.
    agent: Dialogue,
    agent_pid: u32,
    group: Group,
    namespace: Rc<Namespace>,
    /// Those of its gateway and programs, if not all.
    cpus: Option<String>,
    directory: PathBuf,
}

impl Site {
    fn prepare(
        sidestep: &Path,
        namespace: Rc<Namespace>,
        cpus: Option<String>,
        directory: PathBuf,
        settings: &str,
    ) -> Result<Self> {
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("sidestep.toml"), settings)?;
        let group = Group::make()?;
        let mut agent = Command::new(sidestep);
        agent.arg("agent").arg("--cgroup").arg(group.at());
        agent.arg("--socket").arg(directory.join("agent.sock"));
        let mut agent = Dialogue::start(agent)?;
        let agent_pid = agent.program().pid();
        Ok(Self { agent, agent_pid, group, namespace, cpus, directory })
    }

    /// A command of this host.
    fn command(&self, words: &[&str]) -> Command {
        let confined = self.cpus.as_ref().map(|cpus| ["taskset", "-c", cpus]);
        let words = [confined.as_ref().map_or(&[][..], |it| it), words].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("SIDESTEP_CONFIG", self.directory.join("sidestep.toml"));
        self.namespace.enclose(&mut command);
        self.group.enclose(&mut command);
        command
    }
}

/// A process that is no child of this one, and ends with this.
struct Begun(u32);

impl Drop for Begun {
    fn drop(&mut self) {
        // It may have ended.
        let _ = launch::signal(self.0, libc::SIGKILL);
    }
}

/// Seconds of the clock that Python calls so.
fn monotonic_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn begin_gateway(sidestep: &Path, site: &Site, words: &[&str]) -> Result<Dialogue> {
    let log = format!("info:{}", site.directory.join("gateway.log").display());
    let begin = [&*sidestep.to_string_lossy(), "gateway", "--log", &log];
    Dialogue::start(site.command(&[&begin, words].concat()))
}

/// A network namespace that is a host, until this is dropped.
pub(crate) struct Host {
    // In this order: its control group can only go without programs.
    gateway: Dialogue,
    /// Those before it.
    replaced: Vec<Dialogue>,
    /// Those that gateways have begun.
    begun: Vec<Begun>,
    site: Site,
    sidestep: PathBuf,
    gateway_pid: u32,
}

impl Host {
    /// One in a namespace that is there, with a soft RNIC at each of these addresses and nothing else configured.
    pub(crate) fn settle(
        sidestep: &Path,
        namespace: &Rc<Namespace>,
        directory: PathBuf,
        eid: &str,
        adapters: &[&str],
    ) -> Result<Self> {
        let settings = own_settings(&directory, eid, adapters);
        let site = Site::prepare(sidestep, Rc::clone(namespace), None, directory, &settings)?;
        let mut host = Self::begin(sidestep, site)?;
        host.await_gateway()?;
        Ok(host)
    }

    fn begin(sidestep: &Path, mut site: Site) -> Result<Self> {
        site.agent.await_line("sidestep agent: the TCP option", HANG)?;
        // What it says stays in the scratch folder, for whom a test has failed.
        let mut gateway = begin_gateway(sidestep, &site, &[])?;
        let gateway_pid = gateway.program().pid();
        let sidestep = sidestep.to_owned();
        let (replaced, begun) = (Vec::new(), Vec::new());
        Ok(Self { gateway, replaced, begun, site, sidestep, gateway_pid })
    }

    /// Another gateway takes the place of the one that is there, which drains.
    pub(crate) fn replace_gateway(&mut self) -> Result<()> {
        let gateway = begin_gateway(&self.sidestep, &self.site, &["--replace"])?;
        self.replaced.push(std::mem::replace(&mut self.gateway, gateway));
        self.gateway_pid = self.gateway.program().pid();
        self.await_gateway()
    }

    /// Kills the gateway, and says when, in seconds of the monotonic clock.
    pub(crate) fn kill_gateway(&mut self) -> Result<f64> {
        let now = monotonic_s();
        launch::signal(self.gateway_pid, libc::SIGKILL)?;
        Ok(now)
    }

    /// The next one, where there is none.
    pub(crate) fn begin_gateway(&mut self) -> Result<()> {
        self.gateway = begin_gateway(&self.sidestep, &self.site, &[])?;
        self.gateway_pid = self.gateway.program().pid();
        self.await_gateway()
    }

    /// The same by the gateway itself, as service managers have it.
    pub(crate) fn reload_gateway(&mut self) -> Result<()> {
        let before = self.gateway_pid;
        launch::signal(before, libc::SIGHUP)?;
        wait_while(HANG, || {
            let said = self.gateways()?;
            let is_replaced = said.first().is_some_and(|(process, ..)| *process != before);
            Ok((!is_replaced).then(|| format!("not replaced: {said:?}")))
        })?;
        self.gateway_pid = self.gateways()?[0].0;
        self.begun.push(Begun(self.gateway_pid));
        Ok(())
    }

    /// The gateway and those before it that drain: the process, what it does, and its connections.
    pub(crate) fn gateways(&self) -> Result<Vec<(u32, String, usize)>> {
        let said = launch::run(self.sidestep(&["gateway", "--status"]), HANG)?;
        let row = |line: &str| {
            let mut words = line.split([' ', ':', ',']).filter(|word| !word.is_empty());
            let process = words.nth(1)?.parse().ok()?;
            let does = words.next()?.to_owned();
            Some((process, does, words.nth(1)?.parse().ok()?))
        };
        let rows: Option<_> = said.lines().map(row).collect();
        rows.with_context(|| format!("sidestep gateway --status: {said}"))
    }

    /// Waits until the gateways that were replaced have ended, in order.
    pub(crate) fn await_drained(&mut self, patience: Duration) -> Result<usize> {
        let count = self.replaced.len();
        self.replaced.drain(..).try_for_each(|gateway| gateway.finish(patience).map(drop))?;
        Ok(count)
    }

    fn await_gateway(&mut self) -> Result<()> {
        self.gateway.await_line("sidestep gateway:", HANG).map(drop)
    }

    /// A program of this host, under Sidestep.
    pub(crate) fn program(&self, words: &[&str]) -> Command {
        self.program_as(&[], words)
    }

    /// The same, begun by `before`, which makes it another user's.
    pub(crate) fn program_as(&self, before: &[&str], words: &[&str]) -> Command {
        let sidestep = self.sidestep.to_string_lossy();
        self.command(&[before, &[&sidestep, "run", "--"], words].concat())
    }

    /// The `sidestep` command on this host.
    pub(crate) fn sidestep(&self, words: &[&str]) -> Command {
        self.command(&[&[&*self.sidestep.to_string_lossy()], words].concat())
    }

    /// A command of this host as it is.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.site.command(words)
    }

    /// The control group of its gateway and programs.
    pub(crate) fn group(&self) -> &Path {
        self.site.group.at()
    }

    /// The interface at the first cable.
    pub(crate) fn cable(&self) -> &'static str {
        CABLES[0]
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn serve(&self, port: u16, command: Command) -> Result<Program> {
        let mut server = Program::start(command, &self.site.directory)?;
        server.await_listener(port)?;
        Ok(server)
    }

    /// What one of the displays says here.
    pub(crate) fn ask(&self, display: &str) -> Result<Value> {
        let said = launch::run(self.sidestep(&[display, "--json"]), HANG)?;
        serde_json::from_str(&said).with_context(|| format!("sidestep {display}: {said}"))
    }

    /// What `sidestep why` says of a program here.
    pub(crate) fn why(&self, pid: u32) -> Result<Vec<Value>> {
        let words = ["why", "--json", &format!("pid:{pid}")];
        let said = launch::run(self.sidestep(&words), HANG)?;
        let mut explained: Value = serde_json::from_str(&said).context("sidestep why")?;
        serde_json::from_value(explained["findings"].take()).context("sidestep why")
    }

    /// What `sidestep ss --totals` says of a program here.
    pub(crate) fn totals(&self, pid: u32) -> Result<Value> {
        let words = ["ss", "--totals", "--json", "--pid", &pid.to_string()];
        let said = launch::run(self.sidestep(&words), HANG)?;
        let programs: Value = serde_json::from_str(&said).context("sidestep ss --totals")?;
        programs.get(0).cloned().context("`ss --totals` does not show the program")
    }

    fn has_links(&self, count: usize) -> Result<bool> {
        let links = self.active_links()?;
        let of_group = |group: &Value| links.iter().filter(|it| &it["link_group"] == group).count();
        Ok(!links.is_empty() && links.iter().all(|link| of_group(&link["link_group"]) == count))
    }

    pub(crate) fn active_links(&self) -> Result<Vec<Value>> {
        let Value::Array(links) = self.ask("links")? else { bail!("`sidestep links`: no list") };
        Ok(links.into_iter().filter(|link| link["state"] == "Active").collect())
    }

    pub(crate) fn gateway_pid(&self) -> u32 {
        self.gateway_pid
    }

    pub(crate) fn agent_pid(&self) -> u32 {
        self.site.agent_pid
    }

    /// CPU time that the gateway has taken so far, in seconds.
    pub(crate) fn gateway_cpu_s(&self) -> f64 {
        launch::cpu_s(&launch::family_of(self.gateway_pid))
    }
}
