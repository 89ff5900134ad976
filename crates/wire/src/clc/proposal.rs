//! Proposal: "this is what I can do".
//!
//! The client's offer comes in sections, and the two 2-bit *types* in byte 7 say which are there:
//! `typev1` what it offers in version 1, `typev2` what in version 2 (0 SMC-R, 1 SMC-D, 2 neither,
//! 3 both).
//!
//! ```text
//! base | SMC-D area | IP prefix area | v2 extension, UEIDs | SMC-Dv2 extension, entries | trailer
//!  40       40         8 + 17 × v6        40 + 32 × n              48 + 10 × n              4
//!           (1)       typev1 is not N    typev2 is not N         typev2 has SMC-D
//!
//! (1) always in a version 2 message; RFC 7609, that is version 1, knew no SMC-D
//! ```
//!
//! **Base**, at 0:
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 8 | header | in byte 7: version, typev2 in bits 3..2, typev1 in bits 1..0 |
//! | 8 | 8 | peer ID | 0 from Linux unless typev1 has SMC-R |
//! | 16 | 16 | RoCE GID | preferred RoCEv1 GID, else 0 |
//! | 32 | 6 | MAC | of that RNIC |
//! | 38 | 2 | IP area offset | from 40 to the IP prefix area: 40, or 0 without an SMC-D area or IP area |
//!
//! **SMC-D area**, at 40:
//!
//! | Off | Len | Field | Meaning |
//! |---|---|---|---|
//! | 40 | 8 | ISM GID | native ISM device, or 0 |
//! | 48 | 2 | ISM CHID | of that device, or 0 |
//! | 50 | 2 | v2 extension offset | from 52 to the v2 extension |
//! | 52 | 28 | vendor options, reserved | |
//!
//! **IP prefix area**:
//!
//! | Rel | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 4 | subnet | IPv4 network address; 0 for IPv6 |
//! | 4 | 1 | prefix length | 0..32; 0 for IPv6 |
//! | 5 | 2 | reserved | |
//! | 7 | 1 | prefix count | of IPv6, 0..8; 0 for IPv4 |
//! | 8 | 17·n | prefixes | 16 bytes address, 1 byte length |
//!
//! **v2 extension**:
//!
//! | Rel | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 1 | UEID count | 0..8 |
//! | 1 | 1 | GID count | entries of the SMC-Dv2 extension, 0..8 |
//! | 2 | 1 | reserved | |
//! | 3 | 1 | release, flags | release in bits 7..4; bit 0: SEID present |
//! | 4 | 2 | reserved | |
//! | 6 | 2 | SMC-Dv2 extension offset | from 8 to that extension; 0 without |
//! | 8 | 16 | RoCEv2 GID | an IPv4-mapped address, or 0 |
//! | 24 | 1 | max connections | per SMC-R link group, from release 2.1 |
//! | 25 | 1 | max links | per SMC-R link group, from release 2.1 |
//! | 26 | 2 | feature mask | from release 2.1 |
//! | 28 | 12 | reserved | |
//! | 40 | 32·n | UEIDs | in order of preference |
//!
//! **SMC-Dv2 extension**:
//!
//! | Rel | Len | Field | Meaning |
//! |---|---|---|---|
//! | 0 | 32 | SEID | 0 when its flag is 0 |
//! | 32 | 16 | reserved | |
//! | 48 | 10·n | entries | 8 bytes GID, 2 bytes CHID |
//!
//! Since the length of the message is exactly the sum of its sections, an offset that leaves a gap
//! or makes two sections overlap cannot come out right. So there is one legal value for each, and
//! the parser walks the sections in order instead of jumping where a stranger points.
//!
//! *Source*: RFC 7609 §A.2.1; "Shared Memory Communications Version 2"; Linux
//! `net/smc/smc_clc.h` and `smc_clc_msg_prop_valid` in `smc_clc.c`.

use core::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use super::frame::{
    EMITTED_LEN_MAX, Eyecatcher, Header, MessageType, TRAILER_LEN, Version, close, open, unexpected,
};
use super::peer::{FEATURE_EMULATED_ISM, Release};
use crate::error::Error;
use crate::field::Field;
use crate::ids::{Chid, Eid, ExtendedGid, Gid, Mac, PeerId, RoceGid};
use crate::reader::Reader;
use crate::writer::Writer;

