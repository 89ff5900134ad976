//! Two hosts and nothing between them: what a peer may not say, and what it does not say.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use sidestep_proto::connection::Misbehaved;
use sidestep_proto::link_group::{Adapter, AdapterId, RMBS_MAX, RmbState};
use sidestep_rdma::device::{Device, Event as DeviceEvent, Failure};
use sidestep_rdma::soft;
use sidestep_rdma::soft::adapter::{DATAGRAM_MAX, Datagram};
use sidestep_wire::cdc::{self, CdcMessage, Cursor, ProducerFlags, StateFlags};
use sidestep_wire::clc::AcceptConfirmR;
use sidestep_wire::llc::{self, Form, TestLink};
use sidestep_wire::{AlertToken, Diagnosis, Mac, Mtu, PeerId, Rkey, RmbAddress, RmbeSize, RoceGid};

use super::*;

mod forged;

const SERVER: usize = 0;
const CLIENT: usize = 1;

struct Pair {
    hosts: [Host<soft::Adapter>; 2],
    now: Duration,
    /// Of the next connections.
    sizes: [Sizes; 2],
    uids: [u32; 2],
    /// Whether they do, at each host.
    stay: [bool; 2],
    vlan: u16,
    /// By which hosts go that no group knows.
    own_ids: [PeerId; 2],
    /// The connection that the server has accepted last.
    accepted: AlertToken,
    /// What each has told, but what was said by CLC.
    told: [Vec<Event>; 2],
    /// The Accepts and the Confirms.
    said: [Vec<AcceptConfirmR>; 2],
}

fn adapter(host: usize) -> Adapter {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xFF, 0xFF, 10, 0, 0, host as u8 + 1]);
    let mac = Mac([2, 0, 0, 0, 0, host as u8]);
    Adapter { id: ID, gid: RoceGid(gid), mac, mtu: Mtu::from_low_bits(3) }
}

fn address(host: usize) -> IpAddr {
    group::address_of(adapter(host).gid)
}

const ID: AdapterId = AdapterId(1);
/// From which every adapter sends.
const PORT: u16 = 50_000;

const fn peer_id(host: usize) -> PeerId {
    PeerId([host as u8 + 1; 8])
}

const SIZES: Sizes = Sizes { rmbe: RmbeSize::MIN, send_buffer: RmbeSize::MIN };

fn terms(host: usize) -> Terms {
    let adapters = [ID].into_iter().collect();
    Terms { own_id: peer_id(host), adapters, vlan: 0, wording: Wording::V1 }
}

/// A user of both hosts.
const USER: u32 = 1000;

/// What a program of one host asks for, at a TCP connection with the other.
fn request(host: usize, sizes: Sizes) -> Request {
    request_of(USER, host, sizes)
}

fn request_of(uid: u32, host: usize, sizes: Sizes) -> Request {
    let caller = Caller::new(uid, address(host), address(1 - host));
    Request { caller, terms: terms(host), sizes, stays: false }
}

