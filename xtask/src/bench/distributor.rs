//! Requests to redis through a distributor, on twenty connections, with replies of 800 bytes: TCP against no distributor and
//! against HAProxy, shared memory against TCP and against no distributor, the packets that the distributor sees of it, and what its program takes
//! for one. Then connections that are spread by weight.
//!
//! Client, distributor and target are network namespaces on a bridge, brought together by an agent. Here the two
//! columns are the two sides of each row's ratio.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::lab::Lab;
use super::launch::{self, Dialogue, Program, Transport};
use crate::enclosure::{CABLE, Group, Namespace};
use crate::suite::Lacking;
use crate::user;

const VIP: &str = "10.91.0.100";
/// In front of three addresses of the serving host.
const SPREAD: &str = "10.91.0.101";
const SPREAD_OVER: [(&str, f64); 3] =
    [("10.91.0.11", 4.0), ("10.91.0.12", 2.0), ("10.91.0.13", 1.0)];
const HOSTS: [(&str, &str); 3] =
    [("asks", "10.91.0.1"), ("spreads", "10.91.0.2"), ("serves", "10.91.0.11")];
const PORT: u16 = 7_610;
const PROXY_PORT: u16 = 7_611;

/// For a daemon to begin, beside what it measures.
const PATIENCE: Duration = Duration::from_secs(30);

/// In the order of the rows: TCP by the VIP and direct; TCP by the VIP and by HAProxy; SMC-D and TCP by the VIP; SMC-D by the
/// VIP and direct. Of the last three there is one side: nanoseconds of the program for a packet, packets of SMC-D, points by which shares are
/// wrong.
pub(super) fn requests(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let scene = Scene::set(lab)?;
    let by_vip = scene.rate(Transport::Tcp, VIP, PORT)?;
    if transport == Transport::Tcp {
        let (direct, proxy) = (HOSTS[2].1, HOSTS[1].1);
        let by_proxy = scene.rate(Transport::Tcp, proxy, PROXY_PORT)?;
        let moved = scene.rate(Transport::Smc, direct, PORT)?;
        let direct = scene.rate(Transport::Tcp, direct, PORT)?;
        return Ok(vec![direct, by_proxy, by_vip, moved, 0.0, 0.0, 0.0]);
    }
    let before = scene.run_time()?;
    scene.rate(Transport::Tcp, VIP, PORT)?;
    let after = scene.run_time()?;
    let per_packet = (after.0 - before.0) / (after.1 - before.1).max(1.0);
    let before = scene.packets()?;
    let moved = scene.rate(Transport::Smc, VIP, PORT)?;
    let packets = (scene.packets()? - before) * 1000.0 / scene.requests();
    Ok(vec![by_vip, by_vip, moved, moved, per_packet, packets, scene.error_of_shares()?])
}

struct Scene<'a> {
    /// They end before what they run in goes.
    _programs: (Vec<Dialogue>, [Program; 2]),
    lab: &'a Lab,
    sidestep: PathBuf,
    hosts: Vec<Namespace>,
    _switch: Namespace,
    group: Group,
    distributor: u32,
    _stats: Stats,
}

