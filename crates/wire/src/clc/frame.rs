//! The frame of CLC messages: header, trailer, and what both say.

use core::fmt;

use crate::error::Error;
use crate::field::Field;
use crate::reader::Reader;
use crate::writer::Writer;

/// Longest message this crate emits: a Proposal with every list full. A buffer of this many bytes
/// is enough for any `emit` of this module.
pub const EMITTED_LEN_MAX: usize = 652;

/// Longest message a peer may announce. Today's longest has [`EMITTED_LEN_MAX`] bytes; the rest is
/// room for extensions to come, and a bound on what a hostile peer can make us wait for.
pub const LENGTH_MAX: u16 = 8192;

mod field {
    use super::Field;

    pub(super) const EYECATCHER: Field<4> = Field::new("CLC eyecatcher", 0);
    pub(super) const TYPE: Field<1> = Field::new("CLC type", 4);
    pub(super) const LENGTH: Field<2> = Field::new("CLC length", 5);
    pub(super) const VERSION_FLAGS: Field<1> = Field::new("CLC version", 7);
    /// Within the trailer.
    pub(super) const TRAILER: Field<4> = Field::new("CLC trailer", 0);
}

/// The first eight bytes of every CLC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// "SMCR" or "SMCD".
    pub eyecatcher: Eyecatcher,
    /// Which message it is.
    pub message_type: MessageType,
    /// Bytes of the whole message: `Header::LEN + TRAILER_LEN <= length <= LENGTH_MAX`.
    pub length: u16,
    /// The version it is written in.
    pub version: Version,
    /// Bits 3..0 of byte 7, whose meaning depends on the type.
    pub flags: u8,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 8;

    /// Reads the header at the front of `bytes`; what follows it is not looked at.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] when there are fewer than eight bytes, [`Error::Invalid`] when a field
    /// has no legal value, [`Error::Unsupported`] for a version above 2.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let reader = Reader::new(bytes);
        let eyecatcher = Eyecatcher::read(&reader, field::EYECATCHER)?;
        let (message_type, length) = Self::extent(bytes)?;

        let version_flags = reader.u8(field::VERSION_FLAGS)?;
        let version = Version::from_code(version_flags >> 4)?;
        Ok(Self { eyecatcher, message_type, length, version, flags: version_flags & 0x0F })
    }

    /// The type and the length of the message that starts with `bytes`, whatever its version: a
    /// message that cannot be read must be read over, because it is answered by a Decline and
    /// nothing of it may be left to the program.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse), but for the version.
    pub fn extent(bytes: &[u8]) -> Result<(MessageType, u16), Error> {
        let reader = Reader::new(bytes);
        Eyecatcher::read(&reader, field::EYECATCHER)?;

        let code = reader.u8(field::TYPE)?;
        let message_type = MessageType::from_code(code)
            .ok_or(Error::Invalid { field: field::TYPE.name, value: code.into() })?;

        let length = reader.u16(field::LENGTH)?;
        if usize::from(length) < Self::LEN + TRAILER_LEN || length > LENGTH_MAX {
            return Err(Error::Invalid { field: field::LENGTH.name, value: length.into() });
        }
        Ok((message_type, length))
    }
}

/// Bytes of the trailer.
pub const TRAILER_LEN: usize = 4;

/// The four letters at both ends of a message. Sent strictly, read leniently: either may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eyecatcher {
    /// In Proposal and Decline, and in the Accept and Confirm of SMC-R.
    SmcR,
    /// In the Accept and Confirm of SMC-D.
    SmcD,
}

impl Eyecatcher {
    /// "SMCR" or "SMCD" in EBCDIC, code page 1047.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 4] {
        match self {
            Self::SmcR => [0xE2, 0xD4, 0xC3, 0xD9],
            Self::SmcD => [0xE2, 0xD4, 0xC3, 0xC4],
        }
    }

    fn read(reader: &Reader<'_>, field: Field<4>) -> Result<Self, Error> {
        let bytes = reader.bytes(field)?;
        [Self::SmcR, Self::SmcD]
            .into_iter()
            .find(|eyecatcher| eyecatcher.to_bytes() == bytes)
            .ok_or(Error::Invalid { field: field.name, value: u32::from_be_bytes(bytes).into() })
    }
}

/// Which CLC message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// Client to server, first.
    Proposal,
    /// Server to client.
    Accept,
    /// Client to server, second.
    Confirm,
    /// Either way, in place of an expected message.
    Decline,
}

impl MessageType {
    /// The type with this code, if there is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Proposal),
            2 => Some(Self::Accept),
            3 => Some(Self::Confirm),
            4 => Some(Self::Decline),
            _ => None,
        }
    }

    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Proposal => 1,
            Self::Accept => 2,
            Self::Confirm => 3,
            Self::Decline => 4,
        }
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Proposal => "Proposal",
            Self::Accept => "Accept",
            Self::Confirm => "Confirm",
            Self::Decline => "Decline",
        })
    }
}

/// The version a message is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// RFC 7609, and SMC-D version 1.
    V1,
    /// "Shared Memory Communications Version 2".
    V2,
}

impl Version {
    /// The four bits on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    const fn from_code(code: u8) -> Result<Self, Error> {
        let field = field::VERSION_FLAGS.name;
        match code {
            0 => Err(Error::Invalid { field, value: 0 }),
            1 => Ok(Self::V1),
            2 => Ok(Self::V2),
            _ => {
                Err(Error::Unsupported { field, value: code as u64, what: "a CLC version above 2" })
            }
        }
    }
}

/// Opens the frame around a message: checks header, length and trailer, and returns the header with
/// all bytes up to the trailer. Offsets in the result still count from the start of the message.
pub(super) fn open(bytes: &[u8]) -> Result<(Header, Reader<'_>), Error> {
    let header = Header::parse(bytes)?;
    let length = usize::from(header.length);
    if bytes.len() < length {
        return Err(Error::Truncated {
            field: field::LENGTH.name,
            needed: length,
            present: bytes.len(),
        });
    }
    if bytes.len() > length {
        return Err(Error::Mismatch {
            field: field::LENGTH.name,
            claimed: length,
            expected: bytes.len(),
        });
    }
    let whole = Reader::new(bytes);
    let trailer = whole.section(field::TRAILER.name, length - TRAILER_LEN, TRAILER_LEN)?;
    Eyecatcher::read(&trailer, field::TRAILER)?;
    let content = whole.section(field::LENGTH.name, 0, length - TRAILER_LEN)?;
    Ok((header, content))
}

/// Closes the frame around a message: writes the header, and the trailer at its length.
pub(super) fn close(writer: &mut Writer<'_>, header: Header) -> Result<(), Error> {
    let eyecatcher = header.eyecatcher.to_bytes();
    writer.put(field::EYECATCHER, eyecatcher)?;
    writer.put(field::TYPE, [header.message_type.code()])?;
    writer.put(field::LENGTH, header.length.to_be_bytes())?;
    writer.put(field::VERSION_FLAGS, [header.version.code() << 4 | header.flags & 0x0F])?;
    let trailer_at = usize::from(header.length) - TRAILER_LEN;
    writer.section(field::TRAILER.name, trailer_at, TRAILER_LEN)?.put(field::TRAILER, eyecatcher)
}

/// What a parser of one message type says when handed another.
pub(super) fn unexpected(message_type: MessageType) -> Error {
    Error::Invalid { field: field::TYPE.name, value: message_type.code().into() }
}
