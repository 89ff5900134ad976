//! The programs that write and read the TCP option of SMC, and the maps they share.
//!
//! ```text
//!   setsockopt ──> "question"   hears what the library says about a socket, and answers
//!   connect, listen, SYN,
//!   SYN-ACK, established,
//!   close      ──> "option"     writes the option, reads it, and remembers
//! ```
//!
//! # Who is asked, and who is answered
//!
//! The option is a promise: what follows is CLC. A kernel that speaks SMC waits for it
//! before the first byte of the program, so nobody may be asked, or answered, with whom
//! the library cannot go on. It can with programs of Sidestep in the same network
//! namespace, and these are known here. With anybody on another host it can if the socket
//! was marked so: then somebody is there who speaks CLC on its connection.
//!
//! * A **SYN** to an address of the own host has the option if the socket was marked, the
//!   two addresses can only be of one host, and a listener that was announced has the
//!   address and port. One to any other address has it if the mark is for other hosts as
//!   well. Either is noted in `asking` under the addresses of the connection.
//! * A **SYN-ACK** has it if the SYN had it and stands in `asking` for a listener of its own
//!   namespace, where that is noted. If the SYN stands there for other hosts, the client is
//!   of this kernel, and does without. Of a SYN that does not stand there the client is
//!   another host's: it is answered if a listener that was announced has such a mark, and
//!   that is noted in `answered`. Not with SYN cookies, nor with fast open: nothing would
//!   remember that it was sent, or bytes of the program would be on their way.
//!
//! An end whose connections TLS protects wants the option with other hosts alone: within the host it has no use for it.
//! Then its mark, or what is announced of it, says nothing of the own host.
//!
//! # What is remembered
//!
//! A marked socket has a [`state`], kept by the kernel with the socket and gone with it.
//! The accepted socket begins with a copy of its listener's. An entry of `asking` goes
//! with the handshake, at the latest when the socket of the client is closed. One of
//! `answered` goes when the connection is established. Of a handshake that comes to nothing
//! no program hears; so it tells which handshake it is of and when it was last needed, and
//! who loads the programs removes what is old.
//!
//! # What it costs
//!
//! Sockets that are not marked end the program at its first look. Marked ones ask the
//! program about each packet, from `connect` or `listen` on; once the connection is
//! established this is switched off, for the accepted socket as well.

use sidestep_wire::tcp_option::{BYTES, IS_REMOTE, Identity, question};

use crate::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use crate::assembler::{Assembler, Helper};
use crate::key::{self, sock_ops, sockopt};
use crate::map::{MapDefinition, MapKind};
use crate::object_file::Program;

/// What is known of each marked socket.
const SOCKETS: &str = "sockets";
/// How many listeners were announced, by address and port.
const LISTENERS: &str = "listeners";
/// Handshakes in which the client has asked, by its addresses.
const ASKING: &str = "asking";
/// Handshakes in which a client of another host was answered, by the client's addresses.
pub(super) const ANSWERED: &str = "answered";

/// The program of sock_ops.
pub(super) const OPTION: &str = "option";
/// The program of setsockopt.
pub(super) const QUESTION: &str = "question";

pub(super) const MAPS: [MapDefinition; 4] = [
    MapDefinition {
        name: SOCKETS,
        kind: MapKind::SkStorage,
        key_len: 4,
        value_len: state::LEN,
        entries_max: 0,
        on_demand: true,
    },
    MapDefinition {
        name: LISTENERS,
        kind: MapKind::Hash,
        key_len: listener::LEN as u32,
        value_len: listeners::LEN as u32,
        // Those beyond are not asked.
        entries_max: 0x1_0000,
        on_demand: true,
    },
    MapDefinition {
        name: ASKING,
        kind: MapKind::Hash,
        key_len: key::LEN as u32,
        value_len: 4,
        // Handshakes at a time; those beyond are not answered.
        entries_max: 0x1_0000,
        on_demand: true,
    },
    MapDefinition {
        name: ANSWERED,
        kind: MapKind::Hash,
        key_len: key::LEN as u32,
        value_len: answer::LEN as u32,
        // The same, together with those that came to nothing a moment ago.
        entries_max: 0x1_0000,
        on_demand: true,
    },
];

/// What is kept with a socket.
mod state {
    pub(super) const LEN: u32 = 8;

