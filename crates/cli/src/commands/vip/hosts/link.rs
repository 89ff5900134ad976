//! A link as `rtnetlink(7)` tells of it: its interface, this host's addresses, its neighbours.
//!
//! That a neighbour answers is the kernel's own knowledge: it asks by ARP or neighbour discovery, and forgets who is
//! gone. Here it is only told whom to ask.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage::{self as Message, *};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope, CacheInfo,
};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use sidestep_gateway::netlink;

/// An address of a link.
pub(super) type LinkAddress = [u8; 6];

/// An interface of this host.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    /// The longest packet of IP that it carries.
    pub(super) mtu: u32,
    pub(super) is_up: bool,
    /// It has a carrier, too.
    pub(super) is_running: bool,
    /// `None`: it is none of Ethernet.
    pub(super) address: Option<LinkAddress>,
    /// `None`: it is no virtual one.
    pub(super) kind: Option<InfoKind>,
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) ip: IpAddr,
    pub(super) index: u32,
    /// The kernel keeps it for no limited time.
    pub(super) is_permanent: bool,
}

/// A way to another host, as the kernel's table of routes has it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The interface by which it begins.
    pub(super) index: u32,
    /// The other host is on that one's link.
    pub(super) is_direct: bool,
    /// Our address on it.
    pub(super) from: IpAddr,
    /// The longest packet of IP that it carries, as far as is known.
    pub(super) mtu: u32,
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub(super) ip: IpAddr,
    /// `None`: it does not answer, or not yet.
    pub(super) address: Option<LinkAddress>,
    /// It has answered lately.
    pub(super) is_reachable: bool,
    /// It was asked in vain.
    pub(super) has_failed: bool,
}

/// The interface of this name.
///
/// # Errors
/// There is none, or the kernel does not tell.
pub(super) fn interface(name: &str) -> io::Result<Interface> {
    let mut question = LinkMessage::default();
    question.attributes.push(LinkAttribute::IfName(name.to_owned()));
    one_interface(question)
}

/// The interface of this number.
///
/// # Errors
/// There is none, or the kernel does not tell.
pub(super) fn interface_of(index: u32) -> io::Result<Interface> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    one_interface(question)
}

/// Names of the VLANs' interfaces that are on this one, in this network namespace.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn vlans_on(index: u32) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    exchange(GetLink(LinkMessage::default()), NLM_F_REQUEST | NLM_F_DUMP, |answer| {
        if let NewLink(link) = answer
            && is_vlan_on(&link, index)
        {
            names.extend(name_of(&link));
        }
    })?;
    Ok(names)
}

fn is_vlan_on(link: &LinkMessage, index: u32) -> bool {
    link.attributes.contains(&LinkAttribute::Link(index)) && kind_of(link) == Some(InfoKind::Vlan)
}

fn name_of(link: &LinkMessage) -> Option<String> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

/// `None`: it is no virtual one.
fn kind_of(link: &LinkMessage) -> Option<InfoKind> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.clone()),
            _ => None,
        }),
        _ => None,
    })
}

fn one_interface(question: LinkMessage) -> io::Result<Interface> {
    let mut found = None;
    exchange(GetLink(question), NLM_F_REQUEST, |answer| {
        let NewLink(link) = answer else { return };
        let address = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => LinkAddress::try_from(&bytes[..]).ok(),
            _ => None,
        });
        let mtu = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        found = Some(Interface {
            kind: kind_of(&link),
            name: name_of(&link).unwrap_or_default(),
            index: link.header.index,
            mtu: mtu.unwrap_or_default(),
            is_up: link.header.flags.contains(LinkFlags::Up),
            is_running: link.header.flags.contains(LinkFlags::Running),
            address: address.filter(|_| link.header.link_layer_type == LinkLayerType::Ether),
        });
    })?;
    found.ok_or_else(|| ErrorKind::NotFound.into())
}

