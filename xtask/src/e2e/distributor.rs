//! A VIP in front of redis on three hosts, each a network namespace on a bridge, behind a distributor in a fourth: by
//! TCP without an agent, then under Sidestep with one. A target is drained, one loses its cable, one speaks no SMC.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::enclosure::{CABLE, Group, Namespace};
use crate::suite::{HANG, Lacking};
use crate::user;
pub(crate) use forged::forged;
pub(crate) use locality::locality;
pub(crate) use smc_r::{smc_r, tunnel_smc_r};
pub(crate) use takeover::{cut_off, takeover};
pub(crate) use tunnel::{tunnel, tunnel_takeover};
pub(crate) use xdp::xdp;

mod forged;
mod locality;
mod smc_r;
mod takeover;
mod tunnel;
mod xdp;

const PORT: &str = "6379";
const VIP: [&str; 2] = ["10.77.0.100", "fd77::100"];
const CLIENT: [&str; 2] = ["10.77.0.1", "fd77::1"];
const DISTRIBUTOR: [&str; 2] = ["10.77.0.2", "fd77::2"];
const BACKUP: [&str; 2] = ["10.77.0.3", "fd77::3"];
/// Of the bridge: members of etcd are there.
const STORE: &str = "10.77.0.200";
const TARGETS: [[&str; 2]; 3] =
    [["10.77.0.11", "fd77::11"], ["10.77.0.12", "fd77::12"], ["10.77.0.13", "fd77::13"]];

const CONFIG: &str = r#"
[distributor]
interface = "cable"
[vip.four]
address = "10.77.0.100:6379"
probe_interval = "200ms"
targets.a = { address = "10.77.0.11", weight = 4 }
targets.b = { address = "10.77.0.12", weight = 2 }
targets.c = { address = "10.77.0.13", weight = 1 }
[vip.six]
address = "[fd77::100]:6379"
method = "weightedactive"
probe_interval = "200ms"
targets = { a = "fd77::11", b = "fd77::12", c = "fd77::13" }
"#;

const REDIS: [&str; 9] =
    ["redis-server", "--port", PORT, "--protected-mode", "no", "--save", "", "--appendonly", "no"];

/// Those of `packaging/sidestep-distributor.service`.
const CAPABILITIES: &str = "-all,+bpf,+net_admin,+perfmon";

pub(crate) fn hosts(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _targets: Vec<Dialogue> =
        (0..3).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let mut servers: Vec<Program> =
        (0..3).map(|target| scene.redis(target, Transport::Tcp)).collect::<Result<_>>()?;
    let distributor = scene.distributor()?;
    let shares = scene.shares()?;
    scene.drain()?;
    scene.cable_cut()?;
    scene.address_in_use()?;
    scene.refused_without_smc()?;

    let _agent = scene.agent()?;
    servers.clear();
    // The last one stays plain.
    for (target, transport) in
        [Transport::Smc, Transport::Smc, Transport::Tcp].into_iter().enumerate()
    {
        servers.push(scene.redis(target, transport)?);
    }
    for vip in ["four", "six"] {
        scene.await_states(vip, ["active"; 3])?;
    }
    scene.moved_but_for("c")?;
    scene.none_but_with_smc("c")?;
    drop(servers.pop());
    servers.push(scene.redis(2, Transport::Smc)?);
    // "four" still requires SMC.
    for vip in ["four", "six"] {
        scene.await_states(vip, ["active"; 3])?;
    }
    let packets = scene.past_the_distributor()?;
    drop(distributor);
    Ok(format!("{shares}; {packets} packets at the distributor per 1000 transactions by SMC-D"))
}

/// Where it is played.
struct Scene<'a> {
    stage: &'a Stage<'a>,
    sidestep: PathBuf,
    switch: Namespace,
    client: Rc<Namespace>,
    distributor: Rc<Namespace>,
    /// For a second distributor.
    backup: Rc<Namespace>,
    targets: Vec<Rc<Namespace>>,
    group: Group,
    config: String,
    /// What a distributor may do.
    capabilities: &'static str,
}

