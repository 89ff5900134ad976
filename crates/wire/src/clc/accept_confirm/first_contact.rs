//! The first contact extension: two sides introduce themselves.
//!
//! On *first contact* client and server have no link group in common yet. In version 2 each then
//! says which host it is, and in release 2.1 of SMC-R how large a link group it can have:
//!
//! | Rel | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 1 | direct | SMC-R: bit 7, no gateway between the RNICs; reserved for SMC-D |
//! | 1 | 1 | operating system, release | bits 7..4, bits 3..0 |
//! | 2 | 2 | reserved | |
//! | 4 | 32 | host name | ASCII, blank padded |
//! | 36 | 1 | max connections | SMC-R, from release 2.1: per link group |
//! | 37 | 1 | max links | SMC-R, from release 2.1: per link group |
//! | 38 | 2 | feature mask | from release 2.1 |
//! | 40 | 12 | vendor options, reserved | |
//!
//! For SMC-R it always has 52 bytes. For SMC-D at release 2.0 it ends after the host name, at 36
//! bytes. Peers disagree on when they send the short form, so a reader goes by the length of the
//! message.
//!
//! In the Confirm of SMC-R the GID list follows, the RNICs that the client can use for links:
//!
//! | Rel | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 1 | GID count | |
//! | 1 | 3 | reserved | |
//! | 4 | 16·n | GIDs | RoCEv2; the first one is that of the first link |
//!
//! *Source*: "Shared Memory Communications Version 2"; Linux `net/smc/smc_clc.h`.

use core::fmt;

use arrayvec::ArrayVec;

use super::kind::Role;
use crate::clc::peer::{OsType, Release};
use crate::error::Error;
use crate::field::Field;
use crate::ids::RoceGid;
use crate::ids::fmt_blank_padded;
use crate::reader::Reader;
use crate::writer::Writer;

/// Most GIDs of a list that this crate reads. Linux sends one or two.
pub const GID_COUNT_MAX: usize = 8;

/// The RoCEv2 GIDs a client can use for links.
pub type GidList = ArrayVec<RoceGid, GID_COUNT_MAX>;

mod field {
    use super::Field;

    pub(super) const NAME: &str = "first contact extension";
    pub(super) const DIRECT: Field<1> = Field::new("first contact direct", 0);
    pub(super) const OS_RELEASE: Field<1> = Field::new("first contact release", 1);
    pub(super) const HOSTNAME: Field<32> = Field::new("first contact host name", 4);
    pub(super) const MAX_CONNS: Field<1> = Field::new("first contact max connections", 36);
    pub(super) const MAX_LINKS: Field<1> = Field::new("first contact max links", 37);
    pub(super) const FEATURE_MASK: Field<2> = Field::new("first contact feature mask", 38);
    /// Of SMC-D at release 2.0.
    pub(super) const LEN_SHORT: usize = 36;
    /// Of SMC-R, and from release 2.1.
    pub(super) const LEN_FULL: usize = 52;

    /// Bit 7 of its byte.
    pub(super) const FLAG_DIRECT: u8 = 0x80;
}

/// The GID list; offsets count from its start.
mod list {
    use super::Field;

    pub(super) const NAME: &str = "GID list";
    pub(super) const COUNT: Field<1> = Field::new("GID list count", 0);
    pub(super) const LEN: usize = 4;

    /// Within one entry.
    pub(super) const GID: Field<16> = Field::new("GID list entry", 0);
    pub(super) const GID_LEN: usize = 16;
}

/// Bytes of the full form.
pub(super) const LEN_FULL: usize = field::LEN_FULL;

/// How two sides introduce themselves when they have no link group in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstContact {
    /// The sender's operating system.
    pub os_type: OsType,
    /// The negotiated release: the lower of both sides'.
    pub release: Release,
    /// The sender's host name, for display.
    pub hostname: Hostname,
    /// The sender's features, such as [`FEATURE_EMULATED_ISM`](crate::clc::FEATURE_EMULATED_ISM).
    /// At release 2.0 there is no room for it: not sent, and read as zero.
    pub feature_mask: u16,
}

impl FirstContact {
    /// Reads that of SMC-D, which starts at `at`.
    pub(super) fn parse(content: &Reader<'_>, at: usize) -> Result<Self, Error> {
        let room = content.len().saturating_sub(at);
        let len = if room < field::LEN_FULL { field::LEN_SHORT } else { field::LEN_FULL };
        Self::read(&content.section(field::NAME, at, len)?)
    }

    /// What SMC-R and SMC-D have in common.
    fn read(extension: &Reader<'_>) -> Result<Self, Error> {
        let os_release = extension.u8(field::OS_RELEASE)?;
        let release = Release::from_low_bits(os_release);
        let feature_mask = if extension.len() == field::LEN_FULL && release >= Release::V2_1 {
            extension.u16(field::FEATURE_MASK)?
        } else {
            0
        };
        Ok(Self {
            os_type: OsType::from_low_bits(os_release >> 4),
            release,
            hostname: Hostname(extension.bytes(field::HOSTNAME)?),
            feature_mask,
        })
    }

