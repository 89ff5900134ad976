//! ADD LINK: "let us have another link".
//!
//! The server offers a second link on another RDMA adapter, so that connections can move when the
//! first one fails. It names its end of the new link over an old one, and the client answers with
//! its own end, or rejects. Then CONFIRM LINK goes over the new link. In version 1 a client may
//! send a request, too, as a hint that it has another adapter; link, QP number and PSN are 0 then.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 2 | flags: bit 7 response, bit 6 reject |
//! | 2 | 1 | reject reason | in version 1, bits 3..0; in version 2 it is bits 3..0 of the flags |
//! | 4 | 6 | MAC | of the sender's RNIC for the new link |
//! | 10 | 2 | reserved | not in the figure of the RFC, but there |
//! | 12 | 16 | GID | of that RNIC |
//! | 28 | 3 | QP number | the sender's end of the new link |
//! | 31 | 1 | link number | from the server, repeated by the client |
//! | 32 | 1 | MTU code | bits 3..0 [`Mtu`]; of a response the smaller of both |
//! | 33 | 3 | initial PSN | first one the sender will use on the new link |
//! | 36 | 8 | reserved | |
//!
//! The sender's receive buffers have other keys on the new link. In version 2 they stand in an
//! extension of the same message. A rejection has none:
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 44 | 1 | direct | bit 7, no gateway between the RNICs |
//! | 45 | 1 | reserved | |
//! | 46 | 16 | target GID | from Linux the GID at 12 once more |
//! | 62 | 8 | reserved | |
//! | 70 | 2 | rkey count | in the byte order of the length |
//! | 72 | 16·n | pairs | one for each receive buffer, see below |
//!
//! Linux counts its connections there, not its buffers, so the count may promise more than what
//! follows. In version 1 the keys come in ADD LINK CONTINUATIONs over the old link. The server
//! sends one, the client answers with one of its own, until neither has more to say:
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 3 | flags: bit 7 response |
//! | 4 | 1 | link number | of the new link |
//! | 5 | 1 | remaining | pairs from this message on |
//! | 6 | 2 | reserved | |
//! | 8 | 16 | first pair | |
//! | 24 | 16 | second pair | |
//! | 40 | 4 | reserved | |
//!
//! | Rel | Len | Field of a pair | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | reference RKey | of the RMB on the link that carries the message |
//! | 4 | 4 | new RKey | of the same RMB on the new link |
//! | 8 | 8 | new address | of the same RMB on the new link |
//!
//! *Source*: RFC 7609 §A.3.2, §A.3.3; "Shared Memory Communications Version 2"; Linux
//! `net/smc/smc_llc.c`.

use arrayvec::ArrayVec;

use super::frame::{
    FLAG_RESPONSE, Form, Header, LEN, LengthOrder, MessageType, RKEY_COUNT_MAX, Role,
    check_remaining, open,
};
use crate::error::Error;
use crate::field::Field;
use crate::ids::{LinkNumber, Mac, Mtu, Psn, QpNumber, Rkey, RmbAddress, RoceGid};
use crate::reader::Reader;
use crate::writer::Writer;

mod field {
    use super::Field;

    /// In version 1.
    pub(super) const REASON: Field<1> = Field::new("ADD LINK reject reason", 2);
    pub(super) const MAC: Field<6> = Field::new("ADD LINK MAC", 4);
    pub(super) const GID: Field<16> = Field::new("ADD LINK GID", 12);
    pub(super) const QP_NUMBER: Field<3> = Field::new("ADD LINK QP number", 28);
    pub(super) const LINK_NUMBER: Field<1> = Field::new("ADD LINK link number", 31);
    pub(super) const MTU: Field<1> = Field::new("ADD LINK MTU code", 32);
    pub(super) const PSN: Field<3> = Field::new("ADD LINK initial PSN", 33);
}

/// The extension of version 2.
mod extension {
    use super::Field;

    pub(super) const DIRECT: Field<1> = Field::new("ADD LINK direct", 44);
    pub(super) const TARGET_GID: Field<16> = Field::new("ADD LINK target GID", 46);
    pub(super) const COUNT: Field<2> = Field::new("ADD LINK rkey count", 70);
    /// Where the pairs start.
    pub(super) const PAIRS_AT: usize = 72;

    /// Bit 7 of its byte.
    pub(super) const FLAG_DIRECT: u8 = 0x80;
}

mod continuation {
    use super::Field;

