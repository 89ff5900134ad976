//! The guest's network interface: addresses, the RDMA device above it, and a bad network below it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_sys::protocols::{NETLINK_RDMA, NETLINK_ROUTE};
use sidestep_guest::{Equipment, Impairment};

use crate::netlink::{Netlink, attribute, text_attribute};

/// A network card, by the name that the kernel gives it.
pub(crate) fn interface(card: u8) -> String {
    format!("eth{card}")
}

/// The RDMA device above a network card.
pub(crate) fn rdma_device(card: u8) -> String {
    format!("rxe{card}")
}

/// An RDMA device has ports; soft ones have this.
pub(crate) const RDMA_PORT: u8 = 1;

/// For the kernel to notice an address of an interface.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Brings up loopback, the card and, if it is wanted, the RDMA device, until they are usable.
///
/// **Errors**: the kernel's, or a GID that does not come.
pub(crate) fn set_up(equipment: &Equipment) -> Result<()> {
    let routes = Netlink::open(NETLINK_ROUTE)?;
    routes.order(RTM_NEWLINK, 0, up(index_of("lo")?))?;
    let card = index_of(&interface(equipment.card))?;
    let mut link = up(card);
    attribute(&mut link, IFLA_MTU, &equipment.mtu.to_ne_bytes());
    routes.order(RTM_NEWLINK, 0, link).context("bringing the card up")?;
    for text in &equipment.addresses {
        let address = Address::parse(text)?;
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        routes.order(RTM_NEWADDR, flags, address.message(card)).context(text.clone())?;
    }
    if equipment.has_rdma {
        add_rdma_device(equipment.card).context("the RDMA device")?;
        await_gids(&rdma_device(equipment.card), equipment.addresses.len())?;
    }
    Ok(())
}

// Numbers of uapi/linux/rtnetlink.h, if_link.h and if_addr.h.
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// An `ifinfomsg` that brings an interface up.
fn up(index: u32) -> Vec<u8> {
    const IFF_UP: u32 = 1;
    // family and padding, type; index; flags; the flags that are meant.
    [0, index, IFF_UP, IFF_UP].iter().flat_map(|word: &u32| word.to_ne_bytes()).collect()
}

fn index_of(interface: &str) -> Result<u32> {
    let path = Path::new("/sys/class/net").join(interface).join("ifindex");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().parse()?)
}

/// An address and how much of it names the network.
struct Address {
    address: IpAddr,
    prefix_len: u8,
}

impl Address {
    fn parse(text: &str) -> Result<Self> {
        let (address, len) = text.split_once('/').context("an address without a length")?;
        Ok(Self { address: address.parse()?, prefix_len: len.parse()? })
    }

    /// An `ifaddrmsg`: family, length of the prefix, flags, scope, and the interface.
    fn message(&self, interface: u32) -> Vec<u8> {
        const AF_INET: u8 = 2;
        const AF_INET6: u8 = 10;
        // Nobody else is here who could have the same one; looking for them takes a second.
        const IFA_F_NODAD: u8 = 2;
        let (family, flags, octets) = match self.address {
            IpAddr::V4(address) => (AF_INET, 0, address.octets().to_vec()),
            IpAddr::V6(address) => (AF_INET6, IFA_F_NODAD, address.octets().to_vec()),
        };
        let mut message = vec![family, self.prefix_len, flags, 0];
        message.extend(interface.to_ne_bytes());
        attribute(&mut message, IFA_LOCAL, &octets);
        attribute(&mut message, IFA_ADDRESS, &octets);
        message
    }
}

/// What `rdma link add rxe0 type rxe netdev eth0` does.
fn add_rdma_device(card: u8) -> Result<()> {
    // Numbers of uapi/rdma/rdma_netlink.h: a kind is a client of RDMA's netlink and its command.
    const NLDEV: u16 = 5;
    const NEWLINK: u16 = 3;
    const DEVICE_NAME: u16 = 2;
    const INTERFACE_NAME: u16 = 51;
    const LINK_TYPE: u16 = 65;
    let mut body = Vec::new();
    text_attribute(&mut body, DEVICE_NAME, &rdma_device(card));
    text_attribute(&mut body, LINK_TYPE, "rxe");
    text_attribute(&mut body, INTERFACE_NAME, &interface(card));
    Netlink::open(NETLINK_RDMA)?.order((NLDEV << 10) | NEWLINK, 0, body)
}

