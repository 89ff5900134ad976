//! What belongs to this process: its instance, slots, mailbox and channels.
//!
//! Made with the first TCP connection, never before: a program that opens none
//! gets no descriptor and no page from us. A child of `fork` makes its own when it
//! needs one, and goes on using the connections it inherited through the
//! mappings it inherited.

use crate::process::group::{self, Group};
use crate::process::memory::{self, Budget};
use crate::process::options::{Options, Promotion};
use crate::process::owner::{self, Waiting};
use crate::process::pool::{self, Held, SharedLock};
use crate::program::seccomp;
use crate::rendezvous::petition::Desk;
use crate::table::sock::Sock;
use crate::table::young;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::confinement;
use sidestep_device::counts::LISTS;
use sidestep_device::holders::{self, Membership};
use sidestep_device::lock::{Entry, Lock};
use sidestep_device::map;
use sidestep_device::reference::AtomicRef;
use sidestep_device::rights::{self, NotTaken};
use sidestep_device::slab::phase;
use sidestep_device::sparse::Sparse;
use sidestep_device::state::{self, Slot, State, mode};
use sidestep_device::sys::{self, Received, Sender, UnixName, Whereabouts};
use sidestep_device::valid::{Renew, Zeroable};
use sidestep_device::wake::{self, CHANNELS, Wake};
use sidestep_device::young::{Ending, Young};
use sidestep_proto::autosmc::{Patience, Traffic};
use sidestep_proto::fallback::{ProgramDid, Reason};
use sidestep_proto::policy;
use sidestep_proto::rendezvous::Local;
use sidestep_wire::clc::Hostname;
use sidestep_wire::host_control::{
    ControlMessage, EMITTED_LEN_MAX, Instance, Parcel, mailbox_name,
};
use std::sync::OnceLock;

/// Link groups of a process: one for each process it shares memory with.
pub const GROUPS_MAX: usize = 1024;
/// Datagrams read in one look into the mailbox: whoever sends faster than we read
/// keeps no call waiting.
pub(crate) const LETTERS_MAX: usize = 64;
/// Slots looked at for reclaiming when one is taken.
const SWEEP_LEN: usize = 64;

/// See the [module](self).
pub struct Process {
    /// Its number when it was made.
    pub pid: u32,
    /// Its 128-bit GID.
    pub instance: Instance,
    /// Slots.
    pub state: State,
    /// Hints from peers.
    pub wake: Wake,
    /// Network namespace in which it can be reached.
    pub netns_cookie: u64,
    pub(crate) state_fd: i32,
    /// What keeps this process among the holders of the state: a descriptor of its own, or
    /// [`OF_PROCESS`]; [`NO_MEMBER`]: it has not entered.
    membership: AtomicI32,
    pub(crate) wake_fd: i32,
    pub(crate) mailbox: i32,
    pub(crate) probe: i32,
    /// Taken to change link groups, channels, or what lingers. Before one of a list of free
    /// slots, if both are needed.
    pub(crate) lock: SharedLock,
    /// Taken to read the mailbox.
    mail_lock: SharedLock,
    /// A stranger's descriptor lies in the mailbox, which is read no more.
    is_beset: AtomicBool,
    /// The process this one was forked from, as seen by its heirs.
    forebear: AtomicRef<Self>,
    /// Which locks the thread that forks has taken: bit 0 the process's, then those of the
    /// lists of free slots.
    held_for_fork: AtomicU32,
    /// For the rings in the slabs of its link groups: in use, or warm for the next
    /// connection.
    pub(crate) budget: Budget,
    /// Introductions that could not be answered yet because a mailbox was full.
    pub(crate) replies_pending: AtomicU32,
    /// Places of link groups that were ever taken: nobody looks further.
    pub(crate) groups_used: AtomicU32,
    /// Calls that look at groups now: see [`group::Look`].
    pub(crate) group_looks: AtomicU32,
    /// How often a process and this one could not use each other's memory.
    pub(crate) refusals: AtomicU32,
    /// Why they could not, the last time: a [`Reason`].
    pub(crate) last_refusal: AtomicU64,
    /// Link groups that are established: who can write our wake memory.
    pub(crate) partners: AtomicU32,
    /// Link groups with processes of other network namespaces that are not established yet.
    pub(crate) acquainting: AtomicU32,
    /// Bit c: channel c has an eventfd and no event loop.
    idle_channels: AtomicU64,
    /// How many linger.
    lingering: AtomicU32,
    pub(crate) tables: &'static Tables,
}

/// What a process has of each of its slots, groups and channels: zeroes until it is used.
#[derive(Zeroable)]
pub(crate) struct Tables {
    pub(crate) groups: [AtomicRef<Group>; GROUPS_MAX],
    /// What it has of the agent.
    pub(crate) desk: Desk,
    /// What this process alone knows of each slot.
    about: [About; SLOTS],
    /// The ring of each slot, as its group has it; 0 = none. In memory of our own, because others
    /// may have written to the record.
    rings: Sparse<AtomicU64, SLOTS>,
    bells: [AtomicI32; CHANNELS],
    free: [FreeSlots; LISTS],
    lingering: Lingering,
}

/// What a process alone knows of one of its slots.
#[derive(Zeroable)]
struct About {
    /// For bits of a channel; none: the slot is free, or lingers.
    sock: AtomicRef<Sock>,
    /// With whose process the connection shares memory.
    group: AtomicRef<Group>,
    /// The slot after it on a list of free ones + 1, 0 = none. Changed under that list's lock.
    next_free: AtomicU32,
}

