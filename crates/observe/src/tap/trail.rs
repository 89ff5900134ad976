//! Following a ring beside its reader: which bytes can still be told, and which were overwritten first.
//!
//! The writer waits for the reader and not for the onlooker. But a ring has memory for [two laps](LAPS), and of these one may
//! be unread, so the lap before the reader is still there:
//!
//! ```text
//!     overwritten, or being          one lap               at most one lap
//!   ...........................|=====================|-------------------------|
//!                        consumer - len           consumer                producer
//! ```
//!
//! A writer fills nothing beyond `consumer + len`, and what lies there shares its memory with `consumer - len`. The consumer
//! cursor only grows, so bytes that were copied *first*, and lie behind `consumer - len` of a cursor that was read *then*, are
//! what was sent. All others are lost: they are counted and never shown.

use sidestep_device::ring::LAPS;

// What is said above of the lap before the reader.
const _: () = assert!(LAPS == 2);

/// One direction of a connection, as an onlooker sees it. All of it is what strangers say.
pub(super) trait Lane {
    /// Bytes that may be unread at a time.
    fn len(&self) -> u64;
    /// Position behind the last byte that was sent.
    fn producer(&self) -> u64;
    /// Position behind the last byte that was read. What was copied before was copied earlier.
    fn consumer(&self) -> u64;
    /// Copies the bytes from a position on, as they are at this moment. False: there is no ring.
    fn copy(&self, position: u64, room: &mut [u8]) -> bool;
    /// Whether the ring has been this connection's until now. What was copied before was copied earlier.
    fn is_in_use(&self) -> bool;
}

/// How far a direction was followed.
#[derive(Debug)]
pub(super) struct Trail {
    /// The first byte that was neither told nor lost.
    position: u64,
}

/// What one look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Bytes behind those that were lost.
    Bytes {
        /// How many were overwritten before they could be told.
        lost: u64,
        /// Position of the first that is told.
        position: u64,
        /// How many lie in the room, from its begin on.
        told: usize,
        /// Nothing was sent that this look, or one before it, has not dealt with.
        is_all: bool,
    },
    /// The ring may be another connection's by now, so nothing of it counts.
    Gone,
    /// The cursors contradict each other: this is no ring of ours, or one end does not keep to the rules.
    Strayed,
}

impl Trail {
    /// Follows a direction from this position on.
    pub(super) fn from(position: u64) -> Self {
        Self { position }
    }

    /// Where it stands.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Looks once, for as many bytes as there is room.
    pub(super) fn look(&mut self, lane: &impl Lane, room: &mut [u8]) -> Found {
        let producer = lane.producer();
        let (ahead, unread) =
            (producer.checked_sub(self.position), producer.saturating_sub(lane.consumer()));
        let (Some(ahead), true) = (ahead, unread <= lane.len()) else {
            return if lane.is_in_use() { Found::Strayed } else { Found::Gone };
        };
        let from = self.position + ahead.min(overwritten(lane).saturating_sub(self.position));
        let copied = (producer - from).min(room.len() as u64);
        let end = from + copied;
        let has_copied = copied == 0 || lane.copy(from, &mut room[..copied as usize]);
        let position = from.max(overwritten(lane)).min(end);
        if !lane.is_in_use() || !has_copied {
            return Found::Gone;
        }
        room.copy_within((position - from) as usize..copied as usize, 0);
        let lost = position - self.position;
        self.position = end;
        let told = (end - position) as usize;
        Found::Bytes { lost, position, told, is_all: end == producer }
    }
}

