//! The programs that answer for a connection whose bytes are no packets.
//!
//! Both are programs of `setsockopt`, and each call of the cgroup's processes goes through the gate: one
//! look at the level, and the kernel goes on. A question is one of [`sidestep_wire::verdict`]. What the judge
//! walks the graph with is what the two ends of the socket make of a TCP packet; an address of IPv4 in IPv6's
//! form counts as what its packets are.
//!
//! Who asks may be another process than the one that has the socket, so user and interface stand in the value.
//! A process that lies there deceives itself: what it asks is whether it is to be good.

use sidestep_filter::graph::{DENIES, field};
use sidestep_wire::verdict::{self, Question};

use super::entry;
use super::frame::{Answers, key, sock};
use super::groups::store_mark;
use super::programs::{JUDGES_ASKED, clear_key, pass_on, walk};
use super::rule_set::RuleSet;
use super::{partners, protection};
use crate::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R9, R10};
use crate::assembler::{Assembler, Helper};
use crate::key::{self as socket, sockopt};
use crate::object_file::Program;

/// The gate and the judge of questions.
pub(super) const GATE_ASKED: &str = "gate_asked";
pub(super) const JUDGE_ASKED: &str = "judge_asked";

const SECTION: &str = "cgroup/setsockopt";

/// The third word of an address of IPv4 in IPv6's form (`::ffff:a.b.c.d`).
const MAPPED: i32 = 0xffff;

/// The packets that are asked about.
struct Asked {
    /// As the key has their way.
    number: i32,
    /// Where of the key the two ends of the socket belong.
    local: End,
    remote: End,
    ipv4: &'static str,
    ipv6: &'static str,
}

const LEAVE: Asked = Asked {
    number: 1,
    local: End::SOURCE,
    remote: End::DESTINATION,
    ipv4: "leave by ipv4",
    ipv6: "leave by ipv6",
};
const ARRIVE: Asked = Asked {
    number: 0,
    local: End::DESTINATION,
    remote: End::SOURCE,
    ipv4: "arrive by ipv4",
    ipv6: "arrive by ipv6",
};

/// Where an address and its port are in the key.
#[derive(Clone, Copy)]
struct End {
    address: usize,
    port: usize,
}

impl End {
    const SOURCE: Self = Self { address: field::SOURCE, port: field::SOURCE_PORT };
    const DESTINATION: Self = Self { address: field::DESTINATION, port: field::DESTINATION_PORT };
}

/// What is no question passes. What the gateway tells of its links is noted, whatever list is in force.
pub(super) fn gate() -> Program {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R1, R6, sockopt::LEVEL);
    a.jump_if_not_equal(R1, verdict::LEVEL, "open");
    a.load_32(R7, R6, sockopt::OPTNAME);
    for option in [verdict::LINKED, verdict::UNLINKED] {
        a.jump_if_equal(R7, option, "told");
    }
    pass_on(&mut a, JUDGES_ASKED, ANSWERS);
    note(&mut a);
    Program { name: GATE_ASKED, section: SECTION, code: a.finish() }
}

/// What the gateway tells of its sockets, by option `R7`. Root is believed.
fn note(a: &mut Assembler) {
    a.label("told");
    a.call(Helper::CurrentUidGid);
    // The upper half is the group.
    a.shift_left_immediate(R0, 32);
    a.jump_if_not_equal(R0, 0, "refused");
    partners::note(a);
    a.label("noted");
    // The kernel, which knows no such option, is not asked.
    a.mov_immediate(R1, sockopt::DONE);
    a.store_32(R6, sockopt::OPTLEN, R1);
    a.mov_immediate(R0, sockopt::GO_ON);
    a.exit();
    a.label("refused");
    a.mov_immediate(R0, sockopt::REFUSE);
    a.exit();
}