fn random(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

impl Pair {
    fn new() -> Self {
        let hosts = [SERVER, CLIENT].map(|host| {
            let mut it = Host::new(Settings { keepalive: None }, random(host as u64));
            let device = soft::Adapter::seeded(host as u64, address(host), PORT);
            it.add_adapter(adapter(host), device, Duration::ZERO);
            it
        });
        Self {
            hosts,
            now: Duration::from_secs(1),
            sizes: [SIZES; 2],
            uids: [USER; 2],
            stay: [false; 2],
            vlan: 0,
            own_ids: [SERVER, CLIENT].map(peer_id),
            accepted: AlertToken(0),
            told: Default::default(),
            said: Default::default(),
        }
    }

    /// A connection: what the server calls it, and the client.
    fn connect(&mut self) -> [AlertToken; 2] {
        let Adapter { gid, mac, .. } = adapter(CLIENT);
        let known_as = self.hosts[CLIENT].known_as(address(SERVER));
        let peer_id = known_as.unwrap_or(self.own_ids[CLIENT]);
        let proposer = Proposer { peer_id, gid, mac };
        let request = self.request(SERVER, self.own_ids[SERVER]);
        let server = self.hosts[SERVER].accept(proposer, request, self.now).unwrap();
        self.accepted = server;
        self.run(3);
        let is_established = |event: &Event| match event {
            Event::Established(token) => Some(*token),
            _ => None,
        };
        let client = self.told[CLIENT].iter().rev().find_map(is_established).unwrap();
        assert!(self.told[SERVER].contains(&Event::Established(server)));
        [server, client]
    }

    /// What a program of this host asks for, under this identity of the host.
    fn request(&self, host: usize, own_id: PeerId) -> Request {
        let request = request_of(self.uids[host], host, self.sizes[host]);
        let terms = Terms { own_id, vlan: self.vlan, ..request.terms };
        Request { terms, stays: self.stay[host], ..request }
    }

    /// Lets so many seconds pass.
    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            while self.carry() {}
            let due = |host: &mut Host<soft::Adapter>| {
                [host.poll_timeout(), host.device(ID).unwrap().poll_timeout()]
            };
            let next = self.hosts.iter_mut().flat_map(due).flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = next;
            for host in &mut self.hosts {
                host.device(ID).unwrap().handle_timeout(next);
                host.handle_device(ID, next);
                host.handle_timeout(next);
            }
        }
        self.now = end;
    }

    fn carry(&mut self) -> bool {
        let mut is_some = self.carry_datagrams();
        for at in [SERVER, CLIENT] {
            while let Some(event) = self.hosts[at].poll_event() {
                is_some = true;
                let Event::Introduce(_, message) = event else {
                    self.told[at].push(event);
                    continue;
                };
                self.said[at].push((*message).clone());
                match at {
                    SERVER => {
                        let known_as = self.hosts[CLIENT].known_as(address(SERVER));
                        let own_id = known_as.unwrap_or(self.own_ids[CLIENT]);
                        let request = self.request(CLIENT, own_id);
                        self.hosts[CLIENT].connect(&message, request, self.now).unwrap();
                    }
                    _ => self.hosts[SERVER].handle_confirm(self.accepted, &message, self.now),
                }
            }
        }
        is_some
    }

    fn carry_datagrams(&mut self) -> bool {
        let mut out = [0; DATAGRAM_MAX];
        let mut is_some = false;
        for at in [SERVER, CLIENT] {
            self.hosts[at].transmit(self.now);
            let [sender, receiver] = match &mut self.hosts {
                [server, client] if at == SERVER => [server, client],
                [server, client] => [client, server],
            }
            .map(|host| host.device(ID).unwrap());
            while let Some(run) = sender.poll_transmit(&mut out, 1, self.now) {
                let bytes = &out[..run.len];
                let datagram = Datagram { from: address(at), port: PORT, index: 0, bytes };
                receiver.handle_datagram(&datagram, self.now);
                is_some = true;
            }
            self.hosts[1 - at].handle_device(ID, self.now);
        }
        is_some
    }

    /// What one side makes of a message that its peer could send.
    fn hear(&mut self, at: usize, bytes: &[u8]) {
        let host = &mut self.hosts[at];
        let (id, group) = host.groups.iter().next().unwrap();
        let (id, link) = (*id, group.engine.links()[0].user_id());
        host.received(id, link, bytes, self.now);
        host.settle(self.now);
        self.run(1);
    }
}

fn message(alert_token: AlertToken, producer: Cursor) -> [u8; cdc::LEN] {
    let message = CdcMessage {
        seqno: 9,
        alert_token,
        producer,
        consumer: Cursor::default(),
        producer_flags: ProducerFlags::default(),
        state_flags: StateFlags::default(),
    };
    let mut bytes = [0; cdc::LEN];
    message.emit(&mut bytes).unwrap();
    bytes
}

#[test]
fn an_impossible_cursor_ends_its_connection_and_no_other() {
    let mut pair = Pair::new();
    let [bad, bad_at_client] = pair.connect();
    let [good, good_at_client] = pair.connect();
    pair.hear(SERVER, &message(bad, Cursor { wrap: 0, count: 1 << 20 }));
    let is_it =
        |event: &Event| matches!(event, Event::Reset(token, Reset::Misbehaved(_)) if *token == bad);
    assert!(pair.told[SERVER].iter().any(is_it), "{:?}", pair.told);
    assert!(pair.told[CLIENT].contains(&Event::Reset(bad_at_client, Reset::ByPeer)));
    let now = pair.now;
    assert_eq!(pair.hosts[SERVER].send(bad, b"x", now), Err(CallError::Reset));
    assert_eq!(pair.hosts[CLIENT].send(good_at_client, b"hello", now), Ok(5));
    pair.run(1);
    let mut bytes = [0; 9];
    assert_eq!(pair.hosts[SERVER].receive(good, &mut bytes, pair.now), Ok(5));
    assert_eq!(&bytes[..5], b"hello");
}

