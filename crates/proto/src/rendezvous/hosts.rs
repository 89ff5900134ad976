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
//! [`Exchange`] is one side of that for one connection. It does no I/O: who has the socket and the
//! link groups drives it.
//!
//! # Driving it
//!
//! 1. Read [`wanted`](Exchange::wanted) bytes from the socket, or fewer, never more: after the last
//!    CLC message the stream is the program's. Give them to
//!    [`handle_bytes`](Exchange::handle_bytes); the end of the stream to
//!    [`handle_end`](Exchange::handle_end).
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
//! # Who may decline when
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
//! stream or left some in it, and ends the TCP connection: [`Outcome::Broken`].
//!
//! *Source*: RFC 7609 §3.5.1, Appendix C.1 to C.6; SMC version 2 as in the wire reference §2.10,
//! §2.11 and §9; Linux `net/smc/af_smc.c`.

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use alloc::sync::Arc;
use arrayvec::ArrayVec;
use sidestep_wire::clc::{AcceptConfirmR, FirstContactR};
use sidestep_wire::{Diagnosis, Eid, Mac, PeerId, RoceGid};

use crate::link_group::{ADAPTERS_MAX, AdapterId};

mod eligibility;
mod outcome;

pub use eligibility::{Adapter, LocalHost, NETWORKS_MAX, PnetId, Roce, Route, Versions};
pub use outcome::{Cause, Failure, Fallback, Outcome};

/// What the driver is to do, or to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Server: the engine is to accept a connection from this client.
    Accept(Proposer, Terms),
    /// Client: the engine is to connect by this Accept.
    Connect(Box<AcceptConfirmR>, Terms),
    /// Server: this is the Confirm that the engine waits for.
    Confirmed(Box<AcceptConfirmR>),
    /// The rendezvous is over, and this is the last event. Nothing is read any more.
    Ended(Outcome),
}

/// The client, as its Proposal tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposer {
    /// Who it is. Zero from a Linux client that offers only version 2.
    pub peer_id: PeerId,
    /// Its adapter for the version that was chosen.
    pub gid: RoceGid,
    /// The same. Zero from a Linux client that offers only version 2.
    pub mac: Mac,
}

/// What the two sides have agreed on, and which of our adapters go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The adapters that links can be over, that of the first link first. One at least.
    pub adapters: ArrayVec<AdapterId, ADAPTERS_MAX>,
    /// What our Accept or Confirm says.
    pub wording: Wording,
}

/// What Accept and Confirm say beyond links and buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one for each connection")]
pub enum Wording {
    /// Nothing.
    V1,
    /// In version 2.
    V2 {
        /// The EID that both sides have.
        eid: Eid,
        /// What is said at first contact.
        hello: FirstContactR,
    },
}

/// One side of the rendezvous of one connection.
#[derive(Debug)]
pub struct Exchange {
    local: Arc<LocalHost>,
    route: Route,
}

// ---- verbs --------------------------------------------------------------------------------------

impl Exchange {
    /// The client's side: a Proposal, or a Decline in its place, is to be sent.
    #[must_use]
    pub fn client(local: Arc<LocalHost>, route: Route, now: Duration) -> Self {
        let _ = now;
        Self { local, route }
    }

    /// The server's side: a Proposal is expected.
    #[must_use]
    pub fn server(local: Arc<LocalHost>, route: Route, now: Duration) -> Self {
        let _ = now;
        Self { local, route }
    }

    /// The engine's Accept, after [`Event::Accept`], or its Confirm, after [`Event::Connect`].
    pub fn introduce(&mut self, message: &AcceptConfirmR, now: Duration) {
        let _ = (message, now);
        todo!()
    }

    /// This side does not want SMC for the connection any more: the engine cannot, or a policy
    /// forbids it. The Decline goes out as soon as it may; when it is too late for one, the outcome
    /// is [`Outcome::Broken`]. After the end it does nothing.
    pub fn decline(&mut self, diagnosis: Diagnosis, now: Duration) {
        let _ = (diagnosis, now);
        todo!()
    }

    /// The engine's connection carries bytes.
    pub fn established(&mut self, now: Duration) {
        let _ = now;
        todo!()
    }
}

// ---- what happens on the socket -----------------------------------------------------------------

impl Exchange {
    /// How many bytes of the stream are the next to be read; 0: none, and none may be.
    #[must_use]
    pub fn wanted(&self) -> usize {
        todo!()
    }

    /// The next bytes of the stream. Returns how many of them were taken; if it is not all, the
    /// others are none of CLC's.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Duration) -> usize {
        let _ = (bytes, now);
        todo!()
    }

    /// The stream has ended, in order or by a reset.
    pub fn handle_end(&mut self, now: Duration) {
        let _ = now;
        todo!()
    }

    /// It is [`poll_timeout`](Self::poll_timeout), or later.
    pub fn handle_timeout(&mut self, now: Duration) {
        let _ = now;
        todo!()
    }
}

// ---- what is to be done -------------------------------------------------------------------------

impl Exchange {
    /// A message to be sent, whole.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        todo!()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        todo!()
    }
}
