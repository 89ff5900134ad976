//! Identifiers, one type each, so that two of them cannot be swapped in a call.
//!
//! The identifiers of SMC-D version 2:
//!
//! | Type | Names |
//! |---|---|
//! | [`ExtendedGid`] | an Emulated-ISM device, for us: one process. 128 bits, sent as two 64-bit halves |
//! | [`Gid`] | a native ISM device, or the first half of an extended GID |
//! | [`Chid`] | the channel, that is the fabric, such a device sits on |
//! | [`DmbToken`] | one receive buffer (DMB) of such a device |
//! | [`LinkId`] | a link group, in the numbering of its sender |
//! | [`Eid`] | a group of computers that want to talk SMC to each other |
//!
//! And in SMC-R:
//!
//! | Type | Names |
//! |---|---|
//! | [`PeerId`] | one running SMC stack |
//! | [`RoceGid`], [`Mac`] | an RDMA adapter (RNIC) of it |
//! | [`LinkNumber`] | a link, within its link group |
//! | [`LinkUserId`] | a link, in the naming of its sender |
//! | [`QpNumber`], [`Psn`] | one end of a link, and the first packet it will send |
//! | [`Rkey`], [`RmbAddress`] | a receive buffer (RMB), as the peer's adapter is told to find it |
//! | [`Mtu`] | the longest packet of a link |
//! | [`AlertToken`] | a connection, in the naming of its receiver |

use core::{fmt, str};

use crate::error::Error;

/// The 64-bit identifier of an ISM device. Zero says "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub u64);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The 128-bit identifier of an Emulated-ISM device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ExtendedGid {
    /// The first 64 bits.
    pub gid: Gid,
    /// The second 64 bits. Zero for a native ISM device.
    pub gid_ext: u64,
}

impl ExtendedGid {
    /// Takes the first eight bytes as `gid` and the last eight as `gid_ext`, both big-endian.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let bits = u128::from_be_bytes(bytes);
        Self { gid: Gid((bits >> 64) as u64), gid_ext: bits as u64 }
    }

    /// The inverse of [`from_bytes`](Self::from_bytes).
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        (((self.gid.0 as u128) << 64) | self.gid_ext as u128).to_be_bytes()
    }
}

impl fmt::Display for ExtendedGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:016x}", self.gid, self.gid_ext)
    }
}

/// The channel identifier of the fabric an ISM device sits on. Zero says "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Chid(pub u16);

impl Chid {
    /// The first of the channels set aside for Emulated-ISM devices; they reach up to `0xFFFF`.
    pub const EMULATED_FIRST: Self = Self(0xFF00);
    /// The channel of a device that reaches only its own operating system.
    pub const LOOPBACK: Self = Self(0xFFFF);

    /// Whether devices on this channel have a 128-bit [`ExtendedGid`].
    #[must_use]
    pub const fn is_emulated(self) -> bool {
        self.0 >= Self::EMULATED_FIRST.0
    }
}

impl fmt::Display for Chid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// What a device calls one of its receive buffers (DMBs). Any value may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DmbToken(pub u64);

impl fmt::Display for DmbToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// An SMC-D link group, in the numbering of its sender. To every other host it is opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// One running SMC stack: two bytes of its own choice, then the MAC address of one of its RNICs.
///
/// All zero in a Proposal without SMC-R, and allowed to be zero in a Decline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PeerId(pub [u8; 8]);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [i0, i1, mac @ ..] = self.0;
        write!(f, "{i0:02x}{i1:02x}-{}", Mac(mac))
    }
}

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The 128-bit address of an RDMA adapter: for RoCEv2 an IPv6 or IPv4-mapped address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RoceGid(pub [u8; 16]);

impl fmt::Display for RoceGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

/// A link, within its link group. The server gives it, from 1 on; both sides use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkNumber(pub u8);

impl fmt::Display for LinkNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A link, in the naming of its sender, for display. To every other host it is opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkUserId(pub u32);

impl fmt::Display for LinkUserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// One end of a link: a queue pair of an RDMA adapter, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QpNumber(pub [u8; 3]);

impl QpNumber {
    /// The first that a link may have; 0 and 1 are the adapter's own.
    pub const FIRST: Self = Self([0, 0, 2]);
}

impl fmt::Display for QpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_24_bits(self.0, f)
    }
}

/// The sequence number of a packet of RDMA, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Psn(pub [u8; 3]);

impl Psn {
    /// The PSN in the low 24 bits of `bits`.
    #[must_use]
    pub const fn from_low_bits(bits: u32) -> Self {
        let [_, low @ ..] = bits.to_be_bytes();
        Self(low)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn bits(self) -> u32 {
        let [high, middle, low] = self.0;
        u32::from_be_bytes([0, high, middle, low])
    }

    /// The PSN of the packet `n` behind this one's.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self::from_low_bits(self.bits().wrapping_add(n))
    }

    /// The PSN of the packet `n` before this one's.
    #[must_use]
    pub const fn minus(self, n: u32) -> Self {
        Self::from_low_bits(self.bits().wrapping_sub(n))
    }

