//! The programs that let messages skip TCP, and the maps they share.
//!
//! A connection with both ends on this host is two sockets, and what one sends is what
//! the other receives. Two programs make use of that:
//!
//! ```text
//!   connect, accept ──> "join"      puts the socket into `connections`, under the
//!                                   addresses of its two ends as it sees them
//!   send            ──> "redirect"  looks for the socket with the same addresses the
//!                                   other way round, and hands it the message
//! ```
//!
//! # Order
//!
//! A socket that is in the map has two queues: what was handed to it, and what came by
//! TCP. The kernel reads the first before the second, whichever is older. So the bytes
//! of one direction must never take both ways. They would, because the accepted end
//! enters the map after the connecting one, which may already have sent (with
//! `TCP_DEFER_ACCEPT` it always has: the first bytes are what makes the accepted end).
//! Hence the rule of `redirect`: **a direction whose first message went by TCP stays
//! with TCP.** Such a direction is noted in `by_tcp` until its socket is closed.
//!
//! The other way round it cannot happen: the connecting end enters the map before it
//! acknowledges, and the accepted end is made by the acknowledgement.
//!
//! When a peer has been closed its entry is gone, the message goes by TCP, and TCP
//! answers as it does to anybody who sends to a closed socket.

use crate::assembler::Register::{R0, R1, R2, R3, R4, R6, R10};
use crate::assembler::{Assembler, Helper, Register};
use crate::key::{self, sock_ops};
use crate::map::{MapDefinition, MapKind};
use crate::object_file::Program;

/// Sockets by the addresses of their ends.
pub(crate) const CONNECTIONS: &str = "connections";
/// Directions that stay with TCP.
pub(crate) const BY_TCP: &str = "by_tcp";
/// What happened: an array with a place for each [`Counter`].
pub(crate) const COUNTERS: &str = "counters";

/// The program that puts sockets into the map.
pub(crate) const JOIN: &str = "join";
/// The program that hands messages over.
pub(crate) const REDIRECT: &str = "redirect";

/// Places in [`COUNTERS`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    /// Sockets that entered the map.
    Joined,
    /// Messages handed over.
    Redirected,
    /// Messages that went by TCP.
    ByTcp,
}

pub(crate) const MAPS: [MapDefinition; 3] = [
    MapDefinition {
        name: CONNECTIONS,
        kind: MapKind::SockHash,
        key_len: key::LEN as u32,
        value_len: 4,
        entries_max: SOCKETS_MAX,
        on_demand: false,
    },
    MapDefinition {
        name: BY_TCP,
        kind: MapKind::Hash,
        key_len: key::LEN as u32,
        value_len: 4,
        // Only sockets in the map send through the program: there is a place for each.
        entries_max: SOCKETS_MAX,
        on_demand: true,
    },
    MapDefinition {
        name: COUNTERS,
        kind: MapKind::PerCpuArray,
        key_len: 4,
        value_len: 8,
        entries_max: 3,
        on_demand: false,
    },
];

/// More sockets stay with TCP.
const SOCKETS_MAX: u32 = 0x1_0000;

/// Where the stack holds what goes by address, beside the keys.
const SCRATCH: i16 = key::PEER - 8;

/// `struct sk_msg_md` of `linux/bpf.h`.
mod sk_msg {
    use crate::key::Context;

    pub(super) const CONTEXT: Context = Context {
        family: 16,
        remote_ip4: 20,
        local_ip4: 24,
        remote_ip6: 28,
        local_ip6: 44,
        remote_port: 60,
        local_port: 64,
    };
    /// `BPF_F_INGRESS`: the message is received, not sent, by the other socket.
    pub(super) const INGRESS: i32 = 1;
    /// `SK_PASS`.
    pub(super) const PASS: i32 = 1;
}

/// `BPF_ANY`: an entry is made or replaced.
const ANY: i32 = 0;

