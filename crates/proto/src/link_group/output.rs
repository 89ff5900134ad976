//! What a group asks of the device, and what it tells: commands and events.

extern crate alloc;

use alloc::vec::Vec;

use sidestep_wire::llc::DeleteReason;
use sidestep_wire::{AlertToken, Diagnosis, LinkUserId};

use super::link::{AdapterId, LinkEnd, Ticket};
use super::rmb::RmbId;

/// What the device is to do. Links are named by our user IDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Make a queue pair. Answered by [`LinkGroup::handle_queue_pair`](super::LinkGroup::handle_queue_pair).
    CreateQueuePair {
        /// The link that it will be an end of.
        link: LinkUserId,
        /// On this adapter.
        adapter: AdapterId,
    },
    /// Let it take the peer's packets, with room for its messages. Answered by
    /// [`LinkGroup::handle_ready_to_receive`](super::LinkGroup::handle_ready_to_receive).
    ReadyToReceive {
        /// The link.
        link: LinkUserId,
        /// The other end. Its MTU is the smaller of both.
        peer: LinkEnd,
    },
    /// Let it send. Has no answer: messages wait for it.
    ReadyToSend {
        /// The link.
        link: LinkUserId,
    },
    /// Let the peer write into this buffer over the link. Answered by
    /// [`LinkGroup::handle_registered`](super::LinkGroup::handle_registered).
    Register {
        /// The link.
        link: LinkUserId,
        /// The buffer.
        rmb: RmbId,
    },
    /// Let it no longer. Has no answer.
    Deregister {
        /// The link.
        link: LinkUserId,
        /// The buffer.
        rmb: RmbId,
    },
    /// Send this LLC message. Answered by [`LinkGroup::handle_sent`](super::LinkGroup::handle_sent) when the peer's adapter has it;
    /// if it never will, by [`LinkGroup::handle_link_failed`](super::LinkGroup::handle_link_failed).
    Send {
        /// Over this link.
        link: LinkUserId,
        /// For the answer.
        ticket: Ticket,
        /// The whole message.
        bytes: Vec<u8>,
    },
    /// Destroy the queue pair, made or in the making, and all its registrations. Has no answer.
    Destroy {
        /// The link, which is gone or has failed.
        link: LinkUserId,
    },
}

/// What has happened to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// First contact: [`LinkGroup::introduction`](super::LinkGroup::introduction) has what our Accept or Confirm says of this link.
    Introduce(LinkUserId),
    /// First contact has failed. Unless the peer declines, decline with this; the group is ending.
    Declined(Diagnosis),
    /// The group takes connections; that of the first contact can begin.
    Established,
    /// The peer knows this buffer of ours.
    RmbReady(RmbId),
    /// The buffer could not be registered, or the peer does not take it. [`Event::RmbRemoved`] will
    /// follow.
    RmbFailed(RmbId),
    /// The buffer is in no group: the peer has let go of it.
    RmbRemoved(RmbId),
    /// The link carries connections from now on.
    LinkUp(LinkUserId),
    /// The link carries none any more.
    LinkDown(LinkUserId),
    /// The peer has answered [`LinkGroup::probe`](super::LinkGroup::probe): whatever had come to its adapter over the link it has
    /// understood.
    Answered(LinkUserId),
    /// What this connection sends goes over another link from now on (RFC 7609 §4.6).
    Moved {
        /// The connection.
        connection: AlertToken,
        /// The link that is gone; or, if it is active, has too many.
        from: LinkUserId,
        /// The one to use.
        to: LinkUserId,
    },
    /// This connection cannot go on: there is no link or no buffer of the peer for it. Reset
    /// and close it.
    Lost(AlertToken),
    /// The group is ending: reset every connection.
    Ending(DeleteReason),
    /// The group is gone, and so is all that it had of the device.
    Ended,
}