    /// What is known, one of:
    pub(super) const KNOWN: i16 = 0;
    /// Marked; no peer was asked.
    pub(super) const SILENT: i32 = 0;
    /// A listener that was announced.
    pub(super) const LISTENER: i32 = 1;
    /// The two ends have not both sent the option.
    pub(super) const NOT_AGREED: i32 = 2;
    /// They have.
    pub(super) const AGREED: i32 = 3;
    /// Marked for other hosts as well; no peer was asked.
    pub(super) const FOR_HOSTS: i32 = 4;
    /// The same, of a listener that was announced.
    pub(super) const LISTENER_FOR_HOSTS: i32 = 5;
    /// The SYN is for another host.
    pub(super) const ASKS_HOST: i32 = 6;
    /// The two ends have agreed, and the other one is another host's.
    pub(super) const AGREED_WITH_HOST: i32 = 7;
    /// A listener that was announced to other hosts alone.
    pub(super) const LISTENER_TO_HOSTS: i32 = 8;
    /// Marked for other hosts alone; no peer was asked.
    pub(super) const TO_HOSTS: i32 = 9;

    /// A listener that was announced is one of these.
    pub(super) const LISTENERS: [i32; 3] = [LISTENER, LISTENER_FOR_HOSTS, LISTENER_TO_HOSTS];

    /// The reports to be left switched on, among them all that other programs have asked
    /// for; 0 while we have asked for none.
    pub(super) const REPORTS: i16 = 4;
}

/// The key of a listener.
mod listener {
    use crate::key;

    pub(super) const LEN: i16 = 32;
    pub(super) const NETNS_COOKIE: i16 = 0;
    pub(super) const ADDRESS: i16 = 8;
    pub(super) const PORT: i16 = 24;
    /// Fills the key.
    pub(super) const PADDING: i16 = 28;

    /// Where the stack holds it.
    pub(super) const KEY: i16 = key::PEER - LEN;
}

/// The value of [`LISTENERS`].
mod listeners {
    pub(super) const LEN: i16 = 16;
    /// How many clients of this host may ask.
    pub(super) const COUNT: i16 = 0;
    /// How many clients of other hosts may; some are of both.
    pub(super) const FOR_HOSTS: i16 = 8;
}

/// The value of [`ANSWERED`].
pub(super) mod answer {
    pub(in super::super) const LEN: i16 = 16;
    /// The number that the SYN-ACK acknowledges, which tells handshakes of the same addresses
    /// apart. Four bytes behind it fill the value.
    pub(super) const ACKNOWLEDGED: i16 = 0;
    /// When the SYN-ACK was sent last, in nanoseconds of the monotonic clock.
    pub(in super::super) const SENT_NS: i16 = 8;
}

/// Values of [`ASKING`].
mod handshake {
    /// The SYN had the option.
    pub(super) const ASKED: i32 = 1;
    /// The SYN-ACK had it, too.
    pub(super) const ANSWERED: i32 = 2;
}

/// Where the stack holds an option.
const BUFFER: i16 = listener::KEY - 8;
/// Where it holds the value of a map.
const SCRATCH: i16 = BUFFER - answer::LEN;

/// Flags of the TCP header.
const SYN: i32 = 0x02;
const ACK: i32 = 0x10;

/// The first argument about a packet: it answers by a SYN cookie
/// (`BPF_WRITE_HDR_TCP_SYNACK_COOKIE`), or is the ordinary answer to a SYN.
const IS_COOKIE: i32 = 2;
const IS_ORDINARY: i32 = 0;
/// What [`read_option`] says if there is no SYN to be read (`-ENOENT`).
const NO_SYN: i32 = -2;
/// `BPF_LOAD_HDR_OPT_TCP_SYN`: in the SYN that is answered.
const IN_SYN: i32 = 1;
/// `BPF_SK_STORAGE_GET_F_CREATE`.
const CREATE: i32 = 1;
/// `BPF_ANY` and `BPF_NOEXIST`.
const ANY: i32 = 0;
const NEW: i32 = 1;

const REPORTS: i32 = sock_ops::REPORT_HEADER | sock_ops::REPORT_STATE;

pub(super) fn all(answers_by_numbers: bool) -> [Program; 2] {
    let question = question(answers_by_numbers).finish();
    [
        Program { name: OPTION, section: "sockops", code: option().finish() },
        Program { name: QUESTION, section: "cgroup/setsockopt", code: question },
    ]
}

