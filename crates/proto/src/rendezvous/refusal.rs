//! Refusal: why an expected message does not lead on.

use sidestep_wire::clc::Decline;

use crate::fallback::{Field, Reason};

/// Why an expected message does not lead on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// To be sent in place of our next message (C.1); and whose fault it is.
    Decline(Decline, Reason),
    /// The peer has declined; there is no answer to that (C.1).
    Declined(Decline),
    /// It is no message, or not the expected one (C.6), or it is too late to decline (C.3):
    /// whatever the peer sends next means nothing. The field that was wrong.
    Protocol(Field),
}

impl Refusal {
    /// Why the connection stays on TCP.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Decline(_, reason) => *reason,
            Self::Declined(decline) => Reason::PeerDeclined(decline.diagnosis),
            Self::Protocol(field) => Reason::PeerBroke(*field),
        }
    }
}
