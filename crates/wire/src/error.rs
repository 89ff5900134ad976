//! Why bytes were refused, or could not be written.
//!
//! Each variant is one cause and names the field where it showed. While parsing, the peer is to
//! blame; while emitting, or making an identifier from text, the caller.

use crate::rmbe_size::SMC_D_CODE;

/// Why a message could not be parsed or emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end before the field does.
    #[error("{field}: needs {needed} bytes, only {present} are there")]
    Truncated {
        /// The field or section that is cut off.
        field: &'static str,
        /// Bytes from the start of the message or section to the end of the field.
        needed: usize,
        /// Bytes that are there.
        present: usize,
    },
    /// A length or an offset contradicts the rest of the message.
    #[error("{field}: says {claimed}, the message is laid out for {expected}")]
    Mismatch {
        /// The length or offset field.
        field: &'static str,
        /// What it says, in bytes.
        claimed: usize,
        /// What the rest of the message calls for, in bytes.
        expected: usize,
    },
    /// The field holds a value its table does not allow.
    #[error("{field}: {value:#x} is not allowed")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value; of an eyecatcher all bytes, of an EID the offending one.
        value: u64,
    },
    /// The message is legal, but of a kind this crate does not read.
    #[error("{field}: {value:#x} is not supported ({what})")]
    Unsupported {
        /// The field that tells the kind.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The kind in words.
        what: &'static str,
    },
    /// The buffer is too short for the message to be emitted.
    #[error("{field}: needs a buffer of {needed} bytes, it has {present}")]
    NoRoom {
        /// The message or field that does not fit.
        field: &'static str,
        /// Bytes it takes.
        needed: usize,
        /// Bytes the buffer has.
        present: usize,
    },
    /// The message to be emitted contradicts itself.
    #[error("{field}: {reason}")]
    Inconsistent {
        /// The field that does not go with the others.
        field: &'static str,
        /// The rule it breaks.
        reason: &'static str,
    },
}

impl Error {
    /// Whether a value was refused that a later edition may give a meaning: a kind of message we do
    /// not read, or a number from a table with reserved places (RFC 7609 C.6).
    #[must_use]
    pub fn is_reserved_value(&self) -> bool {
        match self {
            Self::Unsupported { .. } => true,
            Self::Invalid { field, .. } => *field == SMC_D_CODE,
            _ => false,
        }
    }

    /// The name of the field where it showed.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match *self {
            Self::Truncated { field, .. }
            | Self::Mismatch { field, .. }
            | Self::Invalid { field, .. }
            | Self::Unsupported { field, .. }
            | Self::NoRoom { field, .. }
            | Self::Inconsistent { field, .. } => field,
        }
    }
}
