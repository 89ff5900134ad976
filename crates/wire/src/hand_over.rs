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
//! | [`Message::Protect`] | the library, any number | 1 descriptor: N | the same, by TLS, as this rule of the operator's says, or not at all |
//! | [`Message::ProtectionRequest`] | the library, any number | – | what of TLS on this connection? |
//! | [`Message::Protection`] | the gateway, as the answer | – | this |
//! | [`Message::Unknown`] | the gateway, as the answer | – | it has no such connection of this user |
//! | [`Message::StatusRequest`] | root, or the gateway's user | – | what have you got? |
//! | [`Message::Status`] | the gateway, as the answer | 1 descriptor: a memory file of JSON | this |
//! | [`Message::RulesChanged`] | root, or the gateway's user | – | the IP filter has other rules: judge your connections anew |
//! | [`Message::Judged`] | the gateway, as the answer | – | so many are denied, and end by reset |
//! | [`Message::Replace`] | another gateway of the same user | – | give me your place |
//! | [`Message::Names`] | the gateway, as the answer, from here to Replaced | 4 descriptors: the listening sockets of the name and of the TCP port, the memory file to be written, and to be read | from now on these are yours; I am this process |
//! | [`Message::Before`] | for each gateway that this one has replaced, and that has not ended | 1 descriptor: the line to it, which ends with it | this process was the gateway before |
//! | [`Message::Receiver`] | for each soft RNIC | 1 descriptor: the socket at its UDP port | receive what comes at this address |
//! | [`Relay`] | for each process that has queue pairs there | 1 descriptor: a SOCK_SEQPACKET socket | pass on by it what is for these queue pairs ([`Relayed`](crate::relayed::Relayed)) |
//! | [`Message::Lines`] | any number | 1 to 253 descriptors | programs that have connected to the name |
//! | [`Message::Callers`] | any number | 1 to 253 descriptors | H, of each of which the HandOver has not come |
//! | [`Message::Waiting`] | any number | 1 descriptor: N | a HandOver of this user, of which H has not come |
//! | [`Message::Replaced`] | once | – | that was all |
//! | [`Message::Admits`] | the other gateway, behind it | – | link groups whose state is of this version may come to me |
//! | [`Message::Ends`] | the gateway that is replaced, any number | an even number of descriptors, up to 252: H and N, of each connection | connections of the link group that follows |
//! | [`Message::Migrant`] | the same, behind those | 1 descriptor: a sealed memory file | a link group: go on with it |
//! | [`Message::Taken`], [`Message::NotTaken`] | the other gateway, to each Migrant | – | I do; I do not, and have touched nothing |
//!
//! All integers are big-endian. All start so:
//!
//! | Off | Len | Field | Value |
//! |---|---|---|---|
//! | 0 | 4 | magic | `SSGW` |
//! | 4 | 2 | version | 1 |
//! | 6 | 2 | kind | 1 Greeting, 2 HandOver, 3 StatusRequest, 4 Status, 5 RulesChanged, 6 Judged, 7 Replace, 8 Names, 9 Receiver, 10 Lines, 11 Callers, 12 Waiting, 13 Replaced, 14 Before, 15 Relay, 16 Protect, 17 Admits, 18 Ends, 19 Migrant, 20 Taken, 21 NotTaken, 22 ProtectionRequest, 23 Protection, 24 Unknown |
//! | 8 | 4 | length | of the whole message |
//!
//! and twelve go on:
//!
//! | Greeting, 20 bytes | Off | Len |
//! |---|---|---|
//! | TCP port of the gateway, not 0 | 12 | 2 |
//! | 1: it takes a Protect of a connection for which SMC was agreed; 0 | 14 | 1 |
//! | reserved | 15 | 1 |
//! | the user of the program that has connected, as the gateway sees it | 16 | 4 |
//!
//! | HandOver, 20 bytes | Off | Len |
//! |---|---|---|
//! | role on N: 1 client, 2 server | 12 | 1 |
//! | reserved | 13 | 1 |
//! | TCP port of the library's end of H, not 0 | 14 | 2 |
//! | bytes of the receive buffer (RMBE) that the program wants, a size of SMC-D | 16 | 4 |
//!
//! | Protect, 308 bytes | Off | Len |
//! |---|---|---|
//! | as of HandOver | 12 | 8 |
//! | but for the reserved byte: 1: the two hosts have agreed on SMC by the TCP option, so CLC is first; 0 | 13 | 1 |
//! | the name of the rule, with zeroes behind it | 20 | 32 |
//! | the name that the program has resolved to the peer's address, with zeroes behind it; zeroes alone: there is none | 52 | 256 |
//!
//! | ProtectionRequest, 16 bytes | Off | Len |
//! |---|---|---|
//! | TCP port of the library's end of H, not 0 | 12 | 2 |
//! | reserved | 14 | 2 |
//!
//! | Protection, 344 bytes | Off | Len |
//! |---|---|---|
//! | what [`protection_status`](crate::protection_status) has | 12 | 332 |
//!
//! | Judged, 16 bytes | Off | Len |
//! |---|---|---|
//! | connections that are denied | 12 | 4 |
//!
//! | Names and Before, 16 bytes | Off | Len |
//! |---|---|---|
//! | the process that was the gateway | 12 | 4 |
//!
//! | Admits, 16 bytes | Off | Len |
//! |---|---|---|
//! | the versions of the state and of three layouts of shared memory, a byte each | 12 | 4 |
//!
//! | Receiver, 28 bytes, and Relay, 32 bytes | Off | Len |
//! |---|---|---|
//! | address of the adapter; of IPv4 in the form `::ffff:a.b.c.d` | 12 | 16 |
//! | Relay only: lane, the low bits of the numbers that the queue pairs have | 28 | 1 |
//! | reserved | 29 | 3 |
//!
//! | Waiting, 24 bytes | Off | Len |
//! |---|---|---|
//! | as of HandOver | 12 | 8 |
//! | the user of the program that has handed it over | 20 | 4 |
//!
//! If they stay on TCP, the gateway passes the bytes on between H and N.
//!
//! Any program in the namespace may bind the name or connect to it. Each side asks the kernel who the
//! other is before it acts on what it says.