/// Bytes before this position may have been overwritten.
fn overwritten(lane: &impl Lane) -> u64 {
    lane.consumer().saturating_sub(lane.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};

    const LEN: u64 = 16;

    /// Both ends of a ring, which go on between any two words that the onlooker reads.
    struct Model {
        memory: RefCell<Vec<u8>>,
        /// Bytes that are written and not published: what a writer has put into the ring while it copies.
        written: Cell<u64>,
        producer: Cell<u64>,
        consumer: Cell<u64>,
        is_in_use: Cell<bool>,
        /// What the ends do next, a step before each word and each byte: how much is written, published, read.
        steps: RefCell<Vec<(u64, bool, u64)>>,
    }

    /// The byte at a position of the stream: another one in each lap.
    fn byte_at(position: u64) -> u8 {
        (position ^ (position >> 4) ^ (position >> 8)) as u8
    }

    impl Model {
        fn new(steps: Vec<(u64, bool, u64)>) -> Self {
            Self {
                memory: RefCell::new(vec![0; LEN as usize * LAPS]),
                written: Cell::new(0),
                producer: Cell::new(0),
                consumer: Cell::new(0),
                is_in_use: Cell::new(true),
                steps: RefCell::new(steps),
            }
        }

        fn step(&self) {
            let Some((write, publishes, read)) = self.steps.borrow_mut().pop() else { return };
            let room = self.consumer.get() + LEN - self.written.get();
            for _ in 0..write.min(room) {
                let at = self.written.get();
                self.memory.borrow_mut()[at as usize % (LEN as usize * LAPS)] = byte_at(at);
                self.written.set(at + 1);
            }
            if publishes {
                self.producer.set(self.written.get());
            }
            let readable = self.producer.get() - self.consumer.get();
            self.consumer.set(self.consumer.get() + read.min(readable));
        }
    }

    impl Lane for Model {
        fn len(&self) -> u64 {
            LEN
        }

        fn producer(&self) -> u64 {
            self.step();
            self.producer.get()
        }

        fn consumer(&self) -> u64 {
            self.step();
            self.consumer.get()
        }

        fn copy(&self, position: u64, room: &mut [u8]) -> bool {
            for (at, byte) in (position..).zip(room) {
                self.step();
                *byte = self.memory.borrow()[at as usize % (LEN as usize * LAPS)];
            }
            true
        }

        fn is_in_use(&self) -> bool {
            self.is_in_use.get()
        }
    }

    proptest! {
        /// Whatever the ends do meanwhile, each byte is told as it was sent, or counted as lost.
        #[test]
        fn every_byte_is_told_as_it_was_sent_or_lost(
            steps in vec((0..3 * LEN, any::<bool>(), 0..2 * LEN), 0..400),
            room in 1_usize..48,
        ) {
            let (model, mut trail) = (Model::new(steps), Trail::from(0));
            let (mut room, mut next) = (vec![0; room], 0);
            loop {
                let is_last = model.steps.borrow().is_empty();
                match trail.look(&model, &mut room) {
                    Found::Bytes { lost, position, told, is_all } => {
                        prop_assert_eq!(position, next + lost);
                        let sent = (position..).take(told).map(byte_at);
                        prop_assert!(room[..told].iter().copied().eq(sent), "from {}", position);
                        next = position + told as u64;
                        prop_assert!(next <= model.producer.get());
                        if is_last && is_all {
                            break;
                        }
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert_eq!(next, model.producer.get());
        }

        /// An onlooker that comes once for each lap that is read loses nothing.
        #[test]
        fn nothing_is_lost_within_a_lap(parts in vec(1..=LEN, 1..60)) {
            let (model, mut trail) = (Model::new(Vec::new()), Trail::from(0));
            let mut room = [0; 2 * LEN as usize];
            for part in parts {
                model.steps.borrow_mut().push((part, true, part));
                model.step();
                let found = trail.look(&model, &mut room);
                let told = part as usize;
                let is_told = matches!(found, Found::Bytes { lost: 0, told: n, is_all: true, .. } if n == told);
                prop_assert!(is_told, "{:?}", found);
            }
        }
    }

    #[test]
    fn what_was_overwritten_is_counted() {
        let (model, mut trail) = (Model::new(Vec::new()), Trail::from(0));
        for _ in 0..5 {
            model.steps.borrow_mut().push((LEN, true, LEN));
            model.step();
        }
        let found = trail.look(&model, &mut [0; 64]);
        let (lost, position, told) = (4 * LEN, 4 * LEN, LEN as usize);
        assert_eq!(found, Found::Bytes { lost, position, told, is_all: true });
    }

    #[test]
    fn cursors_that_contradict_each_other_are_believed_no_further() {
        let (model, mut trail) = (Model::new(Vec::new()), Trail::from(10));
        model.producer.set(5);
        assert_eq!(trail.look(&model, &mut [0; 64]), Found::Strayed, "it has gone back");
        model.producer.set(10 + 2 * LEN);
        assert_eq!(trail.look(&model, &mut [0; 64]), Found::Strayed, "more than a ring has");
        // A reader that claims to be ahead of its writer: all is lost, and no more than there was.
        model.consumer.set(u64::MAX);
        let all = Found::Bytes { lost: 2 * LEN, position: 10 + 2 * LEN, told: 0, is_all: true };
        assert_eq!(trail.look(&model, &mut [0; 64]), all);
        model.is_in_use.set(false);
        assert_eq!(trail.look(&model, &mut [0; 64]), Found::Gone);
    }
}
