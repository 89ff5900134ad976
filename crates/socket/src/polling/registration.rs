//! One descriptor in one set: what the program is told of it, and what the kernel has of it.

use crate::Errno;
use crate::connection::{readiness, wait};
use crate::polling::set::{
    self, DEAD, DISABLED, EPOLLET, EPOLLONESHOT, FRESH, OF_SOCK, PARKED, QUEUED, REGISTRATIONS,
    Registration, Set,
};
use crate::process::owner::Held;
use crate::table::descriptors::Use;
use crate::table::end::End;
use crate::table::sock::Sock;
use core::sync::atomic::Ordering;
use sidestep_device::reference::AtomicRef;
use sidestep_device::sys;
use sidestep_proto::readiness::mask;

/// The end of input, or of the connection: an edge even for those who asked for
/// `EPOLLIN` alone and were told of bytes before.
pub(super) const END: u32 = mask::RDHUP | mask::HUP | mask::ERR;

pub(super) fn kernel_control(
    epfd: i32,
    operation: i32,
    fd: i32,
    events: u32,
    data: u64,
) -> Result<usize, Errno> {
    sys::epoll_ctl(epfd, operation, fd, events, data).map_err(|errno| errno.0)
}

/// What a registration is told of: what it asks for, errors and the end of both.
pub(super) fn interest_of(events: u32) -> u32 {
    (events & 0xffff) | mask::ERR | mask::HUP
}

pub(super) fn has_registrations(sock: &Sock) -> bool {
    OF_SOCK.get(sock.index()).is_some_and(|first| !first.is_none())
}

pub(super) fn of_sock(sock: &Sock) -> impl Iterator<Item = &'static Registration> {
    let first = OF_SOCK.get(sock.index()).and_then(AtomicRef::get);
    core::iter::successors(first, |at| at.next_of_sock.get())
}

