//! The programs that send packets for a VIP on to other hosts, and the maps that they look into: one for each hook
//! ([`super::hook`]), with one decision.
//!
//! ```text
//!   packet ──> "services"   is this address, port and protocol a VIP? If not, the kernel goes on as ever.
//!              "flows"      a flow that both ends have confirmed keeps its route, whatever the tables say
//!              "openings"   one that has only begun keeps it as well, and moves to "flows" with its next packet
//!              the tables   what begins goes to a target by the method ([`crate::tables`])
//!              "earlier"    what goes on without a flow began before this program served: it goes by the table of then
//!              "hosts"      the route of that target
//!              "routes"     where it leads: the two addresses of the frame
//!              "tunnels"    or what the packet wears on its way to a host that is not on the link
//!              "traffic"    packets and bytes of the route
//! ```
//!
//! The frame gets the target's address as its destination and leaves by the interface by which it came. Nothing
//! behind the frame's header changes, so the target answers the client itself, from the VIP (*direct server return*).
//!
//! # To a host that is not on the link
//!
//! The packet goes whole into one of the tunnel ([`crate::tunnel`]), from this host's address to the target's, and leaves by the kernel's
//! table of routes. It has as many bytes more as the tunnel's headers have. Segments that are still in one piece (GSO) the kernel cuts smaller; a
//! packet that does not fit is counted and dropped, and its beginning goes into `oversized`, so that its sender can be told.
//!
//! # What a flood does
//!
//! A packet that begins something is noted in `openings`, the next one of the same ends moves the note to
//! `flows`. So packets with invented senders push notes out of `openings` alone.
//!
//! # What began before
//!
//! What begins while this program serves is noted, whatever the tables are later. So a packet that goes on without a note
//! is of a connection that another distributor was at work for, or this one before it was started again, and that one's
//! table, as it was at its end, finds the target: `earlier` is a copy of the table by which this program began to serve,
//! and later changes, a drain among them, do not touch it. By the hash, and by rank, that is the connection's target;
//! the other methods leave no way to tell.
//!
//! # What is not a whole packet of TCP or UDP
//!
//! | What comes to a VIP | What becomes of it |
//! |---|---|
//! | a fragment | it has no ports, or its followers have none: counted, dropped |
//! | IPv4 with options | counted, goes on like any other |
//! | IPv6 with extension headers | counted, dropped |
//! | an ICMP error about a packet of a target | counted, goes to that target: by the packet that it quotes |
//! | everything else | the kernel's own |
//!
//! # The lease
//!
//! With several distributors one of them owns the VIPs, for as long as its lease runs. `lease` says until when, by the clock
//! that goes on in suspension; afterwards packets for services are dropped. Such a VIP is no address of an interface: the
//! program itself answers for it, by ARP and neighbour discovery, as long as the lease runs. So what answers for a VIP and
//! what sends its packets on ends at the same moment, at the end of the lease or of the process, even if that
//! process stands still. Each question of a neighbour becomes its own answer.
//!
//! *Source*: RFC 826 (ARP), RFC 4861 sections 4.3 and 4.4 (neighbour solicitation and advertisement).

use super::hook::{Hook, send_back};
use super::layout::{
    ADDRESSES, ADDRESSES_OF_FRAME, CLIENT_PORT, EARLIER, FIRST, FLAGS, FLOWS, HEADER, HEADERS_LEN,
    HOSTS, KIND, LEASE, NOTE, NOW, OPENINGS, OVERSIZED, ROUTE, ROUTES, SOLICITATION, TRAFFIC,
    TUNNEL, TUNNEL_PORTS, TUNNELS, flow, kind, lease, oversized, route, tally, tally_one, way,
};
use crate::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use crate::assembler::{Assembler, Helper, Register};
use crate::key;
use crate::object_file::Program;
use crate::packet::{self, skb};
use crate::tables::programs::{
    self as tables, CLIENT, NUMBER, SERVICE, client, service, service_key,
};
use crate::tunnel::{self, Family, room};

pub(super) fn all() -> Vec<Program> {
    let at = |hook: Hook| Program {
        name: hook.name(),
        section: hook.section(),
        code: forward(hook).finish(),
    };
    Hook::ALL.map(at).into()
}

