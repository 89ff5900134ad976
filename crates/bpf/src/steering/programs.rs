//! The program that chooses a listener for a connection to a VIP, and the maps that it looks into.
//!
//! ```text
//!   SYN ──> "services"   is this address and port a VIP? If not, the kernel goes on as ever.
//!           "clients"    has this client been given a target lately?
//!           "pages"      the table in force: by hash, by turn, or the least busy for its weight
//!           "listeners"  the target's socket; without one, the next place of the table
//!           "steered"    one more for this target
//! ```
//!
//! The kernel asks when it looks for a *listener*: for a SYN, never for a segment of a connection that is
//! there. So a connection costs nothing once it is made, and no change of a table can break one. A segment of
//! a connection that has ended (a FIN sent again) asks as well and counts as given; the listener resets it.

use sidestep_distributor::terms::TARGETS_MAX;

use crate::assembler::Register::{R0, R1, R2, R3, R6, R7, R10};
use crate::assembler::{Assembler, Helper};
use crate::key;
use crate::map::{MapDefinition, MapKind};
use crate::object_file::Program;
use crate::tables::programs::{
    self as tables, ARRAY, CLIENT, INDICES, NUMBER, SERVICE, STACK, client, service, service_key,
};

pub(super) const STEER: &str = "steer";

/// The targets' sockets, [`TARGETS_MAX`] for each service.
pub(super) const LISTENERS: &str = "listeners";
/// A number for each target's socket, of which accepted ones get a copy.
pub(super) const OWNERS: &str = "owners";

pub(super) fn maps() -> Vec<MapDefinition> {
    let own = [
        MapDefinition {
            name: LISTENERS,
            kind: MapKind::SockMap,
            value_len: 4,
            entries_max: (INDICES * TARGETS_MAX) as u32,
            ..ARRAY
        },
        MapDefinition {
            name: OWNERS,
            kind: MapKind::SkStorage,
            value_len: 8,
            entries_max: 0,
            on_demand: true,
            ..ARRAY
        },
    ];
    [&tables::MAPS[..], &own].concat()
}

/// `struct bpf_sk_lookup` of `linux/bpf.h`.
mod lookup {
    use crate::key::Context;

    pub(super) const PROTOCOL: i16 = 12;
    pub(super) const TCP: i32 = 6;
    pub(super) const CONTEXT: Context = Context {
        family: 8,
        remote_ip4: 16,
        remote_ip6: 20,
        remote_port: 36,
        local_ip4: 40,
        local_ip6: 44,
        local_port: 60,
    };
    /// What the program returns: the client is refused, or the kernel goes on with the socket that was
    /// assigned, if one was.
    pub(super) const DROP: i32 = 0;
    pub(super) const PASS: i32 = 1;
}

// Where the stack has what, below what the tables use.
const SOCKET: i16 = STACK - 8;
const RESULT: i16 = SOCKET - 8;

pub(super) fn all() -> [Program; 1] {
    [Program { name: STEER, section: "sk_lookup", code: steer().finish() }]
}

/// `R6` is the context, `R7` the service, `R8` the place, `R9` the page.
fn steer() -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    store_addresses(&mut a);
    tables::find_service(&mut a);
    a.load_32(R1, R7, service::PLACES as i16);
    a.jump_if_equal(R1, 0, "refuse");
    tables::keep_to_target(&mut a);
    assign(&mut a, "choose");
    a.jump("assigned");
    a.label("choose");
    tables::choose_place(&mut a, load_client_port);
    a.label("search");
    tables::search(&mut a, assign);
    a.label("assigned");
    tables::count(&mut a);
    // A socket is assigned already.
    a.label("counted");

    a.label("pass");
    a.mov_immediate(R0, lookup::PASS);
    a.exit();
    a.label("refuse");
    a.mov_immediate(R0, lookup::DROP);
    a.exit();
    a
}

/// Puts the addresses on the stack. What is not TCP passes.
fn store_addresses(a: &mut Assembler) {
    a.load_32(R1, R6, lookup::PROTOCOL);
    a.jump_if_not_equal(R1, lookup::TCP, "pass");
    let context = &lookup::CONTEXT;
    a.load_32(R1, R6, context.local_port);
    a.store_32(R10, SERVICE + service_key::PORT as i16, R1);
    a.store_immediate_32(R10, SERVICE + service_key::PROTOCOL as i16, lookup::TCP);
    a.load_32(R1, R6, context.family);
    a.jump_if_equal(R1, key::IPV4, "ipv4");
    a.jump_if_not_equal(R1, key::IPV6, "pass");
    key::store_ipv6(a, SERVICE, R6, context.local_ip6);
    key::store_ipv6(a, CLIENT + client::ADDRESS, R6, context.remote_ip6);
    a.jump("addresses");
    a.label("ipv4");
    key::store_mapped_ipv4(a, SERVICE, R6, context.local_ip4);
    key::store_mapped_ipv4(a, CLIENT + client::ADDRESS, R6, context.remote_ip4);
    a.label("addresses");
}

/// `R1` = the client's port.
fn load_client_port(a: &mut Assembler) {
    // Two bytes in the network's order and two of zeroes behind them.
    a.load_32(R1, R6, lookup::CONTEXT.remote_port);
    a.swap_to_big_endian_32(R1);
    a.shift_right_immediate(R1, 16);
}

/// Gives the packet to target `R1`; without a socket that takes it, it goes to the label.
fn assign(a: &mut Assembler, otherwise: &'static str) {
    tables::number_target(a);
    a.load_map(R1, LISTENERS);
    a.address(R2, R10, NUMBER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, otherwise);
    a.store_64(R10, SOCKET, R0);
    a.mov(R1, R6);
    a.mov(R2, R0);
    a.mov_immediate(R3, 0);
    a.call(Helper::SkAssign);
    a.store_64(R10, RESULT, R0);
    a.load_64(R1, R10, SOCKET);
    a.call(Helper::SkRelease);
    a.load_64(R0, R10, RESULT);
    a.jump_if_not_equal(R0, 0, otherwise);
}