/// `R6` is the context, `R7` what has happened, `R8` the state of the socket.
fn option() -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R7, R6, sock_ops::OP);
    a.jump_if_equal(R7, sock_ops::HEADER_LEN, "packet");
    a.jump_if_equal(R7, sock_ops::WRITE_HEADER, "packet");
    a.jump_if_equal(R7, sock_ops::CONNECT, "socket");
    a.jump_if_equal(R7, sock_ops::LISTEN, "socket");
    a.jump_if_equal(R7, sock_ops::ACTIVE_ESTABLISHED, "socket");
    a.jump_if_equal(R7, sock_ops::PASSIVE_ESTABLISHED, "socket");
    a.jump_if_equal(R7, sock_ops::STATE_CHANGED, "socket");
    a.jump("end");

    a.label("packet");
    a.load_32(R1, R6, sock_ops::SKB_TCP_FLAGS);
    a.and_immediate(R1, SYN | ACK);
    a.jump_if_equal(R1, SYN, "socket");
    a.jump_if_not_equal(R1, SYN | ACK, "end");
    // A SYN-ACK is not of a socket yet but of a request; the kernel asks about it because
    // the listener was marked.
    a.load_32(R1, R6, sock_ops::IS_FULLSOCK);
    a.jump_if_not_equal(R1, 0, "end");
    a.mov_immediate(R8, 0);
    a.jump("addresses");

    a.label("socket");
    a.load_64(R2, R6, sock_ops::SK);
    a.jump_if_equal(R2, 0, "end");
    a.load_map(R1, SOCKETS);
    a.mov_immediate(R3, 0);
    a.mov_immediate(R4, 0);
    a.call(Helper::SkStorageGet);
    a.jump_if_equal(R0, 0, "end");
    a.mov(R8, R0);

    a.label("addresses");
    key::store_own(&mut a, &sock_ops::CONTEXT);
    a.jump_if_equal(R8, 0, "answer");
    a.jump_if_equal(R7, sock_ops::CONNECT, "connect");
    a.jump_if_equal(R7, sock_ops::LISTEN, "report");
    a.jump_if_equal(R7, sock_ops::ACTIVE_ESTABLISHED, "active");
    a.jump_if_equal(R7, sock_ops::PASSIVE_ESTABLISHED, "passive");
    a.jump_if_equal(R7, sock_ops::STATE_CHANGED, "state");
    ask(&mut a);
    connect(&mut a);
    answer(&mut a);
    answer_host(&mut a);
    active(&mut a);
    passive(&mut a);
    state_changed(&mut a);
    compare_hosts(&mut a);
    find_listener(&mut a);

    a.label("end");
    a.mov_immediate(R0, sock_ops::OK);
    a.exit();
    a
}

/// The SYN of a marked socket.
fn ask(a: &mut Assembler) {
    a.load_32(R1, R8, state::KNOWN);
    a.jump_if_equal(R1, state::NOT_AGREED, "asks");
    a.jump_if_not_equal(R1, state::ASKS_HOST, "end");
    key::leave_netns(a, key::OWN);
    a.label("asks");
    a.jump_if_equal(R7, sock_ops::HEADER_LEN, "reserve");
    store_option(a);
    write_option(a);
    a.jump_if_not_equal(R0, 0, "end");
    a.store_immediate_32(R10, SCRATCH, handshake::ASKED);
    a.load_map(R1, ASKING);
    a.address(R2, R10, key::OWN);
    a.address(R3, R10, SCRATCH);
    a.mov_immediate(R4, ANY);
    a.call(Helper::MapUpdate);
    a.jump("end");
}

/// A marked socket connects: is it to one of our listeners, or may it ask other hosts?
fn connect(a: &mut Assembler) {
    a.label("connect");
    a.load_32(R9, R8, state::KNOWN);
    a.store_immediate_32(R8, state::KNOWN, state::SILENT);
    a.jump("hosts");

    a.label("asks host");
    a.jump_if_equal(R9, state::TO_HOSTS, "may ask host");
    a.jump_if_not_equal(R9, state::FOR_HOSTS, "end");
    a.label("may ask host");
    a.store_immediate_32(R8, state::KNOWN, state::ASKS_HOST);
    a.jump("report");

    a.label("could ask");
    a.jump_if_equal(R9, state::TO_HOSTS, "end");
    key::copy_128(a, listener::KEY + listener::ADDRESS, key::OWN + key::REMOTE_ADDRESS);
    key::copy_32(a, listener::KEY + listener::PORT, key::OWN + key::REMOTE_PORT);
    a.jump("find listener");
    a.label("ours");
    a.store_immediate_32(R8, state::KNOWN, state::NOT_AGREED);

    a.label("report");
    a.load_32(R2, R6, sock_ops::CB_FLAGS);
    a.load_32(R1, R8, state::REPORTS);
    a.jump_if_not_equal(R1, 0, "is noted");
    a.mov(R1, R2);
    a.or_immediate(R1, !REPORTS);
    a.store_32(R8, state::REPORTS, R1);
    a.label("is noted");
    a.or_immediate(R2, REPORTS);
    a.mov(R1, R6);
    a.call(Helper::SockOpsCbFlagsSet);
    a.jump("end");
}

