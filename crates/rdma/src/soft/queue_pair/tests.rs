//! Two queue pairs on a table, and between them a network that does what it is told.

use std::net::IpAddr;

use proptest::prelude::*;
use sidestep_wire::roce::{Aeth, Headers, ICRC_LEN, Reth, Syndrome};

use super::super::reorder::ReorderBuffers;
use super::super::requester::{POSTED_MAX, SILENCE_FIRST, WINDOW_MAX};
use super::super::responder::RECEIVED_MAX;
use sidestep_wire::roce::Nak;

use super::*;
use crate::faults::{Faults, Plan};
use crate::memory::Registration;
use crate::memory::tests::memory;

const MTU: u16 = 256;
const MEMORY_LEN: usize = 64 << 10;
/// Without faults.
const NEAR: Plan = Plan { delay: Duration::from_micros(50), ..Plan::PERFECT };
const PSN: Psn = Psn([0xFF, 0xFF, 0xF0]);

/// One end, and what it has heard.
struct End {
    qp: QueuePair,
    regions: Regions,
    early: ReorderBuffers,
    registration: Registration,
    memory: Arc<Shared>,
    received: Vec<Vec<u8>>,
    completed: Vec<(u64, Result<(), Failure>)>,
    broken: Option<Failure>,
    /// When silence was told.
    silences: Vec<Duration>,
    /// Takes what was received.
    is_awake: bool,
}

impl End {
    fn new(number: u8) -> Self {
        let number = QpNumber([0, 0, number]);
        let (mut regions, memory) = (Regions::new(rand::make_rng()), memory(MEMORY_LEN));
        let registration = regions.register(Arc::clone(&memory), number);
        Self {
            qp: QueuePair::new(number, PSN),
            regions,
            early: ReorderBuffers::default(),
            registration,
            memory,
            received: Vec::new(),
            completed: Vec::new(),
            broken: None,
            silences: Vec::new(),
            is_awake: true,
        }
    }

    fn handle_packet(&mut self, packet: &Packet<'_>, now: Duration) {
        let mut early = self.early.of(self.qp.number(), IpAddr::from([10, 0, 0, 1]));
        self.qp.handle_packet(packet, &self.regions, &mut early, now);
    }

    fn drain(&mut self, now: Duration) {
        while self.is_awake
            && let Some(event) = self.qp.poll_event()
        {
            assert!(self.broken.is_none(), "nothing comes behind the last event");
            match event {
                Event::Completed { id, result } => self.completed.push((id, result)),
                Event::Received(bytes) => self.received.push(bytes.to_vec()),
                Event::Ready => panic!("nobody waits for it"),
                Event::Silent => self.silences.push(now),
                Event::Broken(failure) => self.broken = Some(failure),
            }
        }
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.copy_out(at, &mut bytes));
        bytes
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(self.memory.copy_in(at, bytes));
    }
}

struct Table {
    ends: [End; 2],
    now: Duration,
    /// What is on its way from either end.
    under_way: [Faults<Vec<u8>>; 2],
    /// What takes a longer way, and which packets of A do.
    detour: Faults<Vec<u8>>,
    takes_detour: fn(usize) -> bool,
    /// Packets of A.
    sent: usize,
    /// B drops what comes early, as `rdma_rxe` does: the last gap that it has told.
    drops_early: bool,
    told_gap: Option<Psn>,
    /// After each so many packets that arrive, other queue pairs want the buffer of what is kept.
    loses_buffer_after: Option<usize>,
    arrived: usize,
    /// Everything that was sent, for a look at it.
    log: Vec<(usize, Headers)>,
}

const A: usize = 0;
const B: usize = 1;

impl Table {
    fn new(plan: Plan) -> Self {
        let mut ends = [End::new(0x11), End::new(0x22)];
        let peers = [1, 0].map(|other: usize| Peer {
            qp: ends[other].qp.number(),
            first_psn: PSN,
            mtu: MTU,
        });
        for (end, peer) in ends.iter_mut().zip(peers) {
            end.qp.ready_to_receive(peer);
            end.qp.ready_to_send();
        }
        Self {
            ends,
            now: Duration::ZERO,
            under_way: [A, B].map(|from| {
                let seed = plan.seed.wrapping_add(from as u64);
                Faults::new(Plan { seed, ..plan })
            }),
            detour: Faults::new(Plan::PERFECT),
            takes_detour: |_| false,
            sent: 0,
            drops_early: false,
            told_gap: None,
            loses_buffer_after: None,
            arrived: 0,
            log: Vec::new(),
        }
    }

