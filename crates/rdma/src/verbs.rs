//! RDMA adapters of hardware, or of the kernel's `rdma_rxe`, by libibverbs.
//!
//! The adapter does all of the transport: a program shares queues with it, in memory, and neither a
//! byte nor a message goes through the kernel. The library with its drivers is found when the program
//! runs ([`Verbs::load`]); a program starts where it is not installed, and a caller that wants adapters is
//! told which package to install.
//!
//! ```text
//!   Verbs::load ──> ports ──> choose(address or interface, RoCE v1 or v2) ──> Adapter::open
//!
//!   Adapter ── create, ready_to_receive, ready_to_send, post_… ──> as any device::Device
//!     │ receive(now), transmit(now), descriptor                ──> as a soft::Rnic
//!     └ poll_notice: the port goes down, addresses change
//! ```
//!
//! | Module | What |
//! |---|---|
//! | [`abi`] | layouts and numbers that are agreed with the library |
//! | `library` | its functions, as a table that is filled at run time |
//! | `objects` | what it hands out, as values that give it back |
//! | `ports` | adapters, ports and addresses, and which one is meant |
//! | `queue_pair` | chains of works, completions in order, the end |
//! | `search` | peers are looked for, and the gateway does not wait |
//! | `adapter` | queue pairs and keys of an address, wake-ups, events |
//!
//! # What a message costs
//!
//! A message of SMC-R is a WRITE out of the send buffer and a SEND of 44 bytes. The buffer is
//! registered when the first WRITE comes from it. From then on the driver is called once for the
//! WRITE and the SEND together, the SEND's bytes are in the work itself if the adapter can do that
//! (*inline*), and nothing is copied, allocated or asked of the kernel. The test
//! `the_way_of_a_message` counts that.
//!
//! *Source*: the manual pages of rdma-core; InfiniBand Architecture Specification volume 1, §10, §11.

pub mod abi;
mod adapter;
mod library;
mod objects;
mod ports;
mod queue_pair;
mod search;

pub use crate::device::Kind;
pub use adapter::{Adapter, Notice, OpenError};
pub use library::{Unavailable, Verbs};
pub use ports::{By, Gid, Port, choose, ports};
pub use queue_pair::{MESSAGE_LEN_MAX, RECEIVE_DEPTH, SEND_DEPTH};
