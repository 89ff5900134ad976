//! Connections that begin on the distributor's own host, which is a target itself, under each kind of `optlocal`: its server is met
//! or another one, as weight, room, live connections, health and the operator have it, and the client has the VIP as its peer.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{DISTRIBUTOR, PORT, REDIS, Scene, VIP, await_true};
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::e2e::stage::Stage;
use crate::enclosure::Namespace;
use crate::suite::HANG;

/// Target a is the distributor's host.
const LOCAL: &str = r#"
[distributor]
interface = "cable"
[vip.four]
address = "10.77.0.100:6379"
optlocal = 1
probe_interval = "200ms"
targets.a = { address = "10.77.0.2", weight = 2 }
targets.b = { address = "10.77.0.11", weight = 7 }
targets.c = { address = "10.77.0.12", weight = 7 }
[vip.six]
address = "[fd77::100]:6379"
method = "weightedactive"
optlocal = 8
probe_interval = "200ms"
targets = { a = "fd77::2", b = "fd77::11", c = "fd77::12" }
"#;

/// More than a quarter of the queue of `echo_back.py`.
const WAITING: u64 = 400;
/// How much of a queue is free where there is room.
const ROOM_PERCENT: u64 = 75;

pub(crate) fn locality(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage)?;
    scene.config = LOCAL.to_owned();
    let _targets: Vec<Dialogue> =
        (0..2).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let _servers: Vec<Program> = (0..2).map(|at| scene.echoes(at)).collect::<Result<_>>()?;
    let own = scene.own_echoes()?;
    let _distributor = scene.distributor()?;
    for vip in ["four", "six"] {
        scene.await_states(vip, ["active"; 3])?;
    }
    let kept = |met: &[u64]| met[1..] == [0, 0];
    let gone = |met: &[u64]| met[0] == 0 && met[1] > 0 && met[2] > 0;

    scene.must_meet("1, with room", 20, kept)?;
    let others = scene.met("four", || scene.hold(&scene.client, VIP[0], 60, &[]))?;
    ensure!(others[1] > 0 && others[2] > 0, "other clients go by weight: {others:?}");

    drop(own);
    scene.await_states("four", ["down", "active", "active"])?;
    scene.must_meet("1, without a server", 20, gone)?;
    let own = scene.own_echoes()?;
    scene.await_states("four", ["active"; 3])?;

    scene.set_number(3)?;
    scene.must_meet("3 times 2 beside 7", 60, |met| met[1] > 0 && met[2] > 0)?;
    scene.set_number(4)?;
    scene.must_meet("4 times 2 beside 7", 20, kept)?;

    scene.without_room(&own, kept)?;
    scene.vip(&["drain", "four/a"])?;
    scene.must_meet("drained", 20, gone)?;
    scene.vip(&["resume", "four/a"])?;
    scene.must_meet("resumed", 20, kept)?;
    let live = scene.by_live_connections()?;

    drop(own);
    scene.in_shared_memory()?;
    Ok(format!("{live:?} of 30 live ones by eight times the weight; SMC-D"))
}

