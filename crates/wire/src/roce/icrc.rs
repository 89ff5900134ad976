//! The check at the end of a RoCEv2 packet.
//!
//! ICRC is the CRC-32 of Ethernet over everything that no router may change, in which what
//! may be changed counts as ones:
//!
//! ```text
//!   8 × FF │ IP header, as sent, but TOS, TTL and checksum FF │ UDP header, but checksum FF
//!          │ BTH, but byte 4 FF │ everything else, the pad too
//! ```
//!
//! So the sender must know the IP identification before the kernel has chosen it. A socket that is
//! not connected and has `IP_PMTUDISC_PROBE` sends identification 0 and "don't fragment", and the
//! *k*-th segment of a GSO send has identification *k*.
//!
//! The receiver does not see the identification at all, and other senders choose it as they like.
//! But CRC is linear: the check of a packet with another identification differs by a number that
//! depends on the identification and on the bytes behind it only. [`Rollback`] undoes those bytes;
//! what is left is the identification, and in a damaged packet almost never anything that looks
//! like one. IPv6 has none.
//!
//! *Source*: InfiniBand Architecture Specification volume 1, §7.8.1, annex A17.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use super::{BTH_LEN, ICRC_LEN};

/// The addresses of a packet: what of its IP and UDP headers is not the same in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Where it comes from, and where it goes. Of one family.
    pub addresses: Addresses,
    /// UDP port of the sender; it is sent to [`PORT`](super::PORT).
    pub source_port: u16,
    /// UDP port of the receiver.
    pub destination_port: u16,
}

/// Source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Of IPv4.
    V4(Ipv4Addr, Ipv4Addr),
    /// Of IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// `None` for two of different families.
    #[must_use]
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4(source, destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6(source, destination)),
            _ => None,
        }
    }
}

/// What the check says about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it was sent; by IPv4 with this identification.
    Intact {
        /// 0 by IPv6.
        identification: u16,
    },
    /// It is not.
    Damaged,
}

const UDP_LEN: usize = 8;
const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
const UDP: u8 = 17;
const DONT_FRAGMENT: u8 = 0x40;
/// Before the IP header: what would be masked of InfiniBand's own.
const LOCAL_ROUTE: [u8; 8] = [0xFF; 8];

impl Envelope {
    /// The four bytes that belong behind a packet, which begins with its BTH and ends with its pad.
    #[must_use]
    pub fn icrc(&self, packet: &[u8], identification: u16) -> [u8; ICRC_LEN] {
        self.crc(packet, identification).to_le_bytes()
    }

    /// Checks the payload of a datagram, ICRC included. The identification that it will have if
    /// no router has changed it is tried first: that costs nothing.
    #[must_use]
    pub fn check(&self, datagram: &[u8], expected: u16, rollbacks: &mut impl Rollbacks) -> Verdict {
        let Some((packet, icrc)) = datagram.split_last_chunk() else { return Verdict::Damaged };
        let difference = self.crc(packet, expected) ^ u32::from_le_bytes(*icrc);
        match self.addresses {
            Addresses::V4(..) if difference == 0 => Verdict::Intact { identification: expected },
            Addresses::V4(..) => {
                let undone = V4_LEN - IDENTIFICATION_AT + UDP_LEN + packet.len();
                rollbacks.over(undone).identification(difference, expected)
            }
            Addresses::V6(..) if difference == 0 => Verdict::Intact { identification: 0 },
            Addresses::V6(..) => Verdict::Damaged,
        }
    }

