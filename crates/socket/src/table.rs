//! Which descriptors are TCP sockets, and what each of them is.
//!
//! ```text
//!   file          the file of a call, though its number goes
//!   descriptors   a word for each number: untracked, a socket, a set
//!   candidate     a connected socket: its slot, and why it stays on TCP
//!   offer         what a socket has to do with the gateway
//!   end           one end of a connection in shared memory
//!   sock          the object of a socket; set: that of an epoll descriptor
//! ```
//!
//! Objects are data here. Their maker, in a room above, says what becomes of them in the end.

pub(crate) mod account;
pub mod candidate;
pub mod conn;
pub mod descriptors;
pub(crate) mod end;
pub(crate) mod file;
pub mod learned;
pub mod mirror;
pub mod naming;
pub(crate) mod offer;
pub mod outlast;
pub mod places;
pub(crate) mod plain;
pub mod rendezvous;
pub mod session;
pub mod set;
pub mod sock;
pub mod streak;
pub mod untracked;
