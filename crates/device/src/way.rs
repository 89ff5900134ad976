//! The way of a direction: by TCP, through the ring, by TCP again.
//!
//! Each change is a *turn*, and turns are counted: after an odd number of them the bytes of
//! the direction go through the ring, and its TCP stream carries bells only.
//!
//! ```text
//!   TCP stream   data ......|  bells  |  data ......|  bells
//!   ring                    |  data   |             |  data
//!                      turn 1    turn 2        turn 3
//!                      at X      at Y          at Z      offsets in the TCP stream
//! ```
//!
//! The sender turns, and tells the offset of the byte from which on its TCP stream means
//! something else ([`Way::turn`], in the sender's memory). The receiver follows when it has
//! taken everything that comes before. It has to permit each turn ([`Permit`], in the
//! receiver's memory): it does so when it has followed the one before, so one offset at a
//! time is enough, and when it takes no byte of the TCP stream any more without asking what
//! it is.
//!
//! *No data is taken for a bell.* The sender turns before it sends the first byte that means
//! something else. A receiver that has looked at bytes of the queue and asks for the turn *then*
//! learns of every turn that comes before one of them.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use sidestep_derive::Shared;

/// The sender's words.
#[derive(Shared)]
#[repr(C)]
pub struct Way {
    at: AtomicU64,
    turns: AtomicU32,
}

/// What no sender says who follows the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl core::fmt::Display for Lost {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("turns without permission")
    }
}

impl Way {
    /// By TCP, from the start. Zeroed memory is the same.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { at: AtomicU64::new(0), turns: AtomicU32::new(0) }
    }

    /// Owner: back to the start, for a new connection that the peer does not see yet.
    pub fn reset(&self) {
        self.at.store(0, Ordering::Relaxed);
        self.turns.store(0, Ordering::Relaxed);
    }

    /// Turns so far. To the peer a claim.
    #[inline]
    pub fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Owner, under its send lock: takes this turn. From the byte at offset `at` of its TCP
    /// stream on, that stream means something else.
    ///
    /// A signal handler may take the same turn in the middle of it: at the same offset,
    /// because nothing was sent by TCP meanwhile that means anything.
    pub fn turn(&self, turn: u32, at: u64) {
        self.at.store(at, Ordering::Relaxed);
        // Release: a peer that sees the turn sees its offset, and the producer cursor as it is.
        self.turns.store(turn, Ordering::Release);
    }

    /// Peer: the turn after those that it has followed, if there is one: its offset.
    ///
    /// # Errors
    /// The owner claims turns that it cannot have taken.
    pub fn next(&self, followed: u32) -> Result<Option<u64>, Lost> {
        // Acquire: pairs with the Release in `turn`.
        match self.turns.load(Ordering::Acquire).wrapping_sub(followed) {
            0 => Ok(None),
            1 => Ok(Some(self.at.load(Ordering::Relaxed))),
            _ => Err(Lost),
        }
    }
}

/// The receiver's word: the last turn that the sender may take.
#[derive(Shared)]
#[repr(transparent)]
pub struct Permit(AtomicU32);

impl Permit {
    /// None. Zeroed memory is the same.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Owner: none, for a new connection that the peer does not see yet.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Owner: permits all turns up to this one. False: it had.
    pub fn grant(&self, turn: u32) -> bool {
        // Release: a sender that turns by this permission does so after all that went before.
        self.0.swap(turn, Ordering::AcqRel) != turn
    }

    /// Sender: whether this turn is permitted. A claim, by which who lies harms himself.
    #[inline]
    pub fn allows(&self, turn: u32) -> bool {
        // Acquire: pairs with the Release in `grant`.
        self.0.load(Ordering::Acquire) == turn
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_turn_is_seen_once_and_leaps_are_not_believed() {
        let way = Way::new();
        assert_eq!(way.next(0), Ok(None));
        way.turn(1, 70);
        assert_eq!(way.next(0), Ok(Some(70)));
        assert_eq!(way.next(1), Ok(None));
        way.turn(2, 90);
        assert_eq!((way.next(1), way.next(0)), (Ok(Some(90)), Err(Lost)));
        assert_eq!(way.next(3), Err(Lost), "fewer than were followed");
    }

    #[test]
    fn a_permit_is_for_one_turn() {
        let permit = Permit::new();
        assert!(!permit.allows(2));
        assert!(permit.grant(2) && !permit.grant(2));
        assert!(permit.allows(2) && !permit.allows(3) && !permit.allows(1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;
    use std::vec::Vec;

    const BELL: u8 = b'!';
    const DATA: u8 = b'd';

    /// A direction in its ring goes back to TCP: the receiver, which clears bells out of the
    /// queue all the time, throws no byte of the program away, and finds it.
    #[test]
    fn no_data_is_taken_for_a_bell() {
        loom::model(|| {
            let way = Arc::new(Way::new());
            way.turn(1, 0);
            let permit = Arc::new(Permit::new());
            let queue = Arc::new(Mutex::new(Vec::new()));
            let sender = {
                let (way, permit, queue) = (way.clone(), permit.clone(), queue.clone());
                thread::spawn(move || {
                    queue.lock().unwrap().push(BELL);
                    let turns = permit.allows(2);
                    if turns {
                        way.turn(2, 1);
                        queue.lock().unwrap().push(DATA);
                    }
                    turns
                })
            };
            permit.grant(2);
            let mut consumed = 0;
            for _ in 0..2 {
                let seen = queue.lock().unwrap().len() as u64;
                let bells = match way.next(1).unwrap() {
                    None => seen,
                    Some(at) => seen.min(at - consumed),
                };
                let taken: Vec<u8> = queue.lock().unwrap().drain(..bells as usize).collect();
                assert!(taken.iter().all(|byte| *byte == BELL));
                consumed += bells;
            }
            let has_turned = sender.join().unwrap();
            let left = queue.lock().unwrap();
            assert_eq!(left.iter().filter(|byte| **byte == DATA).count(), usize::from(has_turned));
            assert_eq!(way.next(1), Ok(has_turned.then_some(1)));
        });
    }
}