/// The SYN-ACK of a marked listener.
fn answer(a: &mut Assembler) {
    a.label("answer");
    a.load_32(R1, R6, sock_ops::ARGS[0]);
    a.jump_if_equal(R1, IS_COOKIE, "end");
    key::store_peer(a);
    look_for_question(a, "not asked in this namespace");
    a.load_32(R1, R9, 0);
    // Sent again, when the SYN is not at hand any more.
    a.jump_if_equal(R1, handshake::ANSWERED, "is asked");
    store_option(a);
    read_option(a, IN_SYN);
    a.jump_if_negative(R0, "end");
    a.label("is asked");
    a.jump_if_equal(R7, sock_ops::HEADER_LEN, "reserve");
    store_option(a);
    write_option(a);
    a.jump_if_not_equal(R0, 0, "end");
    a.store_immediate_32(R9, 0, handshake::ANSWERED);
    a.jump("end");

    a.label("reserve");
    a.mov(R1, R6);
    a.mov_immediate(R2, BYTES.len() as i32);
    a.mov_immediate(R3, 0);
    // Without room for it the option is left out.
    a.call(Helper::ReserveHdrOpt);
    a.jump("end");
}

/// The same, of a client that has not asked in this network namespace.
fn answer_host(a: &mut Assembler) {
    a.label("not asked in this namespace");
    a.load_32(R1, R6, sock_ops::ARGS[0]);
    a.jump_if_not_equal(R1, IS_ORDINARY, "end");
    store_option(a);
    read_option(a, IN_SYN);
    a.jump_if_equal(R0, NO_SYN, "sent again");
    a.jump_if_negative(R0, "end");
    key::leave_netns(a, key::PEER);
    look_for_question(a, "not of this kernel");
    a.jump("end");
    a.label("not of this kernel");
    key::copy_64(a, key::PEER + key::NETNS_COOKIE, key::OWN + key::NETNS_COOKIE);
    a.jump("hosts");
    a.label("asked by a host");
    key::copy_128(a, listener::KEY + listener::ADDRESS, key::OWN + key::LOCAL_ADDRESS);
    key::copy_32(a, listener::KEY + listener::PORT, key::OWN + key::LOCAL_PORT);
    a.jump("find listener");
    a.label("listens");
    a.jump_if_equal(R7, sock_ops::HEADER_LEN, "reserve");
    load_acknowledged(a, "end");
    a.mov(R9, R1);

    // That it is sent is noted first: without a place for the note it is not sent.
    a.label("answer host");
    a.store_32(R10, SCRATCH + answer::ACKNOWLEDGED, R9);
    a.store_immediate_32(R10, SCRATCH + answer::ACKNOWLEDGED + 4, 0);
    a.call(Helper::KtimeGetNs);
    a.store_64(R10, SCRATCH + answer::SENT_NS, R0);
    a.load_map(R1, ANSWERED);
    a.address(R2, R10, key::PEER);
    a.address(R3, R10, SCRATCH);
    a.mov_immediate(R4, ANY);
    a.call(Helper::MapUpdate);
    a.jump_if_not_equal(R0, 0, "end");
    store_option(a);
    write_option(a);
    a.jump_if_equal(R0, 0, "end");
    a.load_map(R1, ANSWERED);
    a.address(R2, R10, key::PEER);
    a.call(Helper::MapDelete);
    a.jump("end");

    // When the SYN is not at hand any more.
    a.label("sent again");
    look_for_answer(a, "end");
    a.jump_if_equal(R7, sock_ops::HEADER_LEN, "reserve");
    load_acknowledged(a, "end");
    a.jump_if_different(R1, R9, "end");
    a.jump("answer host");
}

/// The SYN-ACK has reached a marked client.
fn active(a: &mut Assembler) {
    a.label("active");
    stop_reports(a, sock_ops::REPORT_STATE, "client's reports");
    a.load_32(R1, R8, state::KNOWN);
    a.jump_if_equal(R1, state::ASKS_HOST, "has asked host");
    a.jump_if_not_equal(R1, state::NOT_AGREED, "end");
    store_option(a);
    read_option(a, 0);
    a.jump_if_negative(R0, "not answered");
    a.store_immediate_32(R8, state::KNOWN, state::AGREED);
    // The server's end of the connection is about to look for the entry.
    a.jump("end");
    a.label("has asked host");
    key::leave_netns(a, key::OWN);
    a.store_immediate_32(R8, state::KNOWN, state::SILENT);
    store_option(a);
    read_option(a, 0);
    a.jump_if_negative(R0, "not answered");
    a.store_immediate_32(R8, state::KNOWN, state::AGREED_WITH_HOST);
    a.label("not answered");
    a.load_map(R1, ASKING);
    a.address(R2, R10, key::OWN);
    a.call(Helper::MapDelete);
    a.jump("end");
}

