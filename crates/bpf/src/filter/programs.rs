//! The programs that judge packets, and the maps they share.
//!
//! ```text
//!   packet ──> "gate_in"             reads which of two sets is in force ...
//!              "gate_out"
//!                 └─────> "judge_in"   ... and goes on there: is the verdict kept with the socket?
//!                         "judge_out"  if not, walk the graph
//!
//!   setsockopt ──> "gate_asked" ──> "judge_asked"   what of a connection whose bytes are no packets?
//!
//!   forwarded packet ──> "gate_forwarded" ──> "judge_forwarded"   the same walk, where it leaves the host
//! ```
//!
//! Three gates are attached to a cgroup for good, the fourth to interfaces ([`super::forwarded`]). What they go on in
//! is a set: four programs and their maps, made for one list of rules. There is room for two sets, and one byte says which of them is in
//! force, so that a change of it is one store: each packet meets the old rules or the new ones.
//!
//! # Where a verdict is kept
//!
//! What rules look at is the same for all packets of a TCP connection but for the interface. So its verdict is kept
//! in an array, in the word at the place that the socket's cookie names: [`kept`]. The kernel gives no cookie twice, and a
//! word has it beside the verdict, so a verdict is never taken for another connection's. Connections that share a place
//! push each other out, and are judged anew; cookies are given in order, so these are 32 768 connections apart.
//! A set has an array of its own, so what is kept under one set says nothing under another.
//!
//! To make room with a socket instead (`BPF_MAP_TYPE_SK_STORAGE`) costs more than the packets of a short connection do.
//!
//! # What is asked
//!
//! Connections in shared memory or by RDMA have no packets. [`answer`](super::answer) answers for them, by the same walk.
//!
//! Packets of links to other hosts pass by what the gateway has told of them: [`partners`].
//!
//! # What is counted
//!
//! For each rule how often a walk has ended with it, and when last ([`hits`](super::hits)). Packets whose verdict was kept
//! are not counted. What rules with `log` decide [`log`] tells.

use aya::Ebpf;
use aya::maps::{Array, MapError};
use sidestep_filter::graph::{ACCEPT, ADDED_STEPS, DENIES, KEY_WORDS, NEEDS_TLS, Node, field};
use sidestep_filter::{Graph, NO_USER};

use super::frame::{Answers, HEADER, Hook, KEY, PLACE, VERDICT, Way, key, load_header, skb, sock};
use super::log;
use super::rule_set::RuleSet;
use super::state::{self, OPEN, STATE, STATE_SLOT};
use super::{entry, groups, partners, protection};
use crate::assembler::Register::{R0, R1, R2, R3, R6, R7, R8, R10};
use crate::assembler::{Assembler, Helper};
use crate::map::{MapDefinition, MapKind};
use crate::object_file::Program;

/// The programs of the sets for packets that arrive, by slot.
pub(super) const JUDGES_IN: &str = "judges_in";
/// The same for packets that leave.
pub(super) const JUDGES_OUT: &str = "judges_out";
/// The same for questions.
pub(super) const JUDGES_ASKED: &str = "judges_asked";
/// The nodes of a graph, [`PAGE_NODES`] in each value.
pub(super) const NODES: &str = "nodes";
/// Verdicts of connections.
const KEPT: &str = "kept";

/// Nodes in a value of the map: those of a page.
pub(super) const PAGE_NODES: usize = 256;

/// The nodes in one value of a map.
pub(super) type Page = [Node; PAGE_NODES];

const EMPTY_PAGE: Page = [[0; 4]; PAGE_NODES];

pub(super) const WAYS: [Way; 2] = [
    Way {
        gate: "gate_in",
        judge: "judge_in",
        judges: JUDGES_IN,
        section: "cgroup_skb/ingress",
        number: 0,
        hook: Hook::Socket,
    },
    Way {
        gate: "gate_out",
        judge: "judge_out",
        judges: JUDGES_OUT,
        section: "cgroup_skb/egress",
        number: 1,
        hook: Hook::Socket,
    },
];

