//! An adapter: the queue pairs behind one address, and what comes in for them and goes out.
//!
//! ```text
//!   datagram ──> length, headers ──> whose QP? from its peer? ──> ICRC ──> QueuePair
//!                                          └─ one that was destroyed ──> its refusal
//!   QueuePair ──> ICRC for identification 0 ──> datagram to its peer
//! ```
//!
//! Nothing is answered that is not for a QP of ours from the address of its peer: another process
//! may have the QP, and a stranger is to learn nothing. What is dropped is counted ([`Drops`]).
//!
//! The peer of a QP that was destroyed is [refused](super::tombstones) for a while.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_wire::roce::icrc::{Addresses, Envelope, Rollback, Rollbacks, Verdict};
use sidestep_wire::roce::{Headers, ICRC_LEN, PORT, Packet};
use sidestep_wire::{Mtu, Psn, QpNumber, Rkey, RmbAddress};

use super::queue_pair::{AtRest, Event, Peer, PostError, QueuePair};
use super::reorder::ReorderBuffers;
use super::tombstones::Tombstones;
use crate::device::{Device, Holdings, Readiness, Source};
use crate::memory::{Regions, Registration, Shared};

/// Room for any datagram: the longest payload, headers and ICRC.
pub const DATAGRAM_MAX: usize = 4096 + 64;
/// Adapters at one UDP port tell their queue pairs apart by the numbers: those of each are equal modulo this.
pub const LANES: u8 = 8;
/// The length of an acknowledgement: BTH, AETH, ICRC.
const ANSWER_LEN: usize = 20;

/// The lane of the queue pair that a datagram is for, if it is a packet.
pub(super) fn lane_of(datagram: &[u8]) -> Option<u8> {
    let packet = Packet::parse(datagram).ok()?;
    let [_, _, low] = packet.headers.bth.destination.0;
    Some(low % LANES)
}

/// Datagrams that were not for us, or not in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Too short, or not what a reliable connection knows.
    pub malformed: u64,
    /// For a QP that is not here.
    pub unknown_qp: u64,
    /// From another address than the QP's peer.
    pub stranger: u64,
    /// Not as they were sent.
    pub damaged: u64,
}

/// The queue pairs of an address.
#[derive(Debug)]
pub struct Adapter {
    address: IpAddr,
    source_port: u16,
    links: BTreeMap<QpNumber, Link>,
    regions: Regions,
    early: ReorderBuffers,
    /// QPs that may have something to send or to tell.
    restless: VecDeque<QpNumber>,
    tombstones: Tombstones,
    /// Answers of tombstones: to whom, and the packet.
    refusals: VecDeque<(IpAddr, Headers)>,
    rollbacks: Cache,
    drops: Drops,
    loses_runs: bool,
    /// Sources that were lent and not taken back.
    lent: usize,
    lane: u8,
    /// Where numbers and PSNs come from.
    random: StdRng,
}

/// The payload of a UDP datagram that has come in.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// From this address.
    pub from: IpAddr,
    /// And this UDP port.
    pub port: u16,
    /// Its place in the run in which it has come; 0 alone. A hint: its sender has probably given
    /// it this identification.
    pub index: u16,
    /// What it carries.
    pub bytes: &'a [u8],
}

/// Datagrams that leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// To this address.
    pub to: IpAddr,
    /// Bytes of all.
    pub len: usize,
    /// Bytes of each but the last, which may have less; `segment_len <= len`.
    pub segment_len: usize,
}

#[derive(Debug)]
struct Link {
    qp: QueuePair,
    /// The peer's QP and address, once they are known.
    peer: Option<(QpNumber, IpAddr)>,
    is_restless: bool,
    /// Runs that left while an answer was to be given.
    passed_over: u8,
}

/// An answer is the shortest packet there is, so it can close a run, and then costs nothing. It
/// waits for one that it can close so many times.
const PASSED_OVER_MAX: u8 = 3;