/// An accepted socket, whose state is still its listener's.
fn passive(a: &mut Assembler) {
    a.label("passive");
    stop_reports(a, 0, "server's reports");
    key::store_peer(a);
    a.load_32(R1, R8, state::KNOWN);
    a.store_immediate_32(R8, state::KNOWN, state::SILENT);
    a.jump_if_equal(R1, state::FOR_HOSTS, "no question");
    a.jump_if_equal(R1, state::LISTENER_TO_HOSTS, "no question");
    a.jump_if_equal(R1, state::LISTENER_FOR_HOSTS, "announced");
    a.jump_if_not_equal(R1, state::LISTENER, "end");
    a.label("announced");
    look_for_question(a, "no question");
    a.store_immediate_32(R8, state::KNOWN, state::NOT_AGREED);
    a.load_32(R1, R9, 0);
    a.jump_if_not_equal(R1, handshake::ANSWERED, "is over");
    a.store_immediate_32(R8, state::KNOWN, state::AGREED);
    a.label("is over");
    a.load_map(R1, ASKING);
    a.address(R2, R10, key::PEER);
    a.call(Helper::MapDelete);
    a.jump("end");
    a.label("no question");
    look_for_answer(a, "no answer");
    a.load_32(R1, R6, sock_ops::RCV_NXT);
    a.jump_if_different(R1, R9, "no answer");
    a.store_immediate_32(R8, state::KNOWN, state::AGREED_WITH_HOST);
    a.load_map(R1, ANSWERED);
    a.address(R2, R10, key::PEER);
    a.call(Helper::MapDelete);
    a.jump("end");
    a.label("no answer");
    // Clients elsewhere could not.
    a.jump("hosts");
    a.label("could have asked");
    a.store_immediate_32(R8, state::KNOWN, state::NOT_AGREED);
    a.jump("end");
}

/// A listener or a client ends.
fn state_changed(a: &mut Assembler) {
    a.label("state");
    a.load_32(R1, R6, sock_ops::ARGS[1]);
    a.jump_if_not_equal(R1, sock_ops::TCP_CLOSE, "end");
    a.load_32(R1, R6, sock_ops::ARGS[0]);
    a.jump_if_equal(R1, sock_ops::TCP_LISTEN, "listened");
    a.load_32(R1, R8, state::KNOWN);
    a.jump_if_not_equal(R1, state::ASKS_HOST, "has asked");
    key::leave_netns(a, key::OWN);
    a.label("has asked");
    a.load_map(R1, ASKING);
    a.address(R2, R10, key::OWN);
    a.call(Helper::MapDelete);
    a.jump("end");

    a.label("listened");
    a.load_32(R9, R8, state::KNOWN);
    for state in state::LISTENERS {
        a.jump_if_equal(R9, state, "was announced");
    }
    a.jump("end");
    a.label("was announced");
    a.store_immediate_32(R8, state::KNOWN, state::SILENT);
    key::copy_64(a, listener::KEY + listener::NETNS_COOKIE, key::OWN + key::NETNS_COOKIE);
    key::copy_128(a, listener::KEY + listener::ADDRESS, key::OWN + key::LOCAL_ADDRESS);
    key::copy_32(a, listener::KEY + listener::PORT, key::OWN + key::LOCAL_PORT);
    a.store_immediate_32(R10, listener::KEY + listener::PADDING, 0);
    a.load_map(R1, LISTENERS);
    a.address(R2, R10, listener::KEY);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "end");
    a.mov_immediate(R1, -1);
    a.jump_if_equal(R9, state::LISTENER_TO_HOSTS, "was for hosts");
    a.atomic_add_64(R0, listeners::COUNT, R1);
    a.jump_if_equal(R9, state::LISTENER, "are any left");
    a.label("was for hosts");
    a.atomic_add_64(R0, listeners::FOR_HOSTS, R1);
    a.label("are any left");
    a.load_64(R1, R0, listeners::COUNT);
    a.load_64(R2, R0, listeners::FOR_HOSTS);
    a.or(R1, R2);
    a.jump_if_not_equal(R1, 0, "end");
    // One that is announced at this very moment would be forgotten; it is not asked then.
    a.load_map(R1, LISTENERS);
    a.address(R2, R10, listener::KEY);
    a.call(Helper::MapDelete);
    a.jump("end");
}

