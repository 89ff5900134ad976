//! Link groups: this process and one other, and the memory between them.
//!
//! On z/OS a link group joins two systems; here it joins two processes (a process
//! is the device, see ARCHITECTURE.md). It begins with *first contact*: each side
//! sends the other two descriptors, its slab (opened read-only) and its wake
//! memory, over UNIX datagrams whose sender the kernel vouches for. Later
//! connections between the two find everything mapped.
//!
//! A process of another network namespace has no name that we could send to, and of what one of another user sends
//! to a name nothing is taken. The two have a
//! *line* instead, a pair of connected sockets that the agent has given them
//! ([`crate::rendezvous::lookup`]), with the users at its ends; all that would go to a mailbox goes there.

use crate::process::instance::Process;
use crate::process::options;
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use crate::process::rings::{self, Rings};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
use sidestep_device::late::Late;
use sidestep_device::ring::Ring;
use sidestep_device::slab::{self, Record, SLAB_LEN, Slab};
use sidestep_device::sys::{self, Errno, Received, Sender, UnixName, Whereabouts};
use sidestep_device::wake::{self, CHANNELS, Wake};
use sidestep_device::{map, unix_diag};
use sidestep_proto::fallback::{Field, Lack, Reason};
use sidestep_proto::policy;
use sidestep_wire::host_control::{
    Channel, ControlMessage, EMITTED_LEN_MAX, Instance, Introduction, mailbox_name,
};
use sidestep_wire::{LinkId, RmbeSize};

/// See the [module](self).
pub struct Group {
    pub(super) process: &'static Process,
    /// The other process.
    pub peer: Instance,
    /// Ours.
    pub link_id: LinkId,
    /// What the peer calls it.
    peer_link_id: AtomicU32,
    pub(super) ours: Slab,
    /// Descriptors for the peer: -1 once both sides know each other.
    twin: AtomicI32,
    /// Our end of the line to the peer, or [`NEAR`] or [`LINE_LOST`].
    pub(super) line: AtomicI32,
    /// The files of this group, for processes to which connections are given: -1 where
    /// there was no room for one.
    files: [AtomicI32; FILES],
    theirs: Late<(Slab, Wake)>,
    /// The process that showed `theirs`, its user and its group, as the kernel says.
    pub(super) peer_pid: AtomicU32,
    pub(super) peer_uid: AtomicU32,
    pub(super) peer_gid: AtomicU32,
    /// That process is in our namespaces, if that makes a difference.
    peer_is_near: AtomicBool,
    /// Our own user as the agent sees it, if that has told the peer's.
    pub(super) own_uid: AtomicU32,
    /// Until when the policy of the host lets the two users share memory, by [`sys::coarse_ns`].
    granted_until: AtomicU64,
    /// Our own user when the group was begun.
    begun_by: u32,
    /// `theirs` may be read.
    established: AtomicBool,
    /// Why one of the two cannot use the other's memory: a [`Reason`]; `None`: it can.
    pub(super) refused: AtomicU64,
    /// What came as an introduction of the peer was none.
    pub(super) is_breached: AtomicBool,
    pub(super) introduced: AtomicBool,
    pub(super) reply_pending: AtomicBool,
    /// Slots whose connections belong to this group.
    pub(super) connections: AtomicU32,
    /// A connection was accepted: the next Accept is not a first contact.
    contacted: AtomicBool,
    /// Ports at which the peer has served us last, 0 = none.
    pub(super) ports: [AtomicU16; PORTS],
    /// Bit c: the peer has the eventfd of our channel c.
    channels_sent: AtomicU64,
    /// The peer's eventfds + 1.
    pub(super) bells: [AtomicI32; CHANNELS],
    lock: SharedLock,
    pub(super) rings: Rings,
}

/// Places in [`Group::files`]: our slab, writable; the peer's slab; the peer's wake
/// memory.
pub(super) const FILES: usize = 3;

pub(super) const OUR_SLAB: usize = 0;

pub(super) const THEIR_SLAB: usize = 1;

