//! Identifiers, one type each, so that two of them cannot be swapped in a call.
//!
//! Who is who in SMC-D version 2:
//!
//! | Type | Names |
//! |---|---|
//! | [`ExtendedGid`] | an Emulated-ISM device, for us: one process. 128 bits, sent as two 64-bit halves |
//! | [`Gid`] | a native ISM device, or the first half of an extended GID |
//! | [`Chid`] | the channel, that is the fabric, such a device sits on |
//! | [`DmbToken`] | one receive buffer (DMB) of such a device |
//! | [`LinkId`] | a link group, in the numbering of whoever sent it |
//! | [`Eid`] | a group of computers that want to talk SMC to each other |
//!
//! [`PeerId`], [`Mac`] and [`RoceGid`] belong to SMC-R; the Proposal carries them as well.

use core::{fmt, str};

use crate::Error;

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

/// An SMC-D link group, in the numbering of whoever sent it. To everyone else it is opaque.
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

    /// Itself, if it obeys the rules for UEIDs.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with the first offending byte.
    pub fn checked_ueid(self) -> Result<Self, Error> {
        let name = self.0.trim_ascii_end();
        let first_is_good = |first: u8| first.is_ascii_uppercase() || first.is_ascii_digit();
        let is_good = |byte: u8| first_is_good(byte) || byte == b'.' || byte == b'-';
        let offender = match name {
            [] => Some(0),
            [first, ..] if !first_is_good(*first) => Some(*first),
            _ => name.iter().copied().find(|byte| !is_good(*byte)),
        };
        // Padding is blanks; what else `trim_ascii_end` strips is not allowed.
        let padding = &self.0[name.len()..];
        match offender.or_else(|| padding.iter().copied().find(|byte| *byte != b' ')) {
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
    fn a_peer_id_shows_instance_and_mac() {
        let peer_id = PeerId([0xB5, 0x2F, 0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(peer_id.to_string(), "b52f-52:54:00:00:00:01");
    }
}
