//! The message that is being read off the stream: its header first, then exactly the rest.
//!
//! A socket gives bytes as they come, half a message or one with the program's bytes behind it. So
//! it is only asked for what is still missing of this one message.

extern crate alloc;

use alloc::vec::Vec;
use core::mem;

use sidestep_wire::clc::{Decline, Header, Message, MessageType};
use sidestep_wire::{Diagnosis, Error, PeerId};

/// A message of which some bytes are here.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    pub(super) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that are missing: of the header, or of the message that it announces.
    pub(super) fn wanted(&self) -> usize {
        let announced = match self.bytes.get(..Header::LEN).map(Header::extent) {
            Some(Ok((_, length))) => length.into(),
            Some(Err(_)) | None => Header::LEN,
        };
        announced - self.bytes.len()
    }

    /// Takes bytes that are wanted. `None`: there is no whole message yet.
    ///
    /// A header is judged before the rest is waited for: what is no message may never come to the
    /// end that it seems to announce.
    ///
    /// # Errors
    ///
    /// [`Unexpected`]: it is neither a Decline nor a message of the type `expected`.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        expected: Option<MessageType>,
    ) -> Option<Result<Message, Unexpected>> {
        debug_assert!(bytes.len() <= self.wanted());
        self.bytes.extend_from_slice(bytes);
        let message_type = match check(self.bytes.get(..Header::LEN)?, expected) {
            Ok(message_type) => message_type,
            Err(unexpected) => return Some(Err(unexpected)),
        };
        if self.wanted() > 0 {
            return None;
        }
        let whole: Vec<u8> = mem::take(&mut self.bytes);
        let parsed = Message::parse(&whole);
        Some(match (parsed, message_type) {
            // It says no, in words that we do not know.
            (Err(error), MessageType::Decline) if error.is_reserved_value() => {
                Ok(Decline::v2(PeerId::default(), Diagnosis::PEERDECL).into())
            }
            (parsed, _) => parsed.map_err(Unexpected::from),
        })
    }
}

/// The type of a message that may come now, by its header.
fn check(header: &[u8], expected: Option<MessageType>) -> Result<MessageType, Unexpected> {
    match Header::parse(header).map_err(Unexpected::from) {
        Err(Unexpected::Protocol) => return Err(Unexpected::Protocol),
        // To be read over, as far as it says that it goes.
        Err(Unexpected::Reserved) | Ok(_) => {}
    }
    let (message_type, _) = Header::extent(header)?;
    if message_type == MessageType::Decline || Some(message_type) == expected {
        Ok(message_type)
    } else {
        Err(Unexpected::Protocol)
    }
}

/// What came is not the message that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unexpected {
    /// It is, but has a value that only a later edition may know. All of it was read.
    Reserved,
    /// It is none.
    Protocol,
}

impl From<Error> for Unexpected {
    fn from(error: Error) -> Self {
        if error.is_reserved_value() { Self::Reserved } else { Self::Protocol }
    }
}
