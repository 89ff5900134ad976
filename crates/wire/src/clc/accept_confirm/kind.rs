//! Which of the two messages it is, and of which kind: what type and byte 7 of the header tell.

use crate::clc::frame::{Header, MessageType, Version, open, unexpected};
use crate::error::Error;
use crate::reader::Reader;

/// Which of the two messages it is, and so which side sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// From the server.
    Accept,
    /// From the client.
    Confirm,
}

impl Role {
    pub(super) const fn message_type(self) -> MessageType {
        match self {
            Self::Accept => MessageType::Accept,
            Self::Confirm => MessageType::Confirm,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Accept => "Accept",
            Self::Confirm => "Confirm",
        }
    }
}

/// What errors call bits 1..0 of byte 7.
pub(super) const TYPE_BITS: &str = "CLC type bits";
pub(super) const TYPE_MASK: u8 = 0x03;
pub(super) const TYPE_SMC_R: u8 = 0;
pub(super) const TYPE_SMC_D: u8 = 1;
/// Bit 3 of byte 7.
pub(super) const FLAG_FIRST_CONTACT: u8 = 0x08;
/// What errors call the length of a version 1 message, which leaves no choice.
pub(super) const LENGTH_V1: &str = "Accept or Confirm length";

/// The two bits of byte 7 that an Accept or Confirm has apart from its version.
pub(super) const fn flags(type_bits: u8, is_first_contact: bool) -> u8 {
    type_bits | if is_first_contact { FLAG_FIRST_CONTACT } else { 0 }
}

impl Header {
    /// What bit 3 of byte 7 says in an Accept or Confirm.
    pub(super) const fn is_first_contact(&self) -> bool {
        self.flags & FLAG_FIRST_CONTACT != 0
    }
}

pub(super) fn role(header: &Header) -> Result<Role, Error> {
    match header.message_type {
        MessageType::Accept => Ok(Role::Accept),
        MessageType::Confirm => Ok(Role::Confirm),
        other => Err(unexpected(other)),
    }
}

/// Opens the frame of an Accept or Confirm of the type `type_bits`.
pub(super) fn open_type(bytes: &[u8], type_bits: u8) -> Result<(Header, Role, Reader<'_>), Error> {
    let (header, content) = open(bytes)?;
    let role = role(&header)?;
    let claimed = header.flags & TYPE_MASK;
    if claimed != type_bits {
        return Err(other_kind(claimed, header.version));
    }
    Ok((header, role, content))
}

/// What a parser of one kind says when handed another.
pub(super) const fn other_kind(type_bits: u8, version: Version) -> Error {
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
pub(super) fn check_length_v1(bytes: &[u8], expected: usize) -> Result<(), Error> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Error::Mismatch { field: LENGTH_V1, claimed: bytes.len(), expected })
}
