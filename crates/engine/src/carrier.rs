//! A link on its adapter: what was posted to its queue pair, and what waits for a place there.
//!
//! ```text
//!   LLC messages ──┐
//!                  ├──> waiting ──> queue pair ──> posted ──> completed, in the same order
//!   connections ───┘      nothing overtakes
//! ```
//!
//! A queue pair takes so many messages and no more. What it refuses waits here, in order. Connections
//! are asked for more only while nothing waits, so there is never more than one step of one of them,
//! and what they say later says the newest.

use std::collections::{BTreeMap, VecDeque};

use sidestep_proto::connection::Receipt;
use sidestep_proto::link_group::{AdapterId, RmbId, Ticket};
use sidestep_rdma::device::{Device, PostError, Source};
use sidestep_wire::{AlertToken, QpNumber, Rkey, RmbAddress, cdc};

use crate::view::{Traffic, Usage};

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

    /// Takes a message behind all before. If the link is broken it goes nowhere.
    pub(crate) fn take(&mut self, work: Work) {
        if !self.is_broken {
            self.waiting.push_back(work);
        }
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
        let waiting = self.waiting.drain(..).map(|work| work.as_posted());
        self.posted.drain(..).chain(waiting).collect()
    }
}
