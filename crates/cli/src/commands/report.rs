//! `sidestep report`: one page about this host: what moved, what did not and why, what that gained, and what
//! to change.
//!
//! ```text
//!   states of all programs ─┐
//!   records of `stats` ─────┼─> facts ──┬── gain     by measurements of `bench`
//!   status of the gateway ──┘           ├── advice
//!                                       └── page     all of it, in one file
//! ```
//!
//! Of records the page has what they cover; without, what the programs that run now have had since their
//! start. Decisions and recommendations are of the last hour either way.

mod advice;
mod facts;
mod gain;
mod page;
mod servers;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;
use sidestep_gateway::status::Status;
use sidestep_modeler::report::json::ReadError;
use sidestep_modeler::report::{Output, OutputError};
use sidestep_observe::Snapshot;
use thiserror::Error;

use super::activity::Activity;
use super::record::{self, Records};
use super::ss;
use crate::args::HostReportArgs;
use crate::output;
use facts::{Facts, Moment};
use servers::Servers;

/// Writes the page; 1 if there cannot be one, otherwise 0.
pub(crate) fn execute(args: &HostReportArgs) -> i32 {
    match report(args) {
        Ok(()) => 0,
        Err(error) => {
            output::complain("report", &error);
            1
        }
    }
}

/// Why there is no page.
#[derive(Debug, Error)]
enum ReportError {
    #[error("cannot list /proc: {0}")]
    Processes(io::Error),
    #[error("cannot read {}: {error}; give a file written by `sidestep stats --record`", .path.display())]
    Record { path: PathBuf, error: io::Error },
    #[error("{} has no record; give a file written by `sidestep stats --record`", .0.display())]
    NoRecord(PathBuf),
    #[error(transparent)]
    Measurement(#[from] ReadError),
    #[error(transparent)]
    Output(#[from] OutputError),
}

fn report(args: &HostReportArgs) -> Result<(), ReportError> {
    let output = Output::open(&args.html)?;
    let measured = gain::read(&args.bench)?;
    let records = read_records(&args.records)?;
    let snapshot = Snapshot::take().map_err(ReportError::Processes)?;
    ss::say_curtailed("report", &snapshot.curtailed);
    let timeline: Vec<Moment> = records.all.iter().map(Moment::of).collect();
    let activities =
        if args.records.is_empty() { of_programs(&snapshot) } else { of_records(&records) };
    let gains = activities
        .iter()
        .filter_map(|(program, activity)| gain::of_program(program, activity, &measured));
    let servers = Servers::look();
    let gateway = Status::ask().ok();
    let facts = Facts {
        host: uname(|it| it.nodename()),
        kernel: uname(|it| it.release()),
        at: Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        gains: gains.collect(),
        is_measured: !measured.is_empty(),
        advice: advice::all(&activities, &snapshot.programs, gateway.as_ref(), |port| {
            servers.of(port)
        }),
        notes: notes(&snapshot, &records),
        activities,
        timeline,
    };
    output.write(page::render(&facts).as_bytes())?;
    Ok(())
}

/// All files together, in the order of time.
fn read_records(paths: &[PathBuf]) -> Result<Records, ReportError> {
    let mut all = Records::default();
    for path in paths {
        let records = record::read(path)
            .map_err(|error| ReportError::Record { path: path.clone(), error })?;
        if records.all.is_empty() {
            return Err(ReportError::NoRecord(path.clone()));
        }
        all.all.extend(records.all);
        all.unread += records.unread;
    }
    all.all.sort_by(|a, b| a.at.cmp(&b.at));
    Ok(all)
}

fn of_records(records: &Records) -> BTreeMap<String, Activity> {
    let mut activities: BTreeMap<String, Activity> = BTreeMap::new();
    for (name, activity) in records.all.iter().flat_map(|record| &record.programs) {
        activities.entry(name.clone()).or_default().add(activity);
    }
    activities
}

fn of_programs(snapshot: &Snapshot) -> BTreeMap<String, Activity> {
    let mut activities: BTreeMap<String, Activity> = BTreeMap::new();
    for program in &snapshot.programs {
        activities.entry(program.program.clone()).or_default().add(&Activity::of(&program.totals));
    }
    activities
}

fn notes(snapshot: &Snapshot, records: &Records) -> Vec<String> {
    let Snapshot { unreadable, incompatible, curtailed, .. } = snapshot;
    [
        ("processes that may not be looked at", unreadable.len()),
        ("programs with another version of Sidestep", incompatible.len()),
        ("users with more programs than one look reads", curtailed.len()),
        ("lines of the records that were cut or are of another version", records.unread),
    ]
    .into_iter()
    .filter(|(_, number)| *number > 0)
    .map(|(what, number)| format!("{what}: {number}"))
    .collect()
}

fn uname(of: impl Fn(&rustix::system::Uname) -> &std::ffi::CStr) -> String {
    of(&rustix::system::uname()).to_string_lossy().into_owned()
}
