//! Services and their tables: which target takes what begins.
//!
//! User space writes them here, programs look into them ([`programs`]).

pub(crate) mod programs;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError};
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{Choice, Plan, Protocol};

use crate::error::BpfError;
use programs::{
    ENDED, INDICES, PAGES, SERVICES, STEERED, WORDS, earlier, page, service, service_key,
};

/// Where clients of a service connect.
pub(crate) type ServiceKey = (SocketAddr, Protocol);

/// The tables of all services of a data path.
pub(crate) struct Tables {
    services: HashMap<MapData, [u8; service_key::LEN], [u8; service::LEN]>,
    pages: Array<MapData, [u8; page::LEN]>,
    steered: Array<MapData, [u64; WORDS]>,
    ended: Array<MapData, [u64; WORDS]>,
    /// Which of its two pages each service uses, and behind them those for connections of the host itself.
    banks: [u32; 2 * INDICES],
}

/// Whose connections a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those that come to this host.
    Clients,
    /// Those that begin on it.
    OwnHost,
}

impl Tables {
    /// Those of programs that were loaded.
    pub(crate) fn of(loaded: &mut Ebpf) -> Result<Self, BpfError> {
        Ok(Self {
            services: take(loaded, SERVICES)?,
            pages: take(loaded, PAGES)?,
            steered: take(loaded, STEERED)?,
            ended: take(loaded, ENDED)?,
            banks: [0; 2 * INDICES],
        })
    }

    /// Writes a plan for service `index` where it is not in force yet, for [`Self::commit`].
    ///
    /// **Panics** if there are no so many services, or the plan has too many places.
    pub(crate) fn prepare(
        &mut self,
        index: usize,
        whose: Whose,
        plan: &Plan,
    ) -> Result<(), BpfError> {
        of_map(self.pages.set(self.other_page(table(index, whose)), page_of(plan), 0))
    }

    /// Puts the plan that was prepared for service `index` into force, in one step: what begins meets what was
    /// there before, or this.
    pub(crate) fn commit(
        &mut self,
        index: usize,
        whose: Whose,
        service: ServiceKey,
        plan: &Plan,
        affinity: Duration,
    ) -> Result<(), BpfError> {
        let table = table(index, whose);
        let words = [
            (service::INDEX, index as u32),
            (service::PAGE, self.other_page(table)),
            (service::CHOICE, number_of(plan.choice)),
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
        of_map(self.services.insert(key_for(whose, service), entry, 0))?;
        self.banks[table] = 1 - self.banks[table];
        Ok(())
    }

    /// The page of a table that is not in force.
    fn other_page(&self, table: usize) -> u32 {
        2 * table as u32 + 1 - self.banks[table]
    }

    /// What comes for this service is the kernel's again. One that is not in force stays so.
    pub(crate) fn forget(&mut self, whose: Whose, service: ServiceKey) -> Result<(), BpfError> {
        match self.services.remove(&key_for(whose, service)) {
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            done => of_map(done),
        }
    }

    /// Has service `index`, which is in force nowhere, begin with so many connections given.
    pub(crate) fn begin(
        &mut self,
        index: usize,
        given: &[u64; TARGETS_MAX],
    ) -> Result<(), BpfError> {
        of_map(self.steered.set(index as u32, words_of(given), 0))?;
        // It is not known yet which of them are still there.
        self.note_ended(index, given)
    }

    /// How many connections each target of a service was given.
    pub(crate) fn steered(&self, index: usize) -> Result<[u64; TARGETS_MAX], BpfError> {
        let words = of_map(self.steered.get(&(index as u32), 0))?;
        Ok(words[..TARGETS_MAX].try_into().expect("a word for each target"))
    }

    /// How many of these have ended.
    pub(crate) fn note_ended(
        &mut self,
        index: usize,
        ended: &[u64; TARGETS_MAX],
    ) -> Result<(), BpfError> {
        of_map(self.ended.set(index as u32, words_of(ended), 0))
    }
}

/// The number of a table: each service has two.
fn table(index: usize, whose: Whose) -> usize {
    match whose {
        Whose::Clients => index,
        Whose::OwnHost => INDICES + index,
    }
}

fn key_for(whose: Whose, service: ServiceKey) -> [u8; service_key::LEN] {
    let mut key = key_of(service);
    if whose == Whose::OwnHost {
        let protocol = u32::from(service.1.number()) | service_key::OF_OWN_HOST;
        key[service_key::PROTOCOL..].copy_from_slice(&protocol.to_ne_bytes());
    }
    key
}

/// The number of a target among the targets of all services.
pub(crate) fn slot(index: usize, target: usize) -> u32 {
    (index * TARGETS_MAX + target) as u32
}

fn words_of(counts: &[u64; TARGETS_MAX]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..TARGETS_MAX].copy_from_slice(counts);
    words
}

/// The key of a service.
pub(crate) fn key_of((address, protocol): ServiceKey) -> [u8; service_key::LEN] {
    let mut key = [0; service_key::LEN];
    key[..16].copy_from_slice(&octets(address.ip()));
    let words = [
        (service_key::PORT, u32::from(address.port())),
        (service_key::PROTOCOL, u32::from(protocol.number())),
    ];
    for (at, word) in words {
        key[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    key
}

/// An address as programs have it: IPv4 in its mapped form.
pub(crate) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn number_of(choice: Choice) -> u32 {
    match choice {
        Choice::Hash => service::BY_HASH,
        Choice::Turn => service::BY_TURN,
        Choice::Least => service::BY_LOAD,
        Choice::First => service::BY_RANK,
        Choice::LeastInOrder => service::BY_LOAD_IN_ORDER,
    }
}

fn page_of(plan: &Plan) -> [u8; page::LEN] {
    let mut page = [0; page::LEN];
    for (word, weight) in page[..page::PLACES].chunks_exact_mut(4).zip(&plan.weights) {
        word.copy_from_slice(&u32::from(*weight).to_ne_bytes());
    }
    page[page::PLACES..][..plan.places.len()].copy_from_slice(&plan.places);
    page
}

/// A plan as a table for [`programs::choose_earlier`].
pub(crate) fn earlier_page_of(plan: &Plan) -> [u8; page::LEN] {
    let mut page = page_of(plan);
    let words =
        [(earlier::COUNT, plan.places.len() as u32), (earlier::CHOICE, number_of(plan.choice))];
    for (at, word) in words {
        page[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    page
}

pub(crate) fn take<T>(loaded: &mut Ebpf, name: &str) -> Result<T, BpfError>
where
    T: TryFrom<Map, Error = MapError>,
{
    of_map(T::try_from(loaded.take_map(name).expect("a map of ours")))
}

pub(crate) fn of_map<T>(result: Result<T, MapError>) -> Result<T, BpfError> {
    result.map_err(|error| BpfError::of_kernel("use a BPF map", &error))
}
