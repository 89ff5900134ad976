//! `sidestep probe`: what this machine would gain.

use std::io::{self, Write};

use sidestep_modeler::probe::{self, ProbeError, Report};
use sidestep_modeler::workload::{NameError, Units, Workload};
use thiserror::Error;

use crate::args::ProbeArgs;
use crate::output;

/// Prints the report and says with which status to exit.
pub(crate) fn execute(args: &ProbeArgs) -> i32 {
    match probe(args) {
        Ok(()) => 0,
        Err(error) => {
            output::complain("probe", &error);
            if matches!(error, Failure::Name(_)) { 2 } else { 1 }
        }
    }
}

/// Why there is no report.
#[derive(Debug, Error)]
enum Failure {
    #[error("{0}")]
    Name(#[from] NameError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("cannot write the report: {0}")]
    Output(io::Error),
}

fn probe(args: &ProbeArgs) -> Result<(), Failure> {
    let units = if args.si { Units::Si } else { Units::Ibm };
    let names =
        if args.workloads.is_empty() { vec![EXAMPLE.to_owned()] } else { args.workloads.clone() };
    let workloads: Vec<Workload> =
        names.iter().map(|name| Workload::parse(name, units)).collect::<Result<_, _>>()?;

    let mut report = Report::new(probe::measure()?);
    for workload in &workloads {
        report.forecast(workload.to_string(), workload, args.model);
    }
    let text = if args.json { json(&report) } else { report.to_string() };
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn json(report: &Report) -> String {
    // Numbers and strings: nothing that JSON could not say.
    serde_json::to_string_pretty(report).map_or_else(|_| String::new(), |text| text + "\n")
}

/// Predicted when no workload is named.
const EXAMPLE: &str = "RR10(2KB/2KB)";
