//! The agent's part that tells Prometheus what all programs of the host have had.
//!
//! ```text
//!   GET /metrics ──> server ──> Collector ── look ──> states of all programs
//!                                   │
//!                                   ├──> ledger: what programs have had, the ended ones too
//!                                   ├──> gateway: what it tells of itself
//!                                   └──> exposition: the text
//! ```
//!
//! Nothing is collected while no client asks. What a program counted between the last scrape and its
//! end is not lost: its state stays open until the next look ([`Watch`](sidestep_observe::Watch)). When
//! there has been no scrape for some minutes, the agent looks once more and then lets go, so
//! it keeps no memory of ended programs for a reader who does not come.

mod collector;
mod exposition;
mod figures;
mod filter;
mod gateway;
mod ledger;
#[cfg(test)]
mod monitoring;
mod server;
mod tunnels;
mod vips;

use std::io;
use std::thread;

use crate::commands::descriptors;
use collector::Collector;
pub(super) use server::{ListenError, Listener};

/// Answers those who ask at this address, in a thread of its own, as long as the process lives.
///
/// # Errors
///
/// There can be no thread, or nothing to wait with.
pub(super) fn start(listener: Listener) -> io::Result<()> {
    let server = server::Server::new(listener)?;
    descriptors::allow_as_many_as_may_be();
    let thread = thread::Builder::new().name("metrics".to_owned());
    thread.spawn(move || server.run(Collector::default())).map(drop)
}
