//! `sidestep assess`: which server ports would profit from shared memory, and by how much, found
//! while every connection stays on TCP. z/OS has the same as its SMC Applicability Tool.
//!
//! Programs run with `mode = "tcp"`: the library counts connections, messages and round trips by
//! the server's address and moves nothing. A program that is started here shows its counts
//! ([`Assessor`]) and so do its children, so that nothing is lost when they end; of
//! programs that run already they are read as `sidestep ss` reads connections. The figures of
//! `sidestep probe` then say what such traffic would take over TCP and over SMC.

use std::io;
use std::time::{Duration, Instant};

use procfs::Current;
use sidestep_modeler::probe::{self, ProbeError};
use sidestep_observe::{Program, Shown, Snapshot};
use thiserror::Error;

use super::descriptors;
use super::run::{Launch, RunError};
use super::ss;
use crate::args::{AssessArgs, RunArgs};
use crate::options::Mode;
use crate::output;
use assessor::Assessor;
use child::Child;
use traffic::Traffic;

mod assessor;
mod child;
mod forecast;
mod report;
mod traffic;

/// Prints the assessment and says with which status to exit.
pub(crate) fn execute(args: &AssessArgs) -> i32 {
    match assess(args) {
        Ok(()) => 0,
        Err(error) => {
            output::complain("assess", &error);
            match error {
                AssessError::Run(error) => error.exit_status(),
                _ => 1,
            }
        }
    }
}

/// Why there is no assessment.
#[derive(Debug, Error)]
enum AssessError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("cannot start the program: {0}")]
    Fork(io::Error),
    #[error("cannot be shown what the program counts: {0}")]
    Assessor(io::Error),
    #[error("cannot list /proc: {0}")]
    Processes(io::Error),
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error("process {0}: {reason}", reason = ss::refusal(ss::is_root()))]
    Unreadable(u32),
    #[error(
        "process {0} does not run in count-only mode, or has had no connection; start it with \
         `sidestep run --mode tcp`, or here: `sidestep assess PROGRAM`"
    )]
    NotCounting(u32),
    #[error(
        "no program runs in count-only mode; start one with `sidestep run --mode tcp`, or here: \
         `sidestep assess PROGRAM`"
    )]
    NobodyCounts,
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("cannot write the assessment: {0}")]
    Output(io::Error),
}

fn assess(args: &AssessArgs) -> Result<(), AssessError> {
    let traffic = match args.command.is_empty() {
        true => of_running(args)?,
        false => of_started(args)?,
    };
    // After the interval: the programs are not disturbed by it, nor it by one that has ended.
    let figures = if traffic.has_candidates() { Some(probe::measure()?) } else { None };
    let text = match args.json {
        true => report::json(&traffic, figures.as_ref()),
        false => report::text(&traffic, figures.as_ref()),
    };
    output::print_as(args.json, &text).map(drop).map_err(AssessError::Output)
}

/// Starts the program and counts until it ends, or the interval does.
fn of_started(args: &AssessArgs) -> Result<Traffic, AssessError> {
    let assessor = Assessor::bind().map_err(AssessError::Assessor)?;
    let run = RunArgs {
        mode: Some(Mode::Tcp),
        promotion: None,
        log: None,
        config: args.config.clone(),
        command: args.command.clone(),
    };
    let launch = Launch::prepare_for(&run, assessor.name())?;
    let start = Instant::now();
    let mut child = Child::start(launch).map_err(AssessError::Fork)?;
    // Only now: the program has the limits that it would have had. Each program that it begins
    // shows a file.
    descriptors::allow_as_many_as_may_be();
    let mut shown: Vec<Shown> = Vec::new();
    while child.is_running() {
        child.wait_for(&assessor, args.interval.map(|interval| start + interval));
        shown.extend(assessor.receive());
    }
    shown.extend(assessor.receive());
    let programs = Shown::read_all(&shown).map_err(AssessError::Assessor)?;
    Ok(Traffic::of(&programs, start.elapsed()))
}

/// Counts what programs that run already have had, or have in the interval.
fn of_running(args: &AssessArgs) -> Result<Traffic, AssessError> {
    let before = counting(args.pid)?;
    let Some(interval) = args.interval else {
        let lived = before.iter().filter_map(|program| lifetime(program.pids[0])).max();
        return Ok(Traffic::of(&before, lived.unwrap_or(Duration::from_secs(1))));
    };
    let start = Instant::now();
    std::thread::sleep(interval);
    let after = match counting(args.pid) {
        Err(AssessError::NoProcess(_) | AssessError::NobodyCounts) => Vec::new(),
        counted => counted?,
    };
    Ok(Traffic::between(&before, &after, start.elapsed()))
}

/// The programs that only count, or the one that is asked for.
fn counting(pid: Option<u32>) -> Result<Vec<Program>, AssessError> {
    let mut snapshot = Snapshot::take().map_err(AssessError::Processes)?;
    snapshot.programs.retain(|program| {
        let is_asked_for = pid.is_none_or(|pid| program.pids.contains(&pid));
        is_asked_for && (!program.services.is_empty() || program.services_untold > 0)
    });
    match pid.filter(|_| snapshot.programs.is_empty()) {
        None if snapshot.programs.is_empty() => Err(AssessError::NobodyCounts),
        None => Ok(snapshot.programs),
        Some(pid) if snapshot.unreadable.contains(&pid) => Err(AssessError::Unreadable(pid)),
        Some(pid) if lifetime(pid).is_none() => Err(AssessError::NoProcess(pid)),
        Some(pid) => Err(AssessError::NotCounting(pid)),
    }
}

/// For how long a process has been running.
fn lifetime(pid: u32) -> Option<Duration> {
    let stat = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    let since_boot = procfs::Uptime::current().ok()?.uptime_duration();
    let started = stat.starttime as f64 / procfs::ticks_per_second() as f64;
    since_boot.checked_sub(Duration::from_secs_f64(started))
}