/// Packets that this host passes on.
pub(super) const FORWARDED: Way = Way {
    gate: "gate_forwarded",
    judge: "judge_forwarded",
    judges: "judges_forwarded",
    section: "classifier",
    number: 2,
    hook: Hook::Interface,
};

/// Segments that a connection has received when its verdict is kept, where rules look at users or groups: one that was not
/// yet accepted has its listener's user, and a group has its number some milliseconds after its directory.
const KEPT_FROM: i32 = 8;

/// What is kept at a place: for each way a word, which is read and written whole.
///
/// | Bits | |
/// |---|---|
/// | 0 | what the program returns |
/// | 1 | there is a verdict |
/// | 2 to 7 | the pair of roots by which it was found |
/// | 8 to 23 | the interface's index; connections by those of higher ones are not kept |
/// | 24 to 63 | the socket's cookie without the bits that name the place: all that a host gives out in years |
mod kept {
    pub(super) const WAY_LEN: i16 = 8;
    pub(super) const IS_THERE: i32 = 2;
    pub(super) const PAIR_SHIFT: i32 = 2;
    pub(super) const INTERFACE_SHIFT: i32 = 8;
    pub(super) const INTERFACE_MAX: i32 = 0xffff;
    pub(super) const COOKIE_SHIFT: i32 = 24;
    /// Places of connections are the lower bits of their cookies.
    pub(super) const PLACE_BITS: i32 = 15;
    pub(super) const PLACES: i32 = 1 << PLACE_BITS;
}

/// The maps of the gates.
pub(super) const GATE_MAPS: [MapDefinition; 7] = [
    state::MAP,
    judges(JUDGES_IN),
    judges(JUDGES_OUT),
    judges(JUDGES_ASKED),
    judges(FORWARDED.judges),
    groups::MAP,
    partners::MAP,
];

const fn judges(name: &'static str) -> MapDefinition {
    MapDefinition {
        name,
        kind: MapKind::ProgArray,
        key_len: 4,
        value_len: 4,
        entries_max: 2,
        on_demand: false,
    }
}

/// The maps of a set.
pub(super) fn set_maps(set: &RuleSet<'_>) -> [MapDefinition; 4] {
    let array = |name, value_len, entries_max| MapDefinition {
        name,
        kind: MapKind::Array,
        key_len: 4,
        value_len,
        entries_max,
        on_demand: false,
    };
    let pages = set.graph.nodes().len().div_ceil(PAGE_NODES) as u32;
    [
        array(NODES, (PAGE_NODES * 16) as u32, pages),
        set.counters().map(),
        entry::MAP,
        array(KEPT, 2 * kept::WAY_LEN as u32, kept::PLACES as u32),
    ]
}

/// Writes a graph into its map.
pub(super) fn fill(set: &mut Ebpf, graph: &Graph) -> Result<(), MapError> {
    let mut pages: Array<_, Page> = set.map_mut(NODES).expect("a map of ours").try_into()?;
    for (place, nodes) in (0..).zip(graph.nodes().chunks(PAGE_NODES)) {
        let mut page = EMPTY_PAGE;
        page[..nodes.len()].copy_from_slice(nodes);
        pages.set(place, page, 0)?;
    }
    Ok(())
}

pub(super) fn gates() -> [Program; 2] {
    WAYS.map(|way| {
        let mut a = Assembler::default();
        a.mov(R6, R1);
        pass_on(&mut a, way.judges, way.hook.answers());
        Program { name: way.gate, section: way.section, code: a.finish() }
    })
}

pub(super) fn judge_of(set: &RuleSet<'_>, slot: u8, way: Way) -> Program {
    let &RuleSet { graph, identity, .. } = set;
    let has_socket = way.hook == Hook::Socket;
    let mut a = Assembler::default();
    a.mov(R6, R1);
    if has_socket {
        answer_from_what_is_kept(&mut a, way);
    }
    store_key(&mut a, set, slot, way);
    if has_socket {
        partners::judge(&mut a, way, "counted");
    }
    a.jump_if_equal(R7, 0, "judged");
    walk(&mut a, graph.steps());
    protection::judge(&mut a, graph, way);
    set.counters().count(&mut a);
    a.label("counted");
    log::count_total(&mut a, way.hook);
    log::tell(&mut a, graph, identity, way.hook);
    if has_socket {
        keep(&mut a, graph, way);
        a.label("answer");
    }
    let Answers { pass, drop } = way.hook.answers();
    a.and_immediate(R7, DENIES as i32);
    a.jump_if_not_equal(R7, 0, "drop");
    a.label("pass");
    a.mov_immediate(R0, pass);
    a.exit();
    a.label("drop");
    a.mov_immediate(R0, drop);
    a.exit();
    Program { name: way.judge, section: way.section, code: a.finish() }
}

