//! Untracked connections: those that have not shown yet that they live long enough to be moved.
//!
//! Many a program opens a connection for one request and closes it. Until a connection has
//! outlived the first patience of AUTOSMC ([`MESSAGES`], [`BYTES`]) all that is kept of it is
//! half a cache line, in the place of its descriptor:
//!
//! ```text
//!   about            0, or that the socket is fresh, or one · who accepted · the server's port
//!   traffic          open · messages and bytes of either direction · calls inside
//!   sent, received   how many messages of each length
//!   ended            those before it that were alike: how many, when last, what they carried
//! ```
//!
//! It is tracked when more is needed: a slot, a socket object. Then it could move, and a call
//! that still sends or receives by TCP must not find itself beside a ring. So each call is
//! *inside* while it lasts. [`Untracked::grow`] and [`Untracked::enter`] change one word: a call
//! either comes before, and is seen [inside](Untracked::is_in_use) until it has returned, or it
//! comes after, and turns back. The call that lets it grow moves nothing before the place is empty.
//!
//! The connections of a descriptor are mostly alike: the same server, the same messages. So one
//! that ends is counted where it was, in a line that its CPU has anyway ([`Ending::join`]), and
//! only the first that is different takes those before it to the sums of the process
//! ([`Ending::begin_anew`]).

#[cfg(not(loom))]
use crate::history;
use crate::sizes;
use crate::sync::{AtomicU64, Ordering, fence};
use sidestep_derive::Shared;

/// Descriptors below this may lead to an untracked connection.
pub const UNTRACKED_MAX: usize = 16_384;
/// A connection of so many messages, both directions together, is not untracked.
pub const MESSAGES: u64 = 16;
/// A connection of so many bytes, both directions together, is not untracked.
pub const BYTES: u64 = 64 << 10;

/// Seconds of a period of the history, in which ends can be counted together.
const PERIOD: u32 = 300;
#[cfg(not(loom))]
const _: () = assert!(PERIOD == history::PERIOD);

/// The place of a descriptor: a cache line, as its neighbours are other threads'.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Untracked {
    about: AtomicU64,
    traffic: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    ended: Ended,
}

/// Connections that have ended here, one like the other.
#[derive(Shared)]
#[repr(C)]
struct Ended {
    /// 0: none. What they are, as in `about`; how many; second of the last end, by
    /// [`coarse_seconds`](crate::sys::coarse_seconds).
    which: AtomicU64,
    /// Of all together: sent, and in the upper half received.
    bytes: AtomicU64,
    /// Of each.
    sent: AtomicU64,
    /// Of each.
    received: AtomicU64,
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A socket that is not connected.
    Fresh,
    /// An untracked connection, or one of which an object is being made.
    Untracked,
}

/// What there was to end at a place.
pub enum End<'a> {
    /// No connection, or only a fresh socket.
    Nothing,
    /// A connection of which an object is being made: it has to be ended.
    Grows,
    /// A connection, which is to be counted.
    Counts(Ending<'a>),
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
    /// Of each connection.
    lengths: u64,
    /// Connections.
    times: u64,
}

/// Connections that have ended, one like the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What each was.
    pub about: About,
    /// How many.
    pub connections: u32,
    /// Second of the last end, by [`coarse_seconds`](crate::sys::coarse_seconds).
    pub last: u32,
    /// What all have carried.
    pub traffic: Traffic,
}

/// The connection at a place, if there is one, and those that have ended there.
pub type Seen = (Option<(About, Traffic)>, Option<Batch>);

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
// open flag, flag of a connection that grows, flag of one whose end is being counted, calls
// inside.
const BYTES_BITS: u32 = 16;
const MESSAGES_AT: u32 = 2 * BYTES_BITS;
const MESSAGES_BITS: u32 = 4;
const OPEN: u64 = 1 << (MESSAGES_AT + 2 * MESSAGES_BITS);
const GROWING: u64 = OPEN << 1;
const ENDING: u64 = GROWING << 1;
const ONE_CALL: u64 = ENDING << 1;
const CALLS: u64 = !(ONE_CALL - 1);

