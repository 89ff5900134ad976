//! TLS by rules: programs without TLS, `openssl` and other programs with it at the other end, and each refusal.
//!
//! The scripts have the tests (`tests/e2e/tls.py`, `tls_peers.py`, `tls_controlled.py`). They run in a network namespace, because a gateway is the
//! only one of its own, and in a mount namespace, where names of hosts can be made.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::stage::Stage;
use crate::bench::launch;
use crate::suite::{HANG, Lacking};
use crate::user;

/// Of either script, at most; most with several gateways.
const TESTS: u32 = 25;

/// Each rule and each refusal, with `openssl`.
pub(crate) fn rules(stage: &Stage<'_>) -> Result<String> {
    run(stage, "tls.py")
}

/// Programs of many kinds, as far as they are installed, and rsyslog.
pub(crate) fn peers(stage: &Stage<'_>) -> Result<String> {
    run(stage, "tls_peers.py")
}

/// TLS that programs begin in the middle of their connections.
pub(crate) fn controlled(stage: &Stage<'_>) -> Result<String> {
    run(stage, "tls_controlled.py")
}

fn run(stage: &Stage<'_>, script: &str) -> Result<String> {
    if !user::is_root() {
        bail!(Lacking("a network namespace with a gateway needs root".to_owned()));
    }
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` to be the gateway".to_owned()));
    };
    let scratch = stage.house.scratch.join(script);
    fs::create_dir_all(&scratch)?;
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "--",
        "sh",
        "-c",
        "ip link set lo up; exec python3 \"$@\"",
        "sh",
    ]);
    command.arg(stage.house.script(script)).arg(sidestep).arg(&scratch);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("MOUNTS", "own");
    let said = launch::run(command, HANG * TESTS)?;
    let last = said.lines().last().filter(|line| line.starts_with("verified"));
    let skipped = said.lines().filter(|line| line.contains(": skipped, without "));
    let last = last.with_context(|| format!("it was not over: {said}"))?;
    Ok(skipped.chain([last]).collect::<Vec<_>>().join("; "))
}
