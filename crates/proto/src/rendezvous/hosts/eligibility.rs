//! Eligibility: which version of SMC-R can a connection have, and over which adapters?
//!
//! | | SMC-Rv1 | SMC-Rv2 |
//! |---|---|---|
//! | the hosts | in one subnet, as the Proposal's prefixes tell | anywhere that IP leads |
//! | the adapter's GID | of RoCE version 1 | of RoCE version 2, of the connection's family, one that IP leads to |
//! | the adapter | on the connection's VLAN and physical network | the same |
//! | besides | – | a UEID in common |
//!
//! An adapter is on the physical network of a connection if both have the same PNET ID. A connection
//! whose interface has none goes over an adapter of this very interface. PNET IDs never leave a host.
//!
//! *Source*: RFC 7609 §3.1, Appendix C.1; wire reference §7.3, §7.4.

use core::net::IpAddr;

use arrayvec::ArrayVec;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sidestep_wire::clc::accept_confirm::first_contact::{GID_COUNT_MAX, GidList};
use sidestep_wire::clc::proposal::{IPV6_PREFIX_COUNT_MAX, IpPrefixes, Ipv6Prefix, UEID_COUNT_MAX};
use sidestep_wire::clc::{
    FEATURE_EMULATED_ISM, FirstContact, FirstContactR, Hostname, OsType, Release,
};
use sidestep_wire::{Eid, Mac, Mtu, PeerId, RoceGid};

use crate::link_group::{ADAPTERS_MAX, AdapterId, CONNECTIONS_MAX, LINKS_MAX};
use crate::rendezvous::UEIDS_MAX;

/// What we can do besides, as Linux says it: of SMC-R as of SMC-D.
pub(super) const FEATURES: u16 = FEATURE_EMULATED_ISM;

/// Networks of an interface that are looked at: as many as a Proposal has room for, of IPv6.
pub const NETWORKS_MAX: usize = 8;

const _: () = assert!(NETWORKS_MAX <= IPV6_PREFIX_COUNT_MAX);
const _: () = assert!(ADAPTERS_MAX <= GID_COUNT_MAX, "a Confirm names them all");
const _: () = assert!(UEIDS_MAX <= UEID_COUNT_MAX);

/// What a host tells of itself, and what it has. It is the same for all connections, while no adapter
/// comes up or goes down.
#[derive(Clone, Debug)]
pub struct LocalHost {
    /// Our identity: the same in all messages to all peers.
    pub peer_id: PeerId,
    /// Shown to the peer on first contact.
    pub hostname: Hostname,
    /// The UEIDs we admit, the preferred first, by the rules of [`Eid::ueid`]. Without one there is
    /// no version 2.
    pub ueids: ArrayVec<Eid, UEIDS_MAX>,
    /// What it has, the preferred first.
    pub adapters: ArrayVec<Adapter, ADAPTERS_MAX>,
    /// What the operator allows.
    pub versions: Versions,
    /// Connections of a link group, 16 to 255.
    pub max_conns: u8,
    /// Links of a link group, 1 or 2.
    pub max_links: u8,
}

/// Which versions of SMC-R may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// SMC-Rv1: within a subnet.
    pub v1: bool,
    /// SMC-Rv2: routed.
    pub v2: bool,
}

/// One GID of an RDMA adapter. An adapter with GIDs of both kinds is here twice.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// As the engine knows it.
    pub id: AdapterId,
    /// What its packets look like.
    pub roce: Roce,
    /// Its address.
    pub gid: RoceGid,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The longest packet it sends and takes. Without one that a peer would understand, no connection
    /// can go over it.
    pub mtu: Mtu,
    /// The index of its network interface.
    pub interface: u32,
    /// The addresses of that interface, with their prefix lengths.
    pub networks: ArrayVec<IpNet, NETWORKS_MAX>,
    /// The VLAN that its packets are on; 0 for none.
    pub vlan: u16,
    /// Its physical network, if it has a name.
    pub pnet_id: Option<PnetId>,
    /// It can be used now. Of one that is down, a connection only tells whether its link group may use it
    /// later.
    pub is_up: bool,
}

