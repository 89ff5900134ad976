//! What a library and the agent of its host say to each other, where the two ends of a connection do not find
//! each other by name: in different network namespaces, behind a translation of addresses, or of different users.
//! See the [module above](super) for what all messages start with.
//!
//! | Lookup, 48 bytes | Off | Len |
//! |---|---|---|
//! | token of the connection | 28 | 16 |
//! | role: 1 client, 2 server | 44 | 1 |
//! | reserved | 45 | 1 |
//! | port of the server, as the sender sees it | 46 | 2 |
//!
//! | Match, 60 bytes | Off | Len |
//! |---|---|---|
//! | token of the connection | 28 | 16 |
//! | port of the server, as the reader sees it | 44 | 2 |
//! | role of the reader: 1 client, 2 server | 46 | 1 |
//! | 1: the host's policy lets the two users share memory; anything else: it says nothing | 47 | 1 |
//! | user of the reader, as the agent sees it | 48 | 4 |
//! | user of the other end, as the agent sees it | 52 | 4 |
//! | group of the other end, as the agent sees it | 56 | 4 |
//!
//! | Refusal, 32 bytes | Off | Len |
//! |---|---|---|
//! | cause | 28 | 4 |
//!
//! The instance of a Match is that of the other end, and one descriptor lies beside it: a socket whose
//! other end went to the other process in the same way. An agent has no instance: that of a Refusal is 0.

use super::header::{Instance, Kind, emit_header, field};
use crate::error::Error;
use crate::field::Field;
use crate::reader::Reader;

mod lookup_field {
    use super::Field;

    pub(super) const TOKEN: Field<16> = Field::new("Lookup token", 28);
    pub(super) const ROLE: Field<1> = Field::new("Lookup role", 44);
    pub(super) const PORT: Field<2> = Field::new("Lookup port", 46);
}

mod matched {
    use super::Field;

    pub(super) const TOKEN: Field<16> = Field::new("Match token", 28);
    pub(super) const PORT: Field<2> = Field::new("Match port", 44);
    pub(super) const ROLE: Field<1> = Field::new("Match role", 46);
    pub(super) const GRANTED: Field<1> = Field::new("Match granted", 47);
    pub(super) const OWN_UID: Field<4> = Field::new("Match user of the reader", 48);
    pub(super) const UID: Field<4> = Field::new("Match user", 52);
    pub(super) const GID: Field<4> = Field::new("Match group", 56);
}

mod refusal {
    use super::Field;

    pub(super) const CAUSE: Field<4> = Field::new("Refusal cause", 28);
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// It has connected.
    Client = 1,
    /// It was accepted.
    Server = 2,
}

impl Side {
    /// That of the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    pub(crate) fn parse(reader: &Reader<'_>, field: Field<1>) -> Result<Self, Error> {
        match reader.u8(field)? {
            1 => Ok(Self::Client),
            2 => Ok(Self::Server),
            other => Err(Error::Invalid { field: field.name, value: other.into() }),
        }
    }
}

/// What another value would mean is not known here, so it is none.
fn granted(reader: &Reader<'_>) -> Result<bool, Error> {
    match reader.u8(matched::GRANTED)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::Invalid { field: matched::GRANTED.name, value: other.into() }),
    }
}

/// From a process to the agent: "I hold this end of the connection with this token".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lookup {
    /// The process.
    pub instance: Instance,
    /// The connection: [`super::distant_token`].
    pub token: [u8; 16],
    /// Which end.
    pub side: Side,
    /// The server's, as this end sees it: it comes back with the answer.
    pub port: u16,
}

impl Lookup {
    /// Bytes on the wire.
    pub const LEN: usize = Kind::Lookup.datagram_len();

    pub(super) fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            instance: Instance(reader.bytes(field::INSTANCE)?),
            token: reader.bytes(lookup_field::TOKEN)?,
            side: Side::parse(reader, lookup_field::ROLE)?,
            port: reader.u16(lookup_field::PORT)?,
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::Lookup, self.instance, out)?;
        writer.put(lookup_field::TOKEN, self.token)?;
        writer.put(lookup_field::ROLE, [self.side as u8])?;
        writer.put(lookup_field::PORT, self.port.to_be_bytes())?;
        Ok(Self::LEN)
    }
}

/// From the agent to a process: "this process holds the other end; here is a line to it".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The process at the other end.
    pub instance: Instance,
    /// The connection.
    pub token: [u8; 16],
    /// Its server's port, as the reader has named it.
    pub port: u16,
    /// The end that the reader holds.
    pub side: Side,
    /// The policy of the host lets the two users share memory, whatever the two processes list.
    pub is_granted: bool,
    /// The user of the process that reads this, as the agent sees it.
    pub own_uid: u32,
    /// The user of the other one.
    pub uid: u32,
    /// The group of the other one.
    pub gid: u32,
}

impl Match {
    /// Bytes on the wire.
    pub const LEN: usize = Kind::Match.datagram_len();

    pub(super) fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            instance: Instance(reader.bytes(field::INSTANCE)?),
            token: reader.bytes(matched::TOKEN)?,
            port: reader.u16(matched::PORT)?,
            side: Side::parse(reader, matched::ROLE)?,
            is_granted: granted(reader)?,
            own_uid: reader.u32(matched::OWN_UID)?,
            uid: reader.u32(matched::UID)?,
            gid: reader.u32(matched::GID)?,
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::Match, self.instance, out)?;
        writer.put(matched::TOKEN, self.token)?;
        writer.put(matched::PORT, self.port.to_be_bytes())?;
        writer.put(matched::ROLE, [self.side as u8])?;
        writer.put(matched::GRANTED, [u8::from(self.is_granted)])?;
        writer.put(matched::OWN_UID, self.own_uid.to_be_bytes())?;
        writer.put(matched::UID, self.uid.to_be_bytes())?;
        writer.put(matched::GID, self.gid.to_be_bytes())?;
        Ok(Self::LEN)
    }
}

/// From the agent to a process, before it hangs up: why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub cause: RefusalCause,
}

/// Why the agent hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// What came was no lookup.
    Malformed = 1,
    /// Others of the same user, or of all, leave no room.
    NoRoom = 2,
}

impl Refusal {
    /// Bytes on the wire.
    pub const LEN: usize = Kind::Refusal.datagram_len();

    pub(super) fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        let cause = match reader.u32(refusal::CAUSE)? {
            1 => RefusalCause::Malformed,
            2 => RefusalCause::NoRoom,
            other => {
                return Err(Error::Invalid { field: refusal::CAUSE.name, value: other.into() });
            }
        };
        Ok(Self { cause })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::Refusal, Instance([0; 16]), out)?;
        writer.put(refusal::CAUSE, (self.cause as u32).to_be_bytes())?;
        Ok(Self::LEN)
    }
}

const _: () = assert!(lookup_field::PORT.at + 2 == Lookup::LEN);
const _: () = assert!(matched::GID.at + 4 == Match::LEN);
const _: () = assert!(refusal::CAUSE.at + 4 == Refusal::LEN);
