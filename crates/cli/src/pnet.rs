//! PNET IDs: names of networks, and the interfaces and SMC devices that are on each.
//!
//! A connection may use a device that is on the network of its interface, or on none.

use std::fmt;

use clap::ValueEnum;
use sidestep_proto::policy::Interface;

use crate::words::{keyword, listed};

/// The name of a network. Only this host knows it.
///
/// *Source*: PNETID of z/OS and of Linux's `smc_pnet`; small letters count as capitals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PnetId(String);

impl PnetId {
    /// The allowed values in words, for error texts.
    pub(crate) const ALLOWED: &str = "1 to 16 characters from A-Z and 0-9";

    /// The PNET ID if its length and characters are allowed.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let allowed =
            (1..=16).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_alphanumeric());
        allowed.then(|| Self(text.to_ascii_uppercase()))
    }
}

impl fmt::Display for PnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What carries SMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The shared memory of this host.
    Ism,
}

/// What has a PNET ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) id: PnetId,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) devices: Vec<Device>,
}

impl Network {
    /// An interface or device that another network has as well.
    fn shared_with(&self, other: &Self) -> Option<String> {
        let interface = self.interfaces.iter().find(|one| other.interfaces.contains(one));
        let device = self.devices.iter().find(|one| other.devices.contains(one));
        interface.map(Interface::to_string).or(device.map(keyword))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<_> = self.devices.iter().map(keyword).collect();
        let lists =
            [("interfaces", listed(&self.interfaces, ", ")), ("devices", devices.join(", "))]
                .into_iter()
                .filter(|(_, entries)| !entries.is_empty());
        let lists: Vec<_> = lists.map(|(what, entries)| format!("{what} {entries}")).collect();
        write!(f, "{}: {}", self.id, lists.join(", "))
    }
}

/// All PNET IDs, none of which shares an interface or device with another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks(Vec<Network>);

impl Networks {
    /// Adds one.
    ///
    /// # Errors
    ///
    /// A sentence that says with which one it is at odds, or that connections could use none of
    /// its devices.
    pub(crate) fn add(&mut self, network: Network) -> Result<(), String> {
        for known in &self.0 {
            let id = &known.id;
            if *id == network.id {
                return Err(format!("{id} is there already"));
            }
            if let Some(name) = network.shared_with(known) {
                return Err(format!("`{name}` has the PNET ID {id} already, and one at most"));
            }
        }
        if network.interfaces.is_empty() && !network.devices.is_empty() {
            return Err("devices without an interface would carry nothing; list interfaces, or \
                        set smc.mode = \"tcp\" to that end"
                .to_owned());
        }
        self.0.push(network);
        Ok(())
    }

    /// The interfaces whose connections may use a device; empty: all may.
    pub(crate) fn interfaces_of(&self, device: Device) -> &[Interface] {
        let network = self.0.iter().find(|network| network.devices.contains(&device));
        network.map_or(&[], |network| &network.interfaces)
    }

    /// The interfaces that have a PNET ID, each with it.
    pub(crate) fn of_interfaces(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().flat_map(|network| {
            let its = network.interfaces.iter();
            its.map(|interface| (interface.to_string(), network.id.to_string()))
        })
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listed(&self.0, "; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(id: &str, interfaces: &[&str], devices: &[Device]) -> Network {
        Network {
            id: PnetId::new(id).unwrap(),
            interfaces: interfaces.iter().map(|name| name.parse().unwrap()).collect(),
            devices: devices.to_vec(),
        }
    }

    #[test]
    fn names_are_written_in_capitals() {
        assert_eq!(PnetId::new("net1").unwrap().to_string(), "NET1");
        assert!(PnetId::new(&"A".repeat(16)).is_some());
        for bad in ["", "NET-1", "NET 1", "\u{c4}", &"A".repeat(17)] {
            assert!(PnetId::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_device_without_a_pnet_id_is_for_all_interfaces() {
        let mut networks = Networks::default();
        networks.add(network("A", &["eth0"], &[])).unwrap();
        assert!(networks.interfaces_of(Device::Ism).is_empty());
        networks.add(network("B", &["eth1", "lo"], &[Device::Ism])).unwrap();
        assert_eq!(listed(networks.interfaces_of(Device::Ism), ","), "eth1,lo");
        assert_eq!(networks.to_string(), "A: interfaces eth0; B: interfaces eth1, lo, devices ism");
    }

    #[test]
    fn what_is_on_one_network_is_on_no_other() {
        let mut networks = Networks::default();
        networks.add(network("A", &["eth0", "lo"], &[Device::Ism])).unwrap();
        let mut refusal = |added| networks.add(added).unwrap_err();
        assert_eq!(refusal(network("a", &["eth1"], &[])), "A is there already");
        let interface = refusal(network("B", &["eth1", "lo"], &[]));
        assert_eq!(interface, "`lo` has the PNET ID A already, and one at most");
        let device = refusal(network("B", &["eth1"], &[Device::Ism]));
        assert_eq!(device, "`ism` has the PNET ID A already, and one at most");
        networks.add(network("B", &["eth1"], &[])).unwrap();
    }

    #[test]
    fn a_device_that_no_connection_could_use_is_a_mistake() {
        let refusal = Networks::default().add(network("A", &[], &[Device::Ism])).unwrap_err();
        assert!(refusal.contains("list interfaces"), "{refusal}");
    }
}