#[test]
fn words_for_nobody_are_dropped_and_counted() {
    let mut pair = Pair::new();
    pair.connect();
    pair.hear(SERVER, &message(AlertToken(77), Cursor::default()));
    pair.hear(SERVER, &[cdc::TYPE, 44, 0]);
    pair.hear(SERVER, &[cdc::TYPE]);
    assert_eq!(pair.hosts[SERVER].drops(), Drops { malformed: 2, unknown: 1 });
    assert!(!pair.told[SERVER].iter().any(|it| matches!(it, Event::Reset(..))));
}

/// RFC 7609 §4.8 leaves open how long.
#[test]
fn a_peer_that_never_closes_is_not_waited_for_for_ever() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let now = pair.now;
    pair.hosts[SERVER].send(server, b"bye", now).unwrap();
    pair.hosts[SERVER].close(server, now);
    pair.run(PEER_PATIENCE.as_secs() - 5);
    assert!(!pair.told[SERVER].contains(&Event::Gone(server)));
    pair.run(10);
    assert!(pair.told[SERVER].contains(&Event::Gone(server)));
    let group = pair.hosts[SERVER].groups().next().unwrap();
    assert_eq!(group.rmbs().count(), 0, "the peer could still write into it");
    // Its program has all that was sent, and is not told of any disorder.
    let mut bytes = [0; 9];
    assert_eq!(pair.hosts[CLIENT].receive(client, &mut bytes, pair.now), Ok(3));
    assert_eq!(pair.hosts[CLIENT].receive(client, &mut bytes, pair.now), Ok(0));
    assert_eq!(pair.hosts[CLIENT].send(client, b"x", pair.now), Err(CallError::PeerClosed));
    pair.hosts[CLIENT].close(client, pair.now);
    pair.run(1);
    assert!(pair.told[CLIENT].contains(&Event::Gone(client)));
    assert_eq!(pair.hosts[CLIENT].holdings().connections, 0);
}

#[test]
fn a_buffer_is_used_again_and_begins_as_nothing() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let now = pair.now;
    pair.hosts[CLIENT].send(client, b"secret", now).unwrap();
    pair.run(1);
    pair.hosts[CLIENT].abort(client, pair.now);
    pair.run(1);
    pair.hosts[SERVER].close(server, pair.now);
    pair.run(1);
    let before = pair.hosts[SERVER].holdings();
    let [again, _] = pair.connect();
    let after = pair.hosts[SERVER].holdings();
    assert_eq!((before.rmbs, after.rmbs), (1, 1));
    assert_eq!(before.registrations, after.registrations);
    let mut bytes = [9; 6];
    assert!(pair.hosts[SERVER].streams[&again].incoming.copy_out(0, &mut bytes));
    assert_eq!(bytes, [0; 6]);
    let group = pair.hosts[SERVER].groups().next().unwrap();
    assert!(group.rmbs().all(|(_, state)| state == RmbState::Announced));
}

/// Its pages exist when they are written to: short messages take one, however many there are.
#[test]
fn a_send_buffer_is_used_as_far_as_it_is_filled_at_once() {
    const LEN: usize = 500;
    const COUNT: u8 = 20;
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    for n in 1..=COUNT {
        let (bytes, mut received) = ([n; LEN], [0; LEN]);
        assert_eq!(pair.hosts[CLIENT].send(client, &bytes, pair.now), Ok(LEN));
        pair.run(1);
        assert_eq!(pair.hosts[SERVER].receive(server, &mut received, pair.now), Ok(LEN));
        assert_eq!(received, bytes);
    }
    let buffer = pair.hosts[CLIENT].streams[&client].outgoing.as_ref().unwrap();
    let mut bytes = vec![9; buffer.memory.len()];
    assert!(buffer.memory.copy_out(0, &mut bytes));
    let (used, rest) = bytes.split_at(LEN);
    assert!(used == [COUNT; LEN] && rest.iter().all(|byte| *byte == 0));
}

/// What it has sent over the link that it has left may come late, and would be in the next one's bytes.
#[test]
fn a_buffer_whose_peer_has_just_changed_links_is_not_used_again() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let stream = pair.hosts[SERVER].streams.get_mut(&server).unwrap();
    stream.left.push(stream.heard_over.unwrap());
    pair.hosts[SERVER].close(server, pair.now);
    pair.hosts[CLIENT].close(client, pair.now);
    pair.run(1);
    let rmbs = |host: usize| pair.hosts[host].holdings().rmbs;
    assert_eq!([SERVER, CLIENT].map(rmbs), [0, 1]);
}

