//! What a queue pair tells: messages that have come or arrived, and why it refuses or breaks.

use std::collections::VecDeque;

use sidestep_wire::roce::Nak;
use smallvec::SmallVec;

/// What a queue pair has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer was found, and is heard from now on
    /// ([`Readiness::Pending`](crate::device::Readiness::Pending)).
    Ready,
    /// A message that was posted under this number has arrived; or why it has not.
    Completed {
        /// As given to `post_send` or `post_write`.
        id: u64,
        /// In the order in which they were posted.
        result: Result<(), Failure>,
    },
    /// A message of the peer.
    Received(SmallVec<[u8; 64]>),
    /// Nothing was heard for some time of what was sent, though it was asked for several times. Told
    /// again each time that it is asked for, until something is heard or the queue pair breaks.
    Silent,
    /// The queue pair is broken. The last event.
    Broken(Failure),
}

/// What has not been told yet.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    /// Messages among it.
    received: usize,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.received += usize::from(matches!(event, Event::Received(_)));
        self.queue.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.received -= usize::from(matches!(event, Event::Received(_)));
        Some(event)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) const fn received(&self) -> usize {
        self.received
    }
}

/// Why a queue pair broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer has refused a message of ours.
    #[error("the peer has refused a message: {0:?}")]
    Refused(Nak),
    /// The peer does not answer.
    #[error("the peer does not answer")]
    PeerSilent,
    /// The peer has asked for what it may not, or what makes no sense.
    #[error("the peer has asked for what it was refused: {0:?}")]
    PeerMisbehaved(Nak),
    /// The message came behind one that failed. Of a queue pair of hardware: it has stopped, and
    /// the reason is not told; most often its peer has asked for what it may not.
    #[error("the adapter does not say why; most often the peer has asked for what it was refused")]
    Flushed,
    /// The adapter is gone, or does what it should not.
    #[error("the adapter is gone, or does what it should not")]
    AdapterFailed,
}

/// Why a message was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// Too many wait to be completed.
    Full,
    /// Longer than the peer receives, or than the memory it is to come from.
    TooLong,
    /// The queue pair does not send, or not any more.
    NotReady,
}