/// Most UEIDs a Proposal carries.
pub const UEID_COUNT_MAX: usize = 8;
/// Most GID/CHID entries a Proposal carries; an Emulated-ISM device takes two.
pub const ENTRY_COUNT_MAX: usize = 8;
/// Most IPv6 prefixes a Proposal carries.
pub const IPV6_PREFIX_COUNT_MAX: usize = 8;

/// UEIDs in order of preference.
pub type UeidList = ArrayVec<Eid, UEID_COUNT_MAX>;

mod field {
    use super::Field;

    pub(super) const PEER_ID: Field<8> = Field::new("Proposal peer ID", 8);
    pub(super) const ROCE_GID: Field<16> = Field::new("Proposal RoCE GID", 16);
    pub(super) const MAC: Field<6> = Field::new("Proposal MAC", 32);
    pub(super) const IP_AREA_OFFSET: Field<2> = Field::new("IP area offset", 38);
    pub(super) const BASE_LEN: usize = 40;

    pub(super) const ISM_GID: Field<8> = Field::new("ISM GID", 40);
    pub(super) const ISM_CHID: Field<2> = Field::new("ISM CHID", 48);
    pub(super) const V2_OFFSET: Field<2> = Field::new("v2 extension offset", 50);
    /// What the v2 extension offset counts from.
    pub(super) const V2_OFFSET_FROM: usize = 52;
    pub(super) const SMC_D_AREA_LEN: usize = 40;

    /// Of the whole message.
    pub(super) const LENGTH: &str = "Proposal length";
    pub(super) const TYPE_V1: &str = "Proposal typev1";
}

/// The IP prefix area; offsets count from its start.
mod ip {
    use super::Field;

    pub(super) const NAME: &str = "IP prefix area";
    pub(super) const SUBNET: Field<4> = Field::new("IPv4 subnet", 0);
    pub(super) const PREFIX_LEN: Field<1> = Field::new("IPv4 prefix length", 4);
    pub(super) const COUNT: Field<1> = Field::new("IPv6 prefix count", 7);
    pub(super) const LEN: usize = 8;

    /// Within one IPv6 prefix.
    pub(super) const V6_NAME: &str = "IPv6 prefix";
    pub(super) const V6_PREFIX: Field<16> = Field::new("IPv6 prefix", 0);
    pub(super) const V6_PREFIX_LEN: Field<1> = Field::new("IPv6 prefix length", 16);
    pub(super) const V6_LEN: usize = 17;
}

/// The v2 extension; offsets count from its start.
mod v2 {
    use super::Field;

    pub(super) const NAME: &str = "v2 extension";
    pub(super) const UEID_COUNT: Field<1> = Field::new("UEID count", 0);
    pub(super) const GID_COUNT: Field<1> = Field::new("GID count", 1);
    pub(super) const RELEASE_FLAGS: Field<1> = Field::new("v2 extension release", 3);
    pub(super) const SMC_D_OFFSET: Field<2> = Field::new("SMC-Dv2 extension offset", 6);
    /// What the SMC-Dv2 extension offset counts from.
    pub(super) const SMC_D_OFFSET_FROM: usize = 8;
    pub(super) const ROCE_GID: Field<16> = Field::new("RoCEv2 GID", 8);
    pub(super) const MAX_CONNS: Field<1> = Field::new("max connections", 24);
    pub(super) const MAX_LINKS: Field<1> = Field::new("max links", 25);
    pub(super) const FEATURE_MASK: Field<2> = Field::new("v2 extension feature mask", 26);
    pub(super) const LEN: usize = 40;

    /// Bit 0 of the flags.
    pub(super) const FLAG_SEID: u8 = 0x01;
    /// Within one UEID.
    pub(super) const UEID: Field<32> = Field::new("UEID", 0);
    pub(super) const UEID_LEN: usize = 32;
}

/// The SMC-Dv2 extension; offsets count from its start.
mod smc_d {
    use super::Field;

    pub(super) const NAME: &str = "SMC-Dv2 extension";
    pub(super) const SEID: Field<32> = Field::new("SEID", 0);
    pub(super) const LEN: usize = 48;

