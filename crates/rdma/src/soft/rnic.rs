//! The soft RNIC as one object: an adapter, the port it is at, and one call that makes progress.
//!
//! ```text
//!          ┌───────────────────── turn(now) ─────────────────────┐
//!   Port ──> Inbox ──> Adapter::handle_datagram      receive(now)│
//!                      Adapter::handle_timeout                   │
//!                      Adapter::poll_transmit ──> Outbox ──> Port
//!                                         └─> Faults ──┘    transmit(now)
//! ```
//!
//! There is no thread in it. Its owner calls [`Rnic::receive`], takes the events of the
//! [adapter](Rnic::adapter), posts what they call for, and calls [`Rnic::transmit`]: what was posted
//! and the acknowledgements of what has come leave together. It does so again while either says that
//! there is more; then it sleeps until [the descriptor](AsFd) is readable or the time of
//! [`Rnic::poll_timeout`] has come. One that has nothing to post calls [`Rnic::turn`].
//!
//! Nothing is allocated for a datagram, unless it meets a bad network.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use sidestep_wire::{Psn, QpNumber, Rkey, RmbAddress};

use super::adapter::{Adapter, Run};
use super::event::{Event, PostError};
use super::port::batch::{Inbox, Outbox, SEGMENTS_MAX};
use super::port::{OpenError, Port, Sent, Settings};
use super::queue_pair::{AtRest, Peer};
use super::relay::{Predecessors, Succession, Successor, deliver};
use super::sys;
use crate::device::{Device, Driven, Holdings, Readiness, Source};
use crate::faults::{Fate, Faults, Plan};
use crate::memory::{Registration, Shared};

/// Inboxes and outboxes of one turn: a peer that floods us does not keep us from our deadlines.
const BATCHES_MAX: usize = 8;
/// When the kernel is asked again that had no memory.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// An adapter at its port.
#[derive(Debug)]
pub struct Rnic {
    adapter: Adapter,
    port: Port,
    inbox: Inbox,
    outbox: Outbox,
    /// What is between the adapter and the port, if the network is to be bad.
    network: Option<Faults<Bundle>>,
    /// The processes that had this place before, and are passed on what is for them.
    predecessors: Predecessors,
    /// The process that has this place now, and passes on what is for this one.
    successor: Option<Successor>,
    /// Watches the sockets.
    epoll: OwnedFd,
    /// Why the outbox is not empty.
    obstacle: Option<Obstacle>,
}

#[derive(Clone, Copy, Debug)]
enum Obstacle {
    /// The sender is full, and watched.
    Full,
    /// Until this time.
    NoMemory(Duration),
}

/// A datagram on its way through a bad network.
#[derive(Clone, Debug)]
struct Bundle {
    to: IpAddr,
    bytes: Box<[u8]>,
}

impl AsRef<[u8]> for Bundle {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Rnic {
    /// The soft RNIC of an address of this host.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(address: IpAddr, settings: &Settings) -> Result<Self, OpenError> {
        Self::at(Port::open(address, settings)?, Vec::new())
    }

