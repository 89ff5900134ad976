//! What a library says to the gateway of its host, by which its connections reach other hosts.
//!
//! The gateway listens at an abstract name of its network namespace ([`gateway_name`]), on a socket
//! of type SOCK_SEQPACKET, and at a TCP port of 127.0.0.1. The library has a connection *N* to
//! another host, and opens a connection *H* to that port, on which the program's bytes go from now
//! on.
//!
//! ```text
//!   library                                              gateway
//!     │ ── connect, by name ──────────────────────────────> │
//!     │ <──────────────────── Greeting: my TCP port ─────── │
//!     │ ── H: connect, by TCP ────────────────────────────> │
//!     │ ── HandOver: my port on H, and N as a descriptor ─> │  CLC on N …
//!     │ <═════════════════════ H: bytes ══════════════════> │
//! ```
//!
//! | Message | From | Beside it | Says |
//! |---|---|---|---|
//! | [`Greeting`] | the gateway, once, to each program that connects | 1 descriptor: a memory file, to be read | at which TCP port it takes H, and in the file [which servers are left alone](crate::lessons) |
//! | [`HandOver`] | the library, any number | 1 descriptor: N | see to this connection |
//! | [`Message::StatusRequest`] | root, or the gateway's user | – | what have you got? |
//! | [`Message::Status`] | the gateway, as the answer | 1 descriptor: a memory file of JSON | this |
//! | [`Message::RulesChanged`] | root, or the gateway's user | – | the IP filter has other rules: judge your connections anew |
//! | [`Message::Judged`] | the gateway, as the answer | – | so many are denied, and end by reset |
//!
//! All integers are big-endian. All start so:
//!
//! | Off | Len | Field | Value |
//! |---|---|---|---|
//! | 0 | 4 | magic | `SSGW` |
//! | 4 | 2 | version | 1 |
//! | 6 | 2 | kind | 1 Greeting, 2 HandOver, 3 StatusRequest, 4 Status, 5 RulesChanged, 6 Judged |
//! | 8 | 4 | length | of the whole message |
//!
//! and three go on:
//!
//! | Greeting, 20 bytes | Off | Len |
//! |---|---|---|
//! | TCP port of the gateway, not 0 | 12 | 2 |
//! | reserved | 14 | 2 |
//! | the user of the program that has connected, as the gateway sees it | 16 | 4 |
//!
//! | HandOver, 20 bytes | Off | Len |
//! |---|---|---|
//! | role on N: 1 client, 2 server | 12 | 1 |
//! | reserved | 13 | 1 |
//! | TCP port of the library's end of H, not 0 | 14 | 2 |
//! | bytes of the receive buffer (RMBE) that the program wants, a size of SMC-D | 16 | 4 |
//!
//! | Judged, 16 bytes | Off | Len |
//! |---|---|---|
//! | connections that are denied | 12 | 4 |
//!
//! If they stay on TCP, the gateway passes the bytes on between H and N.
//!
//! Any program in the namespace may bind the name or connect to it. Each side asks the kernel who the
//! other is before it acts on what it says.

use crate::error::Error;
use crate::field::Field;
use crate::header::{self, Family};
use crate::host_control::{AddressName, Side, address_name};
use crate::reader::Reader;
use crate::rmbe_size::RmbeSize;

/// Longest message of this module; a receive buffer of this many bytes holds any of them.
pub const EMITTED_LEN_MAX: usize = HandOver::LEN;

const HEADER: Family = Family::new(
    *b"SSGW",
    ["hand-over magic", "hand-over version", "hand-over kind", "hand-over length"],
);

mod greeting {
    use super::Field;

    pub(super) const PORT: Field<2> = Field::new("Greeting port", 12);
    pub(super) const RESERVED: Field<2> = Field::new("Greeting reserved", 14);
    pub(super) const USER: Field<4> = Field::new("Greeting user", 16);
}

mod handed {
    use super::Field;

    pub(super) const ROLE: Field<1> = Field::new("HandOver role", 12);
    pub(super) const RESERVED: Field<1> = Field::new("HandOver reserved", 13);
    pub(super) const PORT: Field<2> = Field::new("HandOver port", 14);
    pub(super) const RMBE_LEN: Field<4> = Field::new("HandOver RMBE length", 16);
}

mod judged {
    use super::Field;

    pub(super) const LEN: usize = 16;
    pub(super) const DENIED: Field<4> = Field::new("Judged count", 12);
}

/// Where the gateway of a network namespace can be reached: `sidestep/1/gateway`.
#[must_use]
pub fn gateway_name() -> AddressName {
    address_name(format_args!("sidestep/1/gateway"))
}