/// `R6` is the context. Until the service is known `R8` is where the header behind that of IP begins, and `R9`
/// its protocol; then `R7` is the service, `R8` the place, `R9` the page.
fn forward(hook: Hook) -> Assembler {
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.store_immediate_32(R10, KIND, kind::GOES_ON);
    hook.load_frame_type(&mut a);
    a.jump_if_equal(R1, skb::IPV6, "ipv6");
    if hook == Hook::Tc {
        a.jump_if_equal(R1, skb::ARP, "arp");
    }
    a.jump_if_not_equal(R1, skb::IPV4, "pass");
    hook.pass_others(&mut a);
    read_ipv4(&mut a, hook);
    read_ipv6(&mut a, hook);
    read_ports(&mut a, hook);
    tables::find_service(&mut a);
    hook.admit(&mut a);
    count_errors(&mut a);
    within_lease(&mut a, "drop");
    follow_flow(&mut a);
    follow_opening(&mut a);
    choose(&mut a);
    send(&mut a, hook);
    if hook == Hook::Tc {
        send_elsewhere(&mut a);
    }
    end(&mut a, hook);
    if hook == Hook::Tc {
        answer_arp(&mut a);
        answer_solicitation(&mut a);
    }
    a
}

/// Notes the time; `R0` = the lease, if it runs.
fn within_lease(a: &mut Assembler, otherwise: &'static str) {
    a.call(Helper::KtimeGetBootNs);
    a.store_64(R10, NOW, R0);
    a.store_immediate_32(R10, ROUTE, 0);
    a.load_map(R1, LEASE);
    a.address(R2, R10, ROUTE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, otherwise);
    a.load_64(R1, R10, NOW);
    a.load_64(R2, R0, 0);
    a.jump_if_beyond(R1, R2, otherwise);
}

fn read_ipv4(a: &mut Assembler, hook: Hook) {
    a.mov_immediate(R2, packet::FRAME_LEN);
    hook.load(a, HEADER, packet::IPV4_LEN);
    key::store_mapped_ipv4(a, SERVICE, R10, HEADER + packet::IPV4_DESTINATION);
    key::store_mapped_ipv4(a, CLIENT + client::ADDRESS, R10, HEADER + packet::IPV4_SOURCE);
    load_ipv4_len(a);
    a.mov_immediate(R8, packet::FRAME_LEN);
    a.add(R8, R1);
    a.load_8(R9, R10, HEADER + packet::IPV4_PROTOCOL);
    a.load_32(R1, R10, HEADER + packet::IPV4_FRAGMENT);
    a.swap_to_big_endian_32(R1);
    a.and_immediate(R1, packet::IPV4_IS_FRAGMENT);
    a.jump_if_not_equal(R1, 0, "fragment");
    a.jump_if_equal(R8, packet::FRAME_LEN + packet::IPV4_LEN, "ipv4 without options");
    hook.meet_options(a);
    a.label("ipv4 without options");
    a.jump_if_not_equal(R9, packet::ICMP, "transport");

    load_type(a, hook);
    // Unreachable, a fragment needed among it; time exceeded; a wrong parameter.
    a.jump_if_equal(R1, 3, "icmp error");
    a.jump_if_equal(R1, 11, "icmp error");
    a.jump_if_not_equal(R1, 12, "pass");
    a.label("icmp error");
    a.address(R2, R8, packet::ICMP_LEN as i16);
    hook.load(a, HEADER, packet::IPV4_LEN);
    // The quoted packet went the other way.
    key::store_mapped_ipv4(a, CLIENT + client::ADDRESS, R10, HEADER + packet::IPV4_DESTINATION);
    a.load_8(R9, R10, HEADER + packet::IPV4_PROTOCOL);
    load_ipv4_len(a);
    a.add(R8, R1);
    a.jump("quoted");
}

/// `R1` = the length of the header of IPv4 on the stack.
fn load_ipv4_len(a: &mut Assembler) {
    a.load_8(R1, R10, HEADER);
    a.and_immediate(R1, 0x0f);
    a.shift_left_immediate(R1, 2);
}

fn read_ipv6(a: &mut Assembler, hook: Hook) {
    /// Hop-by-hop options, routing, fragment, destination options.
    const EXTENSIONS: [i32; 4] = [0, 43, 44, 60];
    a.label("ipv6");
    a.mov_immediate(R2, packet::FRAME_LEN);
    hook.load(a, HEADER, packet::IPV6_LEN);
    key::store_ipv6(a, SERVICE, R10, HEADER + packet::IPV6_DESTINATION);
    key::store_ipv6(a, CLIENT + client::ADDRESS, R10, HEADER + packet::IPV6_SOURCE);
    a.mov_immediate(R8, packet::FRAME_LEN + packet::IPV6_LEN);
    a.load_8(R9, R10, HEADER + packet::IPV6_NEXT);
    a.jump_if_equal(R9, packet::ICMPV6, "icmpv6");
    hook.pass_others(a);
    for extension in EXTENSIONS {
        a.jump_if_equal(R9, extension, "extended");
    }
    a.jump("transport");

    a.label("icmpv6");
    load_type(a, hook);
    // Solicitations go to many at once.
    a.jump_if_equal(R1, packet::SOLICITATION, hook.solicitations_go_to());
    hook.pass_others(a);
    load_type(a, hook);
    // Unreachable, packet too big, time exceeded, a wrong parameter are 1 to 4.
    a.jump_if_equal(R1, 0, "pass");
    a.jump_if_above(R1, 4, "pass");
    a.address(R2, R8, packet::ICMP_LEN as i16);
    hook.load(a, HEADER, packet::IPV6_LEN);
    key::store_ipv6(a, CLIENT + client::ADDRESS, R10, HEADER + packet::IPV6_DESTINATION);
    a.load_8(R9, R10, HEADER + packet::IPV6_NEXT);
    a.add_immediate(R8, packet::IPV6_LEN);

    a.label("quoted");
    a.add_immediate(R8, packet::ICMP_LEN);
    a.store_immediate_32(R10, KIND, kind::TELLS);
}

