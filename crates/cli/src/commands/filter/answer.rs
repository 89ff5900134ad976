//! What the commands print, and why something could not be done.

use std::io;
use std::path::Path;

use sidestep_bpf::BpfError;
use sidestep_filter::{Rule, RuleList};
use thiserror::Error;

use crate::output;

/// Why something could not be done.
#[derive(Debug, Error)]
pub(super) enum FilterError {
    #[error("no filter is in force; `sidestep filter apply FILE` puts one into force")]
    None,
    /// Lines, each with its place in the list.
    #[error("{0}")]
    List(String),
    #[error("{0}")]
    Config(#[from] crate::config::ConfigError),
    #[error("which list? Name a file, or set filter.file or filter.rules in the configuration")]
    NoFile,
    #[error("which list? The configuration has filter.file and filter.rules: use one of them")]
    TwoLists,
    #[error("{0}")]
    Bpf(#[from] BpfError),
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("cannot write the result: {0}")]
    Output(io::Error),
    #[error("{0}")]
    Packet(String),
    #[error("a filter is in force for {0}: `sidestep filter remove` first, or leave out --cgroup")]
    OtherCgroup(String),
    #[error("there is no interface {0} here, by which packets could be forwarded")]
    NoInterface(String),
    #[error(
        "rules name control groups from the root of all, which is not seen here (in a container): apply them on the host"
    )]
    NoRootGroup,
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    #[error("cannot wait for lines of the log: {0}")]
    Wait(io::Error),
    #[error("another `sidestep filter watch` reads the log, and each line goes to one reader")]
    OtherReader,
    #[error("the filter was removed")]
    Removed,
    #[error("{path}: {reason}")]
    Import { path: String, reason: String },
    #[error("what was left out is a comment in the list: {0} of it")]
    LeftOut(usize),
    #[error("`{0}`: {1}")]
    Rule(String, String),
    #[error("line {0} of the list has no rule: `sidestep filter list` tells the lines")]
    NoLine(usize),
    #[error("not confirmed, so it is as it was before: {0}")]
    NotConfirmed(&'static str),
}

impl FilterError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }
}

pub(super) fn say(text: &str) -> Result<(), FilterError> {
    output::print(text).map(drop).map_err(FilterError::Output)
}

pub(super) fn say_json(value: &serde_json::Value) -> Result<(), FilterError> {
    let text = serde_json::to_string_pretty(value).expect("a value is always JSON");
    output::print_json(&(text + "\n")).map(drop).map_err(FilterError::Output)
}

/// `line 7: deny tcp any any`, or `added: deny tcp any any`
pub(super) fn named(list: &RuleList, rule: usize) -> String {
    match list.line_of(rule) {
        0 => format!("added: {}", list.rules[rule]),
        line => format!("line {line}: {}", list.rules[rule]),
    }
}

/// `1 rule`, `2 rules`
pub(super) fn counted(rules: &[Rule]) -> String {
    match rules.len() {
        1 => "1 rule".to_owned(),
        count => format!("{count} rules"),
    }
}