    /// How many packets it is behind another one, from -2^23 to 2^23 - 1.
    #[must_use]
    pub const fn since(self, other: Self) -> i32 {
        (self.bits().wrapping_sub(other.bits()) << 8) as i32 >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_24_bits(self.0, f)
    }
}

fn fmt_24_bits([high, middle, low]: [u8; 3], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:#08x}", u32::from_be_bytes([0, high, middle, low]))
}

/// The key to a receive buffer, without which the receiver's RDMA adapter lets no peer write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rkey(pub u32);

impl fmt::Display for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Where a receive buffer (RMB) starts, in the address space of its RDMA adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RmbAddress(pub u64);

impl fmt::Display for RmbAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A connection, in the naming of its receiver. Any value may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AlertToken(pub u32);

impl fmt::Display for AlertToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The longest packet of a link, as InfiniBand's code for it, four bits on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mtu(
    /// `code <= 15`; only 1 to 5 mean something
    u8,
);

impl Mtu {
    /// The MTU in the low four bits of `code`.
    #[must_use]
    pub const fn from_low_bits(code: u8) -> Self {
        Self(code & 0x0F)
    }

    /// The four bits on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The length in bytes: 256, 512 … 4096 for the codes 1 to 5, which are all that there are.
    #[must_use]
    pub const fn bytes(self) -> Option<u16> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => write!(f, "{bytes}"),
            None => write!(f, "reserved code {}", self.0),
        }
    }
}

/// What SEIDs begin with that Sidestep gives; IBM's begin with `IBM-SYSZ-ISMSEID`.
const SEID_GIVER: &[u8; 16] = b"SIDESTEP-ISMSEID";

/// An enterprise ID: computers with one in common want to talk SMC version 2 to each other.
///
/// ASCII padded with blanks, compared over all 32 bytes. A *UEID* is chosen by the administrator, a
/// *SEID* is given by the system. It admits, it does not authenticate: an EID is not a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Eid(pub [u8; 32]);

impl Eid {
    /// Bytes of an EID on the wire.
    pub const LEN: usize = 32;

    /// The UEID with this name.
    ///
    /// A name has 1 to 32 characters, letters `A` to `Z`, digits, `.` or `-`, and starts with a
    /// letter or a digit.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: of `UEID` with an offending byte, zero when the name is empty; of
    /// `UEID length` with the length when it exceeds 32 bytes.
    pub fn ueid(name: &str) -> Result<Self, Error> {
        if name.len() > Self::LEN {
            return Err(Error::Invalid { field: UEID_LENGTH, value: name.len() as u64 });
        }
        // A blank is padding on the wire, but not a part of the name.
        if name.contains(' ') {
            return Err(Error::Invalid { field: UEID, value: u64::from(b' ') });
        }
        let mut padded = [b' '; Self::LEN];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        Self(padded).checked_ueid()
    }

    /// The SEID of a machine with this number, in the form of IBM's: who gives it, and sixteen digits.
    #[must_use]
    pub fn seid(machine: u64) -> Self {
        let mut bytes = [0; Self::LEN];
        let (giver, digits) = bytes.split_at_mut(SEID_GIVER.len());
        giver.copy_from_slice(SEID_GIVER);
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789ABCDEF"[(machine >> (60 - 4 * at)) as usize & 0xF];
        }
        Self(bytes)
    }

    /// Itself, if it obeys the rules for UEIDs.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with the first offending byte.
    pub fn checked_ueid(self) -> Result<Self, Error> {
        // Padding is blanks: other white space at the end belongs to the name, and offends.
        let len = self.0.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
        let name = &self.0[..len];
        let first_is_good = |first: u8| first.is_ascii_uppercase() || first.is_ascii_digit();
        let is_good = |byte: u8| first_is_good(byte) || byte == b'.' || byte == b'-';
        let offender = match name {
            [] => Some(0),
            [first, ..] if !first_is_good(*first) => Some(*first),
            _ => name.iter().copied().find(|byte| !is_good(*byte)),
        };
        match offender {
            Some(byte) => Err(Error::Invalid { field: UEID, value: u64::from(byte) }),
            None => Ok(self),
        }
    }
}

/// Without the padding; bytes that are not printable ASCII as `?`.
impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_blank_padded(&self.0, f)
    }
}

/// Shows blank-padded ASCII without its padding; a peer's text may hold anything, so what is not
/// printable comes out as `?`.
pub(crate) fn fmt_blank_padded(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = bytes.trim_ascii_end();
    if text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
        // Graphic ASCII is UTF-8, so the fallback is never taken; `pad` keeps column widths.
        return f.pad(str::from_utf8(text).unwrap_or_default());
    }
    text.iter().try_for_each(|byte| {
        let shown = if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'?' };
        fmt::Write::write_char(f, char::from(shown))
    })
}

/// What errors call a UEID.
const UEID: &str = "UEID";
const UEID_LENGTH: &str = "UEID length";