/// What the library says about a socket, and what it asks: see [`mod@question`]. Everything
/// else goes to the kernel, which has no such options. An older kernel cannot answer by
/// numbers: it tells no identity, and nothing of other hosts.
///
/// `R6` is the context, `R7` the name of the option, `R8` the socket, `R9` its state.
fn question(answers_by_numbers: bool) -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R1, R6, sockopt::LEVEL);
    a.jump_if_not_equal(R1, question::LEVEL, "end");
    a.load_32(R7, R6, sockopt::OPTNAME);
    a.load_64(R8, R6, sockopt::SK);
    a.mov_immediate(R4, CREATE);
    a.jump_if_equal(R7, question::MARK, "find");
    if answers_by_numbers {
        a.jump_if_equal(R7, question::MARK_FOR_HOSTS, "find");
        a.jump_if_equal(R7, question::MARK_TO_HOSTS, "find");
        tell_identity(&mut a);
    }
    a.mov_immediate(R4, 0);
    a.label("find");
    a.load_map(R1, SOCKETS);
    a.mov(R2, R8);
    a.mov_immediate(R3, 0);
    a.call(Helper::SkStorageGet);
    a.jump_if_equal(R0, 0, "end");
    a.mov(R9, R0);
    a.load_32(R1, R9, state::KNOWN);
    a.jump_if_equal(R7, question::MARK, "mark");
    a.jump_if_equal(R7, question::MARK_FOR_HOSTS, "mark for hosts");
    a.jump_if_equal(R7, question::MARK_TO_HOSTS, "mark for hosts");
    a.jump_if_equal(R7, question::ANNOUNCE, "announce");
    a.jump_if_equal(R7, question::ANNOUNCE_TO_HOSTS, "announce");
    a.jump_if_not_equal(R7, question::IS_AGREED, "end");
    a.jump_if_equal(R1, state::AGREED, "yes");
    a.jump_if_equal(R1, state::NOT_AGREED, "refuse");
    if answers_by_numbers {
        a.jump_if_not_equal(R1, state::AGREED_WITH_HOST, "end");
        a.mov_immediate(R1, -IS_REMOTE);
        a.call(Helper::SetRetval);
        a.jump("refuse");
    } else {
        a.jump("end");
    }

    a.label("mark");
    a.jump_if_equal(R1, state::TO_HOSTS, "mark for this host");
    a.jump_if_not_equal(R1, state::FOR_HOSTS, "yes");
    a.label("mark for this host");
    a.store_immediate_32(R9, state::KNOWN, state::SILENT);
    a.jump("yes");

    a.label("mark for hosts");
    for state in state::LISTENERS {
        a.jump_if_equal(R1, state, "yes");
    }
    a.store_immediate_32(R9, state::KNOWN, state::FOR_HOSTS);
    a.jump_if_equal(R7, question::MARK_FOR_HOSTS, "yes");
    a.store_immediate_32(R9, state::KNOWN, state::TO_HOSTS);
    a.jump("yes");

    a.label("announce");
    a.load_32(R2, R8, sockopt::SOCKET_STATE);
    a.jump_if_not_equal(R2, sock_ops::TCP_LISTEN, "end");
    for state in state::LISTENERS {
        a.jump_if_equal(R1, state, "yes");
    }
    // Marked too late, it would not answer.
    a.load_32(R1, R9, state::REPORTS);
    a.jump_if_equal(R1, 0, "end");
    key::store_netns_cookie(&mut a, listener::KEY + listener::NETNS_COOKIE);
    let address = listener::KEY + listener::ADDRESS;
    key::store_local_address(&mut a, address, R8, &sockopt::SOCKET);
    a.load_32(R1, R8, sockopt::SOCKET.local_port);
    a.store_32(R10, listener::KEY + listener::PORT, R1);
    a.store_immediate_32(R10, listener::KEY + listener::PADDING, 0);
    // R8 and R7 have done their duty: what is known from now on, and how many more there are for other hosts.
    a.load_32(R1, R9, state::KNOWN);
    a.jump_if_equal(R7, question::ANNOUNCE, "to this host");
    a.jump_if_not_equal(R1, state::FOR_HOSTS, "end");
    a.mov_immediate(R7, 1);
    a.mov_immediate(R8, state::LISTENER_TO_HOSTS);
    a.jump("count");
    a.label("to this host");
    a.mov_immediate(R7, 0);
    a.mov_immediate(R8, state::LISTENER);
    a.jump_if_not_equal(R1, state::FOR_HOSTS, "count");
    a.mov_immediate(R7, 1);
    a.mov_immediate(R8, state::LISTENER_FOR_HOSTS);
    a.label("count");
    a.load_map(R1, LISTENERS);
    a.address(R2, R10, listener::KEY);
    a.call(Helper::MapLookup);
    a.mov_immediate(R1, 0);
    a.jump_if_equal(R8, state::LISTENER_TO_HOSTS, "for hosts alone");
    a.mov_immediate(R1, 1);
    a.label("for hosts alone");
    a.jump_if_equal(R0, 0, "first");
    a.atomic_add_64(R0, listeners::COUNT, R1);
    a.atomic_add_64(R0, listeners::FOR_HOSTS, R7);
    a.jump("counted");
    a.label("first");
    a.store_64(R10, SCRATCH + listeners::COUNT, R1);
    a.store_64(R10, SCRATCH + listeners::FOR_HOSTS, R7);
    a.load_map(R1, LISTENERS);
    a.address(R2, R10, listener::KEY);
    a.address(R3, R10, SCRATCH);
    a.mov_immediate(R4, NEW);
    a.call(Helper::MapUpdate);
    a.jump_if_not_equal(R0, 0, "end");
    a.label("counted");
    a.store_32(R9, state::KNOWN, R8);

    a.label("yes");
    // A context takes no immediate before Linux 6.4.
    a.mov_immediate(R1, sockopt::DONE);
    a.store_32(R6, sockopt::OPTLEN, R1);
    a.label("end");
    a.mov_immediate(R0, sockopt::GO_ON);
    a.exit();
    a.label("refuse");
    a.mov_immediate(R0, sockopt::REFUSE);
    a.exit();
    a
}