// Less than the limits fits into each part, and into the counts of lengths.
const _: () = assert!(BYTES == 1 << BYTES_BITS && MESSAGES == 1 << MESSAGES_BITS);
const _: () = assert!(sizes::CLASSES as u32 * MESSAGES_BITS <= u64::BITS);

// `about`. The first three are in `which` as well, with the number of connections between.
const IS_ONE: u64 = 1;
const IS_SERVER: u64 = 1 << 1;
const PORT_AT: u32 = 16;
const IS_FRESH: u64 = 1 << 2;

// `which`.
const KIND: u64 = IS_ONE | IS_SERVER | 0xFFFF << PORT_AT;
const CONNECTIONS_AT: u32 = 2;
const CONNECTIONS_BITS: u32 = PORT_AT - CONNECTIONS_AT;
const LAST_AT: u32 = 32;
// Their bytes fit into the halves of a word.
const _: () = assert!(CONNECTIONS_BITS + BYTES_BITS <= 32);

/// Looks of [`Untracked::look`] at a place that changes: one that stays so is that of a process
/// that has died in the middle.
const LOOKS_MAX: usize = 64;

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

/// The word with one more message, if the connection stays untracked with it.
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

impl Untracked {
    /// There is a socket that is not connected.
    pub fn begin_fresh(&self) {
        self.about.store(IS_FRESH, Ordering::Relaxed);
    }

    /// What is here.
    #[must_use]
    #[inline]
    pub fn stage(&self) -> Option<Stage> {
        match self.about.load(Ordering::Acquire) {
            0 => None,
            IS_FRESH => Some(Stage::Fresh),
            _ => Some(Stage::Untracked),
        }
    }

    /// A connection begins here. False, and it is a fresh socket's place: calls of the one
    /// before have not returned.
    #[must_use]
    pub fn open(&self, about: About) -> bool {
        // Acquire: pairs with the last to leave; no call counts lengths any more. A call that comes
        // meanwhile finds it closed and counts nothing.
        if self.traffic.load(Ordering::Acquire) == 0 {
            self.sent.store(0, Ordering::Relaxed);
            self.received.store(0, Ordering::Relaxed);
            self.about.store(about.word(), Ordering::Relaxed);
            // Release: a call that comes in sees the words at their beginning.
            let opened =
                self.traffic.compare_exchange(0, OPEN, Ordering::Release, Ordering::Relaxed);
            if opened.is_ok() {
                return true;
            }
        }
        self.begin_fresh();
        false
    }

    /// The untracked connection here, if there is one.
    #[must_use]
    pub fn about(&self) -> Option<About> {
        About::of(self.about.load(Ordering::Acquire))
    }

    /// An object is to be made of the untracked connection here; `None`: it has ended. Calls turn
    /// back from now on, and what it has carried stays until the grown connection [takes](Untracked::take) it.
    #[must_use]
    pub fn grow(&self) -> Option<About> {
        let grow = |word: u64| (word & OPEN != 0).then(|| word - OPEN + GROWING);
        self.traffic.fetch_update(Ordering::AcqRel, Ordering::Relaxed, grow).ok()?;
        self.about()
    }

    /// What a connection that grows has carried, to the first who asks.
    #[must_use]
    pub fn take(&self) -> Option<Traffic> {
        let word = self.traffic.fetch_and(CALLS, Ordering::AcqRel);
        (word & GROWING != 0).then(|| self.carried(word))
    }

    /// Nothing is here any more: what was is known by its object, or has ended.
    pub fn clear(&self) {
        self.about.store(0, Ordering::Release);
    }

