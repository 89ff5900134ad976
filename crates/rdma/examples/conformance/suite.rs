//! What every RDMA device promises ([`Device`]), as cases that hold for any two of them with a way
//! between.
//!
//! A case knows nothing of the devices but the trait. Whoever has two makes them a [`Bench`]: tests
//! do so with soft RNICs, over good and bad networks, and with verbs over a model of an adapter; the
//! program beside this file with the adapters of a machine.
//!
//! A case that is not kept panics.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_rdma::device::{Device, Event, Failure, Holdings, Peer, PostError, Readiness, Source};
use sidestep_rdma::memory::{Registration, Shared};
use sidestep_wire::roce::Nak;
use sidestep_wire::{Psn, QpNumber, Rkey, RmbAddress};

/// Two devices with a way between them.
pub(crate) trait Bench {
    /// One of the two, 0 or 1.
    fn device(&mut self, end: usize) -> &mut dyn Device;

    /// Its address.
    fn address(&self, end: usize) -> IpAddr;

    /// The longest payload of a packet that both can send, in bytes.
    fn mtu(&self) -> u16;

    /// Lets both make progress, and waits a little if there is none to be made.
    fn progress(&mut self);
}

/// A case: its name, and what it does.
pub(crate) type Case = (&'static str, fn(&mut dyn Bench));

pub(crate) const CASES: [Case; 11] = [
    ("messages", messages_and_writes_arrive_once_and_in_order),
    ("full", a_full_queue_has_room_again),
    ("slow", a_peer_that_reads_late_loses_nothing),
    ("edges", a_region_is_reached_to_its_edges_and_no_further),
    ("keys", only_the_right_key_opens),
    ("withdrawn", a_key_that_was_withdrawn_opens_nothing),
    ("flushed", what_is_posted_behind_a_failure_fails),
    ("refused", what_cannot_be_posted_is_not),
    ("destroyed", a_queue_pair_ends_with_work_outstanding),
    ("apart", queue_pairs_do_not_disturb_each_other),
    ("sources", memory_is_sent_from_as_long_as_it_is_lent),
];

/// What nothing takes longer than, also over a bad network or in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a buffer, either way.
const BUFFER_LEN: usize = 64 << 10;
/// Bytes before and behind a buffer, which nobody may touch.
const FENCE_LEN: usize = 4096;
const FENCE: u8 = 0xA5;

// ---- a link -------------------------------------------------------------------------------------

/// Memory between two fences.
struct Buffer {
    all: Arc<Shared>,
    inside: Arc<Shared>,
}

impl Buffer {
    fn new() -> Self {
        let bytes = Box::leak(vec![FENCE; BUFFER_LEN + 2 * FENCE_LEN].into_boxed_slice());
        let (base, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: leaked, and not used otherwise.
        let all = Arc::new(unsafe { Shared::new(base, len) });
        // SAFETY: a part of it, which lives as long.
        let inside = Arc::new(unsafe { Shared::new(base.add(FENCE_LEN), BUFFER_LEN) });
        inside.clear();
        Self { all, inside }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.inside.copy_out(at, &mut bytes));
        bytes
    }

    fn fences_stand(&self) -> bool {
        let mut fence = vec![0; FENCE_LEN];
        [0, FENCE_LEN + BUFFER_LEN].into_iter().all(|at| {
            assert!(self.all.copy_out(at, &mut fence));
            fence.iter().all(|byte| *byte == FENCE)
        })
    }
}

/// One end of a link.
struct End {
    qp: QpNumber,
    first_psn: Psn,
    /// What the peer may write into, and how.
    target: Buffer,
    door: Registration,
    /// What is sent from.
    source: Source,
    posted: u64,
    received: Vec<Vec<u8>>,
    completed: Vec<Result<(), Failure>>,
    broken: Option<Failure>,
}

/// A queue pair on either device, connected.
struct Link {
    ends: [End; 2],
}

impl Link {
    fn new(bench: &mut dyn Bench) -> Self {
        let ends = [0, 1].map(|end| End::new(bench.device(end)));
        for end in [0, 1] {
            let (own, other) = (&ends[end], &ends[1 - end]);
            let (address, mtu) = (bench.address(1 - end), bench.mtu());
            let peer = Peer { qp: other.qp, first_psn: other.first_psn, mtu };
            let readiness = bench.device(end).ready_to_receive(own.qp, address, peer);
            assert!(await_ready(bench, end, own.qp, readiness));
        }
        for (end, own) in ends.iter().enumerate() {
            assert!(bench.device(end).ready_to_send(own.qp));
        }
        Self { ends }
    }

    /// Sends a message, as soon as there is room.
    fn send(&mut self, bench: &mut dyn Bench, from: usize, message: &[u8]) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.try_send(bench, from, message) {
            assert_eq!(error, PostError::Full);
            assert!(Instant::now() < deadline, "there is never room");
            bench.progress();
            take_events(bench, &mut [self], from);
        }
    }

    fn try_send(
        &mut self,
        bench: &mut dyn Bench,
        from: usize,
        message: &[u8],
    ) -> Result<(), PostError> {
        let end = &mut self.ends[from];
        bench.device(from).post_send(end.qp, end.posted, message)?;
        end.posted += 1;
        Ok(())
    }

    /// Writes the first bytes of one's source to where the key and the address lead.
    fn write(&mut self, bench: &mut dyn Bench, from: usize, len: u32, door: (Rkey, RmbAddress)) {
        self.write_part(bench, from, (0, len), door);
    }

    fn write_part(
        &mut self,
        bench: &mut dyn Bench,
        from: usize,
        (at, len): (usize, u32),
        door: (Rkey, RmbAddress),
    ) {
        let End { qp, posted, source, .. } = &mut self.ends[from];
        let posting = bench.device(from).post_write(*qp, *posted, (source, at, len), door);
        posting.expect("there is room");
        *posted += 1;
    }

    /// The peer's key, and an address so far behind the beginning of its buffer.
    fn door(&self, from: usize, offset: u64) -> (Rkey, RmbAddress) {
        let Registration { rkey, address } = self.ends[1 - from].door;
        (rkey, RmbAddress(address.0.wrapping_add(offset)))
    }

    fn is_idle(&self) -> bool {
        self.ends.iter().all(|end| end.completed.len() as u64 == end.posted)
    }

    /// Destroys both ends and gives everything back.
    fn end(self, bench: &mut dyn Bench) {
        for (index, end) in self.ends.into_iter().enumerate() {
            assert!(end.target.fences_stand());
            let device = bench.device(index);
            device.destroy(end.qp, PATIENCE);
            device.deregister(end.door.rkey);
            device.take_back(end.source);
        }
    }
}