    /// The one that takes the place of another process's, whose queue pairs go on there.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn take_over(
        address: IpAddr,
        settings: &Settings,
        succession: Succession,
    ) -> Result<Self, OpenError> {
        let Succession { receiver, relays } = succession;
        Self::at(Port::take_over(address, settings, receiver)?, relays)
    }

    fn at(port: Port, relays: Vec<(u8, OwnedFd)>) -> Result<Self, OpenError> {
        let address = port.address();
        let mut adapter = Adapter::new(address, port.source_port());
        let (predecessors, lane) = Predecessors::new(relays);
        adapter.set_lane(lane);
        let watch = || {
            let epoll = sys::epoll()?;
            sys::watch(epoll.as_fd(), port.receiver(), libc::EPOLLIN)?;
            Ok(epoll)
        };
        let epoll = watch().map_err(|error| OpenError::new(address, error))?;
        Ok(Self {
            adapter,
            port,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            network: None,
            predecessors,
            successor: None,
            epoll,
            obstacle: None,
        })
    }

    /// What another process needs to take this place. From now on this one has what that one passes on, and when
    /// that has ended, what comes.
    ///
    /// # Errors
    ///
    /// The kernel has no descriptors left; nothing has changed.
    pub fn give_way(&mut self) -> io::Result<Succession> {
        let receiver = self.port.receiver().try_clone_to_owned()?;
        let mut relays = self.predecessors.relays()?;
        let (successor, relay) = Successor::new()?;
        for lane in self.adapter.lanes() {
            relays.push((lane, relay.try_clone()?));
        }
        sys::watch(self.epoll.as_fd(), successor.as_fd(), libc::EPOLLIN)?;
        if self.successor.replace(successor).is_none() {
            sys::watch(self.epoll.as_fd(), self.port.receiver(), 0)?;
        }
        Ok(Succession { receiver, relays })
    }

    /// Whether another process has this place.
    #[must_use]
    pub const fn has_successor(&self) -> bool {
        self.successor.is_some()
    }

    /// What it sends goes through a bad network from now on.
    pub fn spoil(&mut self, plan: Plan) {
        self.network = Some(Faults::new(plan));
    }

    /// Its queue pairs, memory and events.
    pub const fn adapter(&mut self) -> &mut Adapter {
        &mut self.adapter
    }

    /// Its port, for addresses, MTUs and counters.
    #[must_use]
    pub const fn port(&self) -> &Port {
        &self.port
    }

    /// Takes what has come, lets deadlines pass, sends what is to be sent. True: there is more to
    /// do at once.
    pub fn turn(&mut self, now: Duration) -> bool {
        let has_come = self.receive(now);
        self.transmit(now) | has_come
    }

    /// The first half of a [turn](Self::turn): takes what has come, and lets deadlines pass. True:
    /// more may have come.
    pub fn receive(&mut self, now: Duration) -> bool {
        let mut has_more = true;
        for _ in 0..BATCHES_MAX {
            has_more = self.take();
            deliver(&self.inbox, &mut self.adapter, &mut self.predecessors, now);
            if !has_more {
                break;
            }
        }
        // Only now: a turn that comes late looks first whether the answer has come meanwhile.
        self.adapter.handle_timeout(now);
        has_more
    }

    /// Takes what has come, or what the successor passes on. True: there may be more.
    fn take(&mut self) -> bool {
        let Some(successor) = &self.successor else { return self.port.receive(&mut self.inbox) };
        successor.receive(&mut self.inbox).unwrap_or_else(|| {
            self.successor = None;
            // If it fails, peers repeat in vain what they send, and break.
            let _ = sys::watch(self.epoll.as_fd(), self.port.receiver(), libc::EPOLLIN);
            true
        })
    }

    /// The other half of a [turn](Self::turn): sends what is to be sent, as far as the kernel takes
    /// it. True: there is more, and room for it.
    pub fn transmit(&mut self, now: Duration) -> bool {
        if let Some(Obstacle::NoMemory(until)) = self.obstacle
            && now < until
        {
            return false;
        }
        if self.adapter.loses_runs() && self.port.segments_max() > 1 {
            // If the kernel keeps the checksum, runs are gone all the same.
            let _ = self.port.stop_runs();
        }
        for _ in 0..BATCHES_MAX {
            self.fill_outbox(now);
            if self.outbox.is_empty() {
                return false;
            }
            let sent = self.port.send(&mut self.outbox);
            self.meet(sent, now);
            if self.obstacle.is_some() {
                return false;
            }
        }
        true
    }

    fn fill_outbox(&mut self, now: Duration) {
        let segments_max = match &self.network {
            Some(network) if !network.is_instant() => 1,
            _ => self.port.segments_max(),
        };
        while let Some(room) = self.outbox.room() {
            // It has left before whatever is next.
            if let Some(Bundle { to, bytes }) = self.network.as_mut().and_then(|it| it.pop(now)) {
                let len = bytes.len();
                room[..len].copy_from_slice(&bytes);
                self.outbox.push(Run { to, len, segment_len: len });
                continue;
            }
            let Some(run) = self.adapter.poll_transmit(room, segments_max, now) else { return };
            let bytes = &mut room[..run.len];
            let leaves = match &mut self.network {
                Some(network) => passes(network, &self.port, run, bytes, now),
                None => true,
            };
            if leaves {
                self.outbox.push(run);
            }
        }
    }

    /// Watches the sender as long as it is full.
    fn meet(&mut self, sent: Sent, now: Duration) {
        let was_full = matches!(self.obstacle, Some(Obstacle::Full));
        self.obstacle = match sent {
            Sent::All => None,
            Sent::Full => Some(Obstacle::Full),
            Sent::NoMemory => Some(Obstacle::NoMemory(now + NO_MEMORY_PAUSE)),
        };
        let is_full = sent == Sent::Full;
        if is_full != was_full {
            let events = if is_full { libc::EPOLLOUT } else { 0 };
            // It has place for it, and if not, the next turn tries again.
            let _ = sys::watch(self.epoll.as_fd(), self.port.sender(), events);
        }
    }

    /// When [`turn`](Self::turn) is to be called though nothing has come.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let sending = match self.obstacle {
            Some(Obstacle::NoMemory(until)) => Some(until),
            // The descriptor tells.
            Some(Obstacle::Full) => None,
            None => self.network.as_ref().and_then(Faults::poll_timeout),
        };
        [self.adapter.poll_timeout(), sending].into_iter().flatten().min()
    }
}