    /// Within one entry.
    pub(super) const ENTRY_NAME: &str = "GID entry";
    pub(super) const ENTRY_GID: Field<8> = Field::new("GID entry GID", 0);
    pub(super) const ENTRY_CHID: Field<2> = Field::new("GID entry CHID", 8);
    pub(super) const ENTRY_LEN: usize = 10;
}

/// A client's offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The version of the message itself. In a version 1 message `v1` is there and `v2` is not.
    pub version: Version,
    /// The client; Linux leaves it zero unless it offers SMC-R version 1.
    pub peer_id: PeerId,
    /// The preferred RoCEv1 GID, or zero.
    pub roce_gid: RoceGid,
    /// The MAC address that goes with it, or zero.
    pub mac: Mac,
    /// There in every version 2 message, and in a version 1 message that offers SMC-D.
    pub smc_d_area: Option<IsmDevice>,
    /// What is offered in version 1, if anything.
    pub v1: Option<V1Offer>,
    /// What is offered in version 2, if anything.
    pub v2: Option<V2Offer>,
}

impl Proposal {
    /// The offer of one Emulated-ISM device with SMC-D version 2.1, and of nothing else.
    ///
    /// `chid` is an emulated one ([`Chid::is_emulated`]). The GID goes into a pair of entries; the
    /// SMC-D area stays zero, because Linux takes byte 47 for a prefix count when there is no IP
    /// prefix area, and would refuse a GID there.
    #[must_use]
    pub fn smc_d_v2(ueids: UeidList, seid: Option<Eid>, gid: ExtendedGid, chid: Chid) -> Self {
        debug_assert!(chid.is_emulated(), "only an emulated device has a 128-bit GID");
        let entries = [GidEntry { gid: gid.gid, chid }, GidEntry { gid: Gid(gid.gid_ext), chid }];
        Self {
            version: Version::V2,
            peer_id: PeerId::default(),
            roce_gid: RoceGid::default(),
            mac: Mac::default(),
            smc_d_area: Some(IsmDevice::default()),
            v1: None,
            v2: Some(V2Offer {
                types: V2Types::SmcD(SmcDV2 { seid, entries: entries.into_iter().collect() }),
                ueids,
                release: Release::V2_1,
                roce_gid: RoceGid::default(),
                max_conns: 0,
                max_links: 0,
                feature_mask: FEATURE_EMULATED_ISM,
            }),
        }
    }

