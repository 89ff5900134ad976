//! Epoll sets and the registrations in them: what this process knows of each.

use crate::connection::spin;
use crate::process::home::{self, Home};
use crate::process::loan;
use crate::process::owner::Held;
use crate::process::pool::{Pool, Pooled, SharedLock};
use crate::table::conn::Conn;
use crate::table::file::File;
use crate::table::set::Handle;
use crate::table::sock::{SOCKS_MAX, Sock};
use crate::table::{descriptors, learned};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sidestep_device::channel::{Channel, SLOTS};
use sidestep_device::counts::count;
use sidestep_device::reference::AtomicRef;
use sidestep_device::sparse::Sparse;
use sidestep_device::state::{Counters, Slot};
use sidestep_device::sys;
use sidestep_device::valid::{Renew, Zeroable};
use sidestep_proto::readiness::mask;

pub(super) const EPOLLET: u32 = 1 << 31;

pub(super) const EPOLLONESHOT: u32 = 1 << 30;

pub(super) const EPOLLEXCLUSIVE: u32 = 1 << 28;

/// Registrations of a process.
const REGISTRATIONS_MAX: usize = 1 << 17;

/// Epoll sets of a process that hold TCP sockets.
const SETS_MAX: usize = 4_096;

/// Every how many waits that find ring events the kernel is asked, too, and first:
/// no connection starves behind a busy one.
const KERNEL_LOOK_EVERY: u32 = 4;

/// Longest time in nanoseconds for which ring events may keep the kernel waiting.
pub(crate) const KERNEL_LOOK_NS: u64 = 20_000;

/// Events taken from the kernel on behalf of a thread that watches the set from
/// outside, kept for the set's own waiter.
pub(super) const CARRIED_MAX: usize = 16;

pub(super) static REGISTRATIONS: Pool<Registration, REGISTRATIONS_MAX> = Pool::new();

/// The first registration of each socket, by the number of its object.
pub(super) static OF_SOCK: Sparse<AtomicRef<Registration>, SOCKS_MAX> = Sparse::new();

pub(super) static SETS: Pool<Set, SETS_MAX> = Pool::new();

/// Taken to change which registrations exist; before any set's own lock.
pub(super) static STRUCTURE: SharedLock = SharedLock::new();

/// One descriptor in one set.
#[derive(Renew, Zeroable)]
pub struct Registration {
    /// None: dissolved.
    pub(super) set: AtomicRef<Set>,
    pub(super) sock: AtomicRef<Sock>,
    /// Under which the program has registered it.
    pub(super) fd: AtomicI32,
    /// By which the socket is reached: another one, when that was closed.
    pub(super) open_fd: AtomicI32,
    pub(super) events: AtomicU32,
    pub(super) data: AtomicU64,
    pub(super) state: AtomicU32,
    /// The kernel's registration carries our tag.
    pub(super) tagged: AtomicBool,
    /// It has been one-shot while the socket is on TCP: the kernel's registration is the program's
    /// but for its data, in the place of which is our tag. So we learn of a report before the move.
    pub(super) marked: AtomicBool,
    /// The set's channel does not serve it.
    pub(super) unreached: AtomicBool,
    /// Bytes that had arrived, and the mask, at the last report.
    pub(super) seen_arrived: AtomicU64,
    pub(super) seen_mask: AtomicU32,
    pub(super) next_ready: AtomicRef<Self>,
    pub(super) next_of_sock: AtomicRef<Self>,
    pub(super) next_of_set: AtomicRef<Self>,
    pub(super) next_of_slot: AtomicRef<Self>,
    pub(super) next_free: AtomicRef<Self>,
}

impl Pooled for Registration {
    fn next_free(&self) -> &AtomicRef<Self> {
        &self.next_free
    }
}

/// Bits of [`Registration::state`].
pub(super) const QUEUED: u32 = 1 << 0;

/// One-shot, and reported.
pub(super) const DISABLED: u32 = 1 << 1;

/// Added or modified since the last report.
pub(super) const FRESH: u32 = 1 << 2;

