//! A device of either kind.
//!
//! A host may have both kinds, and the engine has devices of one type. It asks them several times for
//! each message, so the two are told apart here by a branch, and not by a call through a table.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use sidestep_rdma::device::{
    AtRest, Device, Driven, Event, Holdings, Kind, Peer, PostError, Readiness, Source,
};
use sidestep_rdma::memory::{Registration, Shared};
use sidestep_rdma::soft::Rnic;
use sidestep_rdma::verbs::{Adapter, Notice};
use sidestep_wire::{Psn, QpNumber, Rkey, RmbAddress};

use crate::partners::Partners;

/// A device of either kind.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are eight at most")]
pub(crate) enum Nic {
    /// RoCEv2 over a UDP socket, and what the IP filter knows of it.
    Soft(Rnic, Partners),
    /// An RDMA device of the kernel, by libibverbs.
    Verbs(Adapter),
}

/// The same of either.
macro_rules! either {
    ($nic:expr, $device:ident => $result:expr) => {
        match $nic {
            Nic::Soft($device, _) => $result,
            Nic::Verbs($device) => $result,
        }
    };
}

impl Nic {
    /// What has happened to it as a whole. What happens to a soft RNIC happens to its interface, of
    /// which the kernel tells.
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        match self {
            Self::Soft(..) => None,
            Self::Verbs(adapter) => adapter.poll_notice(),
        }
    }
}

impl Device for Nic {
    fn create(&mut self) -> Option<(QpNumber, Psn)> {
        either!(self, device => Device::create(device))
    }

    fn agree_on(&mut self, qp: QpNumber, kind: Kind) {
        either!(self, device => device.agree_on(qp, kind));
    }

    fn ready_to_receive(&mut self, qp: QpNumber, address: IpAddr, peer: Peer) -> Readiness {
        if let Self::Soft(rnic, partners) = self {
            partners.join(rnic, qp, address);
        }
        either!(self, device => device.ready_to_receive(qp, address, peer))
    }

    fn ready_to_send(&mut self, qp: QpNumber) -> bool {
        either!(self, device => device.ready_to_send(qp))
    }

    fn post_send(&mut self, qp: QpNumber, id: u64, message: &[u8]) -> Result<(), PostError> {
        either!(self, device => device.post_send(qp, id, message))
    }

    fn post_write(
        &mut self,
        qp: QpNumber,
        id: u64,
        from: (&Source, usize, u32),
        to: (Rkey, RmbAddress),
    ) -> Result<(), PostError> {
        either!(self, device => device.post_write(qp, id, from, to))
    }

    fn poll_event(&mut self) -> Option<(QpNumber, Event)> {
        either!(self, device => device.poll_event())
    }

    fn register(&mut self, memory: &Arc<Shared>, qp: QpNumber) -> Option<Registration> {
        either!(self, device => device.register(memory, qp))
    }

    fn deregister(&mut self, rkey: Rkey) {
        either!(self, device => device.deregister(rkey));
    }

    fn lend(&mut self, memory: &Arc<Shared>) -> Option<Source> {
        either!(self, device => device.lend(memory))
    }

    fn can_read(&mut self, qp: QpNumber, source: &Source) -> bool {
        either!(self, device => device.can_read(qp, source))
    }

    fn take_back(&mut self, source: Source) {
        either!(self, device => device.take_back(source));
    }

    fn destroy(&mut self, qp: QpNumber, now: Duration) {
        either!(self, device => device.destroy(qp, now));
        if let Self::Soft(rnic, partners) = self {
            partners.leave(rnic, qp);
        }
    }

    fn at_rest(&self, qp: QpNumber) -> Option<AtRest> {
        either!(self, device => device.at_rest(qp))
    }

    fn take_out(&mut self, qp: QpNumber) {
        either!(self, device => Device::take_out(device, qp));
        if let Self::Soft(rnic, partners) = self {
            partners.leave(rnic, qp);
        }
    }

    fn put_in(&mut self, qp: &AtRest) -> bool {
        if let Self::Soft(rnic, partners) = self {
            partners.join(rnic, qp.number, qp.address);
        }
        either!(self, device => device.put_in(qp))
    }

    fn register_as(&mut self, told: Registration, memory: &Arc<Shared>, qp: QpNumber) -> bool {
        either!(self, device => device.register_as(told, memory, qp))
    }

    fn holdings(&self) -> Holdings {
        either!(self, device => device.holdings())
    }

    fn retransmissions(&self, qp: QpNumber) -> Option<u64> {
        either!(self, device => device.retransmissions(qp))
    }
}

impl Driven for Nic {
    fn receive(&mut self, now: Duration) -> bool {
        either!(self, device => device.receive(now))
    }

    fn transmit(&mut self, now: Duration) -> bool {
        either!(self, device => device.transmit(now))
    }

    fn poll_timeout(&self) -> Option<Duration> {
        either!(self, device => device.poll_timeout())
    }
}

impl AsFd for Nic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, device => device.as_fd())
    }
}