impl Registration {
    pub(super) fn make(
        set: &'static Set,
        sock: &'static Sock,
        fd: i32,
        wish: libc::epoll_event,
    ) -> Option<&'static Self> {
        let of_sock = OF_SOCK.writable(sock.index())?;
        let this = REGISTRATIONS.take()?;
        this.fd.store(fd, Ordering::Relaxed);
        this.open_fd.store(fd, Ordering::Relaxed);
        this.events.store(wish.events, Ordering::Relaxed);
        this.data.store(wish.u64, Ordering::Relaxed);
        this.state.store(FRESH, Ordering::Relaxed);
        this.sock.set(Some(sock));
        this.set.set(Some(set));
        this.next_of_sock.set(of_sock.get());
        of_sock.set(Some(this));
        let _held = Held::enter(set.lock.get());
        this.next_of_set.set(set.registrations.get());
        set.registrations.set(Some(this));
        Some(this)
    }

    pub(super) fn set(&self) -> Option<&'static Set> {
        self.set.get()
    }

    /// A dissolved registration has none.
    pub(super) fn sock(&self) -> Option<&'static Sock> {
        self.sock.get()
    }

    pub(super) fn is_tagged(&self) -> bool {
        self.tagged.load(Ordering::Relaxed)
    }

    /// The kernel's registration carries our tag, and reports to the program.
    pub(super) fn is_marked_only(&self) -> bool {
        self.marked.load(Ordering::Acquire) && !self.tagged.load(Ordering::Acquire)
    }

    pub(super) fn open_fd(&self) -> i32 {
        self.open_fd.load(Ordering::Relaxed)
    }

    /// By which its socket is reached.
    pub(super) fn end<'a>(&self, sock: &'a Sock) -> Option<End<'a>> {
        End::of(sock, self.open_fd())
    }

    /// Its socket, in use: without the set's lock another thread may dissolve both.
    pub(super) fn sock_in_use(&self) -> Option<Use> {
        let sock = self.sock().and_then(Use::of)?;
        // It may have been another's room when it was entered.
        self.sock().is_some_and(|now| core::ptr::eq(now, sock.sock())).then_some(sock)
    }

    /// The program adds or modifies it.
    pub(super) fn wish_for(&'static self, set: &'static Set, wish: libc::epoll_event) {
        self.forget_report(set);
        self.events.store(wish.events, Ordering::Relaxed);
        self.data.store(wish.u64, Ordering::Relaxed);
        self.state.fetch_and(!DISABLED, Ordering::Relaxed);
        self.state.fetch_or(FRESH, Ordering::Relaxed);
        if self.is_tagged() {
            set.queue_if_worth_it(self);
        }
    }

    /// What the kernel has reported of it to a look from outside is no news to a program that modifies or
    /// deletes it.
    pub(super) fn forget_report(&self, set: &Set) {
        set.forget_report(self.data.load(Ordering::Relaxed));
    }

    /// Whether a look at it would find something to report, or has something to do.
    fn is_worth_a_look(&self, set: &Set) -> bool {
        let events = self.events.load(Ordering::Relaxed);
        // The look asks the peer for room, or the sleep for a bell on TCP.
        let asks = events & mask::OUT != 0 || self.unreached.load(Ordering::Relaxed);
        let Some(sock) = self.sock().filter(|_| !asks && set.is_at_home()) else { return true };
        let Some(end) = self.end(sock) else { return true };
        let interest = interest_of(events);
        readiness::mask_of(&end, interest) & interest != 0
    }

    /// `epoll_ctl` with what the program wishes, and our tag in the place of its data.
    pub(super) fn control_marked(
        &self,
        set: &Set,
        epfd: i32,
        operation: i32,
    ) -> Result<usize, Errno> {
        // Before the kernel has the tag, which a thread in the set may be given at once.
        set.tagged.store(true, Ordering::SeqCst);
        self.marked.store(true, Ordering::SeqCst);
        let (fd, events) = (self.fd.load(Ordering::Relaxed), self.events.load(Ordering::Relaxed));
        kernel_control(epfd, operation, fd, events, core::ptr::from_ref(self) as u64)
    }

    /// The program modifies it, which is or was one-shot, while the socket is on TCP. It is armed here
    /// before it is there, or what the kernel reports at once would be taken for a second report.
    pub(super) fn modify_marked(
        &self,
        set: &Set,
        epfd: i32,
        wish: libc::epoll_event,
    ) -> Result<usize, Errno> {
        self.forget_report(set);
        let before = (self.events.load(Ordering::Relaxed), self.data.load(Ordering::Relaxed));
        let put = |(events, data): (u32, u64)| {
            self.events.store(events, Ordering::Relaxed);
            self.data.store(data, Ordering::Relaxed);
        };
        put((wish.events, wish.u64));
        // AcqRel: who sees it armed sees with what.
        let state = self.state.fetch_and(!DISABLED, Ordering::AcqRel);
        self.state.fetch_or(FRESH, Ordering::Relaxed);
        self.control_marked(set, epfd, libc::EPOLL_CTL_MOD).inspect_err(|_| {
            put(before);
            self.state.fetch_or(state & DISABLED, Ordering::Relaxed);
        })
    }

    /// Whether a report is the first since it was armed, if it is one-shot.
    fn is_first_report(&self, events: u32) -> bool {
        events & EPOLLONESHOT == 0
            || self.state.fetch_or(DISABLED, Ordering::AcqRel) & DISABLED == 0
    }

    /// What the kernel has reported of a socket on TCP, for the program. `None`: that is none of it,
    /// or it was told before.
    pub(super) fn report_of_kernel(&self, set: &Set, events: u32) -> Option<libc::epoll_event> {
        let is_here = self.set().is_some_and(|of| core::ptr::eq(of, set));
        let is_told = is_here && self.is_first_report(self.events.load(Ordering::Relaxed));
        let u64 = self.data.load(Ordering::Relaxed);
        is_told.then_some(libc::epoll_event { events, u64 })
    }

    /// The connection has moved: tags the kernel's registration and subscribes the
    /// set's channel. Under the structure lock.
    pub(super) fn take_over(&'static self, set: &'static Set, sock: &'static Sock) {
        if self.is_tagged() {
            return;
        }
        self.tag(set);
        let index = sock.slot_index();
        {
            let _held = Held::enter(set.lock.get());
            self.next_of_slot.set(set.by_slot[index].get());
            set.by_slot[index].set(Some(self));
        }
        if let Some(conn) = sock.conn() {
            let reached = set.subscribe(sock, conn);
            self.unreached.store(!reached, Ordering::Relaxed);
            if !reached {
                set.take_bell();
                set.arms.store(true, Ordering::Relaxed);
            }
        }
        set.queue_and_wake(self);
    }

    /// From now on the kernel reports to us what happens to the socket. Under the structure lock.
    pub(super) fn tag(&self, set: &Set) {
        let tag = core::ptr::from_ref(self) as u64;
        let fd = self.fd.load(Ordering::Relaxed);
        // Before the tag: a thread that sleeps in the kernel's set may wake by it at once.
        set.tagged.store(true, Ordering::SeqCst);
        // OUT matters only until we have switched; edge-triggered it costs nothing.
        let events = mask::IN | mask::OUT | mask::RDHUP | mask::PRI | EPOLLET;
        if fd != self.open_fd() {
            // The number was closed, or is another socket's: what the kernel has under it
            // no thread can change any more.
            let _ = set.control(libc::EPOLL_CTL_ADD, self.open_fd(), events, tag);
        } else if set.control(libc::EPOLL_CTL_MOD, fd, events, tag).is_err() {
            // An exclusive registration cannot be modified.
            let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            let _ = set.control(libc::EPOLL_CTL_ADD, fd, events, tag);
        }
        self.tagged.store(true, Ordering::Release);
    }

    /// What the program wants to be told.
    pub(super) fn wish(&self) -> libc::epoll_event {
        libc::epoll_event {
            events: self.events.load(Ordering::Relaxed),
            u64: self.data.load(Ordering::Relaxed),
        }
    }

    /// Gives the kernel's registration back to the program.
    pub(super) fn untag(&self, set: &Set, fd: i32, wish: libc::epoll_event) {
        let reported = self.state.load(Ordering::Relaxed) & DISABLED != 0;
        let events = if reported { EPOLLONESHOT } else { wish.events };
        if set.control(libc::EPOLL_CTL_MOD, fd, events, wish.u64).is_err() {
            // An exclusive registration cannot be modified into one.
            let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            let _ = set.control(libc::EPOLL_CTL_ADD, fd, events, wish.u64);
        }
    }

    /// Leaves set and socket. Under the structure lock.
    pub(super) fn dissolve(&'static self) {
        let (Some(set), Some(sock)) = (self.set(), self.sock()) else {
            return;
        };
        if let Some(of_sock) = OF_SOCK.get(sock.index()) {
            set::unlink(of_sock, self, |r| &r.next_of_sock);
        }
        let _held = Held::enter(set.lock.get());
        set.forget_carried(self.data.load(Ordering::Relaxed));
        set::unlink(&set.registrations, self, |r| &r.next_of_set);
        // One that is only connecting has no slot.
        if let Some(of_slot) = set.by_slot.get(sock.slot_index()).filter(|_| self.is_tagged()) {
            set::unlink(of_slot, self, |r| &r.next_of_slot);
        }
        self.set.set(None);
        self.sock.set(None);
        let state = self.state.fetch_or(DEAD, Ordering::AcqRel);
        if state & QUEUED == 0 {
            self.free();
        }
    }

    pub(super) fn free(&'static self) {
        REGISTRATIONS.give(self);
    }

    /// What to report now, 0 = nothing. `true`: keep it on the ready list.
    pub(super) fn evaluate(&self) -> (u32, bool) {
        let Some(sock) = self.sock() else {
            return (0, false);
        };
        let Some(end) = self.end(sock) else {
            return (0, false);
        };
        if self.state.load(Ordering::Relaxed) & (DISABLED | PARKED) != 0 {
            return (0, false);
        }
        let events = self.events.load(Ordering::Relaxed);
        let interest = interest_of(events);
        let mut full = readiness::mask_of(&end, interest);
        if events & mask::OUT != 0 && full & mask::OUT == 0 {
            wait::ask_for_room(&end);
            wait::prod_peer(&end);
            full = readiness::mask_of(&end, interest);
        }
        let mask = full & interest;
        if events & EPOLLET != 0 && !self.is_news(&end, mask | full & END) {
            return (0, false);
        }
        if mask == 0 {
            return (0, false);
        }
        if !self.is_first_report(events) {
            return (0, false);
        }
        (mask, events & (EPOLLET | EPOLLONESHOT) == 0)
    }

    /// Whether it is level-triggered, alive, and has nothing to report any more.
    pub(super) fn is_spent(&self) -> bool {
        self.state.load(Ordering::Acquire) & DEAD == 0
            && self.events.load(Ordering::Relaxed) & (EPOLLET | EPOLLONESHOT) == 0
            && self.evaluate().0 == 0
    }

    /// Edge-triggered: has anything arrived or become possible since the last time?
    fn is_news(&self, end: &End<'_>, now: u32) -> bool {
        let arrived = readiness::arrived(end);
        let mut seen = self.seen_mask.load(Ordering::Relaxed);
        if now & mask::OUT != 0 && end.sock.out_blocked.swap(false, Ordering::Relaxed) {
            seen &= !mask::OUT;
        }
        if now & END & !seen != 0 {
            // What was found before has nothing to do with this end.
            end.sock.forget_nothing();
        } else if seen & END != 0 && end.sock.forget_nothing() {
            seen &= !END;
        }
        let fresh = self.state.fetch_and(!FRESH, Ordering::Relaxed) & FRESH != 0;
        let more = arrived != self.seen_arrived.swap(arrived, Ordering::Relaxed);
        self.seen_mask.store(now, Ordering::Relaxed);
        fresh || more || now & !seen != 0
    }
}