/// Slots that were given back on some of the CPUs.
#[derive(Zeroable)]
#[repr(align(64))]
struct FreeSlots {
    lock: SharedLock,
    /// The first + 1, 0 = none. Changed under the lock.
    first: AtomicU32,
}

/// Slots that this process has let go of and somebody else still needs. Changed under the process's
/// lock.
#[derive(Zeroable)]
struct Lingering {
    /// A bit for each.
    slots: [AtomicU64; SLOTS / 64],
    /// Where they are looked at next.
    sweep_at: AtomicUsize,
}

impl Lingering {
    fn add(&self, index: usize) {
        self.slots[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
    }

    /// False: it was not one of them.
    fn remove(&self, index: usize) -> bool {
        let bit = 1 << (index % 64);
        self.slots[index / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// The next of them, around and around.
    fn next(&self) -> Option<usize> {
        let words = self.slots.len();
        let sweep_at = self.sweep_at.load(Ordering::Relaxed);
        let (word, bit) = (sweep_at / 64 % words, sweep_at % 64);
        let in_word = |at: usize, mask: u64| {
            let bits = self.slots[at].load(Ordering::Relaxed) & mask;
            (bits != 0).then(|| at * 64 + bits.trailing_zeros() as usize)
        };
        let found = in_word(word, u64::MAX << bit).or_else(|| {
            let mut others = (1..=words).map(|step| (word + step) % words);
            others.find_map(|at| in_word(at, u64::MAX))
        })?;
        self.sweep_at.store(found + 1, Ordering::Relaxed);
        Some(found)
    }
}

static CURRENT: AtomicRef<Process> = AtomicRef::new(None);
static MAKING: SharedLock = SharedLock::new();
static FAILED: AtomicU32 = AtomicU32::new(0);
static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Sets what the operator decided; the first call counts.
pub fn configure(options: Options) {
    crate::process::log::set_level(options.log);
    let _ = OPTIONS.set(options);
}

/// What the operator decided.
#[inline]
pub fn options() -> &'static Options {
    REPLACED.get().unwrap_or_else(|| OPTIONS.get_or_init(Options::default))
}

/// What he has decided since.
static REPLACED: AtomicRef<Options> = AtomicRef::new(None);

/// The operator has changed his mind. False if not, or if there is no memory to remember it.
/// What was before stays in memory: a thread may be reading it.
pub(crate) fn replace_options(options: Options) -> bool {
    if options == *self::options() {
        return false;
    }
    let kept = map::keep(options);
    let is_remembered = kept.is_ok();
    if let Ok(options) = kept {
        REPLACED.set(Some(options));
    }
    is_remembered
}

/// The process whose memory this is, as it knows itself. Not set until the library has
/// started.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Remembers whose memory this is.
pub fn note_owner() {
    BORROWERS.store(0, Ordering::Relaxed);
    OWNER.store(sys::pid(), Ordering::Relaxed);
}

/// Forks between the program's begin and this process: tells what a process has made from
/// what it has inherited. (Its number does not: a child in a PID namespace of its own can have
/// its parent's.)
static FORKS: AtomicU32 = AtomicU32::new(0);

/// See [`FORKS`].
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Says in a slot which process uses the connection, if that has changed: a child
/// goes on with what its parent began.
pub(crate) fn note_user(slot: &Slot) {
    let me = OWNER.load(Ordering::Relaxed);
    if slot.user_pid.load(Ordering::Relaxed) != me {
        slot.user_pid.store(me, Ordering::Relaxed);
    }
}

/// Processes that may run in our memory beside ourselves.
static BORROWERS: AtomicU32 = AtomicU32::new(0);
/// What [`sys::number_in_proc`] was when memory was lent last. A borrower in a PID namespace of
/// its own can have our [`OWNER`], and has not this one.
static OWNER_IN_PROC: AtomicU32 = AtomicU32::new(0);

/// Our memory is lent: to the child of a `vfork`, until that calls `exec` or ends, or to
/// that of a `clone` of the kind, of which nobody tells us when it does.
pub fn lend_memory() {
    young::grow_all();
    OWNER_IN_PROC.store(sys::number_in_proc(), Ordering::Relaxed);
    BORROWERS.fetch_add(1, Ordering::Relaxed);
}

/// The child of a `vfork` has called `exec` or ended.
pub fn end_loan() {
    BORROWERS.fetch_sub(1, Ordering::Relaxed);
    seccomp::end_loan();
}

/// Whether the calling process runs in the memory of another: the child of a
/// `vfork`, which may close and duplicate descriptors (its own!) before it calls
/// `exec`, and must leave its parent's tables alone. A borrower sees that the memory was
/// lent, because the thread that it continues has said so before.
#[must_use]
pub fn is_borrowed_memory() -> bool {
    let is_owner = || {
        OWNER.load(Ordering::Relaxed) == sys::pid()
            && OWNER_IN_PROC.load(Ordering::Relaxed) == sys::number_in_proc()
    };
    BORROWERS.load(Ordering::Relaxed) != 0 && !is_owner()
}

/// This process, if it was made.
pub(crate) fn existing() -> Option<&'static Process> {
    CURRENT.get()
}

/// This process, made now if need be. `None` when something it needs is not to be
/// had: connections stay on TCP.
pub fn current() -> Option<&'static Process> {
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
    match Process::make() {
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

/// In the child of a fork, before anything else: it has no process object yet,
/// and other threads' locks are nobody's.
pub fn forget_after_fork() {
    owner::forget();
    FORKS.fetch_add(1, Ordering::Relaxed);
    note_owner();
    MAKING.get().reset();
    FORKING.store(0, Ordering::SeqCst);
    let parent = CURRENT.take();
    FAILED.store(0, Ordering::Relaxed);
    if let Some(parent) = parent {
        parent.locks().for_each(Lock::reset);
        parent.held_for_fork.store(0, Ordering::Relaxed);
        parent.forebear.set(FOREBEAR.get());
        FOREBEAR.set(Some(parent));
    }
    forebears().for_each(Process::be_born);
}

/// Forks under way in this process.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// Whether a fork is under way: nothing may begin that two processes would continue.
pub(crate) fn is_forking() -> bool {
    FORKING.load(Ordering::SeqCst) != 0
}

/// Before a fork: from now on until [`forked`] no meeting makes progress.
pub(crate) fn about_to_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
}

/// Before a fork, when all meetings rest: until [`forked`] no slot is taken, so that
/// both processes agree who holds what.
pub(crate) fn count_heir() {
    let process = CURRENT.get();
    // The child may be slower to enter than others are to look for it.
    for process in all() {
        process.state.header().unborn.fetch_add(1, Ordering::AcqRel);
    }
    process.inspect(|process| process.count_heir());
}

/// The fork has failed: takes back what [`count_heir`] has done. Still no slot is taken or given back,
/// so it is those slots.
pub(crate) fn discount_heir() {
    if let Some(process) = CURRENT.get() {
        process.for_each_slot_in_use(|slot| {
            let one_less = |holders: u32| holders.checked_sub(1);
            let _ = slot.holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        });
    }
    all().for_each(Process::forget_unborn);
}

/// In the parent after a fork.
pub fn forked() {
    if let Some(process) = CURRENT.get() {
        let held = process.held_for_fork.swap(0, Ordering::Relaxed);
        let taken = process.locks().enumerate().filter(|(at, _)| held & 1 << at != 0);
        taken.for_each(|(_, lock)| lock.leave(&Waiting));
    }
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// The process this one was forked from, and so on: connections may be theirs.
static FOREBEAR: AtomicRef<Process> = AtomicRef::new(None);

fn forebears() -> impl Iterator<Item = &'static Process> {
    core::iter::successors(FOREBEAR.get(), |process| process.forebear.get())
}

/// This process, if it was made, and those of which it has connections.
pub(crate) fn all() -> impl Iterator<Item = &'static Process> {
    forebears().chain(existing())
}

