//! The maps of the distributor's programs, and where these have what on their stack.

use sidestep_distributor::terms::TARGETS_MAX;

use crate::assembler::Register::{R0, R1, R2, R10};
use crate::assembler::{Assembler, Helper};
use crate::map::{MapDefinition, MapKind};
use crate::tables::programs::{self as tables, ARRAY, INDICES, SERVICE, STACK};
use crate::tunnel;

/// The route of each target, [`TARGETS_MAX`] for each service; 0: none.
pub(super) const HOSTS: &str = "hosts";
pub(super) const ROUTES: &str = "routes";
/// The tunnel of each route that has one, and the ports from which tunnels are sent.
pub(super) const TUNNELS: &str = "tunnels";
pub(super) const TUNNEL_PORTS: &str = "tunnel_ports";
/// The beginnings of packets that do not fit into a tunnel.
pub(super) const OVERSIZED: &str = "oversized";
/// Packets and bytes of each route.
pub(super) const TRAFFIC: &str = "traffic";
pub(super) const FLOWS: &str = "flows";
pub(super) const OPENINGS: &str = "openings";
/// For each service the table by which it began to be served.
pub(super) const EARLIER: &str = "earlier";
/// Whether all targets of a service are on the link, so that XDP can do it.
pub(super) const DIRECT: &str = "direct";
/// The interface's address, for hooks at which the kernel does not say for whom a frame is; one entry.
pub(super) const OWN_LINK: &str = "own_link";
/// Addresses of VIPs, and what was seen there besides whole packets.
pub(super) const ADDRESSES: &str = "addresses";

/// Until when services are served, and how the link is answered; one entry.
pub(super) const LEASE: &str = "lease";

/// Routes that there can be: those of all targets, and of targets that are gone while connections are not.
pub const ROUTES_MAX: usize = 2 * INDICES * TARGETS_MAX;

/// A value of [`ROUTES`]: destination and source of a frame, and flags.
pub(super) mod route {
    pub(in super::super) const LEN: usize = 16;
    pub(in super::super) const SOURCE: usize = 6;
    pub(in super::super) const FLAGS: usize = 12;

    /// The addresses are known.
    pub(in super::super) const KNOWN: u32 = 1;
    /// The target takes what begins.
    pub(in super::super) const TAKES: u32 = 2;
    /// The target is this host.
    pub(in super::super) const OWN: u32 = 4;
    /// It leads through a tunnel.
    pub(in super::super) const TUNNEL: u32 = 8;
}

/// A value of [`TUNNELS`]: the interface, the longest packet of the tunnel, and its headers but for what each packet decides.
pub(super) mod way {
    use crate::tunnel::HEADERS_LEN_MAX;

    pub(in super::super) const LEN: usize = HEADERS + HEADERS_ROOM;
    pub(in super::super) const INTERFACE: usize = 0;
    pub(in super::super) const MTU: usize = 4;
    pub(in super::super) const HEADERS: usize = 8;
    /// In whole words.
    pub(in super::super) const HEADERS_ROOM: usize = HEADERS_LEN_MAX.next_multiple_of(8);
}

/// A record of [`OVERSIZED`]: what would fit, and the beginning of the packet.
pub(super) mod oversized {
    pub(in super::super) const LEN: usize = PACKET + PACKET_LEN;
    pub(in super::super) const PACKET: usize = 4;
    /// The longest header of IPv4, and the eight bytes behind it that an error has to quote; of IPv6 more than these.
    pub(in super::super) const PACKET_LEN: usize = 60 + 8;
}

/// The key and value of [`FLOWS`] and [`OPENINGS`]: the client's end, the service; the route, whether an end was
/// seen, when a packet was seen last.
pub(super) mod flow {
    use crate::tables::programs::{client, service_key};

    pub(in super::super) const KEY_LEN: usize = client::KEY_LEN as usize + service_key::LEN;
    pub(in super::super) const PORT: usize = 16;
    pub(in super::super) const SERVICE: usize = client::KEY_LEN as usize;
    pub(in super::super) const LEN: usize = 16;
    pub(in super::super) const ROUTE: usize = 0;
    pub(in super::super) const IS_CLOSING: usize = 4;
    pub(in super::super) const SEEN_NS: usize = 8;
}

/// The value of [`LEASE`]: when it ends, and an option of neighbour discovery with this host's address on the link; zeroes:
/// the kernel answers for the VIPs.
pub(super) mod lease {
    pub(in super::super) const LEN: usize = 16;
    pub(in super::super) const OPTION: usize = 8;
    pub(in super::super) const ADDRESS: usize = 10;

    /// "Target link-layer address", of one unit of eight bytes.
    pub(in super::super) const OPTION_BEGINS: [u8; 2] = [2, 1];
}

/// A value of [`ADDRESSES`]: counters.
pub(super) mod tally {
    pub(in super::super) const COUNTERS: usize = 7;
    pub(in super::super) const FRAGMENTS: i16 = 0;
    pub(in super::super) const OPTIONS: i16 = 8;
    pub(in super::super) const EXTENDED: i16 = 16;
    pub(in super::super) const ERRORS: i16 = 24;
    pub(in super::super) const STRANDED: i16 = 32;
    pub(in super::super) const OVERSIZED: i16 = 40;
    pub(in super::super) const OPEN_SUMS: i16 = 48;
}