    fn crc(&self, packet: &[u8], identification: u16) -> u32 {
        let (bth, rest) = packet.split_at(packet.len().min(BTH_LEN));
        // What is masked or small is put together first: a CRC goes fast only over many bytes.
        let mut head = Head::default();
        head.push(&LOCAL_ROUTE);
        let udp_len = (UDP_LEN + packet.len() + ICRC_LEN) as u16;
        match self.addresses {
            Addresses::V4(source, destination) => {
                let [id0, id1] = identification.to_be_bytes();
                let [len0, len1] = (udp_len + V4_LEN as u16).to_be_bytes();
                head.push(&[0x45, 0xFF, len0, len1, id0, id1, DONT_FRAGMENT, 0]);
                head.push(&[0xFF, UDP, 0xFF, 0xFF]);
                head.push(&source.octets());
                head.push(&destination.octets());
            }
            Addresses::V6(source, destination) => {
                let [len0, len1] = udp_len.to_be_bytes();
                head.push(&[0x6F, 0xFF, 0xFF, 0xFF, len0, len1, UDP, 0xFF]);
                head.push(&source.octets());
                head.push(&destination.octets());
            }
        }
        let [source0, source1] = self.source_port.to_be_bytes();
        let [destination0, destination1] = self.destination_port.to_be_bytes();
        let [len0, len1] = udp_len.to_be_bytes();
        head.push(&[source0, source1, destination0, destination1, len0, len1, 0xFF, 0xFF]);
        let reserved = head.len + RESERVED_AT;
        head.push(bth);
        if let Some(reserved) = head.bytes.get_mut(reserved) {
            *reserved = 0xFF;
        }
        let mut hasher = Hasher::new();
        hasher.update(&head.bytes[..head.len]);
        hasher.update(rest);
        hasher.finalize()
    }
}

/// Everything up to the end of the BTH.
struct Head {
    bytes: [u8; LOCAL_ROUTE.len() + V6_LEN + UDP_LEN + BTH_LEN],
    len: usize,
}

impl Default for Head {
    fn default() -> Self {
        Self { bytes: [0; LOCAL_ROUTE.len() + V6_LEN + UDP_LEN + BTH_LEN], len: 0 }
    }
}

impl Head {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// The byte of the BTH that routers may write into.
const RESERVED_AT: usize = 4;
/// Where the identification is in an IPv4 header; flags and fragment offset are behind it.
const IDENTIFICATION_AT: usize = 4;

/// What it takes to undo a number of zero bytes of a CRC: a linear map, a word for each bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rollback([u32; 32]);

/// Where rollbacks come from: packets have few lengths, and each costs a microsecond to make.
pub trait Rollbacks {
    /// The one over so many bytes.
    fn over(&mut self, bytes: usize) -> Rollback;
}

/// Makes each anew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uncached;

impl Rollbacks for Uncached {
    fn over(&mut self, bytes: usize) -> Rollback {
        Rollback::over(bytes)
    }
}

/// CRC-32, reflected.
const POLYNOMIAL: u32 = 0xEDB8_8320;

impl Rollback {
    /// Undoes nothing.
    const NOTHING: Self = {
        let mut images = [0; 32];
        let mut bit = 0;
        while bit < 32 {
            images[bit] = 1 << bit;
            bit += 1;
        }
        Self(images)
    };

    /// Undoes one zero bit: forward it is `c >> 1`, and the polynomial if a one falls out.
    /// The polynomial's highest bit is set, so the highest bit of the result tells whether it did.
    const ONE_BIT: Self = {
        let mut images = [0; 32];
        let mut bit = 0;
        while bit < 31 {
            images[bit] = 2 << bit;
            bit += 1;
        }
        images[31] = (POLYNOMIAL << 1) | 1;
        Self(images)
    };

    /// Undoes so many zero bytes, by repeated squaring.
    #[must_use]
    pub fn over(bytes: usize) -> Self {
        let (mut all, mut power) = (Self::NOTHING, Self::ONE_BIT);
        let mut bits = bytes * 8;
        while bits > 0 {
            if bits & 1 == 1 {
                all = power.after(&all);
            }
            power = power.after(&power);
            bits >>= 1;
        }
        all
    }

    fn after(&self, first: &Self) -> Self {
        Self(first.0.map(|image| self.apply(image)))
    }

    fn apply(&self, crc: u32) -> u32 {
        let used = self.0.iter().enumerate().filter(|(bit, _)| crc >> bit & 1 == 1);
        used.fold(0, |sum, (_, image)| sum ^ image)
    }