    /// The Emulated-ISM devices offered with SMC-D version 2, in the order of the message.
    ///
    /// Such a device takes two entries in a row with the same emulated CHID: first `gid`, then
    /// `gid_ext`. A lone emulated entry is skipped, as Linux does.
    pub fn emulated_devices(&self) -> impl Iterator<Item = (ExtendedGid, Chid)> + '_ {
        let entries = self.v2.as_ref().and_then(V2Offer::smc_d).map_or(&[][..], |ext| &ext.entries);
        EmulatedDevices { entries }
    }

    /// Reads a whole Proposal.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`]; [`Error::Mismatch`] when an offset or the length does not fit the
    /// sections that are there; [`Error::Truncated`] when the message ends within one;
    /// [`Error::Invalid`] for a count above 8, a prefix longer than its address, a UEID that breaks
    /// the rules, a version 1 message that offers nothing, or another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, content) = open(bytes)?;
        if header.message_type != MessageType::Proposal {
            return Err(unexpected(header.message_type));
        }
        let type_v1 = Types::from_code(header.flags & 0x03);
        let type_v2 = match header.version {
            Version::V1 => None, // bits 3..2 are reserved in version 1
            Version::V2 => Types::from_code(header.flags >> 2),
        };
        if header.version == Version::V1 && type_v1.is_none() {
            return Err(Error::Invalid { field: field::TYPE_V1, value: TYPE_NEITHER.into() });
        }

        let ip_area_at = ip_area_at(&content, header.version, type_v1)?;
        let smc_d_area = if ip_area_at == field::BASE_LEN + field::SMC_D_AREA_LEN {
            Some(IsmDevice::parse(&content)?)
        } else {
            None
        };

        let v1 = type_v1.map(|types| V1Offer::parse(&content, ip_area_at, types)).transpose()?;
        let v2_at = ip_area_at + v1.as_ref().map_or(0, V1Offer::emitted_len);
        let v2 = type_v2.map(|types| V2Offer::parse(&content, v2_at, types)).transpose()?;
        let end = v2_at + v2.as_ref().map_or(0, V2Offer::emitted_len);
        if content.len() != end {
            return Err(Error::Mismatch {
                field: field::LENGTH,
                claimed: bytes.len(),
                expected: end + TRAILER_LEN,
            });
        }

        Ok(Self {
            version: header.version,
            peer_id: PeerId(content.bytes(field::PEER_ID)?),
            roce_gid: RoceGid(content.bytes(field::ROCE_GID)?),
            mac: Mac(content.bytes(field::MAC)?),
            smc_d_area,
            v1,
            v2,
        })
    }

    /// Bytes [`emit`](Self::emit) will write, at most [`EMITTED_LEN_MAX`].
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        self.v2_at() + self.v2.as_ref().map_or(0, V2Offer::emitted_len) + TRAILER_LEN
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`emitted_len`](Self::emitted_len);
    /// [`Error::Inconsistent`] when a section is missing or superfluous for the version, an IPv6
    /// list is empty, or a prefix is longer than its address; [`Error::Invalid`] when a UEID breaks
    /// the rules. A Proposal from `parse` or `smc_d_v2` is consistent.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        self.check_sections()?;
        let len = self.emitted_len();
        let mut writer = Writer::new("Proposal", out, len)?;
        writer.put(field::PEER_ID, self.peer_id.0)?;
        writer.put(field::ROCE_GID, self.roce_gid.0)?;
        writer.put(field::MAC, self.mac.0)?;
        if let Some(device) = &self.smc_d_area {
            writer.put(field::ISM_GID, device.gid.0.to_be_bytes())?;
            writer.put(field::ISM_CHID, device.chid.0.to_be_bytes())?;
        }
        if let Some(v1) = &self.v1 {
            let offset = self.ip_area_at() - field::BASE_LEN;
            writer.put(field::IP_AREA_OFFSET, (offset as u16).to_be_bytes())?;
            v1.emit(&mut writer, self.ip_area_at())?;
        }
        if let Some(v2) = &self.v2 {
            let offset = self.v2_at() - field::V2_OFFSET_FROM;
            writer.put(field::V2_OFFSET, (offset as u16).to_be_bytes())?;
            v2.emit(&mut writer, self.v2_at())?;
        }
        let type_v1 = self.v1.as_ref().map_or(TYPE_NEITHER, |v1| v1.types.code());
        let type_v2 = match (self.version, &self.v2) {
            (Version::V1, _) => 0,
            (Version::V2, None) => TYPE_NEITHER,
            (Version::V2, Some(v2)) => v2.types.types().code(),
        };
        let header = Header {
            eyecatcher: Eyecatcher::SmcR,
            message_type: MessageType::Proposal,
            length: len as u16,
            version: self.version,
            flags: type_v2 << 2 | type_v1,
        };
        close(&mut writer, header)?;
        Ok(len)
    }

    /// Refuses sections that the version does not allow, or misses ones it asks for.
    fn check_sections(&self) -> Result<(), Error> {
        let offers_smc_d = self.v1.as_ref().is_some_and(|v1| v1.types.has_smc_d());
        let (field, reason) = match self.version {
            Version::V1 if self.v1.is_none() => (field::TYPE_V1, "a version 1 message needs it"),
            Version::V1 if self.v2.is_some() => (v2::NAME, "a version 1 message has none"),
            Version::V1 if offers_smc_d && self.smc_d_area.is_none() => {
                ("SMC-D area", "an offer of SMC-D needs it")
            }
            Version::V2 if self.smc_d_area.is_none() => {
                ("SMC-D area", "a version 2 message needs it")
            }
            _ => return Ok(()),
        };
        Err(Error::Inconsistent { field, reason })
    }

    /// Where the IP prefix area goes, or would go.
    fn ip_area_at(&self) -> usize {
        field::BASE_LEN + self.smc_d_area.map_or(0, |_| field::SMC_D_AREA_LEN)
    }

    /// Where the v2 extension goes, or would go.
    fn v2_at(&self) -> usize {
        self.ip_area_at() + self.v1.as_ref().map_or(0, V1Offer::emitted_len)
    }
}