/// `R1` = the type of the ICMP message at `R8`.
fn load_type(a: &mut Assembler, hook: Hook) {
    a.mov(R2, R8);
    hook.load(a, FLAGS, 1);
    a.load_8(R1, R10, FLAGS);
}

/// An ICMP error about a packet of a service.
fn count_errors(a: &mut Assembler) {
    a.load_32(R1, R10, KIND);
    a.jump_if_not_equal(R1, kind::TELLS, "no error");
    tally_one(a, tally::ERRORS);
    a.label("no error");
}

/// The ports, and what the packet means to its flow.
fn read_ports(a: &mut Assembler, hook: Hook) {
    const PORTS: i16 = NOTE;
    a.label("transport");
    a.jump_if_equal(R9, packet::TCP, "ports");
    a.jump_if_not_equal(R9, packet::UDP, "pass");
    a.label("ports");
    a.store_32(R10, SERVICE + service_key::PROTOCOL as i16, R9);
    a.mov(R2, R8);
    hook.load(a, PORTS, 4);
    // `R2` = the sender's port, `R1` = the receiver's.
    a.load_32(R1, R10, PORTS);
    a.swap_to_big_endian_32(R1);
    a.mov(R2, R1);
    a.shift_right_immediate(R2, 16);
    a.and_immediate(R1, 0xffff);
    a.load_32(R3, R10, KIND);
    a.jump_if_equal(R3, kind::TELLS, "told");
    store_ports(a, R2, R1);
    a.jump_if_equal(R9, packet::UDP, "datagram");
    a.address(R2, R8, packet::TCP_FLAGS);
    hook.load(a, FLAGS, 1);
    a.load_8(R1, R10, FLAGS);
    a.and_immediate(R1, packet::SYN | packet::ACK);
    a.jump_if_not_equal(R1, packet::SYN, "known kind");
    a.store_immediate_32(R10, KIND, kind::BEGINS);
    a.jump("known kind");
    a.label("datagram");
    a.store_immediate_32(R10, KIND, kind::MAY_BEGIN);
    a.jump("no flags");
    a.label("told");
    store_ports(a, R1, R2);
    a.label("no flags");
    a.store_immediate_32(R10, FLAGS, 0);
    a.label("known kind");
}

fn store_ports(a: &mut Assembler, client: Register, service: Register) {
    a.store_32(R10, SERVICE + service_key::PORT as i16, service);
    a.store_32(R10, CLIENT_PORT, client);
    store_flow_port(a, client);
}

/// What is behind the client's address in the key of a flow.
fn store_flow_port(a: &mut Assembler, port: Register) {
    a.store_32(R10, CLIENT + flow::PORT as i16, port);
    a.store_immediate_32(R10, CLIENT + flow::PORT as i16 + 4, 0);
}

/// `R0` = what this map has of the flow on the stack.
fn find_flow(a: &mut Assembler, map: &'static str, absent: &'static str) {
    a.load_map(R1, map);
    a.address(R2, R10, CLIENT);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, absent);
}

fn delete_flow(a: &mut Assembler, map: &'static str) {
    a.load_map(R1, map);
    a.address(R2, R10, CLIENT);
    a.call(Helper::MapDelete);
}

/// Notes the route under the flow on the stack.
fn note_flow(a: &mut Assembler, map: &'static str) {
    a.load_64(R1, R10, NOW);
    a.store_64(R10, NOTE + flow::SEEN_NS as i16, R1);
    a.load_32(R1, R10, ROUTE);
    a.store_32(R10, NOTE + flow::ROUTE as i16, R1);
    a.store_immediate_32(R10, NOTE + flow::IS_CLOSING as i16, 0);
    a.load_map(R1, map);
    a.address(R2, R10, CLIENT);
    a.address(R3, R10, NOTE);
    a.mov_immediate(R4, 0);
    a.call(Helper::MapUpdate);
}

