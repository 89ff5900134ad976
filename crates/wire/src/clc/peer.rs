//! What a peer says of itself: the release it speaks, its operating system, its features.

use core::fmt;

/// Feature mask, bit 0: the sender knows Emulated-ISM devices and their 128-bit GIDs.
pub const FEATURE_EMULATED_ISM: u16 = 0x0001;

/// The release of SMC version 2 a peer speaks, four bits on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Release(
    /// `code <= 15`
    u8,
);

impl Release {
    /// Version 2.0.
    pub const V2_0: Self = Self(0);
    /// Version 2.1: connection and link limits, features, 128-bit GIDs.
    pub const V2_1: Self = Self(1);

    /// The release in the low four bits of `code`.
    #[must_use]
    pub const fn from_low_bits(code: u8) -> Self {
        Self(code & 0x0F)
    }

    /// The four bits on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "2.{}", self.0)
    }
}

/// The operating system of a peer, four bits on the wire. Any value may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OsType(
    /// `code <= 15`
    u8,
);

impl OsType {
    /// Not stated, as in a version 1 Decline.
    pub const NONE: Self = Self(0);
    /// z/OS.
    pub const ZOS: Self = Self(1);
    /// Linux.
    pub const LINUX: Self = Self(2);
    /// AIX.
    pub const AIX: Self = Self(3);
    /// Something else.
    pub const UNKNOWN: Self = Self(15);

    /// The type in the low four bits of `code`.
    #[must_use]
    pub const fn from_low_bits(code: u8) -> Self {
        Self(code & 0x0F)
    }

    /// The four bits on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}
