//! The state of another process, read without touching it.
//!
//! A state is sparse, and its program may leave as much of it sparse as it likes. A page that does
//! not exist yet is made when a process *touches* it, if only to read it through a mapping, and the
//! kernel charges the page to that process: a reader could be made to pay for megabytes that no
//! program ever wrote. `pread` finds zeroes there and makes no page. So a state is read by system
//! calls, into memory of the reader's own, and one mirror serves for any number of states, one after
//! the other.
//!
//! ```text
//!   state    ###.......#........####......     # a page   . none
//!            | |       |        |  |           a stretch without pages is not even read
//!   mirror   ### 0 0 0 # 0 0 0  #### 0 0
//! ```
//!
//! Its program goes on meanwhile, so what belongs together is read several times, until one look
//! shows it at one moment:
//!
//! * a slot of one connection: its generation is the same before and after;
//! * a place of untracked connections: its words are the same before and after, and none is ending;
//! * all of it, so that each connection is in the sums or in a slot: no slot was freed between the
//!   first byte and the last.
//!
//! How much that costs is the program's doing, so every byte is taken out of an allowance that the
//! reader gives.

use crate::channel::SLOTS;
use crate::map::{self, Mapping};
use crate::state::{self, Header, Slot, State, mode};
use crate::sys::{self, Errno, Result};
use crate::untracked::{UNTRACKED_MAX, Untracked};
use core::ops::Range;
use core::sync::atomic::{Ordering, fence};

/// See the [module](self). Reserves address space; memory is taken for what was read last.
pub struct Mirror {
    copy: Mapping,
    /// Two pieces more: what was read before the piece that is kept, and after it.
    looks: Mapping,
}

/// Why a state was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRead {
    /// The file is not a state of this version.
    Other,
    /// The allowance is used up.
    Beyond,
}

/// Bytes that are read at once: a whole number of slots, of untracked places and of pages.
const PIECE: usize = 44 << 10;
const _: () = assert!(PIECE.is_multiple_of(size_of::<Slot>()));
const _: () = assert!(PIECE.is_multiple_of(size_of::<Untracked>()));
const _: () = assert!(size_of::<Header>() <= PIECE);

/// Looks at something that changes meanwhile. Twice in a row is rare already: a connection lives
/// longer than a look.
const LOOKS_MAX: usize = 8;

impl Mirror {
    /// An empty one.
    ///
    /// # Errors
    /// `ENOMEM` as the kernel says.
    pub fn new() -> Result<Self> {
        let copy = map::reserve(state::STATE_LEN)?;
        // SAFETY: the mapping is known here alone.
        let looks = map::reserve(2 * PIECE).inspect_err(|_| unsafe { copy.unmap() })?;
        Ok(Self { copy, looks })
    }

    /// Reads the state behind `fd`, as far as it is used, and takes what that costs out of `left`:
    /// bytes that may still be read. What the mirror shows is valid until the next call.
    ///
    /// Slots of which no look was of one moment are free in it. A process that frees slots all the
    /// time, or died while it freed one, may have a connection in the sums and in a slot, or in
    /// neither.
    ///
    /// # Errors
    /// See [`NotRead`].
    pub fn read(&mut self, fd: i32, left: &mut u64) -> core::result::Result<&State, NotRead> {
        map::check(fd, state::STATE_LEN)?;
        let mut reading = Reading { fd, mirror: self, left, data_from: 0 };
        for _ in 0..LOOKS_MAX {
            if reading.all()? {
                break;
            }
        }
        // SAFETY: the mapping is as long as a state, and holds atomics only.
        Ok(unsafe { State::at(&self.copy) })
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: references into the copy do not outlive the borrow of `self` in `read`, by
        // which they were given.
        unsafe {
            self.copy.unmap();
            self.looks.unmap();
        }
    }
}

/// A state that is being read.
struct Reading<'a> {
    fd: i32,
    mirror: &'a Mirror,
    left: &'a mut u64,
    /// Nothing lies between where was asked last and here.
    data_from: usize,
}

type Answer<T = ()> = core::result::Result<T, NotRead>;

impl From<Errno> for NotRead {
    fn from(_: Errno) -> Self {
        Self::Other
    }
}