/// A flow keeps its route. One whose client has ended it may begin anew.
fn follow_flow(a: &mut Assembler) {
    find_flow(a, FLOWS, "no flow");
    a.mov(R8, R0);
    a.load_32(R1, R8, flow::ROUTE as i16);
    a.store_32(R10, ROUTE, R1);
    a.load_32(R1, R10, KIND);
    a.jump_if_equal(R1, kind::TELLS, "send");
    a.jump_if_not_equal(R1, kind::BEGINS, "goes on");
    a.load_32(R1, R8, flow::IS_CLOSING as i16);
    a.jump_if_equal(R1, 0, "goes on");
    delete_flow(a, FLOWS);
    a.jump("begin");
    a.label("goes on");
    a.load_64(R1, R10, NOW);
    a.store_64(R8, flow::SEEN_NS as i16, R1);
    // Only noted: whether it is within the window the server knows, and a stranger's is not to take the route away.
    a.load_8(R1, R10, FLAGS);
    a.and_immediate(R1, packet::FIN | packet::RST);
    a.jump_if_equal(R1, 0, "send");
    a.store_immediate_32(R8, flow::IS_CLOSING as i16, 1);
    a.jump("send");
    a.label("no flow");
}

/// One that has begun goes where it began; its second packet makes it a flow.
fn follow_opening(a: &mut Assembler) {
    find_flow(a, OPENINGS, "no opening");
    a.load_32(R1, R0, flow::ROUTE as i16);
    a.store_32(R10, ROUTE, R1);
    a.load_32(R1, R10, KIND);
    a.jump_if_equal(R1, kind::TELLS, "send");
    a.jump_if_equal(R1, kind::BEGINS, "again");
    a.load_8(R1, R10, FLAGS);
    a.and_immediate(R1, packet::RST);
    a.jump_if_not_equal(R1, 0, "not opened");
    note_flow(a, FLOWS);
    a.label("not opened");
    delete_flow(a, OPENINGS);
    a.jump("send");
    a.label("again");
    // The client has had no answer: its target may be gone meanwhile.
    find_route(a);
    a.load_32(R1, R0, route::FLAGS as i16);
    a.and_immediate(R1, route::TAKES as i32);
    a.jump_if_not_equal(R1, 0, "send");
    a.jump("begin");
    a.label("no opening");
}

/// `R0` = the route.
fn find_route(a: &mut Assembler) {
    a.load_map(R1, ROUTES);
    a.address(R2, R10, ROUTE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "stranded");
}

fn choose(a: &mut Assembler) {
    let port = |a: &mut Assembler| a.load_32(R1, R10, CLIENT_PORT);
    a.load_32(R1, R10, KIND);
    a.jump_if_equal(R1, kind::BEGINS, "begin");
    a.jump_if_equal(R1, kind::MAY_BEGIN, "begin");
    // It goes on, and began before this program served.
    tables::choose_earlier(a, EARLIER, port);

    a.label("begin");
    a.load_32(R1, R7, service::PLACES as i16);
    a.jump_if_equal(R1, 0, "stranded");
    tables::keep_to_target(a);
    assign(a, "choose");
    a.jump("assigned");
    a.label("choose");
    tables::choose_place(a, port);
    a.label("search");
    tables::search(a, assign);

    a.label("assigned");
    a.load_32(R1, R10, KIND);
    a.jump_if_equal(R1, kind::GOES_ON, "send");
    a.jump_if_equal(R1, kind::TELLS, "send");
    tables::count(a);
    a.label("counted");
    // What is behind the address was another number meanwhile.
    a.load_32(R1, R10, CLIENT_PORT);
    store_flow_port(a, R1);
    note_flow(a, OPENINGS);
}

/// The route of target `R1`; without one that leads anywhere, on to the label.
pub(super) fn assign(a: &mut Assembler, otherwise: &'static str) {
    tables::number_target(a);
    a.load_map(R1, HOSTS);
    a.address(R2, R10, NUMBER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, otherwise);
    a.load_32(R1, R0, 0);
    a.jump_if_equal(R1, 0, otherwise);
    a.store_32(R10, ROUTE, R1);
    a.load_map(R1, ROUTES);
    a.address(R2, R10, ROUTE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, otherwise);
    a.load_32(R1, R0, route::FLAGS as i16);
    a.and_immediate(R1, route::KNOWN as i32);
    a.jump_if_equal(R1, 0, otherwise);
}

