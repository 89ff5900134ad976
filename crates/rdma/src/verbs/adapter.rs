//! An RDMA adapter at one of its addresses: queue pairs, keys, and one call that makes progress.
//!
//! ```text
//!                 ┌──────────── receive(now) ─────────────┐
//!   async events ─┤ ports, addresses, failures            │
//!   channel ──────┤ which queues are not empty            ├──> poll_event, poll_notice
//!   queues ───────┤ completions, until there are none;    │
//!                 │ then the queue is armed, and looked at│
//!                 │ once more                             │
//!                 └───────────────────────────────────────┘
//!   post_write, post_send ──> chains ──> driver; what still waits leaves with transmit(now)
//! ```
//!
//! It is used as a [soft RNIC](crate::soft::Rnic) is: [`Adapter::receive`], the events, what they call
//! for, [`Adapter::transmit`]; again while either says that there is more; then sleep until
//! [the descriptor](AsFd) is readable.
//!
//! # No wake-up is lost
//!
//! An *armed* queue announces one completion, the next one, on the channel; what was there before is
//! not announced. So a queue is armed when it was found empty, and looked at again afterwards: a
//! completion has either come before that look, which finds it, or after the arming, which announces
//! it. A queue that was announced is not armed, and is looked at in every turn until one finds
//! nothing in it, without asking the kernel for anything.
//!
//! # Keys
//!
//! Each queue pair has a domain of its own, so a key fits on it and on no other, as with the soft
//! RNIC; the adapter checks that. The address that goes with a key is drawn at random: peers do not
//! learn where anything is in this process.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use sidestep_wire::roce::Nak;
use sidestep_wire::{Psn, QpNumber, Rkey, RmbAddress};

use super::library::Verbs;
use super::objects::{Channel, Context, Happening, Key};
use super::ports::{Gid, Port, gids_of};
use super::queue_pair::{Origin, QueuePair, RECEIVE_DEPTH};
use super::search::Searches;
use crate::device::{
    Device, Driven, Event, Failure, Holdings, Kind, Peer, PostError, Readiness, Source,
};
use crate::memory::{PAGE_MASK, Registration, Shared};
use crate::soft::sys;

/// Looks at one queue in a turn: a peer that floods us does not keep others waiting.
const BATCHES_MAX: usize = 8;
/// While there are queues to look at, the kernel is asked for announcements and events every so
/// many turns only: an adapter that is busy costs no system calls.
const TURNS_PER_QUESTION: u32 = 16;
/// Where in a page an address is.
const IN_PAGE: u64 = 0xFFF;

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there, or not any more.
    #[error("there is no RDMA adapter {0}; `rdma link` lists those that there are")]
    NoSuchAdapter(String),
    /// The library or the kernel refuses.
    #[error("RDMA adapter {adapter}: {source}")]
    Refused {
        /// Its name.
        adapter: String,
        /// Why.
        source: io::Error,
    },
}

/// What has happened to an adapter as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Its port carries packets.
    PortUp,
    /// Its port does not any more.
    PortDown,
    /// The addresses of its port have changed.
    Addresses {
        /// Whether ours is still where it was. If not, the adapter is to be opened anew.
        has_ours: bool,
    },
    /// It is of no use any more; its queue pairs are broken.
    Gone,
}

/// An RDMA adapter.
#[derive(Debug)]
pub struct Adapter {
    // Before the context, the channel and the descriptor that they were made from.
    links: BTreeMap<QpNumber, Link>,
    searches: Searches,
    keys: BTreeMap<Rkey, Key>,
    /// Whose queue announces itself by which token.
    tokens: BTreeMap<usize, QpNumber>,
    last_token: usize,
    /// Memory that WRITEs come from, by the number of the source.
    sources: Vec<Option<Arc<Shared>>>,
    /// QPs whose queue is not armed.
    awake: VecDeque<QpNumber>,
    /// QPs that have something to tell.
    restless: VecDeque<QpNumber>,
    notices: VecDeque<Notice>,
    /// Posting was in vain, and the owner does not know.
    has_failed: bool,
    turns: u32,
    is_gone: bool,
    name: String,
    gid: Gid,
    /// The same address by the other kind of RoCE, if the port has that.
    twin: Option<Gid>,
    mtu: u16,
    depth_max: u32,
    channel: Arc<Channel>,
    context: Arc<Context>,
    /// Watches the channel, the adapter's events, and the ends of searches.
    epoll: OwnedFd,
}

