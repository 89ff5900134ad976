//! Which connections are to be protected by TLS: what a rule is about, and which rule decides.
//!
//! A library has to know only *whether* a connection is to be protected, before its first byte. What the
//! protection is (certificates, versions, names) the gateway knows, which carries it out. So the rules have two
//! parts, and this is the one that both know: the [`Scope`]. Rules have an order, and the first one whose scope
//! has the connection decides.
//!
//! A library is told in the words of its environment, one word for all scopes. It keeps those that concern its
//! program:
//!
//! ```text
//!   tls=out|logs|6514|10.0.0.0/8,fd00::/8||rsyslogd;in|web|8443,9000-9010||1000|
//!       role name ports peers          users programs
//! ```
//!
//! Where TLS begins when the program says so, and not with the connection ([`Begin::Asked`]), the role is `out-asked` or
//! `in-asked`: a library that is older cannot read that, so it refuses such connections.
//!
//! The port of a scope is always the server's, as in [`policy`](crate::policy); the peer is the other end.

use crate::policy::{PortRange, parse_subnet};
use arrayvec::ArrayVec;
use core::fmt;
use core::net::IpAddr;
use ipnet::IpNet;
pub use sidestep_wire::hand_over::ResolvedName;
pub use sidestep_wire::rule_name::{NotRuleName, RuleName};

/// Rules, at most.
pub const RULES_MAX: usize = 16;
/// Entries of one list of a scope, at most.
pub const ENTRIES_MAX: usize = 8;

/// Which end of TLS this host has, which is that of the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Connections that programs of this host begin.
    Outbound,
    /// Those that they accept.
    Inbound,
}

impl Role {
    /// How it stands in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Outbound => "out",
            Self::Inbound => "in",
        }
    }
}

/// When TLS begins on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With the connection: no byte goes in plain text.
    #[default]
    Connected,
    /// When the program asks for it (`controlled = true`): so long it speaks plain text, as STARTTLS has it.
    Asked,
}

impl Begin {
    /// What stands behind the role in a word.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Connected => "",
            Self::Asked => "-asked",
        }
    }
}

/// What one rule is about, for one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Which end this host has.
    pub role: Role,
    /// When TLS begins.
    pub begin: Begin,
    /// Of its rule; no other rule of the role has it.
    pub name: RuleName,
    /// The server's. Without any, all.
    pub ports: ArrayVec<PortRange, ENTRIES_MAX>,
    /// Where the other end is. Without any, everywhere.
    pub peers: ArrayVec<IpNet, ENTRIES_MAX>,
    /// Whose program it is. Without any, all users.
    pub users: ArrayVec<u32, ENTRIES_MAX>,
}

/// A connection that rules are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Which end this host has.
    pub role: Role,
    /// The server's port.
    pub port: u16,
    /// The other end; IPv4-mapped addresses as IPv4.
    pub peer: IpAddr,
    /// The program's.
    pub user: u32,
}

impl Scope {
    /// Whether it is about this connection.
    #[must_use]
    pub fn has(&self, subject: &Subject) -> bool {
        self.role == subject.role
            && (self.ports.is_empty() || self.ports.iter().any(|it| it.contains(subject.port)))
            && (self.peers.is_empty() || self.peers.iter().any(|it| it.contains(&subject.peer)))
            && (self.users.is_empty() || self.users.contains(&subject.user))
    }

    /// Whether every connection of `other` is one of this, so that a rule with `other` behind one with this
    /// never decides.
    ///
    /// It may say no where several of its entries cover one of the other's together, and never yes where that is
    /// not so.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let has_ports = |it: &PortRange| self.ports.iter().any(|own| own.covers(*it));
        let has_peers = |it: &IpNet| self.peers.iter().any(|own| own.contains(it));
        self.role == other.role
            && covers(&self.ports, &other.ports, has_ports)
            && covers(&self.peers, &other.peers, has_peers)
            && covers(&self.users, &other.users, |it| self.users.contains(it))
    }
}

/// A list without entries is everything.
fn covers<T>(own: &[T], other: &[T], has: impl FnMut(&T) -> bool) -> bool {
    own.is_empty() || (!other.is_empty() && other.iter().all(has))
}

/// The scopes of all rules that concern a program, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    known: ArrayVec<Scope, RULES_MAX>,
    /// Behind these are some that could not be read.
    has_unreadable: bool,
}

/// What the rules say of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// None has it.
    Unprotected,
    /// The rule at this place has it.
    Rule(usize),
    /// None that could be read has it, and one that could not be read may.
    Unreadable,
}

impl Scopes {
    /// What the first that has the connection says.
    #[must_use]
    pub fn decide(&self, subject: &Subject) -> Decision {
        match self.known.iter().position(|scope| scope.has(subject)) {
            Some(at) => Decision::Rule(at),
            None if self.has_unreadable => Decision::Unreadable,
            None => Decision::Unprotected,
        }
    }

