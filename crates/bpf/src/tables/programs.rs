//! How a program chooses a target for what begins, and the maps that it looks into.
//!
//! Each program of a data path puts the service's key and the client's address on its stack, finds the service, and
//! writes these pieces between its own. What a target *is* (a socket, a host) its `assign` knows.
//!
//! # How a table changes
//!
//! A service has two pages. A new table is written into the one that is not in force, and then the entry of
//! the service is replaced, which is one step: it says which page, how long, how to choose. A packet that has read
//! the old entry and is slower than two changes finds targets of the newest table, each of which takes
//! connections.

use sidestep_distributor::hash;
use sidestep_distributor::maglev::PLACES;
use sidestep_distributor::terms::{TARGETS_MAX, VIPS_MAX};

use crate::assembler::Register::{R0, R1, R2, R3, R4, R7, R8, R9, R10};
use crate::assembler::{Assembler, Helper, Register};
use crate::map::{MapDefinition, MapKind};

/// Services that there can be, in force or not yet: twice as many as VIPs, so that a new set is there
/// before the old one goes.
pub const INDICES: usize = 2 * VIPS_MAX;

/// VIPs, by address, port and protocol.
pub(crate) const SERVICES: &str = "services";
/// Tables, two for each service.
pub(crate) const PAGES: &str = "pages";
/// How many connections each target of a service was given, and behind them the turn.
pub(crate) const STEERED: &str = "steered";
/// How many of these have ended.
pub(crate) const ENDED: &str = "ended";
/// Which target a client was given last.
pub(crate) const CLIENTS: &str = "clients";

/// The key of [`SERVICES`].
pub(crate) mod service_key {
    pub(crate) const LEN: usize = 24;
    pub(crate) const PORT: usize = 16;
    pub(crate) const PROTOCOL: usize = 20;
    /// Beside the protocol: the entry is for connections of the host itself.
    pub(crate) const OF_OWN_HOST: u32 = 0x100;
}

/// The value of [`SERVICES`].
pub(crate) mod service {
    pub(crate) const LEN: usize = 32;
    /// Its number.
    pub(crate) const INDEX: usize = 0;
    /// The page in force: its number among all pages.
    pub(crate) const PAGE: usize = 4;
    /// One of the choices.
    pub(crate) const CHOICE: usize = 8;
    /// How many places the page has.
    pub(crate) const PLACES: usize = 12;
    /// A bit for each target that takes connections.
    pub(crate) const TAKERS: usize = 16;
    /// For how long a client meets the same target, in nanoseconds.
    pub(crate) const AFFINITY_NS: usize = 24;

    pub(crate) const BY_HASH: u32 = 0;
    pub(crate) const BY_TURN: u32 = 1;
    pub(crate) const BY_LOAD: u32 = 2;
    pub(crate) const BY_RANK: u32 = 3;
    /// By load, with no matter which client.
    pub(crate) const BY_LOAD_IN_ORDER: u32 = 4;
}

/// A value of [`PAGES`]: the weights of the targets, four bytes each, and behind them the places, one each.
pub(crate) mod page {
    use sidestep_distributor::terms::TARGETS_MAX;

    pub(crate) const PLACES: usize = 4 * TARGETS_MAX;
    /// Room for [`super::PLACES`], so that a place is a number of so many bits.
    pub(crate) const ROOM: usize = super::PLACES.next_power_of_two();
    pub(crate) const LEN: usize = PLACES + ROOM;
}

/// What a table of [`choose_earlier`] has where a page has weights.
pub(crate) mod earlier {
    pub(crate) const COUNT: usize = 0;
    /// One of the choices.
    pub(crate) const CHOICE: usize = 4;
}

/// A value of [`STEERED`] and [`ENDED`], in words: one for each target, and the turn.
pub(crate) const WORDS: usize = TARGETS_MAX + 1;

/// Entries that a number finds.
pub(crate) const ARRAY: MapDefinition = MapDefinition {
    name: PAGES,
    kind: MapKind::Array,
    key_len: 4,
    value_len: page::LEN as u32,
    entries_max: 2 * INDICES as u32,
    on_demand: false,
};

