//! How long the threads of programs have waited for a CPU.
//!
//! `/proc/PID/task/TID/schedstat` has three figures of a thread: nanoseconds on a CPU; its
//! *run-queue delay*, nanoseconds for which it could run and another thread had the CPU; and how
//! often it was given one. A thread that has ended has none, so the sum over threads falls
//! when one ends.

use super::allowance::{Allowance, Allowances};
use super::{Program, user};
use procfs::process::{Process, Schedstat};
use std::collections::HashMap;

/// Fills in the run-queue delays of programs. What cannot be found out stays absent.
pub(super) fn fill_in_delays(programs: &mut [Program], allowances: &mut Allowances) {
    for (pid, index) in programs_of_processes(programs) {
        let Ok(user) = user(pid) else { continue };
        let delay = delay_of(pid, allowances.of(user));
        let sum = &mut programs[index].totals.run_queue_delay_ns;
        *sum = [*sum, delay].into_iter().flatten().reduce(u64::saturating_add);
    }
}

/// Each process, and the place of the program that it counts for. One that holds the states of
/// several programs counts once: where it is the first, else where it is found first.
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

/// The sum over the threads of a process, as far as its user's allowance reaches.
fn delay_of(pid: u32, allowance: &mut Allowance) -> Option<u64> {
    let threads = Process::new(pid.cast_signed()).ok()?.tasks().ok()?;
    let known = threads.take_while(|_| allowance.takes_thread()).filter_map(|thread| {
        // An error: the thread has ended, or the kernel has no such file.
        delay(&thread.and_then(|thread| thread.schedstat()).ok()?)
    });
    known.reduce(u64::saturating_add)
}

/// A kernel that keeps no figures says three times 0; a thread that runs was given a CPU.
fn delay(figures: &Schedstat) -> Option<u64> {
    (figures.pcount > 0).then_some(figures.run_delay)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_kernel_that_keeps_no_figures_is_not_believed() {
        let figures = |run_delay, pcount| Schedstat { sum_exec_runtime: 1, run_delay, pcount };
        assert_eq!(
            [(0, 0), (0, 1), (7, 2)].map(|(ns, n)| delay(&figures(ns, n))),
            [None, Some(0), Some(7)]
        );
    }

    #[test]
    fn the_figures_of_all_threads_are_summed_up() {
        let process = Process::myself().unwrap();
        // Neither ends before this test does, and no figure falls.
        let threads = [process.pid(), sidestep_device::sys::tid().cast_signed()];
        let delays = threads.map(|tid| {
            let thread = process.task_from_tid(tid).unwrap();
            thread.schedstat().ok().as_ref().and_then(delay)
        });
        let mut programs = [program(&[std::process::id()])];
        fill_in_delays(&mut programs, &mut Allowances::new(0));
        let sum = programs[0].totals.run_queue_delay_ns;
        match delays {
            [Some(main), Some(own)] => assert!(sum.unwrap() >= main + own),
            _ => println!("not compared: this kernel keeps no run-queue delays"),
        }
    }
}
