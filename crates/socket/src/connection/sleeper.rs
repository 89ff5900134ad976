//! The thread that sleeps on a connection, and how it asks to be woken.
//!
//! One thread at a time sleeps on the TCP socket of an end: *the sleeper*. Only it may take bells from the
//! queue, so no thread's bell is taken by another.

use crate::process::owner;
use crate::table::conn::Conn;
use crate::table::sock::Sock;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use sidestep_device::cursor::Cursor;
use sidestep_device::lock::Owner;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;

/// The futex behind a cursor.
pub(crate) fn low_half(cursor: &Cursor) -> &AtomicU32 {
    sys::low_half(cursor.word())
}

/// A wake-up from the nap is asked for when there is something to read, until it is dropped.
pub(crate) struct NapArmed<'a>(&'a Conn);

impl<'a> NapArmed<'a> {
    pub(super) fn ask(conn: &'a Conn) -> Self {
        conn.mine.waiting.nap_arm.ask(next_arm(conn.slot));
        Self(conn)
    }
}

impl Drop for NapArmed<'_> {
    fn drop(&mut self) {
        self.0.mine.waiting.nap_arm.withdraw();
    }
}

/// The role of the sleeper, until it is dropped.
pub(crate) struct Sleeper<'a> {
    slot: &'a Slot,
    /// A call further up this thread's stack has the role, too, and keeps it.
    nested: bool,
}

impl<'a> Sleeper<'a> {
    /// A signal handler may come here in the middle of a sleep of its own thread: it
    /// shares the role. A thread that left its sleep by `siglongjmp` has the role
    /// still, though its sleep is no more: then this call lies no deeper on the stack
    /// than that one, and the role is taken as if it were free.
    pub(super) fn become_it(slot: &'a Slot) -> Option<Self> {
        let here = 0u8;
        let (me, depth) = (owner::me(), (&raw const here) as u64);
        let is_it = slot.sleeper.load(Ordering::Relaxed) == me.word();
        let nested = is_it && depth < slot.sleeper_at.load(Ordering::Relaxed);
        if !is_it && !become_sleeper(slot, me) {
            return None;
        }
        if !nested {
            slot.sleeper_at.store(depth, Ordering::Relaxed);
        }
        Some(Self { slot, nested })
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if !self.nested {
            leave_sleeper(self.slot);
        }
    }
}

/// A bell is asked for when there is something to read, until it is dropped.
pub(crate) struct ReadArmed<'a>(&'a Conn);

impl<'a> ReadArmed<'a> {
    pub(super) fn ask(conn: &'a Conn) -> Self {
        ask_for_readers(conn);
        Self(conn)
    }
}

impl Drop for ReadArmed<'_> {
    fn drop(&mut self) {
        stop_asking_for_readers(self.0.slot, Some(self.0));
    }
}

/// Asks for a bell when there is something to read.
pub(crate) fn ask_for_readers(conn: &Conn) {
    conn.slot.read_waiters.fetch_add(1, Ordering::SeqCst);
    conn.mine.waiting.read_arm.ask(next_arm(conn.slot));
}

/// The same for a connection that may move while the caller sleeps: [`ring_who_waits`] asks
/// then.
pub(crate) fn ask_for_readers_once_moved(sock: &Sock, slot: &Slot) {
    slot.read_waiters.fetch_add(1, Ordering::SeqCst);
    // Pairs with the fence in `switch::read_by_ledger`: either the end that moves sees the
    // count, or we see that it has moved.
    fence(Ordering::SeqCst);
    if let Some(conn) = sock.conn() {
        conn.mine.waiting.read_arm.ask(next_arm(slot));
    }
}

/// The connection has moved: the threads that have been sleeping since before need a bell for
/// the first byte in the ring. The peer is not told before this that it may use the ring.
pub(super) fn ring_who_waits(conn: &Conn) {
    if conn.slot.read_waiters.load(Ordering::SeqCst) != 0 {
        conn.mine.waiting.read_arm.ask(next_arm(conn.slot));
    }
}

/// The end of [`ask_for_readers`], and of [`ask_for_readers_once_moved`] if it has not moved.
pub(crate) fn stop_asking_for_readers(slot: &Slot, conn: Option<&Conn>) {
    // The slot of a connection that came from another process was set to 0: never below.
    let less = |count: u32| count.checked_sub(1);
    let _ = slot.read_waiters.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
    if let Some(conn) = conn {
        withdraw_readers(conn);
    }
}

/// A number for an arm, never 0.
pub(crate) fn next_arm(slot: &Slot) -> u32 {
    const NUMBERS: u32 = 1 << 31;
    (slot.arm_numbers.fetch_add(1, Ordering::Relaxed) % NUMBERS) + 1
}

/// One who waited for something to read does so no more: withdraws the request for
/// a bell if no other waits. With `O_ASYNC` the kernel goes on waiting.
pub(crate) fn withdraw_readers(conn: &Conn) {
    let arm = &conn.mine.waiting.read_arm;
    if conn.slot.flags.load(Ordering::Relaxed) & flag::ASYNC != 0 {
        arm.ask_always();
    } else if conn.slot.read_waiters.load(Ordering::SeqCst) != 0 {
        arm.ask(next_arm(conn.slot));
    } else {
        arm.withdraw();
    }
}

