//! The command line of `sidestep top`.

use std::time::Duration;

use clap::ValueEnum;

use super::interval;

/// The arguments of `sidestep top`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// How long there is between two looks, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_every)]
    pub(crate) every: Duration,

    /// What stands at the top
    #[arg(long, value_name = "COLUMN", default_value = "bytes")]
    pub(crate) sort: SortColumn,

    /// List connections instead of programs
    #[arg(long)]
    pub(crate) connections: bool,

    /// Only what has this text in one of its columns
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,

    /// Look for one interval, print that, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// With --once: print one JSON object, with programs and connections, instead of a table
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
}

/// What rows are sorted by, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortColumn {
    /// Bytes sent and received in a second
    Bytes,
    /// Calls that moved bytes in a second
    Messages,
    /// CPU time spent looking for the peer's bytes
    Waiting,
    /// Connections that are on TCP for a reason
    Fallback,
}

fn parse_every(text: &str) -> Result<Duration, String> {
    interval::parse_seconds(text).map(Duration::from_secs_f64)
}

const EXAMPLES: &str = "\
Figures are of the last interval. WAIT is CPU time in which threads looked for the peer's bytes
instead of sleeping, in percent of one CPU. Connections and bytes are those of `sidestep ss`.

Keys: b m w f sort by bytes, messages, waiting, fallback, again to turn the order; Tab shows
programs or connections; / filters; arrows, PgUp and PgDn scroll; Space pauses; q ends.

Root sees the programs of all users, everybody else their own.

Examples:
  sidestep top
  sidestep top --sort waiting --every 5
  sidestep top --connections --filter 6379
  sidestep top --once --json | jq '.programs[] | {program, bytes_per_second}'

Exit status: 0; 1 if there is no terminal and no --once, or nothing can be looked at; 2 if the
command line is wrong.";
