//! Two distributors with a store of three members, and connections that go on, by the hash and to the least busy: the owner
//! gives the VIPs up, stands still and is killed, while a target is drained and while none is; then one member of the store
//! is killed, and a second one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{BACKUP, DISTRIBUTOR, PORT, STORE, Scene, VIP, await_true};
use crate::bench::launch::{self, Dialogue, Program};
use crate::e2e::stage::Stage;
use crate::enclosure::Namespace;
use crate::suite::HANG;

/// Of each family, and from one echo of each to the next, in seconds.
const CONNECTIONS: &str = "500";
const PAUSE: &str = "0.1";
const WAIT_MAX_S: f64 = 3.0;
/// Longer than a lease, and than a second one.
const TWO_LEASES: Duration = Duration::from_secs(4);

/// Those of `packaging/sidestep-distributor.service`, and one in the place of its LimitRTPRIO=: to raise that takes more than root of a
/// container has.
pub(super) const CAPABILITIES: &str = "-all,+bpf,+net_admin,+net_raw,+perfmon,+sys_nice";

pub(crate) fn takeover(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let mut store = Store::start(&scene)?;
    let _targets: Vec<Dialogue> =
        (0..3).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let _servers: Vec<Program> = (0..3).map(|at| scene.echoes(at)).collect::<Result<_>>()?;
    let [one, two] = [Seat::new(&scene, 0), Seat::new(&scene, 1)];
    let mut first = one.run()?;
    one.await_owner(&one, &[])?;
    let second = two.run()?;
    one.await_owner(&one, &[&two])?;
    for vip in ["four", "six"] {
        one.await_active(vip)?;
        two.await_active(vip)?;
    }
    let askers: Vec<Dialogue> = VIP.iter().map(|vip| scene.asker(vip)).collect::<Result<_>>()?;
    one.hand_over_drained(&two)?;

    one.drain(true)?;
    two.await_drained(true)?;
    two.await_copies()?;
    launch::signal(first.program().pid(), libc::SIGSTOP)?;
    two.await_owner(&two, &[])?;
    two.must_serve_beyond_a_lease()?;
    two.drain(false)?;
    two.drain_and_resume("four/c")?;
    launch::signal(first.program().pid(), libc::SIGCONT)?;
    one.await_owner(&two, &[&one])?;
    ensure!(!one.serves()?, "a distributor that stood still serves beside the owner");

    drop(second);
    one.await_owner(&one, &[])?;
    let _second = two.run()?;
    one.await_owner(&one, &[&two])?;
    two.await_copies()?;
    one.command(&["distributor", "move", BACKUP[0]])?;
    two.await_owner(&two, &[&one])?;

    store.kill();
    two.drain_and_resume("four/c").context("with two of three members")?;
    store.kill();
    // In this moment it may be taken or refused: no connection breaks by it.
    _ = two.vip(&["drain", "four/c"]);
    await_true("the owner knows that it has no store", || {
        Ok(!two.status("four")?["link"]["store_fault"].is_null())
    })?;
    two.must_serve_beyond_a_lease()?;
    let refused = two.vip(&["drain", "four/c"]).unwrap_or_else(|error| format!("{error:#}"));
    ensure!(refused.contains("nothing is changed until it answers"), "{refused}");
    drop(scene.asker(VIP[0]).context("a new connection without a store")?);

    let mut longest: f64 = 0.0;
    for (asker, vip) in askers.into_iter().zip(VIP) {
        let told: Value = serde_json::from_str(&asker.finish(HANG)?)?;
        ensure!(told["broken"] == 0, "{vip}: {told}");
        longest = longest.max(told["longest_wait"].as_f64().context("a wait")?);
    }
    ensure!(longest <= WAIT_MAX_S, "an echo was waited for {longest:.2} s");
    Ok(format!("no connection of 1000 broken by five takeovers; longest wait {longest:.2} s"))
}

/// An owner without a backup loses its cable, and reaches the store by another one: a distributor that comes owns the VIPs. Once
/// the cable is back the first one has them again, by its rank.
pub(crate) fn cut_off(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _store = Store::start(&scene)?;
    let _targets: Vec<Dialogue> =
        (0..3).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let _servers: Vec<Program> = (0..3).map(|at| scene.echoes(at)).collect::<Result<_>>()?;
    let [one, two] = [0, 1].map(|at| Seat { switches_back: true, ..Seat::new(&scene, at) });
    scene.reach_store_apart(one.namespace)?;
    let _first = one.run()?;
    one.await_owner(&one, &[])?;
    scene.switch.ip(&["link", "set", "distr", "down"])?;
    let begin = Instant::now();
    let _second = two.run()?;
    two.await_owner(&two, &[])?;
    let taken = begin.elapsed();
    ensure!(!one.serves()?, "an owner without a cable serves beside another");
    drop(scene.asker(VIP[0]).context("a connection by the distributor that has come")?);
    scene.switch.ip(&["link", "set", "distr", "up"])?;
    two.await_owner(&one, &[&two])?;
    Ok(format!("a distributor that comes has the VIPs {:.1} s later", taken.as_secs_f64()))
}