    /// A plain call begins. `None`: the connection is not untracked any more.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> Option<Inside<'_>> {
        if self.traffic.load(Ordering::Relaxed) & OPEN == 0 {
            return None;
        }
        // Acquire: a call that comes in sees the connection that was opened. Release: the end sees by
        // which number the call is made ([`Caller`](crate::names::Caller)).
        let inside = self.traffic.fetch_add(ONE_CALL, Ordering::AcqRel);
        let call = Inside(self);
        (inside & OPEN != 0).then_some(call)
    }

    /// Whether calls are inside that have not returned.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        // Acquire: what they did is done.
        self.traffic.load(Ordering::Acquire) & CALLS != 0
    }

    /// What is here has ended. The time is in seconds, by
    /// [`coarse_seconds`](crate::sys::coarse_seconds).
    #[must_use]
    pub fn end(&self, now: u32) -> End<'_> {
        let ending = |word: u64| (word & OPEN != 0).then_some(word & CALLS | ENDING);
        // Acquire: what calls have counted.
        match self.traffic.fetch_update(Ordering::Acquire, Ordering::Relaxed, ending) {
            Ok(word) => {
                // Release: who sees what follows sees the flag or a later word.
                fence(Ordering::Release);
                let about = self.about.load(Ordering::Relaxed);
                End::Counts(Ending { place: self, about, traffic: self.carried(word), now })
            }
            Err(_) if self.about().is_some() => End::Grows,
            Err(_) => {
                self.clear();
                End::Nothing
            }
        }
    }

    /// What it has carried so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.carried(self.traffic.load(Ordering::Relaxed))
    }

    /// The connection that is here, if there is one, and those that have ended here, at one
    /// moment: none is in neither or in both.
    #[must_use]
    pub fn look(&self) -> Seen {
        let in_peace = (1..LOOKS_MAX).find_map(|_| {
            let before = self.words();
            let seen = self.seen();
            // Acquire: what went before is of the next line's words or earlier ones.
            fence(Ordering::Acquire);
            (before[0] & ENDING == 0 && before == self.words()).then_some(seen)
        });
        in_peace.unwrap_or_else(|| self.seen())
    }

    /// Whether nothing is or was at this place.
    #[cfg(not(loom))]
    pub(crate) fn is_blank(&self) -> bool {
        let Ended { which, .. } = &self.ended;
        [&self.about, &self.traffic, which].iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Whether what was read between these two looks at a place is of one moment.
    #[cfg(not(loom))]
    pub(crate) fn is_of_one_moment(before: &Self, after: &Self) -> bool {
        let words = before.words();
        words[0] & ENDING == 0 && words == after.words()
    }

    /// The words that change whenever a connection begins, moves something or ends.
    fn words(&self) -> [u64; 2] {
        // Acquire: what follows is of these words or later ones.
        [&self.traffic, &self.ended.which].map(|word| word.load(Ordering::Acquire))
    }

    fn seen(&self) -> Seen {
        let word = self.traffic.load(Ordering::Relaxed);
        let about = self.about().filter(|_| word & (OPEN | GROWING) != 0);
        (about.map(|about| (about, self.carried(word))), self.ended.batch())
    }

    fn carried(&self, word: u64) -> Traffic {
        let carried = |direction| Carried {
            messages: messages(word, direction),
            bytes: bytes(word, direction),
            lengths: self.lengths(direction).load(Ordering::Relaxed),
            times: 1,
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

impl About {
    /// What the history counts when a connection like this ends: it stayed on TCP for the
    /// reason of this code (`proto::fallback::Reason`).
    #[cfg(not(loom))]
    #[must_use]
    pub fn ended_on_tcp(self, reason: u8) -> history::Kind {
        history::Kind {
            server_ip: [0; 2],
            server_port: self.server_port,
            family: 0,
            is_server: self.is_server,
            verdict: history::Verdict::Tcp { reason, detail: 0 },
        }
    }

    fn word(self) -> u64 {
        let server = if self.is_server { IS_SERVER } else { 0 };
        IS_ONE | server | u64::from(self.server_port) << PORT_AT
    }

    fn of(word: u64) -> Option<Self> {
        (word & IS_ONE != 0).then_some(Self {
            is_server: word & IS_SERVER != 0,
            server_port: (word >> PORT_AT) as u16,
        })
    }
}

/// An end that is being counted. No other thread begins or ends anything at the place meanwhile.
pub struct Ending<'a> {
    place: &'a Untracked,
    about: u64,
    traffic: Traffic,
    now: u32,
}

impl Ending<'_> {
    /// Counts it with those before it, if it was like them and ended in the same
    /// five minutes.
    ///
    /// # Errors
    /// Itself: it was not.
    pub fn join(self) -> Result<(), Self> {
        let ended = &self.place.ended;
        let which = ended.which.load(Ordering::Relaxed);
        let Traffic { sent, received } = self.traffic;
        let is_like_them = which & KIND == self.about & KIND
            && ended.sent.load(Ordering::Relaxed) == sent.lengths
            && ended.received.load(Ordering::Relaxed) == received.lengths
            && (which >> LAST_AT) as u32 / PERIOD == self.now / PERIOD;
        let before = part(which, CONNECTIONS_AT, CONNECTIONS_BITS);
        if !is_like_them || before == (1 << CONNECTIONS_BITS) - 1 {
            return Err(self);
        }
        ended.bytes.store(ended.bytes.load(Ordering::Relaxed) + self.bytes(), Ordering::Relaxed);
        ended.which.store(self.which(before + 1), Ordering::Relaxed);
        Ok(())
    }

    /// Counts it as the first of its kind. Those before it are to be counted elsewhere; who
    /// reads both places is to be told ([`State::change`](crate::state::State::change)).
    #[must_use]
    pub fn begin_anew(self) -> Option<Batch> {
        let ended = &self.place.ended;
        let before = ended.batch();
        ended.sent.store(self.traffic.sent.lengths, Ordering::Relaxed);
        ended.received.store(self.traffic.received.lengths, Ordering::Relaxed);
        ended.bytes.store(self.bytes(), Ordering::Relaxed);
        ended.which.store(self.which(1), Ordering::Relaxed);
        before
    }

    fn bytes(&self) -> u64 {
        self.traffic.sent.bytes | self.traffic.received.bytes << 32
    }

    fn which(&self, connections: u64) -> u64 {
        self.about & KIND | connections << CONNECTIONS_AT | u64::from(self.now) << LAST_AT
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.place.clear();
        // Release: pairs with `look` and with the next to begin.
        self.place.traffic.fetch_and(!ENDING, Ordering::Release);
    }
}

impl Ended {
    fn batch(&self) -> Option<Batch> {
        let which = self.which.load(Ordering::Relaxed);
        let about = About::of(which)?;
        let bytes = self.bytes.load(Ordering::Relaxed);
        let times = part(which, CONNECTIONS_AT, CONNECTIONS_BITS);
        let carried = |lengths: &AtomicU64, bytes: u64| {
            let each =
                Carried { messages: 0, bytes, lengths: lengths.load(Ordering::Relaxed), times };
            let mut messages = 0;
            each.each_class(|_, n| messages += n);
            Carried { messages, ..each }
        };
        let sent = carried(&self.sent, u64::from(bytes as u32));
        let received = carried(&self.received, bytes >> 32);
        Some(Batch {
            about,
            connections: times as u32,
            last: (which >> LAST_AT) as u32,
            traffic: Traffic { sent, received },
        })
    }
}

impl Carried {
    /// Calls `f` with each class of [`sizes::Sizes`] and the messages it has.
    pub fn each_class(self, mut f: impl FnMut(usize, u64)) {
        let mut left = self.lengths;
        while left != 0 {
            let class = left.trailing_zeros() / MESSAGES_BITS;
            let n = part(left, class * MESSAGES_BITS, MESSAGES_BITS);
            f(class as usize, n * self.times);
            left -= n << (class * MESSAGES_BITS);
        }
    }
}

/// A plain call under way on an untracked connection.
pub struct Inside<'a>(&'a Untracked);

