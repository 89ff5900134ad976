//! The programs that the kernel asks when a socket of the distributor's own host connects to a VIP.
//!
//! The VIP is an address of this host, or of none, so packets to it never come in by the interface, and an answer from
//! another host in the VIP's name would be dropped as one of our own that came from outside. So the target is chosen when a program
//! connects, before the kernel looks for a route:
//!
//! ```text
//!   connect      ──> "own_host"    is the socket of this network namespace?
//!                    "services"    is it a VIP, and has that one a table for connections of this host?
//!                    the tables    which target? ([`crate::tables`], by the same counts as for all clients)
//!                    "ends"        another host: the socket connects to that one's own address, at the VIP's port
//!                    "connecting"  what it was connected to, and what it says that it is
//!   getpeername  ──> "connecting"  the VIP, as the program has it
//! ```
//!
//! A target that is this host leaves all as it is: the connection is to the VIP.
//!
//! A socket that was bound to an address before stays here too, because that address may be one with which no packet may leave,
//! such as the VIP, or one of loopback.

use crate::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R10};
use crate::assembler::{Assembler, Helper, Register};
use crate::key;
use crate::map::{MapDefinition, MapKind};
use crate::object_file::Program;
use crate::packet;
use crate::tables::programs::{
    self as tables, ARRAY, CLIENT, INDICES, NUMBER, SERVICE, TARGET, client, service, service_key,
};
use crate::tunnel::Family;
use sidestep_distributor::terms::TARGETS_MAX;

use super::layout::{ROUTE, ROUTES, route};
use super::programs::assign;

/// By family: asked at `connect`, and at `getpeername`.
pub(super) const CONNECT: [&str; 2] = ["connect_ipv4", "connect_ipv6"];
pub(super) const PEER_NAME: [&str; 2] = ["peer_name_ipv4", "peer_name_ipv6"];

/// The cookie of the network namespace that is meant; one entry.
pub(super) const OWN_HOST: &str = "own_host";
/// By service: as which client this host counts for `timedaffinity`.
pub(super) const OWN_CLIENT: &str = "own_client";
/// The own address of each target, [`TARGETS_MAX`] for each service.
pub(super) const ENDS: &str = "ends";
/// What sockets were connected to.
pub(super) const CONNECTING: &str = "connecting";

/// A value of [`CONNECTING`]: the number of the route, or 0 of a socket that is connected to no VIP any more; the VIP; where the
/// socket is connected; the port of both, as the kernel's context has it.
pub(super) mod connecting {
    pub(in super::super) const LEN: usize = 48;
    pub(in super::super) const ROUTE: i16 = 0;
    pub(in super::super) const VIP: i16 = 8;
    pub(in super::super) const END: i16 = 24;
    pub(in super::super) const PORT: i16 = 40;
}

/// `struct bpf_sock_addr` of `linux/bpf.h`, and the addresses of the `struct bpf_sock` it points at.
mod context {
    pub(super) const IPV4: i16 = 4;
    pub(super) const IPV6: i16 = 8;
    /// In the network's order.
    pub(super) const PORT: i16 = 24;
    pub(super) const PROTOCOL: i16 = 36;
    pub(super) const SOCKET: i16 = 64;

    pub(super) const SOCKET_IPV4: i16 = 24;
    pub(super) const SOCKET_IPV6: i16 = 28;

    /// The call goes on.
    pub(super) const GO_ON: i32 = 1;
}

/// `BPF_SK_STORAGE_GET_F_CREATE`
const CREATE: i32 = 1;

pub(super) fn maps() -> [MapDefinition; 4] {
    let targets = (INDICES * TARGETS_MAX) as u32;
    [
        MapDefinition { name: OWN_HOST, value_len: 8, entries_max: 1, ..ARRAY },
        MapDefinition { name: OWN_CLIENT, value_len: 16, entries_max: INDICES as u32, ..ARRAY },
        MapDefinition { name: ENDS, value_len: 16, entries_max: targets, ..ARRAY },
        MapDefinition {
            name: CONNECTING,
            kind: MapKind::SkStorage,
            value_len: connecting::LEN as u32,
            entries_max: 0,
            on_demand: true,
            ..ARRAY
        },
    ]
}