/// A group has 255 buffers of a side at most, and connections before may have left as many of another
/// size.
#[test]
fn where_there_can_be_no_more_buffers_one_of_another_size_will_do() {
    let mut pair = Pair::new();
    let sizes = [1, 2, 3].map(|above| RmbeSize::from_low_bits(RmbeSize::MIN.code() + above));
    for (rmbe, count) in sizes.into_iter().zip([100, 100, RMBS_MAX - 200]) {
        pair.sizes[SERVER].rmbe = rmbe;
        let ends: Vec<_> = (0..count).map(|_| pair.connect()).collect();
        for [server, client] in ends {
            pair.hosts[SERVER].close(server, pair.now);
            pair.hosts[CLIENT].close(client, pair.now);
        }
        pair.run(1);
    }
    // The next longer one goes first, and after those the next shorter.
    for (rmbe, expected) in [(RmbeSize::MIN, sizes[0]), (RmbeSize::MAX, sizes[2])] {
        pair.sizes[SERVER].rmbe = rmbe;
        let [server, client] = pair.connect();
        let view = pair.hosts[SERVER].connection(server).unwrap();
        assert_eq!(view.rmbe_len, expected.bytes());
        let view = pair.hosts[CLIENT].connection(client).unwrap();
        assert_eq!(view.peer_rmbe_len, Some(expected.bytes()));
    }
    assert_eq!(pair.hosts[SERVER].holdings().rmbs, RMBS_MAX);
    assert_eq!(pair.hosts[SERVER].groups().count(), 1);
}

impl Host<soft::Adapter> {
    /// First contacts are taken for decided, though they have not said so yet.
    fn ripen_first_contacts(&mut self) {
        self.groups.values_mut().for_each(|group| group.first = None);
    }
}

/// One that does would keep the others of its group from leaving.
#[test]
fn connections_that_stay_have_groups_of_their_own() {
    let mut pair = Pair::new();
    let mut groups = Vec::new();
    for stay in [[true; 2], [false; 2], [true; 2], [false; 2], [false, true]] {
        pair.stay = stay;
        let tokens = pair.connect();
        groups.push([SERVER, CLIENT].map(|at| pair.hosts[at].streams[&tokens[at]].group));
    }
    let [staying, leaving] = [groups[0], groups[1]];
    assert_ne!(staying[SERVER], leaving[SERVER]);
    assert_ne!(staying[CLIENT], leaving[CLIENT]);
    assert_eq!(groups[2..], [staying, leaving, leaving], "the server says which");
}

/// A peer may say with each connection that it is another one.
#[test]
fn for_one_group_too_many_the_one_that_was_idle_longest_ends() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    pair.hosts[SERVER].close(server, pair.now);
    pair.hosts[CLIENT].close(client, pair.now);
    pair.run(1);
    let now = pair.now;
    let host = &mut pair.hosts[SERVER];
    assert_eq!((host.holdings().groups, host.holdings().connections), (1, 0));
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let accept = |host: &mut Host<soft::Adapter>, nth: usize| {
        let peer_id = PeerId((0x0100_0000_0000_0000 + nth as u64).to_be_bytes());
        let remote = Ipv4Addr::from_bits(0x0B00_0000 + nth as u32).into();
        let caller = Caller::new(USER, address(SERVER), remote);
        let request = Request { caller, terms: terms(SERVER), sizes: SIZES, stays: false };
        host.accept(Proposer { peer_id, gid, mac }, request, now).map(|_| ())
    };
    for nth in 1..GROUPS_MAX {
        host.ripen_first_contacts();
        assert_eq!(accept(host, nth), Ok(()));
    }
    let is_idle = |host: &Host<soft::Adapter>| host.groups().any(|it| it.idle_until().is_some());
    assert!(is_idle(host) && host.groups().count() == GROUPS_MAX);
    assert_eq!(accept(host, GROUPS_MAX), Ok(()));
    assert!(!is_idle(host), "it ends");
    // The others are in use.
    assert_eq!(accept(host, GROUPS_MAX + 1), Err(Diagnosis::MEM));
}

