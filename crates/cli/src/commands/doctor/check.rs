//! One check: how it came out, what was found, what to do about it.

use serde::Serialize;

use super::change::Change;

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
    /// What of that `--fix` does.
    #[serde(skip)]
    pub(super) changes: Vec<Change>,
}

impl Check {
    pub(super) fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            finding: finding.into(),
            advice: None,
            changes: Vec::new(),
        }
    }

    pub(super) fn warn(
        name: &'static str,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { status: Status::Warn, advice: Some(advice.into()), ..Self::ok(name, finding) }
    }

    pub(super) fn fail(
        name: &'static str,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { status: Status::Fail, ..Self::warn(name, finding, advice) }
    }

    /// The same, with what `--fix` does about it.
    pub(super) fn with_changes(self, changes: impl IntoIterator<Item = Change>) -> Self {
        Self { changes: changes.into_iter().collect(), ..self }
    }
}
