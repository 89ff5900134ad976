//! A peer has to be found before it can be heard, and the kernel may need a second for it, or find
//! nobody.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::device::{Device, Event, Failure, Peer, PostError, Readiness};
use sidestep_rdma::verbs::Adapter;
use sidestep_wire::{Psn, QpNumber};

use crate::model::{self, Answer};
use crate::open;
use crate::pair::{Pair, is_found};

/// As [`Adapter`] has it.
const SEARCHES_MAX: usize = 64;

/// A queue pair that looks for its peer.
fn seeks(adapter: &mut Adapter) -> (QpNumber, Readiness) {
    let (qp, _) = adapter.create().unwrap();
    let (address, mtu) = (adapter.gid().address, adapter.mtu());
    let peer = Peer { qp, first_psn: Psn::from_low_bits(0), mtu };
    (qp, adapter.ready_to_receive(qp, address, peer))
}

fn answer(answer: Answer) {
    model::world(|world| world.answer = answer);
}

/// Waits until the descriptor of an adapter is readable.
fn await_bell(adapter: &Adapter) {
    let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(adapter.as_fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "nobody is woken");
}

/// Waits until no queue pair is left, not with the thread of a search either.
fn await_end(adapter: &mut Adapter) {
    while model::census()[2] > 0 {
        await_bell(adapter);
        while adapter.turn(Duration::ZERO) {}
    }
}

#[test]
fn others_go_on_while_a_peer_is_looked_for() {
    let mut pair = Pair::new();
    answer(Answer::IsAwaited);
    let (qp, readiness) = seeks(&mut pair.adapters[0]);
    assert_eq!(readiness, Readiness::Pending);
    assert_eq!(pair.adapters[0].post_send(qp, 0, b"early"), Err(PostError::NotReady));
    assert!(!pair.adapters[0].ready_to_send(qp));
    // New queues are looked at once.
    pair.settle();
    pair.post((0, 100), b"before it is found");
    model::step();
    pair.settle();
    let done = |id| Event::Completed { id, result: Ok(()) };
    assert_eq!(pair.events(0), [done(0), done(1)]);
    assert_eq!(pair.events(1), [Event::Received(b"before it is found"[..].into())]);
    answer(Answer::Comes);
    await_bell(&pair.adapters[0]);
    assert!(is_found(&mut pair.adapters[0], qp));
    assert!(pair.adapters[0].ready_to_send(qp));
}

#[test]
fn where_nobody_answers_the_queue_pair_breaks() {
    let mut adapter = open();
    answer(Answer::Never);
    let (qp, readiness) = seeks(&mut adapter);
    assert_eq!(readiness, Readiness::Pending);
    await_bell(&adapter);
    while adapter.turn(Duration::ZERO) {}
    assert_eq!(adapter.poll_event(), Some((qp, Event::Broken(Failure::PeerSilent))));
    assert_eq!(adapter.poll_event(), None);
}

#[test]
fn an_adapter_that_is_taken_away_ends_a_search() {
    let mut adapter = open();
    answer(Answer::IsAwaited);
    let (qp, _) = seeks(&mut adapter);
    model::happens(sidestep_rdma::verbs::abi::event::DEVICE_FATAL, None);
    while adapter.turn(Duration::ZERO) {}
    assert_eq!(adapter.poll_event(), Some((qp, Event::Broken(Failure::AdapterFailed))));
    answer(Answer::Comes);
    adapter.destroy(qp, Duration::ZERO);
    await_end(&mut adapter);
    assert_eq!(adapter.poll_event(), None, "nothing comes behind the last event");
}

#[test]
fn a_queue_pair_may_be_destroyed_while_its_peer_is_looked_for() {
    let mut adapter = open();
    answer(Answer::IsAwaited);
    let (qp, _) = seeks(&mut adapter);
    adapter.destroy(qp, Duration::ZERO);
    assert_eq!(adapter.holdings().queue_pairs, 0);
    assert_eq!(model::census()[2], 1, "its thread has it");
    answer(Answer::Comes);
    await_end(&mut adapter);
    assert_eq!(adapter.poll_event(), None);
    drop(adapter);
    assert_eq!(model::census(), [0; 5], "everything was given back to the library");
}

#[test]
fn there_are_not_more_threads_than_that() {
    let mut adapter = open();
    answer(Answer::IsAwaited);
    let sought: Vec<(QpNumber, Readiness)> =
        (0..=SEARCHES_MAX).map(|_| seeks(&mut adapter)).collect();
    let (one_more, all) = sought.split_last().unwrap();
    assert!(all.iter().all(|(_, readiness)| *readiness == Readiness::Pending));
    assert_eq!(one_more.1, Readiness::Refused);
    answer(Answer::Comes);
    let mut found = BTreeSet::new();
    while found.len() < SEARCHES_MAX {
        await_bell(&adapter);
        while adapter.turn(Duration::ZERO) {}
        found.extend(std::iter::from_fn(|| adapter.poll_event()).map(|(qp, event)| {
            assert_eq!(event, Event::Ready);
            qp
        }));
    }
    let (qp, readiness) = seeks(&mut adapter);
    assert_eq!(readiness, Readiness::Pending, "there is room again");
    assert!(is_found(&mut adapter, qp));
}
