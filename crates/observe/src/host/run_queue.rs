//! How long the threads of programs have waited for a CPU.
//!
//! `/proc/PID/task/TID/schedstat` has three figures of a thread: nanoseconds on a CPU; its
//! *run-queue delay*, nanoseconds for which it could run and another thread had the CPU; and how
//! often it was given one. A thread that has ended has none, so the sum over threads falls
//! when one ends.

use super::allowance::Allowance;
use procfs::process::{Process, Schedstat};

/// Nanoseconds, summed over the threads of a process, as far as its user's allowance reaches.
pub(crate) fn delay_of(pid: u32, allowance: &mut Allowance) -> Option<u64> {
    let threads = Process::new(pid.cast_signed()).ok()?.tasks().ok()?;
    let known = threads.take_while(|_| allowance.takes_thread()).filter_map(|thread| {
        // An error: the thread has ended, or the kernel has no such file.
        delay(&thread.and_then(|thread| thread.schedstat()).ok()?)
    });
    known.reduce(u64::saturating_add)
}

/// A kernel that keeps no figures says three times 0; a thread that runs was given a CPU.
pub(crate) fn delay(figures: &Schedstat) -> Option<u64> {
    (figures.pcount > 0).then_some(figures.run_delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_keeps_no_figures_is_not_believed() {
        let figures = |run_delay, pcount| Schedstat { sum_exec_runtime: 1, run_delay, pcount };
        assert_eq!(
            [(0, 0), (0, 1), (7, 2)].map(|(ns, n)| delay(&figures(ns, n))),
            [None, Some(0), Some(7)]
        );
    }
}
