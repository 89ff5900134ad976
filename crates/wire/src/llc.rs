//! The frame all LLC messages share, and the message told apart by it.
//!
//! SMC-R connects two hosts by *links*, pairs of queue pairs between their RDMA adapters, and a
//! *link group* has one or more of them. LLC messages travel on a link as RDMA sends, one message
//! each, and keep the group:
//!
//! | Message | Says |
//! |---|---|
//! | [`ConfirmLink`] | this link works, and this is its number |
//! | [`AddLink`], [`AddLinkContinuation`] | let us have another link, in case this one fails |
//! | [`RequestAddLink`] | from the client: here are adapters for another link |
//! | [`DeleteLink`] | this link, or the whole group, ends |
//! | [`ConfirmRkey`], [`ConfirmRkeyContinuation`] | here is another receive buffer |
//! | [`DeleteRkey`] | these receive buffers are gone |
//! | [`TestLink`] | is the other side there? |
//!
//! Each is a request that the other side answers with a response of the same type. The frame:
//!
//! | Off | Len | Field | Version 1 | Version 2 |
//! |---|---|---|---|---|
//! | 0 | 1 | type | 1..9 | 32 + 1..9 |
//! | 1 | 1 or 2 | length | one byte, 44 | two bytes, 44 or more, in either byte order |
//! | 2 | 1 | | ADD LINK: reject reason; else reserved | second byte of the length |
//! | 3 | 1 | flags | bit 7 response; the others differ by type | the same |
//! | 4 | … | body | up to 44 | zeros up to 44 at least |
//!
//! The byte order of the version 2 length is big-endian in the standard, but Linux writes it as its
//! processor does. Where a message ends is known from the RDMA send that brought it, so either is
//! read, and a [`LengthOrder`] says which to write.
//!
//! A link group speaks one version, the one its Accept was written in. Types from `80` to `BF` are
//! optional: a side that does not know one ignores it ([`OPTIONAL_TYPES`]). [`cdc::TYPE`](crate::cdc::TYPE) starts a message
//! that is not LLC.
//!
//! *Source*: RFC 7609 §A.3; "Shared Memory Communications Version 2"; Linux `net/smc/smc_llc.c`.

use frame::{Header, MessageType};

use crate::error::Error;

pub mod add_link;
pub mod confirm_link;
pub mod confirm_rkey;
pub mod delete_link;
pub mod delete_rkey;
mod frame;
pub mod request_add_link;
pub mod test_link;

pub use add_link::{
    AddLink, AddLinkContinuation, AddLinkExtension, AddLinkForm, AddLinkStep, RejectReason,
    RtokenPair,
};
pub use confirm_link::ConfirmLink;
pub use confirm_rkey::{ConfirmRkey, ConfirmRkeyContinuation, ConfirmRkeyStep, LinkRtoken};
pub use delete_link::{DeleteLink, DeleteReason, DeleteScope};
pub use delete_rkey::DeleteRkey;
pub use frame::{
    EMITTED_LEN_MAX, Form, LEN, LENGTH_MAX, LengthOrder, OPTIONAL_TYPES, RKEY_COUNT_MAX, RkeyStep,
    Role,
};
pub use request_add_link::RequestAddLink;
pub use test_link::TestLink;

/// An LLC message of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing may be boxed here, and a message lives only while it is handled"
)]
pub enum Message {
    /// This link works.
    ConfirmLink(ConfirmLink),
    /// Another link.
    AddLink(AddLink),
    /// The receive buffers of another link, in version 1.
    AddLinkContinuation(AddLinkContinuation),
    /// The end of a link or of the link group.
    DeleteLink(DeleteLink),
    /// The client's wish for another link, in version 2.
    RequestAddLink(RequestAddLink),
    /// Another receive buffer.
    ConfirmRkey(ConfirmRkey),
    /// The same on further links, in version 1.
    ConfirmRkeyContinuation(ConfirmRkeyContinuation),
    /// Is the other side there?
    TestLink(TestLink),
    /// The end of receive buffers.
    DeleteRkey(DeleteRkey),
}

impl Message {
    /// Reads one whole message.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a type that is optional, unknown or not LLC;
    /// [`Error::Truncated`] when there are fewer than 44 bytes; [`Error::Mismatch`] when the length
    /// is not that of the bytes, in neither byte order; [`Error::Invalid`] for more than
    /// [`LENGTH_MAX`] bytes; and as the `parse` of the message's type.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Ok(match Header::parse(bytes)?.message_type {
            MessageType::ConfirmLink => Self::ConfirmLink(ConfirmLink::parse(bytes)?),
            MessageType::AddLink => Self::AddLink(AddLink::parse(bytes)?),
            MessageType::AddLinkContinuation => {
                Self::AddLinkContinuation(AddLinkContinuation::parse(bytes)?)
            }
            MessageType::DeleteLink => Self::DeleteLink(DeleteLink::parse(bytes)?),
            MessageType::RequestAddLink => Self::RequestAddLink(RequestAddLink::parse(bytes)?),
            MessageType::ConfirmRkey => Self::ConfirmRkey(ConfirmRkey::parse(bytes)?),
            MessageType::ConfirmRkeyContinuation => {
                Self::ConfirmRkeyContinuation(ConfirmRkeyContinuation::parse(bytes)?)
            }
            MessageType::TestLink => Self::TestLink(TestLink::parse(bytes)?),
            MessageType::DeleteRkey => Self::DeleteRkey(DeleteRkey::parse(bytes)?),
        })
    }

    /// The form it is written in. A link group has only one.
    #[must_use]
    pub const fn form(&self) -> Form {
        match self {
            Self::ConfirmLink(message) => message.form,
            Self::AddLink(message) => message.form(),
            Self::DeleteLink(message) => message.form,
            Self::RequestAddLink(message) => Form::V2(message.order),
            Self::ConfirmRkey(message) => message.form,
            Self::TestLink(message) => message.form,
            Self::DeleteRkey(message) => message.form,
            Self::AddLinkContinuation(_) | Self::ConfirmRkeyContinuation(_) => Form::V1,
        }
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// As the `emit` of the message's type.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::ConfirmLink(message) => message.emit(out),
            Self::AddLink(message) => message.emit(out),
            Self::AddLinkContinuation(message) => message.emit(out),
            Self::DeleteLink(message) => message.emit(out),
            Self::RequestAddLink(message) => message.emit(out),
            Self::ConfirmRkey(message) => message.emit(out),
            Self::ConfirmRkeyContinuation(message) => message.emit(out),
            Self::TestLink(message) => message.emit(out),
            Self::DeleteRkey(message) => message.emit(out),
        }
    }
}

/// One message of a type is one.
macro_rules! from_type {
    ($($message_type:ident)*) => {
        $(
            impl From<$message_type> for Message {
                fn from(message: $message_type) -> Self {
                    Self::$message_type(message)
                }
            }
        )*
    };
}

from_type! {
    ConfirmLink AddLink AddLinkContinuation DeleteLink RequestAddLink
    ConfirmRkey ConfirmRkeyContinuation TestLink DeleteRkey
}