impl Link {
    /// Writes a run of packets, each with the ICRC of its place, and returns its length and theirs.
    fn write_run(
        &mut self,
        envelope: &Envelope,
        out: &mut [u8],
        segments_max: usize,
        now: Duration,
    ) -> Option<(usize, usize)> {
        let (mut at, mut segment_len, mut segments) = (0, 0, 0);
        let mut is_open = self.passed_over < PASSED_OVER_MAX;
        while is_open
            && usize::from(segments) < segments_max
            && let Some(part) = self.qp.next_request()
        {
            let len = part.packet_len() + ICRC_LEN;
            if segments == 0 {
                segment_len = len;
            }
            if len > segment_len || at + len > out.len() {
                break;
            }
            let written = self.qp.write_request(&part, &mut out[at..], now)?;
            at += seal(envelope, segments, &mut out[at..], written)?;
            segments += 1;
            is_open = len == segment_len;
        }
        // Only the last one may be shorter, and none longer.
        let has_place = is_open && usize::from(segments) < segments_max;
        let fits = at + ANSWER_LEN <= out.len() && ANSWER_LEN <= segment_len;
        if (segments == 0 || has_place && fits)
            && let Some(written) = self.qp.write_answer(&mut out[at..])
        {
            at += seal(envelope, segments, &mut out[at..], written)?;
            segment_len = if segments == 0 { at } else { segment_len };
        }
        let waits = self.qp.has_answer();
        self.passed_over = if waits { self.passed_over.saturating_add(1) } else { 0 };
        (at > 0).then_some((at, segment_len))
    }
}

/// Rollbacks by length.
#[derive(Debug, Default)]
struct Cache(BTreeMap<usize, Rollback>);

impl Rollbacks for Cache {
    fn over(&mut self, bytes: usize) -> Rollback {
        *self.0.entry(bytes).or_insert_with(|| Rollback::over(bytes))
    }
}

impl Adapter {
    /// The adapter of an address, which sends from this UDP port.
    #[must_use]
    pub fn new(address: IpAddr, source_port: u16) -> Self {
        Self::drawing_from(rand::make_rng(), address, source_port)
    }

    /// One whose numbers, PSNs and keys come from a seed, so they can be guessed: for simulated
    /// worlds.
    #[must_use]
    pub fn seeded(seed: u64, address: IpAddr, source_port: u16) -> Self {
        Self::drawing_from(StdRng::seed_from_u64(seed), address, source_port)
    }

    fn drawing_from(mut random: StdRng, address: IpAddr, source_port: u16) -> Self {
        Self {
            address,
            source_port,
            links: BTreeMap::new(),
            regions: Regions::new(StdRng::from_rng(&mut random)),
            early: ReorderBuffers::default(),
            restless: VecDeque::new(),
            tombstones: Tombstones::default(),
            refusals: VecDeque::new(),
            rollbacks: Cache::default(),
            drops: Drops::default(),
            loses_runs: false,
            lent: 0,
            lane: 0,
            random,
        }
    }

    /// The numbers of its queue pairs are this, modulo [`LANES`]. 0 at first.
    #[must_use]
    pub const fn lane(&self) -> u8 {
        self.lane
    }

    /// Another lane than that of an adapter that is at the same UDP port still; before the first queue pair.
    pub const fn set_lane(&mut self, lane: u8) {
        self.lane = lane % LANES;
    }

    /// A new queue pair. Its number cannot be guessed, and neither can the PSN it begins with.
    pub fn create(&mut self) -> (QpNumber, Psn) {
        let first_psn = Psn::from_low_bits(self.random.random());
        loop {
            let drawn = self.random.random::<u32>();
            let drawn = drawn - drawn % u32::from(LANES) + u32::from(self.lane);
            let [_, number @ ..] = drawn.to_be_bytes();
            let number = QpNumber(number);
            let is_usable = number >= QpNumber::FIRST && !self.tombstones.contain(number);
            if let Entry::Vacant(place) = self.links.entry(number)
                && is_usable
            {
                let qp = QueuePair::new(number, first_psn);
                place.insert(Link { qp, peer: None, is_restless: false, passed_over: 0 });
                return (number, first_psn);
            }
        }
    }

