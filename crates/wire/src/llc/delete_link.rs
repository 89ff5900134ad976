//! DELETE LINK: "this link ends", or the whole link group does.
//!
//! The server sends it for one link and the client answers. The client sends it as a wish, and the
//! server then sends its own. For the link group there is no response: each side sends one, and
//! what connections are left end at once.
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | header, type 4 | flags: bit 7 response, bit 6 all links, bit 5 orderly |
//! | 4 | 1 | link number | 0 with all links |
//! | 5 | 4 | reason | [`DeleteReason`] |
//! | 9 | 35 | reserved | |
//!
//! *Source*: RFC 7609 §A.3.4; Linux `net/smc/smc_llc.c`.

use core::fmt;

use super::frame::{Form, Header, LEN, MessageType, Role, open};
use crate::error::Error;
use crate::field::Field;
use crate::ids::LinkNumber;

mod field {
    use super::Field;

    pub(super) const LINK_NUMBER: Field<1> = Field::new("DELETE LINK link number", 4);
    pub(super) const REASON: Field<4> = Field::new("DELETE LINK reason", 5);
}

/// Bit 6 of the flags.
const FLAG_ALL: u8 = 0x40;
/// Bit 5 of the flags.
const FLAG_ORDERLY: u8 = 0x20;

/// The end of a link, or of the link group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteLink {
    /// How the frame is written.
    pub form: Form,
    /// Request or response.
    pub role: Role,
    /// What ends.
    pub scope: DeleteScope,
    /// In order; otherwise at once, whatever the link is used for.
    pub orderly: bool,
    /// Why; of a response zero, or why not.
    pub reason: DeleteReason,
}

/// What a [`DeleteLink`] ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeleteScope {
    /// One link.
    Link(LinkNumber),
    /// The link group with all its links.
    All,
}

impl DeleteLink {
    /// Reads a whole DELETE LINK.
    ///
    /// # Errors
    ///
    /// As [`Message::parse`](super::Message::parse); [`Error::Invalid`] for another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, message) = open(bytes, MessageType::DeleteLink)?;
        Ok(Self {
            form: header.form,
            role: Role::from_flags(header.flags),
            scope: if header.flags & FLAG_ALL == 0 {
                DeleteScope::Link(LinkNumber(message.u8(field::LINK_NUMBER)?))
            } else {
                DeleteScope::All
            },
            orderly: header.flags & FLAG_ORDERLY != 0,
            reason: DeleteReason(message.u32(field::REASON)?),
        })
    }

    /// Writes it to the front of `out` and returns its length, [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let (flag_all, link_number) = match self.scope {
            DeleteScope::Link(link_number) => (0, link_number),
            DeleteScope::All => (FLAG_ALL, LinkNumber::default()),
        };
        let flag_orderly = if self.orderly { FLAG_ORDERLY } else { 0 };
        let header = Header {
            message_type: MessageType::DeleteLink,
            form: self.form,
            flags: self.role.flags() | flag_all | flag_orderly,
        };
        let mut writer = header.emit(out, LEN)?;
        writer.put(field::LINK_NUMBER, [link_number.0])?;
        writer.put(field::REASON, self.reason.0.to_be_bytes())?;
        Ok(LEN)
    }
}

/// Why a link ends. A peer may send any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeleteReason(pub u32);

macro_rules! reasons {
    ($($name:ident = $code:literal, $meaning:literal;)*) => {
        impl DeleteReason {
            $(
                #[doc = concat!("`", stringify!($code), "`: ", $meaning, ".")]
                pub const $name: Self = Self($code);
            )*

            /// What it means, in words.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    _ => "a reason this version does not know",
                }
            }
        }
    };
}

reasons! {
    NONE = 0, "no objection, in a response";
    LOST_PATH = 0x0001_0000, "the link failed";
    OPERATOR = 0x0002_0000, "an operator ended it";
    PROGRAM = 0x0003_0000, "the link group was idle";
    PROTOCOL_VIOLATION = 0x0004_0000, "the peer broke the protocol";
    ASYMMETRIC = 0x0005_0000, "an asymmetric link is no longer needed";
    UNKNOWN_LINK = 0x0010_0000, "there is no such link, in a response";
    UNKNOWN_GROUP = 0x0020_0000, "there is no such link group, in a response";
}

/// The meaning with the number behind it.
impl fmt::Display for DeleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#010x})", self.meaning(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_reason_is_shown_with_its_number() {
        assert_eq!(DeleteReason::LOST_PATH.to_string(), "the link failed (0x00010000)");
        let unknown = DeleteReason(7).to_string();
        assert_eq!(unknown, "a reason this version does not know (0x00000007)");
    }

    #[test]
    fn the_end_of_all_links_names_none() {
        let mut bytes = [0; LEN];
        bytes[..5].copy_from_slice(&[0x04, 44, 0, 0x40, 9]);
        let all = DeleteLink::parse(&bytes).unwrap();
        assert_eq!(all.scope, DeleteScope::All);
        let mut out = [0xAA; LEN];
        all.emit(&mut out).unwrap();
        assert_eq!(out[4], 0);
    }
}
