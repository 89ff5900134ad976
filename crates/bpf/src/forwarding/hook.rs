//! Where the program of the distributor is asked, and what differs there.
//!
//! ```text
//!   interface ──> XDP ───────────────> traffic control ───────────────> the kernel
//!                  │ pass: not ours, or     │ next: not ours
//!                  │ not to be done here    │
//!                  └──> out again           └──> out again, or through a tunnel
//! ```
//!
//! The decision is written once ([`super::programs`]); each hook reads and writes a packet in its own way. The program of XDP comes
//! before that of traffic control, and leaves to it what it cannot do: tunnels, packets for this host itself, questions of neighbours, IPv4
//! with options, what begins without a target. It leaves them before it has noted or counted anything, so that the other program
//! decides as if it were alone. So a service is done by XDP only while all of its targets are on the link (`direct`).
//!
//! | | Traffic control | XDP |
//! |---|---|---|
//! | what it gets | a packet, whole even if it is yet to be cut into segments, and what the kernel knows of it | the bytes of a frame |
//! | for whom a frame is | the kernel says so | the frame's address is compared with the interface's |
//! | a checksum that the sender has left to an interface | stays open | would be taken for whole, so that the target drops the packet: left to traffic control. In the generic mode it stays open |
//!
//! # Frames on veth
//!
//! A frame that goes back by `XDP_TX` wakes the other end of a veth pair only if that one has a program of XDP as well. One that is redirected
//! to the interface by which it came wakes any other end that receives by NAPI, which it does with GRO, too. Other drivers need not
//! be able to have frames redirected to them, and go a shorter way by `XDP_TX`.
//!
//! # Checksums that are left open
//!
//! On veth a packet comes as its sender has made it. One that leaves the checksum to its interface has put the sum of the pseudo header
//! there. A whole checksum has that value by chance, once in 65 536 packets, and traffic control sends these on as well.
//!
//! *Source*: `struct xdp_md` and `enum xdp_action` of `linux/bpf.h`; RFC 9293 section 3.1 and RFC 8200 section 8.1 (pseudo header).

use super::layout::{
    ADDRESSES_OF_FRAME, DIRECT, FRAME_HEAD, HEADER, KIND, OWN_LINK, SUM, kind, tally, tally_one,
};
use crate::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R8, R9, R10};
use crate::assembler::{Assembler, Helper};
use crate::packet::{self, skb, xdp};
use crate::tables::programs::{self as tables, CLIENT, NUMBER, SERVICE, client, service};

/// Where a program is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// Traffic control.
    Tc,
    /// XDP of the interface's driver.
    Native,
    /// The same on veth.
    Veth,
    /// XDP of the kernel, for any interface.
    Generic,
}

impl Hook {
    pub(super) const ALL: [Self; 4] = [Self::Tc, Self::Native, Self::Veth, Self::Generic];

