//! Containers of podman that are given Sidestep as a device, or by default, and nothing else.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use super::outsiders;
use super::stage::Stage;
use crate::bench::launch;
use crate::enclosure::Group;
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
    play(script, &directory)
}

/// Those of an ordinary user, and beside them one of root with a published port: `tests/e2e/rootless.sh`.
pub(crate) fn rootless(stage: &Stage<'_>) -> Result<String> {
    if !user::is_root() {
        bail!(Lacking("a user of the test's own needs root".to_owned()));
    }
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` to ask".to_owned()));
    };
    let directory = stage.house.scratch.join("rootless");
    fs::create_dir_all(&directory)?;
    let program = outsiders::compile(stage, "gcc", "peer", &[])?;
    fs::copy(&program, directory.join("outsider-peer"))?;
    let group = Group::make()?;
    let mut script = Command::new("unshare");
    script
        .args(["--mount", "--net", "timeout", "300", "sh"])
        .arg(stage.house.script("rootless.sh"));
    script.arg(sidestep).arg(&directory).arg(group.at()).arg(stage.house.seed.to_string());
    group.enclose(&mut script);
    play(script, &directory)
}

fn play(mut script: Command, directory: &Path) -> Result<String> {
    let output = script.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    fs::remove_dir_all(directory)?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