/// A peer that asks without end and takes no answer does not fill our memory.
#[test]
fn a_peer_that_asks_and_does_not_listen_loses_the_link() {
    let mut pair = Pair::new();
    let [server, _] = pair.connect();
    let user_data = [9; 16];
    let test = TestLink { form: Form::V1, role: llc::Role::Request, user_data };
    let mut bytes = [0; llc::LEN];
    test.emit(&mut bytes).unwrap();
    let host = &mut pair.hosts[SERVER];
    let (id, group) = host.groups.iter().next().unwrap();
    let (id, link) = (*id, group.engine.links()[0].user_id());
    // Nothing leaves meanwhile.
    for _ in 0..10_000 {
        host.received(id, link, &bytes, pair.now);
        host.settle(pair.now);
    }
    let events: Vec<Event> = std::iter::from_fn(|| host.poll_event()).collect();
    assert!(events.contains(&Event::Reset(server, Reset::Unreachable)), "{events:?}");
    assert_eq!(host.groups().count(), 0, "it was the only link");
}

#[test]
fn nothing_is_sent_over_another_link_before_all_has_left_the_old_one() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let now = pair.now;
    let host = &mut pair.hosts[CLIENT];
    host.send(client, b"one", now).unwrap();
    host.transmit(now);
    let under_way = host.streams[&client].under_way;
    assert!(under_way > 0);
    host.move_stream(client, now);
    host.send(client, b"two", now).unwrap();
    host.transmit(now);
    assert!(host.streams[&client].moving);
    assert_eq!(host.streams[&client].under_way, under_way, "the second waits");
    pair.run(1);
    assert!(!pair.hosts[CLIENT].streams[&client].moving);
    let mut bytes = [0; 9];
    assert_eq!(pair.hosts[SERVER].receive(server, &mut bytes, pair.now), Ok(6));
    assert_eq!(&bytes[..6], b"onetwo");
}

#[test]
fn who_hears_a_validation_over_another_link_tells_of_no_room_before_the_old_one_is_done() {
    let mut pair = Pair::new();
    let [server, _] = pair.connect();
    let host = &mut pair.hosts[SERVER];
    let old = host.streams[&server].heard_over.unwrap();
    let before = host.holdings().registrations;
    let mut validation = CdcMessage::parse(&message(server, Cursor::default())).unwrap();
    validation.seqno = 0;
    validation.producer_flags.failover_validation = true;
    host.handle_cdc(server, old, &validation, pair.now);
    assert!(host.streams[&server].left.is_empty(), "it has not moved");
    let new = sidestep_wire::LinkUserId(old.0 + 1);
    host.handle_cdc(server, new, &validation, pair.now);
    let stream = &host.streams[&server];
    assert_eq!((&stream.left[..], stream.heard_over), (&[old][..], Some(new)));
    host.settle(pair.now);
    pair.run(1);
    let host = &mut pair.hosts[SERVER];
    assert!(host.streams[&server].left.is_empty(), "the peer has answered");
    assert_eq!(host.holdings().registrations, before, "it may come back");
    // Now it leaves one that does not work (any more): what comes over that finds no door.
    host.streams.get_mut(&server).unwrap().heard_over = Some(new);
    let rmb = host.streams[&server].rmb;
    let group = host.groups.values_mut().next().unwrap();
    let (adapter, qp) = (group.carriers[&old].adapter, group.carriers[&old].qp);
    let mut gone = carrier::Carrier::new(adapter, qp);
    gone.keys.insert(rmb, group.carriers[&old].keys[&rmb]);
    group.carriers.insert(new, gone);
    host.handle_cdc(server, old, &validation, pair.now);
    assert_eq!(host.holdings().registrations, before - 1);
}

/// It comes back to the old one before that has answered, because the other one has gone.
#[test]
fn who_hears_the_peer_over_the_old_link_again_tells_of_room_again() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let host = &mut pair.hosts[SERVER];
    let old = host.streams[&server].heard_over.unwrap();
    let mut validation = CdcMessage::parse(&message(server, Cursor::default())).unwrap();
    validation.seqno = 0;
    validation.producer_flags.failover_validation = true;
    let gone = sidestep_wire::LinkUserId(old.0 + 1);
    host.handle_cdc(server, gone, &validation, pair.now);
    host.handle_cdc(server, old, &validation, pair.now);
    assert!(host.streams[&server].left.is_empty());
    // The urgent byte is the last until the writer is told that it was read.
    let now = pair.now;
    pair.hosts[CLIENT].send_urgent(client, b"urgent", now).unwrap();
    pair.hosts[CLIENT].send(client, b"more", now).unwrap();
    let mut bytes = [0; 10];
    for expected in [&b"urgent"[..], b"more"] {
        pair.run(1);
        let received = pair.hosts[SERVER].receive(server, &mut bytes, pair.now);
        assert_eq!((received, &bytes[..expected.len()]), (Ok(expected.len()), expected));
    }
}

