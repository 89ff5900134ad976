//! The connections of all Sidestep programs on this host, seen from outside.
//!
//! A program keeps its connections in a memory file ([`state`](sidestep_device::state)) that it holds open:
//! `/proc/PID/fd` shows it as `/memfd:sidestep-state`. A user who may look at those
//! descriptors may open the file and read it. The program is not asked, so a stopped
//! or busy program is seen like any other, and it is never kept waiting.
//!
//! ```text
//!   /proc/PID/fd/N ──> state ── header: process that made it, slots ever used,
//!   /proc/PID/fd/N ──┘    │             sums over ended connections
//!                         ├──── decisions of the last hour, traffic by server port
//!                         └──── slots: one per connection
//!   (parent and forked child hold the same one)
//! ```
//!
//! It is only read, but for two words of an operator: [`hold`], and what the IP filter denies
//! ([`end_denied`]).
//!
//! All of it is a stranger's memory. It is read into memory of our own
//! ([`mirror`](sidestep_device::mirror)), which makes no page of it. Each word is checked before
//! it means anything, and a process number in it is believed only if that process holds this very
//! state. How much there is to read is the stranger's doing, too, so each user has an
//! [`allowance`](host::allowance).
//!
//! ```text
//!   hold, end_denied  snapshot ── watch, glances, shown, tap   what an operator asks and says
//!         │              │
//!         │            survey ── holders             which process holds which state
//!         │           ╱      ╲
//!       host ────────╱        program                what the kernel tells │ what one state says
//! ```
//!
//! The layout of a state is not described here. It lies with its writer in `sidestep_device`, and
//! so does the mirror that reads it at one moment: the two must agree on every ordering.
//!
//! This crate runs in `sidestep` and never inside a program's call, so it may allocate and use
//! what the host offers. The library does not depend on it.

// Tests make states, and give them back.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod denials;
#[cfg(test)]
mod fixture;
mod glances;
mod holders;
mod holds;
mod host;
mod program;
mod shown;
mod snapshot;
mod survey;
mod tap;
mod watch;

pub use denials::{Denied, Held, end_denied};
pub use glances::Glances;
pub use holds::{Reached, Whose, hold, release};
pub use host::state_file::StateId;
pub use program::connection::{Connection, Mode, Place, Role};
pub use program::counters::{Counters, Handshakes, Rings, Sizes};
pub use program::decision::{Decision, Verdict};
pub use program::fallback::Fallback;
pub use program::service::Service;
pub use program::totals::Totals;
pub use program::{LeftAlone, Program};
pub use shown::Shown;
pub use snapshot::Snapshot;
pub use tap::{Begin, End, Finder, Finding, Look, Tap, TapId};
pub use watch::{Watch, Watched};
