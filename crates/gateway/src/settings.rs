//! What a gateway is to have.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use arrayvec::ArrayVec;
use sidestep_proto::rendezvous::UEIDS_MAX;
use sidestep_proto::rendezvous::hosts::PnetId;
use sidestep_rdma::faults::Plan;
use sidestep_tls::Rule;
use sidestep_wire::Eid;

/// What a gateway is to have.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Its adapters, the preferred first. Without any, all RDMA devices of the host.
    pub adapters: Vec<AdapterChoice>,
    /// Names of interfaces, each with the PNET ID of its physical network.
    pub networks: Vec<(String, String)>,
    /// The UEIDs it admits, the preferred first.
    pub ueids: ArrayVec<Eid, UEIDS_MAX>,
    /// What adapters send goes through a network like this.
    pub faults: Option<Plan>,
    /// Which connections TLS protects, and how: the first that has one decides.
    pub rules: Vec<Rule>,
    /// How long connections may go on that there are when it is told to end, or is replaced. `None`: when it is told
    /// to end they are reset at once, and when it is replaced they go on to their ends.
    pub drain_limit: Option<Duration>,
    /// What it leaves when it is told to end is kept for the gateway that begins next. Not with a limit for draining.
    pub has_store: bool,
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

/// Where on this host something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    /// At an address of it.
    Address(IpAddr),
    /// At the first address of an interface: of IPv4, if it has one.
    Interface(String),
}

/// An adapter that a gateway is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The RDMA device that is there.
    Device(Spot),
    /// An RDMA device by its port, as `rdma link` names it (`mlx5_0/1`).
    Port {
        /// The device.
        device: String,
        /// From 1 on.
        number: u8,
    },
    /// A soft RNIC (`soft:eth0`). It takes more CPU time for a byte than TCP does, so nobody gets one who
    /// has not asked for it.
    Soft(Spot),
}

/// What stands before the spot of a soft RNIC.
const SOFT: &str = "soft:";

impl FromStr for Spot {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::Interface(text.to_owned()), Self::Address))
    }
}

/// What is neither an address nor a port is the name of an interface. Those have no slash and no colon.
impl FromStr for AdapterChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        if let Some(spot) = text.strip_prefix(SOFT) {
            return spot.parse().map(Self::Soft);
        }
        let port = text.split_once('/').and_then(|(device, number)| {
            let number = number.parse().ok().filter(|number| *number > 0)?;
            Some(Self::Port { device: device.to_owned(), number })
        });
        port.map_or_else(|| text.parse().map(Self::Device), Ok)
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(spot) => spot.fmt(f),
            Self::Port { device, number } => write!(f, "{device}/{number}"),
            Self::Soft(spot) => write!(f, "{SOFT}{spot}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_by_how_they_look() {
        let port = AdapterChoice::Port { device: "mlx5_0".to_owned(), number: 2 };
        let interface = |name: &str| Spot::Interface(name.to_owned());
        let address = |text: &str| Spot::Address(text.parse().unwrap());
        for (text, choice) in [
            ("10.0.0.1", AdapterChoice::Device(address("10.0.0.1"))),
            ("eth0", AdapterChoice::Device(interface("eth0"))),
            ("mlx5_0", AdapterChoice::Device(interface("mlx5_0"))),
            ("mlx5_0/2", port),
            ("mlx5_0/0", AdapterChoice::Device(interface("mlx5_0/0"))),
            ("mlx5_0/256", AdapterChoice::Device(interface("mlx5_0/256"))),
            ("soft:eth0", AdapterChoice::Soft(interface("eth0"))),
            ("soft:fd00::1", AdapterChoice::Soft(address("fd00::1"))),
        ] {
            assert_eq!(text.parse(), Ok(choice.clone()));
            assert_eq!(choice.to_string(), text);
        }
    }
}
