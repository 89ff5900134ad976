//! Objects without `malloc`: a reserved range of addresses and a free list.
//!
//! The range takes memory as far as objects were ever taken ([`Sparse`]).
//!
//! Memory of a pool is never given back and never changes its type. A pointer
//! that has become stale therefore still points to an object of its type, whose
//! own state tells that it is not the one that was meant.
//!
//! What is taken is best what the same CPU gave back last: another's would have to come out
//! of that one's cache. So there are as many free lists as a few CPUs ([`lists`]), each with a
//! lock of its own. A signal handler that has interrupted a change of a list passes that list
//! over.

use crate::owner::{self, Waiting};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use sidestep_device::lock::Lock;
use sidestep_device::sparse::Sparse;
use sidestep_device::state::LISTS;
use sidestep_device::sys;

/// Objects of one type, at most `MAX`.
pub struct Pool<T, const MAX: usize> {
    objects: Sparse<Link<T>, MAX>,
    /// Objects that were ever taken.
    used: AtomicUsize,
    lists: [List<T>; LISTS],
}

/// Objects that were given back on some of the CPUs.
#[repr(align(64))]
struct List<T> {
    lock: SharedLock,
    /// Changed under the lock.
    first: AtomicPtr<Link<T>>,
}

/// All lists, that of this CPU first.
pub(crate) fn lists() -> impl Iterator<Item = usize> {
    let own = sys::cpu() as usize;
    (own..own + LISTS).map(|list| list % LISTS)
}

/// What a free object holds.
union Link<T> {
    next: Option<NonNull<Self>>,
    #[expect(dead_code, reason = "gives the link the object's size and alignment")]
    object: core::mem::ManuallyDrop<MaybeUninit<T>>,
}

/// A process-private lock with a constant constructor.
pub struct SharedLock(MaybeUninit<Lock>);

impl SharedLock {
    /// A free lock: zeroed memory is one.
    #[must_use]
    pub const fn new() -> Self {
        Self(MaybeUninit::zeroed())
    }

    /// The lock.
    #[must_use]
    pub fn get(&self) -> &Lock {
        // SAFETY: a Lock is one atomic word, and zero is its free state.
        unsafe { self.0.assume_init_ref() }
    }
}

impl Default for SharedLock {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const MAX: usize> Pool<T, MAX> {
    /// An empty pool; addresses are reserved with the first object.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            objects: Sparse::new(),
            used: AtomicUsize::new(0),
            lists: [const { List::new() }; LISTS],
        }
    }

    /// Room for one object, uninitialised; `None` when the pool is used up or
    /// there are no addresses or no memory left.
    pub fn take(&self) -> Option<NonNull<T>> {
        let given_back = lists().find_map(|list| self.lists[list].take());
        given_back.map(NonNull::cast).or_else(|| self.fresh())
    }

    /// Makes room for so many objects more, where taking one may ask the kernel for nothing.
    /// What there is no memory for is missing then.
    pub fn make_room(&self, more: usize) {
        let last = (self.used.load(Ordering::Relaxed) + more).min(MAX) - 1;
        let _ = self.objects.writable(last);
    }

    fn fresh(&self) -> Option<NonNull<T>> {
        loop {
            let used = self.used.load(Ordering::Relaxed);
            // Before it is taken: without memory, none is lost.
            let at = self.objects.writable(used)?;
            let taken =
                self.used.compare_exchange(used, used + 1, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                return NonNull::new(at.cast());
            }
        }
    }

    /// Takes an object back. The caller has dropped what was in it.
    ///
    /// # Safety
    /// It came from [`Self::take`] of this pool, once.
    pub unsafe fn give(&self, object: NonNull<T>) {
        // SAFETY: the object is ours again, and large enough for a link. There is a list that
        // this thread is not changing already: it would be as many handlers deep.
        let is_given = lists().any(|list| unsafe { self.lists[list].give(object.cast()) });
        debug_assert!(is_given);
    }

    /// The object at an address, if the address is that of one of ours.
    pub fn at(&self, address: usize) -> Option<&'static T> {
        self.objects.index_of(address)?;
        // SAFETY: an object of the reservation: zeroed, in use, or free. Callers look
        // at atomic fields only, and check which it is.
        Some(unsafe { &*(address as *const T) })
    }

    /// Calls `f` with every object that was ever taken: in use or free, or zeroed if another thread
    /// is making it.
    pub(crate) fn each(&self, f: impl FnMut(&T)) {
        let used = self.used.load(Ordering::Relaxed);
        // They were writable when they were taken, so this makes no system call.
        let objects = (0..used).filter_map(|at| self.objects.writable(at));
        // SAFETY: objects of the reservation, which is never unmapped. Callers look at atomic
        // fields only.
        objects.map(|object| unsafe { &*object.cast::<T>() }).for_each(f);
    }

    /// For a child process: whoever held a lock does not exist here.
    pub fn reset_locks(&self) {
        for list in &self.lists {
            list.lock.get().reset();
        }
    }
}

