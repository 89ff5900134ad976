//! The soft RNIC: RoCEv2 without hardware and without a kernel module.
//!
//! It speaks what Linux's `rdma_rxe` speaks, so either may be at the other end. All of the
//! transport is here as calculation: packets and moments come in, packets and events come out. A
//! port joins it to the network.
//!
//! ```text
//!   post_send, post_write ──> requester ──> packets with ascending PSN ──┐
//!                                 ^                                      │
//!   Completed ── ACK, NAK ────────┘              the peer's responder <──┘
//!
//!   the peer's requester ──> responder ──> WRITEs into registered memory
//!                                └──────> Received, in order; then one ACK for all of a batch
//! ```
//!
//! | Module | What |
//! |---|---|
//! | `rnic` | adapter and port as one object, and one call that makes progress |
//! | [`port`] | the two UDP sockets of an address, and what the kernel must do with them |
//! | [`adapter`] | the queue pairs behind an address: whose a datagram is, its check, tombstones |
//! | [`queue_pair`] | one end of a reliable connection: both halves, and its states |
//! | `event` | what queue pairs tell, and why they refuse or break |
//! | `requester` | what was posted, what is on its way, what is sent again, and when it gives up |
//! | `responder` | what comes in: its order, its checks, where it goes, how it is answered |
//! | `relay` | two processes with queue pairs at one port |
//! | `reorder` | packets that have come before their turn, and how many of them are kept |
//! | `tombstones` | queue pairs that were destroyed, and what their peers are told |
//! | `sys` | system calls |
//!
//! *Source*: InfiniBand Architecture Specification volume 1, §9.

pub mod adapter;
mod event;
pub mod port;
pub mod queue_pair;
mod relay;
mod reorder;
mod requester;
mod responder;
mod rnic;
pub(crate) mod sys;
mod tombstones;

pub use adapter::Adapter;
pub use event::{Event, Failure, PostError};
pub use queue_pair::QueuePair;
pub use relay::Succession;
pub use rnic::Rnic;
