//! Redis behind a port that podman publishes, called by another container: `bench/published.sh`.
//!
//! The port is translated by the rules of podman's network, so the two ends see different addresses, and each is in a network
//! namespace of its own: the agent brings them together.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::lab::Lab;
use super::launch::{self, Transport};
use super::workloads::redis_rate;
use crate::bench::place;
use crate::enclosure::Group;
use crate::suite::Lacking;
use crate::user;

/// Requests per second of one client.
pub(super) fn redis(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    if !user::is_root() {
        bail!(Lacking("containers with a network need root".to_owned()));
    }
    if let Some(missing) = place::first_missing(&["podman", "crun", "iptables"]) {
        bail!(Lacking(format!("{missing} is not installed")));
    }
    let sidestep = lab.launcher.observer().context("the agent is in `sidestep`")?;
    let group = Group::make()?;
    let mut script = Command::new("unshare");
    script.args(["--mount", "--net", "timeout", "120", "sh", &lab.source("published.sh")?]);
    script.arg(sidestep).arg(lab.path("published")).arg(group.at());
    script.arg(if transport == Transport::Smc { "smc" } else { "tcp" });
    script.arg(lab.seconds.to_string());
    group.enclose(&mut script);
    let said = launch::run(script, lab.patience() * 2)?;
    Ok(vec![redis_rate(&said, "GET").with_context(|| format!("no rate in {said:?}"))?])
}
