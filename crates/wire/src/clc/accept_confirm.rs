//! Accept and Confirm of SMC-D version 2: "here is my buffer".
//!
//! Server and client each tell the other where to write: the device (GID, CHID), the receive buffer
//! on it (DMB token), its length. Both messages are laid out alike, so one struct serves both and
//! [`Role`] tells which it is.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 8 | header, eyecatcher "SMCD" | in byte 7: version 2, bit 3 first contact, bits 1..0 = 1 for SMC-D |
//! | 8 | 8 | GID | sender's device, first 64 bits |
//! | 16 | 8 | DMB token | sender's receive buffer |
//! | 24 | 1 | DMBE index | 0 from Linux |
//! | 25 | 1 | size code | bits 7..4; see [`RmbeSize`] |
//! | 26 | 2 | reserved | |
//! | 28 | 4 | link ID | sender's link group |
//! | 32 | 2 | CHID | the chosen device's channel |
//! | 34 | 32 | negotiated EID | chosen by the server, echoed by the client |
//! | 66 | 8 | GID extension | second 64 bits of an Emulated-ISM GID, else 0 |
//! | 74 | 36 or 52 | first contact extension | only with the first contact bit |
//! | last 4 | 4 | trailer "SMCD" | |
//!
//! On *first contact* the two sides have no link group in common yet and introduce themselves:
//!
//! | Rel | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 1 | reserved | (for SMC-D) |
//! | 1 | 1 | operating system, release | bits 7..4, bits 3..0 |
//! | 2 | 2 | reserved | |
//! | 4 | 32 | host name | ASCII, blank padded |
//! | 36 | 2 | reserved | (for SMC-D) |
//! | 38 | 2 | feature mask | from release 2.1 |
//! | 40 | 12 | vendor options, reserved | |
//!
//! At release 2.0 the extension ends after the host name, at 36 bytes. Peers disagree on when they
//! send the short form, so a reader goes by the length of the message.
//!
//! *Source*: "Shared Memory Communications Version 2"; Linux `net/smc/smc_clc.h`.

use core::fmt;

use super::{
    Eyecatcher, Header, MessageType, OsType, Release, TRAILER_LEN, Version, close, open, unexpected,
};
use crate::{
    Chid, DmbToken, Eid, Error, ExtendedGid, Gid, LinkId, RmbeSize, field::Field,
    ids::fmt_blank_padded, reader::Reader, writer::Writer,
};

mod field {
    use super::Field;

    pub(super) const GID: Field<8> = Field::new("SMC-D GID", 8);
    pub(super) const TOKEN: Field<8> = Field::new("DMB token", 16);
    pub(super) const DMBE_INDEX: Field<1> = Field::new("DMBE index", 24);
    pub(super) const SIZE_CODE: Field<1> = Field::new("DMBE size code", 25);
    pub(super) const LINK_ID: Field<4> = Field::new("SMC-D link ID", 28);
    pub(super) const CHID: Field<2> = Field::new("ISM CHID", 32);
    pub(super) const EID: Field<32> = Field::new("negotiated EID", 34);
    pub(super) const GID_EXT: Field<8> = Field::new("SMC-D GID extension", 66);
    /// Where the first contact extension starts.
    pub(super) const FIRST_CONTACT_AT: usize = 74;
}

/// The first contact extension; offsets count from its start.
mod fce {
    use super::Field;

    pub(super) const NAME: &str = "first contact extension";
    pub(super) const OS_RELEASE: Field<1> = Field::new("first contact release", 1);
    pub(super) const HOSTNAME: Field<32> = Field::new("first contact host name", 4);
    pub(super) const FEATURE_MASK: Field<2> = Field::new("first contact feature mask", 38);
    /// At release 2.0.
    pub(super) const LEN_SHORT: usize = 36;
    /// From release 2.1.
    pub(super) const LEN_FULL: usize = 52;
}

