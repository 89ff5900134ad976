//! Ends: how a connection in shared memory ends, and what its program is told of that.
//!
//! Two parties know of an end. The kernel knows *that* the peer's end of the TCP connection is gone, by
//! FIN or RST. The words of the two ends know *how*: whether everything was read, whether the peer had
//! sent its FIN, whether it asked for a reset. Both learn at different moments, other threads and
//! processes act meanwhile, and the program must hear what TCP would have told it: every byte first, the
//! end of the stream as often as it asks, a reset once.
//!
//! What the words of both ends amount to is a [`State`], for both directions together:
//!
//! | state | of TCP | a receive behind the last byte | a send |
//! |---|---|---|---|
//! | [`State::Open`] | ESTABLISHED | waits | goes |
//! | [`State::OutputShut`] | FIN_WAIT2 | waits | EPIPE |
//! | [`State::InputEnded`] | CLOSE_WAIT | 0 | goes |
//! | [`State::PeerGone`] | CLOSE_WAIT | 0 | the first is taken, and answered with a reset |
//! | [`State::BothEnded`] | CLOSE | 0 | EPIPE |
//! | [`State::Broken`] | CLOSE | the reset; 0 behind a FIN | the reset |
//! | [`State::Pending`] | CLOSE | the reset; 0 behind a FIN | the reset |
//! | [`State::Told`] | CLOSE | 0 | EPIPE |
//!
//! `states.md` beside this file has all transitions, and their drawing. A test prints it from the code.
//!
//! # The machines
//!
//! ```text
//!   Hearing    the kernel, or a hint of the peer, says that something has ended
//!   Telling    a call of the program is about an end: recv, send, SO_ERROR
//!   Shutting   the program shuts down a direction, or both
//!   Closing    it closes
//!   Leaving    the last descriptor goes, by close or with its process
//!   Breaking   it disconnects, or the peer has broken the protocol
//! ```
//!
//! A state of a machine is the next step to carry out. `step` carries it out through the
//! traits [`Words`], [`Kernel`] and [`Output`], and returns the next state. A
//! step touches one word, or asks the kernel one question. So the library runs the
//! machines with atomics and system calls, and worlds by seed with neither, in every
//! order that threads can have. The type of a question is the type of its answer, so no state can be given an
//! answer to another question; and every state answers whatever the words say, for the peer may have written anything.
//!
//! | method | what it is |
//! |---|---|
//! | `begin`, [`Hearing::failed`], [`Leaving::by_exit`], … | an event: the kernel, the peer or the program has done something |
//! | `step` | carries out what is next |
//! | [`State::of`], [`Seen::poll`] | queries about words that were read |
//!
//! # The words
//!
//! [`Seen`] has all words, each read once, in this order: the own words; then those of the peer's record; then the
//! cursors. *The last byte comes before the end*: the peer moves its cursor before it says that it
//! sends no more, so a cursor that is read afterwards is the last one. *The peer's words come before
//! the kernel's*: a peer says how it ends before its kernel says that it has ended, so
//! words that are read after the kernel was heard are the last ones.
//!
//! The reset is one word of its own, [`Reset`]: that there was one, its error, and that it was told are one
//! change each, and of several threads one is told. It is written before the peer's end is noted as gone: a
//! receive in between would tell the end of the stream instead.
//!
//! *Source*: `tcp_reset`, `tcp_recvmsg_locked`, `tcp_close` and `tcp_rcv_state_process` of Linux; what they do is
//! in `tests/posix`, run with and without the library.

mod closing;
pub mod errno;
mod hearing;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod table;
mod telling;
mod words;
mod world;

pub use closing::{Breach, Breaking, Closing, Leaving, Shutdown, Shutting};
pub use hearing::Hearing;
pub use telling::{Call, Telling, Told};
pub use words::{Own, Polled, Reset, Said, Seen, State};
pub use world::{Kernel, Note, Output, Say, What, Words};
