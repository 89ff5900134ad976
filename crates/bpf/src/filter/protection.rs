//! Rules with `tls`: what they permit has to be protected.
//!
//! That a connection is, the gateway says, which speaks TLS on its socket: it marks the socket before the first record
//! ([`GATEWAY_MARK`]). Of other connections such a rule lets segments without bytes pass, so they begin and end, and no byte leaves.
//!
//! The kernel takes a mark (`SO_MARK`) from a process with CAP_NET_ADMIN or, since Linux 5.17, CAP_NET_RAW, so an ordinary program cannot
//! give its socket one. It stays with the socket whatever rules come later, and when the socket goes to another process.
//!
//! # What arrives before the gateway has the connection
//!
//! A client's first record may be there before the program has accepted the connection and the gateway has it. To drop it would cost
//! a fifth of a second, until TCP sends it again. So it passes if it begins as a handshake of TLS does, or as CLC, behind which TLS goes by
//! SMC-R, and what comes behind it, up to [`EARLY_MAX`] bytes. TCP gives a program nothing before the first byte, so a program
//! that speaks no TLS is never given a stream that begins otherwise, and no answer of it leaves.

use sidestep_filter::Graph;
use sidestep_filter::graph::{DENIES, NEEDS_TLS, field};
use sidestep_wire::clc::Eyecatcher;
use sidestep_wire::verdict::GATEWAY_MARK;

use super::frame::{HEADER, Hook, Way, key, load_header, skb, sock};
use crate::assembler::Register::{R0, R1, R2, R6, R7, R8, R9, R10};
use crate::assembler::{Assembler, Helper, Register};

/// Bytes that a connection may have received before the gateway has it: the longest handshake of TLS that programs send first
/// is a record.
const EARLY_MAX: i32 = 16 << 10;
/// Bytes of a header of IPv4 without options.
const IP_LEN: i32 = 20;
/// Bytes of a header of TCP without options.
const TCP_LEN: i32 = 20;
/// Where it has its length, in words, in the upper four bits.
const LEN_AT: i16 = 12;
/// Bytes that are looked at.
const BEGIN_LEN: i32 = 3;
/// A record of TLS begins with its kind, here that of a handshake, and the version, whose first byte is 3.
const HANDSHAKE: i32 = 22;
const VERSION: i32 = 3;

/// Goes to the label if `socket` is protected.
pub(super) fn pass_protected(a: &mut Assembler, socket: Register, protected: &'static str) {
    a.load_32(R1, socket, sock::MARK);
    a.jump_if_equal(R1, GATEWAY_MARK.cast_signed(), protected);
}

/// Has verdict `R7` deny where it asks for TLS and the packet is of a connection without. Of one that has it, it asks no more, so
/// that it can be kept.
pub(super) fn judge(a: &mut Assembler, graph: &Graph, way: Way) {
    if !graph.has(NEEDS_TLS) {
        return;
    }
    a.mov(R1, R7);
    a.and_immediate(R1, NEEDS_TLS as i32);
    a.jump_if_equal(R1, 0, "met");
    if way.hook == Hook::Socket {
        judge_segment(a, way);
    }
    a.label("not protected");
    a.or_immediate(R7, DENIES as i32);
    a.store_32(R10, key(field::BEST), R7);
    a.label("met");
}

fn judge_segment(a: &mut Assembler, way: Way) {
    load_transport(a, way);
    a.mov(R2, R8);
    load_header(a, way.hook, TCP_LEN, "not protected");
    a.load_8(R1, R10, HEADER + LEN_AT);
    a.shift_right_immediate(R1, 4);
    a.shift_left_immediate(R1, 2);
    a.add(R8, R1);
    a.label("connection");
    a.load_64(R1, R6, skb::SK);
    a.jump_if_equal(R1, 0, "without bytes");
    a.call(Helper::SkFullsock);
    a.jump_if_equal(R0, 0, "without bytes");
    a.mov(R9, R0);
    pass_protected(a, R9, "protected");
    if way.number == 0 {
        judge_early(a, way);
    }
    a.label("without bytes");
    a.load_32(R1, R6, skb::LEN);
    a.jump_if_beyond(R1, R8, "not protected");
    a.jump("met");
    a.label("protected");
    a.and_immediate(R7, !NEEDS_TLS.cast_signed());
    a.jump("met");
}

/// `R8` = where the header of TCP begins. It is found anew, because a number of which the verifier knows something on every way here
/// would have it look at all that follows once for each. With extension headers before it a segment counts as one with bytes.
fn load_transport(a: &mut Assembler, way: Way) {
    const NEXT_HEADER: i16 = 6;
    a.mov_immediate(R2, 0);
    load_header(a, way.hook, IP_LEN, "not protected");
    a.load_32(R1, R6, skb::PROTOCOL);
    a.jump_if_equal(R1, skb::IPV4, "options of ipv4");
    a.load_8(R1, R10, HEADER + NEXT_HEADER);
    a.mov_immediate(R8, 40);
    a.jump_if_equal(R1, sock::TCP, "transport");
    a.mov_immediate(R8, 0);
    a.jump("connection");
    a.label("options of ipv4");
    a.load_8(R8, R10, HEADER);
    a.and_immediate(R8, 0x0f);
    a.shift_left_immediate(R8, 2);
    a.label("transport");
}

/// Goes to `met` with a segment that is one of the first, whose bytes begin at `R8`, if the stream begins as TLS or CLC.
fn judge_early(a: &mut Assembler, way: Way) {
    a.mov(R1, R9);
    a.call(Helper::TcpSock);
    a.jump_if_equal(R0, 0, "without bytes");
    a.load_64(R1, R0, sock::BYTES_RECEIVED);
    a.jump_if_above(R1, EARLY_MAX, "without bytes");
    a.jump_if_not_equal(R1, 0, "met");
    a.mov(R2, R8);
    load_header(a, way.hook, BEGIN_LEN, "without bytes");
    a.load_8(R1, R10, HEADER);
    a.jump_if_equal(R1, HANDSHAKE, "begins as tls");
    for (at, byte) in (0..BEGIN_LEN as i16).zip(Eyecatcher::SmcR.to_bytes()) {
        a.load_8(R1, R10, HEADER + at);
        a.jump_if_not_equal(R1, byte.into(), "without bytes");
    }
    a.jump("met");
    a.label("begins as tls");
    a.load_8(R1, R10, HEADER + 1);
    a.jump_if_not_equal(R1, VERSION, "without bytes");
    a.jump("met");
}

/// Has verdict `R7` about a connection that is asked about deny where it asks for TLS and the socket at `R9` has none.
pub(super) fn judge_asked(a: &mut Assembler, graph: &Graph) {
    if !graph.has(NEEDS_TLS) {
        return;
    }
    a.mov(R1, R7);
    a.and_immediate(R1, NEEDS_TLS as i32);
    a.jump_if_equal(R1, 0, "met");
    pass_protected(a, R9, "met");
    a.jump("drop");
    a.label("met");
}