use crate::error::Error;
use crate::field::Field;
use crate::header::{self, Family};
use crate::host_control::{AddressName, Side, address_name};
use crate::protection_status::ProtectionStatus;
use crate::reader::Reader;
use crate::rmbe_size::RmbeSize;
use crate::rule_name::{RULE_NAME_LEN_MAX, RuleName};
use crate::writer::Writer;
use arrayvec::ArrayString;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;

/// Longest message of this module; a receive buffer of this many bytes holds any of them.
pub const EMITTED_LEN_MAX: usize = protection::LEN;

const HEADER: Family = Family::new(
    *b"SSGW",
    ["hand-over magic", "hand-over version", "hand-over kind", "hand-over length"],
);

mod greeting {
    use super::Field;

    pub(super) const PORT: Field<2> = Field::new("Greeting port", 12);
    pub(super) const TAKES_AGREED: Field<1> = Field::new("Greeting Protect", 14);
    pub(super) const RESERVED: Field<1> = Field::new("Greeting reserved", 15);
    pub(super) const USER: Field<4> = Field::new("Greeting user", 16);
}

mod handed {
    use super::Field;

    pub(super) const ROLE: Field<1> = Field::new("HandOver role", 12);
    pub(super) const RESERVED: Field<1> = Field::new("HandOver reserved", 13);
    pub(super) const PORT: Field<2> = Field::new("HandOver port", 14);
    pub(super) const RMBE_LEN: Field<4> = Field::new("HandOver RMBE length", 16);
}

mod protect {
    use super::{Field, RESOLVED_NAME_ROOM, RULE_NAME_LEN_MAX};

    pub(super) const LEN: usize = 308;
    pub(super) const AGREED: Field<1> = Field::new("Protect agreement", 13);
    pub(super) const RULE: Field<RULE_NAME_LEN_MAX> = Field::new("Protect rule", 20);
    pub(super) const RESOLVED: Field<RESOLVED_NAME_ROOM> = Field::new("Protect resolved name", 52);
}

mod protection_request {
    use super::Field;

    pub(super) const LEN: usize = 16;
    pub(super) const PORT: Field<2> = Field::new("ProtectionRequest port", 12);
}

mod protection {
    use super::{Field, ProtectionStatus};

    pub(super) const LEN: usize = 344;
    pub(super) const STATUS: Field<{ ProtectionStatus::LEN }> = Field::new("Protection status", 12);
}

mod judged {
    use super::Field;

    pub(super) const LEN: usize = 16;
    pub(super) const DENIED: Field<4> = Field::new("Judged count", 12);
}

