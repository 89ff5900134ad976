//! What a set has to report, and what is done before a thread sleeps in it.

use crate::connection::{ends, readiness, sleeper, wait};
use crate::polling::nesting;
use crate::polling::registration::{self, END};
use crate::polling::set::{
    self, CARRIED_MAX, DEAD, DISABLED, EPOLLET, EPOLLONESHOT, FRESH, PARKED, Registration, SETS,
    STRUCTURE, Set,
};
use crate::polling::watch::Watch;
use crate::process::owner::Held;
use crate::table::descriptors;
use crate::table::sock::Sock;
use core::sync::atomic::Ordering;
use core::time::Duration;
use descriptors::Use;
use sidestep_device::channel::Channel;
use sidestep_device::sys::{self, SignalMask};
use sidestep_proto::readiness::mask;

impl Set {
    /// No descriptor refers to it, and no call waits in it.
    pub(super) fn dissolve(&'static self) {
        self.handle.naming.let_go(|_| {});
        let _structure = Held::enter(STRUCTURE.get());
        descriptors::for_each_untracked(|fd| {
            Watch::of(fd).filter(|watch| watch.is_of(Some(self))).inspect(|watch| watch.forget());
        });
        for registration in set::walk(&self.registrations, |r| &r.next_of_set) {
            if let Some(sock) = registration.sock() {
                self.unsubscribe(sock);
            }
            registration.dissolve();
        }
        self.drop_dead();
        self.leave_nestings();
        if let (Some(home), Some(channel), true) =
            (self.home(), self.channel_number(), self.is_at_home())
        {
            home.give_channel(channel);
        }
        self.give_bell_back();
        SETS.give(self);
    }

    fn drop_dead(&'static self) {
        let _held = Held::enter(self.lock.get());
        while let Some(registration) = self.pop() {
            if registration.state.load(Ordering::Acquire) & DEAD != 0 {
                registration.free();
            }
        }
    }

    /// Whether `epoll_wait` on the set would report something now: for `poll` on the
    /// epoll descriptor, and for a set around it. What the kernel reports meanwhile
    /// is kept for a thread that waits in the set.
    pub(super) fn is_ready(&'static self) -> bool {
        self.is_ready_within(nesting::DEPTH_MAX)
    }

    /// At most so many sets deep; beyond, the kernel is believed.
    fn is_ready_within(&'static self, depth: u32) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return true };
        if !self.is_tagged() {
            // What the kernel has taken off its own list would be given out by no call.
            let asked = self.file().poll_now(libc::POLLIN);
            return asked.is_ok_and(|seen| seen != 0);
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; CARRIED_MAX];
        let room = {
            let _held = Held::enter(self.lock.get());
            CARRIED_MAX.saturating_sub(self.carried.len())
        };
        let mut kept = 0;
        if room > 0 {
            let (events, now) = (&mut events[..room], Some(Duration::ZERO));
            let ask = |epfd| sys::epoll_wait(epfd, events, now, SignalMask::NONE);
            let asked = self.file().call(ask);
            kept = self.translate_within(&mut events[..asked.unwrap_or(0)], depth);
            self.carry(&events[..kept]);
        }
        // What the kernel has told of a set in this one it does not tell again when that set was looked into.
        let is_inner_ready = || self.nested_by_level().any(|inner| inner.is_ready_within(depth));
        kept > 0 || self.carries() || self.has_something() || is_inner_ready()
    }

    fn carries(&self) -> bool {
        let _held = Held::enter(self.lock.get());
        self.carried.len() > 0
    }

    pub(super) fn carry(&self, events: &[libc::epoll_event]) {
        let _held = Held::enter(self.lock.get());
        for event in events {
            let known = self.carried.has(event.u64);
            let comes_again = self.is_level_triggered(event.u64);
            if !known && !comes_again {
                self.carried.add(*event);
            }
        }
    }

    /// Whether `data` is that of a socket on TCP whose level-triggered event the kernel
    /// reports again as long as it holds. (What is not a TCP socket is not known here,
    /// and carried: better twice than never.) Under the lock.
    fn is_level_triggered(&self, data: u64) -> bool {
        self.is_nested_by_level(data)
            || set::walk(&self.registrations, |r| &r.next_of_set).any(|registration| {
                registration.data.load(Ordering::Relaxed) == data
                    && registration.events.load(Ordering::Relaxed) & (EPOLLET | EPOLLONESHOT) == 0
            })
    }

    /// A thread is about to sleep on the epoll descriptor itself (`poll`, a set
    /// around it): from now on news ring its eventfd, which is in the kernel's set
    /// and makes the descriptor readable.
    pub(super) fn observe(&'static self) {
        self.observe_within(nesting::DEPTH_MAX);
    }