/// A message of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The gateway is there.
    Greeting(Greeting),
    /// A library hands a connection over.
    HandOver(HandOver),
    /// A command asks what the gateway has.
    StatusRequest,
    /// The answer lies beside it.
    Status,
    /// The IP filter of the host has other rules.
    RulesChanged,
    /// So many connections are denied by them.
    Judged(u32),
}

impl Message {
    /// Reads one whole message.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] when a field is cut off; [`Error::Mismatch`] when the message, its
    /// length field and its kind do not agree; [`Error::Invalid`] for a wrong magic, an unknown
    /// kind, a port of 0, a role or a length of a buffer that there is not;
    /// [`Error::Unsupported`] for another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let reader = Reader::new(bytes);
        Ok(match HEADER.parse(&reader)? {
            Kind::Greeting => Self::Greeting(Greeting::parse(&reader)?),
            Kind::HandOver => Self::HandOver(HandOver::parse(&reader)?),
            Kind::StatusRequest => Self::StatusRequest,
            Kind::Status => Self::Status,
            Kind::RulesChanged => Self::RulesChanged,
            Kind::Judged => Self::Judged(reader.u32(judged::DENIED)?),
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than the message, so never from
    /// [`EMITTED_LEN_MAX`] bytes on.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Greeting(message) => message.emit(out),
            Self::HandOver(message) => message.emit(out),
            Self::StatusRequest => HEADER.emit(Kind::StatusRequest, out).map(|_| header::LEN),
            Self::Status => HEADER.emit(Kind::Status, out).map(|_| header::LEN),
            Self::RulesChanged => HEADER.emit(Kind::RulesChanged, out).map(|_| header::LEN),
            Self::Judged(count) => {
                let mut writer = HEADER.emit(Kind::Judged, out)?;
                writer.put(judged::DENIED, count.to_be_bytes())?;
                Ok(judged::LEN)
            }
        }
    }
}

/// From the gateway to each program that connects: "connect H to this port".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Of 127.0.0.1.
    pub port: u16,
    /// The user of the program, as the gateway sees it: in another user namespace the number is another.
    pub user: u32,
}

impl Greeting {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self { port: port(reader, greeting::PORT)?, user: reader.u32(greeting::USER)? })
    }

    fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = HEADER.emit(Kind::Greeting, out)?;
        writer.put(greeting::PORT, self.port.to_be_bytes())?;
        writer.put(greeting::USER, self.user.to_be_bytes())?;
        Ok(Self::LEN)
    }
}

/// From a library to the gateway: "here is a connection to another host; I am at this end of it".
/// Its descriptor travels beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOver {
    /// Which end of N the program holds.
    pub side: Side,
    /// The library's port on H.
    pub port: u16,
    /// How long a receive buffer the program wants; the gateway may choose another.
    pub rmbe: RmbeSize,
}

impl HandOver {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        let len = reader.u32(handed::RMBE_LEN)?;
        let rmbe = RmbeSize::from_bytes(len as usize)
            .ok_or(Error::Invalid { field: handed::RMBE_LEN.name, value: len.into() })?;
        let side = Side::parse(reader, handed::ROLE)?;
        Ok(Self { side, port: port(reader, handed::PORT)?, rmbe })
    }

    fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = HEADER.emit(Kind::HandOver, out)?;
        writer.put(handed::ROLE, [self.side as u8])?;
        writer.put(handed::PORT, self.port.to_be_bytes())?;
        writer.put(handed::RMBE_LEN, (self.rmbe.bytes() as u32).to_be_bytes())?;
        Ok(Self::LEN)
    }
}

/// Which message it is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Greeting = 1,
    HandOver = 2,
    StatusRequest = 3,
    Status = 4,
    RulesChanged = 5,
    Judged = 6,
}

impl header::Kind for Kind {
    fn from_code(code: u16) -> Option<Self> {
        let kinds = [
            Self::Greeting,
            Self::HandOver,
            Self::StatusRequest,
            Self::Status,
            Self::RulesChanged,
            Self::Judged,
        ];
        kinds.into_iter().find(|kind| kind.code() == code)
    }

    fn code(self) -> u16 {
        self as u16
    }

    fn name(self) -> &'static str {
        match self {
            Self::Greeting => "Greeting",
            Self::HandOver => "HandOver",
            Self::StatusRequest => "StatusRequest",
            Self::Status => "Status",
            Self::RulesChanged => "RulesChanged",
            Self::Judged => "Judged",
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Greeting => Greeting::LEN,
            Self::HandOver => HandOver::LEN,
            Self::StatusRequest | Self::Status | Self::RulesChanged => header::LEN,
            Self::Judged => judged::LEN,
        }
    }
}

