//! How long a receive buffer is, as the four bits that say it.
//!
//! Accept and Confirm announce the length of the sender's receive buffer (RMBE; in SMC-D, DMBE) as
//! a code `x`, and the length is `2^(x + 14)` bytes: 16 KiB, 32 KiB, and so on up to 1 MiB for
//! code 6, the largest an SMC-D peer uses. With SMC-R any code may come: Linux goes up to 512 MiB,
//! code 15.

/// What errors call the code of SMC-D, of which some values are reserved.
pub(crate) const SMC_D_CODE: &str = "DMBE size code";

/// The length of a receive buffer, as its code on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmbeSize(
    /// `code <= 15`; of SMC-D, `code <= CODE_MAX`
    u8,
);

impl RmbeSize {
    /// The largest code of SMC-D: 1 MiB.
    pub const CODE_MAX: u8 = 6;
    /// 16 KiB, code 0.
    pub const MIN: Self = Self(0);
    /// 1 MiB, code 6.
    pub const MAX: Self = Self(Self::CODE_MAX);
    /// 64 KiB, what a program gets that sets no receive buffer length.
    pub const DEFAULT: Self = Self(2);

    /// The size with this code, if SMC-D has it.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code <= Self::CODE_MAX { Some(Self(code)) } else { None }
    }

    /// The size in the low four bits of `code`, for SMC-R.
    #[must_use]
    pub const fn from_low_bits(code: u8) -> Self {
        Self(code & 0x0F)
    }

    /// The size of exactly this many bytes, if SMC-D has it.
    #[must_use]
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        let mut code = 0;
        while code <= Self::CODE_MAX {
            if Self(code).bytes() == bytes {
                return Some(Self(code));
            }
            code += 1;
        }
        None
    }

    /// The buffer for a program that set `SO_RCVBUF` to `rcvbuf` bytes: the first of 32, 64, 128
    /// and 256 KiB and 1 MiB that is above it, or 1 MiB when none is. z/OS gives its programs
    /// these five sizes and no others, so 256 KiB gets 1 MiB.
    ///
    /// *Source*: IBM's performance paper on SMC-R of 2013.
    #[must_use]
    pub const fn for_receive_buffer(rcvbuf: usize) -> Self {
        let mut code = 1;
        while code < Self::CODE_MAX && Self(code).bytes() <= rcvbuf {
            code += if Self(code).bytes() == 256 * 1024 { 2 } else { 1 };
        }
        Self(code)
    }

    /// The four bits on the wire; at most [`CODE_MAX`](Self::CODE_MAX) in SMC-D.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The length in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << (self.0 + 14)
    }
}

impl Default for RmbeSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = assert!(RmbeSize::MIN.bytes() == 16 * 1024);
const _: () = assert!(RmbeSize::DEFAULT.bytes() == 64 * 1024);
const _: () = assert!(RmbeSize::MAX.bytes() == 1024 * 1024);

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn codes_and_bytes_are_inverse() {
        for code in 0..=RmbeSize::CODE_MAX {
            let size = RmbeSize::from_code(code).unwrap();
            assert_eq!(size.code(), code);
            assert_eq!(size.bytes(), (16 * KIB) << code);
            assert_eq!(RmbeSize::from_bytes(size.bytes()), Some(size));
        }
        assert_eq!(RmbeSize::from_code(7), None);
        assert_eq!(RmbeSize::from_low_bits(0xFF).bytes(), 512 * 1024 * KIB);
    }

    #[test]
    fn only_exact_lengths_have_a_code() {
        for bytes in [0, 1, 16 * KIB - 1, 16 * KIB + 1, 2048 * KIB, usize::MAX] {
            assert_eq!(RmbeSize::from_bytes(bytes), None, "{bytes}");
        }
    }

    #[test]
    fn a_receive_buffer_gets_the_first_size_above_it() {
        for (rcvbuf, kib) in [
            (0, 32),
            (32 * KIB - 1, 32),
            (32 * KIB, 64),
            (65_536, 128),
            (131_071, 128),
            (128 * KIB, 256),
            (256 * KIB - 1, 256),
            (256 * KIB + 1, 1024),
            (512 * KIB, 1024),
            (1024 * KIB, 1024),
            (usize::MAX, 1024),
        ] {
            assert_eq!(RmbeSize::for_receive_buffer(rcvbuf).bytes(), kib * KIB, "{rcvbuf}");
        }
    }

    /// The example of IBM's paper: a program with 256 KB has an RMBE of 1 MB.
    #[test]
    fn a_receive_buffer_of_256_kb_gets_a_megabyte_as_on_z_os() {
        assert_eq!(RmbeSize::for_receive_buffer(256 * KIB), RmbeSize::MAX);
    }
}
