//! Adapters: which one is meant by a name, and what is there.
//!
//! | Named | Where it is | What it is |
//! |---|---|---|
//! | an address of this host | there | the RDMA device that has the address |
//! | an interface | at its first address | the same |
//! | `mlx5_0/1`, a port as `rdma link` names it | at the first address of its interface | that device |
//! | `soft:` before an address or an interface | there | a soft RNIC |
//!
//! A soft RNIC is never there in place of a device: it takes more CPU time for a byte than TCP does, so
//! it is for those who ask for it. At the address of a device it is of little use, as the packets of RoCE
//! that arrive there are the device's own.
//!
//! The kernel gives each port a table of addresses (GIDs): one for each address of the network
//! interface above it, and for each kind of RoCE that the device speaks. It names interfaces by their index, which another network namespace may have
//! as well; so an entry counts if its address is one of the interface here, too.

use std::fs;
use std::io;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use sidestep_proto::link_group::{self, AdapterId};
use sidestep_rdma::faults::Plan;
use sidestep_rdma::soft::port::{self, mtu::roce_mtu};
use sidestep_rdma::soft::{Rnic, Succession};
use sidestep_rdma::verbs::{self, Gid, Kind, Notice, Port, Unavailable, Verbs};
use sidestep_wire::{Mtu, RoceGid};
use thiserror::Error;

use crate::interfaces::Interface;
use crate::nic::Nic;
use crate::partners::Partners;
use crate::settings::{AdapterChoice, Spot};

// ---- what the host has --------------------------------------------------------------------------

/// Why no RDMA device of the kernel can be used.
#[derive(Debug, Error)]
pub(crate) enum NoRdma {
    /// It has none.
    #[error("the kernel has no RDMA device; `rdma link` would list it")]
    None,
    /// It has, but programs reach them by a library.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The library refuses.
    #[error("libibverbs does not list them: {0}")]
    List(#[from] io::Error),
}

/// The ports of RDMA devices that can be used.
pub(crate) struct Hardware(Result<Vec<Port>, NoRdma>);

/// Where the kernel lists its RDMA devices, for everybody to read.
const DEVICES: &str = "/sys/class/infiniband";

impl Hardware {
    /// Looks for them. The library is not asked where there is nothing to be found.
    pub(crate) fn find() -> Self {
        let find = || match device_names().is_empty() {
            true => Err(NoRdma::None),
            false => Ok(verbs::ports(&Verbs::load()?)?),
        };
        Self(find())
    }

    /// Tells the operator of devices that stay unused though they are there.
    pub(crate) fn report_unusable(&self) {
        match &self.0 {
            Err(NoRdma::None) => {}
            Err(reason) => log::warn!("RDMA devices of this host are not used: {reason}"),
            Ok(ports) => {
                let is_unusable = |name: &String| ports.iter().all(|port| port.device != *name);
                for name in device_names().into_iter().filter(is_unusable) {
                    log::warn!(
                        "the RDMA device {name} is not used: it is not of Ethernet, or this user \
                         may not open /dev/infiniband/uverbs*"
                    );
                }
            }
        }
    }

    fn ports(&self) -> &[Port] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Why there is none.
    pub(crate) const fn lack(&self) -> Option<&NoRdma> {
        match &self.0 {
            Ok(_) => None,
            Err(reason) => Some(reason),
        }
    }

    /// The interfaces at which there is one, in their order. One with VLANs has several.
    pub(crate) fn interfaces<'a>(
        &self,
        interfaces: &'a [Interface],
    ) -> impl Iterator<Item = &'a Interface> {
        let has_one = |it: &&Interface| {
            first_address(it).is_some_and(|address| self.at(address, it.index).is_some())
        };
        interfaces.iter().filter(has_one)
    }

    /// The port that has an address at an interface.
    pub(crate) fn at(&self, address: IpAddr, interface: u32) -> Option<(Port, Gid)> {
        self.ports().iter().find_map(|port| {
            let gid = KINDS.iter().find_map(|kind| port.gid(address, interface, *kind))?;
            Some((port.clone(), gid))
        })
    }
}

/// The preferred first.
const KINDS: [Kind; 2] = [Kind::RoceV2, Kind::RoceV1];

/// The RDMA devices that the kernel has, usable or not.
pub(crate) fn device_names() -> Vec<String> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