/// Which of SMC-R and SMC-D is offered in version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Types {
    /// Only SMC-R.
    SmcR,
    /// Only SMC-D.
    SmcD,
    /// Both.
    Both,
}

/// The code for "neither", for which [`Types`] has no value: the offer is `None`.
const TYPE_NEITHER: u8 = 2;

impl Types {
    /// Whether SMC-R is among them.
    #[must_use]
    pub const fn has_smc_r(self) -> bool {
        matches!(self, Self::SmcR | Self::Both)
    }

    /// Whether SMC-D is among them.
    #[must_use]
    pub const fn has_smc_d(self) -> bool {
        matches!(self, Self::SmcD | Self::Both)
    }

    /// `None` for [`TYPE_NEITHER`]; only two bits are looked at.
    const fn from_code(code: u8) -> Option<Self> {
        match code & 0x03 {
            0 => Some(Self::SmcR),
            1 => Some(Self::SmcD),
            3 => Some(Self::Both),
            _ => None,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::SmcR => 0,
            Self::SmcD => 1,
            Self::Both => 3,
        }
    }
}

/// The native ISM device of the SMC-D area; zero says "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct IsmDevice {
    /// Its GID.
    pub gid: Gid,
    /// Its channel.
    pub chid: Chid,
}

impl IsmDevice {
    fn parse(content: &Reader<'_>) -> Result<Self, Error> {
        content.section("SMC-D area", field::BASE_LEN, field::SMC_D_AREA_LEN)?;
        Ok(Self {
            gid: Gid(content.u64(field::ISM_GID)?),
            chid: Chid(content.u16(field::ISM_CHID)?),
        })
    }
}

/// What is offered in version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V1Offer {
    /// SMC-R, SMC-D or both.
    pub types: Types,
    /// The networks of the client; version 1 works only within one subnet.
    pub prefixes: IpPrefixes,
}

/// The IP prefix area: the networks of the interface the connection leaves by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpPrefixes {
    /// The IPv4 subnet.
    V4 {
        /// Network address.
        subnet: Ipv4Addr,
        /// `prefix_len <= 32`, in bits.
        prefix_len: u8,
    },
    /// The IPv6 prefixes, link-local ones left out. At least one.
    V6(ArrayVec<Ipv6Prefix, IPV6_PREFIX_COUNT_MAX>),
}

/// One IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6Prefix {
    /// Network address.
    pub prefix: Ipv6Addr,
    /// `prefix_len <= 128`, in bits.
    pub prefix_len: u8,
}

impl V1Offer {
    fn parse(content: &Reader<'_>, at: usize, types: Types) -> Result<Self, Error> {
        let area = content.section(ip::NAME, at, ip::LEN)?;
        let count = bounded_count(&area, ip::COUNT, IPV6_PREFIX_COUNT_MAX)?;
        let prefixes = if count == 0 {
            let subnet = Ipv4Addr::from(area.bytes(ip::SUBNET)?);
            IpPrefixes::V4 { subnet, prefix_len: prefix_len(&area, ip::PREFIX_LEN, 32)? }
        } else {
            let mut list = ArrayVec::new();
            for index in 0..count {
                let place = at + ip::LEN + index * ip::V6_LEN;
                let entry = content.section(ip::V6_NAME, place, ip::V6_LEN)?;
                let prefix = Ipv6Addr::from(entry.bytes(ip::V6_PREFIX)?);
                let prefix_len = prefix_len(&entry, ip::V6_PREFIX_LEN, 128)?;
                list.push(Ipv6Prefix { prefix, prefix_len });
            }
            IpPrefixes::V6(list)
        };
        Ok(Self { types, prefixes })
    }

    fn emitted_len(&self) -> usize {
        match &self.prefixes {
            IpPrefixes::V4 { .. } => ip::LEN,
            IpPrefixes::V6(list) => ip::LEN + ip::V6_LEN * list.len(),
        }
    }

