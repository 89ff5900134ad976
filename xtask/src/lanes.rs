//! Lanes: the stages of `cargo xtask test` that wait more than they compute run side by side.
//!
//! One stage after the other leaves a CPU idle while a test waits for a peer to die or a guest to boot. Each stage is a
//! process of its own, because a stage knows its own sockets and children by their descent, and each line that it
//! prints has its name before it. Of lanes that may install packages there is one beside `e2e` and `interop`, whose packages
//! are there before: apt does one thing at a time.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::bench::place;

/// The arguments of a stage: what `cargo xtask` is told, its name first.
pub(crate) type Stage = &'static [&'static str];

/// Stages that run one after the other.
pub(crate) type Lane = &'static [Stage];

/// Runs the lanes side by side, with what is [built](place::build_dir) there. A lane ends at its first stage that fails; the others go on, as their verdicts are worth having.
///
/// **Errors**: a stage has failed; the text names it, and the command that repeats it.
pub(crate) fn run(lanes: &[Lane], built: &Path) -> Result<()> {
    let failures: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = lanes.iter().map(|lane| scope.spawn(|| play(lane, built))).collect();
        let ends = running.into_iter().map(|lane| lane.join().expect("it does not panic"));
        ends.filter_map(Result::err).map(|error| format!("{error:#}")).collect()
    });
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn play(lane: Lane, built: &Path) -> Result<()> {
    for stage in lane {
        let command = format!("cargo xtask {}", stage.join(" "));
        timed(stage[0], || {
            let succeeded = carry_out(stage, built).with_context(|| command.clone())?;
            ensure!(succeeded, "`{command}` failed");
            Ok(())
        })?;
    }
    Ok(())
}

/// Carries out a stage, and prints how long it took if it has succeeded.
pub(crate) fn timed(name: &str, stage: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    stage()?;
    println!("{name}: {} s", start.elapsed().as_secs());
    Ok(())
}

/// Runs a stage, and passes on what it says line by line. Its errors join its output in one pipe, so the order is its own.
fn carry_out(stage: Stage, built: &Path) -> Result<bool> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(stage)
        .env(place::BUILT, built)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    for line in BufReader::new(reader).split(b'\n') {
        println!("{:<10} | {}", stage[0], String::from_utf8_lossy(&line?));
    }
    Ok(child.wait()?.success())
}
