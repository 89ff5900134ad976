//! Agreement: how the two ends of a TCP connection on one host come to share memory.
//!
//! The ends agree beside the connection, and no end waits: each step is looked for when the
//! program makes its next call. What an end does, in which order, how often it looks, and why it gives up
//! is decided here; the library carries it out with system calls and shared words, and a simulation
//! with neither.
//!
//! ```text
//!   client                                       server
//!   Begin: may the attempt begin?                Begin
//!   claim, or name                               claim found? greeting, else hello
//!   hello or greeting <──────────────────────────
//!   introduction, on first contact ─────────────>
//!   Proposal, shown as PROPOSED ────────────────>
//!                     <────────────────────────── reads by the ledger, then shows ACCEPTED
//!   reads by the ledger, then shows CONFIRMED ──>  checks it before its first byte in the ring
//! ```
//!
//! *The receiver reads by the ledger before the sender may enter the ring.* An end says that it reads so
//! by the phase that it shows, so no byte enters a ring that the peer does not read. A client that is
//! given up meanwhile, or dies, leaves a server that reads by the ledger and goes on sending by TCP.
//!
//! [`Begin`], [`Client`], [`Server`] and [`seek::Step`] are machines. A state is the next step to carry out,
//! or what is awaited until the program's next call. The owner tells what it has seen ([`Answer`]).
//!
//! | method | what it is |
//! |---|---|
//! | `new` | the first state |
//! | `look` | a call of the program: one look for progress |
//! | `answered` | an event: what was seen when the state was carried out |
//! | `state`, `counts_time` | queries |
//! | `abandon` | the end of the attempt: what has to be taken back |
//!
//! An answer to another question, or a call in the middle of another one, is [`Illegal`]: the owner keeps the
//! connection on TCP and says so. The [`transitions`] are printed from the code.

mod answer;
pub mod begin;
pub mod client;
pub mod confirm;
mod ending;
mod other_end;
mod pace;
pub mod seek;
pub mod server;
#[cfg(test)]
mod tests;
#[cfg(doc)]
#[doc = include_str!("agreement/transitions.md")]
pub mod transitions {}

pub use super::wait::MESSAGES_MAX;
pub use answer::{Answer, Begun, Call, Givers, Greeting, Illegal, LookedUp, Moment, Standing};
pub use begin::Begin;
pub use client::Client;
pub use confirm::Confirm;
pub use ending::{Declining, Failure, Traces};
pub use other_end::{Greeter, Letter, SLOTS, Seen, Shown, Token};
pub use pace::{ANSWERS, LOOKS_AT_MAILBOX, LOOKS_AT_NAME, LOOKS_BETWEEN, LOOKS_FOR_GIVER};
pub use server::Server;