    /// Of SMC-D.
    pub(super) fn emitted_len(&self) -> usize {
        if self.release >= Release::V2_1 { field::LEN_FULL } else { field::LEN_SHORT }
    }

    /// Writes that of SMC-D.
    pub(super) fn emit(&self, message: &mut Writer<'_>, at: usize) -> Result<(), Error> {
        self.write(&mut message.section(field::NAME, at, self.emitted_len())?)
    }

    fn write(&self, extension: &mut Writer<'_>) -> Result<(), Error> {
        extension.put(field::OS_RELEASE, [self.os_type.code() << 4 | self.release.code()])?;
        extension.put(field::HOSTNAME, self.hostname.0)?;
        if self.release >= Release::V2_1 {
            extension.put(field::FEATURE_MASK, self.feature_mask.to_be_bytes())?;
        }
        Ok(())
    }
}

/// What SMC-R says beyond that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstContactR {
    /// The part it shares with SMC-D.
    pub common: FirstContact,
    /// No gateway lies between the RNICs of the two sides.
    pub direct: bool,
    /// Connections per link group. At release 2.0 not sent, and read as zero; 255 is meant.
    pub max_conns: u8,
    /// Links per link group. At release 2.0 not sent, and read as zero; 2 is meant.
    pub max_links: u8,
    /// The RNICs of the client. Empty in an Accept, which has no list.
    pub gids: GidList,
}

impl FirstContactR {
    pub(super) fn parse(content: &Reader<'_>, at: usize, role: Role) -> Result<Self, Error> {
        let extension = content.section(field::NAME, at, field::LEN_FULL)?;
        let common = FirstContact::read(&extension)?;
        let limit = |field| {
            if common.release >= Release::V2_1 { extension.u8(field) } else { Ok(0) }
        };
        Ok(Self {
            direct: extension.u8(field::DIRECT)? & field::FLAG_DIRECT != 0,
            max_conns: limit(field::MAX_CONNS)?,
            max_links: limit(field::MAX_LINKS)?,
            gids: match role {
                Role::Accept => GidList::new(),
                Role::Confirm => parse_list(content, at + field::LEN_FULL)?,
            },
            common,
        })
    }

    pub(super) fn emitted_len(&self, role: Role) -> usize {
        field::LEN_FULL
            + match role {
                Role::Accept => 0,
                Role::Confirm => list::LEN + list::GID_LEN * self.gids.len(),
            }
    }

    pub(super) fn emit(
        &self,
        message: &mut Writer<'_>,
        at: usize,
        role: Role,
    ) -> Result<(), Error> {
        let mut extension = message.section(field::NAME, at, field::LEN_FULL)?;
        self.common.write(&mut extension)?;
        extension.put(field::DIRECT, [if self.direct { field::FLAG_DIRECT } else { 0 }])?;
        if self.common.release >= Release::V2_1 {
            extension.put(field::MAX_CONNS, [self.max_conns])?;
            extension.put(field::MAX_LINKS, [self.max_links])?;
        }
        match role {
            Role::Confirm => emit_list(&self.gids, message, at + field::LEN_FULL),
            Role::Accept if self.gids.is_empty() => Ok(()),
            Role::Accept => {
                Err(Error::Inconsistent { field: list::NAME, reason: "only a Confirm has one" })
            }
        }
    }
}

fn parse_list(content: &Reader<'_>, at: usize) -> Result<GidList, Error> {
    let count = content.section(list::NAME, at, list::LEN)?.u8(list::COUNT)?;
    if usize::from(count) > GID_COUNT_MAX {
        return Err(Error::Unsupported {
            field: list::COUNT.name,
            value: count.into(),
            what: "a list of more than 8 GIDs",
        });
    }
    let entry = |index| {
        let place = at + list::LEN + usize::from(index) * list::GID_LEN;
        let entry = content.section(list::GID.name, place, list::GID_LEN)?;
        entry.bytes(list::GID).map(RoceGid)
    };
    (0..count).map(entry).collect()
}

fn emit_list(gids: &GidList, message: &mut Writer<'_>, at: usize) -> Result<(), Error> {
    message.section(list::NAME, at, list::LEN)?.put(list::COUNT, [gids.len() as u8])?;
    for (index, gid) in gids.iter().enumerate() {
        let place = at + list::LEN + index * list::GID_LEN;
        message.section(list::GID.name, place, list::GID_LEN)?.put(list::GID, gid.0)?;
    }
    Ok(())
}

/// A host name as it travels: 32 bytes of ASCII, blank padded. A peer's may hold anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hostname(pub [u8; 32]);

impl Hostname {
    /// The first 32 bytes of `name`, padded with blanks.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        let mut padded = [b' '; 32];
        for (place, byte) in padded.iter_mut().zip(name) {
            *place = *byte;
        }
        Self(padded)
    }
}

/// Without the padding; bytes that are not printable ASCII as `?`.
impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_blank_padded(&self.0, f)
    }
}
