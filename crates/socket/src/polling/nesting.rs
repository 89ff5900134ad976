//! Epoll sets in epoll sets.
//!
//! A set inside another one is reported by the kernel when it is readable, and of what its rings have
//! the kernel knows only what [`Set::observe`] has it told. So each set lists the sets inside it, to
//! observe them before a thread sleeps, and to ask them whether a report of the kernel still holds.
//!
//! The list is what the kernel has accepted, and is changed behind its answer: an ADD that it refuses
//! (a circle, ELOOP; too deep, EINVAL) never stands in it, and a DEL takes one out. So it has no
//! circle, and walking it ends at the kernel's own depth. [`DEPTH_MAX`] bounds the walk all the same: a
//! program can change a set by a system call of its own, or in another process.
//!
//! An entry stays in its list as long as the set lives, and is used again there when it is free: who
//! walks without a lock never comes into another set's list.
//!
//! *Source*: epoll_ctl(2); Linux `fs/eventpoll.c` (`EP_MAX_NESTS`, `ep_loop_check`).

use crate::polling::set::{self, EPOLLET, EPOLLONESHOT, NESTINGS, Nesting, STRUCTURE, Set};
use crate::process::owner::Held;
use core::sync::atomic::Ordering;
use sidestep_device::program::Argument;
use sidestep_device::sys;
use sidestep_proto::readiness::mask;

type Errno = i32;

/// Sets in a row: Linux takes a set of which four more are inside of one another.
pub(super) const DEPTH_MAX: u32 = 5;

/// As [`make_room`](crate::polling::epoll::make_room).
pub(crate) fn make_room(more: usize) {
    NESTINGS.make_room(more);
}

/// In the child of a fork.
pub(crate) fn reset_locks() {
    NESTINGS.reset_locks();
}

/// The program's `epoll_ctl` on a set in a set: the kernel's answer, and then what we make of it. `set_of`
/// finds the outer set, and makes it known if it is not.
pub(crate) fn control(
    set_of: impl Fn(i32) -> Option<&'static Set>,
    epfd: i32,
    operation: i32,
    (fd, inner): (i32, &'static Set),
    event: Argument<'_, libc::epoll_event>,
) -> Result<usize, Errno> {
    let _structure = Held::enter(STRUCTURE.get());
    let spare = match operation {
        libc::EPOLL_CTL_ADD => Some(NESTINGS.take().ok_or(libc::ENOSPC)?),
        _ => None,
    };
    let give_back = |spare: Option<&'static Nesting>| {
        spare.into_iter().for_each(|it| NESTINGS.give(it));
    };
    if let Err(errno) = sys::epoll_ctl_at(epfd, operation, fd, event.address()) {
        give_back(spare);
        return Err(errno.0);
    }
    let Some(outer) = set_of(epfd) else {
        // Without it no sleeper could be woken by the rings. It is not there for the program, either.
        give_back(spare);
        let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        return Err(libc::ENOSPC);
    };
    // The kernel has just read it, which it does for ADD and MOD.
    let wish = || event.get(0);
    match (operation, spare) {
        (libc::EPOLL_CTL_ADD, Some(spare)) => outer.nest(spare, (fd, inner), wish()),
        (libc::EPOLL_CTL_MOD, _) => {
            outer.nestings().filter(|it| it.is_of(fd, inner)).for_each(|it| it.wish_for(wish()));
        }
        (libc::EPOLL_CTL_DEL, _) => {
            outer.nestings().filter(|it| it.is_of(fd, inner)).for_each(Nesting::free);
        }
        _ => {}
    }
    Ok(0)
}

impl Nesting {
    fn is_of(&self, fd: i32, inner: &Set) -> bool {
        self.fd.load(Ordering::Relaxed) == fd && self.is_about(inner)
    }

    fn is_about(&self, inner: &Set) -> bool {
        self.inner.is(inner)
    }

