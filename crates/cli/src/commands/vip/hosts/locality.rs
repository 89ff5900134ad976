//! Connections that begin on the distributor's own host, to VIPs with `optlocal`.
//!
//! A program in the kernel chooses their targets, by a table of their own ([`sidestep_distributor::Distribution::plan_of_own`]). What decides
//! is looked at here: whether this host is a target, and whether its server has room.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use sidestep_bpf::{BpfError, Cgroup, Hop, Whose};
use sidestep_distributor::distribution::has_room;
use sidestep_distributor::{OwnTarget, Protocol, State, Vip, VipSet};

use super::{Distributor, Service, Sight, key_of};
use crate::commands::vip::sockets::{self, Seen};
use crate::commands::vip_status::Connection;

/// Of a service, where connections of this host are concerned.
#[derive(Default)]
pub(super) struct Locality {
    /// The target that this host is, if its server listens.
    own: Option<OwnTarget>,
    /// That server's listen queue: connections that wait, and how many may.
    pub(super) queue: Option<(u32, u32)>,
    /// What the kernel's table was made of.
    in_force: Option<(Vec<State>, Option<OwnTarget>)>,
}

impl Distributor {
    /// Has the kernel ask about sockets of this host that connect, once a VIP needs it.
    pub(super) fn attend_to_connects(&mut self, set: &VipSet) -> Result<(), String> {
        let Some(vip) = set.vips().iter().find(|vip| vip.opt_local.is_some()) else {
            return Ok(());
        };
        if self.attends_to_connects {
            return Ok(());
        }
        let done = Cgroup::root().and_then(|root| self.forwarding.attach_to_connects(&root));
        self.attends_to_connects = done.is_ok();
        done.map_err(|error| {
            let name = &vip.name;
            format!("vip.{name}: optlocal: {error}\nwithout it, leave `optlocal` out; nothing is changed")
        })
    }

    /// As which client this host counts at a VIP.
    pub(super) fn own_client(&self, vip: IpAddr, sight: &Sight) -> Option<IpAddr> {
        let is_it = |ip: &IpAddr| *ip != vip && ip.is_ipv4() == vip.is_ipv4();
        let here = sight.own.iter().filter(|own| own.index == self.interface.index);
        here.map(|own| own.ip).find(is_it)
    }

    /// Puts into force what has changed for connections of this host.
    pub(super) fn put_own(&mut self, service: &mut Service) -> Result<(), BpfError> {
        let (vip, own) = (service.distribution.vip(), service.locality.own);
        if vip.opt_local.is_none() {
            // The VIP may have had it by its terms before.
            return self.forwarding.forget(Whose::OwnHost, key_of(vip));
        }
        let of = Some((service.distribution.states(), own));
        if service.locality.in_force == of {
            return Ok(());
        }
        let plan = service.distribution.plan_of_own(own);
        let whose = Whose::OwnHost;
        self.forwarding.prepare(service.index, whose, &plan)?;
        self.forwarding.commit(service.index, whose, key_of(vip), &plan, vip.affinity)?;
        service.locality.in_force = of;
        Ok(())
    }

    /// Adds live connections of this host, by route.
    pub(super) fn count_own(&self, live: &mut HashMap<u32, u64>) {
        for vip in self.vips().filter(|vip| vip.opt_local.is_some()) {
            match self.own_connections_to(vip) {
                Ok(seen) => {
                    for (_, route) in seen {
                        *live.entry(route).or_default() += 1;
                    }
                }
                Err(error) => log::error!("connections of this host are not counted: {error}"),
            }
        }
    }

    /// Live connections of this host to VIPs with `optlocal`.
    pub(super) fn own_connections(&self) -> io::Result<Vec<Connection>> {
        let mut all = Vec::new();
        for vip in self.vips().filter(|vip| vip.opt_local.is_some()) {
            for (client, route) in self.own_connections_to(vip)? {
                let (name, target) = (vip.name.clone(), self.target_of(vip, route));
                all.push(Connection { vip: name, address: vip.address, client, target });
            }
        }
        Ok(all)
    }