/// Goes on in the set that is in force, in a program of this array. Without one, which is only so
/// when its map was taken away, nothing passes.
pub(super) fn pass_on(a: &mut Assembler, judges: &'static str, answers: Answers) {
    a.store_immediate_32(R10, -4, 0);
    a.load_map(R1, STATE);
    a.address(R2, R10, -4);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "none");
    a.load_8(R1, R0, STATE_SLOT as i16);
    a.jump_if_equal(R1, OPEN.into(), "open");
    // With a place that the kernel knows when it loads the program it makes a jump of the call.
    a.jump_if_not_equal(R1, 0, "one");
    for (slot, label) in [(0, "zero"), (1, "one")] {
        a.label(label);
        a.mov(R1, R6);
        a.load_map(R2, judges);
        a.mov_immediate(R3, slot);
        a.call(Helper::TailCall);
        a.jump("none");
    }
    a.label("none");
    a.mov_immediate(R0, answers.drop);
    a.exit();
    a.label("open");
    a.mov_immediate(R0, answers.pass);
    a.exit();
}

/// `R8` = the cookie of the packet's socket, `R0` = where the verdict of its connection is kept. It goes to the label
/// `otherwise` where the socket's state is none of a connection that both sides know: a socket that listens has many peers,
/// and what begins a connection is searched for.
fn place_of_connection(a: &mut Assembler, otherwise: &'static str, connected: &'static str) {
    a.load_64(R1, R6, skb::SK);
    a.jump_if_equal(R1, 0, otherwise);
    a.load_32(R1, R1, sock::STATE);
    for state in sock::CONNECTED {
        a.jump_if_equal(R1, state, connected);
    }
    a.jump(otherwise);
    a.label(connected);
    a.mov(R1, R6);
    a.call(Helper::SocketCookie);
    a.mov(R8, R0);
    a.mov(R1, R0);
    a.and_immediate(R1, kept::PLACES - 1);
    a.store_32(R10, PLACE, R1);
    a.load_map(R1, KEPT);
    a.address(R2, R10, PLACE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, otherwise);
}

/// `R2` = what a word has of cookie `R8` and the packet's interface. It goes to the label if a word has no room for that.
fn cookie_and_interface(a: &mut Assembler, otherwise: &'static str) {
    a.mov(R2, R8);
    a.shift_right_immediate(R2, kept::PLACE_BITS);
    a.shift_left_immediate(R2, kept::COOKIE_SHIFT);
    a.load_32(R1, R6, skb::IFINDEX);
    a.jump_if_above(R1, kept::INTERFACE_MAX, otherwise);
    a.shift_left_immediate(R1, kept::INTERFACE_SHIFT);
    a.or(R2, R1);
}

fn answer_from_what_is_kept(a: &mut Assembler, way: Way) {
    place_of_connection(a, "judge", "known");
    a.load_64(R7, R0, kept::WAY_LEN * way.number as i16);
    cookie_and_interface(a, "judge");
    a.or_immediate(R2, kept::IS_THERE);
    a.mov(R8, R2);
    // Rules that came later hold for connections that live.
    entry::load(a);
    a.load_8(R1, R0, 0);
    a.shift_left_immediate(R1, kept::PAIR_SHIFT);
    a.or(R8, R1);
    a.xor(R8, R7);
    // All is the same but for the answer.
    a.jump_if_above(R8, 1, "judge");
    a.and_immediate(R7, 1);
    a.mov(R0, R7);
    a.exit();
    a.label("judge");
}