    /// Some packets of A take a way that is so much longer.
    fn with_detour(plan: Plan, longer: Duration, takes_detour: fn(usize) -> bool) -> Self {
        let detour = Faults::new(Plan { delay: plan.delay + longer, ..plan });
        Self { detour, takes_detour, ..Self::new(plan) }
    }

    fn send(&mut self, from: usize, id: u64, message: &[u8]) {
        assert_eq!(self.ends[from].qp.post_send(id, message), Ok(()));
    }

    /// Writes bytes of one's own memory to the same place of the other's.
    fn write(&mut self, from: usize, id: u64, at: usize, len: usize) {
        let Registration { rkey, address } = self.ends[1 - from].registration;
        let to = (rkey, RmbAddress(address.0 + at as u64));
        let source = Arc::clone(&self.ends[from].memory);
        let posted = self.ends[from].qp.post_write(id, (&source, at, len as u32), to);
        assert_eq!(posted, Ok(()));
    }

    fn transmit(&mut self) {
        for from in [A, B] {
            let mut out = [0; 4096];
            while let Some(len) = self.ends[from].qp.poll_transmit(&mut out, self.now) {
                let packet = [&out[..len], &[0; ICRC_LEN]].concat();
                let index = self.sent;
                self.sent += usize::from(from == A);
                self.log.push((from, Packet::parse(&packet).unwrap().headers));
                let is_longer = from == A && (self.takes_detour)(index);
                let way = if is_longer { &mut self.detour } else { &mut self.under_way[from] };
                way.push(packet, self.now);
            }
        }
    }

    /// A packet is there.
    fn arrive(&mut self, at: usize, packet: &[u8]) {
        let packet = Packet::parse(packet).unwrap();
        let end = &mut self.ends[at];
        let expected = end.qp.expected_psn().unwrap_or(PSN);
        let is_request = packet.headers.bth.opcode != Opcode::Acknowledge;
        if self.drops_early && is_request && packet.headers.bth.psn.since(expected) > 0 {
            if self.told_gap != Some(expected) {
                self.told_gap = Some(expected);
                let nak = answer(
                    expected,
                    Syndrome::Nak(Nak::SequenceError),
                    self.ends[1 - at].qp.number(),
                );
                let mut bytes = [0; 64];
                let len = nak.emit(0, &mut bytes).unwrap();
                self.log.push((at, nak));
                self.under_way[at].push(bytes[..len + ICRC_LEN].to_vec(), self.now);
            }
            return;
        }
        end.handle_packet(&packet, self.now);
        end.drain(self.now);
        self.arrived += 1;
        if self.loses_buffer_after.is_some_and(|count| self.arrived.is_multiple_of(count)) {
            let end = &mut self.ends[at];
            end.early.release(end.qp.number());
        }
    }

    /// Goes on to the next moment at which something happens. False: nothing will.
    fn step(&mut self) -> bool {
        self.transmit();
        let ways = self.under_way.iter().chain([&self.detour]);
        let arrivals = ways.filter_map(Faults::poll_timeout);
        let timeouts = self.ends.iter().filter_map(|end| end.qp.poll_timeout());
        let Some(next) = arrivals.chain(timeouts).min() else { return false };
        self.now = self.now.max(next);
        for from in [A, B] {
            while let Some(packet) = self.under_way[from].pop(self.now) {
                self.arrive(1 - from, &packet);
            }
        }
        while let Some(packet) = self.detour.pop(self.now) {
            self.arrive(B, &packet);
        }
        for end in &mut self.ends {
            end.qp.handle_timeout(self.now);
            end.drain(self.now);
        }
        true
    }

    /// Until everything is quiet.
    fn run(&mut self) {
        let end = self.now + Duration::from_secs(120);
        while self.step() {
            assert!(self.now < end, "it never ends");
        }
    }

    /// Packets of requests that an end has sent.
    fn requests_of(&self, from: usize) -> usize {
        let acknowledged = self.sent_by(from, Opcode::Acknowledge);
        self.log.iter().filter(|(by, _)| *by == from).count() - acknowledged
    }

    /// How often a gap was told by B.
    fn gaps(&self) -> usize {
        let answers = self.log.iter().filter_map(|(_, headers)| headers.aeth);
        answers.filter(|aeth| aeth.syndrome == Syndrome::Nak(Nak::SequenceError)).count()
    }

    fn sent_by(&self, from: usize, opcode: Opcode) -> usize {
        self.log.iter().filter(|(by, headers)| *by == from && headers.bth.opcode == opcode).count()
    }
}