/// What errors call bits 1..0 of byte 7.
const TYPE_BITS: &str = "CLC type bits";
const TYPE_MASK: u8 = 0x03;
const TYPE_SMC_R: u8 = 0;
const TYPE_SMC_D: u8 = 1;
/// Bit 3 of byte 7.
const FLAG_FIRST_CONTACT: u8 = 0x08;

/// An SMC-D version 2 Accept or Confirm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptConfirmD {
    /// Accept or Confirm.
    pub role: Role,
    /// The sender's device; its second half is sent as the GID extension.
    pub gid: ExtendedGid,
    /// The sender's receive buffer.
    pub token: DmbToken,
    /// Place of the connection in that buffer; 0 from Linux and from us.
    pub dmbe_index: u8,
    /// Length of the buffer.
    pub size: RmbeSize,
    /// The sender's link group.
    pub link_id: LinkId,
    /// The channel of the device, one of those offered in the Proposal.
    pub chid: Chid,
    /// The EID both sides have. Whether it was offered is for the engine to check.
    pub eid: Eid,
    /// Present when the sender sees no link group in common yet.
    pub first_contact: Option<FirstContact>,
}

impl AcceptConfirmD {
    /// Bytes without a first contact extension.
    pub const LEN_SUBSEQUENT: usize = field::FIRST_CONTACT_AT + TRAILER_LEN;
    /// Bytes with the first contact extension of release 2.1.
    pub const LEN_FIRST_CONTACT: usize = Self::LEN_SUBSEQUENT + fce::LEN_FULL;

    /// Reads a whole Accept or Confirm.
    ///
    /// A message may be longer than the fields known here; what lies between them and the trailer
    /// is ignored.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`]; [`Error::Truncated`] when the length does not cover the fields, or the
    /// first contact extension its bit announces; [`Error::Invalid`] for a size code above 6, type
    /// bits that mean nothing, or another message; [`Error::Unsupported`] for SMC-R and for SMC-D
    /// version 1.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, content) = open(bytes)?;
        let role = match header.message_type {
            MessageType::Accept => Role::Accept,
            MessageType::Confirm => Role::Confirm,
            other => return Err(unexpected(other)),
        };
        check_type(&header)?;

        let code = content.u8(field::SIZE_CODE)? >> 4;
        let size = RmbeSize::from_code(code)
            .ok_or(Error::Invalid { field: field::SIZE_CODE.name, value: code.into() })?;
        let gid = ExtendedGid {
            gid: Gid(content.u64(field::GID)?),
            gid_ext: content.u64(field::GID_EXT)?,
        };
        Ok(Self {
            role,
            gid,
            token: DmbToken(content.u64(field::TOKEN)?),
            dmbe_index: content.u8(field::DMBE_INDEX)?,
            size,
            link_id: LinkId(content.u32(field::LINK_ID)?),
            chid: Chid(content.u16(field::CHID)?),
            eid: Eid(content.bytes(field::EID)?),
            first_contact: if header.flags & FLAG_FIRST_CONTACT == 0 {
                None
            } else {
                Some(FirstContact::parse(&content)?)
            },
        })
    }

    /// Bytes [`emit`](Self::emit) will write.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        Self::LEN_SUBSEQUENT + self.first_contact.as_ref().map_or(0, FirstContact::emitted_len)
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`emitted_len`](Self::emitted_len).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.emitted_len();
        let mut writer = Writer::new(self.role.name(), out, len)?;
        writer.put(field::GID, self.gid.gid.0.to_be_bytes())?;
        writer.put(field::TOKEN, self.token.0.to_be_bytes())?;
        writer.put(field::DMBE_INDEX, [self.dmbe_index])?;
        writer.put(field::SIZE_CODE, [self.size.code() << 4])?;
        writer.put(field::LINK_ID, self.link_id.0.to_be_bytes())?;
        writer.put(field::CHID, self.chid.0.to_be_bytes())?;
        writer.put(field::EID, self.eid.0)?;
        writer.put(field::GID_EXT, self.gid.gid_ext.to_be_bytes())?;
        if let Some(first_contact) = &self.first_contact {
            first_contact.emit(&mut writer)?;
        }
        let first_contact = if self.first_contact.is_some() { FLAG_FIRST_CONTACT } else { 0 };
        let header = Header {
            eyecatcher: Eyecatcher::SmcD,
            message_type: self.role.message_type(),
            length: len as u16,
            version: Version::V2,
            flags: first_contact | TYPE_SMC_D,
        };
        close(&mut writer, header)?;
        Ok(len)
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

