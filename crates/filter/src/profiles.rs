//! Lists like those of ClassBench, and packets for them.
//!
//! *ClassBench: A Packet Classification Benchmark* (Taylor and Turner, 2005) makes lists with the
//! structure of real ones from seeds that are not public. Here only their main traits are made:
//! nested prefixes around a few hundred networks, fields that are open, port ranges, protocols.
//! The same seed gives the same list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::list::RuleList;
use crate::packet::{NO_USER, Packet, Way};
use crate::protocol::{Icmp, Protocol, number_has_ports};
use crate::rule::{Action, Direction, Endpoint, Group, Ports, Rule, User};

/// What a list is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Access lists of routers: narrow prefixes, exact destination ports.
    Acl,
    /// Firewalls: one side is open in most rules, ranges of ports.
    Fw,
    /// IP chains of hosts: a mixture.
    Ipc,
    /// What IBM measured z/OS with: exact addresses and a port, none of which matches.
    Ibm,
    /// The same as [`Profile::Acl`] for IPv6.
    Acl6,
    /// The same as [`Profile::Fw`] for IPv6.
    Fw6,
    /// Both families, ICMP, users, control groups, all conditions.
    Mixed,
    /// Prefixes in each other, the widest first or last.
    Nested,
    /// Each rule is open in one field, and all cross all others.
    Crossed,
    /// Port ranges that overlap and nothing else.
    Ranges,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Acl,
        Self::Fw,
        Self::Ipc,
        Self::Ibm,
        Self::Acl6,
        Self::Fw6,
        Self::Mixed,
        Self::Nested,
        Self::Crossed,
        Self::Ranges,
    ];

    /// Whether it is made to be hard to compile: a long one may be refused.
    #[must_use]
    pub fn is_adversarial(self) -> bool {
        matches!(self, Self::Nested | Self::Crossed | Self::Ranges)
    }

    /// A list of so many rules.
    #[must_use]
    pub fn list(self, rules: usize, seed: u64) -> RuleList {
        let mut maker = Maker { random: StdRng::seed_from_u64(seed), networks: rules / 50 + 20 };
        let rules = (0..rules).map(|number| maker.rule(self, number)).collect();
        let default = if seed.is_multiple_of(2) { Action::Permit } else { Action::Deny };
        RuleList::new(rules, default)
    }
}

/// Those in rules of [`Profile::Mixed`]: one within another, and one aside.
const GROUPS: [&str; 3] = ["/a", "/a/b", "/c"];

/// Packets for a list: most lie in one of its rules, many of them at an edge.
#[derive(Debug)]
pub struct Packets<'a> {
    list: &'a RuleList,
    maker: Maker,
}

impl<'a> Packets<'a> {
    /// Without end; the same for the same seed.
    #[must_use]
    pub fn new(list: &'a RuleList, seed: u64) -> Self {
        Self { list, maker: Maker { random: StdRng::seed_from_u64(seed), networks: 100 } }
    }
}

impl Iterator for Packets<'_> {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        let maker = &mut self.maker;
        let any = Rule::default();
        let rule = match self.list.rules.len() {
            0 => &any,
            len => &self.list.rules[maker.random.random_range(0..len)],
        };
        Some(maker.packet(rule))
    }
}

#[derive(Debug)]
struct Maker {
    random: StdRng,
    /// Networks that addresses are of.
    networks: usize,
}

impl Maker {
    fn rule(&mut self, profile: Profile, number: usize) -> Rule {
        let action = if self.one_in(2) { Action::Deny } else { Action::Permit };
        let rule = match profile {
            Profile::Acl => self.acl(false),
            Profile::Acl6 => self.acl(true),
            Profile::Fw => self.fw(false),
            Profile::Fw6 => self.fw(true),
            Profile::Ipc => match self.random.random_range(0..3) {
                0 => self.acl(false),
                1 => self.fw(false),
                _ => self.host_rule(),
            },
            Profile::Ibm => return Self::ibm(number),
            Profile::Mixed => self.mixed(),
            Profile::Nested => self.nested(),
            Profile::Crossed => self.crossed(number),
            Profile::Ranges => self.ranges(),
        };
        let can_need_tls = action == Action::Permit
            && rule.protocol == Protocol::Number(Protocol::TCP)
            && matches!(rule.direction, Direction::In | Direction::Out | Direction::Both);
        let needs_tls = can_need_tls && number.is_multiple_of(5);
        Rule { action, is_logged: number.is_multiple_of(8), needs_tls, ..rule }
    }

    fn acl(&mut self, is_v6: bool) -> Rule {
        let protocol = self.transport();
        let from =
            Endpoint { prefix: self.prefix(is_v6, &[0, 8, 16, 24, 28, 32]), ports: Ports::ANY };
        let ports = if self.one_in(8) { self.port_range() } else { self.port() };
        let to = Endpoint { prefix: self.prefix(is_v6, &[24, 27, 30, 32, 32]), ports };
        Rule { protocol, from, to, ..Rule::default() }
    }

