//! The target's end of tunnels: takes packets for VIPs out of them.

mod programs;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use aya::programs::SchedClassifier;
use aya::programs::tc::{SchedClassifierLinkId, TcAttachType};

use crate::error::BpfError;
use crate::loaded::program;
use crate::object_file;
use crate::tables::{octets, of_map, take};
use crate::tunnel::Family;
use programs::{ANNOUNCE, DISTRIBUTORS, OWN, RECEIVED, SEGMENTS, UNWRAP, VIPS};

/// Takes packets for VIPs of this host out of the tunnels of distributors that it knows, as they come in, and has servers there
/// announce segments that fit into a tunnel.
///
/// Nothing is pinned: with the process that holds this the programs go.
pub struct Reception {
    /// Programs, maps and links: descriptors, closed on drop.
    loaded: Ebpf,
    links: Vec<SchedClassifierLinkId>,
    own: HashMap<MapData, [u8; 16], u32>,
    distributors: HashMap<MapData, [u8; 16], [u8; 8]>,
    vips: HashMap<MapData, [u8; 16], u32>,
    received: PerCpuArray<MapData, u64>,
}

impl fmt::Debug for Reception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reception").field("links", &self.links).finish_non_exhaustive()
    }
}

/// How long the segments are that servers at VIPs announce to be sent. It is apart from the rest: it follows what distributors
/// say of their ways here.
pub struct Announcement(Array<MapData, u32>);

impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcement").finish_non_exhaustive()
    }
}

impl Announcement {
    /// Has servers at VIPs of the family of this address announce segments that fit into tunnels of such a length, headers and all.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn fit(&mut self, like: IpAddr, mtu: u32) -> Result<(), BpfError> {
        const TCP_LEN: u32 = 20;
        let family = Family::of(like);
        let headers = (family.overhead() + family.header_len()) as u32 + TCP_LEN;
        of_map(self.0.set(family as u32, mtu.saturating_sub(headers), 0))
    }
}

/// What came to the tunnels' port, in a distributor's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets that were taken out of tunnels.
    pub taken: u64,
    /// Packets that were dropped: of a sender that is not known, without the right key, for another address than a VIP, or several
    /// datagrams in one piece.
    pub refused: u64,
}

impl Reception {
    /// Loads the programs. They are asked from [`Self::attach`] on, and take nothing of a distributor that was not
    /// admitted.
    ///
    /// # Errors
    /// The kernel refuses ([`BpfError::Privilege`]) or cannot do it ([`BpfError::Kernel`]).
    pub fn load() -> Result<(Self, Announcement), BpfError> {
        let object = object_file::write(&programs::maps(), &programs::all());
        let mut loaded =
            Ebpf::load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        for name in [UNWRAP, ANNOUNCE] {
            let found: Result<&mut SchedClassifier, _> = program(&mut loaded, name);
            found
                .and_then(SchedClassifier::load)
                .map_err(|error| BpfError::of_kernel("load a BPF program for packets", &error))?;
        }
        let announcement = Announcement(take(&mut loaded, SEGMENTS)?);
        let reception = Self {
            links: Vec::new(),
            own: take(&mut loaded, OWN)?,
            distributors: take(&mut loaded, DISTRIBUTORS)?,
            vips: take(&mut loaded, VIPS)?,
            received: take(&mut loaded, RECEIVED)?,
            loaded,
        };
        Ok((reception, announcement))
    }

    /// From here on each packet is looked at that comes in by this interface, or leaves there.
    ///
    /// # Errors
    /// The kernel refuses, or there is no such interface.
    pub fn attach(&mut self, interface: &str) -> Result<(), BpfError> {
        // Before Linux 6.6 programs hang on a queueing discipline; where it is there already, it stays.
        _ = aya::programs::tc::qdisc_add_clsact(interface);
        for (name, at) in [(UNWRAP, TcAttachType::Ingress), (ANNOUNCE, TcAttachType::Egress)] {
            let found: Result<&mut SchedClassifier, _> = program(&mut self.loaded, name);
            let link = found.and_then(|it| it.attach(interface, at)).map_err(|error| {
                BpfError::of_kernel("attach a BPF program to an interface", &error)
            })?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Takes packets that come to this address of the host.
    ///
    /// # Errors
    /// The kernel refuses, or there are too many.
    pub fn receive_at(&mut self, own: IpAddr) -> Result<(), BpfError> {
        of_map(self.own.insert(octets(own), 0, 0))
    }

    /// Takes packets that a distributor sends from this address, with that key.
    ///
    /// # Errors
    /// The kernel refuses, or there are too many.
    pub fn admit(&mut self, distributor: IpAddr, key: u64) -> Result<(), BpfError> {
        of_map(self.distributors.insert(octets(distributor), key.to_be_bytes(), 0))
    }

    /// Takes packets for this VIP.
    ///
    /// # Errors
    /// The kernel refuses, or there are too many.
    pub fn serve(&mut self, vip: IpAddr) -> Result<(), BpfError> {
        of_map(self.vips.insert(octets(vip), 0, 0))
    }

    /// What has come.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn received(&self) -> Result<Received, BpfError> {
        let sum = |place: i32| {
            let values = of_map(self.received.get(&place.cast_unsigned(), 0))?;
            Ok::<u64, BpfError>(values.iter().sum())
        };
        Ok(Received { taken: sum(programs::TAKEN)?, refused: sum(programs::REFUSED)? })
    }
}