#[derive(Debug)]
struct Link {
    qp: QueuePair,
    /// What it sends by.
    gid: Gid,
    is_awake: bool,
    is_restless: bool,
}

impl Adapter {
    /// Opens an adapter, to be used at an address of one of its ports ([`choose`](super::choose)).
    /// If the port has the address by the other kind of RoCE, too, queue pairs may have that.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(verbs: &Arc<Verbs>, port: &Port, gid: Gid) -> Result<Self, OpenError> {
        let refused = |source| OpenError::Refused { adapter: port.device.clone(), source };
        let context = Context::open(verbs, &port.device).map_err(refused)?;
        let context = context.ok_or_else(|| OpenError::NoSuchAdapter(port.device.clone()))?;
        Self::new(Arc::new(context), port, gid).map_err(refused)
    }

    fn new(context: Arc<Context>, port: &Port, gid: Gid) -> io::Result<Self> {
        let attributes = context.attributes()?;
        let completions = u32::try_from(attributes.max_cqe).unwrap_or(0);
        let works = u32::try_from(attributes.max_qp_wr).unwrap_or(0);
        let channel = Arc::new(Channel::new(&context)?);
        let epoll = sys::epoll()?;
        sys::watch(epoll.as_fd(), context.async_fd(), libc::EPOLLIN)?;
        sys::watch(epoll.as_fd(), channel.fd(), libc::EPOLLIN)?;
        let searches = Searches::new()?;
        sys::watch(epoll.as_fd(), searches.bell(), libc::EPOLLIN)?;
        Ok(Self {
            links: BTreeMap::new(),
            searches,
            keys: BTreeMap::new(),
            tokens: BTreeMap::new(),
            last_token: 0,
            sources: Vec::new(),
            awake: VecDeque::new(),
            restless: VecDeque::new(),
            notices: VecDeque::new(),
            has_failed: false,
            turns: 0,
            is_gone: false,
            name: port.device.clone(),
            gid,
            twin: port.twin_of(gid),
            mtu: port.mtu,
            depth_max: works.min(completions.saturating_sub(RECEIVE_DEPTH)).max(1),
            channel,
            context,
            epoll,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// What it sends by: the address by one kind of RoCE, or by both.
    fn own_gids(&self) -> impl Iterator<Item = Gid> + use<> {
        [Some(self.gid), self.twin].into_iter().flatten()
    }

    /// The longest payload of a packet that it sends, in bytes.
    #[must_use]
    pub const fn mtu(&self) -> u16 {
        self.mtu
    }

    /// What has happened to it as a whole, in order.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }
}

// ---- progress -----------------------------------------------------------------------------------

impl Adapter {
    /// Takes what has come, and sends what waits. True: there is more to do at once.
    pub fn turn(&mut self, now: Duration) -> bool {
        let has_more = self.receive(now);
        self.transmit(now) | has_more
    }

    /// The first half of a [turn](Self::turn): takes what the adapter has to tell. True: it may have
    /// more.
    pub fn receive(&mut self, _now: Duration) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.has_failed = false;
        self.take_found();
        if self.awake.is_empty() || self.turns.is_multiple_of(TURNS_PER_QUESTION) {
            self.take_happenings();
            self.take_announcements();
        }
        for _ in 0..self.awake.len() {
            let Some(number) = self.awake.pop_front() else { break };
            let Some(link) = self.links.get_mut(&number) else { continue };
            link.is_awake = !link.qp.settle();
            if link.is_awake {
                self.awake.push_back(number);
            }
            rouse(link, &mut self.restless, number);
        }
        !self.awake.is_empty()
    }

    fn take_found(&mut self) {
        while let Some(found) = self.searches.next() {
            if let Some(number) = self.tokens.get(&found.token)
                && let Some(link) = self.links.get_mut(number)
            {
                link.qp.found(&found.result);
                rouse(link, &mut self.restless, *number);
                // Something may have come since.
                wake(&mut self.links, &mut self.awake, *number);
            }
        }
    }

    fn take_announcements(&mut self) {
        while let Some(token) = self.channel.announced() {
            if let Some(number) = self.tokens.get(&token) {
                wake(&mut self.links, &mut self.awake, *number);
            }
        }
    }

    /// The other half of a [turn](Self::turn): WRITEs that wait for a SEND do so no longer. True: the
    /// first half is due, of which nothing else would tell. Since it was done, a queue pair was made,
    /// whose queue is not armed yet, or posting has failed.
    pub fn transmit(&mut self, _now: Duration) -> bool {
        for (number, link) in &mut self.links {
            link.qp.flush();
            self.has_failed |= rouse(link, &mut self.restless, *number);
        }
        self.has_failed || !self.awake.is_empty()
    }

    /// When [`turn`](Self::turn) is to be called though nothing has come: never, for the adapter
    /// has clocks of its own.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    fn take_happenings(&mut self) {
        while !self.is_gone
            && let Some(happening) = self.context.happening()
        {
            match happening {
                Happening::PairFailed(qp) => self.break_down(qp, Failure::AdapterFailed),
                Happening::BadRequest(qp) => {
                    self.break_down(qp, Failure::PeerMisbehaved(Nak::InvalidRequest));
                }
                Happening::BadAccess(qp) => {
                    self.break_down(qp, Failure::PeerMisbehaved(Nak::RemoteAccessError));
                }
                Happening::QueueFailed(token) => {
                    if let Some(qp) = self.tokens.get(&token) {
                        self.break_down(*qp, Failure::AdapterFailed);
                    }
                }
                Happening::PortUp(port) if port == self.gid.port => {
                    self.notices.push_back(Notice::PortUp);
                }
                Happening::PortDown(port) if port == self.gid.port => {
                    self.notices.push_back(Notice::PortDown);
                }
                Happening::Gids(port) if port == self.gid.port => self.look_for_address(),
                Happening::Gone => self.end(),
                Happening::PortUp(_)
                | Happening::PortDown(_)
                | Happening::Gids(_)
                | Happening::Other => {}
            }
        }
    }

    fn look_for_address(&mut self) {
        let has_ours =
            gids_of(&self.context).is_ok_and(|gids| self.own_gids().all(|own| gids.contains(&own)));
        self.notices.push_back(Notice::Addresses { has_ours });
    }

    /// The adapter is gone.
    fn end(&mut self) {
        self.is_gone = true;
        // Its descriptor would be readable for ever.
        let _ = sys::watch(self.epoll.as_fd(), self.context.async_fd(), 0);
        self.notices.push_back(Notice::Gone);
        let all: Vec<QpNumber> = self.links.keys().copied().collect();
        all.into_iter().for_each(|qp| self.break_down(qp, Failure::AdapterFailed));
    }

    fn break_down(&mut self, number: QpNumber, failure: Failure) {
        if let Some(link) = self.links.get_mut(&number) {
            link.qp.break_down(failure);
            rouse(link, &mut self.restless, number);
        }
    }
}