/// The headers of an answer to a queue pair.
fn answer(psn: Psn, syndrome: Syndrome, to: QpNumber) -> Headers {
    let bth = Bth {
        opcode: Opcode::Acknowledge,
        solicited: false,
        destination: to,
        ack_request: false,
        psn,
    };
    Headers { bth, reth: None, aeth: Some(Aeth { syndrome, msn: 0 }), immediate: None }
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + salt * 7 + at / 251) as u8).collect()
}

const fn ok(id: u64) -> (u64, Result<(), Failure>) {
    (id, Ok(()))
}

/// Packets of a stream in a second, where answers take this long.
fn rate(delay: Duration) -> f64 {
    const PACKETS: usize = 64;
    let (mut table, mut posted) = (Table::new(Plan { delay, ..Plan::PERFECT }), 0);
    while table.now < Duration::from_secs(2) {
        while posted < table.ends[A].completed.len() as u64 + 32 {
            table.write(A, posted, 0, PACKETS * usize::from(MTU));
            posted += 1;
        }
        assert!(table.step());
        table.log.clear();
    }
    (table.ends[A].completed.len() * PACKETS) as f64 / table.now.as_secs_f64()
}

#[test]
fn a_long_way_has_room_for_more_packets() {
    let [near, far] = [125, 500].map(|us| rate(Duration::from_micros(us)));
    assert!(near > 450_000.0 && far > 0.8 * near, "{near} and {far} packets a second");
}

#[test]
fn messages_of_every_length_arrive() {
    let mut table = Table::new(NEAR);
    let lengths = [0, 1, 44, 255, 256, 257, 512, 513, 8192];
    for (id, len) in (0..).zip(lengths) {
        table.send(A, id, &pattern(len, len));
    }
    table.run();
    let expected: Vec<_> = lengths.iter().map(|len| pattern(*len, *len)).collect();
    assert_eq!(table.ends[B].received, expected);
    assert_eq!(table.ends[A].completed, (0..9).map(ok).collect::<Vec<_>>());
    assert!(table.ends[B].completed.is_empty() && table.ends[A].received.is_empty());
}

#[test]
fn a_write_is_cut_into_writes_and_a_send_into_parts() {
    let mut table = Table::new(NEAR);
    table.ends[A].fill(0, &pattern(601, 0));
    table.write(A, 1, 0, 601);
    table.send(A, 2, &pattern(300, 1));
    table.run();
    let parts: Vec<_> = table.log.iter().filter(|(from, _)| *from == A).collect();
    let [.., first, last] = parts[..] else { panic!("{} packets", parts.len()) };
    let part = |message, place| Opcode::Part(message, place, With::Nothing);
    let Registration { rkey, address } = table.ends[B].registration;
    for (index, (_, write)) in parts[..3].iter().enumerate() {
        assert_eq!(write.bth.opcode, part(Message::Write, Place::Only));
        let address = RmbAddress(address.0 + index as u64 * 201);
        let len = [201, 201, 199][index];
        assert_eq!(write.reth, Some(Reth { address, rkey, len }), "as equal as can be");
    }
    assert_eq!(first.1.bth.opcode, part(Message::Send, Place::First));
    assert_eq!(last.1.bth.opcode, part(Message::Send, Place::Last));
    assert!([first, last].iter().all(|(_, headers)| headers.reth.is_none()));
    let asks: Vec<_> = parts.iter().map(|(_, headers)| headers.bth.ack_request).collect();
    assert_eq!(asks, [false, false, false, false, true], "the last of all");
    let wakes: Vec<_> = parts.iter().map(|(_, headers)| headers.bth.solicited).collect();
    assert_eq!(wakes, [false, false, false, false, true]);
    assert_eq!(table.ends[B].bytes(0, 601), pattern(601, 0));
    assert_eq!(table.ends[B].received, [pattern(300, 1)]);
    assert_eq!(table.sent_by(B, Opcode::Acknowledge), 1, "one answer for what came at once");
}

#[test]
fn a_lost_answer_costs_one_packet() {
    let mut table = Table::new(NEAR);
    table.ends[A].fill(0, &pattern(2560, 1));
    table.write(A, 1, 0, 2560);
    table.transmit();
    assert_eq!(table.log.len(), 10);
    let end = &mut table.ends[B];
    while let Some(packet) = table.under_way[A].pop(Duration::MAX) {
        end.handle_packet(&Packet::parse(&packet).unwrap(), table.now);
    }
    assert!(table.ends[B].qp.poll_transmit(&mut [0; 4096], table.now).is_some(), "and is lost");
    table.run();
    assert_eq!(table.ends[A].completed, [ok(1)]);
    assert_eq!(table.log.iter().filter(|(from, _)| *from == A).count(), 11);
    assert!(table.now >= SILENCE_FIRST);
}