    fn observe_within(&'static self, depth: u32) {
        let Some(depth) = depth.checked_sub(1) else { return };
        if !self.tagged.load(Ordering::Acquire) && !self.has_nested() {
            return;
        }
        self.observed.store(true, Ordering::Relaxed);
        if self.arms.load(Ordering::Relaxed) {
            self.arm();
        }
        let mut news = false;
        if let Some(channel) = self.channel() {
            {
                // A mark of before stays on the list for a thread that waits in the set. What it was for may have been
                // read without a wait there, and is no reason to be rung again and again.
                let _held = Held::enter(self.lock.get());
                self.take_news();
            }
            channel.fall_asleep();
            news = channel.is_marked();
        }
        if news || self.carries() || self.has_something() {
            self.take_bell();
            self.ring();
        }
        self.nested().for_each(|inner| inner.observe_within(depth));
    }

    /// The same for the sets in this one.
    pub(super) fn observe_nested(&self) {
        self.nested().for_each(|inner| inner.observe_within(nesting::DEPTH_MAX - 1));
    }

    /// How long a sleep may last at most. With several peers one of them may have
    /// taken away, in the memory they share, what another has left there; and a peer that
    /// has died may have to be prodded to say so.
    pub(super) fn nap(&self) -> Option<Duration> {
        let partners = self.home().map_or(0, |home| home.partners.load(Ordering::Relaxed));
        (partners > 1 || wait::prods_peers()).then_some(wait::QUEUE_NAP)
    }

    /// Now and then looks at all members, whether or not a peer has said that they
    /// have news: see [`Self::nap`].
    pub(super) fn look_around(&'static self) {
        let Some(nap) = self.nap() else { return };
        let now = sys::now_ns();
        let past = now.saturating_sub(self.last_round_ns.load(Ordering::Relaxed));
        if Duration::from_nanos(past) < nap {
            return;
        }
        self.last_round_ns.store(now, Ordering::Relaxed);
        let _held = Held::enter(self.lock.get());
        for registration in set::walk(&self.registrations, |r| &r.next_of_set) {
            if registration.is_tagged() {
                self.push(registration);
            }
        }
    }

    /// Puts what peers have marked on the ready list, in the order in which they have.
    /// Under the lock.
    pub(super) fn take_news(&self) {
        let Some(channel) = self.channel() else { return };
        channel.collect(|slot| {
            for registration in set::walk(&self.by_slot[slot], |r| &r.next_of_slot) {
                self.push(registration);
            }
        });
    }

    /// Takes news from the channel, evaluates what is on the ready list and writes
    /// what is to be reported.
    pub(super) fn collect(&'static self, events: &mut [libc::epoll_event]) -> usize {
        let _held = Held::enter(self.lock.get());
        self.take_news();
        if self.arms.load(Ordering::Relaxed) || !self.is_at_home() {
            self.push_unreached();
        }
        let mut found = self.uncarry(events);
        for _ in 0..self.ready_len.load(Ordering::Relaxed) {
            if found == events.len() {
                break;
            }
            let Some(registration) = self.pop() else {
                break;
            };
            if registration.state.load(Ordering::Acquire) & DEAD != 0 {
                registration.free();
                continue;
            }
            let (mask, stays) = registration.evaluate();
            if mask != 0 {
                if let Some(slot) = registration.sock().and_then(Sock::slot) {
                    self.owed.charge(slot);
                }
                let data = registration.data.load(Ordering::Relaxed);
                events[found] = libc::epoll_event { events: mask, u64: data };
                found += 1;
            }
            if stays {
                self.push(registration);
            }
        }
        found
    }

    fn push_unreached(&self) {
        let inherited = !self.is_at_home();
        for registration in set::walk(&self.registrations, |r| &r.next_of_set) {
            let unreached = inherited || registration.unreached.load(Ordering::Relaxed);
            if registration.is_tagged() && unreached {
                self.push(registration);
            }
        }
    }

    /// Whether a report could be made now, without making it: for `poll` on the
    /// epoll descriptor and for sets in sets.
    pub(super) fn has_something(&'static self) -> bool {
        let _held = Held::enter(self.lock.get());
        set::walk(&self.registrations, |r| &r.next_of_set).any(|registration| {
            let (Some(sock), true) = (registration.sock(), registration.is_tagged()) else {
                return false;
            };
            let Some(end) = registration.end(sock) else {
                return false;
            };
            if registration.state.load(Ordering::Relaxed) & (DISABLED | PARKED) != 0 {
                return false;
            }
            let events = registration.events.load(Ordering::Relaxed);
            let interest = registration::interest_of(events);
            let full = readiness::mask_of(&end, interest);
            let now = full & interest;
            let edge = events & EPOLLET != 0;
            let arrived = readiness::arrived(&end);
            let mut seen = registration.seen_mask.load(Ordering::Relaxed);
            if sock.has_found_nothing() {
                seen &= !END;
            }
            now != 0
                && (!edge
                    || registration.state.load(Ordering::Relaxed) & FRESH != 0
                    || arrived != registration.seen_arrived.load(Ordering::Relaxed)
                    || (now | full & END) & !seen != 0)
        })
    }

