//! RoCEv2: RDMA packets in UDP datagrams, as far as SMC-R uses them.
//!
//! A link of SMC-R is a *reliable connection* between two queue pairs (QPs). Each message, a SEND
//! or an RDMA WRITE, goes as one *Only* packet or as *First*, *Middle*s and *Last*, each with the
//! next packet sequence number (PSN); the other side answers with acknowledgements.
//!
//! ```text
//!   IP | UDP to 4791 | BTH 12 | RETH 16 or AETH 4 or … | payload | pad to 4 | ICRC 4
//! ```
//!
//! | Header | Of | Says |
//! |---|---|---|
//! | [`Bth`] | every packet | what it is, for which QP, its PSN |
//! | [`Reth`] | First and Only of a WRITE | the address of the whole message, and its key |
//! | [`Aeth`] | an acknowledgement | how it went, and how many messages have |
//! | [`icrc`] | every packet | that nothing was damaged, as far as no router may change it |
//!
//! *Source*: InfiniBand Architecture Specification volume 1, §9, annex A17; Linux
//! `drivers/infiniband/sw/rxe/rxe_hdr.h`, `rxe_opcode.c`.

use crate::error::Error;
use crate::field::Field;
use crate::ids::{Psn, QpNumber, Rkey, RmbAddress};
use crate::reader::Reader;
use crate::writer::Writer;

pub mod icrc;
mod opcode;

pub use opcode::{Message, Opcode, Place, With};

/// The UDP port that all RoCEv2 packets go to, answers too.
pub const PORT: u16 = 4791;

mod field {
    use super::Field;

    pub(super) const OPCODE: Field<1> = Field::new("BTH opcode", 0);
    pub(super) const FLAGS: Field<1> = Field::new("BTH flags", 1);
    pub(super) const P_KEY: Field<2> = Field::new("BTH partition key", 2);
    pub(super) const DESTINATION: Field<3> = Field::new("BTH destination QP", 5);
    pub(super) const ACK_REQUEST: Field<1> = Field::new("BTH acknowledge request", 8);
    pub(super) const PSN: Field<3> = Field::new("BTH PSN", 9);

    pub(super) const ADDRESS: Field<8> = Field::new("RETH virtual address", 0);
    pub(super) const RKEY: Field<4> = Field::new("RETH R_Key", 8);
    pub(super) const LENGTH: Field<4> = Field::new("RETH DMA length", 12);

    pub(super) const SYNDROME: Field<1> = Field::new("AETH syndrome", 0);
    pub(super) const MSN: Field<3> = Field::new("AETH MSN", 1);

    pub(super) const IMMEDIATE: Field<4> = Field::new("immediate data", 0);
}

/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;
/// Bytes of the header of a WRITE.
pub const RETH_LEN: usize = 16;
const AETH_LEN: usize = 4;
const IMMEDIATE_LEN: usize = 4;
/// Bytes of the check at the end.
pub const ICRC_LEN: usize = 4;

const FLAG_SOLICITED: u8 = 0x80;
const PAD_SHIFT: u32 = 4;
const PAD_MASK: u8 = 0x03;
const VERSION_MASK: u8 = 0x0F;
const FLAG_ACK_REQUEST: u8 = 0x80;
/// The partition that all members are in, and the part of it that is compared: the rest says whether
/// a member is a full one.
const P_KEY_DEFAULT: u16 = 0xFFFF;
const P_KEY_MASK: u16 = 0x7FFF;

/// The base transport header, without what is the same in every packet of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// This message wakes the receiver (solicited event).
    pub solicited: bool,
    /// The QP it is for.
    pub destination: QpNumber,
    /// An answer is asked for.
    pub ack_request: bool,
    /// Its number.
    pub psn: Psn,
}

/// Where a WRITE goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// In the address space of the receiver's adapter.
    pub address: RmbAddress,
    /// By which it may.
    pub rkey: Rkey,
    /// Bytes of the whole message, not only of this packet.
    pub len: u32,
}

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// The answer.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2^24. No requester should depend on it.
    pub msn: u32,
}

/// The answer of a responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to this PSN is well. Credits: 31 says nothing about them.
    Ack {
        /// `credits <= 31`
        credits: u8,
    },
    /// No receive was posted: come again after this time.
    ReceiverNotReady {
        /// A code, see [`rnr_delay_us`]; `timer <= 31`
        timer: u8,
    },
    /// It will not be done.
    Nak(Nak),
}

/// Why a request was not done. All but the first are the end of the QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nak {
    /// Packets are missing: go back to this PSN.
    SequenceError,
    /// The request makes no sense, or not on this QP.
    InvalidRequest,
    /// The key or the range was refused.
    RemoteAccessError,
    /// The responder could not, for a reason of its own.
    RemoteOperationalError,
    /// A code that this table does not have.
    Other(
        /// `4 <= code <= 31`
        u8,
    ),
}