#[test]
fn a_gap_is_told_and_closed() {
    let mut table = Table::new(NEAR);
    table.ends[A].fill(0, &pattern(2560, 2));
    table.write(A, 1, 0, 2560);
    table.transmit();
    let packets: Vec<_> = std::iter::from_fn(|| table.under_way[A].pop(Duration::MAX)).collect();
    for (_, packet) in packets.into_iter().enumerate().filter(|(index, _)| *index != 2) {
        table.under_way[A].push(packet, table.now);
    }
    table.run();
    assert_eq!(table.ends[A].completed, [ok(1)]);
    assert_eq!(table.ends[B].bytes(0, 2560), pattern(2560, 2));
    assert!(table.now < SILENCE_FIRST, "no silence had to pass");
    assert_eq!(table.gaps(), 1);
    assert_eq!(table.ends[A].qp.retransmissions(), 1, "the others were kept");
}

/// A peer that drops what comes early has to be sent all of it again, once.
#[test]
fn a_peer_that_keeps_nothing_is_gone_back_for() {
    // The third packet is lost: it takes longer than the whole test.
    let mut table = Table::with_detour(NEAR, Duration::from_secs(1), |index| index == 2);
    table.drops_early = true;
    table.ends[A].fill(0, &pattern(2560, 2));
    table.write(A, 1, 0, 2560);
    while table.ends[A].completed.is_empty() {
        assert!(table.step());
    }
    assert_eq!(table.ends[B].bytes(0, 2560), pattern(2560, 2));
    assert!(table.now < SILENCE_FIRST);
    assert_eq!((table.gaps(), table.ends[A].qp.retransmissions()), (1, 8));
}

/// WRITEs and SENDs of many lengths, each bundle when the one before it has arrived.
fn converse(table: &mut Table, bundles: u64) {
    table.ends[A].fill(0, &pattern(10_240, 2));
    for id in 0..bundles {
        let at = (id as usize * 1024) % 9216;
        table.write(A, 2 * id, at, 1024 - id as usize);
        table.send(A, 2 * id + 1, &pattern(44, id as usize));
        table.run();
    }
    assert_eq!(table.ends[A].completed, (0..2 * bundles).map(ok).collect::<Vec<_>>());
    let expected: Vec<_> = (0..bundles).map(|id| pattern(44, id as usize)).collect();
    assert_eq!(table.ends[B].received, expected);
}

#[test]
fn who_is_overtaken_a_little_costs_nothing() {
    for jitter_us in [1, 5, 20] {
        for seed in 0..20 {
            let jitter = Duration::from_micros(jitter_us);
            let mut table =
                Table::new(Plan { jitter, seed, delay: Duration::from_micros(500), ..NEAR });
            converse(&mut table, 50);
            let sent_again = table.ends[A].qp.retransmissions();
            assert_eq!((sent_again, table.gaps()), (0, 0), "{jitter_us} µs, seed {seed}");
            let most = (Duration::from_millis(1) + 2 * jitter) * 50;
            assert!(table.now <= most, "{jitter_us} µs, seed {seed}: {:?}", table.now);
        }
    }
}

#[test]
fn who_is_overtaken_by_much_is_sent_again_until_the_network_is_known() {
    /// As often as the least patience is doubled.
    const LESSONS: usize = 6;
    let detours: [fn(usize) -> bool; 4] = [
        |index| index % 2 == 0,
        |index| index % 3 == 1,
        |index| index % 5 == 3,
        |index| index % 7 == 0,
    ];
    for longer_us in [10, 90, 150, 300, 1000] {
        for (which, takes_detour) in detours.into_iter().enumerate() {
            let longer = Duration::from_micros(longer_us);
            let plan = Plan { delay: Duration::from_micros(500), ..NEAR };
            let mut table = Table::with_detour(plan, longer, takes_detour);
            converse(&mut table, 50);
            let sent = table.requests_of(A);
            let overtaken = (0..sent).filter(|index| takes_detour(*index)).count();
            let sent_again = table.ends[A].qp.retransmissions() as usize;
            let told =
                format!("{which}, {longer_us} µs: {sent_again} of {overtaken} in {:?}", table.now);
            // Until it is known how long the longer way is.
            let limit = if longer_us < 20 { 0 } else { LESSONS };
            assert!(sent_again <= limit, "{told}");
            assert!(table.now < 50 * Duration::from_millis(4), "no silence: {told}");
        }
    }
}

