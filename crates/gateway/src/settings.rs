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

/// Where an adapter is. An RDMA device that the kernel has there is used, and else a soft RNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// At an address of this host.
    Address(IpAddr),
    /// At the first address of an interface: of IPv4, if it has one.
    Interface(String),
    /// At that of an RDMA device, which is used: its port, as `rdma link` names it (`mlx5_0/1`).
    Port {
        /// The device.
        device: String,
        /// From 1 on.
        number: u8,
    },
}

/// What is neither an address nor a port is the name of an interface. Those have no slash.
impl FromStr for AdapterChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let port = text.split_once('/').and_then(|(device, number)| {
            let number = number.parse().ok().filter(|number| *number > 0)?;
            Some(Self::Port { device: device.to_owned(), number })
        });
        Ok(port.unwrap_or_else(|| Self::Interface(text.to_owned())))
    }
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(name) => name.fmt(f),
            Self::Port { device, number } => write!(f, "{device}/{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_by_how_they_look() {
        let port = AdapterChoice::Port { device: "mlx5_0".to_owned(), number: 2 };
        let interface = |name: &str| AdapterChoice::Interface(name.to_owned());
        for (text, choice) in [
            ("10.0.0.1", AdapterChoice::Address([10, 0, 0, 1].into())),
            ("eth0", interface("eth0")),
            ("mlx5_0", interface("mlx5_0")),
            ("mlx5_0/2", port),
            ("mlx5_0/0", interface("mlx5_0/0")),
            ("mlx5_0/256", interface("mlx5_0/256")),
        ] {
            assert_eq!(text.parse(), Ok(choice.clone()));
            assert_eq!(choice.to_string(), text);
        }
    }
}