impl Inside<'_> {
    /// The call has moved so many bytes. False: it was one too many, or the connection is not
    /// untracked any more, and its slot counts it.
    #[inline]
    #[must_use]
    pub fn count(self, direction: Direction, len: u64) -> bool {
        let Self(untracked) = self;
        let lengths = untracked.lengths(direction);
        let one = 1 << (sizes::class_of(len) as u32 * MESSAGES_BITS);
        // Before we leave: the next call begins at zero.
        lengths.fetch_add(one, Ordering::Relaxed);
        let leave = |word: u64| with(word, direction, len).map(|word| word - ONE_CALL);
        // Release: pairs with `open` and `is_in_use`.
        let counted =
            untracked.traffic.fetch_update(Ordering::Release, Ordering::Relaxed, leave).is_ok();
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
    use crate::valid::zeroed;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::vec::Vec;

    const CLIENT: About = About { is_server: false, server_port: 65_535 };

    fn untracked() -> Box<Untracked> {
        zeroed()
    }

    fn end(untracked: &Untracked) -> Option<Ending<'_>> {
        match untracked.end(0) {
            End::Counts(ending) => Some(ending),
            End::Nothing | End::Grows => None,
        }
    }

    fn pass(untracked: &Untracked, direction: Direction, len: u64) -> bool {
        untracked.enter().is_some_and(|inside| inside.count(direction, len))
    }

    #[test]
    fn lives_until_it_grows() {
        let untracked = untracked();
        assert!(
            untracked.about().is_none()
                && untracked.enter().is_none()
                && untracked.grow().is_none()
        );
        untracked.begin_fresh();
        assert!(untracked.stage() == Some(Stage::Fresh) && untracked.about().is_none());
        assert!(untracked.open(CLIENT));
        assert_eq!((untracked.stage(), untracked.about()), (Some(Stage::Untracked), Some(CLIENT)));
        assert!(pass(&untracked, Direction::Sent, 100));
        assert!(pass(&untracked, Direction::Received, 65_435));
        assert!(!pass(&untracked, Direction::Received, 1), "64 KiB are too many");
        assert!(untracked.grow() == Some(CLIENT) && untracked.grow().is_none());
        assert!(!pass(&untracked, Direction::Sent, 1) && matches!(untracked.end(0), End::Grows));
        assert_eq!(untracked.look().0, Some((CLIENT, untracked.traffic())), "it has not gone yet");
        let traffic = untracked.take().unwrap();
        assert_eq!((traffic.sent.messages, traffic.sent.bytes), (1, 100));
        assert_eq!((traffic.received.messages, traffic.received.bytes), (1, 65_435));
        let mut classes = Vec::new();
        traffic.received.each_class(|class, n| classes.push((class, n)));
        assert_eq!(classes, [(sizes::class_of(65_435), 1)]);
        assert!(
            untracked.take().is_none() && matches!(untracked.end(0), End::Grows),
            "until it is known"
        );
        untracked.clear();
        assert!(matches!(untracked.end(0), End::Nothing) && untracked.look() == (None, None));
    }

    #[test]
    fn nobody_moves_in_before_all_have_left() {
        let untracked = untracked();
        assert!(untracked.open(CLIENT));
        let inside = untracked.enter().unwrap();
        assert!(untracked.grow().is_some() && untracked.take().is_some());
        assert!(untracked.is_in_use() && !untracked.open(CLIENT));
        assert!(!inside.count(Direction::Sent, 1), "it was closed");
        assert!(!untracked.is_in_use() && untracked.open(CLIENT));
        assert_eq!(untracked.traffic(), untracked_traffic());
    }

    /// One message more changes the parts of its direction and nothing else, or the connection is not
    /// untracked any more: all counts of messages, all flags, and of bytes and calls the values next to
    /// where a part begins or ends. The word is a sum, so a part that does not overflow at its ends
    /// does not between them, and none carries into the next.
    #[test]
    fn one_message_more_carries_into_no_other_part() {
        const BYTES_NEAR_ENDS: [u64; 6] = [0, 1, BYTES / 2 - 1, BYTES / 2, BYTES - 2, BYTES - 1];
        const LENS: [u64; 8] =
            [0, 1, BYTES / 2 - 1, BYTES / 2, BYTES - 1, BYTES, BYTES + 1, u64::MAX];
        let calls = [0, 1, 2, CALLS / ONE_CALL];
        let words = (0..MESSAGES * MESSAGES).flat_map(|both| {
            BYTES_NEAR_ENDS.into_iter().flat_map(move |a| {
                BYTES_NEAR_ENDS.map(|b| both << MESSAGES_AT | a | b << BYTES_BITS)
            })
        });
        let flags = [0, OPEN, GROWING, ENDING, OPEN | GROWING, OPEN | ENDING];
        for word in words {
            for (flags, calls) in flags.into_iter().flat_map(|f| calls.map(|c| (f, c))) {
                let word = word | flags | (calls * ONE_CALL);
                for (direction, other) in
                    [(Direction::Sent, Direction::Received), (Direction::Received, Direction::Sent)]
                {
                    for len in LENS {
                        let sums =
                            [messages, bytes].map(|of| of(word, direction) + of(word, other));
                        let stays = word & OPEN != 0
                            && sums[0] + 1 < MESSAGES
                            && sums[1].checked_add(len).is_some_and(|sum| sum < BYTES);
                        let next = with(word, direction, len);
                        assert_eq!(next.is_some(), stays, "{word:#x} {direction:?} {len}");
                        let Some(next) = next else { continue };
                        assert_eq!(messages(next, direction), messages(word, direction) + 1);
                        assert_eq!(bytes(next, direction), bytes(word, direction) + len);
                        let others =
                            |word| (messages(word, other), bytes(word, other), word & !(OPEN - 1));
                        assert_eq!(others(next), others(word), "{word:#x} {direction:?} {len}");
                    }
                }
            }
        }
    }

    /// That of a connection that has carried nothing.
    fn untracked_traffic() -> Traffic {
        let nothing = Carried { times: 1, ..Carried::default() };
        Traffic { sent: nothing, received: nothing }
    }

    /// One connection that has sent messages of these lengths, to its end at this second.
    fn live<'a>(untracked: &'a Untracked, about: About, sent: &[u64], now: u32) -> Ending<'a> {
        assert!(untracked.open(about));
        assert!(sent.iter().all(|len| pass(untracked, Direction::Sent, *len)));
        let End::Counts(ending) = untracked.end(now) else { panic!("it was open") };
        assert!(untracked.about().is_some() && !untracked.open(about), "it is being counted");
        ending
    }

    #[test]
    fn ends_that_are_alike_are_counted_in_their_place() {
        let untracked = untracked();
        let first = live(&untracked, CLIENT, &[100, 5000], 7).join();
        assert_eq!(first.err().unwrap().begin_anew(), None, "there was none before");
        assert!(live(&untracked, CLIENT, &[120, 5000], 9).join().is_ok(), "lengths of one class");
        let (now, batch) = untracked.look();
        let batch = batch.unwrap();
        assert_eq!((now, batch.about, batch.connections, batch.last), (None, CLIENT, 2, 9));
        assert_eq!((batch.traffic.sent.messages, batch.traffic.sent.bytes), (4, 10_220));
        let mut classes = Vec::new();
        batch.traffic.sent.each_class(|class, n| classes.push((class, n)));
        assert_eq!(classes, [(sizes::class_of(100), 2), (sizes::class_of(5000), 2)]);

        let others = [
            (CLIENT, &[100][..], 9),
            (About { is_server: true, ..CLIENT }, &[100], 9),
            (About { server_port: 1, ..CLIENT }, &[100], 9),
            (CLIENT, &[100], 9),
            (CLIENT, &[100], 9 + PERIOD),
        ];
        for (about, sent, now) in others {
            let before = untracked.look().1;
            let ending = live(&untracked, about, sent, now).join().expect_err("it is different");
            assert_eq!(ending.begin_anew(), before);
        }
    }

    #[test]
    fn an_end_is_one_decision_of_its_servers_port() {
        let kind = About { is_server: true, server_port: 80 }.ended_on_tcp(7);
        assert_eq!((kind.server_port, kind.is_server, kind.family), (80, true, 0));
        assert_eq!(kind.verdict, history::Verdict::Tcp { reason: 7, detail: 0 });
    }

    #[test]
    fn a_place_counts_no_further_than_its_words_reach() {
        let untracked = untracked();
        let mut taken = 0;
        for _ in 0..40_000 {
            if let Err(ending) = live(&untracked, CLIENT, &[65_535], 0).join() {
                taken += ending.begin_anew().map_or(0, |batch| batch.traffic.sent.bytes);
            }
        }
        let left = untracked.look().1.unwrap().traffic.sent.bytes;
        assert_eq!(taken + left, 40_000 * 65_535);
    }

    proptest! {
        /// Whatever passes, what was counted adds up, and it is never as much as the limits.
        #[test]
        fn adds_up(calls in prop::collection::vec((any::<bool>(), 1u64..20_000), 0..40)) {
            let untracked = untracked();
            prop_assert!(untracked.open(CLIENT));
            let mut expected = [(0, 0); 2];
            let mut kept = true;
            for (is_sent, len) in calls {
                let direction = if is_sent { Direction::Sent } else { Direction::Received };
                let sums = expected.iter().fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
                kept = pass(&untracked, direction, len);
                prop_assert_eq!(kept, sums.0 + 1 < MESSAGES && sums.1 + len < BYTES);
                if kept {
                    let sum = &mut expected[direction.index() as usize];
                    *sum = (sum.0 + 1, sum.1 + len);
                }
            }
            let _ = kept;
            let traffic = end(&untracked).unwrap().traffic;
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

    fn untracked() -> Untracked {
        let new = || AtomicU64::new(0);
        let ended = Ended { which: new(), bytes: new(), sent: new(), received: new() };
        Untracked { about: new(), traffic: new(), sent: new(), received: new(), ended }
    }

    const ABOUT: About = About { is_server: true, server_port: 80 };

    /// Ends what is here, counted at its place; what it has sent.
    fn end(untracked: &Untracked) -> Option<u64> {
        let End::Counts(ending) = untracked.end(0) else { return None };
        let sent = ending.traffic.sent.messages;
        if let Err(ending) = ending.join() {
            let _ = ending.begin_anew();
        }
        Some(sent)
    }

    /// A call on one CPU, one that needs more than a place on another: when that finds
    /// no call inside, no plain call is under way, and the message is counted here or there.
    #[test]
    fn whoever_finds_it_empty_is_alone() {
        loom::model(|| {
            let untracked = Arc::new(untracked());
            let in_call = Arc::new(AtomicBool::new(false));
            assert!(untracked.open(ABOUT));
            let caller = {
                let (untracked, in_call) = (untracked.clone(), in_call.clone());
                thread::spawn(move || match untracked.enter() {
                    Some(inside) => {
                        in_call.store(true, Ordering::Relaxed);
                        in_call.store(false, Ordering::Relaxed);
                        inside.count(Direction::Sent, 1)
                    }
                    None => false,
                })
            };
            assert_eq!(untracked.grow(), Some(ABOUT));
            let traffic = untracked.take().unwrap();
            if !untracked.is_in_use() {
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
            let untracked = Arc::new(untracked());
            assert!(untracked.open(ABOUT));
            let caller = {
                let untracked = untracked.clone();
                thread::spawn(move || {
                    untracked.enter().is_some_and(|inside| inside.count(Direction::Sent, 1))
                })
            };
            let first = end(&untracked).unwrap();
            if untracked.open(ABOUT) {
                let counted = caller.join().unwrap();
                let mut lengths = 0;
                untracked.traffic().sent.each_class(|_, n| lengths += n);
                let second = end(&untracked).unwrap();
                assert_eq!(first + second, u64::from(counted));
                assert_eq!(lengths, second);
            }
        });
    }

    /// One needs more than a place, another closes the descriptor: the connection is the one's
    /// or the other's, and who loses knows it.
    #[test]
    fn it_grows_or_it_ends() {
        loom::model(|| {
            let untracked = Arc::new(untracked());
            assert!(untracked.open(ABOUT));
            let grower = {
                let untracked = untracked.clone();
                thread::spawn(move || {
                    let grows = untracked.grow().is_some();
                    if grows {
                        assert!(untracked.take().is_some());
                        untracked.clear();
                    }
                    grows
                })
            };
            let ended = end(&untracked).is_some();
            assert_ne!(grower.join().unwrap(), ended);
            assert_eq!(untracked.look().1.is_some(), ended);
        });
    }

    /// Connections begin and end while a thread looks: it sees each of them once.
    #[test]
    fn who_looks_sees_every_connection_once() {
        loom::model(|| {
            let untracked = Arc::new(untracked());
            assert!(untracked.open(ABOUT));
            let closer = {
                let untracked = untracked.clone();
                thread::spawn(move || end(&untracked))
            };
            let before = untracked.words();
            let (open, ended) = untracked.seen();
            fence(Ordering::Acquire);
            if before[0] & ENDING == 0 && before == untracked.words() {
                let seen = usize::from(open.is_some())
                    + ended.map_or(0, |batch| batch.connections) as usize;
                assert_eq!(seen, 1);
            }
            closer.join().unwrap();
        });
    }
}
