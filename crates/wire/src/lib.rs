//! Every byte that leaves a process, and every byte that is believed when it comes in.
//!
//! Two programs that want to talk through shared memory first agree on it over the TCP connection
//! they already have. The words they use there are **CLC messages** ("connection layer control",
//! RFC 7609 §3.5): a *Proposal* from the client, an *Accept* from the server, a *Confirm* from the
//! client, or a *Decline* from either, after which the connection simply stays TCP. Two Sidestep
//! libraries on one host then exchange a few **host-control datagrams** of our own, to hand file
//! descriptors over.
//!
//! Two hosts agree on SMC-R instead, which writes into the other's memory by RDMA. On the link
//! between their RDMA adapters they send **LLC messages** ("link layer control"), about links and
//! buffers, and **CDC messages** ("connection data control"), about the bytes of one connection.
//!
//! | Module | Bytes |
//! |---|---|
//! | [`tcp_option`] | by which both ends of a connection show that they know SMC |
//! | [`clc`] | the frame of all CLC messages, and [`clc::Message`], which tells them apart |
//! | [`clc::proposal`], [`clc::accept_confirm`], [`clc::decline`] | one CLC message each |
//! | [`roce`] | RDMA packets in UDP datagrams, and their check |
//! | [`llc`] | the frame of all LLC messages, and [`llc::Message`], which tells them apart |
//! | [`llc::confirm_link`], [`llc::add_link`], [`llc::delete_link`], [`llc::request_add_link`], [`llc::test_link`] | LLC messages about links |
//! | [`llc::confirm_rkey`], [`llc::delete_rkey`] | LLC messages about receive buffers |
//! | [`cdc`] | how far a connection has written and read, and whether it ends |
//! | [`host_control`] | datagrams between two Sidestep libraries, and the names of their sockets |
//! | [`hand_over`] | how a library hands a connection to the gateway of its host |
//! | [`lessons`] | servers that the gateway has libraries leave alone |
//! | [`verdict`] | what is asked of the IP filter about a connection |
//! | [`ids`] | identifiers, one type each, so that two of them cannot be swapped in a call |
//! | [`protection_status`] | what a program hears that asks about TLS on its connection |
//! | [`rule_name`] | how a rule of TLS is called |
//! | [`rmbe_size`] | how long a receive buffer is, as the four bits that say it |
//! | [`diagnosis`] | why a peer declined |
//! | [`error`] | why bytes were refused |
//!
//! # When `parse` fails
//!
//! `parse` takes one whole message: no byte missing, no byte of the next one. It fails when the
//! bytes are short, when a length or an offset contradicts the rest, or when a field has a value
//! its table does not allow; the [`Error`] names the field. It never panics, whatever the bytes.
//! Reserved bits are ignored, as RFC 7609 §A.2 asks. A message that parsed can be emitted.
//!
//! # When `emit` fails
//!
//! `emit` writes a message to the front of a buffer and returns its length. It fails when the
//! buffer is shorter than `emitted_len`, and when the fields of a message contradict each other, as
//! a Proposal's can. Reserved bits are written as zero.
//!
//! Nothing here allocates or calls into the operating system: this code runs inside the socket
//! calls of other people's programs.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod cdc;
pub mod clc;
pub mod diagnosis;
pub mod error;
pub mod hand_over;
pub mod host_control;
pub mod ids;
pub mod lessons;
pub mod llc;
pub mod protection_status;
pub mod relayed;
pub mod rmbe_size;
pub mod roce;
pub mod rule_name;
pub mod tcp_option;
pub mod verdict;

mod field;
mod header;
mod reader;
mod writer;

pub use diagnosis::Diagnosis;
pub use error::Error;
pub use ids::{
    AlertToken, Chid, DmbToken, Eid, ExtendedGid, Gid, LinkId, LinkNumber, LinkUserId, Mac, Mtu,
    PeerId, Psn, QpNumber, Rkey, RmbAddress, RoceGid,
};
pub use rmbe_size::RmbeSize;
