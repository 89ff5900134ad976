//! A stranger sends a target packets of a tunnel. Of who lacks the key, a distributor's address or a VIP within nothing comes to a socket
//! there, and each packet is reported, and counted by the metrics of the agent there. A packet in which nothing is wrong arrives, so what is refused is refused for that.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tunnel::{C, DATAGRAMS, FAR, TARGET};
use super::{BACKUP, CLIENT, DISTRIBUTOR, PORT, Scene, VIP, await_true};
use crate::bench::launch::{self, Dialogue};
use crate::e2e::stage::Stage;
use crate::enclosure::Namespace;
use crate::suite::HANG;

/// Of each kind.
const COUNT: u64 = 20;
/// Where the target's agent tells metrics, in its namespace.
const METRICS: &str = "127.0.0.1:9463";
/// What a forged datagram has, and a good one.
const FORGED: &str = "forged";
const GOOD: &str = "good";

/// What a stranger knows of one family.
struct Known {
    distributor: &'static str,
    client: &'static str,
    target: &'static str,
    vip: &'static str,
    key: u64,
}

pub(crate) fn forged(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage)?;
    let router = scene.move_beyond_a_router()?;
    let log = stage.house.scratch.join("distributor-target.log");
    let _target = scene.target_that_reports(&log)?;
    let _agent = scene.agent_of_the_target()?;
    let _echoes = scene.far_script(&["echo_back.py", PORT])?;
    let addresses = [VIP[0], VIP[1], TARGET[0], TARGET[1]];
    let mut heard =
        scene.far_script(&[&["forge_tunnel.py", "hear", DATAGRAMS][..], &addresses].concat())?;
    heard.await_line("hearing", HANG)?;
    let _distributor = scene.distributor()?;
    for vip in ["four", "six"] {
        await_true(&format!("the target of {vip} is active"), || {
            Ok(scene.target_status(vip, "c")?["state"] == "active")
        })?;
    }
    let mut forged = 0;
    for family in [0, 1] {
        let known = scene.learn(&router, family)?;
        forged += scene.forge(&known)?;
        await_true("each forged packet is reported", || Ok(reported(&log)? >= forged))?;
        // Nothing is wrong with this one, and it is behind the others.
        scene.send(&known, known.distributor, known.key, known.vip, (GOOD, 1))?;
        heard.await_line(GOOD, HANG).context("a packet as the distributor sends it")?;
        ensure!(!heard.said().contains(FORGED), "a forged packet came to a socket");
        ensure!(reported(&log)? == forged, "more is reported than was forged");
        let line = format!("sidestep_vip_tunnel_packets_total{{result=\"refused\"}} {forged}");
        await_true(&line, || Ok(scene.metrics()?.lines().any(|it| it == line)))?;
    }
    Ok(format!("{forged} forged packets, each counted, none taken"))
}

/// How many packets the target has reported as dropped.
fn reported(log: &Path) -> Result<u64> {
    let text = fs::read_to_string(log)?;
    let count = |line: &str| {
        let (before, _) = line.split_once(" packets of tunnels, to UDP port 6081, were dropped")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    };
    Ok(text.lines().filter_map(count).sum())
}

impl Scene<'_> {
    /// The target beyond the router, with its log in a file.
    fn target_that_reports(&self, log: &Path) -> Result<Dialogue> {
        // The target would write behind what an earlier run has left.
        let _ = fs::remove_file(log);
        let mut command = Command::new(&self.sidestep);
        command.args(["distributor", "target", "--config"]).arg(self.config()?);
        command.arg(format!("--log=warn:{}", log.display()));
        let mut target = Dialogue::start(self.enclosed(&self.targets[C], command))?;
        target.await_line("sidestep distributor: this host serves", HANG)?;
        Ok(target)
    }

    fn agent_of_the_target(&self) -> Result<Dialogue> {
        let mut command = Command::new(&self.sidestep);
        command.arg("agent").arg("--cgroup").arg(self.group.at());
        command.arg("--socket").arg(self.agent_socket()).args(["--metrics", METRICS]);
        self.targets[C].enclose(&mut command);
        let mut agent = Dialogue::start(command)?;
        agent.await_line("sidestep agent: metrics are told", HANG)?;
        Ok(agent)
    }

    fn metrics(&self) -> Result<String> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--fail", &format!("http://{METRICS}/metrics")]);
        self.targets[C].enclose(&mut command);
        launch::run(command, HANG)
    }

    /// Who sits on the way can read the key.
    fn learn(&self, router: &Namespace, family: usize) -> Result<Known> {
        let (distributor, vip) = (DISTRIBUTOR[family], VIP[family]);
        let mut command = self.script(&["learn", FAR, distributor]);
        router.enclose(&mut command);
        let mut learns = Dialogue::start(command)?;
        learns.await_line("watching", HANG)?;
        self.near_script(&["hold_connections.py", vip, PORT, "1"])?.finish(HANG)?;
        let key = learns.await_line("key ", HANG)?;
        let key = key.strip_prefix("key ").context("a key")?;
        let key = u64::from_str_radix(key, 16)?;
        let (client, target) = (CLIENT[family], TARGET[family]);
        Ok(Known { distributor, client, target, vip, key })
    }

    /// Sends packets in which one thing is wrong, and returns how many.
    fn forge(&self, known: &Known) -> Result<u64> {
        let (sender, key, vip) = (known.distributor, known.key, known.vip);
        let backup = BACKUP[usize::from(sender.contains(':'))];
        let kinds = [
            ("a stranger who knows the key", known.client, key, vip),
            ("who does not know the key", sender, 0, vip),
            ("one bit of the key", sender, key ^ 1 << 40, vip),
            ("another distributor's address, with this one's key", backup, key, vip),
            ("for the target itself, and no VIP", sender, key, known.target),
        ];
        for (what, sender, key, to) in kinds {
            self.send(known, sender, key, to, (FORGED, COUNT)).with_context(|| what.to_owned())?;
        }
        Ok(kinds.len() as u64 * COUNT)
    }

    /// From the client's host, in another one's name.
    fn send(
        &self,
        known: &Known,
        sender: &str,
        key: u64,
        to: &str,
        (word, count): (&str, u64),
    ) -> Result<()> {
        let (key, count) = (format!("{key:016x}"), count.to_string());
        let mut command = self.script(&[
            "send",
            sender,
            known.target,
            &key,
            known.client,
            to,
            DATAGRAMS,
            word,
            &count,
        ]);
        self.client.enclose(&mut command);
        launch::run(command, HANG).map(drop)
    }

    fn script(&self, words: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command.arg(self.stage.house.script("forge_tunnel.py")).args(words);
        command
    }
}
