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
//!     │ <═══════ H: a Verdict, one byte, then bytes ══════> │
//! ```
//!
//! | Message | From | Beside it | Says |
//! |---|---|---|---|
//! | [`Greeting`] | the gateway, once, to whoever connects | 1 descriptor: a memory file, to be read | at which TCP port it takes H, and in the file [which servers are left alone](crate::lessons) |
//! | [`HandOver`] | the library, any number | 1 descriptor: N | see to this connection |
//! | [`Verdict`] | the gateway, on H | – | how its bytes travel |
//! | [`Message::StatusRequest`] | root, or the gateway's user | – | what have you got? |
//! | [`Message::Status`] | the gateway, as the answer | 1 descriptor: a memory file of JSON | this |
//!
//! All integers are big-endian. All but the Verdict start so:
//!
//! | Off | Len | Field | Value |
//! |---|---|---|---|
//! | 0 | 4 | magic | `SSGW` |
//! | 4 | 2 | version | 1 |
//! | 6 | 2 | kind | 1 Greeting, 2 HandOver, 3 StatusRequest, 4 Status |
//! | 8 | 4 | length | of the whole message |
//!
//! and the first two go on:
//!
//! | Greeting, 20 bytes | Off | Len |
//! |---|---|---|
//! | TCP port of the gateway, not 0 | 12 | 2 |
//! | reserved | 14 | 2 |
//! | the user of whoever has connected, as the gateway sees it | 16 | 4 |
//!
//! | HandOver, 20 bytes | Off | Len |
//! |---|---|---|
//! | role on N: 1 client, 2 server | 12 | 1 |
//! | 1: whoever hands over keeps N, for the case that its bytes stay on TCP; else 0 | 13 | 1 |
//! | TCP port of the library's end of H, not 0 | 14 | 2 |
//! | bytes of the receive buffer (RMBE) that the program wants, a size of SMC-D | 16 | 4 |
//!
//! A Verdict is a byte of its own, before all others that the gateway sends on H: `S` or `T`. Only who keeps N is
//! sent one. For the others the gateway passes the bytes on between H and N if they stay on TCP.
//!
//! Anybody in the namespace may bind the name or connect to it. Each side asks the kernel who the
//! other is before it acts on what it says.

use crate::host_control::{AddressName, Side, address_name};
use crate::{Error, RmbeSize, field::Field, reader::Reader, writer::Writer};

/// Longest message of this module; a receive buffer of this many bytes holds any of them.
pub const EMITTED_LEN_MAX: usize = HandOver::LEN;

/// Bytes that messages start with; some are no longer.
const HEADER_LEN: usize = 12;

const MAGIC: [u8; 4] = *b"SSGW";
const VERSION: u16 = 1;

mod field {
    use super::Field;

    pub(super) const MAGIC: Field<4> = Field::new("hand-over magic", 0);
    pub(super) const VERSION: Field<2> = Field::new("hand-over version", 4);
    pub(super) const KIND: Field<2> = Field::new("hand-over kind", 6);
    pub(super) const LENGTH: Field<4> = Field::new("hand-over length", 8);
}

mod greeting {
    use super::Field;

    pub(super) const PORT: Field<2> = Field::new("Greeting port", 12);
    pub(super) const RESERVED: Field<2> = Field::new("Greeting reserved", 14);
    pub(super) const USER: Field<4> = Field::new("Greeting user", 16);
}

mod handed {
    use super::Field;

    pub(super) const ROLE: Field<1> = Field::new("HandOver role", 12);
    pub(super) const KEEPS_N: Field<1> = Field::new("HandOver keeps N", 13);
    pub(super) const PORT: Field<2> = Field::new("HandOver port", 14);
    pub(super) const RMBE_LEN: Field<4> = Field::new("HandOver RMBE length", 16);
}

/// Where the gateway of a network namespace can be reached: `sidestep/1/gateway`.
#[must_use]
pub fn gateway_name() -> AddressName {
    address_name(format_args!("sidestep/1/gateway"))
}

/// How the bytes of a connection travel, once that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// By SMC-R: all on H is the connection's.
    SmcR = b'S' as isize,
    /// By TCP, as ever: what was sent on H meanwhile is sent on N by the gateway, up to the end of
    /// file; then the library goes on with N.
    Tcp = b'T' as isize,
}

impl Verdict {
    /// The byte on H.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// What a byte means; `None`: nothing.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'S' => Some(Self::SmcR),
            b'T' => Some(Self::Tcp),
            _ => None,
        }
    }
}

/// A message of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The gateway is there.
    Greeting(Greeting),
    /// A library hands a connection over.
    HandOver(HandOver),
    /// Somebody asks what the gateway has.
    StatusRequest,
    /// The answer lies beside it.
    Status,
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
        Ok(match parse_header(&reader)? {
            Kind::Greeting => Self::Greeting(Greeting::parse(&reader)?),
            Kind::HandOver => Self::HandOver(HandOver::parse(&reader)?),
            Kind::StatusRequest => Self::StatusRequest,
            Kind::Status => Self::Status,
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
            Self::StatusRequest => emit_header(Kind::StatusRequest, out).map(|_| HEADER_LEN),
            Self::Status => emit_header(Kind::Status, out).map(|_| HEADER_LEN),
        }
    }
}

/// From the gateway to whoever connects: "connect H to this port".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Of 127.0.0.1.
    pub port: u16,
    /// Who has connected, as the gateway sees it: in another user namespace the number is another.
    pub user: u32,
}

