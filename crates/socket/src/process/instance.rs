//! A process as others know it: its instance, its state, its mailbox, its bells.

use crate::process::memory::Budget;
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use crate::process::system_eid::system_eid;
use crate::process::{options, owner, tcp};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::holders::{self, Membership};
use sidestep_device::sparse::Sparse;
use sidestep_device::state::State;
use sidestep_device::sys::{self, UnixName};
use sidestep_device::wake::{CHANNELS, Wake};
use sidestep_proto::fallback::Reason;
use sidestep_proto::rendezvous::Local;
use sidestep_wire::host_control::{ControlMessage, EMITTED_LEN_MAX, Instance, mailbox_name};

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
    pub(crate) membership: AtomicI32,
    pub(crate) wake_fd: i32,
    pub(crate) mailbox: i32,
    pub(crate) probe: i32,
    /// Taken to change link groups, channels, or what lingers. Before one of a list of free
    /// slots, if both are needed.
    pub(crate) lock: SharedLock,
    /// A stranger's descriptor lies in the mailbox, which is read no more.
    pub(crate) is_beset: AtomicBool,
    /// For the rings in the slabs of its link groups: in use, or warm for the next
    /// connection.
    pub(crate) budget: Budget,
    /// Introductions that could not be answered yet because a mailbox was full.
    pub(crate) replies_pending: AtomicU32,
    /// How often a process and this one could not use each other's memory.
    pub(crate) refusals: AtomicU32,
    /// Why they could not, the last time: a [`Reason`].
    pub(crate) last_refusal: AtomicU64,
    /// This one has told a process that it has no room for its memory.
    pub(super) lacks_room: AtomicBool,
    /// How often something else came in place of an Introduction.
    pub(super) breaches: AtomicU32,
    /// What was wrong with it, the last time: a [`Reason`].
    pub(super) last_breach: AtomicU64,
    /// Link groups that are established: their peers can write our wake memory.
    pub(crate) partners: AtomicU32,
    /// Link groups with processes of other network namespaces that are not established yet.
    pub(crate) acquainting: AtomicU32,
    /// Bit c: channel c has an eventfd and no event loop.
    pub(super) idle_channels: AtomicU64,
    /// The eventfd of each channel + 1, 0 = none.
    pub(super) bells: [AtomicI32; CHANNELS],
    /// The ring of each slot, as its group has it; 0 = none. In memory of our own, because others
    /// may have written to the record.
    pub(super) rings: Sparse<AtomicU64, SLOTS>,
}

/// The number of a process that runs nowhere, as far as we know: see
/// [`Home::of_giver`](crate::process::home::Home::of_giver).
pub(crate) const NOBODY: u32 = 0;

/// In [`Process::membership`]: the lock is the process's.
const OF_PROCESS: i32 = -2;

/// In [`Process::membership`]: there is none.
const NO_MEMBER: i32 = -1;

impl Process {
    /// Enters this process into the state, as one who works on its slots.
    pub(crate) fn enter(&self) -> sys::Result<()> {
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
    pub(super) fn be_born(&self) {
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
    pub(super) fn forget_unborn(&self) {
        // Release: a thread that finds it born finds it entered.
        let born = |unborn: u32| unborn.checked_sub(1);
        let _ = self.state.header().unborn.fetch_update(Ordering::Release, Ordering::Relaxed, born);
    }

    /// Whether this process may work on its slots: others would take the locks of one that
    /// has not entered.
    pub(crate) fn has_entered(&self) -> bool {
        self.membership.load(Ordering::Relaxed) != NO_MEMBER
    }

    /// One in which no peer is reached, and no ring is made.
    pub(super) fn without_mailbox(
        instance: Instance,
        pid: u32,
        (state, state_fd): (State, i32),
        (wake, wake_fd): (Wake, i32),
    ) -> Self {
        Self {
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
            is_beset: AtomicBool::new(false),
            budget: Budget::none(),
            replies_pending: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            last_refusal: AtomicU64::new(Reason::None.word()),
            lacks_room: AtomicBool::new(false),
            breaches: AtomicU32::new(0),
            last_breach: AtomicU64::new(Reason::None.word()),
            partners: AtomicU32::new(0),
            acquainting: AtomicU32::new(0),
            idle_channels: AtomicU64::new(0),
            bells: [const { AtomicI32::new(0) }; CHANNELS],
            rings: Sparse::new(),
        }
    }

    /// Whether it only stands for a process that has given us connections.
    pub(super) fn is_giver(&self) -> bool {
        self.pid == NOBODY
    }

    /// First half of the instance: enough to find a link group by.
    #[must_use]
    pub fn key(&self) -> u64 {
        tcp::halves(&self.instance.0)[0]
    }

    /// Who we are to the rendezvous.
    #[must_use]
    pub fn local(&self) -> Local {
        let options = options::current();
        let seid = options.seid.then(system_eid).flatten();
        Local { gid: self.instance.into(), ueids: options.ueids.clone(), seid }
    }

    pub(super) fn note_ring(&self, index: usize, ring: usize) {
        if let Some(word) = self.rings.writable(index) {
            word.store(ring as u64, Ordering::Relaxed);
        }
    }

    /// The ring that a slot has had until now; 0 = none.
    pub(super) fn forget_ring(&self, index: usize) -> usize {
        let word = self.rings.get(index);
        word.map_or(0, |word| word.swap(0, Ordering::Relaxed) as usize)
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
        let number = self.bells.iter().position(|bell| bell.load(Ordering::Relaxed) == 0)?;
        let fd = sys::move_up(sys::eventfd().ok()?);
        self.bells[number].store(fd + 1, Ordering::Release);
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
        self.bells.get(channel)?.load(Ordering::Acquire).checked_sub(1).filter(|fd| *fd >= 0)
    }

    /// Sends a message to the mailbox of another process. False: it was not taken.
    pub(super) fn write_to(&self, peer: &Instance, message: &ControlMessage, fds: &[i32]) -> bool {
        let mut bytes = [0; EMITTED_LEN_MAX];
        let Ok(len) = message.emit(&mut bytes) else { return false };
        let name = UnixName::new(&mailbox_name(peer));
        sys::send_with_fds(self.mailbox, &name, &bytes[..len], fds).is_ok()
    }

    /// What has come was to be an Introduction, and is none.
    pub(super) fn note_breach(&self, reason: Reason) {
        self.last_breach.store(reason.word(), Ordering::Relaxed);
        // Release: an end that counts it finds its reason, or a later one's.
        self.breaches.fetch_add(1, Ordering::Release);
    }

    /// How often that was so: the last bits.
    pub(crate) fn breaches(&self) -> u16 {
        self.breaches.load(Ordering::Acquire) as u16
    }

    /// What was wrong the last time.
    pub(crate) fn last_breach(&self) -> Reason {
        Reason::of_word(self.last_breach.load(Ordering::Relaxed))
    }

    /// Whether a stranger's descriptor lies in the mailbox, which is not read any more.
    pub(crate) fn is_beset(&self) -> bool {
        self.is_beset.load(Ordering::Relaxed)
    }
}

/// A descriptor of ours that goes again if what it is for does not come about.
pub(crate) struct Unsettled(pub(crate) i32);

impl Unsettled {
    pub(crate) fn settle(self) -> i32 {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}
