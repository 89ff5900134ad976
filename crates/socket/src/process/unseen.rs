//! Whether the program uses its sockets without the library's seeing it: then none of its connections may
//! move.

use crate::process::{filter, past_libc};
use core::sync::atomic::{AtomicBool, Ordering};
use sidestep_proto::fallback::{ProgramDid, Reason};

/// The program has given one of its sockets to a ring, or may have.
static USED: AtomicBool = AtomicBool::new(false);

/// The program gives one of its sockets to a ring: whether it has done so before.
pub(crate) fn note_given() -> bool {
    USED.swap(true, Ordering::Relaxed)
}

/// Whether the program uses its sockets through io_uring.
pub fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// The program has a ring, and what it is given is not seen.
pub fn note_unseen() {
    USED.store(true, Ordering::Relaxed);
}

/// Why the program's sockets are used without our seeing it, if they are: then none of its
/// connections may move.
pub(crate) fn unseen_use() -> Option<Reason> {
    if filter::is_in_the_way() {
        Some(Reason::Program(ProgramDid::Filtered))
    } else if is_used() {
        Some(Reason::Program(ProgramDid::IoUring))
    } else if past_libc::is_found() {
        Some(Reason::Program(ProgramDid::PastLibc))
    } else {
        None
    }
}