/// The number of a process that runs nowhere, as far as we know: see
/// [`Process::of_giver`].
const NOBODY: u32 = 0;
/// In [`Process::membership`]: the lock is the process's.
const OF_PROCESS: i32 = -2;
/// In [`Process::membership`]: there is none.
const NO_MEMBER: i32 = -1;

impl Process {
    /// Enters this process into the state, as one who works on its slots.
    fn enter(&self) -> sys::Result<()> {
        let membership = match holders::enter(self.state_fd, owner::holder())? {
            Membership::OfDescription(own) => own,
            Membership::OfProcess => OF_PROCESS,
        };
        self.membership.store(membership, Ordering::Relaxed);
        Ok(())
    }

    /// In the child of a fork, of a state that it has inherited: what keeps its parent among
    /// the holders does not keep the child, and must not keep the parent there for longer than it
    /// lives.
    fn be_born(&self) {
        let parents = self.membership.swap(NO_MEMBER, Ordering::Relaxed);
        if parents >= 0 {
            sys::close(parents);
        }
        if let Err(errno) = self.enter() {
            crate::log!(Error, "inherited connections are reset (errno {})", errno.0);
        }
        self.forget_unborn();
    }

    /// A child has entered, or there is none.
    fn forget_unborn(&self) {
        // Release: whoever finds it born finds it entered.
        let born = |unborn: u32| unborn.checked_sub(1);
        let _ = self.state.header().unborn.fetch_update(Ordering::Release, Ordering::Relaxed, born);
    }

    /// Whether this process may work on its slots: others would take the locks of one that
    /// has not entered.
    pub(crate) fn has_entered(&self) -> bool {
        self.membership.load(Ordering::Relaxed) != NO_MEMBER
    }

    /// Whether it is the one that runs, and not a forebear or a giver.
    pub(crate) fn is_current(&self) -> bool {
        CURRENT.is(self)
    }

    /// All locks without which no slot is taken or given back, in the order in which they
    /// are taken.
    fn locks(&self) -> impl Iterator<Item = &Lock> {
        let lists = self.tables.free.iter().map(|list| list.lock.get());
        core::iter::once(self.lock.get()).chain(lists)
    }

    /// Takes the locks for the time of a fork; every slot gets one more holder.
    fn count_heir(&self) {
        for (at, lock) in self.locks().enumerate() {
            if lock.enter(owner::me(), &Waiting) == Entry::Owned {
                self.held_for_fork.fetch_or(1 << at, Ordering::Relaxed);
            }
        }
        self.for_each_slot_in_use(|slot| _ = slot.holders.fetch_add(1, Ordering::AcqRel));
    }

    /// Under the locks.
    fn for_each_slot_in_use(&self, f: impl FnMut(&Slot)) {
        let used = self.state.header().slots_used.load(Ordering::Acquire) as usize;
        let is_in_use = |index: &usize| self.sock_of_slot(*index).is_some();
        (0..used).filter(is_in_use).map(|index| self.state.slot(index)).for_each(f);
    }