/// A host with a distributor.
pub(super) struct Seat<'a> {
    scene: &'a Scene<'a>,
    namespace: &'a Namespace,
    host: &'static str,
    rank: u32,
    switches_back: bool,
}

impl<'a> Seat<'a> {
    pub(super) fn new(scene: &'a Scene<'a>, place: usize) -> Self {
        let (namespace, host, rank) = match place {
            0 => (&scene.distributor, DISTRIBUTOR[0], 100),
            _ => (&scene.backup, BACKUP[0], 50),
        };
        Self { scene, namespace, host, rank, switches_back: false }
    }

    fn config(&self) -> Result<PathBuf> {
        let config = self.scene.stage.house.scratch.join(format!("takeover-{}.toml", self.rank));
        let members: Vec<String> =
            (0..Store::MEMBERS).map(|it| format!("{:?}", url(it, 0))).collect();
        let (rank, members, switches_back) = (self.rank, members.join(", "), self.switches_back);
        let shared = format!(
            "[distributor]\nrank = {rank}\nstore = [{members}]\nswitch_back = {switches_back}"
        );
        fs::write(&config, self.scene.config.replace("[distributor]", &shared))?;
        Ok(config)
    }

    pub(super) fn run(&self) -> Result<Dialogue> {
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={CAPABILITIES}"));
        command.arg(format!("--inh-caps={CAPABILITIES}"));
        command.arg(&self.scene.sidestep).args(["distributor", "run", "--config"]);
        command.arg(self.config()?);
        self.namespace.enclose(&mut command);
        let mut distributor = Dialogue::start(command)?;
        distributor.await_line("sidestep distributor: six", HANG)?;
        Ok(distributor)
    }

    pub(super) fn command(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.scene.sidestep);
        command.args(words);
        self.namespace.enclose(&mut command);
        launch::run(command, HANG)
    }

    fn vip(&self, words: &[&str]) -> Result<String> {
        self.command(&[&["vip"], words].concat())
    }

    fn status(&self, vip: &str) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.vip(&["targets", "--json"])?)?;
        let all = status["vips"].as_array().context("VIPs")?;
        all.iter().find(|it| it["name"] == vip).cloned().with_context(|| format!("no {vip}"))
    }

    fn serves(&self) -> Result<bool> {
        Ok(self.status("four")?["link"]["is_taken"] == true)
    }

    /// It serves whenever it is looked at, for so long that it has had to renew its lease.
    fn must_serve_beyond_a_lease(&self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < TWO_LEASES {
            ensure!(self.serves()?, "{} has its VIPs no more", self.host);
        }
        Ok(())
    }

    /// What is drained here stays so where the VIPs go, and is resumed for both; then they come back.
    fn hand_over_drained(&self, other: &Seat<'_>) -> Result<()> {
        self.drain(true)?;
        other.await_drained(true)?;
        other.await_copies()?;
        self.command(&["distributor", "move", other.host])?;
        other.await_owner(other, &[self])?;
        other.await_drained(true)?;
        other.drain(false)?;
        self.await_drained(false)?;
        other.command(&["distributor", "move", self.host])?;
        self.await_owner(self, &[other])
    }

    /// Drains target c of both VIPs, or resumes it.
    fn drain(&self, is_due: bool) -> Result<()> {
        for target in ["four/c", "six/c"] {
            self.vip(&[if is_due { "drain" } else { "resume" }, target])?;
        }
        Ok(())
    }

    /// All connections are asked while their target is drained, those that began at another distributor among them.
    fn drain_and_resume(&self, target: &str) -> Result<()> {
        /// Longer than a segment waits to be sent again.
        const SEVERAL_ECHOES: Duration = Duration::from_millis(600);
        self.vip(&["drain", target])?;
        thread::sleep(SEVERAL_ECHOES);
        self.vip(&["resume", target]).map(drop)
    }

    /// This host knows that one as the owner, with these backups, and the owner serves.
    pub(super) fn await_owner(&self, owner: &Seat<'_>, backups: &[&Seat<'_>]) -> Result<()> {
        let backups: Vec<&str> = backups.iter().map(|it| it.host).collect();
        let is_so = || {
            let link = &self.status("four")?["link"];
            let is_known =
                link["owner"] == owner.host && link["backups"] == Value::from(&backups[..]);
            Ok(is_known && owner.serves()?)
        };
        await_true(&format!("{} owns the VIPs, backups {backups:?}", owner.host), is_so)
    }

    pub(super) fn await_active(&self, vip: &str) -> Result<()> {
        let is_so = || {
            let status = self.status(vip)?;
            let all = status["targets"].as_array().context("targets")?;
            Ok(all.iter().all(|it| it["state"] == "active"))
        };
        await_true(&format!("{vip} is active at {}", self.host), is_so)
    }

    /// It knows all connections.
    fn await_copies(&self) -> Result<()> {
        let all: u64 = CONNECTIONS.parse()?;
        ["four", "six"].into_iter().try_for_each(|vip| self.await_connections(vip, all))
    }

    /// What it says of each target of a VIP.
    pub(super) fn counts(&self, vip: &str, what: &str) -> Result<Vec<u64>> {
        let status = self.status(vip)?;
        let targets = status["targets"].as_array().context("targets")?;
        Ok(targets.iter().filter_map(|it| it[what].as_u64()).collect())
    }

    /// It knows so many connections of a VIP.
    pub(super) fn await_connections(&self, vip: &str, count: u64) -> Result<()> {
        let are_known = || Ok(self.counts(vip, "connections")?.iter().sum::<u64>() == count);
        await_true(&format!("the connections of {vip} are known at {}", self.host), are_known)
    }

    /// Target c of "four" is drained, or not.
    fn await_drained(&self, is_due: bool) -> Result<()> {
        let is_so = || {
            let status = self.status("four")?;
            let state = status["targets"][2]["state"].as_str().context("a state")?;
            Ok((state == "draining") == is_due)
        };
        await_true(&format!("at {} it is known what is drained", self.host), is_so)
    }
}