impl End {
    fn new(device: &mut dyn Device) -> Self {
        let (qp, first_psn) = device.create().expect("a queue pair");
        assert!(qp >= QpNumber::FIRST);
        let target = Buffer::new();
        let door = device.register(&target.inside, qp).expect("a key");
        assert_ne!(door.rkey, Rkey(0));
        let source = device.lend(&Arc::new(Shared::zeroed(BUFFER_LEN))).expect("a source");
        assert!(source.memory.copy_in(0, &pattern(BUFFER_LEN, 7)));
        Self {
            qp,
            first_psn,
            target,
            door,
            source,
            posted: 0,
            received: Vec::new(),
            completed: Vec::new(),
            broken: None,
        }
    }

    fn take(&mut self, event: Event) {
        assert_eq!(self.broken, None, "{event:?} after the last event");
        match event {
            Event::Received(message) => self.received.push(message.to_vec()),
            Event::Completed { id, result } => {
                assert_eq!(id, self.completed.len() as u64, "completed in the order of posting");
                self.completed.push(result);
            }
            // It may be told of before, by a device that can.
            Event::Silent => {}
            Event::Ready => panic!("nobody waits for it any more"),
            Event::Broken(failure) => {
                assert_eq!(self.completed.len() as u64, self.posted, "nothing is left over");
                self.broken = Some(failure);
            }
        }
    }
}