    /// The clients, and the routes of their targets.
    fn own_connections_to(&self, vip: &Vip) -> io::Result<Vec<(SocketAddr, u32)>> {
        if vip.protocol == Protocol::Udp {
            return Ok(Vec::new());
        }
        let seen = sockets::connections_to(vip.address.port(), self.forwarding.connecting())?;
        let route = |seen: &Seen| seen.owner.and_then(|number| u32::try_from(number).ok());
        // Several VIPs may have the port.
        let is_its = |route: u32| {
            self.routes.get((route as usize).wrapping_sub(1)).is_some_and(|it| it.0 == key_of(vip))
        };
        let of_it = seen.iter().filter_map(|seen| Some((seen.local, route(seen)?)));
        Ok(of_it.filter(|(_, route)| is_its(*route)).collect())
    }
}

impl Service {
    /// Whether this host is a target whose server listens, and has room.
    pub(super) fn look_at_own_server(&mut self, listeners: &[Seen]) {
        let vip = self.distribution.vip();
        if vip.opt_local.is_none() {
            return;
        }
        let target = self.members.iter().position(|member| member.hop == Hop::Here);
        let locality = &mut self.locality;
        locality.queue = target.and_then(|_| queue_at(listeners, vip.address));
        locality.own = match (target, locality.queue) {
            // Datagrams wait for no one to accept them.
            (Some(target), _) if vip.protocol == Protocol::Udp => {
                Some(OwnTarget { target, has_room: true })
            }
            (Some(target), Some((waiting, waiting_max))) => {
                Some(OwnTarget { target, has_room: has_room(waiting, waiting_max) })
            }
            _ => None,
        };
    }
}

/// All that listen here, if that decides something for one of these VIPs.
pub(super) fn listeners<'a>(vips: impl IntoIterator<Item = &'a Vip>) -> Vec<Seen> {
    if vips.into_iter().all(|vip| vip.opt_local.is_none()) {
        return Vec::new();
    }
    sockets::listeners().unwrap_or_else(|error| {
        log::error!("the kernel tells no listeners: {error}");
        Vec::new()
    })
}

/// The listen queue of the servers that take connections to an address: those that listen at it, or else at all addresses.
fn queue_at(listeners: &[Seen], address: SocketAddr) -> Option<(u32, u32)> {
    let queue_of = |is_it: &dyn Fn(&Seen) -> bool| {
        let queues = listeners.iter().filter(|seen| is_it(seen)).map(|seen| seen.queue);
        queues.reduce(|sum, queue| (sum.0 + queue.0, sum.1.saturating_add(queue.1)))
    };
    let takes_all = |seen: &Seen| {
        let of_ipv6 = seen.local.ip() == Ipv6Addr::UNSPECIFIED;
        seen.local.port() == address.port()
            && seen.local.ip().is_unspecified()
            && (address.is_ipv6() == of_ipv6 || of_ipv6 && !seen.is_ipv6_only)
    };
    queue_of(&|seen| seen.local == address).or_else(|| queue_of(&takes_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(local: &str, is_ipv6_only: bool, queue: (u32, u32)) -> Seen {
        let local: SocketAddr = local.parse().unwrap();
        Seen { local, peer: local, is_ipv6_only, inode: 1, cookie: 1, queue, owner: None }
    }

    #[test]
    fn the_queue_is_that_of_who_would_take_a_connection() {
        let four: SocketAddr = "10.0.0.9:80".parse().unwrap();
        let six: SocketAddr = "[fd00::9]:80".parse().unwrap();
        let any = [seen("0.0.0.0:80", false, (1, 8)), seen("[::]:80", true, (3, 16))];
        assert_eq!(queue_at(&any, four), Some((1, 8)));
        assert_eq!(queue_at(&any, six), Some((3, 16)));
        assert_eq!(queue_at(&any, "10.0.0.9:81".parse().unwrap()), None);
        let both = [seen("[::]:80", false, (2, 4)), seen("10.0.0.8:80", false, (9, 9))];
        assert_eq!(queue_at(&both, four), Some((2, 4)));
        assert_eq!(queue_at(&both[1..], four), None, "another address");
        let own = [seen("0.0.0.0:80", false, (1, 8)), seen("10.0.0.9:80", false, (5, 6))];
        assert_eq!(queue_at(&own, four), Some((5, 6)));
        let shared = [own[1].clone(), own[1].clone()];
        assert_eq!(queue_at(&shared, four), Some((10, 12)), "two sockets of one port");
    }
}
