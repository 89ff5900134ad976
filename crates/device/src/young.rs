//! Young connections: those that have not shown yet that they live long enough to be moved.
//!
//! Many a program opens a connection for one request and closes it. Until a connection has
//! outlived the first patience of AUTOSMC ([`MESSAGES`], [`BYTES`]) all that is kept of it is
//! four words, in the place of its descriptor:
//!
//! ```text
//!   about            0, or that it is one · who accepted · the server's port
//!   traffic          open · messages and bytes of either direction · calls inside
//!   sent, received   how many messages of each length
//! ```
//!
//! It grows up when more is needed: a slot, a socket object. Then it could move, and a call
//! that still sends or receives by TCP must not find itself beside a ring. So each call is
//! *inside* while it lasts. [`Young::close`] and [`Young::enter`] change one word: a call
//! either comes before, and is seen [inside](Young::is_in_use) until it has returned, or it
//! comes after, and turns back. Whoever has closed the place moves nothing before it is empty.

use crate::sizes;
use crate::sync::{AtomicU64, Ordering};

/// Descriptors below this may lead to a young connection.
pub const YOUNG_MAX: usize = 16_384;
/// A connection of so many messages, both directions together, is not young.
pub const MESSAGES: u64 = 16;
/// A connection of so many bytes, both directions together, is not young.
pub const BYTES: u64 = 64 << 10;

/// The place of a descriptor.
#[repr(C, align(32))]
pub struct Young {
    about: AtomicU64,
    traffic: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// What is known when a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// This end accepted.
    pub is_server: bool,
    /// Port of the server's end, 0 = not known.
    pub server_port: u16,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the program.
    Sent,
    /// To the program.
    Received,
}

/// What one direction has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Calls that moved something.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    lengths: u64,
}

/// What both directions have carried. A length may be among its lengths too early, or twice,
/// if the call that moved it was counting while the place was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the program.
    pub sent: Carried,
    /// To the program.
    pub received: Carried,
}

// `traffic`, from its lowest bit: bytes sent and received, messages sent and received, the
// open flag, calls inside.
const BYTES_BITS: u32 = 16;
const MESSAGES_AT: u32 = 2 * BYTES_BITS;
const MESSAGES_BITS: u32 = 4;
const OPEN: u64 = 1 << (MESSAGES_AT + 2 * MESSAGES_BITS);
const ONE_CALL: u64 = OPEN << 1;
const CALLS: u64 = !(ONE_CALL - 1);

// Less than the limits fits into each part, and into the counts of lengths.
const _: () = assert!(BYTES == 1 << BYTES_BITS && MESSAGES == 1 << MESSAGES_BITS);
const _: () = assert!(sizes::CLASSES as u32 * MESSAGES_BITS <= u64::BITS);

// `about`.
const IS_ONE: u64 = 1;
const IS_SERVER: u64 = 1 << 1;
const PORT_AT: u32 = 16;

impl Direction {
    const fn index(self) -> u32 {
        match self {
            Self::Sent => 0,
            Self::Received => 1,
        }
    }
}

fn part(word: u64, at: u32, bits: u32) -> u64 {
    word >> at & ((1 << bits) - 1)
}

fn messages(word: u64, direction: Direction) -> u64 {
    part(word, MESSAGES_AT + direction.index() * MESSAGES_BITS, MESSAGES_BITS)
}

fn bytes(word: u64, direction: Direction) -> u64 {
    part(word, direction.index() * BYTES_BITS, BYTES_BITS)
}

/// The word with one more message, if the connection stays young with it.
fn with(word: u64, direction: Direction, len: u64) -> Option<u64> {
    let both =
        |of: fn(u64, Direction) -> u64| of(word, Direction::Sent) + of(word, Direction::Received);
    let stays = word & OPEN != 0
        && both(messages) + 1 < MESSAGES
        && len < BYTES
        && both(bytes) + len < BYTES;
    let one = 1 << (MESSAGES_AT + direction.index() * MESSAGES_BITS);
    stays.then(|| word + one + (len << (direction.index() * BYTES_BITS)))
}

