//! What every datagram starts with: magic, version, kind, length, and the sender's instance.

use core::fmt;

use crate::error::Error;
use crate::field::Field;
use crate::header::{self, Family};
use crate::ids::ExtendedGid;
use crate::writer::Writer;

pub(super) const HEADER: Family =
    Family::new(*b"SSTP", ["control magic", "control version", "control kind", "control length"]);

pub(super) mod field {
    use super::Field;

    pub(in crate::host_control) const INSTANCE: Field<16> = Field::new("control instance", 12);
}

/// One process that runs Sidestep: its 128-bit GID, both halves big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(pub [u8; 16]);

impl From<ExtendedGid> for Instance {
    fn from(gid: ExtendedGid) -> Self {
        Self(gid.to_bytes())
    }
}

impl From<Instance> for ExtendedGid {
    fn from(instance: Instance) -> Self {
        Self::from_bytes(instance.0)
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Which datagram it is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Hello = 1,
    Introduction = 2,
    Channel = 3,
    Lookup = 4,
    Match = 5,
    Refusal = 6,
}

impl header::Kind for Kind {
    fn from_code(code: u16) -> Option<Self> {
        let kinds = [
            Self::Hello,
            Self::Introduction,
            Self::Channel,
            Self::Lookup,
            Self::Match,
            Self::Refusal,
        ];
        kinds.into_iter().find(|kind| kind.code() == code)
    }

    fn code(self) -> u16 {
        self as u16
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hello => "Hello",
            Self::Introduction => "Introduction",
            Self::Channel => "Channel",
            Self::Lookup => "Lookup",
            Self::Match => "Match",
            Self::Refusal => "Refusal",
        }
    }

    fn len(self) -> usize {
        self.datagram_len()
    }
}

impl Kind {
    /// Bytes of a datagram of this kind.
    pub(super) const fn datagram_len(self) -> usize {
        match self {
            Self::Hello => 72,
            Self::Introduction => 48,
            Self::Channel => 32,
            Self::Lookup => 48,
            Self::Match => 60,
            Self::Refusal => 32,
        }
    }
}

/// Claims the room for a datagram and writes what all of them start with.
pub(super) fn emit_header(
    kind: Kind,
    instance: Instance,
    out: &mut [u8],
) -> Result<Writer<'_>, Error> {
    let mut writer = HEADER.emit(kind, out)?;
    writer.put(field::INSTANCE, instance.0)?;
    Ok(writer)
}

const _: () = assert!(field::INSTANCE.at == header::LEN);