/// A part of the identity of a connection: see [`Identity`]. The kernel runs the program
/// with the socket locked, so both counters of a difference are of the same moment.
fn tell_identity(a: &mut Assembler) {
    a.address(R9, R7, -(question::IDENTITY as i16));
    a.jump_if_above(R9, Identity::PARTS as i32 - 1, "not of identity");
    a.mul_immediate(R9, Identity::PART_BITS as i32);
    a.mov(R1, R8);
    a.call(Helper::TcpSock);
    a.jump_if_equal(R0, 0, "end");
    a.load_32(R1, R0, tcp_sock::RCV_NXT);
    a.load_64(R2, R0, tcp_sock::BYTES_RECEIVED);
    a.sub(R1, R2);
    a.load_32(R3, R0, tcp_sock::SND_UNA);
    a.load_64(R2, R0, tcp_sock::BYTES_ACKED);
    a.sub(R3, R2);
    a.shift_left_immediate(R1, 32);
    a.shift_left_immediate(R3, 32);
    a.shift_right_immediate(R3, 32);
    a.or(R3, R1);
    a.shift_right(R3, R9);
    a.and_immediate(R3, (1 << Identity::PART_BITS) - 1);
    a.mov_immediate(R1, -Identity::ANSWER);
    a.sub(R1, R3);
    a.call(Helper::SetRetval);
    a.jump("refuse");
    a.label("not of identity");
}

/// `struct bpf_tcp_sock` of `linux/bpf.h`.
mod tcp_sock {
    pub(super) const RCV_NXT: i16 = 16;
    pub(super) const SND_UNA: i16 = 24;
    pub(super) const BYTES_RECEIVED: i16 = 80;
    pub(super) const BYTES_ACKED: i16 = 88;
}

/// Puts the option on the stack, with two bytes behind it that are not read.
fn store_option(a: &mut Assembler) {
    let [kind, length, b0, b1, b2, b3] = BYTES;
    a.store_immediate_32(R10, BUFFER, i32::from_ne_bytes([kind, length, b0, b1]));
    a.store_immediate_32(R10, BUFFER + 4, i32::from_ne_bytes([b2, b3, 0, 0]));
}

/// Writes what [`store_option`] has put on the stack into the packet; `R0` = 0: it is
/// there.
fn write_option(a: &mut Assembler) {
    a.mov(R1, R6);
    a.address(R2, R10, BUFFER);
    a.mov_immediate(R3, BYTES.len() as i32);
    a.mov_immediate(R4, 0);
    a.call(Helper::StoreHdrOpt);
}

/// Looks for what [`store_option`] has put on the stack; `R0` is negative if it is not
/// there, or is longer: then it is not of our programs.
fn read_option(a: &mut Assembler, place: i32) {
    a.mov(R1, R6);
    a.address(R2, R10, BUFFER);
    a.mov_immediate(R3, BUFFER_LEN);
    a.mov_immediate(R4, place);
    a.call(Helper::LoadHdrOpt);
}

/// Bytes that [`store_option`] uses.
const BUFFER_LEN: i32 = 8;

/// `R9` = the entry of the client in [`ASKING`], seen from the server.
fn look_for_question(a: &mut Assembler, if_none: &'static str) {
    a.load_map(R1, ASKING);
    a.address(R2, R10, key::PEER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, if_none);
    a.mov(R9, R0);
}

/// `R9` = what the SYN-ACK to this client has acknowledged, if it had the option.
fn look_for_answer(a: &mut Assembler, if_none: &'static str) {
    a.load_map(R1, ANSWERED);
    a.address(R2, R10, key::PEER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, if_none);
    a.load_32(R9, R0, answer::ACKNOWLEDGED);
}