/// As many flows as a busy machine has: some 100 bytes each. The longest quiet make room.
pub const FLOWS_MAX: usize = 0x4_0000;

pub(super) fn maps() -> Vec<MapDefinition> {
    /// As many as begin within a round trip.
    const OPENINGS_MAX: u32 = 0x1_0000;
    /// Bytes: beginnings of eight hundred packets. Their senders send them again.
    const OVERSIZED_LEN: u32 = 64 << 10;
    let flows = MapDefinition {
        name: FLOWS,
        kind: MapKind::LruHash,
        key_len: flow::KEY_LEN as u32,
        value_len: flow::LEN as u32,
        entries_max: FLOWS_MAX as u32,
        on_demand: false,
    };
    let hosts = MapDefinition {
        name: HOSTS,
        value_len: 4,
        entries_max: (INDICES * TARGETS_MAX) as u32,
        ..ARRAY
    };
    let routes = ROUTES_MAX as u32;
    let own = [
        hosts,
        MapDefinition { name: ROUTES, value_len: route::LEN as u32, entries_max: routes, ..ARRAY },
        MapDefinition {
            name: TRAFFIC,
            kind: MapKind::PerCpuArray,
            value_len: 16,
            entries_max: routes,
            ..ARRAY
        },
        flows,
        MapDefinition { name: EARLIER, entries_max: INDICES as u32, ..ARRAY },
        MapDefinition { name: DIRECT, value_len: 4, entries_max: INDICES as u32, ..ARRAY },
        MapDefinition { name: OWN_LINK, value_len: 8, entries_max: 1, ..ARRAY },
        MapDefinition { name: LEASE, value_len: lease::LEN as u32, entries_max: 1, ..ARRAY },
        MapDefinition { name: OPENINGS, entries_max: OPENINGS_MAX, ..flows },
        MapDefinition { name: TUNNELS, value_len: way::LEN as u32, entries_max: routes, ..ARRAY },
        MapDefinition {
            name: TUNNEL_PORTS,
            value_len: 4,
            entries_max: 2 * tunnel::SOURCE_PORTS as u32,
            ..ARRAY
        },
        MapDefinition {
            name: OVERSIZED,
            kind: MapKind::RingBuf,
            key_len: 0,
            value_len: 0,
            entries_max: OVERSIZED_LEN,
            on_demand: false,
        },
        MapDefinition {
            name: ADDRESSES,
            kind: MapKind::PerCpuHash,
            key_len: 16,
            value_len: 8 * tally::COUNTERS as u32,
            entries_max: INDICES as u32,
            on_demand: false,
        },
    ];
    // Each service may have a second entry, with pages of its own, for connections of this host.
    let shared = tables::MAPS.map(|map| match map.name {
        tables::SERVICES | tables::PAGES => {
            MapDefinition { entries_max: 2 * map.entries_max, ..map }
        }
        _ => map,
    });
    [&shared[..], &own].concat()
}

// Where the stack has what, below what the tables use.
pub(super) const HEADER: i16 = STACK - 40;
pub(super) const ROUTE: i16 = HEADER - 8;
/// One of the kinds.
pub(super) const KIND: i16 = ROUTE - 8;
/// Of TCP.
pub(super) const FLAGS: i16 = KIND - 8;
/// The client's, for the hash and for a note.
pub(super) const CLIENT_PORT: i16 = FLAGS - 8;
pub(super) const NOTE: i16 = CLIENT_PORT - flow::LEN as i16;
pub(super) const ADDRESSES_OF_FRAME: i16 = NOTE - route::LEN as i16;
/// When this packet came.
pub(super) const NOW: i16 = ADDRESSES_OF_FRAME - 8;
/// The solicitation of a neighbour.
pub(super) const SOLICITATION: i16 = NOW - 32;
/// Headers of a tunnel, or a record of what does not fit into one.
pub(super) const TUNNEL: i16 = SOLICITATION - way::HEADERS_ROOM as i16;
/// The first four bytes of the packet, and how long its headers are.
pub(super) const FIRST: i16 = TUNNEL - 8;
pub(super) const HEADERS_LEN: i16 = FIRST - 8;
/// The header of the frame, as XDP gets it.
pub(super) const FRAME_HEAD: i16 = HEADERS_LEN - 16;
/// A checksum.
pub(super) const SUM: i16 = FRAME_HEAD - 8;

/// What a packet means to its flow.
pub(super) mod kind {
    pub(in super::super) const GOES_ON: i32 = 0;
    pub(in super::super) const BEGINS: i32 = 1;
    /// A datagram may do either.
    pub(in super::super) const MAY_BEGIN: i32 = 2;
    /// It tells a target of an error, and says nothing about the client.
    pub(in super::super) const TELLS: i32 = 3;
}

/// One more of this kind at the VIP's address on the stack. What comes to another address passes.
pub(super) fn tally_one(a: &mut Assembler, counter: i16) {
    a.load_map(R1, ADDRESSES);
    a.address(R2, R10, SERVICE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "pass");
    a.mov_immediate(R1, 1);
    a.atomic_add_64(R0, counter, R1);
}
