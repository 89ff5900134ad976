//! The ports of this host's adapters, their addresses, and which one is meant.
//!
//! An adapter has ports, a port has a table of addresses (*GIDs*), and the kernel fills it: for each
//! address of the network interface above the port there is an entry for each kind of RoCE that the
//! adapter speaks, and one that is made of the MAC address. A VLAN is another interface with other
//! entries in the same table. A sender names the entry, and the entry decides how:
//!
//! | Kind | On the wire | Reaches |
//! |---|---|---|
//! | [`Kind::RoceV1`] | Ethernet's type 0x8915, GIDs as addresses | the same Ethernet; SMC-R version 1 |
//! | [`Kind::RoceV2`] | UDP port 4791 over IPv4 or IPv6 | whatever IP reaches; SMC-R version 2 |
//!
//! *Source*: RFC 7609 §2.2 (GIDs, MTU); InfiniBand Architecture Specification volume 1, annexes A16,
//! A17 (RoCE).

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::abi::{self, GidEntry};
use super::library::Verbs;
use super::objects::{self, Context};
use crate::device::Kind;

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Itself; of IPv4 as that.
    pub address: IpAddr,
    /// Its kind.
    pub kind: Kind,
    /// Its place in the port's table.
    pub index: u8,
    /// The port, from 1 on.
    pub port: u8,
    /// The network interface that has it, by its number; 0: none.
    pub interface: u32,
}

/// A port of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The adapter's name, as `rdma link` shows it: `mlx5_0`.
    pub device: String,
    /// Its number, from 1 on.
    pub number: u8,
    /// Whether it carries packets.
    pub is_active: bool,
    /// The longest payload of a packet, in bytes, 256 to 4096: what the interface's MTU leaves.
    pub mtu: u16,
    /// Its addresses, in the order of its table.
    pub gids: Vec<Gid>,
}

/// By what a port is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// It has this address.
    Address(IpAddr),
    /// It is below the network interface of this number.
    Interface(u32),
}

impl Port {
    /// Adapter and number, as `rdma link` shows them: `mlx5_0/1`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.device, self.number)
    }

    /// The entry of its table for an address of a network interface.
    #[must_use]
    pub fn gid(&self, address: IpAddr, interface: u32, kind: Kind) -> Option<Gid> {
        let is_it = |gid: &&Gid| {
            gid.kind == kind && gid.interface == interface && gid.address == address.to_canonical()
        };
        self.gids.iter().find(is_it).copied()
    }

    /// The same address by the other kind of RoCE.
    pub(super) fn twin_of(&self, gid: Gid) -> Option<Gid> {
        let kind = match gid.kind {
            Kind::RoceV1 => Kind::RoceV2,
            Kind::RoceV2 => Kind::RoceV1,
        };
        self.gid(gid.address, gid.interface, kind)
    }
}

/// All ports of Ethernet adapters. An adapter that cannot be opened has none.
///
/// # Errors
///
/// The library's: there is no list of adapters.
pub fn ports(verbs: &Arc<Verbs>) -> io::Result<Vec<Port>> {
    let mut all = Vec::new();
    for name in objects::names(verbs)? {
        // One that is being taken away, or that others may not use, is none.
        if let Ok(Some(context)) = Context::open(verbs, &name)
            && let Ok(ports) = ports_of(&context, &name)
        {
            all.extend(ports);
        }
    }
    Ok(all)
}

fn ports_of(context: &Context, name: &str) -> io::Result<Vec<Port>> {
    let count = context.attributes()?.phys_port_cnt;
    let gids = gids_of(context)?;
    let mut ports = Vec::new();
    for number in 1..=count {
        let attributes = context.port(number)?;
        let Some(mtu) = mtu_bytes(attributes.active_mtu) else { continue };
        if attributes.link_layer != abi::LINK_LAYER_ETHERNET {
            continue;
        }
        ports.push(Port {
            device: name.to_owned(),
            number,
            is_active: attributes.state == abi::PORT_ACTIVE,
            mtu,
            gids: gids.iter().filter(|gid| gid.port == number).copied().collect(),
        });
    }
    Ok(ports)
}

/// The addresses of RoCE of all ports of an adapter.
pub(super) fn gids_of(context: &Context) -> io::Result<Vec<Gid>> {
    Ok(context.gids()?.iter().filter_map(Gid::read).collect())
}

