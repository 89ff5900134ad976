//! One end of a reliable connection of an adapter: what was posted, and what became of it.
//!
//! # On the way out
//!
//! A WRITE means nothing to the peer before the SEND that tells of it. So WRITEs wait, and leave with
//! the next SEND as one chain of works, for which the driver is called once:
//!
//! ```text
//!   post_write ──> [WRITE 7]
//!   post_write ──> [WRITE 7][WRITE 8]
//!   post_send  ──> [WRITE 7][WRITE 8][SEND 9, inline, signaled] ──> driver
//! ```
//!
//! Only the last work of a chain is *signaled*: its completion says that those before it are done as
//! well, for the adapter works in order. A work that fails is completed in any case. Of works that
//! are on their way there are never more than the queue has room for, so neither it nor the
//! completion queue overruns.
//!
//! A SEND is *inline* if the adapter can: its bytes are copied while it is posted. Otherwise they are
//! copied to a slot of registered memory, which is free again when the SEND is completed.
//!
//! # On the way in
//!
//! Room for [`RECEIVE_DEPTH`] messages is posted at the beginning, each for the longest there is, and
//! again when messages were taken: so many are in rooms or waiting at most, and the peer's adapter
//! waits with any more.
//!
//! # The end
//!
//! Whatever goes wrong, the queue pair is put into its error state, in which it sends and reads
//! nothing any more. What had been completed by then is told as it is, everything else has failed.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::Arc;

use sidestep_wire::roce::Nak;
use sidestep_wire::{Psn, QpNumber, Rkey, RmbAddress};
use smallvec::SmallVec;

use super::abi::{
    self, AhAttr, GlobalRoute, QpAttr, QpCap, RecvWr, SendWr, Sge, Wc, mask, state, status,
};
use super::objects::{Channel, Context, Domain, Key, Pair, Queue};
use super::ports::{Gid, octets};
use super::search::Searches;
use crate::device::{Event, Failure, Peer, PostError, Source};
use crate::memory::Shared;

/// The longest message: LLC of SMC-R version 2.
pub const MESSAGE_LEN_MAX: usize = 8192;
/// Messages for which there is room. A Linux peer has 16 on their way.
pub const RECEIVE_DEPTH: u32 = 32;
/// Messages that may be posted and not completed.
pub const SEND_DEPTH: u32 = 256;
/// Bytes that are to be sent inline: more than a CDC or an ordinary LLC message has.
const INLINE_LEN: u32 = 64;
/// Messages that are longer, or if nothing is sent inline all, wait in slots.
const SLOTS: usize = 16;
/// Works that leave together at most: two WRITEs, if the peer's ring wraps between them, and the SEND.
const CHAIN_LEN_MAX: usize = 4;
/// Completions that are taken at a time.
const BATCH: usize = 16;

/// The hop limit of RoCEv2, as IP's.
const HOP_LIMIT: u8 = 64;
/// Silence after which a packet is sent again: 4.096 µs times 2 to this power, 134 ms.
const TIMEOUT: u8 = 15;
/// How often, before the peer is given up. Not 7, as Linux's SMC has it: for `rdma_rxe` that is for ever.
const RETRY_COUNT: u8 = 6;
/// How often if the peer has no room: for ever, that is what 7 means here.
const RNR_RETRY: u8 = 7;
/// What a peer waits if we have no room: 640 µs.
const MIN_RNR_TIMER: u8 = 12;

/// Completions of rooms for messages have this bit in their number, and the slot's index below.
const IS_RECEIVE: u64 = 1 << 63;

/// What a queue pair is made with.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) channel: &'a Arc<Channel>,
    pub(super) gid: &'a Gid,
    /// What the adapter allows.
    pub(super) depth_max: u32,
    /// By which the completion queue announces itself.
    pub(super) token: usize,
}

/// How far a queue pair has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Deaf,
    /// Its peer is looked for.
    Seeks,
    Receives,
    Sends,
    Broken,
}