    /// The peer's requests on a QP are carried out from now on. False: there is no such QP, or
    /// the peer's address is of another family.
    pub fn ready_to_receive(&mut self, number: QpNumber, address: IpAddr, peer: Peer) -> bool {
        match self.links.get_mut(&number) {
            Some(link) if address.is_ipv4() == self.address.is_ipv4() => {
                self.early.release(number);
                link.peer = Some((peer.qp, address));
                link.qp.ready_to_receive(peer);
                true
            }
            _ => false,
        }
    }

    /// A queue pair, to post to or to change. It is asked for packets and events afterwards.
    pub fn queue_pair(&mut self, number: QpNumber) -> Option<&mut QueuePair> {
        let link = self.links.get_mut(&number)?;
        rouse(link, &mut self.restless);
        Some(&mut link.qp)
    }

    /// What peers may write into.
    pub fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// What was dropped so far.
    #[must_use]
    pub const fn drops(&self) -> Drops {
        self.drops
    }

    /// Whether there is a peer that hears only the first datagram of each run: a device on the way
    /// numbers packets anew. To be sent one by one from then on; it is not taken back, for a false
    /// alarm costs speed, and a missed one the connection.
    #[must_use]
    pub const fn loses_runs(&self) -> bool {
        self.loses_runs
    }

    /// What another process needs to go on with a queue pair. `None`: there is none, or it is not at rest.
    #[must_use]
    pub fn at_rest(&self, number: QpNumber) -> Option<AtRest> {
        let link = self.links.get(&number)?;
        let (_, address) = link.peer?;
        link.qp.at_rest(address)
    }

    /// Takes a queue pair out that is at rest. There is no tombstone: it goes on elsewhere.
    pub fn take_out(&mut self, number: QpNumber) {
        self.early.release(number);
        self.links.remove(&number);
    }

    /// Goes on with a queue pair that was taken out of an adapter of this address. False: there is one of that number,
    /// or the peer's address is of another family.
    pub fn put_in(&mut self, taken: &AtRest) -> bool {
        let is_fit = taken.number >= QpNumber::FIRST
            && taken.address.is_ipv4() == self.address.is_ipv4()
            && (1..=5).any(|code| Mtu::from_low_bits(code).bytes() == Some(taken.peer.mtu));
        let Entry::Vacant(place) = self.links.entry(taken.number) else { return false };
        if is_fit {
            let (qp, peer) = (QueuePair::resume(taken), Some((taken.peer.qp, taken.address)));
            rouse(
                place.insert(Link { qp, peer, is_restless: false, passed_over: 0 }),
                &mut self.restless,
            );
        }
        is_fit
    }

    /// The lanes of its queue pairs and of those to come, each once. Those that were put in may have other ones.
    pub fn lanes(&self) -> BTreeSet<u8> {
        let of_links = self.links.keys().map(|QpNumber([_, _, low])| low % LANES);
        of_links.chain([self.lane]).collect()
    }

    /// Destroys a queue pair; what it has not told is not told any more.
    pub fn destroy(&mut self, number: QpNumber, now: Duration) {
        self.early.release(number);
        let Some(link) = self.links.remove(&number) else { return };
        if let (Some(peer), Some(expected)) = (link.peer, link.qp.expected_psn()) {
            self.tombstones.put_up(number, peer, expected, now);
        }
    }

