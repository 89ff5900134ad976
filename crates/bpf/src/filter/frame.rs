//! What the programs for packets begin with: the packet's context, and where their stack has what.

use sidestep_filter::graph::KEY_WORDS;

/// `struct __sk_buff` of `linux/bpf.h`.
pub(super) mod skb {
    pub(in super::super) const LEN: i16 = 0;
    pub(in super::super) const PROTOCOL: i16 = 16;
    pub(in super::super) const IFINDEX: i16 = 40;
    pub(in super::super) const SK: i16 = 168;
    /// Ethernet's numbers in the network's order.
    pub(in super::super) const IPV4: i32 = u16::from_ne_bytes([0x08, 0x00]) as i32;
    pub(in super::super) const IPV6: i32 = u16::from_ne_bytes([0x86, 0xdd]) as i32;
}

// Where the stack has what.
pub(super) const KEY: i16 = -4 * KEY_WORDS as i16;
/// The place of a map that is looked up.
pub(super) const PLACE: i16 = KEY - 8;
/// A header that was read: the 40 bytes of IPv6 at most.
pub(super) const HEADER: i16 = PLACE - 40;

pub(super) fn key(word: usize) -> i16 {
    KEY + 4 * word as i16
}