#[test]
fn what_is_lost_at_the_end_is_asked_for_soon() {
    for tail in 1..=5 {
        let mut table = Table::new(NEAR);
        converse(&mut table, 20);
        let (begin, sent_again) = (table.now, table.ends[A].qp.retransmissions());
        for (id, message) in (40..).zip(["a", "b", "c", "d", "e"]) {
            table.send(A, id, message.as_bytes());
        }
        table.transmit();
        let packets: Vec<_> =
            std::iter::from_fn(|| table.under_way[A].pop(Duration::MAX)).collect();
        for packet in packets.into_iter().take(5 - tail) {
            table.under_way[A].push(packet, table.now);
        }
        table.run();
        let sent_again = table.ends[A].qp.retransmissions() - sent_again;
        let took = table.now - begin;
        assert!(took < Duration::from_millis(5), "{tail}: {took:?}");
        assert!(sent_again <= tail as u64 + 1, "{tail}: {sent_again}");
        assert_eq!(
            table.ends[B].received[20..],
            ["a", "b", "c", "d", "e"].map(|it| it.as_bytes().to_vec())
        );
        assert!(table.ends[A].silences.is_empty());
    }
}

/// How long a stream of WRITEs of 8 KiB takes, each told by a SEND, and how many packets of it were sent
/// again: 100 MB/s over a distance of 50 µs.
fn stream(plan: Plan, drops_early: bool) -> (Duration, u64) {
    const BUNDLES: u64 = 1000;
    const AT_ONCE: u64 = 8;
    let mut table = Table::new(Plan { bandwidth: Some(100_000_000), ..plan });
    table.drops_early = drops_early;
    let mut posted = 0;
    while table.ends[A].completed.len() < 2 * BUNDLES as usize {
        while posted < BUNDLES && 2 * posted < table.ends[A].completed.len() as u64 + 2 * AT_ONCE {
            table.write(A, 2 * posted, 0, 8192);
            table.send(A, 2 * posted + 1, b"there");
            posted += 1;
        }
        assert!(table.step());
    }
    assert_eq!(table.ends[B].received, vec![b"there"; BUNDLES as usize]);
    (table.now, table.ends[A].qp.retransmissions())
}

#[test]
fn a_stream_survives_loss_and_disorder() {
    let (lossless, none) = stream(NEAR, false);
    assert_eq!(none, 0);
    let lossy = |loss| Plan { loss, ..NEAR };
    let uneven = |us| Plan { jitter: Duration::from_micros(us), ..NEAR };
    for (plan, drops_early, rate_min, sent_again_max) in [
        (lossy(0.001), false, 0.9, 40),
        (lossy(0.01), false, 0.3, 600),
        (lossy(0.001), true, 0.8, 2500),
        (lossy(0.01), true, 0.2, 8000),
        (uneven(20), false, 0.95, 0),
        (uneven(150), false, 0.7, 20),
        // Packets of the window take so long.
        (uneven(500), false, 0.3, 20),
    ] {
        let (took, sent_again) = stream(plan, drops_early);
        let rate = lossless.as_secs_f64() / took.as_secs_f64();
        assert!(rate >= rate_min && sent_again <= sent_again_max, "{plan:?}: {rate}, {sent_again}");
    }
}

#[test]
fn a_stream_survives_that_what_is_kept_is_taken_away() {
    for loses_buffer_after in [1, 2, 3, 7, 20] {
        for seed in 0..10 {
            let plan = Plan { loss: 0.05, jitter: Duration::from_micros(100), seed, ..NEAR };
            let mut table = Table::new(plan);
            table.loses_buffer_after = Some(loses_buffer_after);
            converse(&mut table, 50);
            assert_eq!(table.ends[B].bytes(0, 1024), pattern(10_240, 2)[..1024]);
            assert!(table.ends[A].broken.is_none());
        }
    }
}

