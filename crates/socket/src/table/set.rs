//! An epoll descriptor of the program, as the table knows it: by which numbers it is named, and how many calls are in it.
//!
//! What is in the set, the room of polling knows.

use crate::table::naming::Naming;
use core::sync::atomic::{AtomicU32, Ordering};
use sidestep_device::valid::{Renew, Zeroable};
use std::sync::OnceLock;

/// See the [module](self).
#[derive(Renew, Zeroable)]
pub struct Handle {
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// Calls that may sleep in it, plus one for all descriptors together; 0 = dissolved.
    uses: AtomicU32,
    /// By which numbers it is named, and by what else.
    pub(crate) naming: Naming,
}

/// What becomes of a set that no descriptor and no call leads to any more: said by the maker of sets, in
/// a room above this one.
static DISSOLVE: OnceLock<fn(&'static Handle)> = OnceLock::new();

impl Handle {
    /// The set is made, and its maker has it.
    pub(crate) fn begin(&self, dissolve: fn(&'static Self)) {
        let _ = DISSOLVE.set(dissolve);
        // Release: a late `enter` of a caller that met the set before fails as long as `uses` is 0, and
        // finds the rest made when it is not.
        self.uses.store(1, Ordering::Release);
    }

    /// A descriptor of this process that referred to it is gone.
    pub fn drop_descriptor(&'static self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.leave();
        }
    }

    /// Counts one more call; false when the set was dissolved.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let one_more = |uses: u32| (uses != 0).then_some(uses + 1);
        // SeqCst: see `descriptors::set_in_use`, which looks at the table afterwards.
        self.uses.fetch_update(Ordering::SeqCst, Ordering::Relaxed, one_more).is_ok()
    }

    /// One call less; the last one dissolves it.
    #[inline]
    pub(crate) fn leave(&'static self) {
        if self.uses.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(dissolve) = DISSOLVE.get()
        {
            dissolve(self);
        }
    }

    /// How many calls are in it, while there is a descriptor.
    pub(super) fn calls_under_way(&self) -> u32 {
        // SeqCst: see `descriptors::begin_closing`, which has changed the table before.
        self.uses.load(Ordering::SeqCst).saturating_sub(1)
    }

    /// In the child of a fork: the calls under way are the parent's.
    pub(crate) fn after_fork_in_child(&self) {
        self.uses.store(1, Ordering::Relaxed);
        self.naming.after_fork_in_child();
    }
}
