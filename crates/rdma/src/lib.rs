//! RDMA devices: what moves the bytes of SMC-R between two hosts.
//!
//! A link of SMC-R is a pair of *queue pairs* (QPs), one at either end. Over it go SENDs, short
//! messages that the other side receives in order (LLC, CDC), and RDMA WRITEs, which put bytes into
//! memory that the other side has registered, without a call of a program there. A WRITE is
//! allowed by its key, and both kinds arrive once and in order, or the QP breaks.
//!
//! | Module | What |
//! |---|---|
//! | [`device`] | what the engine uses of a device, whichever it is |
//! | [`memory`] | memory that peers may write into, the keys to it, and what every WRITE is checked for |
//! | [`soft`] | an adapter without hardware: RoCEv2 over a UDP socket, as Linux's `rdma_rxe` speaks it |
//! | [`verbs`] | adapters of hardware, or of the kernel's `rdma_rxe`, by libibverbs, if it is installed |
//! | [`faults`] | a bad network in front of it: loss, duplication, delay, jitter, bandwidth, by a seed |
//!
//! Time comes in as an argument, a [`Duration`](core::time::Duration) since any moment, the same for
//! all calls; nothing here reads a clock, and nothing but [`soft::port`] and what is built on it
//! opens a socket. How fast it is against TCP, `cargo run --release -p sidestep-rdma --example cable`
//! tells.

pub mod device;
pub mod faults;
pub mod memory;
pub mod soft;
pub mod verbs;