impl<'a> Scene<'a> {
    fn set(lab: &'a Lab) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("network namespaces, a distributor and an agent need root".to_owned()));
        }
        let sidestep = lab.launcher.observer().context("the distributor is in `sidestep`")?;
        let switch = Namespace::make("bench-switch")?;
        switch.ip(&["link", "add", "name", "bridge", "type", "bridge"])?;
        switch.ip(&["link", "set", "bridge", "up"])?;
        let mut hosts = Vec::new();
        for (what, address) in HOSTS {
            let host = Namespace::make(what)?;
            let port = ["link", "add", "name", what, "type", "veth", "peer", "name", CABLE];
            switch.ip(&[&port[..], &["netns", host.name()]].concat())?;
            switch.ip(&["link", "set", what, "master", "bridge", "up"])?;
            host.settle(CABLE, &[address])?;
            hosts.push(host);
        }
        hosts[2].settle(CABLE, &SPREAD_OVER.map(|(address, _)| address)[1..])?;
        let group = Group::make()?;
        let begin = |host: Option<&Namespace>, mut command: Command, line: &str| {
            if let Some(host) = host {
                host.enclose(&mut command);
                group.enclose(&mut command);
            }
            let mut dialogue = Dialogue::start(command)?;
            dialogue.await_line(line, PATIENCE)?;
            Ok::<_, anyhow::Error>(dialogue)
        };
        let mut agent = Command::new(sidestep);
        agent.arg("agent").arg("--cgroup").arg(group.at());
        agent.args(["--socket", &lab.path("vip-agent.sock")]);
        let agent = begin(None, agent, "sidestep agent: programs of different")?;
        let mut target = Command::new(sidestep);
        target.args(["distributor", "target", VIP, SPREAD]);
        let target = begin(Some(&hosts[2]), target, "sidestep distributor: this host serves")?;
        let config = lab.write("distributor.toml", config())?;
        let mut distributor = Command::new(sidestep);
        distributor.args(["distributor", "run", "--config", &config]);
        let mut distributor = begin(Some(&hosts[1]), distributor, "sidestep distributor: spread")?;
        let server = serve(lab, &hosts[2], &group)?;
        let proxy = proxy(lab, &hosts[1])?;
        let scene = Self {
            lab,
            sidestep: sidestep.to_owned(),
            hosts,
            _switch: switch,
            group,
            distributor: distributor.program().pid(),
            _programs: (vec![agent, target, distributor], [server, proxy]),
            _stats: Stats::count()?,
        };
        scene.await_targets()?;
        // What is asked for from then on.
        let words = ["-c", "20", "-d", "800", "-n", "20", "-t", "set"];
        scene.ask(Transport::Tcp, HOSTS[2].1, PORT, &words)?;
        Ok(scene)
    }

    fn await_targets(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status()?;
            let is_taken = |at: &str| status.pointer(at) == Some(&Value::Bool(true));
            if is_taken("/vips/0/link/is_taken") && is_taken("/vips/1/link/is_taken") {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "a VIP has no target: {status}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Of both VIPs, by name.
    fn status(&self) -> Result<Value> {
        let mut command = Command::new(&self.sidestep);
        command.args(["vip", "targets", "--json"]);
        self.hosts[1].enclose(&mut command);
        Ok(serde_json::from_str(&launch::run(command, PATIENCE)?)?)
    }

    /// That the distributor has sent on to the one target.
    fn packets(&self) -> Result<f64> {
        let status = self.status()?;
        let packets = status.pointer("/vips/0/targets/0/link/packets").and_then(Value::as_f64);
        packets.with_context(|| format!("no packets in {status}"))
    }

    /// Ten thousand connections, spread at 4:2:1: by how many points the share is wrong that is most so.
    fn error_of_shares(&self) -> Result<f64> {
        let words = ["-c", "20", "-n", "10000", "-k", "0", "-t", "get"];
        self.ask(Transport::Tcp, SPREAD, PORT, &words)?;
        let status = self.status()?;
        let targets = status.pointer("/vips/1/targets").and_then(Value::as_array);
        let targets = targets.with_context(|| format!("no targets in {status}"))?;
        let given: Vec<f64> = targets.iter().filter_map(|it| it["given"].as_f64()).collect();
        let weights = SPREAD_OVER.map(|(_, weight)| weight);
        let (all, sum): (f64, f64) = (given.iter().sum(), weights.iter().sum());
        let error = |(given, weight): (&f64, f64)| (given / all - weight / sum).abs() * 100.0;
        Ok(given.iter().zip(weights).map(error).fold(0.0, f64::max))
    }

    /// Of one rate.
    fn requests(&self) -> f64 {
        (self.lab.seconds * 1e5).round()
    }

    /// Requests per second.
    fn rate(&self, transport: Transport, host: &str, port: u16) -> Result<f64> {
        let count = self.requests().to_string();
        let words = ["-c", "20", "-d", "800", "-n", &count, "-t", "get"];
        let said = self.ask(transport, host, port, &words)?;
        let line = said.lines().find_map(|line| line.strip_prefix("\"GET\",\""));
        let rate = line.and_then(|line| line.split('"').next()?.parse().ok());
        rate.with_context(|| format!("no rate to {host} in {said}"))
    }

    fn ask(&self, transport: Transport, host: &str, port: u16, words: &[&str]) -> Result<String> {
        let port = port.to_string();
        let words = [&["-h", host, "-p", &port, "--csv"], words].concat();
        let mut client = self.lab.launcher.launch(transport, "redis-benchmark", words);
        client.env("SIDESTEP_CONFIG", settings(self.lab)?);
        self.hosts[0].enclose(&mut client);
        self.group.enclose(&mut client);
        launch::run(client, self.lab.patience())
    }

    /// Nanoseconds and runs of the distributor's program so far.
    fn run_time(&self) -> Result<(f64, f64)> {
        /// `BPF_PROG_TYPE_SCHED_CLS`.
        const KIND: &str = "3";
        let mut files = fs::read_dir(format!("/proc/{}/fdinfo", self.distributor))?;
        let told = files.find_map(|entry| {
            let text = fs::read_to_string(entry.ok()?.path()).ok()?;
            let value = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.trim().to_owned())
            };
            if value("prog_type:")? != KIND {
                return None;
            }
            Some((value("run_time_ns:")?.parse().ok()?, value("run_cnt:")?.parse().ok()?))
        });
        told.context("the kernel does not tell how long the program runs")
    }
}