/// The way to a host; `None`: it is this one.
///
/// # Errors
/// No way leads there, or the kernel does not tell.
pub(super) fn route_to(ip: IpAddr) -> io::Result<Option<Route>> {
    let mut question = RouteMessage::default();
    question.header.address_family = family(ip);
    question.header.destination_prefix_length = if ip.is_ipv4() { 32 } else { 128 };
    question.attributes.push(RouteAttribute::Destination(ip.into()));
    let mut found = None;
    exchange(GetRoute(question), NLM_F_REQUEST, |answer| {
        if let NewRoute(route) = answer {
            found = Some(route);
        }
    })?;
    let route = found.ok_or(ErrorKind::NetworkUnreachable)?;
    match route.header.kind {
        RouteType::Local => return Ok(None),
        RouteType::Unicast => {}
        _ => return Err(ErrorKind::NetworkUnreachable.into()),
    }
    let (mut index, mut is_direct, mut from, mut mtu) = (None, true, None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(it) => index = Some(*it),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => is_direct = false,
            RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => from = Some(IpAddr::V4(*ip)),
            RouteAttribute::PrefSource(RouteAddress::Inet6(ip)) => from = Some(IpAddr::V6(*ip)),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let (Some(index), Some(from)) = (index, from) else {
        return Err(ErrorKind::NetworkUnreachable.into());
    };
    let carried = interface_of(index)?.mtu;
    Ok(Some(Route { index, is_direct, from, mtu: mtu.map_or(carried, |mtu| mtu.min(carried)) }))
}

/// All addresses of this host.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn addresses() -> io::Result<Vec<Own>> {
    let mut all = Vec::new();
    exchange(GetAddress(AddressMessage::default()), NLM_F_REQUEST | NLM_F_DUMP, |answer| {
        let NewAddress(message) = answer else { return };
        let ip = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| {
            message.attributes.iter().find_map(wanted)
        };
        // Of a link between two ends the first is ours and the second the peer's.
        let local = ip(|it| match it {
            AddressAttribute::Local(ip) => Some(*ip),
            _ => None,
        });
        let address = ip(|it| match it {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        });
        let is_permanent = message.header.flags.contains(AddressHeaderFlags::Permanent);
        let own = |ip| Own { ip, index: message.header.index, is_permanent };
        all.extend(local.or(address).map(own));
    })?;
    Ok(all)
}

/// Gives an interface an address for a time, or for so long from now on if it has it.
///
/// # Errors
/// The kernel refuses.
pub(super) fn lend(index: u32, ip: IpAddr, time: Duration) -> io::Result<()> {
    let seconds = time.as_secs() as u32;
    let mut message = address_message(index, ip);
    message.header.scope = AddressScope::Universe;
    let mut lifetime = CacheInfo::default();
    lifetime.ifa_valid = seconds;
    // What this host begins itself, probes among it, is never to come from a VIP: to a target that would be its
    // own address. By IPv6 the kernel would choose it, unless it is preferred for no time; by IPv4 the network's address
    // goes before one of a single host.
    lifetime.ifa_preferred = if ip.is_ipv4() { seconds } else { 0 };
    message.attributes.push(AddressAttribute::CacheInfo(lifetime));
    if ip.is_ipv6() {
        // That no other host has it was found out before.
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    exchange(NewAddress(message), flags, |_| {})
}

/// Takes an address from an interface.
///
/// # Errors
/// The kernel refuses; it is not there.
pub(super) fn take_back(index: u32, ip: IpAddr) -> io::Result<()> {
    exchange(DelAddress(address_message(index, ip)), NLM_F_REQUEST | NLM_F_ACK, |_| {})
}

fn address_message(index: u32, ip: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = family(ip);
    message.header.prefix_len = if ip.is_ipv4() { 32 } else { 128 };
    message.attributes.extend([AddressAttribute::Local(ip), AddressAttribute::Address(ip)]);
    message
}

/// What the kernel knows of the neighbours on an interface.
///
/// # Errors
/// It does not tell.
pub(super) fn neighbours(index: u32) -> io::Result<Vec<Neighbour>> {
    let mut all = Vec::new();
    let question = GetNeighbour(NeighbourMessage::default());
    exchange(question, NLM_F_REQUEST | NLM_F_DUMP, |answer| {
        let NewNeighbour(message) = answer else { return };
        if message.header.ifindex == index {
            all.extend(neighbour(&message));
        }
    })?;
    Ok(all)
}

fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let ip = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })?;
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => LinkAddress::try_from(&bytes[..]).ok(),
        _ => None,
    });
    let state = message.header.state;
    let has_failed = state == NeighbourState::Failed;
    let is_reachable = matches!(state, NeighbourState::Reachable | NeighbourState::Permanent);
    let is_known = !has_failed && state != NeighbourState::Incomplete;
    Some(Neighbour { ip, address: address.filter(|_| is_known), is_reachable, has_failed })
}