/// Taken out of the set while on the ready list.
pub(super) const DEAD: u32 = 1 << 3;

/// The program has deleted it; the kernel's registration is kept for the next ADD.
/// (Programs add and delete a descriptor around every write; for a connection in
/// shared memory neither is worth a system call.)
pub(super) const PARKED: u32 = 1 << 4;

/// The cost of waiting in a loop, until it is charged to the connection that ends the
/// wait.
#[derive(Renew, Zeroable)]
pub(crate) struct Owed(Counters);

impl Owed {
    pub(super) fn add(&self, cost: &spin::Cost) {
        for (debt, n) in cost.parts(&self.0).into_iter().filter(|(_, n)| *n > 0) {
            debt.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(super) fn add_park(&self) {
        self.0.parks.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn charge(&self, slot: &Slot) {
        let Counters { waits, parks, .. } = &self.0;
        // No other debt is without one of these.
        if [waits, parks].iter().all(|debt| debt.load(Ordering::Relaxed) == 0) {
            return;
        }
        for (debt, counter) in self.0.all().into_iter().zip(slot.counters.all()) {
            if debt.load(Ordering::Relaxed) != 0 {
                count(counter, debt.swap(0, Ordering::Relaxed));
            }
        }
    }
}

/// See [`CARRIED_MAX`]. Changed under the set's lock.
#[derive(Renew, Zeroable)]
pub(crate) struct Carried {
    pub(super) count: AtomicUsize,
    pub(super) events: [CarriedEvent; CARRIED_MAX],
}

#[derive(Renew, Zeroable)]
pub(crate) struct CarriedEvent {
    pub(super) events: AtomicU32,
    pub(super) data: AtomicU64,
}

impl Carried {
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn has(&self, data: u64) -> bool {
        let known = &self.events[..self.len().min(CARRIED_MAX)];
        known.iter().any(|event| event.data.load(Ordering::Relaxed) == data)
    }

    pub(super) fn add(&self, event: libc::epoll_event) {
        if let Some(place) = self.events.get(self.len()) {
            place.set(event);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets what was carried of one registration.
    fn forget(&self, data: u64) {
        let all = &self.events[..self.len().min(CARRIED_MAX)];
        let mut kept = 0;
        for place in all {
            if place.data.load(Ordering::Relaxed) != data {
                all[kept].set(place.get());
                kept += 1;
            }
        }
        self.count.store(kept, Ordering::Relaxed);
    }

    /// Gives out what was carried first.
    pub(super) fn take(&self, into: &mut [libc::epoll_event]) -> usize {
        let len = self.len().min(CARRIED_MAX);
        let n = len.min(into.len());
        for (at, place) in self.events[..len].iter().enumerate() {
            match at.checked_sub(n) {
                None => into[at] = place.get(),
                Some(to) => self.events[to].set(place.get()),
            }
        }
        self.count.store(len - n, Ordering::Relaxed);
        n
    }
}

impl CarriedEvent {
    pub(super) fn get(&self) -> libc::epoll_event {
        let events = self.events.load(Ordering::Relaxed);
        libc::epoll_event { events, u64: self.data.load(Ordering::Relaxed) }
    }

    pub(super) fn set(&self, event: libc::epoll_event) {
        self.events.store(event.events, Ordering::Relaxed);
        self.data.store(event.u64, Ordering::Relaxed);
    }
}

/// An epoll descriptor of the program.
#[derive(Renew, Zeroable)]
pub struct Set {
    /// What the table has of it.
    pub(crate) handle: Handle,
    /// The first of them.
    pub(super) epfd: AtomicI32,
    /// In which process it was made: [`loan::forks`].
    pub(super) forks: AtomicU32,
    pub(super) lock: SharedLock,
    pub(super) home: AtomicRef<Home>,
    /// Channel number + 1.
    pub(super) channel: AtomicU32,
    /// The eventfd in the kernel's set that wakes the threads that sleep there, + 1: the channel's, or the set's
    /// own where there is no channel for it.
    pub(super) bell: AtomicI32,
    /// The kernel's set has held a tag of ours, and may hold it for longer than we: while
    /// another process has the connection open (`epoll(7)`, question 6). A tag must never
    /// reach the program.
    pub(super) tagged: AtomicBool,
    pub(super) sleepers: AtomicU32,
    pub(super) looks_saved: AtomicU32,
    pub(super) last_look_ns: AtomicU64,
    pub(super) last_round_ns: AtomicU64,
    pub(super) ready_first: AtomicRef<Registration>,
    pub(super) ready_last: AtomicRef<Registration>,
    pub(super) ready_len: AtomicUsize,
    pub(super) registrations: AtomicRef<Registration>,
    pub(super) learned: learned::Learned,
    /// What waiting in this set has cost since it was charged to a connection last.
    pub(super) owed: Owed,
    /// It has sockets out of the channel's reach: arm them before sleeping.
    pub(super) arms: AtomicBool,
    /// A thread sleeps on the epoll descriptor itself, so that the kernel object
    /// must tell what the rings have.
    pub(super) observed: AtomicBool,
    /// The sets in this one.
    pub(super) nestings: AtomicRef<Nesting>,
    /// In how many places this one is in others.
    pub(super) outers: AtomicU32,
    /// Under `lock`.
    pub(super) carried: Carried,
    pub(super) next_free: AtomicRef<Self>,
    /// Empty whenever the set is in the pool: each registration has taken itself out.
    #[renew(kept)]
    pub(super) by_slot: [AtomicRef<Registration>; SLOTS],
}

impl Pooled for Set {
    fn next_free(&self) -> &AtomicRef<Self> {
        &self.next_free
    }
}

/// The epoll set behind a descriptor, if it is one of ours.
#[inline]
pub fn set(fd: i32) -> Option<&'static Set> {
    descriptors::set(fd).and_then(Set::of)
}

/// An epoll set in use by this call: it is not dissolved meanwhile, even if another thread closes
/// the descriptor.
pub struct SetUse {
    set: &'static Set,
    _in_use: descriptors::SetUse,
}

impl SetUse {
    /// The set itself.
    #[must_use]
    pub fn set(&self) -> &'static Set {
        self.set
    }
}

/// The set behind a descriptor, for a call that may sleep in it.
#[inline]
pub fn set_in_use(fd: i32) -> Option<SetUse> {
    let in_use = descriptors::set_in_use(fd)?;
    Some(SetUse { set: Set::of(in_use.handle())?, _in_use: in_use })
}

/// Calls `f` with the set of every descriptor that is one of ours.
pub(crate) fn for_each_set(mut f: impl FnMut(&'static Set)) {
    descriptors::for_each_set(|handle| {
        if let Some(set) = Set::of(handle) {
            f(set);
        }
    });
}

pub(super) fn walk(
    first: &AtomicRef<Registration>,
    next: fn(&Registration) -> &AtomicRef<Registration>,
) -> impl Iterator<Item = &'static Registration> {
    core::iter::successors(first.get(), move |at| next(at).get())
}

/// Takes `this` out of a singly linked list.
pub(super) fn unlink(
    first: &AtomicRef<Registration>,
    this: &Registration,
    next: fn(&Registration) -> &AtomicRef<Registration>,
) {
    let mut place = first;
    while let Some(registration) = place.get() {
        if core::ptr::eq(registration, this) {
            return place.set(next(registration).get());
        }
        place = next(registration);
    }
}

impl Set {
    /// The set behind what the table has of it.
    pub(crate) fn of(handle: &'static Handle) -> Option<&'static Self> {
        let address = core::ptr::from_ref(handle) as usize;
        SETS.at(address - core::mem::offset_of!(Self, handle))
    }

    /// The kernel's set.
    pub(crate) fn file(&self) -> File<'_> {
        File::of_set(&self.handle, self.epfd.load(Ordering::Relaxed))
    }

    /// `epoll_ctl` on the kernel's set.
    pub(crate) fn control(&self, operation: i32, fd: i32, events: u32, data: u64) -> sys::Result {
        self.file().call(|epfd| sys::epoll_ctl(epfd, operation, fd, events, data))
    }

    pub(crate) fn is_at_home(&self) -> bool {
        self.forks.load(Ordering::Relaxed) == loan::forks()
    }

    pub(crate) fn home(&self) -> Option<&'static Home> {
        self.home.get()
    }

    pub(super) fn channel_number(&self) -> Option<usize> {
        self.channel.load(Ordering::Acquire).checked_sub(1).map(|number| number as usize)
    }

    pub(crate) fn channel(&self) -> Option<&'static Channel> {
        Some(self.home()?.wake.channel(self.channel_number()?))
    }

    /// Whether the kernel's set may hold anything of ours: a tagged registration, our
    /// eventfd, or another epoll set.
    #[inline]
    pub fn is_tagged(&self) -> bool {
        self.tagged.load(Ordering::Acquire)
            || self.channel.load(Ordering::Relaxed) != 0
            || self.has_nested()
    }

    /// A registration that is reported with `data` is modified or deleted: what was carried of it is no news
    /// any more. Mostly nothing is carried, and no lock taken.
    pub(super) fn forget_report(&self, data: u64) {
        if self.carried.len() != 0 {
            let _held = Held::enter(self.lock.get());
            self.forget_carried(data);
        }
    }

    /// The same under the lock. What may be another's stays.
    pub(super) fn forget_carried(&self, data: u64) {
        if self.carried.len() == 0 {
            return;
        }
        let has_data = |of: &&Registration| of.data.load(Ordering::Relaxed) == data;
        let known = walk(&self.registrations, |r| &r.next_of_set).filter(has_data).count();
        if known <= 1 {
            self.carried.forget(data);
        }
    }

    /// Gives out what was carried. Under the lock.
    pub(super) fn uncarry(&self, events: &mut [libc::epoll_event]) -> usize {
        self.carried.take(events)
    }

    /// Makes the peer mark our channel. False: out of reach, arm it.
    pub(super) fn subscribe(&'static self, sock: &Sock, conn: &Conn) -> bool {
        if !sock.is_at_home() || !self.is_at_home() || !self.take_channel() {
            return false;
        }
        let Some(number) = self.channel_number() else {
            return false;
        };
        if !conn.group.share_channel(number) {
            return false;
        }
        let channels = &conn.mine.waiting.channels;
        let byte = number as u8 + 1;
        let added = channels.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
            let mut bytes = word.to_ne_bytes();
            if !bytes.contains(&byte) {
                *bytes.iter_mut().find(|place| **place == 0)? = byte;
            }
            Some(u32::from_ne_bytes(bytes))
        });
        added.is_ok()
    }

    pub(super) fn unsubscribe(&self, sock: &Sock) {
        let (Some(conn), Some(number)) = (sock.conn(), self.channel_number()) else {
            return;
        };
        let _ =
            conn.mine.waiting.channels.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
                let mut bytes = word.to_ne_bytes();
                let place = bytes.iter_mut().find(|byte| usize::from(**byte) == number + 1)?;
                *place = 0;
                Some(u32::from_ne_bytes(bytes))
            });
    }

    /// Gets a channel for this set; its eventfd joins the kernel's set.
    pub(crate) fn take_channel(&'static self) -> bool {
        if self.channel.load(Ordering::Acquire) != 0 {
            return true;
        }
        // One that has a bell of its own keeps it: a thread may be ringing it.
        let Some(process) = home::current().filter(|_| self.bell().is_none()) else {
            return false;
        };
        let Some((number, bell)) = process.take_channel() else {
            return false;
        };
        if self.add_bell(bell).is_err() {
            process.give_channel(number);
            return false;
        }
        self.bell.store(bell + 1, Ordering::Release);
        self.home.set(Some(process));
        self.channel.store(number as u32 + 1, Ordering::Release);
        true
    }

    fn add_bell(&'static self, bell: i32) -> sys::Result {
        let tag = core::ptr::from_ref(self) as u64;
        self.control(libc::EPOLL_CTL_ADD, sys::seat(bell), mask::IN | EPOLLET, tag)
    }

    fn bell(&self) -> Option<i32> {
        // Acquire: it is in the kernel's set.
        Some(self.bell.load(Ordering::Acquire) - 1).filter(|bell| *bell >= 0)
    }

    /// Gets a bell for a set that has none, as it has no channel.
    #[cold]
    pub(super) fn take_bell(&'static self) {
        if self.bell().is_some() {
            return;
        }
        let Ok(bell) = sys::eventfd().map(sys::move_up) else { return };
        // Before the kernel has the tag, which a thread in the set may be given at once.
        self.tagged.store(true, Ordering::SeqCst);
        let is_added = self.add_bell(bell).is_ok();
        let is_kept = || {
            let (before, after) = (Ordering::AcqRel, Ordering::Relaxed);
            self.bell.compare_exchange(0, bell + 1, before, after).is_ok()
        };
        if !is_added || !is_kept() {
            sys::close(bell);
        }
    }

    /// Wakes a thread that sleeps in the kernel's set, or on it.
    pub(super) fn ring(&self) {
        if let Some(bell) = self.bell() {
            let _ = sys::ring_eventfd(bell);
        }
    }

    /// The set goes, and its bell if that is its own.
    pub(super) fn give_bell_back(&self) {
        if self.channel_number().is_none()
            && let Some(bell) = self.bell()
        {
            sys::close(bell);
        }
    }

    pub(crate) fn push(&self, registration: &'static Registration) {
        if registration.state.fetch_or(QUEUED, Ordering::AcqRel) & QUEUED != 0 {
            return;
        }
        registration.next_ready.clear();
        match self.ready_last.get() {
            Some(last) => last.next_ready.set(Some(registration)),
            None => self.ready_first.set(Some(registration)),
        }
        self.ready_last.set(Some(registration));
        self.ready_len.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn pop(&self) -> Option<&'static Registration> {
        let first = self.ready_first.get()?;
        let next = first.next_ready.get();
        self.ready_first.set(next);
        if next.is_none() {
            self.ready_last.clear();
        }
        self.ready_len.fetch_sub(1, Ordering::Relaxed);
        first.state.fetch_and(!QUEUED, Ordering::AcqRel);
        Some(first)
    }

    /// Puts a registration on the ready list, and wakes a thread that sleeps.
    pub(super) fn queue_and_wake(&'static self, registration: &'static Registration) {
        {
            let _held = Held::enter(self.lock.get());
            self.push(registration);
        }
        self.wake();
    }

    /// Wakes a thread that sleeps, for what is on the ready list.
    pub(crate) fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    pub(super) fn is_kernel_look_due(&self) -> bool {
        let now = sys::now_ns();
        let saved = self.looks_saved.fetch_add(1, Ordering::Relaxed) + 1;
        let past = now.saturating_sub(self.last_look_ns.load(Ordering::Relaxed));
        if saved < KERNEL_LOOK_EVERY && past < KERNEL_LOOK_NS {
            return false;
        }
        self.looks_saved.store(0, Ordering::Relaxed);
        self.last_look_ns.store(now, Ordering::Relaxed);
        true
    }

    /// Whether there were ever sets in it.
    #[inline]
    pub(super) fn has_nested(&self) -> bool {
        !self.nestings.is_none()
    }
}

