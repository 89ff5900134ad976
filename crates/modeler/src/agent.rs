//! The two sides of a measurement at work: starts workers and reads clocks.
//!
//! ```text
//!   drive ──> client workers                          (Crew, always here)
//!     │
//!     └─ ServerSide ─┬─ LocalServers ──> server workers
//!                    └─ RemoteServers ═══ TCP ═══ serve ── LocalServers ──> …
//! ```
//!
//! [`drive()`] makes one run: it starts both sides, lets the clients go at a common
//! moment, and takes the clocks of both sides when the warm-up is over and when the
//! measured time is. Whether the server's workers are on this host or on another is
//! hidden behind [`ServerSide`](crate::control::ServerSide).

mod drive;
mod local;
mod protocol;
mod remote;
mod serve;

pub use drive::{NeighbourUse, RunError, RunParts, drive};
pub use local::LocalServers;
pub use remote::{RemoteError, RemoteServers};
pub use serve::serve;

#[cfg(test)]
mod fake;
