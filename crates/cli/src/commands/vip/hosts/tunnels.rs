//! Ways to targets that are not on the distributor's link.
//!
//! Whether a target is there the kernel's table of routes says: a way by a gateway, or by another interface, is none of
//! the link. Packets then go through a tunnel ([`sidestep_bpf::Tunnel`]), and greetings take the place of questions to a
//! neighbour ([`greeting`]): a target that answers is there, and knows this host.
//!
//! Tunnels are sent from ports that this process holds. So an ICMP error about one of their packets finds a socket, and the kernel
//! notes how much that way carries, as it does for datagrams of any program; the table of routes has it then.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use sidestep_bpf::{Forwarding, SOURCE_PORTS, Tunnel};

use super::link::{self, Route};
use super::ownership::random;
use crate::commands::vip::greeting::{self, Greeting, Kind};
use crate::commands::vip::inquiry;

/// From one greeting to the next, and from one look at the way to a target of the link.
const GREET_EVERY: Duration = Duration::from_secs(1);
/// A host that was silent for so long is not there: three greetings were lost.
const SILENCE: Duration = Duration::from_millis(3500);

/// Those of all targets.
#[derive(Default)]
pub(super) struct Tunnels {
    ends: HashMap<IpAddr, End>,
    /// Of IPv4, and of IPv6, once there is a tunnel: the ports from which they are sent. By the first one hosts are greeted.
    ports: [Vec<UdpSocket>; 2],
    due: Option<Instant>,
}

/// How a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is on the link, or this host.
    Link,
    /// By a tunnel; `None`: not now.
    Tunnel(Option<Tunnel>),
}

struct End {
    /// `None`: it is on the link. Otherwise the way to it, if one leads there.
    routed: Option<Option<Route>>,
    number: u64,
    heard: Option<Instant>,
    key: Option<u64>,
    is_stranger: bool,
}

impl Tunnels {
    /// Hears the hosts of these targets, which are reached by the link of this number or otherwise, and greets them now and then.
    pub(super) fn follow(&mut self, targets: &[IpAddr], link: u32, forwarding: &mut Forwarding) {
        let now = Instant::now();
        self.hear(now);
        let is_due = self.due.is_none_or(|due| now >= due);
        self.ends.retain(|target, _| targets.contains(target));
        for target in targets {
            let (is_new, is_routed) = (!self.ends.contains_key(target), self.is_routed(*target));
            // What a way carries changes within a moment, and clients wait until they are told.
            if is_due || is_new || is_routed {
                self.look(*target, link);
            }
            if is_due || is_new {
                self.greet(*target, forwarding);
            }
        }
        if is_due {
            self.due = Some(now + GREET_EVERY);
        }
    }

    /// How a target is reached now.
    pub(super) fn way(&self, target: IpAddr) -> Way {
        if self.is_routed(target) { Way::Tunnel(self.tunnel(target)) } else { Way::Link }
    }

    fn is_routed(&self, target: IpAddr) -> bool {
        self.ends.get(&target).is_some_and(|end| end.routed.is_some())
    }