/// Everything before the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// The header that all have.
    pub bth: Bth,
    /// Of a WRITE's First or Only.
    pub reth: Option<Reth>,
    /// Of an acknowledgement.
    pub aeth: Option<Aeth>,
    /// Immediate data, or a key to invalidate, as the opcode says.
    pub immediate: Option<u32>,
}

/// A whole packet: what lies in the UDP datagram, without the ICRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What is before the payload.
    pub headers: Headers,
    /// What is carried, without the pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the payload of a UDP datagram, the ICRC included, which is [`icrc`]'s to check.
    ///
    /// The length of a pad must be the one that its payload calls for; what a payload must be long
    /// in its message is for the QP to say.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] for a datagram that ends early; [`Error::Unsupported`] for a packet of
    /// another transport than the reliable connection, or one that no such has; [`Error::Invalid`]
    /// for another version, another partition or a reserved syndrome; [`Error::Mismatch`] for a
    /// wrong pad.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Error> {
        let reader = Reader::new(datagram);
        let opcode = Opcode::from_code(reader.u8(field::OPCODE)?)?;
        let flags = reader.u8(field::FLAGS)?;
        if flags & VERSION_MASK != 0 {
            return Err(Error::Invalid {
                field: "BTH version",
                value: (flags & VERSION_MASK).into(),
            });
        }
        let p_key = reader.u16(field::P_KEY)?;
        if p_key & P_KEY_MASK != P_KEY_DEFAULT & P_KEY_MASK {
            return Err(Error::Invalid { field: field::P_KEY.name, value: p_key.into() });
        }
        let bth = Bth {
            opcode,
            solicited: flags & FLAG_SOLICITED != 0,
            destination: QpNumber(reader.bytes(field::DESTINATION)?),
            ack_request: reader.u8(field::ACK_REQUEST)? & FLAG_ACK_REQUEST != 0,
            psn: Psn(reader.bytes(field::PSN)?),
        };
        let mut at = BTH_LEN;
        let mut next = |name, len| {
            let section = reader.section(name, at, len);
            at += len;
            section
        };
        let reth = opcode.has_reth().then(|| next("RETH", RETH_LEN)).transpose()?;
        let aeth = opcode.has_aeth().then(|| next("AETH", AETH_LEN)).transpose()?;
        let immediate = opcode.has_immediate().then(|| next("ImmDt", IMMEDIATE_LEN)).transpose()?;
        let pad = usize::from(flags >> PAD_SHIFT & PAD_MASK);
        let end = datagram.len().checked_sub(ICRC_LEN + pad).filter(|end| *end >= at);
        let payload = end.and_then(|end| datagram.get(at..end)).ok_or(Error::Truncated {
            field: "RoCE payload",
            needed: at + pad + ICRC_LEN,
            present: datagram.len(),
        })?;
        let expected = pad_len(payload.len());
        if pad != expected {
            return Err(Error::Mismatch { field: "BTH pad count", claimed: pad, expected });
        }
        let headers = Headers {
            bth,
            reth: reth.map(|reader| Reth::read(&reader)).transpose()?,
            aeth: aeth.map(|reader| Aeth::read(&reader)).transpose()?,
            immediate: immediate.map(|reader| reader.u32(field::IMMEDIATE)).transpose()?,
        };
        Ok(Self { headers, payload })
    }

    /// Bytes that [`emit`](Self::emit) writes: all but the ICRC, a multiple of four.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        self.headers.emitted_len() + self.payload.len() + pad_len(self.payload.len())
    }

    /// Writes it to the front of `out`, without the ICRC, and returns its length.
    ///
    /// # Errors
    ///
    /// As [`Headers::emit`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let (len, present) = (self.emitted_len(), out.len());
        let at = self.headers.emit(self.payload.len(), out)?;
        let no_room = Error::NoRoom { field: "RoCE payload", needed: len, present };
        let (payload, pad) = out.get_mut(at..len).ok_or(no_room)?.split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        pad.fill(0);
        Ok(len)
    }
}

impl Headers {
    /// Bytes that [`emit`](Self::emit) writes.
    #[must_use]
    pub const fn emitted_len(&self) -> usize {
        let opcode = self.bth.opcode;
        BTH_LEN
            + if opcode.has_reth() { RETH_LEN } else { 0 }
            + if opcode.has_aeth() { AETH_LEN } else { 0 }
            + if opcode.has_immediate() { IMMEDIATE_LEN } else { 0 }
    }

