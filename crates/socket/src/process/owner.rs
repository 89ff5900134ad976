//! Who this thread is to a lock, and whether another one still exists.
//!
//! A lock names its owner by a thread and the process it belongs to, which is known in the
//! states it shares by a number of its own ([`sidestep_device::holders`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use sidestep_device::lock::{self, AtomicWord, Holder, Owner, PATIENCE_MS, Patience, Thread};
use sidestep_device::ring::Deposits;
use sidestep_device::{holders, sys};
use std::sync::OnceLock;

/// What a thread knows of itself, together: where it lies is asked once in a send.
pub(crate) struct Itself {
    /// The copies into rings that it is in the middle of.
    pub(crate) deposits: Deposits,
    /// The word of its name; 0: it has none yet.
    name: Cell<u64>,
}

std::thread_local! {
    pub(crate) static ITSELF: Itself =
        const { Itself { deposits: Deposits::new(), name: Cell::new(0) } };
}

/// This thread, as a lock knows it.
#[inline]
pub(crate) fn me() -> Owner {
    ITSELF.with(|it| Owner::from_word(it.name.get()).unwrap_or_else(|| introduce(&it.name)))
}

#[cold]
fn introduce(name: &Cell<u64>) -> Owner {
    let me = Owner::new(holder(), sys::tid());
    name.set(me.word());
    me
}

/// This process among the holders of states; 0: it has not needed to know.
static HOLDER: AtomicU64 = AtomicU64::new(0);

pub(crate) fn holder() -> Holder {
    let known = || Holder::from_number(HOLDER.load(Ordering::Relaxed));
    known().unwrap_or_else(|| {
        let drawn = holders::draw();
        // Relaxed: a number and nothing behind it. One of two threads draws in vain.
        let place =
            HOLDER.compare_exchange(0, drawn.number(), Ordering::Relaxed, Ordering::Relaxed);
        place.map_or_else(|other| Holder::from_number(other).unwrap_or(drawn), |_| drawn)
    })
}

/// In the child of a fork: it is another process.
pub(crate) fn forget() {
    ITSELF.with(|it| it.name.set(0));
    HOLDER.store(0, Ordering::Relaxed);
}

/// A lock held by this thread until it is dropped.
pub(crate) type Held<'a> = lock::Held<'a, Waiting>;

/// How locks wait, those of this process alone and those in a state.
#[derive(Default)]
pub(crate) struct Waiting;

impl Thread for Waiting {
    #[inline]
    fn me() -> Owner {
        me()
    }
}

impl Patience for Waiting {
    fn sleep(&self, word: &AtomicWord, value: u64) {
        let patience = Duration::from_millis(PATIENCE_MS);
        let _ = sys::futex_wait(sys::low_half(word), value as u32, Some(patience));
    }

    fn wake_one(&self, word: &AtomicWord) {
        sys::futex_wake(sys::low_half(word), 1);
    }

    fn is_alive(&self, word: &AtomicWord, owner: Owner) -> bool {
        is_alive(core::ptr::from_ref(word).cast(), owner)
    }

    fn pause(&self) {
        core::hint::spin_loop();
    }
}

/// Whether a process is among the holders of the state in which the memory at an address lies. Said by
/// [`home`](crate::process::home), which knows the states.
static IS_HOLDER: OnceLock<fn(*const u8, Holder) -> bool> = OnceLock::new();

/// Says how it is found out, before memory is shared.
pub(super) fn ask_about_holders(is_holder: fn(*const u8, Holder) -> bool) {
    let _ = IS_HOLDER.set(is_holder);
}

/// Whether a thread still exists that has left its name in the memory at `at`. One of
/// another process can only have done so in a state, and that names its owner.
pub(crate) fn is_alive(at: *const u8, owner: Owner) -> bool {
    if owner.holder() == holder() {
        return sys::has_thread(owner.tid());
    }
    // Before there is a state nothing is shared.
    IS_HOLDER.get().is_none_or(|is_holder| is_holder(at, owner.holder()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::tests::alone;
    use std::thread;

    #[test]
    fn a_thread_has_one_name_and_another_thread_another() {
        let _alone = alone();
        let mine = me();
        assert_eq!((me().word(), mine.holder()), (mine.word(), holder()));
        let other = thread::spawn(me).join().unwrap();
        assert_eq!(other.holder(), mine.holder());
        assert_ne!(other.tid(), mine.tid());
    }

    #[test]
    fn a_thread_that_has_ended_is_alive_no_more() {
        let _alone = alone();
        let word = AtomicU64::new(0);
        let at = core::ptr::from_ref(&word).cast();
        assert!(is_alive(at, me()));
        let ended = thread::spawn(me).join().unwrap();
        // `join` returns when the thread is about to be gone for the kernel.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while is_alive(at, ended) && std::time::Instant::now() < deadline {
            thread::yield_now();
        }
        assert!(!is_alive(at, ended));
    }
}
