//! The CPUs on which a thread may run.

use std::{io, mem};

/// The CPUs that this thread may use, in the order of their numbers.
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    let mut set = empty();
    // SAFETY: the kernel fills one `cpu_set_t`.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all numbers lie within the set.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..CPUS_MAX).filter(is_set).collect())
}

/// From now on this thread runs on these CPUs, whose numbers are less than [`CPUS_MAX`].
/// Makes a system call and nothing else, so it may stand between fork and exec.
pub(crate) fn pin_to(cpus: &[usize]) -> io::Result<()> {
    let mut set = empty();
    for &cpu in cpus.iter().filter(|cpu| **cpu < CPUS_MAX) {
        // SAFETY: the number lies within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the kernel reads one `cpu_set_t`.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CPUs that a set can name.
pub(crate) const CPUS_MAX: usize = libc::CPU_SETSIZE as usize;

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set of bits; all zero is the empty one.
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_some_cpus_and_others_all() {
        let before = allowed().unwrap();
        let last = *before.last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin_to(&[last]).unwrap();
            allowed().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
        assert_eq!(allowed().unwrap(), before);
    }
}