#[test]
fn a_connection_leaves_a_link_that_works_when_the_peer_has_understood_all() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let now = pair.now;
    let host = &mut pair.hosts[CLIENT];
    host.move_stream(client, now);
    host.send(client, b"late", now).unwrap();
    let link = host.streams[&client].to.unwrap().0;
    assert_eq!(host.streams[&client].probed, Some(link));
    assert_eq!(host.connection(client).unwrap().traffic.bytes_sent, 4);
    assert_eq!(host.connection(client).unwrap().moves, 0, "it has to wait");
    pair.run(1);
    assert_eq!(pair.hosts[CLIENT].connection(client).unwrap().moves, 1);
    let mut bytes = [0; 9];
    assert_eq!(pair.hosts[SERVER].receive(server, &mut bytes, pair.now), Ok(4));
}

/// RFC 7609 §4.6.1: the link has failed after it had acknowledged what is not here.
#[test]
fn a_validation_of_what_never_came_resets_both_ends() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let mut validation = CdcMessage::parse(&message(server, Cursor::default())).unwrap();
    validation.producer_flags.failover_validation = true;
    let mut bytes = [0; cdc::LEN];
    validation.emit(&mut bytes).unwrap();
    pair.hear(SERVER, &bytes);
    let lost = Misbehaved::DataLost { claimed: 9, last: 0 };
    assert!(pair.told[SERVER].contains(&Event::Reset(server, Reset::Misbehaved(lost))));
    assert!(pair.told[CLIENT].contains(&Event::Reset(client, Reset::ByPeer)));
}

#[test]
fn a_client_that_has_begun_anew_does_not_answer_and_the_group_ends() {
    let mut pair = Pair::new();
    let [old, _] = pair.connect();
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
    let now = pair.now;
    // It has begun anew, and knows nothing.
    pair.hosts[CLIENT] = Host::new(Settings { keepalive: None }, random(9));
    let device = soft::Adapter::seeded(9, address(CLIENT), PORT);
    pair.hosts[CLIENT].add_adapter(adapter(CLIENT), device, now);
    let token = pair.hosts[SERVER].accept(proposer, request(SERVER, SIZES), now).unwrap();
    // The buffer of a new connection would be told over a link that leads nowhere.
    pair.hosts[SERVER].handle_out_of_sync(token, now);
    pair.run(6);
    assert!(pair.told[SERVER].contains(&Event::Gone(token)));
    assert!(pair.told[SERVER].contains(&Event::Reset(old, Reset::Unreachable)));
    pair.hosts[SERVER].close(old, pair.now);
    // No peer is told of the end of the group.
    pair.run(10);
    assert_eq!(pair.hosts[SERVER].holdings(), Holdings::default());
    pair.connect();
}

#[test]
fn a_display_sees_what_was_used() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let now = pair.now;
    pair.hosts[CLIENT].send(client, b"hello", now).unwrap();
    pair.run(1);
    let mut bytes = [0; 9];
    assert_eq!(pair.hosts[SERVER].receive(server, &mut bytes, pair.now), Ok(5));
    let view = pair.hosts[SERVER].connection(server).unwrap();
    assert_eq!((view.peer_token, view.is_open, view.moves), (Some(client), true, 0));
    assert_eq!((view.traffic.bytes_received, view.traffic.messages_received), (5, 1));
    assert_eq!(pair.hosts[CLIENT].connection(client).unwrap().traffic.bytes_sent, 5);
    let link = pair.hosts[SERVER].links().next().unwrap();
    assert_eq!((link.connections, link.usage.traffic.bytes_received), (1, 5));
    assert_eq!(view.link, Some(link.link.user_id()));
    // CONFIRM LINK and its like are messages, too.
    assert!(link.usage.traffic.messages_received > 1);
    assert_eq!(link.usage.retransmissions, Some(0));
    let sent = pair.hosts[CLIENT].links().next().unwrap().usage;
    // What a link was used for outlives it.
    pair.hosts[CLIENT].end(false, pair.now);
    pair.run(5);
    assert_eq!(pair.hosts[CLIENT].links().count(), 0);
    let adapter = pair.hosts[CLIENT].adapters().next().unwrap();
    assert_eq!((adapter.links, adapter.is_up), (0, true));
    assert_eq!(adapter.usage.traffic.bytes_sent, sent.traffic.bytes_sent);
    assert!(adapter.usage.traffic.messages_sent > sent.traffic.messages_sent, "and the end of all");
}

