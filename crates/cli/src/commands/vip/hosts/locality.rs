//! Connections that begin on the distributor's own host, to VIPs with `optlocal`.
//!
//! A program in the kernel chooses their targets, by a table of their own ([`Distribution::plan_of_own`]). What decides
//! is looked at here: whether this host is a target, and whether its server has room.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use sidestep_distributor::distribution::has_room;
use sidestep_distributor::{Distribution, OwnTarget, Plan, Protocol, State, Vip};

use crate::commands::vip::sockets::{self, Seen};

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

impl Locality {
    /// Looks at the server at the VIP's address, which is this host's if the host is the target of that number.
    pub(super) fn look(&mut self, vip: &Vip, target: Option<usize>, listeners: &[Seen]) {
        self.queue = target.and_then(|_| queue_at(listeners, vip.address));
        self.own = match (target, self.queue) {
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

    /// The table for connections of this host, if it is not the one that is in force.
    pub(super) fn plan(&self, distribution: &Distribution) -> Option<Plan> {
        let is_in_force =
            self.in_force.as_ref().is_some_and(|it| *it == (distribution.states(), self.own));
        (!is_in_force).then(|| distribution.plan_of_own(self.own))
    }

    /// That table is in force now.
    pub(super) fn note(&mut self, distribution: &Distribution) {
        self.in_force = Some((distribution.states(), self.own));
    }
}

/// The clients on this host of a VIP, and the routes of their targets.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn connections_to(
    vip: &Vip,
    connecting: BorrowedFd<'_>,
) -> io::Result<Vec<(SocketAddr, u32)>> {
    if vip.protocol == Protocol::Udp {
        return Ok(Vec::new());
    }
    let seen = sockets::connections_to(vip.address.port(), connecting)?;
    let route = |seen: &Seen| seen.owner.and_then(|number| u32::try_from(number).ok());
    Ok(seen.iter().filter_map(|seen| Some((seen.local, route(seen)?))).collect())
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
