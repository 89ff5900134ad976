//! The TCP option by which both ends show that they know SMC.
//!
//! A client that wants SMC puts it into its SYN, a server that wants it too into its SYN-ACK. Only
//! if both did do CLC messages follow; otherwise the connection is plain TCP from its first byte.
//!
//! | Off | Len | Field | Value |
//! |---|---|---|---|
//! | 0 | 1 | kind | 254, an experiment in the sense of RFC 6994 |
//! | 1 | 1 | length | 6 |
//! | 2 | 4 | ExID | `E2D4C3D9`, "SMCR" in EBCDIC |
//!
//! Others make experiments with kind 254 as well, TCP Fast Open for one: the ExID tells them apart.
//!
//! *Source*: RFC 7609 §A.1; Linux `net/ipv4/tcp_input.c`.

use crate::clc::Eyecatcher;

/// The kind of an experimental option.
const KIND: u8 = 254;
/// The end of the options; what follows is padding.
const END: u8 = 0;
/// One byte of padding, the only other option without a length.
const NOP: u8 = 1;

/// The option, as it is sent.
pub const BYTES: [u8; 6] = {
    let [e, f, g, h] = Eyecatcher::SmcR.to_bytes();
    [KIND, 6, e, f, g, h]
};

/// What the library and the programs of the agent, which write the option, say to each other about a
/// socket: options for `setsockopt` whose value does not matter. The programs hear them before the
/// kernel does. Without them the kernel answers `ENOPROTOOPT`, as they do when they have nothing to
/// say.
pub mod question {
    /// "SMCO". No protocol of Linux has this level.
    pub const LEVEL: i32 = i32::from_be_bytes(*b"SMCO");
    /// Before `connect` and `listen`: this socket wants the option.
    pub const MARK: i32 = 1;
    /// After `listen`: clients may be told to ask this listener.
    pub const ANNOUNCE: i32 = 2;
    /// Of a connection: have both ends sent the option? If one of them could have and has not, the
    /// answer is `EPERM`.
    pub const IS_AGREED: i32 = 3;
}

/// Looks for the option among `options`, those of a TCP header; returns its length, which should be
/// that of [`BYTES`]. What comes after an option that is cut off or shorter than two bytes is not
/// looked at.
#[must_use]
pub fn find(mut options: &[u8]) -> Option<u8> {
    loop {
        match *options {
            [NOP, ref rest @ ..] => options = rest,
            [] | [END, ..] => return None,
            [kind, length, ..] => {
                let (option, rest) = options.split_at_checked(length.into())?;
                let data = option.get(2..)?;
                if kind == KIND && data.starts_with(&BYTES[2..]) {
                    return Some(length);
                }
                options = rest;
            }
            [_] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_option_of_linux_is_found_behind_others() {
        // MSS, SACK permitted, timestamps, NOP, window scale, NOP, NOP, SMC: as captured.
        let options = [
            2, 4, 5, 0xB4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 6, 1, 1, 0xFE, 6, 0xE2,
            0xD4, 0xC3, 0xD9,
        ];
        assert_eq!(find(&options), Some(6));
        assert_eq!(find(&options[..27]), None, "cut off");
        assert_eq!(find(&options[..20]), None);
        assert_eq!(find(&BYTES), Some(6));
    }

    #[test]
    fn other_experiments_are_not_it() {
        assert_eq!(find(&[254, 6, 0xF9, 0x89, 1, 2]), None, "TCP Fast Open");
        assert_eq!(find(&[253, 6, 0xE2, 0xD4, 0xC3, 0xD9]), None);
        assert_eq!(find(&[254, 5, 0xE2, 0xD4, 0xC3, 0xD9]), None);
        assert_eq!(find(&[254, 8, 0xE2, 0xD4, 0xC3, 0xD9, 0, 0]), Some(8));
    }

    #[test]
    fn padding_and_nonsense_end_the_search() {
        let after = |first: &[u8]| find(&first.iter().chain(&BYTES).copied().collect::<Vec<_>>());
        assert_eq!(after(&[NOP; 10]), Some(6));
        for first in [&[END][..], &[5, 0], &[5, 1], &[5, 40], &[254, 2, END]] {
            assert_eq!(after(first), None, "{first:?}");
        }
        for kind in 0..=u8::MAX {
            assert_eq!(find(&[kind]), None);
        }
    }
}