/// Has the kernel ask whether a neighbour is still there, as if it had something to send.
///
/// # Errors
/// The kernel refuses.
pub(super) fn ask_for(index: u32, ip: IpAddr) -> io::Result<()> {
    let message = neighbour_message(index, ip, NeighbourFlags::Use);
    exchange(NewNeighbour(message), NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, |_| {})
}

/// Has the kernel forget a neighbour.
fn forget(index: u32, ip: IpAddr) {
    let message = neighbour_message(index, ip, NeighbourFlags::empty());
    // One that is not known is not known afterwards.
    _ = exchange(DelNeighbour(message), NLM_F_REQUEST | NLM_F_ACK, |_| {});
}

fn neighbour_message(index: u32, ip: IpAddr, flags: NeighbourFlags) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    message.header.ifindex = index;
    message.header.flags = flags;
    message.attributes.push(NeighbourAttribute::Destination(match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    }));
    message
}

/// The host of the link that answers for one of these addresses, if one does: ARP or neighbour discovery is
/// asked about all of them, and waited for. None of them is an address of this host.
///
/// # Errors
/// The kernel refuses to ask.
pub(super) fn who_answers(
    index: u32,
    addresses: &[IpAddr],
) -> io::Result<Option<(IpAddr, LinkAddress)>> {
    /// The kernel asks again each second.
    const PATIENCE: Duration = Duration::from_millis(2200);
    const LOOK: Duration = Duration::from_millis(50);
    for ip in addresses {
        forget(index, *ip);
        ask_for(index, *ip)?;
    }
    let deadline = Instant::now() + PATIENCE;
    let mut answer = None;
    while answer.is_none() && Instant::now() < deadline && !addresses.is_empty() {
        thread::sleep(LOOK);
        let all = neighbours(index)?;
        let of_interest = || all.iter().filter(|it| addresses.contains(&it.ip));
        answer =
            of_interest().find_map(|it| Some((it.ip, it.address.filter(|_| it.is_reachable)?)));
        if of_interest().filter(|it| it.has_failed).count() == addresses.len() {
            break;
        }
    }
    for ip in addresses {
        forget(index, *ip);
    }
    Ok(answer)
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Asks the kernel, and tells each answer.
fn exchange(question: Message, flags: u16, each: impl FnMut(Message)) -> io::Result<()> {
    netlink::exchange(NETLINK_ROUTE, question.into(), flags, each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_is_told_by_its_kind_and_by_what_it_is_on() {
        let link = |kind, on| {
            let mut link = LinkMessage::default();
            link.attributes = vec![
                LinkAttribute::IfName("eth0.5".to_owned()),
                LinkAttribute::Link(on),
                LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
            ];
            link
        };
        assert!(is_vlan_on(&link(InfoKind::Vlan, 7), 7));
        assert!(!is_vlan_on(&link(InfoKind::Vlan, 8), 7));
        assert!(!is_vlan_on(&link(InfoKind::Veth, 7), 7), "the other end of a cable");
        assert_eq!(name_of(&link(InfoKind::Vlan, 7)).as_deref(), Some("eth0.5"));
    }

    #[test]
    fn the_loopback_device_has_no_vlans() {
        assert_eq!(vlans_on(1).unwrap(), Vec::<String>::new());
    }
}