// ---- what is meant ------------------------------------------------------------------------------

/// Why an adapter that is wanted is not there. What is lacking may come, so it is tried again.
#[derive(Debug, Error)]
pub(crate) enum Absence {
    /// There is no such interface here, or none has the address.
    #[error("there is no such interface or address in this network namespace")]
    Unknown,
    /// The interface has nothing that an adapter could be at.
    #[error("the interface has no address")]
    NoAddress,
    /// A device is wanted where there is none.
    #[error(
        "no RDMA device is there; for a soft RNIC, which costs more CPU time than TCP, name soft:{0}"
    )]
    NoDevice(Spot),
    /// An RDMA device is named, and none can be used.
    #[error("{0}")]
    NoRdma(String),
    /// It is not among those that can be used.
    #[error(
        "there is no such port of an RDMA device of Ethernet; `rdma link` lists them, and this user has \
         to be allowed to open /dev/infiniband/uverbs*"
    )]
    NoPort,
    /// Its port has no address that programs here could have.
    #[error("none of its interfaces has an address in this network namespace; give it one")]
    NoGid,
    /// RoCE needs longer packets.
    #[error("the interface carries packets of {0} bytes, and RoCE needs 336")]
    TooNarrow(u32),
    /// Two links over it would fail together.
    #[error("another name of the same adapter stands before it")]
    Twice,
    /// Its UDP port cannot be had.
    #[error(transparent)]
    Soft(#[from] port::OpenError),
    /// Its RDMA device cannot be used.
    #[error(transparent)]
    Rdma(#[from] verbs::OpenError),
    /// The library that RDMA devices are used by is not there any more.
    #[error(transparent)]
    Library(#[from] Unavailable),
    /// The kernel does not let it be watched.
    #[error("epoll: {0}")]
    Watch(io::Error),
}

/// An adapter that is to be there.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) choice: AdapterChoice,
    /// Why it is not, as the operator was told last.
    pub(crate) absence: Option<String>,
}

impl From<AdapterChoice> for Wanted {
    fn from(choice: AdapterChoice) -> Self {
        Self { choice, absence: None }
    }
}

/// Where an adapter is to be.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) address: IpAddr,
    pub(crate) interface: Interface,
    /// The RDMA device that it is; `None`: a soft RNIC.
    pub(crate) rdma: Option<(Port, Gid)>,
}

impl Site {
    /// Where the adapter of a choice is.
    pub(crate) fn meant(
        choice: &AdapterChoice,
        interfaces: &[Interface],
        hardware: &Hardware,
    ) -> Result<Self, Absence> {
        match choice {
            AdapterChoice::Port { device, number } => {
                let port = hardware.named(device, *number)?;
                Self::of_port(port, interfaces).ok_or(Absence::NoGid)
            }
            AdapterChoice::Device(spot) => {
                let site = Self::at(spot, interfaces)?;
                let rdma = hardware.at(site.address, site.interface.index);
                match rdma {
                    Some(rdma) => Ok(Self { rdma: Some(rdma), ..site }),
                    None => Err(Absence::NoDevice(spot.clone())),
                }
            }
            AdapterChoice::Soft(spot) => Self::at(spot, interfaces),
        }
    }

    fn at(spot: &Spot, interfaces: &[Interface]) -> Result<Self, Absence> {
        let (address, interface) = match spot {
            Spot::Address(address) => {
                (Some(*address), interfaces.iter().find(|it| it.has(*address)))
            }
            Spot::Interface(name) => {
                let interface = interfaces.iter().find(|it| it.name == *name);
                (interface.and_then(first_address), interface)
            }
        };
        let interface = interface.ok_or(Absence::Unknown)?.clone();
        let address = address.ok_or(Absence::NoAddress)?;
        Ok(Self { address, interface, rdma: None })
    }

    /// At the first address of a port: of IPv4, if it has one.
    fn of_port(port: &Port, interfaces: &[Interface]) -> Option<Self> {
        let with_interface = |gid: &Gid| {
            let is_its = |it: &&Interface| it.index == gid.interface && it.has(gid.address);
            Some((*gid, interfaces.iter().find(is_its)?.clone()))
        };
        let gids = port.gids.iter().filter(|gid| is_useful(gid.address)).filter_map(with_interface);
        let rank = |(gid, _): &(Gid, Interface)| (gid.kind != KINDS[0], gid.address.is_ipv6());
        let (gid, interface) = gids.min_by_key(rank)?;
        Some(Self { address: gid.address, interface, rdma: Some((port.clone(), gid)) })
    }
}

