//! The CPUs on which a thread may run.

use std::{io, mem};

/// The CPUs that this thread may use, in the order of their numbers.
pub(super) fn allowed() -> io::Result<Vec<usize>> {
    let mut set = empty();
    // SAFETY: the kernel fills one `cpu_set_t`.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all numbers lie within the set.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_set).collect())
}

/// From now on this thread runs on one CPU.
pub(super) fn pin_to(cpu: usize) -> io::Result<()> {
    let mut set = empty();
    // SAFETY: the number came out of such a set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the kernel reads one `cpu_set_t`.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set of bits; all zero is the empty one.
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_one_cpu_and_others_all() {
        let before = allowed().unwrap();
        let last = *before.last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin_to(last).unwrap();
            allowed().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
        assert_eq!(allowed().unwrap(), before);
    }
}
