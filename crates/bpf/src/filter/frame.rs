//! What the programs for packets begin with: who asks, the packet's context, and where their stack has what.

use sidestep_filter::graph::KEY_WORDS;

/// Where the kernel asks about a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// At its socket, for the socket's cgroup.
    Socket,
    /// At the interface by which it leaves. It has no socket.
    Interface,
}

/// What the kernel is answered.
#[derive(Clone, Copy)]
pub(super) struct Answers {
    pub(super) pass: i32,
    pub(super) drop: i32,
}

impl Hook {
    /// *Source*: `TCX_NEXT` and `TCX_DROP` of `linux/bpf.h`; with the first, programs of others are asked as well.
    pub(super) fn answers(self) -> Answers {
        match self {
            Self::Socket => Answers { pass: 1, drop: 0 },
            Self::Interface => Answers { pass: -1, drop: 2 },
        }
    }
}

/// `struct __sk_buff` of `linux/bpf.h`.
pub(super) mod skb {
    pub(in super::super) const LEN: i16 = 0;
    pub(in super::super) const PROTOCOL: i16 = 16;
    /// The interface that it came in by; 0: it was made here.
    pub(in super::super) const INGRESS_IFINDEX: i16 = 36;
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

/// The verdict of what is best so far.
pub(super) const VERDICT: i16 = HEADER - 16;

pub(super) fn key(word: usize) -> i16 {
    KEY + 4 * word as i16
}