pub(super) fn judge(set: &RuleSet<'_>) -> Program {
    let graph = set.graph;
    let [.., default] = graph.nodes()[0];
    let mut a = Assembler::default();
    a.mov(R6, R1);
    clear_key(&mut a, default);
    a.store_immediate_32(R10, key(field::PROTOCOL), sock::TCP);
    store_value(&mut a);
    store_mark(&mut a, set.groups.around);
    a.load_64(R9, R6, sockopt::SK);
    a.load_32(R7, R6, sockopt::OPTNAME);
    a.jump_if_equal(R7, verdict::OUT, "leave");
    a.jump_if_not_equal(R7, verdict::IN, "unknown");
    store_ends(&mut a, &ARRIVE);
    a.label("leave");
    store_ends(&mut a, &LEAVE);
    a.label("root of ipv6");
    entry::load_root(&mut a, true);
    a.jump("walk");
    a.label("root of ipv4");
    entry::load_root(&mut a, false);
    a.label("walk");
    a.jump_if_equal(R7, 0, "judged");
    walk(&mut a, graph.steps());
    protection::judge_asked(&mut a, graph);
    a.and_immediate(R7, DENIES as i32);
    a.jump_if_not_equal(R7, 0, "drop");
    // The kernel, which knows no such option, is not asked. A context takes no immediate before Linux 6.4.
    a.mov_immediate(R1, sockopt::DONE);
    a.store_32(R6, sockopt::OPTLEN, R1);
    a.label("unknown");
    a.mov_immediate(R0, sockopt::GO_ON);
    a.exit();
    a.label("drop");
    a.mov_immediate(R0, sockopt::REFUSE);
    a.exit();
    Program { name: JUDGE_ASKED, section: SECTION, code: a.finish() }
}

const ANSWERS: Answers = Answers { pass: sockopt::GO_ON, drop: sockopt::REFUSE };

/// Puts what the value says into the key.
fn store_value(a: &mut Assembler) {
    a.load_64(R2, R6, sockopt::VALUE);
    a.load_64(R3, R6, sockopt::VALUE_END);
    a.address(R4, R2, Question::LEN as i16);
    a.jump_if_beyond(R4, R3, "unknown");
    for (at, field) in
        [(Question::USER_AT, field::USER), (Question::INTERFACE_AT, field::INTERFACE)]
    {
        a.load_32(R1, R2, at as i16);
        a.store_32(R10, key(field), R1);
    }
}

/// Puts both ends of socket `R9` into the key, and goes to the root of its packets' family.
fn store_ends(a: &mut Assembler, way: &Asked) {
    let Asked { local, remote, ipv4, ipv6, .. } = *way;
    let of = &sockopt::SOCKET;
    a.store_immediate_32(R10, key(field::WAY), way.number);
    a.load_32(R1, R9, of.local_port);
    a.store_32(R10, key(local.port), R1);
    // 16 bits in the network's order.
    a.load_32(R1, R9, of.remote_port);
    a.swap_to_big_endian_32(R1);
    a.shift_right_immediate(R1, 16);
    a.store_32(R10, key(remote.port), R1);
    a.load_32(R1, R9, of.family);
    a.jump_if_equal(R1, socket::IPV4, ipv4);
    a.jump_if_not_equal(R1, socket::IPV6, "unknown");
    for (word, value) in [(0, 0), (4, 0), (8, MAPPED)] {
        a.load_32(R1, R9, of.remote_ip6 + word);
        a.swap_to_big_endian_32(R1);
        a.jump_if_not_equal(R1, value, ipv6);
    }
    store_address(a, local.address, of.local_ip6 + 12, 1);
    store_address(a, remote.address, of.remote_ip6 + 12, 1);
    a.jump("root of ipv4");
    a.label(ipv6);
    store_address(a, local.address, of.local_ip6, 4);
    store_address(a, remote.address, of.remote_ip6, 4);
    a.jump("root of ipv6");
    a.label(ipv4);
    store_address(a, local.address, of.local_ip4, 1);
    store_address(a, remote.address, of.remote_ip4, 1);
    a.jump("root of ipv4");
}

/// Puts so many words of socket `R9` into the key.
fn store_address(a: &mut Assembler, field: usize, from: i16, words: usize) {
    for word in 0..words {
        a.load_32(R1, R9, from + 4 * word as i16);
        a.swap_to_big_endian_32(R1);
        a.store_32(R10, key(field + word), R1);
    }
}
