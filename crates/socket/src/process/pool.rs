//! Objects without `malloc`: a reserved range of addresses and a free list.
//!
//! The range takes memory as far as objects were ever taken ([`Sparse`]).
//!
//! Memory of a pool is never given back and never changes its type. A reference
//! that has become stale therefore still leads to an object of its type, whose
//! own state tells that it is not the one that was meant.
//!
//! So an object is all atomics, and none is ever made by writing over another: the kernel's
//! zeroes are the first ([`Zeroable`]), and one that comes back begins anew field by field
//! ([`Renew`]). Both are derived, so no field can be forgotten. A caller who looks too late sees a
//! field as it was, as it is, or empty.
//!
//! What is taken is best what the same CPU gave back last: another's would have to come out
//! of that one's cache. So there are as many free lists as a few CPUs ([`lists`]), each with a
//! lock of its own. A signal handler that has interrupted a change of a list passes that list
//! over.

use crate::process::owner::Held;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sidestep_device::counts::LISTS;
use sidestep_device::lock::Lock;
use sidestep_device::reference::AtomicRef;
use sidestep_device::sparse::Sparse;
use sidestep_device::sys;
use sidestep_device::valid::{Renew, Zeroable};

/// An object of a pool.
pub trait Pooled: Zeroable + Renew + Sync + 'static {
    /// Where a free object leads to the next free one. An object in use has nothing there.
    fn next_free(&self) -> &AtomicRef<Self>
    where
        Self: Sized;
}

/// Objects of one type, at most `MAX`.
pub struct Pool<T: 'static, const MAX: usize> {
    objects: Sparse<T, MAX>,
    /// Objects that were ever taken.
    used: AtomicUsize,
    lists: [List<T>; LISTS],
}

/// Objects that were given back on some of the CPUs.
#[repr(align(64))]
struct List<T: 'static> {
    lock: SharedLock,
    /// Changed under the lock.
    first: AtomicRef<T>,
}

/// All lists, that of this CPU first.
pub(super) fn lists() -> impl Iterator<Item = usize> {
    let own = sys::cpu() as usize;
    (own..own + LISTS).map(|list| list % LISTS)
}

/// A process-private lock with a constant constructor.
#[derive(Renew, Zeroable)]
pub struct SharedLock(Lock);

impl SharedLock {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self(Lock::new())
    }

    /// The lock.
    #[must_use]
    pub fn get(&self) -> &Lock {
        &self.0
    }
}