/// Waits until a queue pair hears its peer; nobody has anything else to tell meanwhile. False: it
/// never will.
fn await_ready(bench: &mut dyn Bench, end: usize, qp: QpNumber, readiness: Readiness) -> bool {
    if readiness != Readiness::Pending {
        return readiness == Readiness::Ready;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        bench.progress();
        if let Some(event) = bench.device(end).poll_event() {
            let is_all = bench.device(end).poll_event().is_none();
            return is_all && event == (qp, Event::Ready);
        }
        assert!(Instant::now() < deadline, "nothing becomes of it");
    }
}

/// Takes the events of one device.
fn take_events(bench: &mut dyn Bench, links: &mut [&mut Link], of: usize) {
    while let Some((qp, event)) = bench.device(of).poll_event() {
        let link = links.iter_mut().find(|link| link.ends[of].qp == qp);
        link.unwrap_or_else(|| panic!("{event:?} of {qp}, which is not there")).ends[of]
            .take(event);
    }
}

/// Lets both devices make progress until something is so.
fn await_all(
    bench: &mut dyn Bench,
    links: &mut [&mut Link],
    what: &str,
    is_so: impl Fn(&[&mut Link]) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        (0..2).for_each(|of| take_events(bench, links, of));
        if is_so(links) {
            return;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        bench.progress();
    }
}

fn await_one(bench: &mut dyn Bench, link: &mut Link, what: &str, is_so: impl Fn(&Link) -> bool) {
    await_all(bench, &mut [link], what, |links| is_so(links[0]));
}

/// The end from which something was asked that it may not: its peer has refused, or has broken before
/// it could answer.
fn must_be_refused(bench: &mut dyn Bench, link: &mut Link, asked: usize) {
    await_one(bench, link, "both ends break", |link| {
        link.ends.iter().all(|end| end.broken.is_some())
    });
    let broken = link.ends[asked].broken;
    assert_eq!(broken, Some(Failure::Refused(Nak::RemoteAccessError)));
    assert!(link.ends.iter().all(|end| end.target.fences_stand()));
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + salt * 7 + at / 251) as u8).collect()
}

/// Everything that was made is given back.
fn must_hold_nothing(bench: &mut dyn Bench) {
    for end in [0, 1] {
        assert_eq!(bench.device(end).holdings(), Holdings::default());
    }
}

// ---- cases --------------------------------------------------------------------------------------

fn messages_and_writes_arrive_once_and_in_order(bench: &mut dyn Bench) {
    let mtu = usize::from(bench.mtu());
    let mut link = Link::new(bench);
    let lens = [1, 44, 45, 65, mtu - 1, mtu, mtu + 1, 8000, 8192];
    let mut expected = [vec![], vec![]];
    for (round, len) in lens.into_iter().cycle().take(45).enumerate() {
        for from in [0, 1] {
            let bytes = pattern(len, round + from);
            let at = round * 997 % (BUFFER_LEN / 2);
            assert!(link.ends[from].source.memory.copy_in(at, &bytes));
            let door = link.door(from, at as u64);
            link.write_part(bench, from, (at, len as u32), door);
            // Of every other kind a long one: what is inline, and what is not.
            let message = pattern(if round % 2 == 0 { 44 } else { len }, round);
            link.send(bench, from, &message);
            expected[1 - from].push(message);
            let to = 1 - from;
            await_one(bench, &mut link, "a message", |link| {
                link.ends[to].received.len() > round && link.is_idle()
            });
            assert!(link.ends[to].target.read(at, len) == bytes, "written before it is told");
        }
    }
    for (end, expected) in link.ends.iter().zip(expected) {
        assert!(end.received == expected, "every message once, and in order");
        assert!(end.completed.iter().all(Result::is_ok) && end.broken.is_none());
    }
    link.end(bench);
    must_hold_nothing(bench);
}

