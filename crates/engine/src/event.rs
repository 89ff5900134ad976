//! What a host tells its owner, and what the owner answers.

use sidestep_proto::connection::{Misbehaved, SendError};
use sidestep_proto::link_group::Refusal;
use sidestep_wire::clc::AcceptConfirmR;
use sidestep_wire::{AlertToken, Diagnosis};

/// What has happened. Connections are named by our alert tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Send this Accept or Confirm over the connection's TCP connection.
    Introduce(AlertToken, Box<AcceptConfirmR>),
    /// The connection stays TCP: to be declined with this, unless the peer has declined.
    Declined(AlertToken, Diagnosis),
    /// The connection carries bytes.
    Established(AlertToken),
    /// There are bytes to receive, or their end.
    Readable(AlertToken),
    /// There is room to send, after a `send` that found none.
    Writable(AlertToken),
    /// Of the bytes that are sent in place, fewer are [kept](crate::Host::kept).
    Sent(AlertToken),
    /// The peer has an urgent byte to send, or has sent it.
    Urgent(AlertToken),
    /// The connection has ended in disorder. The program is to close it.
    Reset(AlertToken, Reset),
    /// Nothing is left of a connection that the program has closed, or that was declined: no adapter reads its ring.
    Gone(AlertToken),
}

impl Event {
    /// The connection that it is about.
    #[must_use]
    pub const fn connection(&self) -> AlertToken {
        match self {
            Self::Introduce(token, _)
            | Self::Declined(token, _)
            | Self::Established(token)
            | Self::Readable(token)
            | Self::Writable(token)
            | Self::Sent(token)
            | Self::Urgent(token)
            | Self::Reset(token, _)
            | Self::Gone(token) => *token,
        }
    }
}

/// Why a connection has ended in disorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reset {
    /// The peer has aborted it.
    #[error("the peer has aborted the connection")]
    ByPeer,
    /// The peer has said what cannot be.
    #[error(transparent)]
    Misbehaved(Misbehaved),
    /// No link leads to the peer any more, or not to its buffer.
    #[error("no link leads to the peer any more")]
    Unreachable,
    /// The group does not take it any more, after all was agreed.
    #[error("the link group does not take the connection: {0:?}")]
    Refused(Refusal),
}

/// Why a call on a connection does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not now (`EAGAIN`): an event will tell when.
    #[error("nothing can be done now")]
    WouldBlock,
    /// The program has shut or closed it (`EPIPE`).
    #[error("this side has shut the connection down for sending")]
    Shut,
    /// The peer reads no more (`EPIPE`).
    #[error("the peer has closed the connection")]
    PeerClosed,
    /// It has ended in disorder (`ECONNRESET`).
    #[error("the connection was reset")]
    Reset,
    /// There is no such connection, or the program has closed it (`EBADF`).
    #[error("there is no such connection")]
    Unknown,
}

impl From<SendError> for CallError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Shut => Self::Shut,
            SendError::PeerClosed => Self::PeerClosed,
            SendError::Aborted => Self::Reset,
        }
    }
}
