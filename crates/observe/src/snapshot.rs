//! What could be seen at one moment, and what the kernel adds to it on request.

use crate::host::allowance::Allowances;
use crate::host::process;
use crate::host::run_queue;
use crate::host::socket_table::SocketTables;
use crate::program::Program;
use crate::program::connection::Connection;
use sidestep_device::sys;
use std::collections::HashMap;

/// What could be seen at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// All connections: by process, then in the order of their slots.
    pub connections: Vec<Connection>,
    /// In the order of the processes that hold them.
    pub programs: Vec<Program>,
    /// States that could not be understood, of another version of Sidestep: the processes that
    /// hold each.
    pub incompatible: Vec<Vec<u32>>,
    /// Processes at whose descriptors we may not look.
    pub unreadable: Vec<u32>,
    /// Users of whom there was more than a look may cost, so that not all of it is here.
    pub curtailed: Vec<u32>,
}

impl Snapshot {
    /// Asks the kernel for the addresses of connections whose programs have not. Reads its
    /// tables of all TCP sockets, those in TIME_WAIT included, so a busy host takes long. What
    /// cannot be found out stays absent.
    pub fn find_addresses(&mut self) {
        let mut tables = SocketTables::default();
        for connection in &mut self.connections {
            let Some(fd) = connection.descriptor else { continue };
            if let Some([local, peer]) = tables.addresses(connection.pid, fd) {
                (connection.local, connection.peer) = (Some(local), Some(peer));
            }
        }
    }

    /// Asks the kernel for how long the threads of the programs have waited for a CPU, and adds to
    /// `curtailed` whose threads are too many. What cannot be found out stays absent.
    pub fn find_run_queue_delays(&mut self) {
        let mut allowances = Allowances::new(sys::effective_uid());
        for (pid, index) in programs_of_processes(&self.programs) {
            let Ok(user) = process::user(pid) else { continue };
            let delay = run_queue::delay_of(pid, allowances.of(user));
            let sum = &mut self.programs[index].totals.run_queue_delay_ns;
            *sum = [*sum, delay].into_iter().flatten().reduce(u64::saturating_add);
        }
        self.curtailed.extend(allowances.exceeded());
        self.curtailed.sort_unstable();
        self.curtailed.dedup();
    }

    /// Whether a process runs another version of Sidestep, so that nothing is known of its
    /// connections.
    #[must_use]
    pub fn is_incompatible(&self, pid: u32) -> bool {
        self.incompatible.iter().any(|pids| pids.contains(&pid))
    }
}

/// Each process, and the place of the program that it counts for. A process that holds the states
/// of several programs counts once: where it is the first, else where it is found first.
fn programs_of_processes(programs: &[Program]) -> HashMap<u32, usize> {
    let mut places = HashMap::new();
    let firsts = programs.iter().map(|program| &program.pids[..1]);
    let others = programs.iter().map(|program| &program.pids[1..]);
    for (index, pids) in firsts.enumerate().chain(others.enumerate()) {
        for pid in pids {
            places.entry(*pid).or_insert(index);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::process::Process;

    fn program(pids: &[u32]) -> Program {
        Program { pids: pids.to_vec(), ..Program::default() }
    }

    #[test]
    fn a_process_counts_once_and_rather_for_its_own_program() {
        let programs = [program(&[1, 2, 3]), program(&[2, 3, 4]), program(&[5])];
        let places = programs_of_processes(&programs);
        assert_eq!(places, HashMap::from([(1, 0), (2, 1), (3, 0), (4, 1), (5, 2)]));
    }

    #[test]
    fn the_figures_of_all_threads_are_summed_up() {
        let process = Process::myself().unwrap();
        // Neither ends before this test does, and no figure falls.
        let threads = [process.pid(), sys::tid().cast_signed()];
        let delays = threads.map(|tid| {
            let thread = process.task_from_tid(tid).unwrap();
            thread.schedstat().ok().as_ref().and_then(run_queue::delay)
        });
        let programs = vec![program(&[std::process::id()])];
        let mut snapshot = Snapshot { programs, ..Snapshot::default() };
        snapshot.find_run_queue_delays();
        let sum = snapshot.programs[0].totals.run_queue_delay_ns;
        match delays {
            [Some(main), Some(own)] => assert!(sum.unwrap() >= main + own),
            _ => println!("not compared: this kernel keeps no run-queue delays"),
        }
    }
}
