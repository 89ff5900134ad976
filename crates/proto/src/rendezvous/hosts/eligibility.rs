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
use ipnet::IpNet;
use sidestep_wire::clc::Hostname;
use sidestep_wire::{Eid, Mac, Mtu, PeerId, RoceGid};

use crate::link_group::{ADAPTERS_MAX, AdapterId};
use crate::rendezvous::UEIDS_MAX;

/// Networks of an interface that are looked at: as many as a Proposal has room for, of IPv6.
pub const NETWORKS_MAX: usize = 8;

/// What a host tells of itself, and what it has. It is the same for all connections, while no adapter
/// comes or goes.
#[derive(Clone, Debug)]
pub struct LocalHost {
    /// Who we are: the same in all messages to all peers.
    pub peer_id: PeerId,
    /// Shown to the peer on first contact.
    pub hostname: Hostname,
    /// The UEIDs we admit, the preferred first. Without one there is no version 2.
    pub ueids: ArrayVec<Eid, UEIDS_MAX>,
    /// Those that are up, the preferred first.
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
    /// The longest packet it sends and takes.
    pub mtu: Mtu,
    /// The index of its network interface.
    pub interface: u32,
    /// The addresses of that interface, with their prefix lengths.
    pub networks: ArrayVec<IpNet, NETWORKS_MAX>,
    /// The VLAN that its packets are on; 0 for none.
    pub vlan: u16,
    /// Its physical network, if it has a name.
    pub pnet_id: Option<PnetId>,
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