    pub(super) const LINK_NUMBER: Field<1> = Field::new("ADD LINK CONTINUATION link number", 4);
    pub(super) const REMAINING: Field<1> = Field::new("ADD LINK CONTINUATION remaining", 5);
    /// Where the pairs start.
    pub(super) const PAIRS_AT: usize = 8;
    pub(super) const PAIRS_MAX: usize = 2;
}

/// Offsets count from the start of the pair.
mod pair {
    use super::Field;

    pub(super) const NAME: &str = "ADD LINK pair";
    pub(super) const REFERENCE: Field<4> = Field::new("ADD LINK reference RKey", 0);
    pub(super) const RKEY: Field<4> = Field::new("ADD LINK new RKey", 4);
    pub(super) const ADDRESS: Field<8> = Field::new("ADD LINK new address", 8);
    pub(super) const LEN: usize = 16;
}

/// The offer of another link, or the answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddLink {
    /// Request, response or rejection.
    pub step: AddLinkStep,
    /// The Ethernet address of the sender's RNIC for the new link.
    pub mac: Mac,
    /// That RNIC.
    pub gid: RoceGid,
    /// The sender's end of the new link.
    pub qp_number: QpNumber,
    /// The new link. A response repeats that of the request.
    pub link_number: LinkNumber,
    /// The longest packet the sender takes on the new link; of a response, the longest of both.
    pub mtu: Mtu,
    /// The first packet sequence number the sender will use on the new link.
    pub psn: Psn,
    /// What its version says beyond that.
    pub form: AddLinkForm,
}

/// Which message of the exchange an ADD LINK or a REQUEST ADD LINK is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddLinkStep {
    /// From the side that begins.
    Request,
    /// The answer without the reject flag.
    Response,
    /// There will be no new link.
    Reject(RejectReason),
}

/// Why there will be no new link, four bits on the wire. Any value may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(
    /// `code <= 15`
    u8,
);

/// What an ADD LINK says in each version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing may be boxed here, and a message lives only while it is handled"
)]
pub enum AddLinkForm {
    /// RFC 7609.
    V1,
    /// "Shared Memory Communications Version 2".
    V2 {
        /// How lengths are written.
        order: LengthOrder,
        /// Linux wants it in a request and in a response; a rejection has none.
        extension: Option<AddLinkExtension>,
    },
}

/// What version 2 adds to an ADD LINK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddLinkExtension {
    /// No gateway lies between the RNICs of the two sides.
    pub direct: bool,
    /// The RNIC at the client's end. Linux puts its own there, and does not look at the peer's.
    pub target_gid: RoceGid,
    /// The sender's receive buffers.
    pub pairs: ArrayVec<RtokenPair, RKEY_COUNT_MAX>,
}

/// The receive buffers of another link, in version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddLinkContinuation {
    /// Request or response.
    pub role: Role,
    /// The new link.
    pub link_number: LinkNumber,
    /// Pairs from this message on: those in it, and those in messages to come.
    pub remaining: u8,
    /// The first of them, as many as fit.
    pub pairs: ArrayVec<RtokenPair, { continuation::PAIRS_MAX }>,
}

/// One receive buffer, as it is known on an old link and on a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RtokenPair {
    /// The key on the link that carries the message.
    pub reference: Rkey,
    /// The key on the new link.
    pub rkey: Rkey,
    /// Where the buffer starts on the new link.
    pub address: RmbAddress,
}

