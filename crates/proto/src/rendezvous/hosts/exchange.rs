//! One side of the rendezvous of one connection: whose turn it is, and until when.
//!
//! ```text
//!   client   Proposed ──Accept──> Connecting ──our Confirm───────────────┐
//!                                                                       v
//!   server   Listening ─Proposal─> Accepting ─our Accept─> Accepted ─> Linking ──> Ended
//!                                                          Confirm      │    established
//!                                                                       v
//!                                             no CONFIRM LINK came:  Yielding ──> Ended
//!
//!   any stage ──Decline, ours or the peer's; what is no message; silence; the end of TCP──> Ended
//! ```

extern crate alloc;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use sidestep_wire::Diagnosis;
use sidestep_wire::clc::{
    AcceptConfirm, AcceptConfirmR, Decline, EMITTED_LEN_MAX, Header, Message, MessageType,
    Proposal, Version,
};

use super::eligibility::{LocalHost, Route, Versions};
use super::event::Event;
use super::inbox::{Inbox, Unexpected};
use super::outcome::{Cause, Failure, Fallback, Outcome};
use super::{client, server};

/// How long a message of the peer is waited for, as by Linux. It holds for the whole message.
pub const CLC_WAIT: Duration = Duration::from_secs(6);
/// How long the peer's Decline is waited for before ours, when CONFIRM LINK has not come.
pub const DECLINE_WAIT: Duration = Duration::from_secs(1);

/// One side of the rendezvous of one connection.
#[derive(Debug)]
pub struct Exchange {
    local: Arc<LocalHost>,
    route: Route,
    stage: Stage,
    /// When what is expected in this stage must have come.
    until: Option<Duration>,
    /// In which a Decline is written, as the peer may know no other.
    version: Version,
    inbox: Inbox,
    /// We shall decline as soon as it is our turn.
    refused: Option<Cause>,
    /// Nothing comes from the peer any more.
    has_left: bool,
    /// We have declined when the peer could do so, too.
    may_be_crossed: bool,
    transmits: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
}

#[derive(Debug)]
enum Stage {
    /// Client: an Accept is expected, of one of these versions.
    Proposed(Versions),
    /// Client: the engine prepares the Confirm.
    Connecting,
    /// Server: a Proposal is expected.
    Listening,
    /// Server: the engine prepares the Accept.
    Accepting,
    /// Server: a Confirm is expected to this Accept.
    Accepted(Box<AcceptConfirmR>),
    /// All of CLC is said. The engine gets the connection ready.
    Linking { first_contact: bool },
    /// We are about to decline, if the peer does not.
    Yielding(Cause),
    /// It is decided.
    Ended,
}

// ---- verbs --------------------------------------------------------------------------------------

impl Exchange {
    /// The client's side: it sends a Proposal, or a Decline if there is nothing to propose.
    #[must_use]
    pub fn client(local: Arc<LocalHost>, route: Route, now: Duration) -> Self {
        let mut exchange = Self::new(local, route);
        match client::propose(&exchange.local, &exchange.route) {
            Ok(proposal) => exchange.propose(proposal, now),
            Err(cause) => exchange.refuse(cause),
        }
        exchange
    }

    /// The client's side of a connection that is not to be SMC: a Decline is to be sent in place of a Proposal.
    #[must_use]
    pub fn unwilling(local: Arc<LocalHost>, route: Route, diagnosis: Diagnosis) -> Self {
        let mut exchange = Self::new(local, route);
        exchange.refuse(Cause::Driver(diagnosis));
        exchange
    }

    /// The server's side: a Proposal is expected.
    #[must_use]
    pub fn server(local: Arc<LocalHost>, route: Route, now: Duration) -> Self {
        let mut exchange = Self::new(local, route);
        exchange.expect(Stage::Listening, CLC_WAIT, now);
        exchange
    }