/// What carries the packets of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Roce {
    /// Ethernet: RoCE version 1.
    V1,
    /// UDP: RoCE version 2.
    V2,
}

/// Where a TCP connection goes, and by which interface.
#[derive(Clone, Debug)]
pub struct Route {
    /// The address of our end.
    pub local: IpAddr,
    /// The address of the peer's.
    pub remote: IpAddr,
    /// The index of the interface of our address.
    pub interface: u32,
    /// The addresses of that interface, with their prefix lengths.
    pub networks: ArrayVec<IpNet, NETWORKS_MAX>,
    /// Its VLAN; 0 for none.
    pub vlan: u16,
    /// Its physical network, if it has a name.
    pub pnet_id: Option<PnetId>,
}

// ---- the rules ----------------------------------------------------------------------------------

impl LocalHost {
    /// The adapters that the connection can go over, the preferred first: one whose GID is the
    /// connection's own address, one on the same network, any other of the physical network; and behind
    /// those that are up the others.
    ///
    /// A server takes from the Proposal which adapter our packets come from: so the order is the
    /// same whenever it is asked for.
    pub(super) fn adapters(&self, route: &Route, roce: Roce) -> Eligible<'_> {
        let is_eligible = |adapter: &&Adapter| adapter.roce == roce && adapter.serves(route);
        let mut adapters: ArrayVec<_, ADAPTERS_MAX> =
            self.adapters.iter().filter(is_eligible).collect();
        let own = route.local.to_canonical();
        adapters.sort_by_key(|adapter| {
            let distance = match adapter {
                it if address(it.gid) == own => 0,
                it if it.networks.iter().any(|network| network.contains(&own)) => 1,
                _ => 2,
            };
            (!adapter.is_up, distance)
        });
        Eligible(adapters)
    }

    /// Whether it is a GID of ours. Such a peer would be ourselves.
    pub(super) fn has(&self, gid: RoceGid) -> bool {
        self.adapters.iter().any(|adapter| adapter.gid == gid)
    }

    /// What we say of ourselves at first contact, but for what depends on the peer. At release 2.0
    /// the limits are not told, but the standard's.
    pub(super) fn hello(&self, release: Release) -> FirstContactR {
        let (max_conns, max_links) = match release {
            Release::V2_0 => (CONNECTIONS_MAX, LINKS_MAX),
            _ => (self.max_conns, self.max_links),
        };
        FirstContactR {
            common: FirstContact {
                os_type: OsType::LINUX,
                release,
                hostname: self.hostname,
                feature_mask: FEATURES,
            },
            direct: true,
            max_conns,
            max_links,
            gids: GidList::new(),
        }
    }
}

/// The adapters for one connection, the preferred first.
pub(super) struct Eligible<'a>(ArrayVec<&'a Adapter, ADAPTERS_MAX>);

impl<'a> Eligible<'a> {
    /// `None`: none is up.
    pub(super) fn preferred(&self) -> Option<&'a Adapter> {
        self.0.first().copied().filter(|adapter| adapter.is_up)
    }

    pub(super) fn ids(&self) -> ArrayVec<AdapterId, ADAPTERS_MAX> {
        self.0.iter().map(|adapter| adapter.id).collect()
    }

    /// Of those that are up.
    pub(super) fn gids(&self) -> GidList {
        self.0.iter().filter(|adapter| adapter.is_up).map(|adapter| adapter.gid).collect()
    }
}

impl Adapter {
    fn serves(&self, route: &Route) -> bool {
        let is_there = match route.pnet_id {
            Some(_) => self.pnet_id == route.pnet_id,
            None => self.interface == route.interface,
        };
        let can_be_told = self.mtu.bytes().is_some() && route.reaches(self.gid, self.roce);
        is_there && self.vlan == route.vlan && can_be_told
    }

