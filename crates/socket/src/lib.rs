//! Engine, device and a TCP socket joined into a stream with socket semantics.
//!
//! A descriptor of the program stays the kernel's TCP socket for its whole life.
//! This crate knows, for each such descriptor, whether its bytes still travel by
//! TCP or already through shared memory, and gives every call the meaning that
//! Linux gives it on TCP.
//!
//! Start reading at [`stream`]: one screen to send, one to receive. Then
//! [`meeting`] (how two libraries find each other beside a connection), [`switch`]
//! (at which byte the ring takes over), [`wait`] (spin, yield, sleep) and
//! [`epoll`].
//!
//! Everything here runs inside other people's calls: no allocation by `malloc`, no
//! standard I/O, no panics on any input, no lock held across a sleep.

mod account;
mod autocache;
mod claim;
pub mod claims;
pub mod descriptors;
pub mod ends;
pub mod epoll;
mod file;
pub mod gateway;
mod given;
pub mod group;
pub mod log;
pub mod meeting;
mod memory;
pub mod multiplex;
pub mod options;
mod owner;
pub mod parcel;
mod past_libc;
mod petition;
mod plain;
mod pnet;
pub mod pool;
pub mod process;
pub mod readiness;
pub mod reload;
pub mod seccomp;
pub mod sock;
pub mod socket_options;
pub mod stream;
pub mod switch;
pub mod tcp_option;
pub mod transfer;
pub mod urgent;
pub mod uring;
pub mod wait;
pub mod young;

/// An error number for the program.
pub type Errno = i32;
/// The answer of a call: a count, or an error number.
pub type Answer<T = usize> = Result<T, Errno>;
