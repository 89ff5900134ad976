//! What an operator says about packets.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::packet::{Packet, Way};
use crate::protocol::Protocol;

/// One rule. It matches a packet if each of its conditions does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// What becomes of packets that match.
    pub action: Action,
    /// Their protocol.
    pub protocol: Protocol,
    /// Where they come from.
    pub from: Endpoint,
    /// Where they go.
    pub to: Endpoint,
    /// Whether they arrive at this host, leave it, or only pass through.
    pub direction: Direction,
    /// The interface that they arrive at or leave by, if forwarded leave by; `None`: any.
    pub interface: Option<Name>,
    /// Whose the socket on this host is; `None`: anybody's.
    pub user: Option<User>,
    /// The control group of that socket; `None`: any.
    pub group: Option<Group>,
    /// It permits connections that TLS protects, and denies the bytes of others. Of TCP, and a socket of this host.
    pub needs_tls: bool,
    /// Packets about which it decides are told in the log.
    pub is_logged: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Action {
    /// It passes.
    #[default]
    Permit,
    /// It is dropped.
    Deny,
}

/// One side of a packet: addresses and ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The addresses; `None`: all of both families.
    pub prefix: Option<IpNet>,
    /// The ports.
    pub ports: Ports,
}

/// Ports, both ends included: `low <= high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// The lowest.
    pub low: u16,
    /// The highest.
    pub high: u16,
}

/// Which packets, by their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Those that arrive.
    In,
    /// Those that leave.
    Out,
    /// Those of this host's sockets: they arrive or leave.
    Both,
    /// Those that pass through this host.
    Forwarded,
    /// All.
    #[default]
    Any,
}

/// The name of an interface, a user or a control group: without white space, `#` and control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

/// A user of this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum User {
    /// By number.
    Id(u32),
    /// By name.
    Name(Name),
}

/// Programs of this host, by the control group that their sockets belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// The group of this path below the root of control groups, and those in it: `/system.slice/nginx.service`.
    Path(Name),
    /// That of a unit of systemd.
    Unit(Name),
}

/// The kinds of units whose processes have a control group.
const UNIT_KINDS: [&str; 5] = [".service", ".scope", ".slice", ".socket", ".mount"];

/// A rule that comes later than its list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterRule {
    /// It stands before the rule at this place of the list, behind those that have come there earlier.
    pub before: usize,
    /// The rule.
    pub rule: Rule,
}

/// What names mean on the machine where the rules hold.
pub trait Names {
    /// The index of an interface (*Source*: `if_nametoindex(3)`); `None`: there is none.
    fn interface(&self, name: &str) -> Option<u32>;
    /// The number of a user; `None`: there is none.
    fn user(&self, name: &str) -> Option<u32>;
    /// The numbers of a control group and of those in it ([`Groups`](crate::Groups)); `None`: control groups have
    /// none here.
    fn group(&self, _group: &Group) -> Option<RangeInclusive<u32>> {
        None
    }
}

/// For rules without names: none has a meaning.
#[derive(Clone, Copy, Debug)]
pub struct NoNames;

impl Names for NoNames {
    fn interface(&self, _: &str) -> Option<u32> {
        None
    }

    fn user(&self, _: &str) -> Option<u32> {
        None
    }
}

impl Rule {
    /// Whether the rule matches the packet, condition by condition: what the graph must agree with.
    ///
    /// A name that has no meaning matches nothing.
    #[must_use]
    pub fn matches(&self, packet: &Packet, names: &impl Names) -> bool {
        let interface = |name: &Name| names.interface(name.as_str()) == Some(packet.interface);
        let user = |user: &User| user.id(names) == Some(packet.user);
        let group = |group: &Group| names.group(group).is_some_and(|it| it.contains(&packet.group));
        self.protocol.matches(packet.protocol, packet.icmp)
            && self.from.matches(packet.source, packet.ports.0)
            && self.to.matches(packet.destination, packet.ports.1)
            && self.direction.matches(packet.way)
            && self.interface.as_ref().is_none_or(interface)
            && self.user.as_ref().is_none_or(user)
            && self.group.as_ref().is_none_or(group)
    }
}

