//! CONFIRM LINK: "this link works, and this is its number".
//!
//! The first message on every new link, from the server over that very link. That it arrives, and
//! the response to it, shows both sides that their ends of the link fit. Each side names its RDMA
//! adapter and its end once more.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 1 | flags: bit 7 response, bits 1..0 no RMBE eyecatchers |
//! | 4 | 6 | MAC | of the sender's RNIC |
//! | 10 | 16 | GID | of that RNIC |
//! | 26 | 3 | QP number | the sender's end of the link |
//! | 29 | 1 | link number | from the server, repeated by the client |
//! | 30 | 4 | link user ID | the sender's name for the link |
//! | 34 | 1 | max links | of the link group |
//! | 35 | 1 | max connections | version 2: of the link group; reserved in version 1 |
//! | 36 | 8 | reserved | |
//!
//! The GID follows the MAC at once, without the two bytes that ADD LINK has between them.
//!
//! *Source*: RFC 7609 §A.3.1; Linux `net/smc/smc_llc.c`.

use super::frame::{Form, Header, LEN, MessageType, Role, open};
use crate::clc::Version;
use crate::error::Error;
use crate::field::Field;
use crate::ids::{LinkNumber, LinkUserId, Mac, QpNumber, RoceGid};

mod field {
    use super::Field;

    pub(super) const MAC: Field<6> = Field::new("CONFIRM LINK MAC", 4);
    pub(super) const GID: Field<16> = Field::new("CONFIRM LINK GID", 10);
    pub(super) const QP_NUMBER: Field<3> = Field::new("CONFIRM LINK QP number", 26);
    pub(super) const LINK_NUMBER: Field<1> = Field::new("CONFIRM LINK link number", 29);
    pub(super) const LINK_USER_ID: Field<4> = Field::new("CONFIRM LINK link user ID", 30);
    pub(super) const MAX_LINKS: Field<1> = Field::new("CONFIRM LINK max links", 34);
    pub(super) const MAX_CONNS: Field<1> = Field::new("CONFIRM LINK max connections", 35);
}

/// Bits 1..0 of the flags. Linux sets both, and is content with one.
const FLAGS_NO_EYECATCHER: u8 = 0x03;

/// The proof that the link it travels on works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmLink {
    /// How the frame is written.
    pub form: Form,
    /// Request or response.
    pub role: Role,
    /// The sender puts no eyecatchers in front of its receive buffers. Linux insists on that.
    pub no_eyecatcher: bool,
    /// The Ethernet address of the sender's RNIC.
    pub mac: Mac,
    /// The sender's RNIC.
    pub gid: RoceGid,
    /// The sender's end of the link.
    pub qp_number: QpNumber,
    /// The link. A response repeats that of the request.
    pub link_number: LinkNumber,
    /// The sender's name for the link.
    pub link_user_id: LinkUserId,
    /// Links per link group.
    pub max_links: u8,
    /// Connections per link group. In version 1 not sent, and read as zero.
    pub max_conns: u8,
}

impl ConfirmLink {
    /// Reads a whole CONFIRM LINK.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::ConfirmLink)?;
        Ok(Self {
            form: header.form,
            role: Role::from_flags(header.flags),
            no_eyecatcher: header.flags & FLAGS_NO_EYECATCHER != 0,
            mac: Mac(message.bytes(field::MAC)?),
            gid: RoceGid(message.bytes(field::GID)?),
            qp_number: QpNumber(message.bytes(field::QP_NUMBER)?),
            link_number: LinkNumber(message.u8(field::LINK_NUMBER)?),
            link_user_id: LinkUserId(message.u32(field::LINK_USER_ID)?),
            max_links: message.u8(field::MAX_LINKS)?,
            max_conns: match header.form.version() {
                Version::V1 => 0,
                Version::V2 => message.u8(field::MAX_CONNS)?,
            },
        })
    }

    /// Writes it to the front of `out` and returns its length, [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let header = Header {
            message_type: MessageType::ConfirmLink,
            form: self.form,
            flags: self.role.flags() | if self.no_eyecatcher { FLAGS_NO_EYECATCHER } else { 0 },
        };
        let mut writer = header.emit(out, LEN)?;
        writer.put(field::MAC, self.mac.0)?;
        writer.put(field::GID, self.gid.0)?;
        writer.put(field::QP_NUMBER, self.qp_number.0)?;
        writer.put(field::LINK_NUMBER, [self.link_number.0])?;
        writer.put(field::LINK_USER_ID, self.link_user_id.0.to_be_bytes())?;
        writer.put(field::MAX_LINKS, [self.max_links])?;
        if self.form.version() >= Version::V2 {
            writer.put(field::MAX_CONNS, [self.max_conns])?;
        }
        Ok(LEN)
    }
}

const _: () = assert!(field::MAX_CONNS.at + 1 + 8 == LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(first: u8, flags: u8) -> ConfirmLink {
        let mut bytes = [0xFF; LEN];
        bytes[..4].copy_from_slice(&[first, 44, 0, flags]);
        ConfirmLink::parse(&bytes).unwrap()
    }

    #[test]
    fn one_bit_is_enough_to_have_no_eyecatchers() {
        assert!(!parse(0x01, 0x80).no_eyecatcher);
        assert!(parse(0x01, 0x81).no_eyecatcher);
        assert!(parse(0x01, 0x82).no_eyecatcher);
    }

    #[test]
    fn the_number_of_connections_begins_with_version_2() {
        assert_eq!((parse(0x01, 0).max_conns, parse(0x21, 0).max_conns), (0, 255));
    }
}
