//! REQUEST ADD LINK: "here are adapters for another link".
//!
//! Only the server adds links. A version 2 client that got another RDMA adapter asks for one. The
//! server begins with ADD LINK instead of a response, or it responds, and there will be no link.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 5, version 2 only | flags: bit 7 response, bit 6 reject, bits 3..0 reason |
//! | 4 | 20 | reserved | |
//! | 24 | 1 | GID count | 2 in a request of Linux, 0 in its response |
//! | 25 | 3 | reserved | |
//! | 28 | 16·n | GIDs | of the RNICs the client can use |
//!
//! *Source*: "Shared Memory Communications Version 2"; Linux `net/smc/smc_llc.c`.

use super::add_link::{AddLinkStep, RejectReason};
use super::frame::{Form, Header, LEN, LengthOrder, MessageType, open, unexpected};
use crate::clc::accept_confirm::first_contact::{GID_COUNT_MAX, GidList};
use crate::error::Error;
use crate::field::Field;
use crate::ids::RoceGid;

mod field {
    use super::Field;

    pub(super) const GID_COUNT: Field<1> = Field::new("REQUEST ADD LINK GID count", 24);
    /// Where the GIDs start.
    pub(super) const GIDS_AT: usize = 28;

    /// Within one entry.
    pub(super) const GID: Field<16> = Field::new("REQUEST ADD LINK GID", 0);
    pub(super) const GID_LEN: usize = 16;
}

/// The client's wish for another link, or the answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestAddLink {
    /// How the length is written.
    pub order: LengthOrder,
    /// Request, response or rejection.
    pub step: AddLinkStep,
    /// The RNICs of the client.
    pub gids: GidList,
}

impl RequestAddLink {
    /// Reads a whole REQUEST ADD LINK.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message,
    /// [`Error::Truncated`] when the length does not cover the GIDs, [`Error::Unsupported`] for
    /// more than [`GID_COUNT_MAX`] of them.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::RequestAddLink)?;
        let Form::V2(order) = header.form else {
            return Err(unexpected(header.message_type));
        };
        let count = message.u8(field::GID_COUNT)?;
        if usize::from(count) > GID_COUNT_MAX {
            return Err(Error::Unsupported {
                field: field::GID_COUNT.name,
                value: count.into(),
                what: "a list of more than 8 GIDs",
            });
        }
        let gid = |index| {
            let place = field::GIDS_AT + field::GID_LEN * usize::from(index);
            let entry = message.section(field::GID.name, place, field::GID_LEN)?;
            entry.bytes(field::GID).map(RoceGid)
        };
        let reason = RejectReason::from_low_bits(header.flags);
        Ok(Self {
            order,
            step: AddLinkStep::from_flags(header.flags, reason),
            gids: (0..count).map(gid).collect::<Result<_, _>>()?,
        })
    }

    /// Bytes [`emit`](Self::emit) will write.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        LEN.max(field::GIDS_AT + field::GID_LEN * self.gids.len())
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`emitted_len`](Self::emitted_len).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.emitted_len();
        let header = Header {
            message_type: MessageType::RequestAddLink,
            form: Form::V2(self.order),
            flags: self.step.flags() | self.step.reason().code(),
        };
        let mut writer = header.emit(out, len)?;
        writer.put(field::GID_COUNT, [self.gids.len() as u8])?;
        for (index, gid) in self.gids.iter().enumerate() {
            let place = field::GIDS_AT + field::GID_LEN * index;
            writer.section(field::GID.name, place, field::GID_LEN)?.put(field::GID, gid.0)?;
        }
        Ok(len)
    }
}

const _: () = assert!(field::GIDS_AT + field::GID_LEN == LEN, "one GID needs no longer message");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_its_gids_but_never_shorter_than_others() {
        for (count, len) in [(0, 44), (1, 44), (2, 60), (8, 156)] {
            let message = RequestAddLink {
                order: LengthOrder::BigEndian,
                step: AddLinkStep::Request,
                gids: (0..count).map(|index| RoceGid([index; 16])).collect(),
            };
            assert_eq!(message.emitted_len(), len);
            let mut out = [0; 156];
            assert_eq!(message.emit(&mut out), Ok(len));
            assert_eq!(RequestAddLink::parse(&out[..len]), Ok(message));
        }
    }
}
