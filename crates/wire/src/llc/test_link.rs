//! TEST LINK: "is the other side there?"
//!
//! It goes over a link on which nothing arrived for a while (30 seconds, with Linux). The response
//! says the same bytes again. Without one the link is down.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 7 | flags: bit 7 response |
//! | 4 | 16 | user data | of the requester's choice; zeros from Linux |
//! | 20 | 24 | reserved | |
//!
//! *Source*: RFC 7609 §A.3.8; Linux `net/smc/smc_llc.c`.

use super::frame::{Form, Header, LEN, MessageType, Role, open};
use crate::error::Error;
use crate::field::Field;

mod field {
    use super::Field;

    pub(super) const USER_DATA: Field<16> = Field::new("TEST LINK user data", 4);
}

/// A test of the link it travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestLink {
    /// How the frame is written.
    pub form: Form,
    /// Request or response.
    pub role: Role,
    /// Anything; a response repeats that of the request.
    pub user_data: [u8; 16],
}

impl TestLink {
    /// Reads a whole TEST LINK.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::TestLink)?;
        Ok(Self {
            form: header.form,
            role: Role::from_flags(header.flags),
            user_data: message.bytes(field::USER_DATA)?,
        })
    }

    /// What answers it, if it is a request.
    #[must_use]
    pub const fn response(&self) -> Self {
        Self { role: Role::Response, ..*self }
    }

    /// Writes it to the front of `out` and returns its length, [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let message_type = MessageType::TestLink;
        let header = Header { message_type, form: self.form, flags: self.role.flags() };
        header.emit(out, LEN)?.put(field::USER_DATA, self.user_data)?;
        Ok(LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_says_the_same_bytes_again() {
        let request = TestLink { form: Form::V1, role: Role::Request, user_data: [7; 16] };
        let (mut asked, mut answered) = ([0; LEN], [0; LEN]);
        request.emit(&mut asked).unwrap();
        request.response().emit(&mut answered).unwrap();
        assert_eq!((asked[3], answered[3]), (0, 0x80));
        assert_eq!(asked[4..], answered[4..]);
    }
}