    /// The one at this place.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&Scope> {
        self.known.get(at)
    }

    /// Whether any is about this end of connections, or may be.
    #[must_use]
    pub fn concern(&self, role: Role) -> bool {
        self.has_unreadable || self.known.iter().any(|scope| scope.role == role)
    }

    /// Whether any is about connections that a server gets at this port, wherever they come from, or may be.
    #[must_use]
    pub fn concern_port(&self, port: u16) -> bool {
        self.has_unreadable || self.about_server(port).next().is_some()
    }

    /// Whether each of those begins TLS with the connection, so that what a server gets at this port belongs to the gateway
    /// from its first byte.
    #[must_use]
    pub fn begin_at_once(&self, port: u16) -> bool {
        !self.has_unreadable && self.about_server(port).all(|scope| scope.begin == Begin::Connected)
    }

    fn about_server(&self, port: u16) -> impl Iterator<Item = &Scope> {
        let has =
            move |it: &&Scope| it.ports.is_empty() || it.ports.iter().any(|own| own.contains(port));
        self.known.iter().filter(|scope| scope.role == Role::Inbound).filter(has)
    }

    /// There are some, and what they are about is not known.
    #[must_use]
    pub const fn unreadable() -> Self {
        Self { known: ArrayVec::new_const(), has_unreadable: true }
    }

    /// Reads the value of the word `tls`, for a program of this name.
    ///
    /// The command that writes it has checked it, but may be newer than the library that reads it. What makes no
    /// sense to the library may be about any connection: it and all behind it are [`Decision::Unreadable`].
    #[must_use]
    pub fn parse(text: &str, program: &str) -> Self {
        let mut scopes = Self::default();
        for text in text.split(';').filter(|it| !it.is_empty()) {
            let read = text.rsplit_once('|').and_then(|(scope, programs)| {
                let is_for_program =
                    programs.is_empty() || programs.split(',').any(|it| it == program);
                Some((Scope::parse(scope)?, is_for_program))
            });
            let is_kept = match read {
                Some((scope, true)) => scopes.known.try_push(scope).is_ok(),
                Some((_, false)) => true,
                None => false,
            };
            if !is_kept {
                scopes.has_unreadable = true;
                break;
            }
        }
        scopes
    }
}

impl Scope {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('|');
        let mut field = || fields.next();
        let (role, begin) = begun_by(field()?)?;
        let scope = Self {
            role,
            begin,
            name: field()?.parse().ok()?,
            ports: list(field()?, |it| it.parse().ok())?,
            peers: list(field()?, |it| parse_subnet(it).ok())?,
            users: list(field()?, |it| it.parse().ok())?,
        };
        // One more would narrow it in a way that is not known here.
        field().is_none().then_some(scope)
    }
}

/// The first field of a scope.
fn begun_by(text: &str) -> Option<(Role, Begin)> {
    let is_it = |role: Role, begin: Begin| {
        text.strip_prefix(role.word()).is_some_and(|suffix| suffix == begin.suffix())
    };
    [Role::Outbound, Role::Inbound]
        .into_iter()
        .flat_map(|role| [Begin::Connected, Begin::Asked].map(|begin| (role, begin)))
        .find(|(role, begin)| is_it(*role, *begin))
}

/// Entries between commas. `None`: one of them is none, or there are too many.
fn list<T>(text: &str, entry: fn(&str) -> Option<T>) -> Option<ArrayVec<T, ENTRIES_MAX>> {
    let mut entries = ArrayVec::new();
    for text in text.split(',').filter(|it| !it.is_empty()) {
        entries.try_push(entry(text)?).ok()?;
    }
    Some(entries)
}

/// As [`Scopes::parse`] reads it, without the programs.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}|{}|", self.role.word(), self.begin.suffix(), self.name)?;
        write_list(f, &self.ports)?;
        f.write_str("|")?;
        write_list(f, &self.peers)?;
        f.write_str("|")?;
        write_list(f, &self.users)
    }
}

fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, list: &[T]) -> fmt::Result {
    for (n, entry) in list.iter().enumerate() {
        write!(f, "{}{entry}", if n == 0 { "" } else { "," })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;
    use std::vec::Vec;

    fn scope(text: &str) -> Scope {
        Scope::parse(text).unwrap()
    }

    fn subject(role: Role, port: u16, peer: &str, user: u32) -> Subject {
        Subject { role, port, peer: peer.parse().unwrap(), user }
    }

    #[test]
    fn the_first_scope_that_has_it_decides() {
        let scopes = Scopes::parse(
            "out|none|6514||4|x;out|logs|6514|10.0.0.0/8||a,b;out|any|6000-7000||5|;in|web|8443|||",
            "b",
        );
        let name = |subject| match scopes.decide(&subject) {
            Decision::Rule(at) => scopes.get(at).map(|it| it.name.to_string()),
            _ => None,
        };
        let out = |port, peer, user| name(subject(Role::Outbound, port, peer, user));
        assert_eq!(out(6514, "10.1.2.3", 5).as_deref(), Some("logs"));
        assert_eq!(out(6514, "192.0.2.1", 5).as_deref(), Some("any"));
        assert_eq!(out(6514, "192.0.2.1", 6), None, "another user");
        assert_eq!(out(8443, "192.0.2.1", 5), None, "another role");
        let inbound = subject(Role::Inbound, 8443, "fd00::1", 0);
        assert_eq!(name(inbound).as_deref(), Some("web"));
        assert!(scopes.concern_port(8443) && !scopes.concern_port(6514));
        assert!(scopes.concern(Role::Outbound));
    }

    #[test]
    fn what_makes_no_sense_is_not_read_as_less() {
        // A scope that lost an entry would be about other connections.
        for text in [
            "up|a|1||",
            "out-later|a|1||",
            "out-|a|1||",
            "-asked|a|1||",
            "out||1||",
            "out|a|x||",
            "out|a|1|10/8|",
            "out|a|1||root",
            "out|a|1|",
            "out|a|1|||",
        ] {
            assert_eq!(Scope::parse(text), None, "{text}");
        }
        let many: Vec<_> = (1..=9).map(|it: u16| it.to_string()).collect();
        assert_eq!(Scope::parse(&std::format!("out|a|{}||", many.join(","))), None);
    }

    #[test]
    fn what_cannot_be_read_may_be_about_any_connection() {
        let known = subject(Role::Outbound, 6514, "10.0.0.1", 0);
        let others =
            [subject(Role::Outbound, 80, "10.0.0.1", 0), subject(Role::Inbound, 8443, "::1", 0)];
        let decisions = |text: &str| {
            let scopes = Scopes::parse(text, "a");
            let concerns = [Role::Outbound, Role::Inbound].map(|role| scopes.concern(role));
            let concerns = (concerns, scopes.concern_port(8443));
            (scopes.decide(&known), others.map(|it| scopes.decide(&it)), concerns)
        };
        let unreadable = [Decision::Unreadable; 2];
        let all = ([true, true], true);
        for text in [
            "out|logs|6514|||;out|web|x|||",
            "out|logs|6514|||;out|web|1-9||||",
            "out|logs|6514|||;both|web|||||",
            "out|logs|6514|||;nonsense",
            // Also where what is wrong is said to be another program's, and what comes behind is right.
            "out|logs|6514|||;out|web|x|||b;in|all||||",
        ] {
            assert_eq!(decisions(text), (Decision::Rule(0), unreadable, all), "{text}");
        }
        assert_eq!(decisions("nonsense"), (Decision::Unreadable, unreadable, all));
        assert_eq!(Scopes::parse("nonsense", "a"), Scopes::unreadable());
        let many: Vec<_> = (0..=RULES_MAX).map(|n| std::format!("out|r{n}|1|||")).collect();
        assert_eq!(decisions(&many.join(";")), (Decision::Unreadable, unreadable, all));
        let none = ([false, false], false);
        let unprotected = [Decision::Unprotected; 2];
        assert_eq!(decisions("out|logs|6514|||b"), (Decision::Unprotected, unprotected, none));
    }

    #[test]
    fn a_scope_covers_what_is_narrower() {
        let wide = scope("out|a|6000-7000|10.0.0.0/8|");
        for (text, is_covered) in [
            ("out|b|6514|10.1.0.0/16|", true),
            ("out|b|6514|10.1.0.0/16|7", true),
            ("out|b|6514||", false),
            ("out|b|5999-6001|10.0.0.0/8|", false),
            ("in|b|6514|10.1.0.0/16|", false),
        ] {
            assert_eq!(wide.covers(&scope(text)), is_covered, "{text}");
        }
    }

    fn any_scope() -> impl Strategy<Value = Scope> {
        let ports = prop::collection::vec((1u16..9, 0u16..4), 0..3);
        let peers = prop::collection::vec((0u8..4, 30u8..=32), 0..3);
        let users = prop::collection::vec(0u32..3, 0..3);
        let ends = (any::<bool>(), any::<bool>());
        (ends, ports, peers, users).prop_map(|((is_out, is_asked), ports, peers, users)| Scope {
            role: if is_out { Role::Outbound } else { Role::Inbound },
            begin: if is_asked { Begin::Asked } else { Begin::Connected },
            name: "x".parse().unwrap(),
            ports: ports
                .iter()
                .map(|(at, more)| std::format!("{at}-{}", at + more).parse().unwrap())
                .collect(),
            peers: peers
                .iter()
                .map(|(host, len)| {
                    IpNet::new(IpAddr::from([10, 0, 0, *host]), *len).unwrap().trunc()
                })
                .collect(),
            users: users.into_iter().collect(),
        })
    }

    proptest! {
        #[test]
        fn scopes_are_read_as_they_are_written(scope in any_scope()) {
            prop_assert_eq!(Scope::parse(&scope.to_string()), Some(scope));
        }

        /// Over all connections that there are in so small a world.
        #[test]
        fn what_is_covered_never_decides(wide in any_scope(), narrow in any_scope()) {
            if wide.covers(&narrow) {
                for role in [Role::Outbound, Role::Inbound] {
                    for port in 0..13 {
                        for host in 0..8 {
                            for user in 0..3 {
                                let peer = IpAddr::from([10, 0, 0, host]);
                                let subject = Subject { role, port, peer, user };
                                prop_assert!(!narrow.has(&subject) || wide.has(&subject));
                            }
                        }
                    }
                }
            }
        }
    }
}
