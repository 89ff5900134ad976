//! The frame of LLC messages: type, length, flags, and what they say.

use core::ops::RangeInclusive;

use crate::cdc;
use crate::clc::Version;
use crate::error::Error;
use crate::field::Field;
use crate::reader::Reader;
use crate::writer::Writer;

/// Bytes of every version 1 message, and the fewest of a version 2 message.
pub const LEN: usize = 44;

/// Longest message this crate emits: an ADD LINK with every list full. A buffer of this many bytes
/// is enough for any `emit` of this module.
pub const EMITTED_LEN_MAX: usize = 4152;

/// Longest message a peer may send.
pub const LENGTH_MAX: usize = 8192;

/// Most receive buffers in one message: one for each connection that a link group can have.
pub const RKEY_COUNT_MAX: usize = 255;

/// Types that a side that does not know them ignores. A receiver that gets [`Error::Unsupported`] finds
/// the type in its `value`; any other unknown type breaks the link by RFC 7609 §A.3.
pub const OPTIONAL_TYPES: RangeInclusive<u8> = 0x80..=0xBF;

mod field {
    use super::Field;

    pub(super) const TYPE: Field<1> = Field::new("LLC type", 0);
    pub(super) const LENGTH_V1: Field<1> = Field::new("LLC length", 1);
    pub(super) const LENGTH_V2: Field<2> = Field::new("LLC length", 1);
    pub(super) const FLAGS: Field<1> = Field::new("LLC flags", 3);
}

/// Bit 7 of the flags.
pub(super) const FLAG_RESPONSE: u8 = 0x80;
/// What version 2 adds to the type.
const TYPE_V2: u8 = 0x20;

/// How the frame is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// RFC 7609.
    V1,
    /// "Shared Memory Communications Version 2".
    V2(LengthOrder),
}

impl Form {
    /// The version of it.
    #[must_use]
    pub const fn version(self) -> Version {
        match self {
            Self::V1 => Version::V1,
            Self::V2(_) => Version::V2,
        }
    }
}

/// In which order the bytes of a version 2 length stand, and those of the rkey count in ADD LINK.
///
/// Linux refuses a length in the other order only when it reads as less than 44: a big-endian one
/// that is a multiple of 256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LengthOrder {
    /// That of the standard, and of Linux on s390.
    BigEndian,
    /// That of Linux on x86 and most others.
    LittleEndian,
}

impl LengthOrder {
    /// `value` in this order.
    pub(super) const fn to_bytes(self, value: u16) -> [u8; 2] {
        match self {
            Self::BigEndian => value.to_be_bytes(),
            Self::LittleEndian => value.to_le_bytes(),
        }
    }

    /// The value of bytes in this order.
    pub(super) const fn value(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::BigEndian => u16::from_be_bytes(bytes),
            Self::LittleEndian => u16::from_le_bytes(bytes),
        }
    }
}

/// Which half of an exchange a message is, where a response says no more than "yes".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// From the side that begins.
    Request,
    /// From the other side, on the link of the request.
    Response,
}

impl Role {
    pub(super) const fn from_flags(flags: u8) -> Self {
        if flags & FLAG_RESPONSE == 0 { Self::Request } else { Self::Response }
    }

    pub(super) const fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => FLAG_RESPONSE,
        }
    }
}

/// Which half of an exchange about receive buffers a message is, and what a response says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RkeyStep {
    /// From the owner of the buffers.
    Request,
    /// Done.
    Response,
    /// Not done, or not for all of them.
    Negative,
}

impl RkeyStep {
    /// Bit 5 of the flags, of a response.
    const FLAG_NEGATIVE: u8 = 0x20;

    pub(super) const fn from_flags(flags: u8) -> Self {
        match (Role::from_flags(flags), flags & Self::FLAG_NEGATIVE) {
            (Role::Request, _) => Self::Request,
            (Role::Response, 0) => Self::Response,
            (Role::Response, _) => Self::Negative,
        }
    }

    pub(super) const fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => FLAG_RESPONSE,
            Self::Negative => FLAG_RESPONSE | Self::FLAG_NEGATIVE,
        }
    }
}

/// Which LLC message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageType {
    ConfirmLink,
    AddLink,
    AddLinkContinuation,
    DeleteLink,
    RequestAddLink,
    ConfirmRkey,
    TestLink,
    ConfirmRkeyContinuation,
    DeleteRkey,
}

impl MessageType {
    /// The type and version that the first byte tells.
    fn from_byte(byte: u8) -> Result<(Self, Version), Error> {
        let version = match byte & 0xF0 {
            0 => Some(Version::V1),
            TYPE_V2 => Some(Version::V2),
            _ => None,
        };
        if let (Some(version), Some(message_type)) = (version, Self::from_code(byte & 0x0F))
            && message_type.is_in(version)
        {
            return Ok((message_type, version));
        }
        let what = match byte {
            cdc::TYPE => "a CDC message",
            _ if OPTIONAL_TYPES.contains(&byte) => "an optional message",
            _ => "an unknown message",
        };
        Err(Error::Unsupported { field: field::TYPE.name, value: byte.into(), what })
    }