#[test]
fn what_is_too_far_ahead_is_not_kept() {
    let mut table = Table::new(NEAR);
    table.send(A, 0, b"here");
    table.transmit();
    let packet = table.under_way[A].pop(Duration::MAX).unwrap();
    let arrive = |table: &mut Table, ahead| {
        let mut packet = packet.clone();
        packet[9..12].copy_from_slice(&PSN.plus(ahead).0);
        table.arrive(B, &packet);
        table.ends[B].qp.expected_psn().unwrap().since(PSN)
    };
    let far = WINDOW_MAX;
    for ahead in [1, 3, 3, far - 1, far, far + 72, 1 << 20, (1 << 23) - 1] {
        assert_eq!(arrive(&mut table, ahead), 0);
    }
    assert_eq!(arrive(&mut table, 0), 2, "with the first");
    assert_eq!(arrive(&mut table, 2), 4, "and the third");
    (4..far - 2).for_each(|ahead| assert_eq!(arrive(&mut table, ahead), ahead as i32 + 1));
    assert_eq!(arrive(&mut table, far - 2), far as i32, "with one of those that were far ahead");
    (far..far + 73).for_each(|ahead| assert_eq!(arrive(&mut table, ahead), ahead as i32 + 1));
    assert_eq!(table.ends[B].received, vec![b"here"; far as usize + 73]);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut table = Table::new(NEAR);
    table.ends[B].is_awake = false;
    let messages = RECEIVED_MAX as u64 + 3;
    for id in 0..messages {
        table.send(A, id, &[id as u8]);
    }
    for _ in 0..100 {
        assert!(table.step());
    }
    assert_eq!(table.ends[A].completed.len(), RECEIVED_MAX);
    table.ends[B].is_awake = true;
    table.ends[B].drain(table.now);
    table.run();
    let expected: Vec<_> = (0..messages).map(|id| vec![id as u8]).collect();
    assert_eq!(table.ends[B].received, expected);
    assert_eq!(table.ends[A].completed.len() as u64, messages);
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut table = Table::new(Plan { loss: 1.0, ..NEAR });
    table.send(A, 1, b"hello");
    table.send(A, 2, b"anybody");
    table.run();
    // After four times as long as silence lasts that means loss; and again each time it is asked.
    let silences = &table.ends[A].silences;
    assert_eq!(silences[..2], [4 * SILENCE_FIRST, 5 * SILENCE_FIRST]);
    assert!(silences.len() > 3);
    let silent = Failure::PeerSilent;
    let expected = [(1, Err(silent)), (2, Err(Failure::Flushed))];
    assert_eq!(table.ends[A].completed, expected);
    assert_eq!(table.ends[A].broken, Some(silent));
    assert!((15..18).contains(&table.now.as_secs()), "{:?}", table.now);
    assert_eq!(table.ends[A].qp.post_send(3, b""), Err(PostError::NotReady));
}

/// RFC 6298 §2.
#[test]
fn how_long_silence_lasts_is_learnt_from_answers() {
    for (delay_ms, silence_ms) in [(1, 30..31), (50, 110..200)] {
        let delay = Duration::from_millis(delay_ms);
        let mut table = Table::new(Plan { delay, ..NEAR });
        for id in 0..20 {
            table.send(A, id, b"?");
            table.run();
        }
        assert_eq!(table.ends[A].completed.len(), 20);
        let begin = table.now;
        // A QP that breaks answers no more.
        table.ends[B] = End::new(0x33);
        table.send(A, 20, b"?");
        table.run();
        let silence = (table.ends[A].silences[0] - begin) / 4;
        assert!(silence_ms.contains(&silence.as_millis()), "{silence:?}");
        let sent_again = table.ends[A].qp.retransmissions();
        assert!((20..40).contains(&sent_again), "{sent_again}");
    }
}

#[test]
fn what_is_refused_breaks_both_ends_and_stays_refused() {
    let mut table = Table::new(NEAR);
    table.send(A, 1, b"good");
    let Registration { rkey, address } = table.ends[B].registration;
    let source = Arc::clone(&table.ends[A].memory);
    let beyond = RmbAddress(address.0 + MEMORY_LEN as u64 - 9);
    table.ends[A].qp.post_write(2, (&source, 0, 10), (rkey, beyond)).unwrap();
    table.send(A, 3, b"behind it");
    table.run();
    let refused = Failure::Refused(Nak::RemoteAccessError);
    let expected = [ok(1), (2, Err(refused)), (3, Err(Failure::Flushed))];
    // The oldest that is left is the one that was refused.
    assert_eq!(table.ends[A].completed, expected);
    assert_eq!(table.ends[A].broken, Some(refused));
    assert_eq!(table.ends[B].broken, Some(Failure::PeerMisbehaved(Nak::RemoteAccessError)));
    assert_eq!(table.ends[B].received, [b"good"]);
    assert_eq!(table.ends[B].bytes(0, MEMORY_LEN), vec![0; MEMORY_LEN]);

    // A requester that has not heard it asks again and again.
    let again = |end: &mut End, now: Duration| {
        let headers = Headers {
            bth: Bth {
                opcode: Opcode::Part(Message::Send, Place::Only, With::Nothing),
                solicited: false,
                destination: end.qp.number(),
                ack_request: true,
                psn: PSN,
            },
            reth: None,
            aeth: None,
            immediate: None,
        };
        end.handle_packet(&Packet { headers, payload: b"" }, now);
        end.qp.poll_transmit(&mut [0; 4096], now).is_some()
    };
    let later = table.now + Duration::from_secs(1);
    let told = (0..1000).filter(|ms| again(&mut table.ends[B], later + Duration::from_millis(*ms)));
    assert_eq!(told.count(), 20, "twenty times a second");
}

