//! `cargo xtask kubernetes`: what operators of a cluster are given, against real parts of Kubernetes.
//!
//! | test | against |
//! |---|---|
//! | `manifests` | kustomize, in `kubectl`, makes them of `packaging/kubernetes` |
//! | `schemas` | Kubernetes' own schemas of several versions, which the package kubernetes-validate of PyPI has, know every field |
//! | `plugin` | containerd's own side of NRI, a module of Go, asks `sidestep nri` what becomes of containers |
//!
//! No cluster is needed, and none is touched.

mod plugin;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::bench::place;
use crate::suite::{self, Lacking, Summary};

/// The oldest version that has all fields of the manifests (`appArmorProfile`), one in between, and a new one.
const VERSIONS: [&str; 3] = ["1.30", "1.33", "1.36"];
/// From PyPI.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";
/// The kinds that are to come of it.
const KINDS: [&str; 3] = ["Namespace", "ConfigMap", "DaemonSet"];

/// Runs the tests and prints the sum.
///
/// **Errors**: one has failed.
pub(crate) fn run() -> Result<()> {
    let repo = place::repo_root()?;
    let scratch = place::scratch_dir(&repo, "kubernetes")?;
    let mut summary = Summary::default();
    summary.add("manifests", "", suite::play(&["kubectl"], || manifests(&repo, &scratch)));
    summary.add("schemas", "", suite::play(&["kubectl", "python3"], || schemas(&repo, &scratch)));
    summary.add("plugin", "", suite::play(&["go"], || plugin::adjusts(&repo, &scratch)));
    summary.conclude("Kubernetes", None)
}

fn manifests(repo: &Path, scratch: &Path) -> Result<String> {
    let file = build(repo, scratch)?;
    let text = fs::read_to_string(&file)?;
    for kind in KINDS {
        ensure!(text.lines().any(|it| it == format!("kind: {kind}")), "there is no {kind}");
    }
    let images: Vec<_> = text.lines().filter_map(|it| it.trim().strip_prefix("image: ")).collect();
    let wanted = format!("localhost/sidestep:{}", env!("CARGO_PKG_VERSION"));
    ensure!(images.len() == 2 && images.iter().all(|it| *it == wanted), "images: {images:?}");
    Ok(format!("{} lines of YAML", text.lines().count()))
}

/// Where kustomize has written what it makes of the manifests.
fn build(repo: &Path, scratch: &Path) -> Result<PathBuf> {
    let file = scratch.join("sidestep.yaml");
    let built =
        said_by(Command::new("kubectl").arg("kustomize").arg(repo.join("packaging/kubernetes")))?;
    fs::write(&file, built)?;
    Ok(file)
}

fn schemas(repo: &Path, scratch: &Path) -> Result<String> {
    let file = build(repo, scratch)?;
    let validator = validator(scratch)?;
    for version in VERSIONS {
        said_by(
            Command::new(&validator).args(["--strict", "--kubernetes-version", version]).arg(&file),
        )
        .with_context(|| format!("Kubernetes {version}"))?;
        refuses(&validator, version, &file)?;
    }
    Ok(format!("Kubernetes {}", VERSIONS.join(", ")))
}

/// **Errors**: it lets a field pass that there is not, so that what it says is worth nothing.
fn refuses(validator: &Path, version: &str, file: &Path) -> Result<()> {
    let wrong = file.with_extension("wrong.yaml");
    let text = fs::read_to_string(file)?;
    fs::write(&wrong, text.replacen("hostPID: true", "hostPid: true", 1))?;
    let mut command = Command::new(validator);
    let output =
        command.args(["--strict", "--kubernetes-version", version]).arg(&wrong).output()?;
    ensure!(!output.status.success(), "the schemas of {version} know hostPid");
    Ok(())
}

/// The validator, in a directory of its own.
///
/// **Errors**: [`Lacking`], if it cannot be had from here.
fn validator(scratch: &Path) -> Result<PathBuf> {
    let environment = scratch.join("python");
    let command = environment.join("bin/kubernetes-validate");
    if !command.exists() {
        let lacking = |error| Lacking(format!("{error:#}"));
        said_by(Command::new("python3").args(["-m", "venv"]).arg(&environment)).map_err(lacking)?;
        let mut pip = Command::new(environment.join("bin/pip"));
        said_by(pip.args(["install", "--quiet", VALIDATOR])).map_err(lacking)?;
    }
    Ok(command)
}

/// What a command has printed.
///
/// **Errors**: it fails; with all that it has said.
fn said_by(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("{command:?}: {}", String::from_utf8_lossy(&said).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