    fn emit(&self, message: &mut Writer<'_>, at: usize) -> Result<(), Error> {
        let mut area = message.section(ip::NAME, at, self.emitted_len())?;
        match &self.prefixes {
            IpPrefixes::V4 { subnet, prefix_len } => {
                check_prefix_len(ip::PREFIX_LEN, *prefix_len, 32)?;
                area.put(ip::SUBNET, subnet.octets())?;
                area.put(ip::PREFIX_LEN, [*prefix_len])
            }
            IpPrefixes::V6(list) if list.is_empty() => Err(Error::Inconsistent {
                field: ip::COUNT.name,
                reason: "without a prefix the area would read as IPv4",
            }),
            IpPrefixes::V6(list) => {
                area.put(ip::COUNT, [list.len() as u8])?;
                for (index, network) in list.iter().enumerate() {
                    check_prefix_len(ip::V6_PREFIX_LEN, network.prefix_len, 128)?;
                    let place = ip::LEN + index * ip::V6_LEN;
                    let mut entry = area.section(ip::V6_NAME, place, ip::V6_LEN)?;
                    entry.put(ip::V6_PREFIX, network.prefix.octets())?;
                    entry.put(ip::V6_PREFIX_LEN, [network.prefix_len])?;
                }
                Ok(())
            }
        }
    }
}

/// What is offered in version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V2Offer {
    /// SMC-R, SMC-D or both; SMC-D with the devices it needs.
    pub types: V2Types,
    /// UEIDs in order of preference. Each obeys the rules of [`Eid::checked_ueid`].
    pub ueids: UeidList,
    /// The highest release the client speaks; may be one we do not know.
    pub release: Release,
    /// The preferred RoCEv2 GID, or zero.
    pub roce_gid: RoceGid,
    /// Connections per SMC-R link group; means something from release 2.1.
    pub max_conns: u8,
    /// Links per SMC-R link group; means something from release 2.1.
    pub max_links: u8,
    /// Features, such as [`FEATURE_EMULATED_ISM`]; means something from release 2.1.
    pub feature_mask: u16,
}

/// Which of SMC-R and SMC-D is offered in version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum V2Types {
    /// Only SMC-R.
    SmcR,
    /// Only SMC-D.
    SmcD(SmcDV2),
    /// Both.
    Both(SmcDV2),
}

impl V2Types {
    /// The same without the SMC-D devices.
    #[must_use]
    pub const fn types(&self) -> Types {
        match self {
            Self::SmcR => Types::SmcR,
            Self::SmcD(_) => Types::SmcD,
            Self::Both(_) => Types::Both,
        }
    }
}

/// The SMC-Dv2 extension: the ISM devices of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmcDV2 {
    /// The system's EID, if the client has one switched on.
    pub seid: Option<Eid>,
    /// Devices in order of preference. Read the emulated ones through
    /// [`Proposal::emulated_devices`].
    pub entries: ArrayVec<GidEntry, ENTRY_COUNT_MAX>,
}

/// One native ISM device, or one half of an emulated one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GidEntry {
    /// GID; in the second entry of an emulated device, the GID extension.
    pub gid: Gid,
    /// Channel.
    pub chid: Chid,
}

impl V2Offer {
    /// The SMC-Dv2 extension, if SMC-D is offered.
    #[must_use]
    pub const fn smc_d(&self) -> Option<&SmcDV2> {
        match &self.types {
            V2Types::SmcR => None,
            V2Types::SmcD(extension) | V2Types::Both(extension) => Some(extension),
        }
    }