pub(super) const THEIR_WAKE: usize = 2;

/// Whom no rule means: `INVALID_UID` of `linux/uidgid.h`.
const NO_USER: u32 = u32::MAX;

/// In the place of a line: the peer has a mailbox.
const NEAR: i32 = -1;

/// In the place of a line: there was no room for it.
pub(super) const LINE_LOST: i32 = -2;

/// What the agent says of the policy holds for so long. Then the next connection asks again, so what is taken back
/// there is taken back here.
const GRANT_NS: u64 = 60_000_000_000;

/// The users at the two ends of a line, as the agent sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Users {
    pub(crate) own_uid: u32,
    pub(crate) peer: Sender,
}

/// Places in [`Group::ports`].
const PORTS: usize = 4;

pub(crate) fn make(process: &'static Process, peer: Instance) -> sys::Result<&'static Group> {
    let (ours, fd) = slab::create()?;
    let twin = map::read_only_twin(fd);
    let made = twin.and_then(|twin| {
        let made = make_around(process, peer, ours, twin);
        made.inspect(|group| group.keep(OUR_SLAB, fd)).inspect_err(|_| sys::close(twin))
    });
    sys::close(fd);
    // SAFETY: no other thread knows the slab.
    made.inspect_err(|_| unsafe { ours.unmap() })
}

pub(super) fn make_around(
    process: &'static Process,
    peer: Instance,
    ours: Slab,
    twin: i32,
) -> sys::Result<&'static Group> {
    let mut link_id = [0; 4];
    let _ = sys::random(&mut link_id);
    let is_self = peer == process.instance;
    let group = map::keep(Group {
        process,
        peer,
        link_id: LinkId(u32::from_ne_bytes(link_id)),
        peer_link_id: AtomicU32::new(u32::from_ne_bytes(link_id)),
        ours,
        twin: AtomicI32::new(twin),
        line: AtomicI32::new(NEAR),
        files: [const { AtomicI32::new(-1) }; FILES],
        theirs: Late::new(is_self.then_some((ours, process.wake))),
        peer_pid: AtomicU32::new(0),
        peer_uid: AtomicU32::new(sys::uid()),
        peer_gid: AtomicU32::new(0),
        peer_is_near: AtomicBool::new(is_self),
        own_uid: AtomicU32::new(0),
        granted_until: AtomicU64::new(0),
        begun_by: sys::uid(),
        established: AtomicBool::new(is_self),
        refused: AtomicU64::new(Reason::None.word()),
        is_breached: AtomicBool::new(false),
        introduced: AtomicBool::new(false),
        reply_pending: AtomicBool::new(false),
        connections: AtomicU32::new(0),
        contacted: AtomicBool::new(false),
        ports: [const { AtomicU16::new(0) }; PORTS],
        channels_sent: AtomicU64::new(if is_self { u64::MAX } else { 0 }),
        bells: [const { AtomicI32::new(0) }; CHANNELS],
        lock: SharedLock::new(),
        rings: Rings::new(),
    })?;
    process.partners.fetch_add(u32::from(is_self), Ordering::Relaxed);
    Ok(group)
}

pub(crate) fn adopt(slab_fd: i32, wake_fd: i32) -> sys::Result<(Slab, Wake)> {
    let slab = slab::adopt(slab_fd)?;
    // SAFETY: no other thread knows the slab.
    let wake = wake::adopt(wake_fd).inspect_err(|_| unsafe { slab.unmap() })?;
    Ok((slab, wake))
}

pub(crate) fn give_up((slab, wake): (Slab, Wake)) {
    // SAFETY: they were adopted and not used.
    unsafe {
        slab.unmap();
        wake.unmap();
    }
}