    /// Whether no gateway lies between it and this one of the peer.
    pub(super) fn is_neighbour(&self, gid: RoceGid) -> bool {
        self.networks.iter().any(|network| network.contains(&address(gid)))
    }
}

impl Route {
    /// Whether packets between the two hosts can have such an address.
    pub(super) fn reaches(&self, gid: RoceGid, roce: Roce) -> bool {
        match roce {
            Roce::V1 => !address(gid).is_unspecified() && !address(gid).is_multicast(),
            Roce::V2 => {
                let (gid, peer) = (address(gid), self.remote.to_canonical());
                gid.is_ipv4() == peer.is_ipv4()
                    && gid.is_loopback() == peer.is_loopback()
                    && is_routed(gid)
            }
        }
    }

    /// The networks of our end, as they are told in version 1. `None`: they are not known.
    pub(super) fn prefixes(&self) -> Option<IpPrefixes> {
        let subnets = self.subnets();
        match subnets.first()? {
            IpNet::V4(subnet) => {
                Some(IpPrefixes::V4 { subnet: subnet.network(), prefix_len: subnet.prefix_len() })
            }
            IpNet::V6(_) => {
                let of_v6 = subnets.iter().filter_map(|subnet| match subnet {
                    IpNet::V6(subnet) => Some(Ipv6Prefix {
                        prefix: subnet.network(),
                        prefix_len: subnet.prefix_len(),
                    }),
                    IpNet::V4(_) => None,
                });
                Some(IpPrefixes::V6(of_v6.collect()))
            }
        }
    }

    /// Whether the peer is in one of these networks.
    pub(super) fn is_within_subnet(&self) -> bool {
        let remote = self.remote.to_canonical();
        self.subnets().iter().any(|subnet| subnet.contains(&remote))
    }

    /// Whether one of the client's networks is one of ours.
    pub(super) fn shares_subnet(&self, prefixes: &IpPrefixes) -> bool {
        let is_ours =
            |network: IpNet| self.subnets().iter().any(|ours| ours.trunc() == network.trunc());
        match prefixes {
            IpPrefixes::V4 { subnet, prefix_len } => {
                Ipv4Net::new(*subnet, *prefix_len).is_ok_and(|it| is_ours(IpNet::V4(it)))
            }
            IpPrefixes::V6(list) => list.iter().any(|it| {
                Ipv6Net::new(it.prefix, it.prefix_len).is_ok_and(|it| is_ours(IpNet::V6(it)))
            }),
        }
    }

    /// The networks that tell whether two hosts are in one subnet: of IPv4 that of our address, of
    /// IPv6 all of the interface, because a host has an address in each.
    fn subnets(&self) -> ArrayVec<IpNet, NETWORKS_MAX> {
        let local = self.local.to_canonical();
        let counts = |network: &&IpNet| match network {
            IpNet::V4(_) => network.contains(&local),
            IpNet::V6(it) => local.is_ipv6() && !it.addr().is_unicast_link_local(),
        };
        self.networks.iter().filter(counts).copied().collect()
    }
}

/// The IP address that a GID is.
fn address(gid: RoceGid) -> IpAddr {
    IpAddr::from(gid.0).to_canonical()
}

/// Whether packets to this address find their way beyond a link.
fn is_routed(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_local && !address.is_unspecified() && !address.is_multicast()
}

/// The name of a physical network, for use within one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PnetId(
    /// Upper case, blank padded.
    [u8; 16],
);

impl PnetId {
    /// The PNET ID with this name: 1 to 16 letters and digits, in upper or lower case.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_good =
            (1..=16).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let mut padded = [b' '; 16];
        for (place, byte) in padded.iter_mut().zip(name.bytes()) {
            *place = byte.to_ascii_uppercase();
        }
        is_good.then_some(Self(padded))
    }
}