    fn parse(content: &Reader<'_>, at: usize, types: Types) -> Result<Self, Error> {
        expect_offset(content, field::V2_OFFSET, at - field::V2_OFFSET_FROM)?;
        let extension = content.section(v2::NAME, at, v2::LEN)?;
        let ueid_count = bounded_count(&extension, v2::UEID_COUNT, UEID_COUNT_MAX)?;
        let mut ueids = UeidList::new();
        for index in 0..ueid_count {
            let place = at + v2::LEN + index * v2::UEID_LEN;
            let ueid = content.section(v2::UEID.name, place, v2::UEID_LEN)?.bytes(v2::UEID)?;
            ueids.push(Eid(ueid).checked_ueid()?);
        }

        let smc_d_at = at + v2::LEN + ueid_count * v2::UEID_LEN;
        let types = match types {
            Types::SmcR => V2Types::SmcR,
            Types::SmcD => V2Types::SmcD(SmcDV2::parse(content, &extension, at, smc_d_at)?),
            Types::Both => V2Types::Both(SmcDV2::parse(content, &extension, at, smc_d_at)?),
        };
        Ok(Self {
            types,
            ueids,
            release: Release::from_low_bits(extension.u8(v2::RELEASE_FLAGS)? >> 4),
            roce_gid: RoceGid(extension.bytes(v2::ROCE_GID)?),
            max_conns: extension.u8(v2::MAX_CONNS)?,
            max_links: extension.u8(v2::MAX_LINKS)?,
            feature_mask: extension.u16(v2::FEATURE_MASK)?,
        })
    }

    /// Of extension and UEIDs, without the SMC-Dv2 extension.
    fn ueids_end(&self) -> usize {
        v2::LEN + v2::UEID_LEN * self.ueids.len()
    }

    fn emitted_len(&self) -> usize {
        self.ueids_end() + self.smc_d().map_or(0, SmcDV2::emitted_len)
    }

    fn emit(&self, message: &mut Writer<'_>, at: usize) -> Result<(), Error> {
        let mut writer = message.section(v2::NAME, at, self.emitted_len())?;
        let mut release_flags = self.release.code() << 4;
        writer.put(v2::UEID_COUNT, [self.ueids.len() as u8])?;
        for (index, ueid) in self.ueids.iter().enumerate() {
            let place = v2::LEN + index * v2::UEID_LEN;
            let ueid = ueid.checked_ueid()?;
            writer.section(v2::UEID.name, place, v2::UEID_LEN)?.put(v2::UEID, ueid.0)?;
        }
        if let Some(extension) = self.smc_d() {
            let offset = self.ueids_end() - v2::SMC_D_OFFSET_FROM;
            writer.put(v2::GID_COUNT, [extension.entries.len() as u8])?;
            writer.put(v2::SMC_D_OFFSET, (offset as u16).to_be_bytes())?;
            if extension.seid.is_some() {
                release_flags |= v2::FLAG_SEID;
            }
            extension.emit(&mut writer, self.ueids_end())?;
        }
        writer.put(v2::RELEASE_FLAGS, [release_flags])?;
        writer.put(v2::ROCE_GID, self.roce_gid.0)?;
        writer.put(v2::MAX_CONNS, [self.max_conns])?;
        writer.put(v2::MAX_LINKS, [self.max_links])?;
        writer.put(v2::FEATURE_MASK, self.feature_mask.to_be_bytes())
    }
}

impl SmcDV2 {
    /// Reads the extension at `at` of the message, announced by `v2` at `v2_at`.
    fn parse(
        content: &Reader<'_>,
        v2: &Reader<'_>,
        v2_at: usize,
        at: usize,
    ) -> Result<Self, Error> {
        expect_offset(v2, v2::SMC_D_OFFSET, at - v2_at - v2::SMC_D_OFFSET_FROM)?;
        let has_seid = v2.u8(v2::RELEASE_FLAGS)? & v2::FLAG_SEID != 0;
        let count = bounded_count(v2, v2::GID_COUNT, ENTRY_COUNT_MAX)?;

        let extension = content.section(smc_d::NAME, at, smc_d::LEN)?;
        let seid = if has_seid { Some(Eid(extension.bytes(smc_d::SEID)?)) } else { None };
        let mut entries = ArrayVec::new();
        for index in 0..count {
            let place = at + smc_d::LEN + index * smc_d::ENTRY_LEN;
            let entry = content.section(smc_d::ENTRY_NAME, place, smc_d::ENTRY_LEN)?;
            entries.push(GidEntry {
                gid: Gid(entry.u64(smc_d::ENTRY_GID)?),
                chid: Chid(entry.u16(smc_d::ENTRY_CHID)?),
            });
        }
        Ok(Self { seid, entries })
    }

