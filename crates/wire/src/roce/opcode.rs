//! What an RDMA packet is: the message it belongs to, its place in it, what is added.
//!
//! | Place | SEND | WRITE | others |
//! |---|---|---|---|
//! | First | 0x00 | 0x06 | |
//! | Middle | 0x01 | 0x07 | |
//! | Last | 0x02, 0x03 with immediate data, 0x16 that invalidates a key | 0x08, 0x09 | |
//! | Only | 0x04, 0x05, 0x17 | 0x0A, 0x0B | READ request 0x0C, CmpSwap 0x13, FetchAdd 0x14, Acknowledge 0x11 |
//!
//! SMC-R uses SEND, WRITE and Acknowledge. The requests are here to be refused.

use crate::error::Error;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// Part of a SEND or WRITE.
    Part(Message, Place, With),
    /// A request to read memory.
    ReadRequest,
    /// Compare and swap, or fetch and add.
    Atomic(
        /// 0x13 or 0x14
        u8,
    ),
    /// The answer to a request.
    Acknowledge,
}

/// The kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// Into the next receive that was posted.
    Send,
    /// Into memory that was named.
    Write,
}

/// The place of a packet in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// More follow.
    First,
    /// Neither the first nor the last.
    Middle,
    /// After others.
    Last,
    /// Alone.
    Only,
}

impl Place {
    /// That of packet number `index`, from 0, of a message of so many.
    #[must_use]
    pub const fn of(index: u32, packets: u32) -> Self {
        match (index, packets) {
            (0, 1) => Self::Only,
            (0, _) => Self::First,
            _ if index + 1 == packets => Self::Last,
            _ => Self::Middle,
        }
    }
}

/// What is added to the end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum With {
    /// Nothing.
    Nothing,
    /// Four bytes for the receiver.
    Immediate,
    /// A key that is invalid from now on.
    Invalidate,
}

const LAST_OF_ALL: u8 = 0x1F;

impl Opcode {
    /// The opcode with this code.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for another transport's; for answers to requests that no requester here
    /// makes; and for those that mean nothing.
    pub const fn from_code(code: u8) -> Result<Self, Error> {
        use {Message::*, Place::*, With::*};
        Ok(match code {
            0x00 => Self::Part(Send, First, Nothing),
            0x01 => Self::Part(Send, Middle, Nothing),
            0x02 => Self::Part(Send, Last, Nothing),
            0x03 => Self::Part(Send, Last, Immediate),
            0x04 => Self::Part(Send, Only, Nothing),
            0x05 => Self::Part(Send, Only, Immediate),
            0x06 => Self::Part(Write, First, Nothing),
            0x07 => Self::Part(Write, Middle, Nothing),
            0x08 => Self::Part(Write, Last, Nothing),
            0x09 => Self::Part(Write, Last, Immediate),
            0x0A => Self::Part(Write, Only, Nothing),
            0x0B => Self::Part(Write, Only, Immediate),
            0x0C => Self::ReadRequest,
            0x11 => Self::Acknowledge,
            0x13 | 0x14 => Self::Atomic(code),
            0x16 => Self::Part(Send, Last, Invalidate),
            0x17 => Self::Part(Send, Only, Invalidate),
            _ => {
                let what =
                    if code > LAST_OF_ALL { "another transport" } else { "another operation" };
                return Err(Error::Unsupported { field: "BTH opcode", value: code as u64, what });
            }
        })
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        use {Message::*, Place::*, With::*};
        match self {
            Self::Part(Send, First, _) => 0x00,
            Self::Part(Send, Middle, _) => 0x01,
            Self::Part(Send, Last, Nothing) => 0x02,
            Self::Part(Send, Last, Immediate) => 0x03,
            Self::Part(Send, Only, Nothing) => 0x04,
            Self::Part(Send, Only, Immediate) => 0x05,
            Self::Part(Write, First, _) => 0x06,
            Self::Part(Write, Middle, _) => 0x07,
            Self::Part(Write, Last, Immediate) => 0x09,
            Self::Part(Write, Last, _) => 0x08,
            Self::Part(Write, Only, Immediate) => 0x0B,
            Self::Part(Write, Only, _) => 0x0A,
            Self::Part(Send, Last, Invalidate) => 0x16,
            Self::Part(Send, Only, Invalidate) => 0x17,
            Self::ReadRequest => 0x0C,
            Self::Acknowledge => 0x11,
            Self::Atomic(code) => code,
        }
    }

    /// Whether a [`Reth`](super::Reth) follows the BTH.
    #[must_use]
    pub const fn has_reth(self) -> bool {
        matches!(
            self,
            Self::Part(Message::Write, Place::First | Place::Only, _) | Self::ReadRequest
        )
    }

    /// Whether an [`Aeth`](super::Aeth) follows the BTH.
    #[must_use]
    pub const fn has_aeth(self) -> bool {
        matches!(self, Self::Acknowledge)
    }

    /// Whether four bytes lie before the payload: immediate data or a key.
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::Part(_, _, With::Immediate | With::Invalidate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive() {
        let known = (0..=255).filter(|code| {
            Opcode::from_code(*code).is_ok_and(|opcode| {
                assert_eq!(opcode.code(), *code);
                true
            })
        });
        assert_eq!(known.count(), 18);
    }

    #[test]
    fn other_transports_and_operations_are_told_apart() {
        for (code, expected) in [
            (0x20, "another transport"),
            (0x64, "another transport"),
            (0x0D, "another operation"),
            (0x1F, "another operation"),
        ] {
            let Err(Error::Unsupported { what, .. }) = Opcode::from_code(code) else {
                panic!("{code:#x} is known");
            };
            assert_eq!(what, expected);
        }
    }
}
