//! `sidestep stats`: what programs have had so far, each by itself and all together, with
//! `--watch` how fast that grows, and with `--record` a file of that.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use sidestep_gateway::status::Status;
use sidestep_observe::{Program, Snapshot};
use thiserror::Error;

use super::ss;
use crate::args::StatsArgs;
use crate::output;
use interrupt::Interrupt;
use recorder::RecordError;

mod figures;
mod interrupt;
mod recorder;
mod report;

/// Prints the statistics and says with which status to exit.
pub(crate) fn execute(args: &StatsArgs) -> i32 {
    let outcome = match (&args.record, args.watch) {
        (Some(path), _) => recorder::record(path, args.every).map_err(StatsError::from),
        (None, Some(seconds)) => watch(args, Duration::from_secs_f64(seconds)),
        (None, None) => once(args),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            output::complain("stats", &error);
            1
        }
    }
}

/// Why there are no statistics.
#[derive(Debug, Error)]
enum StatsError {
    #[error("cannot list /proc: {0}")]
    Processes(io::Error),
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error("process {0}: {reason}", reason = ss::refusal(ss::is_root()))]
    Unreadable(u32),
    #[error("process {0} has had no connection under Sidestep; `sidestep why pid:{0}` says more")]
    Stranger(u32),
    #[error("process {0} runs another version of Sidestep: ask with the `sidestep` of that one")]
    OtherVersion(u32),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("cannot write the statistics: {0}")]
    Output(io::Error),
}

fn once(args: &StatsArgs) -> Result<(), StatsError> {
    let programs = look(args)?;
    let text = match args.json {
        true => report::json(&programs, gateway(args).as_ref(), None),
        false => report::text(&programs, gateway(args).as_ref()),
    };
    output::print_as(args.json, &text).map(drop).map_err(StatsError::Output)
}

/// The gateway, where all is asked for and it can be asked.
fn gateway(args: &StatsArgs) -> Option<Status> {
    args.pid.is_none().then(|| Status::ask().ok()).flatten()
}

/// The programs that are asked for.
fn look(args: &StatsArgs) -> Result<Vec<Program>, StatsError> {
    let mut snapshot = Snapshot::take().map_err(StatsError::Processes)?;
    let is_asked_for = |program: &Program| args.pid.is_none_or(|pid| program.pids.contains(&pid));
    snapshot.programs.retain(is_asked_for);
    snapshot.find_run_queue_delays();
    ss::say_curtailed("stats", &snapshot.curtailed);
    match args.pid.filter(|_| snapshot.programs.is_empty()) {
        None => Ok(snapshot.programs),
        Some(pid) if snapshot.unreadable.contains(&pid) => Err(StatsError::Unreadable(pid)),
        Some(pid) if snapshot.is_incompatible(pid) => Err(StatsError::OtherVersion(pid)),
        Some(pid) if Path::new(&format!("/proc/{pid}")).exists() => Err(StatsError::Stranger(pid)),
        Some(pid) => Err(StatsError::NoProcess(pid)),
    }
}

/// One line, or with `--json` one object a line, for each look until the user has seen enough
/// or the program that was asked for has ended.
fn watch(args: &StatsArgs, every: Duration) -> Result<(), StatsError> {
    Interrupt::catch();
    let (mut programs, mut taken) = (look(args)?, Instant::now());
    let mut lines = 0;
    while Interrupt::has_not_come_within(every) {
        let (now, at) = match look(args) {
            Err(StatsError::NoProcess(_)) if args.pid.is_some() => break,
            looked => (looked?, Instant::now()),
        };
        let seconds = at.duration_since(taken).as_secs_f64();
        let text = match args.json {
            true => report::json(&now, gateway(args).as_ref(), Some((&programs, seconds))),
            false => report::rates(&now, &programs, seconds, lines),
        };
        if !output::print_as(args.json, &text).map_err(StatsError::Output)? {
            break;
        }
        (programs, taken, lines) = (now, at, lines + 1);
    }
    Ok(())
}
