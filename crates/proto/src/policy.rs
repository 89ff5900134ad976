//! Which connections an operator leaves on TCP: rules about ports, peers, interfaces, programs
//! and users.
//!
//! The port of a rule is always the server's, whichever end asks, so that one rule means the
//! same to both. A peer has to be in one of the permitted subnets, if there are any, and in
//! none of the excluded ones. z/OS has the same as `NOSMC` on a port and as lists of subnets.
//!
//! Interfaces follow from PNET IDs, the names of networks: where the shared memory of the host
//! has one, a connection needs an interface with the same one. Each end looks at its own, because
//! the standard has these names known on one host only.

use crate::fallback::{OperatorSaid, Reason};
use arrayvec::{ArrayString, ArrayVec};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use ipnet::IpNet;
use thiserror::Error;

/// Entries of a list, at most.
pub const ENTRIES_MAX: usize = 32;

/// The rules of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The program itself: none of its connections moves.
    pub excludes_program: bool,
    /// Servers' ports.
    pub excluded_ports: ArrayVec<PortRange, ENTRIES_MAX>,
    /// If there are any, only their peers.
    pub permitted_peers: ArrayVec<IpNet, ENTRIES_MAX>,
    /// Never their peers, permitted or not.
    pub excluded_peers: ArrayVec<IpNet, ENTRIES_MAX>,
    /// If there are any, only connections whose own address is on one of them.
    pub interfaces: ArrayVec<Interface, ENTRIES_MAX>,
    /// Users with whom memory is shared beside our own.
    pub users: ArrayVec<u32, ENTRIES_MAX>,
    /// Groups with whose users memory is shared.
    pub groups: ArrayVec<u32, ENTRIES_MAX>,
    /// Users in these groups, although they run as another one.
    pub members: ArrayVec<u32, MEMBERS_MAX>,
}

/// The user that may do everything where it is.
pub const ROOT: u32 = 0;

/// Members of groups, at most.
pub const MEMBERS_MAX: usize = 256;

impl Policy {
    /// Whether there are no rules about ports, peers and the program.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let peers = self.permitted_peers.is_empty() && self.excluded_peers.is_empty();
        peers && self.excluded_ports.is_empty() && !self.excludes_program
    }

    /// What the rules have against connections that a server gets at this port.
    #[must_use]
    pub fn objection_to_port(&self, server_port: u16) -> Option<Reason> {
        if self.excludes_program {
            return Some(Reason::Operator(OperatorSaid::ProgramExcluded));
        }
        let excluded = self.excluded_ports.iter().any(|ports| ports.contains(server_port));
        excluded.then_some(Reason::Operator(OperatorSaid::PortExcluded))
    }

    /// What the rules have against a connection. `peer`: IPv4-mapped addresses as IPv4.
    #[must_use]
    pub fn objection(&self, server_port: u16, peer: IpAddr) -> Option<Reason> {
        let is_in = |subnets: &[IpNet]| subnets.iter().any(|subnet| subnet.contains(&peer));
        let permitted = self.permitted_peers.is_empty() || is_in(&self.permitted_peers);
        let allowed = permitted && !is_in(&self.excluded_peers);
        self.objection_to_port(server_port)
            .or((!allowed).then_some(Reason::Operator(OperatorSaid::PeerExcluded)))
    }

    /// What the rules have against a connection whose own address is on the interface of this
    /// name. `None`: it is not known which one that is.
    #[must_use]
    pub fn objection_to_interface(&self, name: Option<&[u8]>) -> Option<Reason> {
        let is_listed = self.interfaces.iter().any(|own| Some(own.0.as_bytes()) == name);
        let is_eligible = self.interfaces.is_empty() || is_listed;
        (!is_eligible).then_some(Reason::Operator(OperatorSaid::OtherPnet))
    }

    /// What the rules of a process of user `own` have against a peer process of another
    /// user and group. `is_near`: it is in the same namespaces. Root of others is another user: a
    /// container's root has the number of the host's, and not its power.
    #[must_use]
    pub fn objection_to_user(
        &self,
        own: u32,
        user: u32,
        group: u32,
        is_near: bool,
    ) -> Option<Reason> {
        let is_listed = self.users.contains(&user) || self.members.contains(&user);
        let is_own = user == own && (is_near || user != ROOT);
        let may_share = is_own || is_listed || self.groups.contains(&group);
        (!may_share).then_some(Reason::Operator(OperatorSaid::OtherUser))
    }
}

