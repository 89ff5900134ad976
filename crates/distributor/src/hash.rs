//! The place of a connection in a table: a hash of the client's address and port.
//!
//! Its definition is the distributor's own, so that each data path, in the kernel and beside it, finds the
//! same place, on machines of either byte order. Ports of one client differ in few bits, and Linux gives
//! clients even ones before odd ones, so each bit of the input has to reach each bit of the hash.

use std::net::IpAddr;

/// A word is mixed in by an exclusive or, then this product and this shift.
pub const MULTIPLIER: u32 = 0x9e37_79b1;
/// The shift behind each word.
pub const WORD_SHIFT: u32 = 15;
/// The steps at the end: a shift and a product each, as MurmurHash3 has them.
pub const FINAL: [(u32, u32); 2] = [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35)];
/// The last shift.
pub const LAST_SHIFT: u32 = 16;

/// The hash of a client's end of a connection. An address of IPv4 counts in its mapped form, so that a
/// client has one place whatever family its server sees.
#[must_use]
pub fn of_client(address: IpAddr, port: u16) -> u32 {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let octets = address.octets();
    let words =
        octets.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    of_words(words.chain([port.into()]))
}

fn of_words(words: impl Iterator<Item = u32>) -> u32 {
    let mix = |hash: u32, word: u32| {
        let hash = (hash ^ word).wrapping_mul(MULTIPLIER);
        hash ^ (hash >> WORD_SHIFT)
    };
    let step =
        |hash: u32, (shift, factor): (u32, u32)| (hash ^ (hash >> shift)).wrapping_mul(factor);
    let hash = FINAL.into_iter().fold(words.fold(0, mix), step);
    hash ^ (hash >> LAST_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program in the kernel has the same steps: a change here is one there.
    #[test]
    fn the_hash_is_what_it_was() {
        let of = |address: &str, port| of_client(address.parse().unwrap(), port);
        assert_eq!(of("127.0.0.1", 40_000), of("::ffff:127.0.0.1", 40_000));
        assert_ne!(of("127.0.0.1", 40_000), of("127.0.0.1", 40_001));
        assert_ne!(of("127.0.0.1", 40_000), of("127.0.0.2", 40_000));
    }

    /// Even ports of one client, as Linux gives them.
    #[test]
    fn ports_of_one_client_spread() {
        let mut counts = [0; 16];
        for port in (32_768..60_999).step_by(2) {
            counts[of_client(IpAddr::from([127, 0, 0, 1]), port) as usize % 16] += 1;
        }
        let fair = (60_999 - 32_768) / 2 / 16;
        assert!(
            counts.iter().all(|count| (fair * 85 / 100..fair * 115 / 100).contains(count)),
            "{counts:?}"
        );
    }
}