    /// A datagram has come in. False: it is for a queue pair that is not here.
    pub fn handle_datagram(&mut self, datagram: &Datagram<'_>, now: Duration) -> bool {
        let Ok(packet) = Packet::parse(datagram.bytes) else {
            self.drops.malformed += 1;
            return true;
        };
        let number = packet.headers.bth.destination;
        if let Some(link) = self.links.get_mut(&number) {
            let peer = link.peer.map(|(_, address)| address);
            if !is_from(peer, datagram, self.address, &mut self.rollbacks, &mut self.drops) {
                return true;
            }
            let mut early = self.early.of(number, datagram.from);
            link.qp.handle_packet(&packet, &self.regions, &mut early, now);
            self.loses_runs |= link.qp.stumbles();
            rouse(link, &mut self.restless);
        } else if let Some(peer) = self.tombstones.peer_of(number) {
            let peer = Some(peer);
            if is_from(peer, datagram, self.address, &mut self.rollbacks, &mut self.drops) {
                self.refusals.extend(self.tombstones.refuse(&packet, now));
            }
        } else {
            self.drops.unknown_qp += 1;
            return false;
        }
        true
    }

    /// The time that [`poll_timeout`](Self::poll_timeout) has told may have come.
    pub fn handle_timeout(&mut self, now: Duration) {
        for link in self.links.values_mut() {
            if link.qp.poll_timeout().is_some_and(|deadline| now >= deadline) {
                link.qp.handle_timeout(now);
                rouse(link, &mut self.restless);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.links.values().filter_map(|link| link.qp.poll_timeout()).min()
    }

    /// Writes the next run of datagrams to the front of `out`: of one QP, all to UDP port [`PORT`].
    /// It has at most `segments_max` of them, and as many as there is room for; `out` has room for
    /// [`DATAGRAM_MAX`]. The QPs take turns.
    pub fn poll_transmit(
        &mut self,
        out: &mut [u8],
        segments_max: usize,
        now: Duration,
    ) -> Option<Run> {
        if let Some((to, headers)) = self.refusals.pop_front() {
            let len = headers.emit(0, out).ok()?;
            return seal(&envelope(self.address, self.source_port, to)?, 0, out, len)
                .map(|len| Run { to, len, segment_len: len });
        }
        for _ in 0..self.restless.len() {
            let number = self.restless.pop_front()?;
            let Some(link) = self.links.get_mut(&number) else { continue };
            let run = link.peer.and_then(|(_, to)| {
                let envelope = envelope(self.address, self.source_port, to)?;
                let (len, segment_len) = link.write_run(&envelope, out, segments_max, now)?;
                Some(Run { to, len, segment_len })
            });
            // It stays restless while it has something to tell.
            if run.is_some() || link.qp.has_events() {
                self.restless.push_back(number);
            } else {
                link.is_restless = false;
            }
            if run.is_some() {
                return run;
            }
        }
        None
    }

    /// What has happened on some QP; of one QP in order.
    pub fn poll_event(&mut self) -> Option<(QpNumber, Event)> {
        self.restless.iter().find_map(|number| {
            let event = self.links.get_mut(number)?.qp.poll_event()?;
            Some((*number, event))
        })
    }
}

impl Device for Adapter {
    fn create(&mut self) -> Option<(QpNumber, Psn)> {
        Some(self.create())
    }

    fn ready_to_receive(&mut self, qp: QpNumber, address: IpAddr, peer: Peer) -> Readiness {
        self.ready_to_receive(qp, address, peer).into()
    }

    fn ready_to_send(&mut self, qp: QpNumber) -> bool {
        self.queue_pair(qp).map(QueuePair::ready_to_send).is_some()
    }

    fn post_send(&mut self, qp: QpNumber, id: u64, message: &[u8]) -> Result<(), PostError> {
        self.queue_pair(qp).ok_or(PostError::NotReady)?.post_send(id, message)
    }

    fn post_write(
        &mut self,
        qp: QpNumber,
        id: u64,
        (source, at, len): (&Source, usize, u32),
        to: (Rkey, RmbAddress),
    ) -> Result<(), PostError> {
        let qp = self.queue_pair(qp).ok_or(PostError::NotReady)?;
        qp.post_write(id, (&source.memory, at, len), to)
    }

    fn poll_event(&mut self) -> Option<(QpNumber, Event)> {
        self.poll_event()
    }

    fn register(&mut self, memory: &Arc<Shared>, qp: QpNumber) -> Option<Registration> {
        Some(self.regions.register(Arc::clone(memory), qp))
    }

    fn deregister(&mut self, rkey: Rkey) {
        self.regions.deregister(rkey);
    }

    fn lend(&mut self, memory: &Arc<Shared>) -> Option<Source> {
        self.lent += 1;
        Some(Source { memory: Arc::clone(memory), lkey: 0 })
    }

    fn take_back(&mut self, _: Source) {
        self.lent -= 1;
    }

    fn destroy(&mut self, qp: QpNumber, now: Duration) {
        self.destroy(qp, now);
    }

    fn at_rest(&self, qp: QpNumber) -> Option<AtRest> {
        self.at_rest(qp)
    }

    fn take_out(&mut self, qp: QpNumber) {
        self.take_out(qp);
    }

    fn put_in(&mut self, qp: &AtRest) -> bool {
        self.put_in(qp)
    }

    fn register_as(&mut self, told: Registration, memory: &Arc<Shared>, qp: QpNumber) -> bool {
        self.regions.register_as(told, Arc::clone(memory), qp)
    }

    fn holdings(&self) -> Holdings {
        Holdings {
            queue_pairs: self.links.len(),
            registrations: self.regions.len(),
            sources: self.lent,
        }
    }

    fn retransmissions(&self, qp: QpNumber) -> Option<u64> {
        Some(self.links.get(&qp)?.qp.retransmissions())
    }
}

/// Puts the ICRC behind a packet of `len` bytes, and returns the length of both.
fn seal(envelope: &Envelope, identification: u16, out: &mut [u8], len: usize) -> Option<usize> {
    let (packet, rest) = out.split_at_mut_checked(len)?;
    rest.get_mut(..ICRC_LEN)?.copy_from_slice(&envelope.icrc(packet, identification));
    Some(len + ICRC_LEN)
}

/// Whether a datagram comes from a peer as the peer has sent it; otherwise it is counted.
fn is_from(
    peer: Option<IpAddr>,
    datagram: &Datagram<'_>,
    own: IpAddr,
    rollbacks: &mut Cache,
    drops: &mut Drops,
) -> bool {
    let Datagram { from, port, index, bytes } = *datagram;
    if peer != Some(from) {
        drops.stranger += 1;
        return false;
    }
    let verdict = envelope(from, port, own).map(|envelope| envelope.check(bytes, index, rollbacks));
    let is_intact = matches!(verdict, Some(Verdict::Intact { .. }));
    drops.damaged += u64::from(!is_intact);
    is_intact
}

/// The QP may have something to send or to tell.
fn rouse(link: &mut Link, restless: &mut VecDeque<QpNumber>) {
    if !link.is_restless {
        link.is_restless = true;
        restless.push_back(link.qp.number());
    }
}

fn envelope(from: IpAddr, port: u16, to: IpAddr) -> Option<Envelope> {
    let addresses = Addresses::new(from, to)?;
    Some(Envelope { addresses, source_port: port, destination_port: PORT })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sidestep_wire::roce::Nak;

    use super::super::{Failure, tombstones};
    use super::*;
    use crate::memory::tests::memory;

    const PORTS: [u16; 2] = [0xC001, 0xC002];

    /// Two adapters whose QPs are connected, and their clock.
    struct Pair {
        adapters: [Adapter; 2],
        qps: [QpNumber; 2],
        now: Duration,
    }

    fn addresses(family: u8) -> [IpAddr; 2] {
        match family {
            4 => ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap()),
            _ => ["fd00::1", "fd00::2"].map(|text| text.parse().unwrap()),
        }
    }

    impl Pair {
        fn new(family: u8) -> Self {
            let addresses = addresses(family);
            let mut adapters = [0, 1].map(|end| Adapter::new(addresses[end], PORTS[end]));
            let made = adapters.each_mut().map(Adapter::create);
            for (end, adapter) in adapters.iter_mut().enumerate() {
                let (qp, first_psn) = made[1 - end];
                let (own, _) = made[end];
                let peer = Peer { qp, first_psn, mtu: 1024 };
                assert!(adapter.ready_to_receive(own, addresses[1 - end], peer));
                adapter.queue_pair(own).unwrap().ready_to_send();
            }
            Self { adapters, qps: made.map(|(qp, _)| qp), now: Duration::ZERO }
        }

        /// What an adapter has to send.
        fn datagrams(&mut self, from: usize) -> Vec<Vec<u8>> {
            let mut all = Vec::new();
            let mut out = [0; DATAGRAM_MAX];
            while let Some(run) = self.adapters[from].poll_transmit(&mut out, 1, self.now) {
                assert_eq!(run.to, self.adapters[1 - from].address);
                assert_eq!(run.len, run.segment_len);
                all.push(out[..run.len].to_vec());
            }
            all
        }

        fn deliver(&mut self, from: usize, datagram: &[u8]) {
            let source = self.adapters[from].address;
            let datagram = received_from(source, PORTS[from], datagram);
            self.adapters[1 - from].handle_datagram(&datagram, self.now);
        }

        /// Until neither has anything to send.
        fn settle(&mut self) {
            loop {
                let all = [0, 1].map(|from| self.datagrams(from));
                if all.iter().all(Vec::is_empty) {
                    return;
                }
                for (from, datagrams) in all.iter().enumerate() {
                    datagrams.iter().for_each(|datagram| self.deliver(from, datagram));
                }
            }
        }

        fn events(&mut self, of: usize) -> Vec<Event> {
            let next = || self.adapters[of].poll_event().map(|(_, event)| event);
            std::iter::from_fn(next).collect()
        }

        fn send(&mut self, message: &[u8]) {
            let qp = self.adapters[0].queue_pair(self.qps[0]).unwrap();
            qp.post_send(1, message).unwrap();
        }
    }

    fn received_from(from: IpAddr, port: u16, bytes: &[u8]) -> Datagram<'_> {
        Datagram { from, port, index: 0, bytes }
    }

