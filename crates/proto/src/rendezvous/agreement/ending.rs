//! How an attempt ends that comes to nothing: what the peer is told, why, and what is taken back.

use crate::fallback::Reason;
use sidestep_wire::clc::Decline;
use sidestep_wire::diagnosis::Diagnosis;
use sidestep_wire::host_control::Instance;
use sidestep_wire::ids::PeerId;

/// What an end says in place of its next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declining {
    pub(super) diagnosis: Diagnosis,
    pub(super) out_of_sync: bool,
    /// Why.
    pub reason: Reason,
}

impl Declining {
    pub(super) const fn of(decline: &Decline, reason: Reason) -> Self {
        let Decline { diagnosis, out_of_sync, .. } = *decline;
        Self { diagnosis, out_of_sync, reason }
    }

    /// Of an end that does not go on; `None`: the standard has no words for why.
    pub(super) fn for_reason(reason: Reason) -> Option<Self> {
        let diagnosis = reason.diagnosis()?;
        Some(Self { diagnosis, out_of_sync: false, reason })
    }

    /// In the standard's words.
    #[must_use]
    pub fn message(&self) -> Decline {
        let Self { diagnosis, out_of_sync, .. } = *self;
        Decline { out_of_sync, ..Decline::v2(PeerId::default(), diagnosis) }
    }
}

/// How an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why the connection stays on TCP.
    pub reason: Reason,
    /// Client: the next attempt with this server would come to the same.
    pub is_likely_to_recur: bool,
    /// The peer's process, if it has introduced itself.
    pub peer: Option<Instance>,
}

/// What an end has left behind that has to be taken back when the attempt is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// Claims or greetings in the memory of acquaintances.
    pub claims: bool,
    /// The connection's name.
    pub name: bool,
    /// It counts as an attempt that is under way.
    pub attempt: bool,
}
