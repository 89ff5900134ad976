//! DELETE RKEY: "these receive buffers are gone".
//!
//! The owner says so before it gives up the memory, naming each buffer (RMB) by its key on the link
//! that carries the message. From the response on the peer writes to none of them, on any link.
//!
//! | Off | Len | Field | Version 1 | Version 2 |
//! |---|---|---|---|---|
//! | 0 | 4 | header, type 9 | flags: bit 7 response, bit 5 negative | the same |
//! | 4 | 1 | rkey count | up to 8 | up to 255 |
//! | 5 | 1 | errors, in a negative response | bit 7 for the first rkey, and so on | how many |
//! | 6 | 2 | reserved | | |
//! | 8 | 4·n | RKeys | up to 40 | zeros in a response of Linux |
//!
//! A version 2 message is longer than 44 bytes when it has more than nine keys. Linux counts in its
//! response the keys of the request, but sends 44 bytes.
//!
//! *Source*: RFC 7609 §A.3.7; Linux `net/smc/smc_llc.c`.

use arrayvec::ArrayVec;

use super::frame::{Form, Header, LEN, MessageType, RKEY_COUNT_MAX, RkeyStep, open};
use crate::error::Error;
use crate::field::Field;
use crate::ids::Rkey;
use crate::reader::Reader;

mod field {
    use super::Field;

    pub(super) const COUNT: Field<1> = Field::new("DELETE RKEY count", 4);
    pub(super) const ERRORS: Field<1> = Field::new("DELETE RKEY errors", 5);
    /// Where the keys start.
    pub(super) const RKEYS_AT: usize = 8;
    /// Most keys of version 1.
    pub(super) const COUNT_MAX_V1: usize = 8;

    /// Within one entry.
    pub(super) const RKEY: Field<4> = Field::new("DELETE RKEY RKey", 0);
    pub(super) const RKEY_LEN: usize = 4;
}

/// The end of receive buffers, or the answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteRkey {
    /// How the frame is written.
    pub form: Form,
    /// Request, or what the response says.
    pub step: RkeyStep,
    /// The keys on the link that carries the message, in version 1 at most 8. In a response of
    /// version 2 they say nothing.
    pub rkeys: ArrayVec<Rkey, RKEY_COUNT_MAX>,
    /// Keys that the sender did not know: in version 1 bit 7 for the first, bit 6 for the second
    /// and so on, in version 2 how many. Only in a negative response; else not sent, and read as
    /// zero.
    pub errors: u8,
}

impl DeleteRkey {
    /// Reads a whole DELETE RKEY.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message, or for
    /// more than 8 keys in version 1; [`Error::Truncated`] when the length does not cover the keys
    /// of a version 2 request.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::DeleteRkey)?;
        let (form, step) = (header.form, RkeyStep::from_flags(header.flags));
        let count = count(&message, form, step)?;
        let rkey = |index| {
            let place = field::RKEYS_AT + field::RKEY_LEN * index;
            let entry = message.section(field::RKEY.name, place, field::RKEY_LEN)?;
            entry.u32(field::RKEY).map(Rkey)
        };
        Ok(Self {
            form,
            step,
            rkeys: (0..count).map(rkey).collect::<Result<_, _>>()?,
            errors: match step {
                RkeyStep::Negative => message.u8(field::ERRORS)?,
                RkeyStep::Request | RkeyStep::Response => 0,
            },
        })
    }

    /// Bytes [`emit`](Self::emit) will write.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        LEN.max(field::RKEYS_AT + field::RKEY_LEN * self.rkeys.len())
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`emitted_len`](Self::emitted_len);
    /// [`Error::Inconsistent`] for more than 8 keys in version 1.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        if self.form == Form::V1 && self.rkeys.len() > field::COUNT_MAX_V1 {
            let field = field::COUNT.name;
            return Err(Error::Inconsistent { field, reason: "version 1 has room for 8 keys" });
        }
        let len = self.emitted_len();
        let message_type = MessageType::DeleteRkey;
        let header = Header { message_type, form: self.form, flags: self.step.flags() };
        let mut writer = header.emit(out, len)?;
        writer.put(field::COUNT, [self.rkeys.len() as u8])?;
        if self.step == RkeyStep::Negative {
            writer.put(field::ERRORS, [self.errors])?;
        }
        for (index, rkey) in self.rkeys.iter().enumerate() {
            let place = field::RKEYS_AT + field::RKEY_LEN * index;
            let mut entry = writer.section(field::RKEY.name, place, field::RKEY_LEN)?;
            entry.put(field::RKEY, rkey.0.to_be_bytes())?;
        }
        Ok(len)
    }
}

/// How many keys to read.
fn count(message: &Reader<'_>, form: Form, step: RkeyStep) -> Result<usize, Error> {
    let claimed = message.u8(field::COUNT)?.into();
    let present = (message.len() - field::RKEYS_AT) / field::RKEY_LEN;
    match (form, step) {
        (Form::V1, _) if claimed > field::COUNT_MAX_V1 => {
            Err(Error::Invalid { field: field::COUNT.name, value: claimed as u64 })
        }
        (Form::V2(_), RkeyStep::Response | RkeyStep::Negative) => Ok(present.min(claimed)),
        _ => Ok(claimed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llc::LengthOrder;

    #[test]
    fn it_is_as_long_as_its_keys_but_never_shorter_than_others() {
        for (count, len) in [(0, 44), (1, 44), (9, 44), (10, 48), (255, 1028)] {
            let message = DeleteRkey {
                form: Form::V2(LengthOrder::BigEndian),
                step: RkeyStep::Request,
                rkeys: (0..count).map(Rkey).collect(),
                errors: 0,
            };
            assert_eq!(message.emitted_len(), len);
            let mut out = [0; 1028];
            assert_eq!(message.emit(&mut out), Ok(len));
            assert_eq!(DeleteRkey::parse(&out[..len]), Ok(message));
        }
    }

    #[test]
    fn linux_counts_keys_in_its_response_that_are_not_there() {
        let mut bytes = [0; LEN];
        bytes[..5].copy_from_slice(&[0x29, 44, 0, 0x80, 200]);
        assert_eq!(DeleteRkey::parse(&bytes).unwrap().rkeys.len(), 9);
        bytes[3] = 0;
        let error = DeleteRkey::parse(&bytes).unwrap_err();
        assert!(matches!(error, Error::Truncated { field: "DELETE RKEY RKey", .. }), "{error}");
    }
}