impl Scene<'_> {
    /// A second cable from a host to the store.
    fn reach_store_apart(&self, host: &Namespace) -> Result<()> {
        const APART: [&str; 2] = ["10.78.0.1/24", "10.78.0.2"];
        self.switch.join("apart", host.name())?;
        self.switch.ip(&["address", "add", APART[0], "dev", "apart"])?;
        self.switch.ip(&["link", "set", "apart", "up"])?;
        host.settle("apart", &APART[1..])?;
        host.ip(&["route", "add", STORE, "dev", "apart", "src", APART[1]])
    }

    pub(super) fn echoes(&self, target: usize) -> Result<Program> {
        self.echoes_in(&self.targets[target])
    }

    pub(super) fn echoes_in(&self, host: &Namespace) -> Result<Program> {
        let mut command = Command::new("python3");
        command.arg(self.stage.house.script("echo_back.py")).arg(PORT);
        host.enclose(&mut command);
        let mut server = Program::start(command, &self.stage.house.scratch)?;
        server.await_listener(PORT.parse()?)?;
        Ok(server)
    }

    fn asker(&self, vip: &str) -> Result<Dialogue> {
        let mut command = Command::new("python3");
        command.arg(self.stage.house.script("keep_asking.py")).args([
            vip,
            PORT,
            CONNECTIONS,
            PAUSE,
        ]);
        self.client.enclose(&mut command);
        let mut asker = Dialogue::start(command)?;
        asker.await_line("connected", HANG)?;
        Ok(asker)
    }
}

/// Members of etcd, at the bridge.
pub(super) struct Store {
    members: Vec<Program>,
}

impl Store {
    const MEMBERS: u16 = 3;

    pub(super) fn start(scene: &Scene<'_>) -> Result<Self> {
        let cluster: Vec<String> =
            (0..Self::MEMBERS).map(|it| format!("m{it}={}", url(it, 1))).collect();
        let member = |at: u16| {
            let data = scene.stage.house.scratch.join(format!("takeover-etcd-{at}"));
            if data.exists() {
                fs::remove_dir_all(&data)?;
            }
            let mut command = Command::new("etcd");
            command.arg("--name").arg(format!("m{at}")).arg("--data-dir").arg(data);
            // How long a disk takes that others write to as well is none of what is tried here.
            command.arg("--unsafe-no-fsync").arg("--initial-cluster").arg(cluster.join(","));
            for (option, port) in [
                ("--listen-client-urls", 0),
                ("--advertise-client-urls", 0),
                ("--listen-peer-urls", 1),
                ("--initial-advertise-peer-urls", 1),
            ] {
                command.arg(option).arg(url(at, port));
            }
            scene.switch.enclose(&mut command);
            Program::start(command, &scene.stage.house.scratch)
        };
        let mut members: Vec<Program> = (0..Self::MEMBERS).map(member).collect::<Result<_>>()?;
        for (at, member) in members.iter_mut().enumerate() {
            member.await_listener(port(at as u16, 0))?;
        }
        // They listen before they have a leader, and answer then.
        await_true("etcd has a leader", || {
            let mut ask = Command::new("curl");
            ask.args(["--silent", "--fail", "--max-time", "1"]).arg(url(0, 0) + "/health");
            scene.switch.enclose(&mut ask);
            Ok(launch::run(ask, HANG).is_ok())
        })?;
        Ok(Self { members })
    }

    /// Kills one member.
    fn kill(&mut self) {
        drop(self.members.pop());
    }
}

fn port(member: u16, which: u16) -> u16 {
    2379 + 2 * member + which
}

/// Where a member serves clients, or its like.
fn url(member: u16, which: u16) -> String {
    format!("http://{STORE}:{}", port(member, which))
}