    fn fw(&mut self, is_v6: bool) -> Rule {
        let protocol = self.transport();
        let ports = if self.one_in(2) { self.port_range() } else { Ports::ANY };
        let prefix = self.prefix(is_v6, &[8, 16, 20, 24, 32]);
        let narrow = Endpoint { prefix, ports };
        let open =
            Endpoint { prefix: None, ports: if self.one_in(3) { self.port() } else { Ports::ANY } };
        let direction = self.direction();
        let (from, to) = if self.one_in(2) { (narrow, open) } else { (open, narrow) };
        Rule { protocol, from, to, direction, ..Rule::default() }
    }

    fn host_rule(&mut self) -> Rule {
        let (from, to) = (self.prefix(false, &[32]), self.prefix(false, &[32]));
        let end = |prefix| Endpoint { prefix, ports: Ports::ANY };
        Rule { from: end(from), to: end(to), direction: self.direction(), ..Rule::default() }
    }

    fn ibm(number: usize) -> Rule {
        let number = number as u32;
        let net = |base: u32| Some(IpNet::from(IpAddr::V4(Ipv4Addr::from_bits(base + number))));
        let port = 1024 + (number % 50_000) as u16;
        Rule {
            action: Action::Deny,
            protocol: Protocol::Number(Protocol::TCP),
            from: Endpoint { prefix: net(0x0a40_0000), ports: Ports::ANY },
            to: Endpoint { prefix: net(0xc0a8_0000), ports: Ports { low: port, high: port } },
            ..Rule::default()
        }
    }

    fn mixed(&mut self) -> Rule {
        let is_v6 = self.one_in(2);
        let mut rule = if self.one_in(2) { self.acl(is_v6) } else { self.fw(is_v6) };
        match self.random.random_range(0..6) {
            0 => {
                let kind = self.random.random_range(0..20);
                let code = self.one_in(2).then(|| self.random.random_range(0..4));
                let icmp = Icmp { kind, code };
                rule.protocol = if is_v6 { Protocol::Icmp6(icmp) } else { Protocol::Icmp(icmp) };
                (rule.from.ports, rule.to.ports) = (Ports::ANY, Ports::ANY);
            }
            1 => rule.user = Some(User::Id(self.random.random_range(0..4))),
            2 => rule = Rule { direction: self.direction(), ..rule },
            4 => rule.group = Group::path(GROUPS[self.random.random_range(0..GROUPS.len())]),
            3 if self.one_in(20) => {
                rule = Rule { user: rule.user, direction: rule.direction, ..Rule::default() };
            }
            _ => {}
        }
        rule
    }

    fn nested(&mut self) -> Rule {
        let bits = self.random.random_range(0..=32);
        let end = |bits: u8, base: u32| {
            let net = Ipv4Net::new(Ipv4Addr::from_bits(base), bits).expect("up to 32 bits");
            Endpoint { prefix: Some(IpNet::V4(net.trunc())), ports: Ports::ANY }
        };
        let other = self.random.random_range(0..=32);
        let base = 0x0a01_0203 ^ self.random.random_range(0..8);
        Rule { from: end(bits, base), to: end(other, base), ..Rule::default() }
    }

    fn crossed(&mut self, number: usize) -> Rule {
        let protocol = Protocol::Number(Protocol::TCP);
        let mut rule = Rule { protocol, ..Rule::default() };
        match number % 4 {
            0 => rule.from.prefix = self.prefix(false, &[24, 32]),
            1 => rule.to.prefix = self.prefix(false, &[24, 32]),
            2 => rule.from.ports = self.port_range(),
            _ => rule.to.ports = self.port_range(),
        }
        rule
    }

    fn ranges(&mut self) -> Rule {
        let (from, to) = (self.port_range(), self.port_range());
        Rule {
            protocol: self.transport(),
            from: Endpoint { prefix: None, ports: from },
            to: Endpoint { prefix: None, ports: to },
            ..Rule::default()
        }
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.random.random_range(0..count) == 0
    }

    fn transport(&mut self) -> Protocol {
        Protocol::Number(if self.one_in(4) { Protocol::UDP } else { Protocol::TCP })
    }

    fn direction(&mut self) -> Direction {
        use Direction::{Any, Both, Forwarded, In, Out};
        [In, Out, In, Out, Both, Forwarded, Any, Any][self.random.random_range(0..8)]
    }

    fn port(&mut self) -> Ports {
        const KNOWN: [u16; 8] = [22, 25, 53, 80, 443, 1521, 3306, 8080];
        let port = if self.one_in(2) {
            KNOWN[self.random.random_range(0..KNOWN.len())]
        } else {
            self.random.random_range(1..=u16::MAX)
        };
        Ports { low: port, high: port }
    }