    /// Asks for TCP bells for the members out of the channel's reach.
    pub(super) fn arm(&'static self) {
        let inherited = !self.is_at_home();
        for (sock, registration) in self.members() {
            let Some(conn) = sock.conn() else { continue };
            if inherited || registration.unreached.load(Ordering::Relaxed) {
                conn.mine.waiting.read_arm.ask(sleeper::next_arm(conn.slot));
                if registration.events.load(Ordering::Relaxed) & mask::OUT != 0 {
                    conn.mine.waiting.write_arm.ask(sleeper::next_arm(conn.slot));
                }
            }
        }
    }

    /// Withdraws what [`Self::arm`] has asked for, and clears stale bells.
    pub(super) fn disarm(&'static self) {
        let inherited = !self.is_at_home();
        for (sock, registration) in self.members() {
            let Some(end) = registration.end(&sock) else { continue };
            if inherited || registration.unreached.load(Ordering::Relaxed) {
                sleeper::withdraw_readers(&end);
                end.mine.waiting.write_arm.withdraw();
                wait::drain_bells(&end);
            }
        }
    }

    /// Connections in shared memory, in use, and how they are in this set.
    pub(super) fn members(&self) -> impl Iterator<Item = (Use, &'static Registration)> {
        let all = set::walk(&self.registrations, |r| &r.next_of_set);
        all.filter(|registration| registration.is_tagged()).filter_map(|registration| {
            let sock = registration.sock_in_use()?;
            sock.conn().is_some().then_some((sock, registration))
        })
    }

    /// Sorts what the kernel reported: ours goes on the ready list, the rest stays
    /// in `events`; returns how many.
    pub(super) fn translate(&'static self, events: &mut [libc::epoll_event]) -> usize {
        self.translate_within(events, nesting::DEPTH_MAX - 1)
    }

    /// Asks sets in this one that are at most so deep.
    fn translate_within(&'static self, events: &mut [libc::epoll_event], depth: u32) -> usize {
        let mut kept = 0;
        for i in 0..events.len() {
            let event = events[i];
            if event.u64 == core::ptr::from_ref(self) as u64 {
                continue;
            }
            match registration::registration_of(event.u64) {
                Some(registration) if registration.is_marked_only() => {
                    if let Some(event) = registration.report_of_kernel(self, event.events) {
                        events[kept] = event;
                        kept += 1;
                    }
                }
                Some(registration) => self.on_kernel_event(registration, event.events),
                None if self.is_quiet(event.u64, depth) => {}
                None => {
                    events[kept] = event;
                    kept += 1;
                }
            }
        }
        kept
    }

    /// Whether it is a set in this one that has nothing to report any more.
    fn is_quiet(&self, data: u64, depth: u32) -> bool {
        self.nested_as(data).is_some_and(|inner| !inner.is_ready_within(depth))
    }

    fn on_kernel_event(&'static self, registration: &'static Registration, events: u32) {
        let ours = registration.set().is_some_and(|set| core::ptr::eq(set, self));
        let Some(sock) = registration.sock_in_use().filter(|_| ours) else {
            return;
        };
        if sock.sock().settle_offer(registration.open_fd()) {
            // The kernel has more to say of what becomes of it.
            return;
        }
        if let Some(end) = registration.end(&sock) {
            if events & (mask::RDHUP | mask::HUP | mask::ERR) == 0 {
                wait::look_at_bells(&end);
            } else {
                ends::ask_kernel(&end);
            }
        }
        let _held = Held::enter(self.lock.get());
        self.push(registration);
    }
}

impl Set {
    /// Something may be there without asking the kernel.
    pub(super) fn may_report(&self) -> bool {
        self.ready_len.load(Ordering::Relaxed) != 0
            || self.channel().is_some_and(Channel::is_marked)
    }

    /// The same, looked at more closely where that is cheap: a level-triggered
    /// registration stays on the list after its report, because only the next look
    /// shows whether the program has taken what was there. It usually has, and then the
    /// sleep asks the kernel soon enough.
    pub(super) fn has_reports(&'static self) -> bool {
        const FEW: usize = 8;
        let len = self.ready_len.load(Ordering::Relaxed);
        if len > FEW || self.channel().is_some_and(Channel::is_marked) {
            return true;
        }
        let _held = Held::enter(self.lock.get());
        for registration in (0..len).map_while(|_| self.pop()) {
            if !registration.is_spent() {
                self.push(registration);
            }
        }
        self.ready_len.load(Ordering::Relaxed) != 0
    }

    /// A thread leaves with events: if others sleep in this set, they are rung for
    /// what is left, and peers ring them from now on.
    pub(super) fn pass_baton(&self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Some(channel) = self.channel() else {
            return;
        };
        channel.fall_asleep();
        if channel.is_marked() || self.ready_len.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }
}
