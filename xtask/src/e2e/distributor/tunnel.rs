//! A target beyond a router: large values go there and back by IPv4 and IPv6, also when the way becomes narrower, and datagrams do; it is
//! drained, and its connections move to shared memory. It takes nothing from a distributor that it does not know. Another distributor
//! takes over, when it is told to, and when the owner is killed. A stranger forges packets of the tunnel.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::takeover::{self, Seat, Store};
use super::{BACKUP, CLIENT, CONFIG, DISTRIBUTOR, PORT, Scene, VIP, await_true};
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::e2e::stage::Stage;
use crate::enclosure::{CABLE, Namespace};
use crate::suite::HANG;

const ROUTER: [&str; 2] = ["10.77.0.9", "fd77::9"];
/// Beyond the router: its own addresses, and the target's.
pub(super) const FAR: &str = "far";
const ROUTER_THERE: [&str; 2] = ["10.78.0.1", "fd78::1"];
pub(super) const TARGET: [&str; 2] = ["10.78.0.13", "fd78::13"];
const NETWORKS: [&str; 2] = ["10.78.0.0/24", "fd78::/64"];
/// Which of the targets it is.
pub(super) const C: usize = 2;

/// Of VIPs that this target alone serves.
const ECHOES: &str = "7001";
pub(super) const DATAGRAMS: &str = "7002";
const MORE_VIPS: &str = r#"
[vip.echoes]
address = "10.77.0.100:7001"
targets.c = "10.78.0.13"
[vip.datagrams]
address = "10.77.0.100:7002"
protocol = "udp"
targets.c = "10.78.0.13"
[vip.kept]
address = "10.77.0.100:7003"
method = "roundrobin"
timedaffinity = "60s"
probe = "listens"
targets = { a = "10.77.0.11", b = "10.77.0.12", c = "10.78.0.13" }
"#;

/// At this VIP no server listens: what counts is which target refuses a client.
const KEPT: &str = "7003";
/// Another address of the client's host.
const OTHER_CLIENT: &str = "10.77.0.4";
const KNOCKS: &str = "5";

/// What fits into a tunnel where links carry 1500 bytes: 20 + 8 + 20 bytes less.
const FITS: &str = "1452";
/// A link that is narrower.
const NARROW: u32 = 1400;

pub(crate) fn tunnel(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage)?;
    let router = scene.move_beyond_a_router()?;
    let _targets: Vec<Dialogue> =
        (0..C).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let mut servers: Vec<Program> =
        (0..3).map(|target| scene.redis(target, Transport::Tcp)).collect::<Result<_>>()?;
    let _echoes = scene.far_script(&["echo_back.py", ECHOES])?;
    let _distributor = scene.distributor()?;
    scene.stranger_is_refused()?;
    let _target = scene.target(C)?;
    for vip in ["four", "six"] {
        scene.await_states(vip, ["active"; 3])?;
    }
    scene.ways_are_told()?;
    let _datagrams = scene.far_script(&["datagrams.py", "serve", VIP[0], DATAGRAMS])?;
    // What follows is for the target beyond the router.
    for target in ["four/a", "four/b", "six/a", "six/b"] {
        scene.vip(&["drain", target])?;
    }
    scene.datagrams()?;
    scene.large_values(&router)?;
    scene.drain_beyond()?;

    let _agent = scene.agent()?;
    drop(servers.pop());
    servers.push(scene.redis(C, Transport::Smc)?);
    scene.await_states("four", ["draining", "draining", "active"])?;
    let words = ["-c", "8", "-n", "100000", "-t", "set", "-q"];
    stage
        .watch_until_seen(|| scene.client_command(Transport::Smc, VIP[0], &words))
        .context("connections through the tunnel to shared memory")?;
    Ok("no byte lost by TCP and UDP, 1400 bytes where 1500 were; SMC-D".to_owned())
}