    /// Whether this version has it.
    const fn is_in(self, version: Version) -> bool {
        match self {
            Self::AddLinkContinuation | Self::ConfirmRkeyContinuation => {
                matches!(version, Version::V1)
            }
            Self::RequestAddLink => matches!(version, Version::V2),
            Self::ConfirmLink
            | Self::AddLink
            | Self::DeleteLink
            | Self::ConfirmRkey
            | Self::TestLink
            | Self::DeleteRkey => true,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::ConfirmLink,
            2 => Self::AddLink,
            3 => Self::AddLinkContinuation,
            4 => Self::DeleteLink,
            5 => Self::RequestAddLink,
            6 => Self::ConfirmRkey,
            7 => Self::TestLink,
            8 => Self::ConfirmRkeyContinuation,
            9 => Self::DeleteRkey,
            _ => return None,
        })
    }

    /// The code in version 1.
    const fn code(self) -> u8 {
        match self {
            Self::ConfirmLink => 1,
            Self::AddLink => 2,
            Self::AddLinkContinuation => 3,
            Self::DeleteLink => 4,
            Self::RequestAddLink => 5,
            Self::ConfirmRkey => 6,
            Self::TestLink => 7,
            Self::ConfirmRkeyContinuation => 8,
            Self::DeleteRkey => 9,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ConfirmLink => "CONFIRM LINK",
            Self::AddLink => "ADD LINK",
            Self::AddLinkContinuation => "ADD LINK CONTINUATION",
            Self::DeleteLink => "DELETE LINK",
            Self::RequestAddLink => "REQUEST ADD LINK",
            Self::ConfirmRkey => "CONFIRM RKEY",
            Self::TestLink => "TEST LINK",
            Self::ConfirmRkeyContinuation => "CONFIRM RKEY CONTINUATION",
            Self::DeleteRkey => "DELETE RKEY",
        }
    }
}

/// The first four bytes of every LLC message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) message_type: MessageType,
    pub(super) form: Form,
    pub(super) flags: u8,
}

impl Header {
    /// Reads the header of a whole message, and checks its length.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let reader = Reader::new(bytes);
        let (message_type, version) = MessageType::from_byte(reader.u8(field::TYPE)?)?;
        reader.section(field::LENGTH_V2.name, 0, LEN)?;
        let form = match version {
            Version::V1 => check_length_v1(&reader)?,
            Version::V2 => check_length_v2(&reader)?,
        };
        Ok(Self { message_type, form, flags: reader.u8(field::FLAGS)? })
    }

    /// Claims the first `len` bytes of `out` for the message, and writes the header there.
    pub(super) fn emit(self, out: &mut [u8], len: usize) -> Result<Writer<'_>, Error> {
        let mut writer = Writer::new(self.message_type.name(), out, len)?;
        let code = self.message_type.code();
        match self.form {
            Form::V1 => {
                writer.put(field::TYPE, [code])?;
                writer.put(field::LENGTH_V1, [len as u8])?;
            }
            Form::V2(order) => {
                writer.put(field::TYPE, [TYPE_V2 | code])?;
                writer.put(field::LENGTH_V2, order.to_bytes(len as u16))?;
            }
        }
        writer.put(field::FLAGS, [self.flags])?;
        Ok(writer)
    }
}

/// A version 1 message has exactly one length.
fn check_length_v1(reader: &Reader<'_>) -> Result<Form, Error> {
    let claimed = reader.u8(field::LENGTH_V1)?.into();
    if claimed != LEN || reader.len() != LEN {
        return Err(Error::Mismatch {
            field: field::LENGTH_V1.name,
            claimed,
            expected: reader.len(),
        });
    }
    Ok(Form::V1)
}

/// The length that arrived tells the byte order of the one that is written. When both orders are
/// the same bytes, big-endian is as good.
fn check_length_v2(reader: &Reader<'_>) -> Result<Form, Error> {
    let field = field::LENGTH_V2.name;
    let expected = reader.len();
    if expected > LENGTH_MAX {
        return Err(Error::Invalid { field, value: expected as u64 });
    }
    let bytes = reader.bytes(field::LENGTH_V2)?;
    [LengthOrder::BigEndian, LengthOrder::LittleEndian]
        .into_iter()
        .find(|order| usize::from(order.value(bytes)) == expected)
        .map(Form::V2)
        .ok_or(Error::Mismatch { field, claimed: u16::from_be_bytes(bytes).into(), expected })
}