pub(super) fn all() -> [Program; 4] {
    let program = |name, section, code: Assembler| Program { name, section, code: code.finish() };
    [
        program(CONNECT[0], "cgroup/connect4", connect(Family::Ipv4)),
        program(CONNECT[1], "cgroup/connect6", connect(Family::Ipv6)),
        program(PEER_NAME[0], "cgroup/getpeername4", peer_name(Family::Ipv4)),
        program(PEER_NAME[1], "cgroup/getpeername6", peer_name(Family::Ipv6)),
    ]
}

/// `R6` is the context. `R7` is the service, `R8` the place, `R9` the page, until a target is found.
fn connect(family: Family) -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    within_namespace(&mut a);
    store_service(&mut a, family);
    unless_bound(&mut a, family);
    tables::find_service(&mut a);
    choose(&mut a);
    redirect(&mut a, family);
    a.label("pass");
    a.label("refuse");
    forget(&mut a);
    a.label("done");
    go_on(&mut a);
    a
}

/// Sockets of other network namespaces are none of ours.
fn within_namespace(a: &mut Assembler) {
    a.mov(R1, R6);
    a.call(Helper::NetnsCookie);
    a.mov(R8, R0);
    a.store_immediate_32(R10, NUMBER, 0);
    a.load_map(R1, OWN_HOST);
    a.address(R2, R10, NUMBER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "done");
    a.load_64(R1, R0, 0);
    a.jump_if_different(R1, R8, "done");
}

/// The key of the service for connections of this host.
fn store_service(a: &mut Assembler, family: Family) {
    a.load_32(R1, R6, context::PROTOCOL);
    a.jump_if_equal(R1, packet::TCP, "protocol");
    a.jump_if_not_equal(R1, packet::UDP, "done");
    a.label("protocol");
    a.or_immediate(R1, service_key::OF_OWN_HOST.cast_signed());
    a.store_32(R10, SERVICE + service_key::PROTOCOL as i16, R1);
    a.load_32(R1, R6, context::PORT);
    a.swap_to_big_endian_32(R1);
    a.shift_right_immediate(R1, 16);
    a.store_32(R10, SERVICE + service_key::PORT as i16, R1);
    match family {
        Family::Ipv4 => key::store_mapped_ipv4(a, SERVICE, R6, context::IPV4),
        Family::Ipv6 => key::store_ipv6(a, SERVICE, R6, context::IPV6),
    }
}

fn unless_bound(a: &mut Assembler, family: Family) {
    a.load_64(R2, R6, context::SOCKET);
    match family {
        Family::Ipv4 => a.load_32(R1, R2, context::SOCKET_IPV4),
        Family::Ipv6 => {
            a.load_32(R1, R2, context::SOCKET_IPV6);
            for word in [4, 8, 12] {
                a.load_32(R3, R2, context::SOCKET_IPV6 + word);
                a.or(R1, R3);
            }
        }
    }
    a.jump_if_not_equal(R1, 0, "pass");
}

/// The target's number in [`TARGET`], its route in [`ROUTE`].
fn choose(a: &mut Assembler) {
    a.load_32(R1, R7, service::PLACES as i16);
    a.jump_if_equal(R1, 0, "refuse");
    store_client(a);
    // Where the first takes all, it also takes clients that have met another.
    a.load_32(R1, R7, service::CHOICE as i16);
    a.jump_if_equal(R1, service::BY_RANK as i32, "choose");
    tables::keep_to_target(a);
    assign(a, "choose");
    a.jump("assigned");
    a.label("choose");
    tables::choose_place(a, |a| {
        // The port is not chosen yet. No two sockets have the same number.
        a.mov(R1, R6);
        a.call(Helper::SocketCookie);
        a.mov(R1, R0);
    });
    a.label("search");
    tables::search(a, assign);
    a.label("assigned");
    tables::count(a);
    a.label("counted");
}

