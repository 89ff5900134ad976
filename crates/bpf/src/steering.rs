//! Connections to one address, given to listeners at others.

mod programs;

use std::fmt;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, SkStorage, SockMap};
use aya::programs::SkLookup;
use aya::programs::sk_lookup::SkLookupLinkId;
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{Choice, Plan};

use crate::error::BpfError;
use crate::loaded::program;
use crate::object_file;
pub use programs::INDICES;
use programs::{
    ENDED, LISTENERS, OWNERS, PAGES, SERVICES, STEERED, WORDS, page, service, service_key,
};

/// Gives connections to a service, one address and port of this network namespace, to listeners at
/// other addresses and ports of it. Both ends see the address of the service.
///
/// Nothing is pinned: with the process that holds this the program goes, and connections stay what they
/// are.
pub struct Steering {
    /// Programs, maps and links: descriptors, closed on drop.
    loaded: Ebpf,
    link: Option<SkLookupLinkId>,
    services: HashMap<MapData, [u8; service_key::LEN], [u8; service::LEN]>,
    pages: Array<MapData, [u8; page::LEN]>,
    listeners: SockMap<MapData>,
    steered: Array<MapData, [u64; WORDS]>,
    ended: Array<MapData, [u64; WORDS]>,
    owners: Map,
    /// Which of its two pages each service uses.
    banks: [u32; INDICES],
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
        let object = object_file::write(&programs::MAPS, &programs::all());
        let mut loaded =
            Ebpf::load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        let steer: Result<&mut SkLookup, _> = program(&mut loaded, programs::STEER);
        steer
            .and_then(SkLookup::load)
            .map_err(|error| BpfError::of_kernel("load a BPF program for sk_lookup", &error))?;
        Ok(Self {
            link: None,
            services: take(&mut loaded, SERVICES)?,
            pages: take(&mut loaded, PAGES)?,
            listeners: take(&mut loaded, LISTENERS)?,
            steered: take(&mut loaded, STEERED)?,
            ended: take(&mut loaded, ENDED)?,
            owners: loaded.take_map(OWNERS).expect("a map of ours"),
            banks: [0; INDICES],
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
        of_map(self.pages.set(self.other_page(index), page_of(plan), 0))
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
        let choice = match plan.choice {
            Choice::Hash => service::BY_HASH,
            Choice::Turn => service::BY_TURN,
            Choice::Least => service::BY_LOAD,
            Choice::First => service::BY_RANK,
        };
        let words = [
            (service::INDEX, index as u32),
            (service::PAGE, self.other_page(index)),
            (service::CHOICE, choice),
            (service::PLACES, plan.places.len() as u32),
        ];
        let mut entry = [0; service::LEN];
        for (at, word) in words {
            entry[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        let takers = plan.places.iter().fold(0_u64, |takers, target| takers | 1 << target);
        for (at, word) in
            [(service::TAKERS, takers), (service::AFFINITY_NS, affinity.as_nanos() as u64)]
        {
            entry[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        of_map(self.services.insert(key_of(address), entry, 0))?;
        self.banks[index] = 1 - self.banks[index];
        Ok(())
    }

    /// The page of service `index` that is not in force.
    fn other_page(&self, index: usize) -> u32 {
        2 * index as u32 + 1 - self.banks[index]
    }

    /// Connections to this address are the kernel's again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget(&mut self, address: SocketAddr) -> Result<(), BpfError> {
        of_map(self.services.remove(&key_of(address)))
    }

    /// Empties service `index`, which is in force nowhere, and has it begin with so many connections
    /// given.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn clear(&mut self, index: usize, given: &[u64; TARGETS_MAX]) -> Result<(), BpfError> {
        (0..TARGETS_MAX).for_each(|target| self.withdraw(index, target));
        of_map(self.steered.set(index as u32, words_of(given), 0))?;
        // It is not known yet which of them are still there.
        self.note_ended(index, given)
    }

    /// The socket of a target. What it accepts from here on bears the number `owner`. When its last
    /// descriptor is closed it is gone from here by itself.
    ///
    /// # Errors
    /// It is none that listens.
    pub fn set_listener(
        &mut self,
        index: usize,
        target: usize,
        socket: &impl AsRawFd,
        owner: u64,
    ) -> Result<(), BpfError> {
        let owners = SkStorage::<_, u64>::try_from(&mut self.owners);
        of_map(owners.and_then(|mut owners| owners.insert(socket, owner, 0)))?;
        of_map(self.listeners.set(slot(index, target), socket, 0))
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
        let words = of_map(self.steered.get(&(index as u32), 0))?;
        Ok(words[..TARGETS_MAX].try_into().expect("a word for each target"))
    }

    /// How many of these have ended: for plans that choose the least busy.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn note_ended(&mut self, index: usize, ended: &[u64; TARGETS_MAX]) -> Result<(), BpfError> {
        of_map(self.ended.set(index as u32, words_of(ended), 0))
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

fn words_of(counts: &[u64; TARGETS_MAX]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..TARGETS_MAX].copy_from_slice(counts);
    words
}

fn slot(index: usize, target: usize) -> u32 {
    (index * TARGETS_MAX + target) as u32
}

fn key_of(address: SocketAddr) -> [u8; service_key::LEN] {
    let mut key = [0; service_key::LEN];
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    key[..16].copy_from_slice(&ip.octets());
    let port = u32::from(address.port()).to_ne_bytes();
    key[service_key::PORT..service_key::PORT + 4].copy_from_slice(&port);
    key
}

fn page_of(plan: &Plan) -> [u8; page::LEN] {
    let mut page = [0; page::LEN];
    for (word, weight) in page[..page::PLACES].chunks_exact_mut(4).zip(&plan.weights) {
        word.copy_from_slice(&u32::from(*weight).to_ne_bytes());
    }
    page[page::PLACES..][..plan.places.len()].copy_from_slice(&plan.places);
    page
}

fn take<T>(loaded: &mut Ebpf, name: &str) -> Result<T, BpfError>
where
    T: TryFrom<Map, Error = MapError>,
{
    of_map(T::try_from(loaded.take_map(name).expect("a map of ours")))
}

fn of_map<T>(result: Result<T, MapError>) -> Result<T, BpfError> {
    result.map_err(|error| BpfError::of_kernel("use a BPF map", &error))
}