    fn received(bytes: &[u8]) -> Event {
        Event::Received(bytes.iter().copied().collect())
    }

    #[test]
    fn messages_and_writes_pass_by_both_families() {
        for family in [4, 6] {
            let mut pair = Pair::new(family);
            let (source, target) = (memory(5000), memory(5000));
            assert!(source.copy_in(0, &[7; 5000]));
            let at = pair.adapters[1].regions().register(Arc::clone(&target), pair.qps[1]);
            let qp = pair.adapters[0].queue_pair(pair.qps[0]).unwrap();
            qp.post_write(0, (&source, 0, 5000), (at.rkey, at.address)).unwrap();
            pair.send(b"it is there");
            pair.settle();
            assert_eq!(pair.events(1), [received(b"it is there")]);
            let done = |id| Event::Completed { id, result: Ok(()) };
            assert_eq!(pair.events(0), [done(0), done(1)]);
            let mut bytes = [0; 5000];
            assert!(target.copy_out(0, &mut bytes) && bytes == [7; 5000]);
            assert_eq!(pair.adapters[1].drops(), Drops::default());
        }
    }

    #[test]
    fn what_is_not_for_us_is_dropped_and_counted() {
        let mut pair = Pair::new(4);
        pair.send(b"hello");
        let [datagram] = &pair.datagrams(0)[..] else { panic!("not one datagram") };
        let [own, _] = addresses(4);
        let stranger = "10.0.0.3".parse().unwrap();
        let now = pair.now;
        let adapter = &mut pair.adapters[1];
        let mut damaged = datagram.clone();
        damaged[14] ^= 1;
        let mut misdirected = datagram.clone();
        misdirected[7] ^= 1;
        adapter.handle_datagram(&received_from(own, PORTS[0], &datagram[..10]), now);
        adapter.handle_datagram(&received_from(own, PORTS[0], &misdirected), now);
        adapter.handle_datagram(&received_from(stranger, PORTS[0], datagram), now);
        adapter.handle_datagram(&received_from(own, PORTS[0], &damaged), now);
        adapter.handle_datagram(&received_from(own, PORTS[1], datagram), now);
        let expected = Drops { malformed: 1, unknown_qp: 1, stranger: 1, damaged: 2 };
        assert_eq!(adapter.drops(), expected);
        assert!(pair.datagrams(1).is_empty() && pair.events(1).is_empty(), "and not answered");
        let datagram = datagram.clone();
        pair.deliver(0, &datagram);
        assert_eq!(pair.events(1), [received(b"hello")]);
    }

