//! A connection that is followed: both sides as they show themselves, and what one look finds.

use super::trail::{Found, Lane, Trail};
use crate::program::connection::{Connection, Place, Role};
use core::sync::atomic::{Ordering, fence};
use sidestep_device::onlooker::{self, View};
use sidestep_device::slab::{Record, flag};
use sidestep_device::way::Way;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::host::state_file::StateId;

/// Which connection it is: no other has the same as long as one of its processes lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TapId {
    pub(super) state: StateId,
    pub(super) place: Place,
}

/// Where following a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the first byte in shared memory.
    Start,
    /// With the next byte that is sent.
    Now,
    /// With the first byte that was not read yet.
    Unread,
}

/// A connection that is followed.
#[derive(Debug)]
pub struct Tap {
    pub(super) id: TapId,
    pub(super) begin: Begin,
    /// The end whose program was traced, and what is known of the other one.
    pub(super) ends: [Option<Connection>; 2],
    pub(super) sides: [Side; 2],
    /// From each side to the other.
    pub(super) directions: [Direction; 2],
}

/// What one side shows.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) view: Arc<View>,
    pub(super) slot: usize,
    /// The word of its phase while it is this connection's.
    pub(super) phase: u32,
    /// The state of its process, if that can be read.
    pub(super) state: Option<File>,
}

/// What goes from one side to the other.
#[derive(Debug)]
pub(super) struct Direction {
    /// Offset and length of its ring, in the slab of its sender.
    pub(super) ring: (u64, u32),
    pub(super) trail: Trail,
    /// Turns that were followed ([`sidestep_device::way`]).
    pub(super) turns: u32,
    /// Bytes that went by TCP before those of the ring that are told next.
    pub(super) by_tcp: u64,
    /// Offset in the TCP stream at which the ring was left last.
    pub(super) left_at: u64,
    /// Rings that the sender's process had handed out when this one was certainly its.
    pub(super) handed_out: Option<u64>,
    pub(super) is_over: bool,
}

/// What one look at a direction has found.
#[derive(Debug, PartialEq, Eq)]
pub struct Look<'a> {
    /// Bytes that went by TCP before what follows.
    pub by_tcp: u64,
    /// Bytes, after these, that were overwritten before they could be told.
    pub lost: u64,
    /// Offset of the first byte of `bytes` in the stream that the program sends.
    pub offset: u64,
    /// What was sent.
    pub bytes: &'a [u8],
    /// How many bytes the sender has read of the other direction, as far as those were told or lost.
    pub read: u64,
    /// The direction has ended behind the bytes.
    pub end: Option<End>,
    /// There was nothing else to be told.
    pub is_all: bool,
}

/// How a direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By `shutdown` or `close`, in order.
    InOrder,
    /// By a reset.
    Reset,
    /// What came last, and the end itself, were not seen.
    Unseen,
    /// Its words contradict each other, so it is followed no further.
    Strayed,
}

impl TapId {
    /// `None`: it has no slot, so it is not in shared memory.
    #[must_use]
    pub fn of(connection: &Connection) -> Option<Self> {
        Some(Self { state: connection.state, place: connection.place? })
    }
}

impl Tap {
    /// Which connection it is.
    #[must_use]
    pub fn id(&self) -> TapId {
        self.id
    }

    /// Where it was begun.
    #[must_use]
    pub fn begin(&self) -> Begin {
        self.begin
    }

    /// Which end has opened the connection.
    #[must_use]
    pub fn opener(&self) -> usize {
        let is_server = |end: &Connection| end.role == Role::Server;
        usize::from(self.ends[0].as_ref().is_some_and(is_server))
    }

    /// The end whose program was traced, and the other one, if it was seen.
    #[must_use]
    pub fn ends(&self) -> [Option<&Connection>; 2] {
        self.ends.each_ref().map(Option::as_ref)
    }

    /// Bytes that each end had sent before the first that can be told. What went by TCP before a connection was moved for
    /// the second time is not among them.
    #[must_use]
    pub fn before(&self) -> [u64; 2] {
        self.directions.each_ref().map(Direction::told)
    }

