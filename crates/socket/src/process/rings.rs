//! The rings of a link group: which of ours are free, and which the peer has named in its own slab.

use crate::process::instance::Process;
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sidestep_device::ring::{LAPS, Ring};
use sidestep_device::slab::{RINGS_AT, SLAB_LEN};
use sidestep_device::sparse::Sparse;
use sidestep_proto::fallback::{Field, Lack, OperatorSaid, Reason};
use sidestep_wire::RmbeSize;

/// Which rings of our slab are free. Nothing of this lies in the slab, which a process of our own
/// user can write if it wants to (docs/threat-model.md): no two connections are given one ring.
pub(crate) struct Rings {
    /// Taken to change what follows it.
    lock: SharedLock,
    next: AtomicUsize,
    /// Offset of the first free ring of each size code, linked through [`Self::places`];
    /// 0 = none.
    free: [AtomicUsize; RmbeSize::CODE_MAX as usize + 1],
    /// What is known of each place of either slab.
    places: Sparse<AtomicU32, PLACES>,
    /// Bytes of the peer's slab in which it has named rings.
    named: AtomicU64,
    /// The most connections that there were at once.
    most: AtomicU32,
}

/// Bytes of a place: a ring of the smallest size begins at each.
const PLACE: usize = LAPS * (32 << 10);

/// Places of a slab.
pub(crate) const PLACES: usize = (SLAB_LEN - RINGS_AT) / PLACE;

/// In a place's word: the peer has named a ring there. Below lies, for the first place of a free
/// ring of ours, the place of the next one + 1, 0 = none.
const NAMED: u32 = 1 << 31;

/// A peer that keeps to the rules uses rings again, and names no more than its connections need. It
/// may be late to know that one is free, so it may name so many bytes at first, and then so many
/// times what the most connections at once have had.
const NAMED_FIRST: u64 = 16 << 20;

const NAMED_TIMES: u64 = 4;

/// Bytes at the beginning of a ring that keep their memory while it is free, so that the next connection finds them warm.
/// One that has sent more has taken longer to fill the rest than it takes to give that back, and what a burst of long
/// connections has filled is not kept for as long as the link group lives.
const WARM: usize = 64 << 10;

/// Bytes of memory that a ring of this size takes.
fn memory_of(size: RmbeSize) -> usize {
    size.bytes() * LAPS
}

/// In the word that a process keeps of a slot's ring: its size code, below its offset.
const CODES: usize = 0xf;

pub(crate) fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A ring to send through was taken.
fn took_ring(process: &Process, size: RmbeSize, is_fresh: bool) {
    let rings = &process.state.header().rings[usize::from(size.code())];
    add_one(if is_fresh { &rings.fresh } else { &rings.reused });
}

/// What a process keeps of a slot's ring: its size code, below its offset.
pub(super) fn word(offset: usize, size: RmbeSize) -> usize {
    offset | usize::from(size.code())
}

/// Of a ring that is about to be free, as its [`word`] says, and into which so many bytes were written: the offset and the
/// length of what does not stay [warm](WARM). `None`: nothing.
pub(super) fn beyond_warm(ring: usize, written: u64) -> Option<(usize, usize)> {
    let (offset, code) = (ring & !CODES, ring & CODES);
    let memory = memory_of(RmbeSize::from_low_bits(code as u8));
    let filled = usize::try_from(written).unwrap_or(usize::MAX).min(memory);
    (offset != 0 && filled > WARM).then(|| (offset + WARM, filled - WARM))
}

impl Rings {
    pub(super) fn new() -> Self {
        Self {
            lock: SharedLock::new(),
            next: AtomicUsize::new(RINGS_AT),
            free: Default::default(),
            places: Sparse::new(),
            named: AtomicU64::new(0),
            most: AtomicU32::new(0),
        }
    }

