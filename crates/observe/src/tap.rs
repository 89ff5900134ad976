//! The bytes of connections in shared memory, read beside the two ends while they go on.
//!
//! The kernel lets a process that may trace a program have its descriptors (`pidfd_getfd`). By them the slabs of both sides
//! are mapped, read-only: that of the program, and that of its peer, which the program was given. So one end that may be
//! traced is enough for both directions. Neither end waits for the onlooker, so bytes may be overwritten before they are
//! told ([`trail`]); these are counted.
//!
//! ```text
//!   finder    which connections there are, and the memory of each     a few times a second
//!      │
//!     Tap ── look ──> Look: bytes, what went by TCP, what was lost, the end     as often as the caller likes
//!      │
//!    trail    what of a ring can still be told
//! ```
//!
//! A slot, and a ring, become another connection's when this one has ended. That bytes were this one's is certain as long as
//! their sender's record shows the phase of this connection, and after that as long as its process, if its state can be read,
//! has handed out no ring.

mod finder;
mod followed;
mod trail;

pub use finder::{Finder, Finding};
pub use followed::{Begin, End, Look, Tap, TapId};