impl<T> List<T> {
    const fn new() -> Self {
        Self { lock: SharedLock::new(), first: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn take(&self) -> Option<NonNull<Link<T>>> {
        if self.first.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let _held = Some(Held::enter(self.lock.get())).filter(Held::is_outermost)?;
        let link = NonNull::new(self.first.load(Ordering::Relaxed))?;
        // SAFETY: objects on a list are links.
        let next = unsafe { link.as_ref().next };
        self.first.store(next.map_or(core::ptr::null_mut(), NonNull::as_ptr), Ordering::Relaxed);
        Some(link)
    }

    /// False: this thread is in the middle of changing the list.
    ///
    /// # Safety
    /// Nobody uses what is there.
    unsafe fn give(&self, link: NonNull<Link<T>>) -> bool {
        let held = Held::enter(self.lock.get());
        if held.is_outermost() {
            let next = NonNull::new(self.first.load(Ordering::Relaxed));
            // SAFETY: the caller's promise.
            unsafe { link.write(Link { next }) };
            self.first.store(link.as_ptr(), Ordering::Relaxed);
        }
        held.is_outermost()
    }
}

impl<T, const MAX: usize> Default for Pool<T, MAX> {
    fn default() -> Self {
        Self::new()
    }
}

/// A lock held by this thread until it is dropped.
pub struct Held<'a> {
    lock: &'a Lock,
    owned: bool,
}

impl<'a> Held<'a> {
    /// Waits for the lock.
    pub fn enter(lock: &'a Lock) -> Self {
        let entry = lock.enter(owner::me(), &Waiting);
        Self { lock, owned: entry == sidestep_device::lock::Entry::Owned }
    }

    /// Takes the lock if it is free.
    pub fn try_enter(lock: &'a Lock) -> Option<Self> {
        // Not `then_some`: a guard that is made and not returned would unlock.
        let taken = lock.try_enter(owner::me());
        taken.then(|| Self { lock, owned: true })
    }

    /// Whether this thread did not hold the lock before: nothing under it was interrupted.
    pub fn is_outermost(&self) -> bool {
        self.owned
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.owned {
            self.lock.leave(&Waiting);
        }
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

    #[test]
    fn there_is_room_for_no_more_than_all() {
        static POOL: Pool<[u64; 1024], 30> = Pool::new();
        POOL.make_room(12);
        assert!(POOL.take().is_some());
        POOL.make_room(1000);
        assert_eq!((0..).take_while(|_| POOL.take().is_some()).count(), 29);
        POOL.make_room(1);
    }

    #[test]
    fn objects_come_back() {
        static POOL: Pool<[u64; 4], 3> = Pool::new();
        let taken: Vec<_> = (0..3).map(|_| POOL.take().unwrap()).collect();
        assert!(POOL.take().is_none());
        // SAFETY: taken from this pool, given back once.
        unsafe { POOL.give(taken[1]) };
        assert_eq!(POOL.take(), Some(taken[1]));
    }

    /// As a signal handler that has interrupted a change of them.
    #[test]
    fn lists_that_this_thread_is_changing_are_passed_over() {
        static POOL: Pool<[u64; 4], 2> = Pool::new();
        let first = POOL.take().unwrap();
        {
            let others = POOL.lists.iter().skip(1);
            let _changing: Vec<_> = others.map(|list| Held::enter(list.lock.get())).collect();
            // SAFETY: taken from this pool, given back once.
            unsafe { POOL.give(first) };
        }
        let _changing = Held::enter(POOL.lists[0].lock.get());
        assert_ne!(POOL.take(), Some(first));
        assert_eq!(POOL.take(), None);
    }
}