fn a_full_queue_has_room_again(bench: &mut dyn Bench) {
    const POSTS_MAX: u64 = 10_000;
    let mut link = Link::new(bench);
    let door = link.door(0, 0);
    let mut messages = 0;
    for round in 0..3 {
        // Every third is a message, the others are WRITEs; not in step with any queue's length.
        let full = loop {
            let id = link.ends[0].posted;
            assert!(id < POSTS_MAX, "it takes any number");
            let posting = if id % 3 == 2 {
                bench.device(0).post_send(link.ends[0].qp, id, &id.to_be_bytes())
            } else {
                let End { qp, source, .. } = &link.ends[0];
                bench.device(0).post_write(*qp, id, (source, 0, 100), door)
            };
            match posting {
                Ok(()) => link.ends[0].posted += 1,
                Err(error) => break error,
            }
            messages += usize::from(id % 3 == 2);
        };
        assert_eq!(full, PostError::Full, "round {round}");
        await_one(bench, &mut link, "all of it", |link| {
            link.is_idle() && link.ends[1].received.len() == messages
        });
    }
    let expected = (0..messages as u64).map(|nth| (nth * 3 + 2).to_be_bytes().to_vec());
    assert!(link.ends[1].received.iter().cloned().eq(expected));
    assert!(link.ends[0].completed.iter().all(Result::is_ok));
    link.end(bench);
    must_hold_nothing(bench);
}

fn a_peer_that_reads_late_loses_nothing(bench: &mut dyn Bench) {
    const MESSAGES_MAX: usize = 200;
    let mut link = Link::new(bench);
    let mut messages = 0;
    while messages < MESSAGES_MAX && link.try_send(bench, 0, &pattern(44, messages)).is_ok() {
        messages += 1;
    }
    // Only the sender listens for a while.
    for _ in 0..50 {
        bench.progress();
        take_events(bench, &mut [&mut link], 0);
    }
    await_one(bench, &mut link, "all messages", |link| link.ends[1].received.len() == messages);
    await_one(bench, &mut link, "all completions", Link::is_idle);
    let expected = (0..messages).map(|nth| pattern(44, nth));
    assert!(link.ends[1].received.iter().cloned().eq(expected));
    link.end(bench);
    must_hold_nothing(bench);
}

fn a_region_is_reached_to_its_edges_and_no_further(bench: &mut dyn Bench) {
    let end = BUFFER_LEN as u64;
    let mut link = Link::new(bench);
    for (offset, len) in [(0, BUFFER_LEN as u32), (0, 1), (end - 1, 1), (end - 5000, 5000)] {
        let door = link.door(0, offset);
        link.write(bench, 0, len, door);
    }
    link.send(bench, 0, b"done");
    await_one(bench, &mut link, "WRITEs up to the edges", Link::is_idle);
    assert!(link.ends[0].completed.iter().all(Result::is_ok));
    link.end(bench);

    let all = BUFFER_LEN as u32;
    for (offset, len) in
        [(1, all), (end, 1), (end - 10, 11), (u64::MAX, 2), (u64::MAX, 1), (1 << 40, 8)]
    {
        let mut link = Link::new(bench);
        let door = link.door(0, offset);
        link.write(bench, 0, len, door);
        link.send(bench, 0, b"not to be heard");
        must_be_refused(bench, &mut link, 0);
        assert!(link.ends[1].received.is_empty(), "offset {offset:#x}, {len} bytes");
        // A device may make several WRITEs of a long one, of which the first are inside.
        let untouched = if len == all { offset as usize } else { BUFFER_LEN };
        assert!(link.ends[1].target.read(0, untouched).iter().all(|byte| *byte == 0));
        link.end(bench);
    }
    must_hold_nothing(bench);
}

fn only_the_right_key_opens(bench: &mut dyn Bench) {
    let mut other = Link::new(bench);
    for change in [1, 0x100, 0x8000_0000] {
        let mut link = Link::new(bench);
        let (Rkey(rkey), address) = link.door(0, 0);
        link.write(bench, 0, 8, (Rkey(rkey ^ change), address));
        link.send(bench, 0, b"not to be heard");
        must_be_refused(bench, &mut link, 0);
        link.end(bench);
    }
    // A key that is good, on the queue pair next to it.
    let mut link = Link::new(bench);
    let door = other.door(0, 0);
    link.write(bench, 0, 8, door);
    link.send(bench, 0, b"not to be heard");
    must_be_refused(bench, &mut link, 0);
    link.end(bench);
    assert!(other.ends[1].target.read(0, 8) == [0; 8]);
    other.write(bench, 0, 8, door);
    other.send(bench, 0, b"there");
    await_one(bench, &mut other, "the right key", Link::is_idle);
    assert!(other.ends[1].target.read(0, 8) == pattern(8, 7));
    other.end(bench);
    must_hold_nothing(bench);
}