mod names {
    use super::Field;

    pub(super) const LEN: usize = 16;
    pub(super) const PROCESS: Field<4> = Field::new("Names process", 12);
}

mod admits {
    use super::Field;

    pub(super) const LEN: usize = 16;
    pub(super) const VERSION: Field<4> = Field::new("Admits version", 12);
}

mod receiver {
    use super::Field;

    pub(super) const LEN: usize = 28;
    pub(super) const ADDRESS: Field<16> = Field::new("Receiver address", 12);
}

mod relay {
    use super::Field;

    pub(super) const LANE: Field<1> = Field::new("Relay lane", 28);
    pub(super) const RESERVED: Field<3> = Field::new("Relay reserved", 29);
}

mod waiting {
    use super::Field;

    pub(super) const LEN: usize = 24;
    pub(super) const USER: Field<4> = Field::new("Waiting user", 20);
}

/// Where the gateway of a network namespace can be reached: `sidestep/1/gateway`.
#[must_use]
pub fn gateway_name() -> AddressName {
    address_name(format_args!("sidestep/1/gateway"))
}

/// Where a gateway that was replaced can be asked what it has: `sidestep/1/gateway/<process>`, in
/// hexadecimal.
#[must_use]
pub fn replaced_name(process: u32) -> AddressName {
    address_name(format_args!("sidestep/1/gateway/{process:x}"))
}

/// A message of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The gateway is there.
    Greeting(Greeting),
    /// A library hands a connection over.
    HandOver(HandOver),
    /// A library hands over a connection that TLS is to protect.
    Protect(Protect),
    /// A library asks about TLS on the connection whose H has this port.
    ProtectionRequest(u16),
    /// The answer.
    Protection(ProtectionStatus),
    /// There is no such connection.
    Unknown,
    /// A command asks what the gateway has.
    StatusRequest,
    /// The answer lies beside it.
    Status,
    /// The IP filter of the host has other rules.
    RulesChanged,
    /// So many connections are denied by them.
    Judged(u32),
    /// Another gateway is to have the place of this one.
    Replace,
    /// It has it now; this is the process that had it.
    Names(u32),
    /// This process had it before that, and has connections still.
    Before(u32),
    /// What comes for the soft RNIC at this address is the other one's from now on.
    Receiver(IpAddr),
    /// But not what is for these queue pairs.
    Relay(Relay),
    /// Programs have connected by these.
    Lines,
    /// Programs wait at these.
    Callers,
    /// A connection that this user has handed over, and that waits.
    Waiting(HandOver, u32),
    /// The gateway has no name any more.
    Replaced,
    /// Link groups whose state is of this version may come.
    Admits(u32),
    /// Connections of the link group that follows.
    Ends,
    /// A link group.
    Migrant,
    /// It goes on here.
    Taken,
    /// It does not.
    NotTaken,
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
            Kind::Protect => Self::Protect(Protect::parse(&reader)?),
            Kind::ProtectionRequest => {
                Self::ProtectionRequest(port(&reader, protection_request::PORT)?)
            }
            Kind::Protection => Self::Protection(protection_status(&reader)?),
            Kind::Unknown => Self::Unknown,
            Kind::StatusRequest => Self::StatusRequest,
            Kind::Status => Self::Status,
            Kind::RulesChanged => Self::RulesChanged,
            Kind::Judged => Self::Judged(reader.u32(judged::DENIED)?),
            Kind::Replace => Self::Replace,
            Kind::Names => Self::Names(reader.u32(names::PROCESS)?),
            Kind::Before => Self::Before(reader.u32(names::PROCESS)?),
            Kind::Receiver => Self::Receiver(address(&reader)?),
            Kind::Relay => Self::Relay(Relay::parse(&reader)?),
            Kind::Lines => Self::Lines,
            Kind::Callers => Self::Callers,
            Kind::Waiting => Self::Waiting(HandOver::parse(&reader)?, reader.u32(waiting::USER)?),
            Kind::Replaced => Self::Replaced,
            Kind::Admits => Self::Admits(reader.u32(admits::VERSION)?),
            Kind::Ends => Self::Ends,
            Kind::Migrant => Self::Migrant,
            Kind::Taken => Self::Taken,
            Kind::NotTaken => Self::NotTaken,
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than the message, so never from
    /// [`EMITTED_LEN_MAX`] bytes on.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let (kind, field) = match self {
            Self::Greeting(message) => return message.emit(out),
            Self::HandOver(message) => {
                return message.emit(Kind::HandOver, out).map(|_| HandOver::LEN);
            }
            Self::Protect(message) => return message.emit(out),
            Self::Receiver(address) => {
                return put_address(Kind::Receiver, *address, out).map(|_| receiver::LEN);
            }
            Self::Relay(message) => return message.emit(out),
            Self::ProtectionRequest(port) => {
                let mut writer = HEADER.emit(Kind::ProtectionRequest, out)?;
                writer.put(protection_request::PORT, port.to_be_bytes())?;
                return Ok(protection_request::LEN);
            }
            Self::Protection(status) => {
                let mut writer = HEADER.emit(Kind::Protection, out)?;
                writer.put(protection::STATUS, status.to_bytes())?;
                return Ok(protection::LEN);
            }
            Self::Waiting(message, user) => {
                message.emit(Kind::Waiting, out)?.put(waiting::USER, user.to_be_bytes())?;
                return Ok(waiting::LEN);
            }
            Self::Judged(denied) => (Kind::Judged, Some((judged::DENIED, denied))),
            Self::Names(process) => (Kind::Names, Some((names::PROCESS, process))),
            Self::Before(process) => (Kind::Before, Some((names::PROCESS, process))),
            Self::Unknown => (Kind::Unknown, None),
            Self::StatusRequest => (Kind::StatusRequest, None),
            Self::Status => (Kind::Status, None),
            Self::RulesChanged => (Kind::RulesChanged, None),
            Self::Replace => (Kind::Replace, None),
            Self::Lines => (Kind::Lines, None),
            Self::Callers => (Kind::Callers, None),
            Self::Replaced => (Kind::Replaced, None),
            Self::Admits(version) => (Kind::Admits, Some((admits::VERSION, version))),
            Self::Ends => (Kind::Ends, None),
            Self::Migrant => (Kind::Migrant, None),
            Self::Taken => (Kind::Taken, None),
            Self::NotTaken => (Kind::NotTaken, None),
        };
        let mut writer = HEADER.emit(kind, out)?;
        if let Some((field, number)) = field {
            writer.put(field, number.to_be_bytes())?;
        }
        Ok(header::Kind::len(kind))
    }
}

