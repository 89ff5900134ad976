//! The CDC message of SMC-R: how far a connection has written and read, and whether it ends.
//!
//! Bytes of a connection travel by RDMA, which the receiving program does not see. Behind them the
//! writer sends a CDC message on the same link: "my bytes now reach up to here". A reader sends one
//! back: "I have read up to here, there is room again". Each is a complete picture; the receiver
//! replaces what it knew with it. So flags tell a state, not an event, and a picture that a later
//! one overtook need not be looked at.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 1 | type | `FE` |
//! | 1 | 1 | length | 44 |
//! | 2 | 2 | sequence number | of this connection and direction; the first message is 1 |
//! | 4 | 4 | alert token | the receiver's name for the connection |
//! | 8 | 2 | reserved | |
//! | 10 | 2 | producer wrap | |
//! | 12 | 4 | producer count | where in the receiver's RMBE the sender will write next |
//! | 16 | 2 | reserved | |
//! | 18 | 2 | consumer wrap | |
//! | 20 | 4 | consumer count | where in its own RMBE the sender will read next |
//! | 24 | 1 | producer flags | bits 7..3 [`ProducerFlags`] |
//! | 25 | 1 | connection state flags | bits 7..5 [`StateFlags`] |
//! | 26 | 18 | reserved | |
//!
//! It is the same in both versions. LLC messages share the link with it, and the first byte tells
//! them apart.
//!
//! *Source*: RFC 7609 §A.4; Linux `net/smc/smc_cdc.h`.

use crate::error::Error;
use crate::field::Field;
use crate::ids::AlertToken;
use crate::reader::Reader;
use crate::writer::Writer;

mod field {
    use super::Field;

    pub(super) const TYPE: Field<1> = Field::new("CDC type", 0);
    pub(super) const LENGTH: Field<1> = Field::new("CDC length", 1);
    pub(super) const SEQNO: Field<2> = Field::new("CDC sequence number", 2);
    pub(super) const ALERT_TOKEN: Field<4> = Field::new("CDC alert token", 4);
    pub(super) const PRODUCER: CursorFields = CursorFields {
        wrap: Field::new("producer wrap", 10),
        count: Field::new("producer count", 12),
    };
    pub(super) const CONSUMER: CursorFields = CursorFields {
        wrap: Field::new("consumer wrap", 18),
        count: Field::new("consumer count", 20),
    };
    pub(super) const PRODUCER_FLAGS: Field<1> = Field::new("producer flags", 24);
    pub(super) const STATE_FLAGS: Field<1> = Field::new("connection state flags", 25);

    /// The two halves of a cursor.
    pub(super) struct CursorFields {
        pub(super) wrap: Field<2>,
        pub(super) count: Field<4>,
    }
}

/// Its first byte. No LLC message starts with it.
pub const TYPE: u8 = 0xFE;

/// Bytes of a CDC message. A buffer of this many is enough for [`CdcMessage::emit`].
pub const LEN: usize = 44;

/// All that one side says of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CdcMessage {
    /// One more than that of the message before, 0 after 65535. A failover validation does not
    /// count: it carries the number of an earlier message.
    pub seqno: u16,
    /// The connection.
    pub alert_token: AlertToken,
    /// Up to where the sender has written into the receiver's RMBE.
    pub producer: Cursor,
    /// Up to where the sender has read out of its own RMBE.
    pub consumer: Cursor,
    /// What the sender says as a writer.
    pub producer_flags: ProducerFlags,
    /// How far the sender has closed the connection.
    pub state_flags: StateFlags,
}

/// A place in an RMBE, and how often the ring was gone around to get there.
///
/// A peer's is a claim: here any value passes, as the length of the ring is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cursor {
    /// Times the count went back to the start, modulo 65536.
    pub wrap: u16,
    /// Offset of the next byte, in bytes: of a sound cursor less than the length of the RMBE.
    pub count: u32,
}

/// What a writer says about its bytes, in byte 24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProducerFlags {
    /// B: no room was left for all it had to write; it waits for the reader.
    pub writer_blocked: bool,
    /// P: an urgent byte is to come.
    pub urgent_pending: bool,
    /// U: the byte before the producer cursor is urgent.
    pub urgent_present: bool,
    /// R: the peer shall send its consumer cursor soon.
    pub cursor_update_requested: bool,
    /// F: the connection moved to another link. The message tells by its sequence number which the
    /// sender knows to have arrived, and its other fields say nothing.
    pub failover_validation: bool,
}

/// How far a side has closed a connection, in byte 25. What is set stays set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StateFlags {
    /// D: it will write no more.
    pub done_writing: bool,
    /// C: it is closed.
    pub closed: bool,
    /// A: it ended at once, with bytes perhaps lost, as by a TCP reset.
    pub abnormal_close: bool,
}