    /// The identification that explains a difference to the expected one and "don't fragment".
    /// The peer may not have set that flag. Undone are the four bytes from the identification on,
    /// too: what was added to a register of zero was those bytes themselves, the first one lowest.
    fn identification(&self, difference: u32, expected: u16) -> Verdict {
        let [id0, id1, flags, offset] = self.apply(difference).to_le_bytes();
        match (flags, offset) {
            (0 | DONT_FRAGMENT, 0) => {
                Verdict::Intact { identification: expected ^ u16::from_be_bytes([id0, id1]) }
            }
            _ => Verdict::Damaged,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn envelope(source: [u8; 4], destination: [u8; 4]) -> Envelope {
        Envelope {
            addresses: Addresses::V4(source.into(), destination.into()),
            source_port: 0xC121,
            destination_port: 0x12B7,
        }
    }

    const FIRST: [u8; 4] = [10, 0, 0, 1];
    const SECOND: [u8; 4] = [10, 0, 0, 2];

    /// Sent by Linux 6.12, with identifications 0x533E and 0xF26C.
    fn from_linux() -> [(Envelope, u16, Vec<u8>); 2] {
        [
            (envelope(SECOND, FIRST), 0x533E, hex("1100ffff00000011004aadb5 1f000001 aad4b4af")),
            (
                envelope(FIRST, SECOND),
                0xF26C,
                hex("0480ffff00000011804aadb5 212c000352540000000100000000000000000000ffff0a00000100
                     0011010000010102ff0000000000000000 e219900c"),
            ),
        ]
    }

    #[test]
    fn what_linux_has_sent_is_intact_and_shows_its_identification() {
        for (envelope, identification, datagram) in from_linux() {
            let expected = Verdict::Intact { identification };
            for tried in [0, 1, identification, 0xFFFF] {
                assert_eq!(envelope.check(&datagram, tried, &mut Uncached), expected);
            }
            let (packet, icrc) = datagram.split_last_chunk().unwrap();
            assert_eq!(envelope.icrc(packet, identification), *icrc);
        }
    }

    #[test]
    fn computed_vectors() {
        let send = [hex("0480ffff00000011804aadb5"), std::vec![0x41; 44]].concat();
        let envelope = envelope(FIRST, SECOND);
        for (identification, icrc) in
            [(0, "d8f8c623"), (1, "898f3f68"), (2, "7a1634b4"), (3, "2b61cdff")]
        {
            assert_eq!(envelope.icrc(&send, identification).to_vec(), hex(icrc));
        }
        let write = hex("0bb0ffff00000011804aadb6 1122334455667788 000003dc 00000005 aabbccdd
                         68656c6c6f000000");
        assert_eq!(envelope.icrc(&write, 0).to_vec(), hex("fed12052"));
    }

    #[test]
    fn ipv6_has_no_identification() {
        let addresses = Addresses::V6("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let envelope = Envelope { addresses, source_port: 0xC121, destination_port: 0x12B7 };
        let mut datagram = hex("1100ffff00000011004aadb5 1f000001 a8e55812");
        let expected = Verdict::Intact { identification: 0 };
        assert_eq!(envelope.check(&datagram, 0, &mut Uncached), expected);
        datagram[13] ^= 1;
        assert_eq!(envelope.check(&datagram, 0, &mut Uncached), Verdict::Damaged);
    }

    #[test]
    fn two_damaged_bits_never_look_like_an_identification() {
        for (envelope, _, datagram) in from_linux() {
            let bits = datagram.len() * 8;
            for (one, other) in (0..bits).map(|one| (one, (one * 7 + 13) % bits)) {
                let mut damaged = datagram.clone();
                damaged[one / 8] ^= 1 << (one % 8);
                damaged[other / 8] ^= 1 << (other % 8);
                // Byte 4 is not covered.
                if damaged != datagram && one / 8 != 4 && other / 8 != 4 {
                    assert_eq!(envelope.check(&damaged, 0, &mut Uncached), Verdict::Damaged);
                }
            }
        }
    }

    #[test]
    fn too_short_is_damaged() {
        let envelope = envelope(FIRST, SECOND);
        for len in 0..4 {
            assert_eq!(envelope.check(&[0; 4][..len], 0, &mut Uncached), Verdict::Damaged);
        }
    }
}