pub(crate) const MAPS: [MapDefinition; 5] = [
    MapDefinition {
        name: SERVICES,
        kind: MapKind::Hash,
        key_len: service_key::LEN as u32,
        value_len: service::LEN as u32,
        // Those of a new set and of the one before it.
        entries_max: 2 * VIPS_MAX as u32,
        on_demand: false,
    },
    ARRAY,
    MapDefinition {
        name: STEERED,
        value_len: 8 * WORDS as u32,
        entries_max: INDICES as u32,
        ..ARRAY
    },
    MapDefinition {
        name: ENDED,
        value_len: 8 * WORDS as u32,
        entries_max: INDICES as u32,
        ..ARRAY
    },
    MapDefinition {
        name: CLIENTS,
        kind: MapKind::LruHash,
        key_len: client::KEY_LEN as u32,
        value_len: client::LEN as u32,
        // Clients beyond are forgotten, the longest away first.
        entries_max: 0x1_0000,
        on_demand: false,
    },
];

/// The key and value of [`CLIENTS`].
pub(crate) mod client {
    pub(crate) const KEY_LEN: i16 = 24;
    pub(crate) const ADDRESS: i16 = 0;
    pub(crate) const SERVICE: i16 = 16;

    pub(crate) const LEN: i16 = 16;
    pub(crate) const TARGET: i16 = 0;
    /// By `CLOCK_MONOTONIC`.
    pub(crate) const UNTIL_NS: i16 = 8;
}

// Where the stack has what.
/// The key of the service.
pub(crate) const SERVICE: i16 = -(service_key::LEN as i16);
/// The client's address, and behind it eight bytes of its key in [`CLIENTS`].
pub(crate) const CLIENT: i16 = SERVICE - client::KEY_LEN;
const CLIENT_VALUE: i16 = CLIENT - client::LEN;
/// The number of an entry that is looked up.
pub(crate) const NUMBER: i16 = CLIENT_VALUE - 8;
/// The target whose turn it is.
pub(crate) const TARGET: i16 = NUMBER - 8;
/// Places that are still tried.
const TRIES: i16 = TARGET - 8;
/// Of the search for the least busy.
const STEERED_AT: i16 = TRIES - 8;
const ENDED_AT: i16 = STEERED_AT - 8;
const START: i16 = ENDED_AT - 8;
const BEST: i16 = START - 8;
const BEST_LOAD: i16 = BEST - 8;
const BEST_WEIGHT: i16 = BEST_LOAD - 8;
/// How many places the page has that is searched.
const COUNT: i16 = BEST_WEIGHT - 8;
/// What is below is the program's own.
pub(crate) const STACK: i16 = COUNT;

const TARGET_MASK: i32 = TARGETS_MAX as i32 - 1;
const PLACE_MASK: i32 = page::ROOM as i32 - 1;

/// `R7` = the service whose key is on the stack. All that is not for one goes to `pass`.
pub(crate) fn find_service(a: &mut Assembler) {
    a.load_map(R1, SERVICES);
    a.address(R2, R10, SERVICE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "pass");
    a.mov(R7, R0);
}

/// A client that was here lately goes to the target that it met, if that still takes connections: `R1`, at the
/// end of this. Others go to `choose`.
pub(crate) fn keep_to_target(a: &mut Assembler) {
    a.load_64(R1, R7, service::AFFINITY_NS as i16);
    a.jump_if_equal(R1, 0, "choose");
    store_client_key(a);
    a.load_map(R1, CLIENTS);
    a.address(R2, R10, CLIENT);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "choose");
    a.mov(R8, R0);
    a.call(Helper::KtimeGetNs);
    a.load_64(R1, R8, client::UNTIL_NS);
    a.jump_if_beyond(R0, R1, "choose");
    a.load_32(R8, R8, client::TARGET);
    a.and_immediate(R8, TARGET_MASK);
    a.load_64(R1, R7, service::TAKERS as i16);
    a.shift_right(R1, R8);
    a.and_immediate(R1, 1);
    a.jump_if_equal(R1, 0, "choose");
    a.mov(R1, R8);
}

fn store_client_key(a: &mut Assembler) {
    a.load_32(R1, R7, service::INDEX as i16);
    a.store_32(R10, CLIENT + client::SERVICE, R1);
    a.store_immediate_32(R10, CLIENT + client::SERVICE + 4, 0);
}

/// `R8` = a place of the page `R9`, by the method; `port` puts the client's port into `R1`. To be behind `choose`.
/// Without a page it goes to `refuse`.
pub(crate) fn choose_place(a: &mut Assembler, port: impl Fn(&mut Assembler)) {
    find(a, PAGES, service::PAGE, "refuse");
    a.mov(R9, R0);
    a.load_32(R1, R7, service::PLACES as i16);
    a.store_64(R10, COUNT, R1);
    a.mov_immediate(R8, 0);
    a.load_32(R1, R7, service::CHOICE as i16);
    a.jump_if_equal(R1, service::BY_RANK as i32, "within");
    a.jump_if_equal(R1, service::BY_LOAD_IN_ORDER as i32, "by load");
    hash_client(a, port);
    a.load_32(R1, R7, service::CHOICE as i16);
    a.jump_if_equal(R1, service::BY_LOAD as i32, "by load");
    a.jump_if_not_equal(R1, service::BY_TURN as i32, "within");
    take_turn(a);
    a.label("within");
    a.load_64(R1, R10, COUNT);
    a.remainder_32(R8, R1);
    a.jump("search");
    find_least(a);
}

