//! `cargo xtask schedule`: which thread had which CPU, through TCP and through shared memory.
//!
//! A workload of `sidestep bench` runs beside endless loops of the same priority. In the middle
//! of each run the kernel's tracing records every switch and every wake-up. A short window is chosen
//! in which other programs ran least.
//! From this follow a table (where the time of each side has gone) and a picture (each CPU and
//! each side as a lane). `docs/scheduling.md` teaches with such pictures.
//!
//! ```text
//!   loops + sidestep bench ──> tracefs ──> trace::Event ──> history::History ──> table
//!                                                                          └───> picture (SVG)
//! ```

mod history;
mod picture;
mod trace;
mod tracefs;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::bench::launch::Program;
use crate::bench::place;
use crate::suite::HANG;
use history::{Actor, History, Side};
use picture::Panel;
use tracefs::Tracer;

/// What is recorded, and beside what.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A workload of `sidestep bench`, such as 'RR1(100B/100B)'
    workload: String,

    /// How clients are made, as `sidestep bench` calls it
    #[arg(long, default_value = "threads")]
    model: String,

    /// Endless loops of the same priority beside it
    #[arg(long, default_value_t = 2)]
    loops: usize,

    /// Length of the window; it is chosen from a longer record, where other programs run least
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,

    /// Where the picture goes; without it there is only the table
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// From the first look at the clients until the window begins: longer than the warm-up, in which
/// connections move to shared memory.
const SETTLE: Duration = Duration::from_millis(1_000);

/// Measured time of the run around the window.
const DURATION: Duration = Duration::from_millis(2_000);

/// How many times longer than the window the record is that it is chosen from.
const CHOICE: u32 = 12;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Records the workload over each transport.
///
/// **Errors**: tracefs cannot be had (it takes root), or a run fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let repo = place::repo_root()?;
    let scratch = place::scratch_dir(&repo, "schedule")?;
    let tracer = Tracer::new()?;
    let mut panels = Vec::new();
    for (transport, title) in [("tcp", "TCP"), ("smc", "Shared memory")] {
        let recorded = record(options, transport, &tracer, &repo, &scratch)?;
        println!("{title}: {:.0} transactions/s in the whole run", recorded.rate);
        println!("{}", recorded.history.table());
        panels.push(Panel { title, rate: recorded.rate, history: recorded.history });
    }
    if let Some(file) = &options.svg {
        let beside = match options.loops {
            0 => "no loop beside it".to_owned(),
            1 => "one endless loop beside it".to_owned(),
            n => format!("{n} endless loops beside it"),
        };
        let title = format!("{}, {}, {beside}", options.workload, options.model);
        fs::write(file, picture::draw(&title, &panels))
            .with_context(|| format!("writing {}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(())
}

struct Recorded {
    /// Transactions per second.
    rate: f64,
    history: History,
}

fn record(
    options: &Options,
    transport: &str,
    tracer: &Tracer,
    repo: &Path,
    scratch: &Path,
) -> Result<Recorded> {
    let loops: Vec<Program> =
        (0..options.loops).map(|_| Program::endless_loop(scratch)).collect::<Result<_>>()?;
    let json = scratch.join(format!("{transport}.json"));
    let mut bench = Command::new(place::target_dir(repo).join("release/sidestep"));
    bench.args(["bench", "--runs", "1", "--over", transport, "--model", &options.model]);
    bench.arg("--duration").arg(format!("{}ms", DURATION.as_millis()));
    bench.arg("--json").arg(&json).arg(&options.workload);
    let mut bench = Program::start(bench, scratch)?;
    await_clients(&mut bench)?;
    thread::sleep(SETTLE);

    // Before the record: reading it takes longer than the rest of a run may last.
    let mut cast = sides_of(&bench);
    ensure!(!cast.is_empty(), "the run was over before the record began: {}", bench.printed());
    cast.extend(loops.iter().flat_map(Program::family).map(|pid| (pid, Actor::Loop)));
    let window = Duration::from_millis(options.window.into());
    let events = tracer.record(window * CHOICE)?;
    let deadline = Instant::now() + HANG;
    while !bench.has_ended()? {
        ensure!(Instant::now() < deadline, "the run does not end: {}", bench.printed());
        thread::sleep(POLL_INTERVAL);
    }
    let rate = rate_of(&json).with_context(|| bench.printed())?;
    Ok(Recorded { rate, history: History::quietest(&events, window.as_nanos() as u64, &cast)? })
}

fn await_clients(bench: &mut Program) -> Result<()> {
    let deadline = Instant::now() + HANG;
    while !sides_of(bench).values().any(|actor| *actor == Actor::End(Side::Client)) {
        let over = bench.has_ended()? || Instant::now() > deadline;
        ensure!(!over, "no clients: {}", bench.printed());
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The threads of a measurement that are clients or servers, by the names that it gives them.
fn sides_of(bench: &Program) -> HashMap<u32, Actor> {
    let threads = bench.family().into_iter().filter_map(|pid| threads_of(pid).ok()).flatten();
    threads.filter_map(|(tid, name)| Some((tid, Actor::End(Side::named(&name)?)))).collect()
}

fn threads_of(pid: u32) -> Result<Vec<(u32, String)>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm"))?;
        let tid = entry.file_name().to_string_lossy().parse()?;
        threads.push((tid, name));
    }
    Ok(threads)
}

/// The only run's transactions per second.
fn rate_of(json: &Path) -> Result<f64> {
    let text = fs::read_to_string(json).with_context(|| format!("reading {}", json.display()))?;
    let document: serde_json::Value = serde_json::from_str(&text)?;
    let rate = document.pointer("/results/0/tps/median").and_then(serde_json::Value::as_f64);
    rate.context("the result has no rate")
}
