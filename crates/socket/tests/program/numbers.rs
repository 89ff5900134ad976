//! Which number leads to which connection.
//!
//! A program duplicates, puts over, closes and opens numbers at will, and the table has to follow: here
//! lists of such calls are played beside a model that is a map. *Law*: a number leads to the object of the
//! connection that the model has, or to none; each object counts its numbers; and the peer of a
//! connection sees its end when the last number has gone, no sooner and no later.

use crate::call;
use crate::pair::{Pair, Stage};
use crate::seeds::{named_or, run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use sidestep_socket::program::life;
use sidestep_socket::table::descriptors;
use sidestep_socket::table::sock::Sock;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers that the lists are about, far from those of the test itself.
const NUMBERS: std::ops::Range<i32> = 600..608;

/// Connections at a time.
const CONNECTIONS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Opens a connection, if that place is free, under this number.
    Open(usize, i32),
    /// `dup2`.
    Over(i32, i32),
    Close(i32),
    /// `close_range`.
    CloseRange(i32, i32),
    /// `close` past the library, which hears of it when the number is given out again.
    CloseUnseen(i32),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || NUMBERS;
    prop_oneof![
        3 => (0..CONNECTIONS, number()).prop_map(|(place, number)| Step::Open(place, number)),
        4 => (number(), number()).prop_map(|(old, new)| Step::Over(old, new)),
        3 => number().prop_map(Step::Close),
        1 => (number(), number()).prop_map(|(a, b)| Step::CloseRange(a.min(b), a.max(b))),
        1 => number().prop_map(Step::CloseUnseen),
    ]
}

/// The far end of a connection, and the object of the near one.
struct Connection {
    peer: Pair,
    sock: *const Sock,
}

struct World<'a> {
    stage: &'a Stage,
    is_moved: bool,
    connections: [Option<Connection>; CONNECTIONS],
    /// What each number leads to.
    model: BTreeMap<i32, usize>,
    /// Numbers that were closed past the library.
    unseen: BTreeSet<i32>,
}

impl<'a> World<'a> {
    fn new(stage: &'a Stage, is_moved: bool) -> Self {
        let connections = [const { None }; CONNECTIONS];
        Self { stage, is_moved, connections, model: BTreeMap::new(), unseen: BTreeSet::new() }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Open(place, number) => self.open(place, number),
            Step::Over(old, new) => {
                if self.model.contains_key(&old) && old != new {
                    self.over(old, new);
                    let place = self.model[&old];
                    self.note(new, Some(place));
                }
            }
            Step::Close(number) => self.close(number),
            Step::CloseRange(first, last) => {
                descriptors::for_each(first as usize, last as usize, |number| {
                    if self.model.contains_key(&number) {
                        call::close(number);
                    }
                });
                (first..=last).for_each(|number| self.note(number, None));
            }
            Step::CloseUnseen(number) => {
                // Of several numbers only: the last one's end is the library's to see.
                let of_same = self.model.get(&number).map(|place| self.numbers_of(*place).count());
                if of_same.is_some_and(|count| count > 1) {
                    // SAFETY: it is open, and the test's.
                    unsafe { libc::close(number) };
                    self.model.remove(&number);
                    self.unseen.insert(number);
                }
            }
        }
    }

    fn open(&mut self, place: usize, number: i32) {
        if self.connections[place].is_some() {
            return;
        }
        let mut pair = if self.is_moved {
            self.stage.moved()
        } else {
            self.stage.known(place.is_multiple_of(2))
        };
        let fd = pair.ends[0].take().expect("open").fd;
        call::set_nonblocking(pair.fd(1).expect("open"), true);
        let sock = descriptors::sock(fd).expect("ours").sock();
        self.connections[place] = Some(Connection { peer: pair, sock });
        self.over(fd, number);
        call::close(fd);
        self.note(number, Some(place));
    }

    /// `dup2`, as the preloaded library makes it.
    fn over(&mut self, old: i32, new: i32) {
        let closing = life::before_put_over(old, new);
        // SAFETY: the test's numbers.
        assert_eq!(unsafe { libc::dup2(old, new) }, new);
        life::duplicate(old, new);
        drop(closing);
        self.unseen.remove(&new);
    }

    fn close(&mut self, number: i32) {
        if self.model.contains_key(&number) {
            call::close(number);
            self.note(number, None);
        }
    }

    fn note(&mut self, number: i32, leads_to: Option<usize>) {
        let before = match leads_to {
            Some(place) => self.model.insert(number, place),
            None => self.model.remove(&number),
        };
        if let Some(place) = before.filter(|place| self.numbers_of(*place).next().is_none()) {
            let gone = self.connections[place].take().expect("it was there");
            // The table may still have a number that was closed past it: then the peer is not told yet.
            if self.unseen.is_empty() {
                gone.peer.settle();
                let fd = gone.peer.fd(1).expect("open");
                assert_eq!(call::receive(fd, 8, &[], 0).value, 0, "the end has come");
            }
        }
    }

    fn numbers_of(&self, place: usize) -> impl Iterator<Item = i32> {
        self.model.iter().filter(move |(_, of)| **of == place).map(|(number, _)| *number)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for number in NUMBERS.filter(|number| !self.unseen.contains(number)) {
            let found = descriptors::object(number).map(|sock| std::ptr::from_ref(sock.sock()));
            let place = self.model.get(&number);
            let expected = place.map(|place| self.connections[*place].as_ref().expect("open").sock);
            prop_assert_eq!(found, expected, "number {}", number);
            prop_assert_eq!(descriptors::is_ours(number), expected.is_some());
        }
        for (place, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection else { continue };
            let fd = connection.peer.fd(1).expect("open");
            let received = call::receive(fd, 8, &[], 0).value;
            prop_assert_eq!(received, -i64::from(libc::EAGAIN), "it goes on");
            if let (Some(number), true) = (self.numbers_of(place).next(), self.unseen.is_empty()) {
                let sock = descriptors::object(number).expect("open");
                let counted = sock.descriptors.load(std::sync::atomic::Ordering::Relaxed);
                prop_assert_eq!(counted as usize, self.numbers_of(place).count());
            }
        }
        Ok(())
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        for number in self.model.keys() {
            call::close(*number);
        }
        self.unseen.iter().for_each(|number| life::forget_number(*number));
    }
}

#[test]
fn each_number_leads_where_the_kernel_has_it() {
    let stage = Stage::enter();
    for seed in named_or(0..4) {
        run(seed, (any::<bool>(), vec(step(), 1..40)), |(is_moved, steps)| {
            let mut world = World::new(&stage, is_moved);
            for step in steps {
                world.play(step);
                world.check()?;
            }
            Ok(())
        });
    }
}