/// Waits until the device's port is active and has a GID for each address: the kernel adds them in
/// its own time. (Another GID is made of the card's MAC.)
fn await_gids(device: &str, addresses: usize) -> Result<()> {
    let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = fs::read_to_string(port.join("state")).unwrap_or_default();
        let gids = fs::read_dir(port.join("gids")).into_iter().flatten().flatten();
        let gids = gids.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        let known = gids.filter(|gid| gid.chars().any(|it| !"0:\n".contains(it))).count();
        if state.contains("ACTIVE") && known >= addresses {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{device}: {state:?}, {known} GIDs");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Puts netem in the place of the first card's queueing discipline, or takes it away.
///
/// **Errors**: the kernel's; there was nothing to take away.
pub(crate) fn impair(impairment: Option<Impairment>) -> Result<()> {
    const TCA_KIND: u16 = 1;
    const TCA_OPTIONS: u16 = 2;
    let routes = Netlink::open(NETLINK_ROUTE)?;
    let mut message = queueing_discipline(index_of(&interface(0))?);
    let Some(impairment) = impairment else {
        return routes.order(RTM_DELQDISC, 0, message);
    };
    text_attribute(&mut message, TCA_KIND, "netem");
    attribute(&mut message, TCA_OPTIONS, &netem(impairment));
    routes.order(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, message)
}

/// A `tcmsg` for the discipline at the root of an interface.
fn queueing_discipline(interface: u32) -> Vec<u8> {
    const TC_H_ROOT: u32 = 0xffff_ffff;
    // family and padding; interface; handle; parent; info.
    [0, interface, 0, TC_H_ROOT, 0].iter().flat_map(|word: &u32| word.to_ne_bytes()).collect()
}

/// A `tc_netem_qopt`. The kernel counts its latency in ticks of 64 ns, and probabilities in
/// parts of 2^32.
fn netem(impairment: Impairment) -> Vec<u8> {
    // Packets that wait at a time.
    const LIMIT: u32 = 10_000;
    // One tick is 2^6 ns (include/net/pkt_sched.h, PSCHED_SHIFT).
    let latency = (u64::from(impairment.delay_us) * 1_000) >> 6;
    let latency = u32::try_from(latency).unwrap_or(u32::MAX);
    let [loss, duplicate] =
        [impairment.loss_permille, impairment.duplicate_permille].map(probability);
    // latency, limit, loss, gap, duplicate, jitter
    [latency, LIMIT, loss, 0, duplicate, 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn probability(permille: u32) -> u32 {
    let permille = u64::from(permille.min(1_000));
    (permille * u64::from(u32::MAX) / 1_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_parts_of_a_whole_word() {
        assert_eq!(probability(0), 0);
        assert_eq!(probability(500), u32::MAX / 2);
        assert_eq!(probability(1_000), u32::MAX);
        assert_eq!(probability(5_000), u32::MAX);
    }

    #[test]
    fn a_delay_is_counted_in_ticks() {
        let impairment = Impairment { delay_us: 64, ..Impairment::default() };
        assert_eq!(netem(impairment)[..4], 1_000_u32.to_ne_bytes());
        assert_eq!(netem(impairment).len(), 24);
    }

    #[test]
    fn addresses_of_both_families() -> Result<()> {
        let message = Address::parse("10.0.0.2/24")?.message(2);
        assert_eq!(message[..4], [2, 24, 0, 0]);
        assert_eq!(message.len(), 8 + 8 + 8);
        assert_eq!(Address::parse("fd00::2/64")?.message(2)[..2], [10, 64]);
        assert!(Address::parse("10.0.0.2").is_err());
        Ok(())
    }
}
