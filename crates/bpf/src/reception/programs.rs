//! The programs of a target that is not on the distributor's link.
//!
//! ```text
//!   comes in ──> "unwrap"    is it for an address of ours, in the form of a tunnel? If not, the kernel goes on as ever
//!                            does its sender have the key, and is the packet within for a VIP? If not, it is counted and dropped
//!                            the outer headers go, and the kernel goes on with the client's packet
//!   leaves   ──> "announce"  a SYN-ACK of a VIP announces no longer segments than fit into a tunnel
//! ```
//!
//! What is in Geneve and not in the form of ours stays the kernel's: it may have another end of Geneve at the same port.
//!
//! What a tunnel's packet met on its way, congestion, is marked in the one within.
//!
//! *Source*: RFC 6040 section 4.2, RFC 9293 section 3.7.1.

use crate::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R8, R9, R10};
use crate::assembler::{Assembler, Helper};
use crate::key;
use crate::map::{MapDefinition, MapKind};
use crate::object_file::Program;
use crate::packet::{self, skb};
use crate::tables::programs::ARRAY;
use crate::tunnel::{self, Family, GENEVE_LEN, UDP_LEN, room};

pub(super) const UNWRAP: &str = "unwrap";
pub(super) const ANNOUNCE: &str = "announce";

/// Addresses of this host to which tunnels lead.
pub(super) const OWN: &str = "own";
/// Those of distributors, and the key of each.
pub(super) const DISTRIBUTORS: &str = "distributors";
pub(super) const VIPS: &str = "vips";
/// Counters, at these places.
pub(super) const RECEIVED: &str = "received";
pub(super) const TAKEN: i32 = 0;
pub(super) const REFUSED: i32 = 1;
/// How long segments may be, for each family; 0: as long as they are.
pub(super) const SEGMENTS: &str = "segments";

pub(super) fn maps() -> Vec<MapDefinition> {
    /// More than VIPs.
    const ADDRESSES_MAX: u32 = 256;
    let addresses = MapDefinition {
        name: OWN,
        kind: MapKind::Hash,
        key_len: 16,
        value_len: 4,
        entries_max: ADDRESSES_MAX,
        on_demand: false,
    };
    vec![
        addresses,
        MapDefinition { name: VIPS, ..addresses },
        MapDefinition { name: DISTRIBUTORS, value_len: 8, ..addresses },
        MapDefinition {
            name: RECEIVED,
            kind: MapKind::PerCpuArray,
            value_len: 8,
            entries_max: 2,
            ..ARRAY
        },
        MapDefinition { name: SEGMENTS, value_len: 4, entries_max: 2, ..ARRAY },
    ]
}

pub(super) fn all() -> [Program; 2] {
    let program =
        |name, code: Assembler| Program { name, section: "classifier", code: code.finish() };
    [program(UNWRAP, unwrap()), program(ANNOUNCE, announce())]
}

// Where the stack has what: addresses as keys, headers of IP, those of the tunnel, a word.
const SOURCE: i16 = -16;
const DESTINATION: i16 = SOURCE - 16;
const HEADER: i16 = DESTINATION - packet::IPV6_LEN as i16;
const INNER: i16 = HEADER - packet::IPV6_LEN as i16;
const TUNNEL_LEN: usize = UDP_LEN + GENEVE_LEN;
const TUNNEL: i16 = INNER - TUNNEL_LEN.next_multiple_of(8) as i16;
const WORD: i16 = TUNNEL - 8;

const FRAME: i32 = packet::FRAME_LEN;

/// `R6` is the context, `R8` is where the header behind that of IP begins.
fn unwrap() -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R1, R6, skb::PACKET_TYPE);
    a.jump_if_not_equal(R1, 0, "pass");
    a.load_32(R1, R6, skb::PROTOCOL);
    a.jump_if_equal(R1, skb::IPV6, "ipv6");
    a.jump_if_not_equal(R1, skb::IPV4, "pass");
    unwrap_ipv4(&mut a);
    a.label("ipv6");
    unwrap_ipv6(&mut a);
    a.label("taken");
    count(&mut a, TAKEN);
    a.jump("pass");
    a.label("refuse");
    count(&mut a, REFUSED);
    a.mov_immediate(R0, skb::DROP);
    a.exit();
    end(&mut a);
    a
}

fn end(a: &mut Assembler) {
    a.label("pass");
    a.mov_immediate(R0, skb::NEXT);
    a.exit();
}

