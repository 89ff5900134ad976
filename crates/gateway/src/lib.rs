//! The gateway: one process of a host that carries its programs' connections to other hosts, by
//! SMC-R.
//!
//! A link group belongs to a host and not to a program: its links are queue pairs of the host's
//! adapters, and connections of all programs to the same peer share them. So one process has the
//! adapters, and programs reach it by TCP connections within the host, which are as any others of
//! Sidestep: where it runs with the library preloaded they go through shared memory.
//!
//! ```text
//!   program ──N── TCP to the other host: CLC, and then silence ────────────────────> its peer
//!      │    └──(a duplicate of N)──> control socket ─┐
//!      │                                   v
//!      └──H── 127.0.0.1 ──> data listener ──> session ──> engine ──> adapters ══ RoCEv2 ═══> its gateway
//! ```
//!
//! | Module | What |
//! |---|---|
//! | [`Gateway`], module `gateway` | the loop: what has happened, what is to be done, sleep |
//! | `seat` | which thread runs the loop, and what becomes of it when that thread sleeps over a program's socket |
//! | `control` | the UNIX socket, where libraries hand connections over, and who may |
//! | `ends` | what the kernel has said of N |
//! | `listener` | the TCP port, where H comes in, and what waits for its other half |
//! | `session` | one connection: CLC on N, then bytes between H and SMC-R, or between H and N; or TLS on N |
//! | [`OpenError`], module `error` | why there is no gateway |
//! | `adapters` | which adapters are meant by their names, and opening them |
//! | `nic` | a device of either kind: a soft RNIC, or an RDMA device by libibverbs |
//! | `bytes` | what was taken from one socket, and not by the other yet |
//! | `lessons` | servers with which SMC-R was not worth it, for libraries to leave alone |
//! | [`foreign`] | what users have sent, and how it is closed |
//! | `lent`, `intake`, `output` | H as a ring, and as a socket: what the program has sent, and what it is sent |
//! | `ipsec` | which connections IPsec would protect |
//! | `interfaces` | network interfaces, and what the kernel tells of them |
//! | [`netlink`] | questions to the kernel |
//! | `protection`, `handshakes` | TLS: rules with their keys, and threads for what costs CPU |
//! | `migration` | a link group with its sessions as a memory file, for the gateway that has this one's place |
//! | `partners` | the other ends of a soft RNIC's links, of which the IP filter is told |
//! | `poller` | the epoll set, and what its numbers mean |
//! | `rivalry` | SMC-R and TCP set side by side, server by server |
//! | `spare` | what is left when descriptors are used up |
//! | [`status`] | what it has, for displays |
//! | [`Progress`], module `succession` | one gateway takes the place of another, which drains |
//! | [`Settings`], module `settings` | which adapters, networks and names |
//! | [`watchdog`] | what the service manager is told |
//!
//! # The life of a connection
//!
//! ```text
//!   hand-over and H ──> Rendezvous ── agreed ────> Moved ────┬──> both directions have ended, or it is reset
//!                          └────── declined ──> Relayed ──┘
//! ```
//!
//! H carries `SO_LINGER` of 0 until it is closed in order, and so does N but where TLS tells ends: whatever becomes of this
//! process, the programs at both ends see a reset, and never an end that their peer has not said.
//!
//! # Whom it believes
//!
//! No program. One that hands over must own H, by what the kernel says of both. What a program sends or
//! leaves unread stops that program alone: it stays in the program's ring, or in the RMBE. Users have limits ([`limits`]), and beyond them connections stay TCP.
//!
//! It calls the kernel through libc only, so that the library, where it is preloaded, sees what
//! becomes of H. What the library does beyond that is to lend the ring that a program fills (`lent`).
//!
//! *Source*: RFC 7609 §2, §3.5.

#![deny(unsafe_code)]

mod adapters;
mod bytes;
mod control;
mod ends;
mod error;
pub mod foreign;
mod gateway;
mod handshakes;
mod intake;
mod interfaces;
mod ipsec;
mod lent;
mod lessons;
pub mod limits;
mod listener;
mod migration;
pub mod netlink;
mod nic;
mod output;
mod partners;
mod poller;
mod protection;
mod rivalry;
mod seat;
mod session;
mod settings;
mod spare;
pub mod status;
mod succession;
pub mod watchdog;

pub use error::OpenError;
pub use gateway::Gateway;
pub use settings::{AdapterChoice, Settings, Spot};
pub use succession::Progress;
