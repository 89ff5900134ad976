//! Which of the processes that hold a state is meant by a number in it.
//!
//! A state is held by the process that made it and by its children, as `fork` leaves it to them.
//! The numbers of processes in it are those by which each knows itself, which in a PID namespace
//! are not ours, and they are a stranger's word: one counts only if a holder has it.

use crate::host::process;

/// A process that holds a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// Its number as it knows itself: another one in a PID namespace.
    pub(crate) own_pid: u32,
    pub(crate) program: String,
}

/// All processes that hold one state, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct Holders(Vec<Holder>);

impl Holder {
    fn of(pid: u32) -> Self {
        let own_pid = process::own_pid(pid).unwrap_or(pid);
        Self { pid, own_pid, program: process::name(pid) }
    }
}

impl Holders {
    /// The process that is looked at holds the state, by one descriptor or several.
    pub(crate) fn add(&mut self, pid: u32) {
        if self.0.last().is_none_or(|holder| holder.pid != pid) {
            self.0.push(Holder::of(pid));
        }
    }

    /// The process that the state calls `user`, else the one that it calls `owner`, else any.
    pub(crate) fn meant_by(&self, user: u32, owner: u32) -> Option<&Holder> {
        let called = |pid| self.0.iter().find(|holder| holder.own_pid == pid);
        called(user).or_else(|| called(owner)).or(self.0.first())
    }

    /// The process that the state calls its `owner`, or any; and the numbers of all, that one's
    /// first.
    pub(crate) fn owner_first(&self, owner: u32) -> Option<(&Holder, Vec<u32>)> {
        let maker = self.meant_by(owner, owner)?;
        let others = self.pids().filter(|pid| *pid != maker.pid);
        Some((maker, [maker.pid].into_iter().chain(others).collect()))
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|holder| holder.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::DEAD;

    /// Processes by our numbers and by their own.
    fn holders(pids: &[(u32, u32)]) -> Holders {
        let holder = |&(pid, own_pid)| Holder { pid, own_pid, program: format!("p{pid}") };
        Holders(pids.iter().map(holder).collect())
    }

    #[test]
    fn a_number_means_the_process_that_knows_itself_by_it() {
        // 40 and 41 live in a PID namespace, where they are 1 and 40.
        let all = holders(&[(7, 7), (40, 1), (41, 40)]);
        let meant = |user, owner| all.meant_by(user, owner).unwrap().pid;
        assert_eq!(meant(40, 7), 41, "the one that calls itself so, not ours of that number");
        assert_eq!(meant(1, 7), 40);
        assert_eq!(meant(99, 1), 40, "not there: its owner's");
        assert_eq!(meant(99, 98), 7, "neither is there: any");
        assert_eq!(meant(0, 0), 7);
        assert_eq!(holders(&[]).meant_by(7, 7), None);
    }

    #[test]
    fn the_owner_comes_first_and_no_process_twice() {
        let all = holders(&[(5, 5), (6, 6), (9, 9)]);
        let pids = |owner| all.owner_first(owner).map(|(maker, pids)| (maker.pid, pids)).unwrap();
        assert_eq!(pids(6), (6, vec![6, 5, 9]));
        assert_eq!(pids(77), (5, vec![5, 6, 9]));
        assert!(holders(&[]).owner_first(5).is_none());
    }

    #[test]
    fn several_descriptors_of_a_process_are_one_holder() {
        let mut all = Holders::default();
        for pid in [DEAD, DEAD, DEAD + 1] {
            all.add(pid);
        }
        assert_eq!(all.pids().collect::<Vec<_>>(), [DEAD, DEAD + 1]);
        assert_eq!(all.meant_by(DEAD, 0).unwrap().program, "?", "it has ended meanwhile");
    }
}