impl Group {
    /// False: it was established before, and has no use for this memory.
    pub(super) fn establish(
        &self,
        theirs: (Slab, Wake),
        by: Option<(&Introduction, &Received)>,
    ) -> bool {
        let _held = Held::enter(self.lock.get());
        if self.established.load(Ordering::Acquire) || !self.theirs.set(theirs) {
            return false;
        }
        if let Some((hello, letter)) = by {
            self.peer_link_id.store(hello.link_id.0, Ordering::Relaxed);
            self.peer_pid.store(letter.pid, Ordering::Relaxed);
            if let Some(sender) = letter.sender {
                self.peer_uid.store(sender.uid, Ordering::Relaxed);
                self.peer_gid.store(sender.gid, Ordering::Relaxed);
                let is_near =
                    sender.uid != policy::ROOT || letter.whereabouts() == Whereabouts::Near;
                self.peer_is_near.store(is_near && !self.is_distant(), Ordering::Relaxed);
            }
        }
        // Release: pairs with the Acquire in `theirs`.
        self.established.store(true, Ordering::Release);
        self.process.partners.fetch_add(1, Ordering::Relaxed);
        if self.is_distant() && by.is_some() {
            self.process.acquainting.fetch_sub(1, Ordering::Relaxed);
        }
        crate::log!(Info, "link group with {} established", self.peer);
        true
    }

    /// Keeps a descriptor of a file of this group, if there is room for one more.
    pub(super) fn keep(&self, at: usize, fd: i32) {
        let old = self.files[at].swap(sys::spare_copy(fd).unwrap_or(-1), Ordering::Relaxed);
        if old >= 0 {
            sys::close(old);
        }
    }

    /// What a process needs to go on with a connection of this group; `None` if not all
    /// of it was kept.
    pub(crate) fn files(&self) -> Option<[i32; FILES]> {
        let mut files = [0, 1, 2].map(|at: usize| self.files[at].load(Ordering::Relaxed));
        if self.peer == self.process.instance {
            files[THEIR_SLAB] = files[OUR_SLAB];
            files[THEIR_WAKE] = self.process.wake_fd;
        }
        files.iter().all(|fd| *fd >= 0).then_some(files)
    }

    /// The peer's slab and wake memory, once it has introduced itself.
    pub fn theirs(&self) -> Option<(Slab, Wake)> {
        if !self.established.load(Ordering::Acquire) {
            return None;
        }
        self.theirs.get()
    }

    /// What the peer calls our link group, once it has introduced itself.
    pub(crate) fn peer_link_id(&self) -> LinkId {
        LinkId(self.peer_link_id.load(Ordering::Relaxed))
    }

    /// The agent has said whether the policy of the host lets the two users share memory.
    pub(crate) fn note_grant(&self, is_granted: bool) {
        let until = if is_granted { sys::coarse_ns() + GRANT_NS } else { 0 };
        self.granted_until.store(until, Ordering::Relaxed);
    }

    /// Whether it does, to the users that it was said of.
    fn is_granted(&self) -> bool {
        let until = self.granted_until.load(Ordering::Relaxed);
        until != 0 && self.begun_by == sys::uid() && sys::coarse_ns() < until
    }

    /// Whether memory may still be shared with the peer's user: the rules can change, and our user.
    pub(crate) fn may_go_on(&self) -> bool {
        let Sender { uid, gid } = self.peer_user();
        let own = match self.is_distant() {
            // Who we have become since, the agent has not said.
            true if self.begun_by != sys::uid() => NO_USER,
            true => self.own_uid.load(Ordering::Relaxed),
            false => sys::uid(),
        };
        let is_near = self.peer_is_near.load(Ordering::Relaxed);
        options::current().policy.objection_to_user(own, uid, gid, is_near).is_none()
            || self.is_granted()
    }

    pub(super) fn peer_user(&self) -> Sender {
        let [uid, gid] = [&self.peer_uid, &self.peer_gid].map(|id| id.load(Ordering::Relaxed));
        Sender { uid, gid }
    }

    /// The two have a line: the peer lives in another network namespace, or is another user's.
    pub(crate) fn is_distant(&self) -> bool {
        self.line.load(Ordering::Relaxed) != NEAR
    }

