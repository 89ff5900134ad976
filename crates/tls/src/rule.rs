//! What an operator can say of the protection of connections.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rustls::pki_types::ServerName;
use sidestep_proto::protection::{Begin, Role, RuleName, Scope};
use thiserror::Error;

use crate::cipher::Cipher;

/// A rule: which connections, and how they are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which connections, but for the programs.
    pub scope: Scope,
    /// Names of programs; without any, all.
    pub programs: Vec<String>,
    /// TLS 1.2, 1.3, or both.
    pub versions: Versions,
    /// Those that are allowed, the preferred first. Without any, all that there are.
    pub ciphers: Vec<Cipher>,
    /// What this host shows; a server has to.
    pub identity: Option<Identity>,
    /// By whom the peer's certificate has to be issued.
    pub trust: Trust,
    /// A server's: whether clients have to show a certificate.
    pub client_certificate: ClientCertificate,
    /// Names of which a client's certificate has to have one. Without any, every client that is trusted.
    pub client_names: Vec<PeerName>,
    /// A client's: whom the server's certificate has to be for.
    pub server_name: Option<Expected>,
    /// Names of protocols, the preferred first. Without any, TLS does not speak of protocols.
    pub alpn: Vec<String>,
    /// Whether two programs of this host have TLS between them.
    pub within_host: WithinHost,
    /// What an end of the peer without a word of TLS is to the program.
    pub unclean_end: UncleanEnd,
    /// When the peer is told that the program sends no more.
    pub half_close: HalfClose,
    /// No program but the gateway sends on its connections, where an agent sees to it.
    pub enforce: bool,
}

/// Where a certificate lies, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PEM, the certificate first and its issuers behind it.
    pub certificate: PathBuf,
    /// PEM: PKCS#8, PKCS#1 or SEC 1, without a password.
    pub key: PathBuf,
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// RFC 5246.
    pub tls12: bool,
    /// RFC 8446.
    pub tls13: bool,
}

/// Whose signature makes a certificate a peer's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// What the system trusts.
    System,
    /// The certificates in this file, in PEM, and no others.
    File(PathBuf),
}

/// Whether a server asks its clients for certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// It does not ask.
    None,
    /// It asks; a client that shows none is served, and one that shows a wrong one is not.
    Wanted,
    /// A client without one is not served.
    Needed,
}

/// Whom the certificate of a server has to be for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A name, which the server is told (SNI).
    Name(PeerName),
    /// The address that the program has connected to.
    Address,
    /// The name that the program has resolved to that address, or the address if it has asked for that.
    Resolved,
}

/// The name of a peer: of DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName(ServerName<'static>);

/// What the name of a peer may look like.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("use a name of DNS, such as \"logs.example.com\"")]
pub struct NotPeerName;

/// What a connection has whose two ends are programs of this host, each with a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithinHost {
    /// TLS, as with any peer.
    Tls,
    /// Its bytes stay in the memory of this host, without TLS, if the rule of the other end says so as well.
    Memory,
}

/// What an end of the TCP connection without `close_notify` is. Bytes may have been cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncleanEnd {
    /// A reset.
    Reset,
    /// An end like any other, as many HTTP and syslog programs have it.
    Eof,
}

/// What is done when a program sends no more and goes on to receive (`SHUT_WR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfClose {
    /// The peer is told at once.
    Send,
    /// The peer is told once it has ended itself: most programs with TLS 1.2 stop when they are told.
    Hold,
}

impl Rule {
    /// A rule with the defaults.
    #[must_use]
    pub const fn new(scope: Scope) -> Self {
        Self {
            scope,
            programs: Vec::new(),
            versions: Versions { tls12: true, tls13: true },
            ciphers: Vec::new(),
            identity: None,
            trust: Trust::System,
            client_certificate: ClientCertificate::None,
            client_names: Vec::new(),
            server_name: None,
            alpn: Vec::new(),
            within_host: WithinHost::Tls,
            unclean_end: UncleanEnd::Reset,
            half_close: HalfClose::Send,
            enforce: false,
        }
    }

    /// Its name among those of its role.
    #[must_use]
    pub const fn name(&self) -> RuleName {
        self.scope.name
    }

    /// What is missing, or goes with nothing else that it says.
    ///
    /// # Errors
    ///
    /// [`Inconsistent`], with what to do.
    pub fn check(&self) -> Result<(), Inconsistent> {
        let asks = self.client_certificate != ClientCertificate::None;
        match self.scope.role {
            Role::Inbound if self.identity.is_none() => return Err(Inconsistent::NoIdentity),
            Role::Inbound if self.server_name.is_some() => return Err(Inconsistent::ServerName),
            Role::Inbound if !asks && !self.client_names.is_empty() => {
                return Err(Inconsistent::NamesUnasked);
            }
            Role::Outbound if self.server_name.is_none() => return Err(Inconsistent::NoServerName),
            Role::Outbound if asks || !self.client_names.is_empty() => {
                return Err(Inconsistent::Clients);
            }
            _ => {}
        }
        if self.scope.ports.is_empty() {
            return Err(Inconsistent::NoPorts);
        }
        if self.enforce && !self.programs.is_empty() {
            return Err(Inconsistent::EnforcedPrograms);
        }
        if self.scope.begin == Begin::Asked {
            if self.enforce {
                return Err(Inconsistent::EnforcedLater);
            }
            if self.within_host == WithinHost::Memory {
                return Err(Inconsistent::JoinedLater);
            }
        }
        for (is_wanted, is_of_tls13, version) in
            [(self.versions.tls12, false, "1.2"), (self.versions.tls13, true, "1.3")]
        {
            let has_any = self.ciphers.iter().any(|it| it.is_of_tls13() == is_of_tls13);
            if is_wanted && !self.ciphers.is_empty() && !has_any {
                return Err(Inconsistent::NoCipher { version });
            }
        }
        Ok(())
    }
}

