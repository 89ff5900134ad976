//! Two adapters at the host and in a guest: link groups with two links, and what becomes of them when a
//! cable is pulled.
//!
//! ```text
//!   host                                   guest
//!   10.91.0.1    lan ────────┬──────────── eth0, rxe0   10.91.0.3
//!   10.91.0.101  lan2 ───────┴──────────── eth1, rxe1   10.91.0.103
//! ```
//!
//! A group is asymmetric if one end has one adapter for both links (RFC 7609 §2.2.2): here the host has.
//!
//! All four are in one network: Linux takes a second RDMA device only if it has an address in the
//! network of the first.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sidestep_guest::{Link, LinkGroup, Play};

use super::Scene;
use super::ground::{Case, await_connection, echo_of, must_be_smc_r};
use super::host::Network;
use super::lan::{Member, SECOND};
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
    let mut took = Vec::new();
    for way in WAYS {
        for cable in [Cable::OfGuest, Cable::OfHost] {
            scene.meet_anew(Network { has_second: true, ..Network::default() })?;
            let group = meet(scene, way)?;
            ensure!(adapters(&group) == [2, 2], "{way:?}: {group:?}");
            let name = format!("two-adapters-{:?}-{cable:?}", way[0]);
            let failed_over = scene.captured(&name, |scene| fail_over(scene, way, cable));
            let (capture, time) = failed_over.with_context(|| format!("{way:?}, {cable:?}"))?;
            capture.forget()?;
            took.push(time);
            if matches!(cable, Cable::OfHost) {
                await_links(scene, 2).with_context(|| format!("{way:?}, {cable:?} is back"))?;
            }
            talk_by_rdma(scene, way, 8, echo_of(&[100, 9_000]))?;
        }
        scene.meet_anew(Network::default())?;
        let group = meet(scene, way)?;
        ensure!(adapters(&group) == [2, 1], "{way:?}: {group:?}");
    }
    scene.forget_link_groups()?;
    Ok(format!(
        "two links both ways, also if the host has one adapter; a cable was pulled in talks of {took:.1?}"
    ))
}

/// Lets the two meet for the first time, and waits for the second link.
fn meet(scene: &mut Scene, way: [Place; 2]) -> Result<LinkGroup> {
    talk_by_rdma(scene, way, 1, echo_of(&[100, 9_000]))?;
    // Nobody is to take its connection for the next one.
    only_group(scene)?;
    await_links(scene, 2).with_context(|| format!("{way:?}"))
}

/// What is pulled.
#[derive(Clone, Copy, Debug)]
enum Cable {
    /// The guest's, below the link that the connection has. Neither end sees it; they see that nothing
    /// comes, and nobody tells them when it is back.
    OfGuest,
    /// The host's second one, at which the gateway looks: whichever link the connection has, it is not
    /// reset, and when the cable is back there is a second link again.
    OfHost,
}

/// How many adapters the links of a group are over, in the guest and at the host.
fn adapters(group: &LinkGroup) -> [usize; 2] {
    let number =
        |gid: fn(&Link) -> &String| group.links.iter().map(gid).collect::<BTreeSet<_>>().len();
    [number(|link| &link.gid), number(|link| &link.peer_gid)]
}

/// Waits until the link group has so many links in use.
fn await_links(scene: &mut Scene, count: usize) -> Result<LinkGroup> {
    await_group(scene, |links| links.len() == count).with_context(|| format!("not {count} links"))
}

/// Waits until no link is in use over the adapter with this GID at either end. There may be two
/// again by then: Linux soon has the second of its adapters find another one.
fn await_none_over(scene: &mut Scene, gid: &str) -> Result<LinkGroup> {
    let is_over = |link: &&Link| link.gid == gid || link.peer_gid == gid;
    await_group(scene, |links| !links.is_empty() && !links.iter().any(is_over))
        .with_context(|| format!("not without a link over {gid}"))
}

/// Waits until there is one link group, and the links that it has in use are as they should be.
fn await_group(scene: &mut Scene, is_it: impl Fn(&[&Link]) -> bool) -> Result<LinkGroup> {
    let deadline = Instant::now() + talk::PATIENCE;
    loop {
        let mut groups = scene.link_groups()?;
        let in_use = |group: &LinkGroup| {
            let links: Vec<&Link> =
                group.links.iter().filter(|link| link.state == ACTIVE).collect();
            is_it(&links)
        };
        match (groups.pop(), groups.len()) {
            (Some(group), 0) if in_use(&group) => return Ok(group),
            other => ensure!(Instant::now() < deadline, "{other:?}"),
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Pulls a cable in the middle of a talk, and puts it back. How long the talk took.
///
/// With a client of Linux the talk comes to its end before the cable is back. A server of Linux deletes a
/// link only when it knows what became of all that it has sent over it, and until then sends hardly
/// anything over another; but its soft RDMA device repeats it as long as the path is cut. So there the
/// cable is back as soon as Linux has no link over it.
///
/// Where only Linux has something under way, for it speaks first and the guest's cable is pulled before
/// that has come, the talk takes 5 s more: its device would repeat for ever, and a gateway that waits for
/// nothing tests a silent link only every 5 s (TEST LINK).
fn fail_over(scene: &mut Scene, way: [Place; 2], cable: Cable) -> Result<Duration> {
    // Messages there and back, with a pause before each: some seconds.
    let play = Play::Echo { sizes: vec![3_000; 100], pause_ms: 20 };
    let [server, client] = talks(way, scene, play);
    let server = scene.begin(way[0], server)?;
    let client = scene.begin(way[1], client)?;
    await_connection(&mut scene.guests[0])?;
    let member = scene.guests[0].member();
    let (cable, gid) = match cable {
        Cable::OfGuest if link_in_use(scene)?.gid == member.gid() => (member.tap(), member.gid()),
        Cable::OfGuest => (member.second().tap(), member.second().gid()),
        Cable::OfHost => (SECOND.to_owned(), Member::HOST.second().gid()),
    };
    let start = Instant::now();
    scene.lan.set_cable(&cable, false)?;
    let left = await_none_over(scene, &gid);
    let linux_waits = way[0] != Place::Sidestep;
    if linux_waits {
        scene.lan.set_cable(&cable, true)?;
    }
    let client = scene.report(client);
    let reports = talk::both(scene.report(server), client);
    let took = start.elapsed();
    if !linux_waits {
        scene.lan.set_cable(&cable, true)?;
    }
    left?;
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
