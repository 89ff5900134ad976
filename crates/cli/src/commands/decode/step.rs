//! A step of a handshake: one thing that one end sent, and what it is called.

use sidestep_wire::Error;
use sidestep_wire::clc::{AcceptConfirm, Header, Message, Release};

use super::streams::{Moment, Side};

/// One thing that one end sent.
pub(super) struct Step {
    pub(super) moment: Moment,
    pub(super) from: Side,
    pub(super) what: What,
    /// The rules that it breaks.
    pub(super) broken: Vec<String>,
}

#[expect(clippy::large_enum_variant, reason = "there are a handful for each connection")]
pub(super) enum What {
    /// The client's, with the length of its SMC option.
    Syn(Option<u8>),
    /// The server's.
    SynAck(Option<u8>),
    /// A whole CLC message.
    Clc {
        header: Header,
        message: Result<Message, Error>,
        /// Whether eyecatcher and trailer are the same letters.
        is_framed_alike: bool,
    },
    /// A CLC message of which the capture has only some bytes, perhaps not even the header.
    Fragment { header: Option<Header>, present: usize },
    /// An eyecatcher, but no header behind it that makes sense.
    Garbled(Error),
    /// The first bytes that are no CLC message.
    Bytes,
}

/// The kind of SMC that an Accept or Confirm is about, in words.
pub(super) fn kind(message: &AcceptConfirm, release: Option<Release>) -> String {
    let kind = match message {
        AcceptConfirm::SmcR(_) => "SMC-R",
        AcceptConfirm::SmcDV1(_) | AcceptConfirm::SmcD(_) => "SMC-D",
    };
    match release {
        Some(release) => format!("{kind} version {release}"),
        None => format!("{kind} version {}", message.version().code()),
    }
}

/// The release in the first contact extension, if there is one.
pub(super) fn release(message: &AcceptConfirm) -> Option<Release> {
    match message {
        AcceptConfirm::SmcR(message) => message.first_contact().map(|it| it.common.release),
        AcceptConfirm::SmcDV1(_) => None,
        AcceptConfirm::SmcD(message) => message.first_contact.as_ref().map(|it| it.release),
    }
}
