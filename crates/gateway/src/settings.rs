//! What a gateway is to have.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use arrayvec::ArrayVec;
use sidestep_proto::rendezvous::UEIDS_MAX;
use sidestep_proto::rendezvous::hosts::PnetId;
use sidestep_rdma::faults::Plan;
use sidestep_wire::Eid;

/// What a gateway is to have.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Its adapters, the preferred first.
    pub adapters: Vec<AdapterChoice>,
    /// Names of interfaces, each with the PNET ID of its physical network.
    pub networks: Vec<(String, String)>,
    /// The UEIDs it admits, the preferred first.
    pub ueids: ArrayVec<Eid, UEIDS_MAX>,
    /// What adapters send goes through a network like this.
    pub faults: Option<Plan>,
}

impl Settings {
    /// The name of the physical network of an interface, if it has one.
    pub(crate) fn network(&self, interface: &str) -> Option<&str> {
        let its = self.networks.iter().find(|(name, _)| name == interface);
        its.map(|(_, network)| network.as_str())
    }

    /// The same, for CLC.
    pub(crate) fn pnet_id(&self, interface: &str) -> Option<PnetId> {
        self.network(interface).and_then(PnetId::new)
    }
}

/// Where a soft RNIC is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// At an address of this host.
    Address(IpAddr),
    /// At the first address of an interface: of IPv4, if it has one.
    Interface(String),
}

/// What is no address is the name of an interface.
impl FromStr for AdapterChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::Interface(text.to_owned()), Self::Address))
    }
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(name) => name.fmt(f),
        }
    }
}