    /// The peer is this process.
    pub(crate) fn is_self(&self) -> bool {
        self.peer == self.process.instance
    }

    /// Our end of the line to the peer.
    pub(crate) fn line(&self) -> Option<i32> {
        Some(self.line.load(Ordering::Relaxed)).filter(|line| *line >= 0)
    }

    /// Sends our memory to the peer's mailbox, once. False: try again later, the mailbox is full.
    pub fn introduce(&self, reply_wanted: bool) -> bool {
        if self.introduced.load(Ordering::Acquire) {
            self.close_twin();
            return true;
        }
        // One at a time: when the first thread has closed its descriptor, that number may mean a file of the program's,
        // which a second one would show to the peer.
        let _held = Held::enter(self.lock.get());
        if self.introduced.load(Ordering::Acquire) {
            return true;
        }
        let message = ControlMessage::Introduction(Introduction {
            instance: self.process.instance,
            reply_wanted,
            pid: self.process.pid,
            slab_len: SLAB_LEN as u64,
            link_id: self.link_id,
        });
        let fds = [self.twin.load(Ordering::Relaxed), self.process.wake_fd];
        // A peer that has ended meanwhile takes nothing any more, and will not: there is nothing to try again.
        let is_over = self.send(&message, &fds) || !self.peer_lives();
        if is_over {
            self.introduced.store(true, Ordering::Release);
            self.close_twin();
        }
        is_over
    }

    /// Once both sides know each other, or the peer that we know has ended, the descriptor has done its work.
    fn close_twin(&self) {
        if self.established.load(Ordering::Acquire) {
            let twin = self.twin.swap(-1, Ordering::Relaxed);
            if twin >= 0 {
                sys::close(twin);
            }
        }
    }

    /// Why it will not be established, if that is so.
    pub fn refusal(&self) -> Option<Reason> {
        let reason = Reason::of_word(self.refused.load(Ordering::Relaxed));
        Some(reason).filter(|reason| *reason != Reason::None && self.theirs().is_none())
    }

    /// What came in place of the introduction that is waited for, if that is so.
    pub(crate) fn breach(&self) -> Option<Reason> {
        let is_breached = self.is_breached.load(Ordering::Relaxed);
        is_breached.then_some(Reason::PeerBroke(Field::INTRODUCED_MEMORY))
    }

    pub(super) fn send(&self, message: &ControlMessage, fds: &[i32]) -> bool {
        let sent = match self.line.load(Ordering::Relaxed) {
            NEAR => self.process.write_to(&self.peer, message, fds),
            LINE_LOST => false,
            line => {
                let mut bytes = [0; EMITTED_LEN_MAX];
                let len = message.emit(&mut bytes);
                len.is_ok_and(|len| sys::send_over(line, &bytes[..len], fds).is_ok())
            }
        };
        if let Some((_, wake)) = self.theirs().filter(|_| sent) {
            wake.mail().store(1, Ordering::Release);
        }
        sent
    }

    /// It has connections, or may get more.
    pub(super) fn is_of_use(&self) -> bool {
        self.connections.load(Ordering::Acquire) != 0
            || (!self.process.is_giver() && self.refusal().is_none() && self.peer_lives())
    }

    /// A connection of a giver is ours as well; false: no more.
    pub(super) fn count_received(&self, more: bool) {
        if more {
            self.connections.fetch_add(1, Ordering::AcqRel);
        } else {
            self.connections.fetch_sub(1, Ordering::Release);
        }
    }

    pub(crate) fn peer_lives(&self) -> bool {
        match self.line.load(Ordering::Relaxed) {
            NEAR => {}
            // That cannot be known; what it may still read stays.
            LINE_LOST => return true,
            line => return !sys::is_hung_up(line),
        }
        let name = UnixName::new(&mailbox_name(&self.peer));
        sys::connect_unix(self.process.probe, &name) != Err(Errno(libc::ECONNREFUSED))
            && !self.is_held_by_a_stranger(&name)
    }