/// Another distributor owns the VIPs, in the midst of connections through the tunnel: it is told to, then the owner is killed. Bytes go on,
/// and are the same at their end. Clients meet the same targets as before.
pub(crate) fn tunnel_takeover(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage)?;
    let _router = scene.move_beyond_a_router()?;
    let _store = Store::start(&scene)?;
    let _targets: Vec<Dialogue> =
        (0..3).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let _echoes = scene.far_script(&["echo_back.py", ECHOES])?;
    let [one, two] = [Seat::new(&scene, 0), Seat::new(&scene, 1)];
    let _first = one.run()?;
    one.await_owner(&one, &[])?;
    let second = two.run()?;
    one.await_owner(&one, &[&two])?;
    for seat in [&one, &two] {
        seat.await_active("echoes")?;
        seat.await_active("kept")?;
    }
    let met = scene.meet_a_target(&one, &two)?;
    let mut asker = scene.near_script(&["keep_asking.py", VIP[0], ECHOES, "50", "0.02"])?;
    asker.await_line("connected", HANG)?;
    let mut comparer = scene.near_script(&["compare_echoes.py", VIP[0], ECHOES, "8", "30000"])?;
    comparer.await_line("connected", HANG)?;
    two.await_connections("echoes", 58)?;
    one.command(&["distributor", "move", BACKUP[0]])?;
    two.await_owner(&two, &[&one])?;
    scene.knock(CLIENT[0])?;
    let again = two.counts("kept", "given")?;
    ensure!(again == met, "a client met other targets than before: {again:?}, not {met:?}");
    one.await_connections("echoes", 58)?;
    // Its process is killed.
    drop(second);
    one.await_owner(&one, &[])?;
    let told: Value = serde_json::from_str(&asker.finish(HANG)?)?;
    ensure!(told["broken"] == 0, "{told}");
    let compared: Value = serde_json::from_str(&comparer.finish(HANG)?)?;
    ensure!(compared["broken"] == 0, "{compared}");
    let wait = compared["longest_wait"].as_f64().context("a wait")?;
    Ok(format!(
        "none of 58 connections broken by two takeovers, {} bytes compared, longest wait {wait:.2} s",
        compared["bytes"]
    ))
}

