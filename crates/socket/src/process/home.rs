//! This process with what it shares: its slots and its link groups.
//!
//! Made with the first TCP connection, never before: a program that opens none
//! gets no descriptor and no page from us. A child of `fork` makes its own when it
//! needs one, and goes on using the connections it inherited through the
//! mappings it inherited.

use crate::process::agent_line::AgentLine;
use crate::process::group::Group;
use crate::process::instance::{NOBODY, Process, Unsettled};
use crate::process::lingering::Lingering;
use crate::process::memory::{self, Budget};
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use crate::process::tcp::{self, SO_NETNS_COOKIE};
use crate::process::{assessor, options, owner};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::counts::LISTS;
use sidestep_device::lock::Holder;
use sidestep_device::reference::AtomicRef;
use sidestep_device::state::{self, State};
use sidestep_device::sys::{self, UnixName};
use sidestep_device::valid::Zeroable;
use sidestep_device::wake::{self, Wake};
use sidestep_device::{confinement, holders, map};
use sidestep_wire::host_control::{Instance, mailbox_name};

/// Link groups of a process: one for each process it shares memory with.
pub const GROUPS_MAX: usize = 1024;

/// What a process has of each of its slots and groups: zeroes until it is used.
#[derive(Zeroable)]
pub(crate) struct Tables {
    pub(crate) groups: [AtomicRef<Group>; GROUPS_MAX],
    /// What it has of the agent.
    pub(crate) agent_line: AgentLine,
    /// What this process alone knows of each slot.
    pub(crate) about: [About; SLOTS],
    pub(crate) free: [FreeSlots; LISTS],
    pub(crate) lingering: Lingering,
}

pub(super) static CURRENT: AtomicRef<Home> = AtomicRef::new(None);

pub(super) static MAKING: SharedLock = SharedLock::new();

pub(super) static FAILED: AtomicU32 = AtomicU32::new(0);

/// This process, if it was made.
pub(crate) fn existing() -> Option<&'static Home> {
    CURRENT.get()
}

/// This process, made now if need be. `None` when something it needs is not to be
/// had: connections stay on TCP.
pub fn current() -> Option<&'static Home> {
    if let Some(process) = CURRENT.get() {
        return Some(process);
    }
    // What it takes is no ordinary call.
    if FAILED.load(Ordering::Relaxed) != 0 || confinement::is_confined() {
        return None;
    }
    let _making = Held::enter(MAKING.get());
    if let Some(process) = CURRENT.get() {
        return Some(process);
    }
    if memory::is_strict() {
        FAILED.store(1, Ordering::Relaxed);
        crate::log!(Warn, "vm.overcommit_memory is 2: no shared memory, connections stay on TCP");
        return None;
    }
    match Home::make() {
        Ok(process) => {
            CURRENT.set(Some(process));
            Some(process)
        }
        Err(errno) => {
            FAILED.store(1, Ordering::Relaxed);
            crate::log!(Warn, "no shared memory (errno {}): connections stay on TCP", errno.0);
            None
        }
    }
}

/// The process this one was forked from, and so on: connections may be theirs.
pub(super) static ANCESTOR: AtomicRef<Home> = AtomicRef::new(None);

pub(super) fn ancestors() -> impl Iterator<Item = &'static Home> {
    core::iter::successors(ANCESTOR.get(), |process| process.ancestor.get())
}

/// This process, if it was made, and those of which it has connections.
pub(crate) fn all() -> impl Iterator<Item = &'static Home> {
    ancestors().chain(existing())
}

/// A process with what it shares: its slots, and its link groups.
pub struct Home {
    process: Process,
    /// Taken to read the mailbox.
    pub(crate) mail_lock: SharedLock,
    /// The process this one was forked from, as seen by its children.
    pub(crate) ancestor: AtomicRef<Self>,
    /// Which locks the thread that forks has taken: bit 0 the process's, then those of the
    /// lists of free slots.
    pub(crate) held_for_fork: AtomicU32,
    /// Places of link groups that were ever taken: no look goes further.
    pub(crate) groups_used: AtomicU32,
    /// Calls that look at groups now: see [`Look`](crate::process::groups::Look).
    pub(crate) group_looks: AtomicU32,
    /// How many slots linger.
    pub(crate) lingering: AtomicU32,
    pub(crate) tables: &'static Tables,
}

/// Whether a process is among the holders of the state in which the memory at an address lies. Memory
/// of no state belongs to no other process.
fn is_holder(at: *const u8, holder: Holder) -> bool {
    let home = all().find(|home| home.state.contains(at));
    home.is_none_or(|home| holders::is_in(home.state_fd, holder))
}

impl Deref for Home {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Home {
    fn around(process: Process) -> sys::Result<&'static Self> {
        owner::ask_about_holders(is_holder);
        map::keep(Self {
            process,
            mail_lock: SharedLock::new(),
            ancestor: AtomicRef::new(None),
            held_for_fork: AtomicU32::new(0),
            groups_used: AtomicU32::new(0),
            group_looks: AtomicU32::new(0),
            lingering: AtomicU32::new(0),
            tables: map::zeroed()?,
        })
    }

