//! The link partners of a soft RNIC, of which the IP filter of the host is told.
//!
//! Its packets go between addresses that no list of rules names. So the filter permits them between the two ends of each
//! link, and has its UDP port closed to all others ([`sidestep_bpf::tell_partner`]). It is told before the peer's first
//! packet can come, when a queue pair is to receive, and again when rules change: then there may be another filter. An
//! RDMA device's packets meet no filter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use sidestep_rdma::soft::Rnic;
use sidestep_wire::QpNumber;

/// The other ends of an adapter's links.
#[derive(Debug, Default)]
pub(crate) struct Partners {
    /// Where the peer of each queue pair is.
    peers: BTreeMap<QpNumber, IpAddr>,
    /// Those of them that the filter knows.
    told: BTreeSet<IpAddr>,
}

impl Partners {
    /// A queue pair is to receive from this address.
    pub(crate) fn join(&mut self, rnic: &Rnic, qp: QpNumber, address: IpAddr) {
        self.peers.insert(qp, address);
        if !self.told.contains(&address) && tell(rnic, address, true) {
            self.told.insert(address);
        }
    }

    /// A queue pair has ended, or gone to another process.
    pub(crate) fn leave(&mut self, rnic: &Rnic, qp: QpNumber) {
        let Some(address) = self.peers.remove(&qp) else { return };
        let is_last = self.peers.values().all(|other| *other != address);
        if is_last && self.told.remove(&address) {
            tell(rnic, address, false);
        }
    }

    /// The rules have changed: what was told may have gone with a filter.
    pub(crate) fn tell_again(&mut self, rnic: &Rnic) {
        let peers: BTreeSet<IpAddr> = self.peers.values().copied().collect();
        self.told = peers.into_iter().filter(|address| tell(rnic, *address, true)).collect();
    }

    /// Those that the filter knows.
    pub(crate) fn told(&self) -> impl Iterator<Item = IpAddr> {
        self.told.iter().copied()
    }
}

/// Whether there is a filter that knows now what becomes of links to this address.
fn tell(rnic: &Rnic, address: IpAddr, is_linked: bool) -> bool {
    let sockets = [rnic.port().receiver(), rnic.port().sender()];
    let told: io::Result<Vec<bool>> = sockets
        .into_iter()
        .map(|socket| sidestep_bpf::tell_partner(socket, address, is_linked))
        .collect();
    match told {
        Ok(told) => told.into_iter().all(|is_known| is_known),
        Err(error) => {
            log::warn!(
                "the IP filter is not told of links to {address} ({error}): rules have to permit UDP port 4791 \
                 between the two hosts. It believes a gateway of root"
            );
            false
        }
    }
}