/// Gives the frame the addresses of the route, or the headers of its tunnel.
fn send(a: &mut Assembler, hook: Hook) {
    a.label("send");
    find_route(a);
    // Copied, because user space may write them meanwhile, a word at a time.
    a.load_64(R1, R0, 0);
    a.store_64(R10, ADDRESSES_OF_FRAME, R1);
    a.load_64(R1, R0, 8);
    a.store_64(R10, ADDRESSES_OF_FRAME + 8, R1);
    a.load_32(R9, R10, ADDRESSES_OF_FRAME + route::FLAGS as i16);
    a.mov(R1, R9);
    a.and_immediate(R1, route::KNOWN as i32);
    a.jump_if_equal(R1, 0, "stranded");
    a.mov(R1, R9);
    a.and_immediate(R1, route::TUNNEL as i32);
    a.jump_if_not_equal(R1, 0, hook.tunnels_go_to());
    a.and_immediate(R9, route::OWN as i32);
    a.jump_if_not_equal(R9, 0, hook.own_goes_to());
    count_traffic(a, hook);
    hook.send_on(a);
}

/// What is for this host, and what goes through a tunnel.
fn send_elsewhere(a: &mut Assembler) {
    a.label("own");
    count_traffic(a, Hook::Tc);
    a.jump("pass");

    a.label("measure");
    a.load_map(R1, TUNNELS);
    a.address(R2, R10, ROUTE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "stranded");
    // The service is not looked at any more.
    a.mov(R7, R0);
    a.load_32(R8, R7, way::MTU as i16);
    a.mov_immediate(R2, packet::FRAME_LEN);
    Hook::Tc.load(a, FIRST, 4);
    a.load_32(R1, R6, skb::PROTOCOL);
    a.jump_if_equal(R1, skb::IPV6, MEASURE[1]);
    a.jump(MEASURE[0]);
    for family in Family::BOTH {
        measure(a, family);
        wrap(a, family);
    }
    refuse_oversized(a);
}

/// One more packet of the route; `R8` = its length.
fn count_traffic(a: &mut Assembler, hook: Hook) {
    hook.load_len(a);
    a.load_map(R1, TRAFFIC);
    a.address(R2, R10, ROUTE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "stranded");
    a.mov_immediate(R1, 1);
    a.atomic_add_64(R0, 0, R1);
    a.atomic_add_64(R0, 8, R8);
}

// Labels of both families.
const MEASURE: [&str; 2] = ["measure ipv4", "measure ipv6"];
const SEGMENTS: [&str; 2] = ["segments of ipv4", "segments of ipv6"];
const DATAGRAMS: [&str; 2] = ["datagrams of ipv4", "datagrams of ipv6"];
const SEGMENT: [&str; 2] = ["segment of ipv4", "segment of ipv6"];
const WRAP: [&str; 2] = ["wrap ipv4", "wrap ipv6"];
const ROOM: [&str; 2] = ["room in ipv4", "room in ipv6"];

/// Whether what the packet becomes fits into the tunnel, of which `R8` is the longest packet.
fn measure(a: &mut Assembler, family: Family) {
    /// What the length of a packet can say.
    const LEN_MAX: i32 = 0xffff;
    let more = family.overhead() as i32;
    a.label(MEASURE[family as usize]);
    a.store_immediate_32(R10, HEADERS_LEN, more);
    a.load_32(R1, R6, skb::LEN);
    a.add_immediate(R1, more - packet::FRAME_LEN);
    a.jump_if_above(R1, LEN_MAX, "too big");
    a.load_32(R2, R6, skb::GSO_SIZE);
    a.jump_if_not_equal(R2, 0, SEGMENTS[family as usize]);
    a.jump_if_beyond(R1, R8, "too big");
    a.jump(WRAP[family as usize]);

    // `R1` = how long a segment's headers are.
    a.label(SEGMENTS[family as usize]);
    match family {
        Family::Ipv4 => {
            a.load_8(R1, R10, FIRST);
            a.and_immediate(R1, 0x0f);
            a.shift_left_immediate(R1, 2);
        }
        Family::Ipv6 => a.mov_immediate(R1, packet::IPV6_LEN),
    }
    a.load_32(R2, R10, SERVICE + service_key::PROTOCOL as i16);
    a.jump_if_equal(R2, packet::UDP, DATAGRAMS[family as usize]);
    a.store_64(R10, ADDRESSES_OF_FRAME, R1);
    a.address(R2, R1, packet::FRAME_LEN as i16 + packet::TCP_DATA_OFFSET);
    Hook::Tc.load(a, FLAGS, 1);
    a.load_8(R2, R10, FLAGS);
    a.shift_right_immediate(R2, 4);
    a.shift_left_immediate(R2, 2);
    a.load_64(R1, R10, ADDRESSES_OF_FRAME);
    a.add(R1, R2);
    // The kernel makes each segment shorter by as much as its headers grow.
    a.jump(SEGMENT[family as usize]);
    a.label(DATAGRAMS[family as usize]);
    a.add_immediate(R1, packet::UDP_LEN + more);
    a.label(SEGMENT[family as usize]);
    a.load_32(R2, R6, skb::GSO_SIZE);
    a.add(R1, R2);
    a.jump_if_beyond(R1, R8, "too big");
    a.jump(WRAP[family as usize]);
}