/// The same by a table of `map`, which has one for each service: a page whose first two words, in the place of weights,
/// say how many places it has and how they are chosen. Then on to `search`; without places to `refuse`.
pub(crate) fn choose_earlier(a: &mut Assembler, map: &'static str, port: impl Fn(&mut Assembler)) {
    find(a, map, service::INDEX, "refuse");
    a.mov(R9, R0);
    a.load_32(R1, R9, earlier::COUNT as i16);
    a.jump_if_equal(R1, 0, "refuse");
    a.store_64(R10, COUNT, R1);
    a.mov_immediate(R8, 0);
    a.load_32(R1, R9, earlier::CHOICE as i16);
    a.jump_if_equal(R1, service::BY_RANK as i32, "search");
    hash_client(a, port);
    a.load_64(R1, R10, COUNT);
    a.remainder_32(R8, R1);
    a.jump("search");
}

/// `R0` = what this map has by a number of the service; without it, on to `absent`.
pub(crate) fn find(a: &mut Assembler, map: &'static str, number: usize, absent: &'static str) {
    a.load_32(R1, R7, number as i16);
    a.store_32(R10, NUMBER, R1);
    a.load_map(R1, map);
    a.address(R2, R10, NUMBER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, absent);
}

/// `R8`, which is 0, becomes the hash of the client's end, as [`hash::of_client`] has it. `port` puts its port into
/// `R1`.
pub(crate) fn hash_client(a: &mut Assembler, port: impl Fn(&mut Assembler)) {
    for word in [0, 4, 8, 12] {
        a.load_32(R1, R10, CLIENT + client::ADDRESS + word);
        a.swap_to_big_endian_32(R1);
        mix(a, R8, R1);
    }
    port(a);
    mix(a, R8, R1);
    for (shift, factor) in hash::FINAL {
        fold(a, R8, shift);
        a.mul_immediate_32(R8, factor.cast_signed());
    }
    fold(a, R8, hash::LAST_SHIFT);
}

fn mix(a: &mut Assembler, hash: Register, word: Register) {
    a.xor(hash, word);
    a.mul_immediate_32(hash, hash::MULTIPLIER.cast_signed());
    fold(a, hash, hash::WORD_SHIFT);
}

/// `hash ^= hash >> shift`
fn fold(a: &mut Assembler, hash: Register, shift: u32) {
    a.mov(R2, hash);
    a.shift_right_immediate(R2, shift as i32);
    a.xor(hash, R2);
}

/// `R8` = how many have had their turn.
fn take_turn(a: &mut Assembler) {
    find(a, STEERED, service::INDEX, "refuse");
    a.mov_immediate(R8, 1);
    a.atomic_fetch_add_64(R0, 8 * TARGETS_MAX as i16, R8);
}

