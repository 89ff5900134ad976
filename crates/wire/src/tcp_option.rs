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
    /// answer is `EPERM`; if they have and the other one is another host's,
    /// [`IS_REMOTE`](super::IS_REMOTE).
    pub const IS_AGREED: i32 = 3;
    /// In place of [`MARK`]: this socket wants the option also with other hosts, because CLC can go
    /// over its connection. Holds for one `connect`, or one `listen`. A program that has said so of a
    /// listener, announced or not, has to ask [`IS_AGREED`] of each accepted socket. Linux 5.18.
    pub const MARK_FOR_HOSTS: i32 = 4;
    /// In place of [`ANNOUNCE`], after [`MARK_FOR_HOSTS`]: clients of other hosts may be answered, and no client of this one
    /// is told to ask. Linux 5.18.
    pub const ANNOUNCE_TO_HOSTS: i32 = 5;
    /// In place of [`MARK`], before `connect`: this socket wants the option with other hosts, and not with its own. Linux 5.18.
    pub const MARK_TO_HOSTS: i32 = 6;
    /// Of a connection: part 0 of its [identity](super::Identity); the next numbers ask for the other
    /// [`PARTS`](super::Identity::PARTS). The answer is an error number, [`super::Identity::ANSWER`]
    /// and the part's bits.
    pub const IDENTITY: i32 = 16;
}

/// The answer to [`question::IS_AGREED`] if the option was agreed with another host: `EREMOTE`.
pub const IS_REMOTE: i32 = 66;

/// Which connection it is, in the words of both kernels' TCP: the sequence numbers of the first byte in
/// each direction, which both ends know from the handshake.
///
/// They are what a segment must fit to belong to the connection, so they are the same at its two ends
/// and at no other two: a proxy that makes two connections of one has two identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Of the client's first byte.
    pub client: u32,
    /// Of the server's first byte.
    pub server: u32,
}

impl Identity {
    /// Questions for one identity.
    pub const PARTS: usize = 6;
    /// Bits of an answer: an error number has twelve, of which this leaves those below
    /// [`ANSWER`](Self::ANSWER) to the kernel's own errors.
    pub const PART_BITS: u32 = 11;
    /// The answer whose bits are all 0.
    pub const ANSWER: i32 = 1024;

    /// Puts the answers to the questions together; `None` if one of them is none.
    ///
    /// The program tells `rcv_nxt - bytes_received`, which is the peer's first byte, above `snd_una -
    /// bytes_acked`, which is the own first byte on the accepting side, and the SYN before it on the
    /// connecting one: there the kernel counts that the SYN was acknowledged.
    #[must_use]
    pub fn from_answers(answers: [i32; Self::PARTS], is_server: bool) -> Option<Self> {
        let mut bits = 0u128;
        for (part, answer) in answers.into_iter().enumerate() {
            let value = answer.checked_sub(Self::ANSWER).filter(|it| it >> Self::PART_BITS == 0)?;
            bits |= (value as u128) << (part as u32 * Self::PART_BITS);
        }
        let (peer, own) = ((bits >> 32) as u32, bits as u32);
        Some(if is_server {
            Self { client: peer, server: own }
        } else {
            Self { client: own.wrapping_add(1), server: peer }
        })
    }
}

const _: () = assert!(Identity::PARTS as u32 * Identity::PART_BITS >= 64);
// The kernel passes on error numbers up to 4095 (`MAX_ERRNO`).
const _: () = assert!(Identity::ANSWER + (1 << Identity::PART_BITS) <= 4096);

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

    #[test]
    fn both_ends_put_the_same_identity_together() {
        let answers = |peer: u32, own: u32| {
            let bits = u64::from(peer) << 32 | u64::from(own);
            core::array::from_fn(|part| {
                let bits = bits >> (part as u32 * Identity::PART_BITS);
                Identity::ANSWER + (bits as i32 & ((1 << Identity::PART_BITS) - 1))
            })
        };
        for (client, server) in [(0, 0), (1, u32::MAX), (0xdead_beef, 0x1234_5678)] {
            let expected = Some(Identity { client, server });
            let syn = client.wrapping_sub(1);
            assert_eq!(Identity::from_answers(answers(server, syn), false), expected);
            assert_eq!(Identity::from_answers(answers(client, server), true), expected);
        }
    }

    #[test]
    fn what_the_kernel_answers_is_no_identity() {
        for error in [0, 1, 92, Identity::ANSWER - 1, Identity::ANSWER + 0x800, -1, i32::MIN] {
            let mut answers = [Identity::ANSWER; Identity::PARTS];
            answers[3] = error;
            assert_eq!(Identity::from_answers(answers, true), None, "{error}");
        }
    }
}