/// Puts the headers of tunnel `R7` before the packet, and has it go where they say.
fn wrap(a: &mut Assembler, family: Family) {
    let (more, ip_len) = (family.overhead() as i32, family.header_len() as i32);
    let at = |offset: i32| TUNNEL + offset as i16;
    a.label(WRAP[family as usize]);
    count_traffic(a, Hook::Tc);
    for word in (0..way::HEADERS_ROOM as i16).step_by(8) {
        a.load_64(R1, R7, way::HEADERS as i16 + word);
        a.store_64(R10, TUNNEL + word, R1);
    }
    a.load_32(R1, R6, skb::LEN);
    a.add_immediate(R1, more - packet::FRAME_LEN);
    match family {
        Family::Ipv4 => write_ipv4(a),
        Family::Ipv6 => write_ipv6(a),
    }
    // The length of UDP; there is no checksum, the packet within has its own.
    a.load_32(R1, R6, skb::LEN);
    a.add_immediate(R1, more - packet::FRAME_LEN - ip_len);
    a.shift_left_immediate(R1, 16);
    a.swap_to_big_endian_32(R1);
    a.store_32(R10, at(ip_len + 4), R1);

    // Ends of one client's connections take several ways, where there are any.
    a.load_32(R1, R10, CLIENT_PORT);
    a.and_immediate(R1, tunnel::SOURCE_PORTS as i32 - 1);
    a.add_immediate(R1, family.first_source_port() as i32);
    a.store_32(R10, NUMBER, R1);
    a.load_map(R1, TUNNEL_PORTS);
    a.address(R2, R10, NUMBER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "drop");
    a.load_32(R1, R0, 0);
    a.shift_left_immediate(R1, 16);
    a.or_immediate(R1, tunnel::PORT.into());
    a.swap_to_big_endian_32(R1);
    a.store_32(R10, at(ip_len), R1);

    make_room(a, family);
    write(a, FRAME, R10, TUNNEL, more);
    a.load_32(R1, R7, way::INTERFACE as i16);
    for zero in [R2, R3, R4] {
        a.mov_immediate(zero, 0);
    }
    a.call(Helper::RedirectNeigh);
    a.exit();
}

/// A header of IPv4 for a packet of `R1` bytes.
fn write_ipv4(a: &mut Assembler) {
    const VERSION: i32 = 0x45 << 24;
    const CHECKSUM: i16 = 10;
    // Marks of service and congestion are those of the packet within.
    a.load_8(R2, R10, FIRST + 1);
    a.shift_left_immediate(R2, 16);
    a.or_immediate(R1, VERSION);
    a.or(R1, R2);
    a.swap_to_big_endian_32(R1);
    a.store_32(R10, TUNNEL, R1);
    a.mov_immediate(R1, 0);
    a.mov_immediate(R2, 0);
    a.address(R3, R10, TUNNEL);
    a.mov_immediate(R4, packet::IPV4_LEN);
    a.mov_immediate(R5, 0);
    a.call(Helper::CsumDiff);
    for _ in 0..2 {
        a.mov(R1, R0);
        a.and_immediate(R1, 0xffff);
        a.shift_right_immediate(R0, 16);
        a.and_immediate(R0, 0xffff);
        a.add(R0, R1);
    }
    a.mov_immediate(R1, 0xffff);
    a.xor(R0, R1);
    a.store_16(R10, TUNNEL + CHECKSUM, R0);
}

/// A header of IPv6 for a packet of `R1` bytes.
fn write_ipv6(a: &mut Assembler) {
    const BEHIND_LEN: i32 = packet::UDP << 8 | tunnel::HOPS as i32;
    a.add_immediate(R1, -packet::IPV6_LEN);
    a.shift_left_immediate(R1, 16);
    a.or_immediate(R1, BEHIND_LEN);
    a.swap_to_big_endian_32(R1);
    a.store_32(R10, TUNNEL + 4, R1);
    // Its class, with marks of congestion, and its label are those of the packet within.
    a.load_32(R1, R10, FIRST);
    a.store_32(R10, TUNNEL, R1);
}

/// Makes room behind the frame's header, and tells the kernel for what.
fn make_room(a: &mut Assembler, family: Family) {
    a.mov_immediate(R4, room::OF_UDP | family.room());
    a.load_32(R1, R10, SERVICE + service_key::PROTOCOL as i16);
    a.jump_if_not_equal(R1, packet::UDP, ROOM[family as usize]);
    a.or_immediate(R4, room::KEEP_SEGMENTS);
    a.label(ROOM[family as usize]);
    a.mov(R1, R6);
    a.mov_immediate(R2, family.overhead() as i32);
    a.mov_immediate(R3, room::BEHIND_FRAME);
    a.call(Helper::SkbAdjustRoom);
    a.jump_if_negative(R0, "drop");
}