    /// Whether another user has bound the name of a peer that has ended. The peer's children keep its
    /// mailbox, so that its process is gone says nothing yet. The mailbox was made by the peer's user,
    /// or by root, who became that user later. A peer of another PID namespace is not asked about, and
    /// where the kernel does not say, the name is the peer's.
    fn is_held_by_a_stranger(&self, name: &UnixName) -> bool {
        let (pid, uid) = (self.peer_pid.load(Ordering::Relaxed), self.peer_user().uid);
        pid != 0
            && sys::user_of(pid) != Ok(uid)
            && unix_diag::owner_of(name).is_ok_and(|owner| ![uid, policy::ROOT].contains(&owner))
    }

    /// Whether the peer runs, as far as can be known, and is not about to end. Its mailbox and
    /// its lines live longer than its connections, so its number is asked where that is known.
    pub(crate) fn peer_runs(&self) -> bool {
        match self.peer_pid.load(Ordering::Relaxed) {
            _ if self.is_self() => true,
            0 => self.peer_lives(),
            pid => !sys::is_ending(pid),
        }
    }

    /// The peer serves us at this port.
    pub(crate) fn note_port(&self, port: u16) {
        let is_known = self.ports.iter().any(|known| known.load(Ordering::Relaxed) == port);
        if !is_known {
            let place = &self.ports[usize::from(port) % PORTS];
            place.store(port, Ordering::Relaxed);
        }
    }

    /// True exactly once: the next Accept of this group is a first contact.
    pub fn is_first_contact(&self) -> bool {
        !self.contacted.swap(true, Ordering::Relaxed)
    }