impl AddLink {
    /// Reads a whole ADD LINK.
    ///
    /// Pairs that the count promises and the length has no room for are not there, which is no
    /// error. An MTU code that means nothing is read, so that it can be rejected.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message,
    /// [`Error::Truncated`] for a part of an extension, [`Error::Unsupported`] for more than
    /// [`RKEY_COUNT_MAX`] pairs.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::AddLink)?;
        let reason = match header.form {
            Form::V1 => message.u8(field::REASON)?,
            Form::V2(_) => header.flags,
        };
        Ok(Self {
            step: AddLinkStep::from_flags(header.flags, RejectReason::from_low_bits(reason)),
            mac: Mac(message.bytes(field::MAC)?),
            gid: RoceGid(message.bytes(field::GID)?),
            qp_number: QpNumber(message.bytes(field::QP_NUMBER)?),
            link_number: LinkNumber(message.u8(field::LINK_NUMBER)?),
            mtu: Mtu::from_low_bits(message.u8(field::MTU)?),
            psn: Psn(message.bytes(field::PSN)?),
            form: AddLinkForm::parse(header.form, &message)?,
        })
    }

    /// How the frame is written.
    #[must_use]
    pub const fn form(&self) -> Form {
        match self.form {
            AddLinkForm::V1 => Form::V1,
            AddLinkForm::V2 { order, .. } => Form::V2(order),
        }
    }

    /// Bytes [`emit`](Self::emit) will write.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        match &self.form {
            AddLinkForm::V2 { extension: Some(extension), .. } => {
                extension::PAIRS_AT + pair::LEN * extension.pairs.len()
            }
            AddLinkForm::V1 | AddLinkForm::V2 { extension: None, .. } => LEN,
        }
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`emitted_len`](Self::emitted_len).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.emitted_len();
        let (reason, form) = (self.step.reason().code(), self.form());
        let reason_in_flags = if form == Form::V1 { 0 } else { reason };
        let flags = self.step.flags() | reason_in_flags;
        let header = Header { message_type: MessageType::AddLink, form, flags };
        let mut writer = header.emit(out, len)?;
        if form == Form::V1 {
            writer.put(field::REASON, [reason])?;
        }
        writer.put(field::MAC, self.mac.0)?;
        writer.put(field::GID, self.gid.0)?;
        writer.put(field::QP_NUMBER, self.qp_number.0)?;
        writer.put(field::LINK_NUMBER, [self.link_number.0])?;
        writer.put(field::MTU, [self.mtu.code()])?;
        writer.put(field::PSN, self.psn.0)?;
        self.form.emit(&mut writer)?;
        Ok(len)
    }
}

impl AddLinkStep {
    /// Bit 6 of the flags, of a response.
    const FLAG_REJECT: u8 = 0x40;

    /// What the flags say, with the reason that holds if they say "reject".
    pub(super) const fn from_flags(flags: u8, reason: RejectReason) -> Self {
        match (Role::from_flags(flags), flags & Self::FLAG_REJECT) {
            (Role::Request, _) => Self::Request,
            (Role::Response, 0) => Self::Response,
            (Role::Response, _) => Self::Reject(reason),
        }
    }

    /// The flags without the reason.
    pub(super) const fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => FLAG_RESPONSE,
            Self::Reject(_) => FLAG_RESPONSE | Self::FLAG_REJECT,
        }
    }

    /// The reason to write.
    pub(super) const fn reason(self) -> RejectReason {
        match self {
            Self::Reject(reason) => reason,
            Self::Request | Self::Response => RejectReason::NONE,
        }
    }
}

impl RejectReason {
    /// Not stated, as from Linux in version 2.
    pub const NONE: Self = Self(0);
    /// There is no other RNIC to make a link with.
    pub const NO_ALTERNATE_PATH: Self = Self(1);
    /// The MTU code means nothing.
    pub const INVALID_MTU: Self = Self(2);

    /// The reason in the low four bits of `code`.
    #[must_use]
    pub const fn from_low_bits(code: u8) -> Self {
        Self(code & 0x0F)
    }

    /// The four bits on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl AddLinkForm {
    fn parse(form: Form, message: &Reader<'_>) -> Result<Self, Error> {
        let Form::V2(order) = form else {
            return Ok(Self::V1);
        };
        let extension =
            if message.len() > LEN { Some(AddLinkExtension::parse(message, order)?) } else { None };
        Ok(Self::V2 { order, extension })
    }

    fn emit(&self, message: &mut Writer<'_>) -> Result<(), Error> {
        match self {
            Self::V2 { order, extension: Some(extension) } => extension.emit(message, *order),
            Self::V1 | Self::V2 { extension: None, .. } => Ok(()),
        }
    }
}

impl AddLinkExtension {
    fn parse(message: &Reader<'_>, order: LengthOrder) -> Result<Self, Error> {
        // It ends where the pairs start, so these cannot start behind the message.
        let claimed = order.value(message.bytes(extension::COUNT)?).into();
        let present = (message.len() - extension::PAIRS_AT) / pair::LEN;
        let count = present.min(claimed);
        if count > RKEY_COUNT_MAX {
            return Err(Error::Unsupported {
                field: extension::COUNT.name,
                value: count as u64,
                what: "more than 255 receive buffers",
            });
        }
        Ok(Self {
            direct: message.u8(extension::DIRECT)? & extension::FLAG_DIRECT != 0,
            target_gid: RoceGid(message.bytes(extension::TARGET_GID)?),
            pairs: (0..count)
                .map(|index| RtokenPair::parse(message, extension::PAIRS_AT, index))
                .collect::<Result<_, _>>()?,
        })
    }