fn become_sleeper(slot: &Slot, me: Owner) -> bool {
    let place = &slot.sleeper;
    let replace = |old| {
        // AcqRel: what the last sleeper has done is seen, and what we do comes after.
        place.compare_exchange(old, me.word(), Ordering::AcqRel, Ordering::Relaxed)
    };
    replace(0).is_ok_and(|_| true) || {
        let other = place.load(Ordering::Relaxed);
        let has_died = |owner| !owner::is_alive(core::ptr::from_ref(place).cast(), owner);
        Owner::from_word(other).is_some_and(has_died) && replace(other).is_ok()
    }
}

fn leave_sleeper(slot: &Slot) {
    slot.sleeper.store(0, Ordering::Release);
    slot.turn.fetch_add(1, Ordering::SeqCst);
    if slot.queued.load(Ordering::SeqCst) != 0 {
        sys::futex_wake(&slot.turn, 1);
    }
}

/// A guard: while it lives no thread takes bytes from the TCP connection without asking what they
/// are, until it is dropped.
pub(crate) struct Alone<'a>(&'a Slot);

impl<'a> Alone<'a> {
    /// `None`: a thread sleeps there.
    pub(super) fn on_tcp(slot: &'a Slot) -> Option<Self> {
        // A guard that is made before the answer is known would end the sleeper's role when it is dropped.
        become_sleeper(slot, owner::me()).then(|| Self(slot))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        leave_sleeper(self.0);
    }
}

/// One more in a counter, until it is dropped.
pub(crate) struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    pub(crate) fn new(counter: &'a AtomicU32) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::tests::alone;
    use sidestep_device::map;
    use std::thread;

    #[test]
    fn one_thread_at_a_time_is_the_sleeper() {
        let _alone = alone();
        let slot: &'static Slot = map::zeroed().unwrap();
        let is_free = || thread::spawn(|| Sleeper::become_it(slot).is_some()).join().unwrap();
        let sleeper = Sleeper::become_it(slot).unwrap();
        let turn = slot.turn.load(Ordering::Relaxed);
        assert!(!is_free() && Alone::on_tcp(slot).is_none());
        assert!(!is_free(), "the role is the sleeper's still");
        assert_eq!(slot.turn.load(Ordering::Relaxed), turn);
        drop(sleeper);
        assert_eq!(
            slot.turn.load(Ordering::Relaxed),
            turn + 1,
            "the next one in the queue is told"
        );
        assert!(is_free());
        let alone_on_tcp = Alone::on_tcp(slot).unwrap();
        assert!(!is_free());
        drop(alone_on_tcp);
        assert!(is_free());
    }

    /// As a signal handler does that interrupts a sleep: its frame lies deeper on the stack.
    #[inline(never)]
    fn deeper(slot: &Slot) {
        let shared = Sleeper::become_it(slot).unwrap();
        assert!(shared.nested);
        drop(shared);
        assert_ne!(slot.sleeper.load(Ordering::Relaxed), 0, "the interrupted sleep has the role");
    }

    #[test]
    fn a_handler_shares_the_role_of_the_sleep_that_it_interrupts() {
        let _alone = alone();
        let slot: &'static Slot = map::zeroed().unwrap();
        let sleeper = Sleeper::become_it(slot).unwrap();
        deeper(slot);
        drop(sleeper);
        assert_eq!(slot.sleeper.load(Ordering::Relaxed), 0);
        // A sleep that was left by `siglongjmp` lay deeper than this call.
        core::mem::forget(Sleeper::become_it(slot).unwrap());
        slot.sleeper_at.store(0, Ordering::Relaxed);
        let again = Sleeper::become_it(slot).unwrap();
        assert!(!again.nested);
        drop(again);
        assert_eq!(slot.sleeper.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_arm_has_the_number_zero() {
        let slot: &'static Slot = map::zeroed().unwrap();
        for begin in [0, 1 << 31, u32::MAX - 1, (1 << 31) - 2] {
            slot.arm_numbers.store(begin, Ordering::Relaxed);
            let numbers = [(); 4].map(|()| next_arm(slot));
            assert!(numbers.iter().all(|number| (1..=1 << 31).contains(number)), "{numbers:?}");
            assert!(numbers.windows(2).all(|two| two[0] != two[1]), "{numbers:?}");
        }
    }

    #[test]
    fn waiters_that_were_forgotten_are_not_taken_off() {
        let slot: &'static Slot = map::zeroed().unwrap();
        stop_asking_for_readers(slot, None);
        assert_eq!(slot.read_waiters.load(Ordering::Relaxed), 0);
        let counter = AtomicU32::new(3);
        let counted = Counted::new(&counter);
        assert_eq!(counter.load(Ordering::Relaxed), 4);
        drop(counted);
        assert_eq!(counter.load(Ordering::Relaxed), 3);
    }
}
