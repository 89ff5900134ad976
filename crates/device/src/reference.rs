//! A reference that threads change: none, or to an object that is there for ever.
//!
//! Objects of pools and of processes refer to each other, and each of them stays in memory, as an
//! object of its type, as long as the process lives. So what is kept is a `&'static T`, and nothing
//! else can be put in; what comes out needs no promise.

use core::marker::PhantomData;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// See the [module](self). All-zero bytes are none.
#[repr(transparent)]
pub struct AtomicRef<T: 'static> {
    at: AtomicPtr<T>,
    /// It lends to each thread that looks what it was given by another.
    of: PhantomData<&'static T>,
}

impl<T> Default for AtomicRef<T> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<T> AtomicRef<T> {
    /// One that refers to an object, or to none.
    #[must_use]
    pub const fn new(object: Option<&'static T>) -> Self {
        Self { at: AtomicPtr::new(address(object)), of: PhantomData }
    }

    /// The object.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&'static T> {
        // Acquire: pairs with the Release in `set`; the object was made before.
        object(self.at.load(Ordering::Acquire))
    }

    /// The same as one step in the order that all threads see.
    #[inline]
    #[must_use]
    pub fn get_in_order(&self) -> Option<&'static T> {
        object(self.at.load(Ordering::SeqCst))
    }

    /// Whether there is none. The object itself is not looked at.
    #[inline]
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.at.load(Ordering::Relaxed).is_null()
    }

    /// Whether it refers to this object.
    #[inline]
    #[must_use]
    pub fn is(&self, object: &T) -> bool {
        // Relaxed: an address is compared, and nothing read through it.
        core::ptr::eq(self.at.load(Ordering::Relaxed), object)
    }

    /// Refers to another object, or to none.
    #[inline]
    pub fn set(&self, object: Option<&'static T>) {
        // Release: who finds the object finds it made.
        self.at.store(address(object), Ordering::Release);
    }

    /// The same as one step in the order that all threads see.
    #[inline]
    pub fn set_in_order(&self, object: Option<&'static T>) {
        self.at.store(address(object), Ordering::SeqCst);
    }

    /// Refers to none from now on.
    #[inline]
    pub fn clear(&self) {
        // Relaxed: there is no object to be found.
        self.at.store(null_mut(), Ordering::Relaxed);
    }

    /// Refers to none from now on; the object until then. One of several callers gets it.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<&'static T> {
        // Acquire: as in `get`.
        object(self.at.swap(null_mut(), Ordering::AcqRel))
    }
}

const fn address<T>(object: Option<&'static T>) -> *mut T {
    match object {
        Some(object) => core::ptr::from_ref(object).cast_mut(),
        None => null_mut(),
    }
}

/// What stands in [`AtomicRef::at`], loaded with Acquire or more.
#[inline]
fn object<T>(at: *mut T) -> Option<&'static T> {
    // SAFETY: `at` is null, or the address of a `&'static T`: `AtomicRef` stores nothing else. What
    // made the object happened before, as the load that gave `at` acquires.
    unsafe { at.as_ref() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::valid::zeroed;

    #[test]
    fn what_is_put_in_comes_out() {
        static OBJECTS: [u32; 2] = [7, 8];
        let reference = zeroed::<AtomicRef<u32>>();
        assert!(reference.get().is_none() && reference.is_none());
        reference.set(Some(&OBJECTS[1]));
        assert_eq!((reference.get(), reference.get_in_order()), (Some(&8), Some(&8)));
        assert!(reference.is(&OBJECTS[1]) && !reference.is(&OBJECTS[0]) && !reference.is_none());
        assert_eq!((reference.take(), reference.take()), (Some(&8), None));
    }
}