fn port(reader: &Reader<'_>, field: Field<2>) -> Result<u16, Error> {
    match reader.u16(field)? {
        0 => Err(Error::Invalid { field: field.name, value: 0 }),
        port => Ok(port),
    }
}

const _: () = assert!(greeting::PORT.at == header::LEN && handed::ROLE.at == header::LEN);
const _: () = assert!(greeting::RESERVED.at + 2 == greeting::USER.at);
const _: () = assert!(greeting::USER.at + 4 == Greeting::LEN);
const _: () = assert!(handed::RESERVED.at + 1 == handed::PORT.at);
const _: () = assert!(handed::RMBE_LEN.at + 4 == HandOver::LEN);
const _: () = assert!(judged::DENIED.at == header::LEN && judged::DENIED.at + 4 == judged::LEN);
const _: () = assert!(Greeting::LEN <= EMITTED_LEN_MAX && judged::LEN <= EMITTED_LEN_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: [u8; Greeting::LEN] = *b"SSGW\0\x01\0\x01\0\0\0\x14\x30\x39\0\0\0\0\x03\xE8";
    const HAND_OVER: [u8; HandOver::LEN] = *b"SSGW\0\x01\0\x02\0\0\0\x14\x02\0\xC0\x01\0\x02\0\0";

    fn emitted(message: &Message) -> std::vec::Vec<u8> {
        let mut out = [0xFF; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        out[..len].to_vec()
    }

    #[test]
    fn messages_read_as_they_are_written() {
        let rmbe = RmbeSize::from_bytes(128 << 10).unwrap();
        let hand_over = HandOver { side: Side::Server, port: 0xC001, rmbe };
        for (message, bytes) in [
            (Message::Greeting(Greeting { port: 12_345, user: 1000 }), &GREETING[..]),
            (Message::HandOver(hand_over), &HAND_OVER[..]),
            (Message::StatusRequest, b"SSGW\0\x01\0\x03\0\0\0\x0C"),
            (Message::Status, b"SSGW\0\x01\0\x04\0\0\0\x0C"),
            (Message::RulesChanged, b"SSGW\0\x01\0\x05\0\0\0\x0C"),
            (Message::Judged(258), b"SSGW\0\x01\0\x06\0\0\0\x10\0\0\x01\x02"),
        ] {
            assert_eq!(Message::parse(bytes), Ok(message));
            assert_eq!(emitted(&message), bytes);
            let room = &mut [0; EMITTED_LEN_MAX][..bytes.len() - 1];
            assert!(matches!(message.emit(room), Err(Error::NoRoom { .. })));
        }
    }

    #[test]
    fn what_is_cut_off_or_goes_on_is_refused() {
        for whole in [&GREETING[..], &HAND_OVER[..]] {
            for len in 0..whole.len() {
                assert!(Message::parse(&whole[..len]).is_err(), "{len}");
            }
            let longer = [whole, &[0]].concat();
            assert!(matches!(Message::parse(&longer), Err(Error::Mismatch { .. })));
        }
    }

    #[test]
    fn each_wrong_field_is_named() {
        let changes: [(&[u8], usize, u8, &str); 9] = [
            (&GREETING, 0, b'X', "hand-over magic"),
            (&GREETING, 5, 2, "hand-over version"),
            (&GREETING, 7, 7, "hand-over kind"),
            (&GREETING, 7, 3, "hand-over length"),
            (&HAND_OVER, 11, 21, "hand-over length"),
            (&HAND_OVER, 12, 0, "HandOver role"),
            (&HAND_OVER, 12, 3, "HandOver role"),
            (&HAND_OVER, 17, 3, "HandOver RMBE length"),
            (&HAND_OVER, 17, 0x20, "HandOver RMBE length"),
        ];
        for (whole, at, value, name) in changes {
            let mut bytes = whole.to_vec();
            bytes[at] = value;
            assert_eq!(Message::parse(&bytes).unwrap_err().field(), name, "{at} {value}");
        }
        for (whole, at, name) in
            [(&GREETING[..], 12, "Greeting port"), (&HAND_OVER[..], 14, "HandOver port")]
        {
            let mut bytes = whole.to_vec();
            bytes[at..at + 2].fill(0);
            assert_eq!(Message::parse(&bytes).unwrap_err().field(), name);
        }
    }

    #[test]
    fn what_is_reserved_is_passed_over() {
        for (whole, reserved) in [(&GREETING[..], 14..16), (&HAND_OVER[..], 13..14)] {
            let mut bytes = whole.to_vec();
            bytes[reserved].fill(0xFF);
            assert_eq!(Message::parse(&bytes), Message::parse(whole));
        }
    }

    #[test]
    fn the_gateway_has_a_name() {
        assert_eq!(gateway_name().as_slice(), b"sidestep/1/gateway");
    }
}