    fn emit(&self, message: &mut Writer<'_>, order: LengthOrder) -> Result<(), Error> {
        let count = order.to_bytes(self.pairs.len() as u16);
        message.put(extension::DIRECT, [if self.direct { extension::FLAG_DIRECT } else { 0 }])?;
        message.put(extension::TARGET_GID, self.target_gid.0)?;
        message.put(extension::COUNT, count)?;
        emit_pairs(&self.pairs, message, extension::PAIRS_AT)
    }
}

impl AddLinkContinuation {
    /// Reads a whole ADD LINK CONTINUATION.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::AddLinkContinuation)?;
        let remaining = message.u8(continuation::REMAINING)?;
        let count = continuation::PAIRS_MAX.min(remaining.into());
        Ok(Self {
            role: Role::from_flags(header.flags),
            link_number: LinkNumber(message.u8(continuation::LINK_NUMBER)?),
            remaining,
            pairs: (0..count)
                .map(|index| RtokenPair::parse(&message, continuation::PAIRS_AT, index))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Writes it to the front of `out` and returns its length, [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than that; [`Error::Inconsistent`] when `pairs` has
    /// not the first two of `remaining`.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let (name, room) = (continuation::REMAINING.name, continuation::PAIRS_MAX);
        check_remaining(name, self.remaining, self.pairs.len(), room)?;
        let message_type = MessageType::AddLinkContinuation;
        let header = Header { message_type, form: Form::V1, flags: self.role.flags() };
        let mut writer = header.emit(out, LEN)?;
        writer.put(continuation::LINK_NUMBER, [self.link_number.0])?;
        writer.put(continuation::REMAINING, [self.remaining])?;
        emit_pairs(&self.pairs, &mut writer, continuation::PAIRS_AT)?;
        Ok(LEN)
    }
}

impl RtokenPair {
    /// Reads the one at `index` of the list that starts at `at`.
    fn parse(message: &Reader<'_>, at: usize, index: usize) -> Result<Self, Error> {
        let entry = message.section(pair::NAME, at + pair::LEN * index, pair::LEN)?;
        Ok(Self {
            reference: Rkey(entry.u32(pair::REFERENCE)?),
            rkey: Rkey(entry.u32(pair::RKEY)?),
            address: RmbAddress(entry.u64(pair::ADDRESS)?),
        })
    }
}

/// Writes a list that starts at `at`.
fn emit_pairs(pairs: &[RtokenPair], message: &mut Writer<'_>, at: usize) -> Result<(), Error> {
    for (index, it) in pairs.iter().enumerate() {
        let mut entry = message.section(pair::NAME, at + pair::LEN * index, pair::LEN)?;
        entry.put(pair::REFERENCE, it.reference.0.to_be_bytes())?;
        entry.put(pair::RKEY, it.rkey.0.to_be_bytes())?;
        entry.put(pair::ADDRESS, it.address.0.to_be_bytes())?;
    }
    Ok(())
}

const _: () = assert!(
    extension::PAIRS_AT + pair::LEN * RKEY_COUNT_MAX == super::frame::EMITTED_LEN_MAX,
    "the longest LLC message"
);
const _: () = assert!(continuation::PAIRS_AT + pair::LEN * continuation::PAIRS_MAX + 4 == LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_rejects() {
        let reason = RejectReason::INVALID_MTU;
        for (flags, step) in [
            (0x00, AddLinkStep::Request),
            (0x40, AddLinkStep::Request),
            (0x80, AddLinkStep::Response),
            (0xC0, AddLinkStep::Reject(reason)),
        ] {
            assert_eq!(AddLinkStep::from_flags(flags, reason), step);
        }
    }

    /// A version 2 request of 88 bytes in this order: room for one pair.
    fn request_with_count(order: LengthOrder, count: u16) -> [u8; 88] {
        let mut bytes = [0; 88];
        bytes[0] = 0x22;
        bytes[1..3].copy_from_slice(&order.to_bytes(88));
        bytes[70..72].copy_from_slice(&order.to_bytes(count));
        bytes
    }

    #[test]
    fn the_count_is_read_in_the_order_of_the_length_and_bounded_by_it() {
        for order in [LengthOrder::BigEndian, LengthOrder::LittleEndian] {
            for (count, expected) in [(0, 0), (1, 1), (2, 1), (0xFFFF, 1)] {
                let message = AddLink::parse(&request_with_count(order, count)).unwrap();
                let AddLinkForm::V2 { order: read, extension: Some(extension) } = message.form
                else {
                    panic!("an extension");
                };
                assert_eq!((read, extension.pairs.len()), (order, expected));
            }
        }
    }
}