#[test]
fn answers_to_what_was_never_asked_change_nothing() {
    let mut table = Table::new(NEAR);
    table.send(A, 1, b"one");
    table.transmit();
    let syndromes = [
        Syndrome::ACK,
        Syndrome::Nak(Nak::SequenceError),
        Syndrome::Nak(Nak::InvalidRequest),
        Syndrome::ReceiverNotReady { timer: 0 },
    ];
    for (psn, syndrome) in [1, 2, 1 << 22, 1 << 23, (1 << 24) - 1]
        .into_iter()
        .flat_map(|n| syndromes.map(|syndrome| (PSN.plus(n), syndrome)))
    {
        let headers = answer(psn, syndrome, table.ends[A].qp.number());
        let end = &mut table.ends[A];
        end.handle_packet(&Packet { headers, payload: b"" }, table.now);
        end.drain(Duration::ZERO);
        assert!(end.completed.is_empty() && end.broken.is_none());
    }
    table.run();
    assert_eq!(table.ends[A].completed, [ok(1)]);
    assert_eq!(table.ends[B].received, [b"one"]);
}

#[test]
fn a_withdrawn_registration_stops_a_write_in_the_middle() {
    let mut table = Table::new(NEAR);
    table.ends[A].fill(0, &[9; 1024]);
    table.write(A, 1, 0, 1024);
    table.transmit();
    let packets: Vec<_> = std::iter::from_fn(|| table.under_way[A].pop(Duration::MAX)).collect();
    let end = &mut table.ends[B];
    for (index, packet) in packets.into_iter().enumerate() {
        if index == 2 {
            assert!(end.regions.deregister(end.registration.rkey));
        }
        end.handle_packet(&Packet::parse(&packet).unwrap(), table.now);
    }
    end.drain(Duration::ZERO);
    assert_eq!(end.broken, Some(Failure::PeerMisbehaved(Nak::RemoteAccessError)));
    assert_eq!(end.bytes(0, 1024), [vec![9; 512], vec![0; 512]].concat());
}

#[test]
fn no_more_is_posted_than_there_is_room_for() {
    let mut table = Table::new(NEAR);
    for id in 0..POSTED_MAX as u64 {
        table.send(A, id, b"");
    }
    let end = &mut table.ends[A];
    assert_eq!(end.qp.post_send(0, b""), Err(PostError::Full));
    assert_eq!(end.qp.post_send(0, &[0; 8193]), Err(PostError::TooLong));
    let source = Arc::clone(&end.memory);
    let to = (Rkey(1), RmbAddress(0));
    assert_eq!(end.qp.post_write(0, (&source, 1, MEMORY_LEN as u32), to), Err(PostError::TooLong));
    table.run();
    assert_eq!(table.ends[A].completed.len(), POSTED_MAX);
}

#[test]
fn before_it_is_ready_it_hears_and_says_nothing() {
    let mut table = Table::new(NEAR);
    table.ends[B].qp = QueuePair::new(QpNumber([0, 0, 0x22]), PSN);
    table.send(A, 1, b"early");
    for _ in 0..5 {
        table.step();
    }
    assert!(table.sent_by(B, Opcode::Acknowledge) == 0 && table.ends[B].received.is_empty());
    table.ends[B].qp.ready_to_send();
    assert_eq!(table.ends[B].qp.post_send(1, b""), Err(PostError::NotReady));
    let peer = Peer { qp: table.ends[A].qp.number(), first_psn: PSN, mtu: MTU };
    table.ends[B].qp.ready_to_receive(peer);
    assert_eq!(table.ends[B].qp.post_send(1, b""), Err(PostError::NotReady));
    table.run();
    assert_eq!(table.ends[B].received, [b"early"], "answered before it may ask");
}