impl Young {
    /// A connection begins here. False: calls of the one before have not returned.
    #[must_use]
    pub fn open(&self, about: About) -> bool {
        // As if by a call: who comes meanwhile finds it closed and counts nothing.
        // Acquire: pairs with the last to leave; nobody counts lengths any more.
        let (nobody, we) = (0, ONE_CALL);
        let taken = self.traffic.compare_exchange(nobody, we, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        self.sent.store(0, Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
        let server = if about.is_server { IS_SERVER } else { 0 };
        let port = u64::from(about.server_port) << PORT_AT;
        self.about.store(IS_ONE | server | port, Ordering::Relaxed);
        // Release: whoever comes in sees the words at their beginning.
        self.traffic.fetch_sub(ONE_CALL - OPEN, Ordering::Release);
        true
    }

    /// What lives here, if anything does.
    #[must_use]
    pub fn about(&self) -> Option<About> {
        let word = self.about.load(Ordering::Acquire);
        (word & IS_ONE != 0).then_some(About {
            is_server: word & IS_SERVER != 0,
            server_port: (word >> PORT_AT) as u16,
        })
    }

    /// A plain call begins. `None`: the connection is not young any more.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> Option<Inside<'_>> {
        // Acquire: whoever comes in sees the connection that was opened.
        let inside = self.traffic.fetch_add(ONE_CALL, Ordering::Acquire);
        let call = Inside(self);
        (inside & OPEN != 0).then_some(call)
    }

    /// Whether calls are inside that have not returned.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        // Acquire: what they did is done.
        self.traffic.load(Ordering::Acquire) & CALLS != 0
    }

    /// It is not young any more, or has ended: what it has carried, to the first who asks.
    #[must_use]
    pub fn close(&self) -> Option<Traffic> {
        let word = self.traffic.fetch_and(CALLS, Ordering::AcqRel);
        let was_open = word & OPEN != 0;
        if was_open {
            self.about.store(0, Ordering::Release);
        }
        was_open.then(|| self.carried(word))
    }

    /// What it has carried so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.carried(self.traffic.load(Ordering::Relaxed))
    }

    fn carried(&self, word: u64) -> Traffic {
        let carried = |direction| Carried {
            messages: messages(word, direction),
            bytes: bytes(word, direction),
            lengths: self.lengths(direction).load(Ordering::Relaxed),
        };
        Traffic { sent: carried(Direction::Sent), received: carried(Direction::Received) }
    }

    fn lengths(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Sent => &self.sent,
            Direction::Received => &self.received,
        }
    }
}

impl Carried {
    /// Calls `f` with each class of [`sizes::Sizes`] and the messages it has.
    pub fn each_class(self, mut f: impl FnMut(usize, u64)) {
        let mut left = self.lengths;
        while left != 0 {
            let class = left.trailing_zeros() / MESSAGES_BITS;
            let n = part(left, class * MESSAGES_BITS, MESSAGES_BITS);
            f(class as usize, n);
            left -= n << (class * MESSAGES_BITS);
        }
    }
}

/// A plain call under way on a young connection.
pub struct Inside<'a>(&'a Young);