    #[test]
    fn the_peer_of_a_destroyed_queue_pair_is_refused_for_a_minute() {
        let mut pair = Pair::new(4);
        pair.send(b"before");
        pair.settle();
        pair.events(0);
        let (number, now) = (pair.qps[1], pair.now);
        pair.adapters[1].destroy(number, now);
        pair.send(b"after");
        pair.settle();
        let failure = Failure::Refused(Nak::InvalidRequest);
        let expected = [Event::Completed { id: 1, result: Err(failure) }, Event::Broken(failure)];
        assert_eq!(pair.events(0), expected);

        let mut late = Pair::new(4);
        let (number, now) = (late.qps[1], late.now);
        late.adapters[1].destroy(number, now);
        late.send(b"too late");
        let datagrams = late.datagrams(0);
        late.now = tombstones::LIFE;
        datagrams.iter().for_each(|datagram| late.deliver(0, datagram));
        assert!(late.datagrams(1).is_empty());
    }

    /// The peer is told nothing, and its packets of meanwhile come again.
    #[test]
    fn a_queue_pair_goes_on_in_another_adapter() {
        let mut pair = Pair::new(4);
        pair.send(b"before");
        assert_eq!(pair.adapters[0].at_rest(pair.qps[0]), None, "it has something to send");
        pair.settle();
        assert_eq!(pair.adapters[1].at_rest(pair.qps[1]), None, "it has something to tell");
        assert_eq!(pair.events(1), [received(b"before")]);
        let taken = pair.adapters[1].at_rest(pair.qps[1]).unwrap();
        assert!(!pair.adapters[1].put_in(&taken), "it is there");
        pair.adapters[1].take_out(taken.number);
        pair.send(b"meanwhile");
        pair.settle();

        let mut other = Adapter::new(addresses(4)[1], PORTS[1]);
        other.set_lane(taken.number.0[2].wrapping_add(1));
        let odd = AtRest { peer: Peer { mtu: 1000, ..taken.peer }, ..taken };
        let elsewhere = AtRest { address: "fd00::1".parse().unwrap(), ..taken };
        assert!(!other.put_in(&odd) && !other.put_in(&elsewhere));
        assert!(other.put_in(&taken));
        assert_eq!(other.lanes().len(), 2, "of those to come, and its own");
        pair.adapters[1] = other;
        pair.now = pair.adapters[0].poll_timeout().unwrap();
        pair.adapters[0].handle_timeout(pair.now);
        pair.settle();
        assert_eq!(pair.events(1), [received(b"meanwhile")]);
        let done = |id| Event::Completed { id, result: Ok(()) };
        assert_eq!(pair.events(0), [done(1), done(1)]);
        // It sends on where it was.
        pair.adapters[1].queue_pair(taken.number).unwrap().post_send(2, b"back").unwrap();
        pair.settle();
        assert_eq!(pair.events(0), [received(b"back")]);
    }

