//! A link on its adapter: what was posted to its queue pair, and what waits for a place there.
//!
//! ```text
//!   LLC messages ──┐
//!                  ├──> waiting ──> queue pair ──> posted ──> completed, in the same order
//!   connections ───┘      nothing overtakes
//! ```
//!
//! A queue pair takes so many messages and no more. What it refuses waits here, in order. Connections
//! are asked for more only while nothing waits, and what they say later says the newest.
//!
//! ```text
//!   connections 1, 2, 3 ──> W1 W2 W3 C1 C2 C3      WRITEs, then CDC messages: a batch
//! ```
//!
//! A CDC message has to follow its own WRITEs, and may follow others, too. In a batch packets of one
//! length stand one behind the other, and a soft RNIC gives the kernel so many of them as one; an
//! adapter of hardware is indifferent.

use std::collections::{BTreeMap, VecDeque};

use sidestep_proto::connection::Receipt;
use sidestep_proto::link_group::{AdapterId, RmbId, Ticket};
use sidestep_rdma::device::{Device, PostError, Source};
use sidestep_wire::{AlertToken, QpNumber, Rkey, RmbAddress, cdc};

use crate::usage::{Traffic, Usage};

/// A batch is closed behind so many bytes of WRITEs: a run of a soft RNIC has no more.
const BATCH_BYTES_MAX: usize = 1 << 16;
/// Or so many CDC messages.
const BATCH_MESSAGES_MAX: usize = 16;

/// LLC messages that wait for a place, at most. The exchanges of both sides are a few at a time.
const LLC_WAITING_MAX: usize = 64;

/// A message for a queue pair.
#[derive(Debug)]
pub(crate) enum Work {
    /// An LLC message.
    Llc { ticket: Ticket, bytes: Vec<u8> },
    /// Bytes of a connection, out of its send buffer.
    Write { of: AlertToken, from: (Source, usize, u32), to: (Rkey, RmbAddress) },
    /// Its CDC message behind them.
    Cdc { of: AlertToken, receipt: Receipt, bytes: [u8; cdc::LEN] },
}

/// What is left of it once it was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Posted {
    /// An LLC message.
    Llc(Ticket),
    /// Bytes of a connection.
    Write(AlertToken),
    /// A CDC message.
    Cdc(AlertToken, Receipt),
}

impl Work {
    const fn as_posted(&self) -> Posted {
        match self {
            Self::Llc { ticket, .. } => Posted::Llc(*ticket),
            Self::Write { of, .. } => Posted::Write(*of),
            Self::Cdc { of, receipt, .. } => Posted::Cdc(*of, *receipt),
        }
    }

    fn post(&self, id: u64, qp: QpNumber, device: &mut impl Device) -> Result<(), PostError> {
        match self {
            Self::Llc { bytes, .. } => device.post_send(qp, id, bytes),
            Self::Cdc { bytes, .. } => device.post_send(qp, id, bytes),
            Self::Write { from: (source, at, len), to, .. } => {
                device.post_write(qp, id, (source, *at, *len), *to)
            }
        }
    }
}

impl Posted {
    /// The connection that it is of.
    pub(crate) const fn connection(&self) -> Option<AlertToken> {
        match self {
            Self::Llc(_) => None,
            Self::Write(of) | Self::Cdc(of, _) => Some(*of),
        }
    }
}

/// A link on its adapter.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) adapter: AdapterId,
    pub(crate) qp: QpNumber,
    /// By which key the peer reaches our buffers over it.
    pub(crate) keys: BTreeMap<RmbId, Rkey>,
    /// Connections that may have something to send.
    pub(crate) ready: VecDeque<AlertToken>,
    pub(crate) traffic: Traffic,
    waiting: VecDeque<Work>,
    /// CDC messages of the batch that is open, and the bytes of its WRITEs.
    behind: VecDeque<Work>,
    batch_bytes: usize,
    posted: VecDeque<Posted>,
    /// Number of the first of `posted`, and of the next to come.
    first_id: u64,
    next_id: u64,
    is_broken: bool,
}

