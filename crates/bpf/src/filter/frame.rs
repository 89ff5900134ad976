//! What the programs for packets begin with: who asks, the packet's context and socket, where their stack has what, and how a header is read.

use sidestep_filter::graph::KEY_WORDS;

use crate::assembler::Register::{R0, R1, R3, R4, R5, R6, R10};
use crate::assembler::{Assembler, Helper};

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

/// One of the ways of packets.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) gate: &'static str,
    pub(super) judge: &'static str,
    /// The programs of the sets.
    pub(super) judges: &'static str,
    pub(super) section: &'static str,
    /// As the key of a packet has it.
    pub(super) number: i32,
    pub(super) hook: Hook,
}

/// `struct bpf_sock` and `struct bpf_tcp_sock`.
pub(super) mod sock {
    pub(in super::super) const TYPE: i16 = 8;
    pub(in super::super) const PROTOCOL: i16 = 12;
    pub(in super::super) const MARK: i16 = 16;
    pub(in super::super) const STATE: i16 = 72;
    pub(in super::super) const STREAM: i32 = 1;
    pub(in super::super) const TCP: i32 = 6;
    pub(in super::super) const UDP: i32 = 17;
    /// `TCP_ESTABLISHED`, `TCP_FIN_WAIT1`, `TCP_FIN_WAIT2`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`.
    pub(in super::super) const CONNECTED: [i32; 6] = [1, 4, 5, 8, 9, 11];
    pub(in super::super) const SEGMENTS_IN: i16 = 56;
    pub(in super::super) const BYTES_RECEIVED: i16 = 80;
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
/// A header that was read: the 40 bytes of IPv6 and the ports behind them at most.
pub(super) const HEADER: i16 = PLACE - 48;

/// The verdict of what is best so far.
pub(super) const VERDICT: i16 = HEADER - 16;

pub(super) fn key(word: usize) -> i16 {
    KEY + 4 * word as i16
}

/// Reads `len` bytes at offset `R2` of the packet, from the header of IP on. If it is shorter it goes to the label.
pub(super) fn load_header(a: &mut Assembler, hook: Hook, len: i32, shorter: &'static str) {
    /// `BPF_HDR_START_NET`.
    const FROM_IP: i32 = 1;
    a.mov(R1, R6);
    a.address(R3, R10, HEADER);
    a.mov_immediate(R4, len);
    match hook {
        Hook::Socket => a.call(Helper::SkbLoadBytes),
        // There the packet begins with the frame's header, of whatever length.
        Hook::Interface => {
            a.mov_immediate(R5, FROM_IP);
            a.call(Helper::SkbLoadBytesRelative);
        }
    }
    a.jump_if_negative(R0, shorter);
}