    /// What keeps a target out of reach, if it is known.
    pub(super) fn fault(&self, target: IpAddr) -> Option<&'static str> {
        let end = self.ends.get(&target)?;
        match end.routed? {
            None => Some("no route leads to its host"),
            _ if end.is_stranger => Some(
                "`sidestep distributor target` does not know this distributor there: [distributor] hosts lacks its address",
            ),
            _ if !end.answers() => {
                Some("`sidestep distributor target` does not answer there, by UDP port 7609")
            }
            Some(route) if route.mtu < least(target) => {
                Some("the way to its host carries too short packets for a tunnel")
            }
            Some(_) => None,
        }
    }

    fn tunnel(&self, target: IpAddr) -> Option<Tunnel> {
        let end = self.ends.get(&target)?;
        let Route { index, from, mtu, .. } = end.routed??;
        let key = end.key.filter(|_| end.answers() && mtu >= least(target))?;
        Some(Tunnel { from, to: target, key, interface: index, mtu })
    }

    /// Asks the kernel for the way to a target.
    fn look(&mut self, target: IpAddr, link: u32) {
        let routed = match link::route_to(target) {
            Ok(None) => None,
            Ok(Some(route)) => {
                Some(route).filter(|route| !(route.is_direct && route.index == link)).map(Some)
            }
            Err(error) => {
                log::debug!("no way to {target}: {error}");
                Some(None)
            }
        };
        let end = self.ends.entry(target).or_insert_with(End::new);
        let was = std::mem::replace(&mut end.routed, routed);
        let mtu = |routed: Option<Option<Route>>| routed.flatten().map(|route| route.mtu);
        if let (Some(before), Some(after)) = (mtu(was), mtu(routed))
            && before != after
        {
            log::info!("the way to {target} carries packets of {after} bytes, not {before}");
        }
    }

    fn greet(&mut self, target: IpAddr, forwarding: &mut Forwarding) {
        let Some(end) = self.ends.get_mut(&target) else { return };
        let Some(Some(route)) = end.routed else { return };
        let ports = &mut self.ports[usize::from(target.is_ipv6())];
        if ports.is_empty() {
            match open(target).and_then(|opened| {
                let numbers = numbers_of(&opened)?;
                forwarding.set_tunnel_ports(target, numbers).map_err(io::Error::other)?;
                Ok(opened)
            }) {
                Ok(opened) => *ports = opened,
                Err(error) => return log::error!("there are no ports for tunnels: {error}"),
            }
        }
        match random() {
            Ok(number) => end.number = u64::from_ne_bytes(number),
            Err(error) => return log::error!("there are no random numbers: {error}"),
        }
        let mtu = u16::try_from(route.mtu).unwrap_or(u16::MAX);
        let (kind, number, key) = (Kind::Greeting, end.number, end.key.unwrap_or(0));
        let bytes = Greeting { kind, mtu, number, key }.written();
        // One that is lost is followed by another.
        _ = ports[0].send_to(&bytes, (target, inquiry::PORT));
    }

    fn hear(&mut self, now: Instant) {
        // One more than a greeting has: a longer one is not taken for its beginning.
        let mut bytes = [0; greeting::LEN + 1];
        for socket in self.ports.iter().filter_map(|ports| ports.first()) {
            while let Ok((len, _)) = socket.recv_from(&mut bytes) {
                let Some(answer) = Greeting::read(&bytes[..len]) else { continue };
                // The answer may come from another address of the host, so the number alone tells it.
                let is_its = |end: &&mut End| end.number == answer.number;
                let Some(end) = self.ends.values_mut().find(is_its) else { continue };
                match answer.kind {
                    Kind::Greeting => {}
                    Kind::Welcome => {
                        (end.key, end.is_stranger) = (Some(answer.key), false);
                        end.heard = Some(now);
                    }
                    Kind::Stranger => (end.key, end.is_stranger) = (None, true),
                }
            }
        }
    }
}

impl End {
    fn new() -> Self {
        Self { routed: None, number: 0, heard: None, key: None, is_stranger: false }
    }

    fn answers(&self) -> bool {
        self.heard.is_some_and(|heard| heard.elapsed() < SILENCE)
    }
}

/// The least that a tunnel to there has to carry: what every host takes by IPv6, or IPv4, and the headers.
fn least(target: IpAddr) -> u32 {
    let packet = if target.is_ipv6() { 1280 } else { 576 };
    packet + Tunnel::overhead(target)
}

/// Ports from which tunnels to addresses like this one are sent.
fn open(like: IpAddr) -> io::Result<Vec<UdpSocket>> {
    let any: IpAddr =
        if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let open = |_| {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    (0..SOURCE_PORTS).map(open).collect()
}

fn numbers_of(sockets: &[UdpSocket]) -> io::Result<[u16; SOURCE_PORTS]> {
    let mut numbers = [0; SOURCE_PORTS];
    for (number, socket) in numbers.iter_mut().zip(sockets) {
        *number = socket.local_addr()?.port();
    }
    Ok(numbers)
}
