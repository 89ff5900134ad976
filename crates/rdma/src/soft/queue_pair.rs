//! A queue pair: one end of a reliable connection.
//!
//! ```text
//!   new ──> ready_to_receive(peer) ──> ready_to_send ──> (broken)
//!   deaf     answers requests           asks as well       answers with its refusal only
//! ```
//!
//! The order of calls: any number of `handle_packet`, the program's `post_…` and
//! [`QueuePair::handle_timeout`], then [`QueuePair::poll_transmit`] and [`QueuePair::poll_event`]
//! until each has nothing more, then sleep until [`QueuePair::poll_timeout`].
//!
//! One answer goes out for all that was handled before a `poll_transmit`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sidestep_wire::roce::{self, Bth, Headers, Message, Opcode, Packet, Place, With};
use sidestep_wire::{Psn, QpNumber, Rkey, RmbAddress};
use smallvec::SmallVec;

use super::event::Events;
pub use super::event::{Event, Failure, PostError};
use super::reorder::Reorder;
use super::requester::{Content, Part, Requester};
use super::responder::{MESSAGE_LEN_MAX, Responder};
use crate::memory::{Regions, Shared};

/// The other end, as the peer has described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its queue pair.
    pub qp: QpNumber,
    /// The first PSN it will send.
    pub first_psn: Psn,
    /// The longest payload of a packet, in bytes: the smaller of what both ends have offered.
    pub mtu: u16,
}

/// What is left of a queue pair at rest: nothing that it has sent is unanswered, and nothing that has come is
/// incomplete. Another process goes on with it, and its peer cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtRest {
    /// Its number, which the peer's packets bear.
    pub number: QpNumber,
    /// The next PSN that it sends.
    pub next_psn: Psn,
    /// The other end; `first_psn` is the next that is expected of it.
    pub peer: Peer,
    /// Where that is.
    pub address: IpAddr,
    /// The peer's messages that were completed, modulo 2^24, as acknowledgements tell.
    pub completed: u32,
}

#[derive(Debug)]
enum State {
    Deaf,
    Receives(Box<Halves>),
    Sends(Box<Halves>),
    Broken(Box<Halves>),
}

#[derive(Debug)]
struct Halves {
    peer: QpNumber,
    requester: Requester,
    responder: Responder,
}

/// One end of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    number: QpNumber,
    first_psn: Psn,
    state: State,
    events: Events,
}

impl QueuePair {
    /// A queue pair that hears nothing yet. `first_psn` is the first that it will send.
    #[must_use]
    pub fn new(number: QpNumber, first_psn: Psn) -> Self {
        Self { number, first_psn, state: State::Deaf, events: Events::default() }
    }

    /// From now on the peer's requests are carried out.
    pub fn ready_to_receive(&mut self, peer: Peer) {
        let mtu = usize::from(peer.mtu);
        let requester = Requester::new(self.first_psn, mtu);
        let responder = Responder::new(self.number, peer.first_psn, mtu);
        self.state = State::Receives(Box::new(Halves { peer: peer.qp, requester, responder }));
    }