fn a_key_that_was_withdrawn_opens_nothing(bench: &mut dyn Bench) {
    let mut link = Link::new(bench);
    let door = link.door(0, 0);
    link.write(bench, 0, 8, door);
    link.send(bench, 0, b"there");
    await_one(bench, &mut link, "a message", Link::is_idle);
    // Another key to the same memory, before the first is withdrawn.
    let End { qp, ref target, .. } = link.ends[1];
    let second = bench.device(1).register(&target.inside, qp).expect("a second key");
    assert_ne!(second.rkey, door.0);
    bench.device(1).deregister(door.0);
    link.write(bench, 0, 9, (second.rkey, second.address));
    link.send(bench, 0, b"there, too");
    await_one(bench, &mut link, "a message by the second key", Link::is_idle);
    assert!(link.ends[1].target.read(0, 10) == [&pattern(9, 7)[..], &[0]].concat());
    link.write(bench, 0, 10, door);
    link.send(bench, 0, b"not to be heard");
    must_be_refused(bench, &mut link, 0);
    assert!(link.ends[1].target.read(9, 1) == [0]);
    bench.device(1).deregister(second.rkey);
    link.end(bench);
    must_hold_nothing(bench);
}

fn what_is_posted_behind_a_failure_fails(bench: &mut dyn Bench) {
    let mut link = Link::new(bench);
    link.send(bench, 0, b"before");
    await_one(bench, &mut link, "the first message", Link::is_idle);
    let (rkey, address) = link.door(0, BUFFER_LEN as u64);
    link.write(bench, 0, 1, (rkey, address));
    for _ in 0..10 {
        link.try_send(bench, 0, b"behind").expect("there is room");
    }
    must_be_refused(bench, &mut link, 0);
    let [first, rest @ ..] = &link.ends[0].completed[..] else { panic!("nothing was completed") };
    let refused = Err(Failure::Refused(Nak::RemoteAccessError));
    assert_eq!((*first, rest[0]), (Ok(()), refused));
    assert!(rest[1..].iter().all(|result| *result == Err(Failure::Flushed)));
    assert_eq!(link.ends[1].received, [b"before"]);
    assert_eq!(link.try_send(bench, 0, b"too late"), Err(PostError::NotReady));
    link.end(bench);
    must_hold_nothing(bench);
}

fn what_cannot_be_posted_is_not(bench: &mut dyn Bench) {
    let unknown = QpNumber([0, 0, 1]);
    assert_eq!(bench.device(0).post_send(unknown, 0, b""), Err(PostError::NotReady));
    let (address, mtu) = (bench.address(1), bench.mtu());
    let peer = Peer { qp: unknown, first_psn: Psn::from_low_bits(0), mtu };
    assert_eq!(bench.device(0).ready_to_receive(unknown, address, peer), Readiness::Refused);

    let early = End::new(bench.device(0));
    assert_eq!(bench.device(0).post_send(early.qp, 0, b"deaf"), Err(PostError::NotReady));
    bench.device(0).destroy(early.qp, PATIENCE);
    bench.device(0).deregister(early.door.rkey);
    bench.device(0).take_back(early.source);

    let mut link = Link::new(bench);
    assert_eq!(link.try_send(bench, 0, &[0; 8193]), Err(PostError::TooLong));
    let door = link.door(0, 0);
    let End { qp, source, .. } = &link.ends[0];
    for (at, len) in [(BUFFER_LEN, 1), (1, BUFFER_LEN as u32), (usize::MAX, 2)] {
        let posting = bench.device(0).post_write(*qp, 0, (source, at, len), door);
        assert_eq!(posting, Err(PostError::TooLong), "{len} bytes at {at}");
    }
    // And the queue pair is as good as before.
    link.send(bench, 0, b"first");
    await_one(bench, &mut link, "a message", Link::is_idle);
    assert_eq!(link.ends[1].received, [b"first"]);
    link.end(bench);
    must_hold_nothing(bench);
}

