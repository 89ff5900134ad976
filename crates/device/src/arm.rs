//! The arm: how a sleeper asks for exactly one bell.
//!
//! Two words, one in each side's memory:
//!
//! ```text
//!   sleeper (own memory)                     ringer (own memory)
//!   arm = n      a fresh number, never 0     rung = last number answered
//! ```
//!
//! ```text
//!   sleeper                                  ringer
//!   1  arm := n                              a  publish the cursor
//!   2  fence                                 b  fence
//!   3  look at the cursor again              c  read arm; 0 or == rung: done
//!   4  nothing new: sleep                    d  rung := arm, ring the bell
//! ```
//!
//! No wake-up is lost: were the cursor published after 3 and `arm` read before 1,
//! then 1 < 2 < 3 < a < b < c < 1, a circle that the two sequentially consistent
//! fences forbid. At most one bell answers one arm, because `rung` is swapped: so
//! the number of stale bells in a TCP queue is bounded by the number of sleeps.

use crate::sync::{AtomicU32, Ordering, fence};
use sidestep_derive::{Renew, Shared};

/// The number under which every publication is answered: a sleeper that asks so gets as
/// many bells as there are messages, and takes them out of the queue itself.
const ALWAYS: u32 = u32::MAX;

/// The sleeper's word: 0, or the number of the bell it asks for.
#[derive(Renew, Shared)]
#[repr(transparent)]
pub struct Arm(AtomicU32);

/// The ringer's word: the number it answered last.
#[derive(Renew, Shared)]
#[repr(transparent)]
pub struct Rung(AtomicU32);

impl Default for Arm {
    fn default() -> Self {
        Self::new()
    }
}

impl Arm {
    /// No thread sleeps.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Asks for a bell under `number`, a number not used for this arm before
    /// (until 2^31 sleeps later) and not 0. Look at the cursor again afterwards,
    /// before sleeping.
    #[inline]
    pub fn ask(&self, number: u32) {
        debug_assert!(number != 0);
        self.0.store(number, Ordering::Relaxed);
        // Pairs with the fence in `Rung::answer`: step 2 of the protocol.
        fence(Ordering::SeqCst);
    }

    /// Asks for a bell after every publication, until withdrawn.
    pub fn ask_always(&self) {
        self.ask(ALWAYS);
    }

    /// Withdraws the request. A ringer that read the arm before may still ring.
    #[inline]
    pub fn withdraw(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The number of the bell that is asked for, answered or not; 0: none is.
    #[inline]
    pub fn number(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether a bell is asked for; for the memory's owner and for displays.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl Default for Rung {
    fn default() -> Self {
        Self::new()
    }
}

impl Rung {
    /// Nothing answered yet.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// To be asked after every publication: does the sleeper behind `arm` want a
    /// bell that was not rung yet? The caller rings it then.
    ///
    /// The caller's publication must be followed by a sequentially consistent
    /// fence or be a sequentially consistent read-modify-write (step b); this
    /// function does not fence, so that one fence serves several arms.
    #[inline]
    pub fn answer(&self, arm: &Arm) -> bool {
        let number = arm.0.load(Ordering::Relaxed);
        number != 0 && self.rise_to(number)
    }

    /// Whether [`Rung::answer`] would be true now, without answering. A ringer that has to get
    /// ready first asks so before it does.
    #[inline]
    pub fn is_asked(&self, arm: &Arm) -> bool {
        let number = arm.0.load(Ordering::Relaxed);
        number != 0 && self.is_below(number)
    }

    #[cold]
    fn is_below(&self, number: u32) -> bool {
        self.0.load(Ordering::Relaxed) != number || number == ALWAYS
    }

    #[cold]
    fn rise_to(&self, number: u32) -> bool {
        self.0.swap(number, Ordering::Relaxed) != number || number == ALWAYS
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    /// The bell itself: a counter that the sleeper would block on.
    #[test]
    fn no_wake_up_is_lost_and_no_arm_is_answered_twice() {
        loom::model(|| {
            let cursor = Arc::new(AtomicU64::new(0));
            let arm = Arc::new(Arm::new());
            let bells = Arc::new(AtomicU32::new(0));
            let rung = Arc::new(Rung::new());

            let ringers: std::vec::Vec<_> = (0..2)
                .map(|_| {
                    let (cursor, arm, bells, rung) =
                        (cursor.clone(), arm.clone(), bells.clone(), rung.clone());
                    thread::spawn(move || {
                        cursor.fetch_add(1, Ordering::Release);
                        fence(Ordering::SeqCst);
                        if rung.answer(&arm) {
                            bells.fetch_add(1, Ordering::Release);
                        }
                    })
                })
                .collect();

            arm.ask(1);
            let seen = cursor.load(Ordering::Acquire);
            for ringer in ringers {
                ringer.join().unwrap();
            }
            let rung = bells.load(Ordering::Acquire);
            assert!(rung <= 1, "one arm, at most one bell");
            assert!(seen == 2 || rung == 1, "slept through a publication");
        });
    }

    /// A ringer counts itself, sees that bells are allowed, and only then claims the request. A thread
    /// that forbids bells has answered before, or finds the request answered: then it sees the ringer, or the
    /// bell was rung. The words of the ringers are sequentially consistent; `rung` need not be.
    #[test]
    fn a_request_is_not_claimed_by_a_ringer_that_nobody_sees() {
        loom::model(|| {
            let arm = Arm::new();
            arm.ask(1);
            let words = Arc::new((arm, Rung::new(), AtomicU32::new(0), AtomicU32::new(0)));
            let is_open = Arc::new(AtomicU32::new(1));
            let ring = |words: &(Arm, Rung, AtomicU32, AtomicU32), is_open: &AtomicU32| {
                let (arm, rung, ringers, bells) = words;
                if rung.is_asked(arm) {
                    ringers.fetch_add(1, Ordering::SeqCst);
                    if is_open.load(Ordering::SeqCst) != 0 && rung.answer(arm) {
                        bells.fetch_add(1, Ordering::Relaxed);
                    }
                    ringers.fetch_sub(1, Ordering::SeqCst);
                }
            };
            let ringer = {
                let (words, is_open) = (words.clone(), is_open.clone());
                thread::spawn(move || ring(&words, &is_open))
            };

            ring(&words, &is_open);
            is_open.fetch_and(0, Ordering::SeqCst);
            let sees_ringers = words.2.load(Ordering::SeqCst) != 0;
            ringer.join().unwrap();
            let bells = words.3.load(Ordering::Relaxed);
            assert!(bells <= 1 && (bells == 1 || sees_ringers), "a reader sleeps for ever");
        });
    }
}
