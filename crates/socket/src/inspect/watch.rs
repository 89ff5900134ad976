//! Looking again and again, so that nothing is lost that a program counted before it ended.
//!
//! A state goes with the last process that holds it, and so does what was counted since
//! somebody looked. A [`Watch`] keeps the states that it has seen mapped until the next look:
//! those that nobody is found to hold by then have ended, and can be read once more.

use super::{Found, Program, Snapshot, StateId, Survey, processes};
use std::collections::{HashMap, HashSet};
use std::io;

/// Looks, and holds on to what it has seen.
#[derive(Default)]
pub struct Watch {
    held: HashMap<StateId, Held>,
}

struct Held {
    found: Found,
    /// Looks in a row at which nobody was found to hold it.
    missed: u8,
}

/// What a [`Watch`] has seen.
#[derive(Debug, Default)]
pub struct Watched {
    /// Those who are there.
    pub snapshot: Snapshot,
    /// Those of earlier looks who are not, with all that they had; `pids` were theirs. Each is
    /// told at two looks, of which the second may have more.
    pub gone: Vec<Program>,
}

impl Watch {
    /// Looks at every process of the host.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn look(&mut self) -> io::Result<Watched> {
        Ok(self.look_at(&processes()?))
    }

    fn look_at(&mut self, pids: &[u32]) -> Watched {
        let survey = Survey::of(pids);
        let snapshot = survey.snapshot();
        let there: HashSet<StateId> = survey.states.keys().copied().collect();
        let before = std::mem::take(&mut self.held);
        let found = survey.states.into_iter().take(HELD_MAX);
        self.held = found.map(|(id, found)| (id, Held { found, missed: 0 })).collect();
        let mut gone = Vec::new();
        for (id, mut held) in before.into_iter().filter(|(id, _)| !there.contains(id)) {
            gone.extend(held.found.program().map(|(_, program)| program));
            held.missed += 1;
            if held.missed < MISSES_MAX {
                self.held.insert(id, held);
            }
        }
        Watched { snapshot, gone }
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

/// Looks in a row at which nobody was found to hold a state that has ended. Once is not
/// enough: a process may have handed it to a child that was not there yet when the processes
/// were listed, and have ended before its turn came.
const MISSES_MAX: u8 = 2;

/// States held at a time. Each takes address space and one of the mappings that a process may
/// have, of which the kernel allows 65 530 (`vm.max_map_count`).
const HELD_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Mapped;
    use crate::inspect::tests::{Heir, Maker};
    use core::sync::atomic::Ordering;
    use sidestep_device::state::{self, mode};
    use sidestep_device::sys;

    fn count(maker: &Maker, n: u64) {
        let ended = &maker.state.0.header().ended[0];
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
        let programs = Snapshot::of(&[child.0.id()]).programs;
        let [program] = programs.try_into().unwrap();
        (child, program.state)
    }

    #[test]
    fn what_was_counted_last_is_read_after_the_end() {
        let maker = Maker::new(sys::pid());
        maker.connect(0, (1021, 2021), mode::TCP);
        count(&maker, 1);
        let mapped = Mapped(state::adopt(maker.fd).unwrap());
        let (child, id) = childs(maker);
        let pids = [child.0.id()];
        let mut watch = Watch::default();
        assert_eq!(sent(&watch.look_at(&pids).snapshot.programs, id), [1]);
        mapped.0.header().ended[0].counters.bytes_sent.store(5, Ordering::Relaxed);
        drop((child, mapped));
        for _ in 0..MISSES_MAX {
            let watched = watch.look_at(&pids);
            assert_eq!(sent(&watched.snapshot.programs, id), []);
            assert_eq!(sent(&watched.gone, id), [5]);
            assert_eq!(watched.gone[0].totals.undecided, 1, "open to the end");
        }
    }

    #[test]
    fn a_program_that_was_overlooked_once_is_no_new_one() {
        let (child, id) = childs(Maker::new(sys::pid()));
        let mut watch = Watch::default();
        watch.look_at(&[child.0.id()]);
        assert_eq!(watch.look_at(&[]).gone.len(), 1);
        assert_eq!(sent(&watch.look_at(&[child.0.id()]).snapshot.programs, id), [0]);
        assert_eq!(watch.look_at(&[]).gone.len(), 1, "counted from the start again");
        watch.let_go();
        assert!(watch.look_at(&[]).gone.is_empty());
        assert!(!watch.is_holding());
    }
}