pub(crate) fn all() -> [Program; 2] {
    [
        Program { name: JOIN, section: "sockops", code: join().finish() },
        Program { name: REDIRECT, section: "sk_msg", code: redirect().finish() },
    ]
}

fn join() -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R1, R6, sock_ops::OP);
    a.jump_if_equal(R1, sock_ops::ACTIVE_ESTABLISHED, "established");
    a.jump_if_equal(R1, sock_ops::PASSIVE_ESTABLISHED, "established");
    a.jump_if_not_equal(R1, sock_ops::STATE_CHANGED, "end");
    a.load_32(R1, R6, sock_ops::ARGS[1]);
    a.jump_if_not_equal(R1, sock_ops::TCP_CLOSE, "end");
    a.mov_immediate(R1, i32::from(true));
    a.jump("make key");

    a.label("established");
    a.mov_immediate(R1, i32::from(false));

    // Both ways need the key; which one it is waits on the stack.
    a.label("make key");
    a.store_64(R10, SCRATCH, R1);
    key::store_own(&mut a, &sock_ops::CONTEXT);
    a.load_64(R1, R10, SCRATCH);
    a.jump_if_equal(R1, i32::from(true), "closed");

    a.mov(R1, R6);
    a.load_map(R2, CONNECTIONS);
    a.address(R3, R10, key::OWN);
    a.mov_immediate(R4, ANY);
    a.call(Helper::SockHashUpdate);
    a.jump_if_not_equal(R0, 0, "end");
    // Other programs may have asked for other reports.
    a.load_32(R2, R6, sock_ops::CB_FLAGS);
    a.or_immediate(R2, sock_ops::REPORT_STATE);
    a.mov(R1, R6);
    a.call(Helper::SockOpsCbFlagsSet);
    count(&mut a, Counter::Joined, "joined");
    a.jump("end");

    a.label("closed");
    a.load_map(R1, BY_TCP);
    a.address(R2, R10, key::OWN);
    a.call(Helper::MapDelete);

    a.label("end");
    a.mov_immediate(R0, sock_ops::OK);
    a.exit();
    a
}

fn redirect() -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    key::store_own(&mut a, &sk_msg::CONTEXT);
    a.load_map(R1, BY_TCP);
    a.address(R2, R10, key::OWN);
    a.call(Helper::MapLookup);
    a.jump_if_not_equal(R0, 0, "by tcp");

    key::store_peer(&mut a);
    a.mov(R1, R6);
    a.load_map(R2, CONNECTIONS);
    a.address(R3, R10, key::PEER);
    a.mov_immediate(R4, sk_msg::INGRESS);
    a.call(Helper::MsgRedirectHash);
    a.jump_if_not_equal(R0, sk_msg::PASS, "no peer");
    count(&mut a, Counter::Redirected, "redirected");
    a.jump("end");

    a.label("no peer");
    a.store_64(R10, SCRATCH, R0);
    a.load_map(R1, BY_TCP);
    a.address(R2, R10, key::OWN);
    a.address(R3, R10, SCRATCH);
    a.mov_immediate(R4, ANY);
    a.call(Helper::MapUpdate);

    a.label("by tcp");
    count(&mut a, Counter::ByTcp, "counted by tcp");

    a.label("end");
    a.mov_immediate(R0, sk_msg::PASS);
    a.exit();
    a
}

/// Adds one to a counter of this CPU. Atomically: another thread may take the CPU in
/// between.
fn count(a: &mut Assembler, counter: Counter, behind: &'static str) {
    const INDEX: Register = R1;
    a.mov_immediate(INDEX, counter as i32);
    a.store_32(R10, SCRATCH, INDEX);
    a.load_map(R1, COUNTERS);
    a.address(R2, R10, SCRATCH);
    a.call(Helper::MapLookup);
    // The verifier wants to see that the entry is there.
    a.jump_if_equal(R0, 0, behind);
    a.mov_immediate(R1, 1);
    a.atomic_add_64(R0, 0, R1);
    a.label(behind);
}