/// What is missing in a rule, or goes with nothing else that it says.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Inconsistent {
    /// TLS would be spoken to all servers of this host, or by all.
    #[error("has no ports; add ports = [...], the servers' ports that it is about")]
    NoPorts,
    /// A server has to show who it is.
    #[error(
        "has no certificate; add certificate = \"/path/chain.pem\" and key = \"/path/key.pem\""
    )]
    NoIdentity,
    /// There would be nothing that the certificate of the server is compared with.
    #[error(
        "has no server_name; add server_name = \"NAME\", for which the server's certificate has to be, \
         \"resolved\": for the name that the program has resolved, or \"address\": for the address that it \
         connects to"
    )]
    NoServerName,
    /// A server is found by its certificate, whatever name it has.
    #[error("server_name is for [tls.outbound]; take it out")]
    ServerName,
    /// They are for servers.
    #[error("client_certificate and client_names are for [tls.inbound]; take them out")]
    Clients,
    /// No client is asked for a certificate.
    #[error("has client_names, but asks for no certificate; add client_certificate = \"needed\"")]
    NamesUnasked,
    /// It is enforced for some programs, and which program a packet is of the kernel does not tell.
    #[error("enforce closes its ports to all programs; take programs out, or enforce")]
    EnforcedPrograms,
    /// It is enforced that no program sends plain text, and its programs begin with that.
    #[error(
        "controlled has programs begin in plain text, and enforce lets none of it leave; take out one of the two"
    )]
    EnforcedLater,
    /// What one end has sent in plain text and the other has not read would be lost between the two.
    #[error(
        "controlled goes with within_host = \"tls\" alone; take out within_host, or controlled"
    )]
    JoinedLater,
    /// A version is allowed and none of its suites.
    #[error(
        "allows TLS {version}, but none of its cipher suites; add one to ciphers, or take \"{version}\" out \
         of versions"
    )]
    NoCipher {
        /// Of TLS.
        version: &'static str,
    },
}

impl PeerName {
    pub(crate) const fn server_name(&self) -> &ServerName<'static> {
        &self.0
    }
}

impl FromStr for PeerName {
    type Err = NotPeerName;

    fn from_str(text: &str) -> Result<Self, NotPeerName> {
        match ServerName::try_from(text.to_owned()) {
            Ok(name @ ServerName::DnsName(_)) => Ok(Self(name)),
            _ => Err(NotPeerName),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_str())
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.tls12, self.tls13) {
            (true, true) => "1.2, 1.3",
            (true, false) => "1.2",
            (false, _) => "1.3",
        })
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("system"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(role: Role) -> Rule {
        let ports = ["8443".parse().unwrap()].into_iter().collect();
        let (begin, peers, users) = Default::default();
        Rule::new(Scope { role, begin, name: "a".parse().unwrap(), ports, peers, users })
    }

    fn identity() -> Option<Identity> {
        Some(Identity { certificate: "/c".into(), key: "/k".into() })
    }

    #[test]
    fn a_rule_says_what_its_role_needs() {
        let name: PeerName = "a.example".parse().unwrap();
        let client =
            Rule { server_name: Some(Expected::Name(name.clone())), ..rule(Role::Outbound) };
        let server = Rule { identity: identity(), ..rule(Role::Inbound) };
        assert_eq!((client.check(), server.check()), (Ok(()), Ok(())));
        assert_eq!(rule(Role::Outbound).check(), Err(Inconsistent::NoServerName));
        assert_eq!(rule(Role::Inbound).check(), Err(Inconsistent::NoIdentity));
        let named = Rule { server_name: client.server_name.clone(), ..server.clone() };
        assert_eq!(named.check(), Err(Inconsistent::ServerName));
        let unasked = Rule { client_names: vec![name], ..server.clone() };
        assert_eq!(unasked.check(), Err(Inconsistent::NamesUnasked));
        let asking = Rule { client_certificate: ClientCertificate::Needed, ..client.clone() };
        assert_eq!(asking.check(), Err(Inconsistent::Clients));
        let programs = vec!["a".to_owned()];
        let enforced = Rule { programs, enforce: true, ..client.clone() };
        assert_eq!(enforced.check(), Err(Inconsistent::EnforcedPrograms));
        let mut later = client.clone();
        later.scope.begin = Begin::Asked;
        assert_eq!(later.check(), Ok(()));
        let enforced = Rule { enforce: true, ..later.clone() };
        assert_eq!(enforced.check(), Err(Inconsistent::EnforcedLater));
        let joined = Rule { within_host: WithinHost::Memory, ..later };
        assert_eq!(joined.check(), Err(Inconsistent::JoinedLater));
        let mut everywhere = client;
        everywhere.scope.ports.clear();
        assert_eq!(everywhere.check(), Err(Inconsistent::NoPorts));
    }

    #[test]
    fn a_version_needs_a_suite() {
        let base = Rule { identity: identity(), ..rule(Role::Inbound) };
        let only12 = Rule { ciphers: vec!["C030".parse().unwrap()], ..base };
        assert_eq!(only12.check(), Err(Inconsistent::NoCipher { version: "1.3" }));
        let versions = Versions { tls12: true, tls13: false };
        assert_eq!(Rule { versions, ..only12 }.check(), Ok(()));
    }

    #[test]
    fn names_of_peers_are_of_dns() {
        for text in ["", "10.0.0.1", "::1", "a b", "-a.example", "*.example"] {
            assert_eq!(text.parse::<PeerName>(), Err(NotPeerName), "{text}");
        }
    }
}
