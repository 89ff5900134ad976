//! Objects without `malloc`: a reserved range of addresses and a free list.
//!
//! Memory of a pool is never given back and never changes its type. A pointer
//! that has become stale therefore still points to an object of its type, whose
//! own state tells that it is not the one that was meant.
//!
//! What is taken is best what the same CPU gave back last: another's would have to come out
//! of that one's cache. So there are as many free lists as a few CPUs ([`lists`]).

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use sidestep_device::lock::Lock;
use sidestep_device::map;
use sidestep_device::sys::{self, Kernel};

/// Objects of one type, at most `MAX`.
pub struct Pool<T, const MAX: usize> {
    base: AtomicPtr<T>,
    lock: SharedLock,
    inner: UnsafeCell<Inner<T>>,
}

struct Inner<T> {
    used: usize,
    free: [Option<NonNull<Link<T>>>; LISTS],
}

/// Free lists of whatever threads on several CPUs take and give back.
pub(crate) const LISTS: usize = 8;

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

// SAFETY: the inside is only touched under the lock.
unsafe impl<T: Send, const MAX: usize> Sync for Pool<T, MAX> {}

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
            base: AtomicPtr::new(core::ptr::null_mut()),
            lock: SharedLock::new(),
            inner: UnsafeCell::new(Inner { used: 0, free: [None; LISTS] }),
        }
    }

    /// Room for one object, uninitialised; `None` when the pool is used up or
    /// there are no addresses left.
    pub fn take(&self) -> Option<NonNull<T>> {
        let _held = Held::enter(self.lock.get());
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        for list in lists() {
            if let Some(link) = inner.free[list] {
                // SAFETY: objects on a list are links.
                inner.free[list] = unsafe { link.as_ref().next };
                return Some(link.cast());
            }
        }
        if inner.used == MAX {
            return None;
        }
        let base = self.base()?;
        inner.used += 1;
        // SAFETY: used < MAX objects fit into the reservation.
        NonNull::new(unsafe { base.cast::<Link<T>>().add(inner.used - 1) }.cast())
    }

    /// Takes an object back. The caller has dropped what was in it.
    ///
    /// # Safety
    /// It came from [`Self::take`] of this pool, once.
    pub unsafe fn give(&self, object: NonNull<T>) {
        let _held = Held::enter(self.lock.get());
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        let link: NonNull<Link<T>> = object.cast();
        let list = sys::cpu() as usize % LISTS;
        // SAFETY: the object is ours again, and large enough for a link.
        unsafe { link.write(Link { next: inner.free[list] }) };
        inner.free[list] = Some(link);
    }

    /// The object at an address, if the address is that of one of ours.
    pub fn at(&self, address: usize) -> Option<&'static T> {
        let base = self.base.load(Ordering::Relaxed) as usize;
        let offset = address.checked_sub(base)?;
        let is_ours = base != 0
            && offset < MAX * size_of::<Link<T>>()
            && offset.is_multiple_of(size_of::<Link<T>>());
        // SAFETY: an object of the reservation: zeroed, in use, or free. Callers look
        // at atomic fields only, and check which it is.
        is_ours.then(|| unsafe { &*(address as *const T) })
    }

    /// For a child process: whoever held the lock does not exist here.
    pub fn reset_lock(&self) {
        self.lock.get().reset();
    }

    fn base(&self) -> Option<*mut T> {
        let base = self.base.load(Ordering::Relaxed);
        if !base.is_null() {
            return Some(base);
        }
        let reserved = map::reserve(MAX * size_of::<Link<T>>()).ok()?;
        let base = reserved.at(0, 0).cast();
        self.base.store(base, Ordering::Relaxed);
        Some(base)
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
        let entry = lock.enter(crate::process::tid(), &Kernel);
        Self { lock, owned: entry == sidestep_device::lock::Entry::Owned }
    }

    /// Takes the lock if it is free.
    pub fn try_enter(lock: &'a Lock) -> Option<Self> {
        // Not `then_some`: a guard that is made and not returned would unlock.
        let taken = lock.try_enter(crate::process::tid());
        taken.then(|| Self { lock, owned: true })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.owned {
            self.lock.leave(&Kernel);
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
    fn objects_come_back() {
        static POOL: Pool<[u64; 4], 3> = Pool::new();
        let taken: Vec<_> = (0..3).map(|_| POOL.take().unwrap()).collect();
        assert!(POOL.take().is_none());
        // SAFETY: taken from this pool, given back once.
        unsafe { POOL.give(taken[1]) };
        assert_eq!(POOL.take(), Some(taken[1]));
    }
}
