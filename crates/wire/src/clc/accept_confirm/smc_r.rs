//! Accept and Confirm of SMC-R.
//!
//! The sender names its RNIC and the end of the link on it (GID, MAC, QP, first PSN), and the
//! receive buffer that the peer shall write to by RDMA (RKey, address, which element of the RMB).
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 8 | header, eyecatcher "SMCR" | in byte 7: version, bit 3 first contact, bits 1..0 = 0 |
//! | 8 | 8 | peer ID | sender's |
//! | 16 | 16 | GID | of the sender's RNIC; in version 2 an IPv4-mapped address |
//! | 32 | 6 | MAC | of that RNIC |
//! | 38 | 3 | QP number | the sender's end of the link |
//! | 41 | 4 | RKey | of the RMB on that link |
//! | 45 | 1 | RMBE index | 1..255; always 1 from Linux |
//! | 46 | 4 | alert token | by which the peer names the connection in CDC messages |
//! | 50 | 1 | size code, MTU code | bits 7..4 [`RmbeSize`], bits 3..0 [`Mtu`] |
//! | 51 | 1 | reserved | |
//! | 52 | 8 | RMB address | where the RMB starts, for use with the RKey |
//! | 60 | 1 | reserved | |
//! | 61 | 3 | initial PSN | first one the sender will use |
//!
//! In version 1 the trailer follows, at 64. Version 2 goes on:
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 64 | 32 | negotiated EID | chosen by the server, echoed by the client |
//! | 96 | 8 | reserved | |
//! | 104 | 52 | first contact extension | only with the first contact bit |
//! | 156 | 4 + 16·n | GID list | only after it, in a Confirm |
//! | last 4 | 4 | trailer "SMCR" | |
//!
//! *Source*: RFC 7609 §A.2.2, §A.2.3; "Shared Memory Communications Version 2"; Linux
//! `net/smc/smc_clc.h`.

use super::first_contact::{self, FirstContactR};
use super::kind::{Role, TYPE_SMC_R, check_length_v1, flags, open_type};
use crate::clc::frame::{Eyecatcher, Header, TRAILER_LEN, Version, close};
use crate::error::Error;
use crate::field::Field;
use crate::ids::{AlertToken, Eid, Mac, Mtu, PeerId, Psn, QpNumber, Rkey, RmbAddress, RoceGid};
use crate::reader::Reader;
use crate::rmbe_size::RmbeSize;
use crate::writer::Writer;

mod field {
    use super::Field;

    pub(super) const PEER_ID: Field<8> = Field::new("SMC-R peer ID", 8);
    pub(super) const GID: Field<16> = Field::new("SMC-R GID", 16);
    pub(super) const MAC: Field<6> = Field::new("SMC-R MAC", 32);
    pub(super) const QP_NUMBER: Field<3> = Field::new("QP number", 38);
    pub(super) const RKEY: Field<4> = Field::new("RKey", 41);
    pub(super) const RMBE_INDEX: Field<1> = Field::new("RMBE index", 45);
    pub(super) const ALERT_TOKEN: Field<4> = Field::new("alert token", 46);
    pub(super) const SIZE_MTU: Field<1> = Field::new("RMBE size and MTU codes", 50);
    pub(super) const RMB_ADDRESS: Field<8> = Field::new("RMB address", 52);
    pub(super) const PSN: Field<3> = Field::new("initial PSN", 61);
    /// Of version 1, without its trailer.
    pub(super) const V1_END: usize = 64;

    pub(super) const EID: Field<32> = Field::new("negotiated EID", 64);
    /// In version 2.
    pub(super) const RESERVED: Field<8> = Field::new("SMC-R version 2 continuation", 96);
    /// Where the first contact extension starts.
    pub(super) const FIRST_CONTACT_AT: usize = 104;
}

/// An SMC-R Accept or Confirm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptConfirmR {
    /// Accept or Confirm.
    pub role: Role,
    /// The sender.
    pub peer_id: PeerId,
    /// The sender's RNIC.
    pub gid: RoceGid,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The sender's end of the link.
    pub qp_number: QpNumber,
    /// The key to the sender's receive buffer.
    pub rkey: Rkey,
    /// Which element of the RMB; the first is 1.
    pub rmbe_index: u8,
    /// The sender's name for the connection.
    pub alert_token: AlertToken,
    /// Length of the element.
    pub size: RmbeSize,
    /// The longest packet the sender takes on the link.
    pub mtu: Mtu,
    /// Where the RMB starts.
    pub rmb_address: RmbAddress,
    /// The first packet sequence number the sender will use on the link.
    pub psn: Psn,
    /// What its version says beyond that.
    pub form: FormR,
}

/// What an SMC-R Accept or Confirm says in each version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing may be boxed here, and a message lives only while it is handled"
)]
pub enum FormR {
    /// RFC 7609.
    V1 {
        /// The sender sees no link group in common yet.
        first_contact: bool,
    },
    /// "Shared Memory Communications Version 2".
    V2 {
        /// The EID both sides have. Whether it was offered is for the engine to check.
        eid: Eid,
        /// Present when the sender sees no link group in common yet.
        first_contact: Option<FirstContactR>,
    },
}

impl AcceptConfirmR {
    /// Bytes in version 1.
    pub const LEN_V1: usize = field::V1_END + TRAILER_LEN;
    /// Bytes in version 2, without a first contact extension.
    pub const LEN_SUBSEQUENT: usize = field::FIRST_CONTACT_AT + TRAILER_LEN;
    /// Bytes of a version 2 Accept with it; a Confirm has the GID list besides.
    pub const LEN_FIRST_CONTACT: usize = Self::LEN_SUBSEQUENT + first_contact::LEN_FULL;

