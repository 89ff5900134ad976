//! How a rendezvous between hosts ends, for the driver and for the records.

use sidestep_wire::Diagnosis;
use sidestep_wire::clc::{Decline, Version};

/// What has become of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is SMC-R.
    Agreed {
        /// The version of CLC, LLC and CDC.
        version: Version,
        /// A link group was made for it.
        first_contact: bool,
    },
    /// It stays TCP, with the next byte, as if SMC had never been mentioned.
    Tcp(Fallback),
    /// It cannot go on, not even as TCP: to be reset.
    Broken(Failure),
}

/// Who has declined, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// We have, or nothing was sent at all.
    Ours(Cause),
    /// The peer has. If it is out of sync, the link group that our Accept named is to be ended.
    Peers(Decline),
}

impl Fallback {
    /// The standard's code.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        match self {
            Self::Ours(cause) => cause.diagnosis(),
            Self::Peers(decline) => decline.diagnosis,
        }
    }
}

/// Why we decline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// By the driver's [`decline`](super::Exchange::decline).
    #[error("{}", .0.meaning())]
    Driver(Diagnosis),
}

impl Cause {
    /// The standard's code that Linux uses for it.
    #[must_use]
    pub const fn diagnosis(self) -> Diagnosis {
        match self {
            Self::Driver(diagnosis) => diagnosis,
        }
    }
}

/// Why the TCP connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// What came is no CLC message, or not the expected one (RFC 7609 C.6).
    #[error("the peer's bytes are not the CLC message that was expected")]
    Protocol,
    /// Nothing came in time (C.5).
    #[error("the peer's CLC message did not come in time")]
    TimedOut,
    /// The peer has left (C.5).
    #[error("the peer ended the connection in the middle of the rendezvous")]
    Left,
    /// It is too late to decline (C.3).
    #[error("SMC-R failed after both sides had agreed on it")]
    TooLate,
}