impl CdcMessage {
    /// Reads a whole CDC message. What lies behind its 44 bytes is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when it is no CDC message, [`Error::Truncated`] when there are fewer than
    /// 44 bytes, [`Error::Mismatch`] when its length field says anything else.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let message = open(bytes)?;
        Ok(Self {
            seqno: message.u16(field::SEQNO)?,
            alert_token: AlertToken(message.u32(field::ALERT_TOKEN)?),
            producer: Cursor::parse(&message, field::PRODUCER)?,
            consumer: Cursor::parse(&message, field::CONSUMER)?,
            producer_flags: ProducerFlags::from_bits(message.u8(field::PRODUCER_FLAGS)?),
            state_flags: StateFlags::from_bits(message.u8(field::STATE_FLAGS)?),
        })
    }

    /// Writes it to the front of `out` and returns its length, [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = Writer::new("CDC message", out, LEN)?;
        writer.put(field::TYPE, [TYPE])?;
        writer.put(field::LENGTH, [LEN as u8])?;
        writer.put(field::SEQNO, self.seqno.to_be_bytes())?;
        writer.put(field::ALERT_TOKEN, self.alert_token.0.to_be_bytes())?;
        self.producer.emit(&mut writer, field::PRODUCER)?;
        self.consumer.emit(&mut writer, field::CONSUMER)?;
        writer.put(field::PRODUCER_FLAGS, [self.producer_flags.to_bits()])?;
        writer.put(field::STATE_FLAGS, [self.state_flags.to_bits()])?;
        Ok(LEN)
    }
}

/// Checks type and length.
fn open(bytes: &[u8]) -> Result<Reader<'_>, Error> {
    let reader = Reader::new(bytes);
    let message_type = reader.u8(field::TYPE)?;
    if message_type != TYPE {
        return Err(Error::Invalid { field: field::TYPE.name, value: message_type.into() });
    }
    let claimed = usize::from(reader.u8(field::LENGTH)?);
    if claimed != LEN {
        return Err(Error::Mismatch { field: field::LENGTH.name, claimed, expected: LEN });
    }
    reader.section(field::LENGTH.name, 0, LEN)
}

impl Cursor {
    fn parse(message: &Reader<'_>, fields: field::CursorFields) -> Result<Self, Error> {
        Ok(Self { wrap: message.u16(fields.wrap)?, count: message.u32(fields.count)? })
    }

    fn emit(self, message: &mut Writer<'_>, fields: field::CursorFields) -> Result<(), Error> {
        message.put(fields.wrap, self.wrap.to_be_bytes())?;
        message.put(fields.count, self.count.to_be_bytes())
    }
}

impl ProducerFlags {
    const WRITER_BLOCKED: u8 = 0x80;
    const URGENT_PENDING: u8 = 0x40;
    const URGENT_PRESENT: u8 = 0x20;
    const CURSOR_UPDATE_REQUESTED: u8 = 0x10;
    const FAILOVER_VALIDATION: u8 = 0x08;

    const fn from_bits(bits: u8) -> Self {
        Self {
            writer_blocked: bits & Self::WRITER_BLOCKED != 0,
            urgent_pending: bits & Self::URGENT_PENDING != 0,
            urgent_present: bits & Self::URGENT_PRESENT != 0,
            cursor_update_requested: bits & Self::CURSOR_UPDATE_REQUESTED != 0,
            failover_validation: bits & Self::FAILOVER_VALIDATION != 0,
        }
    }

    const fn to_bits(self) -> u8 {
        bit(self.writer_blocked, Self::WRITER_BLOCKED)
            | bit(self.urgent_pending, Self::URGENT_PENDING)
            | bit(self.urgent_present, Self::URGENT_PRESENT)
            | bit(self.cursor_update_requested, Self::CURSOR_UPDATE_REQUESTED)
            | bit(self.failover_validation, Self::FAILOVER_VALIDATION)
    }
}

impl StateFlags {
    const DONE_WRITING: u8 = 0x80;
    const CLOSED: u8 = 0x40;
    const ABNORMAL_CLOSE: u8 = 0x20;

    const fn from_bits(bits: u8) -> Self {
        Self {
            done_writing: bits & Self::DONE_WRITING != 0,
            closed: bits & Self::CLOSED != 0,
            abnormal_close: bits & Self::ABNORMAL_CLOSE != 0,
        }
    }

    const fn to_bits(self) -> u8 {
        bit(self.done_writing, Self::DONE_WRITING)
            | bit(self.closed, Self::CLOSED)
            | bit(self.abnormal_close, Self::ABNORMAL_CLOSE)
    }
}

const fn bit(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_a_bit_of_its_own_and_the_rest_is_reserved() {
        for bits in 0..=u8::MAX {
            assert_eq!(ProducerFlags::from_bits(bits).to_bits(), bits & 0xF8);
            assert_eq!(StateFlags::from_bits(bits).to_bits(), bits & 0xE0);
        }
    }

    #[test]
    fn a_flag_is_called_what_the_standard_calls_its_bit() {
        let none = ProducerFlags::default();
        for (bits, flags) in [
            (0x80, ProducerFlags { writer_blocked: true, ..none }),
            (0x40, ProducerFlags { urgent_pending: true, ..none }),
            (0x20, ProducerFlags { urgent_present: true, ..none }),
            (0x10, ProducerFlags { cursor_update_requested: true, ..none }),
            (0x08, ProducerFlags { failover_validation: true, ..none }),
        ] {
            assert_eq!(ProducerFlags::from_bits(bits), flags);
        }
        let none = StateFlags::default();
        for (bits, flags) in [
            (0x80, StateFlags { done_writing: true, ..none }),
            (0x40, StateFlags { closed: true, ..none }),
            (0x20, StateFlags { abnormal_close: true, ..none }),
        ] {
            assert_eq!(StateFlags::from_bits(bits), flags);
        }
    }
}
