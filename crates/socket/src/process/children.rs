//! A fork, as far as the state is concerned: parent and child agree which of them holds which slot.

use crate::process::home::{self, ANCESTOR, CURRENT, FAILED, Home, MAKING};
use crate::process::loan::{self, FORKS};
use crate::process::owner::{self, Waiting};
use core::sync::atomic::{AtomicU32, Ordering};
use sidestep_device::lock::{Entry, Lock};

/// In the child of a fork, before anything else: it has no process object yet,
/// and other threads' locks have no owner.
pub fn forget_after_fork() {
    owner::forget();
    FORKS.fetch_add(1, Ordering::Relaxed);
    loan::note_owner();
    MAKING.get().reset();
    FORKING.store(0, Ordering::SeqCst);
    let parent = CURRENT.take();
    FAILED.store(0, Ordering::Relaxed);
    if let Some(parent) = parent {
        parent.locks().for_each(Lock::reset);
        parent.held_for_fork.store(0, Ordering::Relaxed);
        parent.ancestor.set(ANCESTOR.get());
        ANCESTOR.set(Some(parent));
    }
    home::ancestors().for_each(|home| home.be_born());
}

/// Forks under way in this process.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// Whether a fork is under way: nothing may begin that two processes would continue.
pub(crate) fn is_forking() -> bool {
    FORKING.load(Ordering::SeqCst) != 0
}

/// Before a fork: from now on until [`forked`] no rendezvous makes progress.
pub(crate) fn about_to_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
}

/// Before a fork, when all rendezvous rest: until [`forked`] no slot is taken, so that
/// both processes agree which of them holds what.
pub(crate) fn count_child() {
    let process = CURRENT.get();
    // The child may be slower to enter than others are to look for it.
    for process in home::all() {
        process.state.header().unborn.fetch_add(1, Ordering::AcqRel);
    }
    process.inspect(|process| process.count_child());
}

/// The fork has failed: takes back what [`count_child`] has done. Still no slot is taken or given back,
/// so it is those slots.
pub(crate) fn discount_child() {
    if let Some(process) = CURRENT.get() {
        process.for_each_slot_in_use(|slot| {
            let one_less = |holders: u32| holders.checked_sub(1);
            let _ = slot.holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        });
    }
    home::all().for_each(|home| home.forget_unborn());
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

impl Home {
    /// All locks without which no slot is taken or given back, in the order in which they
    /// are taken.
    fn locks(&self) -> impl Iterator<Item = &Lock> {
        let lists = self.tables.free.iter().map(|list| list.lock.get());
        core::iter::once(self.lock.get()).chain(lists)
    }

    /// Takes the locks for the time of a fork; every slot gets one more holder.
    pub(crate) fn count_child(&self) {
        for (at, lock) in self.locks().enumerate() {
            if lock.enter(owner::me(), &Waiting) == Entry::Owned {
                self.held_for_fork.fetch_or(1 << at, Ordering::Relaxed);
            }
        }
        self.for_each_slot_in_use(|slot| _ = slot.holders.fetch_add(1, Ordering::AcqRel));
    }
}