impl Hardware {
    fn named(&self, device: &str, number: u8) -> Result<&Port, Absence> {
        let ports = self.0.as_ref().map_err(|reason| Absence::NoRdma(reason.to_string()))?;
        let port = ports.iter().find(|port| port.device == device && port.number == number);
        port.ok_or(Absence::NoPort)
    }
}

fn first_address(interface: &Interface) -> Option<IpAddr> {
    let addresses =
        || interface.networks.iter().map(ipnet::IpNet::addr).filter(|it| is_useful(*it));
    addresses().find(IpAddr::is_ipv4).or_else(|| addresses().next())
}

/// A link-local address of IPv6 is of no use: it needs an interface beside it.
const fn is_useful(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

// ---- opening it ---------------------------------------------------------------------------------

/// An adapter of ours, and where it is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: AdapterId,
    pub(crate) address: IpAddr,
    /// The number of its interface.
    pub(crate) interface: u32,
    /// The port of an RDMA device, as `rdma link` names it; `None`: it is a soft RNIC.
    pub(crate) port: Option<String>,
    /// How its packets can look, the preferred first.
    pub(crate) kinds: ArrayVec<Kind, 2>,
    /// The longest payload of a packet, as peers are told it.
    mtu: Mtu,
    /// What it has told of itself.
    pub(crate) health: Health,
    /// It can be used.
    pub(crate) is_up: bool,
    /// It has more to do at once.
    pub(crate) is_busy: bool,
}

/// What an RDMA device has told of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Nothing bad.
    Well,
    /// Its port carries no packets.
    PortDown,
    /// It is gone, or its address: it is to be opened anew.
    Lost,
}

impl Place {
    /// Opens an adapter.
    pub(crate) fn open(
        id: AdapterId,
        site: &Site,
        faults: Option<Plan>,
        succession: Option<Succession>,
    ) -> Result<(Self, link_group::Adapter, Nic), Absence> {
        let Site { address, interface, rdma } = site;
        let (nic, bytes) = match rdma {
            Some((port, gid)) => {
                let adapter = verbs::Adapter::open(&Verbs::load()?, port, *gid)?;
                log::info!("the RDMA device {} is used at {address}", port.name());
                if faults.is_some() {
                    log::warn!("what {} sends does not suffer: it is no soft RNIC", port.name());
                }
                (Nic::Verbs(adapter), Some(port.mtu))
            }
            None => {
                let settings = port::Settings::default();
                let mut rnic = match succession {
                    Some(succession) => Rnic::take_over(*address, &settings, succession),
                    None => Rnic::open(*address, &settings),
                }?;
                if let Some(plan) = faults {
                    rnic.spoil(plan);
                }
                log::info!("a soft RNIC is used at {address}, as it was asked for");
                (Nic::Soft(rnic, Partners::default()), roce_mtu(interface.mtu))
            }
        };
        let mtu = bytes.and_then(mtu_of_bytes).ok_or(Absence::TooNarrow(interface.mtu))?;
        let description =
            link_group::Adapter { id, gid: gid_of(*address), mac: interface.mac, mtu };
        let speaks = |kind: &Kind| match rdma {
            Some((port, _)) => port.gid(*address, interface.index, *kind).is_some(),
            None => *kind == Kind::RoceV2,
        };
        let is_active = rdma.as_ref().is_none_or(|(port, _)| port.is_active);
        let place = Self {
            id,
            address: *address,
            interface: interface.index,
            port: rdma.as_ref().map(|(port, _)| port.name()),
            kinds: KINDS.into_iter().filter(speaks).collect(),
            mtu,
            health: if is_active { Health::Well } else { Health::PortDown },
            is_up: true,
            is_busy: false,
        };
        Ok((place, description, nic))
    }

    /// A soft RNIC is where its address is. Its interface may have gone, and one have come with that
    /// address; an RDMA device is opened anew then.
    pub(crate) fn follow(&mut self, interfaces: &[Interface]) {
        let is_gone = interfaces.iter().all(|it| it.index != self.interface);
        if self.port.is_none()
            && is_gone
            && let Some(other) = interfaces.iter().find(|it| it.has(self.address))
        {
            self.interface = other.index;
        }
    }

