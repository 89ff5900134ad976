//! What a program waits for on a socket that has no object.

use crate::polling::set::Set;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidestep_device::reference::AtomicRef;
use sidestep_device::sparse::Sparse;
use sidestep_device::untracked::UNTRACKED_MAX;
use sidestep_device::valid::Zeroable;

/// What a program waits for on a socket that has no object.
#[derive(Zeroable)]
#[repr(align(64))]
pub(crate) struct Watch {
    /// The only set that has it.
    pub(super) set: AtomicRef<Set>,
    pub(super) data: AtomicU64,
    pub(super) events: AtomicU32,
}

/// By descriptor. Changed under the lock of the thread that [makes its object](crate::table::untracked::growing),
/// but forgotten without.
static WATCHES: Sparse<Watch, UNTRACKED_MAX> = Sparse::new();

impl Watch {
    /// Where it is kept what a program waits for on a descriptor.
    pub(super) fn place(fd: i32) -> Option<&'static Self> {
        WATCHES.writable(fd as usize)
    }

    /// What a program waits for on a descriptor, if it ever has.
    pub(super) fn of(fd: i32) -> Option<&'static Self> {
        WATCHES.get(fd as usize)
    }

    pub(super) fn is_of(&self, set: Option<&Set>) -> bool {
        set.is_some_and(|set| self.set.is(set))
    }

    pub(super) fn wish_for(&self, wish: libc::epoll_event) {
        self.events.store(wish.events, Ordering::Relaxed);
        self.data.store(wish.u64, Ordering::Relaxed);
    }

    pub(super) fn forget(&self) {
        // Mostly there is none, and the line stays as it is.
        if !self.set.is_none() {
            self.set.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polling::set::SETS;
    use sidestep_proto::readiness::mask;

    #[test]
    fn what_is_waited_for_on_a_descriptor_is_of_one_set_until_it_is_forgotten() {
        const FD: i32 = 900;
        let (set, other) = (SETS.take().unwrap(), SETS.take().unwrap());
        let watch = Watch::place(FD).unwrap();
        assert!(core::ptr::eq(watch, Watch::of(FD).unwrap()), "a descriptor has one place");
        assert!(!watch.is_of(Some(set)) && !watch.is_of(None));
        watch.set.set(Some(set));
        watch.wish_for(libc::epoll_event { events: mask::IN, u64: 7 });
        assert!(watch.is_of(Some(set)) && !watch.is_of(Some(other)));
        watch.forget();
        watch.forget();
        assert!(!watch.is_of(Some(set)));
        assert!(Watch::of(-1).is_none() && Watch::place(-1).is_none(), "no number of a descriptor");
    }
}