    fn make() -> sys::Result<&'static Self> {
        let mut id = [0; 16];
        sys::random(&mut id)?;
        let instance = Instance(id);
        let pid = sys::pid();
        let (state, state_fd) = state::create(pid, halves(&id))?;
        let (wake, wake_fd) = wake::create().inspect_err(|_| {
            sys::close(state_fd);
            // SAFETY: nobody knows the state.
            unsafe { state.unmap() };
        })?;
        Self::make_around(instance, pid, (state, state_fd), (wake, wake_fd)).inspect_err(|_| {
            // What cannot be used is not to stand in the program's way.
            sys::close(state_fd);
            sys::close(wake_fd);
            // SAFETY: nobody knows them.
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
        let budget = Budget::new(sys::uid(), options().user_memory_limit);
        let process = map::keep(Self {
            netns_cookie,
            budget,
            mailbox: mailbox.0,
            probe: probe.0,
            ..Self::without_mailbox(instance, pid, state, wake)?
        })?;
        process.enter()?;
        mailbox.settle();
        probe.settle();
        crate::log!(Info, "instance {instance} ready");
        crate::table::account::show_state(process);
        Ok(process)
    }

    /// One in which no peer is reached, and no ring is made.
    fn without_mailbox(
        instance: Instance,
        pid: u32,
        (state, state_fd): (State, i32),
        (wake, wake_fd): (Wake, i32),
    ) -> sys::Result<Self> {
        Ok(Self {
            pid,
            instance,
            state,
            wake,
            netns_cookie: 0,
            state_fd,
            membership: AtomicI32::new(NO_MEMBER),
            wake_fd,
            mailbox: -1,
            probe: -1,
            lock: SharedLock::new(),
            mail_lock: SharedLock::new(),
            is_beset: AtomicBool::new(false),
            forebear: AtomicRef::new(None),
            held_for_fork: AtomicU32::new(0),
            budget: Budget::none(),
            replies_pending: AtomicU32::new(0),
            groups_used: AtomicU32::new(0),
            group_looks: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            last_refusal: AtomicU64::new(Reason::None.word()),
            partners: AtomicU32::new(0),
            acquainting: AtomicU32::new(0),
            idle_channels: AtomicU64::new(0),
            lingering: AtomicU32::new(0),
            tables: map::zeroed()?,
        })
    }

    /// The process object of somebody who has given us a connection: of ourselves, of a
    /// forebear, or a new one that stands for a process we have nothing else of. It is
    /// nobody's home that runs, so its slots are given back as a forked child does it.
    ///
    /// One call at a time.
    ///
    /// # Errors
    /// `EINVAL` when the files are not what they should be, else as [`map::adopt`].
    pub(crate) fn of_giver(state_file: i32, wake_file: i32) -> sys::Result<&'static Self> {
        let state = state::adopt(state_file)?;
        let instance = state.header().instance.each_ref().map(|half| half.load(Ordering::Relaxed));
        let known =
            forebears().chain(CURRENT.get()).find(|known| halves(&known.instance.0) == instance);
        if let Some(known) = known {
            // SAFETY: nobody else knows this mapping.
            unsafe { state.unmap() };
            return Ok(known);
        }
        let made = wake::adopt(wake_file).and_then(|wake| {
            let id = u128::from(instance[0]) << 64 | u128::from(instance[1]);
            let files = [state_file, wake_file].map(sys::spare_copy);
            let [state_file, wake_file] = files.map(|file| file.unwrap_or(-1));
            let instance = Instance(id.to_be_bytes());
            Self::without_mailbox(instance, NOBODY, (state, state_file), (wake, wake_file))
                .and_then(map::keep)
                .and_then(|process| process.enter().map(|()| process))
                .inspect_err(|_| {
                    [state_file, wake_file]
                        .into_iter()
                        .filter(|file| *file >= 0)
                        .for_each(sys::close);
                    // SAFETY: nobody knows it.
                    unsafe { wake.unmap() }
                })
        });
        // SAFETY: nobody knows the state.
        let process = made.inspect_err(|_| unsafe { state.unmap() })?;
        process.forebear.set(FOREBEAR.get());
        FOREBEAR.set(Some(process));
        Ok(process)
    }

    /// Whether it only stands for somebody who has given us connections.
    pub(crate) fn is_giver(&self) -> bool {
        self.pid == NOBODY
    }

    /// A connection of this giver is ours from now on.
    pub(crate) fn note_received(&self, index: usize, group: &'static Group) {
        if self.is_giver() {
            group.count_received(true);
        }
        self.set_group_of_slot(index, group);
    }

    /// It is ours no more: the group may end.
    pub(crate) fn forget_received(&self, index: usize) {
        if let Some(group) = self.group_of_slot(index).filter(|_| self.is_giver()) {
            self.forget_group_of_slot(index);
            group.count_received(false);
        }
    }

    /// A connection of ours comes back to us after we had let go of it. False: its slot
    /// is another connection's by now.
    pub(crate) fn take_back(&self, index: usize, sock: &'static Sock) -> bool {
        let _held = Held::enter(self.lock.get());
        let is_left = self.linger_no_more(index);
        if is_left {
            self.set_sock_of_slot(index, Some(sock));
        }
        is_left
    }

