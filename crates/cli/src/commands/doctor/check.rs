//! One check: how it came out, what was found, what to do about it.

use serde::Serialize;

/// How a check came out. The order is that of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Nothing to do.
    Ok,
    /// It works, with a drawback.
    Warn,
    /// Connections stay on TCP.
    Fail,
}

impl Status {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line of the report.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    #[serde(rename = "check")]
    pub(super) name: &'static str,
    pub(super) status: Status,
    /// What was found.
    pub(super) finding: String,
    /// What to do about it, unless all is well.
    pub(super) advice: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, finding: finding.into(), advice: None }
    }

    pub(super) fn warn(
        name: &'static str,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { name, status: Status::Warn, finding: finding.into(), advice: Some(advice.into()) }
    }

    pub(super) fn fail(
        name: &'static str,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { status: Status::Fail, ..Self::warn(name, finding, advice) }
    }
}