    /// Whether nothing more can come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.directions.iter().all(|direction| direction.is_over)
    }

    /// Looks at what end `from` has sent, for as many bytes as there is room. `None`: nothing is new.
    pub fn look<'a>(&mut self, from: usize, room: &'a mut [u8]) -> Option<Look<'a>> {
        let [sender, receiver] = [&self.sides[from], &self.sides[1 - from]];
        let direction = &mut self.directions[from];
        if direction.is_over {
            return None;
        }
        direction.handed_out = sender.handed_out_while_connected().or(direction.handed_out);
        let record = sender.record();
        // Acquire: a sender that says it is done has sent everything.
        let flags = record.sending.flags.load(Ordering::Acquire);
        let by_tcp = direction.follow(&record.sending.way);
        let before = direction.told();
        let lane =
            Ring { sender, receiver, ring: direction.ring, handed_out: direction.handed_out };
        let found = direction.trail.look(&lane, room);
        let is_connected = sender.is_connected();
        let (lost, told, end, is_all) = match found {
            Found::Bytes { lost, told, is_all, .. } => {
                let end = end_of(flags, is_connected).filter(|_| is_all);
                (lost, told, end, is_all)
            }
            Found::Gone => (0, 0, Some(End::Unseen), true),
            Found::Strayed => (0, 0, Some(End::Strayed), true),
        };
        direction.is_over = end.is_some();
        if by_tcp == 0 && lost == 0 && told == 0 && end.is_none() {
            return None;
        }
        let read = self.read_by(from);
        Some(Look { by_tcp, lost, offset: before + lost, bytes: &room[..told], read, end, is_all })
    }

    /// How many bytes of the other direction an end has read, as far as those were told or lost.
    fn read_by(&self, end: usize) -> u64 {
        let other = &self.directions[1 - end];
        let consumer = self.sides[end].record().receiving.consumer.claim();
        other.by_tcp + consumer.min(other.trail.position())
    }
}

/// What a sender that has nothing more to tell says of the end.
fn end_of(flags: u32, is_connected: bool) -> Option<End> {
    let has = |all: u32| flags & all == all;
    if has(flag::ABORT) || has(flag::CLOSED | flag::LINGER_ZERO) {
        return Some(End::Reset);
    }
    let is_done = flags & (flag::DONE | flag::CLOSED | flag::FIN_BY_TCP) != 0 || !is_connected;
    is_done.then_some(End::InOrder)
}

impl Side {
    fn record(&self) -> &Record {
        self.view.record(self.slot)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.record().identity.phase.load(Ordering::Acquire) == self.phase
    }

    /// Rings that its process has handed out; `None`: it does not tell.
    fn handed_out(&self) -> Option<u64> {
        onlooker::rings_handed_out(self.state.as_ref()?.as_raw_fd()).ok()
    }

    /// The same if the connection was there after that.
    fn handed_out_while_connected(&self) -> Option<u64> {
        self.handed_out().filter(|_| self.is_connected())
    }
}

impl Direction {
    pub(super) fn begin(begin: Begin, sender: &Side, receiver: &Side) -> Self {
        let Record { sending, identity, .. } = sender.record();
        let position = match begin {
            Begin::Start => 0,
            Begin::Now => sending.producer.claim(),
            Begin::Unread => receiver.record().receiving.consumer.claim(),
        };
        let mut direction = Self {
            ring: (
                identity.ring_at.load(Ordering::Relaxed),
                identity.ring_len.load(Ordering::Relaxed),
            ),
            trail: Trail::from(position),
            // Of a direction that has turned more than once it is not known what went by TCP.
            turns: match sending.way.turns() {
                0 | 1 => 0,
                more => more,
            },
            by_tcp: 0,
            left_at: 0,
            handed_out: sender.handed_out_while_connected(),
            is_over: false,
        };
        if begin != Begin::Start {
            direction.follow(&sending.way);
        }
        direction
    }

    /// Offset in the program's stream of the next byte that is told.
    fn told(&self) -> u64 {
        self.by_tcp.saturating_add(self.trail.position())
    }

    /// Follows the next turn, if there is one: the bytes that went by TCP since the last one.
    fn follow(&mut self, way: &Way) -> u64 {
        match way.next(self.turns) {
            Ok(None) => 0,
            Ok(Some(at)) => {
                self.turns = self.turns.wrapping_add(1);
                if self.turns.is_multiple_of(2) {
                    self.left_at = at;
                    return 0;
                }
                let by_tcp = at.saturating_sub(self.left_at);
                self.by_tcp = self.by_tcp.saturating_add(by_tcp);
                by_tcp
            }
            // Several between two looks: where the first of them were is not known any more.
            Err(_) => {
                self.turns = way.turns();
                0
            }
        }
    }
}

/// A direction, as a [`Trail`] looks at it.
struct Ring<'a> {
    sender: &'a Side,
    receiver: &'a Side,
    ring: (u64, u32),
    handed_out: Option<u64>,
}

