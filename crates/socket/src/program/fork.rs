//! Forks, and the end of the process, as far as sockets are concerned.

use crate::connection::{spin, words};
use crate::polling::epoll;
use crate::process::{children, loan};
use crate::program::{hand_over, tracking};
use crate::table::sock::{self, Phase};
use crate::table::{descriptors, naming, plain, untracked};
use core::sync::atomic::Ordering;
use sidestep_device::state::Slot;
use sidestep_proto::fallback::{ProgramDid, Reason};

/// The process is about to end, and the kernel will close its connections.
pub fn before_exit() {
    if loan::is_borrowed_memory() {
        return;
    }
    descriptors::for_each_sock(|_, sock| {
        if let Some(conn) = sock.conn() {
            words::before_exit(conn);
        }
    });
}

/// Our memory is lent: to the child of a `vfork`, until that calls `exec` or ends, or to
/// that of a `clone` of the kind, and when it does we are not told.
pub fn lend_memory() {
    tracking::track_all();
    loan::begin();
}

/// Before a fork: connections whose ends are agreeing right now stay on TCP, and
/// every connection gets one more holder.
pub fn before_fork() {
    tracking::track_all();
    children::about_to_fork();
    descriptors::for_each_sock(|fd, sock| {
        sock.settle_offer(fd);
        // A thread in the middle of it finishes first.
        let _rendezvous = sock.agreeing();
        // Afterwards a descriptor of one process may mean nothing to the other.
        if sock.slot().is_some_and(|slot| slot.family.load(Ordering::Relaxed) == 0) {
            sock.learn_addresses(fd);
        }
        if sock.phase() == Phase::Rendezvous {
            sock.stay_plain(Reason::Program(ProgramDid::ForkedMeanwhile));
        }
    });
    // After the rendezvous, which take slots themselves.
    children::count_child();
    for_each_inherited(|slot| _ = slot.holders.fetch_add(1, Ordering::AcqRel));
}

/// Connections that we have inherited ourselves; those that are ours the process counts.
fn for_each_inherited(f: impl Fn(&Slot)) {
    descriptors::for_each_sock(|fd, sock| {
        let inherited = |_: &&Slot| !sock.is_at_home() && descriptors::is_first_of(fd, sock);
        if let Some(slot) = sock.slot().filter(inherited) {
            f(slot);
        }
    });
}

/// A fork has failed, and before [`children::forked`]: no child holds anything.
pub fn after_failed_fork() {
    let one_less = |holders: u32| holders.checked_sub(1);
    for_each_inherited(|slot| {
        let _ = slot.holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
    });
    children::discount_child();
}

/// In the child of a fork.
pub fn after_fork_in_child() {
    sock::reset_locks();
    spin::after_fork_in_child();
    crate::program::bundle::reset_lock();
    hand_over::after_fork_in_child();
    untracked::reset_locks();
    descriptors::after_fork_in_child();
    plain::after_fork_in_child();
    if naming::are_any_kept() {
        sock::each(|sock| sock.naming.after_fork_in_child());
        epoll::forget_copies();
    }
    descriptors::for_each_sock(|_, sock| {
        sock.after_fork_in_child();
    });
    descriptors::for_each_sock(|fd, sock| {
        if sock.home().is_some_and(|home| !home.has_entered()) {
            crate::program::bundle::give_up(fd);
        }
    });
}
