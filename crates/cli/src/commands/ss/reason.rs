//! Reasons for TCP as they are shown to programs.

use std::borrow::Cow;

use serde::Serialize;
use sidestep_gateway::status;
use sidestep_observe::Fallback;
use sidestep_proto::fallback::Blame;
use sidestep_wire::Diagnosis;

/// Why a connection stayed on TCP, in `--json`; the names are part of the command's interface.
#[derive(Serialize)]
pub(super) struct ReasonRow {
    pub(super) code: String,
    pub(super) name: &'static str,
    pub(super) text: Cow<'static, str>,
    /// Whose fault it is, if that is known.
    pub(super) blame: Option<&'static str>,
    /// The field that was wrong, if the peer broke the protocol.
    pub(super) field: Option<String>,
}

impl ReasonRow {
    pub(super) fn new(fallback: &Fallback) -> Self {
        Self {
            code: format!("{:#010x}", fallback.diagnosis().0),
            name: fallback.diagnosis().name(),
            text: fallback.reason.to_string().into(),
            blame: fallback.reason.blame().map(Blame::name),
            field: fallback.reason.field().map(|field| field.to_string()),
        }
    }

    pub(super) fn by_gateway(reason: &status::Reason) -> Self {
        let diagnosis = Diagnosis(reason.diagnosis);
        Self {
            code: format!("{:#010x}", diagnosis.0),
            name: diagnosis.name(),
            text: reason.text.clone().into(),
            // Which of the two gateways has decided says nothing of whose fault it is.
            blame: None,
            field: None,
        }
    }
}