impl Rule {
    /// Whether it is for IPv6 alone, or for IPv4 alone; `None`: for both.
    ///
    /// # Errors
    /// Its addresses are of two families, or its protocol is of another than they are.
    pub(crate) fn family(&self) -> Result<Option<bool>, &'static str> {
        let is_v6 = |end: &Endpoint| end.prefix.map(|it| matches!(it, IpNet::V6(_)));
        let (from, to) = (is_v6(&self.from), is_v6(&self.to));
        if from.is_some() && to.is_some() && from != to {
            return Err("the two addresses are of different families");
        }
        match (self.protocol.number(), from.or(to)) {
            (Some(Protocol::ICMP6), Some(false)) => {
                Err("icmp6 is of IPv6, and the addresses are of IPv4")
            }
            (Some(Protocol::ICMP), Some(true)) => {
                Err("icmp is of IPv4, and the addresses are of IPv6: icmp6 is meant")
            }
            (_, family) => Ok(family),
        }
    }
}

impl Endpoint {
    fn matches(&self, address: std::net::IpAddr, port: u16) -> bool {
        self.prefix.is_none_or(|prefix| prefix.contains(&address))
            && (self.ports.low..=self.ports.high).contains(&port)
    }
}

impl Ports {
    /// All.
    pub const ANY: Self = Self { low: 0, high: u16::MAX };
}

impl Default for Ports {
    fn default() -> Self {
        Self::ANY
    }
}

impl Direction {
    fn matches(self, way: Way) -> bool {
        match self {
            Self::In => way == Way::In,
            Self::Out => way == Way::Out,
            Self::Both => way != Way::Forwarded,
            Self::Forwarded => way == Way::Forwarded,
            Self::Any => true,
        }
    }
}

impl Name {
    /// `None`: it is empty, or a character in it is not for names.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_wrong = |c: char| c.is_whitespace() || c.is_control() || c == '#';
        (!text.is_empty() && !text.contains(is_wrong)).then(|| Self(text.to_owned()))
    }

    /// Its characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl User {
    pub(crate) fn id(&self, names: &impl Names) -> Option<u32> {
        match self {
            Self::Id(id) => Some(*id),
            Self::Name(name) => names.user(name.as_str()),
        }
    }
}

impl Group {
    /// A path. `None`: it is none.
    #[must_use]
    pub fn path(text: &str) -> Option<Self> {
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let is_path = text == "/" || text.strip_prefix('/')?.split('/').all(is_part);
        is_path.then(|| Name::new(text).map(Self::Path))?
    }

    /// A unit. `None`: what it is called is no unit with processes.
    #[must_use]
    pub fn unit(text: &str) -> Option<Self> {
        let is_unit = !text.contains('/')
            && UNIT_KINDS
                .iter()
                .any(|kind| text.strip_suffix(kind).is_some_and(|it| !it.is_empty()));
        is_unit.then(|| Name::new(text).map(Self::Unit))?
    }
}

/// As the conditions of a rule have it.
impl Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "cgroup {}", path.as_str()),
            Self::Unit(unit) => write!(f, "unit {}", unit.as_str()),
        }
    }
}

/// As a line of a list, without the line feed.
impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.action, self.protocol, self.from, self.to)?;
        match self.direction {
            Direction::In => write!(f, " in")?,
            Direction::Out => write!(f, " out")?,
            Direction::Both => write!(f, " both")?,
            Direction::Forwarded => write!(f, " forwarded")?,
            Direction::Any => {}
        }
        if let Some(interface) = &self.interface {
            write!(f, " on {}", interface.0)?;
        }
        match &self.user {
            None => {}
            Some(User::Id(id)) => write!(f, " user {id}")?,
            Some(User::Name(name)) => write!(f, " user {}", name.0)?,
        }
        if let Some(group) = &self.group {
            write!(f, " {group}")?;
        }
        if self.needs_tls {
            write!(f, " tls")?;
        }
        if self.is_logged { write!(f, " log") } else { Ok(()) }
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
        })
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.prefix {
            None => "any".to_owned(),
            Some(prefix) if prefix.prefix_len() == prefix.max_prefix_len() => {
                prefix.addr().to_string()
            }
            Some(prefix) => prefix.to_string(),
        };
        match (self.ports, self.prefix) {
            (Ports::ANY, _) => write!(f, "{prefix}"),
            (ports, Some(IpNet::V6(_))) => write!(f, "[{prefix}]:{ports}"),
            (ports, _) => write!(f, "{prefix}:{ports}"),
        }
    }
}

impl Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { low, high } if low == high => write!(f, "{low}"),
            Self { low, high: u16::MAX } => write!(f, "{low}-"),
            Self { low, high } => write!(f, "{low}-{high}"),
        }
    }
}
