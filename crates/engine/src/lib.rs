//! SMC-R of one host: link groups and connections, carried out on its RDMA adapters.
//!
//! `sidestep-proto` decides and knows no device, `sidestep-rdma` moves and knows no protocol. Here
//! they meet, and neither has to know the other; so this is a crate of its own, above both, and has
//! nothing else: no socket, no clock, no `unsafe`. [`Host`] is all of it.
//!
//! ```text
//!   programs          send, receive, shut, close …      poll_event
//!      │                            │                        ▲
//!      v                            v                        │
//!   ┌───────────────────────────────────────────────────────────────┐
//!   │ Host     connections (proto::connection), with their buffers  │ <── Accept, Confirm ──> TCP
//!   │             │ steps: WRITEs, then a CDC message               │
//!   │          link groups (proto::link_group) ── LLC messages      │
//!   │             │                                                 │
//!   │          links: what waits for a queue pair, what is posted   │
//!   │             │                                                 │
//!   │          adapters (rdma::device::Device)                      │
//!   └───────────────────────────────────────────────────────────────┘
//!        ▲ handle_device                 │ device: receive, transmit …
//!        └────── their owner <───────────┘
//! ```
//!
//! | Module | What |
//! |---|---|
//! | [`Host`], module `host` | adapters and time; what a program calls |
//! | `contact` | Accept and Confirm: how a connection begins, with a group or in one |
//! | [`Request`], module `request` | a connection that a host is asked for |
//! | `settling` | what a link group wants, carried out; what it tells, passed on |
//! | `traffic` | what comes over a link, and what connections send |
//! | `ending` | how a connection gives back what it had |
//! | [`Migrant`], module `migration` | a link group goes on in another process |
//! | `group` | a link group with what it has of the host |
//! | [`Clock`], module `clock` | its time, without its pauses |
//! | `carrier`, `stream` | a link on its adapter; a connection with its buffers |
//! | `usage`, `view` | what displays show |
//!
//! The owner of a host lets its devices make progress, as each of them has it, and says so:
//!
//! ```text
//!   host.device(id).receive(now)     soft RNIC: datagrams in, deadlines pass
//!   host.handle_device(id, now)      what that has led to
//!   host.poll_event(), send …        programs
//!   host.transmit(now)               what they have sent is posted
//!   host.device(id).transmit(now)    datagrams out, acknowledgements among them
//! ```
//!
//! # A failover without a race
//!
//! A connection that changes links sends again what is not known to have arrived. The same bytes may
//! then come twice: late over the old link, when their place in the ring has other bytes by now. So
//!
//! - a connection begins on the new link when nothing of it is on its way over the old one: all has
//!   arrived, or the queue pair is broken or gone and sends no more;
//! - the side that hears the validation (F) over the new link withdraws the key of the buffer on the old
//!   one: a packet that was still in the network then finds no door.
//!
//! Connections also leave links that work, when another has come, and may come back. Both adapters
//! have their own queues of what has arrived, and the peer may look into that of the new link first:
//! it would hear the validation before the message that this counts, and think that data was lost.
//! And a key that was withdrawn would be missed. So
//!
//! - the peer is first asked over the old link (TEST LINK), and when it answers it has understood all
//!   that was sent there;
//! - the side that hears the validation cannot know that the old link works at the other end, too: so it
//!   keeps the key, asks over that link, and until there is an answer, or the link goes, it tells of
//!   no room in its buffer. What comes late then only writes the bytes that are there.
//!
//! # How a failure is noticed
//!
//! | What happens | Which side notices | After |
//! |---|---|---|
//! | an adapter goes, and its owner knows | [`Host::handle_adapter_down`] | nothing |
//! | the peer's queue pair is gone, or refuses | the device: broken | a round trip |
//! | a path is cut while something is sent | the device: silent, and the group hears the peer elsewhere | five times as long as an answer may take: 150 ms nearby |
//! | all paths are cut, or the peer is gone | the device: broken | 15 s with the soft RNIC |
//! | the same while nothing is sent | TEST LINK | [`Settings::keepalive`] and 2 s; over the only link 15 s |
//!
//! Times are those of the host's own [`Clock`], in which its own pauses do not count. A peer that stands still for less
//! than 15 s loses nothing: a buffer into which it may still write stays open to it as long as it is not heard.
//!
//! # What a call costs
//!
//! A call touches what it is about and what that leads to: groups in which something has happened
//! stand in a list ([`Host`] visits no others), connections that may send stand in the list of their
//! link, and the next deadline is known. Once warm, messages take no memory: what waits and what is
//! posted is in queues that keep theirs, and send buffers are used again as receive buffers are.
//!
//! # The end of a connection
//!
//! After C or A of both sides (RFC 7609 §4.8) neither side writes any more; the buffer is zeroed and may
//! be another connection's, under the same key. A peer that says neither is waited for:
//! [`PEER_PATIENCE`] after the last word of it the connection is over, and its buffer, into which the
//! peer could still write, is not used again but taken out of the group (DELETE RKEY).
//!
//! What the peer says is checked where it is understood. A CDC message that cannot be ends its
//! connection; one for no connection of the group that the link belongs to is dropped and counted
//! ([`Drops`]).
//!
//! *Source*: RFC 7609 §2.3, §4.4, §4.6, §4.8.

#![forbid(unsafe_code)]

mod carrier;
mod clock;
mod contact;
mod ending;
mod event;
mod group;
mod host;
mod migration;
mod request;
mod settling;
mod stream;
#[cfg(test)]
mod tests;
mod traffic;
mod usage;
mod view;

pub use clock::Clock;
pub use contact::{FIRST_CONTACT_PATIENCE, FIRST_CONTACTS_MAX, GROUPS_MAX, GROUPS_OF_ADDRESS_MAX};
pub use ending::PEER_PATIENCE;
pub use event::{CallError, Event, Reset};
pub use host::{Drops, Holdings, Host, Settings};
pub use migration::{Migrant, MigrantBuffer, MigrantStream, Unfit};
pub use request::{Caller, Request, Sizes};
pub use sidestep_proto::rendezvous::hosts::{Proposer, Terms, Wording};
pub use stream::{InPlace, PeerEnd, Readable};
pub use usage::{Tally, Traffic, Usage};
pub use view::{AdapterView, ConnectionView, LinkView};
