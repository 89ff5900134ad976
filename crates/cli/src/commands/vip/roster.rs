//! What both daemons of VIPs do with names, states and probes of targets.

use std::net::SocketAddr;
use std::time::Instant;

use sidestep_distributor::{Change, Distribution, OptLocal, Probe, ProbeKind, Refusal, Vip};

use crate::commands::vip_status::{TargetStatus, VipStatus};

/// A probe that is due.
pub(super) struct Question {
    pub(super) probe: Probe,
    /// Who says whether its server speaks SMC, if it has to.
    pub(super) witness: Option<Witness>,
    pub(super) target: SocketAddr,
    pub(super) vip: String,
}

/// Who knows whether a target's server speaks SMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// This host, whose own target it is.
    Here,
    /// The target's host.
    There,
}

/// The probes of one target: when the next one is due, and whether one is under way.
#[derive(Default)]
pub(super) struct Probing {
    due: Option<Instant>,
    is_under_way: bool,
}

impl Probing {
    /// The probe of a target that serves as far as is known, if it is due.
    pub(super) fn ask(
        &mut self,
        vip: &Vip,
        target: SocketAddr,
        witness: Option<Witness>,
        now: Instant,
    ) -> Option<Question> {
        let is_due = self.due.is_none_or(|due| now >= due);
        if !vip.is_probed() || self.is_under_way || !is_due {
            return None;
        }
        self.is_under_way = true;
        self.due = Some(now + vip.probe.interval);
        Some(Question { probe: vip.probe.clone(), witness, target, vip: vip.name.clone() })
    }

    /// It has come to an end.
    pub(super) fn answered(&mut self) {
        self.is_under_way = false;
    }
}

/// VIP and target, by their places: `VIP/TARGET`, or the name of a target that only one VIP has.
fn find<'a>(
    all: impl Iterator<Item = &'a Vip> + Clone,
    name: &str,
) -> Result<(usize, usize), String> {
    let (vip, target) =
        name.split_once('/').map_or((None, name), |(vip, target)| (Some(vip), target));
    let is_meant = |it: &&Vip| vip.is_none_or(|vip| it.name == vip);
    let place = |(at, it): (usize, &Vip)| {
        let target = it.targets.iter().position(|it| it.name == target)?;
        is_meant(&it).then_some((at, target))
    };
    let found: Vec<(usize, usize)> = all.clone().enumerate().filter_map(place).collect();
    match (&found[..], vip) {
        ([found], _) => Ok(*found),
        ([], Some(vip)) if !all.clone().any(|it| is_meant(&it)) => Err(no_such_vip(all, vip)),
        ([], _) => Err(format!("no target {name}; there are: {}", all_targets(all))),
        _ => Err(format!("several VIPs have a target {name}; say VIP/{name}")),
    }
}

/// Has a target of this name drained, or resumed. Returns the place of its VIP, and what has changed, in words.
pub(super) fn change(
    all: &mut [&mut Distribution],
    name: &str,
    change: impl FnOnce(&mut Distribution, usize) -> Result<Vec<Change>, Refusal>,
) -> Result<(usize, String), String> {
    let (at, target) = find(all.iter().map(|it| it.vip()), name)?;
    let changes = change(all[at], target).map_err(|refusal| format!("{name}: {refusal}"))?;
    report(all[at], &changes, "the operator's word");
    Ok((at, format!("{name} is {}", all[at].state(target))))
}

/// The part of a listen queue that is free, in percent.
pub(super) fn responsiveness((queue, queue_max): (u32, u32)) -> u32 {
    let taken = u64::from(queue) * 100 / u64::from(queue_max.max(1));
    100 - taken.min(100) as u32
}

fn all_targets<'a>(all: impl Iterator<Item = &'a Vip>) -> String {
    let of =
        |vip: &'a Vip| vip.targets.iter().map(|target| format!("{}/{}", vip.name, target.name));
    all.flat_map(of).collect::<Vec<_>>().join(", ")
}

pub(super) fn no_such_vip<'a>(all: impl Iterator<Item = &'a Vip>, name: &str) -> String {
    let names: Vec<&str> = all.map(|vip| vip.name.as_str()).collect();
    format!("no VIP {name} is in force; there are: {}", names.join(", "))
}

/// Reports changes of states, and why they came.
pub(super) fn report(distribution: &Distribution, changes: &[Change], why: &str) {
    let vip = distribution.vip();
    for change in changes {
        let target = &vip.targets[change.target];
        log::info!(
            "{}/{} at {}: {} -> {} ({why})",
            vip.name,
            target.name,
            target.address,
            change.from,
            change.to
        );
    }
}

/// What a VIP is told of when it is put into force.
pub(super) fn in_words(vip: &Vip) -> String {
    let targets = match vip.targets.len() {
        1 => "1 target".to_owned(),
        count => format!("{count} targets"),
    };
    format!("{} at {}: {}, {targets}", vip.name, vip.address, vip.method)
}

/// The terms of a VIP for displays, with its targets; what only one of the daemons knows is left open.
pub(super) fn status(vip: &Vip, targets: Vec<TargetStatus>) -> VipStatus {
    VipStatus {
        name: vip.name.clone(),
        address: vip.address,
        protocol: vip.protocol.name().to_owned(),
        method: vip.method.to_string(),
        timedaffinity_s: vip.affinity.as_secs_f64(),
        switch_back: vip.switch_back,
        probe: match &vip.probe.kind {
            ProbeKind::Listens => "listens".to_owned(),
            ProbeKind::Tcp => "tcp".to_owned(),
            ProbeKind::Http(path) => format!("http:{path}"),
            ProbeKind::Command(command) => command.join(" "),
        },
        probe_interval_s: vip.probe.interval.as_secs_f64(),
        probe_timeout_s: vip.probe.timeout.as_secs_f64(),
        rise: vip.probe.rise,
        fall: vip.probe.fall,
        smc: vip.smc.name().to_owned(),
        optlocal: vip.opt_local.map(OptLocal::number),
        has_marker: false,
        is_announced: false,
        link: None,
        targets,
    }
}
