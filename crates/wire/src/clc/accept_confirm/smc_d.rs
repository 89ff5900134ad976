//! Accept and Confirm of SMC-D.
//!
//! The sender names its device (GID, CHID), the receive buffer on it (DMB token), and its length.
//!
//! | Off | Len | Field | Version 1, 48 bytes | Version 2, 78 bytes or more |
//! |---|---|---|---|---|
//! | 0 | 8 | header, eyecatcher "SMCD" | bits 1..0 of byte 7 are 1; bit 3 first contact | as version 1 |
//! | 8 | 8 | GID | sender's device | first 64 bits of it |
//! | 16 | 8 | DMB token | sender's receive buffer | |
//! | 24 | 1 | DMBE index | 0 from Linux | |
//! | 25 | 1 | size code | bits 7..4; see [`RmbeSize`] | |
//! | 26 | 2 | reserved | | |
//! | 28 | 4 | link ID | sender's link group | |
//! | 32 | 12 | reserved | then the trailer "SMCD", at 44 | – |
//! | 32 | 2 | CHID | – | the chosen device's channel |
//! | 34 | 32 | negotiated EID | – | chosen by the server, echoed by the client |
//! | 66 | 8 | GID extension | – | second 64 bits of an Emulated-ISM GID, else 0 |
//! | 74 | 36 or 52 | first contact extension | – | only with the first contact bit |
//! | last 4 | 4 | trailer "SMCD" | – | ✓ |
//!
//! *Source*: "Shared Memory Communications Version 2"; Linux `net/smc/smc_clc.h`.

use super::first_contact::{self, FirstContact};
use super::kind::{Role, TYPE_SMC_D, check_length_v1, flags, open_type, other_kind};
use crate::clc::frame::{Eyecatcher, Header, TRAILER_LEN, Version, close};
use crate::error::Error;
use crate::field::Field;
use crate::ids::{Chid, DmbToken, Eid, ExtendedGid, Gid, LinkId};
use crate::reader::Reader;
use crate::rmbe_size::{RmbeSize, SMC_D_CODE};
use crate::writer::Writer;

mod field {
    use super::{Field, SMC_D_CODE};

    pub(super) const GID: Field<8> = Field::new("SMC-D GID", 8);
    pub(super) const TOKEN: Field<8> = Field::new("DMB token", 16);
    pub(super) const DMBE_INDEX: Field<1> = Field::new("DMBE index", 24);
    pub(super) const SIZE_CODE: Field<1> = Field::new(SMC_D_CODE, 25);
    pub(super) const LINK_ID: Field<4> = Field::new("SMC-D link ID", 28);
    pub(super) const CHID: Field<2> = Field::new("ISM CHID", 32);
    pub(super) const EID: Field<32> = Field::new("negotiated EID", 34);
    pub(super) const GID_EXT: Field<8> = Field::new("SMC-D GID extension", 66);
    /// Where the first contact extension of version 2 starts.
    pub(super) const FIRST_CONTACT_AT: usize = 74;
    /// The last reserved bytes of version 1; its trailer follows.
    pub(super) const V1_RESERVED: Field<12> = Field::new("SMC-D version 1 reserved", 32);
}

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
    pub const LEN_FIRST_CONTACT: usize = Self::LEN_SUBSEQUENT + first_contact::LEN_FULL;

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
        let (header, role, content) = open_type(bytes, TYPE_SMC_D)?;
        if header.version != Version::V2 {
            return Err(other_kind(TYPE_SMC_D, header.version));
        }
        let gid = ExtendedGid {
            gid: Gid(content.u64(field::GID)?),
            gid_ext: content.u64(field::GID_EXT)?,
        };
        Ok(Self {
            role,
            gid,
            token: DmbToken(content.u64(field::TOKEN)?),
            dmbe_index: content.u8(field::DMBE_INDEX)?,
            size: size(&content)?,
            link_id: LinkId(content.u32(field::LINK_ID)?),
            chid: Chid(content.u16(field::CHID)?),
            eid: Eid(content.bytes(field::EID)?),
            first_contact: if header.is_first_contact() {
                Some(FirstContact::parse(&content, field::FIRST_CONTACT_AT)?)
            } else {
                None
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
            first_contact.emit(&mut writer, field::FIRST_CONTACT_AT)?;
        }
        let header = Header {
            eyecatcher: Eyecatcher::SmcD,
            message_type: self.role.message_type(),
            length: len as u16,
            version: Version::V2,
            flags: flags(TYPE_SMC_D, self.first_contact.is_some()),
        };
        close(&mut writer, header)?;
        Ok(len)
    }
}

/// An SMC-D version 1 Accept or Confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptConfirmDV1 {
    /// Accept or Confirm.
    pub role: Role,
    /// The sender's device.
    pub gid: Gid,
    /// The sender's receive buffer.
    pub token: DmbToken,
    /// Place of the connection in that buffer; 0 from Linux.
    pub dmbe_index: u8,
    /// Length of the buffer.
    pub size: RmbeSize,
    /// The sender's link group.
    pub link_id: LinkId,
    /// The sender sees no link group in common yet.
    pub first_contact: bool,
}

impl AcceptConfirmDV1 {
    /// Bytes of the message.
    pub const LEN: usize = field::V1_RESERVED.at + 12 + TRAILER_LEN;

    /// Reads a whole Accept or Confirm.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`]; [`Error::Mismatch`] for another length than 48; [`Error::Invalid`] for
    /// a size code above 6, or another message; [`Error::Unsupported`] for SMC-R and for SMC-D
    /// version 2.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, role, content) = open_type(bytes, TYPE_SMC_D)?;
        if header.version != Version::V1 {
            return Err(other_kind(TYPE_SMC_D, header.version));
        }
        check_length_v1(bytes, Self::LEN)?;
        Ok(Self {
            role,
            gid: Gid(content.u64(field::GID)?),
            token: DmbToken(content.u64(field::TOKEN)?),
            dmbe_index: content.u8(field::DMBE_INDEX)?,
            size: size(&content)?,
            link_id: LinkId(content.u32(field::LINK_ID)?),
            first_contact: header.is_first_contact(),
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = Writer::new(self.role.name(), out, Self::LEN)?;
        writer.put(field::GID, self.gid.0.to_be_bytes())?;
        writer.put(field::TOKEN, self.token.0.to_be_bytes())?;
        writer.put(field::DMBE_INDEX, [self.dmbe_index])?;
        writer.put(field::SIZE_CODE, [self.size.code() << 4])?;
        writer.put(field::LINK_ID, self.link_id.0.to_be_bytes())?;
        let header = Header {
            eyecatcher: Eyecatcher::SmcD,
            message_type: self.role.message_type(),
            length: Self::LEN as u16,
            version: Version::V1,
            flags: flags(TYPE_SMC_D, self.first_contact),
        };
        close(&mut writer, header)?;
        Ok(Self::LEN)
    }
}

/// The length of the buffer; no SMC-D peer has one above 1 MiB.
fn size(content: &Reader<'_>) -> Result<RmbeSize, Error> {
    let code = content.u8(field::SIZE_CODE)? >> 4;
    RmbeSize::from_code(code)
        .ok_or(Error::Invalid { field: field::SIZE_CODE.name, value: code.into() })
}

const _: () = assert!(AcceptConfirmD::LEN_SUBSEQUENT == 78);
const _: () = assert!(AcceptConfirmD::LEN_FIRST_CONTACT == 130);
const _: () = assert!(AcceptConfirmDV1::LEN == 48);
