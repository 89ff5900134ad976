//! A rule as ranges of numbers, and a packet as a point in them.
//!
//! What a rule looks at becomes words of 32 bits: an address of IPv6 four of them, an address of
//! IPv4 the first. A prefix is a range in one word, exact in those before and open in those behind,
//! so every condition of a rule is a range, and a rule is a box: it matches a packet if each of its
//! ranges has the packet's word.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::packet::{Packet, Way};
use crate::protocol::Protocol;
use crate::rule::{Direction, Endpoint, Group, Name, Names, Rule, User};

/// The words that a packet is to the graph, those without a meaning 0.
pub type Key = [u32; KEY_WORDS];

/// Words of a key: a power of two, so that no number of a field leads beyond it.
pub const KEY_WORDS: usize = 16;

/// Which word has what. Programs of the kernel fill in the same ones.
pub mod field {
    /// The source address: its four words, the highest first, in the machine's order.
    pub const SOURCE: usize = 0;
    /// The destination address.
    pub const DESTINATION: usize = 4;
    /// The source port.
    pub const SOURCE_PORT: usize = 8;
    /// The destination port; of ICMP type and code, as `type << 8 | code`.
    pub const DESTINATION_PORT: usize = 9;
    /// The protocol's number.
    pub const PROTOCOL: usize = 10;
    /// 0: in, 1: out, 2: forwarded.
    pub const WAY: usize = 11;
    /// Index of the interface.
    pub const INTERFACE: usize = 12;
    /// The number of the user.
    pub const USER: usize = 13;
    /// The number of the control group.
    pub const GROUP: usize = 14;
    /// The best verdict so far, while the graph is walked.
    pub const BEST: usize = 15;
}

/// Fields that rules have ranges in: those before [`field::BEST`].
pub(crate) const FIELDS: usize = field::BEST;

/// Numbers from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) low: u32,
    pub(crate) high: u32,
}

/// A range for each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region(pub(crate) [Range; FIELDS]);

/// Each rule's region in a family, with its place in the list.
pub(crate) type Ranked = Vec<(u32, Region)>;

/// The two kinds of addresses; each has a graph of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A name that has no meaning on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Interface(Name),
    User(Name),
    Group(Group),
}

impl Range {
    pub(crate) const ALL: Self = Self { low: 0, high: u32::MAX };

    pub(crate) fn only(value: u32) -> Self {
        Self { low: value, high: value }
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        self.low <= other.low && other.high <= self.high
    }

    pub(crate) fn span(self) -> u32 {
        self.high - self.low
    }
}

impl Region {
    pub(crate) const ALL: Self = Self([Range::ALL; FIELDS]);

    /// What a rule matches in a family; `None`: nothing.
    ///
    /// # Errors
    /// A name in it has no meaning.
    pub(crate) fn of(
        rule: &Rule,
        family: Family,
        names: &impl Names,
    ) -> Result<Option<Self>, Unknown> {
        let mut region = Self::ALL;
        let ranges = &mut region.0;
        if let Some(name) = &rule.interface {
            let index = names.interface(name.as_str());
            ranges[field::INTERFACE] =
                Range::only(index.ok_or_else(|| Unknown::Interface(name.clone()))?);
        }
        if let Some(user) = &rule.user {
            ranges[field::USER] = Range::only(user_id(user, names)?);
        }
        if let Some(group) = &rule.group {
            let numbers = names.group(group).ok_or_else(|| Unknown::Group(group.clone()))?;
            ranges[field::GROUP] = Range { low: *numbers.start(), high: *numbers.end() };
        }
        let ends = [
            (&rule.from, field::SOURCE, field::SOURCE_PORT),
            (&rule.to, field::DESTINATION, field::DESTINATION_PORT),
        ];
        for (end, address, port) in ends {
            if !put_address(end, family, &mut ranges[address..address + 4]) {
                return Ok(None);
            }
            ranges[port] = Range { low: end.ports.low.into(), high: end.ports.high.into() };
            // What no port can be is no condition.
            if end.ports.high == u16::MAX {
                ranges[port].high = u32::MAX;
            }
        }
        put_protocol(rule.protocol, ranges);
        match rule.direction {
            Direction::In => ranges[field::WAY] = Range::only(way(Way::In)),
            Direction::Out => ranges[field::WAY] = Range::only(way(Way::Out)),
            Direction::Both => {
                ranges[field::WAY] = Range { low: way(Way::In), high: way(Way::Out) };
            }
            Direction::Forwarded => ranges[field::WAY] = Range::only(way(Way::Forwarded)),
            Direction::Any => {}
        }
        Ok(Some(region))
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(one, other)| one.covers(*other))
    }
}

