//! Once warm, an RNIC allocates nothing for what it sends and receives, in order or not; and what it
//! keeps for a peer has an end.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_rdma::memory::{Registration, Shared};
use sidestep_rdma::soft::adapter::{DATAGRAM_MAX, Datagram};
use sidestep_rdma::soft::port::Settings;
use sidestep_rdma::soft::queue_pair::Peer;
use sidestep_rdma::soft::{Adapter, Event, Rnic};
use sidestep_wire::{Psn, QpNumber};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn add_bytes(bytes: isize) {
    let _ = BYTES.try_with(|sum| sum.set(sum.get() + bytes));
}

/// Counts for each thread.
struct Counting;

// SAFETY: everything is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        add_bytes(layout.size() as isize);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add_bytes(-(layout.size() as isize));
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LEN: usize = 64 << 10;

/// A queue pair of each adapter, connected with the other's: their numbers and first PSNs.
fn connect(mut adapters: [&mut Adapter; 2], addresses: [IpAddr; 2]) -> [(QpNumber, Psn); 2] {
    let made = adapters.each_mut().map(|adapter| adapter.create());
    for (end, adapter) in adapters.into_iter().enumerate() {
        let ((own, _), (qp, first_psn)) = (made[end], made[1 - end]);
        let peer = Peer { qp, first_psn, mtu: 1024 };
        assert!(adapter.ready_to_receive(own, addresses[1 - end], peer));
        adapter.queue_pair(own).unwrap().ready_to_send();
    }
    made
}

#[test]
fn messages_and_writes_take_no_memory_once_warm() {
    let addresses = ["127.0.9.1", "127.0.9.2"].map(|text| text.parse().unwrap());
    let mut rnics = addresses.map(|address| Rnic::open(address, &Settings::default()).unwrap());
    let made = connect(rnics.each_mut().map(Rnic::adapter), addresses);
    let bytes = Box::leak(vec![0; LEN].into_boxed_slice());
    // SAFETY: leaked, and not used otherwise.
    let memory = Arc::new(unsafe { Shared::new(bytes.as_mut_ptr(), LEN) });
    let [(first, _), (second, _)] = made;
    let Registration { rkey, address } =
        rnics[1].adapter().regions().register(Arc::clone(&memory), second);
    let begin = Instant::now();
    let mut round = || {
        let qp = rnics[0].adapter().queue_pair(first).unwrap();
        qp.post_write(0, (&memory, 0, LEN as u32), (rkey, address)).unwrap();
        qp.post_send(1, &[7; 44]).unwrap();
        loop {
            for rnic in &mut rnics {
                rnic.turn(begin.elapsed());
                while let Some((_, event)) = rnic.adapter().poll_event() {
                    assert!(!matches!(event, Event::Broken(_)));
                    if matches!(event, Event::Completed { id: 1, .. }) {
                        return;
                    }
                }
            }
            assert!(begin.elapsed() < Duration::from_secs(300));
        }
    };
    (0..20).for_each(|_| round());
    let before = ALLOCATIONS.get();
    (0..200).for_each(|_| round());
    assert_eq!(ALLOCATIONS.get(), before);
}

const PORTS: [u16; 2] = [0xC001, 0xC002];

#[test]
fn packets_that_overtake_each_other_take_no_memory_once_warm() {
    let addresses = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let mut adapters = [0, 1].map(|end| Adapter::new(addresses[end], PORTS[end]));
    let made = connect(adapters.each_mut(), addresses);
    let [(first, _), _] = made;
    let mut bytes = [[0; DATAGRAM_MAX]; 2];
    let mut now = Duration::ZERO;
    let mut round = |message: u8| {
        let [asking, answering] = &mut adapters;
        let qp = asking.queue_pair(first).unwrap();
        (0..2).for_each(|id| qp.post_send(id, &[message; 44]).unwrap());
        // The second is there first.
        let lens = bytes.each_mut().map(|out| asking.poll_transmit(out, 1, now).unwrap().len);
        for at in [1, 0] {
            let bytes = &bytes[at][..lens[at]];
            let datagram = Datagram { from: addresses[0], port: PORTS[0], index: 0, bytes };
            answering.handle_datagram(&datagram, now);
        }
        let received = std::iter::from_fn(|| answering.poll_event());
        assert_eq!(received.filter(|(_, event)| matches!(event, Event::Received(_))).count(), 2);
        let answer = answering.poll_transmit(&mut bytes[0], 1, now).unwrap();
        let bytes = &bytes[0][..answer.len];
        let datagram = Datagram { from: addresses[1], port: PORTS[1], index: 0, bytes };
        asking.handle_datagram(&datagram, now);
        let completed = std::iter::from_fn(|| asking.poll_event());
        assert_eq!(completed.count(), 2);
        assert!(answering.poll_transmit(&mut [0; DATAGRAM_MAX], 1, now).is_none());
        now += Duration::from_micros(10);
    };
    (0..20).for_each(&mut round);
    let before = ALLOCATIONS.get();
    (0..200).for_each(&mut round);
    assert_eq!(ALLOCATIONS.get(), before);
}

/// A peer that leaves a gap on each of its queue pairs has us keep packets, but not without end.
#[test]
fn gaps_that_are_never_closed_take_little_memory() {
    let addresses = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let mut adapters = [0, 1].map(|end| Adapter::new(addresses[end], PORTS[end]));
    let mut bytes = [[0; DATAGRAM_MAX]; 2];
    let before = BYTES.get();
    for _ in 0..1000 {
        let made = connect(adapters.each_mut(), addresses);
        let [asking, answering] = &mut adapters;
        let qp = asking.queue_pair(made[0].0).unwrap();
        (0..2).for_each(|id| qp.post_send(id, &[7; 44]).unwrap());
        let [_, len] =
            bytes.each_mut().map(|out| asking.poll_transmit(out, 1, Duration::ZERO).unwrap().len);
        let bytes = &bytes[1][..len];
        let datagram = Datagram { from: addresses[0], port: PORTS[0], index: 0, bytes };
        answering.handle_datagram(&datagram, Duration::ZERO);
    }
    let taken = BYTES.get() - before;
    assert!(taken < 16 << 20, "{taken} bytes");
}

/// A peer can have queue pairs made and destroyed as fast as it likes.
#[test]
fn queue_pairs_that_are_destroyed_leave_little_behind() {
    let addresses = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let mut adapter = Adapter::new(addresses[0], PORTS[0]);
    let before = BYTES.get();
    for _ in 0..20_000 {
        let (own, first_psn) = adapter.create();
        let peer = Peer { qp: own, first_psn, mtu: 1024 };
        assert!(adapter.ready_to_receive(own, addresses[1], peer));
        adapter.destroy(own, Duration::ZERO);
    }
    let taken = BYTES.get() - before;
    assert!(taken < 256 << 10, "{taken} bytes");
}
