//! The frame all LLC messages share, and the message told apart by it.
//!
//! SMC-R connects two hosts by *links*, pairs of queue pairs between their RDMA adapters, and a
//! *link group* has one or more of them. LLC messages travel on a link as RDMA sends, one message
//! each, and keep the group:
//!
//! | Message | Says |
//! |---|---|
//! | [`ConfirmLink`] | this link works, and this is its number |
//! | [`AddLink`], [`AddLinkContinuation`] | let us have another link, in case this one fails |
//! | [`RequestAddLink`] | from the client: here are adapters for another link |
//! | [`DeleteLink`] | this link, or the whole group, ends |
//! | [`ConfirmRkey`], [`ConfirmRkeyContinuation`] | here is another receive buffer |
//! | [`DeleteRkey`] | these receive buffers are gone |
//! | [`TestLink`] | is someone there? |
//!
//! Each is a request that the other side answers with a response of the same type. The frame:
//!
//! | Off | Len | Field | Version 1 | Version 2 |
//! |---|---|---|---|---|
//! | 0 | 1 | type | 1..9 | 32 + 1..9 |
//! | 1 | 1 or 2 | length | one byte, 44 | two bytes, 44 or more, in either byte order |
//! | 2 | 1 | | ADD LINK: reject reason; else reserved | second byte of the length |
//! | 3 | 1 | flags | bit 7 response; the others differ by type | the same |
//! | 4 | … | body | up to 44 | zeros up to 44 at least |
//!
//! The byte order of the version 2 length is big-endian in the standard, but Linux writes it as its
//! processor does. Where a message ends is known from the RDMA send that brought it, so either is
//! read, and a [`LengthOrder`] says which to write.
//!
//! A link group speaks one version, the one its Accept was written in. Types from `80` to `BF` are
//! optional: who does not know one ignores it ([`OPTIONAL_TYPES`]). [`cdc::TYPE`] starts a message
//! that is not LLC.
//!
//! *Source*: RFC 7609 §A.3; "Shared Memory Communications Version 2"; Linux `net/smc/smc_llc.c`.

use core::ops::RangeInclusive;

use crate::{Error, cdc, clc::Version, field::Field, reader::Reader, writer::Writer};

pub mod add_link;
pub mod confirm_link;
pub mod confirm_rkey;
pub mod delete_link;
pub mod delete_rkey;
pub mod request_add_link;
pub mod test_link;

pub use add_link::{
    AddLink, AddLinkContinuation, AddLinkExtension, AddLinkForm, AddLinkStep, RejectReason,
    RtokenPair,
};
pub use confirm_link::ConfirmLink;
pub use confirm_rkey::{ConfirmRkey, ConfirmRkeyContinuation, ConfirmRkeyStep, LinkRtoken};
pub use delete_link::{DeleteLink, DeleteReason, DeleteScope};
pub use delete_rkey::DeleteRkey;
pub use request_add_link::RequestAddLink;
pub use test_link::TestLink;

/// Bytes of every version 1 message, and the fewest of a version 2 message.
pub const LEN: usize = 44;

/// Longest message this crate emits: an ADD LINK with every list full. A buffer of this many bytes
/// is enough for any `emit` of this module.
pub const EMITTED_LEN_MAX: usize = 4152;

/// Longest message a peer may send.
pub const LENGTH_MAX: usize = 8192;

/// Most receive buffers in one message: one for each connection that a link group can have.
pub const RKEY_COUNT_MAX: usize = 255;

/// Types that whoever does not know them ignores. A receiver that gets [`Error::Unsupported`] finds
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
const FLAG_RESPONSE: u8 = 0x80;
/// What version 2 adds to the type.
const TYPE_V2: u8 = 0x20;

/// An LLC message of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing may be boxed here, and a message lives only while it is handled"
)]
pub enum Message {
    /// This link works.
    ConfirmLink(ConfirmLink),
    /// Another link.
    AddLink(AddLink),
    /// The receive buffers of another link, in version 1.
    AddLinkContinuation(AddLinkContinuation),
    /// The end of a link or of the link group.
    DeleteLink(DeleteLink),
    /// The client's wish for another link, in version 2.
    RequestAddLink(RequestAddLink),
    /// Another receive buffer.
    ConfirmRkey(ConfirmRkey),
    /// The same on further links, in version 1.
    ConfirmRkeyContinuation(ConfirmRkeyContinuation),
    /// Is someone there?
    TestLink(TestLink),
    /// The end of receive buffers.
    DeleteRkey(DeleteRkey),
}