impl Scene<'_> {
    fn own_echoes(&self) -> Result<Program> {
        self.echoes_in(&self.distributor)
    }

    /// So many connections, which are compared at their end, are held.
    fn hold(&self, from: &Namespace, vip: &str, count: u64, more: &[&str]) -> Result<Dialogue> {
        let mut command = std::process::Command::new("python3");
        command.arg(self.stage.house.script("hold_connections.py"));
        command.args([vip, PORT, &count.to_string()]).args(more);
        let mut held = Dialogue::start(self.enclosed(from, command))?;
        held.await_line("connected", HANG)?;
        Ok(held)
    }

    /// How many connections each target is given while these are made, which then are held.
    fn met_by_held(
        &self,
        vip: &str,
        hold: impl FnOnce() -> Result<Dialogue>,
    ) -> Result<(Vec<u64>, Dialogue)> {
        let before = self.given(vip)?;
        let held = hold()?;
        let after = self.given(vip)?;
        Ok((after.iter().zip(&before).map(|(after, before)| after - before).collect(), held))
    }

    /// The same of connections that end.
    fn met(&self, vip: &str, hold: impl FnOnce() -> Result<Dialogue>) -> Result<Vec<u64>> {
        let (met, held) = self.met_by_held(vip, hold)?;
        held.finish(HANG)?;
        Ok(met)
    }

    /// Of so many connections of the distributor's host to "four".
    fn must_meet(&self, what: &str, count: u64, is_due: impl Fn(&[u64]) -> bool) -> Result<()> {
        let met = self.met("four", || self.hold(&self.distributor, VIP[0], count, &[]));
        let met = met.with_context(|| what.to_owned())?;
        let sum: u64 = met.iter().sum();
        ensure!(sum == count && is_due(&met), "{what}: {met:?} of {count}");
        Ok(())
    }

    fn set_number(&self, number: u8) -> Result<()> {
        let config = LOCAL.replace("optlocal = 1", &format!("optlocal = {number}"));
        fs::write(self.config()?, config)?;
        self.vip(&["apply"])?;
        ensure!(self.vip_status("four")?["optlocal"] == number, "optlocal is shown");
        self.await_states("four", ["active"; 3])
    }

    /// The own server stands still for a while, and says nothing over connections that the kernel has taken for it: by 0 it is met
    /// all the same, by 1 it is one of all.
    fn without_room(&self, own: &Program, kept: impl Fn(&[u64]) -> bool) -> Result<()> {
        let has_room = |due: bool| {
            await_true(&format!("there is room: {due}"), || {
                let free = self.target_status("four", "a")?["responsiveness"].as_u64();
                Ok(free.is_some_and(|free| (free >= ROOM_PERCENT) == due))
            })
        };
        let idle = |count| {
            self.met_by_held("four", || self.hold(&self.distributor, VIP[0], count, &["idle"]))
        };
        self.set_number(0)?;
        launch::signal(own.pid(), libc::SIGSTOP)?;
        let (_, waiting) = idle(WAITING)?;
        has_room(false)?;
        let (met, more) = idle(10)?;
        ensure!(met == [10, 0, 0], "0, without room: {met:?}");
        self.set_number(1)?;
        let (met, by_weight) = idle(60)?;
        let sum: u64 = met.iter().sum();
        ensure!(sum == 60 && met[1] > 0 && met[2] > 0, "1, without room: {met:?}");
        launch::signal(own.pid(), libc::SIGCONT)?;
        for held in [waiting, more, by_weight] {
            held.finish(HANG)?;
        }
        has_room(true)?;
        self.must_meet("1, with room again", 20, kept)
    }

    /// The own server has eight live connections before another one has one. They are counted, and listed.
    fn by_live_connections(&self) -> Result<Vec<u64>> {
        const COUNT: u64 = 30;
        let (met, held) =
            self.met_by_held("six", || self.hold(&self.distributor, VIP[1], COUNT, &[]))?;
        // 24, but for those that are made while live ones are counted. Without `optlocal` it had 10.
        let is_due = (16..=28).contains(&met[0]) && met[1..].iter().all(|met| *met > 0);
        ensure!(is_due && met.iter().sum::<u64>() == COUNT, "8, by live connections: {met:?}");
        await_true("live connections are counted", || {
            let status = self.vip_status("six")?;
            let targets = status["targets"].as_array().context("targets")?;
            let live = targets.iter().filter_map(|target| target["connections"].as_u64());
            Ok(live.eq(met.iter().copied()))
        })?;
        let listed: Value = serde_json::from_str(&self.vip(&["connections", "--json"])?)?;
        let listed = listed["connections"].as_array().context("connections")?;
        // To an address of its own host a socket goes from that address.
        let from = [DISTRIBUTOR[1], VIP[1]].map(|ip| format!("[{ip}]:"));
        let is_own = |it: &&Value| {
            let client = it["client"].as_str().unwrap_or_default();
            it["vip"] == "six" && from.iter().any(|ip| client.starts_with(ip))
        };
        for (target, met) in ["a", "b", "c"].iter().zip(&met) {
            let count = listed.iter().filter(is_own).filter(|it| it["target"] == *target).count();
            ensure!(count as u64 == *met, "{count} of {met} connections of {target} are listed");
        }
        held.finish(HANG)?;
        Ok(met)
    }

    /// A connection that stays on the host moves, as it would without a VIP.
    fn in_shared_memory(&self) -> Result<()> {
        let command = self.configured(self.stage.command(Transport::Smc, &REDIS))?;
        let command = self.enclosed(&self.distributor, command);
        let mut server = Program::start(command, &self.stage.house.scratch)?;
        server.await_listener(PORT.parse()?)?;
        self.await_states("four", ["active"; 3])?;
        let words = ["-c", "4", "-n", "100000", "-t", "set", "-q"];
        let load = || {
            let all = [&["redis-benchmark", "-h", VIP[0], "-p", PORT][..], &words].concat();
            let command = self.configured(self.stage.command(Transport::Smc, &all))?;
            Ok(self.enclosed(&self.distributor, command))
        };
        self.stage.watch_until_seen(load).map(drop).context("connections that stay on the host")
    }
}
