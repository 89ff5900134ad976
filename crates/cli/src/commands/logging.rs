//! What the agent and the gateway report, and where: a line for each thing, in which everything is escaped
//! that is not printable, and of each kind no more than [`pace`] lets through.

mod pace;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use env_logger::{Builder, Logger, Target};
use log::{Level, LevelFilter, Log, Metadata, Record, SetLoggerError};
use thiserror::Error;

use crate::args::LogArg;
use crate::options::LogLevel;
use crate::output::Escaped;
use pace::Pace;

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
    builder.format(|line, record| {
        let (at, level, target) = (line.timestamp(), record.level(), record.target());
        writeln!(line, "[{at} {level:<5} {target}] {}", Escaped(record.args()))
    });
    Journal { logger: builder.build(), pace: Mutex::default() }.install();
    Ok(())
}

/// Passes on what comes at a bearable pace. Who has asked for every message gets every message.
struct Journal {
    logger: Logger,
    pace: Mutex<Pace>,
}

impl Journal {
    fn install(self) {
        let level = self.logger.filter();
        let installed: Result<(), SetLoggerError> = log::set_boxed_logger(Box::new(self));
        // There is one already in tests only.
        if installed.is_ok() {
            log::set_max_level(level);
        }
    }

    /// How many lines of this kind were left out before this one; `None`: this one is, too.
    fn admit(&self, record: &Record<'_>) -> Option<u64> {
        if record.level() > Level::Info {
            return Some(0);
        }
        let place = record.file_static().zip(record.line());
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        place.map_or(Some(0), |place| pace.admit(place, Instant::now()))
    }
}

impl Log for Journal {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logger.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.logger.matches(record) {
            return;
        }
        let Some(left_out) = self.admit(record) else { return };
        if left_out > 0 {
            let mut remark = Record::builder();
            remark.level(record.level()).target(record.target());
            let text = format_args!("{left_out} lines like the next one were left out");
            self.logger.log(&remark.args(text).build());
        }
        self.logger.log(record);
    }

    fn flush(&self) {
        self.logger.flush();
    }
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