    /// Whether the connection of a slot is under way to another program.
    pub(crate) fn is_under_way(&self, index: usize) -> bool {
        let place = &self.state.slot(index).parcel;
        let number = place.load(Ordering::Acquire);
        if number == 0 {
            return false;
        }
        let Some(group) = self.group_of_slot(index) else { return false };
        let parcel = Parcel { slot: index as u32, peer: group.peer, number };
        let is_under_way = sys::is_bound(&UnixName::new(&parcel.name()));
        if !is_under_way {
            let _ = place.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        is_under_way
    }

    /// First half of the instance: enough to find a link group by.
    #[must_use]
    pub fn key(&self) -> u64 {
        halves(&self.instance.0)[0]
    }

    /// Who we are to the rendezvous.
    #[must_use]
    pub fn local(&self) -> Local {
        let mut name = [0u8; 64];
        Local {
            gid: self.instance.into(),
            ueids: options().ueids.clone(),
            hostname: Hostname::new(sys::hostname(&mut name)),
        }
    }

    /// Takes a slot for a new connection, or one that was young: its index.
    pub fn take_slot(&'static self, sock: &'static Sock, young: Option<&Young>) -> Option<usize> {
        self.sweep();
        let has_any = |list: &usize| self.tables.free[*list].first.load(Ordering::Relaxed) != 0;
        let mut lists = pool::lists().filter(has_any);
        lists.find_map(|list| self.take_from(list, sock, young, || None)).or_else(|| {
            let stretch = |list| self.take_from(list, sock, young, || self.begin_stretch(list));
            pool::lists().find_map(stretch)
        })
    }

    /// Takes a slot of a list, or, if that is empty, what `else_take` does under its lock.
    /// `None` also if a signal handler asks that has interrupted a change of the list.
    fn take_from(
        &'static self,
        list: usize,
        sock: &'static Sock,
        young: Option<&Young>,
        else_take: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let free = &self.tables.free[list];
        let _held = Some(Held::enter(free.lock.get())).filter(Held::is_outermost)?;
        let index = match free.first.load(Ordering::Relaxed).checked_sub(1) {
            Some(first) => {
                let next = self.tables.about[first as usize].next_free.load(Ordering::Relaxed);
                free.first.store(next, Ordering::Relaxed);
                first as usize
            }
            None => else_take()?,
        };
        // Whoever forks finds either no slot or one that is complete.
        match young {
            // Whoever counts finds the connection here or there.
            Some(young) => self.state.change(list, |_| {
                self.settle(index, sock);
                self.state.slot(index).take_young(young);
            }),
            None => self.settle(index, sock),
        }
        Some(index)
    }

    fn settle(&'static self, index: usize, sock: &'static Sock) {
        self.set_sock_of_slot(index, Some(sock));
        reset(self.state.slot(index), self.pid);
        self.wake.cell(index).clear();
        sock.settle(self, index);
    }

    /// A descriptor has the place of a young connection from now on.
    pub(crate) fn note_young(&self, fd: i32) {
        let (used, more) = (&self.state.header().young_used, fd as u32 + 1);
        // Hardly ever: a write would take the line away from all others.
        if used.load(Ordering::Relaxed) < more {
            used.fetch_max(more, Ordering::Relaxed);
        }
    }

    /// A young connection has ended: counts it with those before it at its place. If it is
    /// different they are counted here (unless handlers have interrupted one another on every
    /// list).
    pub(crate) fn count_young(&self, ending: Ending<'_>) {
        let Err(ending) = ending.join() else { return };
        for list in pool::lists() {
            let held = Held::enter(self.tables.free[list].lock.get());
            if held.is_outermost() {
                return self.state.change(list, |totals| {
                    if let Some(batch) = ending.begin_anew() {
                        totals.take_young(&batch, TOO_SHORT);
                        crate::table::account::ended_young(self, &batch, list);
                    }
                });
            }
        }
    }

    /// The first of some slots that nobody has had; the others go to a list, which is empty.
    /// What belongs to neighbours lies in the same cache lines, so neighbours serve one CPU.
    /// Under the lock of the list.
    fn begin_stretch(&self, list: usize) -> Option<usize> {
        const STRETCH: u32 = 16;
        const _: () = assert!(SLOTS.is_multiple_of(STRETCH as usize));
        let used = &self.state.header().slots_used;
        let more = |used: u32| (used < SLOTS as u32).then_some(used + STRETCH);
        // Release: whoever looks so far finds free slots there, or what was written later.
        let begin = used.fetch_update(Ordering::Release, Ordering::Relaxed, more).ok()?;
        let last = begin + STRETCH - 1;
        for index in begin + 1..last {
            self.tables.about[index as usize].next_free.store(index + 2, Ordering::Relaxed);
        }
        self.tables.about[last as usize].next_free.store(0, Ordering::Relaxed);
        self.tables.free[list].first.store(begin + 2, Ordering::Relaxed);
        Some(begin as usize)
    }

    /// Says that this end needs the peer's ring no more. By the last that holds the
    /// slot, or in its stead.
    pub fn detach(&self, index: usize) {
        if let Some(group) = self.group_of_slot(index) {
            group.record(index).identity.phase.store(phase::DETACHED, Ordering::Release);
        }
        self.state.slot(index).mode.store(mode::LINGERING, Ordering::Release);
    }

    /// This process has let go of a slot. Frees it at once if nobody else needs what
    /// lies in it, else when its heirs and the peer have let go, too.
    pub fn release_slot(&self, index: usize) {
        if self.free_slot(index) {
            return;
        }
        let _held = Held::enter(self.lock.get());
        self.set_sock_of_slot(index, None);
        self.linger(index);
    }

    /// Under the lock.
    fn linger(&self, index: usize) {
        self.tables.lingering.add(index);
        self.lingering.fetch_add(1, Ordering::Relaxed);
    }

    /// Under the lock. False: the slot did not linger.
    fn linger_no_more(&self, index: usize) -> bool {
        let did = self.tables.lingering.remove(index);
        if did {
            self.lingering.fetch_sub(1, Ordering::Relaxed);
        }
        did
    }

    /// Frees some of the slots that linger for no reason any more.
    fn sweep(&self) {
        let lingering = self.lingering.load(Ordering::Relaxed) as usize;
        if lingering == 0 {
            return;
        }
        // Who does it already does it for us.
        let Some(_held) = Held::try_enter(self.lock.get()) else { return };
        for _ in 0..SWEEP_LEN.min(lingering) {
            let next = self.tables.lingering.next();
            // Freed, it is anybody's: it lingers no more before that.
            if let Some(index) = next.filter(|index| self.linger_no_more(*index))
                && !self.free_slot(index)
            {
                self.linger(index);
            }
        }
    }

    /// Frees a slot that has no socket, or whose socket ends, if nobody needs it any more.
    fn free_slot(&self, index: usize) -> bool {
        for list in pool::lists() {
            let held = Held::enter(self.tables.free[list].lock.get());
            if held.is_outermost() {
                let is_releasable = self.is_releasable(index);
                if is_releasable {
                    self.free_slot_to(list, index);
                }
                return is_releasable;
            }
        }
        false
    }

    fn is_releasable(&self, index: usize) -> bool {
        let slot = self.state.slot(index);
        if slot.holders.load(Ordering::Acquire) > 0 && self.has_living_heirs() {
            return false;
        }
        if self.is_under_way(index) {
            return false;
        }
        // Heirs that were killed, or let go at the same time, have not said so.
        self.detach(index);
        match self.group_of_slot(index) {
            Some(group) => group.peer_is_done_with(index),
            None => true,
        }
    }

    fn has_living_heirs(&self) -> bool {
        // Acquire: pairs with `be_born`, so the look at the unborn is the first.
        self.state.header().unborn.load(Ordering::Acquire) != 0
            || holders::has_others(self.membership.load(Ordering::Relaxed))
    }

    /// Under the lock of the list.
    fn free_slot_to(&self, list: usize, index: usize) {
        if let Some(group) = self.group_of_slot(index) {
            group.forget_connection(index);
        }
        self.forget_group_of_slot(index);
        self.learn_from(self.state.slot(index));
        self.state.free_slot(index, list);
        self.set_sock_of_slot(index, None);
        let first = &self.tables.free[list].first;
        self.tables.about[index].next_free.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
        first.store(index as u32 + 1, Ordering::Relaxed);
    }

    /// AUTOSMC: a connection has ended. Of two that end at once one may teach nothing.
    fn learn_from(&self, slot: &Slot) {
        let Options { promotion, autosmc, .. } = options();
        let port = slot.server_port.load(Ordering::Relaxed) as u16;
        let moved_after = slot.moved_after.load(Ordering::Relaxed).checked_sub(1);
        let (Promotion::Lazy, true, 1.., Some(before)) = (promotion, autosmc, port, moved_after)
        else {
            return;
        };
        let counters = &slot.counters;
        let moved = Traffic {
            messages: counters.traffic().0.saturating_sub(before),
            bytes: counters.ring_bytes_sent.load(Ordering::Relaxed)
                + counters.ring_bytes_received.load(Ordering::Relaxed),
        };
        let header = self.state.header();
        let patience = Patience::new(header.patience(port));
        header.set_patience(port, patience.after(moved).doublings());
    }

    /// The socket that a bit of a channel means.
    pub fn sock_of_slot(&self, index: usize) -> Option<&'static Sock> {
        self.tables.about.get(index)?.sock.get()
    }

