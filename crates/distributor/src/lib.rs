//! One address for many servers: what a distributor decides, from plain values.
//!
//! A *VIP* is an address and port in front of several *targets*, servers that listen elsewhere, or hosts. This crate
//! knows no socket, no clock and no kernel. It is told what was seen of targets and what the operator
//! wants, and says which target takes which new connection:
//!
//! ```text
//!   listeners, probes ──> Health ──┐
//!                                  ├──> State of each target ──> Plan ──> a data path
//!   drain, resume ─────────────────┘         (by Method)
//! ```
//!
//! | Module | What it has |
//! |---|---|
//! | [`terms`] | what the operator writes of a VIP, and what is refused |
//! | [`health`] | probes with rise and fall, and listeners that come and go |
//! | [`state`] | active, draining, down, standby, as a machine |
//! | [`distribution`] | a VIP at work: its targets' states, and the plan that they come to |
//! | [`maglev`] | tables in which few places change when a target comes or goes |
//! | [`hash`] | the place of a connection in such a table |
//! | [`election`] | which of several distributors owns the VIPs |
//!
//! The names of the methods are those of z/OS's Sysplex Distributor (`VIPADISTRIBUTE`).

#![forbid(unsafe_code)]

pub mod distribution;
pub mod election;
pub mod hash;
pub mod health;
pub mod maglev;
pub mod state;
pub mod terms;

pub use distribution::{Change, Choice, Distribution, OwnTarget, Plan, Refusal};
pub use state::State;
pub use terms::{
    Method, OptLocal, Probe, ProbeKind, Protocol, SmcUse, Target, TargetKind, TermsError, Vip,
    VipSet,
};