/// The address of this host, as a client's.
fn store_client(a: &mut Assembler) {
    tables::find(a, OWN_CLIENT, service::INDEX, "refuse");
    for word in [0, 8] {
        a.load_64(R1, R0, word);
        a.store_64(R10, CLIENT + client::ADDRESS + word, R1);
    }
}

/// Has the socket connect to the target, and notes it.
fn redirect(a: &mut Assembler, family: Family) {
    a.load_64(R1, R10, TARGET);
    tables::number_target(a);
    a.load_map(R1, ROUTES);
    a.address(R2, R10, ROUTE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "pass");
    a.load_32(R8, R0, route::FLAGS as i16);
    a.and_immediate(R8, route::OWN as i32);
    // `R7` = where it is connected: the VIP, or the own address of the host.
    a.address(R7, R10, SERVICE);
    a.jump_if_not_equal(R8, 0, "note");
    a.load_map(R1, ENDS);
    a.address(R2, R10, NUMBER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "pass");
    a.mov(R7, R0);
    a.label("note");
    note(a, R7);
    a.jump_if_not_equal(R8, 0, "done");
    let (from, to) = ends(family);
    for (from, to) in from.into_iter().zip(to) {
        a.load_32(R1, R7, from);
        a.store_32(R6, to, R1);
    }
    a.jump("done");
}

/// The words of an address that a family has, and where the context has them.
fn ends(family: Family) -> (Vec<i16>, Vec<i16>) {
    match family {
        Family::Ipv4 => (vec![12], vec![context::IPV4]),
        Family::Ipv6 => ([0, 4, 8, 12].into(), [0, 4, 8, 12].map(|at| context::IPV6 + at).into()),
    }
}

/// Keeps with the socket that it is connected to the VIP, at the address that `end` points at.
fn note(a: &mut Assembler, end: Register) {
    find_note(a, CREATE, "done");
    a.load_32(R1, R10, ROUTE);
    a.store_64(R0, connecting::ROUTE, R1);
    for word in [0, 8] {
        a.load_64(R1, R10, SERVICE + word);
        a.store_64(R0, connecting::VIP + word, R1);
        a.load_64(R1, end, word);
        a.store_64(R0, connecting::END + word, R1);
    }
    a.load_32(R1, R6, context::PORT);
    a.store_32(R0, connecting::PORT, R1);
}

/// A socket may have been connected before, to a VIP.
fn forget(a: &mut Assembler) {
    find_note(a, 0, "done");
    a.mov_immediate(R1, 0);
    a.store_64(R0, connecting::ROUTE, R1);
}

/// `R0` = what is kept with the socket; without it, on to the label.
fn find_note(a: &mut Assembler, flags: i32, absent: &'static str) {
    a.load_map(R1, CONNECTING);
    a.load_64(R2, R6, context::SOCKET);
    a.mov_immediate(R3, 0);
    a.mov_immediate(R4, flags);
    a.call(Helper::SkStorageGet);
    a.jump_if_equal(R0, 0, absent);
}

fn go_on(a: &mut Assembler) {
    a.mov_immediate(R0, context::GO_ON);
    a.exit();
}

/// The peer of a socket is the VIP that it was connected to, and not the host that serves it.
fn peer_name(family: Family) -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    find_note(&mut a, 0, "done");
    a.load_64(R1, R0, connecting::ROUTE);
    a.jump_if_equal(R1, 0, "done");
    a.load_32(R1, R6, context::PORT);
    a.load_32(R2, R0, connecting::PORT);
    a.jump_if_different(R1, R2, "done");
    let (words, places) = ends(family);
    for (word, place) in words.iter().zip(&places) {
        a.load_32(R1, R6, *place);
        a.load_32(R2, R0, connecting::END + word);
        a.jump_if_different(R1, R2, "done");
    }
    for (word, place) in words.iter().zip(&places) {
        a.load_32(R1, R0, connecting::VIP + word);
        a.store_32(R6, *place, R1);
    }
    a.label("done");
    go_on(&mut a);
    a
}