/// The port that is meant and can be used, and the address to use there. Of several addresses of an
/// interface the first of IPv4 is taken, then of IPv6, and last one that is made of the MAC address:
/// that one may be missing after the next change.
#[must_use]
pub fn choose(ports: &[Port], by: By, kind: Kind) -> Option<(&Port, Gid)> {
    let active = ports.iter().filter(|port| port.is_active);
    let all = active.flat_map(|port| port.gids.iter().map(move |gid| (port, *gid)));
    let meant = all.filter(|(_, gid)| {
        gid.kind == kind
            && match by {
                By::Address(address) => gid.address == address.to_canonical(),
                By::Interface(interface) => gid.interface == interface,
            }
    });
    meant.min_by_key(|(_, gid)| rank(gid.address))
}

fn rank(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    }
}

impl Gid {
    /// `None`: an entry of something else than RoCE, or that no queue pair can name.
    fn read(entry: &GidEntry) -> Option<Self> {
        let kind = match entry.gid_type {
            abi::GID_TYPE_ROCE_V1 => Kind::RoceV1,
            abi::GID_TYPE_ROCE_V2 => Kind::RoceV2,
            _ => return None,
        };
        Some(Self {
            address: Ipv6Addr::from(entry.gid).to_canonical(),
            kind,
            index: u8::try_from(entry.gid_index).ok()?,
            port: u8::try_from(entry.port_num).ok()?,
            interface: entry.ndev_ifindex,
        })
    }
}

/// An address as a GID has it: IPv4's in IPv6.
pub(super) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

const fn mtu_bytes(code: u32) -> Option<u16> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(address: &str, kind: Kind, index: u8, interface: u32) -> Gid {
        Gid { address: address.parse().unwrap(), kind, index, port: 1, interface }
    }

    fn port(device: &str, is_active: bool, gids: Vec<Gid>) -> Port {
        Port { device: device.to_owned(), number: 1, is_active, mtu: 1024, gids }
    }

    fn two_ports() -> [Port; 2] {
        let first = vec![
            gid("fe80::1", Kind::RoceV1, 0, 4),
            gid("fe80::1", Kind::RoceV2, 1, 4),
            gid("fd00::1", Kind::RoceV2, 2, 4),
            gid("10.0.0.1", Kind::RoceV2, 3, 4),
            gid("10.1.0.1", Kind::RoceV2, 4, 9),
        ];
        [port("one", true, first), port("two", false, vec![gid("10.0.0.2", Kind::RoceV2, 0, 5)])]
    }

    #[test]
    fn an_interface_has_the_address_that_lasts_longest() {
        let ports = two_ports();
        let chosen =
            |by, kind| choose(&ports, by, kind).map(|(port, gid)| (&*port.device, gid.index));
        assert_eq!(chosen(By::Interface(4), Kind::RoceV2), Some(("one", 3)));
        assert_eq!(chosen(By::Interface(4), Kind::RoceV1), Some(("one", 0)));
        assert_eq!(chosen(By::Interface(9), Kind::RoceV2), Some(("one", 4)), "a VLAN");
        assert_eq!(chosen(By::Interface(9), Kind::RoceV1), None);
        assert_eq!(chosen(By::Interface(5), Kind::RoceV2), None, "that port is down");
    }

    #[test]
    fn an_address_is_found_in_either_form() {
        let ports = two_ports();
        for (text, index) in [("10.1.0.1", 4), ("::ffff:10.1.0.1", 4), ("fd00::1", 2)] {
            let by = By::Address(text.parse().unwrap());
            assert_eq!(choose(&ports, by, Kind::RoceV2).unwrap().1.index, index);
        }
        assert!(choose(&ports, By::Address("10.0.0.2".parse().unwrap()), Kind::RoceV2).is_none());
    }

    #[test]
    fn entries_of_other_networks_are_none() {
        let entry = |gid_type, gid_index| GidEntry { gid_type, gid_index, ..GidEntry::default() };
        assert!(Gid::read(&entry(0, 0)).is_none());
        assert!(Gid::read(&entry(abi::GID_TYPE_ROCE_V2, 256)).is_none());
        assert!(Gid::read(&entry(abi::GID_TYPE_ROCE_V1, 255)).is_some());
    }

    #[test]
    fn lengths_of_packets_are_powers_of_two() {
        let all: Vec<_> = (0..=6).map(mtu_bytes).collect();
        let expected = [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096), None];
        assert_eq!(all, expected);
    }
}