/// A work of a chain.
#[derive(Clone, Copy, Debug)]
enum Work {
    Write { piece: Sge, rkey: Rkey, to: RmbAddress },
    Send { piece: Sge, is_inline: bool },
}

/// One end of a reliable connection.
#[derive(Debug)]
pub(super) struct QueuePair {
    /// First, so it is gone before the memory that it reads. While its peer is looked for, when it
    /// reads nothing yet, a thread has it, too.
    pair: Arc<Pair>,
    stage: Stage,
    first_psn: Psn,
    /// Messages posted, and of those completed: the numbers of the next ones.
    posted: u64,
    completed: u64,
    depth: u64,
    chain: [Option<Work>; CHAIN_LEN_MAX],
    chained: usize,
    /// The adapter's keys to memory that WRITEs come from, by the number of the source.
    sources: Vec<Option<Key>>,
    slots: Slots,
    /// Rooms for messages that are not posted.
    empty_rooms: Vec<usize>,
    events: VecDeque<Event>,
    /// Messages among them; `untold + rooms that are posted <= RECEIVE_DEPTH`.
    untold: usize,
    /// Why it breaks, once it does.
    cause: Option<Failure>,
    token: usize,
}

/// Memory for messages that cannot be sent inline.
#[derive(Debug)]
struct Slots {
    key: Key,
    /// The number of the message that has a slot, until that is completed.
    users: [Option<u64>; SLOTS],
}

impl Slots {
    fn new(domain: &Arc<Domain>) -> io::Result<Self> {
        let memory = Arc::new(Shared::zeroed(SLOTS * MESSAGE_LEN_MAX));
        Ok(Self { key: Key::local(domain, &memory)?, users: [None; SLOTS] })
    }

    /// Copies a message of this number; `None`: no slot is free.
    fn take(&mut self, message: &[u8], id: u64, completed: u64) -> Option<Sge> {
        let is_free = |user: &Option<u64>| user.is_none_or(|id| id < completed);
        let index = self.users.iter().position(is_free)?;
        let piece = piece(&self.key, index * MESSAGE_LEN_MAX, message.len());
        let is_copied = self.key.memory().copy_in(index * MESSAGE_LEN_MAX, message);
        is_copied.then(|| {
            self.users[index] = Some(id);
            piece
        })
    }
}

/// A range of registered memory, as the adapter is told of it. It is in it.
fn piece(key: &Key, at: usize, len: usize) -> Sge {
    let addr = key.memory().base() as u64 + at as u64;
    Sge { addr, length: len as u32, lkey: key.lkey() }
}

// ---- life ---------------------------------------------------------------------------------------

impl QueuePair {
    /// A queue pair that hears nothing yet, in a domain of keys of its own.
    ///
    /// # Errors
    ///
    /// The library's.
    pub(super) fn new(origin: &Origin<'_>) -> io::Result<Self> {
        let domain = Arc::new(Domain::new(origin.context)?);
        let depth = SEND_DEPTH.min(origin.depth_max);
        let pair = Arc::new(create(origin, &domain, depth)?);
        let mut this = Self {
            stage: Stage::Deaf,
            first_psn: Psn::from_low_bits(rand::random()),
            posted: 0,
            completed: 0,
            depth: u64::from(depth),
            chain: [None; CHAIN_LEN_MAX],
            chained: 0,
            sources: Vec::new(),
            slots: Slots::new(&domain)?,
            empty_rooms: (0..RECEIVE_DEPTH as usize).collect(),
            // That the peer was found, what was received, what was completed, and the end.
            events: VecDeque::with_capacity((RECEIVE_DEPTH + depth + 2) as usize),
            untold: 0,
            cause: None,
            token: origin.token,
            pair,
        };
        let attributes = QpAttr {
            qp_state: state::INIT,
            port_num: origin.gid.port,
            qp_access_flags: (abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE) as u32,
            ..QpAttr::default()
        };
        this.pair
            .modify(attributes, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)?;
        this.make_room();
        if this.cause.is_some() { Err(io::ErrorKind::Other.into()) } else { Ok(this) }
    }

