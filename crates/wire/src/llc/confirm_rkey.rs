//! CONFIRM RKEY: "here is another receive buffer".
//!
//! Accept and Confirm tell the key of a receive buffer (RMB) on one link. The side that takes a new
//! buffer into use in a link group that exists tells its keys on all links first, over any of them.
//! The response is the same message with flags.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 6 | flags: bit 7 response, bit 5 negative, bit 4 retry later |
//! | 4 | 1 | remaining | entries from this message on, one for each other link |
//! | 5 | 4 | RKey | on the link that carries the message |
//! | 9 | 8 | address | where the RMB starts on that link |
//! | 17 | 13 | first entry | |
//! | 30 | 13 | second entry | |
//! | 43 | 1 | reserved | |
//!
//! With more than two other links, which Linux never has, CONFIRM RKEY CONTINUATIONs follow, in
//! version 1:
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 8 | flags: bit 7 response, bit 5 negative |
//! | 4 | 1 | remaining | entries from this message on |
//! | 5 | 13 | first entry | |
//! | 18 | 13 | second entry | |
//! | 31 | 13 | third entry | |
//!
//! | Rel | Len | Field of an entry | Meaning |
//! |---|---|---|---|
//! | 0 | 1 | link number | |
//! | 1 | 4 | RKey | of the RMB on that link |
//! | 5 | 8 | address | where the RMB starts on that link |
//!
//! *Source*: RFC 7609 §A.3.5, §A.3.6; Linux `net/smc/smc_llc.c`.

use arrayvec::ArrayVec;

use super::frame::{Form, Header, LEN, MessageType, RkeyStep, check_remaining, open};
use crate::error::Error;
use crate::field::Field;
use crate::ids::{LinkNumber, Rkey, RmbAddress};
use crate::reader::Reader;
use crate::writer::Writer;

mod field {
    use super::Field;

    pub(super) const REMAINING: Field<1> = Field::new("CONFIRM RKEY remaining", 4);
    pub(super) const RKEY: Field<4> = Field::new("CONFIRM RKEY RKey", 5);
    pub(super) const ADDRESS: Field<8> = Field::new("CONFIRM RKEY address", 9);
    /// Where the entries start.
    pub(super) const ENTRIES_AT: usize = 17;
    pub(super) const ENTRIES_MAX: usize = 2;
}

mod continuation {
    use super::Field;

    pub(super) const REMAINING: Field<1> = Field::new("CONFIRM RKEY CONTINUATION remaining", 4);
    /// Where the entries start.
    pub(super) const ENTRIES_AT: usize = 5;
    pub(super) const ENTRIES_MAX: usize = 3;
}

/// Offsets count from the start of the entry.
mod entry {
    use super::Field;

    pub(super) const NAME: &str = "CONFIRM RKEY entry";
    pub(super) const LINK_NUMBER: Field<1> = Field::new("CONFIRM RKEY link number", 0);
    pub(super) const RKEY: Field<4> = Field::new("CONFIRM RKEY RKey of a link", 1);
    pub(super) const ADDRESS: Field<8> = Field::new("CONFIRM RKEY address of a link", 5);
    pub(super) const LEN: usize = 13;
}

/// A new receive buffer, or the answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmRkey {
    /// How the frame is written.
    pub form: Form,
    /// Request, or what the response says.
    pub step: ConfirmRkeyStep,
    /// The key on the link that carries the message.
    pub rkey: Rkey,
    /// Where the buffer starts on that link.
    pub address: RmbAddress,
    /// Entries from this message on: those in it, and those in CONTINUATIONs to come.
    pub remaining: u8,
    /// The first of them, as many as fit.
    pub entries: ArrayVec<LinkRtoken, { field::ENTRIES_MAX }>,
}

/// Which half of the exchange a CONFIRM RKEY is, and what a response says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConfirmRkeyStep {
    /// From the owner of the buffer.
    Request,
    /// The sender knows the buffer now.
    Response,
    /// The sender cannot take it.
    Negative,
    /// The sender cannot take it now.
    RetryLater,
}

/// A new receive buffer on further links, in version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmRkeyContinuation {
    /// Request, or what the response says.
    pub step: RkeyStep,
    /// Entries from this message on: those in it, and those in messages to come.
    pub remaining: u8,
    /// The first of them, as many as fit.
    pub entries: ArrayVec<LinkRtoken, { continuation::ENTRIES_MAX }>,
}

/// A receive buffer as it is known on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LinkRtoken {
    /// The link.
    pub link_number: LinkNumber,
    /// The key to the buffer there.
    pub rkey: Rkey,
    /// Where it starts there.
    pub address: RmbAddress,
}

impl ConfirmRkey {
    /// Reads a whole CONFIRM RKEY.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::ConfirmRkey)?;
        let remaining = message.u8(field::REMAINING)?;
        Ok(Self {
            form: header.form,
            step: ConfirmRkeyStep::from_flags(header.flags),
            rkey: Rkey(message.u32(field::RKEY)?),
            address: RmbAddress(message.u64(field::ADDRESS)?),
            remaining,
            entries: parse_entries(&message, field::ENTRIES_AT, remaining)?,
        })
    }

    /// Writes it to the front of `out` and returns its length, [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than that; [`Error::Inconsistent`] when `entries`
    /// has not the first two of `remaining`.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let (name, room) = (field::REMAINING.name, field::ENTRIES_MAX);
        check_remaining(name, self.remaining, self.entries.len(), room)?;
        let message_type = MessageType::ConfirmRkey;
        let header = Header { message_type, form: self.form, flags: self.step.flags() };
        let mut writer = header.emit(out, LEN)?;
        writer.put(field::REMAINING, [self.remaining])?;
        writer.put(field::RKEY, self.rkey.0.to_be_bytes())?;
        writer.put(field::ADDRESS, self.address.0.to_be_bytes())?;
        emit_entries(&self.entries, &mut writer, field::ENTRIES_AT)?;
        Ok(LEN)
    }
}