    /// Writes what is before a payload of `payload_len` bytes to the front of `out`, and returns
    /// its length. Behind the payload belong [`pad_len`] zero bytes.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::Inconsistent`] if there is another header than the opcode has.
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, Error> {
        let opcode = self.bth.opcode;
        let has = [self.reth.is_some(), self.aeth.is_some(), self.immediate.is_some()];
        if has != [opcode.has_reth(), opcode.has_aeth(), opcode.has_immediate()] {
            let reason = "has other extension headers than its opcode";
            return Err(Error::Inconsistent { field: field::OPCODE.name, reason });
        }
        let len = self.emitted_len();
        let mut writer = Writer::new("RoCE headers", out, len)?;
        self.bth.write(&mut writer, pad_len(payload_len))?;
        let mut at = BTH_LEN;
        if let Some(reth) = &self.reth {
            reth.write(&mut writer.section("RETH", at, RETH_LEN)?)?;
            at += RETH_LEN;
        }
        if let Some(aeth) = &self.aeth {
            aeth.write(&mut writer.section("AETH", at, AETH_LEN)?)?;
            at += AETH_LEN;
        }
        if let Some(immediate) = self.immediate {
            let mut section = writer.section("ImmDt", at, IMMEDIATE_LEN)?;
            section.put(field::IMMEDIATE, immediate.to_be_bytes())?;
        }
        Ok(len)
    }
}

/// Zero bytes behind a payload: up to a multiple of four.
#[must_use]
pub const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

impl Bth {
    fn write(&self, writer: &mut Writer<'_>, pad: usize) -> Result<(), Error> {
        let solicited = if self.solicited { FLAG_SOLICITED } else { 0 };
        let ack_request = if self.ack_request { FLAG_ACK_REQUEST } else { 0 };
        writer.put(field::OPCODE, [self.opcode.code()])?;
        writer.put(field::FLAGS, [solicited | (pad as u8) << PAD_SHIFT])?;
        writer.put(field::P_KEY, P_KEY_DEFAULT.to_be_bytes())?;
        writer.put(field::DESTINATION, self.destination.0)?;
        writer.put(field::ACK_REQUEST, [ack_request])?;
        writer.put(field::PSN, self.psn.0)
    }
}

impl Reth {
    fn read(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            address: RmbAddress(reader.u64(field::ADDRESS)?),
            rkey: Rkey(reader.u32(field::RKEY)?),
            len: reader.u32(field::LENGTH)?,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        writer.put(field::ADDRESS, self.address.0.to_be_bytes())?;
        writer.put(field::RKEY, self.rkey.0.to_be_bytes())?;
        writer.put(field::LENGTH, self.len.to_be_bytes())
    }
}

impl Aeth {
    fn read(reader: &Reader<'_>) -> Result<Self, Error> {
        let [high, middle, low] = reader.bytes(field::MSN)?;
        Ok(Self {
            syndrome: Syndrome::from_code(reader.u8(field::SYNDROME)?)?,
            msn: u32::from_be_bytes([0, high, middle, low]),
        })
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        let [_, msn @ ..] = self.msn.to_be_bytes();
        writer.put(field::SYNDROME, [self.syndrome.code()])?;
        writer.put(field::MSN, msn)
    }
}

const KIND_SHIFT: u32 = 5;
const VALUE_MASK: u8 = 0x1F;
const KIND_ACK: u8 = 0;
const KIND_RNR: u8 = 1;
const KIND_NAK: u8 = 3;

impl Syndrome {
    /// An acknowledgement that says nothing about credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// The syndrome with this code.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for the reserved ones, 0x40 to 0x5F and 0x80 on.
    pub const fn from_code(code: u8) -> Result<Self, Error> {
        let value = code & VALUE_MASK;
        match code >> KIND_SHIFT {
            KIND_ACK => Ok(Self::Ack { credits: value }),
            KIND_RNR => Ok(Self::ReceiverNotReady { timer: value }),
            KIND_NAK => Ok(Self::Nak(Nak::from_code(value))),
            _ => Err(Error::Invalid { field: field::SYNDROME.name, value: code as u64 }),
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ack { credits } => KIND_ACK << KIND_SHIFT | credits & VALUE_MASK,
            Self::ReceiverNotReady { timer } => KIND_RNR << KIND_SHIFT | timer & VALUE_MASK,
            Self::Nak(nak) => KIND_NAK << KIND_SHIFT | nak.code(),
        }
    }
}

impl Nak {
    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::SequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            other => Self::Other(other),
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::SequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::Other(code) => code & VALUE_MASK,
        }
    }
}

/// How long a requester waits when the receiver was not ready, in µs, by the code of the answer.
#[must_use]
pub const fn rnr_delay_us(timer: u8) -> u32 {
    RNR_DELAYS_US[(timer & VALUE_MASK) as usize]
}