impl Lane for Ring<'_> {
    fn len(&self) -> u64 {
        self.ring.1.into()
    }

    fn producer(&self) -> u64 {
        self.sender.record().sending.producer.claim()
    }

    fn consumer(&self) -> u64 {
        // Acquire: what was copied before is not read later than this cursor.
        fence(Ordering::Acquire);
        self.receiver.record().receiving.consumer.claim()
    }

    fn copy(&self, position: u64, room: &mut [u8]) -> bool {
        self.sender.view.copy(self.ring, position, room)
    }

    fn is_in_use(&self) -> bool {
        fence(Ordering::Acquire);
        self.sender.is_connected()
            || self.handed_out.is_some() && self.handed_out == self.sender.handed_out()
    }
}

#[cfg(test)]
mod tests {
    use super::super::finder::Finder;
    use super::*;
    use crate::fixture::{Maker, alone, set, set8};
    use crate::holds::Whose;
    use sidestep_device::copy::Manner;
    use sidestep_device::slab::{self, RINGS_AT, Slab, phase};
    use sidestep_device::state::{Slot, mode};
    use sidestep_device::{map, sys};

    const RING: (u64, u32) = (RINGS_AT as u64, 32 << 10);
    const PEER_SLOT: usize = 9000;
    const GENERATION: u32 = 7;

    /// A connection of this process, whose peer has given it a slab. Tests have slots of their own, because they share
    /// the process.
    struct Scene {
        maker: Maker,
        slot: &'static Slot,
        slabs: [Slab; 2],
        slots: [usize; 2],
        fds: [i32; 2],
    }

    impl Scene {
        fn new(port: u16) -> Self {
            let maker = Maker::new(sys::pid());
            let slots = [usize::from(port), PEER_SLOT];
            let slot = maker.connect(slots[0], (port, 40_000), mode::SMC_D);
            set(&slot.generation, GENERATION);
            set8(&slot.is_server, 1);
            let [(ours, own), (theirs, fd)] = [(); 2].map(|()| slab::create().unwrap());
            let given = map::read_only_twin(fd).unwrap();
            sys::close(fd);
            let scene = Self { maker, slot, slabs: [ours, theirs], slots, fds: [own, given] };
            for (at, word) in [(0, phase::ACCEPTED), (1, phase::CONFIRMED)] {
                let identity = &scene.record(at).identity;
                set(&identity.peer_slot, slots[1 - at] as u32);
                identity.ring_at.store(RING.0, Ordering::Relaxed);
                set(&identity.ring_len, RING.1);
                set(&identity.phase, GENERATION << 8 | word);
            }
            scene
        }

        fn record(&self, side: usize) -> &'static Record {
            self.slabs[side].record(self.slots[side])
        }

        fn send(&self, side: usize, bytes: &[u8]) {
            let producer = &self.record(side).sending.producer;
            let from = producer.position();
            let ring = self.slabs[side].ring(RING.0, RING.1).unwrap();
            ring.write(from, bytes, Manner::Cached);
            assert!(producer.publish(from, from + bytes.len() as u64));
        }

        fn receive(&self, side: usize, n: u64) {
            let consumer = &self.record(side).receiving.consumer;
            assert!(consumer.publish(consumer.position(), consumer.position() + n));
        }

        fn finder(&self, begin: Begin) -> Finder {
            Finder::new(Whose::Port(self.slots[0] as u16), begin)
        }

