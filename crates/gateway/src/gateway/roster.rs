//! Which adapters a gateway has: those that are named, or else all RDMA devices, each as soon as it can be had.
//!
//! ```text
//!   named, or found by the kernel's list ──> wanted ──┬── can be had ──────> its place: up, down ──┐
//!                                               ^     └── absent, and why                          │
//!                                               └────────────── device lost, other address ────────┘
//! ```
//!
//! A choice has its number in the list for ever, and its adapter has the number after that: by 0, links are
//! told to be over no adapter. What is absent is looked for when interfaces change and each
//! [`SEARCH_INTERVAL`], because the kernel announces no RDMA device that comes or goes.

use std::time::Duration;

use sidestep_proto::link_group::{ADAPTERS_MAX, AdapterId};

use super::Gateway;
use crate::adapters::{Absence, Hardware, Place, Site, Wanted, device_names};
use crate::interfaces::Interface;
use crate::lessons;
use crate::limits::SEARCH_INTERVAL;
use crate::poller::Source;
use crate::settings::{AdapterChoice, Spot};

/// How long the word holds that there is no adapter. It is said again each [`SEARCH_INTERVAL`].
const NO_ADAPTER_WORD: Duration = Duration::from_secs(30);

/// The adapter of a choice.
const fn id_of(number: usize) -> AdapterId {
    AdapterId(number as u8 + 1)
}

impl Gateway {
    /// Opens adapters that are wanted and not there, or that have gone, as far as they can be had.
    pub(super) fn find_adapters(&mut self, now: Duration) {
        self.devices = device_names();
        let hardware = Hardware::find();
        self.want_found(&hardware);
        for number in 0..self.wanted.len() {
            self.fill(number, &hardware, now);
        }
        self.look_at_interfaces(now);
    }

    /// The time has come at which adapters are looked for.
    pub(super) fn search(&mut self, now: Duration) {
        if !self.is_complete() || device_names() != self.devices {
            self.find_adapters(now);
        }
        self.plan_search(now);
    }

    /// When adapters are looked for next, if there is one to be looked for. As long as none is up, or none is for
    /// new connections, programs are told to leave the option out: a connection that is handed over in vain costs
    /// more than TCP.
    pub(super) fn plan_search(&mut self, now: Duration) {
        let is_none_up = self.drain.is_some() || !self.places.iter().any(|place| place.is_up);
        if is_none_up {
            self.lessons.leave_all_out(NO_ADAPTER_WORD, lessons::now());
        }
        let is_needed = self.settings.adapters.is_empty() || is_none_up || !self.is_complete();
        self.search = is_needed.then_some(now + SEARCH_INTERVAL);
    }

    fn is_complete(&self) -> bool {
        (0..self.wanted.len()).all(|number| self.is_there(number))
    }

    /// Without names, what is found is what is wanted.
    fn want_found(&mut self, hardware: &Hardware) {
        if !self.settings.adapters.is_empty() {
            return;
        }
        for interface in hardware.interfaces(&self.interfaces) {
            let choice = AdapterChoice::Device(Spot::Interface(interface.name.clone()));
            if self.wanted.iter().any(|it| it.choice == choice) {
                continue;
            }
            if self.wanted.len() == ADAPTERS_MAX {
                log::warn!("the RDMA device at {choice} is not used: {ADAPTERS_MAX} others are");
                return;
            }
            self.wanted.push(choice.into());
        }
    }

    fn is_there(&self, number: usize) -> bool {
        let place = self.places.iter().find(|place| place.id == id_of(number));
        place.is_some_and(|place| place.is_there(&self.interfaces))
    }

    /// Opens the adapter of a choice if it is not there and can be had.
    fn fill(&mut self, number: usize, hardware: &Hardware, now: Duration) {
        if self.is_there(number) {
            return;
        }
        let absence = self.open_adapter(number, hardware, now).err().map(|it| it.to_string());
        let wanted = &mut self.wanted[number];
        if let Some(why) = &absence
            && wanted.absence != absence
        {
            log::warn!("{}: {why}", wanted.choice);
        }
        wanted.absence = absence;
    }