    fn new(local: Arc<LocalHost>, route: Route) -> Self {
        Self {
            local,
            route,
            stage: Stage::Ended,
            until: None,
            version: Version::V1,
            inbox: Inbox::default(),
            refused: None,
            has_left: false,
            may_be_crossed: false,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    fn propose(&mut self, proposal: Proposal, now: Duration) {
        self.version = proposal.version;
        let offered = Versions { v1: proposal.v1.is_some(), v2: proposal.v2.is_some() };
        self.expect(Stage::Proposed(offered), CLC_WAIT, now);
        self.transmit(&proposal.into());
    }

    /// The engine's Accept, after [`Event::Accept`], or its Confirm, after [`Event::Connect`].
    pub fn introduce(&mut self, message: &AcceptConfirmR, now: Duration) {
        match self.stage {
            Stage::Accepting => {
                self.expect(Stage::Accepted(Box::new(message.clone())), CLC_WAIT, now);
            }
            Stage::Connecting => {
                self.enter(Stage::Linking { first_contact: message.is_first_contact() });
            }
            _ => return,
        }
        self.transmit(&message.clone().into());
    }

    /// This side does not want SMC for the connection any more: the engine cannot, or a policy
    /// forbids it. The Decline goes out as soon as it may. When it is too late for one, the outcome
    /// is [`Outcome::Broken`]. After the end it does nothing.
    pub fn decline(&mut self, diagnosis: Diagnosis, now: Duration) {
        let cause = Cause::Driver(diagnosis);
        match self.stage {
            Stage::Proposed(_) | Stage::Listening | Stage::Accepted(_) => {
                self.refused.get_or_insert(cause);
            }
            Stage::Connecting | Stage::Accepting => self.refuse(cause),
            Stage::Linking { first_contact: true } if self.has_left => {
                self.end(Outcome::Broken(Failure::Left));
            }
            Stage::Linking { first_contact: true } => {
                // Without a word from the peer it may be about to say the same, or saying it.
                if diagnosis == Diagnosis::TIMEOUT_CL || !self.inbox.is_empty() {
                    self.expect(Stage::Yielding(cause), DECLINE_WAIT, now);
                } else {
                    self.refuse(cause);
                }
            }
            Stage::Linking { first_contact: false } => self.end(Outcome::Broken(Failure::TooLate)),
            Stage::Yielding(_) | Stage::Ended => {}
        }
    }

    /// The engine's connection carries bytes.
    pub fn established(&mut self) {
        let Stage::Linking { first_contact } = self.stage else { return };
        if self.inbox.is_empty() {
            self.end(Outcome::Agreed { version: self.version, first_contact });
        } else {
            self.end(Outcome::Broken(Failure::Protocol));
        }
    }
}

// ---- what happens on the socket -----------------------------------------------------------------

impl Exchange {
    /// How many bytes of the stream are the next to be read; 0: none, and none may be.
    #[must_use]
    pub fn wanted(&self) -> usize {
        let is_heard = match self.stage {
            Stage::Proposed(_) | Stage::Listening | Stage::Accepted(_) | Stage::Yielding(_) => true,
            Stage::Linking { first_contact } => first_contact,
            Stage::Connecting | Stage::Accepting | Stage::Ended => false,
        };
        if is_heard && !self.has_left { self.inbox.wanted() } else { 0 }
    }

    /// The next bytes of the stream. Returns how many of them were taken; if it is not all, the
    /// others are none of CLC's.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        loop {
            let rest = &bytes[taken..];
            let next = &rest[..self.wanted().min(rest.len())];
            if next.is_empty() {
                return taken;
            }
            taken += next.len();
            if let Some(received) = self.inbox.take(next, self.expected()) {
                self.handle_message(received);
            }
        }
    }

    /// After [`Outcome::Tcp`], of the bytes that the peer sends next: how many of the first ones are
    /// not its program's, but a Decline that has crossed ours. They are to be dropped.
    ///
    /// A Decline is so short that it comes in one piece.
    #[must_use]
    pub fn crossed(&self, bytes: &[u8]) -> usize {
        if !self.may_be_crossed {
            return 0;
        }
        let Some(Ok((_, len))) = bytes.get(..Header::LEN).map(Header::extent) else { return 0 };
        let first = bytes.get(..len.into()).map(Message::parse);
        if matches!(first, Some(Ok(Message::Decline(_)))) { len.into() } else { 0 }
    }

    /// The stream has ended in order (FIN).
    pub fn handle_end(&mut self) {
        match self.stage {
            Stage::Listening if self.inbox.is_empty() => {
                self.end(Outcome::Tcp(Fallback::Ours(Cause::Silent)));
            }
            // It may have begun, sent all by RDMA, and closed, before we know of the first of that.
            Stage::Linking { .. } => self.has_left = true,
            Stage::Ended => {}
            _ => self.end(Outcome::Broken(Failure::Left)),
        }
    }

    /// The connection was reset, or has failed otherwise.
    pub fn handle_reset(&mut self) {
        if !matches!(self.stage, Stage::Ended) {
            self.end(Outcome::Broken(Failure::Left));
        }
    }

    /// It is [`poll_timeout`](Self::poll_timeout), or later.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.until.is_none_or(|until| now < until) {
            return;
        }
        match self.stage {
            Stage::Yielding(cause) if self.inbox.is_empty() => self.refuse(cause),
            _ => self.end(Outcome::Broken(Failure::TimedOut)),
        }
    }
}

// ---- what is to be done -------------------------------------------------------------------------

impl Exchange {
    /// A message to be sent, whole.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.transmits.pop_front()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Duration> {
        self.until
    }
}

// ---- messages -----------------------------------------------------------------------------------