    /// What the program is called.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tc => "forward",
            Self::Native => "forward_native",
            Self::Veth => "forward_veth",
            Self::Generic => "forward_generic",
        }
    }

    /// Its kind, for the loader: of XDP one that takes frames of several pieces.
    pub(super) const fn section(self) -> &'static str {
        match self {
            Self::Tc => "classifier",
            Self::Native | Self::Veth | Self::Generic => "xdp.frags",
        }
    }

    /// `R1` = the type of the frame.
    pub(super) fn load_frame_type(self, a: &mut Assembler) {
        if self == Self::Tc {
            a.load_32(R1, R6, skb::PROTOCOL);
            return;
        }
        a.mov_immediate(R2, 0);
        self.load(a, FRAME_HEAD, packet::FRAME_LEN);
        a.load_16(R1, R10, FRAME_HEAD + packet::FRAME_TYPE);
    }

    /// Puts so many bytes from offset `R2` of the packet on the stack. A packet that is shorter passes.
    pub(super) fn load(self, a: &mut Assembler, to: i16, len: i32) {
        a.mov(R1, R6);
        a.address(R3, R10, to);
        a.mov_immediate(R4, len);
        a.call(match self {
            Self::Tc => Helper::SkbLoadBytes,
            Self::Native | Self::Veth | Self::Generic => Helper::XdpLoadBytes,
        });
        a.jump_if_negative(R0, "pass");
    }

    /// A frame that is not for this host alone passes.
    pub(super) fn pass_others(self, a: &mut Assembler) {
        if self == Self::Tc {
            a.load_32(R1, R6, skb::PACKET_TYPE);
            a.jump_if_not_equal(R1, 0, "pass");
            return;
        }
        a.store_immediate_32(R10, NUMBER, 0);
        a.load_map(R1, OWN_LINK);
        a.address(R2, R10, NUMBER);
        a.call(Helper::MapLookup);
        a.jump_if_equal(R0, 0, "pass");
        a.load_32(R1, R0, 0);
        a.load_32(R2, R10, FRAME_HEAD);
        a.jump_if_different(R1, R2, "pass");
        a.load_16(R1, R0, 4);
        a.load_16(R2, R10, FRAME_HEAD + 4);
        a.jump_if_different(R1, R2, "pass");
    }

    /// A packet of IPv4 with options.
    pub(super) fn meet_options(self, a: &mut Assembler) {
        match self {
            Self::Tc => tally_one(a, tally::OPTIONS),
            Self::Native | Self::Veth | Self::Generic => a.jump("pass"),
        }
    }

    /// Where a question of a neighbour is answered.
    pub(super) const fn solicitations_go_to(self) -> &'static str {
        match self {
            Self::Tc => "solicitation",
            Self::Native | Self::Veth | Self::Generic => "pass",
        }
    }

    /// What is not to be decided here passes: of service `R7`, of which the packet is, of protocol `R9` from offset `R8` on.
    pub(super) fn admit(self, a: &mut Assembler) {
        if self == Self::Tc {
            return;
        }
        tables::find(a, DIRECT, service::INDEX, "pass");
        a.load_32(R1, R0, 0);
        a.jump_if_equal(R1, 0, "pass");
        if self != Self::Generic {
            pass_open_sum(a, self);
        }
    }

    /// `R8` = how long the packet is, with the frame's header.
    pub(super) fn load_len(self, a: &mut Assembler) {
        if self == Self::Tc {
            a.load_32(R8, R6, skb::LEN);
            return;
        }
        a.mov(R1, R6);
        a.call(Helper::XdpGetBuffLen);
        a.mov(R8, R0);
    }

    /// Where a packet goes that is for a target which is not on the link, before it is counted.
    pub(super) const fn tunnels_go_to(self) -> &'static str {
        match self {
            Self::Tc => "measure",
            Self::Native | Self::Veth | Self::Generic => "pass",
        }
    }

    /// Where one for this host itself goes, before it is counted.
    pub(super) const fn own_goes_to(self) -> &'static str {
        match self {
            Self::Tc => "own",
            Self::Native | Self::Veth | Self::Generic => "pass",
        }
    }

    /// The frame leaves by the interface by which it came, with the addresses on the stack.
    pub(super) fn send_on(self, a: &mut Assembler) {
        a.mov(R1, R6);
        a.mov_immediate(R2, 0);
        a.address(R3, R10, ADDRESSES_OF_FRAME);
        a.mov_immediate(R4, packet::FRAME_ADDRESSES_LEN);
        if self == Self::Tc {
            a.mov_immediate(R5, 0);
            a.call(Helper::SkbStoreBytes);
            a.jump_if_negative(R0, "drop");
            send_back(a);
            return;
        }
        a.call(Helper::XdpStoreBytes);
        a.jump_if_negative(R0, "drop");
        if self == Self::Veth {
            a.load_32(R1, R6, xdp::IFINDEX);
            a.mov_immediate(R2, 0);
            a.call(Helper::Redirect);
        } else {
            a.mov_immediate(R0, xdp::TX);
        }
        a.exit();
    }

    /// A packet without a target. The kernel refuses what begins, since no program listens there. It would reset what goes on.
    pub(super) fn strand(self, a: &mut Assembler) {
        if self == Self::Tc {
            tally_one(a, tally::STRANDED);
        }
        a.load_32(R1, R10, KIND);
        a.jump_if_equal(R1, kind::BEGINS, "pass");
        a.jump_if_equal(R1, kind::MAY_BEGIN, "pass");
        if self != Self::Tc {
            tally_one(a, tally::STRANDED);
        }
    }

    /// The last two ways out.
    pub(super) fn end(self, a: &mut Assembler) {
        let (drop, pass) = match self {
            Self::Tc => (skb::DROP, skb::NEXT),
            Self::Native | Self::Veth | Self::Generic => (xdp::DROP, xdp::PASS),
        };
        for (label, verdict) in [("drop", drop), ("pass", pass)] {
            a.label(label);
            a.mov_immediate(R0, verdict);
            a.exit();
        }
    }
}

