//! The frame all CLC messages share, and the message told apart by it.
//!
//! CLC messages travel as TCP payload while a connection is being set up:
//!
//! ```text
//! client                             server
//!   Proposal  ----------------------->        "I can do this"
//!             <-----------------------  Accept    "let us do that, here is my buffer"
//!   Confirm   ----------------------->        "agreed, here is mine"
//! ```
//!
//! Either side may send a Decline where the other expects one of these; the connection then stays
//! plain TCP from the next byte on. Each message has this shape:
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | eyecatcher | `E2D4C3D9` "SMCR" or `E2D4C3C4` "SMCD", in EBCDIC |
//! | 4 | 1 | type | 1 Proposal, 2 Accept, 3 Confirm, 4 Decline |
//! | 5 | 2 | length | of the whole message, header and trailer included |
//! | 7 | 1 | version, flags | version in bits 7..4; bits 3..0 differ by type |
//! | 8 | … | body | |
//! | length − 4 | 4 | trailer | an eyecatcher again |
//!
//! To read one off a stream, read [`Header::LEN`] bytes, ask [`Header::parse`] for the length, read
//! the rest and not a byte more: after a Confirm or a Decline the next byte is the program's.
//!
//! *Source*: RFC 7609 §A.2 and §3.5.1; Linux `net/smc/smc_clc.c`.

use crate::error::Error;

pub mod accept_confirm;
pub mod decline;
mod frame;
mod peer;
pub mod proposal;

pub use accept_confirm::{
    AcceptConfirm, AcceptConfirmD, AcceptConfirmDV1, AcceptConfirmR, FirstContact, FirstContactR,
    FormR, Hostname, Role,
};
pub use decline::{Decline, DeclineV2};
pub use frame::{
    EMITTED_LEN_MAX, Eyecatcher, Header, LENGTH_MAX, MessageType, TRAILER_LEN, Version,
};
pub use peer::{FEATURE_EMULATED_ISM, OsType, Release};
pub use proposal::Proposal;

/// A CLC message of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing may be boxed here, and a message lives only while it is handled"
)]
pub enum Message {
    /// The client's offer.
    Proposal(Proposal),
    /// The server's choice; its role is [`Role::Accept`].
    Accept(AcceptConfirm),
    /// The client's agreement; its role is [`Role::Confirm`].
    Confirm(AcceptConfirm),
    /// Either side's refusal.
    Decline(Decline),
}

impl Message {
    /// Reads one whole message.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`], and as the `parse` of the message's type.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Ok(match Header::parse(bytes)?.message_type {
            MessageType::Proposal => Self::Proposal(Proposal::parse(bytes)?),
            MessageType::Accept => Self::Accept(AcceptConfirm::parse(bytes)?),
            MessageType::Confirm => Self::Confirm(AcceptConfirm::parse(bytes)?),
            MessageType::Decline => Self::Decline(Decline::parse(bytes)?),
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// As the `emit` of the message's type.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Proposal(proposal) => proposal.emit(out),
            Self::Accept(message) | Self::Confirm(message) => message.emit(out),
            Self::Decline(decline) => decline.emit(out),
        }
    }
}

impl From<Proposal> for Message {
    fn from(proposal: Proposal) -> Self {
        Self::Proposal(proposal)
    }
}

/// The role decides the variant.
impl From<AcceptConfirm> for Message {
    fn from(message: AcceptConfirm) -> Self {
        match message.role() {
            Role::Accept => Self::Accept(message),
            Role::Confirm => Self::Confirm(message),
        }
    }
}

/// One kind of Accept or Confirm is one.
macro_rules! from_kind {
    ($($kind:ident is $variant:ident;)*) => {
        $(
            impl From<$kind> for Message {
                fn from(message: $kind) -> Self {
                    AcceptConfirm::$variant(message).into()
                }
            }
        )*
    };
}

from_kind! {
    AcceptConfirmR is SmcR;
    AcceptConfirmDV1 is SmcDV1;
    AcceptConfirmD is SmcD;
}

impl From<Decline> for Message {
    fn from(decline: Decline) -> Self {
        Self::Decline(decline)
    }
}