impl Reading<'_> {
    /// Reads all of it once. True: as it was at one moment.
    fn all(&mut self) -> Answer<bool> {
        self.data_from = 0;
        // The mirror shows nothing of what it showed before.
        sys::advise(self.mirror.copy.at(0, 0), self.mirror.copy.len(), libc::MADV_DONTNEED)?;
        self.fill(0..state::SLOTS_AT)?;
        // SAFETY: as in `Mirror::read`.
        let state = unsafe { State::at(&self.mirror.copy) };
        if !state.is_of_this_version() {
            return Err(NotRead::Other);
        }
        let header = state.header();
        self.each(
            state::SLOTS_AT,
            (header.slots_used.load(Ordering::Relaxed) as usize).min(SLOTS),
            |slot: &Slot| slot.mode.load(Ordering::Relaxed) != mode::FREE,
            |before, after| {
                let generation = |slot: &Slot| slot.generation.load(Ordering::Relaxed);
                generation(before) == generation(after)
            },
            |slot| slot.mode.store(mode::FREE, Ordering::Relaxed),
        )?;
        self.each(
            state::UNTRACKED_AT,
            (header.untracked_used.load(Ordering::Relaxed) as usize).min(UNTRACKED_MAX),
            |untracked: &Untracked| !untracked.is_blank(),
            Untracked::is_of_one_moment,
            // What was read last: as much as there was to see.
            |_| {},
        )?;
        let after = self.look(0, 0, size_of::<Header>())?;
        // SAFETY: `look` has put a header there, aligned as its mapping is.
        let after: &Header = unsafe { &*after.cast() };
        Ok(header.is_in_peace_until(after))
    }

    /// Copies a stretch.
    fn fill(&mut self, stretch: Range<usize>) -> Answer {
        for at in stretch.clone().step_by(PIECE) {
            let len = PIECE.min(stretch.end - at);
            if self.has_data(at, len)? {
                self.pread(at, self.mirror.copy.at(at, len), len)?;
            }
        }
        Ok(())
    }

    /// Copies `count` things that lie in a row from `at` on, each as it was at one moment, which
    /// a look before and one after it show. Those that never stand still are given up.
    fn each<T: 'static>(
        &mut self,
        at: usize,
        count: usize,
        is_used: impl Fn(&T) -> bool,
        is_of_one_moment: impl Fn(&T, &T) -> bool,
        give_up: impl Fn(&T),
    ) -> Answer {
        let (end, mirror) = (at + count * size_of::<T>(), self.mirror);
        let thing = |at: *mut u8| -> &T {
            // SAFETY: inside a mapping of ours, a multiple of its length from an aligned place, and
            // made of atomics.
            unsafe { &*at.cast() }
        };
        for piece in (at..end).step_by(PIECE) {
            let len = PIECE.min(end - piece);
            if !self.has_data(piece, len)? {
                continue;
            }
            let before = self.look(0, piece, len)?;
            let places = (0..len).step_by(size_of::<T>());
            if !places.clone().any(|place| is_used(thing(before.wrapping_add(place)))) {
                continue;
            }
            self.pread(piece, mirror.copy.at(piece, len), len)?;
            let after = self.look(1, piece, len)?;
            for place in places {
                let copied = mirror.copy.at(piece + place, size_of::<T>());
                let [before, after] = [before, after].map(|look| look.wrapping_add(place));
                let is_settled =
                    || !is_used(thing(copied)) || is_of_one_moment(thing(before), thing(after));
                let three = [before, copied, after];
                if !self.settle(piece + place, three, size_of::<T>(), is_settled)? {
                    give_up(thing(copied));
                }
            }
        }
        Ok(())
    }

    /// Reads one thing three times, in this order, until it is settled. False: it never was.
    fn settle(
        &mut self,
        at: usize,
        three: [*mut u8; 3],
        len: usize,
        is_settled: impl Fn() -> bool,
    ) -> Answer<bool> {
        for _ in 1..LOOKS_MAX {
            if is_settled() {
                return Ok(true);
            }
            for to in three {
                self.pread(at, to, len)?;
                // Acquire: what is read next is read later.
                fence(Ordering::Acquire);
            }
        }
        Ok(is_settled())
    }

    /// Reads a piece to one of the two places for looks.
    fn look(&mut self, which: usize, at: usize, len: usize) -> Answer<*mut u8> {
        // Acquire: what was read before was read earlier.
        fence(Ordering::Acquire);
        let place = self.mirror.looks.at(which * PIECE, len);
        self.pread(at, place, len)?;
        fence(Ordering::Acquire);
        Ok(place)
    }

    /// Whether there is a page between `at` and `len` bytes further.
    fn has_data(&mut self, at: usize, len: usize) -> Answer<bool> {
        if self.data_from <= at {
            self.data_from = sys::next_data(self.fd, at)?.unwrap_or(usize::MAX);
        }
        Ok(self.data_from < at + len)
    }

    fn pread(&mut self, at: usize, to: *mut u8, len: usize) -> Answer {
        *self.left = self.left.checked_sub(len as u64).ok_or(NotRead::Beyond)?;
        // SAFETY: callers give `len` bytes of the mirror's own memory, which holds atomics only.
        match unsafe { sys::pread(self.fd, to, len, at as i64) }? {
            n if n == len => Ok(()),
            // No state is shorter: its length is sealed.
            _ => Err(NotRead::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::LISTS;
    use crate::map::Created;
    use crate::untracked::About;
    use core::sync::atomic::{AtomicU32, AtomicU64};

    const ALL: u64 = u64::MAX;

    struct Made(State, i32);

    impl Made {
        fn new() -> Self {
            let (state, fd) = state::create(1, [2, 3]).unwrap();
            Self(state, fd)
        }

        /// KiB that exist of it.
        fn kib(&self) -> i64 {
            kib(self.1)
        }

        /// Says that all of it is used.
        fn claim_everything(&self) {
            let header = self.0.header();
            header.slots_used.store(u32::MAX, Ordering::Relaxed);
            header.untracked_used.store(u32::MAX, Ordering::Relaxed);
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            sys::close(self.1);
            // SAFETY: tests keep nothing of it.
            unsafe { self.0.unmap() }
        }
    }

    fn kib(fd: i32) -> i64 {
        // SAFETY: all-zero is a valid stat, which fstat fills.
        unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            assert_eq!(libc::fstat(fd, &raw mut stat), 0);
            stat.st_blocks / 2
        }
    }

    fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[test]
    fn what_a_program_has_written_is_seen() {
        let made = Made::new();
        made.0.header().slots_used.store(16, Ordering::Relaxed);
        made.0.header().untracked_used.store(9, Ordering::Relaxed);
        made.0.slot(7).mode.store(mode::TCP, Ordering::Relaxed);
        made.0.slot(7).counters.wakeups.store(70, Ordering::Relaxed);
        let about = About { is_server: true, server_port: 80 };
        assert!(made.0.untracked(8).unwrap().open(about));
        let mut mirror = Mirror::new().unwrap();
        let seen = mirror.read(made.1, &mut ALL.clone()).unwrap();
        assert_eq!(get(&seen.slot(7).counters.wakeups), 70);
        assert_eq!(seen.untracked(8).unwrap().look().0.unwrap().0, about);
        assert_eq!(seen.header().instance.each_ref().map(get), [2, 3]);

        // The next one leaves nothing of the last.
        let other = Made::new();
        let seen = mirror.read(other.1, &mut ALL.clone()).unwrap();
        assert_eq!(seen.slot(7).mode.load(Ordering::Relaxed), mode::FREE);
        assert_eq!(seen.untracked(8).unwrap().look(), (None, None));
    }

    #[test]
    fn reading_makes_no_page() {
        let made = Made::new();
        made.claim_everything();
        made.0.slot(SLOTS - 1).mode.store(mode::TCP, Ordering::Relaxed);
        let before = made.kib();
        let mut left = 1 << 20;
        let mut mirror = Mirror::new().unwrap();
        let seen = mirror.read(made.1, &mut left).unwrap();
        assert_eq!(seen.slot(SLOTS - 1).mode.load(Ordering::Relaxed), mode::TCP);
        assert_eq!(made.kib(), before);
        assert!(before < 64 && left > 700 << 10, "{before} KiB cost {} bytes", (1 << 20) - left);
    }

    #[test]
    fn nothing_is_read_beyond_the_allowance() {
        let made = Made::new();
        made.claim_everything();
        (0..SLOTS).for_each(|slot| made.0.slot(slot).mode.store(mode::TCP, Ordering::Relaxed));
        let mut mirror = Mirror::new().unwrap();
        let mut left = 4 << 20;
        assert_eq!(mirror.read(made.1, &mut left).unwrap_err(), NotRead::Beyond);
        assert!(left < PIECE as u64);
    }

    #[test]
    fn another_file_is_no_state() {
        let mut mirror = Mirror::new().unwrap();
        let mut read = |fd| mirror.read(fd, &mut ALL.clone()).map(|_| ()).unwrap_err();
        let Created { fd: short, .. } = map::create(c"short", 4096).unwrap();
        let Created { fd: blank, .. } = map::create(c"blank", state::STATE_LEN).unwrap();
        let unsealed = sys::memfd(c"unsealed").unwrap();
        sys::set_len(unsealed, state::STATE_LEN).unwrap();
        for fd in [short, blank, unsealed, -1] {
            assert_eq!(read(fd), NotRead::Other);
            sys::close(fd);
        }
    }

    /// All slots are in use at first and are freed one by one while another thread counts
    /// what is in use and what has ended: always as many as there were.
    #[test]
    fn every_connection_is_seen_once() {
        const CONNECTIONS: usize = 64;
        let mut mirror = Mirror::new().unwrap();
        for _ in 0..5 {
            let made = Made::new();
            let (state, looks) = (made.0, AtomicU32::new(0));
            state.header().slots_used.store(CONNECTIONS as u32, Ordering::Relaxed);
            for index in 0..CONNECTIONS {
                state.slot(index).mode.store(mode::TCP, Ordering::Relaxed);
            }
            let sum = |seen: &State| {
                let is_used =
                    |index: &usize| seen.slot(*index).mode.load(Ordering::Relaxed) != mode::FREE;
                let used = (0..CONNECTIONS).filter(is_used).count();
                let ended = seen.header().ended.iter().map(|sums| get(&sums.tcp[0]) as usize);
                used + ended.sum::<usize>()
            };
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for index in 0..CONNECTIONS {
                        let seen = looks.load(Ordering::Relaxed);
                        while looks.load(Ordering::Relaxed) == seen {
                            std::thread::yield_now();
                        }
                        state.free_slot(index, index % LISTS);
                    }
                });
                let mut wrong = None;
                while !writer.is_finished() {
                    let reads = &mut ALL.clone();
                    // He frees one for each time: at most one look of this read is spoilt.
                    let seen = sum(mirror.read(made.1, reads).unwrap());
                    wrong = wrong.or(Some(seen).filter(|seen| *seen != CONNECTIONS));
                    looks.fetch_add(1, Ordering::Relaxed);
                }
                assert_eq!(wrong, None);
            });
        }
    }

    #[test]
    fn a_writer_that_died_keeps_no_reader() {
        let made = Made::new();
        let totals = &made.0.header().ended[0];
        totals.begin_change();
        totals.count_tcp(1);
        let mut mirror = Mirror::new().unwrap();
        let seen = mirror.read(made.1, &mut ALL.clone()).unwrap();
        assert_eq!(get(&seen.header().ended[0].tcp[1]), 1);
    }

    #[test]
    fn a_slot_that_never_stands_still_is_given_up() {
        let made = Made::new();
        made.0.header().slots_used.store(1, Ordering::Relaxed);
        let (slot, stop) = (made.0.slot(0), AtomicU32::new(0));
        slot.mode.store(mode::TCP, Ordering::Relaxed);
        let mut mirror = Mirror::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    slot.generation.fetch_add(1, Ordering::Relaxed);
                }
            });
            // Read or given up; what counts is that it comes back.
            for _ in 0..100 {
                let seen = mirror.read(made.1, &mut ALL.clone()).unwrap();
                let mode = seen.slot(0).mode.load(Ordering::Relaxed);
                assert!([mode::FREE, mode::TCP].contains(&mode));
            }
            stop.store(1, Ordering::Relaxed);
        });
        let seen = mirror.read(made.1, &mut ALL.clone()).unwrap();
        assert_eq!(seen.slot(0).mode.load(Ordering::Relaxed), mode::TCP);
    }
}