    /// Whether it is the one that runs, and not an ancestor or a giver.
    pub(crate) fn is_current(&self) -> bool {
        CURRENT.is(self)
    }

    fn make() -> sys::Result<&'static Self> {
        let mut id = [0; 16];
        sys::random(&mut id)?;
        let instance = Instance(id);
        let pid = sys::pid();
        let (state, state_fd) = state::create(pid, tcp::halves(&id))?;
        let (wake, wake_fd) = wake::create().inspect_err(|_| {
            sys::close(state_fd);
            // SAFETY: no other thread knows the state.
            unsafe { state.unmap() };
        })?;
        Self::make_around(instance, pid, (state, state_fd), (wake, wake_fd)).inspect_err(|_| {
            // What cannot be used is not to stand in the program's way.
            sys::close(state_fd);
            sys::close(wake_fd);
            // SAFETY: no other thread knows them.
            unsafe {
                state.unmap();
                wake.unmap();
            }
        })
    }

    fn make_around(
        instance: Instance,
        pid: u32,
        state: (State, i32),
        wake: (Wake, i32),
    ) -> sys::Result<&'static Self> {
        let mailbox = Unsettled(sys::move_up(sys::unix_datagram()?));
        sys::set_socket_option(mailbox.0, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
        sys::bind_unix(mailbox.0, &UnixName::new(&mailbox_name(&instance)))?;
        let probe = Unsettled(sys::move_up(sys::unix_datagram()?));
        let netns_cookie =
            sys::socket_option(mailbox.0, libc::SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0);
        let budget = Budget::new(sys::uid(), options::current().user_memory_limit);
        let home = Self::around(Process {
            netns_cookie,
            budget,
            mailbox: mailbox.0,
            probe: probe.0,
            ..Process::without_mailbox(instance, pid, state, wake)
        })?;
        home.enter()?;
        mailbox.settle();
        probe.settle();
        crate::log!(Info, "instance {instance} ready");
        assessor::show(home.state_fd);
        Ok(home)
    }

    /// The process object of a process that has given us a connection: of ourselves, of a
    /// ancestor, or a new one that stands for a process we have nothing else of. It is
    /// the home of no process that runs, so its slots are given back as a forked child does it.
    ///
    /// One call at a time.
    ///
    /// # Errors
    /// `EINVAL` when the files are not what they should be, else as [`map::adopt`].
    pub(crate) fn of_giver(state_file: i32, wake_file: i32) -> sys::Result<&'static Self> {
        let state = state::adopt(state_file)?;
        let instance = state.header().instance.each_ref().map(|half| half.load(Ordering::Relaxed));
        let known = ancestors()
            .chain(CURRENT.get())
            .find(|known| tcp::halves(&known.instance.0) == instance);
        if let Some(known) = known {
            // SAFETY: no other thread knows this mapping.
            unsafe { state.unmap() };
            return Ok(known);
        }
        let made = wake::adopt(wake_file).and_then(|wake| {
            let id = u128::from(instance[0]) << 64 | u128::from(instance[1]);
            let files = [state_file, wake_file].map(sys::spare_copy);
            let [state_file, wake_file] = files.map(|file| file.unwrap_or(-1));
            let instance = Instance(id.to_be_bytes());
            let files = ((state, state_file), (wake, wake_file));
            Self::around(Process::without_mailbox(instance, NOBODY, files.0, files.1))
                .and_then(|process| process.enter().map(|()| process))
                .inspect_err(|_| {
                    [state_file, wake_file]
                        .into_iter()
                        .filter(|file| *file >= 0)
                        .for_each(sys::close);
                    // SAFETY: no other thread knows it.
                    unsafe { wake.unmap() }
                })
        });
        // SAFETY: no other thread knows the state.
        let process = made.inspect_err(|_| unsafe { state.unmap() })?;
        process.ancestor.set(ANCESTOR.get());
        ANCESTOR.set(Some(process));
        Ok(process)
    }

    /// A descriptor has the place of an untracked connection from now on.
    pub(crate) fn note_untracked(&self, fd: i32) {
        let (used, more) = (&self.state.header().untracked_used, fd as u32 + 1);
        // Hardly ever: a write would take the line away from all others.
        if used.load(Ordering::Relaxed) < more {
            used.fetch_max(more, Ordering::Relaxed);
        }
    }
}

/// What a process alone knows of one of its slots.
#[derive(Zeroable)]
pub(crate) struct About {
    /// A socket has the slot; else it is free, or lingers.
    pub(super) is_in_use: AtomicBool,
    /// With whose process the connection shares memory.
    pub(super) group: AtomicRef<Group>,
    /// The slot after it on a list of free ones + 1, 0 = none. Changed under that list's lock.
    pub(super) next_free: AtomicU32,
}

/// Slots that were given back on some of the CPUs.
#[derive(Zeroable)]
#[repr(align(64))]
pub(crate) struct FreeSlots {
    pub(crate) lock: SharedLock,
    /// The first + 1, 0 = none. Changed under the lock.
    pub(super) first: AtomicU32,
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::process::loan;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The process is the test program itself: one test at a time counts in it.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        loan::note_owner();
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