/// A packet that does not fit into the tunnel, of which `R8` is the longest packet.
fn refuse_oversized(a: &mut Assembler) {
    a.label("too big");
    tally_one(a, tally::OVERSIZED);
    a.load_32(R1, R10, HEADERS_LEN);
    a.sub_32(R8, R1);
    a.store_32(R10, TUNNEL, R8);
    a.mov_immediate(R2, packet::FRAME_LEN);
    Hook::Tc.load(a, TUNNEL + oversized::PACKET as i16, oversized::PACKET_LEN as i32);
    a.load_map(R1, OVERSIZED);
    a.address(R2, R10, TUNNEL);
    a.mov_immediate(R3, oversized::LEN as i32);
    a.mov_immediate(R4, 0);
    // Without room its sender is told of the next one.
    a.call(Helper::RingBufOutput);
    a.jump("drop");
}

fn end(a: &mut Assembler, hook: Hook) {
    a.label("fragment");
    tally_one(a, tally::FRAGMENTS);
    a.jump("drop");
    a.label("extended");
    tally_one(a, tally::EXTENDED);
    a.jump("drop");
    a.label("refuse");
    a.label("stranded");
    hook.strand(a);
    hook.end(a);
}

/// Of a message of ARP, in bytes: the sender's two addresses and the target's.
mod arp {
    pub(super) const LEN: i32 = 28;
    pub(super) const OPERATION: i32 = 6;
    pub(super) const SENDER: i16 = 8;
    pub(super) const SENDER_IP: i16 = 14;
    pub(super) const TARGET: i16 = 18;
    pub(super) const TARGET_IP: i16 = 24;
    /// Of the sender, or of the target.
    pub(super) const ADDRESSES_LEN: i32 = 10;

    /// Ethernet, IPv4, and the lengths of their addresses; a request, in the order of the network.
    pub(super) const BEGINS: [i32; 2] =
        [i32::from_ne_bytes([0, 1, 8, 0]), i32::from_ne_bytes([6, 4, 0, 1])];
    pub(super) const REPLY: i32 = i32::from_ne_bytes([0, 2, 0, 0]);
}

/// Of ICMPv6 behind the header of IPv6, in bytes.
mod discovery {
    /// With one option, the sender's address on the link.
    pub(super) const LEN: i32 = 32;
    pub(super) const CHECKSUM: i32 = 2;
    pub(super) const FLAGS: i32 = 4;
    pub(super) const TARGET: i16 = 8;
    pub(super) const OPTION: i16 = 24;
    pub(super) const OPTION_LEN: i32 = 8;
    /// The address within the option.
    pub(super) const ADDRESS: i16 = 26;

    /// In IPv6: so long, ICMPv6, of this link.
    pub(super) const HEADER: i32 = i32::from_be_bytes([0, LEN as u8, 58, 255]);
    pub(super) const SOLICITS: i32 = i32::from_ne_bytes([135, 0, 0, 0]);
    pub(super) const ADVERTISES: i32 = i32::from_ne_bytes([136, 0, 0, 0]);
    /// It was asked for, and goes before what is known.
    pub(super) const SOLICITED_OVERRIDE: i32 = i32::from_ne_bytes([0x60, 0, 0, 0]);
}

const FRAME: i32 = packet::FRAME_LEN;
const LINK_ADDRESS_LEN: i32 = 6;

/// A request for a VIP becomes the reply.
fn answer_arp(a: &mut Assembler) {
    a.label("arp");
    a.mov_immediate(R2, FRAME);
    Hook::Tc.load(a, HEADER, arp::LEN);
    for (at, word) in [0, 4].into_iter().zip(arp::BEGINS) {
        a.load_32(R1, R10, HEADER + at);
        a.jump_if_not_equal(R1, word, "pass");
    }
    key::store_mapped_ipv4(a, SERVICE, R10, HEADER + arp::TARGET_IP);
    find_lease(a);
    a.store_immediate_32(R10, NOTE, arp::REPLY);
    write(a, FRAME + arp::OPERATION, R10, NOTE, 2);
    write(a, FRAME + i32::from(arp::SENDER), R7, lease::ADDRESS as i16, LINK_ADDRESS_LEN);
    write(a, FRAME + i32::from(arp::SENDER_IP), R10, HEADER + arp::TARGET_IP, 4);
    write(a, FRAME + i32::from(arp::TARGET), R10, HEADER + arp::SENDER, arp::ADDRESSES_LEN);
    return_frame(a, HEADER + arp::SENDER);
}