impl Exchange {
    const fn expected(&self) -> Option<MessageType> {
        match self.stage {
            Stage::Proposed(_) => Some(MessageType::Accept),
            Stage::Listening => Some(MessageType::Proposal),
            Stage::Accepted(_) => Some(MessageType::Confirm),
            _ => None,
        }
    }

    fn handle_message(&mut self, received: Result<Message, Unexpected>) {
        match received {
            Ok(Message::Proposal(proposal)) => self.handle_proposal(&proposal),
            Ok(Message::Accept(accept)) => self.handle_accept(accept),
            Ok(Message::Confirm(confirm)) => self.handle_confirm(confirm),
            Ok(Message::Decline(decline)) => self.end(Outcome::Tcp(Fallback::Peers(decline))),
            Err(Unexpected::Protocol) => self.end(Outcome::Broken(Failure::Protocol)),
            Err(Unexpected::Reserved) => {
                // Of the editions that we know, the latest is the nearest to the peer's.
                self.version = Version::V2;
                self.turn_down(Cause::Reserved);
            }
        }
    }

    fn handle_proposal(&mut self, proposal: &Proposal) {
        self.version = proposal.version;
        let chosen = self.willing();
        match chosen.and_then(|()| server::choose(proposal, &self.local, &self.route)) {
            Ok((proposer, terms)) => {
                self.enter(Stage::Accepting);
                self.events.push_back(Event::Accept(proposer, terms));
            }
            Err(cause) => self.turn_down(cause),
        }
    }

    fn handle_accept(&mut self, accept: AcceptConfirm) {
        let Stage::Proposed(offered) = self.stage else { return };
        self.version = accept.version();
        let checked = self.willing();
        match checked.and_then(|()| client::check_accept(accept, offered, &self.local, &self.route))
        {
            Ok((accept, terms)) => {
                self.enter(Stage::Connecting);
                self.events.push_back(Event::Connect(Box::new(accept), terms));
            }
            Err(cause) => self.turn_down(cause),
        }
    }

    fn handle_confirm(&mut self, confirm: AcceptConfirm) {
        let Stage::Accepted(accept) = &self.stage else { return };
        let checked = self.willing().and_then(|()| server::check_confirm(confirm, accept));
        match checked {
            Ok(confirm) => {
                self.version = confirm.version();
                self.enter(Stage::Linking { first_contact: confirm.is_first_contact() });
                self.events.push_back(Event::Confirmed(Box::new(confirm)));
            }
            Err(cause) => self.turn_down(cause),
        }
    }

    /// Whether the driver still wants SMC.
    fn willing(&self) -> Result<(), Cause> {
        self.refused.map_or(Ok(()), Err)
    }

    /// Declines in place of what is expected from us next. Behind our Accept of a subsequent contact
    /// nothing is, and the client is already committed (C.3).
    fn turn_down(&mut self, cause: Cause) {
        match &self.stage {
            Stage::Accepted(accept) if !accept.is_first_contact() => {
                self.end(Outcome::Broken(Failure::TooLate));
            }
            _ => self.refuse(cause),
        }
    }

    fn refuse(&mut self, cause: Cause) {
        // The client's Confirm is sent, and behind it either side may decline.
        self.may_be_crossed =
            matches!(self.stage, Stage::Accepted(_) | Stage::Linking { .. } | Stage::Yielding(_));
        let (peer_id, diagnosis) = (self.local.peer_id, cause.diagnosis());
        let decline = match self.version {
            Version::V1 => Decline::v1(peer_id, diagnosis),
            Version::V2 => Decline::v2(peer_id, diagnosis),
        };
        let out_of_sync = diagnosis == Diagnosis::SYNCERR;
        self.transmit(&Decline { out_of_sync, ..decline }.into());
        self.end(Outcome::Tcp(Fallback::Ours(cause)));
    }

    /// A message of ours can be emitted: the buffer is long enough, a Proposal is made to be
    /// consistent, and the engine's Accept has the [`Wording`](super::Wording) that it was given.
    fn transmit(&mut self, message: &Message) {
        let mut room = [0; EMITTED_LEN_MAX];
        match message.emit(&mut room) {
            Ok(len) => self.transmits.push_back(room[..len].to_vec()),
            Err(error) => debug_assert!(false, "{message:?}: {error}"),
        }
    }
}

// ---- stages -------------------------------------------------------------------------------------

impl Exchange {
    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.until = None;
    }

    /// Enters a stage in which a message of the peer is expected.
    fn expect(&mut self, stage: Stage, wait: Duration, now: Duration) {
        self.stage = stage;
        self.until = Some(now + wait);
    }

    fn end(&mut self, outcome: Outcome) {
        self.enter(Stage::Ended);
        self.events.push_back(Event::Ended(outcome));
    }
}