/// Keeps verdict `R7` of a connection.
fn keep(a: &mut Assembler, graph: &Graph, way: Way) {
    // Not of one that is not protected: it may be soon.
    a.mov(R1, R7);
    a.and_immediate(R1, NEEDS_TLS as i32);
    a.jump_if_not_equal(R1, 0, "answer");
    connection(a, "answer");
    if [field::USER, field::GROUP].into_iter().any(|it| graph.looks_at(it)) {
        look_old(a, "answer");
    }
    place_of_connection(a, "answer", "kept");
    cookie_and_interface(a, "answer");
    a.load_64(R1, R10, entry::PAIR);
    a.shift_left_immediate(R1, kept::PAIR_SHIFT);
    a.or(R2, R1);
    a.or_immediate(R2, kept::IS_THERE + way.hook.answers().pass);
    a.mov(R1, R7);
    a.and_immediate(R1, DENIES as i32);
    a.sub(R2, R1);
    a.store_64(R0, kept::WAY_LEN * way.number as i16, R2);
}

/// `R0` = the packet's socket, one of TCP. It goes to the label with others: they send to whom they like, and a raw one
/// (`SOCK_RAW`) what it likes.
fn connection(a: &mut Assembler, otherwise: &'static str) {
    a.load_64(R1, R6, skb::SK);
    a.jump_if_equal(R1, 0, otherwise);
    a.call(Helper::SkFullsock);
    a.jump_if_equal(R0, 0, otherwise);
    a.load_32(R1, R0, sock::TYPE);
    a.jump_if_not_equal(R1, sock::STREAM, otherwise);
    a.load_32(R1, R0, sock::PROTOCOL);
    a.jump_if_not_equal(R1, sock::TCP, otherwise);
}

/// Goes to the label if the connection of socket `R0` is younger than [`KEPT_FROM`].
fn look_old(a: &mut Assembler, otherwise: &'static str) {
    a.mov(R1, R0);
    a.call(Helper::TcpSock);
    a.jump_if_equal(R0, 0, otherwise);
    a.load_32(R1, R0, sock::SEGMENTS_IN);
    a.mov_immediate(R2, KEPT_FROM);
    a.jump_if_beyond(R2, R1, otherwise);
}

/// Puts the key of the packet on the stack, and the root of its graph into `R7`. What is not IP
/// passes; what begins as IP and ends within its header does not.
pub(super) fn store_key(a: &mut Assembler, set: &RuleSet<'_>, slot: u8, way: Way) {
    let graph = set.graph;
    let [.., default] = graph.nodes()[0];
    clear_key(a, default);
    a.store_immediate_32(R10, key(field::WAY), way.number);
    if graph.looks_at(field::INTERFACE) {
        a.load_32(R1, R6, skb::IFINDEX);
        a.store_32(R10, key(field::INTERFACE), R1);
    }
    if way.hook == Hook::Socket {
        groups::store_number(a, graph, set.groups.deepest, slot);
    }
    match way.hook {
        Hook::Socket if graph.looks_at(field::USER) => {
            a.mov(R1, R6);
            a.call(Helper::SocketUid);
            a.store_32(R10, key(field::USER), R0);
        }
        Hook::Socket => {}
        Hook::Interface => {
            a.store_immediate_32(R10, key(field::USER), NO_USER.cast_signed());
        }
    }
    a.load_32(R1, R6, skb::PROTOCOL);
    a.jump_if_equal(R1, skb::IPV4, "ipv4");
    a.jump_if_not_equal(R1, skb::IPV6, "pass");
    store_ipv6(a, way.hook);
    store_ports(a, way.hook, IPV6_LEN, ["ports_6", "beyond_6", "read ports_6", "icmp_6", "root_6"]);
    entry::load_root(a, true);
    a.jump("walk");
    a.label("ipv4");
    store_ipv4(a, way.hook);
    store_ports(a, way.hook, IPV4_LEN, ["ports_4", "beyond_4", "read ports_4", "icmp_4", "root_4"]);
    entry::load_root(a, false);
    a.label("walk");
}

/// A key that says nothing yet, with the verdict of the default.
pub(super) fn clear_key(a: &mut Assembler, default: u32) {
    a.mov_immediate(R1, 0);
    for word in (0..KEY_WORDS).step_by(2) {
        a.store_64(R10, key(word), R1);
    }
    for word in [key(field::BEST), VERDICT] {
        a.store_immediate_32(R10, word, default as i32);
    }
}