impl<'a> Scene<'a> {
    fn set(stage: &'a Stage<'a>) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("a distributor, an agent and network namespaces need root".to_owned()));
        }
        let Some(sidestep) = stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to have VIPs".to_owned()));
        };
        let switch = Namespace::make("switch")?;
        switch.ip(&["link", "add", "name", "bridge", "type", "bridge"])?;
        switch.ip(&["link", "set", "bridge", "up"])?;
        let host = |what: &str, addresses: &[&str]| {
            let host = Namespace::make(what)?;
            let port = ["link", "add", "name", what, "type", "veth", "peer", "name", CABLE];
            switch.ip(&[&port[..], &["netns", host.name()]].concat())?;
            switch.ip(&["link", "set", what, "master", "bridge", "up"])?;
            host.settle(CABLE, addresses)?;
            Ok::<_, anyhow::Error>(Rc::new(host))
        };
        switch.ip(&["address", "add", &format!("{STORE}/24"), "dev", "bridge"])?;
        let client = host("client", &CLIENT)?;
        let backup = host("backup", &BACKUP)?;
        let distributor = host("distr", &DISTRIBUTOR)?;
        let targets = TARGETS.iter().zip(["ta", "tb", "tc"]);
        let targets =
            targets.map(|(addresses, what)| host(what, addresses)).collect::<Result<_>>()?;
        let group = Group::make()?;
        let sidestep = sidestep.to_owned();
        let config = CONFIG.to_owned();
        Ok(Self {
            stage,
            sidestep,
            switch,
            client,
            distributor,
            backup,
            targets,
            group,
            config,
            capabilities: CAPABILITIES,
        })
    }

    fn enclosed(&self, namespace: &Namespace, mut command: Command) -> Command {
        namespace.enclose(&mut command);
        self.group.enclose(&mut command);
        command
    }

    fn redis(&self, target: usize, transport: Transport) -> Result<Program> {
        let command = self.configured(self.stage.command(transport, &REDIS))?;
        let command = self.enclosed(&self.targets[target], command);
        let mut server = Program::start(command, &self.stage.house.scratch)?;
        server.await_listener(PORT.parse()?)?;
        Ok(server)
    }

    /// Root of one namespace shares memory with root of another.
    fn configured(&self, mut command: Command) -> Result<Command> {
        let file = self.stage.house.scratch.join("distributor-run.toml");
        let socket = self.agent_socket();
        let rules = "[policy]\nshare_with_users = [0]\n";
        fs::write(&file, format!("[smc]\nagent_socket = \"{}\"\n{rules}", socket.display()))?;
        command.env("SIDESTEP_CONFIG", file);
        Ok(command)
    }

    fn agent_socket(&self) -> PathBuf {
        self.stage.house.scratch.join("distributor-agent.sock")
    }

    fn config(&self) -> Result<PathBuf> {
        let config = self.stage.house.scratch.join("distributor.toml");
        fs::write(&config, &self.config)?;
        Ok(config)
    }

    fn target(&self, target: usize) -> Result<Dialogue> {
        self.target_with(target, &self.config()?)
    }

    fn target_with(&self, target: usize, config: &Path) -> Result<Dialogue> {
        let mut command = Command::new(&self.sidestep);
        command.args(["distributor", "target", "--config"]).arg(config);
        let mut target = Dialogue::start(self.enclosed(&self.targets[target], command))?;
        target.await_line("sidestep distributor: this host serves 10.77.0.100, fd77::100", HANG)?;
        Ok(target)
    }

    fn distributor(&self) -> Result<Dialogue> {
        // With what its unit lets it have, and no more.
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={}", self.capabilities));
        command.arg(format!("--inh-caps={}", self.capabilities));
        command.arg(&self.sidestep).args(["distributor", "run", "--config"]).arg(self.config()?);
        let mut distributor = Dialogue::start(self.enclosed(&self.distributor, command))?;
        distributor.await_line("sidestep distributor: six", HANG)?;
        for vip in ["four", "six"] {
            let has_taken = || Ok(self.vip_status(vip)?["link"]["is_taken"] == true);
            await_true(&format!("{vip} has its address"), has_taken)?;
        }
        Ok(distributor)
    }

    fn agent(&self) -> Result<Dialogue> {
        let mut command = Command::new(&self.sidestep);
        command.arg("agent").arg("--cgroup").arg(self.group.at());
        command.arg("--socket").arg(self.agent_socket());
        let mut agent = Dialogue::start(command)?;
        agent.await_line("sidestep agent: programs of different", HANG)?;
        Ok(agent)
    }

    /// 700 connections at 4:2:1, of IPv4, and as many of IPv6 to the least busy.
    fn shares(&self) -> Result<String> {
        self.benchmark(Transport::Tcp, VIP[0], &["-c", "10", "-n", "700", "-k", "0"])?;
        self.benchmark(Transport::Tcp, VIP[1], &["-c", "10", "-n", "700", "-k", "0"])?;
        let given = self.given("four")?;
        let sum: u64 = given.iter().sum();
        for (given, due) in given.iter().zip([4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0]) {
            let share = *given as f64 / sum as f64;
            // Of so few connections: five deviations.
            ensure!((share - due).abs() < 0.095, "{share:.3} of the connections, not {due:.3}");
        }
        ensure!(self.given("six")?.iter().all(|given| *given > 0), "a target was given nothing");
        Ok(format!("{given:?} of {sum} connections"))
    }

    /// Connections that live while their target is drained go on.
    fn drain(&self) -> Result<()> {
        let before = self.given("four")?[0];
        let mut talks = Vec::new();
        while self.given("four")?[0] == before {
            ensure!(talks.len() < 50, "of the connections none is a's");
            talks.push(self.large_talk(VIP[0])?);
        }
        let is_counted = || Ok(self.target_status("four", "a")?["connections"].as_u64() > Some(0));
        await_true("the connection of a is counted", is_counted)?;
        self.vip(&["drain", "four/a"])?;
        let given = self.given("four")?[0];
        self.benchmark(Transport::Tcp, VIP[0], &["-c", "10", "-n", "200", "-k", "0"])?;
        for talk in talks {
            talk.finish(HANG).context("connections of a drained target")?;
        }
        ensure!(self.given("four")?[0] == given, "a drained target was given connections");
        self.vip(&["resume", "four/a"]).map(drop)
    }

    /// A target that is gone from the link takes nothing more, and is back with its cable.
    fn cable_cut(&self) -> Result<()> {
        self.switch.ip(&["link", "set", "tb", "down"])?;
        for vip in ["four", "six"] {
            self.await_states(vip, ["active", "down", "active"])?;
        }
        for vip in VIP {
            self.benchmark(Transport::Tcp, vip, &["-c", "10", "-n", "200", "-k", "0"])?;
        }
        self.switch.ip(&["link", "set", "tb", "up"])?;
        for vip in ["four", "six"] {
            self.await_states(vip, ["active"; 3])?;
        }
        Ok(())
    }

    /// An address that another host answers for is not taken.
    fn address_in_use(&self) -> Result<()> {
        self.client.ip(&["address", "add", "10.77.0.200/32", "dev", CABLE])?;
        let before = self.config()?;
        fs::write(&before, CONFIG.replace("10.77.0.100", "10.77.0.200"))?;
        let refused = self.vip(&["apply"]);
        self.config()?;
        let Err(refused) = refused else { bail!("an address of another host was taken") };
        let refused = format!("{refused:#}");
        ensure!(refused.contains("answers for 10.77.0.200 on cable"), "{refused}");
        self.await_states("four", ["active"; 3])
    }

    /// Has "four" take only targets that speak SMC, or all.
    fn require_smc(&self, is_required: bool) -> Result<()> {
        let four = "[vip.four]\n";
        let required = CONFIG.replace(four, &format!("{four}smc = \"require\"\n"));
        fs::write(self.config()?, if is_required { &required } else { CONFIG })?;
        self.vip(&["apply"]).map(drop)
    }

    /// No target runs under Sidestep: where SMC is required a client is refused.
    fn refused_without_smc(&self) -> Result<()> {
        self.require_smc(true)?;
        self.await_states("four", ["down"; 3])?;
        await_true("it is said why a takes nothing", || {
            let target = self.target_status("four", "a")?;
            Ok(target["fault"] == "its server does not run under Sidestep")
        })?;
        // redis-benchmark would try for ever.
        let words = ["redis-cli", "-h", VIP[0], "-p", PORT, "ping"];
        let asks = self.configured(self.stage.command(Transport::Tcp, &words))?;
        let refused = launch::run(self.enclosed(&self.client, asks), HANG);
        let refused = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(refused.contains("refused"), "a client was not refused: {refused}");
        self.benchmark(Transport::Tcp, VIP[1], &["-c", "1", "-n", "1"]).context("the other VIP")?;
        self.require_smc(false)?;
        self.await_states("four", ["active"; 3])
    }

    /// One target without Sidestep takes nothing where SMC is required, also from clients without it.
    fn none_but_with_smc(&self, plain: &str) -> Result<()> {
        self.require_smc(true)?;
        self.await_states("four", ["active", "active", "down"])?;
        let given = self.target_status("four", plain)?["given"].clone();
        self.benchmark(Transport::Tcp, VIP[0], &["-c", "10", "-n", "200", "-k", "0"])?;
        let now = self.target_status("four", plain)?["given"].clone();
        ensure!(now == given, "{plain} does not speak SMC and was given connections");
        Ok(())
    }

    /// One target without Sidestep does not keep the connections of the others on TCP.
    fn moved_but_for(&self, plain: &str) -> Result<()> {
        let words = ["-c", "14", "-n", "300000", "-t", "set", "-q"];
        let load = || self.client_command(Transport::Smc, VIP[0], &words);
        self.stage.watch_until_seen(load).map(drop).with_context(|| format!("beside {plain}"))
    }

    /// Connections in shared memory leave hardly a packet at the distributor.
    fn past_the_distributor(&self) -> Result<String> {
        const TRANSACTIONS: u64 = 300_000;
        let (before, runs) = (self.packets()?, Cell::new(0));
        let count = TRANSACTIONS.to_string();
        let words = ["-c", "12", "-n", &count, "-t", "set", "-q"];
        for vip in VIP {
            let load = || {
                runs.set(runs.get() + 1);
                self.client_command(Transport::Smc, vip, &words)
            };
            self.stage.watch_until_seen(load).with_context(|| vip.to_owned())?;
        }
        let transactions = runs.get() * TRANSACTIONS;
        let packets = (self.packets()? - before) as f64 * 1000.0 / transactions as f64;
        ensure!(packets < 20.0, "{packets:.1} packets at the distributor per 1000 transactions");
        Ok(format!("{packets:.1}"))
    }

    fn packets(&self) -> Result<u64> {
        let mut sum = 0;
        for vip in ["four", "six"] {
            let status = self.vip_status(vip)?;
            let targets = status["targets"].as_array().context("targets")?;
            sum += targets.iter().filter_map(|it| it["link"]["packets"].as_u64()).sum::<u64>();
        }
        Ok(sum)
    }

    fn client_command(&self, transport: Transport, vip: &str, words: &[&str]) -> Result<Command> {
        let all = [&["redis-benchmark", "-h", vip, "-p", PORT][..], words].concat();
        let command = self.configured(self.stage.command(transport, &all))?;
        Ok(self.enclosed(&self.client, command))
    }

    fn benchmark(&self, transport: Transport, vip: &str, words: &[&str]) -> Result<()> {
        let words = [words, &["-t", "set", "-q"]].concat();
        launch::run(self.client_command(transport, vip, &words)?, HANG).map(drop)
    }

    fn vip(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.sidestep);
        command.arg("vip").args(words);
        launch::run(self.enclosed(&self.distributor, command), HANG)
    }

    fn vip_status(&self, vip: &str) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.vip(&["targets", "--json"])?)?;
        let all = status["vips"].as_array().context("VIPs")?;
        all.iter().find(|it| it["name"] == vip).cloned().with_context(|| format!("no {vip}"))
    }

    fn target_status(&self, vip: &str, target: &str) -> Result<Value> {
        let status = self.vip_status(vip)?;
        let all = status["targets"].as_array().context("targets")?;
        all.iter().find(|it| it["name"] == target).cloned().context("no such target")
    }

    fn await_states(&self, vip: &str, states: [&str; 3]) -> Result<()> {
        let is_so = || {
            let status = self.vip_status(vip)?;
            let all = status["targets"].as_array().context("targets")?;
            Ok(all.iter().map(|it| it["state"].as_str().unwrap_or_default()).eq(states))
        };
        await_true(&format!("{vip}: {states:?}"), is_so)
    }

    fn given(&self, vip: &str) -> Result<Vec<u64>> {
        let status = self.vip_status(vip)?;
        let all = status["targets"].as_array().context("targets")?;
        Ok(all.iter().filter_map(|it| it["given"].as_u64()).collect())
    }
}

fn await_true(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + HANG;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
