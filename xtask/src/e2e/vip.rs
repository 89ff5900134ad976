//! A VIP in front of three redis, in a network namespace and a control group of its own: without an agent
//! and with one, while a target is drained and another restarts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::enclosure::{Group, Namespace};
use crate::suite::{HANG, Lacking};
use crate::user;

const TARGETS: [u16; 3] = [7001, 7002, 7003];

const CONFIG: &str = "
[vip.four]
address = \"127.0.0.10:6379\"
method = \"roundrobin\"
targets = { a = \"127.0.0.1:7001\", b = \"127.0.0.1:7002\", c = \"127.0.0.1:7003\" }
[vip.six]
address = \"[::1]:6380\"
method = \"weightedactive\"
probe = \"tcp\"
probe_interval = \"200ms\"
targets = { a = \"[::1]:7001\", b = \"[::1]:7002\", c = \"[::1]:7003\" }
";

/// Those of `packaging/sidestep-vip.service`.
const CAPABILITIES: &str = "-all,+bpf,+net_admin,+net_bind_service,+sys_ptrace,+dac_read_search";

/// How `sidestep vip list` says that clients may move.
const MOVES: &str = "may move to shared memory";
const BY_OPTION: &str = ", by the TCP option as well";

pub(crate) fn targets(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let mut servers: Vec<Program> =
        TARGETS.iter().map(|port| scene.redis(*port)).collect::<Result<_>>()?;
    let _vips = scene.vips()?;
    scene.await_list(MOVES)?;
    scene.load("127.0.0.10", "6379")?;
    scene.load("::1", "6380")?;
    ensure!(scene.given("four", "b")? >= 3, "b was given no third of 9 connections");

    scene.vip(&["drain", "four/a"])?;
    let given = scene.given("four", "a")?;
    scene.load("127.0.0.10", "6379")?;
    ensure!(scene.given("four", "a")? == given, "a drained target was given connections");
    scene.vip(&["resume", "four/a"])?;

    scene.require_smc(&mut servers)?;
    drop(servers.remove(1));
    scene.await_state("four", "b", "down")?;
    scene.load("127.0.0.10", "6379")?;
    servers.push(scene.redis(TARGETS[1])?);
    scene.await_state("four", "b", "active")?;
    scene.await_state("six", "b", "active")?;

    let _agent = scene.agent()?;
    // An agent knows listeners that begin after it.
    servers.clear();
    let again: Vec<Program> =
        TARGETS.iter().map(|port| scene.redis(*port)).collect::<Result<_>>()?;
    scene.await_list(BY_OPTION)?;
    scene.load("127.0.0.10", "6379")?;
    drop(again);
    Ok("IPv4 and IPv6, drained, restarted, by the option too".to_owned())
}

/// Where it is played.
struct Scene<'a> {
    stage: &'a Stage<'a>,
    sidestep: PathBuf,
    namespace: Namespace,
    group: Group,
}

impl<'a> Scene<'a> {
    fn set(stage: &'a Stage<'a>) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("VIPs, an agent and a network namespace need root".to_owned()));
        }
        let Some(sidestep) = stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to have VIPs".to_owned()));
        };
        let (namespace, group) = (Namespace::make("vip")?, Group::make()?);
        Ok(Self { stage, sidestep: sidestep.to_owned(), namespace, group })
    }

    fn enclosed(&self, mut command: Command) -> Command {
        self.namespace.enclose(&mut command);
        self.group.enclose(&mut command);
        command
    }

    fn redis(&self, port: u16) -> Result<Program> {
        self.serve(self.stage.server_command(&redis(port)), port)
    }

    fn serve(&self, command: Command, port: u16) -> Result<Program> {
        let mut server = Program::start(self.enclosed(command), &self.stage.house.scratch)?;
        server.await_listener(port)?;
        Ok(server)
    }

    fn vips(&self) -> Result<Dialogue> {
        let config = self.stage.house.scratch.join("vip.toml");
        fs::write(&config, CONFIG)?;
        // With what its unit lets it have, and no more.
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={CAPABILITIES}"));
        command.arg(format!("--inh-caps={CAPABILITIES}"));
        command.arg(&self.sidestep).args(["vip", "run", "--config"]).arg(config);
        let mut vips = Dialogue::start(self.enclosed(command))?;
        vips.await_line("sidestep vip: six", HANG)?;
        Ok(vips)
    }

    fn agent(&self) -> Result<Dialogue> {
        let mut command = Command::new(&self.sidestep);
        command.arg("agent").arg("--cgroup").arg(self.group.at());
        command.arg("--socket").arg(self.stage.house.scratch.join("vip-agent.sock"));
        let mut agent = Dialogue::start(self.enclosed(command))?;
        agent.await_line("sidestep agent: the TCP option", HANG)?;
        Ok(agent)
    }

    /// Where SMC is required a target that is started without Sidestep takes nothing, and takes again what comes once it is started
    /// with it.
    fn require_smc(&self, servers: &mut Vec<Program>) -> Result<()> {
        let config = self.stage.house.scratch.join("vip.toml");
        fs::write(&config, CONFIG.replace("[vip.four]\n", "[vip.four]\nsmc = \"require\"\n"))?;
        self.vip(&["apply"])?;
        self.await_state("four", "c", "active")?;
        drop(servers.pop());
        let plain =
            self.serve(self.stage.command(Transport::Tcp, &redis(TARGETS[2])), TARGETS[2])?;
        let fault = || Ok(self.target("four", "c")?["fault"] == "it does not run under Sidestep");
        await_true("it is said why c takes nothing", fault)?;
        self.await_state("four", "c", "down")?;
        self.await_state("six", "c", "active")?;
        self.load("127.0.0.10", "6379")?;
        drop(plain);
        servers.push(self.redis(TARGETS[2])?);
        self.await_state("four", "c", "active")?;
        fs::write(&config, CONFIG)?;
        self.vip(&["apply"]).map(drop)
    }

    /// Nine connections at once, all of which move to shared memory.
    fn load(&self, host: &str, port: &str) -> Result<()> {
        let words = ["redis-benchmark", "-h", host, "-p", port, "-c", "9", "-n", "200000"];
        let words = [&words[..], &["-t", "set", "-q"]].concat();
        let load = || Ok(self.enclosed(self.stage.client_command(&words)));
        self.stage.watch_until_seen(load).map(drop).with_context(|| format!("{host} port {port}"))
    }

    fn vip(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.sidestep);
        command.arg("vip").args(words);
        launch::run(self.enclosed(command), HANG)
    }

    fn await_list(&self, words: &str) -> Result<()> {
        await_true(words, || Ok(self.vip(&["list"])?.matches(words).count() == 2))
    }

    fn await_state(&self, vip: &str, target: &str, state: &str) -> Result<()> {
        let is_so = || Ok(self.target(vip, target)?["state"] == state);
        await_true(&format!("{vip}/{target} {state}"), is_so)
    }

    fn given(&self, vip: &str, target: &str) -> Result<u64> {
        self.target(vip, target)?["given"].as_u64().context("a count")
    }

    fn target(&self, vip: &str, target: &str) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.vip(&["targets", "--json"])?)?;
        let named = |all: &Value, name: &str| {
            all.as_array().and_then(|all| all.iter().find(|it| it["name"] == name)).cloned()
        };
        let found = named(&status["vips"], vip).and_then(|vip| named(&vip["targets"], target));
        found.with_context(|| format!("no {vip}/{target} in {status}"))
    }
}

fn redis(port: u16) -> Vec<String> {
    let port = port.to_string();
    let words = ["redis-server", "--bind", "127.0.0.1", "::1", "--port", &port];
    let words = words.into_iter().chain(["--save", "", "--appendonly", "no"]);
    words.map(str::to_owned).collect()
}

fn await_true(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + HANG;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