/// *Source*: InfiniBand Architecture Specification volume 1, table "RNR NAK timer field".
const RNR_DELAYS_US: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn bth(opcode: Opcode) -> Bth {
        Bth {
            opcode,
            solicited: true,
            destination: QpNumber([1, 2, 3]),
            ack_request: true,
            psn: Psn([4, 5, 6]),
        }
    }

    /// With what belongs to its opcode.
    fn headers(opcode: Opcode) -> Headers {
        let reth = Reth { address: RmbAddress(0x1122_3344_5566_7788), rkey: Rkey(9), len: 10 };
        Headers {
            bth: bth(opcode),
            reth: opcode.has_reth().then_some(reth),
            aeth: opcode.has_aeth().then_some(Aeth { syndrome: Syndrome::ACK, msn: 0x0012_3456 }),
            immediate: opcode.has_immediate().then_some(0xAABB_CCDD),
        }
    }

    fn emit(packet: &Packet<'_>) -> Vec<u8> {
        let mut bytes = std::vec![0xEE; packet.emitted_len() + ICRC_LEN];
        assert_eq!(packet.emit(&mut bytes), Ok(packet.emitted_len()));
        bytes
    }

    #[test]
    fn every_kind_survives_with_every_pad() {
        for opcode in (0..=255).flat_map(Opcode::from_code) {
            for len in 0..9 {
                let payload = &b"payload!!"[..len];
                let packet = Packet { headers: headers(opcode), payload };
                let bytes = emit(&packet);
                assert!(bytes.len().is_multiple_of(4));
                assert_eq!(Packet::parse(&bytes), Ok(packet), "{opcode:?} {len}");
                let shortest = packet.headers.emitted_len() + ICRC_LEN + pad_len(len);
                for cut in (0..bytes.len()).filter(|cut| *cut < shortest || cut % 4 != 0) {
                    assert!(Packet::parse(&bytes[..cut]).is_err(), "{opcode:?} {len} {cut}");
                }
            }
        }
    }

    #[test]
    fn what_linux_has_sent_is_understood() {
        let bytes = [
            0x11, 0, 0xFF, 0xFF, 0, 0, 0, 0x11, 0, 0x4A, 0xAD, 0xB5, 0x1F, 0, 0, 1, 0xAA, 0xD4,
            0xB4, 0xAF,
        ];
        let packet = Packet::parse(&bytes).unwrap();
        let Headers { bth, aeth, .. } = packet.headers;
        assert_eq!((bth.opcode, bth.destination), (Opcode::Acknowledge, QpNumber([0, 0, 0x11])));
        assert_eq!((bth.psn, bth.ack_request), (Psn([0x4A, 0xAD, 0xB5]), false));
        assert_eq!(aeth, Some(Aeth { syndrome: Syndrome::ACK, msn: 1 }));
    }

    #[test]
    fn lies_are_refused_by_name() {
        let good = emit(&Packet { headers: headers(Opcode::ReadRequest), payload: b"12345" });
        for (at, value, field) in
            [(0, 0x60, "BTH opcode"), (1, 0xB1, "BTH version"), (2, 0x12, "BTH partition key")]
        {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(Packet::parse(&bytes).unwrap_err().field(), field);
        }
        let error = Packet::parse(&good[..good.len() - 1]).unwrap_err();
        assert_eq!(error, Error::Mismatch { field: "BTH pad count", claimed: 3, expected: 0 });
        let mut answer = emit(&Packet { headers: headers(Opcode::Acknowledge), payload: b"" });
        for reserved in [0x40, 0x5F, 0x80, 0xFF] {
            answer[12] = reserved;
            assert_eq!(Packet::parse(&answer).unwrap_err().field(), "AETH syndrome");
        }
    }

    #[test]
    fn a_limited_member_of_the_partition_is_heard_and_reserved_bits_are_not() {
        let packet = Packet { headers: headers(Opcode::ReadRequest), payload: b"" };
        let mut bytes = emit(&packet);
        (bytes[1], bytes[2], bytes[4], bytes[8]) = (0xC0, 0x7F, 0xFF, 0xFF);
        assert_eq!(Packet::parse(&bytes), Ok(packet));
    }

    #[test]
    fn headers_that_the_opcode_does_not_have_are_not_written() {
        let headers = Headers { reth: None, ..headers(Opcode::ReadRequest) };
        let error = headers.emit(0, &mut [0; 64]).unwrap_err();
        assert!(matches!(error, Error::Inconsistent { .. }));
    }

    #[test]
    fn syndromes_survive() {
        for code in 0..=255 {
            if let Ok(syndrome) = Syndrome::from_code(code) {
                assert_eq!(syndrome.code(), code);
            }
        }
        assert_eq!(Syndrome::ACK.code(), 0x1F);
        assert_eq!(Syndrome::from_code(0x62), Ok(Syndrome::Nak(Nak::RemoteAccessError)));
        assert_eq!((rnr_delay_us(0), rnr_delay_us(5), rnr_delay_us(31)), (655_360, 60, 491_520));
    }
}