#[test]
fn the_operator_is_told_over_which_adapter_a_link_broke_and_why() {
    let mut pair = Pair::new();
    let [server, _] = pair.connect();
    let (host, now) = (&mut pair.hosts[SERVER], pair.now);
    let qp = *host.ports[&ID].links.keys().next().unwrap();
    host.take_device_event(ID, qp, DeviceEvent::Broken(Failure::PeerSilent), now);
    host.settle(now);
    assert_eq!(host.poll_broken_link(), Some((ID, Failure::PeerSilent)));
    assert_eq!(host.poll_broken_link(), None);
    let events: Vec<Event> = std::iter::from_fn(|| host.poll_event()).collect();
    assert!(events.contains(&Event::Reset(server, Reset::Unreachable)), "{events:?}");
}

#[test]
fn a_device_that_is_taken_out_has_nothing_of_ours() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let now = pair.now;
    pair.hosts[CLIENT].send(client, b"under way", now).unwrap();
    let device = pair.hosts[CLIENT].remove_adapter(ID, now).unwrap();
    assert_eq!(Device::holdings(&device), sidestep_rdma::device::Holdings::default());
    pair.hosts[CLIENT].add_adapter(adapter(CLIENT), device, now);
    pair.run(8);
    assert!(pair.told[CLIENT].contains(&Event::Reset(client, Reset::Unreachable)));
    pair.hosts[CLIENT].close(client, pair.now);
    pair.hosts[SERVER].close(server, pair.now);
    pair.run(PEER_PATIENCE.as_secs() + 10);
    assert_eq!(pair.hosts.each_ref().map(Host::holdings), [Holdings::default(); 2]);
    pair.connect();
}

#[test]
fn the_only_adapter_is_not_relieved() {
    let mut pair = Pair::new();
    let [server, client] = pair.connect();
    let now = pair.now;
    pair.hosts[SERVER].relieve_adapter(ID, now);
    pair.run(5);
    assert_eq!(pair.hosts[CLIENT].send(client, b"x", pair.now), Ok(1));
    pair.run(1);
    assert_eq!(pair.hosts[SERVER].receive(server, &mut [0; 9], pair.now), Ok(1));
}

impl Pair {
    /// A Proposal of the client, of which it hears nothing.
    fn propose(&mut self) -> AlertToken {
        let Adapter { gid, mac, .. } = adapter(CLIENT);
        let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
        self.hosts[SERVER].accept(proposer, request(SERVER, SIZES), self.now).unwrap()
    }

    /// What the server has told, and only the client has heard.
    fn servers_events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.hosts[SERVER].poll_event()).collect()
    }
}

#[test]
fn a_proposal_waits_for_the_first_contact_before_it_but_not_for_ever() {
    let mut pair = Pair::new();
    let [first, second] = [(); 2].map(|()| pair.propose());
    let introduced = pair.servers_events();
    assert!(matches!(&introduced[..], [Event::Introduce(token, _)] if *token == first));
    let until = pair.now + FIRST_CONTACT_PATIENCE;
    assert_eq!(pair.hosts[SERVER].poll_timeout(), Some(until));
    pair.hosts[SERVER].handle_timeout(until);
    let late = Event::Declined(second, Diagnosis::TIMEOUT_CL);
    assert_eq!(pair.servers_events(), [late, Event::Gone(second)]);
    // The first one is none of its business.
    assert_eq!(pair.hosts[SERVER].holdings().connections, 1);
}

#[test]
fn who_waits_can_be_withdrawn_and_is_served_when_the_first_is() {
    let mut pair = Pair::new();
    let [first, second, third] = [(); 3].map(|()| pair.propose());
    let now = pair.now;
    pair.hosts[SERVER].abandon(second, now);
    assert!(pair.servers_events().contains(&Event::Gone(second)));
    pair.hosts[SERVER].abandon(first, now);
    let events = pair.servers_events();
    let introduced = events.iter().find_map(|event| match event {
        Event::Introduce(token, accept) => Some((*token, accept.is_first_contact())),
        _ => None,
    });
    assert_eq!(introduced, Some((third, true)), "{events:?}");
    pair.hosts[SERVER].end(false, now);
    pair.run(1);
    assert_eq!(pair.hosts[SERVER].holdings(), Holdings::default());
}