/// A solicitation of a VIP becomes the advertisement. That of a host which has no address yet is not answered.
fn answer_solicitation(a: &mut Assembler) {
    const AT: i32 = FRAME + packet::IPV6_LEN;
    a.label("solicitation");
    a.load_32(R1, R10, HEADER + 4);
    a.swap_to_big_endian_32(R1);
    a.jump_if_not_equal(R1, discovery::HEADER, "pass");
    a.load_64(R1, R10, HEADER + packet::IPV6_SOURCE);
    a.load_64(R2, R10, HEADER + packet::IPV6_SOURCE + 8);
    a.or(R1, R2);
    a.jump_if_equal(R1, 0, "pass");
    a.mov_immediate(R2, AT);
    Hook::Tc.load(a, SOLICITATION, discovery::LEN);
    for at in [0, 1] {
        // The source's address, of one unit.
        a.load_8(R1, R10, SOLICITATION + discovery::OPTION + at);
        a.jump_if_not_equal(R1, 1, "pass");
    }
    key::store_ipv6(a, SERVICE, R10, SOLICITATION + discovery::TARGET);
    find_lease(a);
    sum_up(a);
    a.mov(R4, R0);
    a.mov(R1, R6);
    a.mov_immediate(R2, AT + discovery::CHECKSUM);
    a.mov_immediate(R3, 0);
    a.mov_immediate(R5, 0);
    a.call(Helper::L4CsumReplace);
    a.jump_if_negative(R0, "drop");
    write(a, AT, R10, ADDRESSES_OF_FRAME, 1);
    write(a, AT + discovery::FLAGS, R10, ADDRESSES_OF_FRAME + 4, 4);
    let option = AT + i32::from(discovery::OPTION);
    write(a, option, R7, lease::OPTION as i16, discovery::OPTION_LEN);
    write(a, FRAME + i32::from(packet::IPV6_SOURCE), R10, SERVICE, 16);
    let client = HEADER + packet::IPV6_SOURCE;
    write(a, FRAME + i32::from(packet::IPV6_DESTINATION), R10, client, 16);
    return_frame(a, SOLICITATION + discovery::ADDRESS);
}

/// `R0` = what the checksum changes by. Of the addresses the client's stays in the sum.
fn sum_up(a: &mut Assembler) {
    a.store_immediate_32(R10, NOTE, discovery::SOLICITS);
    a.store_immediate_32(R10, NOTE + 4, 0);
    a.store_immediate_32(R10, ADDRESSES_OF_FRAME, discovery::ADVERTISES);
    a.store_immediate_32(R10, ADDRESSES_OF_FRAME + 4, discovery::SOLICITED_OVERRIDE);
    a.mov_immediate(R8, 0);
    let destination = HEADER + packet::IPV6_DESTINATION;
    differ(a, destination, (R10, SERVICE), 16);
    let option = (R7, lease::OPTION as i16);
    differ(a, SOLICITATION + discovery::OPTION, option, discovery::OPTION_LEN);
    differ(a, NOTE, (R10, ADDRESSES_OF_FRAME), 8);
}

/// `R8`, and `R0`, follow the change of so many bytes.
fn differ(a: &mut Assembler, from: i16, (base, to): (Register, i16), len: i32) {
    a.address(R1, R10, from);
    a.mov_immediate(R2, len);
    a.address(R3, base, to);
    a.mov_immediate(R4, len);
    a.mov(R5, R8);
    a.call(Helper::CsumDiff);
    a.mov(R8, R0);
}

/// `R7` = the lease, if it runs, this is a VIP, and the kernel does not answer for it.
fn find_lease(a: &mut Assembler) {
    a.load_map(R1, ADDRESSES);
    a.address(R2, R10, SERVICE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "pass");
    within_lease(a, "pass");
    a.mov(R7, R0);
    a.load_8(R1, R7, lease::OPTION as i16);
    a.jump_if_equal(R1, 0, "pass");
}

/// Has the frame go to the address on the stack, from ours.
fn return_frame(a: &mut Assembler, to: i16) {
    write(a, 0, R10, to, LINK_ADDRESS_LEN);
    write(a, LINK_ADDRESS_LEN, R7, lease::ADDRESS as i16, LINK_ADDRESS_LEN);
    send_back(a);
}

/// Writes so many bytes into the packet.
fn write(a: &mut Assembler, at: i32, base: Register, from: i16, len: i32) {
    /// `BPF_F_RECOMPUTE_CSUM`: what the interface has summed up follows.
    const SUM_FOLLOWS: i32 = 1;
    a.mov(R1, R6);
    a.mov_immediate(R2, at);
    a.address(R3, base, from);
    a.mov_immediate(R4, len);
    a.mov_immediate(R5, SUM_FOLLOWS);
    a.call(Helper::SkbStoreBytes);
    a.jump_if_negative(R0, "drop");
}