    /// Looks for the peer, whose requests are to be carried out.
    ///
    /// # Errors
    ///
    /// The search cannot begin.
    pub(super) fn seek(
        &mut self,
        gid: &Gid,
        (address, peer): (IpAddr, Peer),
        searches: &mut Searches,
    ) -> io::Result<()> {
        if self.stage != Stage::Deaf {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let attributes = QpAttr {
            qp_state: state::RTR,
            path_mtu: mtu_code(peer.mtu).ok_or(io::ErrorKind::InvalidInput)?,
            dest_qp_num: number_bits(peer.qp),
            rq_psn: peer.first_psn.bits(),
            // RDMA READs, of which there are none.
            max_dest_rd_atomic: 1,
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: AhAttr {
                is_global: 1,
                port_num: gid.port,
                grh: GlobalRoute {
                    dgid: octets(address),
                    sgid_index: gid.index,
                    hop_limit: HOP_LIMIT,
                    ..GlobalRoute::default()
                },
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        let what = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        searches.begin(self.token, &self.pair, (attributes, what))?;
        self.stage = Stage::Seeks;
        Ok(())
    }

    /// The search is over. If the peer was found, its requests are carried out.
    pub(super) fn found(&mut self, result: &io::Result<()>) {
        match result {
            _ if self.stage != Stage::Seeks => {}
            Ok(()) => {
                self.stage = Stage::Receives;
                self.events.push_back(Event::Ready);
            }
            // No host answers for its address.
            Err(_) => self.break_down(Failure::PeerSilent),
        }
    }

    /// Messages can be posted from now on.
    ///
    /// # Errors
    ///
    /// The library's; or it does not receive yet.
    pub(super) fn ready_to_send(&mut self) -> io::Result<()> {
        if self.stage != Stage::Receives {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let attributes = QpAttr {
            qp_state: state::RTS,
            sq_psn: self.first_psn.bits(),
            timeout: TIMEOUT,
            retry_cnt: RETRY_COUNT,
            rnr_retry: RNR_RETRY,
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        let what = mask::STATE
            | mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_QP_RD_ATOMIC;
        self.pair.modify(attributes, what)?;
        self.stage = Stage::Sends;
        Ok(())
    }

    pub(super) fn number(&self) -> QpNumber {
        self.pair.number()
    }

    pub(super) const fn first_psn(&self) -> Psn {
        self.first_psn
    }

    pub(super) const fn token(&self) -> usize {
        self.token
    }

    /// The domain whose keys its peer may use.
    pub(super) fn domain(&self) -> &Arc<Domain> {
        self.pair.domain()
    }
}

/// Makes the queue pair and its completion queue, inline if the adapter can.
fn create(origin: &Origin<'_>, domain: &Arc<Domain>, depth: u32) -> io::Result<Pair> {
    let memory = Arc::new(Shared::zeroed(RECEIVE_DEPTH as usize * MESSAGE_LEN_MAX));
    let with = |max_inline_data| {
        let rooms = Key::local(domain, &memory)?;
        let queue = Queue::new(origin.channel, depth + RECEIVE_DEPTH, origin.token)?;
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: RECEIVE_DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
        };
        Pair::new(domain, queue, cap, rooms)
    };
    with(INLINE_LEN).or_else(|_| with(0))
}

/// The adapter's code for a length of packets.
const fn mtu_code(mtu: u16) -> Option<u32> {
    match mtu {
        256 => Some(1),
        512 => Some(2),
        1024 => Some(3),
        2048 => Some(4),
        4096 => Some(5),
        _ => None,
    }
}

fn number_bits(QpNumber([high, middle, low]): QpNumber) -> u32 {
    u32::from_be_bytes([0, high, middle, low])
}

// ---- on the way out -----------------------------------------------------------------------------

impl QueuePair {
    /// Posts a message, and the WRITEs before it.
    pub(super) fn post_send(&mut self, message: &[u8]) -> Result<(), PostError> {
        if message.len() > MESSAGE_LEN_MAX {
            return Err(PostError::TooLong);
        }
        self.must_have_room()?;
        let is_inline = message.len() <= self.pair.cap().max_inline_data as usize;
        let piece = if is_inline {
            Sge { addr: message.as_ptr() as u64, length: message.len() as u32, lkey: 0 }
        } else {
            self.slots.take(message, self.posted, self.completed).ok_or(PostError::Full)?
        };
        self.chain(Work::Send { piece, is_inline });
        self.flush();
        Ok(())
    }

    /// Posts a WRITE of a part of a source. It waits for the next SEND, or for [`Self::flush`].
    pub(super) fn post_write(
        &mut self,
        (source, at, len): (&Source, usize, u32),
        (rkey, to): (Rkey, RmbAddress),
    ) -> Result<(), PostError> {
        let end = at.checked_add(len as usize);
        if end.is_none_or(|end| end > source.memory.len()) {
            return Err(PostError::TooLong);
        }
        self.must_have_room()?;
        let Ok(key) = self.key_to(source) else {
            // The memory is there, and was registered before elsewhere: the adapter is at its end.
            self.break_down(Failure::AdapterFailed);
            return Err(PostError::NotReady);
        };
        let piece = piece(key, at, len as usize);
        self.chain(Work::Write { piece, rkey, to });
        if self.chained == CHAIN_LEN_MAX {
            self.flush();
        }
        Ok(())
    }

    fn must_have_room(&self) -> Result<(), PostError> {
        if self.stage != Stage::Sends {
            return Err(PostError::NotReady);
        }
        let has_room = self.posted - self.completed < self.depth;
        if has_room { Ok(()) } else { Err(PostError::Full) }
    }

    /// The key of this queue pair to a source: made when the first WRITE comes from it.
    fn key_to(&mut self, source: &Source) -> io::Result<&Key> {
        let index = source.lkey as usize;
        if self.sources.len() <= index {
            self.sources.resize_with(index + 1, || None);
        }
        let place = &mut self.sources[index];
        match place {
            Some(key) => Ok(key),
            None => Ok(place.insert(Key::source(self.pair.domain(), &source.memory)?)),
        }
    }

    /// Whether it has a key to a source, or gets one.
    pub(super) fn can_read(&mut self, source: &Source) -> bool {
        self.key_to(source).is_ok()
    }

    /// The adapter has no key to a source any more.
    pub(super) fn forget(&mut self, source: usize) {
        if let Some(key) = self.sources.get_mut(source) {
            *key = None;
        }
    }

    /// There is a place: a full chain leaves at once.
    fn chain(&mut self, work: Work) {
        self.chain[self.chained] = Some(work);
        self.chained += 1;
        self.posted += 1;
    }

    /// Gives the driver what waits.
    pub(super) fn flush(&mut self) {
        let len = std::mem::take(&mut self.chained);
        let first_id = self.posted - len as u64;
        let mut pieces = [Sge::default(); CHAIN_LEN_MAX];
        let mut works = [NO_WORK; CHAIN_LEN_MAX];
        // From the last on: each knows where the one behind it is.
        let mut next = null_mut();
        for index in (0..len).rev() {
            let Some(work) = self.chain[index].take() else { continue };
            let (wr, piece) = (&raw mut works[index], &raw mut pieces[index]);
            // SAFETY: both are elements of ours.
            unsafe {
                *piece = work.piece();
                *wr = work.to_wr(first_id + index as u64, piece, next);
            }
            next = wr;
        }
        // SAFETY: null, or the first of the works above.
        let Some(first) = (unsafe { next.as_mut() }) else { return };
        // SAFETY: pieces are in memory whose keys this queue pair has until they are completed, and
        // whose bytes stay as the caller of `post_write` has promised; a message that is sent inline is
        // borrowed by `post_send`, which calls this.
        if unsafe { self.pair.post_send(first) }.is_err() {
            self.break_down(Failure::AdapterFailed);
        }
    }
}

const NO_WORK: SendWr = SendWr {
    wr_id: 0,
    next: null_mut(),
    sg_list: null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    rest: [0; 9],
};

impl Work {
    const fn piece(&self) -> Sge {
        match *self {
            Self::Write { piece, .. } | Self::Send { piece, .. } => piece,
        }
    }

    fn to_wr(self, id: u64, piece: *mut Sge, next: *mut SendWr) -> SendWr {
        let signaled = if next.is_null() { abi::SEND_SIGNALED } else { 0 };
        let common = SendWr { wr_id: id, next, sg_list: piece, num_sge: 1, ..NO_WORK };
        match self {
            Self::Write { rkey, to, .. } => SendWr {
                opcode: abi::WR_RDMA_WRITE,
                send_flags: signaled,
                remote_addr: to.0,
                rkey: rkey.0,
                ..common
            },
            Self::Send { is_inline, .. } => {
                let inline = if is_inline { abi::SEND_INLINE } else { 0 };
                // Solicited: Linux's SMC wants to be woken by nothing else.
                let send_flags = abi::SEND_SOLICITED | signaled | inline;
                SendWr { opcode: abi::WR_SEND, send_flags, ..common }
            }
        }
    }
}

// ---- completions --------------------------------------------------------------------------------

impl QueuePair {
    /// What it has to tell next. When that was all, there is room for as many messages again.
    pub(super) fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.make_room();
        }
        let event = self.events.pop_front()?;
        self.untold -= usize::from(matches!(event, Event::Received(_)));
        Some(event)
    }

    /// Whether [`Self::poll_event`] has something to tell.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes a batch of completions. False: there were none, or they have to wait. The peer may send
    /// before its search has told us that it is found, and that is told first.
    pub(super) fn poll(&mut self) -> bool {
        if matches!(self.stage, Stage::Broken | Stage::Seeks) {
            return false;
        }
        match self.take_batch() {
            Err(_) => self.break_down(Failure::AdapterFailed),
            Ok(_) if self.cause.is_some() => self.break_down(Failure::Flushed),
            Ok(has_found) => {
                self.make_room();
                return has_found;
            }
        }
        false
    }

    /// Has the next completion announced.
    pub(super) fn arm(&mut self) {
        // Of one that is broken nothing is wanted, and what is left there would be announced for ever.
        if self.stage != Stage::Broken && self.pair.queue().arm().is_err() {
            self.break_down(Failure::AdapterFailed);
        }
    }

    /// False: there were no completions.
    fn take_batch(&mut self) -> io::Result<bool> {
        let mut completions = [Wc::default(); BATCH];
        let count = self.pair.queue().poll(&mut completions)?;
        for completion in completions.iter().take(count) {
            if completion.wr_id & IS_RECEIVE == 0 {
                self.sent(completion);
            } else {
                self.received(completion);
            }
        }
        Ok(count > 0)
    }

    /// A work is completed. Those before it without a completion of their own have succeeded: the
    /// adapter works in order, and one that fails is completed in any case.
    fn sent(&mut self, completion: &Wc) {
        let id = completion.wr_id;
        // A number that was never given, or is told twice, says nothing.
        if !(self.completed..self.posted).contains(&id) {
            return;
        }
        let failure = failure_of(completion.status);
        self.complete_before(id, Ok(()));
        self.completed = id + 1;
        self.events.push_back(Event::Completed { id, result: failure.map_or(Ok(()), Err) });
        self.note(failure);
    }

    fn complete_before(&mut self, end: u64, result: Result<(), Failure>) {
        for id in self.completed..end {
            self.events.push_back(Event::Completed { id, result });
        }
        self.completed = end;
    }

    /// A message has come, or its room is given back unused.
    fn received(&mut self, completion: &Wc) {
        let failure = failure_of(completion.status);
        self.note(failure);
        let room = completion.wr_id & !IS_RECEIVE;
        if failure.is_some() || room >= u64::from(RECEIVE_DEPTH) {
            return;
        }
        let room = room as usize;
        let len = (completion.byte_len as usize).min(MESSAGE_LEN_MAX);
        let mut message = SmallVec::from_elem(0, len);
        if self.pair.rooms().memory().copy_out(room * MESSAGE_LEN_MAX, &mut message) {
            self.events.push_back(Event::Received(message));
            self.untold += 1;
            self.empty_rooms.push(room);
        }
    }

    /// The first reason counts, unless it is none.
    fn note(&mut self, failure: Option<Failure>) {
        if matches!(self.cause, None | Some(Failure::Flushed)) {
            self.cause = failure.or(self.cause);
        }
    }

    /// Posts rooms that are empty, but for as many as there are messages that were not taken.
    fn make_room(&mut self) {
        while self.empty_rooms.len() > self.untold && self.stage != Stage::Broken {
            let count = (self.empty_rooms.len() - self.untold).min(BATCH);
            let rooms = self.empty_rooms.len() - count;
            if self.post_rooms(&self.empty_rooms[rooms..]).is_err() {
                self.break_down(Failure::AdapterFailed);
            }
            self.empty_rooms.truncate(rooms);
        }
    }

    /// Posts rooms for messages, a batch at most.
    fn post_rooms(&self, rooms: &[usize]) -> io::Result<()> {
        let mut pieces = [Sge::default(); BATCH];
        let mut works =
            [RecvWr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 0 }; BATCH];
        let mut next = null_mut();
        for (&room, (wr, sge)) in rooms.iter().zip(works.iter_mut().zip(&mut pieces)) {
            *sge = piece(self.pair.rooms(), room * MESSAGE_LEN_MAX, MESSAGE_LEN_MAX);
            *wr = RecvWr { wr_id: IS_RECEIVE | room as u64, next, sg_list: sge, num_sge: 1 };
            next = wr;
        }
        // SAFETY: null, or the last of the works above, which leads to the others.
        let Some(last) = (unsafe { next.as_mut() }) else { return Ok(()) };
        // SAFETY: rooms whose key this queue pair has, each of which is empty.
        unsafe { self.pair.post_recv(last) }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Stops it. What has been completed is told as it is, all else has failed. `failure` is the
    /// reason, unless the adapter knows a better one.
    pub(super) fn break_down(&mut self, failure: Failure) {
        if self.stage == Stage::Broken {
            return;
        }
        self.note(Some(failure));
        let attributes = QpAttr { qp_state: state::ERR, ..QpAttr::default() };
        // One that cannot even be stopped is an adapter's that does nothing any more.
        let _ = self.pair.modify(attributes, mask::STATE);
        // As many as the completion queue has room for: a driver that invents more is not followed.
        for _ in 0..=(self.depth as usize + RECEIVE_DEPTH as usize) {
            if !matches!(self.take_batch(), Ok(true)) {
                break;
            }
        }
        let cause = self.cause.unwrap_or(failure);
        self.cause = Some(cause);
        self.complete_before(self.posted, Err(Failure::Flushed));
        self.chain = [None; CHAIN_LEN_MAX];
        self.chained = 0;
        self.events.push_back(Event::Broken(cause));
        self.stage = Stage::Broken;
    }
}

/// What a completion's status says; `None`: it has succeeded.
const fn failure_of(status: u32) -> Option<Failure> {
    Some(match status {
        status::SUCCESS => return None,
        status::WR_FLUSH_ERR => Failure::Flushed,
        status::REM_INV_REQ_ERR => Failure::Refused(Nak::InvalidRequest),
        status::REM_ACCESS_ERR => Failure::Refused(Nak::RemoteAccessError),
        status::REM_OP_ERR => Failure::Refused(Nak::RemoteOperationalError),
        status::RETRY_EXC_ERR | status::RNR_RETRY_EXC_ERR | status::RESP_TIMEOUT_ERR => {
            Failure::PeerSilent
        }
        // Of a room, which was too small for the message.
        status::LOC_LEN_ERR => Failure::PeerMisbehaved(Nak::InvalidRequest),
        _ => Failure::AdapterFailed,
    })
}