    /// Our record of a slot.
    #[must_use]
    pub fn record(&self, index: usize) -> &'static Record {
        self.ours.record(index)
    }

    /// Our slab.
    #[must_use]
    pub fn slab(&self) -> Slab {
        self.ours
    }

    /// Takes a ring of this size out of our slab for the connection of a slot: its
    /// offset and the ring.
    ///
    /// # Errors
    /// A limit of the operator, or no room in the slab.
    pub fn take_ring(&'static self, index: usize, size: RmbeSize) -> Result<(u64, Ring), Reason> {
        let offset = self.rings.take(self.process, size)?;
        let ring = self
            .ours
            .ring(offset as u64, size.bytes() as u32)
            .ok_or(Reason::Lack(Lack::NoMemory))?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.process.note_ring(index, rings::word(offset, size));
        Ok((offset as u64, ring))
    }

    /// The peer names a ring of its slab for a connection of ours.
    ///
    /// # Errors
    /// As [`Rings::admit`].
    pub(crate) fn admit(&self, at: u64, ring: &Ring) -> Result<(), Reason> {
        // One more than there are is about to be.
        let connections = self.connections.load(Ordering::Relaxed) + 1;
        self.rings.admit(self.process, connections, at, ring)
    }

    /// The connection of a slot is over here. Where it is over for the peer, too, its ring is free, and warm where it begins;
    /// where that is not known, the ring stays as it is until the group ends.
    pub(super) fn forget_connection(&self, index: usize, peer: PeerUse) {
        let ring = self.process.forget_ring(index);
        if peer == PeerUse::Over {
            let written = self.record(index).sending.producer.position();
            if let Some((at, len)) = rings::beyond_warm(ring, written) {
                self.ours.give_back(at, len);
            }
            self.rings.give(ring);
        }
        self.connections.fetch_sub(1, Ordering::Release);
    }

    /// Makes sure that the peer can ring our channel. False: try again later.
    pub fn share_channel(&self, number: usize) -> bool {
        let bit = 1u64 << number;
        if self.channels_sent.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        let Some(fd) = self.process.bell(number) else { return false };
        let message = ControlMessage::Channel(Channel {
            instance: self.process.instance,
            channel: number as u16,
        });
        let sent = self.send(&message, &[fd]);
        if sent {
            self.channels_sent.fetch_or(bit, Ordering::Relaxed);
        }
        sent
    }

    /// Marks news for the peer's slot in a channel of the peer. True: its loop sleeps, and has to be woken.
    #[inline]
    pub fn mark(&self, number: usize, peer_slot: usize, cpu: u32) -> bool {
        let Some((_, wake)) = self.theirs() else { return false };
        number < CHANNELS && wake.channel(number).mark(peer_slot, cpu)
    }

    /// Whether we can ring a channel of the peer, or it is our own.
    pub(super) fn has_bell(&self, number: usize) -> bool {
        self.is_self() || self.bells[number].load(Ordering::Acquire) > 0
    }

    /// Whether it is a link group of this process.
    pub(super) fn is_of(&self, process: &Process) -> bool {
        core::ptr::eq(self.process, process)
    }

    /// Rings the bell of one of the peer's channels. False: it has not reached us.
    #[cold]
    pub(super) fn ring(&self, number: usize) -> bool {
        let fd = if self.peer == self.process.instance {
            self.process.bell(number)
        } else {
            self.bells[number].load(Ordering::Acquire).checked_sub(1).filter(|fd| *fd >= 0)
        };
        matches!(fd.map(sys::ring_eventfd), Some(Ok(_) | Err(Errno(libc::EAGAIN))))
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// It came from [`make_around`], and no reference to it is used again.
    pub(super) unsafe fn end(at: NonNull<Self>) {
        // SAFETY: `map::keep` has put it there, and the caller is alone with it.
        let group = unsafe { map::take_back(at) };
        for bell in &group.bells {
            if let Some(fd) = bell.load(Ordering::Relaxed).checked_sub(1).filter(|fd| *fd >= 0) {
                sys::close(fd);
            }
        }
        let twin = group.twin.swap(-1, Ordering::Relaxed);
        if twin >= 0 {
            sys::close(twin);
        }
        if let Some(line) = group.line() {
            sys::close(line);
        }
        if group.is_distant() && group.theirs().is_none() {
            group.process.acquainting.fetch_sub(1, Ordering::Relaxed);
        }
        for file in group.files.iter().map(|file| file.load(Ordering::Relaxed)) {
            if file >= 0 {
                sys::close(file);
            }
        }
        if group.reply_pending.load(Ordering::Relaxed) {
            group.process.replies_pending.fetch_sub(1, Ordering::Relaxed);
        }
        crate::log!(Info, "link group with {} ended", group.peer);
        if let Some(theirs) = group.theirs() {
            group.process.partners.fetch_sub(1, Ordering::Relaxed);
            give_up(theirs);
        }
        group.rings.give_all_back(group.process);
        // SAFETY: no connection is left, so no `Conn` holds a record or ring of it.
        unsafe { group.ours.unmap() };
    }
}

