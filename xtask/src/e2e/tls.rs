//! TLS by rules: programs without TLS, `openssl` at the other end, and each refusal.
//!
//! The script has the tests (`tests/e2e/tls.py`). It runs in a network namespace, because a gateway is the only one of
//! its own.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::stage::Stage;
use crate::bench::launch;
use crate::suite::{HANG, Lacking};
use crate::user;

/// Twenty tests, most with several gateways.
const TESTS: u32 = 20;

pub(crate) fn rules(stage: &Stage<'_>) -> Result<String> {
    if !user::is_root() {
        bail!(Lacking("a network namespace with a gateway needs root".to_owned()));
    }
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` to be the gateway".to_owned()));
    };
    let scratch = stage.house.scratch.join("tls");
    fs::create_dir_all(&scratch)?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", "ip link set lo up; exec python3 \"$@\"", "sh"]);
    command.arg(stage.house.script("tls.py")).arg(sidestep).arg(&scratch);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let said = launch::run(command, HANG * TESTS)?;
    let last = said.lines().last().filter(|line| line.starts_with("verified"));
    last.map(str::to_owned).with_context(|| format!("it was not over: {said}"))
}
