//! Why a worker gives up: what happened, to whom, and what to do.

use std::io;

use super::clock::HANG_S;
use super::trouble::Trouble;

/// The text of the last event of a worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the first line must be a job: {0}")]
    NotAJob(String),
    #[error("a job with {0} = 0 makes no sense")]
    VoidJob(&'static str),
    #[error("not a command: {0}")]
    NotACommand(String),
    #[error("the command {0} was not expected now")]
    Unexpected(&'static str),
    #[error("reading commands: {0}")]
    Input(#[source] io::Error),
    #[error("writing events: {0}")]
    Output(#[source] io::Error),
    #[error("the limit of descriptors: {0}")]
    Limit(#[source] io::Error),
    #[error(
        "{connections} connections need {needed} descriptors, the limit is {limit}: \
         ulimit -n {needed}"
    )]
    TooFewDescriptors { connections: u32, needed: u64, limit: u64 },
    #[error(
        "cannot start thread {number} of {of}: {source}; see ulimit -u, \
         /proc/sys/kernel/threads-max and /proc/sys/vm/max_map_count"
    )]
    Thread { number: usize, of: usize, source: io::Error },
    #[error("cannot listen at {at}: {source}")]
    Listen { at: String, source: io::Error },
    #[error("serving at {at}: {source}")]
    Serve { at: String, source: Trouble },
    #[error("{source} (server at {to})")]
    Client { to: String, source: Trouble },
    #[error("no byte has moved for {HANG_S} s; waiting: {who} (server at {to})")]
    Hang { who: String, to: String },
}
