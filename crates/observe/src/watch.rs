//! Looking again and again, so that nothing is lost that a program counted before it ended.
//!
//! A state goes with the last process that holds it, and so does what was counted since
//! the last look. A [`Watch`] keeps the states that it has seen open until the next look:
//! those without a holder by then have ended, and can be read once more. The watch has
//! opened them read-only, so that other looks do not take it for a holder.

use crate::host::process::processes;
use crate::host::state_file::StateId;
use crate::program::Program;
use crate::snapshot::Snapshot;
use crate::survey::{Found, Survey};
use sidestep_device::sys;
use std::collections::HashMap;
use std::io;

/// Looks, and holds on to what it has seen.
#[derive(Default)]
pub struct Watch {
    held: HashMap<StateId, Held>,
}

struct Held {
    found: Found,
    /// Looks in a row at which no process was found to hold it.
    missed: u8,
}

/// What a [`Watch`] has seen.
#[derive(Debug, Default)]
pub struct Watched {
    /// The programs that are there.
    pub snapshot: Snapshot,
    /// Programs of earlier looks that have ended, with all that they had; `pids` were theirs.
    /// Each is told at two looks, of which the second may have more.
    pub gone: Vec<Program>,
}

impl Watch {
    /// Looks at every process of the host.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn look(&mut self) -> io::Result<Watched> {
        self.look_at(&processes()?)
    }

    fn look_at(&mut self, pids: &[u32]) -> io::Result<Watched> {
        let mut survey = Survey::of(pids)?;
        let mut gone = Vec::new();
        let before = std::mem::take(&mut self.held);
        for (id, mut held) in before {
            if survey.has(id) {
                continue;
            }
            gone.extend(survey.read_again(&held.found));
            held.missed += 1;
            if held.missed < MISSES_MAX {
                self.held.insert(id, held);
            }
        }
        let (snapshot, found) = survey.end();
        self.hold(found);
        Ok(Watched { snapshot, gone })
    }

    /// Keeps what was found open, as far as there may be so much.
    fn hold(&mut self, found: Vec<Found>) {
        let most = HELD_MAX.min(sys::soft_limit(libc::RLIMIT_NOFILE) as usize / PARTS);
        let mut of_users: HashMap<u32, usize> = HashMap::new();
        for held in self.held.values() {
            *of_users.entry(held.found.source.user).or_default() += 1;
        }
        for found in found {
            let of_user = of_users.entry(found.source.user).or_default();
            if self.held.len() < most && *of_user < most / USERS {
                *of_user += 1;
                self.held.insert(found.source.id, Held { found, missed: 0 });
            }
        }
    }

    /// Lets go of the states: until the next look no memory is kept for programs that end.
    pub fn let_go(&mut self) {
        self.held.clear();
    }

    /// Whether any state is held.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Looks in a row at which no process is found to hold a state that has ended. One is not
/// enough: a process may have handed the state to a child that was not there yet when the
/// processes were listed, and have ended before its turn came.
const MISSES_MAX: u8 = 2;

/// States held at a time, at most: each takes a descriptor.
const HELD_MAX: usize = 8192;
/// One part of the descriptors that there may be: a look opens the held states once more, and
/// the watching process needs some for itself.
const PARTS: usize = 4;
/// Of so many users, all find room for as many states as each may have held.
const USERS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Heir, Maker};
    use core::sync::atomic::Ordering;
    use sidestep_device::state::{self, mode};
    use sidestep_device::sys;

    fn count(maker: &Maker, n: u64) {
        let ended = &maker.state.header().ended[0];
        ended.counters.bytes_sent.store(n, Ordering::Relaxed);
    }

    /// What those of these programs that are ours have sent.
    fn sent(programs: &[Program], id: StateId) -> Vec<u64> {
        let ours = programs.iter().filter(|program| program.state == id);
        ours.map(|program| program.totals.counters.bytes_sent).collect()
    }

    /// The state of a program that lives in a child only.
    fn childs(maker: Maker) -> (Heir, StateId) {
        let child = maker.child();
        drop(maker);
        let programs = Snapshot::of(&[child.0.id()]).unwrap().programs;
        let [program] = programs.try_into().unwrap();
        (child, program.state)
    }

    #[test]
    fn what_was_counted_last_is_read_after_the_end() {
        let maker = Maker::new(sys::pid());
        maker.connect(0, (1021, 2021), mode::TCP);
        count(&maker, 1);
        let mapped = state::adopt(maker.fd).unwrap();
        let (child, id) = childs(maker);
        let pids = [child.0.id()];
        let mut watch = Watch::default();
        assert_eq!(sent(&watch.look_at(&pids).unwrap().snapshot.programs, id), [1]);
        mapped.header().ended[0].counters.bytes_sent.store(5, Ordering::Relaxed);
        drop(child);
        for _ in 0..MISSES_MAX {
            let watched = watch.look_at(&pids).unwrap();
            assert_eq!(sent(&watched.snapshot.programs, id), []);
            assert_eq!(sent(&watched.gone, id), [5]);
            assert_eq!(watched.gone[0].totals.undecided, 1, "open to the end");
        }
    }

    #[test]
    fn a_program_that_was_overlooked_once_is_no_new_one() {
        let (child, id) = childs(Maker::new(sys::pid()));
        let mut watch = Watch::default();
        watch.look_at(&[child.0.id()]).unwrap();
        assert_eq!(watch.look_at(&[]).unwrap().gone.len(), 1);
        assert_eq!(sent(&watch.look_at(&[child.0.id()]).unwrap().snapshot.programs, id), [0]);
        assert_eq!(watch.look_at(&[]).unwrap().gone.len(), 1, "counted from the start again");
        watch.let_go();
        assert!(watch.look_at(&[]).unwrap().gone.is_empty());
        assert!(!watch.is_holding());
    }
}
