//! What a distributor does because there are others: targets are drained, and flows go on, where the VIPs go.

use std::net::IpAddr;
use std::time::Duration;

use sidestep_bpf::{Affinity, BpfError, Flow};
use sidestep_distributor::Distribution;
use sidestep_distributor::election::Role;

use super::copies::{self, Client, Entries, ServiceKey};
use super::link::Own;
use super::ownership::{Ownership, boot_time, in_a_row, monotonic_time};
use super::{Distributor, Member, Service, Sight, key_of};
use crate::commands::vip::roster;

impl Distributor {
    pub(super) fn owns(&self) -> bool {
        let role = |it: &Ownership| it.part().election.role();
        self.ownership.as_ref().is_none_or(|it| role(it) == Role::Owner)
    }

    /// Tells the backups what they do not know of flows and affinities.
    pub(super) fn copy_flows(&mut self) {
        let (Some(ownership), owns) = (&self.ownership, self.owns()) else { return };
        self.copies.follow_backups(&if owns { ownership.backups() } else { Vec::new() });
        for (route, entries) in self.copies.take(monotonic_time()) {
            let known = self.routes.get((route as usize).wrapping_sub(1));
            let Some(&(service, target)) = known else { continue };
            // For one datagram at a time: the thread of the election does not wait for all of them.
            ownership.part().copy(service, target, entries);
        }
    }

    /// Notes the flows and affinities of which the owner has told. Those of a target that is not known here go by the table.
    pub(super) fn note_copies(&mut self) {
        let Some(ownership) = &self.ownership else { return };
        let copied = std::mem::take(&mut ownership.part().copied);
        let (seen, is_backup) = (boot_time(), !self.owns());
        if is_backup && !copied.is_empty() {
            self.told = seen;
        }
        for copy in copied {
            let service = copy.service;
            let is_it = |it: &(ServiceKey, IpAddr)| *it == (service, copy.target);
            let Some(at) = self.routes.iter().position(is_it) else { continue };
            let noted = match copy.entries {
                Entries::Flows(flows) => flows.into_iter().try_for_each(|(client, is_closing)| {
                    let flow = Flow { client, service, route: at as u32 + 1, is_closing, seen };
                    self.forwarding.note(&flow, is_backup)
                }),
                // An owner knows better.
                Entries::Clients(_) if !is_backup => Ok(()),
                Entries::Clients(clients) => self.note_clients(at as u32 + 1, &clients),
            };
            if let Err(error) = noted {
                return log::error!("what the owner tells is not noted: {error}");
            }
        }
    }

    /// Has clients meet the target of a route again, each for so long.
    fn note_clients(&mut self, route: u32, clients: &[(IpAddr, Duration)]) -> Result<(), BpfError> {
        let now = monotonic_time();
        for service in &self.services {
            let is_it = |member: &Member| member.route == route;
            let Some(target) = service.members.iter().position(is_it) else { continue };
            for (client, lasts) in clients {
                let (client, until) = (*client, now + *lasts);
                let affinity = Affinity { client, service: service.index, target, until };
                self.forwarding.note_affinity(&affinity)?;
            }
        }
        Ok(())
    }

    /// Looks which clients meet a target again, where there can be any: how many each target has, and what is to be copied.
    pub(super) fn follow_affinities(&mut self) {
        let lasts = |service: &Service| !service.distribution.vip().affinity.is_zero();
        if !self.services.iter().any(lasts) {
            return;
        }
        let affinities = match self.forwarding.affinities() {
            Ok(affinities) => affinities,
            Err(error) => return log::error!("affinities are not counted: {error}"),
        };
        let now = monotonic_time();
        let mut clients = Vec::new();
        for service in &mut self.services {
            let vip = service.distribution.vip();
            let (key, time) = (key_of(vip), vip.affinity);
            service.members.iter_mut().for_each(|member| member.affinities = 0);
            let of = affinities.iter().filter(|it| it.service == service.index && it.until > now);
            for affinity in of {
                let Some(member) = service.members.get_mut(affinity.target) else { continue };
                member.affinities += 1;
                let (ip, route, until) = (affinity.client, member.route, affinity.until);
                clients.push(Client { ip, service: key, route, until, time });
            }
        }
        self.copies.follow_clients(now, &clients);
    }

    /// Whether the owner tells of other flows, and not of this one any more.
    pub(super) fn is_untold(&self, flow: &Flow) -> bool {
        let last = flow.seen.max(self.owned);
        self.told.saturating_sub(last) > copies::FORGET
    }

