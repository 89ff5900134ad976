//! Which bytes are a value of a type: what has to be known before memory is looked at as one.
//!
//! Memory of the kernel comes as zeroes, and memory of another process as what that has left
//! there. A reference to it is sound only if what lies there is a value of the type:
//!
//! ```text
//!   Zeroable   zeroes are one          tables and pools of our own     (sparse, map::zeroed)
//!   Shared     any bytes are one,      what two processes map          (map::Mapping::get)
//!              and any change of them
//!   Bits       any bytes are one       what the program names          (program::Argument)
//! ```
//!
//! The first two are derived from the fields of a struct (`sidestep-derive`), so a field that is added to one
//! and breaks the promise does not compile. Here stands what the fields are made of.
//!
//! ```
//! use core::sync::atomic::{AtomicU32, AtomicU64};
//! use sidestep_device::valid::Shared;
//!
//! #[derive(Shared)]
//! #[repr(C)]
//! struct Told {
//!     bytes: [AtomicU64; 2],
//!     flags: AtomicU32,
//! }
//! ```
//!
//! A byte of another process need not be 0 or 1, and a plain number must not change under a
//! reference:
//!
//! ```compile_fail,E0277
//! # use {core::sync::atomic::AtomicBool, sidestep_device::valid::Shared};
//! #[derive(Shared)]
//! #[repr(C)]
//! struct Told(AtomicBool);
//! ```
//!
//! ```compile_fail,E0277
//! # use sidestep_device::valid::Shared;
//! #[derive(Shared)]
//! #[repr(C)]
//! struct Told(u32);
//! ```
//!
//! Two builds must mean the same by it:
//!
//! ```compile_fail
//! # use {core::sync::atomic::AtomicU32, sidestep_device::valid::Shared};
//! #[derive(Shared)]
//! struct Told(AtomicU32);
//! ```
//!
//! And where zeroes are no value, no table of them may begin:
//!
//! ```compile_fail,E0277
//! # use sidestep_device::valid::Zeroable;
//! #[derive(Zeroable)]
//! struct Known(&'static u32);
//! ```
//!
//! [`Renew`] is the safe way to make zeroes of an object that was used: each field is stored to as
//! the atomic that it is. A caller who looks too late finds an old or a new value of it.

use crate::reference::AtomicRef;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering,
};
pub use sidestep_derive::{Renew, Shared, Zeroable};

/// A type of which all-zero bytes are a value.
///
/// # Safety
/// They are.
pub unsafe trait Zeroable {}

/// A type that may lie in memory which another process writes.
///
/// # Safety
/// * Any bytes are a value of it: a peer writes what it likes.
/// * All of it is atomics, so that the bytes may change while a reference to it exists.
/// * Its layout is the same in each build, so `repr(C)` or `repr(transparent)`.
pub unsafe trait Shared: Zeroable + Sync {}

/// A type of which any bytes are a value, one that is copied out of memory before it is looked at.
///
/// # Safety
/// They are.
pub unsafe trait Bits: Copy {}

macro_rules! bits {
    ($($plain:ty)*) => {$(
        // SAFETY: an integer, or a struct of the kernel's that is made of integers.
        unsafe impl Bits for $plain {}
    )*};
}

bits! { u8 i32 u32 u64 usize libc::timespec libc::timeval libc::epoll_event }

// SAFETY: an array is its elements.
unsafe impl<T: Bits, const LEN: usize> Bits for [T; LEN] {}

/// A type whose objects begin anew through a shared reference.
pub trait Renew {
    /// Puts it back to what it is when all of its bytes are zero.
    fn renew(&self);
}

macro_rules! integers {
    ($($atomic:ty)*) => {$(
        // SAFETY: an atomic integer has the bytes of its integer, for which zero is one.
        unsafe impl Zeroable for $atomic {}
        // SAFETY: any bits are an integer; it is an atomic; `repr(C)` and aligned as its size says.
        unsafe impl Shared for $atomic {}
        impl Renew for $atomic {
            #[inline]
            fn renew(&self) {
                // Relaxed: what shows the object to others orders it.
                self.store(0, Ordering::Relaxed);
            }
        }
    )*};
}

integers! { AtomicU8 AtomicU16 AtomicU32 AtomicU64 AtomicUsize AtomicI32 }

// SAFETY: zero is `false`. Any other byte than 0 and 1 is none, so it is not `Shared`.
unsafe impl Zeroable for AtomicBool {}

impl Renew for AtomicBool {
    #[inline]
    fn renew(&self) {
        // Relaxed: as for integers.
        self.store(false, Ordering::Relaxed);
    }
}

// SAFETY: zero is the null pointer. A process knows no addresses of another: it is not `Shared`.
unsafe impl<T> Zeroable for AtomicPtr<T> {}

// SAFETY: zero is "none", by its own representation.
unsafe impl<T> Zeroable for AtomicRef<T> {}

impl<T> Renew for AtomicRef<T> {
    #[inline]
    fn renew(&self) {
        self.clear();
    }
}

// SAFETY: a cell has the bytes of what is in it.
unsafe impl<T: Zeroable> Zeroable for UnsafeCell<T> {}

// SAFETY: any bytes are room for a value.
unsafe impl<T> Zeroable for MaybeUninit<T> {}

// SAFETY: an array is its elements.
unsafe impl<T: Zeroable, const LEN: usize> Zeroable for [T; LEN] {}
// SAFETY: an array is its elements, one behind the other.
unsafe impl<T: Shared, const LEN: usize> Shared for [T; LEN] {}

impl<T: Renew, const LEN: usize> Renew for [T; LEN] {
    #[inline]
    fn renew(&self) {
        self.iter().for_each(T::renew);
    }
}

/// An object of zeroes, for a test.
#[cfg(test)]
pub(crate) fn zeroed<T: Zeroable>() -> std::boxed::Box<T> {
    // SAFETY: zeroes are a value, as `Zeroable` says.
    unsafe { std::boxed::Box::<T>::new_zeroed().assume_init() }
}
