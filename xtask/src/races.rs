//! `cargo xtask races`: many threads on one socket, under ThreadSanitizer.
//!
//! The program is `crates/socket/tests/races.rs`. The detector is part of a nightly
//! Rust. The standard library comes without it, so what is ordered in there alone must
//! be told to it; the crates of ours are compiled with it, atomics included.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::bench::place;

/// Orders that the detector cannot see: a `OnceLock` is set inside the standard library.
const UNSEEN: &str = "race:std::sync::once_lock::OnceLock\n";

/// Nor does it see that a socket orders anything, or it would find less: what a `send`
/// did before a `recv` is what our words have to order.
const OPTIONS: &str = "io_sync=0 history_size=4";

/// What the program is told when a race is to be found in it.
const WITH_A_RACE: &str = "--with-a-race";

/// Runs the program; without a nightly Rust it says so.
///
/// **Errors**: there is a race, or the detector does not find the one that it is shown.
pub(crate) fn run() -> Result<()> {
    let nightly = Command::new("cargo").args(["+nightly", "--version"]).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        println!("races: skipped, there is no nightly Rust");
        return Ok(());
    }
    let shown = program(&[WITH_A_RACE])?.output().context("cargo")?;
    let said = String::from_utf8_lossy(&shown.stderr);
    ensure!(said.contains("ThreadSanitizer: data race"), "the detector is blind: {said}");
    let status = program(&[])?.status()?;
    if !status.success() {
        bail!("many threads on one socket: {status}");
    }
    println!("no races");
    Ok(())
}

fn program(arguments: &[&str]) -> Result<Command> {
    let scratch = place::scratch_dir(&place::repo_root()?, "races")?;
    let unseen = scratch.join("suppressions");
    fs::write(&unseen, UNSEEN)?;
    let mut command = Command::new("cargo");
    command
        .args(["+nightly", "test", "--quiet", "--package", "sidestep-socket", "--test", "races"])
        // Named, or build scripts would be compiled with the detector, too.
        .args(["--target", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
        .arg("--target-dir")
        .arg(&scratch)
        .arg("--")
        .args(arguments)
        // The second: it may be mixed with the standard library as it comes.
        .env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer")
        .env("TSAN_OPTIONS", format!("{OPTIONS} suppressions={}", unseen.display()));
    Ok(command)
}