    /// Reads a whole Accept or Confirm.
    ///
    /// A version 2 message may be longer than the fields known here; what lies between them and the
    /// trailer is ignored. An MTU code that means nothing is read: RFC 7609 §C.6 wants it declined,
    /// not the connection broken.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`]; [`Error::Truncated`] when the length does not cover the fields, or the
    /// first contact extension its bit announces; [`Error::Mismatch`] for another length than 68 in
    /// version 1; [`Error::Invalid`] for another message, [`Error::Unsupported`] for SMC-D and for
    /// a longer GID list than [`GID_COUNT_MAX`](first_contact::GID_COUNT_MAX).
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, role, content) = open_type(bytes, TYPE_SMC_R)?;
        let size_mtu = content.u8(field::SIZE_MTU)?;
        Ok(Self {
            role,
            peer_id: PeerId(content.bytes(field::PEER_ID)?),
            gid: RoceGid(content.bytes(field::GID)?),
            mac: Mac(content.bytes(field::MAC)?),
            qp_number: QpNumber(content.bytes(field::QP_NUMBER)?),
            rkey: Rkey(content.u32(field::RKEY)?),
            rmbe_index: content.u8(field::RMBE_INDEX)?,
            alert_token: AlertToken(content.u32(field::ALERT_TOKEN)?),
            size: RmbeSize::from_low_bits(size_mtu >> 4),
            mtu: Mtu::from_low_bits(size_mtu),
            rmb_address: RmbAddress(content.u64(field::RMB_ADDRESS)?),
            psn: Psn(content.bytes(field::PSN)?),
            form: match header.version {
                Version::V1 => {
                    check_length_v1(bytes, Self::LEN_V1)?;
                    FormR::V1 { first_contact: header.is_first_contact() }
                }
                Version::V2 => FormR::parse_v2(&header, &content, role)?,
            },
        })
    }

    /// The version it is written in.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self.form {
            FormR::V1 { .. } => Version::V1,
            FormR::V2 { .. } => Version::V2,
        }
    }

    /// Whether the sender sees no link group in common yet.
    #[must_use]
    pub const fn is_first_contact(&self) -> bool {
        match &self.form {
            FormR::V1 { first_contact } => *first_contact,
            FormR::V2 { first_contact, .. } => first_contact.is_some(),
        }
    }

    /// The EID both sides have, in version 2.
    #[must_use]
    pub const fn eid(&self) -> Option<Eid> {
        match &self.form {
            FormR::V1 { .. } => None,
            FormR::V2 { eid, .. } => Some(*eid),
        }
    }

    /// The first contact extension, which only version 2 has.
    #[must_use]
    pub const fn first_contact(&self) -> Option<&FirstContactR> {
        match &self.form {
            FormR::V1 { .. } => None,
            FormR::V2 { first_contact, .. } => first_contact.as_ref(),
        }
    }

    /// Bytes [`emit`](Self::emit) will write.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        match &self.form {
            FormR::V1 { .. } => Self::LEN_V1,
            FormR::V2 { first_contact, .. } => {
                let extension = first_contact.as_ref();
                Self::LEN_SUBSEQUENT + extension.map_or(0, |it| it.emitted_len(self.role))
            }
        }
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`emitted_len`](Self::emitted_len);
    /// [`Error::Inconsistent`] for an Accept with a GID list.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.emitted_len();
        let mut writer = Writer::new(self.role.name(), out, len)?;
        writer.put(field::PEER_ID, self.peer_id.0)?;
        writer.put(field::GID, self.gid.0)?;
        writer.put(field::MAC, self.mac.0)?;
        writer.put(field::QP_NUMBER, self.qp_number.0)?;
        writer.put(field::RKEY, self.rkey.0.to_be_bytes())?;
        writer.put(field::RMBE_INDEX, [self.rmbe_index])?;
        writer.put(field::ALERT_TOKEN, self.alert_token.0.to_be_bytes())?;
        writer.put(field::SIZE_MTU, [self.size.code() << 4 | self.mtu.code()])?;
        writer.put(field::RMB_ADDRESS, self.rmb_address.0.to_be_bytes())?;
        writer.put(field::PSN, self.psn.0)?;
        self.form.emit(&mut writer, self.role)?;
        let header = Header {
            eyecatcher: Eyecatcher::SmcR,
            message_type: self.role.message_type(),
            length: len as u16,
            version: self.version(),
            flags: flags(TYPE_SMC_R, self.is_first_contact()),
        };
        close(&mut writer, header)?;
        Ok(len)
    }
}

impl FormR {
    fn parse_v2(header: &Header, content: &Reader<'_>, role: Role) -> Result<Self, Error> {
        let eid = Eid(content.bytes(field::EID)?);
        content.bytes(field::RESERVED)?;
        let first_contact = if header.is_first_contact() {
            Some(FirstContactR::parse(content, field::FIRST_CONTACT_AT, role)?)
        } else {
            None
        };
        Ok(Self::V2 { eid, first_contact })
    }

    fn emit(&self, writer: &mut Writer<'_>, role: Role) -> Result<(), Error> {
        let Self::V2 { eid, first_contact } = self else {
            return Ok(());
        };
        writer.put(field::EID, eid.0)?;
        match first_contact {
            Some(extension) => extension.emit(writer, field::FIRST_CONTACT_AT, role),
            None => Ok(()),
        }
    }
}

const _: () = assert!(AcceptConfirmR::LEN_V1 == 68);
const _: () = assert!(AcceptConfirmR::LEN_SUBSEQUENT == 108);
const _: () = assert!(AcceptConfirmR::LEN_FIRST_CONTACT == 160);
const _: () = assert!(field::RESERVED.at + 8 == field::FIRST_CONTACT_AT);