impl ConfirmRkeyStep {
    /// Bit 4 of the flags, of a negative response.
    const FLAG_RETRY: u8 = 0x10;

    const fn from_flags(flags: u8) -> Self {
        match (RkeyStep::from_flags(flags), flags & Self::FLAG_RETRY) {
            (RkeyStep::Request, _) => Self::Request,
            (RkeyStep::Response, _) => Self::Response,
            (RkeyStep::Negative, 0) => Self::Negative,
            (RkeyStep::Negative, _) => Self::RetryLater,
        }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::Request => RkeyStep::Request.flags(),
            Self::Response => RkeyStep::Response.flags(),
            Self::Negative => RkeyStep::Negative.flags(),
            Self::RetryLater => RkeyStep::Negative.flags() | Self::FLAG_RETRY,
        }
    }
}

impl ConfirmRkeyContinuation {
    /// Reads a whole CONFIRM RKEY CONTINUATION.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::ConfirmRkeyContinuation)?;
        let remaining = message.u8(continuation::REMAINING)?;
        Ok(Self {
            step: RkeyStep::from_flags(header.flags),
            remaining,
            entries: parse_entries(&message, continuation::ENTRIES_AT, remaining)?,
        })
    }

    /// Writes it to the front of `out` and returns its length, [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than that; [`Error::Inconsistent`] when `entries`
    /// has not the first three of `remaining`.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let (name, room) = (continuation::REMAINING.name, continuation::ENTRIES_MAX);
        check_remaining(name, self.remaining, self.entries.len(), room)?;
        let message_type = MessageType::ConfirmRkeyContinuation;
        let header = Header { message_type, form: Form::V1, flags: self.step.flags() };
        let mut writer = header.emit(out, LEN)?;
        writer.put(continuation::REMAINING, [self.remaining])?;
        emit_entries(&self.entries, &mut writer, continuation::ENTRIES_AT)?;
        Ok(LEN)
    }
}

/// Reads the first of `remaining` entries, as many as a message has room for, from `at` on.
fn parse_entries<const ROOM: usize>(
    message: &Reader<'_>,
    at: usize,
    remaining: u8,
) -> Result<ArrayVec<LinkRtoken, ROOM>, Error> {
    let read = |index| {
        let entry = message.section(entry::NAME, at + entry::LEN * index, entry::LEN)?;
        Ok(LinkRtoken {
            link_number: LinkNumber(entry.u8(entry::LINK_NUMBER)?),
            rkey: Rkey(entry.u32(entry::RKEY)?),
            address: RmbAddress(entry.u64(entry::ADDRESS)?),
        })
    };
    (0..ROOM.min(remaining.into())).map(read).collect()
}

/// Writes entries from `at` on.
fn emit_entries(entries: &[LinkRtoken], message: &mut Writer<'_>, at: usize) -> Result<(), Error> {
    for (index, it) in entries.iter().enumerate() {
        let mut entry = message.section(entry::NAME, at + entry::LEN * index, entry::LEN)?;
        entry.put(entry::LINK_NUMBER, [it.link_number.0])?;
        entry.put(entry::RKEY, it.rkey.0.to_be_bytes())?;
        entry.put(entry::ADDRESS, it.address.0.to_be_bytes())?;
    }
    Ok(())
}

const _: () = assert!(field::ENTRIES_AT + entry::LEN * field::ENTRIES_MAX + 1 == LEN);
const _: () = assert!(continuation::ENTRIES_AT + entry::LEN * continuation::ENTRIES_MAX == LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_negative_response_asks_to_retry() {
        for (flags, step) in [
            (0x30, ConfirmRkeyStep::Request),
            (0x90, ConfirmRkeyStep::Response),
            (0xA0, ConfirmRkeyStep::Negative),
            (0xB0, ConfirmRkeyStep::RetryLater),
        ] {
            assert_eq!(ConfirmRkeyStep::from_flags(flags), step);
        }
        assert_eq!(ConfirmRkeyStep::RetryLater.flags(), 0xB0);
    }

    #[test]
    fn what_does_not_fit_is_left_for_a_continuation() {
        let mut bytes = [0; LEN];
        for (first, remaining, here) in [(6, 1, 1), (6, 2, 2), (6, 3, 2), (6, 255, 2)] {
            bytes[..5].copy_from_slice(&[first, 44, 0, 0, remaining]);
            let message = ConfirmRkey::parse(&bytes).unwrap();
            assert_eq!((message.remaining, message.entries.len()), (remaining, here));
        }
        for (first, remaining, here) in [(8, 0, 0), (8, 3, 3), (8, 4, 3), (8, 255, 3)] {
            bytes[..5].copy_from_slice(&[first, 44, 0, 0, remaining]);
            let message = ConfirmRkeyContinuation::parse(&bytes).unwrap();
            assert_eq!((message.remaining, message.entries.len()), (remaining, here));
        }
    }
}
