//! CLC between hosts: the rendezvous of SMC-R, in the bytes of the TCP connection itself.
//!
//! Both ends of a connection have shown by a TCP option that they know SMC. Now the stream carries
//! CLC messages until there is a Confirm or a Decline; the next byte is the program's.
//!
//! ```text
//!   client                         server
//!          ---- Proposal ------>           which version, over which adapter? (`eligibility`)
//!          <--- Accept ---------           Event::Accept: the engine prepares a buffer and a link
//!   Event::Connect: so does the client's
//!          ---- Confirm ------->           Event::Confirmed
//!          ==== LLC over RDMA ==           first contact only: CONFIRM LINK
//!   Event::Ended(Agreed)           Event::Ended(Agreed)
//!
//!   or in place of a message that is expected:  ---- Decline ---->   Event::Ended(Tcp)
//! ```
//!
//! [`Exchange`] is one side of that for one connection. It does no I/O: the owner of the socket and the
//! link groups drives it.
//!
//! # Driving it
//!
//! 1. Read [`wanted`](Exchange::wanted) bytes from the socket, or fewer, never more: after the last
//!    CLC message the stream is the program's. Give them to
//!    [`handle_bytes`](Exchange::handle_bytes); tell the end of the stream by
//!    [`handle_end`](Exchange::handle_end), an error by [`handle_reset`](Exchange::handle_reset).
//! 2. Call [`handle_timeout`](Exchange::handle_timeout) at [`poll_timeout`](Exchange::poll_timeout).
//! 3. After any call, write all of [`poll_transmit`](Exchange::poll_transmit), then heed
//!    [`poll_event`](Exchange::poll_event), until there are none.
//! 4. Carry the engine's answers back:
//!
//! | engine | here |
//! |---|---|
//! | an Accept or Confirm to be sent | [`introduce`](Exchange::introduce) |
//! | the connection is declined, or was refused at once | [`decline`](Exchange::decline) |
//! | the connection carries bytes | [`established`](Exchange::established) |
//!
//! When [`Event::Ended`] says anything but [`Outcome::Agreed`] and the engine was asked for a
//! connection, the engine is to abandon it.
//!
//! # Which side may decline when
//!
//! | | server | client |
//! |---|---|---|
//! | in place of its own message | Decline | Decline |
//! | its message is under way, the answer is not here | waits for the answer, then as below | the same |
//! | first contact, Confirm is sent, CONFIRM LINK is not done | Decline | Decline |
//! | subsequent contact, behind its Accept or Confirm | ends the TCP connection | ends the TCP connection |
//!
//! A Decline leaves the TCP connection as if SMC had never been mentioned. Everything else that goes
//! wrong here (a message that is none, a peer that is silent or leaves) has taken bytes out of the
//! stream or left some in it, and ends the TCP connection: [`Outcome::Broken`]. There is one
//! exception: a client that leaves before it has said anything has left the stream as it was.
//!
//! No CLC message may follow another of its side (the *no-chase rule*), but for the Decline at first
//! contact. There both sides may decline at once, and each would take the other's Decline for bytes
//! of the program. So a side that has only waited in vain for CONFIRM LINK waits a moment more for the
//! peer's Decline, as Linux does; and for those that cross all the same there is
//! [`crossed`](Exchange::crossed).
//!
//! # Differences that are understood
//!
//! | | |
//! |---|---|
//! | a Proposal of version 2 that offers version 1 | answered in version 1 |
//! | a Confirm of version 1 without the first contact flag | RFC 7609 has the flag only in the Accept |
//! | a RoCEv2 GID with twelve zero bytes in front of an IPv4 address | as if it were IPv4-mapped |
//! | a message of a version above 2, or with a reserved value | read over and declined (C.6) |
//! | no CONFIRM LINK in time | declined, as by Linux; RFC 7609 C.7 ends the TCP connection |
//!
//! *Source*: RFC 7609 §3.5.1, Appendix C.1 to C.6; SMC version 2 as in the wire reference §2.10,
//! §2.11 and §9; Linux `net/smc/af_smc.c`.

mod client;
mod eligibility;
mod event;
mod exchange;
mod inbox;
mod outcome;
mod server;
mod terms;
#[cfg(test)]
mod tests;

pub use eligibility::{Adapter, LocalHost, NETWORKS_MAX, PnetId, Roce, Route, Versions};
pub use event::Event;
pub use exchange::{CLC_WAIT, DECLINE_WAIT, Exchange};
pub use outcome::{Cause, Failure, Fallback, Outcome};
pub use terms::{Proposer, Terms, Wording};