/// Those of some rules in a family, which have places in a list.
///
/// # Errors
/// A name in the rule at this place has no meaning.
pub(crate) fn regions_of<'a>(
    rules: impl Iterator<Item = (usize, &'a Rule)>,
    family: Family,
    names: &impl Names,
) -> Result<Ranked, (usize, Unknown)> {
    let mut ranked = Vec::new();
    for (rank, rule) in rules {
        let region = Region::of(rule, family, names).map_err(|unknown| (rank, unknown))?;
        ranked.extend(region.map(|region| (rank as u32, region)));
    }
    Ok(ranked)
}

fn user_id(user: &User, names: &impl Names) -> Result<u32, Unknown> {
    match user {
        User::Id(id) => Ok(*id),
        User::Name(name) => names.user(name.as_str()).ok_or_else(|| Unknown::User(name.clone())),
    }
}

/// Whether there is such an address in the family.
fn put_address(end: &Endpoint, family: Family, ranges: &mut [Range]) -> bool {
    match (end.prefix, family) {
        (None, _) => true,
        (Some(IpNet::V4(prefix)), Family::V4) => {
            let (low, high) = (prefix.network().to_bits(), prefix.broadcast().to_bits());
            ranges[0] = Range { low, high };
            true
        }
        (Some(IpNet::V6(prefix)), Family::V6) => {
            let low = words(prefix.network().to_bits());
            let high = words(prefix.broadcast().to_bits());
            for (range, (low, high)) in ranges.iter_mut().zip(low.into_iter().zip(high)) {
                *range = Range { low, high };
            }
            true
        }
        _ => false,
    }
}

fn put_protocol(protocol: Protocol, ranges: &mut [Range; FIELDS]) {
    if let Some(number) = protocol.number() {
        ranges[field::PROTOCOL] = Range::only(number.into());
    }
    if let Protocol::Icmp(icmp) | Protocol::Icmp6(icmp) = protocol {
        let low = icmp_word(icmp.kind, icmp.code.unwrap_or(0));
        let high = icmp_word(icmp.kind, icmp.code.unwrap_or(u8::MAX));
        ranges[field::DESTINATION_PORT] = Range { low, high };
    }
}

impl Packet {
    /// The packet with these words.
    #[must_use]
    pub fn of_key(key: &Key, is_ipv6: bool) -> Self {
        let address = |at: usize| match is_ipv6 {
            false => IpAddr::V4(key[at].into()),
            true => {
                let words = key[at..at + 4].iter();
                IpAddr::V6(words.fold(0, |bits, &word| bits << 32 | u128::from(word)).into())
            }
        };
        let protocol = key[field::PROTOCOL] as u8;
        let [kind, code] = (key[field::DESTINATION_PORT] as u16).to_be_bytes();
        let is_icmp = matches!(protocol, Protocol::ICMP | Protocol::ICMP6);
        let ports = (key[field::SOURCE_PORT] as u16, key[field::DESTINATION_PORT] as u16);
        Self {
            way: match key[field::WAY] {
                0 => Way::In,
                1 => Way::Out,
                _ => Way::Forwarded,
            },
            protocol,
            source: address(field::SOURCE),
            destination: address(field::DESTINATION),
            ports: if is_icmp { (0, 0) } else { ports },
            icmp: if is_icmp { (kind, code) } else { (0, 0) },
            interface: key[field::INTERFACE],
            user: key[field::USER],
            group: key[field::GROUP],
        }
    }

    /// The words that the graph looks at.
    #[must_use]
    pub fn key(&self) -> Key {
        let mut key = [0; KEY_WORDS];
        for (address, at) in [(self.source, field::SOURCE), (self.destination, field::DESTINATION)]
        {
            match address {
                IpAddr::V4(address) => key[at] = address.to_bits(),
                IpAddr::V6(address) => key[at..at + 4].copy_from_slice(&words(address.to_bits())),
            }
        }
        key[field::SOURCE_PORT] = self.ports.0.into();
        key[field::DESTINATION_PORT] = match self.protocol {
            Protocol::ICMP | Protocol::ICMP6 => icmp_word(self.icmp.0, self.icmp.1),
            _ => self.ports.1.into(),
        };
        key[field::PROTOCOL] = self.protocol.into();
        key[field::WAY] = way(self.way);
        key[field::INTERFACE] = self.interface;
        key[field::USER] = self.user;
        key[field::GROUP] = self.group;
        key
    }

    pub(crate) fn family(&self) -> Family {
        if self.source.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

fn way(way: Way) -> u32 {
    match way {
        Way::In => 0,
        Way::Out => 1,
        Way::Forwarded => 2,
    }
}

fn icmp_word(kind: u8, code: u8) -> u32 {
    u16::from_be_bytes([kind, code]).into()
}

fn words(bits: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}
