//! The value of `--log`, which several commands have.

use std::path::PathBuf;

use crate::options::LogLevel;
use crate::words::parse_keyword;

/// The value of `--log`: `LEVEL` or `LEVEL:FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogArg {
    pub(crate) level: LogLevel,
    pub(crate) file: Option<PathBuf>,
}

pub(super) fn parse_log(text: &str) -> Result<LogArg, String> {
    let (level, file) = match text.split_once(':') {
        None => (text, None),
        Some((_, "")) => return Err("no file after the colon".into()),
        Some((level, file)) => (level, Some(PathBuf::from(file))),
    };
    Ok(LogArg { level: parse_keyword(level)?, file })
}
