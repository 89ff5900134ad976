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