/// What the peer still does with our ring of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerUse {
    /// It may read it.
    Reads,
    /// It has said that it needs it no more, or was never told of it.
    Over,
    /// It has not said so, and is dead. A process that it has given the connection to may read the ring still: a gateway that
    /// has replaced another.
    Inherited,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::groups::{self, Look};
    use crate::process::home::{self, tests::alone};
    use std::sync::Barrier;

    #[test]
    fn with_another_user_memory_is_shared_while_it_is_granted() {
        let _alone = alone();
        let process = home::current().unwrap();
        let group = groups::with(&Look::at(process), process.instance).unwrap();
        let own = group.peer_uid.swap(sys::uid() + 1, Ordering::Relaxed);
        assert!(!group.may_go_on());
        group.note_grant(true);
        assert!(group.may_go_on());
        group.granted_until.store(sys::coarse_ns(), Ordering::Relaxed);
        assert!(!group.may_go_on(), "its time is over");
        group.note_grant(true);
        group.note_grant(false);
        assert!(!group.may_go_on(), "it was taken back");
        group.peer_uid.store(own, Ordering::Relaxed);
        assert!(group.may_go_on());
    }

    #[test]
    fn a_group_remembers_the_ports_that_its_peer_serves() {
        let _alone = alone();
        let process = home::current().unwrap();
        let group = groups::with(&Look::at(process), process.instance).unwrap();
        let known = || group.ports.each_ref().map(|port| port.load(Ordering::Relaxed));
        let count = |port| known().iter().filter(|known| **known == port).count();
        let first = 4 * PORTS as u16;
        for port in first..first + PORTS as u16 {
            group.note_port(port);
            group.note_port(port);
        }
        assert!((first..first + PORTS as u16).all(|port| count(port) == 1), "{:?}", known());
        // One more takes the place of another.
        group.note_port(first + PORTS as u16);
        assert_eq!((count(first + PORTS as u16), count(first), count(first + 1)), (1, 0, 1));
    }

    /// The group with a process that has shown its memory, and is owed ours.
    fn known(process: &'static home::Home, peer: Instance) -> &'static Group {
        let group = groups::with(&Look::at(process), peer).unwrap();
        let ((slab, slab_fd), (wake, wake_fd)) = (slab::create().unwrap(), wake::create().unwrap());
        assert!(group.establish(adopt(slab_fd, wake_fd).unwrap(), None));
        give_up((slab, wake));
        [slab_fd, wake_fd].into_iter().for_each(sys::close);
        group
    }

    /// A client that is killed between its Introduction and our answer has its mailbox no more.
    #[test]
    fn for_a_peer_that_has_ended_before_it_was_answered_no_descriptor_is_kept() {
        let _alone = alone();
        let group = known(home::current().unwrap(), Instance([0x41; 16]));
        assert!(group.twin.load(Ordering::Relaxed) >= 0 && !group.peer_lives());
        assert!(group.introduce(false), "nothing to try again");
        assert_eq!(group.twin.load(Ordering::Relaxed), -1);
        assert!(group.introduce(false));
    }

    #[test]
    fn of_threads_that_introduce_at_once_one_shows_memory() {
        const THREADS: usize = 8;
        let _alone = alone();
        for nth in 0..20 {
            let peer = Instance([0x60 + nth; 16]);
            let group = known(home::current().unwrap(), peer);
            let mailbox = sys::unix_datagram().unwrap();
            sys::bind_unix(mailbox, &UnixName::new(&mailbox_name(&peer))).unwrap();
            let start = Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        start.wait();
                        assert!(group.introduce(false));
                    });
                }
            });
            let mut bytes = [0; EMITTED_LEN_MAX];
            let shown = sys::recv_with_fds(mailbox, &mut bytes).unwrap();
            assert_eq!(shown.fds().len(), 2);
            shown.close_fds();
            assert!(sys::recv_with_fds(mailbox, &mut bytes).is_err(), "once");
            assert_eq!(group.twin.load(Ordering::Relaxed), -1);
            sys::close(mailbox);
        }
    }

    #[test]
    fn a_peer_whose_mailbox_is_full_is_answered_when_it_has_read() {
        let _alone = alone();
        let peer = Instance([0x42; 16]);
        let group = known(home::current().unwrap(), peer);
        let mailbox = sys::unix_datagram().unwrap();
        sys::bind_unix(mailbox, &UnixName::new(&mailbox_name(&peer))).unwrap();
        let letter = ControlMessage::Channel(Channel { instance: peer, channel: 0 });
        while group.send(&letter, &[]) {}
        assert!(!group.introduce(false));
        assert!(group.twin.load(Ordering::Relaxed) >= 0);
        let mut bytes = [0; EMITTED_LEN_MAX];
        sys::recv_with_fds(mailbox, &mut bytes).unwrap();
        assert!(group.introduce(false));
        assert_eq!(group.twin.load(Ordering::Relaxed), -1);
        sys::close(mailbox);
    }

    #[test]
    fn one_accept_of_a_group_is_the_first_contact() {
        let _alone = alone();
        let process = home::current().unwrap();
        let group = groups::with(&Look::at(process), process.instance).unwrap();
        group.contacted.store(false, Ordering::Relaxed);
        assert!(group.is_first_contact() && !group.is_first_contact() && !group.is_first_contact());
    }
}