    /// Takes a ring of this size out of our slab: its offset.
    ///
    /// # Errors
    /// A limit of the operator, or no room in the slab.
    pub(super) fn take(&self, process: &Process, size: RmbeSize) -> Result<usize, Reason> {
        let _held = Held::enter(self.lock.get());
        let first = &self.free[usize::from(size.code())];
        let offset = first.load(Ordering::Relaxed);
        if offset != 0 {
            let word =
                self.place((offset - RINGS_AT) / PLACE).ok_or(Reason::Lack(Lack::NoMemory))?;
            let next = word.fetch_and(NAMED, Ordering::Relaxed) & !NAMED;
            let next = next.checked_sub(1).map_or(0, |place| RINGS_AT + place as usize * PLACE);
            first.store(next, Ordering::Relaxed);
            took_ring(process, size, false);
            return Ok(offset);
        }
        let offset = self.next.load(Ordering::Relaxed);
        if offset + memory_of(size) > SLAB_LEN {
            return Err(Reason::Lack(Lack::NoMemory));
        }
        if !process.budget.take(memory_of(size)) {
            return Err(Reason::Operator(OperatorSaid::MemoryLimit));
        }
        self.next.store(offset + memory_of(size), Ordering::Relaxed);
        took_ring(process, size, true);
        Ok(offset)
    }

    /// A ring of ours, as its [`word`] says, is free and warm.
    pub(super) fn give(&self, ring: usize) {
        let (offset, code) = (ring & !CODES, ring & CODES);
        if offset != 0 {
            let _held = Held::enter(self.lock.get());
            // Without memory to say that it is free, the ring is not used again.
            if let Some(word) = self.place((offset - RINGS_AT) / PLACE) {
                let first = &self.free[code];
                let next = first.load(Ordering::Relaxed).checked_sub(RINGS_AT);
                let next = next.map_or(0, |next| next / PLACE + 1);
                word.fetch_or(next as u32, Ordering::Relaxed);
                first.store(offset, Ordering::Relaxed);
            }
        }
    }

    /// The peer names a ring of its slab for a connection of ours. Where it has never written, we
    /// pay for what we read: so it may not name ever more of them. `connections`: how many there are, this one
    /// included.
    ///
    /// # Errors
    /// It has named too many, or more than the operator allows.
    pub(super) fn admit(
        &self,
        process: &Process,
        connections: u32,
        at: u64,
        ring: &Ring,
    ) -> Result<(), Reason> {
        let first = (at as usize - RINGS_AT) / PLACE;
        let last = (at as usize - RINGS_AT + ring.memory_len() - 1) / PLACE;
        // A bit for each: the longest ring takes 32 places, or 33 if it begins between two.
        let mut new = 0u64;
        for place in first..=last {
            let word = self.place(place).ok_or(Reason::Lack(Lack::NoMemory))?;
            let was_named = word.fetch_or(NAMED, Ordering::Relaxed) & NAMED != 0;
            new |= u64::from(!was_named) << (place - first);
        }
        if new == 0 {
            return Ok(());
        }
        let bytes = u64::from(new.count_ones()) * PLACE as u64;
        let most = self.most.fetch_max(connections, Ordering::Relaxed).max(connections);
        let most = u64::from(most);
        let named = self.named.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_too_much = named > NAMED_FIRST + NAMED_TIMES * most * ring.memory_len() as u64;
        let objection = if is_too_much {
            Some(Reason::PeerBroke(Field::RINGS_NAMED))
        } else if !process.budget.take_incoming(bytes) {
            Some(OperatorSaid::MemoryLimit.into())
        } else {
            None
        };
        if let Some(reason) = objection {
            self.named.fetch_sub(bytes, Ordering::Relaxed);
            for place in (first..=last).filter(|place| new >> (place - first) & 1 != 0) {
                if let Some(word) = self.place(place) {
                    word.fetch_and(!NAMED, Ordering::Relaxed);
                }
            }
            return Err(reason);
        }
        Ok(())
    }

    /// The link group ends: nothing is taken any more.
    pub(super) fn give_all_back(&self, process: &Process) {
        process.budget.give_back(self.next.load(Ordering::Relaxed) - RINGS_AT);
        process.budget.give_incoming_back(self.named.load(Ordering::Relaxed));
    }

    fn place(&self, place: usize) -> Option<&AtomicU32> {
        self.places.writable(place)
    }
}

const _: () = assert!(PLACES < NAMED as usize);

