//! Looking every other second, at little cost.
//!
//! Most of a look goes into finding the states: each descriptor of each process is a link to be read, and a
//! server with ten thousand connections has ten thousand of them. But a process that holds a state holds it to
//! its end, by the same descriptor. So where it was found it is looked for first, and that process is not
//! searched again.
//!
//! A process may come to hold one more state, when it is given away by its parent's. All are searched again at
//! every eighth look, so that one is found then.

use crate::host::allowance::Allowance;
use crate::host::process;
use crate::host::state_file;
use crate::snapshot::Snapshot;
use crate::survey::Survey;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

/// See the [module](self).
#[derive(Default)]
pub struct Glances {
    /// The descriptors by which processes were found to hold states.
    found: HashMap<u32, Vec<PathBuf>>,
    looks: u32,
}

impl Glances {
    /// Looks at every process of the host.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn look(&mut self) -> io::Result<Snapshot> {
        self.look_at(&process::processes()?)
    }

    fn look_at(&mut self, pids: &[u32]) -> io::Result<Snapshot> {
        let searches_all = self.looks.is_multiple_of(SEARCH_EVERY);
        self.looks = self.looks.wrapping_add(1);
        let before = std::mem::take(&mut self.found);
        let survey = Survey::by(pids, |pid, allowance: &mut Allowance| {
            let known = before.get(&pid).filter(|_| !searches_all);
            let paths = match known.filter(|paths| are_held(paths, allowance)) {
                Some(paths) => paths.clone(),
                None => state_file::paths_of(pid, allowance)?,
            };
            if !paths.is_empty() {
                self.found.insert(pid, paths.clone());
            }
            Ok(paths)
        })?;
        Ok(survey.end().0)
    }
}

/// Whether all of them lead to states still. If the number is another process's by now, they do not.
fn are_held(paths: &[PathBuf], allowance: &mut Allowance) -> bool {
    let is_held = |path: &PathBuf| state_file::is_held(path).unwrap_or(false);
    allowance.takes_process() && paths.iter().all(is_held)
}

/// Looks, of which one searches all processes.
const SEARCH_EVERY: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{DEAD, Maker, alone};
    use crate::host::state_file::StateId;
    use sidestep_device::state::mode;
    use sidestep_device::sys;

    fn states(glances: &mut Glances) -> Vec<StateId> {
        let snapshot = glances.look_at(&[sys::pid()]).unwrap();
        let of_ours = |it: &&crate::Connection| it.local.is_some_and(|end| end.port() == 1031);
        snapshot.connections.iter().filter(of_ours).map(|it| it.state).collect()
    }

    #[test]
    fn a_state_is_seen_where_it_was_found_and_another_by_the_next_search() {
        let _alone = alone();
        let first = Maker::new(sys::pid());
        first.connect(0, (1031, 2031), mode::TCP);
        let mut glances = Glances::default();
        let seen = states(&mut glances);
        assert_eq!(seen.len(), 1);
        assert_eq!(states(&mut glances), seen);
        let second = Maker::new(sys::pid());
        second.connect(0, (1031, 2031), mode::TCP);
        let looks = (0..SEARCH_EVERY).map(|_| states(&mut glances).len()).max();
        assert_eq!(looks, Some(2), "found by a search");
        drop(first);
        assert_eq!(states(&mut glances).len(), 1, "what is gone is not seen, and all is searched");
        glances.look_at(&[DEAD]).unwrap();
        assert!(glances.found.is_empty(), "what has ended is forgotten");
    }
}
