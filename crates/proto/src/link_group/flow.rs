//! Flows: exchanges of LLC messages that are under way, and how far each has got.
//!
//! The steps are taken in the modules of the exchanges; [`timers`](super::timers) has how long each waits.

extern crate alloc;

use alloc::collections::VecDeque;
use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::LinkUserId;
use sidestep_wire::llc::{AddLinkContinuation, DeleteReason, RtokenPair};

use super::link::Ticket;
use super::rmb::RmbId;

/// The one flow that is changing the set of links.
#[derive(Debug, Clone)]
pub(super) enum Flow {
    AddLink(AddLinkFlow),
    DeleteLink(DeleteLinkFlow),
}

/// What the group as a whole is doing.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    FirstContact(FirstContact),
    Live(Live),
    Ending(Ending),
    Ended,
}

/// The first link is confirmed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    /// [`Event::Established`](super::Event::Established) was told.
    pub(super) is_established: bool,
    /// Client: until when the server's first ADD LINK is waited for.
    pub(super) patience: Option<Duration>,
    /// Client: our CONFIRM LINK response, until it is known to have arrived.
    pub(super) unsent: Option<Ticket>,
}

/// How far a first contact has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstContact {
    /// The device makes the queue pair and registers the RMB.
    Preparing,
    /// Server: a Confirm is expected. CLC has the clock.
    Introduced,
    /// Server: the queue pair becomes ready.
    Connecting { until: Duration },
    /// Client: the request is expected. Server: the response is.
    Confirming {
        until: Duration,
        /// Server: when the request is sent again.
        repeat: Option<Duration>,
    },
}

/// An ADD LINK under way.
#[derive(Debug, Clone)]
pub(super) struct AddLinkFlow {
    /// The link that the messages go over.
    pub(super) over: LinkUserId,
    /// The link that is being made.
    pub(super) new: LinkUserId,
    pub(super) step: Step,
    pub(super) until: Duration,
}

/// How far it has got; see the picture in `add_link`.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Preparing,
    Answering,
    Exchanging(Exchange),
    Connecting,
    Confirming,
}

/// The keys that ADD LINK CONTINUATIONs tell, two in each.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) to_send: VecDeque<RtokenPair>,
    /// How many the peer has left; `None` before it has said.
    pub(super) to_come: Option<u8>,
}

/// A peer whose count of keys is not what it said before.
pub(super) struct Miscounted;

impl Exchange {
    /// Our next two, and how many they and those behind them are.
    pub(super) fn next(&mut self) -> (u8, ArrayVec<RtokenPair, 2>) {
        let remaining = self.to_send.len() as u8;
        let count = self.to_send.len().min(2);
        (remaining, self.to_send.drain(..count).collect())
    }

    /// What the peer's message says it has left must be what was left.
    pub(super) fn received(&mut self, message: &AddLinkContinuation) -> Result<(), Miscounted> {
        if self.to_come.is_some_and(|expected| expected != message.remaining) {
            return Err(Miscounted);
        }
        self.to_come = Some(message.remaining - message.pairs.len() as u8);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.to_send.is_empty() && self.to_come == Some(0)
    }
}

/// Server: a DELETE LINK under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeleteLinkFlow {
    /// The link that goes.
    pub(super) link: LinkUserId,
    /// The link that the messages go over.
    pub(super) over: LinkUserId,
    pub(super) until: Duration,
    /// How often the request was sent.
    pub(super) tries: u8,
}

/// The end of a group that both sides can still be told of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    pub(super) reason: DeleteReason,
    pub(super) is_orderly: bool,
    /// The link that our DELETE LINK went over, and which message it is.
    pub(super) announced: (LinkUserId, Ticket),
    /// It has arrived.
    pub(super) is_sent: bool,
    /// The peer has sent its own.
    pub(super) is_heard: bool,
    pub(super) until: Duration,
}

/// RMBs that one DELETE RKEY of ours names: as many as fit in version 1. In version 2 more would
/// make the message longer than 44 bytes, and Linux has one place for all such messages.
pub(super) const DELETED_MAX: usize = 8;

/// An exchange of ours about RMBs.
#[derive(Debug, Clone)]
pub(super) struct RkeyFlow {
    /// The link that it goes over.
    pub(super) over: LinkUserId,
    pub(super) what: What,
    pub(super) until: Duration,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Confirm(RmbId),
    Delete(ArrayVec<RmbId, DELETED_MAX>),
}