const _: () = assert!((RmbeSize::CODE_MAX as usize) < CODES && RINGS_AT.is_multiple_of(CODES + 1));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::clc;
    use crate::process::group::{Group, PeerUse};
    use crate::process::groups::{self, Look};
    use crate::process::home::tests::alone;
    use crate::process::home::{self, Home};
    use sidestep_device::channel::SLOTS;
    use sidestep_device::copy::Manner;
    use sidestep_wire::host_control::Instance;
    use std::sync::Barrier;

    /// The group of this process with itself: one test at a time has it.
    fn own_group(process: &'static Home) -> &'static Group {
        groups::with(&Look::at(process), process.instance).unwrap()
    }

    #[test]
    fn no_two_connections_are_given_one_ring_whatever_is_in_the_slab() {
        let _alone = alone();
        let group = own_group(home::current().unwrap());
        let size = RmbeSize::from_bytes(64 << 10).unwrap();
        let take = |index| group.take_ring(index, size).unwrap();
        let [(first, ring), (second, _)] = [SLOTS - 1, SLOTS - 2].map(take);
        // Another process has written to our record, and to the ring when it was free.
        let identity = &group.record(SLOTS - 1).identity;
        identity.ring_at.store(second, Ordering::Relaxed);
        identity.ring_len.store(64 << 10, Ordering::Relaxed);
        group.forget_connection(SLOTS - 1, PeerUse::Over);
        ring.write(0, &second.to_ne_bytes(), Manner::Cached);
        let [(third, _), (fourth, _)] = [SLOTS - 3, SLOTS - 4].map(take);
        assert_eq!(third, first, "it is free, and warm");
        assert!(![first, second].contains(&fourth));
        (SLOTS - 4..SLOTS - 1)
            .rev()
            .for_each(|index| group.forget_connection(index, PeerUse::Over));
        let again = [SLOTS - 1, SLOTS - 2, SLOTS - 3].map(|index| take(index).0);
        assert_eq!(again, [fourth, third, second]);
        (SLOTS - 3..SLOTS).for_each(|index| group.forget_connection(index, PeerUse::Over));
    }

    const PAGE: usize = 4 << 10;

    /// Pages of a ring that have memory.
    fn pages(ring: &Ring) -> usize {
        let (at, len) = ring.memory();
        let mut pages = vec![0u8; len / PAGE];
        // SAFETY: a byte for each page.
        let asked = unsafe { libc::mincore(at.cast_mut().cast(), len, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn a_free_ring_keeps_the_memory_that_a_short_connection_needs() {
        let _alone = alone();
        let group = own_group(home::current().unwrap());
        let index = SLOTS - 1;
        let size = RmbeSize::from_bytes(256 << 10).unwrap();
        let memory = memory_of(size) as u64;
        let warm = WARM as u64;
        // The last is as long as a connection of days.
        for (written, kept) in
            [(warm / 2, warm / 2), (warm, warm), (warm + 1, warm), (memory, warm), (1 << 50, warm)]
        {
            let (_, ring) = group.take_ring(index, size).unwrap();
            let producer = &group.record(index).sending.producer;
            producer.reset();
            for at in (0..written.min(memory)).step_by(PAGE) {
                ring.write(at, &[1], Manner::Cached);
            }
            assert!(producer.publish(0, written));
            assert_eq!(pages(&ring), written.min(memory).div_ceil(PAGE as u64) as usize);
            group.forget_connection(index, PeerUse::Over);
            assert_eq!(pages(&ring), kept as usize / PAGE, "{written} bytes");
            group.slab().give_back(RINGS_AT, WARM);
        }
    }

    /// As after the replacement of a gateway: the peer is dead, and its successor reads on.
    #[test]
    fn a_ring_that_a_dead_peer_has_not_left_stays_as_it_is() {
        let _alone = alone();
        let dead = Instance([0xDE; 16]);
        let group = groups::with(&Look::at(home::current().unwrap()), dead).unwrap();
        let [index, next] = [SLOTS - 1, SLOTS - 2];
        let size = RmbeSize::from_bytes(256 << 10).unwrap();
        let (at, ring) = group.take_ring(index, size).unwrap();
        let memory = memory_of(size);
        (0..memory).step_by(PAGE).for_each(|at| ring.write(at as u64, &[1], Manner::Cached));
        assert!(group.record(index).sending.producer.publish(0, memory as u64));
        let peer = clc::peer_use_of(group, index);
        assert_eq!(peer, PeerUse::Inherited);
        group.forget_connection(index, peer);
        assert_eq!(pages(&ring), memory / PAGE);
        assert_ne!(group.take_ring(next, size).unwrap().0, at, "no other connection gets it");
        group.forget_connection(next, PeerUse::Over);
    }

    #[test]
    fn a_peer_names_no_more_rings_than_its_connections_need() {
        let _alone = alone();
        let group = own_group(home::current().unwrap());
        let len = LAPS * (64 << 10);
        let name = |n: usize| {
            let at = (RINGS_AT + n * len) as u64;
            group.admit(at, &group.slab().ring(at, 64 << 10).unwrap())
        };
        let allowed = (0..).take_while(|n| name(*n).is_ok()).count();
        assert_eq!(allowed, (NAMED_FIRST as usize + NAMED_TIMES as usize * len) / len);
        let breach = Reason::PeerBroke(Field::RINGS_NAMED);
        assert_eq!(name(allowed), Err(breach), "no limit of the operator's is reached");
        assert_eq!(name(allowed), Err(breach), "and again");
        assert_eq!(name(0), Ok(()), "what it had before it may have again");
        // With more connections at once it may name more.
        let size = RmbeSize::from_bytes(64 << 10).unwrap();
        for index in SLOTS - 2..SLOTS {
            group.take_ring(index, size).unwrap();
        }
        assert_eq!(name(allowed), Ok(()));
        (SLOTS - 2..SLOTS).for_each(|index| group.forget_connection(index, PeerUse::Over));
    }

    const THREADS: usize = 4;
    /// Of so many, some meet on two CPUs.
    const ROUNDS: usize = 500_000;

    #[test]
    fn rings_that_threads_take_and_give_at_once_never_overlap() {
        let _alone = alone();
        let (process, rings) = (own_group(home::current().unwrap()).process, Rings::new());
        let sizes = [32 << 10, 64 << 10, 256 << 10].map(|len| RmbeSize::from_bytes(len).unwrap());
        let holders: Vec<AtomicUsize> = (0..PLACES).map(|_| AtomicUsize::new(0)).collect();
        let together = Barrier::new(THREADS);
        let lives = |thread: usize| {
            together.wait();
            for round in 0..ROUNDS {
                let size = sizes[(thread + round) % sizes.len()];
                let at = rings.take(process, size).unwrap();
                let places = &holders[(at - RINGS_AT) / PLACE..][..memory_of(size) / PLACE];
                for holder in places {
                    assert_eq!(holder.swap(thread, Ordering::Relaxed), 0, "ring at {at}");
                }
                for holder in places {
                    assert_eq!(holder.swap(0, Ordering::Relaxed), thread, "ring at {at}");
                }
                rings.give(word(at, size));
            }
        };
        std::thread::scope(|scope| {
            let lives = &lives;
            (1..=THREADS).for_each(|thread| _ = scope.spawn(move || lives(thread)));
        });
        rings.give_all_back(process);
    }

    /// Threads for which a peer names one ring at the same time count it once, and one that is refused is not counted.
    #[test]
    fn what_a_peer_names_to_threads_at_once_is_counted_once() {
        let _alone = alone();
        let group = own_group(home::current().unwrap());
        let rings = Rings::new();
        const LENS: [usize; 3] = [32 << 10, 64 << 10, 512 << 10];
        /// More than a peer may name, so that some of it is refused.
        const SPAN: usize = 2 * NAMED_FIRST as usize;
        let together = Barrier::new(THREADS);
        let names = |thread: usize| {
            together.wait();
            for round in 0..ROUNDS {
                let len = LENS[round % LENS.len()];
                let at = (RINGS_AT + (round / 2 + thread) * 7 * PLACE % SPAN) as u64;
                let ring = group.slab().ring(at, len as u32).unwrap();
                let named = rings.admit(group.process, 1, at, &ring);
                let breach = Err(Reason::PeerBroke(Field::RINGS_NAMED));
                assert!([Ok(()), breach].contains(&named), "{named:?}");
            }
        };
        std::thread::scope(|scope| {
            let names = &names;
            (0..THREADS).for_each(|thread| _ = scope.spawn(move || names(thread)));
        });
        let words = (0..PLACES).filter_map(|place| rings.places.get(place));
        let named = words.filter(|word| word.load(Ordering::Relaxed) & NAMED != 0).count();
        assert_eq!(rings.named.load(Ordering::Relaxed), (named * PLACE) as u64);
        assert!(named * PLACE >= NAMED_FIRST as usize, "so much it may name");
        rings.give_all_back(group.process);
    }
}