/// From the gateway to each program that connects: "connect H to this port".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Of 127.0.0.1.
    pub port: u16,
    /// It takes a [`Protect`] of a connection for which SMC was agreed: older gateways begin TLS at once.
    pub takes_agreed: bool,
    /// The user of the program, as the gateway sees it: in another user namespace the number is another.
    pub user: u32,
}

impl Greeting {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            port: port(reader, greeting::PORT)?,
            takes_agreed: reader.truth(greeting::TAKES_AGREED)?,
            user: reader.u32(greeting::USER)?,
        })
    }

    fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = HEADER.emit(Kind::Greeting, out)?;
        writer.put(greeting::PORT, self.port.to_be_bytes())?;
        writer.put(greeting::TAKES_AGREED, [self.takes_agreed.into()])?;
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

    /// As a message of this kind, which may go on behind it.
    fn emit<'a>(&self, kind: Kind, out: &'a mut [u8]) -> Result<Writer<'a>, Error> {
        let mut writer = HEADER.emit(kind, out)?;
        writer.put(handed::ROLE, [self.side as u8])?;
        writer.put(handed::PORT, self.port.to_be_bytes())?;
        writer.put(handed::RMBE_LEN, (self.rmbe.bytes() as u32).to_be_bytes())?;
        Ok(writer)
    }
}

/// Bytes of a name that a program resolves, at most: a domain name without the dot at its end.
///
/// *Source*: RFC 1035 §2.3.4.
pub const RESOLVED_NAME_LEN_MAX: usize = 253;

/// Bytes in which it stands, with at least one zero behind it.
pub const RESOLVED_NAME_ROOM: usize = 256;

/// What a program has asked libc for the address of: a domain name as the program wrote it, without the dot at its
/// end, or an address in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedName(ArrayString<RESOLVED_NAME_LEN_MAX>);

/// What such a name may look like.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("a name that was resolved has 1 to 253 ASCII characters, and no spaces")]
pub struct NotResolvedName;

impl FromStr for ResolvedName {
    type Err = NotResolvedName;

