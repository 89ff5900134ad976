//! Sets in sets, in any shape, with the kernel's as the oracle.
//!
//! Two forests of epoll sets, of ours and of the kernel's alone, are changed by the same calls: a set or an end
//! is added, modified and deleted, sets are closed, bytes come and are read, and now and then a set
//! is waited in or polled. Each call has to answer the same, and the events of a wait are compared
//! without their order.

use crate::call;
use crate::pair::{Pair, Stage};
use crate::seeds::{named_or, run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::time::Duration;

/// Sets, each with a place.
const SETS: usize = 5;

/// What is put into a set: another one, or the end of the connection.
#[derive(Clone, Copy, Debug)]
enum Member {
    Set(usize),
    End,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// `EPOLL_CTL_ADD`, `EPOLL_CTL_MOD` or `EPOLL_CTL_DEL`.
    Control(i32, usize, Member, u32),
    /// Closes a set, and makes another one in its place.
    Renew(usize),
    Send,
    Receive,
    Wait(usize),
    Poll(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let operation = select(vec![
        libc::EPOLL_CTL_ADD,
        libc::EPOLL_CTL_ADD,
        libc::EPOLL_CTL_MOD,
        libc::EPOLL_CTL_DEL,
    ]);
    let member = prop_oneof![3 => (0..SETS).prop_map(Member::Set), 2 => Just(Member::End)];
    let events = select(vec![libc::EPOLLIN as u32, (libc::EPOLLIN | libc::EPOLLOUT) as u32, 0]);
    prop_oneof![
        6 => (operation, 0..SETS, member, events)
            .prop_map(|(operation, set, member, events)| Step::Control(operation, set, member, events)),
        1 => (0..SETS).prop_map(Step::Renew),
        2 => Just(Step::Send),
        2 => Just(Step::Receive),
        4 => (0..SETS).prop_map(Step::Wait),
        2 => (0..SETS).prop_map(Step::Poll),
    ]
}

/// Sets, and the connection of which an end may be in them.
struct Forest {
    sets: Vec<i32>,
    pair: Pair,
}

impl Forest {
    fn new(pair: Pair) -> Self {
        let sets = (0..SETS).map(|_| call::new_set(pair.is_known)).collect();
        pair.fds().iter().for_each(|fd| call::set_nonblocking(*fd, true));
        Self { sets, pair }
    }

    /// What a call answers; of a wait, the events by their data.
    fn play(&mut self, step: Step) -> (i64, Vec<(u64, u32)>) {
        let [end, peer] = self.pair.fds();
        let number = |returned: call::Returned| (returned.value, Vec::new());
        match step {
            Step::Control(operation, set, member, events) => {
                let (fd, data) = match member {
                    Member::Set(inner) => (self.sets[inner], inner as u64),
                    Member::End => (end, SETS as u64),
                };
                number(call::control(self.sets[set], operation, fd, events, data))
            }
            Step::Renew(set) => {
                call::close(self.sets[set]);
                self.sets[set] = call::new_set(self.pair.is_known);
                (0, Vec::new())
            }
            Step::Send => number(call::send(peer, b"x", &[], 0)),
            Step::Receive => number(call::receive(end, 8, &[], 0)),
            Step::Wait(set) => match call::wait(self.sets[set], 2 * SETS, Duration::ZERO) {
                Ok(mut told) => {
                    told.sort_unstable();
                    (told.len() as i64, told)
                }
                Err(error) => (error, Vec::new()),
            },
            Step::Poll(set) => number(call::poll(self.sets[set], libc::POLLIN, Duration::ZERO)),
        }
    }
}

impl Drop for Forest {
    fn drop(&mut self) {
        self.sets.iter().for_each(|set| call::close(*set));
    }
}

#[test]
fn sets_in_sets_are_changed_and_report_as_the_kernels_do() {
    let stage = Stage::enter();
    for seed in named_or(0..6) {
        run(seed, (any::<bool>(), vec(step(), 1..60)), |(is_moved, steps)| {
            let ours = if is_moved { stage.moved() } else { stage.known(false) };
            let mut forests = [ours, stage.plain()].map(Forest::new);
            for step in steps {
                forests.iter().for_each(|forest| forest.pair.settle());
                let [ours, plain] = forests.each_mut().map(|forest| forest.play(step));
                // Behind what the rings have, the kernel is asked now and then only.
                let is_part = |(count, told): &(i64, Vec<(u64, u32)>)| {
                    *count > 0 && !told.is_empty() && told.iter().all(|one| plain.1.contains(one))
                };
                prop_assert!(
                    ours == plain || is_part(&ours),
                    "{:?}: {:?}, {:?}",
                    step,
                    ours,
                    plain
                );
            }
            Ok(())
        });
    }
}
