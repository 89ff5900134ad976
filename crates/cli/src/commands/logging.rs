//! What the agent and the gateway report, and where.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;

use env_logger::{Builder, Target};
use log::LevelFilter;
use thiserror::Error;

use crate::args::LogArg;
use crate::options::LogLevel;

/// The file of `--log` cannot be opened.
#[derive(Debug, Error)]
#[error("cannot write the log {}: {reason}", path.display())]
pub(super) struct LogError {
    path: PathBuf,
    reason: io::Error,
}

/// From now on `log` writes to standard error, or appends to the file.
///
/// # Errors
///
/// The file cannot be opened.
pub(super) fn begin(log: Option<&LogArg>) -> Result<(), LogError> {
    let level = log.map_or(LevelFilter::Info, |log| filter(log.level));
    let mut builder = Builder::new();
    // Crates of others have levels of their own liking.
    builder.filter_level(level.min(LevelFilter::Warn)).filter_module(OURS, level);
    if let Some(path) = log.and_then(|log| log.file.as_ref()) {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|reason| LogError { path: path.clone(), reason })?;
        builder.target(Target::Pipe(Box::new(file)));
    }
    builder.init();
    Ok(())
}

/// How the names of our modules begin, in all crates.
const OURS: &str = "sidestep";

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::Error,
        LogLevel::Warn => LevelFilter::Warn,
        LogLevel::Info => LevelFilter::Info,
        LogLevel::Debug => LevelFilter::Debug,
        LogLevel::Trace => LevelFilter::Trace,
    }
}
