//! The engine: what to do with a connection, decided from plain values.
//!
//! Nothing in this crate opens a socket, maps memory or reads a clock. A
//! question comes in as arguments, the answer goes out as a value, and so every
//! rule can be tested over its whole range in microseconds:
//!
//! | module | the question it answers |
//! |---|---|
//! | [`rendezvous`] | which CLC message is the answer to this one, or why is it Decline? |
//! | [`rendezvous::agreement`] | what does an end do next to come to share memory with the other one, and when does it give up? |
//! | [`rendezvous::hosts`] | the same between hosts: which version of SMC-R, over which adapters, and whose bytes come next on the TCP connection? |
//! | [`cut_over`] | in which order does a direction change between TCP and the ring? |
//! | [`ends`] | how does a connection in shared memory end, and what is its program told? |
//! | [`ledger`] | at which byte of the TCP stream does the ring take over? |
//! | [`connection`] | what do the CDC messages of a connection over RDMA say, and when are they sent? |
//! | [`cursor`] | may the peer's cursor be believed, and where in the ring do bytes go? |
//! | [`readiness`] | what would `poll` say about a connection in this state? |
//! | [`contention`] | do strangers want our CPUs? |
//! | [`governor`] | spin, yield or sleep? |
//! | [`fallback`] | why did a connection stay on TCP, in the standard's code and in words? |
//! | [`autosmc`] | has a connection lived long enough to be worth moving? |
//! | [`paths`] | does SMC-R carry more to another host than TCP? |
//! | [`autocache`] | for how long is a server left alone after a failure? |
//! | [`link_group`] | which links and buffers do two hosts share by SMC-R, and what to do about them? |
//! | [`policy`] | may a connection move, by the operator's rules? |
//! | [`protection`] | which connections are to be TLS's, by the operator's rules? |
//! | [`machine_code`] | does this code make calls on sockets past libc? |
//!
//! Most of it runs inside the socket calls of other people's programs, where nothing may call
//! `malloc`: so there is no `alloc` here. [`link_group`] and [`rendezvous::hosts`] are the exceptions
//! and have it for themselves. The owner of a link group has memory for queue pairs and buffers as well.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod autocache;
pub mod autosmc;
pub mod connection;
pub mod contention;
pub mod cursor;
pub mod cut_over;
#[cfg(test)]
mod drawing;
pub mod ends;
pub mod fallback;
pub mod governor;
pub mod ledger;
pub mod link_group;
pub mod machine_code;
pub mod paths;
pub mod policy;
pub mod protection;
pub mod readiness;
pub mod rendezvous;