    fn emitted_len(&self) -> usize {
        smc_d::LEN + smc_d::ENTRY_LEN * self.entries.len()
    }

    fn emit(&self, v2: &mut Writer<'_>, at: usize) -> Result<(), Error> {
        let mut writer = v2.section(smc_d::NAME, at, self.emitted_len())?;
        if let Some(seid) = &self.seid {
            writer.put(smc_d::SEID, seid.0)?;
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let place = smc_d::LEN + index * smc_d::ENTRY_LEN;
            let mut slot = writer.section(smc_d::ENTRY_NAME, place, smc_d::ENTRY_LEN)?;
            slot.put(smc_d::ENTRY_GID, entry.gid.0.to_be_bytes())?;
            slot.put(smc_d::ENTRY_CHID, entry.chid.0.to_be_bytes())?;
        }
        Ok(())
    }
}

/// Walks the entries and puts the halves of emulated devices together.
struct EmulatedDevices<'a> {
    entries: &'a [GidEntry],
}

impl Iterator for EmulatedDevices<'_> {
    type Item = (ExtendedGid, Chid);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.entries {
                [first, second, rest @ ..]
                    if first.chid.is_emulated() && first.chid == second.chid =>
                {
                    self.entries = rest;
                    let gid = ExtendedGid { gid: first.gid, gid_ext: second.gid.0 };
                    return Some((gid, first.chid));
                }
                [_, rest @ ..] => self.entries = rest,
                [] => return None,
            }
        }
    }
}

/// Where the IP prefix area is, or would be. It shows whether there is an SMC-D area before it.
fn ip_area_at(
    content: &Reader<'_>,
    version: Version,
    type_v1: Option<Types>,
) -> Result<usize, Error> {
    let claimed = usize::from(content.u16(field::IP_AREA_OFFSET)?);
    let limit = field::SMC_D_AREA_LEN;
    if claimed > limit {
        let field = field::IP_AREA_OFFSET.name;
        return Err(Error::Invalid { field, value: claimed as u64 });
    }
    let offset = match (version, type_v1) {
        // No IP prefix area to point to: Linux sends 0 here, and the SMC-D area is there.
        (Version::V2, None) => limit,
        // An RFC 7609 message: the area may follow at once, or after a gap.
        (Version::V1, Some(Types::SmcR)) => claimed,
        _ => {
            expect_offset(content, field::IP_AREA_OFFSET, limit)?;
            limit
        }
    };
    Ok(field::BASE_LEN + offset)
}

/// Checks that the offset in `field` points where the section in question starts.
fn expect_offset(reader: &Reader<'_>, field: Field<2>, expected: usize) -> Result<(), Error> {
    let claimed = usize::from(reader.u16(field)?);
    if claimed == expected {
        Ok(())
    } else {
        Err(Error::Mismatch { field: field.name, claimed, expected })
    }
}

/// A count that does not exceed `max`.
fn bounded_count(reader: &Reader<'_>, field: Field<1>, max: usize) -> Result<usize, Error> {
    let count = reader.u8(field)?;
    if usize::from(count) > max {
        return Err(Error::Invalid { field: field.name, value: count.into() });
    }
    Ok(count.into())
}

/// The length of a prefix, in bits, that does not exceed `max`.
fn prefix_len(reader: &Reader<'_>, field: Field<1>, max: u8) -> Result<u8, Error> {
    let len = reader.u8(field)?;
    if len > max {
        return Err(Error::Invalid { field: field.name, value: len.into() });
    }
    Ok(len)
}

/// The same on the way out.
fn check_prefix_len(field: Field<1>, len: u8, max: u8) -> Result<(), Error> {
    if len > max {
        return Err(Error::Inconsistent { field: field.name, reason: "longer than the address" });
    }
    Ok(())
}

const _: () = assert!(
    field::BASE_LEN
        + field::SMC_D_AREA_LEN
        + ip::LEN
        + ip::V6_LEN * IPV6_PREFIX_COUNT_MAX
        + v2::LEN
        + v2::UEID_LEN * UEID_COUNT_MAX
        + smc_d::LEN
        + smc_d::ENTRY_LEN * ENTRY_COUNT_MAX
        + TRAILER_LEN
        == EMITTED_LEN_MAX
);