impl Message {
    /// Reads one whole message.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a type that is optional, unknown or not LLC;
    /// [`Error::Truncated`] when there are fewer than 44 bytes; [`Error::Mismatch`] when the length
    /// is not that of the bytes, in neither byte order; [`Error::Invalid`] for more than
    /// [`LENGTH_MAX`] bytes; and as the `parse` of the message's type.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Ok(match Header::parse(bytes)?.message_type {
            MessageType::ConfirmLink => Self::ConfirmLink(ConfirmLink::parse(bytes)?),
            MessageType::AddLink => Self::AddLink(AddLink::parse(bytes)?),
            MessageType::AddLinkContinuation => {
                Self::AddLinkContinuation(AddLinkContinuation::parse(bytes)?)
            }
            MessageType::DeleteLink => Self::DeleteLink(DeleteLink::parse(bytes)?),
            MessageType::RequestAddLink => Self::RequestAddLink(RequestAddLink::parse(bytes)?),
            MessageType::ConfirmRkey => Self::ConfirmRkey(ConfirmRkey::parse(bytes)?),
            MessageType::ConfirmRkeyContinuation => {
                Self::ConfirmRkeyContinuation(ConfirmRkeyContinuation::parse(bytes)?)
            }
            MessageType::TestLink => Self::TestLink(TestLink::parse(bytes)?),
            MessageType::DeleteRkey => Self::DeleteRkey(DeleteRkey::parse(bytes)?),
        })
    }

    /// The form it is written in. A link group has only one.
    #[must_use]
    pub const fn form(&self) -> Form {
        match self {
            Self::ConfirmLink(message) => message.form,
            Self::AddLink(message) => message.form(),
            Self::DeleteLink(message) => message.form,
            Self::RequestAddLink(message) => Form::V2(message.order),
            Self::ConfirmRkey(message) => message.form,
            Self::TestLink(message) => message.form,
            Self::DeleteRkey(message) => message.form,
            Self::AddLinkContinuation(_) | Self::ConfirmRkeyContinuation(_) => Form::V1,
        }
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// As the `emit` of the message's type.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::ConfirmLink(message) => message.emit(out),
            Self::AddLink(message) => message.emit(out),
            Self::AddLinkContinuation(message) => message.emit(out),
            Self::DeleteLink(message) => message.emit(out),
            Self::RequestAddLink(message) => message.emit(out),
            Self::ConfirmRkey(message) => message.emit(out),
            Self::ConfirmRkeyContinuation(message) => message.emit(out),
            Self::TestLink(message) => message.emit(out),
            Self::DeleteRkey(message) => message.emit(out),
        }
    }
}

/// One message of a type is one.
macro_rules! from_type {
    ($($message_type:ident)*) => {
        $(
            impl From<$message_type> for Message {
                fn from(message: $message_type) -> Self {
                    Self::$message_type(message)
                }
            }
        )*
    };
}

from_type! {
    ConfirmLink AddLink AddLinkContinuation DeleteLink RequestAddLink
    ConfirmRkey ConfirmRkeyContinuation TestLink DeleteRkey
}

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
    const fn to_bytes(self, value: u16) -> [u8; 2] {
        match self {
            Self::BigEndian => value.to_be_bytes(),
            Self::LittleEndian => value.to_le_bytes(),
        }
    }

    /// The value of bytes in this order.
    const fn value(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::BigEndian => u16::from_be_bytes(bytes),
            Self::LittleEndian => u16::from_le_bytes(bytes),
        }
    }
}

/// Which half of an exchange a message is, where a response says no more than "yes".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// From whoever begins.
    Request,
    /// From the other side, on the link of the request.
    Response,
}

impl Role {
    const fn from_flags(flags: u8) -> Self {
        if flags & FLAG_RESPONSE == 0 { Self::Request } else { Self::Response }
    }

    const fn flags(self) -> u8 {
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

    const fn from_flags(flags: u8) -> Self {
        match (Role::from_flags(flags), flags & Self::FLAG_NEGATIVE) {
            (Role::Request, _) => Self::Request,
            (Role::Response, 0) => Self::Response,
            (Role::Response, _) => Self::Negative,
        }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => FLAG_RESPONSE,
            Self::Negative => FLAG_RESPONSE | Self::FLAG_NEGATIVE,
        }
    }
}

/// Which LLC message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageType {
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

    const fn name(self) -> &'static str {
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
struct Header {
    message_type: MessageType,
    form: Form,
    flags: u8,
}

impl Header {
    /// Reads the header of a whole message, and checks its length.
    fn parse(bytes: &[u8]) -> Result<Self, Error> {
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
    fn emit(self, out: &mut [u8], len: usize) -> Result<Writer<'_>, Error> {
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
fn open(bytes: &[u8], message_type: MessageType) -> Result<(Header, Reader<'_>), Error> {
    let header = Header::parse(bytes)?;
    if header.message_type != message_type {
        return Err(unexpected(header.message_type));
    }
    Ok((header, Reader::new(bytes)))
}

/// What a parser of one message type says when handed another.
fn unexpected(message_type: MessageType) -> Error {
    Error::Invalid { field: field::TYPE.name, value: message_type.code().into() }
}

/// Of a list that CONTINUATIONs may continue: checks that `present` entries in a message with room
/// for `room` go with `remaining`, the number of entries from this message on.
fn check_remaining(
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