/// Entries of a process. Beyond, ADD says ENOSPC, as the kernel does beyond its own limit.
const NESTINGS_MAX: usize = 1 << 16;

pub(super) static NESTINGS: Pool<Nesting, NESTINGS_MAX> = Pool::new();

/// A set in a set.
#[derive(Renew, Zeroable)]
pub(crate) struct Nesting {
    /// The one inside; none: the entry is free.
    pub(super) inner: AtomicRef<Set>,
    /// The number under which the program has registered it.
    pub(super) fd: AtomicI32,
    /// With which it is reported.
    pub(super) data: AtomicU64,
    /// What it is reported for.
    pub(super) events: AtomicU32,
    pub(super) next: AtomicRef<Self>,
    pub(super) next_free: AtomicRef<Self>,
}

impl Pooled for Nesting {
    fn next_free(&self) -> &AtomicRef<Self> {
        &self.next_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::Config;

    #[test]
    fn what_waiting_in_a_set_has_cost_is_charged_once() {
        // SAFETY: all atomics, for which zero bytes are a value.
        let (owed, slot): (Box<Owed>, Box<Slot>) =
            unsafe { (Box::new_zeroed().assume_init(), Box::new_zeroed().assume_init()) };
        let charged = || {
            owed.charge(&slot);
            let Counters { waits, strangers_ns, parks, .. } = &slot.counters;
            [waits, strangers_ns, parks].map(|counter| counter.load(Ordering::Relaxed))
        };
        assert_eq!(charged(), [0, 0, 0]);
        owed.add(&spin::Cost { strangers_ns: 5, ..spin::Cost::default() });
        owed.add(&spin::Cost { strangers_ns: 6, ..spin::Cost::default() });
        assert_eq!(charged(), [2, 11, 0]);
        owed.add_park();
        assert_eq!(charged(), [2, 11, 1]);
        assert_eq!(charged(), [2, 11, 1]);
    }

    /// A list of registrations, beside a list of their numbers.
    #[test]
    fn a_registration_is_unlinked_from_its_place_alone() {
        let config = Config { failure_persistence: None, ..Config::default() };
        proptest!(config, |(out in vec(0..8usize, 0..16))| {
            let first = AtomicRef::new(None);
            let all: Vec<_> = (0..8).map(|_| REGISTRATIONS.take().unwrap()).collect();
            for registration in &all {
                registration.next_of_set.set(first.get());
                first.set(Some(*registration));
            }
            let mut left: Vec<usize> = (0..8).rev().collect();
            for at in out {
                // Also one that is out already.
                unlink(&first, all[at], |it| &it.next_of_set);
                left.retain(|it| *it != at);
                let linked = walk(&first, |it| &it.next_of_set);
                let place =
                    |it: &Registration| all.iter().position(|one| core::ptr::eq(*one, it)).unwrap();
                prop_assert_eq!(&linked.map(place).collect::<Vec<_>>(), &left);
            }
            all.into_iter().for_each(|it| REGISTRATIONS.give(it));
        });
    }

    /// What is carried is a queue of which one registration's events can be taken out: beside a list.
    #[test]
    fn carried_events_come_out_in_order_and_none_that_was_forgotten() {
        #[derive(Clone, Copy, Debug)]
        enum Step {
            Add(u64, u32),
            Forget(u64),
            Take(usize),
        }
        let data = || 0u64..4;
        let step = prop_oneof![
            4 => (data(), 1u32..100).prop_map(|(data, events)| Step::Add(data, events)),
            1 => data().prop_map(Step::Forget),
            2 => (0..CARRIED_MAX + 2).prop_map(Step::Take),
        ];
        proptest!(Config { failure_persistence: None, ..Config::default() }, |(steps in vec(step, 1..60))| {
            // SAFETY: all atomics, for which zero bytes are a value.
            let carried: Box<Carried> = unsafe { Box::new_zeroed().assume_init() };
            let mut list: Vec<(u64, u32)> = Vec::new();
            for step in steps {
                match step {
                    Step::Add(data, events) => {
                        carried.add(libc::epoll_event { events, u64: data });
                        if list.len() < CARRIED_MAX {
                            list.push((data, events));
                        }
                    }
                    Step::Forget(data) => {
                        carried.forget(data);
                        list.retain(|one| one.0 != data);
                    }
                    Step::Take(room) => {
                        let mut into = vec![libc::epoll_event { events: 0, u64: 0 }; room];
                        let n = carried.take(&mut into);
                        let taken = into[..n].iter().map(|one| (one.u64, one.events));
                        let first: Vec<_> = list.drain(..room.min(list.len())).collect();
                        prop_assert_eq!(taken.collect::<Vec<_>>(), first);
                    }
                }
                prop_assert_eq!(carried.len(), list.len());
                for data in 0..4 {
                    prop_assert_eq!(carried.has(data), list.iter().any(|one| one.0 == data));
                }
            }
        });
    }
}
