//! How much memory the rings of a process, and of all processes of a user, may take.
//!
//! The process counts its own. What all of a user have together is not counted: a number in
//! shared memory would be wrong as soon as one of them is killed. The user's limit is cut
//! into *shares* instead, and the holder of a share has bound an abstract name that stands for
//! it. The kernel lets each name be bound once, and frees it with its last holder, however
//! that ends. (z/OS: `FIXEDMEMORY`.)
//!
//! ```text
//!   user_memory_limit = 1 GiB      256 names, 4 MiB each
//!     sidestep/1/memory/1000/4/0      bound by a server with rings of 7 MiB
//!     sidestep/1/memory/1000/4/1      bound by the same
//!     sidestep/1/memory/1000/4/2      bound by a client
//!     …                               free
//! ```

use crate::process::options;
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use sidestep_device::sys::{self, UnixName};
use sidestep_device::{cgroup, overcommit};
use sidestep_wire::host_control::memory_name;

/// Shares of a user's limit, at most: each that is held takes a descriptor.
const SHARES_MAX: usize = 256;
/// A share has a number of these bytes: room for a ring of the largest size.
const SHARE_UNIT: u64 = 2 << 20;
/// The part of what a control group may have that rings take if the operator has said
/// nothing: the program itself, its peers in the same group and the kernel need the rest.
const PARTS: u64 = 4;

/// When the kernel was asked last, by [`sys::coarse_ns`].
static ASKED_AT: AtomicU64 = AtomicU64::new(0);
/// What it has said.
static IS_STRICT: AtomicBool = AtomicBool::new(false);
/// Between two questions.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Whether the kernel counts what memory it has promised: then nothing new is shared. It may begin
/// to while the program runs, and is asked once a second at most.
pub(crate) fn is_strict() -> bool {
    let (now, last) = (sys::coarse_ns(), ASKED_AT.load(Ordering::Relaxed));
    if last == 0 || now.saturating_sub(last) >= INTERVAL_NS {
        IS_STRICT.store(overcommit::is_strict(), Ordering::Relaxed);
        ASKED_AT.store(now.max(1), Ordering::Relaxed);
    }
    IS_STRICT.load(Ordering::Relaxed)
}

/// What the rings of a process take, and may take.
pub(crate) struct Budget {
    bytes: AtomicU64,
    /// Of memory in which peers have named rings of theirs.
    incoming: AtomicU64,
    /// The most that the control group bears.
    default_max: u64,
    uid: u32,
    /// Bytes of a share; 0: users have no limit.
    share_len: u64,
    shares: usize,
    /// The sockets that hold shares, + 1.
    held: [AtomicI32; SHARES_MAX],
    lock: SharedLock,
}

impl Budget {
    /// Of a process that makes no rings: nothing is allowed.
    pub(crate) const fn none() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            incoming: AtomicU64::new(0),
            default_max: 0,
            uid: 0,
            share_len: 0,
            shares: 0,
            held: [const { AtomicI32::new(0) }; SHARES_MAX],
            lock: SharedLock::new(),
        }
    }

    /// What a process of this user may have by its control group and, if not 0, by the
    /// limit of its user.
    pub(crate) fn new(uid: u32, user_limit: u64) -> Self {
        let share_len = (user_limit / SHARES_MAX as u64).next_multiple_of(SHARE_UNIT);
        Self {
            default_max: cgroup::memory_limit().map_or(u64::MAX, |limit| limit / PARTS),
            uid,
            share_len: if user_limit == 0 { 0 } else { share_len.max(SHARE_UNIT) },
            shares: user_limit.checked_div(share_len).unwrap_or(0) as usize,
            ..Self::none()
        }
    }

    fn max(&self) -> u64 {
        match options::current().memory_limit {
            0 => self.default_max,
            limit => limit,
        }
    }

    /// A peer may name rings in so many bytes more. False: they would be too many. What a peer has
    /// not written we pay for when we read it, so it may be as much as what we write ourselves.
    pub(super) fn take_incoming(&self, bytes: u64) -> bool {
        let more = |taken: u64| Some(taken + bytes).filter(|sum| *sum <= self.max());
        self.incoming.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// It names them no more.
    pub(super) fn give_incoming_back(&self, bytes: u64) {
        self.incoming.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes so many bytes more. False: they would be too many.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let max = self.max();
        let more = |taken: u64| Some(taken + bytes as u64).filter(|sum| *sum <= max);
        let Ok(before) = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
            return false;
        };
        let has_shares = self.share_len == 0 || self.hold(before + bytes as u64);
        if !has_shares {
            self.give_back(bytes);
        }
        has_shares
    }

    /// So many bytes are not needed any more.
    pub(crate) fn give_back(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        if self.share_len != 0 {
            let _held = Held::enter(self.lock.get());
            let needed = (before - bytes as u64).div_ceil(self.share_len) as usize;
            for place in self.held.iter().filter(|place| is_held(place)).skip(needed) {
                sys::close(place.swap(0, Ordering::Relaxed) - 1);
            }
        }
    }

    /// Makes sure that as many shares are held as these bytes need.
    fn hold(&self, bytes: u64) -> bool {
        let _held = Held::enter(self.lock.get());
        let needed = bytes.div_ceil(self.share_len) as usize;
        let held = self.held.iter().filter(|place| is_held(place)).count();
        (held..needed).all(|_| self.hold_one())
    }

    fn hold_one(&self) -> bool {
        let Some(place) = self.held.iter().find(|place| !is_held(place)) else { return false };
        let Ok(socket) = sys::unix_datagram().map(sys::move_up) else { return false };
        let unit = (self.share_len / SHARE_UNIT) as u32;
        let binds = |share: usize| {
            sys::bind_unix(socket, &UnixName::new(&memory_name(self.uid, unit, share as u32)))
                .is_ok()
        };
        // Each process begins elsewhere, so that hardly any is tried twice.
        let first = sys::pid() as usize;
        let is_bound = (0..self.shares).any(|n| binds((first + n) % self.shares));
        match is_bound {
            true => place.store(socket + 1, Ordering::Relaxed),
            false => sys::close(socket),
        }
        is_bound
    }
}