    fn port_range(&mut self) -> Ports {
        if self.one_in(3) {
            return Ports { low: 1024, high: u16::MAX };
        }
        let low = self.random.random_range(0..60_000);
        Ports { low, high: low + self.random.random_range(0..5_000) }
    }

    /// One of the networks, cut to one of these lengths. In an address of IPv6 the bits of IPv4
    /// stand behind the first 40, and a host has its own behind them.
    fn prefix(&mut self, is_v6: bool, lengths: &[u8]) -> Option<IpNet> {
        let len = lengths[self.random.random_range(0..lengths.len())];
        let network = self.random.random_range(0..self.networks) as u32;
        // Spread over all of the space that hosts have, in /16 and less.
        let base = 0x0100_0000 + network.wrapping_mul(0x9e37_79b1) % 0xdf00_0000;
        let address = base ^ (self.random.random_range(0..256u32));
        if len == 0 {
            return None;
        }
        Some(if is_v6 {
            let wide = 0x2001_0db8u128 << 96 | u128::from(base) << 56 | u128::from(address & 0xff);
            let len = if len == 32 { 128 } else { 40 + len };
            let net = Ipv6Net::new(Ipv6Addr::from_bits(wide), len).expect("up to 128 bits");
            IpNet::V6(net.trunc())
        } else {
            let net = Ipv4Net::new(Ipv4Addr::from_bits(address), len).expect("up to 32 bits");
            IpNet::V4(net.trunc())
        })
    }

    /// One that matches the rule, or nearly.
    fn packet(&mut self, rule: &Rule) -> Packet {
        let is_v6 =
            [rule.from.prefix, rule.to.prefix].iter().flatten().any(|it| it.addr().is_ipv6())
                || (rule.from.prefix.or(rule.to.prefix).is_none() && self.one_in(4));
        let mut protocol = rule.protocol.number().unwrap_or(Protocol::TCP);
        if self.one_in(10) {
            protocol = [Protocol::TCP, Protocol::UDP, Protocol::ICMP, Protocol::ICMP6, 47]
                [self.random.random_range(0..5)];
        }
        let has_ports = number_has_ports(protocol);
        let mut port = |ports: Ports| if has_ports { self.near(ports) } else { 0 };
        let ports = (port(rule.from.ports), port(rule.to.ports));
        let icmp = match (protocol, rule.protocol) {
            (Protocol::ICMP | Protocol::ICMP6, Protocol::Icmp(icmp) | Protocol::Icmp6(icmp)) => {
                (icmp.kind, icmp.code.unwrap_or_else(|| self.random.random_range(0..4)))
            }
            (Protocol::ICMP | Protocol::ICMP6, _) => (self.random.random_range(0..20), 0),
            _ => (0, 0),
        };
        let way = match self.random.random_range(0..5) {
            0 | 1 => Way::In,
            2 | 3 => Way::Out,
            _ => Way::Forwarded,
        };
        let user = match rule.user {
            _ if way == Way::Forwarded => NO_USER,
            Some(User::Id(id)) if !self.one_in(4) => id,
            _ => self.random.random_range(0..4),
        };
        let source = self.address(rule.from.prefix, is_v6);
        let destination = self.address(rule.to.prefix, is_v6);
        let group = match way {
            Way::Forwarded => 0,
            _ => self.random.random_range(0..=GROUPS.len() as u32),
        };
        Packet { way, protocol, source, destination, ports, icmp, interface: 1, user, group }
    }

    fn near(&mut self, Ports { low, high }: Ports) -> u16 {
        match self.random.random_range(0..8) {
            0 => low.wrapping_sub(1),
            1 => high.wrapping_add(1),
            2 => low,
            3 => high,
            4 => self.random.random_range(0..=u16::MAX),
            _ => self.random.random_range(low..=high),
        }
    }

    fn address(&mut self, prefix: Option<IpNet>, is_v6: bool) -> IpAddr {
        let other = if is_v6 { self.prefix(true, &[32]) } else { self.prefix(false, &[32]) };
        let prefix = if self.one_in(8) { other } else { prefix.or(other) };
        let aside = self.random.random_range(0..=1u32);
        match prefix.or(other).expect("a prefix with a length") {
            IpNet::V4(net) => {
                let (low, high) = (net.network().to_bits(), net.broadcast().to_bits());
                let address = self.random.random_range(low..=high);
                Ipv4Addr::from_bits(if self.one_in(4) { high.wrapping_add(aside) } else { address })
                    .into()
            }
            IpNet::V6(net) => {
                let (low, high) = (net.network().to_bits(), net.broadcast().to_bits());
                let address = self.random.random_range(low..=high);
                let edge = high.wrapping_add(u128::from(aside));
                Ipv6Addr::from_bits(if self.one_in(4) { edge } else { address }).into()
            }
        }
    }
}