/// How two sides introduce themselves when they have no link group in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstContact {
    /// The sender's operating system.
    pub os_type: OsType,
    /// The negotiated release: the lower of both sides'.
    pub release: Release,
    /// The sender's host name, for display.
    pub hostname: Hostname,
    /// The sender's features, such as [`FEATURE_EMULATED_ISM`](super::FEATURE_EMULATED_ISM). At
    /// release 2.0 there is no room for it: not sent, and read as zero.
    pub feature_mask: u16,
}

impl FirstContact {
    fn parse(content: &Reader<'_>) -> Result<Self, Error> {
        let room = content.len().saturating_sub(field::FIRST_CONTACT_AT);
        let len = if room < fce::LEN_FULL { fce::LEN_SHORT } else { fce::LEN_FULL };
        let extension = content.section(fce::NAME, field::FIRST_CONTACT_AT, len)?;
        let os_release = extension.u8(fce::OS_RELEASE)?;
        let release = Release::from_low_bits(os_release);
        let feature_mask = if len == fce::LEN_FULL && release >= Release::V2_1 {
            extension.u16(fce::FEATURE_MASK)?
        } else {
            0
        };
        Ok(Self {
            os_type: OsType::from_low_bits(os_release >> 4),
            release,
            hostname: Hostname(extension.bytes(fce::HOSTNAME)?),
            feature_mask,
        })
    }

    fn emitted_len(&self) -> usize {
        if self.release >= Release::V2_1 { fce::LEN_FULL } else { fce::LEN_SHORT }
    }

    fn emit(&self, message: &mut Writer<'_>) -> Result<(), Error> {
        let mut writer = message.section(fce::NAME, field::FIRST_CONTACT_AT, self.emitted_len())?;
        writer.put(fce::OS_RELEASE, [self.os_type.code() << 4 | self.release.code()])?;
        writer.put(fce::HOSTNAME, self.hostname.0)?;
        if self.release >= Release::V2_1 {
            writer.put(fce::FEATURE_MASK, self.feature_mask.to_be_bytes())?;
        }
        Ok(())
    }
}

/// A host name as it travels: 32 bytes of ASCII, blank padded. A peer's may hold anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hostname(pub [u8; 32]);

impl Hostname {
    /// The first 32 bytes of `name`, padded with blanks.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        let mut padded = [b' '; 32];
        for (place, byte) in padded.iter_mut().zip(name) {
            *place = *byte;
        }
        Self(padded)
    }
}

/// Without the padding; bytes that are not printable ASCII as `?`.
impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_blank_padded(&self.0, f)
    }
}

/// Lets SMC-D version 2 through, and tells what else a legal message may be.
fn check_type(header: &Header) -> Result<(), Error> {
    let bits = header.flags & TYPE_MASK;
    let what = match (bits, header.version) {
        (TYPE_SMC_D, Version::V2) => return Ok(()),
        (TYPE_SMC_D, Version::V1) => "SMC-D version 1",
        (TYPE_SMC_R, _) => "SMC-R",
        _ => {
            return Err(Error::Invalid { field: TYPE_BITS, value: bits.into() });
        }
    };
    Err(Error::Unsupported { field: TYPE_BITS, value: bits.into(), what })
}

const _: () = assert!(AcceptConfirmD::LEN_SUBSEQUENT == 78);
const _: () = assert!(AcceptConfirmD::LEN_FIRST_CONTACT == 130);