impl Default for SharedLock {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Pooled, const MAX: usize> Pool<T, MAX> {
    /// An empty pool; addresses are reserved with the first object.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            objects: Sparse::new(),
            used: AtomicUsize::new(0),
            lists: [const { List::new() }; LISTS],
        }
    }

    /// An object that is as zeroes; `None` when the pool is used up or there are no addresses or
    /// no memory left.
    pub fn take(&'static self) -> Option<&'static T> {
        let given_back = lists().find_map(|list| self.lists[list].take());
        given_back.inspect(|object| object.renew()).or_else(|| self.fresh())
    }

    /// Makes room for so many objects more, where taking one may ask the kernel for nothing.
    /// What there is no memory for is missing then.
    pub fn make_room(&self, more: usize) {
        let last = (self.used.load(Ordering::Relaxed) + more).min(MAX) - 1;
        let _ = self.objects.writable(last);
    }

    fn fresh(&'static self) -> Option<&'static T> {
        loop {
            let used = self.used.load(Ordering::Relaxed);
            // Before it is taken: without memory, none is lost.
            let object = self.objects.writable(used)?;
            let taken =
                self.used.compare_exchange(used, used + 1, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                return Some(object);
            }
        }
    }

    /// Objects that were ever taken: their numbers are below it.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes an object back that came from [`Self::take`] of this pool.
    pub fn give(&self, object: &'static T) {
        // There is a list that this thread is not changing already: it would be as many handlers
        // deep.
        let is_given = lists().any(|list| self.lists[list].give(object));
        debug_assert!(is_given);
    }

    /// The object at an address, if the address is that of one of ours: in use or free.
    pub fn at(&'static self, address: usize) -> Option<&'static T> {
        self.objects.at(address)
    }

    /// The number of an object of this pool, below `MAX`.
    #[inline]
    pub(crate) fn index_of(&self, object: &T) -> usize {
        let first = self.objects.get(0).map_or(0, |first| core::ptr::from_ref(first) as usize);
        (core::ptr::from_ref(object) as usize).wrapping_sub(first) / size_of::<T>()
    }

    /// Calls `f` with every object that was ever taken: in use or free, or zeroed if another thread
    /// is making it.
    pub(crate) fn each(&self, f: impl FnMut(&T)) {
        let used = self.used.load(Ordering::Relaxed);
        (0..used).filter_map(|at| self.objects.get(at)).for_each(f);
    }

    /// For a child process: the thread that held a lock does not exist here.
    pub fn reset_locks(&self) {
        for list in &self.lists {
            list.lock.get().reset();
        }
    }
}

impl<T: Pooled> List<T> {
    const fn new() -> Self {
        Self { lock: SharedLock::new(), first: AtomicRef::new(None) }
    }

    fn take(&self) -> Option<&'static T> {
        if self.first.is_none() {
            return None;
        }
        let _held = Some(Held::enter(self.lock.get())).filter(Held::is_outermost)?;
        let object = self.first.get()?;
        self.first.set(object.next_free().get());
        Some(object)
    }

    /// False: this thread is in the middle of changing the list.
    fn give(&self, object: &'static T) -> bool {
        let held = Held::enter(self.lock.get());
        if held.is_outermost() {
            object.next_free().set(self.first.get());
            self.first.set(Some(object));
        }
        held.is_outermost()
    }
}

impl<T: Pooled, const MAX: usize> Default for Pool<T, MAX> {
    fn default() -> Self {
        Self::new()
    }
}

/// A value and the lock without which it cannot be reached. All-zero bytes are a free lock, and no
/// value.
#[derive(Zeroable)]
pub(crate) struct Guarded<T> {
    lock: SharedLock,
    /// There is a value. Changed under the lock.
    is_there: AtomicBool,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: `value` is reached by `put`, `with` and `try_with` alone, by one thread at a time: they get the
// lock or turn back, a signal handler that has interrupted one of them included.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// Keeps others out, without looking at the value.
    pub(crate) fn enter(&self) -> Held<'_> {
        Held::enter(self.lock.get())
    }

    /// For a child process: a thread that held the lock does not exist here.
    pub(crate) fn reset_lock(&self) {
        self.lock.get().reset();
    }

    /// Puts a value in, in the place of what was there. False: a thread has the lock, perhaps this
    /// one.
    #[must_use]
    pub(crate) fn put(&self, value: T) -> bool {
        let Some(_held) = Held::try_enter(self.lock.get()) else { return false };
        // SAFETY: `lock` is held, for the first time in this thread, until the end of the block.
        let place = unsafe { &mut *self.value.get() };
        if self.is_there.swap(true, Ordering::Relaxed) {
            // SAFETY: `is_there` says that a value was put in.
            unsafe { place.assume_init_drop() };
        }
        place.write(value);
        true
    }

    /// Runs `f` on the value, if there is one. `None`: a thread has the lock, perhaps this one.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.under(&Held::try_enter(self.lock.get())?, f)
    }

    /// The same, after other threads are through. `None`: this thread has interrupted itself under the lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.under(Some(self.enter()).as_ref().filter(|held| held.is_outermost())?, f)
    }

    /// `_held` is the lock, held for the first time in this thread.
    fn under<R>(&self, _held: &Held<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.is_there.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `lock` is held, for the first time in this thread, as long as `f` runs, and
        // `is_there` says that a value was put in.
        Some(f(unsafe { (*self.value.get()).assume_init_mut() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_get_a_lock_does_not_free_it() {
        let lock = SharedLock::new();
        let held = Held::try_enter(lock.get());
        assert!(held.is_some());
        assert!(Held::try_enter(lock.get()).is_none());
        assert!(Held::try_enter(lock.get()).is_none());
    }

    #[derive(Renew, Zeroable)]
    struct Object {
        next_free: AtomicRef<Self>,
        words: [AtomicUsize; 3],
        #[renew(kept)]
        kept: AtomicUsize,
    }

    impl Pooled for Object {
        fn next_free(&self) -> &AtomicRef<Self> {
            &self.next_free
        }
    }

    fn is(object: Option<&Object>, other: &Object) -> bool {
        object.is_some_and(|object| core::ptr::eq(object, other))
    }

    #[test]
    fn there_is_room_for_no_more_than_all() {
        static POOL: Pool<Object, 30> = Pool::new();
        POOL.make_room(12);
        assert!(POOL.take().is_some());
        POOL.make_room(1000);
        assert_eq!((0..).take_while(|_| POOL.take().is_some()).count(), 29);
        POOL.make_room(1);
    }

    #[test]
    fn objects_come_back_and_begin_anew() {
        static POOL: Pool<Object, 3> = Pool::new();
        let taken: Vec<_> = (0..3).map(|_| POOL.take().unwrap()).collect();
        assert!(POOL.take().is_none());
        let all = || taken[1].words.iter().chain([&taken[1].kept]);
        all().for_each(|word| word.store(7, Ordering::Relaxed));
        POOL.give(taken[1]);
        assert!(all().all(|word| word.load(Ordering::Relaxed) == 7), "until it is taken");
        assert!(is(POOL.take(), taken[1]));
        assert_eq!(
            all().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>(),
            [0, 0, 0, 7]
        );
        assert!(taken[1].next_free.is_none());
    }

    #[test]
    fn an_address_is_that_of_an_object_or_not() {
        static POOL: Pool<Object, 3> = Pool::new();
        let object = POOL.take().unwrap();
        let address = core::ptr::from_ref(object) as usize;
        assert!(is(POOL.at(address), object));
        assert!([0, 1, address + 8, usize::MAX].iter().all(|other| POOL.at(*other).is_none()));
    }

    /// As a signal handler that has interrupted a change of them.
    #[test]
    fn lists_that_this_thread_is_changing_are_passed_over() {
        static POOL: Pool<Object, 2> = Pool::new();
        let first = POOL.take().unwrap();
        {
            let others = POOL.lists.iter().skip(1);
            let _changing: Vec<_> = others.map(|list| Held::enter(list.lock.get())).collect();
            POOL.give(first);
        }
        let _changing = Held::enter(POOL.lists[0].lock.get());
        assert!(!is(POOL.take(), first));
        assert!(POOL.take().is_none());
    }

    /// As a signal handler that has interrupted one who changes it.
    #[test]
    fn what_is_guarded_is_reached_by_one_at_a_time() {
        let guarded: Guarded<u32> = Guarded {
            lock: SharedLock::new(),
            is_there: AtomicBool::new(false),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        assert_eq!(guarded.try_with(|value| *value), None, "there is none");
        assert!(guarded.put(1) && guarded.put(2));
        let inside = guarded.try_with(|value| {
            *value += 1;
            (guarded.try_with(|value| *value), guarded.with(|value| *value), guarded.put(4))
        });
        assert_eq!(inside, Some((None, None, false)));
        let held = guarded.enter();
        assert_eq!(guarded.try_with(|value| *value), None);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| guarded.with(|value| *value));
            drop(held);
            assert_eq!(waits.join().unwrap(), Some(3));
        });
        assert_eq!(guarded.try_with(|value| *value), Some(3));
    }
}
