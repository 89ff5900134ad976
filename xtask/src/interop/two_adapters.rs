//! Two adapters at the host and in a guest: link groups with two links, and what becomes of them when a
//! cable is pulled.
//!
//! ```text
//!   host                                   guest
//!   10.91.0.1    lan ────────┬──────────── eth0, rxe0   10.91.0.3
//!   10.91.0.101  lan2 ───────┴──────────── eth1, rxe1   10.91.0.103
//! ```
//!
//! All four are in one network: Linux takes a second RDMA device only if it has an address in the
//! network of the first.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sidestep_guest::{Link, LinkGroup, Play};

use super::Scene;
use super::ground::{Case, await_connection, echo_of, must_be_smc_r};
use super::host::Network;
use super::lan::BRIDGE;
use super::sidestep::{WAYS, only_group, talk_by_rdma, talks};
use super::talk::{self, Place};

pub(super) const CASES: [Case; 1] = [("two-adapters", two_adapters)];

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// `SMC_LNK_ACTIVE`
const ACTIVE: u32 = 3;

/// With the other guest, whose second card nobody needs afterwards.
fn two_adapters(scene: &mut Scene) -> Result<String> {
    scene.guests.swap(0, 1);
    let played = plays(scene);
    scene.guests.swap(0, 1);
    played
}

fn plays(scene: &mut Scene) -> Result<String> {
    scene.guests[0].equip_second(&scene.lan, super::PNET_ID)?;
    let mut seen = Vec::new();
    for way in WAYS {
        scene.meet_anew(Network { has_second: true, ..Network::default() })?;
        // Everything that goes over the network.
        let name = format!("two-adapters-{:?}", way[0]);
        let (capture, group) = scene.captured_at(BRIDGE, &name, |scene| {
            talk_by_rdma(scene, way, 1, echo_of(&[100, 9_000]))?;
            await_links(scene, 2)
        })?;
        capture.forget()?;
        ensure!(is_symmetric(&group), "{way:?}: {group:?}");
        let took = fail_over(scene, way).with_context(|| format!("{way:?}"))?;
        await_links(scene, 2)?;
        talk_by_rdma(scene, way, 8, echo_of(&[100, 9_000]))?;
        seen.push(format!("{:.1} s", took.as_secs_f64()));
    }
    scene.forget_link_groups()?;
    Ok(format!("two links each way; talks of 2 s with a cable pulled took {}", seen.join(", ")))
}

/// Whether both ends have an adapter for each link.
fn is_symmetric(group: &LinkGroup) -> bool {
    let [one, other] = &group.links[..] else { return false };
    one.gid != other.gid && one.peer_gid != other.peer_gid
}

/// Waits until the link group has so many links in use.
fn await_links(scene: &mut Scene, count: usize) -> Result<LinkGroup> {
    let deadline = Instant::now() + talk::PATIENCE;
    loop {
        let group = only_group(scene)?;
        let is_active = |link: &&Link| link.state == ACTIVE;
        if group.links.iter().filter(is_active).count() == count {
            return Ok(group);
        }
        ensure!(Instant::now() < deadline, "not {count} links: {group:?}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Pulls the guest's cable below a connection's link in the middle of a talk, and puts it back behind its
/// end. How long the talk took.
fn fail_over(scene: &mut Scene, way: [Place; 2]) -> Result<Duration> {
    // Messages there and back, with a pause before each: some seconds.
    let play = Play::Echo { sizes: vec![3_000; 100], pause_ms: 20 };
    let [server, client] = talks(way, scene, play);
    let server = scene.begin(way[0], server)?;
    let client = scene.begin(way[1], client)?;
    await_connection(&mut scene.guests[0])?;
    let used = link_in_use(scene)?;
    let member = scene.guests[0].member();
    let cable = if used.gid == member.gid() { member.tap() } else { member.second().tap() };
    let start = Instant::now();
    scene.lan.set_cable(&cable, false)?;
    let reports = scene.report(client).and_then(|client| Ok([scene.report(server)?, client]));
    let took = start.elapsed();
    scene.lan.set_cable(&cable, true)?;
    let [server, client] = reports?;
    talk::must_agree(&server, &client)?;
    must_be_smc_r(if way[0] == Place::Sidestep { &client } else { &server })?;
    Ok(took)
}

/// The link that has the only connection.
fn link_in_use(scene: &mut Scene) -> Result<Link> {
    let groups = scene.link_groups()?;
    let links = groups.into_iter().flat_map(|group| group.links);
    let mut used: Vec<Link> = links.filter(|link| link.connections > 0).collect();
    match (used.pop(), used.len()) {
        (Some(link), 0) => Ok(link),
        other => bail!("links in use: {other:?}"),
    }
}