impl Greeting {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self { port: port(reader, greeting::PORT)?, user: reader.u32(greeting::USER)? })
    }

    fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::Greeting, out)?;
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
    /// It goes on with N itself, if the bytes stay on TCP, and awaits the [`Verdict`].
    pub keeps_n: bool,
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
        let keeps_n = match reader.u8(handed::KEEPS_N)? {
            0 => false,
            1 => true,
            value => {
                let value = value.into();
                return Err(Error::Invalid { field: handed::KEEPS_N.name, value });
            }
        };
        Ok(Self { side, keeps_n, port: port(reader, handed::PORT)?, rmbe })
    }

    fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::HandOver, out)?;
        writer.put(handed::ROLE, [self.side as u8])?;
        writer.put(handed::KEEPS_N, [u8::from(self.keeps_n)])?;
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
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Greeting => "Greeting",
            Self::HandOver => "HandOver",
            Self::StatusRequest => "StatusRequest",
            Self::Status => "Status",
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::Greeting => Greeting::LEN,
            Self::HandOver => HandOver::LEN,
            Self::StatusRequest | Self::Status => HEADER_LEN,
        }
    }
}

fn port(reader: &Reader<'_>, field: Field<2>) -> Result<u16, Error> {
    match reader.u16(field)? {
        0 => Err(Error::Invalid { field: field.name, value: 0 }),
        port => Ok(port),
    }
}

/// Checks magic, version, kind and length.
fn parse_header(reader: &Reader<'_>) -> Result<Kind, Error> {
    let magic = reader.bytes(field::MAGIC)?;
    if magic != MAGIC {
        let value = u32::from_be_bytes(magic).into();
        return Err(Error::Invalid { field: field::MAGIC.name, value });
    }
    let version = reader.u16(field::VERSION)?;
    if version != VERSION {
        return Err(Error::Unsupported {
            field: field::VERSION.name,
            value: version.into(),
            what: "another version of Sidestep",
        });
    }
    let kind = match reader.u16(field::KIND)? {
        1 => Kind::Greeting,
        2 => Kind::HandOver,
        3 => Kind::StatusRequest,
        4 => Kind::Status,
        other => return Err(Error::Invalid { field: field::KIND.name, value: other.into() }),
    };
    let claimed = reader.u32(field::LENGTH)? as usize;
    for expected in [kind.len(), reader.len()] {
        if claimed != expected {
            return Err(Error::Mismatch { field: field::LENGTH.name, claimed, expected });
        }
    }
    Ok(kind)
}

/// Claims the room for a message and writes what both start with.
fn emit_header(kind: Kind, out: &mut [u8]) -> Result<Writer<'_>, Error> {
    let mut writer = Writer::new(kind.name(), out, kind.len())?;
    writer.put(field::MAGIC, MAGIC)?;
    writer.put(field::VERSION, VERSION.to_be_bytes())?;
    writer.put(field::KIND, (kind as u16).to_be_bytes())?;
    writer.put(field::LENGTH, (kind.len() as u32).to_be_bytes())?;
    Ok(writer)
}

const _: () = assert!(field::LENGTH.at + 4 == HEADER_LEN);
const _: () = assert!(greeting::RESERVED.at + 2 == greeting::USER.at);
const _: () = assert!(greeting::USER.at + 4 == Greeting::LEN);
const _: () = assert!(handed::RMBE_LEN.at + 4 == HandOver::LEN);
const _: () = assert!(Greeting::LEN <= EMITTED_LEN_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: [u8; Greeting::LEN] = *b"SSGW\0\x01\0\x01\0\0\0\x14\x30\x39\0\0\0\0\x03\xE8";
    const HAND_OVER: [u8; HandOver::LEN] = *b"SSGW\0\x01\0\x02\0\0\0\x14\x02\x01\xC0\x01\0\x02\0\0";

    fn emitted(message: &Message) -> std::vec::Vec<u8> {
        let mut out = [0xFF; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        out[..len].to_vec()
    }

    #[test]
    fn messages_read_as_they_are_written() {
        let rmbe = RmbeSize::from_bytes(128 << 10).unwrap();
        let hand_over = HandOver { side: Side::Server, keeps_n: true, port: 0xC001, rmbe };
        for (message, bytes) in [
            (Message::Greeting(Greeting { port: 12_345, user: 1000 }), &GREETING[..]),
            (Message::HandOver(hand_over), &HAND_OVER[..]),
            (Message::StatusRequest, b"SSGW\0\x01\0\x03\0\0\0\x0C"),
            (Message::Status, b"SSGW\0\x01\0\x04\0\0\0\x0C"),
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
        let changes: [(&[u8], usize, u8, &str); 10] = [
            (&GREETING, 0, b'X', "hand-over magic"),
            (&GREETING, 5, 2, "hand-over version"),
            (&GREETING, 7, 5, "hand-over kind"),
            (&GREETING, 7, 3, "hand-over length"),
            (&HAND_OVER, 11, 21, "hand-over length"),
            (&HAND_OVER, 13, 2, "HandOver keeps N"),
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
        let mut bytes = GREETING;
        bytes[14..16].fill(0xFF);
        assert_eq!(Message::parse(&bytes), Message::parse(&GREETING));
    }

    #[test]
    fn a_verdict_is_one_of_two_bytes() {
        let known = (0..=255).filter_map(Verdict::from_byte);
        let bytes: std::vec::Vec<u8> = known.map(Verdict::byte).collect();
        assert_eq!(bytes, b"ST");
    }

    #[test]
    fn the_gateway_has_a_name() {
        assert_eq!(gateway_name().as_slice(), b"sidestep/1/gateway");
    }
}