impl Carrier {
    pub(crate) const fn new(adapter: AdapterId, qp: QpNumber) -> Self {
        Self {
            adapter,
            qp,
            keys: BTreeMap::new(),
            ready: VecDeque::new(),
            traffic: Traffic::NONE,
            waiting: VecDeque::new(),
            behind: VecDeque::new(),
            batch_bytes: 0,
            posted: VecDeque::new(),
            first_id: 0,
            next_id: 0,
            is_broken: false,
        }
    }

    /// Whether it would post more at once.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.is_empty() && !self.is_broken
    }

    /// Whether nothing waits or is posted.
    pub(crate) fn is_idle(&self) -> bool {
        self.has_room() && self.posted.is_empty()
    }

    /// Whether a connection has something to send that it would post at once.
    pub(crate) fn may_send(&self) -> bool {
        !self.ready.is_empty() && self.has_room()
    }

    /// Takes a message behind all before, or to the end of the batch if it is of CDC. If the link is
    /// broken it goes nowhere.
    pub(crate) fn take(&mut self, work: Work) {
        if self.is_broken {
            return;
        }
        match work {
            Work::Cdc { .. } => self.behind.push_back(work),
            Work::Write { from: (.., len), .. } => {
                self.batch_bytes += len as usize;
                self.waiting.push_back(work);
            }
            Work::Llc { .. } => self.waiting.push_back(work),
        }
    }

    /// Whether more LLC messages wait than a well-behaved peer asks for: the peer asks, and does not
    /// take the answers.
    pub(crate) fn is_flooded(&self) -> bool {
        let is_llc = |work: &&Work| matches!(work, Work::Llc { .. });
        self.waiting.iter().filter(is_llc).count() >= LLC_WAITING_MAX
    }

    /// Whether there is enough for a batch.
    pub(crate) fn is_batch(&self) -> bool {
        self.batch_bytes >= BATCH_BYTES_MAX || self.behind.len() >= BATCH_MESSAGES_MAX
    }

    /// The CDC messages of the batch follow its WRITEs.
    pub(crate) fn close_batch(&mut self) {
        self.waiting.append(&mut self.behind);
        self.batch_bytes = 0;
    }

    /// Posts what there is a place for. A queue pair that does not send any more takes nothing, and
    /// says so.
    pub(crate) fn post(&mut self, device: &mut impl Device) {
        while let Some(work) = self.waiting.front()
            && work.post(self.next_id, self.qp, device).is_ok()
        {
            match work {
                Work::Write { from: (.., len), .. } => self.traffic.bytes_sent += u64::from(*len),
                Work::Llc { .. } | Work::Cdc { .. } => self.traffic.messages_sent += 1,
            }
            self.posted.push_back(work.as_posted());
            self.waiting.pop_front();
            self.next_id += 1;
        }
    }

    /// How much it was used.
    pub(crate) fn usage(&self, device: &impl Device) -> Usage {
        Usage { traffic: self.traffic, retransmissions: device.retransmissions(self.qp) }
    }

    /// What the queue pair has completed under this number.
    pub(crate) fn completed(&mut self, id: u64) -> Option<Posted> {
        debug_assert_eq!(id, self.first_id, "a queue pair completes in order");
        let posted = self.posted.pop_front()?;
        self.first_id += 1;
        Some(posted)
    }

    /// The queue pair is broken, or goes: all that has not arrived, as far as is known.
    pub(crate) fn fail(&mut self) -> Vec<Posted> {
        self.is_broken = true;
        self.ready.clear();
        debug_assert!(self.behind.is_empty(), "a batch is closed before anything else happens");
        let waiting = self.waiting.drain(..).map(|work| work.as_posted());
        self.posted.drain(..).chain(waiting).collect()
    }
}