    fn from_str(text: &str) -> Result<Self, NotResolvedName> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() || !text.bytes().all(|c| c.is_ascii_graphic()) {
            return Err(NotResolvedName);
        }
        ArrayString::from(text).map(Self).map_err(|_| NotResolvedName)
    }
}

impl ResolvedName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads what [`padded`](Self::padded) has written. `None`: it was something else.
    #[must_use]
    pub fn from_padded(bytes: &[u8; RESOLVED_NAME_ROOM]) -> Option<Self> {
        unpadded(bytes)?.parse().ok()
    }

    /// The name with zeroes behind it.
    #[must_use]
    pub fn padded(&self) -> [u8; RESOLVED_NAME_ROOM] {
        padded(&self.0)
    }

    /// `None`: zeroes alone.
    fn parse(reader: &Reader<'_>) -> Result<Option<Self>, Error> {
        let bytes = reader.bytes(protect::RESOLVED)?;
        if bytes == [0; RESOLVED_NAME_ROOM] {
            return Ok(None);
        }
        let name = Self::from_padded(&bytes);
        let value = bytes[0].into();
        name.map(Some).ok_or(Error::Invalid { field: protect::RESOLVED.name, value })
    }
}

/// Text that is no longer than `N`, with zeroes behind it.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// The text, if there are zeroes behind it and nothing else.
fn unpadded(bytes: &[u8]) -> Option<&str> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, padding) = bytes.split_at(len);
    let is_padded = padding.iter().all(|byte| *byte == 0);
    core::str::from_utf8(text).ok().filter(|_| is_padded)
}

/// From a library to the gateway: "TLS is to protect this connection".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protect {
    /// Which connection.
    pub hand_over: HandOver,
    /// The two hosts have agreed on SMC by the TCP option: CLC is first, and TLS protects what goes by SMC-R.
    pub is_agreed: bool,
    /// The operator's rule that says so.
    pub rule: RuleName,
    /// What the program has asked for to find the peer, if it is known.
    pub resolved: Option<ResolvedName>,
}

impl Protect {
    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            hand_over: HandOver::parse(reader)?,
            is_agreed: reader.truth(protect::AGREED)?,
            rule: rule_name(reader)?,
            resolved: ResolvedName::parse(reader)?,
        })
    }

    fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = self.hand_over.emit(Kind::Protect, out)?;
        writer.put(protect::AGREED, [self.is_agreed.into()])?;
        writer.put(protect::RULE, padded(self.rule.as_str()))?;
        let resolved = self.resolved.as_ref().map_or([0; RESOLVED_NAME_ROOM], ResolvedName::padded);
        writer.put(protect::RESOLVED, resolved)?;
        Ok(protect::LEN)
    }
}

/// From a gateway that is replaced, of each process that has queue pairs of a soft RNIC: "pass on what is for them".
/// The way to it travels beside this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relay {
    /// Of the adapter.
    pub address: IpAddr,
    /// The low bits of the numbers of the queue pairs.
    pub lane: u8,
}

impl Relay {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self { address: address(reader)?, lane: reader.u8(relay::LANE)? })
    }

    fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        put_address(Kind::Relay, self.address, out)?.put(relay::LANE, [self.lane])?;
        Ok(Self::LEN)
    }
}

fn rule_name(reader: &Reader<'_>) -> Result<RuleName, Error> {
    let bytes = reader.bytes(protect::RULE)?;
    unpadded(&bytes)
        .and_then(|name| name.parse().ok())
        .ok_or(Error::Invalid { field: protect::RULE.name, value: bytes[0].into() })
}

fn protection_status(reader: &Reader<'_>) -> Result<ProtectionStatus, Error> {
    let bytes = reader.bytes(protection::STATUS)?;
    let (field, value) = (protection::STATUS.name, bytes[0].into());
    ProtectionStatus::from_bytes(&bytes).ok_or(Error::Invalid { field, value })
}

fn address(reader: &Reader<'_>) -> Result<IpAddr, Error> {
    Ok(Ipv6Addr::from(reader.bytes(receiver::ADDRESS)?).to_canonical())
}