/// Something to post.
#[derive(Clone, Debug)]
enum Post {
    Send(usize),
    Write(usize),
}

fn posts() -> impl Strategy<Value = Vec<(usize, Post)>> {
    let post =
        prop_oneof![(0..2000usize).prop_map(Post::Send), (0..6000usize).prop_map(Post::Write),];
    proptest::collection::vec((0..2usize, post), 1..40)
}

fn plans() -> impl Strategy<Value = Plan> {
    (any::<u64>(), 0.0..0.12, 0.0..0.2, 0..400u64).prop_map(|(seed, loss, duplication, jitter)| {
        Plan { seed, loss, duplication, jitter: Duration::from_micros(jitter), ..NEAR }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever the network does, short of silence: everything once, in order, where it belongs.
    /// (Where a quarter is lost, twelve probes in a row may be, and that is silence.)
    #[test]
    fn every_message_once_and_in_order(posts in posts(), plan in plans()) {
        let mut table = Table::new(plan);
        let mut expected = [Vec::new(), Vec::new()];
        let mut written = [0, 0];
        let mut images = [vec![0; MEMORY_LEN], vec![0; MEMORY_LEN]];
        let mut ids = [0, 0];
        for (from, post) in posts {
            let id = ids[from];
            ids[from] += 1;
            match post {
                Post::Send(len) => {
                    let message = pattern(len, id as usize);
                    table.send(from, id, &message);
                    expected[1 - from].push(message);
                }
                // Each end writes into one half of both memories, the other into the other.
                Post::Write(len) if written[from] + len <= MEMORY_LEN / 2 => {
                    let at = from * (MEMORY_LEN / 2) + written[from];
                    written[from] += len;
                    let bytes = pattern(len, id as usize + 1);
                    table.ends[from].fill(at, &bytes);
                    images.iter_mut().for_each(|image| image[at..at + len].copy_from_slice(&bytes));
                    table.write(from, id, at, len);
                }
                Post::Write(_) => ids[from] -= 1,
            }
            table.step();
        }
        table.run();
        for (index, end) in table.ends.iter().enumerate() {
            prop_assert_eq!(end.broken, None);
            prop_assert_eq!(&end.received, &expected[index]);
            prop_assert_eq!(&end.completed, &(0..ids[index]).map(ok).collect::<Vec<_>>());
            prop_assert!(end.bytes(0, MEMORY_LEN) == images[index]);
        }
    }

    /// Packets of a stranger that knows everything but the key change no memory, and the end of it
    /// comes at once.
    #[test]
    fn no_packet_reaches_memory_without_its_key(
        packets in proptest::collection::vec(
            (any::<u8>(), 0..4u32, any::<[u8; 16]>(), 0..600usize, any::<bool>()), 1..60),
    ) {
        let mut table = Table::new(NEAR);
        let end = &mut table.ends[B];
        for (code, skipped, reth, len, with_address) in packets {
            let Ok(opcode) = Opcode::from_code(code % 0x20) else { continue };
            let [address @ .., k0, k1, k2, k3, l0, l1, l2, l3] = reth;
            let address = if with_address { end.registration.address.0 } else { u64::from_be_bytes(address) };
            let rkey = Rkey(u32::from_be_bytes([k0, k1, k2, k3]));
            prop_assume!(rkey != end.registration.rkey);
            let reth = Reth {
                address: RmbAddress(address),
                rkey,
                len: u32::from_be_bytes([l0, l1, l2, l3]),
            };
            let expected = end.qp.expected_psn().unwrap();
            let bth = Bth {
                opcode,
                solicited: false,
                destination: end.qp.number(),
                ack_request: true,
                psn: expected.plus(skipped).minus(1),
            };
            let headers = Headers {
                bth,
                reth: opcode.has_reth().then_some(reth),
                aeth: opcode.has_aeth().then_some(Aeth { syndrome: Syndrome::ACK, msn: 0 }),
                immediate: opcode.has_immediate().then_some(0),
            };
            let payload = vec![0xEE; len];
            end.handle_packet(&Packet { headers, payload: &payload }, Duration::ZERO);
            while end.qp.poll_transmit(&mut [0; 4096], Duration::ZERO).is_some() {}
        }
        end.drain(Duration::ZERO);
        prop_assert!(end.received.iter().all(|message| message.len() <= MESSAGE_LEN_MAX));
        prop_assert!(end.bytes(0, MEMORY_LEN) == vec![0; MEMORY_LEN]);
    }
}
