//! Processors, and the system calls that the standard library does not offer.

use std::io;
use std::mem;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{fs, thread};

/// A processor, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cpu(usize);

/// The processors that this thread may use, in the order of their numbers.
pub(super) fn allowed() -> io::Result<Vec<Cpu>> {
    let set = affinity()?;
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: `CPU_ISSET` reads a bit of `set` for a number below CPU_SETSIZE.
    Ok(all.filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).map(Cpu).collect())
}

/// Two to measure between: on two cores if there are two.
pub(super) fn pair(allowed: &[Cpu]) -> Option<(Cpu, Cpu)> {
    let (&first, others) = allowed.split_first()?;
    let siblings = siblings(first);
    let on_another_core = others.iter().find(|cpu| !siblings.contains(cpu));
    Some((first, *on_another_core.or(others.first())?))
}

/// The hardware threads of its core; nothing if the kernel does not tell.
fn siblings(cpu: Cpu) -> Vec<Cpu> {
    let path = format!("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu.0);
    parse_list(&fs::read_to_string(path).unwrap_or_default())
}

/// `0-3,8` and the like.
fn parse_list(list: &str) -> Vec<Cpu> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().map(Cpu).collect()
}

/// Runs `work` on one processor, in a thread of its own: the caller stays where it may
/// be. When the processor is refused (it was taken from us meanwhile) the work is done
/// wherever the kernel sees fit.
pub(super) fn on<T: Send>(cpu: Cpu, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| join(start_on(scope, cpu, work)))
}

/// Like [`on`], beside what the caller does.
pub(super) fn start_on<'scope, 'env, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, 'env>,
    cpu: Cpu,
    work: impl FnOnce() -> T + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, T> {
    scope.spawn(move || {
        let _ = move_this_thread_to(cpu);
        work()
    })
}

/// What the thread returned; its panic becomes ours.
pub(super) fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn affinity() -> io::Result<libc::cpu_set_t> {
    // SAFETY: an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes at most `size_of_val(&set)` bytes to `set`.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if result != 0 { Err(io::Error::last_os_error()) } else { Ok(set) }
}

fn move_this_thread_to(cpu: Cpu) -> io::Result<()> {
    // SAFETY: an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `cpu` comes from `allowed`, so its number is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(cpu.0, &mut set) };
    // SAFETY: the kernel reads `size_of_val(&set)` bytes of `set`.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if result != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A system call that does next to nothing. (`getpid` would do, but some libraries
/// have answered it themselves.)
pub(super) fn call_kernel() {
    // SAFETY: takes no argument and has no effect.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// An epoll set that watches one connection for input.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn watching(stream: &TcpStream) -> io::Result<Self> {
        // SAFETY: takes flags only.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, owned here alone.
        let set = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let (set_fd, fd) = (set.as_raw_fd(), stream.as_raw_fd());
        // SAFETY: both descriptors are open, and the kernel reads `event` only.
        let result = unsafe { libc::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if result != 0 { Err(io::Error::last_os_error()) } else { Ok(Self(set)) }
    }

    /// Returns how many connections have input, at once.
    pub(super) fn wait(&self) -> i32 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let len = events.len() as i32;
        // SAFETY: the kernel writes at most `len` events to `events`.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), len, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,8\n"), [Cpu(0), Cpu(1), Cpu(2), Cpu(8)]);
        assert_eq!(parse_list("5\n"), [Cpu(5)]);
        assert_eq!(parse_list(""), []);
    }

    #[test]
    fn one_processor_is_no_pair() {
        assert_eq!(pair(&[Cpu(0)]), None);
        assert_eq!(pair(&[]), None);
        assert!(pair(&[Cpu(0), Cpu(1)]).is_some());
    }

    #[test]
    fn work_runs_on_the_processor_asked_for_and_the_caller_is_free_again() {
        let before = allowed().unwrap();
        for &cpu in &before {
            assert_eq!(on(cpu, || allowed().unwrap()), [cpu]);
        }
        assert_eq!(allowed().unwrap(), before);
    }
}