    /// An adapter that has gone, or whose address has, is opened anew under its number.
    fn open_adapter(
        &mut self,
        number: usize,
        hardware: &Hardware,
        now: Duration,
    ) -> Result<(), Absence> {
        let id = id_of(number);
        let site = Site::meant(&self.wanted[number].choice, &self.interfaces, hardware)?;
        if self.places.iter().any(|it| it.id != id && it.address == site.address) {
            return Err(Absence::Twice);
        }
        let succession = self.successions.remove(&site.address);
        let (place, description, nic) = Place::open(id, &site, self.settings.faults, succession)?;
        self.poller
            .watch(&nic, Source::Adapter(id.0))
            .map_err(|error| Absence::Watch(error.into()))?;
        let was_there = self.host.remove_adapter(id, now).is_some();
        let kin: Vec<AdapterId> = self.kin_of(&place, &site.interface).collect();
        self.host.admit_adapter(id, &kin);
        self.host.add_adapter(description, nic, now);
        self.places.retain(|before| before.id != id);
        self.places.push(place);
        // The preferred first.
        self.places.sort_by_key(|place| place.id.0);
        self.lessons.forget_all();
        if was_there {
            log::info!("the adapter at {} is up", site.address);
        }
        Ok(())
    }

    /// The adapters that are eligible for the same connections as this one: on the same network, VLAN and
    /// family, and of the same kinds.
    fn kin_of(&self, new: &Place, at: &Interface) -> impl Iterator<Item = AdapterId> {
        let network = |interface: &Interface| self.settings.network(&interface.name);
        let is_kin = move |place: &&Place| {
            let there = self.interfaces.iter().find(|it| it.index == place.interface);
            let is_beside = there.is_some_and(|there| {
                let is_joined = network(there).is_some() && network(there) == network(at);
                there.vlan == at.vlan && (there.index == at.index || is_joined)
            });
            is_beside
                && place.address.is_ipv4() == new.address.is_ipv4()
                && place.kinds == new.kinds
        };
        self.places.iter().filter(is_kin).map(|place| place.id)
    }

    /// What it has and what it therefore does, in words.
    pub fn adapters(&self) -> Vec<String> {
        let mut lines: Vec<String> = (0..self.wanted.len()).map(|it| self.in_words(it)).collect();
        if self.wanted.is_empty() {
            let why = match Hardware::find().lack() {
                Some(reason) => reason.to_string(),
                None => "none of the RDMA devices can be used here".to_owned(),
            };
            lines.push(format!(
                "{why}. One that comes is used at once; for a soft RNIC, which costs more CPU time than \
                 TCP, name one: --adapter soft:INTERFACE"
            ));
        }
        if self.places.is_empty() {
            lines.push("without an adapter, connections to other hosts stay TCP".to_owned());
        }
        lines
    }

    fn in_words(&self, number: usize) -> String {
        let Wanted { choice, absence } = &self.wanted[number];
        let Some(place) = self.places.iter().find(|place| place.id == id_of(number)) else {
            let why = absence.as_deref().unwrap_or("it is not there");
            return format!("{choice}: {why}. It is used when it comes");
        };
        let (address, state) = (place.address, if place.is_up { "up" } else { "down" });
        let device = place.port.as_deref().unwrap_or("soft RNIC");
        let interface = self.interfaces.iter().find(|it| it.index == place.interface);
        let Some(Interface { name, mac, vlan, .. }) = interface else {
            return format!("{address}, {device}: {state}");
        };
        let vlan = if *vlan == 0 { String::new() } else { format!(", VLAN {vlan}") };
        let network = self.settings.network(name);
        let network = network.map_or(String::new(), |id| format!(", PNET ID {id}"));
        format!("{address} at {name}, {device}, {mac}{vlan}{network}: {state}")
    }
}