/// `R8` = the place of the target with the fewest live connections for its weight. Among equals the hash, or 0, in `R8`
/// says with whom to begin; by the hash short connections spread.
fn find_least(a: &mut Assembler) {
    a.label("by load");
    find(a, STEERED, service::INDEX, "refuse");
    a.store_64(R10, STEERED_AT, R0);
    find(a, ENDED, service::INDEX, "refuse");
    a.store_64(R10, ENDED_AT, R0);
    a.load_32(R1, R7, service::PLACES as i16);
    a.remainder_32(R8, R1);
    a.store_64(R10, START, R8);
    a.store_64(R10, BEST, R8);
    // Any load for its weight is less than one for no weight.
    a.mov_immediate(R1, 1);
    a.store_64(R10, BEST_LOAD, R1);
    a.mov_immediate(R1, 0);
    a.store_64(R10, BEST_WEIGHT, R1);
    a.mov_immediate(R8, 0);

    a.label("compare");
    // `R0` = the place: as many behind the first as were looked at.
    a.load_32(R1, R7, service::PLACES as i16);
    a.jump_if_beyond(R1, R8, "another");
    a.jump("compared");
    a.label("another");
    a.load_64(R0, R10, START);
    a.add(R0, R8);
    a.remainder_32(R0, R1);
    load_place(a, R0);
    // `R3` = its load, `R4` = its weight.
    a.mov(R4, R1);
    a.shift_left_immediate(R4, 2);
    a.add(R4, R9);
    a.load_32(R4, R4, 0);
    a.shift_left_immediate(R1, 3);
    a.load_64(R2, R10, STEERED_AT);
    a.add(R2, R1);
    a.load_64(R3, R2, 0);
    a.load_64(R2, R10, ENDED_AT);
    a.add(R2, R1);
    a.load_64(R2, R2, 0);
    a.sub(R3, R2);
    // Both are counted at different moments: what is below 0 is 0.
    a.mov(R2, R3);
    a.shift_right_signed_immediate(R2, 63);
    a.and(R2, R3);
    a.sub(R3, R2);
    // `R1` = all ones if it has less for its weight. Without a jump: to the verifier each is two ways.
    a.load_64(R1, R10, BEST_WEIGHT);
    a.mul(R1, R3);
    a.load_64(R2, R10, BEST_LOAD);
    a.mul(R2, R4);
    a.sub(R1, R2);
    a.shift_right_signed_immediate(R1, 63);
    for (new, best) in [(R0, BEST), (R3, BEST_LOAD), (R4, BEST_WEIGHT)] {
        a.load_64(R2, R10, best);
        a.xor(new, R2);
        a.and(new, R1);
        a.xor(new, R2);
        a.store_64(R10, best, new);
    }
    a.add_immediate(R8, 1);
    a.jump_if_not_equal(R8, TARGETS_MAX as i32, "compare");
    a.label("compared");
    a.load_64(R8, R10, BEST);
}

/// `R1` = the target at a place of page `R9`.
fn load_place(a: &mut Assembler, place: Register) {
    a.mov(R1, place);
    a.and_immediate(R1, PLACE_MASK);
    a.add(R1, R9);
    a.load_8(R1, R1, page::PLACES as i16);
    a.and_immediate(R1, TARGET_MASK);
}

/// From place `R8` on: the first target that `assign` takes, which goes to `assigned`. `assign` finds the target
/// in `R1` and goes to the label it is given if it cannot. With none left it goes to `refuse`.
pub(crate) fn search(a: &mut Assembler, assign: impl Fn(&mut Assembler, &'static str)) {
    /// Of a table by weight each place is another target's, mostly: so many in a row are all that can
    /// be there.
    const TRIES_MAX: i32 = TARGETS_MAX as i32;
    a.mov_immediate(R1, TRIES_MAX);
    a.store_64(R10, TRIES, R1);
    a.label("try");
    load_place(a, R8);
    assign(a, "none there");
    a.jump("assigned");
    a.label("none there");
    a.add_immediate(R8, 1);
    // Behind the last place is the first. A remainder, because the verifier knows nothing of it, and so need
    // not look at each place for itself.
    a.load_64(R1, R10, COUNT);
    a.remainder_32(R8, R1);
    a.load_64(R1, R10, TRIES);
    a.add_immediate(R1, -1);
    a.store_64(R10, TRIES, R1);
    a.jump_if_not_equal(R1, 0, "try");
    a.jump("refuse");
}

/// The number of target `R1` among the targets of all services, into [`NUMBER`]; the target, into [`TARGET`].
pub(crate) fn number_target(a: &mut Assembler) {
    a.store_64(R10, TARGET, R1);
    a.load_32(R2, R7, service::INDEX as i16);
    a.shift_left_immediate(R2, TARGETS_MAX.ilog2() as i32);
    a.add(R2, R1);
    a.store_32(R10, NUMBER, R2);
}

/// One more for the target, which the client is to meet again; then on to `counted`, which the caller writes.
pub(crate) fn count(a: &mut Assembler) {
    find(a, STEERED, service::INDEX, "counted");
    a.load_64(R1, R10, TARGET);
    a.and_immediate(R1, TARGET_MASK);
    a.shift_left_immediate(R1, 3);
    a.add(R0, R1);
    a.mov_immediate(R1, 1);
    a.atomic_add_64(R0, 0, R1);

    a.load_64(R8, R7, service::AFFINITY_NS as i16);
    a.jump_if_equal(R8, 0, "counted");
    a.call(Helper::KtimeGetNs);
    a.add(R0, R8);
    a.store_64(R10, CLIENT_VALUE + client::UNTIL_NS, R0);
    a.load_64(R1, R10, TARGET);
    a.store_64(R10, CLIENT_VALUE + client::TARGET, R1);
    store_client_key(a);
    a.load_map(R1, CLIENTS);
    a.address(R2, R10, CLIENT);
    a.address(R3, R10, CLIENT_VALUE);
    a.mov_immediate(R4, 0);
    a.call(Helper::MapUpdate);
}