impl Set {
    /// The program has changed what a registration is told of. If nothing of it is there, it need not be
    /// looked at, and a thread that sleeps sleeps on: who reports later news does so under the lock, and
    /// sees the change; news from before are seen here.
    fn queue_if_worth_it(&'static self, registration: &'static Registration) {
        let is_worth_it = {
            let _held = Held::enter(self.lock.get());
            let is_worth_it = registration.is_worth_a_look(self);
            if is_worth_it {
                self.push(registration);
            }
            is_worth_it
        };
        if is_worth_it {
            self.wake();
        }
    }
}

/// The registration behind a tag, if the word is one.
pub(super) fn registration_of(data: u64) -> Option<&'static Registration> {
    REGISTRATIONS.at(usize::try_from(data).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polling::set::SETS;

    const WISH: u64 = 7;

    /// In a set of its own, of a socket on TCP.
    fn registration(events: u32) -> (&'static Registration, &'static Set) {
        let (registration, set) = (REGISTRATIONS.take().unwrap(), SETS.take().unwrap());
        registration.set.set(Some(set));
        registration.data.store(WISH, Ordering::Relaxed);
        registration.events.store(events, Ordering::Relaxed);
        (registration, set)
    }

    fn told(registration: &Registration, set: &Set) -> Option<(u32, u64)> {
        registration.report_of_kernel(set, mask::IN).map(|event| (event.events, event.u64))
    }

    #[test]
    fn errors_and_the_end_of_both_are_told_unasked() {
        assert_eq!(interest_of(mask::IN), mask::IN | mask::ERR | mask::HUP);
        let flags = EPOLLET | EPOLLONESHOT | set::EPOLLEXCLUSIVE;
        assert_eq!(interest_of(flags), mask::ERR | mask::HUP, "how to report is no interest");
    }

    #[test]
    fn what_the_kernel_reports_comes_with_the_data_of_the_program() {
        let (registration, set) = registration(mask::IN);
        assert_eq!(told(registration, set), Some((mask::IN, WISH)));
        assert_eq!(told(registration, set), Some((mask::IN, WISH)), "as often as the kernel does");
        let other = SETS.take().unwrap();
        assert_eq!(told(registration, other), None, "a report that came late");
    }

    #[test]
    fn a_one_shot_registration_is_reported_once_until_it_is_armed_again() {
        let (registration, set) = registration(mask::IN | EPOLLONESHOT);
        assert_eq!(told(registration, set), Some((mask::IN, WISH)));
        assert_eq!(told(registration, set), None);
        registration.wish_for(set, libc::epoll_event { events: mask::IN | EPOLLONESHOT, u64: 8 });
        assert_eq!(told(registration, set), Some((mask::IN, 8)));
        assert_eq!(told(registration, set), None);
    }

    /// The kernel has no such set: the program's MOD fails, and all is as it was.
    #[test]
    fn a_modification_that_the_kernel_refuses_changes_nothing() {
        let (registration, set) = registration(mask::IN | EPOLLONESHOT);
        assert!(told(registration, set).is_some());
        let wish = libc::epoll_event { events: mask::OUT | EPOLLONESHOT, u64: 8 };
        assert_eq!(registration.modify_marked(set, -1, wish), Err(libc::EBADF));
        assert_eq!(registration.events.load(Ordering::Relaxed), mask::IN | EPOLLONESHOT);
        assert_eq!(registration.data.load(Ordering::Relaxed), WISH);
        assert_eq!(told(registration, set), None, "it is still spent");
    }

    #[test]
    fn without_a_socket_there_is_nothing_to_report() {
        let (registration, _) = registration(mask::IN);
        assert_eq!(registration.evaluate(), (0, false));
        assert!(registration.is_spent());
        let (edge, _) = self::registration(mask::IN | EPOLLET);
        assert!(!edge.is_spent(), "an edge is not looked at before it is due");
    }

    #[test]
    fn a_tag_is_the_address_of_a_registration_and_no_other_word_is() {
        let (registration, _) = registration(mask::IN);
        let tag = core::ptr::from_ref(registration) as u64;
        assert!(registration_of(tag).is_some_and(|it| core::ptr::eq(it, registration)));
        for word in [0, 1, tag + 1, tag - 1, u64::MAX] {
            assert!(registration_of(word).is_none(), "{word:#x}");
        }
    }
}
