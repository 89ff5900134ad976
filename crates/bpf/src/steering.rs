//! Connections to one address, given to listeners at others.

mod programs;

use std::fmt;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Map, MapData, SkStorage, SockMap};
use aya::programs::SkLookup;
use aya::programs::sk_lookup::SkLookupLinkId;
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{Plan, Protocol};

use crate::error::BpfError;
use crate::loaded::program;
use crate::object_file;
use crate::tables::{Tables, Whose, of_map, slot, take};
use programs::{LISTENERS, OWNERS};

/// Gives connections to a service, one address and port of this network namespace, to listeners at
/// other addresses and ports of it. Both ends see the address of the service.
///
/// Nothing is pinned: with the process that holds this the program goes, and connections stay what they
/// are.
pub struct Steering {
    /// Programs, maps and links: descriptors, closed on drop.
    loaded: Ebpf,
    link: Option<SkLookupLinkId>,
    tables: Tables,
    listeners: SockMap<MapData>,
    owners: Map,
}

/// Gives a target's listener its place in the table of [`Steering::place`]. When the last descriptor of the listener is closed it is gone
/// from there by itself.
///
/// Waits as long as the program that has the listener holds its lock, and no signal ends that.
///
/// # Errors
/// It is none that listens, or the table is none of [`Steering`]'s.
pub fn give_listener(
    table: BorrowedFd<'_>,
    slot: u32,
    listener: BorrowedFd<'_>,
) -> Result<(), BpfError> {
    let table = table
        .try_clone_to_owned()
        .map_err(|error| BpfError::of_file("/dev/stdin".as_ref(), error))?;
    let table = of_map(MapData::from_fd(table).and_then(Map::from_map_data))?;
    let mut listeners: SockMap<MapData> = of_map(SockMap::try_from(table))?;
    of_map(listeners.set(slot, &listener, 0))
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Steering {
    /// Loads the program. It is asked from [`Self::attach`] on.
    ///
    /// # Errors
    /// The kernel refuses ([`BpfError::Privilege`]) or cannot do it ([`BpfError::Kernel`]).
    pub fn load() -> Result<Self, BpfError> {
        let object = object_file::write(&programs::maps(), &programs::all());
        let mut loaded =
            Ebpf::load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        let steer: Result<&mut SkLookup, _> = program(&mut loaded, programs::STEER);
        steer
            .and_then(SkLookup::load)
            .map_err(|error| BpfError::of_kernel("load a BPF program for sk_lookup", &error))?;
        Ok(Self {
            link: None,
            tables: Tables::of(&mut loaded)?,
            listeners: take(&mut loaded, LISTENERS)?,
            owners: loaded.take_map(OWNERS).expect("a map of ours"),
            loaded,
        })
    }

    /// From here on the kernel asks about each connection of this network namespace that begins.
    ///
    /// # Errors
    /// It refuses, or there are 64 such programs already.
    pub fn attach(&mut self) -> Result<(), BpfError> {
        let path = "/proc/self/ns/net";
        let namespace =
            File::open(path).map_err(|error| BpfError::of_file(path.as_ref(), error))?;
        let steer: Result<&mut SkLookup, _> = program(&mut self.loaded, programs::STEER);
        let link = steer.and_then(|steer| steer.attach(namespace)).map_err(|error| {
            BpfError::of_kernel("attach a BPF program to a network namespace", &error)
        })?;
        self.link = Some(link);
        Ok(())
    }

    /// Writes a plan for service `index` where it is not in force yet, for [`Self::commit`].
    ///
    /// # Errors
    /// The kernel refuses.
    ///
    /// **Panics** if there are no so many services, or the plan has too many places.
    pub fn prepare(&mut self, index: usize, plan: &Plan) -> Result<(), BpfError> {
        self.tables.prepare(index, Whose::Clients, plan)
    }

    /// Puts the plan that was prepared for service `index` into force at an address, in one step: a
    /// connection meets what was there before, or this.
    ///
    /// # Errors
    /// The kernel refuses; then it is as it was before.
    pub fn commit(
        &mut self,
        index: usize,
        address: SocketAddr,
        plan: &Plan,
        affinity: Duration,
    ) -> Result<(), BpfError> {
        self.tables.commit(index, Whose::Clients, (address, Protocol::Tcp), plan, affinity)
    }

    /// Connections to this address are the kernel's again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget(&mut self, address: SocketAddr) -> Result<(), BpfError> {
        self.tables.forget(Whose::Clients, (address, Protocol::Tcp))
    }

    /// Empties service `index`, which is in force nowhere, and has it begin with so many connections
    /// given.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn clear(&mut self, index: usize, given: &[u64; TARGETS_MAX]) -> Result<(), BpfError> {
        (0..TARGETS_MAX).for_each(|target| self.withdraw(index, target));
        self.tables.begin(index, given)
    }

    /// What a listener accepts from here on bears the number `owner`.
    ///
    /// # Errors
    /// It is no socket.
    pub fn number(&mut self, socket: &impl AsRawFd, owner: u64) -> Result<(), BpfError> {
        let owners = SkStorage::<_, u64>::try_from(&mut self.owners);
        of_map(owners.and_then(|mut owners| owners.insert(socket, owner, 0)))
    }

    /// The table and the place in it that the socket of a target gets, by [`give_listener`].
    #[must_use]
    pub fn place(&self, index: usize, target: usize) -> (BorrowedFd<'_>, u32) {
        (self.listeners.fd().as_fd(), slot(index, target))
    }

    /// A target has no socket.
    pub fn withdraw(&mut self, index: usize, target: usize) {
        // One that has none has none afterwards.
        _ = self.listeners.clear_index(&slot(index, target));
    }

    /// How many connections each target of a service was given.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn steered(&self, index: usize) -> Result<[u64; TARGETS_MAX], BpfError> {
        self.tables.steered(index)
    }

    /// How many of these have ended: for plans that choose the least busy.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn note_ended(&mut self, index: usize, ended: &[u64; TARGETS_MAX]) -> Result<(), BpfError> {
        self.tables.note_ended(index, ended)
    }

    /// The map in which each target's socket, and each that it has accepted, has the number of its owner:
    /// for who asks the kernel about sockets (`sock_diag`).
    ///
    /// **Panics** never: the map is of the kind that it was made of.
    #[must_use]
    pub fn owners(&self) -> BorrowedFd<'_> {
        let Map::SkStorage(data) = &self.owners else { unreachable!("a map of ours") };
        data.fd().as_fd()
    }
}