        fn tap(&self, begin: Begin) -> Tap {
            let _alone = alone();
            let finding = self.finder(begin).find().unwrap();
            let missed = finding.missed;
            let [tap] = finding.taps.try_into().unwrap_or_else(|_| panic!("{missed} missed"));
            tap
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            self.fds.into_iter().for_each(sys::close);
            // SAFETY: tests keep nothing of them.
            self.slabs.into_iter().for_each(|slab| unsafe { slab.unmap() });
        }
    }

    #[test]
    fn one_end_shows_both_directions_at_their_places_in_the_streams() {
        let scene = Scene::new(8101);
        scene.record(0).sending.way.turn(1, 70);
        scene.send(0, b"before");
        let mut tap = scene.tap(Begin::Now);
        assert_eq!(tap.before(), [76, 0]);
        let mut room = [0; 64];
        assert_eq!(tap.look(0, &mut room), None);
        scene.send(0, b"hello");
        scene.send(1, b"answer");
        scene.receive(0, 4);
        let [first, second] = [0, 1].map(|from| {
            let mut room = [0; 64];
            let look = tap.look(from, &mut room).unwrap();
            assert!(look.is_all && look.end.is_none() && look.lost == 0);
            (look.offset, look.bytes.to_vec(), look.read)
        });
        // Of the answer nothing was told yet when the first was looked at.
        assert_eq!(first, (76, b"hello".to_vec(), 0));
        assert_eq!(second, (0, b"answer".to_vec(), 70));
        let [Some(traced), None] = tap.ends() else { panic!("{:?}", tap.ends()) };
        assert_eq!(tap.opener(), 1, "it has accepted");
        assert_eq!(TapId::of(traced), Some(tap.id()));
    }

    #[test]
    fn what_goes_by_tcp_in_between_is_counted() {
        let scene = Scene::new(8102);
        let way = &scene.record(0).sending.way;
        let mut tap = scene.tap(Begin::Start);
        let mut look = || tap.look(0, &mut [0; 64]).map(|look| (look.by_tcp, look.offset));
        way.turn(1, 100);
        scene.send(0, b"12345");
        assert_eq!(look(), Some((100, 100)));
        way.turn(2, 130);
        assert_eq!(look(), None);
        way.turn(3, 190);
        scene.send(0, b"67");
        assert_eq!(look(), Some((60, 165)));
    }

    #[test]
    fn what_is_not_read_yet_can_be_asked_for() {
        let scene = Scene::new(8103);
        scene.send(1, b"read, and unread");
        scene.receive(0, 6);
        let mut tap = scene.tap(Begin::Unread);
        let mut room = [0; 64];
        let look = tap.look(1, &mut room).unwrap();
        assert_eq!((look.offset, look.bytes), (6, &b"and unread"[..]));
    }

    #[test]
    fn last_bytes_count_as_long_as_no_ring_has_passed_to_another_connection() {
        for (port, is_handed_out) in [(8104, false), (8105, true)] {
            let scene = Scene::new(port);
            let mut tap = scene.tap(Begin::Start);
            assert_eq!(tap.look(0, &mut [0; 64]), None);
            scene.send(0, b"last");
            set(&scene.record(0).identity.phase, phase::DETACHED);
            let rings = &scene.maker.state.header().rings[0].reused;
            rings.fetch_add(u64::from(is_handed_out), Ordering::Relaxed);
            let mut room = [0; 64];
            let look = tap.look(0, &mut room).unwrap();
            let expected = match is_handed_out {
                false => (&b"last"[..], Some(End::InOrder)),
                true => (&b""[..], Some(End::Unseen)),
            };
            assert_eq!((look.bytes, look.end), expected);
            assert!(tap.look(0, &mut [0; 64]).is_none() && !tap.is_over());
        }
    }

    #[test]
    fn an_end_is_told_when_everything_before_it_was() {
        let scene = Scene::new(8106);
        let mut tap = scene.tap(Begin::Start);
        scene.send(0, b"12345");
        set(&scene.record(0).sending.flags, flag::DONE);
        set(&scene.record(1).sending.flags, flag::CLOSED | flag::LINGER_ZERO);
        let mut look = |from| tap.look(from, &mut [0; 3]).map(|look| (look.bytes.len(), look.end));
        assert_eq!(look(0), Some((3, None)));
        assert_eq!(look(0), Some((2, Some(End::InOrder))));
        assert_eq!(look(1), Some((0, Some(End::Reset))));
        assert!(tap.is_over());
    }

    #[test]
    fn a_connection_is_found_once_and_its_end_is_said() {
        let _alone = alone();
        let scene = Scene::new(8107);
        let mut finder = scene.finder(Begin::Now);
        let first = finder.find().unwrap();
        let id = first.taps[0].id();
        assert!(first.counters.contains_key(&id) && first.refused.is_empty());
        let again = finder.find().unwrap();
        assert!(again.taps.is_empty() && again.gone.is_empty());
        set(&scene.slot.mode, mode::FREE);
        assert_eq!(finder.find().unwrap().gone, [id]);
    }

    #[test]
    fn a_connection_whose_memory_is_not_to_be_found_is_missed() {
        let _alone = alone();
        let scene = Scene::new(8108);
        set(&scene.record(1).identity.peer_slot, 1);
        let finding = scene.finder(Begin::Now).find().unwrap();
        assert_eq!((finding.taps.len(), finding.missed), (0, 1));
        // A ring that is none.
        set(&scene.record(1).identity.peer_slot, scene.slots[0] as u32);
        set(&scene.record(1).identity.ring_len, 3);
        let finding = scene.finder(Begin::Now).find().unwrap();
        assert_eq!((finding.taps.len(), finding.missed), (0, 1));
    }
}