/// In traffic control: the frame leaves by the interface by which it came.
pub(super) fn send_back(a: &mut Assembler) {
    a.load_32(R1, R6, skb::IFINDEX);
    a.mov_immediate(R2, 0);
    a.call(Helper::Redirect);
    a.exit();
}

/// A packet whose checksum is left to an interface is counted, and passes. Its header of IP on the stack has no options.
fn pass_open_sum(a: &mut Assembler, hook: Hook) {
    /// Where TCP and UDP have their checksums.
    const OF_TCP: i16 = 16;
    const OF_UDP: i16 = 6;
    /// Sums are those of two bytes each, in the order in which they stand: that of a number is the network's.
    const NETWORK_SHIFT: i32 = if cfg!(target_endian = "little") { 8 } else { 0 };
    const LESS_IPV4_LEN: i32 = 0xffff - u16::to_be(packet::IPV4_LEN as u16) as i32;
    a.load_32(R1, R10, KIND);
    a.jump_if_equal(R1, kind::TELLS, "whole sum");
    a.address(R2, R8, OF_TCP);
    a.jump_if_equal(R9, packet::TCP, "open sum");
    a.address(R2, R8, OF_UDP);
    a.label("open sum");
    hook.load(a, SUM, 2);
    // `R1` = the sum: the protocol, the length of what is behind IP, and both addresses. What makes one of IPv4 one of IPv6 adds nothing.
    a.mov(R1, R9);
    a.shift_left_immediate(R1, NETWORK_SHIFT);
    a.load_16(R2, R10, FRAME_HEAD + packet::FRAME_TYPE);
    a.jump_if_equal(R2, skb::IPV6, "len of ipv6");
    a.load_16(R2, R10, HEADER + packet::IPV4_TOTAL_LEN);
    a.add_immediate(R2, LESS_IPV4_LEN);
    a.jump("sum up");
    a.label("len of ipv6");
    a.load_16(R2, R10, HEADER + packet::IPV6_PAYLOAD_LEN);
    a.label("sum up");
    a.add(R1, R2);
    for word in [0, 4, 8, 12] {
        for address in [CLIENT + client::ADDRESS, SERVICE] {
            a.load_32(R2, R10, address + word);
            a.add(R1, R2);
        }
    }
    // Three times are enough for a sum of fewer than 37 bits.
    for _ in 0..3 {
        a.mov(R2, R1);
        a.and_immediate(R1, 0xffff);
        a.shift_right_immediate(R2, 16);
        a.add(R1, R2);
    }
    a.load_16(R2, R10, SUM);
    a.jump_if_different(R1, R2, "whole sum");
    tally_one(a, tally::OPEN_SUMS);
    a.jump("pass");
    a.label("whole sum");
}
