//! A value that comes later than its object and does not change then.
//!
//! An object of a pool is made once and found by other threads at any time; what a connection
//! is, they know only when it has been agreed. So the value is put in by one thread, once, and
//! looked at by all others without a lock:
//!
//! ```text
//!   EMPTY ── set ──> COMING ── written ──> THERE
//!     └────────────── replace, while no other thread can look ──┘
//! ```

use crate::valid::Zeroable;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

/// See the [module](self). All-zero bytes are no value.
#[derive(Zeroable)]
pub struct Late<T> {
    /// [`EMPTY`], [`COMING`] or [`THERE`].
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

const EMPTY: u8 = 0;
/// A thread is writing it.
const COMING: u8 = 1;
const THERE: u8 = 2;

// SAFETY: `value` is written by the thread that has made the state COMING, and read when it is
// THERE. The two unsafe methods have their callers promise the same.
unsafe impl<T: Send + Sync> Sync for Late<T> {}

impl<T: Copy> Late<T> {
    /// None, or one from the beginning.
    #[must_use]
    pub const fn new(value: Option<T>) -> Self {
        match value {
            None => {
                Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
            }
            Some(value) => Self {
                state: AtomicU8::new(THERE),
                value: UnsafeCell::new(MaybeUninit::new(value)),
            },
        }
    }

    /// Puts it in. False: it is there already, or coming.
    pub fn set(&self, value: T) -> bool {
        let is_ours = self
            .state
            .compare_exchange(EMPTY, COMING, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if is_ours {
            // SAFETY: the exchange makes this the one thread that writes, and no thread reads before
            // the state is THERE.
            unsafe { (*self.value.get()).write(value) };
            // Release: pairs with the Acquire in `get`.
            self.state.store(THERE, Ordering::Release);
        }
        is_ours
    }

    /// The value, if it is there.
    #[must_use]
    pub fn get(&self) -> Option<T> {
        // SAFETY: THERE was stored behind the value.
        (self.state.load(Ordering::Acquire) == THERE).then(|| unsafe { *self.get_unchecked() })
    }

    /// Puts another value in the place of what was there, or none.
    ///
    /// # Safety
    /// Until the call has returned, no other thread is in a method of this value, or has it from one.
    pub unsafe fn replace(&self, value: Option<T>) {
        self.state.store(EMPTY, Ordering::Relaxed);
        value.map(|value| self.set(value));
    }

    /// The value, of which the caller knows that it is there.
    ///
    /// # Safety
    /// [`set`](Self::set) or [`replace`](Self::replace) has put it in before, as this thread sees it.
    #[inline]
    #[must_use]
    pub unsafe fn get_unchecked(&self) -> &T {
        // SAFETY: the caller's promise says that it is initialised. It is not written now: `set` does
        // that before THERE, and the caller of `replace` excludes others.
        unsafe { (*self.value.get()).assume_init_ref() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::valid::zeroed;

    #[test]
    fn it_comes_once() {
        let late = zeroed::<Late<u64>>();
        assert_eq!(late.get(), None);
        assert!(late.set(7) && !late.set(8));
        assert_eq!(late.get(), Some(7));
        assert_eq!(Late::new(Some(9)).get(), Some(9));
    }

    #[test]
    fn it_is_replaced_by_another_or_none() {
        let late = Late::new(Some(1));
        // SAFETY: no other thread knows it.
        unsafe { late.replace(Some(2)) };
        assert_eq!(late.get(), Some(2));
        // SAFETY: as above.
        unsafe { late.replace(None) };
        assert!(late.get().is_none() && late.set(3));
    }

    #[test]
    fn one_of_many_puts_it_in_and_all_find_that_one() {
        for _ in 0..100 {
            let late = Late::new(None);
            let put = |value| (late.set(value), late.get());
            let answers: std::vec::Vec<_> = std::thread::scope(|scope| {
                let threads = [1, 2, 3].map(|value| scope.spawn(move || put(value)));
                threads.into_iter().map(|it| it.join().unwrap()).collect()
            });
            assert_eq!(answers.iter().filter(|(is_ours, _)| *is_ours).count(), 1);
            let there = late.get();
            assert!(there.is_some());
            assert!(answers.iter().all(|(_, found)| found.is_none() || *found == there));
        }
    }
}