impl Inside<'_> {
    /// The call has moved so many bytes. False: it was one too many, or the connection is not
    /// young any more, and whoever knows it now is to count it.
    #[inline]
    #[must_use]
    pub fn count(self, direction: Direction, len: u64) -> bool {
        let Self(young) = self;
        let lengths = young.lengths(direction);
        let one = 1 << (sizes::class_of(len) as u32 * MESSAGES_BITS);
        // Before we leave: whoever comes next begins at zero.
        lengths.fetch_add(one, Ordering::Relaxed);
        let leave = |word: u64| with(word, direction, len).map(|word| word - ONE_CALL);
        // Release: pairs with `open` and `is_in_use`.
        let counted =
            young.traffic.fetch_update(Ordering::Release, Ordering::Relaxed, leave).is_ok();
        if counted {
            core::mem::forget(self);
        } else {
            lengths.fetch_sub(one, Ordering::Relaxed);
        }
        counted
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.traffic.fetch_sub(ONE_CALL, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const CLIENT: About = About { is_server: false, server_port: 65_535 };

    fn young() -> Young {
        let [about, traffic, sent, received] = [const { AtomicU64::new(0) }; 4];
        Young { about, traffic, sent, received }
    }

    fn pass(young: &Young, direction: Direction, len: u64) -> bool {
        young.enter().is_some_and(|inside| inside.count(direction, len))
    }

    #[test]
    fn lives_until_it_is_closed() {
        let young = young();
        assert!(young.about().is_none() && young.enter().is_none() && young.close().is_none());
        assert!(young.open(CLIENT) && !young.open(CLIENT));
        assert_eq!(young.about(), Some(CLIENT));
        assert!(pass(&young, Direction::Sent, 100));
        assert!(pass(&young, Direction::Received, 65_435));
        assert!(!pass(&young, Direction::Received, 1), "64 KiB are too many");
        let traffic = young.close().unwrap();
        assert_eq!((traffic.sent.messages, traffic.sent.bytes), (1, 100));
        assert_eq!((traffic.received.messages, traffic.received.bytes), (1, 65_435));
        let mut classes = Vec::new();
        traffic.received.each_class(|class, n| classes.push((class, n)));
        assert_eq!(classes, [(sizes::class_of(65_435), 1)]);
        assert!(young.about().is_none() && young.close().is_none());
        assert!(!pass(&young, Direction::Sent, 1));
    }

    #[test]
    fn nobody_moves_in_before_all_have_left() {
        let young = young();
        assert!(young.open(CLIENT));
        let inside = young.enter().unwrap();
        assert!(young.close().is_some());
        assert!(young.is_in_use() && !young.open(CLIENT));
        assert!(!inside.count(Direction::Sent, 1), "it was closed");
        assert!(!young.is_in_use() && young.open(CLIENT));
        assert_eq!(young.traffic(), Traffic::default());
    }

    proptest! {
        /// Whatever passes, what was counted adds up, and it is never as much as the limits.
        #[test]
        fn adds_up(calls in prop::collection::vec((any::<bool>(), 1u64..20_000), 0..40)) {
            let young = young();
            prop_assert!(young.open(CLIENT));
            let mut expected = [(0, 0); 2];
            let mut kept = true;
            for (is_sent, len) in calls {
                let direction = if is_sent { Direction::Sent } else { Direction::Received };
                let sums = expected.iter().fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
                kept = pass(&young, direction, len);
                prop_assert_eq!(kept, sums.0 + 1 < MESSAGES && sums.1 + len < BYTES);
                if kept {
                    let sum = &mut expected[direction.index() as usize];
                    *sum = (sum.0 + 1, sum.1 + len);
                }
            }
            let _ = kept;
            let traffic = young.close().unwrap();
            for (carried, expected) in [traffic.sent, traffic.received].iter().zip(expected) {
                prop_assert_eq!((carried.messages, carried.bytes), expected);
                let mut messages = 0;
                carried.each_class(|_, n| messages += n);
                prop_assert_eq!(messages, carried.messages);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    fn young() -> Young {
        let new = || AtomicU64::new(0);
        Young { about: new(), traffic: new(), sent: new(), received: new() }
    }

    const ABOUT: About = About { is_server: true, server_port: 80 };

    /// A call on one CPU, somebody who needs more than a place on another: when he finds
    /// nobody inside, no plain call is under way, and the message is counted here or there.
    #[test]
    fn whoever_finds_it_empty_is_alone() {
        loom::model(|| {
            let young = Arc::new(young());
            let in_call = Arc::new(AtomicBool::new(false));
            assert!(young.open(ABOUT));
            let caller = {
                let (young, in_call) = (young.clone(), in_call.clone());
                thread::spawn(move || match young.enter() {
                    Some(inside) => {
                        in_call.store(true, Ordering::Relaxed);
                        in_call.store(false, Ordering::Relaxed);
                        inside.count(Direction::Sent, 1)
                    }
                    None => false,
                })
            };
            let traffic = young.close().unwrap();
            if !young.is_in_use() {
                assert!(!in_call.load(Ordering::Relaxed));
            }
            let is_counted_here = caller.join().unwrap();
            assert_eq!(traffic.sent.messages, u64::from(is_counted_here));
        });
    }

    /// One connection ends while a call is under way, and the next begins in its place: it
    /// begins at zero.
    #[test]
    fn the_next_one_begins_at_zero() {
        loom::model(|| {
            let young = Arc::new(young());
            assert!(young.open(ABOUT));
            let caller = {
                let young = young.clone();
                thread::spawn(move || {
                    young.enter().is_some_and(|inside| inside.count(Direction::Sent, 1))
                })
            };
            let first = young.close().unwrap().sent.messages;
            if young.open(ABOUT) {
                let counted = caller.join().unwrap();
                let second = young.close().unwrap();
                assert_eq!(first + second.sent.messages, u64::from(counted));
                let mut lengths = 0;
                second.sent.each_class(|_, n| lengths += n);
                assert_eq!(lengths, second.sent.messages);
            }
        });
    }
}