fn unwrap_ipv4(a: &mut Assembler) {
    /// Version 4, without options.
    const PLAIN: i32 = 0x45;
    a.mov_immediate(R2, FRAME);
    load(a, HEADER, packet::IPV4_LEN);
    a.load_8(R1, R10, HEADER);
    a.jump_if_not_equal(R1, PLAIN, "pass");
    a.load_8(R1, R10, HEADER + packet::IPV4_PROTOCOL);
    a.jump_if_not_equal(R1, packet::UDP, "pass");
    a.load_32(R1, R10, HEADER + packet::IPV4_FRAGMENT);
    a.swap_to_big_endian_32(R1);
    a.and_immediate(R1, packet::IPV4_IS_FRAGMENT);
    a.jump_if_not_equal(R1, 0, "pass");
    key::store_mapped_ipv4(a, SOURCE, R10, HEADER + packet::IPV4_SOURCE);
    key::store_mapped_ipv4(a, DESTINATION, R10, HEADER + packet::IPV4_DESTINATION);
    check_tunnel(a, Family::Ipv4);
    load_inner(a, Family::Ipv4, packet::IPV4_LEN);
    key::store_mapped_ipv4(a, DESTINATION, R10, INNER + packet::IPV4_DESTINATION);
    a.load_8(R9, R10, INNER + packet::IPV4_PROTOCOL);
    a.jump_if_equal(R9, packet::ICMP, "for a vip 4");
    check_protocol(a, "for a vip 4");
    a.load_8(R8, R10, HEADER + 1);
    take_off(a, Family::Ipv4);
}

fn unwrap_ipv6(a: &mut Assembler) {
    a.mov_immediate(R2, FRAME);
    load(a, HEADER, packet::IPV6_LEN);
    a.load_8(R1, R10, HEADER + packet::IPV6_NEXT);
    a.jump_if_not_equal(R1, packet::UDP, "pass");
    key::store_ipv6(a, SOURCE, R10, HEADER + packet::IPV6_SOURCE);
    key::store_ipv6(a, DESTINATION, R10, HEADER + packet::IPV6_DESTINATION);
    check_tunnel(a, Family::Ipv6);
    load_inner(a, Family::Ipv6, packet::IPV6_LEN);
    key::store_ipv6(a, DESTINATION, R10, INNER + packet::IPV6_DESTINATION);
    a.load_8(R9, R10, INNER + packet::IPV6_NEXT);
    a.jump_if_equal(R9, packet::ICMPV6, "for a vip 6");
    check_protocol(a, "for a vip 6");
    // The second half of its class begins the second byte.
    a.load_8(R8, R10, HEADER + 1);
    a.shift_right_immediate(R8, 4);
    take_off(a, Family::Ipv6);
}

/// What is not in the form of our tunnels, or not for this host, passes. The sender has to have the key.
fn check_tunnel(a: &mut Assembler, family: Family) {
    const PORTS: i16 = TUNNEL;
    let geneve = TUNNEL + UDP_LEN as i16;
    a.mov_immediate(R2, FRAME + family.header_len() as i32);
    load(a, TUNNEL, TUNNEL_LEN as i32);
    a.load_32(R1, R10, PORTS);
    a.swap_to_big_endian_32(R1);
    a.and_immediate(R1, 0xffff);
    a.jump_if_not_equal(R1, tunnel::PORT.into(), "pass");
    for (at, word) in (geneve..).step_by(4).zip(tunnel::geneve(family)) {
        a.load_32(R1, R10, at);
        differs(a, word, "pass");
    }
    find(a, OWN, DESTINATION, "pass");
    find(a, DISTRIBUTORS, SOURCE, "refuse");
    for half in [0, 4] {
        a.load_32(R1, R0, half);
        a.load_32(R2, R10, geneve + tunnel::KEY as i16 + half);
        a.jump_if_different(R1, R2, "refuse");
    }
}

/// On to the label if `R1`, four bytes of a packet, is not this. Without a comparison of 64 bits, which extend a sign.
fn differs(a: &mut Assembler, bytes: [u8; 4], label: &'static str) {
    a.add_immediate_32(R1, i32::from_ne_bytes(bytes).wrapping_neg());
    a.jump_if_not_equal(R1, 0, label);
}

fn load_inner(a: &mut Assembler, family: Family, len: i32) {
    a.mov_immediate(R2, FRAME + family.overhead() as i32);
    load(a, INNER, len);
}

/// Protocol `R9` of a packet for a VIP is TCP or UDP, or goes to this label as well.
fn check_protocol(a: &mut Assembler, label: &'static str) {
    a.jump_if_equal(R9, packet::TCP, label);
    a.jump_if_not_equal(R9, packet::UDP, "refuse");
    a.label(label);
    find(a, VIPS, DESTINATION, "refuse");
}

/// Takes the outer headers off; `R8` has the marks of congestion.
fn take_off(a: &mut Assembler, family: Family) {
    const MARKS: i32 = 3;
    const MET_CONGESTION: i32 = 3;
    a.mov(R1, R6);
    a.mov_immediate(R2, -(family.overhead() as i32));
    a.mov_immediate(R3, room::BEHIND_FRAME);
    // The kernel cannot take them off several datagrams that are in one piece (GSO): of TCP alone it can.
    a.mov_immediate(R4, 0);
    a.call(Helper::SkbAdjustRoom);
    a.jump_if_negative(R0, "refuse");
    a.and_immediate(R8, MARKS);
    a.jump_if_not_equal(R8, MET_CONGESTION, "taken");
    a.mov(R1, R6);
    a.call(Helper::SkbEcnSetCe);
    a.jump("taken");
}

