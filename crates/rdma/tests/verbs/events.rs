//! What an adapter says of its own accord, and how its owner is woken.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::device::{Device, Event, Failure, Holdings, Peer, PostError};
use sidestep_rdma::verbs::abi::event;
use sidestep_rdma::verbs::{self, Adapter, By, Kind, Notice, OpenError};
use sidestep_wire::Psn;
use sidestep_wire::roce::Nak;

use crate::pair::{Pair, hears};
use crate::{model, open};

const DONE: [Event; 2] =
    [Event::Completed { id: 0, result: Ok(()) }, Event::Completed { id: 1, result: Ok(()) }];

/// An owner may have its adapters in another thread than the one that has opened them.
const _: fn(Adapter) -> Box<dyn Send> = |adapter| Box::new(adapter);

fn is_readable(adapter: &Adapter) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(adapter.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

fn notices(adapter: &mut Adapter) -> Vec<Notice> {
    std::iter::from_fn(|| adapter.poll_notice()).collect()
}

// ---- wake-ups -----------------------------------------------------------------------------------

#[test]
fn whoever_sleeps_is_woken_for_each_message() {
    let mut pair = Pair::new();
    for round in 0..50 {
        assert!(pair.adapters.iter().all(|adapter| !is_readable(adapter)), "round {round}");
        pair.post((0, 100), b"wake up");
        model::step();
        assert!(pair.adapters.iter().all(is_readable), "round {round}");
        pair.settle();
        assert_eq!(pair.events(0).len(), 2);
        assert_eq!(pair.events(1), [Event::Received(b"wake up"[..].into())]);
    }
}

/// An owner that only looks when it is woken, or told that there is more to do.
#[test]
fn the_queue_of_a_new_queue_pair_is_looked_at() {
    let mut adapter = open();
    adapter.create().unwrap();
    assert!(!is_readable(&adapter));
    assert!(adapter.transmit(Duration::ZERO), "it is not armed");
    assert!(!adapter.turn(Duration::ZERO));
}

#[test]
fn a_completion_that_comes_while_the_queue_is_armed_is_found() {
    let mut pair = Pair::new();
    pair.post((0, 100), b"first");
    model::step();
    // The second arrives between the look that finds nothing and the arming.
    pair.post((0, 100), b"second");
    model::world(|world| {
        world.when_armed = Some(|| {
            model::step();
        })
    });
    while pair.adapters[1].turn(Duration::ZERO) {}
    let received = [b"first".as_slice(), b"second"].map(|it| Event::Received(it.into()));
    assert_eq!(pair.events(1), received);
}

#[test]
fn an_owner_that_takes_events_late_loses_none_and_is_woken() {
    let mut pair = Pair::new();
    let room = verbs::RECEIVE_DEPTH as usize;
    let messages = 3 * room;
    (0..messages).for_each(|nth| pair.post((0, 1), &[nth as u8]));
    let mut received = Vec::new();
    while received.len() < messages {
        assert!(model::step());
        assert!(is_readable(&pair.adapters[1]), "after {} messages", received.len());
        // There is nothing to do at once but to take events.
        pair.settle();
        assert!(!model::step(), "the peer waits until there is room");
        let events = pair.events(1);
        assert_eq!(events.len(), room);
        received.extend(events);
        pair.events(0);
    }
    let expected = (0..messages).map(|nth| Event::Received([nth as u8][..].into()));
    assert!(received.into_iter().eq(expected));
}

// ---- the way out --------------------------------------------------------------------------------

#[test]
fn writes_that_no_message_follows_leave_with_the_turn() {
    let mut pair = Pair::new();
    let to = (pair.door.rkey, pair.door.address);
    assert!(pair.source.memory.copy_in(0, b"alone"));
    pair.adapters[0].post_write(pair.qps[0], 0, (&pair.source, 0, 5), to).unwrap();
    assert!(!model::step(), "it waits for its message");
    pair.adapters[0].transmit(Duration::ZERO);
    model::step();
    pair.settle();
    assert_eq!(pair.events(0), DONE[..1]);
    let mut bytes = [0; 5];
    assert!(pair.target.copy_out(0, &mut bytes) && bytes == *b"alone");
}

#[test]
fn long_messages_wait_for_a_slot_and_short_ones_do_not() {
    let mut pair = Pair::new();
    model::world(|world| world.is_stopped = true);
    let qp = pair.qps[0];
    let mut id = 0;
    let full = loop {
        match pair.adapters[0].post_send(qp, id, &[9; 4000]) {
            Ok(()) => id += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((full, id), (PostError::Full, 16));
    pair.adapters[0].post_send(qp, id, b"short").unwrap();
    model::world(|world| world.is_stopped = false);
    model::step();
    pair.settle();
    assert_eq!(pair.events(0).len(), 17);
    assert_eq!(pair.events(1).len(), 17);
    pair.adapters[0].post_send(qp, id + 1, &[9; 4000]).unwrap();
}

#[test]
fn a_driver_that_refuses_breaks_the_queue_pair() {
    let mut pair = Pair::new();
    model::world(|world| world.refuses_posts = true);
    pair.post((0, 10), b"lost");
    let adapter = &mut pair.adapters[0];
    assert!(adapter.transmit(Duration::ZERO), "nobody is woken for it");
    adapter.receive(Duration::ZERO);
    assert!(!adapter.transmit(Duration::ZERO));
    let flushed = |id| Event::Completed { id, result: Err(Failure::Flushed) };
    let broken = Event::Broken(Failure::AdapterFailed);
    assert_eq!(pair.events(0), [flushed(0), flushed(1), broken]);
}

#[test]
fn memory_that_cannot_be_registered_breaks_the_queue_pair() {
    let mut pair = Pair::new();
    model::world(|world| world.keys_left = 0);
    let to = (pair.door.rkey, pair.door.address);
    let posting = pair.adapters[0].post_write(pair.qps[0], 0, (&pair.source, 0, 5), to);
    assert_eq!(posting, Err(PostError::NotReady));
    assert_eq!(pair.events(0), [Event::Broken(Failure::AdapterFailed)]);
    assert!(pair.adapters[1].register(&pair.target, pair.qps[1]).is_none());
    assert!(pair.adapters[1].create().is_none());
}

#[test]
fn what_was_completed_before_the_end_is_told_as_it_is() {
    let mut pair = Pair::new();
    pair.post((0, 10), b"arrives");
    model::step();
    model::world(|world| world.is_stopped = true);
    pair.post((0, 10), b"does not");
    model::happens(event::QP_FATAL, Some(pair.number(0)));
    pair.settle();
    let events = pair.events(0);
    assert_eq!(events[..2], DONE);
    let flushed = |id| Event::Completed { id, result: Err(Failure::Flushed) };
    assert_eq!(events[2..], [flushed(2), flushed(3), Event::Broken(Failure::AdapterFailed)]);
    assert_eq!(pair.events(1), [Event::Received(b"arrives"[..].into())]);
}

// ---- the adapter itself -------------------------------------------------------------------------

#[test]
fn ports_go_down_and_come_up() {
    let mut pair = Pair::new();
    model::happens(event::PORT_ERR, None);
    assert!(is_readable(&pair.adapters[0]));
    model::happens(event::PORT_ACTIVE, None);
    pair.settle();
    assert_eq!(notices(&mut pair.adapters[0]), [Notice::PortDown, Notice::PortUp]);
    assert!(!is_readable(&pair.adapters[0]));
    // Of queue pairs nothing is said: the adapter tries on, and tells if it gives up.
    assert!(pair.events(0).is_empty());
    pair.post((0, 10), b"still there");
    model::step();
    pair.settle();
    assert_eq!(pair.events(0), DONE);
}

#[test]
fn addresses_change() {
    let mut pair = Pair::new();
    model::happens(event::GID_CHANGE, None);
    pair.settle();
    assert_eq!(notices(&mut pair.adapters[0]), [Notice::Addresses { has_ours: true }]);
    // Either is ours: the address by RoCEv1, and by RoCEv2.
    for index in [4, 2] {
        model::world(|world| world.gids.retain(|entry| entry.gid_index != index));
        model::happens(event::GID_CHANGE, None);
        pair.settle();
        assert_eq!(notices(&mut pair.adapters[0]), [Notice::Addresses { has_ours: false }]);
    }
}

#[test]
fn queue_pairs_send_by_the_kind_that_was_agreed_on() {
    let adapter = &mut open();
    let mut way_to = |address: &str, kind| {
        let (own, first_psn) = adapter.create().unwrap();
        adapter.agree_on(own, kind);
        let peer = Peer { qp: own, first_psn, mtu: adapter.mtu() };
        let is_ready = hears(adapter, own, address.parse().unwrap(), peer);
        is_ready.then(|| model::world(|world| world.ways.pop().unwrap()))
    };
    assert_eq!(way_to("10.9.0.3", Kind::RoceV2), Some(2));
    assert_eq!(way_to("10.9.0.1", Kind::RoceV1), Some(4), "its twin");
    assert_eq!(way_to("fd00::1", Kind::RoceV2), None, "IP does not lead there");
    // An address that the model has by RoCEv1 only.
    let verbs = model::verbs();
    let ports = verbs::ports(&verbs).unwrap();
    let by = By::Address("10.9.0.1".parse().unwrap());
    let (port, gid) = verbs::choose(&ports, by, Kind::RoceV1).unwrap();
    let mut single = Adapter::open(&verbs, port, gid).unwrap();
    let (own, first_psn) = single.create().unwrap();
    single.agree_on(own, Kind::RoceV2);
    let peer = Peer { qp: own, first_psn, mtu: 1024 };
    assert!(hears(&mut single, own, gid.address, peer));
    assert_eq!(model::world(|world| world.ways.pop()), Some(1));
}

#[test]
fn a_peer_that_asks_for_what_it_may_not_is_named() {
    for (what, nak) in
        [(event::QP_ACCESS_ERR, Nak::RemoteAccessError), (event::QP_REQ_ERR, Nak::InvalidRequest)]
    {
        let mut pair = Pair::new();
        model::happens(what, Some(pair.number(1)));
        pair.settle();
        assert_eq!(pair.events(1), [Event::Broken(Failure::PeerMisbehaved(nak))]);
        assert!(pair.events(0).is_empty());
    }
}

#[test]
fn an_adapter_that_is_taken_away_takes_everything_with_it() {
    let mut pair = Pair::new();
    pair.post((0, 10), b"lost");
    model::happens(event::DEVICE_FATAL, None);
    pair.settle();
    let flushed = |id| Event::Completed { id, result: Err(Failure::Flushed) };
    let broken = Event::Broken(Failure::AdapterFailed);
    assert_eq!(pair.events(0), [flushed(0), flushed(1), broken.clone()]);
    assert_eq!(pair.events(1), [broken]);
    for adapter in &mut pair.adapters {
        assert_eq!(notices(adapter), [Notice::Gone]);
        assert!(!is_readable(adapter), "nobody is woken for ever");
        assert!(adapter.create().is_none());
    }
    let posting = pair.adapters[0].post_send(pair.qps[0], 2, b"");
    assert_eq!(posting, Err(PostError::NotReady));
    let Pair { mut adapters, qps, source, door, .. } = pair;
    adapters[0].take_back(source);
    adapters[1].deregister(door.rkey);
    for (adapter, qp) in adapters.iter_mut().zip(qps) {
        adapter.destroy(qp, Duration::ZERO);
        assert_eq!(adapter.holdings(), Holdings::default());
    }
    drop(adapters);
    assert_eq!(model::census(), [0; 5]);
}

#[test]
fn an_adapter_that_is_dropped_gives_all_back() {
    let mut pair = Pair::new();
    pair.post((0, 10), b"under way");
    drop(pair);
    assert_eq!(model::census(), [0; 5]);
}

#[test]
fn queue_pairs_are_told_how_to_reach_each_other() {
    let pair = Pair::new();
    let [first, second] = [0, 1].map(|of| model::connected(pair.number(of)));
    assert_eq!((first.0, first.1), (second.1, second.0), "each expects what the other sends");
    assert_ne!(Psn::from_low_bits(first.0), Psn::from_low_bits(second.0));
    assert_eq!((first.2, second.2), (pair.number(1), pair.number(0)));
    assert_eq!((first.3, second.3), (3, 3), "1024 bytes");
}

#[test]
fn keys_lead_to_addresses_that_tell_nothing() {
    let mut pair = Pair::new();
    let qp = pair.qps[1];
    let doors: Vec<_> =
        (0..20).map(|_| pair.adapters[1].register(&pair.target, qp).unwrap()).collect();
    let mut addresses: Vec<u64> = doors.iter().map(|door| door.address.0).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 20, "all drawn");
    assert_eq!(pair.adapters[1].holdings().registrations, 21);
}

#[test]
fn what_is_not_there_cannot_be_opened() {
    let verbs = model::verbs();
    let ports = verbs::ports(&verbs).unwrap();
    assert_eq!(
        (ports[0].device.as_str(), ports[0].mtu, ports[0].gids.len()),
        (model::NAME, 1024, 5)
    );
    let (port, gid) = verbs::choose(&ports, By::Interface(3), Kind::RoceV1).unwrap();
    assert_eq!((gid.index, gid.kind), (1, Kind::RoceV1));
    let mut port = port.clone();
    port.device = "nowhere0".to_owned();
    let error = Adapter::open(&verbs, &port, gid).unwrap_err();
    assert!(matches!(&error, OpenError::NoSuchAdapter(name) if name == "nowhere0"), "{error}");
    model::world(|world| world.is_port_up = false);
    let ports = verbs::ports(&verbs).unwrap();
    assert!(verbs::choose(&ports, By::Interface(3), Kind::RoceV2).is_none(), "a port that is down");
}