    /// Has the targets drained that the record says, as the owner has them.
    pub(super) fn follow_record(&mut self) {
        let Some(ownership) = &self.ownership else { return };
        let drained = ownership.part().election.drained_here().map(<[String]>::to_vec);
        let Some(drained) = drained else { return };
        if drained == self.drained() {
            return;
        }
        let mut services = std::mem::take(&mut self.services);
        for service in &mut services {
            let vip = service.distribution.vip().clone();
            for (at, target) in vip.targets.iter().enumerate() {
                let is_due = drained.contains(&format!("{}/{}", vip.name, target.name));
                let is_drained = service.distribution.state(at).is_drained();
                let changes = match (is_due, is_drained) {
                    (true, false) => service.distribution.drain(at),
                    (false, true) => service.distribution.resume(at),
                    _ => continue,
                };
                let changes = changes.unwrap_or_default();
                roster::report(&service.distribution, &changes, "the owner's word");
            }
            self.put(service);
        }
        self.services = services;
    }

    /// Has the election know the VIPs, and the record which targets are drained.
    pub(super) fn note_vips(&mut self) {
        let Some(ownership) = &self.ownership else { return };
        let mut part = ownership.part();
        part.election.drain(self.drained());
        let of = |service: &Service| service.distribution.vip().address.ip();
        part.vips = self.services.iter().map(of).collect();
        part.vips.sort();
        part.vips.dedup();
    }

    fn drained(&self) -> Vec<String> {
        let of = |distribution: &Distribution| -> Vec<String> {
            let vip = distribution.vip();
            let drained = vip.targets.iter().enumerate();
            let drained = drained.filter(|(at, _)| distribution.state(*at).is_drained());
            drained.map(|(_, target)| format!("{}/{}", vip.name, target.name)).collect()
        };
        self.services.iter().flat_map(|service| of(&service.distribution)).collect()
    }

    /// Whether clients, and the other distributors, come to this host by the link decides whether it may own the VIPs.
    pub(super) fn note_link(&mut self, sight: &Sight) {
        let Some(ownership) = &self.ownership else { return };
        let mut part = ownership.part();
        let link = (self.interface.index, self.interface.address);
        if std::mem::replace(&mut part.link, link) != link {
            // Whatever it knew of the link: it is told again.
            part.fence = Duration::ZERO;
        }
        let host = part.host();
        let is_here = |own: &Own| own.ip == host && own.index == self.interface.index;
        let is_connected = self.interface.is_running && sight.own.iter().any(is_here);
        if part.election.is_connected() != is_connected {
            match is_connected {
                true => log::info!("{} has its link again", self.name),
                false => log::warn!("{} has no carrier, or {host} no more", self.name),
            }
        }
        part.election.connected(is_connected);
    }

    /// Has a backup own the VIPs.
    pub(super) fn give_up_to(&mut self, host: &str) -> Result<String, String> {
        let Some(ownership) = &self.ownership else {
            return Err("this is the only distributor: [distributor] has no `store`".to_owned());
        };
        ownership.may_change()?;
        let backups = ownership.backups();
        let to = host
            .parse()
            .ok()
            .filter(|to| backups.contains(to))
            .ok_or_else(|| format!("{host} is no backup; there are: {}", in_a_row(&backups)))?;
        self.give_up(Some(to));
        Ok(format!("the VIPs go to {to}"))
    }

    /// Follows ranks, and lets the election know whether this host could serve.
    pub(super) fn follow_ranks(&mut self) {
        let Some(ownership) = &self.ownership else { return };
        let is_ready = self.services.iter().all(|service| service.settles.is_none());
        let is_outranked = {
            let mut part = ownership.part();
            if is_ready {
                part.election.ready();
            }
            part.election.is_outranked(boot_time())
        };
        if self.switches_back && is_outranked && self.copies.are_complete() {
            log::info!("a backup of a higher rank is back");
            self.give_up(None);
        }
    }

    /// Gives the VIPs up, once the backups have been told of the latest flows.
    fn give_up(&mut self, to: Option<IpAddr>) {
        self.count();
        self.copy_flows();
        if let Some(ownership) = &self.ownership {
            ownership.part().give_up(to);
        }
    }

    /// Whether this host has left the VIPs to others.
    pub(super) fn has_given_up(&mut self) -> bool {
        if self.ownership.is_some() && !std::mem::replace(&mut self.is_ending, true) {
            self.give_up(None);
        }
        self.ownership.is_none() || !self.owns()
    }
}