/// A Linux server waits for packets of the adapter that the Proposal has named.
#[test]
fn a_first_contact_over_an_adapter_that_has_gone_is_declined() {
    let mut pair = Pair::new();
    pair.propose();
    let Some(Event::Introduce(_, accept)) = pair.servers_events().pop() else { unreachable!() };
    let other = Adapter { id: AdapterId(2), ..adapter(2) };
    let device = soft::Adapter::seeded(2, address(2), PORT);
    let (client, now) = (&mut pair.hosts[CLIENT], pair.now);
    client.add_adapter(other, device, now);
    client.handle_adapter_down(ID, now);
    let terms = Terms { adapters: [ID, other.id].into_iter().collect(), ..terms(CLIENT) };
    let refused = client.connect(&accept, Request { terms, ..request(CLIENT, SIZES) }, now);
    assert_eq!(refused, Err(Diagnosis::NOSMCRDEV));
    assert_eq!(client.holdings(), Holdings::default());
}

/// What comes up later is not known to lead to the peer.
#[test]
fn an_adapter_that_is_not_eligible_stays_out_of_a_group_that_was_made_while_it_was_down() {
    let mut pair = Pair::new();
    let other = AdapterId(2);
    let now = pair.now;
    for (at, host) in pair.hosts.iter_mut().enumerate() {
        let nth = at + 2;
        let device = soft::Adapter::seeded(nth as u64, address(nth), PORT);
        host.add_adapter(Adapter { id: other, ..adapter(nth) }, device, now);
        host.handle_adapter_down(other, now);
    }
    pair.connect();
    let now = pair.now;
    pair.hosts.iter_mut().for_each(|host| host.handle_adapter_up(other, now));
    // Time enough to begin with another link, and not to give it up.
    pair.run(3);
    let links = |host: &Host<soft::Adapter>, id| {
        let adapter = host.adapters().find(|it| it.description.id == id);
        adapter.map(|it| it.links)
    };
    for host in &pair.hosts {
        assert_eq!([ID, other].map(|id| links(host, id)), [Some(1), Some(0)]);
    }
}

/// RFC 7609 §3.1: all links of a group are on one VLAN, and so are its connections.
#[test]
fn connections_of_different_vlans_have_groups_of_their_own() {
    let mut pair = Pair::new();
    for (vlan, groups) in [(0, 1), (5, 2), (0, 2), (5, 2), (6, 3)] {
        pair.vlan = vlan;
        pair.connect();
        let of = |host: &Host<soft::Adapter>| host.holdings().groups;
        assert_eq!(pair.hosts.each_ref().map(of), [groups; 2], "VLAN {vlan}");
    }
}

/// It is for the groups of the adapters that it is beside, and for those alone.
#[test]
fn an_adapter_that_comes_is_for_the_groups_of_its_kin() {
    for (kin, links) in [(&[ID][..], 1), (&[], 0)] {
        let mut pair = Pair::new();
        pair.connect();
        let (other, now) = (AdapterId(2), pair.now);
        for (at, host) in pair.hosts.iter_mut().enumerate() {
            let nth = at + 2;
            let device = soft::Adapter::seeded(nth as u64, address(nth), PORT);
            host.admit_adapter(other, kin);
            host.add_adapter(Adapter { id: other, ..adapter(nth) }, device, now);
        }
        pair.run(1);
        for host in &pair.hosts {
            let its = host.adapters().find(|it| it.description.id == other).unwrap();
            assert_eq!(its.links, links, "beside {kin:?}");
        }
    }
}

/// It keeps the identities that it was made with, whatever new ones are made with.
#[test]
fn a_group_that_has_moved_takes_further_connections() {
    for moved in [&[SERVER][..], &[CLIENT], &[SERVER, CLIENT]] {
        let mut pair = Pair::new();
        pair.connect();
        let now = pair.now;
        for &at in moved {
            let host = &mut pair.hosts[at];
            let group = host.group_numbers().next().unwrap();
            host.freeze(group);
            let migrant = host.emigrate(group, now).unwrap();
            *host = Host::new(Settings { keepalive: None }, random(7));
            host.add_adapter(adapter(at), soft::Adapter::seeded(7, address(at), PORT), now);
            assert_eq!(host.immigrate(migrant, now), Ok(()));
            pair.own_ids[at] = peer_id(at + 7);
        }
        let [server, client] = pair.connect();
        let now = pair.now;
        assert_eq!(pair.hosts[CLIENT].send(client, b"x", now), Ok(1));
        pair.run(1);
        assert_eq!(pair.hosts[SERVER].receive(server, &mut [0; 9], pair.now), Ok(1));
        let of = |host: &Host<soft::Adapter>| (host.holdings().groups, host.holdings().connections);
        assert_eq!(pair.hosts.each_ref().map(of), [(1, 2); 2], "{moved:?} moved");
    }
}