    /// From now on messages can be posted, too. No effect but after
    /// [`ready_to_receive`](Self::ready_to_receive).
    pub fn ready_to_send(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Deaf) {
            State::Receives(halves) => State::Sends(halves),
            other => other,
        };
    }

    /// One that goes on where another was at rest. It acknowledges at once what that has received: the peer may wait
    /// for it.
    #[must_use]
    pub fn resume(from: &AtRest) -> Self {
        let mut this = Self::new(from.number, from.next_psn);
        this.ready_to_receive(from.peer);
        this.ready_to_send();
        if let State::Sends(halves) = &mut this.state {
            halves.responder.resume(from.completed);
        }
        this
    }

    /// What another process needs to go on with it. `None`: it is not at rest, or is not ready to send.
    #[must_use]
    pub fn at_rest(&self, address: IpAddr) -> Option<AtRest> {
        let State::Sends(halves) = &self.state else { return None };
        let Halves { peer, requester, responder } = &**halves;
        let (next_psn, mtu) = requester.at_rest()?;
        let (first_psn, completed) = responder.at_rest()?;
        let mtu = mtu as u16;
        let peer = Peer { qp: *peer, first_psn, mtu };
        let has_told = !self.has_events();
        has_told.then_some(AtRest { number: self.number, next_psn, peer, address, completed })
    }

    /// Posts a message that the peer receives.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing was posted.
    pub fn post_send(&mut self, id: u64, message: &[u8]) -> Result<(), PostError> {
        if message.len() > MESSAGE_LEN_MAX {
            return Err(PostError::TooLong);
        }
        self.post(id, Content::Send(SmallVec::from_slice(message)))
    }

    /// Posts a WRITE of the `len` bytes at `at` of some memory, which stay as they are until it is
    /// completed.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing was posted.
    pub fn post_write(
        &mut self,
        id: u64,
        (from, at, len): (&Arc<Shared>, usize, u32),
        (rkey, to): (Rkey, RmbAddress),
    ) -> Result<(), PostError> {
        let end = at.checked_add(len as usize);
        if end.is_none_or(|end| end > from.len()) {
            return Err(PostError::TooLong);
        }
        self.post(id, Content::Write { from: Arc::clone(from), at, len, to, rkey })
    }

    fn post(&mut self, id: u64, content: Content) -> Result<(), PostError> {
        match &mut self.state {
            State::Sends(halves) => halves.requester.post(id, content),
            _ => Err(PostError::NotReady),
        }
    }

    /// A packet has come in that is for this queue pair, from its peer's address, and undamaged.
    pub(super) fn handle_packet(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        early: &mut Reorder<'_>,
        now: Duration,
    ) {
        let Headers { bth, aeth, .. } = packet.headers;
        let is_answer = bth.opcode == Opcode::Acknowledge;
        let result = match &mut self.state {
            State::Deaf => return,
            State::Receives(_) if is_answer => return,
            State::Sends(halves) if is_answer => {
                let Some(aeth) = aeth else { return };
                halves.requester.handle_answer(bth.psn, aeth.syndrome, now, &mut self.events)
            }
            State::Receives(halves) | State::Sends(halves) => halves
                .responder
                .handle_request(packet, regions, early, &mut self.events, now)
                .map_err(Failure::PeerMisbehaved),
            State::Broken(halves) => {
                if !is_answer {
                    halves.responder.repeat_refusal(now);
                }
                return;
            }
        };
        if let Err(failure) = result {
            self.break_down(failure);
        }
    }

    /// The time that [`poll_timeout`](Self::poll_timeout) has told may have come.
    pub fn handle_timeout(&mut self, now: Duration) {
        let (State::Receives(halves) | State::Sends(halves)) = &mut self.state else { return };
        halves.responder.handle_timeout(now);
        if let Err(failure) = halves.requester.handle_timeout(now, &mut self.events) {
            self.break_down(failure);
        }
    }

    fn break_down(&mut self, failure: Failure) {
        self.state = match std::mem::replace(&mut self.state, State::Deaf) {
            State::Receives(mut halves) | State::Sends(mut halves) => {
                halves.requester.fail(Failure::Flushed, &mut self.events);
                self.events.push(Event::Broken(failure));
                State::Broken(halves)
            }
            other => other,
        };
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match &self.state {
            State::Receives(halves) | State::Sends(halves) => {
                halves.requester.deadline().into_iter().chain(halves.responder.deadline()).min()
            }
            State::Deaf | State::Broken(_) => None,
        }
    }

    /// What has happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Whether [`poll_event`](Self::poll_event) has something to tell.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Writes the next packet to the front of `out`, without its ICRC, and returns its length.
    /// `None`: there is none now. `out` has room for the MTU and 32 bytes of headers.
    pub fn poll_transmit(&mut self, out: &mut [u8], now: Duration) -> Option<usize> {
        let answer = self.write_answer(out);
        answer.or_else(|| self.next_request().and_then(|part| self.write_request(&part, out, now)))
    }

    /// Whether there is something to answer.
    pub(super) const fn has_answer(&self) -> bool {
        match &self.state {
            State::Deaf => false,
            State::Receives(halves) | State::Sends(halves) | State::Broken(halves) => {
                halves.responder.has_answer()
            }
        }
    }

    /// The next packet that is no answer.
    pub(super) fn next_request(&self) -> Option<Part> {
        match &self.state {
            State::Sends(halves) => halves.requester.next_part(),
            _ => None,
        }
    }

    /// Writes the answer, as [`poll_transmit`](Self::poll_transmit) does.
    pub(super) fn write_answer(&mut self, out: &mut [u8]) -> Option<usize> {
        match &mut self.state {
            State::Deaf => None,
            State::Receives(halves) | State::Sends(halves) | State::Broken(halves) => {
                halves.answer(out)
            }
        }
    }

    /// Writes what [`next_request`](Self::next_request) has told.
    pub(super) fn write_request(
        &mut self,
        part: &Part,
        out: &mut [u8],
        now: Duration,
    ) -> Option<usize> {
        let State::Sends(halves) = &mut self.state else { return None };
        halves.requester.sent(part, now);
        halves.request(part, out)
    }

    /// Whether of packets that are sent together only the first arrives, again and again.
    #[must_use]
    pub const fn stumbles(&self) -> bool {
        match &self.state {
            State::Sends(halves) => halves.requester.stumbles(),
            _ => false,
        }
    }

    /// Packets that were sent again.
    #[must_use]
    pub const fn retransmissions(&self) -> u64 {
        match &self.state {
            State::Deaf => 0,
            State::Receives(halves) | State::Sends(halves) | State::Broken(halves) => {
                halves.requester.repeated()
            }
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> QpNumber {
        self.number
    }

    /// Everything of the peer before this PSN was carried out; `None` before there is a peer.
    #[must_use]
    pub fn expected_psn(&self) -> Option<Psn> {
        match &self.state {
            State::Deaf => None,
            State::Receives(halves) | State::Sends(halves) | State::Broken(halves) => {
                Some(halves.responder.expected())
            }
        }
    }
}

impl Halves {
    fn answer(&mut self, out: &mut [u8]) -> Option<usize> {
        let (psn, aeth) = self.responder.take_answer()?;
        let bth = Bth {
            opcode: Opcode::Acknowledge,
            solicited: false,
            destination: self.peer,
            ack_request: false,
            psn,
        };
        Headers { bth, reth: None, aeth: Some(aeth), immediate: None }.emit(0, out).ok()
    }

    fn request(&self, part: &Part, out: &mut [u8]) -> Option<usize> {
        let is_end = matches!(part.place, Place::Last | Place::Only);
        let bth = Bth {
            opcode: Opcode::Part(part.message, part.place, With::Nothing),
            solicited: is_end && part.message == Message::Send,
            destination: self.peer,
            ack_request: part.ack_request,
            psn: part.psn,
        };
        let headers = Headers { bth, reth: part.reth, aeth: None, immediate: None };
        let at = headers.emit(part.len, out).ok()?;
        let (payload, rest) = out.get_mut(at..)?.split_at_mut_checked(part.len)?;
        self.requester.copy_payload(part, payload);
        let pad = roce::pad_len(part.len);
        rest.get_mut(..pad)?.fill(0);
        Some(at + part.len + pad)
    }
}

#[cfg(test)]
mod tests;