/// `R0` = what this map has of the address at `key` of the stack.
fn find(a: &mut Assembler, map: &'static str, key: i16, absent: &'static str) {
    a.load_map(R1, map);
    a.address(R2, R10, key);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, absent);
}

/// One more at this place.
fn count(a: &mut Assembler, place: i32) {
    a.store_immediate_32(R10, WORD, place);
    find(a, RECEIVED, WORD, "pass");
    a.mov_immediate(R1, 1);
    a.atomic_add_64(R0, 0, R1);
}

/// Puts so many bytes from offset `R2` of the packet on the stack. A packet that is shorter passes.
fn load(a: &mut Assembler, to: i16, len: i32) {
    a.mov(R1, R6);
    a.address(R3, R10, to);
    a.mov_immediate(R4, len);
    a.call(Helper::SkbLoadBytes);
    a.jump_if_negative(R0, "pass");
}

/// `R6` is the context, `R8` is where the header of TCP begins, `R9` the number of the family.
fn announce() -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R1, R6, skb::PROTOCOL);
    a.jump_if_equal(R1, skb::IPV6, "ipv6");
    a.jump_if_not_equal(R1, skb::IPV4, "pass");
    a.mov_immediate(R2, FRAME);
    load(&mut a, HEADER, packet::IPV4_LEN);
    key::store_mapped_ipv4(&mut a, SOURCE, R10, HEADER + packet::IPV4_SOURCE);
    a.load_8(R1, R10, HEADER + packet::IPV4_PROTOCOL);
    a.load_8(R8, R10, HEADER);
    a.and_immediate(R8, 0x0f);
    a.shift_left_immediate(R8, 2);
    a.add_immediate(R8, FRAME);
    a.mov_immediate(R9, Family::Ipv4 as i32);
    a.jump("protocol");
    a.label("ipv6");
    a.mov_immediate(R2, FRAME);
    load(&mut a, HEADER, packet::IPV6_LEN);
    key::store_ipv6(&mut a, SOURCE, R10, HEADER + packet::IPV6_SOURCE);
    a.load_8(R1, R10, HEADER + packet::IPV6_NEXT);
    a.mov_immediate(R8, FRAME + packet::IPV6_LEN);
    a.mov_immediate(R9, Family::Ipv6 as i32);
    a.label("protocol");
    a.jump_if_not_equal(R1, packet::TCP, "pass");
    shorten(&mut a);
    end(&mut a);
    a
}

/// Has the first option of TCP, if it is the length of segments, say no more than fits.
fn shorten(a: &mut Assembler) {
    const CHECKSUM: i16 = 16;
    const OPTIONS: i16 = 20;
    /// Kind and length of the option, above its value.
    const LENGTH_OF_SEGMENTS: i32 = 0x0204;
    /// Of a change of four bytes.
    const WHOLE_WORD: i32 = 4;
    let option = HEADER + OPTIONS;
    a.mov(R2, R8);
    load(a, HEADER, i32::from(OPTIONS) + 4);
    a.load_8(R1, R10, HEADER + packet::TCP_FLAGS);
    a.and_immediate(R1, packet::SYN | packet::ACK);
    a.jump_if_not_equal(R1, packet::SYN | packet::ACK, "pass");
    a.load_8(R1, R10, HEADER + packet::TCP_DATA_OFFSET);
    a.shift_right_immediate(R1, 4);
    // In words; with fewer no option is there, and what was read are data.
    a.jump_if_above(R1, i32::from(OPTIONS) / 4, "has options");
    a.jump("pass");
    a.label("has options");
    find(a, VIPS, SOURCE, "pass");
    a.store_32(R10, WORD, R9);
    find(a, SEGMENTS, WORD, "pass");
    a.load_32(R9, R0, 0);
    a.and_immediate(R9, 0xffff);
    a.jump_if_equal(R9, 0, "pass");
    a.load_32(R1, R10, option);
    a.swap_to_big_endian_32(R1);
    a.mov(R2, R1);
    a.shift_right_immediate(R2, 16);
    a.jump_if_not_equal(R2, LENGTH_OF_SEGMENTS, "pass");
    a.and_immediate(R1, 0xffff);
    a.jump_if_beyond(R1, R9, "too long");
    a.jump("pass");
    a.label("too long");
    a.or_immediate(R9, LENGTH_OF_SEGMENTS << 16);
    a.swap_to_big_endian_32(R9);
    a.store_32(R10, WORD, R9);
    a.mov(R1, R6);
    a.address(R2, R8, CHECKSUM);
    a.load_32(R3, R10, option);
    a.load_32(R4, R10, WORD);
    a.mov_immediate(R5, WHOLE_WORD);
    a.call(Helper::L4CsumReplace);
    a.jump_if_negative(R0, "pass");
    a.mov(R1, R6);
    a.address(R2, R8, OPTIONS);
    a.address(R3, R10, WORD);
    a.mov_immediate(R4, 4);
    a.mov_immediate(R5, 0);
    a.call(Helper::SkbStoreBytes);
}