impl QueuePair {
    /// Takes completions. If there are none, the queue is armed; false: there were, or have just
    /// come, and it is to be looked at again.
    fn settle(&mut self) -> bool {
        for nth in 0..BATCHES_MAX {
            if self.poll() {
                continue;
            }
            if nth > 0 {
                return false;
            }
            self.arm();
            return !self.poll();
        }
        false
    }
}

/// The queue of a QP is looked at in the next turn.
fn wake(links: &mut BTreeMap<QpNumber, Link>, awake: &mut VecDeque<QpNumber>, number: QpNumber) {
    if let Some(link) = links.get_mut(&number)
        && !link.is_awake
    {
        link.is_awake = true;
        awake.push_back(number);
    }
}

/// A QP may have something to tell. True: it has, and that was not known.
fn rouse(link: &mut Link, restless: &mut VecDeque<QpNumber>, number: QpNumber) -> bool {
    let is_new = !link.is_restless && link.qp.has_events();
    if is_new {
        link.is_restless = true;
        restless.push_back(number);
    }
    is_new
}

/// Readable when there is something for [`Adapter::turn`] to do.
impl AsFd for Adapter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

// ---- as the engine uses it ----------------------------------------------------------------------

impl Device for Adapter {
    fn create(&mut self) -> Option<(QpNumber, Psn)> {
        if self.is_gone {
            return None;
        }
        self.last_token += 1;
        let qp = QueuePair::new(&Origin {
            context: &self.context,
            channel: &self.channel,
            gid: &self.gid,
            depth_max: self.depth_max,
            token: self.last_token,
        });
        let qp = qp.ok()?;
        let (number, first_psn) = (qp.number(), qp.first_psn());
        self.tokens.insert(self.last_token, number);
        self.links.insert(number, Link { qp, gid: self.gid, is_awake: false, is_restless: false });
        // It was never armed.
        wake(&mut self.links, &mut self.awake, number);
        Some((number, first_psn))
    }