fn config() -> String {
    let target = |(address, weight)| format!("{{ address = {address:?}, weight = {weight} }}");
    let [a, b, c] = SPREAD_OVER.map(target);
    format!(
        "[distributor]\ninterface = \"{CABLE}\"\n[vip.rr]\naddress = \"{VIP}:{PORT}\"\n\
         probe_interval = \"100ms\"\ntargets = {{ a = \"{}\" }}\n\
         [vip.spread]\naddress = \"{SPREAD}:{PORT}\"\nprobe_interval = \"100ms\"\n\
         targets = {{ a = {a}, b = {b}, c = {c} }}\n",
        HOSTS[2].1
    )
}

/// With which programs find the agent. Both ends are root's, of two namespaces.
fn settings(lab: &Lab) -> Result<String> {
    let socket = lab.path("vip-agent.sock");
    let text =
        format!("[smc]\nagent_socket = \"{socket}\"\n[policy]\nshare_with_users = [\"root\"]\n");
    lab.write("distributor-programs.toml", text)
}

fn serve(lab: &Lab, host: &Namespace, group: &Group) -> Result<Program> {
    let port = PORT.to_string();
    let words = ["--port", &port, "--protected-mode", "no", "--save", ""];
    let mut server = lab.launcher.launch(Transport::Smc, "redis-server", words);
    server.env("SIDESTEP_CONFIG", settings(lab)?);
    host.enclose(&mut server);
    group.enclose(&mut server);
    let mut server = Program::start(server, &lab.scratch)?;
    server.await_listener(PORT)?;
    Ok(server)
}

fn proxy(lab: &Lab, host: &Namespace) -> Result<Program> {
    let text = format!(
        "global\n nbthread 2\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1m\n timeout server 1m\n\
         frontend f\n bind :{PROXY_PORT}\n default_backend b\nbackend b\n server s {}:{PORT}\n",
        HOSTS[2].1
    );
    let file = lab.write("haproxy.cfg", text)?;
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f", &file]);
    host.enclose(&mut command);
    let mut proxy = Program::start(command, &lab.scratch)?;
    proxy.await_listener(PROXY_PORT)?;
    Ok(proxy)
}

/// The kernel counts how long programs run, as long as this is there.
struct Stats(String);

impl Stats {
    const PATH: &'static str = "/proc/sys/kernel/bpf_stats_enabled";

    fn count() -> Result<Self> {
        let before = fs::read_to_string(Self::PATH)?;
        fs::write(Self::PATH, "1")?;
        Ok(Self(before))
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        let _ = fs::write(Self::PATH, &self.0);
    }
}
