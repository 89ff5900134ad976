//! What an RDMA device is to the engine: queue pairs, keys to memory, and events.
//!
//! ```text
//!   create ──> agree_on ──> ready_to_receive ──> ready_to_send ──> post_write, post_send ──> destroy
//!                                                                       │
//!   register, deregister: what the peer writes into                     v
//!   lend, take_back: what WRITEs are sent from                      poll_event
//! ```
//!
//! The engine calls, and asks for events; how packets come and go, how time passes and who is woken
//! is between the device and its owner. The soft RNIC ([`Rnic`](crate::soft::Rnic), or its
//! [`Adapter`](crate::soft::Adapter) alone) takes datagrams and moments, a device of hardware its
//! completion channel; the owner of either has a [`Driven`]. After the owner has let it make
//! progress, it tells the engine.
//!
//! Nothing here waits. What a device cannot do it refuses; a queue pair that does not work any more
//! says so by [`Event::Broken`].

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use sidestep_wire::{Psn, QpNumber, Rkey, RmbAddress};

use crate::memory::{Registration, Shared};
pub use crate::soft::queue_pair::{AtRest, Event, Failure, Peer, PostError};

/// Memory that WRITEs may be sent from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The memory.
    pub memory: Arc<Shared>,
    /// The device's own key to it; 0 if it needs none.
    pub lkey: u32,
}

/// How packets look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Directly over Ethernet, as SMC version 1 has them.
    RoceV1,
    /// Over UDP, as SMC version 2 has them.
    RoceV2,
}

/// What has become of a queue pair that is to hear its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It has to be found out where the peer is; [`Event::Ready`] or [`Event::Broken`] tells.
    Pending,
    /// It cannot, or there is no such queue pair.
    Refused,
}

impl From<bool> for Readiness {
    fn from(is_ready: bool) -> Self {
        if is_ready { Self::Ready } else { Self::Refused }
    }
}

/// How many objects a device has for its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Keys of [`Device::register`].
    pub registrations: usize,
    /// [`Source`]s that were not taken back.
    pub sources: usize,
}

/// An RDMA device, as the engine uses it.
pub trait Device {
    /// Makes a queue pair, and chooses the first PSN that it will send; neither can be guessed.
    /// `None`: the device has no more.
    fn create(&mut self) -> Option<(QpNumber, Psn)>;

    /// Packets between a queue pair and its peer will look like this; before
    /// [`ready_to_receive`](Self::ready_to_receive). A device that knows one kind only keeps to that.
    fn agree_on(&mut self, _qp: QpNumber, _kind: Kind) {}

    /// Carries out what the peer at this address asks for, from now on or from [`Event::Ready`] on.
    fn ready_to_receive(&mut self, qp: QpNumber, address: IpAddr, peer: Peer) -> Readiness;

    /// Takes what is posted, from now on; after [`ready_to_receive`](Self::ready_to_receive). False:
    /// the device refuses.
    fn ready_to_send(&mut self, qp: QpNumber) -> bool;

    /// Posts a SEND of these bytes, which are copied, at most 8192. `id` is the next number of the
    /// queue pair, from 0 on, of SENDs and WRITEs together.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing was posted, and the number is not used up. After [`PostError::Full`]
    /// there is room again when something is completed.
    fn post_send(&mut self, qp: QpNumber, id: u64, message: &[u8]) -> Result<(), PostError>;

    /// Posts a WRITE of the `len` bytes at `at` of a source, which stay as they are until it is
    /// completed. Numbered as SENDs are.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    fn post_write(
        &mut self,
        qp: QpNumber,
        id: u64,
        from: (&Source, usize, u32),
        to: (Rkey, RmbAddress),
    ) -> Result<(), PostError>;

    /// What has happened next. Of one queue pair in order: [`Event::Ready`], if the owner was told to
    /// wait for it; [`Event::Completed`] for each number, as
    /// posted; [`Event::Received`]; [`Event::Silent`], if the device can tell before it gives up; and
    /// at last [`Event::Broken`], when nothing more of what was posted is read or sent.
    fn poll_event(&mut self) -> Option<(QpNumber, Event)>;

    /// Lets the peer of a queue pair write into memory, by a key that fits on no other queue pair.
    /// `None`: the device refuses.
    fn register(&mut self, memory: &Arc<Shared>, qp: QpNumber) -> Option<Registration>;

    /// No WRITE by this key is taken any more, from the moment of return.
    fn deregister(&mut self, rkey: Rkey);

    /// Lets WRITEs be sent from memory, over any queue pair of the device. `None`: the device
    /// refuses.
    fn lend(&mut self, memory: &Arc<Shared>) -> Option<Source>;

    /// Whether WRITEs of a queue pair can be sent from there. A device may find out only when the first one is posted,
    /// and the queue pair is broken then if they cannot; asked before, it says so and nothing breaks.
    fn can_read(&mut self, _qp: QpNumber, _source: &Source) -> bool {
        true
    }

    /// The end of it. Nothing that was posted from it is under way.
    fn take_back(&mut self, source: Source);

    /// Destroys a queue pair. What was posted is not read any more; what it has not told is not told.
    fn destroy(&mut self, qp: QpNumber, now: Duration);

    /// What a device of the same address in another process needs to go on with a queue pair. `None`: something that was
    /// posted or is coming in is incomplete, or the device cannot part with it.
    fn at_rest(&self, _qp: QpNumber) -> Option<AtRest> {
        None
    }

    /// Takes out a queue pair that is [at rest](Self::at_rest) and goes on elsewhere: its peer is not told that it is
    /// gone.
    fn take_out(&mut self, _qp: QpNumber) {}

    /// Goes on with a queue pair that was taken out elsewhere. False: the device cannot, or has one of that number.
    fn put_in(&mut self, _qp: &AtRest) -> bool {
        false
    }

    /// Lets the peer of a queue pair write into memory as it has been told. False: the device cannot, or has that key.
    fn register_as(&mut self, _told: Registration, _memory: &Arc<Shared>, _qp: QpNumber) -> bool {
        false
    }

    /// What it has, to be counted.
    fn holdings(&self) -> Holdings;

    /// Packets that a queue pair has sent again; `None`: the device does not tell.
    fn retransmissions(&self, qp: QpNumber) -> Option<u64>;
}

/// A device at its place in this machine, as its owner sees it: the owner calls
/// [`receive`](Self::receive), has the engine take the events and post what they call for, and calls
/// [`transmit`](Self::transmit); again while either says that there is more. Then it sleeps until the
/// descriptor is readable or the time of [`poll_timeout`](Self::poll_timeout) has come.
pub trait Driven: Device + AsFd {
    /// Takes what has come, and lets deadlines pass. True: there may be more.
    fn receive(&mut self, now: Duration) -> bool;

    /// Sends what is to be sent. True: there is more, and room for it.
    fn transmit(&mut self, now: Duration) -> bool;

    /// When it is to be called though nothing has come.
    fn poll_timeout(&self) -> Option<Duration>;
}