/// Bytes of a header of IPv4 without options.
const IPV4_LEN: i32 = 20;
/// Bytes of a header of IPv6 without extensions.
const IPV6_LEN: i32 = 40;

/// Reads a header of IP of so many bytes, and the word behind it: in most packets the ports. Where the packet ends
/// before them they are 0.
fn load_header_and_ports(
    a: &mut Assembler,
    hook: Hook,
    len: i32,
    [no_ports, read]: [&'static str; 2],
) {
    a.mov_immediate(R2, 0);
    load_header(a, hook, len + 4, no_ports);
    a.jump(read);
    a.label(no_ports);
    a.mov_immediate(R2, 0);
    load_header(a, hook, len, "drop");
    a.store_immediate_32(R10, HEADER + len as i16, 0);
    a.label(read);
}

/// Puts words of an address from the header into the key.
fn store_address(a: &mut Assembler, field: usize, from: i16, words: usize) {
    for word in 0..words {
        a.load_32(R1, R10, HEADER + from + 4 * word as i16);
        a.swap_to_big_endian_32(R1);
        a.store_32(R10, key(field + word), R1);
    }
}

/// `R8` = the protocol, `R7` = where its header begins, or 0 of a fragment behind the first.
fn store_ipv4(a: &mut Assembler, hook: Hook) {
    load_header_and_ports(a, hook, IPV4_LEN, ["no ports_4", "read_4"]);
    store_address(a, field::SOURCE, 12, 1);
    store_address(a, field::DESTINATION, 16, 1);
    a.load_8(R8, R10, HEADER + 9);
    a.store_32(R10, key(field::PROTOCOL), R8);
    a.load_8(R7, R10, HEADER);
    a.and_immediate(R7, 0x0f);
    a.shift_left_immediate(R7, 2);
    // The offset of the fragment: the lower 13 bits of its word.
    a.load_8(R1, R10, HEADER + 6);
    a.and_immediate(R1, 0x1f);
    a.load_8(R2, R10, HEADER + 7);
    a.or(R1, R2);
    a.jump_if_equal(R1, 0, "whole");
    a.mov_immediate(R7, 0);
    a.label("whole");
}

/// `R8` = the protocol, `R7` = where its header begins, behind up to eight extension headers, or 0 of a
/// fragment behind the first.
fn store_ipv6(a: &mut Assembler, hook: Hook) {
    const EXTENSIONS_MAX: i32 = 8;
    load_header_and_ports(a, hook, IPV6_LEN, ["no ports_6", "read_6"]);
    store_address(a, field::SOURCE, 8, 4);
    store_address(a, field::DESTINATION, 24, 4);
    a.load_8(R8, R10, HEADER + 6);
    a.mov_immediate(R7, IPV6_LEN);
    a.store_immediate_32(R10, PLACE, EXTENSIONS_MAX);
    a.label("extension");
    a.load_32(R1, R10, PLACE);
    a.jump_if_equal(R1, 0, "protocol");
    a.add_immediate(R1, -1);
    a.store_32(R10, PLACE, R1);
    for (number, label) in
        [(0, "options"), (43, "options"), (60, "options"), (44, "fragment"), (51, "authentication")]
    {
        a.jump_if_equal(R8, number, label);
    }
    a.jump("protocol");
    a.label("options");
    load_extension(a, hook);
    a.add_immediate(R1, 1);
    a.shift_left_immediate(R1, 3);
    a.add(R7, R1);
    a.jump("extension");
    a.label("authentication");
    load_extension(a, hook);
    a.add_immediate(R1, 2);
    a.shift_left_immediate(R1, 2);
    a.add(R7, R1);
    a.jump("extension");
    a.label("fragment");
    a.mov(R2, R7);
    load_header(a, hook, 8, "drop");
    a.load_8(R8, R10, HEADER);
    a.add_immediate(R7, 8);
    // The offset: all but the lower 3 bits of its word.
    a.load_8(R1, R10, HEADER + 3);
    a.and_immediate(R1, 0xf8);
    a.load_8(R2, R10, HEADER + 2);
    a.or(R1, R2);
    a.jump_if_equal(R1, 0, "extension");
    a.mov_immediate(R7, 0);
    a.label("protocol");
    a.store_32(R10, key(field::PROTOCOL), R8);
}

/// Of the extension header at `R7`: `R8` = what follows, `R1` = the length that it tells.
fn load_extension(a: &mut Assembler, hook: Hook) {
    a.mov(R2, R7);
    load_header(a, hook, 2, "drop");
    a.load_8(R8, R10, HEADER);
    a.load_8(R1, R10, HEADER + 1);
}

/// Puts the ports, or type and code of ICMP, into the key. Those behind a header of `len` bytes were read with it.
fn store_ports(
    a: &mut Assembler,
    hook: Hook,
    len: i32,
    [ports, beyond, read, icmp, end]: [&'static str; 5],
) {
    a.jump_if_equal(R7, 0, end);
    for protocol in [6, 17, 33, 132, 136, 1, 58] {
        a.jump_if_equal(R8, protocol, ports);
    }
    a.jump(end);
    a.label(ports);
    a.load_32(R1, R10, HEADER + len as i16);
    a.jump_if_not_equal(R7, len, beyond);
    a.jump(read);
    a.label(beyond);
    a.mov(R2, R7);
    load_header(a, hook, 4, end);
    a.load_32(R1, R10, HEADER);
    a.label(read);
    a.swap_to_big_endian_32(R1);
    a.mov(R2, R1);
    a.shift_right_immediate(R2, 16);
    a.jump_if_equal(R8, 1, icmp);
    a.jump_if_equal(R8, 58, icmp);
    a.store_32(R10, key(field::SOURCE_PORT), R2);
    a.and_immediate(R1, 0xffff);
    a.store_32(R10, key(field::DESTINATION_PORT), R1);
    a.jump(end);
    a.label(icmp);
    a.store_32(R10, key(field::DESTINATION_PORT), R2);
    a.label(end);
}

/// From node `R7` on: see [`sidestep_filter::graph`], whose walk this is.
pub(super) fn walk(a: &mut Assembler, steps: u32) {
    a.mov_immediate(R8, (steps + ADDED_STEPS) as i32);
    a.label("step");
    a.mov(R1, R7);
    a.shift_right_immediate(R1, PAGE_NODES.ilog2() as i32);
    a.store_32(R10, PLACE, R1);
    a.load_map(R1, NODES);
    a.address(R2, R10, PLACE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "drop");
    a.mov(R1, R7);
    a.and_immediate(R1, PAGE_NODES as i32 - 1);
    a.shift_left_immediate(R1, 4);
    a.add(R0, R1);
    a.load_32(R1, R0, 0);
    a.load_32(R3, R0, 4);
    a.jump_if_equal(R1, ACCEPT as i32, "accept");
    a.and_immediate(R1, KEY_WORDS as i32 - 1);
    a.shift_left_immediate(R1, 2);
    a.mov(R2, R10);
    a.add(R2, R1);
    a.load_32(R2, R2, KEY);
    a.sub_32(R2, R3);
    a.load_32(R3, R0, 8);
    // Of 32 bits, as what is loaded below: to the verifier both are any number, so it need not
    // look at what follows for each way on which a node can be come to.
    a.add_immediate_32(R7, 1);
    a.jump_if_beyond(R2, R3, "other");
    a.jump("stepped");
    a.label("accept");
    a.load_32(R2, R10, key(field::BEST));
    a.jump_if_beyond(R3, R2, "other");
    a.store_32(R10, key(field::BEST), R3);
    a.load_32(R3, R0, 8);
    a.store_32(R10, VERDICT, R3);
    a.label("other");
    a.load_32(R7, R0, 12);
    a.jump_if_equal(R7, 0, "judged");
    a.label("stepped");
    a.add_immediate(R8, -1);
    a.jump_if_not_equal(R8, 0, "step");
    a.label("judged");
    a.load_32(R7, R10, VERDICT);
    // There the log has it.
    a.store_32(R10, key(field::BEST), R7);
}
