//! Engine, device and a TCP socket joined into a stream with socket semantics.
//!
//! A descriptor of the program stays the kernel's TCP socket for its whole life.
//! This crate knows, for each such descriptor, whether its bytes still travel by
//! TCP or already through shared memory, and gives every call the meaning that
//! Linux gives it on TCP.
//!
//! Its modules stand in rooms. Each room uses those below it:
//!
//! ```text
//!   program      a program's calls, the life of its sockets, fork and exec
//!   rendezvous   two processes find each other beside a connection, and agree
//!   polling      epoll, poll, select
//!   connection   one connection in shared memory: waiting, the switch, the ends
//!   table        which descriptors are sockets, and what each of them is
//!   process      this process: its state, memory, link groups, options
//! ```
//!
//! Start reading at [`program::stream`], which chooses the path, and at the two screens,
//! [`connection::ring_send`] and [`connection::ring_receive`]. Then
//! [`rendezvous::agreement`] (how two libraries find each other beside a connection),
//! [`connection::switch`] (at which byte the ring takes over), [`connection::wait`] (spin,
//! yield, sleep) and [`polling::epoll`].
//!
//! Everything here runs inside other people's calls: no allocation by `malloc`, no
//! standard I/O, no panics on any input, no lock held across a sleep.

pub mod connection;
pub mod polling;
pub mod process;
pub mod program;
pub mod rendezvous;
pub mod table;

/// An error number for the program.
pub type Errno = i32;
/// The answer of a call: a count, or an error number.
pub type Answer<T = usize> = Result<T, Errno>;