impl Scene<'_> {
    /// Has target c be beyond a router, which is returned.
    pub(super) fn move_beyond_a_router(&mut self) -> Result<Namespace> {
        let (router, target) = (Namespace::make("router")?, Namespace::make("beyond")?);
        let port = ["link", "add", "name", "router", "type", "veth", "peer", "name", CABLE];
        self.switch.ip(&[&port[..], &["netns", router.name()]].concat())?;
        self.switch.ip(&["link", "set", "router", "master", "bridge", "up"])?;
        router.join(FAR, target.name())?;
        router.settle(CABLE, &ROUTER)?;
        router.settle(FAR, &ROUTER_THERE)?;
        target.settle(FAR, &TARGET)?;
        let mut settings = vec!["ipv4.ip_forward=1", "ipv6.conf.all.forwarding=1"];
        // Answers come from an address of the other side.
        settings.extend(["all", CABLE, FAR].map(|interface| match interface {
            "all" => "ipv4.conf.all.rp_filter=0",
            CABLE => "ipv4.conf.cable.rp_filter=0",
            _ => "ipv4.conf.far.rp_filter=0",
        }));
        for setting in settings {
            let mut set = Command::new("sysctl");
            set.args(["--quiet", "--write", &format!("net.{setting}")]);
            router.enclose(&mut set);
            launch::run(set, HANG)?;
        }
        for (network, gateway) in NETWORKS.into_iter().zip(ROUTER) {
            for host in [&self.client, &self.distributor, &self.backup] {
                host.ip(&["route", "add", network, "via", gateway])?;
            }
        }
        for gateway in ROUTER_THERE {
            target.ip(&["route", "add", "default", "via", gateway])?;
        }
        self.targets[C] = target.into();
        self.config = Self::config_of([&DISTRIBUTOR[..], &BACKUP].concat());
        self.capabilities = takeover::CAPABILITIES;
        Ok(router)
    }

    /// With target c there, which knows these distributors.
    fn config_of(distributors: Vec<&str>) -> String {
        let known = format!("[distributor]\nhosts = {distributors:?}");
        let config = CONFIG.replace("[distributor]", &known).replace("10.77.0.13", TARGET[0]);
        config.replace("fd77::13", TARGET[1]) + MORE_VIPS
    }

    /// A target that does not know the distributor is not there for it, and it is said why.
    fn stranger_is_refused(&self) -> Result<()> {
        let config = self.stage.house.scratch.join("distributor-unknown.toml");
        fs::write(&config, Self::config_of(vec![BACKUP[0]]))?;
        let _target = self.target_with(C, &config)?;
        await_true("it is said that the target does not know the distributor", || {
            let target = self.target_status("four", "c")?;
            let fault = target["fault"].as_str().unwrap_or_default();
            Ok(target["state"] == "down" && fault.contains("does not know this distributor"))
        })
    }

    fn ways_are_told(&self) -> Result<()> {
        for (target, way) in [("a", "link"), ("c", "tunnel")] {
            let told = &self.target_status("six", target)?["link"];
            ensure!(told["via"] == way, "{target} is not reached by a {way}: {told}");
        }
        Ok(())
    }

    /// A script on the host of target c.
    pub(super) fn far_script(&self, words: &[&str]) -> Result<Dialogue> {
        let mut command = Command::new("python3");
        command.arg(self.stage.house.script(words[0])).args(&words[1..]);
        self.targets[C].enclose(&mut command);
        Dialogue::start(command)
    }

    pub(super) fn near_script(&self, words: &[&str]) -> Result<Dialogue> {
        let mut command = Command::new("python3");
        command.arg(self.stage.house.script(words[0])).args(&words[1..]);
        self.client.enclose(&mut command);
        Dialogue::start(command)
    }

    /// Begins connections from there, which no server takes.
    fn knock(&self, from: &str) -> Result<()> {
        self.near_script(&["knock.py", from, VIP[0], KEPT, KNOCKS])?.finish(HANG).map(drop)
    }

    /// Has the client meet a target, which is not the first in turn, and the backup know. Returns how often it has met each.
    fn meet_a_target(&self, owner: &Seat<'_>, backup: &Seat<'_>) -> Result<Vec<u64>> {
        self.client.ip(&["address", "add", &format!("{OTHER_CLIENT}/24"), "dev", CABLE])?;
        self.knock(OTHER_CLIENT)?;
        let before = owner.counts("kept", "given")?;
        self.knock(CLIENT[0])?;
        let now = owner.counts("kept", "given")?;
        let met: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        ensure!(met.iter().any(|count| count.to_string() == KNOCKS), "no target was kept: {met:?}");
        ensure!(met[0] == 0, "the target is the first in turn: {met:?}");
        await_true("the backup knows which clients meet which targets", || {
            let [known, due] = [backup, owner].map(|seat| seat.counts("kept", "affinities"));
            let (known, due) = (known?, due?);
            Ok(known == due && due.iter().sum::<u64>() == 2)
        })?;
        Ok(met)
    }

    /// Large values went there and back by a VIP. They do once more at the end of the talk, over the same connection and a new one.
    pub(super) fn large_talk(&self, vip: &str) -> Result<Dialogue> {
        let seed = self.stage.house.seed.to_string();
        let mut talk = self.near_script(&["large_values.py", vip, PORT, &seed])?;
        talk.await_line("compared", HANG).with_context(|| vip.to_owned())?;
        Ok(talk)
    }

    /// Large values go there and back, and again over the same connections once the way is narrower.
    fn large_values(&self, router: &Namespace) -> Result<()> {
        let talks = VIP.map(|vip| self.large_talk(vip).map(|talk| (vip, talk)));
        let talks = talks.into_iter().collect::<Result<Vec<_>>>()?;
        for host in [router, &self.targets[C]] {
            host.ip(&["link", "set", FAR, "mtu", &NARROW.to_string()])?;
        }
        for (vip, talk) in talks {
            talk.finish(HANG).with_context(|| format!("{vip}, by a narrower way"))?;
        }
        await_true("the length of packets of the narrow way is known", || {
            Ok(self.target_status("four", "c")?["link"]["mtu"] == NARROW)
        })
    }

    fn datagrams(&self) -> Result<()> {
        let asks = self.near_script(&["datagrams.py", "ask", VIP[0], DATAGRAMS, FITS])?;
        asks.finish(HANG).map(drop).context("datagrams")
    }

    /// A connection of the target goes on while it is drained, and the target is given no other.
    fn drain_beyond(&self) -> Result<()> {
        let talk = self.large_talk(VIP[0])?;
        await_true("the connection of c is counted", || {
            Ok(self.target_status("four", "c")?["connections"].as_u64() > Some(0))
        })?;
        self.vip(&["resume", "four/a"])?;
        self.vip(&["drain", "four/c"])?;
        let given = self.target_status("four", "c")?["given"].clone();
        self.benchmark(Transport::Tcp, VIP[0], &["-c", "5", "-n", "50", "-k", "0"])?;
        talk.finish(HANG).context("a connection of a drained target")?;
        let now = self.target_status("four", "c")?["given"].clone();
        ensure!(now == given, "a drained target was given connections");
        self.vip(&["resume", "four/c"])?;
        self.vip(&["drain", "four/a"]).map(drop)
    }
}
