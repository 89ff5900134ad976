//! The program's own calls, by number, while a connection is on TCP.
//!
//! Such a call is looked up first: its number leads to a connection that is on TCP. Until it is in
//! the kernel, which then holds the file, another thread may put a connection that has moved under
//! the number (`dup2`, or `close` and `accept`). The call would take that one's bells for bytes of
//! the program, or send bytes where its peer expects bells.
//!
//! So each thread notes the number of the call that it is about to make, and looks at the table once
//! more. The closing side, when calls on the connection are under way, looks which threads have noted its number
//! and waits until each of them is in the kernel or has returned. A thread that finds another
//! connection under the number begins its call anew ([`by_number`]).
//!
//! ```text
//!   closing side                              a call
//!   the table: N is being closed              noted: N
//!   ---------------- fence ----------------   ---------------- fence ----------------
//!   which have noted N? waits for each           does the table lead from N to the connection?
//!   the kernel closes N                         yes: the system call, by N
//!   the table: N is nothing                     no:  the call begins anew
//!                                             nothing noted
//! ```
//!
//! *Law*: the program's call on a connection that is on TCP reaches no file that has come under its
//! number since it was looked up. *Proof*: as for [`Names`](sidestep_device::names), of which
//! [`Caller`] is the kin; loom checks it. What remains is told in [`crate::table::file`].

use crate::process::{loan, owner};
use crate::table::{descriptors, outlast};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;
use sidestep_device::names::Caller;
use sidestep_device::sys;

/// Threads that have a place of their own.
const PLACES: usize = 1024;
/// Places that a thread tries.
const TRIES: usize = 32;
/// How long a closing side waits for threads that have none.
const PATIENCE_CROWD: Duration = Duration::from_millis(10);

/// Where a thread notes its call. Neighbours share no cache line.
#[repr(align(64))]
struct Place {
    /// Whose it is or was; 0 = no thread's.
    tid: AtomicU32,
    caller: Caller,
}

static THREADS: [Place; PLACES] =
    [const { Place { tid: AtomicU32::new(0), caller: Caller::new() } }; PLACES];

/// Calls of threads that have found no place.
static CROWD: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    static MINE: Cell<Option<&'static Place>> = const { Cell::new(None) };
}

#[inline]
fn mine() -> Option<&'static Place> {
    MINE.get().or_else(find_place)
}

/// A place that no living thread has.
#[cold]
fn find_place() -> Option<&'static Place> {
    // To the child of a `vfork` all threads of its parent seem to have ended.
    if loan::is_borrowed_memory() {
        return None;
    }
    let tid = owner::me().tid();
    let place = (0..TRIES).map(|i| &THREADS[(tid as usize + i) % PLACES]).find(|place| {
        let other = place.tid.load(Ordering::Relaxed);
        let is_free = other == 0 || other == tid || !sys::has_thread(other);
        // Relaxed: what the last owner has noted means nothing any more.
        is_free
            && place.tid.compare_exchange(other, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    })?;
    place.caller.end(0);
    MINE.set(Some(place));
    Some(place)
}

/// The number of this thread's call is noted, until this is dropped.
pub(crate) struct Noted(Option<(&'static Caller, u32)>);

impl Noted {
    /// What is asked next is a word of the table.
    #[inline]
    fn before_look(fd: i32) -> Self {
        Self::with(fd, Caller::begin)
    }

    /// What is asked next is the place of an untracked connection.
    #[inline]
    pub(super) fn before_entering(fd: i32) -> Self {
        Self::with(fd, Caller::begin_unordered)
    }

    #[inline]
    fn with(fd: i32, begin: impl Fn(&Caller, u32) -> u32) -> Self {
        match mine() {
            Some(place) => Self(Some((&place.caller, begin(&place.caller, fd as u32)))),
            None => Self::in_crowd(),
        }
    }

    #[cold]
    fn in_crowd() -> Self {
        CROWD.fetch_add(1, Ordering::Relaxed);
        // As in `Caller::begin`.
        fence(Ordering::SeqCst);
        Self(None)
    }
}

impl Drop for Noted {
    #[inline]
    fn drop(&mut self) {
        match self.0 {
            Some((caller, before)) => caller.end(before),
            // Release: pairs with `outlast`; the system call comes before.
            None => _ = CROWD.fetch_sub(1, Ordering::Release),
        }
    }
}

/// Makes the program's own call on what the table has as this word. `None`: the number leads
/// elsewhere by now, and the call is to begin anew.
#[inline]
pub(crate) fn by_number<T>(fd: i32, word: usize, plain: impl FnOnce() -> T) -> Option<T> {
    let _noted = Noted::before_look(fd);
    descriptors::is_word_of(fd, word).then(plain)
}

/// The closing side, when no more calls can begin by this number: waits until those of other threads
/// are in the kernel or have returned.
#[cold]
pub(crate) fn outlast(fd: i32) {
    let me = owner::me().tid();
    for Place { tid, caller } in &THREADS {
        let tid = tid.load(Ordering::Relaxed);
        if caller.is_in(fd as u32) && tid != me {
            outlast::outlast_call(tid, || caller.is_in(fd as u32));
        }
    }
    // Acquire: pairs with the Release of `Noted`, behind the fences of `is_in`.
    outlast::outlast(PATIENCE_CROWD, || CROWD.load(Ordering::Acquire) != 0);
}

/// In the child of a fork: the calls under way are the parent's.
pub(crate) fn after_fork_in_child() {
    for place in THREADS.iter().filter(|place| place.tid.load(Ordering::Relaxed) != 0) {
        place.tid.store(0, Ordering::Relaxed);
        place.caller.end(0);
    }
    CROWD.store(0, Ordering::Relaxed);
    MINE.set(None);
}
