//! The slots of a process: taken, given back, and kept as long as a process needs what lies in them.

use crate::process::clc;
use crate::process::group::{Group, PeerUse};
use crate::process::home::Home;
use crate::process::instance::Process;
use crate::process::options::{self, Options, Promotion};
use crate::process::owner::Held;
use crate::process::pool;
use core::sync::atomic::Ordering;
use sidestep_device::channel::SLOTS;
use sidestep_device::holders;
use sidestep_device::ring::Ring;
use sidestep_device::slab::phase;
use sidestep_device::state::{Slot, mode};
use sidestep_device::sys::{self, UnixName};
use sidestep_device::untracked::{Batch, Ending, Untracked};
use sidestep_device::valid::Renew;
use sidestep_proto::autosmc::{Patience, Traffic};
use sidestep_proto::fallback::{ProgramDid, Reason};
use sidestep_wire::RmbeSize;
use sidestep_wire::host_control::Bundle;

/// Slots looked at for reclaiming when one is taken.
const SWEEP_LEN: usize = 64;

impl Home {
    /// Under the locks.
    pub(super) fn for_each_slot_in_use(&self, f: impl FnMut(&Slot)) {
        let used = self.state.header().slots_used.load(Ordering::Acquire) as usize;
        let is_in_use = |index: &usize| self.tables.about[*index].is_in_use.load(Ordering::Acquire);
        (0..used).filter(is_in_use).map(|index| self.state.slot(index)).for_each(f);
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
    pub(crate) fn take_back(&self, index: usize) -> bool {
        let _held = Held::enter(self.lock.get());
        let is_left = self.linger_no_more(index);
        if is_left {
            self.set_in_use(index, true);
        }
        is_left
    }

    /// Whether the connection of a slot is under way to another program.
    pub(crate) fn is_under_way(&self, index: usize) -> bool {
        let place = &self.state.slot(index).bundle;
        let number = place.load(Ordering::Acquire);
        if number == 0 {
            return false;
        }
        let Some(group) = self.group_of_slot(index) else { return false };
        let bundle = Bundle { slot: index as u32, peer: group.peer, number };
        let is_under_way = sys::is_bound(&UnixName::new(&bundle.name()));
        if !is_under_way {
            let _ = place.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        is_under_way
    }

    /// Takes a slot for a new connection, or one that was untracked: its index. `settle` completes what
    /// lies in it, under the lock of a list of free slots.
    pub(crate) fn take_slot(
        &'static self,
        untracked: Option<&Untracked>,
        settle: &impl Fn(usize),
    ) -> Option<usize> {
        self.sweep();
        let has_any = |list: &usize| self.tables.free[*list].first.load(Ordering::Relaxed) != 0;
        let mut lists = pool::lists().filter(has_any);
        lists.find_map(|list| self.take_from(list, untracked, settle, || None)).or_else(|| {
            let stretch =
                |list| self.take_from(list, untracked, settle, || self.begin_stretch(list));
            pool::lists().find_map(stretch)
        })
    }

    /// Takes a slot of a list, or, if that is empty, what `else_take` does under its lock.
    /// `None` also if a signal handler asks that has interrupted a change of the list.
    fn take_from(
        &'static self,
        list: usize,
        untracked: Option<&Untracked>,
        settle: &impl Fn(usize),
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
        // A fork finds either no slot or one that is complete.
        match untracked {
            // A count finds the connection here or there.
            Some(untracked) => self.state.change(list, |_| {
                self.begin_slot(index, settle);
                self.state.slot(index).take_untracked(untracked);
            }),
            None => self.begin_slot(index, settle),
        }
        Some(index)
    }

    fn begin_slot(&self, index: usize, settle: &impl Fn(usize)) {
        self.set_in_use(index, true);
        reset(self.state.slot(index), self.pid);
        self.wake.cell(index).clear();
        settle(index);
    }

    /// An untracked connection has ended: counts it with those before it at its place. If it is
    /// different they are counted here (unless handlers have interrupted one another on every
    /// list).
    pub(crate) fn count_untracked(&self, ending: Ending<'_>) {
        let Err(ending) = ending.join() else { return };
        for list in pool::lists() {
            let held = Held::enter(self.tables.free[list].lock.get());
            if held.is_outermost() {
                return self.state.change(list, |totals| {
                    if let Some(batch) = ending.begin_anew() {
                        totals.take_untracked(&batch, TOO_SHORT);
                        ended_untracked(self, &batch, list);
                    }
                });
            }
        }
    }

    /// The first of some slots that were never taken; the others go to a list, which is empty.
    /// What belongs to neighbours lies in the same cache lines, so neighbours serve one CPU.
    /// Under the lock of the list.
    fn begin_stretch(&self, list: usize) -> Option<usize> {
        const STRETCH: u32 = 16;
        const _: () = assert!(SLOTS.is_multiple_of(STRETCH as usize));
        let used = &self.state.header().slots_used;
        let more = |used: u32| (used < SLOTS as u32).then_some(used + STRETCH);
        // Release: a look so far finds free slots there, or what was written later.
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

    /// This process has let go of a slot. Frees it at once if no other process needs what
    /// lies in it, else when its children and the peer have let go, too.
    pub fn release_slot(&self, index: usize) {
        if self.free_slot(index) {
            return;
        }
        let _held = Held::enter(self.lock.get());
        self.set_in_use(index, false);
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
        // A thread that does it already does it for us.
        let Some(_held) = Held::try_enter(self.lock.get()) else { return };
        for _ in 0..SWEEP_LEN.min(lingering) {
            let next = self.tables.lingering.next();
            // Freed, it may be of any connection: it lingers no more before that.
            if let Some(index) = next.filter(|index| self.linger_no_more(*index))
                && !self.free_slot(index)
            {
                self.linger(index);
            }
        }
    }

    /// Frees a slot that has no socket, or whose socket ends, if no process needs it any more.
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
        if slot.holders.load(Ordering::Acquire) > 0 && self.has_living_children() {
            return false;
        }
        if self.is_under_way(index) {
            return false;
        }
        // Children that were killed, or let go at the same time, have not said so.
        self.detach(index);
        match self.group_of_slot(index) {
            Some(group) => clc::peer_use_of(group, index) != PeerUse::Reads,
            None => true,
        }
    }

    fn has_living_children(&self) -> bool {
        // Acquire: pairs with `be_born`, so the look at the unborn is the first.
        self.state.header().unborn.load(Ordering::Acquire) != 0
            || holders::has_others(self.membership.load(Ordering::Relaxed))
    }

    /// Under the lock of the list.
    fn free_slot_to(&self, list: usize, index: usize) {
        if let Some(group) = self.group_of_slot(index) {
            group.forget_connection(index, clc::peer_use_of(group, index));
        }
        self.forget_group_of_slot(index);
        self.learn_from(self.state.slot(index));
        self.state.free_slot(index, list);
        self.set_in_use(index, false);
        let first = &self.tables.free[list].first;
        self.tables.about[index].next_free.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
        first.store(index as u32 + 1, Ordering::Relaxed);
    }

    /// AUTOSMC: a connection has ended. Of two that end at once one may teach nothing.
    fn learn_from(&self, slot: &Slot) {
        let Options { promotion, autosmc, .. } = options::current();
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

    fn set_in_use(&self, index: usize, is_in_use: bool) {
        self.tables.about[index].is_in_use.store(is_in_use, Ordering::Release);
    }

    fn group_of_slot(&self, index: usize) -> Option<&'static Group> {
        self.tables.about[index].group.get()
    }

    fn set_group_of_slot(&self, index: usize, group: &'static Group) {
        self.tables.about[index].group.set(Some(group));
    }

    /// Takes a ring of this size out of the slab of a link group, for the connection of a slot: its
    /// offset and the ring.
    ///
    /// # Errors
    /// As [`Group::take_ring`].
    pub(crate) fn take_ring(
        &self,
        group: &'static Group,
        index: usize,
        size: RmbeSize,
    ) -> Result<(u64, Ring), Reason> {
        let taken = group.take_ring(index, size)?;
        self.set_group_of_slot(index, group);
        Ok(taken)
    }

    /// The agreement about a connection is put off: the peer has not been told of its ring.
    pub(crate) fn give_ring_back(&self, group: &Group, index: usize) {
        group.forget_connection(index, PeerUse::Over);
        self.forget_group_of_slot(index);
    }

    fn forget_group_of_slot(&self, index: usize) {
        self.tables.about[index].group.set(None);
    }
}

pub(crate) fn reset(slot: &Slot, pid: u32) {
    let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
    // The counters behind it were left at zero.
    slot.renew();
    slot.generation.store(generation, Ordering::Relaxed);
    slot.user_pid.store(pid, Ordering::Relaxed);
    slot.low_water.store(1, Ordering::Relaxed);
    slot.holders.store(1, Ordering::Relaxed);
    slot.mode.store(mode::TCP, Ordering::Release);
}

/// The code of what ends untracked.
const TOO_SHORT: u8 = Reason::Program(ProgramDid::TooShort).code();

/// Untracked connections have ended, and are counted in this list.
fn ended_untracked(process: &Process, batch: &Batch, list: usize) {
    let ends = (batch.connections, batch.last);
    let kind = batch.about.ended_on_tcp(Reason::from(ProgramDid::TooShort).code());
    process.state.history().note_all(&kind, list, ends);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::{current, tests::alone};
    use crate::program::life;
    use crate::table::sock::{Phase, Sock};
    use core::sync::atomic::AtomicU64;

    use sidestep_device::state;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// A connection of which `ring_bytes` went through shared memory.
    fn connect(listener: &TcpListener, ring_bytes: u64) -> (TcpStream, &'static Sock) {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sock = life::register(stream.as_raw_fd(), false, false).unwrap();
        sock.set_phase(Phase::Candidate);
        sock.begin(stream.as_raw_fd());
        let counters = &sock.slot().unwrap().counters;
        counters.ring_bytes_sent.store(ring_bytes, Ordering::Relaxed);
        counters.bytes_sent.store(ring_bytes, Ordering::Relaxed);
        (stream, sock)
    }

    fn close(stream: TcpStream) {
        let closing = life::before_close(stream.as_raw_fd());
        drop(stream);
        drop(closing);
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
        // To take and sweep slots counts nothing anew.
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
        life::duplicate(first.as_raw_fd(), second.as_raw_fd());
        let before = ended();
        close(first);
        assert_eq!(ended(), before);
        close(second);
        assert_eq!(ended(), (before.0 + 1, before.1, before.2 + 5));
    }

    #[test]
    fn a_connection_with_a_living_child_is_counted_when_that_is_gone() {
        let _alone = alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (stream, sock) = connect(&listener, 5);
        let process = current().unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let entered = holders::enter(process.state_fd, holders::draw()).is_ok();
            // SAFETY: as above.
            unsafe {
                if entered {
                    libc::pause();
                }
                libc::_exit(1)
            }
        }
        while !process.has_living_children() {
            assert!(!sys::is_gone(child as u32));
            std::thread::yield_now();
        }
        let slot = sock.slot().unwrap();
        slot.holders.fetch_add(1, Ordering::Relaxed);
        let before = ended();
        close(stream);
        assert_eq!(ended(), before, "the child goes on with it");
        slot.counters.bytes_sent.store(8, Ordering::Relaxed);

        // It is killed and says nothing: the next connection finds that out.
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
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
