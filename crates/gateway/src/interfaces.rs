//! Network interfaces: what the kernel tells of them, and that something has changed.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use arrayvec::ArrayVec;
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use sidestep_proto::rendezvous::hosts::NETWORKS_MAX;
use sidestep_wire::Mac;

use crate::netlink;

/// Multicast groups of rtnetlink, in which changes are told: links, addresses of IPv4 and of IPv6.
///
/// *Source*: Linux `include/uapi/linux/rtnetlink.h`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Zero where there is none, as of the loopback interface.
    pub(crate) mac: Mac,
    /// Bytes of a packet, the IP header included.
    pub(crate) mtu: u32,
    /// 0: none.
    pub(crate) vlan: u16,
    /// Packets that leave by it come back by it.
    pub(crate) is_loopback: bool,
    /// It is switched on, and there is something at the other end of its cable.
    pub(crate) is_up: bool,
    /// Its addresses, with their prefixes.
    pub(crate) networks: Vec<IpNet>,
}

impl Interface {
    fn of(link: &LinkMessage) -> Self {
        let flags = link.header.flags;
        let mut this = Self {
            index: link.header.index,
            name: String::new(),
            mac: Mac([0; 6]),
            mtu: 0,
            vlan: 0,
            is_loopback: flags.contains(LinkFlags::Loopback),
            is_up: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            networks: Vec::new(),
        };
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => this.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => this.mtu = *mtu,
                LinkAttribute::Address(address) => {
                    if let Ok(mac) = address.as_slice().try_into() {
                        this.mac = Mac(mac);
                    }
                }
                LinkAttribute::LinkInfo(infos) => this.vlan = vlan(infos),
                _ => {}
            }
        }
        this
    }

    /// Whether it has this address.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.addr() == address)
    }

    /// As many of its networks as CLC has room for: that of this address first, and then those of its
    /// family.
    pub(crate) fn networks_around(&self, address: IpAddr) -> ArrayVec<IpNet, NETWORKS_MAX> {
        let mut networks: Vec<&IpNet> = self.networks.iter().collect();
        networks.sort_by_key(|it| (it.addr() != address, it.addr().is_ipv4() != address.is_ipv4()));
        networks.into_iter().take(NETWORKS_MAX).copied().collect()
    }
}

fn vlan(infos: &[LinkInfo]) -> u16 {
    let of_info = |info: &LinkInfo| match info {
        LinkInfo::Data(InfoData::Vlan(facts)) => facts.iter().find_map(|fact| match fact {
            InfoVlan::Id(id) => Some(*id),
            _ => None,
        }),
        _ => None,
    };
    infos.iter().find_map(of_info).unwrap_or(0)
}

/// The interfaces of this network namespace, with their addresses.
///
/// # Errors
///
/// The kernel does not tell.
pub(crate) fn read() -> io::Result<Vec<Interface>> {
    let mut interfaces = Vec::new();
    let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
    netlink::ask_all(NETLINK_ROUTE, links, |answer| {
        if let RouteNetlinkMessage::NewLink(link) = answer {
            interfaces.push(Interface::of(&link));
        }
    })?;
    let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    netlink::ask_all(NETLINK_ROUTE, addresses, |answer| {
        if let RouteNetlinkMessage::NewAddress(message) = answer {
            let its = interfaces.iter_mut().find(|it| it.index == message.header.index);
            if let (Some(interface), Some(network)) = (its, network(&message)) {
                interface.networks.push(network);
            }
        }
    })?;
    Ok(interfaces)
}

/// The index of the interface by which packets from this address of ours to that of a peer leave, as the
/// kernel's table of routes has it now.
///
/// # Errors
///
/// No way leads there, the two are of different families, or the kernel does not tell.
pub(crate) fn towards(local: IpAddr, remote: IpAddr) -> io::Result<u32> {
    let mut question = RouteMessage::default();
    (question.header.address_family, question.header.destination_prefix_length) = match remote {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    question.header.source_prefix_length = question.header.destination_prefix_length;
    let (to, from) = (remote.into(), local.into());
    question.attributes = vec![RouteAttribute::Destination(to), RouteAttribute::Source(from)];
    let mut interface = None;
    netlink::ask(NETLINK_ROUTE, RouteNetlinkMessage::GetRoute(question), |answer| {
        if let RouteNetlinkMessage::NewRoute(route) = answer {
            interface = route.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            });
        }
    })?;
    interface.ok_or_else(|| io::ErrorKind::NetworkUnreachable.into())
}

fn network(message: &AddressMessage) -> Option<IpNet> {
    // On a line between two points, the address is the peer's, and the local one is told beside it.
    let local = |it: &AddressAttribute| match it {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    };
    let any = |it: &AddressAttribute| match it {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    };
    let attributes = &message.attributes;
    let address = attributes.iter().find_map(local).or_else(|| attributes.iter().find_map(any))?;
    IpNet::new(address, message.header.prefix_len).ok()
}

/// Tells that interfaces have changed.
#[derive(Debug)]
pub(crate) struct Changes(Socket);

impl Changes {
    pub(crate) fn listen() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Takes all that was told: what there is now, [`read`] tells.
    pub(crate) fn take(&self) {
        let _ = netlink::drain(&self.0);
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there() {
        let interfaces = read().unwrap();
        let loopback = interfaces.iter().find(|it| it.name == "lo").expect("there always is one");
        assert_eq!((loopback.mac, loopback.vlan), (Mac([0; 6]), 0));
        assert!(loopback.is_loopback && loopback.mtu > 1500);
        assert!(loopback.has([127, 0, 0, 1].into()));
    }

    #[test]
    fn packets_to_an_address_of_our_own_leave_by_the_loopback_interface() {
        let interfaces = read().unwrap();
        let loopback = interfaces.iter().find(|it| it.is_loopback).unwrap();
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(towards(here, IpAddr::from([127, 0, 0, 2])).unwrap(), loopback.index);
        assert!(towards(here, "::1".parse().unwrap()).is_err());
    }

    #[test]
    fn of_many_addresses_the_one_that_is_asked_for_comes_first() {
        let text = |host: usize| format!("10.0.{host}.1/24");
        let mut networks: Vec<IpNet> = (0..20).map(|host| text(host).parse().unwrap()).collect();
        networks.insert(0, "fd00::1/64".parse().unwrap());
        let (index, name, mac, mtu) = (7, "eth0".to_owned(), Mac([2; 6]), 1500);
        let (is_loopback, is_up) = (false, true);
        let interface = Interface { index, name, mac, mtu, vlan: 0, is_loopback, is_up, networks };
        let around = |address: &str| {
            let networks = interface.networks_around(address.parse().unwrap());
            networks.iter().map(IpNet::to_string).collect::<Vec<_>>()
        };
        let of_last = around("10.0.19.1");
        assert_eq!(of_last[..3], [text(19), text(0), text(1)]);
        assert_eq!(of_last.len(), NETWORKS_MAX);
        assert_eq!(around("fd00::1")[..2], ["fd00::1/64".to_owned(), text(0)]);
    }

    #[test]
    fn without_changes_nothing_is_told() {
        let changes = Changes::listen().unwrap();
        changes.take();
    }
}
