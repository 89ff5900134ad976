//! SMC-R through the VIP: the client and each target have an agent and a gateway of their own, and nothing is
//! configured for the VIP. One of the three targets has no UEID in common with the client, and declines. In a second case the only target
//! is beyond a router, and the distributor reaches it by a tunnel.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::tunnel::{C, TARGET};
use super::{CLIENT, PORT, REDIS, Scene, TARGETS, VIP};
use crate::bench::launch::{self, Dialogue, Program};
use crate::e2e::stage::Stage;
use crate::enclosure::Namespace;
use crate::hosts::Host;
use crate::suite::HANG;

/// Of each benchmark, beside the one by which it asks for the server's settings.
const CONNECTIONS: &str = "60";
const REQUESTS: &str = "30000";
/// By the distributor, of a connection that goes by SMC-R: its beginning, CLC and its end.
const PACKETS_MAX: f64 = 20.0;

/// The targets that agree.
const OTHERS: usize = 2;

pub(crate) fn smc_r(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let client = scene.host("client", &scene.client, "OURS", &CLIENT)?;
    let targets: Vec<Host> = (0..TARGETS.len())
        .map(|target| {
            let eid = if target < OTHERS { "OURS" } else { "OTHERS" };
            let name = format!("target{target}");
            scene.host(&name, &scene.targets[target], eid, &TARGETS[target])
        })
        .collect::<Result<_>>()?;
    let _vips: Vec<Dialogue> =
        (0..TARGETS.len()).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let _servers: Vec<Program> = targets
        .iter()
        .zip(TARGETS)
        .map(|(host, [_, six])| {
            // At all addresses of IPv6 alone a listener has no TCP option.
            let bind = ["--bind", "0.0.0.0", VIP[1], six];
            host.serve(PORT.parse()?, host.program(&[&REDIS[..], &bind].concat()))
        })
        .collect::<Result<_>>()?;
    let _distributor = scene.distributor()?;

    let mut moved = 0;
    let mut packets: f64 = 0.0;
    for (vip, address) in ["four", "six"].into_iter().zip(VIP) {
        scene.await_states(vip, ["active"; 3])?;
        let before = by_smc_r(&client)?;
        for _ in 0..2 {
            let words = ["redis-benchmark", "-h", address, "-p", PORT, "-c", CONNECTIONS];
            let words = [&words[..], &["-n", REQUESTS, "-d", "1000", "-t", "set", "-q"]].concat();
            launch::run(client.program(&words), HANG).with_context(|| vip.to_owned())?;
        }
        let here = by_smc_r(&client)? - before;
        let given = scene.given(vip)?;
        let others: u64 = given[..OTHERS].iter().sum();
        ensure!(given[OTHERS] > 0, "{vip}: the target that declines was given nothing");
        ensure!(
            here * 100 >= others * 99,
            "{vip}: of {others} connections to targets that agree {here} have moved"
        );
        packets = packets.max(scene.packets_to_others(vip)? / others as f64);
        moved += here;
    }
    ensure!(packets <= PACKETS_MAX, "{packets:.1} packets at the distributor per connection");
    for (target, host) in targets.iter().enumerate() {
        let has_moved = by_smc_r(host)? > 0;
        ensure!(has_moved == (target < OTHERS), "target {target}: moved: {has_moved}");
    }
    Ok(format!("{moved} connections by SMC-R, {packets:.1} packets of each at the distributor"))
}

/// The TCP option and CLC pass the tunnel, and RDMA the router.
pub(crate) fn tunnel_smc_r(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage)?;
    let _router = scene.move_beyond_a_router()?;
    let client = scene.host("near-client", &scene.client, "OURS", &CLIENT)?;
    let target = scene.host("far-target", &scene.targets[C], "OURS", &TARGET)?;
    let _vips = scene.target(C)?;
    let bind = ["--bind", "0.0.0.0", VIP[1], TARGET[1]];
    let _server = target.serve(PORT.parse()?, target.program(&[&REDIS[..], &bind].concat()))?;
    let _distributor = scene.distributor()?;

    let mut moved = 0;
    for (vip, address) in ["four", "six"].into_iter().zip(VIP) {
        scene.await_states(vip, ["down", "down", "active"])?;
        let before = by_smc_r(&client)?;
        let words = ["redis-benchmark", "-h", address, "-p", PORT, "-c", CONNECTIONS];
        let words = [&words[..], &["-n", REQUESTS, "-d", "1000", "-t", "set", "-q"]].concat();
        for _ in 0..2 {
            launch::run(client.program(&words), HANG).with_context(|| vip.to_owned())?;
        }
        let here = by_smc_r(&client)? - before;
        let given = scene.given(vip)?[C];
        ensure!(
            given > 0 && here * 100 >= given * 99,
            "{vip}: of {given} connections {here} have moved"
        );
        let link = &scene.target_status(vip, "c")?["link"];
        ensure!(link["via"] == "tunnel", "{vip}: c is not reached by a tunnel");
        let packets = link["packets"].as_u64().context("packets")? as f64 / given as f64;
        ensure!(packets <= PACKETS_MAX, "{packets:.1} packets in the tunnel per connection");
        moved += here;
    }
    ensure!(by_smc_r(&target)? > 0, "no connection moved at the target");
    Ok(format!("{moved} connections by SMC-R to a target beyond a router"))
}

/// How many connections have come to SMC-R at a host.
fn by_smc_r(host: &Host) -> Result<u64> {
    let stats = host.ask("stats")?;
    stats["gateway"]["smc_r_connections"].as_u64().context("no figure of the gateway")
}

impl Scene<'_> {
    fn host(
        &self,
        name: &str,
        namespace: &Rc<Namespace>,
        eid: &str,
        adapters: &[&str],
    ) -> Result<Host> {
        let directory = self.stage.house.scratch.join("distributor-smc-r").join(name);
        Host::settle(&self.sidestep, namespace, directory, eid, adapters)
    }

    /// Packets that were sent on to the targets that agree.
    fn packets_to_others(&self, vip: &str) -> Result<f64> {
        let status = self.vip_status(vip)?;
        let targets = status["targets"].as_array().context("targets")?;
        let packets = |target: &Value| target["link"]["packets"].as_u64();
        Ok(targets[..OTHERS].iter().filter_map(packets).sum::<u64>() as f64)
    }
}