    /// It has not gone, and neither has its address.
    pub(crate) fn is_there(&self, interfaces: &[Interface]) -> bool {
        self.health != Health::Lost && interfaces.iter().any(|it| it.has(self.address))
    }

    /// What peers are told of its MTU: not more than its interface has at the moment.
    pub(crate) fn mtu(&self, interface: &Interface) -> Option<Mtu> {
        Some(self.mtu.min(mtu_of(interface)?))
    }

    /// Its device has told something.
    pub(crate) fn heed(&mut self, notice: Notice) {
        self.health = match (notice, self.health) {
            (Notice::Gone | Notice::Addresses { has_ours: false }, _) | (_, Health::Lost) => {
                Health::Lost
            }
            (Notice::PortUp, _) => Health::Well,
            (Notice::PortDown, _) => Health::PortDown,
            (Notice::Addresses { has_ours: true }, before) => before,
        };
    }
}

fn mtu_of(interface: &Interface) -> Option<Mtu> {
    roce_mtu(interface.mtu).and_then(mtu_of_bytes)
}

fn mtu_of_bytes(bytes: u16) -> Option<Mtu> {
    (0..=0xF).map(Mtu::from_low_bits).find(|mtu| mtu.bytes() == Some(bytes))
}

/// An address as a GID of RoCE: one of IPv4 as the IPv6 address that is mapped to it.
pub(crate) fn gid_of(address: IpAddr) -> RoceGid {
    RoceGid(match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_wire::Mac;

    fn interface(index: u32, name: &str, networks: &[&str]) -> Interface {
        Interface {
            index,
            name: name.to_owned(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            vlan: 0,
            is_loopback: false,
            is_up: true,
            networks: networks.iter().map(|it| it.parse().unwrap()).collect(),
        }
    }

    fn gid(address: &str, kind: Kind, index: u8, interface: u32) -> Gid {
        Gid { address: address.parse().unwrap(), kind, index, port: 1, interface }
    }

    fn meant(choice: &str, interfaces: &[Interface], hardware: &Hardware) -> Result<Site, String> {
        let choice = choice.parse().unwrap();
        Site::meant(&choice, interfaces, hardware).map_err(|error| error.to_string())
    }

    #[test]
    fn a_soft_rnic_is_where_its_name_says() {
        let interfaces = [
            interface(7, "eth0", &["fe80::1/64", "fd00::1/64", "10.0.0.1/24"]),
            interface(8, "eth1", &["fe80::2/64", "fd00::2/64"]),
            interface(9, "eth2", &["fe80::3/64"]),
        ];
        let of = |choice| meant(choice, &interfaces, &Hardware(Err(NoRdma::None)));
        for (choice, address) in
            [("soft:eth1", "fd00::2"), ("soft:eth0", "10.0.0.1"), ("soft:fd00::1", "fd00::1")]
        {
            let site = of(choice).unwrap();
            assert_eq!(site.address, address.parse::<IpAddr>().unwrap());
            assert!(site.rdma.is_none());
        }
        for (choice, error) in [
            ("soft:eth2", "the interface has no address"),
            ("soft:eth3", "there is no such interface or address in this network namespace"),
            ("soft:10.0.0.2", "there is no such interface or address in this network namespace"),
            ("mlx5_0/1", "the kernel has no RDMA device; `rdma link` would list it"),
        ] {
            assert_eq!(of(choice).unwrap_err(), error);
        }
    }

    /// Not by a soft RNIC, unless it is asked for.
    #[test]
    fn where_no_device_is_there_is_no_adapter() {
        let interfaces = [interface(7, "eth0", &["10.0.0.1/24"])];
        for choice in ["eth0", "10.0.0.1"] {
            let error = meant(choice, &interfaces, &Hardware(Ok(Vec::new()))).unwrap_err();
            assert!(error.ends_with(&format!("name soft:{choice}")), "{error}");
        }
    }

    /// One port with two addresses at `eth0`, one with an address of another namespace's interface,
    /// and one without.
    fn hardware() -> Hardware {
        let port = |device: &str, gids| Port {
            device: device.to_owned(),
            number: 1,
            is_active: true,
            mtu: 1024,
            gids,
        };
        let used = vec![
            gid("fe80::1", Kind::RoceV2, 0, 7),
            gid("10.0.0.1", Kind::RoceV1, 1, 7),
            gid("fd00::1", Kind::RoceV2, 2, 7),
            gid("10.0.0.1", Kind::RoceV2, 3, 7),
        ];
        Hardware(Ok(vec![
            port("rocep1", used),
            port("rocep2", vec![gid("10.9.9.9", Kind::RoceV2, 0, 8)]),
            port("rocep3", vec![]),
        ]))
    }

    #[test]
    fn a_device_is_where_its_table_says() {
        let interfaces = [
            interface(7, "eth0", &["fe80::1/64", "fd00::1/64", "10.0.0.1/24"]),
            interface(8, "eth1", &["10.0.1.1/24"]),
        ];
        let of = |choice: &str| {
            let site = meant(choice, &interfaces, &hardware()).unwrap();
            let rdma = site.rdma.map(|(port, gid)| (port.name(), gid.index));
            (site.address.to_string(), rdma)
        };
        let entry = |index| Some(("rocep1/1".to_owned(), index));
        assert_eq!(of("eth0"), ("10.0.0.1".to_owned(), entry(3)));
        assert_eq!(of("fd00::1"), ("fd00::1".to_owned(), entry(2)));
        assert_eq!(of("rocep1/1"), ("10.0.0.1".to_owned(), entry(3)));
        assert_eq!(of("soft:eth0"), ("10.0.0.1".to_owned(), None), "it was asked for");
        let at: Vec<_> = hardware().interfaces(&interfaces).map(|it| &*it.name).collect();
        assert_eq!(at, ["eth0"], "the index of eth1 is somebody else's");
    }

    #[test]
    fn a_port_that_is_named_must_be_usable_here() {
        let interfaces = [interface(8, "eth1", &["10.0.1.1/24"])];
        for (choice, says) in [
            ("rocep1/2", "there is no such port"),
            ("rocep4/1", "there is no such port"),
            ("rocep2/1", "give it one"),
            ("rocep3/1", "give it one"),
        ] {
            let error = meant(choice, &interfaces, &hardware()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    /// One at 10.0.0.1 of interface 7.
    fn place(port: Option<&str>) -> Place {
        Place {
            id: AdapterId(1),
            address: [10, 0, 0, 1].into(),
            interface: 7,
            port: port.map(str::to_owned),
            kinds: KINDS.into(),
            mtu: Mtu::from_low_bits(3),
            health: Health::Well,
            is_up: true,
            is_busy: false,
        }
    }

    #[test]
    fn a_soft_rnic_goes_where_its_address_goes() {
        let after = |port, interfaces: &[Interface]| {
            let mut place = place(port);
            place.follow(interfaces);
            place.interface
        };
        let [old, new] = [7, 9].map(|index| interface(index, "eth0", &["10.0.0.1/24"]));
        let other = interface(8, "eth1", &["10.0.1.1/24"]);
        assert_eq!(after(None, &[other.clone(), new.clone()]), 9);
        assert_eq!(after(None, &[new.clone(), old]), 7, "the one that is there");
        assert_eq!(after(None, &[other]), 7, "nobody has it");
        assert_eq!(after(Some("rocep1/1"), &[new]), 7);
    }

    #[test]
    fn what_was_lost_stays_lost_until_it_is_opened_anew() {
        let mut place = place(Some("rocep1/1"));
        let mut after = |notice| {
            place.heed(notice);
            place.health
        };
        assert_eq!(after(Notice::Addresses { has_ours: true }), Health::Well);
        assert_eq!(after(Notice::PortDown), Health::PortDown);
        assert_eq!(after(Notice::Addresses { has_ours: true }), Health::PortDown);
        assert_eq!(after(Notice::PortUp), Health::Well);
        assert_eq!(after(Notice::Addresses { has_ours: false }), Health::Lost);
        assert_eq!(after(Notice::PortUp), Health::Lost);
        assert_eq!(after(Notice::Gone), Health::Lost);
    }

    #[test]
    fn the_mtu_of_roce_fits_into_that_of_the_interface() {
        let of = |mtu| mtu_of(&Interface { mtu, ..interface(7, "eth0", &[]) }).and_then(Mtu::bytes);
        assert_eq!([1500, 9000, 300].map(of), [Some(1024), Some(4096), None]);
    }
}