/// A run meets the network. True: it leaves as it is. Where one of its datagrams has another fate, or
/// they take their time, they are all in the network now, one by one.
fn passes(
    network: &mut Faults<Bundle>,
    port: &Port,
    run: Run,
    bytes: &mut [u8],
    now: Duration,
) -> bool {
    let Run { to, len, segment_len } = run;
    let mut fates = [Fate::Once; SEGMENTS_MAX];
    fates[..len.div_ceil(segment_len)].fill_with(|| network.draw());
    if network.is_instant() && fates.iter().all(|fate| *fate == Fate::Once) {
        return true;
    }
    if len > segment_len {
        port.seal_singles(run, bytes);
    }
    for (datagram, fate) in bytes.chunks(segment_len).zip(fates) {
        network.submit(Bundle { to, bytes: datagram.into() }, fate, now);
    }
    false
}

/// Its adapter's.
impl Device for Rnic {
    fn create(&mut self) -> Option<(QpNumber, Psn)> {
        Device::create(&mut self.adapter)
    }

    fn ready_to_receive(&mut self, qp: QpNumber, address: IpAddr, peer: Peer) -> Readiness {
        self.adapter.ready_to_receive(qp, address, peer).into()
    }

    fn ready_to_send(&mut self, qp: QpNumber) -> bool {
        self.adapter.ready_to_send(qp)
    }

    fn post_send(&mut self, qp: QpNumber, id: u64, message: &[u8]) -> Result<(), PostError> {
        self.adapter.post_send(qp, id, message)
    }

    fn post_write(
        &mut self,
        qp: QpNumber,
        id: u64,
        from: (&Source, usize, u32),
        to: (Rkey, RmbAddress),
    ) -> Result<(), PostError> {
        self.adapter.post_write(qp, id, from, to)
    }

    fn poll_event(&mut self) -> Option<(QpNumber, Event)> {
        self.adapter.poll_event()
    }

    fn register(&mut self, memory: &Arc<Shared>, qp: QpNumber) -> Option<Registration> {
        self.adapter.register(memory, qp)
    }

    fn deregister(&mut self, rkey: Rkey) {
        self.adapter.deregister(rkey);
    }

    fn lend(&mut self, memory: &Arc<Shared>) -> Option<Source> {
        self.adapter.lend(memory)
    }

    fn take_back(&mut self, source: Source) {
        self.adapter.take_back(source);
    }

    fn destroy(&mut self, qp: QpNumber, now: Duration) {
        self.adapter.destroy(qp, now);
    }

    fn at_rest(&self, qp: QpNumber) -> Option<AtRest> {
        self.adapter.at_rest(qp)
    }

    fn take_out(&mut self, qp: QpNumber) {
        self.adapter.take_out(qp);
    }

    fn put_in(&mut self, qp: &AtRest) -> bool {
        self.adapter.put_in(qp)
    }

    fn register_as(&mut self, told: Registration, memory: &Arc<Shared>, qp: QpNumber) -> bool {
        self.adapter.register_as(told, memory, qp)
    }

    fn holdings(&self) -> Holdings {
        self.adapter.holdings()
    }

    fn retransmissions(&self, qp: QpNumber) -> Option<u64> {
        self.adapter.retransmissions(qp)
    }
}

impl Driven for Rnic {
    fn receive(&mut self, now: Duration) -> bool {
        self.receive(now)
    }

    fn transmit(&mut self, now: Duration) -> bool {
        self.transmit(now)
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.poll_timeout()
    }
}

/// Readable when there is something for [`Rnic::turn`] to do.
impl AsFd for Rnic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
