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

use super::{Header, MessageType, Version, open, unexpected};
use crate::{Error, reader::Reader};

pub mod first_contact;
pub mod smc_d;
pub mod smc_r;

pub use first_contact::{FirstContact, FirstContactR, Hostname};
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

/// Which of the two messages it is, and so who sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// From the server.
    Accept,
    /// From the client.
    Confirm,
}

impl Role {
    const fn message_type(self) -> MessageType {
        match self {
            Self::Accept => MessageType::Accept,
            Self::Confirm => MessageType::Confirm,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Accept => "Accept",
            Self::Confirm => "Confirm",
        }
    }
}

/// What errors call bits 1..0 of byte 7.
const TYPE_BITS: &str = "CLC type bits";
const TYPE_MASK: u8 = 0x03;
const TYPE_SMC_R: u8 = 0;
const TYPE_SMC_D: u8 = 1;
/// Bit 3 of byte 7.
const FLAG_FIRST_CONTACT: u8 = 0x08;
/// What errors call the length of a version 1 message, which leaves no choice.
const LENGTH_V1: &str = "Accept or Confirm length";

/// The two bits of byte 7 that an Accept or Confirm has apart from its version.
const fn flags(type_bits: u8, is_first_contact: bool) -> u8 {
    type_bits | if is_first_contact { FLAG_FIRST_CONTACT } else { 0 }
}

impl Header {
    /// What bit 3 of byte 7 says in an Accept or Confirm.
    const fn is_first_contact(&self) -> bool {
        self.flags & FLAG_FIRST_CONTACT != 0
    }
}

fn role(header: &Header) -> Result<Role, Error> {
    match header.message_type {
        MessageType::Accept => Ok(Role::Accept),
        MessageType::Confirm => Ok(Role::Confirm),
        other => Err(unexpected(other)),
    }
}

/// Opens the frame of an Accept or Confirm of the type `type_bits`.
fn open_type(bytes: &[u8], type_bits: u8) -> Result<(Header, Role, Reader<'_>), Error> {
    let (header, content) = open(bytes)?;
    let role = role(&header)?;
    let claimed = header.flags & TYPE_MASK;
    if claimed != type_bits {
        return Err(other_kind(claimed, header.version));
    }
    Ok((header, role, content))
}

/// What a parser of one kind says when handed another.
const fn other_kind(type_bits: u8, version: Version) -> Error {
    let value = type_bits as u64;
    let what = match (type_bits, version) {
        (TYPE_SMC_R, _) => "SMC-R",
        (TYPE_SMC_D, Version::V1) => "SMC-D version 1",
        (TYPE_SMC_D, Version::V2) => "SMC-D version 2",
        _ => return Error::Invalid { field: TYPE_BITS, value },
    };
    Error::Unsupported { field: TYPE_BITS, value, what }
}

/// A version 1 message has exactly one length.
fn check_length_v1(bytes: &[u8], expected: usize) -> Result<(), Error> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Error::Mismatch { field: LENGTH_V1, claimed: bytes.len(), expected })
}
