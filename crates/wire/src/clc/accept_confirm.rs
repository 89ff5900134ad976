//! Accept and Confirm: "here is my buffer".
//!
//! The server chooses one thing of the Proposal and answers with an Accept, the client agrees with
//! a Confirm. Both name the sender's device and its receive buffer, and both are laid out alike, so
//! one struct serves both and [`Role`] tells which it is. What was chosen decides the layout, and
//! byte 7 of the header tells it:
//!
//! | Version (bits 7..4) | Type (bits 1..0) | Struct | Bytes |
//! |---|---|---|---|
//! | 1 | 0, SMC-R | [`AcceptConfirmR`] | 68 |
//! | 1 | 1, SMC-D | [`AcceptConfirmDV1`] | 48 |
//! | 2 | 0, SMC-R | [`AcceptConfirmR`] | 108, or from 160 on at first contact |
//! | 2 | 1, SMC-D | [`AcceptConfirmD`] | 78, or from 114 on at first contact |
//!
//! Bit 3 of that byte is *first contact*: the two sides have no link group in common yet. In
//! version 2 they then introduce themselves ([`first_contact`]). RFC 7609 knows the bit in the
//! Accept only; Linux sets it in the Confirm as well.
//!
//! *Source*: RFC 7609 §A.2.2, §A.2.3; Linux `net/smc/smc_clc.h`.

use kind::{TYPE_BITS, TYPE_MASK, TYPE_SMC_D, TYPE_SMC_R, role};

use super::frame::{Header, Version};
use crate::error::Error;

pub mod first_contact;
mod kind;
pub mod smc_d;
pub mod smc_r;

pub use first_contact::{FirstContact, FirstContactR, Hostname};
pub use kind::Role;
pub use smc_d::{AcceptConfirmD, AcceptConfirmDV1};
pub use smc_r::{AcceptConfirmR, FormR};

/// An Accept or Confirm of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptConfirm {
    /// SMC-R, version 1 or 2.
    SmcR(AcceptConfirmR),
    /// SMC-D version 1.
    SmcDV1(AcceptConfirmDV1),
    /// SMC-D version 2.
    SmcD(AcceptConfirmD),
}

impl AcceptConfirm {
    /// Reads a whole Accept or Confirm.
    ///
    /// # Errors
    ///
    /// As the `parse` of its kind; [`Error::Invalid`] for type bits that mean nothing, or another
    /// message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let header = Header::parse(bytes)?;
        role(&header)?;
        Ok(match (header.flags & TYPE_MASK, header.version) {
            (TYPE_SMC_R, _) => Self::SmcR(AcceptConfirmR::parse(bytes)?),
            (TYPE_SMC_D, Version::V1) => Self::SmcDV1(AcceptConfirmDV1::parse(bytes)?),
            (TYPE_SMC_D, Version::V2) => Self::SmcD(AcceptConfirmD::parse(bytes)?),
            (bits, _) => return Err(Error::Invalid { field: TYPE_BITS, value: bits.into() }),
        })
    }

    /// Accept or Confirm.
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::SmcR(message) => message.role,
            Self::SmcDV1(message) => message.role,
            Self::SmcD(message) => message.role,
        }
    }

    /// The version it is written in.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::SmcR(message) => message.version(),
            Self::SmcDV1(_) => Version::V1,
            Self::SmcD(_) => Version::V2,
        }
    }

    /// Whether the sender sees no link group in common yet.
    #[must_use]
    pub const fn is_first_contact(&self) -> bool {
        match self {
            Self::SmcR(message) => message.is_first_contact(),
            Self::SmcDV1(message) => message.first_contact,
            Self::SmcD(message) => message.first_contact.is_some(),
        }
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// As the `emit` of its kind.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::SmcR(message) => message.emit(out),
            Self::SmcDV1(message) => message.emit(out),
            Self::SmcD(message) => message.emit(out),
        }
    }
}
