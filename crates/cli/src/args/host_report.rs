//! The command line of `sidestep report`.

use std::path::PathBuf;

/// The arguments of `sidestep report`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HostReportArgs {
    /// Where to write the page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: PathBuf,

    /// What was recorded by `sidestep stats --record`; several are one record [default: what the
    /// programs that run now have had since their start]
    #[arg(long = "record", value_name = "FILE")]
    pub(crate) records: Vec<PathBuf>,

    /// What was measured on this machine by `sidestep bench --json`: the page then says what
    /// connections in shared memory have gained
    #[arg(long, value_name = "FILE")]
    pub(crate) bench: Vec<PathBuf>,
}

const EXAMPLES: &str = "\
The page is one file, which loads nothing and runs no script. A gain is told only by a measurement:
messages sent through shared memory, times the difference for one message between TCP and SMC of the
measured workload whose messages are nearest in length.

Root sees the programs of all users, everybody else their own.

Examples:
  sidestep report --html host.html
  sidestep report --html host.html --record /var/log/sidestep.record
  sidestep bench --json bench.json 'RR10(2KB/2KB)' 'RR10(32KB/32KB)'
  sidestep report --html host.html --bench bench.json

Exit status: 0; 1 if a file cannot be read or written; 2 if the command line is wrong.";