    #[test]
    fn a_message_that_is_coming_in_keeps_a_queue_pair() {
        let mut pair = Pair::new(4);
        pair.send(&[7; 3000]);
        let datagrams = pair.datagrams(0);
        pair.deliver(0, &datagrams[0]);
        assert_eq!(pair.adapters[1].at_rest(pair.qps[1]), None);
        datagrams[1..].iter().for_each(|datagram| pair.deliver(0, datagram));
        pair.events(1);
        assert!(pair.adapters[1].at_rest(pair.qps[1]).is_some());
    }

    #[test]
    fn a_tombstone_answers_twenty_times_a_second() {
        let mut pair = Pair::new(4);
        let (number, now) = (pair.qps[1], pair.now);
        pair.adapters[1].destroy(number, now);
        pair.send(b"?");
        let [datagram] = &pair.datagrams(0)[..] else { panic!("not one datagram") };
        let mut answers = 0;
        for ms in 0..1000 {
            pair.now = Duration::from_millis(ms);
            pair.deliver(0, datagram);
            answers += pair.datagrams(1).len();
        }
        assert_eq!(answers, 20);
    }

    #[test]
    fn a_peer_that_hears_only_the_first_of_each_run_is_noticed() {
        let mut pair = Pair::new(4);
        let (source, target) = (memory(60_000), memory(60_000));
        assert!(source.copy_in(0, &[7; 60_000]));
        let at = pair.adapters[1].regions().register(Arc::clone(&target), pair.qps[1]);
        let qp = pair.adapters[0].queue_pair(pair.qps[0]).unwrap();
        qp.post_write(0, (&source, 0, 60_000), (at.rkey, at.address)).unwrap();
        let mut out = vec![0; 1 << 16];
        while pair.events(0).is_empty() {
            let segments_max = if pair.adapters[0].loses_runs() { 1 } else { 64 };
            while let Some(run) = pair.adapters[0].poll_transmit(&mut out, segments_max, pair.now) {
                pair.deliver(0, &out[..run.segment_len]);
            }
            let answers = pair.datagrams(1);
            if answers.is_empty() {
                pair.now = pair.adapters[0].poll_timeout().unwrap();
                pair.adapters[0].handle_timeout(pair.now);
            }
            answers.iter().for_each(|answer| pair.deliver(1, answer));
        }
        assert!(pair.adapters[0].loses_runs());
        assert!(pair.now < Duration::from_secs(1), "{:?}", pair.now);
        let mut bytes = vec![0; 60_000];
        assert!(target.copy_out(0, &mut bytes) && bytes == [7; 60_000]);
    }

    #[test]
    fn queue_pairs_take_turns() {
        let mut pair = Pair::new(4);
        let (other, first_psn) = pair.adapters[0].create();
        let peer = Peer { qp: pair.qps[1], first_psn, mtu: 1024 };
        let address = addresses(4)[1];
        assert!(pair.adapters[0].ready_to_receive(other, address, peer));
        let first = pair.qps[0];
        for number in [first, other] {
            let qp = pair.adapters[0].queue_pair(number).unwrap();
            qp.ready_to_send();
            (0..3).for_each(|id| qp.post_send(id, b"").unwrap());
        }
        let mut out = [0; DATAGRAM_MAX];
        let mut psns = Vec::new();
        while let Some(run) = pair.adapters[0].poll_transmit(&mut out, 1, pair.now) {
            psns.push(Packet::parse(&out[..run.len]).unwrap().headers.bth.psn);
        }
        assert_eq!(psns.len(), 6);
        assert!(psns.windows(2).all(|two| two[0].plus(1) != two[1]), "{psns:?}");
    }
}