/// A message of this kind that begins with an address.
fn put_address(kind: Kind, address: IpAddr, out: &mut [u8]) -> Result<Writer<'_>, Error> {
    let mut writer = HEADER.emit(kind, out)?;
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    writer.put(receiver::ADDRESS, address.octets())?;
    Ok(writer)
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
    Replace = 7,
    Names = 8,
    Receiver = 9,
    Lines = 10,
    Callers = 11,
    Waiting = 12,
    Replaced = 13,
    Before = 14,
    Relay = 15,
    Protect = 16,
    Admits = 17,
    Ends = 18,
    Migrant = 19,
    Taken = 20,
    NotTaken = 21,
    ProtectionRequest = 22,
    Protection = 23,
    Unknown = 24,
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
            Self::Replace,
            Self::Names,
            Self::Receiver,
            Self::Lines,
            Self::Callers,
            Self::Waiting,
            Self::Replaced,
            Self::Before,
            Self::Relay,
            Self::Protect,
            Self::Admits,
            Self::Ends,
            Self::Migrant,
            Self::Taken,
            Self::NotTaken,
            Self::ProtectionRequest,
            Self::Protection,
            Self::Unknown,
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
            Self::Replace => "Replace",
            Self::Names => "Names",
            Self::Receiver => "Receiver",
            Self::Lines => "Lines",
            Self::Callers => "Callers",
            Self::Waiting => "Waiting",
            Self::Replaced => "Replaced",
            Self::Before => "Before",
            Self::Relay => "Relay",
            Self::Protect => "Protect",
            Self::Admits => "Admits",
            Self::Ends => "Ends",
            Self::Migrant => "Migrant",
            Self::Taken => "Taken",
            Self::NotTaken => "NotTaken",
            Self::ProtectionRequest => "ProtectionRequest",
            Self::Protection => "Protection",
            Self::Unknown => "Unknown",
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Greeting => Greeting::LEN,
            Self::HandOver => HandOver::LEN,
            Self::Judged => judged::LEN,
            Self::Names | Self::Before => names::LEN,
            Self::Admits => admits::LEN,
            Self::Receiver => receiver::LEN,
            Self::Relay => Relay::LEN,
            Self::Protect => protect::LEN,
            Self::Waiting => waiting::LEN,
            Self::ProtectionRequest => protection_request::LEN,
            Self::Protection => protection::LEN,
            Self::StatusRequest
            | Self::Status
            | Self::RulesChanged
            | Self::Replace
            | Self::Lines
            | Self::Callers
            | Self::Replaced
            | Self::Ends
            | Self::Migrant
            | Self::Taken
            | Self::NotTaken
            | Self::Unknown => header::LEN,
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
const _: () = assert!(greeting::TAKES_AGREED.at + 1 == greeting::RESERVED.at);
const _: () = assert!(greeting::RESERVED.at + 1 == greeting::USER.at);
const _: () = assert!(greeting::USER.at + 4 == Greeting::LEN);
const _: () = assert!(handed::RESERVED.at + 1 == handed::PORT.at);
const _: () = assert!(handed::RMBE_LEN.at + 4 == HandOver::LEN);
const _: () = assert!(judged::DENIED.at == header::LEN && judged::DENIED.at + 4 == judged::LEN);
const _: () = assert!(names::PROCESS.at == header::LEN && names::PROCESS.at + 4 == names::LEN);
const _: () = assert!(admits::VERSION.at == header::LEN && admits::VERSION.at + 4 == admits::LEN);
const _: () = assert!(receiver::ADDRESS.at == header::LEN);
const _: () = assert!(receiver::ADDRESS.at + 16 == receiver::LEN);
const _: () = assert!(relay::LANE.at == receiver::LEN && relay::LANE.at + 1 == relay::RESERVED.at);
const _: () = assert!(relay::RESERVED.at + 3 == Relay::LEN);
const _: () = assert!(protect::RULE.at == HandOver::LEN);
const _: () = assert!(protect::AGREED.at == handed::RESERVED.at);
const _: () = assert!(protect::RULE.at + RULE_NAME_LEN_MAX == protect::RESOLVED.at);
const _: () = assert!(protect::RESOLVED.at + RESOLVED_NAME_ROOM == protect::LEN);
const _: () = assert!(RESOLVED_NAME_LEN_MAX < RESOLVED_NAME_ROOM);
const _: () = assert!(protection::STATUS.at + ProtectionStatus::LEN == protection::LEN);
const _: () = assert!(protect::LEN <= EMITTED_LEN_MAX);
const _: () = assert!(Relay::LEN <= EMITTED_LEN_MAX);
const _: () = assert!(waiting::USER.at == HandOver::LEN && waiting::USER.at + 4 == waiting::LEN);
const _: () = assert!(Greeting::LEN <= EMITTED_LEN_MAX && judged::LEN <= EMITTED_LEN_MAX);
const _: () = assert!(HandOver::LEN <= EMITTED_LEN_MAX && waiting::LEN <= EMITTED_LEN_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: [u8; Greeting::LEN] = *b"SSGW\0\x01\0\x01\0\0\0\x14\x30\x39\x01\0\0\0\x03\xE8";
    const HAND_OVER: [u8; HandOver::LEN] = *b"SSGW\0\x01\0\x02\0\0\0\x14\x02\0\xC0\x01\0\x02\0\0";

    const RECEIVER: [u8; receiver::LEN] =
        *b"SSGW\0\x01\0\x09\0\0\0\x1C\0\0\0\0\0\0\0\0\0\0\xFF\xFF\x0A\0\0\x01";
    const RELAY: [u8; Relay::LEN] =
        *b"SSGW\0\x01\0\x0F\0\0\0\x20\0\0\0\0\0\0\0\0\0\0\xFF\xFF\x0A\0\0\x01\x05\0\0\0";
    const WAITING: [u8; waiting::LEN] =
        *b"SSGW\0\x01\0\x0C\0\0\0\x18\x02\0\xC0\x01\0\x02\0\0\0\0\x03\xE9";

    const PROTECT_HEAD: [u8; protect::RESOLVED.at] =
        *b"SSGW\0\x01\0\x10\0\0\x01\x34\x02\x01\xC0\x01\0\x02\0\0logs\0\0\0\0\
        \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

    fn protect_with(resolved: &[u8]) -> [u8; protect::LEN] {
        let mut bytes = [0; protect::LEN];
        bytes[..PROTECT_HEAD.len()].copy_from_slice(&PROTECT_HEAD);
        bytes[PROTECT_HEAD.len()..][..resolved.len()].copy_from_slice(resolved);
        bytes
    }

    /// Nothing protects the connection.
    fn protection() -> [u8; protection::LEN] {
        let mut bytes = [0; protection::LEN];
        bytes[..12].copy_from_slice(b"SSGW\0\x01\0\x17\0\0\x01\x58");
        bytes
    }

    fn emitted(message: &Message) -> std::vec::Vec<u8> {
        let mut out = [0xFF; EMITTED_LEN_MAX];
        let len = message.emit(&mut out).unwrap();
        out[..len].to_vec()
    }

    #[test]
    fn messages_read_as_they_are_written() {
        let rmbe = RmbeSize::from_bytes(128 << 10).unwrap();
        let hand_over = HandOver { side: Side::Server, port: 0xC001, rmbe };
        let greeting = Greeting { port: 12_345, takes_agreed: true, user: 1000 };
        let protect = |resolved: Option<&str>| {
            let (rule, resolved) =
                ("logs".parse().unwrap(), resolved.map(|it| it.parse().unwrap()));
            Message::Protect(Protect { hand_over, is_agreed: true, rule, resolved })
        };
        for (message, bytes) in [
            (Message::Greeting(greeting), &GREETING[..]),
            (Message::HandOver(hand_over), &HAND_OVER[..]),
            (protect(None), &protect_with(b"")),
            (protect(Some("a.example")), &protect_with(b"a.example")),
            (Message::ProtectionRequest(0xC001), b"SSGW\0\x01\0\x16\0\0\0\x10\xC0\x01\0\0"),
            (Message::Protection(ProtectionStatus::default()), &protection()[..]),
            (Message::Unknown, b"SSGW\0\x01\0\x18\0\0\0\x0C"),
            (Message::StatusRequest, b"SSGW\0\x01\0\x03\0\0\0\x0C"),
            (Message::Status, b"SSGW\0\x01\0\x04\0\0\0\x0C"),
            (Message::RulesChanged, b"SSGW\0\x01\0\x05\0\0\0\x0C"),
            (Message::Judged(258), b"SSGW\0\x01\0\x06\0\0\0\x10\0\0\x01\x02"),
            (Message::Replace, b"SSGW\0\x01\0\x07\0\0\0\x0C"),
            (Message::Names(259), b"SSGW\0\x01\0\x08\0\0\0\x10\0\0\x01\x03"),
            (Message::Before(259), b"SSGW\0\x01\0\x0E\0\0\0\x10\0\0\x01\x03"),
            (Message::Receiver([10, 0, 0, 1].into()), &RECEIVER),
            (Message::Relay(Relay { address: [10, 0, 0, 1].into(), lane: 5 }), &RELAY),
            (Message::Lines, b"SSGW\0\x01\0\x0A\0\0\0\x0C"),
            (Message::Callers, b"SSGW\0\x01\0\x0B\0\0\0\x0C"),
            (Message::Waiting(hand_over, 1001), &WAITING),
            (Message::Replaced, b"SSGW\0\x01\0\x0D\0\0\0\x0C"),
            (Message::Admits(1), b"SSGW\0\x01\0\x11\0\0\0\x10\0\0\0\x01"),
            (Message::Ends, b"SSGW\0\x01\0\x12\0\0\0\x0C"),
            (Message::Migrant, b"SSGW\0\x01\0\x13\0\0\0\x0C"),
            (Message::Taken, b"SSGW\0\x01\0\x14\0\0\0\x0C"),
            (Message::NotTaken, b"SSGW\0\x01\0\x15\0\0\0\x0C"),
        ] {
            assert_eq!(Message::parse(bytes), Ok(message));
            assert_eq!(emitted(&message), bytes);
            let room = &mut [0; EMITTED_LEN_MAX][..bytes.len() - 1];
            assert!(matches!(message.emit(room), Err(Error::NoRoom { .. })));
        }
    }

    #[test]
    fn what_is_cut_off_or_goes_on_is_refused() {
        let protect = protect_with(b"a.example");
        for whole in
            [&GREETING[..], &HAND_OVER[..], &RECEIVER[..], &RELAY[..], &WAITING[..], &protect[..]]
        {
            for len in 0..whole.len() {
                assert!(Message::parse(&whole[..len]).is_err(), "{len}");
            }
            let longer = [whole, &[0]].concat();
            assert!(matches!(Message::parse(&longer), Err(Error::Mismatch { .. })));
        }
    }

    #[test]
    fn each_wrong_field_is_named() {
        let protect = protect_with(b"a.example");
        let protection = protection();
        let changes: [(&[u8], usize, u8, &str); 18] = [
            (&GREETING, 0, b'X', "hand-over magic"),
            (&GREETING, 5, 2, "hand-over version"),
            (&GREETING, 7, 25, "hand-over kind"),
            (&GREETING, 7, 3, "hand-over length"),
            (&HAND_OVER, 11, 21, "hand-over length"),
            (&HAND_OVER, 12, 0, "HandOver role"),
            (&HAND_OVER, 12, 3, "HandOver role"),
            (&HAND_OVER, 17, 3, "HandOver RMBE length"),
            (&HAND_OVER, 17, 0x20, "HandOver RMBE length"),
            (&GREETING, 14, 2, "Greeting Protect"),
            (&protect, 13, 2, "Protect agreement"),
            (&protect, 20, 0, "Protect rule"),
            (&protect, 21, b' ', "Protect rule"),
            (&protect, 30, b'x', "Protect rule"),
            (&protect, 52, 0, "Protect resolved name"),
            (&protect, 53, b' ', "Protect resolved name"),
            (&protect, 307, b'x', "Protect resolved name"),
            (&protection, 12, 5, "Protection status"),
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
        for (whole, reserved) in
            [(&GREETING[..], 15..16), (&HAND_OVER[..], 13..14), (&RELAY[..], 29..32)]
        {
            let mut bytes = whole.to_vec();
            bytes[reserved].fill(0xFF);
            assert_eq!(Message::parse(&bytes), Message::parse(whole));
        }
    }

    #[test]
    fn a_resolved_name_is_a_domain_name_or_an_address() {
        let name = |text: &str| {
            let name: Result<ResolvedName, _> = text.parse();
            name.map(|it| std::string::String::from(it.as_str()))
        };
        assert_eq!(name("a.example."), Ok("a.example".into()));
        assert_eq!(name("::1"), Ok("::1".into()));
        let longest = "x".repeat(RESOLVED_NAME_LEN_MAX);
        assert_eq!(name(&(longest.clone() + ".")), Ok(longest.clone()));
        for text in ["", ".", "a b", "\u{e4}.example", &(longest + "y")] {
            assert_eq!(name(text), Err(NotResolvedName), "{text}");
        }
    }

    #[test]
    fn the_gateway_has_a_name() {
        assert_eq!(gateway_name().as_slice(), b"sidestep/1/gateway");
        assert_eq!(replaced_name(0x1F40).as_slice(), b"sidestep/1/gateway/1f40");
    }
}