    fn inner(&self) -> Option<&'static Set> {
        self.inner.get()
    }

    fn wish_for(&self, wish: libc::epoll_event) {
        self.data.store(wish.u64, Ordering::Relaxed);
        self.events.store(wish.events, Ordering::Relaxed);
    }

    /// Whether it is reported for as long as there is something to report.
    fn is_level_triggered(&self) -> bool {
        let events = self.events.load(Ordering::Relaxed);
        events & mask::IN != 0 && events & (EPOLLET | EPOLLONESHOT) == 0
    }

    /// Under [`STRUCTURE`].
    fn free(&self) {
        if let Some(inner) = self.inner() {
            inner.outers.fetch_sub(1, Ordering::Relaxed);
            self.inner.clear();
        }
    }
}

impl Set {
    fn nestings(&self) -> impl Iterator<Item = &'static Nesting> {
        core::iter::successors(self.nestings.get(), |nesting| nesting.next.get())
    }

    /// The sets in it.
    pub(crate) fn nested(&self) -> impl Iterator<Item = &'static Self> {
        self.nestings().filter_map(Nesting::inner)
    }

    /// The set in it that is reported with `data`.
    pub(super) fn nested_as(&self, data: u64) -> Option<&'static Self> {
        let mut known = self.nestings().filter(|it| it.data.load(Ordering::Relaxed) == data);
        known.find_map(Nesting::inner)
    }

    /// The sets in it of which the kernel tells again and again.
    pub(super) fn nested_by_level(&self) -> impl Iterator<Item = &'static Self> {
        self.nestings().filter(|it| it.is_level_triggered()).filter_map(Nesting::inner)
    }

    /// Whether `data` is that of such a set.
    pub(super) fn is_nested_by_level(&self, data: u64) -> bool {
        let mut known = self.nestings().filter(|it| it.data.load(Ordering::Relaxed) == data);
        known.any(|it| it.is_level_triggered() && it.inner().is_some())
    }

    /// Notes a set in this one, in an entry that is free or else in `spare`. Under [`STRUCTURE`].
    fn nest(
        &self,
        spare: &'static Nesting,
        (fd, inner): (i32, &'static Self),
        wish: libc::epoll_event,
    ) {
        inner.observed.store(true, Ordering::Relaxed);
        inner.outers.fetch_add(1, Ordering::Relaxed);
        let free = self.nestings().find(|it| it.inner().is_none());
        let entry = free.unwrap_or(spare);
        entry.fd.store(fd, Ordering::Relaxed);
        entry.wish_for(wish);
        // Its Release pairs with the Acquire in `inner`, so that the data are this one's.
        entry.inner.set(Some(inner));
        match free {
            Some(_) => NESTINGS.give(spare),
            None => {
                spare.next.set(self.nestings.get());
                self.nestings.set(Some(spare));
            }
        }
    }

    /// The set goes: it is in no other one any more, and no other one is in it. Under [`STRUCTURE`].
    pub(super) fn leave_nestings(&self) {
        if self.outers.load(Ordering::Relaxed) != 0 {
            set::for_each_set(|outer| {
                outer.nestings().filter(|it| it.is_about(self)).for_each(Nesting::free);
            });
        }
        let mut left = self.nestings.take();
        while let Some(nesting) = left {
            nesting.free();
            left = nesting.next.get();
            NESTINGS.give(nesting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::Config;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    const SETS: usize = 5;

    /// Sets of the kernel, and what is known of each.
    struct World {
        kernel: Vec<OwnedFd>,
        sets: Vec<&'static Set>,
    }

    impl World {
        fn new() -> Self {
            let kernel: Vec<OwnedFd> = (0..SETS)
                .map(|_| {
                    // SAFETY: no memory operands; the descriptor is new, and no other's.
                    unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
                })
                .collect();
            let sets = kernel.iter().map(|_| set::SETS.take().unwrap()).collect();
            Self { kernel, sets }
        }

        fn fd(&self, set: usize) -> i32 {
            self.kernel[set].as_raw_fd()
        }

        fn control(&self, operation: i32, (outer, inner): (usize, usize), events: u32) {
            let mut event = libc::epoll_event { events, u64: data_of(inner) };
            // SAFETY: one live epoll_event for as long as the call takes.
            let event = unsafe { Argument::new(&raw mut event, 1) };
            let set_of = |_| Some(self.sets[outer]);
            let inside = (self.fd(inner), self.sets[inner]);
            let _ = control(set_of, self.fd(outer), operation, inside, event);
        }

        /// What we have in a set, by number, with what it is reported for.
        fn listed(&self, outer: usize) -> BTreeMap<usize, u32> {
            let nestings = self.sets[outer].nestings().filter(|it| it.inner().is_some());
            let place = |it: &Nesting| self.sets.iter().position(|set| it.is_about(set)).unwrap();
            nestings.map(|it| (place(it), it.events.load(Ordering::Relaxed))).collect()
        }

        /// What the kernel has in it: `tfd: 5 events: 1 data: 7 …`.
        fn of_kernel(&self, outer: usize) -> BTreeMap<usize, u32> {
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd(outer))).unwrap();
            let entries = info.lines().filter(|line| line.starts_with("tfd:"));
            let entry = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let inner = (0..SETS).find(|set| self.fd(*set).to_string() == words[1]).unwrap();
                let events = u32::from_str_radix(words[3], 16).unwrap();
                // The kernel adds these by itself.
                (inner, events & !(mask::ERR | mask::HUP))
            };
            entries.map(entry).collect()
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            let _structure = Held::enter(STRUCTURE.get());
            self.sets.iter().for_each(|set| set.leave_nestings());
            self.sets.iter().for_each(|set| set::SETS.give(set));
        }
    }

    fn data_of(set: usize) -> u64 {
        100 + set as u64
    }

    /// The kernel is the oracle: what it has refused (a circle, too deep, there already) is in no list.
    #[test]
    fn a_list_is_what_the_kernel_has_accepted() {
        let operation = prop_oneof![3 => Just(libc::EPOLL_CTL_ADD), 1 => Just(libc::EPOLL_CTL_MOD), 2 => Just(libc::EPOLL_CTL_DEL)];
        let events = prop_oneof![Just(mask::IN), Just(mask::IN | EPOLLET), Just(mask::OUT)];
        let step = (operation, (0..SETS, 0..SETS), events);
        let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
        proptest!(config, |(steps in vec(step, 1..60))| {
            let world = World::new();
            for (operation, pair, events) in steps {
                world.control(operation, pair, events);
                for outer in 0..SETS {
                    prop_assert_eq!(world.listed(outer), world.of_kernel(outer));
                }
            }
            for set in 0..SETS {
                let outers = world.sets[set].outers.load(Ordering::Relaxed);
                let known = (0..SETS).filter(|outer| world.listed(*outer).contains_key(&set));
                prop_assert_eq!(outers as usize, known.count());
            }
        });
    }

    #[test]
    fn a_set_is_found_by_what_it_is_reported_with_and_asked_again_by_level_alone() {
        let world = World::new();
        let outer = world.sets[0];
        world.control(libc::EPOLL_CTL_ADD, (0, 1), mask::IN);
        world.control(libc::EPOLL_CTL_ADD, (0, 2), mask::IN | EPOLLET);
        world.control(libc::EPOLL_CTL_ADD, (0, 3), mask::IN | EPOLLONESHOT);
        world.control(libc::EPOLL_CTL_ADD, (0, 4), mask::OUT);
        for inner in 1..SETS {
            let found = outer.nested_as(data_of(inner)).unwrap();
            assert!(core::ptr::eq(found, world.sets[inner]));
            assert_eq!(outer.is_nested_by_level(data_of(inner)), inner == 1);
        }
        assert!(outer.nested_as(data_of(0)).is_none());
        assert_eq!(outer.nested_by_level().count(), 1);
        world.control(libc::EPOLL_CTL_MOD, (0, 4), mask::IN);
        assert_eq!(outer.nested_by_level().count(), 2);
        world.control(libc::EPOLL_CTL_DEL, (0, 1), 0);
        assert!(outer.nested_as(data_of(1)).is_none() && outer.nested().count() == 3);
    }

    /// The sixteen places of before were never given back.
    #[test]
    fn places_are_used_again() {
        let world = World::new();
        for _ in 0..100 {
            world.control(libc::EPOLL_CTL_ADD, (0, 1), mask::IN);
            world.control(libc::EPOLL_CTL_DEL, (0, 1), 0);
        }
        assert_eq!(world.sets[0].nestings().count(), 1);
    }
}