/// A port or some in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// What a port or range may look like.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("use a port from 1 to 65535, or a range such as \"6000-6010\"")]
pub struct NotPorts;

impl PortRange {
    /// The lowest.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Whether the port is one of them.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Whether each of the other's is one of them.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.contains(other.first) && self.contains(other.last)
    }
}

impl FromStr for PortRange {
    type Err = NotPorts;

    fn from_str(text: &str) -> Result<Self, NotPorts> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| NotPorts);
        let range = Self { first: port(first)?, last: port(last)? };
        if range.first == 0 || range.first > range.last {
            return Err(NotPorts);
        }
        Ok(range)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// The name of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface(ArrayString<INTERFACE_LEN_MAX>);

/// Bytes of the name of an interface: `IFNAMSIZ` of Linux without the NUL at its end.
pub const INTERFACE_LEN_MAX: usize = 15;

/// What the name of an interface may look like.
///
/// *Source*: `dev_valid_name` of Linux, which would take a comma and what is not ASCII, too.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "use the name of a network interface, such as `eth0`: 15 characters at most, without spaces, \
     commas, `:` and `/`"
)]
pub struct NotInterface;

impl FromStr for Interface {
    type Err = NotInterface;

    fn from_str(text: &str) -> Result<Self, NotInterface> {
        let allowed = |c: u8| c.is_ascii_graphic() && !b",:/".contains(&c);
        if text.is_empty() || !text.bytes().all(allowed) {
            return Err(NotInterface);
        }
        ArrayString::from(text).map(Self).map_err(|_| NotInterface)
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a subnet may look like.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotSubnet {
    /// Not an address at all.
    #[error("use an address such as \"192.0.2.7\", or a subnet such as \"192.0.2.0/24\"")]
    Malformed,
    /// An address inside a subnet and not the subnet's own.
    #[error("the address has bits beyond the prefix; the subnet is \"{0}\"")]
    BitsBeyond(IpNet),
}

/// A subnet, or one address.
///
/// # Errors
/// [`NotSubnet`].
pub fn parse_subnet(text: &str) -> Result<IpNet, NotSubnet> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address.to_canonical()));
    }
    let subnet: IpNet = text.parse().map_err(|_| NotSubnet::Malformed)?;
    match subnet.trunc() {
        own if own == subnet => Ok(own),
        own => Err(NotSubnet::BitsBeyond(own)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn ports(list: &[&str]) -> ArrayVec<PortRange, ENTRIES_MAX> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn subnets(list: &[&str]) -> ArrayVec<IpNet, ENTRIES_MAX> {
        list.iter().map(|text| parse_subnet(text).unwrap()).collect()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn without_rules_nothing_is_excluded() {
        assert_eq!(Policy::default().objection(22, address("192.0.2.1")), None);
    }

    #[test]
    fn ports_are_excluded_with_both_ends_of_a_range() {
        let policy = Policy { excluded_ports: ports(&["22", "6000-6010"]), ..Policy::default() };
        let objection = |port| policy.objection(port, address("::1"));
        for port in [22, 6000, 6005, 6010] {
            assert_eq!(
                objection(port),
                Some(Reason::Operator(OperatorSaid::PortExcluded)),
                "{port}"
            );
        }
        for port in [21, 23, 5999, 6011] {
            assert_eq!(objection(port), None, "{port}");
        }
    }

    #[test]
    fn an_excluded_subnet_goes_before_a_permitted_one() {
        let policy = Policy {
            permitted_peers: subnets(&["10.0.0.0/8", "2001:db8::/32"]),
            excluded_peers: subnets(&["10.1.0.0/16", "10.2.0.1"]),
            ..Policy::default()
        };
        let objection = |peer| policy.objection(80, address(peer));
        for peer in ["10.0.0.1", "10.2.0.2", "2001:db8::7"] {
            assert_eq!(objection(peer), None, "{peer}");
        }
        for peer in ["10.1.2.3", "10.2.0.1", "127.0.0.1", "::1"] {
            assert_eq!(
                objection(peer),
                Some(Reason::Operator(OperatorSaid::PeerExcluded)),
                "{peer}"
            );
        }
    }

    #[test]
    fn memory_is_shared_with_ones_own_user_and_those_listed() {
        let objection =
            |policy: &Policy, user, group| policy.objection_to_user(7, user, group, true);
        let nobody = Policy::default();
        assert_eq!(objection(&nobody, 7, 7), None);
        assert_eq!(
            objection(&nobody, 0, 7),
            Some(Reason::Operator(OperatorSaid::OtherUser)),
            "root is no exception"
        );
        let policy = Policy {
            users: [1].into_iter().collect(),
            groups: [20].into_iter().collect(),
            members: [3].into_iter().collect(),
            ..Policy::default()
        };
        for (user, group) in [(7, 0), (1, 0), (2, 20), (3, 0)] {
            assert_eq!(objection(&policy, user, group), None, "{user}, {group}");
        }
        assert_eq!(objection(&policy, 20, 1), Some(Reason::Operator(OperatorSaid::OtherUser)));
    }

    #[test]
    fn root_of_other_namespaces_is_another_user() {
        let objection =
            |policy: &Policy, user, is_near| policy.objection_to_user(user, user, 9, is_near);
        let nobody = Policy::default();
        assert_eq!(objection(&nobody, ROOT, true), None);
        assert_eq!(
            objection(&nobody, ROOT, false),
            Some(Reason::Operator(OperatorSaid::OtherUser))
        );
        assert_eq!(objection(&nobody, 7, false), None, "others have no more power elsewhere");
        let policy = Policy { users: [ROOT].into_iter().collect(), ..Policy::default() };
        assert_eq!(objection(&policy, ROOT, false), None);
    }

    #[test]
    fn only_connections_on_listed_interfaces_are_eligible() {
        let policy = Policy {
            interfaces: ["lo", "eth0"].iter().map(|name| name.parse().unwrap()).collect(),
            ..Policy::default()
        };
        for name in ["lo", "eth0"] {
            assert_eq!(policy.objection_to_interface(Some(name.as_bytes())), None, "{name}");
        }
        let others: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"eth"), Some(b"eth01")];
        for name in others {
            let objection = policy.objection_to_interface(name);
            assert_eq!(objection, Some(Reason::Operator(OperatorSaid::OtherPnet)), "{name:?}");
        }
        assert_eq!(Policy::default().objection_to_interface(None), None);
    }

    #[test]
    fn an_excluded_program_has_that_reason() {
        let policy = Policy { excludes_program: true, ..Policy::default() };
        assert_eq!(
            policy.objection(80, address("::1")),
            Some(Reason::Operator(OperatorSaid::ProgramExcluded))
        );
    }

    #[test]
    fn ports_and_subnets_are_written_as_they_are_read() {
        for text in ["1", "65535", "6000-6010"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
        }
        for text in ["192.0.2.0/24", "::/0", "2001:db8::/32"] {
            assert_eq!(parse_subnet(text).unwrap().to_string(), text);
        }
        for text in ["lo", "eth0.5", "enp0s31f6np1234"] {
            assert_eq!(text.parse::<Interface>().unwrap().to_string(), text);
        }
        assert_eq!(parse_subnet("::ffff:192.0.2.7").unwrap().to_string(), "192.0.2.7/32");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for text in ["0", "65536", "7-6", "http", "", "1-", "-1"] {
            assert_eq!(text.parse::<PortRange>(), Err(NotPorts), "{text}");
        }
        for text in ["", "10.0.0", "10.0.0.0/33", "example.org"] {
            assert_eq!(parse_subnet(text), Err(NotSubnet::Malformed), "{text}");
        }
        for text in ["", "eth0:1", "a/b", "a b", "a,b", "\u{e4}", "sixteen-letters!"] {
            assert_eq!(text.parse::<Interface>(), Err(NotInterface), "{text}");
        }
        let error = parse_subnet("10.1.2.3/8").unwrap_err().to_string();
        assert!(error.ends_with("the subnet is \"10.0.0.0/8\""), "{error}");
    }
}