/// `R1` = what the packet that is about to be sent acknowledges.
fn load_acknowledged(a: &mut Assembler, if_cut_off: &'static str) {
    a.load_64(R1, R6, sock_ops::SKB_DATA);
    a.load_64(R2, R6, sock_ops::SKB_DATA_END);
    a.address(R3, R1, ACKNOWLEDGED + 4);
    a.jump_if_beyond(R3, R2, if_cut_off);
    a.load_32(R1, R1, ACKNOWLEDGED);
    a.swap_to_big_endian_32(R1);
}

/// Where a TCP header has the number that it acknowledges.
const ACKNOWLEDGED: i16 = 8;

/// Looks for a listener that was announced, under the address and port in the key on the
/// stack: an end that connects goes to `ours` with one, one that answers to `listens`. Without
/// one both go to `end`. `R0` = its value.
fn find_listener(a: &mut Assembler) {
    a.label("find listener");
    key::copy_64(a, listener::KEY + listener::NETNS_COOKIE, key::OWN + key::NETNS_COOKIE);
    a.store_immediate_32(R10, listener::KEY + listener::PADDING, 0);
    look_for_listener(a, "which at this address", "not at this address");
    // One that listens on all addresses of IPv4, ...
    jump_unless_ipv4(a, listener::KEY + listener::ADDRESS, "not of ipv4");
    a.store_immediate_32(R10, listener::KEY + listener::ADDRESS + 12, 0);
    look_for_listener(a, "which of ipv4", "not of ipv4");
    // ... or of IPv6, which mostly means both.
    a.mov_immediate(R1, 0);
    a.store_64(R10, listener::KEY + listener::ADDRESS, R1);
    a.store_64(R10, listener::KEY + listener::ADDRESS + 8, R1);
    look_for_listener(a, "which of ipv6", "nobody's");
    a.jump("end");
    a.label("found");
    a.jump_if_equal(R7, sock_ops::CONNECT, "ours");
    a.jump("listens");
}

/// Goes to `found` if there is a listener under the key on the stack, for a client of this host that asks, or for one of
/// another host that is to be answered. Without one it goes on. The labels are of its own.
fn look_for_listener(a: &mut Assembler, counted: &'static str, behind: &'static str) {
    a.load_map(R1, LISTENERS);
    a.address(R2, R10, listener::KEY);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, behind);
    a.load_64(R1, R0, listeners::COUNT);
    a.jump_if_equal(R7, sock_ops::CONNECT, counted);
    a.load_64(R1, R0, listeners::FOR_HOSTS);
    a.label(counted);
    a.jump_if_not_equal(R1, 0, "found");
    a.label(behind);
}

/// Can the addresses only be of one host? They are the same, or one is of 127.0.0.0/8;
/// IPv6 has one address for both ends of loopback.
fn compare_hosts(a: &mut Assembler) {
    a.label("hosts");
    for half in [0, 8] {
        a.load_64(R1, R10, key::OWN + key::LOCAL_ADDRESS + half);
        a.load_64(R2, R10, key::OWN + key::REMOTE_ADDRESS + half);
        a.jump_if_different(R1, R2, "two addresses");
    }
    a.jump("one host");
    a.label("two addresses");
    for (address, next) in [(key::LOCAL_ADDRESS, "not local"), (key::REMOTE_ADDRESS, "two hosts")] {
        jump_unless_ipv4(a, key::OWN + address, next);
        a.load_8(R1, R10, key::OWN + address + 12);
        a.jump_if_equal(R1, 127, "one host");
        a.label(next);
    }
    a.jump_if_equal(R7, sock_ops::CONNECT, "asks host");
    a.jump_if_equal(R7, sock_ops::PASSIVE_ESTABLISHED, "end");
    a.jump("asked by a host");
    a.label("one host");
    a.jump_if_equal(R7, sock_ops::CONNECT, "could ask");
    a.jump_if_equal(R7, sock_ops::PASSIVE_ESTABLISHED, "could have asked");
    // A program of this host that is none of ours.
    a.jump("end");
}

/// Goes on with an address in the mapped form.
fn jump_unless_ipv4(a: &mut Assembler, address: i16, label: &'static str) {
    a.load_64(R1, R10, address);
    a.jump_if_not_equal(R1, 0, label);
    a.load_32(R1, R10, address + 8);
    a.swap_to_big_endian_32(R1);
    a.jump_if_not_equal(R1, 0xffff, label);
}

/// Switches off the reports that were switched on for the handshake, except for some.
fn stop_reports(a: &mut Assembler, except: i32, behind: &'static str) {
    a.load_32(R1, R8, state::REPORTS);
    a.jump_if_equal(R1, 0, behind);
    a.store_immediate_32(R8, state::REPORTS, 0);
    a.load_32(R2, R6, sock_ops::CB_FLAGS);
    a.and(R2, R1);
    a.or_immediate(R2, except);
    a.mov(R1, R6);
    a.call(Helper::SockOpsCbFlagsSet);
    a.label(behind);
}
