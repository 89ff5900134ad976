//! Containers of podman that are given Sidestep as a device, and nothing else.

use std::fs;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use super::outsiders;
use super::stage::Stage;
use crate::bench::launch;
use crate::suite::Lacking;
use crate::user;

/// One of musl and one of glibc, in one network: `tests/e2e/containers.sh`.
pub(crate) fn pod(stage: &Stage<'_>) -> Result<String> {
    if !user::is_root() {
        bail!(Lacking("containers with a network of the host's need root".to_owned()));
    }
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` to ask".to_owned()));
    };
    let directory = stage.house.scratch.join("containers");
    fs::create_dir_all(&directory)?;
    for (compiler, variant) in [("musl-gcc", "musl"), ("gcc", "peer")] {
        let program = outsiders::compile(stage, compiler, variant, &[])?;
        fs::copy(&program, directory.join(format!("outsider-{variant}")))?;
    }
    let mut script = Command::new("unshare");
    script
        .args(["--mount", "--net", "timeout", "300", "sh"])
        .arg(stage.house.script("containers.sh"));
    script.arg(sidestep).arg(&directory);
    script.args([launch::free_port()?.to_string(), stage.house.seed.to_string()]);
    let output = script.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    fs::remove_dir_all(&directory)?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