#[cfg(test)]
mod tests {
    use std::{format, string::ToString};

    use super::*;

    #[test]
    fn an_extended_gid_is_two_big_endian_halves() {
        let bytes = core::array::from_fn(|index| index as u8);
        let gid = ExtendedGid::from_bytes(bytes);
        assert_eq!(gid.gid, Gid(0x0001_0203_0405_0607));
        assert_eq!(gid.gid_ext, 0x0809_0A0B_0C0D_0E0F);
        assert_eq!(gid.to_bytes(), bytes);
        assert_eq!(gid.to_string(), "000102030405060708090a0b0c0d0e0f");
    }

    #[test]
    fn emulated_channels_are_the_last_256() {
        assert!(!Chid(0).is_emulated());
        assert!(!Chid(0xFEFF).is_emulated());
        assert!(Chid::EMULATED_FIRST.is_emulated());
        assert!(Chid::LOOPBACK.is_emulated());
    }

    #[test]
    fn a_ueid_is_padded_on_the_wire_and_shown_without() {
        let ueid = Eid::ueid("SMCV2-EID-1").unwrap();
        assert_eq!(&ueid.0, b"SMCV2-EID-1                     ");
        assert_eq!(ueid.to_string(), "SMCV2-EID-1");
        assert_eq!(format!("{ueid:>12}|"), " SMCV2-EID-1|");
    }

    #[test]
    fn a_ueid_obeys_its_rules() {
        for name in ["A", "9", "A.B-C", "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"] {
            assert!(Eid::ueid(name).is_ok(), "{name}");
        }
        for (name, offender) in [
            ("", 0),
            ("a", b'a'),
            (".A", b'.'),
            ("-A", b'-'),
            (" A", b' '),
            ("A ", b' '),
            ("A B", b' '),
            ("A_B", b'_'),
            ("A\0", 0),
            ("A\n", b'\n'),
            ("\u{c4}", 0xC3),
        ] {
            let error = Error::Invalid { field: "UEID", value: offender.into() };
            assert_eq!(Eid::ueid(name), Err(error), "{name:?}");
        }
        let too_long = Error::Invalid { field: "UEID length", value: 33 };
        assert_eq!(Eid::ueid("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456"), Err(too_long));
    }

    #[test]
    fn only_blanks_pad_a_ueid() {
        let mut eid = Eid::ueid("A").unwrap();
        assert_eq!(eid.checked_ueid(), Ok(eid));
        eid.0[31] = b'\t';
        assert!(eid.checked_ueid().is_err());
        assert!(Eid([b' '; 32]).checked_ueid().is_err());
        assert!(Eid([0; 32]).checked_ueid().is_err());
    }

    #[test]
    fn a_strangers_text_is_shown_without_control_characters() {
        let mut eid = Eid::ueid("A-B").unwrap();
        eid.0[1] = 0x1B;
        eid.0[4] = 0xFF;
        assert_eq!(eid.to_string(), "A?B ?");
    }

    #[test]
    fn a_link_shows_its_number_in_decimal_and_its_user_id_in_hexadecimal() {
        assert_eq!(LinkNumber(17).to_string(), "17");
        assert_eq!(LinkUserId(0x0102).to_string(), "00000102");
    }

    #[test]
    fn numbers_of_24_bits_show_all_of_them() {
        assert_eq!(QpNumber([0, 0, 0x11]).to_string(), "0x000011");
        assert_eq!(Psn([0xFF, 0, 1]).to_string(), "0xff0001");
        assert!(QpNumber([0, 0, 1]) < QpNumber::FIRST && QpNumber([0, 1, 0]) > QpNumber::FIRST);
    }

    #[test]
    fn psns_go_round() {
        let last = Psn([0xFF; 3]);
        assert_eq!((last.plus(1), Psn::default().minus(1)), (Psn::default(), last));
        assert_eq!((Psn::default().since(last), last.since(Psn::default())), (1, -1));
        let half = Psn::from_low_bits(1 << 23);
        assert_eq!(half.since(Psn::default()), -(1 << 23), "as far as it goes is before");
        assert_eq!(half.minus(1).since(Psn::default()), (1 << 23) - 1);
        assert_eq!(Psn::from_low_bits(0xAB12_3456).bits(), 0x0012_3456);
    }

    #[test]
    fn five_mtu_codes_mean_something() {
        let lengths: std::vec::Vec<_> =
            (0..=255).filter_map(|code| Mtu::from_low_bits(code).bytes()).collect();
        assert_eq!(lengths[..5], [256, 512, 1024, 2048, 4096]);
        assert_eq!(lengths.len(), 5 * 16);
        assert_eq!(Mtu::from_low_bits(3).to_string(), "1024");
        assert_eq!(Mtu::from_low_bits(0).to_string(), "reserved code 0");
    }

    #[test]
    fn a_peer_id_shows_instance_and_mac() {
        let peer_id = PeerId([0xB5, 0x2F, 0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(peer_id.to_string(), "b52f-52:54:00:00:00:01");
    }
}