    fn agree_on(&mut self, qp: QpNumber, kind: Kind) {
        let agreed = self.own_gids().find(|gid| gid.kind == kind);
        if let (Some(link), Some(gid)) = (self.links.get_mut(&qp), agreed) {
            link.gid = gid;
        }
    }

    fn ready_to_receive(&mut self, qp: QpNumber, address: IpAddr, peer: Peer) -> Readiness {
        let Some(link) = self.links.get_mut(&qp) else { return Readiness::Refused };
        let gid = link.gid;
        // Over Ethernet addresses are only names.
        let is_near = gid.kind == Kind::RoceV1 || address.is_ipv4() == gid.address.is_ipv4();
        let is_possible = is_near && peer.mtu <= self.mtu;
        match is_possible && link.qp.seek(&gid, (address, peer), &mut self.searches).is_ok() {
            true => Readiness::Pending,
            false => Readiness::Refused,
        }
    }

    fn ready_to_send(&mut self, qp: QpNumber) -> bool {
        self.links.get_mut(&qp).is_some_and(|link| link.qp.ready_to_send().is_ok())
    }

    fn post_send(&mut self, qp: QpNumber, _: u64, message: &[u8]) -> Result<(), PostError> {
        let link = self.links.get_mut(&qp).ok_or(PostError::NotReady)?;
        let posted = link.qp.post_send(message);
        self.has_failed |= rouse(link, &mut self.restless, qp);
        posted
    }

    fn post_write(
        &mut self,
        qp: QpNumber,
        _: u64,
        from: (&Source, usize, u32),
        to: (Rkey, RmbAddress),
    ) -> Result<(), PostError> {
        let link = self.links.get_mut(&qp).ok_or(PostError::NotReady)?;
        let posted = link.qp.post_write(from, to);
        self.has_failed |= rouse(link, &mut self.restless, qp);
        posted
    }

    fn poll_event(&mut self) -> Option<(QpNumber, Event)> {
        while let Some(&number) = self.restless.front() {
            if let Some(link) = self.links.get_mut(&number) {
                if let Some(event) = link.qp.poll_event() {
                    return Some((number, event));
                }
                link.is_restless = false;
            }
            self.restless.pop_front();
        }
        None
    }

    fn register(&mut self, memory: &Arc<Shared>, qp: QpNumber) -> Option<Registration> {
        let link = self.links.get(&qp)?;
        // The adapter maps whole pages: where in a page something begins is not free.
        let address = rand::random::<u64>() & PAGE_MASK | memory.base() as u64 & IN_PAGE;
        let key = Key::remote(link.qp.domain(), memory, address).ok()?;
        let rkey = Rkey(key.rkey());
        // 0 is no key to a peer, and two of one kind are none to us.
        if rkey == Rkey(0) || self.keys.contains_key(&rkey) {
            return None;
        }
        self.keys.insert(rkey, key);
        Some(Registration { rkey, address: RmbAddress(address) })
    }

    fn deregister(&mut self, rkey: Rkey) {
        self.keys.remove(&rkey);
    }

    fn lend(&mut self, memory: &Arc<Shared>) -> Option<Source> {
        let index = self.sources.iter().position(Option::is_none).unwrap_or_else(|| {
            self.sources.push(None);
            self.sources.len() - 1
        });
        self.sources[index] = Some(Arc::clone(memory));
        Some(Source { memory: Arc::clone(memory), lkey: index as u32 })
    }

    fn can_read(&mut self, qp: QpNumber, source: &Source) -> bool {
        self.links.get_mut(&qp).is_some_and(|link| link.qp.can_read(source))
    }

    fn take_back(&mut self, source: Source) {
        let index = source.lkey as usize;
        self.links.values_mut().for_each(|link| link.qp.forget(index));
        if let Some(place) = self.sources.get_mut(index) {
            *place = None;
        }
    }

    fn destroy(&mut self, qp: QpNumber, _: Duration) {
        if let Some(link) = self.links.remove(&qp) {
            self.tokens.remove(&link.qp.token());
            self.awake.retain(|it| *it != qp);
            self.restless.retain(|it| *it != qp);
        }
    }

    fn holdings(&self) -> Holdings {
        Holdings {
            queue_pairs: self.links.len(),
            registrations: self.keys.len(),
            sources: self.sources.iter().flatten().count(),
        }
    }

    fn retransmissions(&self, _: QpNumber) -> Option<u64> {
        None
    }
}

impl Driven for Adapter {
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