/// Opens the frame around a message of this type: checks type and length, and returns the header
/// with all bytes. Offsets in the result count from the start of the message.
pub(super) fn open(bytes: &[u8], message_type: MessageType) -> Result<(Header, Reader<'_>), Error> {
    let header = Header::parse(bytes)?;
    if header.message_type != message_type {
        return Err(unexpected(header.message_type));
    }
    Ok((header, Reader::new(bytes)))
}

/// What a parser of one message type says when handed another.
pub(super) fn unexpected(message_type: MessageType) -> Error {
    Error::Invalid { field: field::TYPE.name, value: message_type.code().into() }
}

/// Of a list that CONTINUATIONs may continue: checks that `present` entries in a message with room
/// for `room` go with `remaining`, the number of entries from this message on.
pub(super) fn check_remaining(
    field: &'static str,
    remaining: u8,
    present: usize,
    room: usize,
) -> Result<(), Error> {
    if present == usize::from(remaining).min(room) {
        return Ok(());
    }
    Err(Error::Inconsistent { field, reason: "entries are left for another message, or missing" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of this first byte, length field and number of bytes.
    fn parse(first: u8, length: [u8; 2], len: usize) -> Result<Header, Error> {
        let mut bytes = [0; LENGTH_MAX + 1];
        bytes[0] = first;
        bytes[1..3].copy_from_slice(&length);
        Header::parse(&bytes[..len])
    }

    #[test]
    fn the_first_byte_tells_type_and_version() {
        let known = |range: RangeInclusive<u8>| {
            range.filter(|byte| MessageType::from_byte(*byte).is_ok()).collect::<std::vec::Vec<_>>()
        };
        assert_eq!(known(0..=0x1F), [1, 2, 3, 4, 6, 7, 8, 9]);
        assert_eq!(known(0x20..=0xFF), [0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29]);
        for code in 1..=9 {
            assert_eq!(MessageType::from_code(code).map(MessageType::code), Some(code));
        }
    }

    #[test]
    fn a_type_that_is_not_read_is_unsupported_and_says_why() {
        for (byte, why) in [
            (0x00, "an unknown message"),
            (0x05, "an unknown message"),
            (0x0A, "an unknown message"),
            (0x23, "an unknown message"),
            (0x28, "an unknown message"),
            (0x31, "an unknown message"),
            (0x7F, "an unknown message"),
            (0x80, "an optional message"),
            (0xBF, "an optional message"),
            (0xC0, "an unknown message"),
            (0xFE, "a CDC message"),
        ] {
            let error = parse(byte, [44, 0], 1).unwrap_err();
            let field = "LLC type";
            assert_eq!(error, Error::Unsupported { field, value: byte.into(), what: why });
        }
    }

    #[test]
    fn the_length_that_arrived_tells_the_byte_order() {
        let form = |length, len| parse(0x27, length, len).map(|header| header.form);
        assert_eq!(form([0, 44], 44), Ok(Form::V2(LengthOrder::BigEndian)));
        assert_eq!(form([44, 0], 44), Ok(Form::V2(LengthOrder::LittleEndian)));
        assert_eq!(form([1, 44], 300), Ok(Form::V2(LengthOrder::BigEndian)));
        assert_eq!(form([44, 1], 300), Ok(Form::V2(LengthOrder::LittleEndian)));
        assert_eq!(form([1, 1], 257), Ok(Form::V2(LengthOrder::BigEndian)));
        assert_eq!(form([0x20, 0], LENGTH_MAX), Ok(Form::V2(LengthOrder::BigEndian)));
    }

    #[test]
    fn a_length_that_is_not_what_arrived_is_refused() {
        for (first, length, len) in [
            (0x07, [43, 0], 44),
            (0x07, [45, 0], 45),
            (0x07, [44, 0], 45),
            (0x27, [0, 45], 44),
            (0x27, [44, 0], 45),
            (0x27, [44, 44], 44),
        ] {
            let error = parse(first, length, len).unwrap_err();
            assert!(matches!(error, Error::Mismatch { field: "LLC length", .. }), "{error}");
        }
        for first in [0x07, 0x27] {
            let error = parse(first, [0, 43], 43).unwrap_err();
            assert!(matches!(error, Error::Truncated { field: "LLC length", .. }), "{error}");
        }
        let error = parse(0x27, [0x20, 1], LENGTH_MAX + 1).unwrap_err();
        assert_eq!(error, Error::Invalid { field: "LLC length", value: 8193 });
    }

    #[test]
    fn only_a_response_is_negative() {
        for flags in 0..=u8::MAX {
            assert_eq!(
                RkeyStep::from_flags(flags).flags(),
                match flags & 0xA0 {
                    0x80 => 0x80,
                    0xA0 => 0xA0,
                    _ => 0,
                }
            );
            assert_eq!(Role::from_flags(flags).flags(), flags & 0x80);
        }
    }
}
