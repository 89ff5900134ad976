//! Callgrind: the instructions of one function of a program under Sidestep, and of all that it calls.
//!
//! What is counted is the library as it is shipped. An instruction counts as one whatever it waits for, so two counts of
//! one build are the same on a busy machine, and on another processor nearly so.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::place;
use crate::debian;

/// What makes another library of the release profile than the one that is shipped.
const PROFILE: [&str; 3] = [
    "CARGO_PROFILE_RELEASE_LTO",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS",
    "CARGO_PROFILE_RELEASE_DEBUG",
];

/// Installs what counting takes. `Some`: why it cannot be had.
pub(crate) fn missing() -> Option<String> {
    let installed = debian::ensure(&["gcc", "strace", "valgrind"]);
    installed.err().map(|error| format!("{error:#}"))
}

/// Builds the library as it is shipped. Where the environment makes another of the release profile, it has a target
/// directory of its own.
///
/// **Errors**: it does not build.
pub(crate) fn shipped_library(repo: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--package", crate::LIBRARY]);
    let mut target = place::target_dir(repo);
    if PROFILE.iter().any(|name| std::env::var_os(name).is_some()) {
        target = place::scratch_dir(repo, "shipped")?;
        cargo.arg("--target-dir").arg(&target);
        PROFILE.iter().for_each(|name| _ = cargo.env_remove(name));
    }
    crate::run(&mut cargo)?;
    Ok(target.join("release/libsidestep.so"))
}

/// One count: what runs, and which functions of it are collected.
pub(crate) struct Count<'a> {
    /// `tests/costs/costs.c`, compiled.
    pub(crate) program: &'a Path,
    pub(crate) library: &'a Path,
    /// `SIDESTEP_OPTIONS`.
    pub(crate) options: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) functions: &'a [&'a str],
    pub(crate) rounds: u64,
}

impl Count<'_> {
    /// Runs it, and leaves what Callgrind has written in `profile`.
    ///
    /// **Errors**: the program fails, or Valgrind does.
    pub(crate) fn into_profile(self, profile: &Path) -> Result<()> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
            .args(self.functions.iter().map(|it| format!("--toggle-collect={it}")))
            .arg(format!("--callgrind-out-file={}", profile.display()))
            .arg(self.program)
            .args([self.kind, &self.rounds.to_string()])
            .env("LD_PRELOAD", self.library)
            .env("SIDESTEP_OPTIONS", self.options)
            // One instruction that copies all would be counted once for each byte.
            .env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=1073741824")
            .output()
            .context("starting valgrind")?;
        if !output.status.success() {
            bail!("{}:\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}