fn is_held(place: &AtomicI32) -> bool {
    place.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    const MIB: usize = 1 << 20;

    /// A user that no other test and no program is.
    fn user(n: u32) -> u32 {
        0x8000_0000 + sys::pid() * 8 + n
    }

    /// Whether it is so within five minutes, which only a hang takes. A name is free when its last holder is gone, and children
    /// that other tests have forked hold for a moment what this process has closed.
    fn comes_true(is_so: impl Fn() -> bool) -> bool {
        (0..60_000).any(|_| {
            let is_so = is_so();
            if !is_so {
                thread::sleep(Duration::from_millis(5));
            }
            is_so
        })
    }

    #[test]
    fn processes_of_a_user_share_the_limit() {
        let [first, second, other] =
            [user(0), user(0), user(1)].map(|uid| Budget::new(uid, 6 << 20));
        assert!(first.take(2 * MIB) && first.take(MIB) && first.take(MIB));
        assert!(second.take(MIB), "the third share");
        assert!(second.take(MIB), "more of the same");
        assert!(!second.take(1) && !first.take(1), "the user has no fourth");
        assert!(other.take(6 * MIB), "another user does not count");
        first.give_back(3 * MIB);
        assert!(comes_true(|| second.take(1)), "a share was given back");
        assert!(!second.take(2 * MIB), "the first keeps one for what it has");
    }

    #[test]
    fn without_a_limit_of_the_user_nothing_is_bound() {
        let budget = Budget::new(user(2), 0);
        assert!(budget.take(MIB));
        assert!(budget.held.iter().all(|place| !is_held(place)));
    }

    #[test]
    fn large_limits_have_large_shares() {
        let budget = Budget::new(user(3), 64 << 30);
        assert_eq!((budget.share_len, budget.shares), (256 << 20, 256));
        let budget = Budget::new(user(3), 3 << 20);
        assert_eq!((budget.share_len, budget.shares), (2 << 20, 1));
    }

    #[test]
    fn what_a_killed_process_had_is_free() {
        let uid = user(4);
        // Not while another test's thread is at it: the child would wait for that one for ever.
        options::current();
        // SAFETY: the child makes system calls of ours only, and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            crate::process::loan::note_owner();
            let budget = Budget::new(uid, 2 << 20);
            let taken = budget.take(MIB);
            loop {
                // SAFETY: no memory operands.
                unsafe { if taken { libc::pause() } else { libc::_exit(1) } };
            }
        }
        let budget = Budget::new(uid, 2 << 20);
        let is_refused = || {
            let is_taken = budget.take(MIB);
            if is_taken {
                budget.give_back(MIB);
            }
            !is_taken
        };
        assert!(comes_true(is_refused), "the child has taken the only share");
        // SAFETY: our own child, which was not waited for.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        assert!(comes_true(|| budget.take(MIB)));
        // SAFETY: as above.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
    }
}