    fn set_sock_of_slot(&self, index: usize, sock: Option<&'static Sock>) {
        self.tables.about[index].sock.set(sock);
    }

    pub(crate) fn group_of_slot(&self, index: usize) -> Option<&'static Group> {
        self.tables.about[index].group.get()
    }

    pub(crate) fn note_ring(&self, index: usize, ring: usize) {
        if let Some(word) = self.tables.rings.writable(index) {
            word.store(ring as u64, Ordering::Relaxed);
        }
    }

    /// The ring that a slot has had until now; 0 = none.
    pub(crate) fn forget_ring(&self, index: usize) -> usize {
        let word = self.tables.rings.get(index);
        word.map_or(0, |word| word.swap(0, Ordering::Relaxed) as usize)
    }

    pub(crate) fn set_group_of_slot(&self, index: usize, group: &'static Group) {
        self.tables.about[index].group.set(Some(group));
    }

    pub(crate) fn forget_group_of_slot(&self, index: usize) {
        self.tables.about[index].group.set(None);
    }

    /// A channel for an event loop: its number and its eventfd. One that was given
    /// back serves again, because peers already hold its eventfd.
    pub fn take_channel(&self) -> Option<(usize, i32)> {
        let _held = Held::enter(self.lock.get());
        let mut idle = self.idle_channels.load(Ordering::Relaxed);
        if idle != 0 {
            let number = idle.trailing_zeros() as usize;
            idle &= idle - 1;
            self.idle_channels.store(idle, Ordering::Relaxed);
            return Some((number, self.bell(number)?));
        }
        let number = self.tables.bells.iter().position(|bell| bell.load(Ordering::Relaxed) == 0)?;
        let fd = sys::move_up(sys::eventfd().ok()?);
        self.tables.bells[number].store(fd + 1, Ordering::Release);
        Some((number, fd))
    }

    /// An event loop has ended: its channel may serve another.
    pub fn give_channel(&self, number: usize) {
        let _held = Held::enter(self.lock.get());
        self.idle_channels.fetch_or(1 << number, Ordering::Relaxed);
    }

    /// The eventfd of one of our channels.
    #[must_use]
    pub fn bell(&self, channel: usize) -> Option<i32> {
        self.tables.bells.get(channel)?.load(Ordering::Acquire).checked_sub(1).filter(|fd| *fd >= 0)
    }

    /// Sends a message to the mailbox of another process. False: it was not taken.
    pub(crate) fn write_to(&self, peer: &Instance, message: &ControlMessage, fds: &[i32]) -> bool {
        let mut bytes = [0; EMITTED_LEN_MAX];
        let Ok(len) = message.emit(&mut bytes) else { return false };
        let name = UnixName::new(&mailbox_name(peer));
        sys::send_with_fds(self.mailbox, &name, &bytes[..len], fds).is_ok()
    }

    /// Reads what other processes have sent to our mailbox.
    pub fn read_mail(&'static self) {
        // Between the look at a message and its taking the next one must stay the next.
        if let Some(_held) = Held::try_enter(self.mail_lock.get()) {
            self.read_mailbox();
        }
        group::read_lines(self);
        if self.replies_pending.load(Ordering::Relaxed) > 0 {
            group::answer_introductions(self);
        }
    }

    fn read_mailbox(&'static self) {
        self.wake.mail().store(0, Ordering::Relaxed);
        let mut bytes = [0; 256];
        for looks_left in (0..LETTERS_MAX).rev() {
            let received = match rights::receive(self.mailbox, &mut bytes, Self::takes_from) {
                Ok(received) => received,
                Err(NotTaken::Errno(_)) => break,
                // New peers stay on TCP; those with which memory is shared need no mail.
                Err(NotTaken::Foreign) => return self.note_beset(),
            };
            if looks_left == 0 {
                self.wake.mail().store(1, Ordering::Relaxed);
            }
            if Self::shares_with(&received) {
                match ControlMessage::parse(&bytes[..received.len]) {
                    Ok(message) if group::has_line(self, message.instance()) => {
                        crate::log!(Warn, "mail of {} came past its line", message.instance());
                    }
                    Ok(ControlMessage::Introduction(introduction)) => {
                        group::on_introduction(self, &introduction, &received);
                    }
                    Ok(ControlMessage::Channel(channel)) => {
                        if group::on_channel(self, &channel, &received) {
                            continue;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => crate::log!(Warn, "mail ignored: {error}"),
                }
            }
            received.close_fds();
        }
    }

    /// Whether a stranger's descriptor lies in the mailbox, which is not read any more.
    pub(crate) fn is_beset(&self) -> bool {
        self.is_beset.load(Ordering::Relaxed)
    }

    /// Says once that no mail comes any more.
    fn note_beset(&self) {
        if !self.is_beset.swap(true, Ordering::Relaxed) {
            crate::log!(
                Warn,
                "another user has sent a descriptor to the mailbox: new peers stay on TCP"
            );
        }
    }

    /// Whether memory may be shared with who has sent a letter, by whom we are now: a server may have
    /// become another user since it began.
    pub(crate) fn shares_with(letter: &Received) -> bool {
        Self::has_no_objection(letter, |letter| letter.whereabouts() == Whereabouts::Near)
    }

    /// Whether the descriptors of a letter are taken from the queue. So are those of a sender that has ended and may
    /// have been near: else a client of root's that ends at once would close the mailbox for all. With it nothing is
    /// shared, and what it has sent is dropped.
    pub(crate) fn takes_from(letter: &Received) -> bool {
        Self::has_no_objection(letter, |letter| letter.whereabouts() != Whereabouts::Elsewhere)
    }

    fn has_no_objection(letter: &Received, is_near: impl FnOnce(&Received) -> bool) -> bool {
        let Some(Sender { uid, gid }) = letter.sender else { return false };
        // Of others it makes no difference, and it takes some system calls.
        let is_near = uid != policy::ROOT || is_near(letter);
        options().policy.objection_to_user(sys::uid(), uid, gid, is_near).is_none()
    }

    /// Reads the mailbox if somebody has left a hint that there is mail.
    #[inline]
    pub fn read_mail_if_any(&'static self) {
        if self.wake.mail().load(Ordering::Relaxed) != 0 {
            self.read_mail();
        }
    }
}

/// A descriptor of ours that goes again if what it is for does not come about.
struct Unsettled(i32);

impl Unsettled {
    fn settle(self) -> i32 {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`; Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;
/// `SO_COOKIE` of `asm-generic/socket.h`.
const SO_COOKIE: i32 = 57;

/// The kernel's cookie of a socket.
#[must_use]
pub fn socket_cookie(fd: i32) -> u64 {
    sys::socket_option(fd, libc::SOL_SOCKET, SO_COOKIE).unwrap_or(0)
}

/// The cookie of the network namespace a socket lives in; 0 when the kernel does
/// not say.
#[must_use]
pub fn netns_cookie(fd: i32) -> u64 {
    sys::socket_option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0)
}

/// Sixteen bytes as two words.
#[must_use]
pub fn halves(id: &[u8; 16]) -> [u64; 2] {
    let word = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&id[at..at + 8]);
        u64::from_be_bytes(eight)
    };
    [word(0), word(8)]
}

/// Two words as sixteen bytes.
#[must_use]
pub(crate) fn joined([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) << 64 | u128::from(second)).to_be_bytes()
}

fn reset(slot: &Slot, pid: u32) {
    let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
    // The counters behind it were left at zero.
    slot.renew();
    slot.generation.store(generation, Ordering::Relaxed);
    slot.user_pid.store(pid, Ordering::Relaxed);
    slot.low_water.store(1, Ordering::Relaxed);
    slot.holders.store(1, Ordering::Relaxed);
    slot.mode.store(mode::TCP, Ordering::Release);
}

/// The code of what ends young.
const TOO_SHORT: u8 = Reason::Program(ProgramDid::TooShort).code();

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::table::sock::{self, Phase};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The process is the test program itself: one test at a time counts in it.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        note_owner();
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of which `ring_bytes` went through shared memory.
    fn connect(listener: &TcpListener, ring_bytes: u64) -> (TcpStream, &'static Sock) {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sock = sock::register(stream.as_raw_fd(), false, false).unwrap();
        sock.set_phase(Phase::Candidate);
        sock.begin(stream.as_raw_fd());
        let counters = &sock.slot().unwrap().counters;
        counters.ring_bytes_sent.store(ring_bytes, Ordering::Relaxed);
        counters.bytes_sent.store(ring_bytes, Ordering::Relaxed);
        (stream, sock)
    }

    fn close(stream: TcpStream) {
        let closing = sock::before_close(stream.as_raw_fd());
        drop(stream);
        drop(closing);
    }

    #[test]
    fn what_lingers_is_looked_at_in_turn() {
        let lingering = map::zeroed::<Lingering>().unwrap();
        assert_eq!(lingering.next(), None);
        for index in [SLOTS - 1, 3, 64] {
            lingering.add(index);
        }
        let round = [(); 4].map(|()| lingering.next());
        assert_eq!(round, [Some(3), Some(64), Some(SLOTS - 1), Some(3)]);
        assert!(lingering.remove(64) && !lingering.remove(64));
        assert_eq!(lingering.next(), Some(SLOTS - 1));
    }

    fn ended() -> (u64, u64, u64) {
        let ended = &current().unwrap().state.header().ended;
        let sum = |counter: fn(&state::Totals) -> &AtomicU64| {
            ended.iter().map(|ended| counter(ended).load(Ordering::Relaxed)).sum()
        };
        let too_short = sum(|ended| &ended.tcp[usize::from(TOO_SHORT)]);
        (sum(|ended| &ended.smc), too_short, sum(|ended| &ended.counters.bytes_sent))
    }

    #[test]
    fn a_connection_that_is_closed_is_counted_once() {
        let _alone = alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ((first, _), (second, _)) = (connect(&listener, 5), connect(&listener, 0));
        let before = ended();
        close(first);
        close(second);
        assert_eq!(ended(), (before.0 + 1, before.1 + 1, before.2 + 5));
        // Whoever takes and sweeps slots counts nothing anew.
        close(connect(&listener, 0).0);
        assert_eq!(ended(), (before.0 + 1, before.1 + 2, before.2 + 5));
    }

    #[test]
    fn ends_of_moved_connections_teach_patience() {
        let _alone = alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let patience = || current().unwrap().state.header().patience(port);
        let end_after = |messages: u64| {
            let (stream, sock) = connect(&listener, 0);
            let slot = sock.slot().unwrap();
            slot.server_port.store(port.into(), Ordering::Relaxed);
            slot.moved_after.store(1 + 16, Ordering::Relaxed);
            slot.counters.messages_sent.store(16 + messages, Ordering::Relaxed);
            close(stream);
        };
        end_after(3);
        end_after(3);
        assert_eq!(patience(), 2, "two moves did not pay");
        end_after(1000);
        assert_eq!(patience(), 1, "one did");
        close(connect(&listener, 0).0);
        assert_eq!(patience(), 1, "who never moved teaches nothing");
    }

    #[test]
    fn a_second_descriptor_keeps_a_connection() {
        let _alone = alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (first, _) = connect(&listener, 5);
        let second = first.try_clone().unwrap();
        sock::duplicate(first.as_raw_fd(), second.as_raw_fd());
        let before = ended();
        close(first);
        assert_eq!(ended(), before);
        close(second);
        assert_eq!(ended(), (before.0 + 1, before.1, before.2 + 5));
    }

    #[test]
    fn a_connection_with_a_living_heir_is_counted_when_that_is_gone() {
        let _alone = alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (stream, sock) = connect(&listener, 5);
        let process = current().unwrap();
        // SAFETY: the child makes system calls only.
        let heir = unsafe { libc::fork() };
        if heir == 0 {
            let entered = holders::enter(process.state_fd, holders::draw()).is_ok();
            // SAFETY: as above.
            unsafe {
                if entered {
                    libc::pause();
                }
                libc::_exit(1)
            }
        }
        while !process.has_living_heirs() {
            assert!(!sys::is_gone(heir as u32));
            std::thread::yield_now();
        }
        let slot = sock.slot().unwrap();
        slot.holders.fetch_add(1, Ordering::Relaxed);
        let before = ended();
        close(stream);
        assert_eq!(ended(), before, "the heir goes on with it");
        slot.counters.bytes_sent.store(8, Ordering::Relaxed);

        // It is killed and says nothing: the next connection finds that out.
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(heir, libc::SIGKILL);
            libc::waitpid(heir, core::ptr::null_mut(), 0);
        }
        let (stream, _) = connect(&listener, 0);
        assert_eq!(ended(), (before.0 + 1, before.1, before.2 + 8));
        close(stream);
        assert_eq!(ended(), (before.0 + 1, before.1 + 1, before.2 + 8));
    }

    #[test]
    fn connections_closed_by_many_threads_are_all_counted() {
        const EACH: u64 = 200;
        let _alone = alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = ended();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..EACH {
                        close(connect(&listener, n % 2).0);
                        // The queue of the listener must not fill up.
                        listener.accept().unwrap();
                    }
                });
            }
        });
        let half = 4 * EACH / 2;
        assert_eq!(ended(), (before.0 + half, before.1 + half, before.2 + half));
    }
}