fn a_queue_pair_ends_with_work_outstanding(bench: &mut dyn Bench) {
    let mut link = Link::new(bench);
    let door = link.door(0, 0);
    for _ in 0..10 {
        link.write(bench, 0, 5000, door);
        link.send(bench, 0, b"perhaps");
        link.send(bench, 1, b"perhaps");
    }
    let qp = link.ends[0].qp;
    bench.device(0).destroy(qp, Duration::ZERO);
    // Nothing more of it is told. The other end learns that it is alone when it says something more,
    // and until then has received a beginning of what was sent.
    link.ends[0].broken = Some(Failure::Flushed);
    link.try_send(bench, 1, b"anybody?").expect("there is room");
    await_one(bench, &mut link, "the other end breaks", |link| link.ends[1].broken.is_some());
    let end = &link.ends[1];
    let refused = Failure::Refused(Nak::InvalidRequest);
    assert!([refused, Failure::PeerSilent].map(Some).contains(&end.broken), "{:?}", end.broken);
    assert!(end.received.len() <= 10 && end.received.iter().all(|it| it == b"perhaps"));
    link.end(bench);
    must_hold_nothing(bench);
}

fn queue_pairs_do_not_disturb_each_other(bench: &mut dyn Bench) {
    const LINKS: usize = 6;
    const ROUNDS: usize = 10;
    const LEN: usize = 3000;
    let mut links: Vec<(usize, Link)> = (0..LINKS).map(|nth| (nth, Link::new(bench))).collect();
    let numbers: BTreeSet<QpNumber> = links.iter().map(|(_, link)| link.ends[0].qp).collect();
    assert_eq!(numbers.len(), LINKS);
    for round in 0..ROUNDS {
        for (nth, link) in &mut links {
            let at = round * LEN;
            assert!(link.ends[0].source.memory.copy_in(at, &pattern(LEN, *nth + round)));
            let door = link.door(0, at as u64);
            link.write_part(bench, 0, (at, LEN as u32), door);
            link.send(bench, 0, &[*nth as u8, round as u8]);
        }
        // In the middle of it one is broken by its own fault.
        if round == ROUNDS / 2 {
            let (_, victim) = &mut links[2];
            let door = victim.door(1, BUFFER_LEN as u64);
            victim.write(bench, 1, 1, door);
            victim.send(bench, 1, b"not to be heard");
            let mut all: Vec<&mut Link> = links.iter_mut().map(|(_, link)| link).collect();
            await_all(bench, &mut all, "one link breaks", |links| {
                links[2].ends.iter().all(|end| end.broken.is_some())
            });
            links.remove(2).1.end(bench);
        }
    }
    let mut all: Vec<&mut Link> = links.iter_mut().map(|(_, link)| link).collect();
    await_all(bench, &mut all, "all messages of the others", |links| {
        links.iter().all(|link| link.is_idle() && link.ends[1].received.len() == ROUNDS)
    });
    for (nth, link) in links {
        for (round, message) in link.ends[1].received.iter().enumerate() {
            assert_eq!(*message, [nth as u8, round as u8], "each its own");
            assert!(link.ends[1].target.read(round * LEN, LEN) == pattern(LEN, nth + round));
        }
        link.end(bench);
    }
    must_hold_nothing(bench);
}

fn memory_is_sent_from_as_long_as_it_is_lent(bench: &mut dyn Bench) {
    let mut link = Link::new(bench);
    let door = link.door(0, 0);
    // More often than there are places for keys, so numbers come again, with other memory behind.
    for round in 0..20 {
        let memory = Arc::new(Shared::zeroed(10_000));
        assert!(memory.copy_in(0, &pattern(10_000, round)));
        let source = bench.device(0).lend(&memory).expect("a source");
        assert_eq!(bench.device(0).holdings().sources, 2);
        let old = std::mem::replace(&mut link.ends[0].source, source);
        link.write(bench, 0, 10_000, door);
        link.send(bench, 0, b"there");
        await_one(bench, &mut link, "a message", Link::is_idle);
        assert!(link.ends[1].target.read(0, 10_000) == pattern(10_000, round), "round {round}");
        bench.device(0).take_back(old);
        assert_eq!(bench.device(0).holdings().sources, 1);
    }
    link.end(bench);
    must_hold_nothing(bench);
}
